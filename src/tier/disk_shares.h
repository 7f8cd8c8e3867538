// tier/disk_shares.h: whose pieces a folder holds, in the order of their use, and whose next one gives way.
// Idea:       the pool's (kv/idle_extents.h): owners (tenants) that have a share of the folder wait in a line of their own,
//             all others, and what is nobody's, together in one, whose share is what is left. Whoever is furthest beyond
//             its share gives way first, with the next of its line. Other than in the pool a share is a limit too:
//             what is on a disk stays until it is deleted, so nothing is lent that would have to be deleted again.
//             A line is two lists, as in the pool (kv/eviction_order.h, kSegmented): what was used once goes first, what
//             was used longest ago before the rest, and what was used again may hold kProtected of the line's share (of
//             the first line's: of what the others leave), beyond which it is as if used once: so a day of prompts that
//             nobody asks again takes nothing that somebody does.
// Invariants: a line loses a piece for another's sake only while it is beyond its share itself. All pieces of a domain are
//             one tenant's, so those without an owner, of older folders, become their domain's owner's as soon as that is
//             known: a chain is in one line, and its order there is that of its use. Who uses a piece uses what that
//             continues, and then that waits behind it: nothing goes before what continues it.
// Threads:    one; held_by() and share_of() from any, once set() was called.
// Cost:       O(log n) a use; a look at each line for who gives way.
// Not here:   the pieces' bytes and records (disk_tier.h), which tenants there are (server/tenants.h).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "base/keyed_hash.h"
#include "base/mutex.h"

namespace kvilt {

class DiskShares {
 public:
  struct Held {  // a piece that the folder holds
    uint64_t id = 0;
    Digest domain{};
    std::optional<Digest> owner;
    int64_t bytes = 0;
    uint64_t used = 0;   // by a clock that counts
    bool again = false;  // somebody used it since it entered
  };
  using Stays = FunctionRef<bool(uint64_t id)>;

  explicit DiskShares(int64_t limit) : limit_(limit), lines_(1) {}
  // The owners' shares of the limit, each above 0, together 1 at most. REQUIRES: it holds nothing.
  void set(const std::map<Digest, double>& shares);

  // The piece stays where it is in memory until leave(). It was used just now.
  void enter(Held& piece);
  void leave(const Held& piece);
  void use(Held& piece);               // a reader did
  void refresh(Held& piece);           // it was not used, but waits as if it were the last one of its list that was
  void grow(Held& piece, int64_t by);  // its bytes; less than 0: it shrinks
  // The domain is this owner's: what nobody owned of it is too.
  void claim(const Digest& domain, const Digest& owner);

  // Whether so many bytes more may come for the owner.
  bool has_room(const std::optional<Digest>& owner, int64_t coming) const;
  // Who gives way for them; null: nobody does, for what could must stay. REQUIRES: there is no room.
  const Held* next(const std::optional<Digest>& owner, int64_t coming, Stays stays) const;
  // The same where the disk holds no more than it does now, whatever the limit says.
  const Held* next_of_full(const std::optional<Digest>& owner, int64_t coming, Stays stays) const;
  // What there is too much of already: shares and limit may be smaller than they were. Null: nothing.
  const Held* beyond() const;
  // The most that may be the owner's.
  int64_t most_of(const std::optional<Digest>& owner) const;

  int64_t bytes() const { return bytes_; }
  std::vector<uint64_t> by_use() const;      // longest ago first
  std::vector<uint64_t> used_again() const;  // of these those that were, in the same order
  int64_t held_by(const Digest& owner) const;
  int64_t share_of(const Digest& owner) const;  // 0: it has none of its own

 private:
  static constexpr double kProtected = .8;
  using ByUse = std::map<uint64_t, Held*>;
  struct Line {
    double part = 1;  // of the limit
    int64_t held = 0, held_again = 0;
    ByUse once = {}, again = {};
    ByUse& list_of(const Held& piece) { return piece.again ? again : once; }
    const Held* next(Stays stays) const;
  };
  void move(Held& piece, bool again);
  void keep_protected(Line& line);
  std::vector<uint64_t> ids_of(std::initializer_list<ByUse Line::*> lists) const;  // by use
  size_t line_of(const std::optional<Digest>& owner) const;
  bool is_beyond(size_t line, int64_t coming) const;
  const Held* furthest(size_t asking, int64_t coming, int64_t limit, Stays stays) const;
  void count(const std::optional<Digest>& owner, int64_t bytes);

  const int64_t limit_;
  int64_t bytes_ = 0;
  uint64_t clock_ = 0;
  std::vector<Line> lines_;  // the first: of all that have no share
  std::map<Digest, size_t> line_of_;
  std::map<std::pair<Digest, uint64_t>, Held*> unowned_;  // by domain and id
  mutable Mutex mutex_;
  std::unordered_map<Digest, int64_t, DigestHash> held_by_ KVILT_GUARDED_BY(mutex_);
};

}  // namespace kvilt

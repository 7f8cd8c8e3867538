// engine/peer_cache.h: what another server computes of a prompt: asked for, received as it is computed, and adopted.
// Role:       of a server with --role decode: one more place beside memory and the stores (engine/disk_cache.h) that has
//             beginnings of prompts. docs/deploy/prefill_decode.md; the bytes are docs/formats/peer.md's.
// Idea:       a long beginning that is known nowhere here is asked of the prefill server, but for the last token. Its KV
//             comes in chunks while it is computed there; each becomes a cached segment that continues the exact chain of
//             the asking request's namespace. When all came the request looks again, finds it, and computes one token.
//             Where heads have views, what comes is a session instead (Fetch::session): of local heads their windows. It
//             is that request's alone.
// Invariants: the engine thread waits for nothing; a request waits no longer without a new row than computing the rest
//             would take, for a session than twice the whole; after a late answer the peer is left alone for a while. No failure of the peer is one of a request: what did not come is computed, what came stays.
//             Neither tenant nor salt travel: asks carry a keyed digest of both.
// Threads:    the engine thread; PeerLink's own one posts to it.
// Not here:   the other side (engine/peer_answers.h), connections (peer/peer_link.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/content_cache.h"
#include "engine/prefill_pace.h"
#include "peer/peer_link.h"
#include "sched/sequence.h"

namespace kvilt {

class PeerCache {
 public:
  struct Options {
    PeerLink::Options link;
    int32_t least = 512;  // tokens for which the peer is asked
  };
  // cache: must outlive it.
  PeerCache(Options options, ContentCache& cache);
  ~PeerCache();

  struct Hooks {
    std::function<void(std::function<void()>)> post;  // runs a task on the engine thread; something may have come
    std::function<bool(int64_t, OwnerId)> make_room;  // as DiskCache's
  };
  Status attach(Hooks hooks);
  void finish();
  void clear();  // what is on its way is not adopted

  struct Question {
    std::span<const int32_t> prompt;
    std::span<const TokenMark> marks;
    KeySpace space;  // whose it is
    DomainId domain = 0;
    int32_t known = 0;  // tokens that memory has, of this namespace or another one of the request
    LayerRopes ropes;
    OwnerId owner = 0;                     // whose pages what comes becomes
    std::vector<std::string> method = {};  // PeerAsk's: a session is wanted. Empty: exact KV
  };
  // Asks for what is missing, if that is much. Null: it is computed here.
  std::shared_ptr<const Fetch> fetch(const Question& question);
  // A session that came is not what was asked for: it is computed here, and so is what this method asks for next, until
  // the connection was lost.
  void refuse_session(std::vector<std::string> method);
  bool busy() const { return !asked_.empty(); }
  // As DiskCache's.
  bool give_up_late();
  std::optional<Clock::time_point> patience_ends() const;
  void computed(int64_t tokens, double seconds) { pace_.add(tokens, seconds); }

  const PeerCounters& stats();

 private:
  struct Asked {
    std::vector<int32_t> tokens;  // that the peer computes
    Runs marks;
    DomainId domain = 0;
    LayerRopes ropes;
    OwnerId owner = 0;
    std::vector<std::string> method;
    int32_t next = 0;              // position of the next row that comes
    ChainEnd reach;                // of the tokens, as much as memory had when it was looked last
    std::vector<std::byte> bytes;  // of a session, as far as it came
    std::shared_ptr<Fetch> fetch;
    Clock::time_point until;
  };
  bool is_for(const Asked& asked, const Question& q, int32_t T) const;
  Asked* asked_by(uint64_t id);
  bool may_ask(const Question& question, int32_t T) const;
  void rows(const PeerRows& rows);
  void part(const PeerPart& part);
  void finish_session(Asked& asked);
  template <class Kv>
  std::function<void(Kv)> taken_by(void (PeerCache::*take)(const Kv&));
  int32_t look(Asked& asked, int32_t limit);
  void adopt(Asked& asked, const PeerRows& rows);
  void end(const PeerEnd& end);
  void lost();
  void give_up(uint64_t id);
  void done(uint64_t id);
  Clock::time_point patience_for(int64_t tokens) const;

  const int32_t least_;
  const HashSecret digests_;  // of domains
  const int64_t token_bytes_;
  ContentCache& cache_;
  Hooks hooks_;
  std::unordered_map<uint64_t, Asked> asked_;        // by id
  std::set<std::vector<std::string>> not_answered_;  // methods whose sessions did not fit
  uint64_t last_ = 0;
  PrefillPace pace_;
  std::chrono::seconds rest_{0};   // after the last late answer; doubled by each, none after a whole one
  Clock::time_point asks_from_{};  // until then it is not asked
  PeerCounters stats_;
  PeerLink link_;  // last: its thread uses the rest
};

// The domain of an ask. One key is shared by servers that know each other's tenants by the same names.
Digest peer_domain(const HashSecret& digests, const KeySpace& space);

}  // namespace kvilt

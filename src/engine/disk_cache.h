// engine/disk_cache.h: cached pieces and exact chains that leave memory, or outlive the process, and come back.
// Role:       between the content cache and a tier (tier/tier.h), on disk or shared: writes what is cached (spill.cc),
//             finds in the tier what memory lacks of a prompt and brings it back (loader.cc; layer by layer:
//             layer_loader.cc), and takes what was found out about it along, both ways (stored_annexes.cc).
//             docs/design/disk.md. A shared tier also tells what others stored (docs/design/redis.md).
// Idea:       what the tier holds has an index of its own, of the same kind as memory's. What is found there is loaded and
//             adopted by the content cache as if it had just been computed; only then do requests find it, so that every
//             rule of the content cache holds for it. A chain is written from its beginning on, so that the tier by itself
//             has all of what it names a prefix.
// Invariants: the engine thread never waits for the tier while requests run: writes are queued as far as their queue
//             has room, else dropped; a request whose KV is being read waits, and others pass; it waits no longer than
//             computing would take, for a disk five seconds where these are longer; for a disk that gives nothing for five
//             seconds no longer, and until that goes on nobody asks it. A part on its way has pages, which it gives back
//             where somebody else lacks them (give_way()). Approximate KV goes back to the domain that it came from. No
//             error of the tier is one of a request: what cannot be read is computed.
// Threads:    the engine thread; the tier is used by the I/O thread alone, once attach() was called.
// Not here:   chains of one policy's conversations, means over contexts and repaired pieces, whose KV is replaced all the
//             time, and annexes by token: these live in memory only.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/annex_kind.h"
#include "base/function_ref.h"
#include "base/step_map.h"
#include "engine/chunk_buffers.h"
#include "engine/content_cache.h"
#include "engine/io_thread.h"
#include "engine/prefill_pace.h"
#include "engine/spaced_warning.h"
#include "kv/kv_rows.h"
#include "sched/sequence.h"
#include "tier/annex_record.h"
#include "tier/tier.h"

namespace kvilt {

class Annex;

class DiskCache {
 public:
  struct Hooks {
    using Post = std::function<void(std::function<void()>)>;
    Post post;          // runs a task on the engine thread; something may have come
    Post post_unheard;  // the same, in one order with these; nobody who waits needs to ask again
    // Makes so many pages free for their owner-to-be, of those that no running request was promised. False: it cannot.
    std::function<bool(int64_t pages, OwnerId)> make_room;
    // Whether bytes that were stored are an annex of so many tokens, as somebody here reads them. Null: none is.
    std::function<bool(const AnnexKind&, int32_t tokens, std::span<const std::byte>)> is_sound = {};
  };

  // cache: must outlive it. maker: of all that bits of KV depend on besides tokens. Announces what the tier holds.
  // Errors: the tier's.
  static Result<std::unique_ptr<DiskCache>> open(std::unique_ptr<Tier> tier, const HashSecret& secret,
                                                 const Digest& maker, ContentCache& cache, int min_segment);
  ~DiskCache();

  // From now on keep() and entered() write.
  void attach(Hooks hooks);
  // The end: all that is cached is written. Waits. Nothing may be called any more but stats().
  void finish();
  // Forgets and removes all that is stored. What is being read is not adopted.
  void clear();

  // A segment is about to leave: it is queued to be written, with what it continues, as far as that is not stored.
  void keep(SegmentId id);
  // A segment was cached: it is written as soon as there is room in the queue.
  void entered(SegmentId id);

  struct Question {
    std::span<const int32_t> prompt;
    std::span<const TokenMark> marks;
    const ContentDomains& domains;
    const ContentCache::Wanted& wanted;
    LayerRopes ropes;
    FunctionRef<bool(const PromptLayout&)> uses;  // whether the policy would use pieces
    OwnerId owner = 0;                            // whose pages what is read becomes
  };
  // Begins to read what the tier has of the prompt beyond `found`, if reading is faster than computing. Null: nothing.
  std::shared_ptr<const Fetch> fetch(const Question& question, const ContentCache::Found& found);
  // The part that is being read gives its pages back, and is computed instead. False: none has any.
  bool give_way();
  // Something is being read or waits for that.
  bool busy() const { return loading_ > 0; }
  // Reads that took too long, and of a disk those behind one that does not come back, are no longer waited for, and give
  // their pages back. True: there were some.
  bool give_up_late();
  // When give_up_late() is to be called, where somebody waits.
  std::optional<Clock::time_point> patience_ends() const;

  // A prefill computed so many tokens in this time: what fetch() compares with.
  void computed(int64_t tokens, double seconds) { pace_.add(tokens, seconds); }

  // So many layers are read at once of what a request may run on meanwhile; 0: all of it is read first. For measurements.
  void layers_at_once(int layers) { layers_at_once_ = layers; }
  void read_always() {
    reads_always_ = true;
  }  // and wait, also where computing is faster as far as is known; for tests
  void disk_patience(std::chrono::milliseconds patience) { disk_patience_ = patience; }  // for tests
  void copy_at_once(int64_t bytes) { copied_at_once_ = bytes; }                          // at most; for tests
  int64_t tokens_hashed() const { return tokens_hashed_; }  // of what was continued; for tests
  int64_t forgotten() const { return forgotten_; }          // pieces, one by one; for tests

  static constexpr size_t kHeardAtOnce = 128;  // pieces that others stored or removed: of one step

  // Adds what the tier holds of these tenants, and their shares of it. Any thread.
  void add_parts(std::vector<TenantPool>& tenants) const;

  bool shared() const { return sharing_.has_value(); }
  const DiskCounters& stats() const { return stats_; }

 private:
  static constexpr std::chrono::minutes kUsedEvery{1};       // the tier is told once: its journal has a line of each
  static constexpr int64_t kReadAhead = int64_t{512} << 20;  // bytes of all loadings that are not finished

  // Tokens [offset, offset + count) of a stored piece, which the prompt has at pos.
  struct Part {
    uint64_t id = 0;
    int32_t offset = 0, count = 0, pos = 0;
    DomainId domain = 0;  // of the content cache
    bool prefix = false;  // it continues the prompt's exact chain
    uint64_t serial = 0;  // of the piece that had the id then
  };
  struct Stored {
    int32_t pos = 0;               // where its tokens were computed
    std::optional<Digest> behind;  // as StoredPiece's
    uint64_t serial = 0;           // another one where another piece came under the id
    Clock::time_point used = {};   // when the tier was told last that a prompt has it
    int32_t ends_at = 0;           // of its tokens: where somebody continues it, as `end` says ...
    Digest end{};                  // ... of what that has behind it
    uint32_t blocks = 1;           // as StoredPiece's
    std::vector<SegmentId> segments =
        {};  // of memory, that have its very KV: it was written of them, or they came of it
    std::vector<std::pair<AnnexKind, Run>> annexes = {};  // that it is known to have, of these of its tokens
  };
  struct Layered;
  struct Loading {
    std::vector<int32_t> prompt;
    std::vector<Part> parts;
    LayerRopes ropes;
    uint64_t epoch = 0;
    int64_t bytes = 0;
    std::shared_ptr<Fetch> fetch;
    Clock::time_point began = {};
    Clock::time_point at_most = Clock::time_point::max();  // nobody waits any longer; for a disk see ends()
    OwnerId owner = 0;
    ChainEnd reach = {};                         // of the prompt, as much as memory had when it was looked last
    std::unique_ptr<Layered> layered = nullptr;  // null: it is read chunk by chunk
  };
  struct Arriving {                    // one part, whose chunks come one by one
    std::unique_ptr<PageTable> table;  // null: none came yet
    Run wanted;                        // of the stored piece's tokens: the table has slots for these
    int32_t base = 0;                  // position of its token 0
    int32_t end = 0;                   // up to this token all came
    bool gap = false;                  // memory ended while a chunk was copied: nothing behind it is of use
    std::atomic<bool> refused{false};  // there was no room, or nobody wants it any more
    std::vector<StoredAnnex> annexes;  // that the piece has
    std::optional<Error> damaged;      // why it has none, where there were some
  };

  // The rest of an exact prefix that is read layer by layer, into pages that it has from the beginning on.
  struct Layered {
    struct Each {
      Each(const Part& part, int32_t tokens, const RowPlaces& places) : part(part), tokens(tokens), places(places) {}
      const Part part;
      const int32_t tokens;  // of the stored piece
      const RowPlaces places;
      Arriving arriving;  // its table is the engine thread's
    };
    std::deque<Each> parts;
    Mutex mutex;                                // of whoever writes into the pages, or gives them back
    bool gone KVILT_GUARDED_BY(mutex) = false;  // they were given back
  };

  DiskCache(std::unique_ptr<Tier> tier, const HashSecret& secret, const Digest& maker, ContentCache& cache,
            int min_segment);
  // From the I/O thread to the engine thread. It has to be heard: where memory ends it is said again until there is some.
  enum class Waits : uint8_t { kNobody, kSomebody };
  template <class Task>
  void say(const Task& task, Waits waits = Waits::kSomebody) {
    for (;;) {
      try {
        return waits == Waits::kSomebody ? hooks_.post(task) : hooks_.post_unheard(task);
      } catch (const std::bad_alloc&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }
  Status announce();
  void announce(StoredPiece& piece);
  bool continues(const StoredPiece& piece);
  Stored& stored(uint64_t id);
  Digest behind(uint64_t parent, int32_t tokens);
  void forget(uint64_t id);
  void touch_pages();
  void take_news();
  struct Heard {
    Tier::News news;       // what was removed is sorted
    uint64_t cleared = 0;  // as cleared_ was
    bool came_back = false;
    size_t forgotten = 0, taken = 0;  // of what was removed, and then of what was stored
    std::span<const uint64_t> leaving() const { return std::span(news.removed).subspan(forgotten); }
  };
  void told(const std::shared_ptr<Heard>& heard);
  void hear();
  bool anything_leaves() const;
  bool leaves(uint64_t id) const;
  void count();
  void update();

  // spill.cc
  struct Chain {  // an exact segment and what it continues, from position 0 on
    std::vector<SegmentId> segments;
    std::vector<int32_t> begins;  // of each, as positions
    std::vector<int32_t> tokens;
  };
  enum class Queue : uint8_t { kIfRoom, kWait };
  void store_all();
  void enter_all();
  void store_entered();
  void store(SegmentId id, Queue queue);
  bool find_stored(SegmentId id, std::vector<Piece>& pieces) const;
  void store_chain(SegmentId id, Queue queue);
  void mark_stored(SegmentId id, size_t annexes);
  Chain chain_of(SegmentId id) const;
  uint64_t store_run(SegmentId id, Run run, const ChainEnd* behind, Queue queue);
  void refused();
  Status put(const StoredPiece& piece, std::span<const std::byte> values, std::vector<uint64_t>& removed);
  struct Written {
    uint64_t id = 0, epoch = 0;
    int64_t bytes = 0;
    Status done;
    std::vector<uint64_t> removed;
    bool annexes = false;  // they, and not the piece
  };
  void wrote(const Written& write);
  void not_kept(const Written& write);

  // stored_annexes.cc
  std::vector<const Annex*> annexes_of(SegmentId id) const;
  void has_kv_of(SegmentId id, uint64_t stored);
  bool store_annexes(SegmentId id, int32_t first, std::span<const Piece> pieces, Queue queue);
  bool store_annexes(uint64_t stored, std::vector<StoredAnnex> annexes, Queue queue);
  Status put_annexes(uint64_t id, const std::vector<StoredAnnex>& annexes, std::vector<uint64_t>& removed);
  void read_annexes(uint64_t id, Arriving& to);
  void attach_annexes(const Part& part, SegmentId id, Run wanted, const Arriving& from, OwnerId owner);

  // loader.cc
  DomainId stored_domain(DomainId domain);
  void use(std::span<const Piece> pieces);
  std::vector<Part> missing(const Question& question, const ContentCache::Found& found);
  void add_prefix(const Question& question, const ContentCache::Found& found, std::vector<Part>& parts);
  void add_pieces(const Question& question, const ContentCache::Found& found, std::vector<Part>& parts);
  int64_t bytes_of(const Part& part) const;
  bool may_read(uint64_t id) const { return !queued_.contains(id) && !leaves(id); }
  bool is_there(const Part& part) const;
  bool pays(const std::vector<Part>& parts) const;
  void begin_to_wait(Loading& loading) const;
  Clock::time_point ends(const Loading& loading) const;
  bool hangs() const;
  void drop(const std::shared_ptr<Loading>& loading);
  std::shared_ptr<const Fetch> begin(const Question& question, std::vector<Part> parts);
  bool queue(const Question& question, const std::vector<Part>& parts, const std::shared_ptr<Loading>& loading);
  void read_parts(const std::shared_ptr<Loading>& loading);
  void read(const std::shared_ptr<Loading>& loading, const Part& part);
  void learn_pace(Clock::time_point start, int64_t bytes);
  void refuse(const Part& part, const Error& why);
  Run lacking(Loading& loading, const Part& part, int32_t end) const;
  void place(Loading& loading, const Part& part, int32_t chunk, std::span<const std::byte> bytes,
             const std::shared_ptr<Arriving>& to);
  bool copy_in(Loading& loading, const Part& part, int32_t chunk, std::span<const std::byte> bytes, Arriving& to);
  void adopt(Loading& loading, const Part& part, const Arriving& from, const PageTable* table);
  void finished(const std::shared_ptr<Loading>& loading);

  // layer_loader.cc
  bool may_layer(const Question& question, const Loading& loading) const;
  bool reserve(Loading& loading);
  void read_layers(const std::shared_ptr<Loading>& loading);
  Status read_layers(const std::shared_ptr<Loading>& loading, Run layers, const Part*& of, int64_t& bytes);
  Status read_blocks(Layered& to, const Layered::Each& each, int32_t chunk, Run layers, int64_t& read_bytes);
  void layers_came(const std::shared_ptr<Loading>& loading, const Part* damaged, const Status& done);
  bool drop_layered(bool even_in_use);

  const std::unique_ptr<Tier> tier_;
  const std::optional<Tier::Sharing> sharing_;
  const HashSecret secret_;
  const Digest maker_;
  ContentCache& cache_;
  const int min_segment_;
  const int64_t token_bytes_;
  std::unique_ptr<ContentIndex> index_;          // of what is stored, or queued to be
  StepMap<Stored> stored_;                       // by id, as index_
  std::unordered_set<uint64_t> queued_;          // not written yet
  std::unordered_map<SegmentId, size_t> whole_;  // chains of memory that are stored to their end, with so many annexes
  std::unordered_map<uint64_t, std::weak_ptr<Fetch>> fetches_;  // of pieces that are being read
  std::deque<SegmentId> entered_;                               // that others do not have yet
  std::vector<std::shared_ptr<Loading>> awaited_;               // which end at a time, oldest first
  std::deque<std::shared_ptr<Heard>> unheard_;                  // of what was told, oldest first
  std::shared_ptr<Arriving> arriving_;                          // the part that has pages; one at a time is read
  const Loading* arriving_for_ = nullptr;                       // whose it is; never looked into
  const std::shared_ptr<const int> touching_ = std::make_shared<const int>();  // by each job that tells of uses
  std::shared_ptr<Loading> layered_;  // what is read layer by layer; one at a time
  Hooks hooks_;
  DiskCounters stats_;
  uint64_t epoch_ = 0;      // counts clear()
  uint64_t announced_ = 0;  // counts announce()
  uint64_t cleared_ = 0;    // as the I/O thread does
  bool reads_always_ = false;
  bool stores_entered_ = false;  // store_entered() was posted
  bool hears_ = false;           // hear() was
  int loading_ = 0, layers_at_once_ = 4;
  int64_t reading_ = 0, copied_ = 0, queued_bytes_ = 0;
  int64_t copied_at_once_ = int64_t{64} << 20;  // by one eviction: some 10 ms
  int64_t tokens_hashed_ = 0, forgotten_ = 0;
  bool short_of_room_ = false;  // of the last one that was to be stored something had no room
  SpacedWarning not_read_{"cached KV is computed instead of read"};
  SpacedWarning hangs_{"the disk of the cache hangs, or takes longer than computing"};
  SpacedWarning not_kept_{"what is cached is not kept"};
  SpacedWarning annex_lost_{"what is known of cached KV is found out anew"};
  PrefillPace pace_;
  Clock::duration disk_patience_ = std::chrono::seconds(5);
  std::atomic<Clock::time_point> moved_{};     // when a disk's last read or write ended
  std::atomic<double> read_s_{1.0 / 500e6};    // a byte
  Clock::time_point refused_at_ = {};          // when it was last looked whether reading pays
  std::atomic<int64_t> bytes_{0}, pieces_{0};  // as the tier says
  ChunkBuffers buffers_;                       // of chunks on their way
  IoThread io_;                                // last: its jobs use the rest
};

}  // namespace kvilt

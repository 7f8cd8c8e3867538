// engine/engine_loop.h: the engine thread: takes requests from the inbox, steps the scheduler, runs the driver,
// samples, publishes.
// Role:     the one owner of scheduler, KV and driver (ARCHITECTURE.md). Start at step(), in engine_loop.cc; what
//           follows from a computed chunk is in progress.cc.
// Threads:  sequences draw their tokens side by side on the pool (draw), each touching what is its own, once the side
//           thread has given it back: that fills the masks of constrained ones beside the forward pass. Else:
//           post(), stats(), policy_off() and parts() from any thread; everything else on the engine thread.
// Not here: the public interface (engine.cc), finding and placing (prepare.h), audits (auditor.h), the order (sched/).
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/function_ref.h"
#include "base/latest.h"
#include "base/mutex.h"
#include "engine/answer_text.h"
#include "engine/auditor.h"
#include "engine/clean_copier.h"
#include "engine/constraints.h"
#include "engine/drafts.h"
#include "engine/engine_parts.h"
#include "engine/lingering.h"
#include "engine/prepare.h"
#include "engine/profiled_prompt.h"
#include "engine/seasoner.h"
#include "engine/side_thread.h"
#include "forward/driver.h"
#include "sched/scheduler.h"

namespace kvilt {

class EngineLoop {
 public:
  explicit EngineLoop(EngineParts parts);
  ~EngineLoop();  // cancels what still runs

  // Runs `task` on the engine thread between two steps.
  void post(std::function<void()> task);
  EngineStats stats() const;

  // From here on the engine thread (inside a posted task).
  void add(std::unique_ptr<Sequence> sequence);
  // Before its request is added.
  void constrain(RequestId id, ConstrainedAnswer answer) {
    const auto [at, is_new] = constrained_.try_emplace(id, std::move(answer));
    CHECK(is_new);
    fill_ahead(at->second);
  }
  void cancel(RequestId id);
  void cancel_all();
  ProfilerParts parts_to_profile() { return {*parts_.model, *parts_.pool, driver_, parts_.cache->store()}; }
  // An error if so many pages cannot be free for these tokens.
  Status room_to_profile(size_t tokens, int64_t pages);
  void clear_cache() {
    drop_idle_work();
    drop_lingering();
    parts_.each_source([](auto& source) { source.clear(); });
    for (IdleWork* work : idle_work_) work->clear();
    parts_.cache->clear();
    ++changes_;
    update_stats();  // whoever hears that it is cleared sees so in the figures
  }
  void thaw(const std::string& tenant, const std::vector<std::string>& names) {
    for (const std::string& name : names) parts_.cache->thaw(tenant, name);
    update_stats();
  }
  bool idle() const { return scheduler_.idle(); }

  // Until then the call is made whenever a part of the request's prefill was published, which is soon and often.
  void watch(RequestId id, std::function<void()> grew) { watches_.insert_or_assign(id, std::move(grew)); }
  void unwatch(RequestId id) { watches_.erase(id); }

  // Any thread: the policy was switched off by its audits.
  bool policy_off(const std::string& policy) const { return auditor_.off(policy); }

  const EngineParts& parts() const { return parts_; }

 private:
  // A sequence whose logits are there: of a row, or of some with drafts. The tokens go to running.drawn.
  struct Drawn {
    Sequence* sequence;
    Mat<float> logits;
    ConstrainedAnswer* constrained;    // null: any token may come
    double mask_s = 0, ahead_s = 0;    // that it took; the part that nobody waited for
    bool sound = true;                 // false: the logits of the row after the last drawn token are not numbers
    std::optional<Error> failed = {};  // its constraint: no token comes after the last drawn one
    bool no_memory = false;            // to draw, or to follow the constraint
  };

  void run();
  bool step();
  void take_layers();
  Chunk chunk_of(const StepItem& item, int64_t& verified);
  void run_groups(std::span<StepGroup> groups);
  void run_group(StepGroup& group);
  void after(StepItem& item, const Chunk& chunk);
  bool may_publish(const Sequence& sequence) const { return parts_.options.cache && sequence.request.publish; }
  int64_t spare_pages() const;
  ContentCache::Own own_of(const Sequence& s, const PromptLayout& layout, int32_t computed,
                           const Runs& recomputed = ContentCache::kNone) const;
  void publish_as_it_goes(Sequence& sequence, int32_t at_least);
  static void report(Sequence& sequence);
  void finish_prefill(Sequence& sequence);
  void keep_with_preference(const Sequence& sequence);
  void season(Sequence& sequence);
  void wants_seasoning(const Sequence& sequence);
  void keep_work(const Sequence& sequence) const;
  static void add_pages(const PageTable& kv, const Plan& plan, ByHeadClass& sum);
  void account(Sequence& sequence) const;
  void evict(Sequence& sequence);
  void wants_token(Sequence& sequence, Mat<float> logits);
  void propose_draft(Sequence& sequence, int most);
  void draw();
  void draw(Drawn& drawn, SamplerScratch& scratch) const;
  void fill_ahead(ConstrainedAnswer& answer);
  void take_back(Drawn& drawn);
  void forget_answer(RequestId id);
  void answer(Drawn& drawn);
  std::optional<Finish> hear(Sequence& sequence, size_t drawn);
  void end(Sequence& sequence, Finish finish, std::optional<Error> why = std::nullopt);
  void close(std::unique_ptr<Sequence> sequence);
  void fail_for_memory(Sequence& sequence);
  void fail_for_room(Sequence& sequence);
  Admission plan(Sequence& sequence);
  void unless_memory_ends(FunctionRef<void()> work);
  void attach_stores();
  bool reads() const;
  bool give_up_late();
  std::optional<Clock::time_point> patience_ends() const;
  std::optional<Clock::time_point> idle_work_at() const;
  void find_idle_work();
  void start_idle_work();
  void drop_idle_work();
  void linger(std::unique_ptr<Sequence> sequence);
  bool go_on_lingering();
  void pause_lingering();
  void drop(std::unique_ptr<Sequence> sequence);
  void drop_expired();
  void drop_lingering();
  void join(std::unique_ptr<Sequence> left, std::unique_ptr<Sequence> next);
  bool make_room_of_lingering(int64_t pages, OwnerId wanted_by);
  bool make_room(int64_t pages, OwnerId wanted_by = 0);
  ContentCache::Reach reach() const { return idle_now_ ? ContentCache::Reach::kOrdinary : ContentCache::Reach::kAll; }
  // Parts of the index of near duplicates are left (ContentIndex::near_more).
  bool near_goes_on() const { return parts_.cache->near_waits() && Clock::now() >= near_from_; }
  void near_more();
  void retell(bool start);
  void update_stats();
  bool make_room_beside(int64_t pages, OwnerId wanted_by);
  int64_t room() const;

  EngineParts parts_;
  Preparer preparer_;
  Scheduler scheduler_;
  Driver driver_;
  std::vector<RequestId> ended_;         // by this step; taken out after it
  std::vector<Chunk> chunks_;            // of the group that runs; here, as delta_, to keep their memory
  FloatMat verified_;                    // logits of its rows that have drafts, or are some
  int64_t to_verify_ = 0;                // rows with drafts of the step that is being put together
  std::vector<Drawn> drawn_;             // of the group that ran
  std::vector<SamplerScratch> scratch_;  // by worker of the pool
  TokenDelta delta_;
  std::unordered_map<RequestId, AnswerText> answers_;
  std::unordered_map<RequestId, ConstrainedAnswer> constrained_;  // of requests with a constraint
  SideThread side_;                                               // fills masks of these; by their address
  std::unordered_map<RequestId, std::function<void()>> watches_;
  uint64_t steps_ = 0;
  uint64_t changes_ = 1;  // prefills and requests that ended, caches that were cleared
  Drafts drafts_;
  Auditor auditor_;
  CleanCopier copier_;
  Seasoner seasoner_;
  const std::array<IdleWork*, 3> idle_work_{&auditor_, &copier_, &seasoner_};  // who is asked first
  IdleWork* idle_now_ = nullptr;                                               // whose sequence runs
  Clock::time_point idle_from_;                                                // idle work may begin
  Clock::time_point near_from_;                                                // near_more() may go on
  Clock::time_point seasoned_until_;                                           // the last pass of seasoning ended
  Lingering lingering_;                                                        // but for the one that goes on
  RequestId going_on_ = 0;                                                     // which the scheduler has, alone
  Clock::time_point going_on_until_;

  EngineCounters stats_;           // the engine thread's
  Latest<EngineCounters> latest_;  // for others
  uint64_t pools_at_ = 0;          // changes_ when pools_ was written
  mutable Mutex pools_mutex_;
  std::vector<TenantPool> pools_ KVILT_GUARDED_BY(pools_mutex_);

  mutable Mutex mutex_;
  Condition wake_;
  std::vector<std::function<void()>> inbox_ KVILT_GUARDED_BY(mutex_);
  bool stop_ KVILT_GUARDED_BY(mutex_) = false;
  std::atomic<bool> posted_{false};  // inbox_ or stop_ changed: steps look here, and take the mutex only then
  std::latch counted_{1};            // latest_ and pools_ say what there is
  std::thread thread_;               // last: everything it uses is there
};

}  // namespace kvilt

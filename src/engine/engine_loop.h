// engine/engine_loop.h: the engine thread: takes requests from the inbox, steps the scheduler, runs the driver,
// samples, publishes.
// Role:     the one owner of scheduler, KV and driver (DESIGN 3, 4).   Start at step().
// Threads:  post() and stats() from any thread; everything else on the engine thread.
// Not here: the public interface (engine.cc), chat templates (chat.h), who runs next (sched/).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/latest.h"
#include "base/mutex.h"
#include "engine/answer_text.h"
#include "engine/audit.h"
#include "engine/content_cache.h"
#include "engine/options.h"
#include "forward/driver.h"
#include "kvilt/head_profile.h"
#include "sched/scheduler.h"

namespace kvilt {

// What the engine thread works with; built by open_engine before the thread starts.
struct EngineParts {
  ResolvedOptions options;
  std::shared_ptr<const ModelFile> file;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<PreparedModel> model;
  std::unique_ptr<ContentCache> cache;
};

class EngineLoop {
 public:
  explicit EngineLoop(EngineParts parts);
  ~EngineLoop();  // cancels what still runs

  // Runs `task` on the engine thread between two steps.
  void post(std::function<void()> task);
  EngineStats stats() const;

  // From here on the engine thread (inside a posted task).
  void add(std::unique_ptr<Sequence> sequence);
  void cancel(RequestId id);
  void cancel_all();
  Result<HeadProfile> profile_heads(std::span<const int32_t> prompt, const HeadProfileOptions& options);
  void clear_cache() {
    parts_.cache->clear();
    ++changes_;
  }
  bool idle() const { return scheduler_.idle(); }

  // Any thread: the policy was switched off by its audits.
  bool policy_off(const std::string& policy) const { return audit_.off(policy); }

  const EngineParts& parts() const { return parts_; }

 private:
  void run();
  void step();
  Admission prepare(Sequence& sequence);
  bool same_prompt_running(const Sequence& sequence) const;
  bool import(Sequence& sequence);
  void place(Sequence& sequence, std::vector<Placement> placements);
  void copy_placed(Sequence& sequence);
  void run_group(StepGroup& group);
  void after(StepItem& item, const Work& work);
  void finish_prefill(Sequence& sequence);
  void sample(Sequence& sequence);
  void end(Sequence& sequence, Finish finish, std::optional<Error> why = std::nullopt);
  void close(std::unique_ptr<Sequence> sequence);
  void update_stats();
  void start_audit();
  void drop_audit();
  void end_audit(Completion completion);

  EngineParts parts_;
  Scheduler scheduler_;
  Driver driver_;
  std::vector<RequestId> ended_;  // by this step; taken out after it
  std::vector<Chunk> chunks_;     // of the group that runs; here, as delta_, to keep their memory
  TokenDelta delta_;
  std::unordered_map<RequestId, AnswerText> answers_;
  uint64_t steps_ = 0;
  uint64_t changes_ = 1;  // prefills and requests that ended, caches that were cleared
  Audit audit_;
  std::unordered_map<RequestId, std::unique_ptr<AuditRecord>> sampled_;  // requests that run
  std::unique_ptr<AuditRecord> auditing_;                                // being computed in full, as kAuditId

  EngineCounters stats_;           // the engine thread's
  Latest<EngineCounters> latest_;  // for others

  mutable Mutex mutex_;
  Condition wake_;
  std::vector<std::function<void()>> inbox_ KVILT_GUARDED_BY(mutex_);
  bool stop_ KVILT_GUARDED_BY(mutex_) = false;
  std::vector<AuditStats> audits_ KVILT_GUARDED_BY(mutex_);
  std::atomic<bool> posted_{false};  // inbox_ or stop_ changed: steps look here, and take the mutex only then
  std::thread thread_;               // last: everything it uses is there
};

}  // namespace kvilt

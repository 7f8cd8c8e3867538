// engine/engine_loop.h: the engine thread: takes requests from the inbox, steps the scheduler, runs the driver,
// samples, publishes.
// Role:     the one owner of scheduler, KV and driver (DESIGN 3, 4).   Start at step().
// Threads:  post() and stats() from any thread; everything else on the engine thread.
// Not here: the public interface (engine.cc), chat templates (chat.h), who runs next (sched/).
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "engine/answer.h"
#include "engine/audit.h"
#include "engine/content_cache.h"
#include "forward/driver.h"
#include "sched/scheduler.h"

namespace kvilt {

// What the engine thread works with; built by open_engine before the thread starts.
struct EngineParts {
  EngineOptions options;
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
  void clear_cache() { parts_.cache->clear(); }
  bool idle() const { return scheduler_.idle(); }

  // Any thread: the policy was switched off by its audits.
  bool policy_off(const std::string& policy) const { return audit_.off(policy); }

  const EngineParts& parts() const { return parts_; }

 private:
  void run();
  void step();
  bool prepare(Sequence& sequence);
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
  std::unordered_map<RequestId, Answer> answers_;
  uint64_t steps_ = 0;
  Audit audit_;
  std::unordered_map<RequestId, std::unique_ptr<AuditRecord>> sampled_;  // requests that run
  std::unique_ptr<AuditRecord> auditing_;                                // being computed in full, as kAuditId

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> inbox_;  // guarded by mutex_
  bool stop_ = false;                        // guarded by mutex_
  EngineStats stats_;                        // guarded by mutex_
  std::thread thread_;                       // last: everything it uses is there
};

}  // namespace kvilt

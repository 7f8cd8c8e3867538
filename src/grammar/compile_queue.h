// grammar/compile_queue.h: who compiles a grammar, who waits for it, and who is told to come again.
// Idea:       a compilation takes a core, so a few run at once, and others wait in the order in which they came. Those
//             who wait hold a connection each: how many may is bounded, or else some grammars that take long would hold
//             all of them. Who asks for what is compiled already gets its outcome and takes no place.
// Invariants: what runs has another name than all else that runs or waits.
// Threads:    any.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/function_ref.h"
#include "base/mutex.h"
#include "kvilt/result.h"

namespace kvilt {

class Grammar;

class CompileQueue {
 public:
  using Outcome = Result<std::shared_ptr<const Grammar>>;

  CompileQueue(size_t at_once, size_t most_waiting, double wait_seconds)
      : at_once_(at_once), most_waiting_(most_waiting), patience_(wait_seconds) {}

  // The outcome of `work`, which runs on this thread, or of the work of another that is named the same. Errors:
  // kExhausted: too many wait, or it has waited for too long. Throws what `work` throws; then bad_alloc to the others.
  Outcome run(const std::string& name, FunctionRef<Outcome()> work);

  size_t waiting() const;  // for a turn

 private:
  struct Job {
    bool over = false;
    std::optional<Outcome> outcome;  // none: it threw
  };

  Outcome of_another(MutexLock& lock, const Job& job) KVILT_REQUIRES(mutex_);
  bool wait_for_turn(MutexLock& lock, const Job& job, std::list<const Job*>& place) KVILT_REQUIRES(mutex_);
  void end(const std::string& name, Job& job) KVILT_REQUIRES(mutex_);

  const size_t at_once_, most_waiting_;
  const std::chrono::duration<double> patience_;
  mutable Mutex mutex_;
  Condition changed_;
  std::map<std::string, std::shared_ptr<Job>> jobs_ KVILT_GUARDED_BY(mutex_);  // that run or wait
  std::list<const Job*> line_ KVILT_GUARDED_BY(mutex_);                        // of those that wait
  size_t running_ KVILT_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvilt

#include "grammar/compile_queue.h"

#include <exception>
#include <new>
#include <utility>

#include "base/error.h"

namespace kvilt {
namespace {

Error waited_too_long() { return error(Code::kExhausted, "too many constraints are compiled at once; try again"); }

}  // namespace

CompileQueue::Outcome CompileQueue::run(const std::string& name, FunctionRef<Outcome()> work) {
  MutexLock lock(mutex_);
  if (const auto found = jobs_.find(name); found != jobs_.end()) {
    const std::shared_ptr<const Job> job = found->second;
    return of_another(lock, *job);
  }
  const bool waits = running_ == at_once_ || !line_.empty();
  if (waits && line_.size() >= most_waiting_)
    return error(Code::kExhausted, "{} constraints wait to be compiled already; try again", line_.size());
  const auto job = std::make_shared<Job>();
  std::list<const Job*> place{job.get()};
  jobs_.emplace(name, job);  // the last that may throw
  if (!wait_for_turn(lock, *job, place)) {
    job->outcome = waited_too_long();
    end(name, *job);
    return *job->outcome;
  }
  ++running_;
  changed_.notify_all();  // another turn may be free, and the next in the line now
  lock.unlock();
  std::exception_ptr thrown;
  try {
    job->outcome = work();
  } catch (...) {
    thrown = std::current_exception();
  }
  lock.lock();
  --running_;
  end(name, *job);
  if (thrown) std::rethrow_exception(thrown);
  return *job->outcome;
}

CompileQueue::Outcome CompileQueue::of_another(MutexLock& lock, const Job& job) {
  if (!changed_.wait_for(lock, patience_, [&] { return job.over; })) return waited_too_long();
  if (!job.outcome) throw std::bad_alloc();
  return *job.outcome;
}

// place: of the job alone.
bool CompileQueue::wait_for_turn(MutexLock& lock, const Job& job, std::list<const Job*>& place) {
  line_.splice(line_.end(), place);
  const bool turn = changed_.wait_for(
      lock, patience_, [&]() KVILT_REQUIRES(mutex_) { return running_ < at_once_ && line_.front() == &job; });
  line_.remove(&job);
  return turn;
}

void CompileQueue::end(const std::string& name, Job& job) {
  job.over = true;
  jobs_.erase(name);
  changed_.notify_all();
}

size_t CompileQueue::waiting() const {
  MutexLock lock(mutex_);
  return line_.size();
}

}  // namespace kvilt

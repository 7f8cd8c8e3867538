// engine/idle_work.h: what the engine does when no request is there: audits, clean copies, seasoning.
// Role:       EngineLoop asks each kind in turn whether something waits, runs one sequence of one kind at a time, and
//             tells the kind how that ended.
// Invariants: it makes way as soon as a real request comes: interrupt() then takes the place of finish(), and what was
//             begun is tried again later, a few times. What waits is bounded.
// Threads:    the engine thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "sched/sequence.h"

namespace kvilt {

// Keeps one kind of idle work to its share of the idle time: after t seconds of it t (1 / share - 1) without.
class IdlePace {
 public:
  explicit IdlePace(double share) : share_(share) {}  // above 0, up to 1

  Clock::time_point next() const { return next_; }  // may begin then
  void begin() { begun_ = Clock::now(); }
  void end() {  // whether it was done or interrupted
    const auto now = Clock::now();
    next_ = now + std::chrono::duration_cast<Clock::duration>((now - begun_) * (1 / share_ - 1));
  }

 private:
  const double share_;
  Clock::time_point begun_, next_ = {};
};

class IdleWork {
 public:
  static constexpr RequestId kId = ~RequestId{0};  // of its sequences

  virtual ~IdleWork() = default;
  // When the next may begin; any moment of the past: now. Nothing: none waits.
  virtual std::optional<Clock::time_point> ready() const = 0;
  // The next. REQUIRES: ready(), none runs.
  virtual std::unique_ptr<Sequence> start() = 0;
  virtual void interrupt() = 0;                    // nothing happens where none runs
  virtual void finish(Completion completion) = 0;  // the same
  virtual void clear() {}                          // the cache was cleared: what waits is not wanted any more

  // Hears nothing.
  static std::shared_ptr<TokenSink> nobody();

 protected:
  // A sequence that nobody waits for and nobody hears of, and that generates nothing.
  static std::unique_ptr<Sequence> sequence(Prompt prompt, const char* policy, const ContentDomains& domains,
                                            OwnerId owner);
};

}  // namespace kvilt

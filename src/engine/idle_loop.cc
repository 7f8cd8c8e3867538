// engine/idle_loop.cc: EngineLoop's time without requests: which idle work runs (engine/idle_work.h), prefills whose
// clients are gone (engine/lingering.h), and how both make way.
// Threads:    the engine thread.
#include <algorithm>
#include <new>
#include <utility>

#include "engine/engine_loop.h"

namespace kvilt {

// When the next of it may begin; nothing where none waits.
std::optional<Clock::time_point> EngineLoop::idle_work_at() const {
  if (!lingering_.empty()) return Clock::now();
  std::optional<Clock::time_point> first;
  for (const IdleWork* work : idle_work_) {
    if (const auto at = work->ready(); at && (!first || *at < *first)) first = at;
  }
  return first ? std::optional(std::max(*first, idle_from_)) : first;
}

void EngineLoop::find_idle_work() {
  try {
    if (scheduler_.idle() && !go_on_lingering() && Clock::now() >= idle_from_) start_idle_work();
  } catch (const std::bad_alloc&) {
    drop_idle_work();
    idle_from_ = Clock::now() + std::chrono::seconds(1);
  }
}

void EngineLoop::start_idle_work() {
  for (IdleWork* work : idle_work_) {
    if (const auto at = work->ready(); !at || *at > Clock::now()) continue;
    idle_now_ = work;
    return add(work->start());
  }
}

// A real request came: idle work makes way.
void EngineLoop::drop_idle_work() {
  if (!idle_now_) return;
  scheduler_.remove(IdleWork::kId);
  ++changes_;
  answers_.erase(IdleWork::kId);
  std::exchange(idle_now_, nullptr)->interrupt();
}

// Its client is gone. It hears so now; the prefill waits for who sends it again, unless somebody has already.
void EngineLoop::linger(std::unique_ptr<Sequence> s) {
  publish_as_it_goes(*s, 1);
  ++changes_;
  ++stats_.requests_cancelled;
  Completion gone;
  gone.finish = Finish::kCancelled;
  gone.usage = s->usage;
  gone.usage.policy = s->request.policy.name;
  gone.total_s = seconds(s->submitted, Clock::now());
  const auto sink = std::exchange(s->sink, IdleWork::nobody());
  const auto& waiting = scheduler_.waiting();
  const auto again = std::ranges::find_if(waiting, [&](const auto& next) { return same_prefill(*s, *next); });
  if (again != waiting.end()) {
    join(std::move(s), scheduler_.remove((*again)->id));
  } else {
    lingering_.add(std::move(s));
    if (auto left = lingering_.beyond_most()) drop(std::move(left));
  }
  update_stats();
  sink->on_finish(std::move(gone));
}

// The newest of them goes on, in short steps, while nothing else is there. False: there is none.
bool EngineLoop::go_on_lingering() {
  auto left = lingering_.newest();
  if (!left) return false;
  const RequestId id = left->id;
  going_on_until_ = *left->lingers_until;
  scheduler_.resume(std::move(left));  // where memory ends it is gone, and nothing goes on
  going_on_ = id;
  return true;
}

// A real request came. What was computed exactly meanwhile serves others.
void EngineLoop::pause_lingering() {
  if (going_on_ == 0) return;
  auto left = scheduler_.remove(std::exchange(going_on_, 0));
  if (!left->running.prefill) return drop(std::move(left));  // it was preempted, alone
  publish_as_it_goes(*left, 1);
  lingering_.add(std::move(left));
}

void EngineLoop::drop_expired() {
  if (going_on_ == 0 && lingering_.empty()) return;
  const auto now = Clock::now();
  if (going_on_ != 0 && going_on_until_ <= now) drop(scheduler_.remove(going_on_));
  while (auto left = lingering_.expired(now)) drop(std::move(left));
}

void EngineLoop::drop(std::unique_ptr<Sequence> sequence) {
  end(*sequence, Finish::kCancelled);
  close(std::move(sequence));
}

void EngineLoop::drop_lingering() {
  pause_lingering();
  while (auto left = lingering_.oldest()) drop(std::move(left));
}

void EngineLoop::join(std::unique_ptr<Sequence> left, std::unique_ptr<Sequence> next) {
  take_over(*left, *next);
  forget_answer(left->id);
  ++stats_.requests_joined;
  scheduler_.resume(std::move(next));
}

}  // namespace kvilt

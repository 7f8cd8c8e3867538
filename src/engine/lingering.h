// engine/lingering.h: prefills whose client went away, kept for a while for whoever sends the same request again.
// Idea:       a coding agent gives up on a long prompt after some seconds and sends it again. What was computed exactly
//             is published when its client goes, but a repair in several stages is nothing until it ends. So the whole
//             prefill waits, as it is, and the same request goes on from it.
// Invariants: kMost at most, of which the tenant that has most gives up its oldest; each until its time is over. Whoever
//             needs their pages gets them, the oldest first. They are joined only by requests that find the same content
//             (tenant, name space, salt) under the same policy, with the same tokens and marks, and want no more to be
//             explained: by what the first one would have become.
// Threads:    the engine thread.
// Cost:       their pages; a comparison of ids with each for every request that comes.
// Not here:   when they go on computing (engine_loop.h: while nothing else is there).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sched/sequence.h"

namespace kvilt {

class Lingering {
 public:
  static constexpr size_t kMost = 4;
  static constexpr int64_t kFewestRows = 64;  // less work than that is done again

  // 0: none lingers.
  explicit Lingering(double seconds) : time_(std::chrono::duration_cast<Clock::duration>(Seconds(seconds))) {}

  // Whether the prefill of `left`, which may be published, is worth keeping.
  bool takes(const Sequence& left) const;
  // Its time begins when it is added first.
  void add(std::unique_ptr<Sequence> left);
  bool empty() const { return left_.empty(); }
  size_t size() const { return left_.size(); }

  // These take a sequence out; null if there is none.
  std::unique_ptr<Sequence> same_as(const Sequence& next);
  std::unique_ptr<Sequence> newest();
  std::unique_ptr<Sequence> oldest();
  std::unique_ptr<Sequence> expired(Clock::time_point now);
  std::unique_ptr<Sequence> beyond_most();  // where there are more than may be

  // That dropping all of them gives back, or to the cache: what was published of them may be used by those that run.
  int64_t pages() const;

 private:
  using Seconds = std::chrono::duration<double>;
  std::unique_ptr<Sequence> take(size_t i);

  const Clock::duration time_;
  std::vector<std::unique_ptr<Sequence>> left_;  // the one whose time is over first in front
};

// Whether `next`, of which nothing was computed, would compute just what `left` does.
bool same_prefill(const Sequence& left, const Sequence& next);

// `next` has what `left` computed, and its place in the order. REQUIRES: same_prefill().
void take_over(Sequence& left, Sequence& next);

// Tokens that were computed between a request's own first step and its first token: what it took over was computed
// before that. looked_again: rows of cached tokens that ran too.
int64_t computed_since_first_step(const PromptUsage& usage, int64_t looked_again);

}  // namespace kvilt

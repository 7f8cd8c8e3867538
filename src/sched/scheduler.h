// sched/scheduler.h: who runs in the next step.
// Idea:       continuous batching: a step holds one row of every decoding sequence and as many prefill rows as its
//             budget allows, so a decode waits for one chunk at most (docs/design/scheduler.md).
// Policy:     decodes first, then prefills in order of arrival. When pages run out, cached segments go (make_room);
//             then the sequence that came last is preempted and waits in front of the queue. A lone sequence that still
//             cannot go on fails.
// Invariants: results do not depend on what shares a step (kernels are row-invariant).
// Threads:    the engine thread.
// Not here:   computing, sampling, finding (engine/).
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "sched/sequence.h"

namespace kvilt {

struct SchedulerOptions {
  int chunk_tokens = 512;          // prefill rows of a step
  int chunk_while_decoding = 128;  // the same while a sequence decodes: bounds the time between two tokens
  int max_sequences = 64;
  int max_queue = 1024;
};

struct StepItem {
  Sequence* sequence = nullptr;
  Run range;  // positions; one for a decode
  bool decode = false;
};

// Chunks that run through the same layers: one call of the driver.
struct StepGroup {
  std::vector<StepItem> items;
};

enum class Admission : uint8_t {
  kReady,
  kNoRoom,  // it stays in front: nobody after it may take the pages that it waits for
  kLater,   // it waits for something else than pages; those after it may pass
};

class Scheduler {
 public:
  // True if `pages` pages are free now, after dropping cached segments if need be.
  using MakeRoom = FunctionRef<bool(int64_t pages)>;

  Scheduler(const SchedulerOptions& options, const ModelConfig& config) : options_(options), config_(config) {}

  bool queue_full() const { return waiting_.size() >= static_cast<size_t>(options_.max_queue); }
  void enqueue(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

  // Moves waiting sequences to running while there is a place. prepare(sequence) looks up, plans and places.
  void admit(FunctionRef<Admission(Sequence&)> prepare);

  // Chooses the next step and gives its rows their slots. `failed` gets sequences that cannot ever go on. The groups
  // are valid until the next call; a step of decodes allocates nothing.
  std::span<StepGroup> next_step(MakeRoom make_room, std::vector<std::unique_ptr<Sequence>>& failed);

  // Running sequences that `which` names give their pages back and start again, in front of the queue.
  void restart(FunctionRef<bool(const Sequence&)> which);

  // Takes a sequence out, wherever it is; null if unknown.
  std::unique_ptr<Sequence> remove(RequestId id);

  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }
  const std::deque<std::unique_ptr<Sequence>>& waiting() const { return waiting_; }
  bool idle() const { return running_.empty() && waiting_.empty(); }
  uint64_t preemptions() const { return preemptions_; }

 private:
  bool add_slots(Sequence& sequence, MakeRoom make_room);
  bool hold_chunk(Sequence& sequence, Run chunk, MakeRoom make_room);
  bool preempt_last(const Sequence* except);
  void choose(MakeRoom make_room);
  std::span<StepGroup> group();
  void start_again(size_t i);

  const SchedulerOptions options_;
  const ModelConfig& config_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of arrival
  std::vector<StepItem> items_;                     // of the step being chosen
  std::vector<StepGroup> groups_;                   // of the last step, then spare ones
  uint64_t preemptions_ = 0;
};

}  // namespace kvilt

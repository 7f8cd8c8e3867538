// sched/scheduler.h: who runs in the next step.
// Idea:       continuous batching: a step holds one row of every decoding sequence (and those of its draft) and as many
//             prefill rows as its budget allows, so a decode waits for one chunk at most. A request is looked up, planned and given pages
//             when the budget reaches it, not before: what others computed meanwhile is found.
// Policy:     decodes first, then prefills in their turns: in order of arrival, and fair between tenants (turns.h).
//             Those that are short beside others go first, on credit: in the long run the oldest has at least 3 of 4
//             rows (docs/design/scheduler.md#shares). When pages run out, cached segments go (make_room); then of the
//             tenant that runs most the sequence whose turn is last is preempted, and waits in its place. A lone
//             sequence that still cannot go on fails.
// Invariants: results do not depend on what shares a step (kernels are row-invariant). While a running sequence lacks
//             pages, none is admitted. What running sequences were promised is covered by pages that are free or can
//             be, but for what answers grow by, and for a request that runs alone.
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
  int draft_rows = 64;             // of all sequences in a step; prefills get as many less, and half of theirs at least
  int max_sequences = 64;
  int max_queue = 1024;
};

// Prefill rows of a step of idle work: whoever comes waits for one such step, some 35 ms with a 0.5 B model, two cores.
inline constexpr int kIdleRows = 32;

struct StepItem {
  Sequence* sequence = nullptr;
  Run range;  // positions; of a decode one, and those of its draft
  bool decode = false;
};

// Chunks that run through the same layers: one call of the driver.
struct StepGroup {
  std::vector<StepItem> items;
};

class Scheduler {
 public:
  // What the engine does for the scheduler while it chooses a step.
  struct Hooks {
    // True if so many are free now, after dropping segments if need be.
    FunctionRef<bool(const Sequence&, int64_t pages)> make_room;
    FunctionRef<int64_t()> available;  // pages that make_room() could make free
    // Finds, places and plans, and says in running.promised and .outside what that takes; takes no pages.
    FunctionRef<Admission(Sequence&)> plan;
    FunctionRef<void(Sequence&)> start;      // it runs from now on; there is room for what was promised, or it is alone
    FunctionRef<void(Sequence&)> preempted;  // called before what it has is dropped
    // Puts what may follow a decoding sequence's last token into running.draft: `most` tokens at most.
    FunctionRef<void(Sequence&, int most)> draft;
    uint64_t moment;  // a count that grows when content or pages may have come: answers of plan() hold until then
  };

  Scheduler(const SchedulerOptions& options, const ModelConfig& config)
      : options_(options), config_(config), credit_(2.0 * options.chunk_tokens) {}

  bool queue_full() const { return waiting_.size() >= static_cast<size_t>(options_.max_queue); }
  void enqueue(std::unique_ptr<Sequence> sequence);

  // Goes on with one that remove() took out while it ran. REQUIRES: it has its turn.
  void resume(std::unique_ptr<Sequence> sequence);

  // Chooses the next step and gives its rows their slots. `failed` gets sequences that cannot ever go on. The groups
  // are valid until the next call; a step of decodes allocates nothing.
  std::span<StepGroup> next_step(const Hooks& hooks, std::vector<std::unique_ptr<Sequence>>& failed);

  // Running sequences that `which` names give their pages back and start again; they wait in their places again.
  void restart(FunctionRef<bool(const Sequence&)> which);

  // Takes a sequence out, wherever it is; null if unknown.
  std::unique_ptr<Sequence> remove(RequestId id);

  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }
  const std::deque<std::unique_ptr<Sequence>>& waiting() const { return waiting_; }
  bool idle() const { return running_.empty() && waiting_.empty(); }
  // A running prefill needs a layer's KV that did not come yet (Prefill::can_run): then a step may be empty.
  bool waits_for_layers() const;
  uint64_t preemptions() const { return preemptions_; }

 private:
  struct Budget {
    int rows = 0;    // prefill rows that the step can still take
    int beside = 0;  // the same for those that are not short, while a short one runs
    void take(int64_t n) { rows -= static_cast<int>(n), beside -= static_cast<int>(n); }
  };
  void choose(const Hooks& hooks);
  int choose_decodes(const Hooks& hooks);
  void add_draft(Sequence& sequence, const Hooks& hooks, int most);
  void choose_prefills(const Hooks& hooks, Budget& budget);
  void choose_short(const Hooks& hooks, Budget& budget);
  int64_t take(Sequence& sequence, int max_rows, const Hooks& hooks);
  void admit_short(const Hooks& hooks, const Budget& budget);
  void admit(const Hooks& hooks, Budget& budget);
  Admission ask(Sequence& sequence, const Hooks& hooks, int64_t beside);
  Sequence& start(size_t waiting, const Hooks& hooks);
  int64_t room(const Hooks& hooks) const;
  int64_t longest() const;

  bool add_slots(Sequence& sequence, const Hooks& hooks);
  bool hold_chunk(Sequence& sequence, Run chunk, const Hooks& hooks);
  template <class Take>
  bool take_pages(const Sequence& sequence, const Hooks& hooks, Take&& take);
  void preempt(const Hooks& hooks);
  void start_again(size_t i);
  void give_turn_back(const Sequence& left);
  std::span<StepGroup> group();

  const SchedulerOptions options_;
  const ModelConfig& config_;
  std::deque<std::unique_ptr<Sequence>> waiting_;   // in order of their turns
  std::vector<std::unique_ptr<Sequence>> running_;  // the same
  std::vector<Sequence*> short_;                    // of the step being chosen
  std::vector<StepItem> items_;                     // of the step being chosen
  std::vector<StepGroup> groups_;                   // of the last step, then spare ones
  Turns turns_;
  uint64_t steps_ = 0, preemptions_ = 0;
  double credit_;         // rows that short prefills may take before older ones
  bool starved_ = false;  // a running sequence lacked pages in the step that was chosen last
};

}  // namespace kvilt

// engine/draft_length.h: how many rows of drafts pay in a step of decodes.
// Idea:       a step takes a + b * rows seconds, fitted to the last steps. With N sequences, E right drafts to be
//             expected and R rows in it, a step says N + E tokens in a + b R seconds; one more row, right with chance p,
//             makes that rate higher while p / b is above it. Reading the weights is in a: with one sequence b is a
//             few hundredths of a, and a guess pays; with many b N is most of the step, and none does.
// Invariants: what it decides changes how fast answers come, never what they say.
// Threads:    the engine thread.
// Cost:       some sums a step.
// Not here:   chances (draft_finder.h).
#pragma once

namespace kvilt {

class StepCost {
 public:
  // A step with nothing but so many rows of decodes took so long.
  void add(int rows, double seconds);
  bool known() const { return weight_ > 0; }
  double row_s() const { return row_s_; }  // of one row more
  double step_s(double rows) const { return base_s_ + row_s_ * rows; }

 private:
  void fit();
  double weight_ = 0, rows_ = 0, seconds_ = 0, rows_rows_ = 0, rows_seconds_ = 0;  // sums that fade
  double base_s_ = 0, row_s_ = 0;
};

// One step's drafts, chosen sequence by sequence.
class DraftLength {
 public:
  // decodes: sequences in the step, each with a row of its own.
  void begin(const StepCost& cost, int decodes) { cost_ = &cost, rows_ = tokens_ = decodes; }
  // Whether a row pays whose token is right with this chance; if so it is in the step.
  bool add(double chance);
  // Such a row is in the step, whether or not it pays by itself.
  void take(double chance) { rows_ += 1, tokens_ += chance; }

 private:
  static constexpr double kMargin = 1.15;  // what is estimated must be that much better than nothing
  const StepCost* cost_ = nullptr;
  double rows_ = 0, tokens_ = 0;
};

}  // namespace kvilt

// engine/draft_length.h: how many rows of drafts pay in a step of decodes.
// Idea:       a step takes a + b * rows seconds, fitted to the last steps. With N sequences, E right drafts to be
//             expected and R rows in it, a step says N + E tokens in a + b R seconds; one more row, right with chance p,
//             makes that rate higher while p / b is above it. Reading the weights is in a: with one sequence b is a
//             few hundredths of a, and a guess pays; with many b N is most of the step, and none does.
//             A chance is itself a guess until some tokens were compared, and a text that repeats nothing would pay for
//             every kind of place until it is known to be poor. So what one answer's unsure guesses lose is bounded:
//             they are paid from what its drafts won before, and from a hundredth of its steps (DraftAccount).
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
  // What a row takes of the time in which a step of so many sequences says one token.
  double row_share(int decodes) const { return decodes * row_s_ / step_s(decodes); }

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
  // Whether a row pays whose token is right with this chance.
  bool pays(double chance) const;
  // The same; if so it is in the step.
  bool add(double chance);
  // Such a row is in the step, whether or not it pays by itself.
  void take(double chance) { rows_ += 1, tokens_ += chance; }

 private:
  static constexpr double kMargin = 1.15;  // what is estimated must be that much better than nothing
  const StepCost* cost_ = nullptr;
  double rows_ = 0, tokens_ = 0;
};

// What one answer's drafts won and lost, in tokens that a step without drafts says meanwhile.
class DraftAccount {
 public:
  // A step went by, since which the answer's totals are `drafted` rows, of which `accepted` were right.
  void settle(int drafted, int accepted, double row_share);
  // Whether a row that is right with this chance may be drafted, behind what was allowed since settle(). A sure one may.
  bool allow(double chance, double row_share);
  double balance() const { return balance_; }

 private:
  static constexpr double kSure = 0.7;   // from which on a row's own expectation decides
  static constexpr double kFirst = 0.2;  // one or two rows beside one sequence
  static constexpr double kEachStep =
      0.01;                           // of free text's pace; at most 2 % may be lost, with kFirst in 127 steps 1.2
  static constexpr double kMost = 1;  // what was won long ago pays for little of what is lost now
  double balance_ = kFirst, risked_ = 0;
  int drafted_ = 0, accepted_ = 0;
};

}  // namespace kvilt

#include "engine/draft_length.h"

#include <algorithm>

namespace kvilt {
namespace {

constexpr double kStepFade = 0.98;  // of a sum, with each step
constexpr double kFirstRow = 0.1;   // of a step with one row: what another takes, before it is known
constexpr double kBelieved = 2;     // steps whose rows differ by one that outweigh it
constexpr double kSlow = 3;         // a step that took so many times what was expected was disturbed

}  // namespace

void StepCost::add(int rows, double seconds) {
  if (known()) seconds = std::min(seconds, kSlow * step_s(rows));
  weight_ = weight_ * kStepFade + 1;
  rows_ = rows_ * kStepFade + rows;
  seconds_ = seconds_ * kStepFade + seconds;
  rows_rows_ = rows_rows_ * kStepFade + static_cast<double>(rows) * rows;
  rows_seconds_ = rows_seconds_ * kStepFade + rows * seconds;
  fit();
}

// Least squares, drawn to kFirstRow while the steps have much the same rows.
void StepCost::fit() {
  const double rows = rows_ / weight_, seconds = seconds_ / weight_;
  const double first = seconds * kFirstRow / (1 + kFirstRow * (rows - 1));
  const double spread = std::max(0.0, rows_rows_ - rows * rows_), slope = rows_seconds_ - rows * seconds_;
  row_s_ = std::clamp((slope + kBelieved * first) / (spread + kBelieved), 0.1 * first, seconds / rows);
  base_s_ = seconds - row_s_ * rows;
}

bool DraftLength::pays(double chance) const {
  return cost_->known() && chance * cost_->step_s(rows_) >= kMargin * cost_->row_s() * tokens_;
}

bool DraftLength::add(double chance) {
  if (!pays(chance)) return false;
  take(chance);
  return true;
}

void DraftAccount::settle(int drafted, int accepted, double row_share) {
  const double won = accepted - accepted_, spent = (drafted - drafted_) * row_share;
  balance_ = std::min(kMost, balance_ + kEachStep + won - spent);
  drafted_ = drafted, accepted_ = accepted, risked_ = 0;
}

bool DraftAccount::allow(double chance, double row_share) {
  if (chance >= kSure) return true;
  if (balance_ < risked_ + row_share) return false;
  risked_ += row_share;
  return true;
}

}  // namespace kvilt

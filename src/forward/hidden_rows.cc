#include "forward/hidden_rows.h"

#include <algorithm>

#include "base/check.h"

namespace kvilt {

void HiddenRows::reset(Runs rows, int D) {
  rows_ = std::move(rows);
  first_.clear();
  int64_t rank = 0;
  for (const Run& run : rows_) {
    first_.push_back(rank);
    rank += run.size();
  }
  x_.reshape(rank, D);
}

float* HiddenRows::row(int32_t pos) {
  const auto after = std::ranges::upper_bound(rows_, pos, {}, &Run::begin);
  CHECK(after != rows_.begin() && pos < std::prev(after)->end);
  const auto i = std::prev(after) - rows_.begin();
  return x_.view().row(first_[i] + pos - rows_[i].begin);
}

}  // namespace kvilt

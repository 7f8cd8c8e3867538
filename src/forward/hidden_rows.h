// forward/hidden_rows.h: hidden states of a sequence at a cut, kept between two bands.
// Cost: D floats a row; a row is found in O(log runs).
#pragma once

#include <cstdint>
#include <vector>

#include "base/runs.h"
#include "forward/prepared_model.h"

namespace kvilt {

class HiddenRows {
 public:
  void reset(Runs rows, int D);  // uninitialised
  float* row(int32_t pos);       // D values. REQUIRES: pos is one of rows

 private:
  Runs rows_;
  std::vector<int64_t> first_;  // rank of each run's first position
  FloatMat x_;
};

}  // namespace kvilt

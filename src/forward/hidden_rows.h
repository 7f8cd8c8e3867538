// forward/hidden_rows.h: hidden states of a sequence: those at a cut, kept between two bands, and those that are kept to
// be published.
// Cost: D floats a row; a row is found in O(log runs).
#pragma once

#include <cstdint>
#include <vector>

#include "base/annex_kind.h"
#include "base/runs.h"
#include "forward/prepared_model.h"

namespace kvilt {

class HiddenRows {
 public:
  void reset(Runs rows, int D);  // uninitialised
  float* row(int32_t pos);       // D values. REQUIRES: pos is one of rows
  const Runs& rows() const { return rows_; }
  int D() const { return static_cast<int>(x_.view().cols); }

 private:
  Runs rows_;
  std::vector<int64_t> first_;  // rank of each run's first position
  FloatMat x_;
};

// What a plan keeps of a prompt (Plan::keep): the states of the rows that are written at kind.layer.
struct KeptRows {
  AnnexKind kind;
  HiddenRows rows;
};

}  // namespace kvilt

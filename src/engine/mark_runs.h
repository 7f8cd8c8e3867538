// engine/mark_runs.h: a prompt's marks as runs.
#pragma once

#include <span>

#include "base/runs.h"
#include "kvilt/request.h"

namespace kvilt {

// Sorted and disjoint, as marks are; two that touch stay two.
inline Runs runs_of(std::span<const TokenMark> marks) {
  Runs out;
  for (const TokenMark& mark : marks) out.push_back({mark.begin, mark.end});
  return out;
}

}  // namespace kvilt

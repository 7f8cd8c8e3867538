// base/head_window.h: the keys that a KV head keeps or sees: an attention sink and a sliding window.
// Role: plan's views (plan/plan.h) and kv's pages (kv/page_table.h) share it; KeyMask (kernels/backend.h) is made from it.
#pragma once

#include <cstdint>

namespace kvilt {

// Of a row at position i: positions < sink, and those at most `window` before i; window < 0: all.
struct HeadWindow {
  int32_t sink = 0, window = -1;
  bool all() const { return window < 0; }
  friend bool operator==(const HeadWindow&, const HeadWindow&) = default;
};

}  // namespace kvilt

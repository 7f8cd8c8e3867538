#include "base/runs.h"

#include <algorithm>

namespace kvilt {

bool is_normal(std::span<const Run> runs) {
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].begin >= runs[i].end) return false;
    if (i > 0 && runs[i].begin <= runs[i - 1].end) return false;
  }
  return true;
}

namespace {

// Behind the runs of `out`, none of which begins later.
void append(const Run& run, Runs& out) {
  if (!out.empty() && run.begin <= out.back().end) {
    out.back().end = std::max(out.back().end, run.end);
  } else {
    out.push_back(run);
  }
}

}  // namespace

Runs normalize(Runs runs) {
  std::erase_if(runs, [](const Run& run) { return run.begin >= run.end; });
  std::ranges::sort(runs, {}, &Run::begin);
  Runs out;
  for (const Run& run : runs) append(run, out);
  return out;
}

Runs runs_of(std::span<const int32_t> sorted_positions) {
  Runs out;
  for (const int32_t pos : sorted_positions) {
    if (!out.empty() && pos <= out.back().end) {
      out.back().end = std::max(out.back().end, pos + 1);
    } else {
      out.push_back({pos, pos + 1});
    }
  }
  return out;
}

int64_t count(std::span<const Run> runs) {
  int64_t total = 0;
  for (const Run& run : runs) total += run.size();
  return total;
}

bool contains(std::span<const Run> runs, int32_t pos) {
  const auto after = std::ranges::upper_bound(runs, pos, {}, &Run::begin);
  return after != runs.begin() && pos < std::prev(after)->end;
}

bool includes(std::span<const Run> outer, std::span<const Run> inner) { return subtract(inner, outer).empty(); }

Runs unite(std::span<const Run> a, std::span<const Run> b) {
  Runs out;
  out.reserve(a.size() + b.size());
  for (size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    const bool from_a = j == b.size() || (i < a.size() && a[i].begin <= b[j].begin);
    const Run& next = from_a ? a[i++] : b[j++];
    if (next.begin < next.end) append(next, out);
  }
  return out;
}

Runs intersect(std::span<const Run> a, std::span<const Run> b) {
  Runs out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Run both{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (both.begin < both.end) out.push_back(both);
    a[i].end < b[j].end ? ++i : ++j;
  }
  return out;
}

Runs subtract(std::span<const Run> a, std::span<const Run> b) {
  Runs out;
  size_t j = 0;
  for (Run left : a) {
    while (j < b.size() && b[j].end <= left.begin) ++j;
    for (size_t k = j; k < b.size() && b[k].begin < left.end; ++k) {
      if (b[k].begin > left.begin) out.push_back({left.begin, b[k].begin});
      left.begin = b[k].end;
    }
    if (left.begin < left.end) out.push_back(left);
  }
  return out;
}

Runs dilate(std::span<const Run> runs, int32_t by, Run within) {
  Runs out;
  for (const Run& run : runs)
    out.push_back({std::max(within.begin, run.begin - by), std::min(within.end, run.end + by)});
  return normalize(std::move(out));
}

std::vector<int32_t> positions(std::span<const Run> runs) {
  std::vector<int32_t> out;
  out.reserve(count(runs));
  for (const Run& run : runs) {
    for (int32_t pos = run.begin; pos < run.end; ++pos) out.push_back(pos);
  }
  return out;
}

Runs whole_within(std::span<const Run> runs, Run in) {
  Runs out;
  for (const Run& run : runs) {
    if (run.begin >= in.begin && run.end <= in.end) out.push_back({run.begin - in.begin, run.end - in.begin});
  }
  return out;
}

}  // namespace kvilt

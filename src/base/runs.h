// base/runs.h: sets of positions as sorted, disjoint, half-open runs that do not touch. Plans are made of them.
// Cost: linear in the number of runs, unless it says otherwise.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvilt {

struct Run {  // logical positions [begin, end)
  int32_t begin = 0, end = 0;
  int32_t size() const { return end - begin; }
  friend bool operator==(const Run&, const Run&) = default;
};
using Runs = std::vector<Run>;

bool is_normal(std::span<const Run> runs);  // sorted, disjoint, none empty, none touching
Runs normalize(Runs runs);                  // of any runs, overlapping or empty, in any order; O(n log n)
Runs runs_of(std::span<const int32_t> sorted_positions);

// The functions below REQUIRE normal inputs, and return normal ones.
int64_t count(std::span<const Run> runs);
bool contains(std::span<const Run> runs, int32_t pos);  // O(log n)
bool includes(std::span<const Run> outer, std::span<const Run> inner);
Runs unite(std::span<const Run> a, std::span<const Run> b);
Runs intersect(std::span<const Run> a, std::span<const Run> b);
Runs subtract(std::span<const Run> a, std::span<const Run> b);
// Those that lie wholly in `in`, counted from its beginning; `runs` may overlap.
Runs whole_within(std::span<const Run> runs, Run in);
Runs dilate(std::span<const Run> runs, int32_t by, Run within);  // each run grown by `by` on both sides, clipped
std::vector<int32_t> positions(std::span<const Run> runs);

}  // namespace kvilt

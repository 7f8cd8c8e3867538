// index/coverage.cc: see coverage.h.
#include "index/coverage.h"

#include <algorithm>
#include <deque>
#include <tuple>

namespace kvilt {
namespace {

// Sorted by begin and, since those inside another go, by end. A mark inside a longer stretch becomes the longer one's.
std::vector<Stretch> without_contained(std::vector<Stretch> all) {
  std::sort(all.begin(), all.end(), [](const Stretch& a, const Stretch& b) {
    return std::tuple(a.begin, -a.end, !a.marked(), a.rank, a.offset, a.segment) <
           std::tuple(b.begin, -b.end, !b.marked(), b.rank, b.offset, b.segment);
  });
  std::vector<Stretch> kept;
  for (const Stretch& s : all) {
    if (kept.empty() || s.end > kept.back().end) {
      kept.push_back(s);
    } else if (s.marked()) {
      Stretch& outer = kept.back();
      const bool had = outer.marked();
      outer.keep_begin = had ? std::min(outer.keep_begin, s.keep_begin) : s.keep_begin;
      outer.keep_end = had ? std::max(outer.keep_end, s.keep_end) : s.keep_end;
    }
  }
  return kept;
}

// The chain of stretches with the largest (covered tokens - seams). value[j]: the best that ends with j. Before j
// stands nothing, one that ends at or before j begins (then j counts in full), or one that overlaps j (then only what
// lies beyond it counts).
std::vector<Stretch> best_chain(const std::vector<Stretch>& s, int32_t seam) {
  const int n = static_cast<int>(s.size());
  std::vector<int64_t> value(n);
  std::vector<int> before(n, -1), best_upto(n, -1);  // best_upto[i]: the best j <= i
  std::deque<int> overlapping;                       // value - end falls from front to back
  int first = 0;                                     // the first that ends beyond j's begin
  for (int j = 0; j < n; ++j) {
    while (first < j && s[first].end <= s[j].begin) ++first;
    while (!overlapping.empty() && overlapping.front() < first) overlapping.pop_front();
    const int apart = first > 0 ? best_upto[first - 1] : -1;
    value[j] = (apart >= 0 ? value[apart] : 0) + s[j].end - s[j].begin;
    before[j] = apart;
    if (!overlapping.empty()) {
      const int i = overlapping.front();
      if (value[i] - s[i].end + s[j].end > value[j]) {
        value[j] = value[i] - s[i].end + s[j].end;
        before[j] = i;
      }
    }
    if (!s[j].marked()) value[j] -= seam;
    best_upto[j] = j > 0 && value[best_upto[j - 1]] >= value[j] ? best_upto[j - 1] : j;
    const int64_t gain = value[j] - s[j].end;
    while (!overlapping.empty() && value[overlapping.back()] - s[overlapping.back()].end < gain) overlapping.pop_back();
    overlapping.push_back(j);
  }
  std::vector<Stretch> chain;
  for (int j = n > 0 ? best_upto[n - 1] : -1; j >= 0; j = before[j]) chain.push_back(s[j]);
  std::reverse(chain.begin(), chain.end());
  return chain;
}

// Where to cut two that overlap: the longer one keeps what they share, as far as the other keeps `least` and no mark is
// cut.
int32_t cut_between(const Stretch& left, const Stretch& right, int32_t left_begin, int32_t least) {
  int32_t low = right.begin, high = left.end;
  if (left.marked()) low = std::clamp(left.keep_end, low, high);
  if (right.marked()) high = std::clamp(right.keep_begin, low, high);
  int32_t cut = left.end - left.begin >= right.end - right.begin ? high : low;
  if (!left.marked()) cut = std::max(cut, std::min(high, left_begin + least));
  if (!right.marked()) cut = std::min(cut, std::max(low, right.end - least));
  return std::max(cut, left_begin);
}

}  // namespace

std::vector<Stretch> choose_coverage(std::vector<Stretch> stretches, int32_t least) {
  const std::vector<Stretch> chain = best_chain(without_contained(std::move(stretches)), (least + 1) / 2);
  std::vector<Stretch> cut;
  int32_t begin = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    Stretch s = chain[i];
    begin = std::max(begin, s.begin);
    s.offset += begin - s.begin;
    const bool overlaps = i + 1 < chain.size() && chain[i + 1].begin < s.end;
    if (overlaps) s.end = cut_between(chain[i], chain[i + 1], begin, least);
    s.begin = begin;
    if (s.begin < s.end) cut.push_back(s);
    begin = s.end;
  }
  return cut;
}

}  // namespace kvilt

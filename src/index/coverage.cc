// index/coverage.cc: see coverage.h.
#include "index/coverage.h"

#include <algorithm>
#include <deque>
#include <tuple>

namespace kvilt {
namespace {

// Leaves out those inside another, so that the others are sorted by begin and by end. A mark inside a longer candidate
// becomes the longer one's.
std::vector<Candidate> without_contained(std::vector<Candidate> all) {
  std::ranges::sort(all, [](const Candidate& a, const Candidate& b) {
    return std::tuple(a.begin, -a.end, !a.marked(), a.rank, a.offset, a.segment) <
           std::tuple(b.begin, -b.end, !b.marked(), b.rank, b.offset, b.segment);
  });
  std::vector<Candidate> kept;
  for (const Candidate& s : all) {
    if (kept.empty() || s.end > kept.back().end) {
      kept.push_back(s);
    } else if (s.marked()) {
      Candidate& outer = kept.back();
      const bool had = outer.marked();
      outer.keep_begin = had ? std::min(outer.keep_begin, s.keep_begin) : s.keep_begin;
      outer.keep_end = had ? std::max(outer.keep_end, s.keep_end) : s.keep_end;
    }
  }
  return kept;
}

// The chain of candidates with the largest (covered tokens - seams). value[j]: that of the best chain that ends with j.
// Before j there is nothing, or one that ends before j begins (then all of j counts), or one that overlaps j (then only
// the rest of j counts).
std::vector<Candidate> best_chain(const std::vector<Candidate>& s, int32_t seam) {
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
  std::vector<Candidate> chain;
  for (int j = n > 0 ? best_upto[n - 1] : -1; j >= 0; j = before[j]) chain.push_back(s[j]);
  std::ranges::reverse(chain);
  return chain;
}

// Where to cut two that overlap: the longer one keeps what they share, as long as the other keeps `least` tokens and no
// mark is cut.
int32_t cut_between(const Candidate& left, const Candidate& right, int32_t left_begin, int32_t least) {
  int32_t low = right.begin, high = left.end;
  if (left.marked()) low = std::clamp(left.keep_end, low, high);
  if (right.marked()) high = std::clamp(right.keep_begin, low, high);
  int32_t cut = left.end - left.begin >= right.end - right.begin ? high : low;
  if (!left.marked()) cut = std::max(cut, std::min(high, left_begin + least));
  if (!right.marked()) cut = std::min(cut, std::max(low, right.end - least));
  return std::max(cut, left_begin);
}

}  // namespace

std::vector<Candidate> choose_coverage(std::vector<Candidate> candidates, int32_t least) {
  const std::vector<Candidate> chain = best_chain(without_contained(std::move(candidates)), (least + 1) / 2);
  std::vector<Candidate> cut;
  int32_t begin = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    Candidate s = chain[i];
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

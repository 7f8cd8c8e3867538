// text/merge.h: the merge loop of every kind of BPE: it merges the best pair of neighbours, the leftmost of equals,
// until none is left.
// Idea:   a linked list of symbols; short words are scanned, long ones use a heap of candidates that may be stale.
// Source: Sennrich et al., arXiv:1508.07909; the queue is that of SentencePiece, arXiv:1808.06226.
// Cost:   O(n log n) for n symbols, so a megabyte without a space is harmless.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace kvilt {

struct Symbol {
  int32_t id;           // -1: in no vocabulary
  uint32_t begin, end;  // bytes of the word
};

struct Merge {
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t rank = kNone;  // lower is better
  int32_t id = -1;        // of the merged symbol
};

inline constexpr size_t kScanLimit = 40;  // symbols up to which a quadratic scan beats the heap

// find(left, right) -> Merge. The result replaces `symbols`.
template <class Find>
void merge_by_scan(std::vector<Symbol>& symbols, Find&& find) {
  Merge pairs[kScanLimit];
  size_t n = symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) pairs[i] = find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == Merge::kNone) break;
    symbols[best].id = pairs[best].id;
    symbols[best].end = symbols[best + 1].end;
    for (size_t i = best + 1; i + 1 < n; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i - 1] = pairs[i];
    }
    --n;
    if (best > 0) pairs[best - 1] = find(symbols[best - 1], symbols[best]);
    pairs[best] = best + 1 < n ? find(symbols[best], symbols[best + 1]) : Merge();
  }
  symbols.resize(n);
}

template <class Find>
void merge_by_heap(std::vector<Symbol>& symbols, Find&& find) {
  struct Candidate {
    uint32_t rank, left, middle, end;  // left: symbol index; middle, end: bytes, by which a stale candidate is known
    int32_t id;
    bool operator<(const Candidate& o) const { return rank != o.rank ? rank > o.rank : left > o.left; }
  };
  const auto n = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> next(n), previous(n);
  std::vector<Candidate> initial;
  initial.reserve(n);
  const auto candidate = [&](uint32_t left, uint32_t right) {
    const Merge m = find(symbols[left], symbols[right]);
    return Candidate{m.rank, left, symbols[left].end, symbols[right].end, m.id};
  };
  for (uint32_t i = 0; i < n; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;  // wraps for the first, which is never asked
    if (i + 1 == n) break;
    const Candidate c = candidate(i, i + 1);
    if (c.rank != Merge::kNone) initial.push_back(c);
  }
  std::priority_queue<Candidate> heap(std::less<Candidate>(), std::move(initial));
  constexpr uint32_t kDead = UINT32_MAX;
  while (!heap.empty()) {
    const Candidate c = heap.top();
    heap.pop();
    Symbol& left = symbols[c.left];
    if (next[c.left] == kDead || left.end != c.middle || next[c.left] >= n) continue;
    const uint32_t right = next[c.left];
    if (symbols[right].end != c.end) continue;
    left.id = c.id;
    left.end = c.end;
    next[c.left] = next[right];
    next[right] = kDead;
    if (next[c.left] < n) {
      previous[next[c.left]] = c.left;
      const Candidate after = candidate(c.left, next[c.left]);
      if (after.rank != Merge::kNone) heap.push(after);
    }
    if (c.left > 0) {
      const Candidate before = candidate(previous[c.left], c.left);
      if (before.rank != Merge::kNone) heap.push(before);
    }
  }
  std::vector<Symbol> left_over;
  for (uint32_t i = 0; i < n; i = next[i]) left_over.push_back(symbols[i]);
  symbols = std::move(left_over);
}

template <class Find>
void merge_symbols(std::vector<Symbol>& symbols, Find&& find) {
  if (symbols.size() <= kScanLimit) {
    merge_by_scan(symbols, find);
  } else {
    merge_by_heap(symbols, find);
  }
}

}  // namespace kvilt

// plan/page_bounds.h: what bounds the scores of keys, page by page: the least and the greatest value of each channel.
// Source:     Quest (arXiv:2406.10774): no key k of a page scores more than sum_e max(q_e min_e, q_e max_e).
// Idea:       that sum is one product: of (max(q, 0), min(q, 0)) with (maxima, minima). It is linear in the first, so
//             the sum of the bounds of a group's queries is one product as well.
// Invariants: a page has bounds once it is full. The one that is not is the newest, which every choice of pages takes.
// Threads:    one writer.
// Cost:       2 E floats a page, in blocks of pages: a block has a row for each channel, so that a kernel runs along its
//             pages, and lies in one piece (docs/design/decode.md#ranks-for-positions).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tensor/view.h"

namespace kvilt {

// Of one KV head. Page n is of the positions [n page, (n + 1) page).
class PageBounds {
 public:
  static constexpr int32_t kBlock = 64;  // pages

  PageBounds(int E, int32_t page) : E_(E), page_(page), open_(static_cast<size_t>(2 * E)) {}

  void add(std::span<const float> keys);  // of the next positions, E channels each
  int32_t keys() const { return keys_; }
  int32_t pages() const { return keys_ / page_; }  // that are full
  static int64_t bytes(int E, int64_t pages) { return ((pages + kBlock - 1) / kBlock * kBlock + 1) * 2 * E * 4; }

  // Block b is of the pages from b kBlock on: 2 E x kBlock, the maxima of each channel, then the minima. Zeros where
  // there is no page yet. Until the next add().
  int32_t blocks() const { return static_cast<int32_t>(blocks_.size()); }
  Mat<const float> block(int32_t b) const { return {blocks_[b].get(), int64_t{2} * E_, kBlock, kBlock}; }
  // weights (2 E) += what bounds the query's scores when it is multiplied with a block.
  static void add_query(std::span<const float> q, std::span<float> weights);

 private:
  void widen(const float* keys, int32_t count);
  void close();

  int E_;
  int32_t page_, keys_ = 0;
  std::vector<float> open_;  // 2 E: of the page that is not full
  std::vector<std::unique_ptr<float[]>> blocks_;
};

}  // namespace kvilt

// plan/page_bounds.h: what bounds the scores of keys, page by page: the least and the greatest value of each channel.
// Source:     Quest (arXiv:2406.10774): no key k of a page scores more than sum_e max(q_e min_e, q_e max_e).
// Idea:       that sum is one product: of (max(q, 0), min(q, 0)) with (maxima, minima). It is linear in the first, so
//             the sum of the bounds of a group's queries is one product as well.
// Threads:    one writer.
// Cost:       2 E floats a page. extremes() has a row for each channel, so that a kernel runs along the pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/view.h"

namespace kvilt {

// Of one KV head. Page n is of the positions [n page, (n + 1) page); the last one may not be full.
class PageBounds {
 public:
  PageBounds(int E, int32_t page) : E_(E), page_(page) {}

  void add(std::span<const float> key);  // of the next position
  int32_t keys() const { return keys_; }
  static int64_t bytes(int E, int64_t pages) { return pages * 3 / 2 * 2 * E * 4; }  // at most, of many pages
  int32_t pages() const { return (keys_ + page_ - 1) / page_; }
  // 2 E x pages: the maxima of each channel, then the minima. Until the next add().
  Mat<const float> extremes() const { return {extremes_.data(), int64_t{2} * E_, pages(), room_}; }
  // weights (2 E) += what bounds the query's scores when it is multiplied with the extremes.
  static void add_query(std::span<const float> q, std::span<float> weights);

 private:
  void grow();

  int E_;
  int32_t page_, keys_ = 0;
  int64_t room_ = 0;  // pages
  std::vector<float> extremes_;
};

}  // namespace kvilt

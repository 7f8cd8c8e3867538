#include "forward/head_layout.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "forward/each_row.h"

namespace kvilt {
namespace {

template <class Copy>
void copy_heads(FloatMat& x, HeadRow from, HeadRow to, FloatMat& spare, ThreadPool& pool, Copy copy) {
  if (from == to) return;
  CHECK(to.heads % from.heads == 0 && from.E % 2 == 0 && to.E % 2 == 0 && x.view().cols == from.width());
  const Mat<const float> in = x.view();
  const Mat<float> out = spare.reshape(in.rows, to.width());
  const int repeats = to.heads / from.heads;
  each_row(pool, in.rows, [&](int64_t r) {
    for (int h = 0; h < to.heads; ++h) copy(in.row(r) + int64_t{h / repeats} * from.E, out.row(r) + int64_t{h} * to.E);
  });
  std::swap(x, spare);
}

}  // namespace

void widen_heads(FloatMat& x, HeadRow from, HeadRow to, FloatMat& spare, ThreadPool& pool) {
  copy_heads(x, from, to, spare, pool, [half = from.E / 2, wide = to.E / 2](const float* a, float* b) {
    for (int i = 0; i < 2; ++i, a += half, b += wide) std::fill_n(std::copy_n(a, half, b), wide - half, 0.0f);
  });
}

void narrow_heads(FloatMat& x, HeadRow from, HeadRow to, FloatMat& spare, ThreadPool& pool) {
  CHECK(from.heads == to.heads);
  copy_heads(x, from, to, spare, pool, [wide = from.E / 2, half = to.E / 2](const float* a, float* b) {
    for (int i = 0; i < 2; ++i, a += wide, b += half) std::copy_n(a, half, b);
  });
}

}  // namespace kvilt

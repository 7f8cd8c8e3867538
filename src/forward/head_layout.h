// forward/head_layout.h: rows of heads from a layer's own layout into the one that KV and attention have, and back.
// Idea:       where layers differ in head size and KV heads (gemma 4), all are laid out as the largest (ModelConfig::heads).
//             Each half of a head is widened with zeros, so that RoPE's pair (i, i + E/2) stays a pair; a KV head that
//             stands for several of the layout is repeated, and each of these serves a part of its queries. Scores and
//             outputs get nothing but zeros added, so what a layer computes stays what it was.
// Cost:       a copy of the rows; a layer whose heads are the layout's pays nothing. What it costs in KV and attention:
//             docs/architectures.md#gemma-4.
// Not here:   the weights, which keep the layer's own size.
#pragma once

#include "base/thread_pool.h"
#include "tensor/view.h"

namespace kvilt {

struct HeadRow {
  int heads = 0, E = 0;
  int64_t width() const { return int64_t{heads} * E; }
  friend bool operator==(const HeadRow&, const HeadRow&) = default;
};

// x = its rows, from `from` in the layout `to`. spare: memory, exchanged with x's. REQUIRES: to is no smaller, and its
// heads are a multiple of from's.
void widen_heads(FloatMat& x, HeadRow from, HeadRow to, FloatMat& spare, ThreadPool& pool);
// The reverse. REQUIRES: as many heads.
void narrow_heads(FloatMat& x, HeadRow from, HeadRow to, FloatMat& spare, ThreadPool& pool);

}  // namespace kvilt

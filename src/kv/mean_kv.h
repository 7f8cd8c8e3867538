// kv/mean_kv.h: the mean of one text's KV over contexts that it was computed in (docs/math/seasoning.md).
// Idea:       K is averaged before its rotation, so that it does not matter where in a prompt the text stood, and V as
//             it is: then the error against a prompt has no part that any context would have changed.
// Invariants: one part of weight 1 comes out bit for bit. Sums are fp32, in the order of the parts; the result is
//             rounded to the pool's type once.
// Threads:    the caller's; positions are shared out over the pool.
// Cost:       a pass over the K and V of every part; the pages of one text.
// Not here:   which copies are averaged, and with which weights (engine/content_cache.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "base/token_spread.h"
#include "kv/page_table.h"

namespace kvilt {

struct MeanPart {
  const KvSegment* kv = nullptr;
  Run positions = {};  // of its computing request; all parts have as many
  float weight = 1;
};

// Its text is at the positions of the first part. REQUIRES: at least one part; each of the positions has a slot in its
// segment at every layer; the store has room. apart: gets, by token, the squared distances of the last part's K and V
// from the first one's, over all layers and heads; null: nobody asks.
std::unique_ptr<PageTable> mean_kv(PageStore& store, const LayerRopes& ropes, std::span<const MeanPart> parts,
                                   ThreadPool& pool, std::vector<TokenSpread>* apart = nullptr);

}  // namespace kvilt

// policy/samkv_stats.h: what SamKV knows of a document before any question: which of its blocks are looked at most and
// least, and which tokens stand out, by the attention that later tokens of the document itself pay to them.
// Source:     SamKV, appendix A.1 (docs/papers.md#samkv).
// Idea:       a block is as important as its representative, the token that later ones look at most. How that token's
//             attention fades with the distance x is fitted by y = a x^-alpha: where alpha is smallest, late tokens look
//             as much as near ones. Tokens whose mean attention is beyond three standard deviations (PauTa's criterion)
//             stand out.
// Readings:   deviations are over the middle tokens alone: the first tokens are attention sinks, far above anything
//             else, and they are computed again in any case.
// Threads:    pure; any thread.
// Not here:   measuring (forward/block_probes.cc), what a question makes of it (samkv_choice.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/runs.h"

namespace kvilt {

// How a document is cut: blocks from its first token on, the last one may be short; `initial` blocks at its beginning
// and `local` ones at its end are always kept.
struct BlockCut {
  int32_t block = 64, initial = 1, local = 2;
  int32_t blocks(int32_t tokens) const { return (tokens + block - 1) / block; }
  // The blocks that a choice is made of; empty in a short document.
  Run middle(int32_t tokens) const {
    const int32_t end = blocks(tokens) - local;
    return end > initial ? Run{initial, end} : Run{initial, initial};
  }
  Run tokens_of(int32_t number, int32_t tokens) const {
    return {number * block, (number + 1) * block < tokens ? (number + 1) * block : tokens};
  }
};

// Of one layer of a document.
struct AttentionStats {
  int32_t max_block = -1, min_block = -1;  // of the middle ones
  Runs outliers;                           // of the middle tokens, counted from the document's first
  friend bool operator==(const AttentionStats&, const AttentionStats&) = default;
};

// How the attention to a block fades, by its representative: the token that later ones look at most.
struct BlockFade {
  double mean = 0;   // of the attention that later tokens pay to it
  double alpha = 0;  // the exponent
};
// Of the middle blocks. fade: as below.
std::vector<BlockFade> block_fades(std::span<const double> fade, const BlockCut& cut);

// Stable layers, of one document (appendix A.2). A block's rank is that of its exponent among the blocks of a layer; the
// block with the lowest rank over all layers is what the model looks at most. A layer is stable (1) where that block's
// exponent is `sigmas` deviations below the mean of the layer's blocks. Nothing stands out so far of less than
// sigmas^2 + 2 blocks. by_layer: block_fades() of each.
std::vector<uint8_t> stable_layers(const std::vector<std::vector<BlockFade>>& by_layer, double sigmas);

// One layer of a document that has a middle. As floats, so that it is the same measured now and read from the cache.
struct LayerStats {
  std::vector<float> local_query;  // H E: the mean query of its local blocks, before RoPE
  std::vector<float> block_keys;   // [block][G E]: the mean keys, before RoPE
  AttentionStats attention;
  friend bool operator==(const LayerStats&, const LayerStats&) = default;
};
struct DocumentStats {
  int32_t tokens = 0;
  std::vector<LayerStats> layers;
  friend bool operator==(const DocumentStats&, const DocumentStats&) = default;
};

// As bytes of an annex, and back. Nothing: they are of a document that was cut in another way.
std::vector<std::byte> to_bytes(const DocumentStats& stats, const BlockCut& cut);
std::optional<DocumentStats> stats_from(std::span<const std::byte> bytes, const BlockCut& cut);
bool are_of(std::span<const std::byte> bytes, const BlockCut& cut);
// One layer of them. REQUIRES: are_of(bytes, the cut), and it has that layer.
LayerStats layer_from(std::span<const std::byte> bytes, int layer);

// Of a document's statistics: how many numbers a layer has.
struct StatsSizes {
  int32_t tokens = 0, layers = 0;
  int64_t query = 0;      // of local_query; 0: of kBlockMeans, which have nothing but keys
  int64_t block_key = 0;  // of one block's key
};
// Whether bytes that come from outside of memory are such as to_bytes() writes of such a document, in some cut. The
// functions above take no others.
bool are_sound(std::span<const std::byte> bytes, const StatsSizes& sizes);

// fade: for each token of the document the sums over later tokens of the weight w that they give it, of log w and of
// log w log distance (plan/plan.h, Estimator::kFade). REQUIRES: a middle that is not empty.
AttentionStats attention_stats(std::span<const double> fade, const BlockCut& cut);

}  // namespace kvilt

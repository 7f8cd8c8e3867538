// policy/samkv_choice.h: which blocks of the documents SamKV keeps for a question, by layer.
// Source:     SamKV, sections 3.1 and 3.2 (docs/papers.md#samkv).
// Idea:       a document's query is the question's mean query plus what the other documents' ends ask, as far as they
//             point the same way. It meets the mean key of each block. Blocks above the document's anchor (its first
//             and last blocks) are worth keeping: their share is estimated from the blocks that are looked at most and
//             least, and is the same in all layers. Of what the documents propose a layer keeps a bounded number.
// Readings:   docs/papers.md#samkv.
// Threads:    pure; any thread.
// Not here:   measuring queries and keys (forward/block_probes.cc), the plan (samkv.cc).
#pragma once

#include <vector>

#include "policy/samkv_stats.h"

namespace kvilt {

struct HeadShape {
  int H = 1, G = 1, E = 1;
};

struct BlockChoice {
  BlockCut cut;
  bool bias = true;       // queries take what the other documents ask
  bool literal = false;   // where the anchor is below the block looked at least: keep nothing, as printed; else all
  bool shared = false;    // the same blocks in all layers, by the sum of their scores
  bool by_range = false;  // scores are made comparable by their range within the document; else by the query's length
  // What the paper leaves open (docs/papers.md#samkv).
  bool cosine_by_head = false;  // |cos| of equation 1 for each query head; else over all of them
  enum class Anchor : uint8_t { kEnds, kFirst, kLast } anchor = Anchor::kEnds;  // whose mean key it is
  bool middle_only = false;               // the blocks that (blocks of all documents) / D counts
  double keep = 0;                        // > 0: this share of all blocks, whatever the anchors say
  std::vector<int> stable;                // layers that say how many
  int32_t documents = 0, all_blocks = 0;  // those without a middle included
};

// What each layer keeps: [layer][document], rising numbers of middle blocks. query: by layer, H E. A block whose score
// equals that of the last one kept, to rounding, is kept as well: copies of one document fare alike.
using KeptBlocks = std::vector<std::vector<std::vector<int32_t>>>;
KeptBlocks choose_blocks(const BlockChoice& choice, const HeadShape& shape,
                         const std::vector<std::vector<double>>& query, const std::vector<DocumentStats>& documents);

}  // namespace kvilt

// forward/sparse_choice.h: what the rows of a block see at one layer, head by head: what a plan's sparse rule
// (plan/sparse_rule.h) says, by what the block's rows see or by an estimate of it.
// Role:       SparseRows asks for each block of a chunk, and makes tasks of the answer.
// Invariants: a block chooses by its own rows, whole, so that chunked = whole. In the last layer, where other rows attend
//             only if somebody wants their logits or queries, the last row chooses (of a block; by blocks of keys, of
//             each tile). Behind an exact prefix that ends inside a block, the rest of it chooses: results depend on
//             what was cached.
// Threads:    the engine thread; kernels, and the choice of heads and tiles, run on the pool.
// Cost:       of lines, attention of the sampled rows over all keys, and q k once more; the choice sorts 2 T lines a
//             head. Of blocks: forward/key_groups.h.
// Not here:   which lines and blocks (plan/lines.h, plan/blocks.h), attention (forward/sparse_rows.h).
#pragma once

#include <span>
#include <vector>

#include "forward/key_groups.h"
#include "forward/looking_rows.h"
#include "forward/prepared_model.h"
#include "plan/plan.h"

namespace kvilt {

struct SparseCost {
  double flops = 0, keys = 0;  // keys that are read, each of one head
  SparseCost& operator+=(const SparseCost& other) {
    flops += other.flops;
    keys += other.keys;
    return *this;
  }
};

struct RowsOfBlock {  // rows [begin, end) of a chunk: a block of them, or a tile
  const Plan& plan;
  const PageTable& kv;
  const RowsAt& rows;
  int64_t begin, end;
  Run positions() const { return {rows.pos[begin], rows.pos[end - 1] + 1}; }
  bool last_layer(const ModelConfig& config) const { return rows.layer + 1 == config.L; }
};

// What the rows of a block see of one KV head.
struct SeenKeys {
  Lines lines;  // if there are no tiles
  struct Tile {
    int32_t at = 0;  // its number
    Runs blocks;     // of keys
  };
  std::vector<Tile> tiles = {};
  Runs columns = {}, distances = {};  // the lines' once more, as runs: once a block, not a tile
  // The keys before `end` for the rows of the tile of positions around `pos`: what any row of the whole tile sees, so
  // that it does not depend on which of its neighbours attend.
  Runs keys(int32_t pos, int32_t end) const;
};

class SparseChoice {
 public:
  SparseChoice(const PreparedModel& model, ThreadPool& pool) : model_(model), pool_(pool) {}

  struct Made {
    std::vector<SeenKeys> heads;
    std::vector<int64_t> looked;          // rows that looked at all keys, rising; none if nobody did
    std::vector<std::vector<float>> lse;  // of each head: row * group + query head; empty where none looked
    SparseCost cost;
  };
  // For each of the heads, which see all but for plan.sparse.
  Made choose(const RowsOfBlock& block, std::span<const int> heads) const;
  // Gives the memory that is kept from call to call back: as much as the longest prompt so far took.
  void release() { memory_ = {}; }

 private:
  struct Look;
  std::vector<int64_t> sampled_rows(const RowsOfBlock& block) const;
  Look look(const RowsOfBlock& block, std::span<const int> heads, SparseCost& cost) const;
  const KeyPattern& pattern_of(const RowsOfBlock& block, int head) const;
  void by_sample(const RowsOfBlock& block, std::span<const int> heads, std::span<const size_t> which, Made& out) const;
  SeenKeys by_blocks(const RowsOfBlock& block, int head, SparseCost& cost) const;
  SeenKeys by_chance(const RowsOfBlock& block, int head) const;
  KeyGroups groups_of(const RowsOfBlock& block, int head, SparseCost& cost) const;
  std::vector<SeenKeys::Tile> tiles_of(const RowsOfBlock& block, const KeyGroups& groups, SparseCost& cost) const;
  double means_miss(const RowsOfBlock& block, const KeyGroups& groups, const Look& look, size_t i,
                    SparseCost& cost) const;

  const PreparedModel& model_;
  ThreadPool& pool_;
  mutable KeyGroups::Memory memory_;  // of one head's groups at a time; the engine thread's
};

}  // namespace kvilt

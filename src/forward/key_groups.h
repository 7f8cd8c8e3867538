// forward/key_groups.h: the keys of one KV head in groups, and what blocks of them weigh for the rows of a tile by one
// product a group: an estimate of attention for plan/blocks.h.
// Idea:       kMeans: a group is a block, its key the mean of the block's keys; the rows' query is their mean.
//             kAntidiagonals (XAttention, arXiv:2503.16428): groups of `stride` keys and of as many rows. In the square
//             of their scores the antidiagonal meets every key and every row once; its sum is one product of the keys
//             of a group, one after the other, with the rows' queries in reverse order. Its mean stands for the score
//             of the group.
// Causal:     a group of keys counts for a group of rows up to the rows' own, whole. It is in the tile's own block,
//             which is always seen.
// Not full:   the prompt's last groups have fewer keys or rows. Means are over those that are there; an antidiagonal's
//             sum is divided by its rows, and keys that are not there add 0.
// Product:    the groups' features are a weight, which the backend packs, and the rows' are activations: a matmul. Where
//             attention multiplies pairs of bf16, antidiagonals do: keys of bf16 as they are (those that are turned are
//             rounded again), queries rounded.
// Invariants: a tile's weights depend on its rows and the keys up to its end; not on threads, nor on other tiles.
// Threads:    the engine thread.
// Cost:       E elements a key (kAntidiagonals) or a block (kMeans), twice; 2 E / stride (or 2 E / 64^2) operations a
//             cell and query head.
// Not here:   which blocks are chosen (plan/blocks.h), by whom (forward/sparse_choice.h).
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "forward/looking_rows.h"
#include "forward/prepared_model.h"
#include "kv/page_table.h"
#include "plan/plan.h"
#include "tensor/view.h"

namespace kvilt {

class KeyGroups {
 public:
  struct Of {
    int layer = 0, head = 0;
    int32_t end = 0;  // keys before it
  };
  // What is kept between one and the next: as vectors, 6 MB of 16,000 keys were mapped and cleared by one thread for each
  // block and head. With that kept and tiles together XAttention's prefill takes .92 to .95 of its time (AMX).
  struct Memory {
    FloatMat features;  // of the groups, or bf16 in the same memory
    FloatMat queries, scores;
  };
  // Finds where the keys lie. REQUIRES: nobody else uses the memory meanwhile.
  KeyGroups(const PreparedModel& model, const PageTable& kv, const Of& of, const BlockOptions& options, Memory& memory);
  const BlockOptions& options() const { return options_; }
  // Reads them, before weigh() is called. Returns the floating point operations.
  double build(ThreadPool& pool);

  // A tile and rows of the chunk that weigh for it, rising.
  struct Tile {
    int32_t at = 0;
    std::vector<int64_t> rows;
  };
  // For each of the tiles, rising, the weights of blocks 0 .. at: the sums of softmax rows over all of its rows and the
  // query heads of the group. kMeans: for the mean of the rows, wherever they are. REQUIRES: the last row is in the
  // tile; for kAntidiagonals all of them are.
  struct Weighed {
    BlockWeights blocks;
    double flops = 0;
  };
  std::vector<Weighed> weigh(const RowsAt& chunk, std::span<const Tile> tiles, ThreadPool& pool) const;

 private:
  struct RowGroups {
    struct One {
      int32_t at = 0;  // its number
      int32_t rows = 0;
    };
    std::vector<One> all;
    std::vector<int64_t> first;  // group of each tile, and their end
  };
  int64_t group() const { return model_.config().H / model_.config().G; }
  bool means() const { return options_.score == BlockScore::kMeans; }
  void add_keys(int32_t begin, int32_t end);
  std::byte* features(int64_t group) const {
    return reinterpret_cast<std::byte*>(memory_.features.view().data) + group * feature_bytes();
  }
  int64_t feature_bytes() const { return static_cast<int64_t>(dtype_bytes(dtype_, static_cast<size_t>(depth_))); }
  RowGroups groups_of(const RowsAt& chunk, std::span<const Tile> tiles) const;
  void add_queries(const RowsAt& chunk, std::span<const int64_t> rows, std::span<const RowGroups::One> groups,
                   float* to) const;
  // Groups of keys that the tile looks at.
  int32_t keys_of(const Tile& tile) const {
    return std::min((of_.end + width_ - 1) / width_, (tile.at + 1) * (kSparseTile / width_));
  }

  const PreparedModel& model_;
  const PageTable& kv_;
  const Of of_;
  const BlockOptions options_;
  const int32_t width_;  // positions of a group
  const int64_t depth_;  // features of a group
  const DType dtype_;    // of the groups of keys: kBF16 or kF32
  Memory& memory_;       // queries: group of rows, query head, feature
  std::vector<KvSpan> spans_;
  std::unique_ptr<PackedWeight> groups_;
};

}  // namespace kvilt

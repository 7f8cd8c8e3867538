// kernels/x86/column_sums.cc: how much some rows look at every position: a second pass over the scores with the known
// lse (docs/math/column_sums.md).
// Idea: one item per few blocks of 64 positions, so that every sum is made by one thread, row tiles in order: in float
//       over at most kTileLines lines, in double beyond. Memory O(T).
// Cost: 2 E flops a (line, key), half of attention; a row tile gathers a block's keys once.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/runs.h"
#include "kernels/x86/attend.h"
#include "kernels/x86/attend_tile.h"
#include "kernels/x86/block_scores.h"
#include "kernels/x86/key_blocks.h"
#include "tensor/view.h"

namespace kvilt::x86 {
namespace {

constexpr int kTileLines = 128;
// Blocks of an item, for which a row tile loads its queries once: within these bounds, as many as leave each thread
// kItemsPerThread.
constexpr int64_t kMinBlocks = 4, kMaxBlocks = 16, kItemsPerThread = 8;

// Tasks that add to the same array, in the order given.
struct Target {
  double* sums;
  std::vector<const ColumnSumTask*> tasks;
};

class ColumnSums {
 public:
  // plain: those of fp32, for the norms of values.
  ColumnSums(const TileKernels& isa, const TileKernels& plain, const AttendShape& shape)
      : isa_(isa), plain_(plain), shape_(tile_shape(shape)) {
    tile_rows_ = std::max(1, kTileLines / shape.group);
    lines_ = tile_rows_ * shape_.group;
  }

  void run(std::span<const ColumnSumTask> tasks, ThreadPool& pool) {
    int64_t blocks = 0;
    for (const ColumnSumTask& task : tasks) {
      CHECK(task.attend != nullptr && task.attend->lse != nullptr);
      auto target = std::ranges::find(targets_, task.sums, &Target::sums);
      if (target == targets_.end()) target = targets_.insert(target, {task.sums, {}});
      target->tasks.push_back(&task);
      const AttendTask& attend = *task.attend;
      if (!attend.pos.empty()) blocks = std::max(blocks, seen_blocks(attend.spans, attend.pos.back()).last);
    }
    const int64_t all = blocks * static_cast<int64_t>(targets_.size());
    item_blocks_ = std::clamp(all / (pool.size() * kItemsPerThread), kMinBlocks, kMaxBlocks);
    const int64_t items = (blocks + item_blocks_ - 1) / item_blocks_;
    pool.parallel_for(items * static_cast<int64_t>(targets_.size()), [&](int64_t i, int) {
      const Target& target = targets_[i / items];
      for (const ColumnSumTask* task : target.tasks) add_blocks(*task, i % items * item_blocks_);
    });
  }

 private:
  struct Scratch {
    float *queries, *v, *s;
  };

  Scratch scratch() const {
    thread_local Buffer buffer;
    const size_t lines = lines_, values = size_t{kBlock} * shape_.width;
    const size_t floats = values + lines * kBlock + BlockScores::floats(shape_, lines_);
    if (buffer.bytes() < floats * sizeof(float)) buffer = Buffer(floats * sizeof(float));
    float* memory = buffer.as<float>();
    return {memory + values + lines * kBlock, memory, memory + values};
  }

  void add_blocks(const ColumnSumTask& task, int64_t first_block) const;
  uint32_t add_rows(const ColumnSumTask& task, int32_t first, int32_t count, std::span<const KeyBlock> blocks,
                    int64_t first_block, double* sums) const;
  void write_rows(const ColumnSumTask& task, Run rows, const uint64_t* visible, const float* s, int64_t block) const;

  const TileKernels &isa_, &plain_;
  const TileShape shape_;
  int tile_rows_ = 1;
  int lines_ = 1;
  int64_t item_blocks_ = kMinBlocks;
  std::vector<Target> targets_;
};

// ColumnSumTask::rows of a block, from the scores of rows [rows.begin, rows.end).
void ColumnSums::write_rows(const ColumnSumTask& task, Run rows, const uint64_t* visible, const float* s,
                            int64_t block) const {
  for (int32_t r = 0; r < rows.size(); ++r, s += shape_.group * kBlock) {
    alignas(64) float columns[kBlock] = {};
    const float* lse = task.attend->lse + int64_t{rows.begin + r} * shape_.group;
    isa_.add_columns(shape_, 1, visible + r, s, lse, columns);
    float* to = task.rows + (rows.begin + r) * task.row_stride + block * kBlock;
    for (uint64_t left = visible[r]; left != 0; left &= left - 1) {
      const int j = __builtin_ctzll(left);
      to[j] = columns[j];
    }
  }
}

// Adds `count` rows from `first` on to the sums (64 for each of the blocks). Returns which blocks they see, a bit each.
uint32_t ColumnSums::add_rows(const ColumnSumTask& task, int32_t first, int32_t count, std::span<const KeyBlock> blocks,
                              int64_t first_block, double* sums) const {
  const AttendTask& attend = *task.attend;
  const Scratch scratch = this->scratch();
  BlockScores scores(isa_, shape_, {attend.q + first * attend.q_stride, attend.q_stride, count}, scratch.queries);
  uint64_t visible[kTileLines];
  uint32_t seen = 0;
  for (int64_t n = 0; n < std::ssize(blocks); ++n, sums += kBlock) {
    uint64_t wanted = 0;
    for (int r = 0; r < count; ++r) {
      visible[r] = blocks[n].present & visible_columns(attend.mask, attend.pos[first + r], first_block + n);
      wanted |= visible[r];
    }
    if (wanted == 0) continue;
    seen |= uint32_t{1} << n;
    const RowPart all{0, count, wanted};
    const Ahead ahead{.k = n + 1 < std::ssize(blocks) ? blocks[n + 1].k : nullptr};
    scores.compute(blocks[n], {&all, 1}, ahead, scratch.s);
    if (task.rows) write_rows(task, {first, first + count}, visible, scratch.s, first_block + n);
    if (!task.sums) continue;
    alignas(64) float columns[kBlock] = {};
    isa_.add_columns(shape_, count, visible, scratch.s, attend.lse + int64_t{first} * shape_.group, columns);
    for (int j = 0; j < kBlock; ++j) sums[j] += columns[j];
  }
  return seen;
}

void ColumnSums::add_blocks(const ColumnSumTask& task, int64_t first_block) const {
  const AttendTask& attend = *task.attend;
  const int32_t rows = static_cast<int32_t>(attend.pos.size());
  if (rows == 0 || attend.pos[rows - 1] < first_block * kBlock) return;
  KeyBlock memory[kMaxBlocks];
  const std::span<KeyBlock> blocks(
      memory, static_cast<size_t>(std::min(item_blocks_, attend.pos[rows - 1] / kBlock + 1 - first_block)));
  KeyBlocks keys(shape_, attend.spans);
  for (int64_t n = 0; n < std::ssize(blocks); ++n) keys.locate(first_block + n, blocks[n]);
  double sums[kMaxBlocks * kBlock] = {};
  uint32_t seen = 0;
  for (int32_t first = 0; first < rows; first += tile_rows_) {
    const int32_t count = std::min(tile_rows_, rows - first);
    if (attend.pos[first + count - 1] < first_block * kBlock) continue;
    seen |= add_rows(task, first, count, blocks, first_block, sums);
  }
  // To what no row sees nothing is added, not even 0 times a norm, which may be infinite: else bits would depend on which
  // blocks share an item.
  for (int64_t n = 0; task.sums && n < std::ssize(blocks); ++n) {
    if ((seen >> n & 1) == 0) continue;
    alignas(64) float norms[kBlock];
    std::fill_n(norms, kBlock, 1.0f);
    if (task.value_norm) {
      const Scratch scratch = this->scratch();
      plain_.gather_values(shape_, blocks[n].v, 0, kBlock, scratch.v);
      plain_.norms(shape_, scratch.v, norms);
    }
    for (uint64_t left = blocks[n].present; left != 0; left &= left - 1) {
      const int j = __builtin_ctzll(left);
      task.sums[(first_block + n) * kBlock + j] += sums[n * kBlock + j] * norms[j];
    }
  }
}

}  // namespace

void column_sums(const AttendIsa& isa, const AttendShape& shape, std::span<const ColumnSumTask> tasks,
                 ThreadPool& pool) {
  ColumnSums(isa.for_shape(tile_shape(shape)), isa.plain, shape).run(tasks, pool);
}

}  // namespace kvilt::x86

// Plan: rows are cut into tiles of about kTileLines lines; each tile walks the blocks that its rows see, super-block by
// super-block. With fewer tiles than threads (decode), super-blocks become separate items whose states are merged
// afterwards, in the same order and by the same function as a tile merges its own.
#include "kernels/x86/attend.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/x86/attend_tile.h"
#include "kernels/x86/key_blocks.h"
#include "tensor/view.h"

namespace kvilt::x86 {
namespace {

constexpr int kTileLines = 128;  // gathering 64 keys costs as much as 4 lines of them: 3 % at 128
constexpr int kSuperBlock = 8;   // blocks, 512 positions: an item of decode worth 10 us; merging is 1 % of it
constexpr int kItemsPerThread = 4;

// Floats of a TileState of `lines` lines.
size_t state_floats(const TileShape& shape, int lines) {
  return static_cast<size_t>(lines) * (1 + kLanes + shape.width);
}
TileState state_at(const TileShape& shape, int lines, float* memory) {
  return {memory + static_cast<size_t>(lines) * (kLanes + shape.width), memory,
          memory + static_cast<size_t>(lines) * kLanes};
}
void clear(const TileShape& shape, int lines, const TileState& state) {
  std::fill_n(state.max, lines, kNoScore);
  std::fill_n(state.lane, lines * kLanes, 0.0f);
  std::fill_n(state.acc, static_cast<size_t>(lines) * shape.width, 0.0f);
}

// Memory that a thread keeps between calls: mapping it anew for every layer of every step would cost more than decode's
// math.
float* thread_floats(size_t count) {
  thread_local Buffer buffer;
  if (buffer.bytes() < count * sizeof(float)) buffer = Buffer(count * sizeof(float));
  return buffer.as<float>();
}

// Rows [first, first + count) of a task, and the super-blocks [super_first, super_last) of their keys.
struct Item {
  const AttendTask* task;
  int32_t first, count;
  int32_t super_first, super_last;
  int64_t cost;
  float* partial = nullptr;  // null: finish here; else the states of the super-blocks go there, one after the other
  bool* filled = nullptr;    // which of them saw a key
};

class Attention {
 public:
  Attention(const TileKernels& isa, const AttendShape& shape) : isa_(isa), shape_(tile_shape(shape)) {
    tile_rows_ = std::max(1, std::max(32, std::min(kTileLines, kTileLines * 64 / shape.E)) / shape.group);
    lines_ = tile_rows_ * shape_.group;
  }

  void run(std::span<const AttendTask> tasks, ThreadPool& pool) {
    for (const AttendTask& task : tasks) add_tiles(task);
    const size_t wanted = static_cast<size_t>(pool.size()) * kItemsPerThread;
    if (pool.size() > 1 && tiles_.size() < wanted) {
      run_split(pool);
      return;
    }
    // Long items first, so that no thread is left with one at the end.
    std::stable_sort(tiles_.begin(), tiles_.end(), [](const Item& a, const Item& b) { return a.cost > b.cost; });
    pool.parallel_for(static_cast<int64_t>(tiles_.size()), [&](int64_t i, int) { attend_tile(tiles_[i]); });
  }

 private:
  // Pieces of a worker's memory.
  struct Scratch {
    float *q, *kt, *v, *s, *scale_back;
    TileState part, whole;  // of the current super-block; of all before it
  };

  Scratch scratch() const {
    const size_t E = static_cast<size_t>(shape_.E), width = static_cast<size_t>(shape_.width);
    const size_t lines = (static_cast<size_t>(lines_) + kLanes - 1) / kLanes * kLanes;
    float* next =
        thread_floats(lines * (E + kBlock + 1) + kBlock * (E + width) + 2 * state_floats(shape_, lines_) + 64);
    const auto take = [&next](size_t count) { return std::exchange(next, next + count); };
    Scratch scratch;
    scratch.kt = take(kBlock * E);
    scratch.v = take(kBlock * width);
    scratch.s = take(lines * kBlock);
    scratch.q = take(lines * E);
    scratch.scale_back = take(lines);
    scratch.part = state_at(shape_, lines_, take(state_floats(shape_, lines_)));
    scratch.whole = state_at(shape_, lines_, take(state_floats(shape_, lines_)));
    return scratch;
  }

  void add_tiles(const AttendTask& task) {
    const int32_t rows = static_cast<int32_t>(task.pos.size());
    for (int32_t first = 0; first < rows; first += tile_rows_) {
      const int32_t count = std::min(tile_rows_, rows - first);
      const int64_t low = task.pos[first], high = task.pos[first + count - 1];
      const BlockRange range = seen_blocks(task.spans, high);
      int64_t blocks = std::max<int64_t>(range.last - range.first, 0);
      if (const int64_t from = next_seen(task.mask, low, high, range.first); from > range.first)
        blocks = range.last - from;
      tiles_.push_back({&task, first, count, static_cast<int32_t>(range.first / kSuperBlock),
                        static_cast<int32_t>((range.last + kSuperBlock - 1) / kSuperBlock), blocks * count});
    }
  }

  void attend_tile(const Item& item) const;
  void attend_super_block(const Item& item, int64_t super, KeyBlocks& keys, const Scratch& scratch, bool& seen) const;
  void attend_block(const Item& item, const KeyBlock& block, const uint64_t* visible, const Scratch& scratch,
                    const float** rotation) const;
  void run_split(ThreadPool& pool);

  const TileKernels& isa_;
  const TileShape shape_;
  int tile_rows_ = 1;
  int lines_ = 1;
  std::vector<Item> tiles_;
};

constexpr float kUnloaded = 0;  // its address stands for "no queries in the tile yet"

// One block for all rows of the tile. *rotation: by which the queries in scratch.q are turned back.
void Attention::attend_block(const Item& item, const KeyBlock& block, const uint64_t* visible, const Scratch& scratch,
                             const float** rotation) const {
  const AttendTask& task = *item.task;
  const int lines = item.count * shape_.group;
  uint64_t wanted = 0;
  for (int r = 0; r < item.count; ++r) wanted |= visible[r];
  isa_.gather_keys(shape_, block.k, scratch.kt);
  const auto score = [&](const Turn& turn) {
    if ((turn.columns & wanted) == 0) return;
    if (turn.rotation != *rotation) {
      isa_.load_queries(shape_, task.q + item.first * task.q_stride, task.q_stride, item.count, turn.rotation,
                        scratch.q);
      *rotation = turn.rotation;
    }
    isa_.scores(shape_, scratch.q, lines, scratch.kt, turn.columns & wanted, scratch.s);
  };
  int loaded = -1;  // the turn whose queries are in the tile already goes first
  for (int t = 0; t < block.turn_count; ++t) {
    if (block.turns[t].rotation == *rotation) loaded = t;
  }
  if (loaded >= 0) score(block.turns[loaded]);
  for (int t = 0; t < block.turn_count; ++t) {
    if (t != loaded) score(block.turns[t]);
  }
  isa_.softmax(shape_, item.count, visible, scratch.s, scratch.part, scratch.scale_back);
  const int first = __builtin_ctzll(wanted), last = kBlock - __builtin_clzll(wanted);
  if (shape_.kv == Element::kF32 && shape_.width == shape_.E && block.run_end[first] >= last) {  // V as it lies
    isa_.add_values(shape_, lines, scratch.s, first, last, static_cast<const float*>(block.v[first]), shape_.E,
                    scratch.scale_back, scratch.part.acc);
  } else {
    isa_.gather_values(shape_, block.v, scratch.v);
    isa_.add_values(shape_, lines, scratch.s, first, last, scratch.v + first * shape_.width, shape_.width,
                    scratch.scale_back, scratch.part.acc);
  }
}

// Fills scratch.part with the state of one super-block; seen: some row saw some key.
void Attention::attend_super_block(const Item& item, int64_t super, KeyBlocks& keys, const Scratch& scratch,
                                   bool& seen) const {
  const AttendTask& task = *item.task;
  const int32_t* pos = task.pos.data() + item.first;
  const int64_t low = pos[0], high = pos[item.count - 1];
  const int64_t end = std::min((super + 1) * kSuperBlock, seen_blocks(task.spans, high).last);
  const float* rotation = &kUnloaded;
  KeyBlock block;
  uint64_t visible[kTileLines];
  seen = false;
  for (int64_t b = next_seen(task.mask, low, high, super * kSuperBlock); b < end;
       b = next_seen(task.mask, low, high, b + 1)) {
    keys.locate(b, block);
    uint64_t any = 0;
    for (int r = 0; r < item.count; ++r) any |= visible[r] = block.present & visible_columns(task.mask, pos[r], b);
    if (any == 0) continue;
    if (!seen) clear(shape_, item.count * shape_.group, scratch.part);
    seen = true;
    attend_block(item, block, visible, scratch, &rotation);
  }
}

void Attention::attend_tile(const Item& item) const {
  const AttendTask& task = *item.task;
  const int lines = item.count * shape_.group;
  Scratch scratch = this->scratch();
  const TileState whole = scratch.whole;
  if (item.partial == nullptr) clear(shape_, lines, whole);
  KeyBlocks keys(shape_, task.spans);
  for (int32_t super = item.super_first; super < item.super_last; ++super) {
    bool seen = false;
    if (item.partial != nullptr) {
      const int32_t n = super - item.super_first;
      scratch.part = state_at(shape_, lines, item.partial + static_cast<size_t>(n) * state_floats(shape_, lines));
      attend_super_block(item, super, keys, scratch, seen);
      item.filled[n] = seen;
    } else {
      attend_super_block(item, super, keys, scratch, seen);
      if (seen) isa_.merge(shape_, lines, scratch.part, whole);
    }
  }
  if (item.partial != nullptr) return;
  isa_.finish(shape_, item.count, whole, task.out + item.first * task.out_stride, task.out_stride,
              task.lse == nullptr ? nullptr : task.lse + int64_t{item.first} * shape_.group);
}

// Few tiles: every super-block is an item. Partial states live in one array; a second loop merges each tile's in order.
void Attention::run_split(ThreadPool& pool) {
  size_t floats = 0, supers = 0;
  for (const Item& tile : tiles_) {
    const size_t count = static_cast<size_t>(std::max(tile.super_last - tile.super_first, 0));
    floats += count * state_floats(shape_, tile.count * shape_.group);
    supers += count;
  }
  thread_local Buffer partial;  // the caller's
  if (partial.bytes() < floats * sizeof(float)) partial = Buffer(floats * sizeof(float));
  std::vector<Item> items;
  items.reserve(supers);
  const std::unique_ptr<bool[]> filled(new bool[supers]());
  float* memory = partial.as<float>();
  for (Item& tile : tiles_) {
    tile.partial = memory;
    tile.filled = filled.get() + items.size();
    for (int32_t super = tile.super_first; super < tile.super_last; ++super) {
      Item item = tile;
      item.super_first = super;
      item.super_last = super + 1;
      item.partial = memory;
      item.filled = filled.get() + items.size();
      memory += state_floats(shape_, tile.count * shape_.group);
      items.push_back(item);
    }
  }
  pool.parallel_for(static_cast<int64_t>(items.size()), [&](int64_t i, int) { attend_tile(items[i]); });
  pool.parallel_for(static_cast<int64_t>(tiles_.size()), [&](int64_t i, int) {
    const Item& tile = tiles_[i];
    const AttendTask& task = *tile.task;
    const int lines = tile.count * shape_.group;
    const TileState whole = scratch().whole;
    clear(shape_, lines, whole);
    for (int32_t n = 0; n < tile.super_last - tile.super_first; ++n) {
      if (!tile.filled[n]) continue;
      isa_.merge(shape_, lines,
                 state_at(shape_, lines, tile.partial + static_cast<size_t>(n) * state_floats(shape_, lines)), whole);
    }
    isa_.finish(shape_, tile.count, whole, task.out + tile.first * task.out_stride, task.out_stride,
                task.lse == nullptr ? nullptr : task.lse + int64_t{tile.first} * shape_.group);
  });
}

}  // namespace
}  // namespace kvilt::x86

namespace kvilt::avx2 {
void attend(const AttendShape& shape, std::span<const AttendTask> tasks, ThreadPool& pool) {
  x86::Attention(kAttendTiles, shape).run(tasks, pool);
}
}  // namespace kvilt::avx2

namespace kvilt::avx512 {
void attend(const AttendShape& shape, std::span<const AttendTask> tasks, ThreadPool& pool) {
  x86::Attention(kAttendTiles, shape).run(tasks, pool);
}
}  // namespace kvilt::avx512

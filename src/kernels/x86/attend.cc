// kernels/x86/attend.cc: attend() of attend.h.
// Plan: rows are cut into tiles of about kTileLines lines; each tile walks the blocks that its rows see, super-block by
//       super-block. With few tiles for each thread (decode), super-blocks become separate items whose states are
//       merged afterwards, in the same order and by the same function as a tile merges its own.
#include "kernels/x86/attend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/x86/attend_tile.h"
#include "kernels/x86/block_scores.h"
#include "kernels/x86/key_blocks.h"
#include "tensor/view.h"

namespace kvilt::x86 {
namespace {

constexpr int kTileLines = 128;  // gathering 64 keys costs as much as 4 lines of them: 3 % at 128
constexpr int kSuperBlock = 8;   // blocks, 512 positions: 10 us of decode; merging is 1 % of it
constexpr int kItemsPerThread = 4;
constexpr int kFewLines = 16, kMaxRuns = 4;  // see add_values
constexpr int kPartLines = 32;               // see cut

// Floats of a TileState of `lines` lines.
size_t state_floats(const TileShape& shape, int lines) { return lines * (1 + kLanes + shape.width); }
TileState state_at(const TileShape& shape, int lines, float* memory) {
  return {memory + lines * (kLanes + shape.width), memory, memory + lines * kLanes};
}
void clear(const TileShape& shape, int lines, const TileState& state) {
  std::fill_n(state.max, lines, kNoScore);
  std::fill_n(state.lane, lines * kLanes, 0.0f);
  std::fill_n(state.acc, lines * shape.width, 0.0f);
}

// Memory that a thread keeps between calls: mapping it anew for every layer of every step would cost more than the
// arithmetic of decode.
float* thread_floats(size_t count) {
  thread_local Buffer buffer;
  if (buffer.bytes() < count * sizeof(float)) buffer = Buffer(count * sizeof(float));
  return buffer.as<float>();
}

int first_column(uint64_t wanted) { return __builtin_ctzll(wanted); }
int end_column(uint64_t wanted) { return kBlock - __builtin_clzll(wanted); }

// Number of runs of columns in [first, last) whose values are one after the other in memory.
int count_runs(const KeyBlock& block, int first, int last) {
  int runs = 0;
  for (int j = first; j < last; ++runs) {
    while (j < last && (block.present >> j & 1) == 0) ++j;
    if (j < last) j = block.run_end[j];
  }
  return runs;
}

// Rows [first, first + count) of a task, and the super-blocks [super_first, super_last) of their keys.
struct Item {
  const AttendTask* task;
  int32_t first, count;
  int64_t super_first, super_last;
  int64_t cost;               // its blocks, or its super-blocks where items are split, times weight()
  float* partial = nullptr;   // null: finish here; else the states of the super-blocks go there, one after the other
  uint8_t* filled = nullptr;  // which of them saw a key

  std::span<const int32_t> pos() const { return task->pos.subspan(first, count); }
  // What its keys take, in fifths of what they take for a decode row: a tile of 18 rows, as many lines as there are at
  // once, takes 4.5 (in tiles) to 7 times as long.
  int64_t weight() const { return 4 + count; }
  // The first super-block >= super with a block that some row may see, as far as sink and window say.
  int64_t next_super(int64_t super) const {
    const int64_t block = next_seen(task->mask, pos().front(), pos().back(), super * kSuperBlock);
    return std::max(super, block / kSuperBlock);
  }
};

// The caller's lists, kept between calls like thread_floats: a decode step allocates nothing.
struct Lists {
  std::vector<Item> tiles, items;
  std::vector<uint8_t> filled;
};
Lists& thread_lists() {
  thread_local Lists lists;
  return lists;
}

// The blocks of an item that some of its rows see, in order. The next one is located while the current one is computed,
// so that its memory can be fetched ahead: decode would wait for it otherwise.
class Walk {
 public:
  Walk(const TileShape& shape, const Item& item)
      : item_(item),
        keys_(shape, item.task->spans),
        group_(shape.group),
        low_(item.pos().front()),
        high_(item.pos().back()) {
    end_ = std::min(item.super_last * kSuperBlock, seen_blocks(item.task->spans, high_).last);
    find(item.super_first * kSuperBlock);
    step();
  }

  bool done() const { return current_->index < 0; }
  int64_t index() const { return current_->index; }
  const KeyBlock& block() const { return current_->keys; }
  Ahead ahead() const { return next_->index < 0 ? Ahead{} : Ahead{next_->keys.k, next_->keys.v}; }  // the next block's
  const uint64_t* visible() const { return current_->visible; }                                     // columns, by row
  uint64_t wanted() const { return current_->wanted; }                                              // by any row
  std::span<const RowPart> parts() const { return {current_->parts, static_cast<size_t>(current_->part_count)}; }

  void step() {
    std::swap(current_, next_);
    if (current_->index >= 0) find(current_->index + 1);
  }

 private:
  struct Place {
    int64_t index = -1;
    uint64_t wanted = 0;
    KeyBlock keys;
    uint64_t visible[kTileLines];
    RowPart parts[kTileLines];
    int part_count = 0;

    // Where rows see different columns (the block of the rows themselves, the edge of a window), neighbours of about
    // kPartLines lines are computed by themselves: 32 rows with a window of 256 see 288 columns, each of them 257. A
    // head with that window takes 9 % less time; no bit changes.
    void cut(int rows, int group) {
      part_count = 0;
      const bool alike = std::all_of(visible, visible + rows, [&](uint64_t seen) { return seen == wanted; });
      const int most = alike ? rows : std::max(1, kPartLines / group);
      for (int first = 0; first < rows; first += most) {
        RowPart part{first, std::min(most, rows - first), 0};
        for (int r = first; r < first + part.count; ++r) part.wanted |= visible[r];
        if (part.wanted != 0) parts[part_count++] = part;
      }
    }
  };

  // The first block >= index with a key that is seen becomes the next one.
  void find(int64_t index) {
    const KeyMask& mask = item_.task->mask;
    for (index = next_seen(mask, low_, high_, index); index < end_; index = next_seen(mask, low_, high_, index + 1)) {
      keys_.locate(index, next_->keys);
      next_->wanted = 0;
      for (int r = 0; r < item_.count; ++r) {
        next_->visible[r] = next_->keys.present & visible_columns(mask, item_.pos()[r], index);
        next_->wanted |= next_->visible[r];
      }
      if (next_->wanted == 0) continue;
      next_->cut(item_.count, group_);
      next_->index = index;
      return;
    }
    next_->index = -1;
  }

  const Item& item_;
  KeyBlocks keys_;
  const int group_;
  int64_t low_, high_, end_ = 0;
  Place places_[2];
  Place *current_ = &places_[0], *next_ = &places_[1];
};

class Attention {
 public:
  Attention(const TileKernels& isa, const AttendShape& shape)
      : isa_(isa), shape_(tile_shape(shape)), lists_(thread_lists()), tiles_(lists_.tiles) {
    tiles_.clear();
    tile_rows_ = std::max(1, std::max(32, std::min(kTileLines, kTileLines * 64 / shape.E)) / shape.group);
    lines_ = tile_rows_ * shape_.group;
  }

  void run(std::span<const AttendTask> tasks, ThreadPool& pool) {
    for (const AttendTask& task : tasks) add_tiles(task);
    const size_t wanted = pool.size() * kItemsPerThread;
    if (pool.size() > 1 && tiles_.size() < wanted) {
      run_split(pool);
      return;
    }
    // Long items first, so that no thread is left with one at the end.
    std::ranges::sort(tiles_, [](const Item& a, const Item& b) { return a.cost > b.cost; });
    pool.parallel_for(static_cast<int64_t>(tiles_.size()), [&](int64_t i, int) { attend_tile(tiles_[i]); });
  }

 private:
  // A worker's memory.
  struct Scratch {
    float *queries, *v, *s, *scale_back;
    TileState part, whole;  // of the current super-block; of all before it
  };

  Scratch scratch() const {
    const size_t width = shape_.width, lines = lines_;
    const size_t padded = (lines + kLanes - 1) / kLanes * kLanes, state = padded * (1 + kLanes + width);
    const size_t queries = (BlockScores::floats(shape_, lines_) + kLanes - 1) / kLanes * kLanes;
    float* next = thread_floats(queries + kBlock * width + padded * kBlock + padded + 2 * state);
    const auto take = [&next](size_t count) { return std::exchange(next, next + count); };
    Scratch scratch;
    scratch.queries = take(queries);
    scratch.v = take(kBlock * width);
    scratch.s = take(padded * kBlock);  // products read lines by 16
    scratch.scale_back = take(padded);
    scratch.part = state_at(shape_, lines_, take(state));
    scratch.whole = state_at(shape_, lines_, take(state));
    return scratch;
  }

  void add_tiles(const AttendTask& task) {
    const int32_t rows = static_cast<int32_t>(task.pos.size());
    for (int32_t first = 0; first < rows; first += tile_rows_) {
      const int32_t count = std::min(tile_rows_, rows - first);
      const int64_t low = task.pos[first], high = task.pos[first + count - 1];
      const BlockRange range = seen_blocks(task.spans, high);
      const int64_t sink = std::max<int64_t>(range.first, (int64_t{task.mask.sink} + kBlock - 1) / kBlock);
      int64_t blocks = std::max<int64_t>(range.last - range.first, 0);  // less those between sink and window
      if (sink < range.last) blocks -= std::min(next_seen(task.mask, low, high, sink), range.last) - sink;
      Item tile{&task, first, count, range.first / kSuperBlock, (range.last + kSuperBlock - 1) / kSuperBlock, 0};
      tile.cost = blocks * tile.weight();
      tiles_.push_back(tile);
    }
  }

  void attend_tile(const Item& item) const;
  void attend_block(const Item& item, const Walk& walk, const Scratch& scratch, BlockScores& scores) const;
  void add_values(const Walk& walk, int lines, const Scratch& scratch) const;
  void add_runs(const Walk& walk, const RowPart& part, const void* const* ahead, const Scratch& scratch) const;
  bool direct(int lines) const { return isa_.add_values_direct != nullptr && lines <= kDirectLines; }
  // Of the line and those after it.
  TileState state_from(const TileState& state, int line) const {
    return {state.max + line, state.lane + line * kLanes, state.acc + int64_t{line} * shape_.width};
  }
  void finish(const Item& item, const TileState& whole) const;
  void add_sinks(Mat<float> out, const float* sinks, float* lse) const;
  void run_split(ThreadPool& pool);

  const TileKernels& isa_;
  const TileShape shape_;
  int tile_rows_ = 1;
  int lines_ = 1;
  Lists& lists_;
  std::vector<Item>& tiles_;
};

// Adds one block to scratch.part, for all rows of the tile.
void Attention::attend_block(const Item& item, const Walk& walk, const Scratch& scratch, BlockScores& scores) const {
  const int lines = item.count * shape_.group;
  const KeyBlock& block = walk.block();
  // Read in place, a block takes too little time to fetch its own values in: the next block's keys and values come
  // meanwhile (7 % of bf16 decode at 16,000 keys; fp32 loses as much by it).
  scores.compute(block, walk.parts(), direct(lines) ? walk.ahead() : Ahead{nullptr, block.v}, scratch.s);
  for (const RowPart& part : walk.parts()) {
    const int line = part.first * shape_.group;
    isa_.softmax(shape_, part.count, walk.visible() + part.first, scratch.s + line * kBlock,
                 state_from(scratch.part, line), scratch.scale_back + line);
  }
  add_values(walk, lines, scratch);
}

// Values that are together in memory are read in place, for a few lines even if they form a few runs (pages): loading
// and storing the sums once more per run is cheaper than copying 64 values. It changes no bit: the order is the same.
void Attention::add_values(const Walk& walk, int lines, const Scratch& scratch) const {
  const KeyBlock& block = walk.block();
  const int first = first_column(walk.wanted()), last = end_column(walk.wanted());
  if (direct(lines)) {
    const DirectValues values{first, last, block.v, walk.ahead()};
    isa_.add_values_direct(shape_, lines, scratch.s, values, scratch.scale_back, scratch.part.acc);
    return;
  }
  const void* const* ahead = walk.ahead().k;
  int runs = kMaxRuns + 1;
  if (shape_.kv == Element::kF32 && shape_.width == shape_.E) runs = count_runs(block, first, last);
  if (runs > (lines <= kFewLines ? kMaxRuns : 1)) {
    isa_.gather_values(shape_, block.v, first, last, scratch.v);
    for (const RowPart& part : walk.parts()) {
      const int line = part.first * shape_.group, j = first_column(part.wanted);
      const ValueTile seen{j, end_column(part.wanted), scratch.v + int64_t{j} * shape_.width, shape_.width, ahead};
      isa_.add_values(shape_, part.count * shape_.group, scratch.s + line * kBlock, seen, scratch.scale_back + line,
                      state_from(scratch.part, line).acc);
      ahead = nullptr;
    }
    return;
  }
  for (const RowPart& part : walk.parts()) {
    add_runs(walk, part, ahead, scratch);
    ahead = nullptr;
  }
}

// As add_values, reading the values in place, run by run.
void Attention::add_runs(const Walk& walk, const RowPart& part, const void* const* ahead,
                         const Scratch& scratch) const {
  const KeyBlock& block = walk.block();
  const int line = part.first * shape_.group, lines = part.count * shape_.group, last = end_column(part.wanted);
  for (int j = first_column(part.wanted); j < last; ++j) {
    if ((block.present >> j & 1) == 0) continue;
    const int end = std::min<int>(block.run_end[j], last);
    const ValueTile run{j, end, static_cast<const float*>(block.v[j]), shape_.E,
                        ahead == nullptr ? nullptr : ahead + j};
    isa_.add_values(shape_, lines, scratch.s + line * kBlock, run, scratch.scale_back + line,
                    state_from(scratch.part, line).acc);
    if (end < last) std::fill_n(scratch.scale_back + line, lines, 1.0f);
    j = end - 1;
  }
}

void Attention::finish(const Item& item, const TileState& whole) const {
  const AttendTask& task = *item.task;
  float* const out = task.out + item.first * task.out_stride;
  float* lse = task.lse == nullptr ? nullptr : task.lse + int64_t{item.first} * shape_.group;
  if (task.sinks != nullptr && lse == nullptr) lse = whole.max;  // a line's maximum is read before its lse is written
  isa_.finish(shape_, item.count, whole, out, task.out_stride, lse);
  if (task.sinks != nullptr) add_sinks({out, item.count, shape_.group * shape_.E, task.out_stride}, task.sinks, lse);
}

// A sink is one more term of the normaliser: it scales what the keys gave by their share, e^lse / (e^lse + e^sink).
void Attention::add_sinks(Mat<float> out, const float* sinks, float* lse) const {
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int h = 0; h < shape_.group; ++h, ++lse) {
      if (sinks[h] == -std::numeric_limits<float>::infinity()) continue;
      const double over = double{sinks[h]} - double{*lse};
      float* y = out.row(r) + int64_t{h} * shape_.E;
      const auto share = static_cast<float>(1 / (1 + std::exp(over)));  // 0 for a line that saw no key
      for (int e = 0; e < shape_.E; ++e) y[e] *= share;
      *lse = static_cast<float>(std::max<double>(sinks[h], *lse) + std::log1p(std::exp(-std::abs(over))));
    }
  }
}

void Attention::attend_tile(const Item& item) const {
  const AttendTask& task = *item.task;
  const int lines = item.count * shape_.group;
  Scratch scratch = this->scratch();
  bool first = true;  // the first super-block's state is the whole's: merging it into nothing would change no bit
  BlockScores scores(isa_, shape_, {task.q + item.first * task.q_stride, task.q_stride, item.count}, scratch.queries);
  for (Walk walk(shape_, item); !walk.done();) {
    const int64_t super = walk.index() / kSuperBlock;
    if (item.partial != nullptr) {
      const int64_t n = super - item.super_first;
      scratch.part = state_at(shape_, lines, item.partial + n * state_floats(shape_, lines));
      item.filled[n] = 1;
    }
    clear(shape_, lines, scratch.part);
    for (; !walk.done() && walk.index() / kSuperBlock == super; walk.step()) attend_block(item, walk, scratch, scores);
    if (item.partial != nullptr) continue;
    if (std::exchange(first, false)) {
      std::swap(scratch.part, scratch.whole);
    } else {
      isa_.merge(shape_, lines, scratch.part, scratch.whole);
    }
  }
  if (item.partial != nullptr) return;
  if (first) clear(shape_, lines, scratch.whole);
  finish(item, scratch.whole);
}

// For few tiles: runs of super-blocks are items. The states of all super-blocks are kept; a second loop merges those of
// each tile. An item is 2/3 of a thread's part of the work left: it begins with rotating its queries and with keys that
// nobody fetched ahead, so a few long ones, and shorter ones for whoever is done first. (16,128 keys of 24 layers, two
// threads: 9.3 ms where 16 equal ones take 9.7; the whole part has 9.3 too, and waits for a thread that is slowed down.)
void Attention::run_split(ThreadPool& pool) {
  size_t floats = 0, supers = 0;
  int64_t left = 0;
  for (const Item& tile : tiles_) {
    const size_t count = std::max<int64_t>(tile.super_last - tile.super_first, 0);
    floats += count * state_floats(shape_, tile.count * shape_.group);
    supers += count;
    for (int64_t n = tile.next_super(tile.super_first); n < tile.super_last; n = tile.next_super(n + 1))
      left += tile.weight();
  }
  thread_local Buffer partial;  // the caller's
  if (partial.bytes() < floats * sizeof(float)) partial = Buffer(floats * sizeof(float));
  std::vector<uint8_t>& filled = lists_.filled;
  filled.assign(supers, 0);
  std::vector<Item>& items = lists_.items;
  items.clear();
  float* memory = partial.as<float>();
  uint8_t* flag = filled.data();
  for (Item& tile : tiles_) {
    tile.partial = memory;
    tile.filled = flag;
    const size_t state = state_floats(shape_, tile.count * shape_.group);
    for (int64_t super = tile.next_super(tile.super_first); super < tile.super_last;) {
      const int64_t most = 2 * left / (3 * pool.size() * tile.weight());
      Item item = tile;
      item.super_first = super;
      item.partial = memory + (super - tile.super_first) * state;
      item.filled = flag + (super - tile.super_first);
      do {
        ++super;
      } while (super < tile.super_last && super - item.super_first < most && tile.next_super(super) == super);
      item.super_last = super;
      item.cost = (super - item.super_first) * item.weight();
      left -= item.cost;
      super = tile.next_super(super);
      items.push_back(item);
    }
    const int64_t all = std::max<int64_t>(tile.super_last - tile.super_first, 0);
    memory += all * state;
    flag += all;
  }
  // Long ones first: a head that sees everything may come after many that see little.
  std::ranges::sort(
      items, [](const Item& a, const Item& b) { return a.cost != b.cost ? a.cost > b.cost : a.partial < b.partial; });
  pool.parallel_for(static_cast<int64_t>(items.size()), [&](int64_t i, int) { attend_tile(items[i]); });
  pool.parallel_for(static_cast<int64_t>(tiles_.size()), [&](int64_t i, int) {
    const Item& tile = tiles_[i];
    const int lines = tile.count * shape_.group;
    const TileState whole = scratch().whole;
    clear(shape_, lines, whole);
    for (int64_t n = 0; n < tile.super_last - tile.super_first; ++n) {
      float* part = tile.partial + n * state_floats(shape_, lines);
      if (tile.filled[n]) isa_.merge(shape_, lines, state_at(shape_, lines, part), whole);
    }
    finish(tile, whole);
  });
}

}  // namespace

void attend(const AttendIsa& isa, const AttendShape& shape, std::span<const AttendTask> tasks, ThreadPool& pool) {
  Attention(isa.for_shape(tile_shape(shape)), shape).run(tasks, pool);
}

}  // namespace kvilt::x86

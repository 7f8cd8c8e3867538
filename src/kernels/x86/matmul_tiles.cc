// kernels/x86/matmul_tiles.cc: quantised weights x many rows of int8 activations, in AMX's tiles (tdpbssd).
// Role:       TiledKernels, and the tiles' peak (kernels/peak.h); layouts and the arithmetic's order: kernels.h. Few rows are matmul.cc's.
// Idea:       a group of 32 k of a block of weights is a tile as it is stored, but for its bits: 8 words of 64 bytes, 16
//             columns x 4 k. So some groups are decoded once into a panel that stays in L1, and all row blocks of the
//             part pass over it. A product of tiles is 16 rows x 16 columns of integer dots; vectors scale and sum them,
//             in matmul.cc's order, so every bit is the same.
// Cost:       for 16 rows x 16 columns x 64 k 2 products (32 cycles of the tiles' unit) and 16 x 5 vector operations
//             (40 cycles of two ports), which bound it: vpdpbusd alone would take 128 of them. The dots of one pair of
//             groups are scaled while the next pair's are computed.
// Invariants: the tiles are released at a part's end, so that no other code runs with their state.
#include "kernels/x86/amx_tiles.h"
#include "kernels/x86/packed.h"

namespace kvilt::KVILT_ISA {

using x86::kTileRecordBytes;
using x86::kTileRows;
using x86::RowsIn;

namespace {

constexpr int64_t kPanelGroups = 32;   // 16 KB of weights
constexpr int64_t kBlocksAtOnce = 32;  // row blocks whose sums wait together: 32 KB
constexpr int64_t kRecord = kTileRows * kTileRecordBytes;

// ---- Tiles ---------------------------------------------------------------------------------------------------------

// Registers 0 to 3 hold dots, 4 and 5 activations, 6 and 7 weights, of a product over `k` k.
void configure(int k) {
  TileConfig config;
  for (int reg = 0; reg < 8; ++reg) config.set(reg, reg < 6 ? kTileRows : k / 4, reg == 4 || reg == 5 ? k : 64);
  configure(config);
}

template <int dots, int x, int w>
KVILT_INLINE void multiply_tiles() {
  zero_tile<dots>();
  add_int8_product<dots, x, w>();
}

// ---- A panel of decoded weights ------------------------------------------------------------------------------------

// Some groups of one block, all 16 lanes; quants are signed, without their offset.
template <DType type>
struct Panel {
  static constexpr Format kFormat = x86::format_of(type);
  alignas(64) std::byte quants[kPanelGroups][512];
  VF scales[kPanelGroups][kFormat.scales];
  VF mins[kFormat.mins ? kPanelGroups : 1];
};

// Groups from w on; w is moved behind them.
template <DType type>
__attribute__((noinline)) void fill(Packed<type>& w, int64_t groups, Panel<type>* panel) {
  constexpr Format f = Panel<type>::kFormat;
  const VI offset = _mm512_set1_epi8(f.mins ? 0 : static_cast<char>(1 << (f.bits - 1)));
  for (int64_t g = 0; g < groups; ++g, Packed<type>::next(w)) {
    VI quads[8];
    decode<type, 0>(w, quads);
    KVILT_UNROLL
    for (int j = 0; j < 8; ++j) store_bytes(panel->quants[g] + j * 64, _mm512_sub_epi8(quads[j], offset));
    KVILT_UNROLL
    for (int s = 0; s < f.scales; ++s) panel->scales[g][s] = Packed<type>::scale(w, s);
    if constexpr (f.mins) panel->mins[g] = Packed<type>::min(w);
  }
}

// ---- A tile of outputs ---------------------------------------------------------------------------------------------
//
// Two groups that share an x scale are a pair: kSteps products, one for each weight scale.

template <DType type>
constexpr int kSteps = kShared* Panel<type>::kFormat.scales;
using Dots = int32_t[kTileRows * 16];
constexpr int64_t kDotsRow = 64;  // bytes

// Product `step` of the pair at group g, into its register. x: the row block's record of g.
template <DType type, int step>
KVILT_INLINE void multiply(const Panel<type>& panel, int64_t g, const std::byte* x) {
  constexpr int scales = Panel<type>::kFormat.scales, group = step / scales, part = step % scales;
  constexpr int reg_x = 4 + step % 2, reg_w = 6 + step % 2;
  load_tile<reg_x>(x + group * kRecord + part * (kGroup / scales), kGroup);
  load_tile<reg_w>(panel.quants[g + group] + part * (512 / scales), 64);
  multiply_tiles<step, reg_x, reg_w>();
}

// The products of the pair's first `count` groups.
template <DType type, int count, int step = 0>
KVILT_INLINE void multiply_pair(const Panel<type>& panel, int64_t g, const std::byte* x, Dots* dots) {
  if constexpr (step < count * Panel<type>::kFormat.scales) {
    multiply<type, step>(panel, g, x);
    multiply_pair<type, count, step + 1>(panel, g, x, dots);
    store_tile<step>(dots[step], kDotsRow);
  }
}

// sum += the dots of the pair's first `count` groups, scaled: rows [first, end).
template <DType type, int count, int first = 0, int end = kTileRows>
KVILT_INLINE void add_dots(const Panel<type>& panel, int64_t g, const std::byte* x, const Dots* dots,
                           VF (&sum)[kTileRows]) {
  constexpr Format f = Panel<type>::kFormat;
  const std::byte* scales = x + kTileRows * kGroup;
  KVILT_UNROLL
  for (int r = first; r < end; ++r) {
    VF part = zero_f();
    KVILT_UNROLL
    for (int i = 0; i < count; ++i) {
      KVILT_UNROLL
      for (int s = 0; s < f.scales; ++s) {
        const VF dot = to_float(load_bytes(dots[i * f.scales + s] + r * 16));
        // The first product is not added to a zero: only the sign of a zero could differ, and sums start at +0.
        part = i + s == 0 ? mul(dot, panel.scales[g][0]) : fma(dot, panel.scales[g + i][s], part);
      }
      if constexpr (f.mins) sum[r] = fma(panel.mins[g + i], set(load_float(scales + i * kRecord + 64 + r * 4)), sum[r]);
    }
    sum[r] = fma(part, set(load_float(scales + r * 4)), sum[r]);
  }
}

// add_dots() of the pair at g and multiply_pair() of the next one, in turns: 16 rows after all of the next products are
// more than the core can look ahead (500 instead of 640 GOP/s where the other hyperthread works).
template <DType type, int turn = 0>
KVILT_INLINE void add_and_multiply(const Panel<type>& panel, int64_t g, const std::byte* x, const Dots* dots,
                                   Dots* next, VF (&sum)[kTileRows]) {
  constexpr int steps = kSteps<type>, rows = kTileRows / (2 * steps);
  if constexpr (turn < 2 * steps) {
    if constexpr (turn < steps) {
      multiply<type, turn>(panel, g + kShared, x + kShared * kRecord);
    } else {
      store_tile<turn - steps>(next[turn - steps], kDotsRow);
    }
    add_dots<type, kShared, turn * rows, (turn + 1) * rows>(panel, g, x, dots, sum);
    add_and_multiply<type, turn + 1>(panel, g, x, dots, next, sum);
  }
}

// sums += 16 rows x 16 columns over the panel's groups. x: the row block's record of the first.
template <DType type>
__attribute__((noinline)) void tile(const Panel<type>& panel, int64_t groups, const std::byte* x, VF* sums) {
  static_assert(kShared == 2);
  alignas(64) Dots dots[2][kSteps<type>];
  VF sum[kTileRows];
  KVILT_UNROLL
  for (int r = 0; r < kTileRows; ++r) sum[r] = sums[r];
  int64_t g = 0, now = 0;
  if (groups >= 2) multiply_pair<type, 2>(panel, 0, x, dots[0]);
  for (; g + 4 <= groups; g += 2, x += 2 * kRecord, now ^= 1) {
    add_and_multiply<type>(panel, g, x, dots[now], dots[now ^ 1], sum);
  }
  if (g + 2 <= groups) {
    add_dots<type, 2>(panel, g, x, dots[now], sum);
    g += 2, x += 2 * kRecord;
  }
  if (g < groups) {  // K ends with a group by itself
    multiply_pair<type, 1>(panel, g, x, dots[0]);
    add_dots<type, 1>(panel, g, x, dots[0], sum);
  }
  KVILT_UNROLL
  for (int r = 0; r < kTileRows; ++r) sums[r] = sum[r];
}

// ---- A part --------------------------------------------------------------------------------------------------------

void finish_block(const MatmulPart& part, int64_t n, int64_t row, int64_t rows, const VF* sums) {
  const int64_t left = part.N - n;
  for (int64_t r = 0; r < rows; ++r) {
    finish(sums[r], {part.y + (row + r) * part.y_stride + n, part.bias == nullptr ? nullptr : part.bias + n,
                     static_cast<int>(left < kLanes ? left : kLanes), part.accumulate});
  }
}

// One block of weights, row blocks [first, end).
template <DType type>
void run_blocks(const MatmulPart& part, int64_t first, int64_t end, int64_t n) {
  const int64_t base = part.rows / part.blocks, more = part.rows % part.blocks, groups = part.K / kGroup;
  Panel<type> panel;
  VF sums[kBlocksAtOnce][kTileRows];
  for (int64_t i = 0; i < (end - first) * kTileRows; ++i) sums[i / kTileRows][i % kTileRows] = zero_f();
  for (int64_t segment = 0; segment < groups; segment += part.segment) {
    Packed<type> w = Packed<type>::at_row(part, n, segment);
    const int64_t segment_end = segment + part.segment < groups ? segment + part.segment : groups;
    for (int64_t g = segment; g < segment_end; g += kPanelGroups) {
      const int64_t now = segment_end - g < kPanelGroups ? segment_end - g : kPanelGroups;
      fill<type>(w, now, &panel);
      for (int64_t b = first; b < end; ++b) {
        const int64_t row = b * base + (b < more ? b : more), rows = base + (b < more);
        const bool last = g + now == groups;
        if (last) claim(part.y + row * part.y_stride + n, part.y_stride, static_cast<int>(rows));
        tile<type>(panel, now, part.x + (b * groups + g) * kRecord, sums[b - first]);
        if (last) finish_block(part, n, row, rows, sums[b - first]);
      }
    }
  }
}

template <DType type>
void matmul(const MatmulPart& part) {
  configure(kGroup / Panel<type>::kFormat.scales);
  for (int64_t n = part.n_begin; n < part.n_end; n += kLanes) {
    for (int64_t b = part.block_begin; b < part.block_end; b += kBlocksAtOnce) {
      const int64_t end = b + kBlocksAtOnce < part.block_end ? b + kBlocksAtOnce : part.block_end;
      run_blocks<type>(part, b, end, n);
    }
  }
  release();
}

}  // namespace

namespace peak {

// As peak.cc's: products of registers, over 32 k each as a group's are. A product over 64 takes as long.
double int8_dots(int64_t rounds, int* sink) {
  constexpr int kEach = 12;  // of the operations that other peaks time in a round, so that rounds take alike
  configure(kGroup);
  for (int64_t n = 0; n < rounds / kEach; ++n) {
    multiply_tiles<0, 4, 6>();
    multiply_tiles<1, 5, 7>();
    multiply_tiles<2, 4, 7>();
    multiply_tiles<3, 5, 6>();
  }
  Dots dots;
  store_tile<3>(dots, kDotsRow);
  release();
  *sink += dots[0];
  return static_cast<double>(rounds / kEach) * 4 * 2 * kTileRows * 16 * kGroup;
}

}  // namespace peak

const x86::TiledKernels kTiled = {
    avx512::quantize_tiles,
    {nullptr, nullptr, nullptr, matmul<DType::kQ4_0>, matmul<DType::kQ4_1>, matmul<DType::kQ5_0>, matmul<DType::kQ5_1>,
     matmul<DType::kQ8_0>, matmul<DType::kQ4_K>, matmul<DType::kQ5_K>, matmul<DType::kQ6_K>, nullptr},
};

}  // namespace kvilt::KVILT_ISA

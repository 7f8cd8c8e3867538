// kernels/x86/matmul_bf16_tiles.cc: BF16 weights x rows rounded to bf16, in AMX's tiles (tdpbf16ps).
// Role:       PairKernels where there are tiles, for any number of rows, so that a row's bits are those of many.
// Idea:       16 pairs of k of a block of weights are a tile as they are stored (kernels.h). Two row blocks meet two
//             blocks of columns: four products for four tiles that are loaded.
// Layout:     a row block of m rows holds per 32 k m times 64 bytes; beyond K zeros.
// Cost:       of many rows, 16 x 16 x 32 products in 16 cycles and as many bytes from L2 as it gives in that time; of
//             few rows reading the weights.
// Invariants: one sum an output, steps of 32 k in order. The tiles are released at a part's end.
#include "kernels/x86/amx_tiles.h"
#include "kernels/x86/kernels.h"
#include "kernels/x86/linear_simd.h"

namespace kvilt::KVILT_ISA {
namespace {

using x86::kTileRows;
using x86::MatmulPart;
using x86::RowsIn;

constexpr int64_t kStep = 32;         // k of a product
constexpr int64_t kStepBytes = 1024;  // of weights: 16 pairs of 16 columns

// One or two row blocks, and one or two blocks of columns.
struct TileAt {
  const MatmulPart* part;
  const std::byte* x[2];
  int64_t row[2], rows[2], n;
  int64_t ahead;  // > 0: bytes from weights that are multiplied to those that are fetched meanwhile
};

// tmm0 to 3: sums, row block by row block; 4 and 5: rows; 6 and 7: weights.
void configure_rows(const int64_t (&rows)[2]) {
  TileConfig config;
  for (int reg = 0; reg < 8; ++reg) {
    const bool second = reg == 2 || reg == 3 || reg == 5;
    config.set(reg, reg >= 6 ? 16 : static_cast<int>(rows[second]), 64);
  }
  configure(config);
}

template <int kTall, int kWide>
KVILT_INLINE void add_step(const TileAt& at, int64_t step, const std::byte* w0, const std::byte* w1) {
  const std::byte *x0 = at.x[0] + step * at.rows[0] * 64, *x1 = at.x[1] + step * at.rows[1] * 64;
  add_bf16_step<kTall, kWide>({{x0, x1}, {w0, w1}, 64, 64});
}

template <int reg>
KVILT_INLINE void finish_tile(const TileAt& at, int block, int column) {
  const MatmulPart& part = *at.part;
  const int64_t n = at.n + column * kLanes, left = part.N - n;
  alignas(64) float sums[kTileRows][kLanes];
  store_tile<reg>(sums, 64);
  for (int64_t r = 0; r < at.rows[block]; ++r) {
    finish(load(sums[r]),
           {part.y + (at.row[block] + r) * part.y_stride + n, part.bias == nullptr ? nullptr : part.bias + n,
            static_cast<int>(left < kLanes ? left : kLanes), part.accumulate});
  }
}

template <int kTall, int kWide>
void run_tile(const TileAt& at) {
  const MatmulPart& part = *at.part;
  const std::byte* w0 = part.w + at.n / kLanes * part.block_bytes;
  const std::byte* w1 = w0 + (kWide - 1) * part.block_bytes;
  const int64_t steps = part.K / kStep;
  zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
  for (int64_t step = 0; step < steps; ++step, w0 += kStepBytes, w1 += kStepBytes) {
    if (at.ahead > 0) {
      for (int64_t line = 0; line < kStepBytes; line += 64) {
        __builtin_prefetch(w0 + at.ahead + line);
        if (kWide == 2) __builtin_prefetch(w1 + at.ahead + line);
      }
    }
    add_step<kTall, kWide>(at, step, w0, w1);
  }
  const int64_t left = (part.K % kStep + 1) / 2 * 64;
  if (left > 0) {  // what is behind the last pairs is another block's
    alignas(64) std::byte last[2][kStepBytes] = {};
    std::memcpy(last[0], w0, left);
    std::memcpy(last[1], w1, left);
    add_step<kTall, kWide>(at, steps, last[0], last[1]);
  }
  finish_tile<0>(at, 0, 0);
  if constexpr (kWide == 2) finish_tile<1>(at, 0, 1);
  if constexpr (kTall == 2) finish_tile<2>(at, 1, 0);
  if constexpr (kTall == 2 && kWide == 2) finish_tile<3>(at, 1, 1);
}

// TileAt::ahead of row block b. Many rows: the next columns' weights come while the first rows meet these (860 instead of
// 700 GOP/s of 512 rows).
int64_t bytes_ahead(const MatmulPart& part, int64_t b) {
  if (part.rows <= kTileRows) return part.ahead.far;
  return b == part.block_begin ? 2 * part.block_bytes : 0;
}

void matmul(const MatmulPart& part) {
  const int64_t base = part.rows / part.blocks, more = part.rows % part.blocks;
  const int64_t n_end = (part.n_end + kLanes - 1) / kLanes * kLanes;  // blocks are whole; lanes beyond N are zero
  int64_t set[2] = {0, 0};
  for (int64_t n = part.n_begin; n < n_end; n += 2 * kLanes) {
    const bool wide = n + kLanes < n_end;
    for (int64_t b = part.block_begin; b < part.block_end; b += 2) {
      const bool tall = b + 1 < part.block_end;
      TileAt at = {&part, {}, {}, {}, n, bytes_ahead(part, b)};
      for (int i = 0; i < 2; ++i) {
        const int64_t block = tall ? b + i : b;
        at.row[i] = block * base + (block < more ? block : more);
        at.rows[i] = base + (block < more);
        at.x[i] = part.x + at.row[i] * x86::pair_row_bytes(part.K);
      }
      if (at.rows[0] != set[0] || at.rows[1] != set[1]) {
        configure_rows(at.rows);
        set[0] = at.rows[0], set[1] = at.rows[1];
      }
      (tall ? wide ? run_tile<2, 2> : run_tile<2, 1> : wide ? run_tile<1, 2> : run_tile<1, 1>)(at);
    }
  }
  release();
}

// One row block, rounded to nearest even.
void pack_rows(const RowsIn& in, std::byte* out) {
  for (int64_t k = 0; k < in.cols; k += kStep) {
    const int64_t left = in.cols - k;
    const int low = static_cast<int>(left < kLanes ? left : kLanes);
    const int high = static_cast<int>(left < kLanes ? 0 : left - kLanes < kLanes ? left - kLanes : kLanes);
    for (int64_t r = 0; r < in.rows; ++r, out += 64) {
      const float* x = in.x + r * in.stride + k;
      store_bytes(out, (VI)_mm512_cvtne2ps_pbh(load_some(x + kLanes, high), load_some(x, low)));
    }
  }
}

}  // namespace

extern const x86::PairKernels kPairs = {kTileRows, pack_rows, matmul};

}  // namespace kvilt::KVILT_ISA

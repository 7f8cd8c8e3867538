// kernels/x86/kernels.h: the interface between backend.cc and the per-ISA files: PODs and a table of functions.
// Invariants: nothing here emits code. Files built with -m flags include this, linear_simd.h and C headers only.
//
// Packed weights (pack.cc). 16 weight rows ("lanes") make a block; a block is a row of chunks of 2 groups (Qx_0, Qx_1)
// or 8 (Qx_K) of 32 k. A pass over a block reads memory in one line (planes further apart made prefetchers give up: 10
// instead of 30 GB/s a core). A chunk begins with planes (Chunk), each with its groups one after the other:
//   scales   fp16 x 16 lanes, per group (Qx_0, Qx_1) or per chunk (Qx_K); mins likewise (Qx_1: m, Qx_K: dmin).
//   sub      8-bit x 16 lanes: sub-block scales of Qx_K, per group (Q6_K: two per group, signed); submins likewise.
// Then each group's quants and highs, in words of 64 bytes, 16 lanes x 4 bytes:
//   quants   4-bit: word z holds k 8z..8z+3 in the low nibbles and 8z+4..8z+7 in the high ones; 8-bit: word j holds
//            k 4j..4j+3. Values are unsigned, offset by 2^(bits-1).
//   highs    the fifth bit of quad j (k 4j..4j+3) is bit j of one word; or its bits 4-5 are bit pair j%4 of word j/4.
// Blocks beyond kLongBlock bytes (long K) are cut into segments of some chunks, and each kTogether of them are stored
// segment by segment: the first segment of each block, then the second of each, and so on. One row then passes over a
// segment of its activations kTogether times while they are in L1; whole blocks would throw them out in between (Zen 4,
// K = 4864: 28 instead of 21 GB/s).
// F32: per k 16 floats. F16: per k 16 halves. BF16: per pair of k 16 pairs.
//
// Packed activations. Rows are cut into row blocks of at most Kernels::max_rows rows, m rows each (m differs by one at
// most); a row block holds per group of 32 k: int32 quads[8][m] (4 int8 each), float scale[m], float scaled_sum[m]
// (scale x sum of the int8), int32 minus_sum[m], minus_sum of the first 16 [m], of the last 16 [m] (without vpdpbusd each
// is two int16, of the first and of the last two int8 of the quads). For float weights:
// per k float x[m]. For BF16 weights in pairs: per pair of k word x[m], two bf16 each; in tiles per 32 k m rows of 16
// such words. Both have pair_row_bytes() a row.
// For AMX's tiles a row block has room for kTileRows rows, whatever its number of rows, and holds per group of 32 k:
// int8 x[kTileRows][32], float scale[kTileRows], float scaled_sum[kTileRows]. Rows that are not there hold anything.
//
// One output is, in every kernel and for every shape: acc = 0; for each two groups that share an x scale, in order:
// t = 0; for both (Q6_K: for both halves of each) t = fma(float(int dot), weight scale, t)
// [acc = fma(weight min, scaled_sum, acc)]; then acc = fma(t, x scale, acc); in the end + bias, then + y.
// Integer dots are exact, so AVX2, AVX-512 and AMX agree bit by bit and a row's bits depend on nothing but the row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/x86/isa.h"
#include "tensor/dtype.h"

namespace kvilt::x86 {

inline constexpr int64_t kBlockRows = 16;  // weight rows of a block
inline constexpr int64_t kGroup = 32;      // k of a group
// Groups whose activations share a scale: a chunk never ends within them. With a scale for each group, two of every ten
// operations on the multiplier are scaling; with one for two groups, 1.6: prefill is 2 to 4 % quicker
// (docs/design/linear.md#what-rounding-costs-and---activations says what it costs).
inline constexpr int64_t kShared = 2;
inline constexpr int64_t kRecordBytes = 52;  // packed activations: bytes of one row and group
inline constexpr int64_t kTileRows = 16, kTileRecordBytes = 40;
constexpr int64_t pair_row_bytes(int64_t K) { return (K + kGroup - 1) / kGroup * kGroup * 2; }
inline constexpr int kDTypes = 12;  // those with kernels come first
inline constexpr int64_t kTogether = 4, kLongBlock = 24 << 10, kSegmentBytes = 18 << 10;

// Bytes of a chunk, and where its planes start. Constant expressions only, so that no code comes of it.
struct Chunk {
  int64_t groups = 0, bytes = 0;
  int64_t scales = 0, mins = 0, sub = 0, submins = 0;
  int64_t quants = 0, group_bytes = 0, highs = 0;  // highs: after a group's quants
};

// A Q format as the kernels see it.
struct Format {
  int bits = 0;        // of an unsigned quant
  int scales = 1;      // per group of 32
  bool mins = false;   // a min per group; without, quants are offset by 2^(bits-1)
  bool super = false;  // 8-bit sub-scales under one scale per 256 k
};

constexpr Format format_of(DType type) {
  switch (type) {
    case DType::kQ4_0:
      return {4, 1, false, false};
    case DType::kQ4_1:
      return {4, 1, true, false};
    case DType::kQ5_0:
      return {5, 1, false, false};
    case DType::kQ5_1:
      return {5, 1, true, false};
    case DType::kQ8_0:
      return {8, 1, false, false};
    case DType::kQ4_K:
      return {4, 1, true, true};
    case DType::kQ5_K:
      return {5, 1, true, true};
    case DType::kQ6_K:
      return {6, 2, false, true};
    default:
      return {};
  }
}

constexpr Chunk chunk_of(DType type) {
  const Format f = format_of(type);
  Chunk c;
  c.groups = f.super ? 8 : 2;
  auto plane = [&c](bool there, int64_t size) {
    const int64_t at = c.quants;
    if (there) c.quants += size;
    return at;
  };
  c.scales = plane(true, f.super ? 32 : c.groups * 32);
  c.mins = plane(f.mins, f.super ? 32 : c.groups * 32);
  c.sub = plane(f.super, c.groups * 16 * f.scales);
  c.submins = plane(f.super && f.mins, c.groups * 16);
  c.quants = (c.quants + 63) / 64 * 64;  // only Q6_K needs it
  c.highs = f.bits == 8 ? 512 : 256;
  c.group_bytes = c.highs + (f.bits == 5 ? 64 : f.bits == 6 ? 128 : 0);
  c.bytes = c.quants + c.groups * c.group_bytes;
  return c;
}

// How many bytes ahead a single row asks for its weights; 0: not at all.
struct LookAhead {
  int64_t far = 0;   // into L2
  int64_t near = 0;  // once more, into L1: quantised weights, of ISAs with 512 bits
};

// A part of one matmul: weight rows [n_begin, n_end) x row blocks [block_begin, block_end).
struct MatmulPart {
  const std::byte* w;
  int64_t block_bytes;
  int64_t segment;  // groups of a segment; all of K's: blocks are one after the other
  int64_t K, N;
  // n_begin is a multiple of kBlockRows (of kTogether of them: segments and one row block); n_end is one or is N.
  int64_t n_begin, n_end;
  const std::byte* x;    // packed activations of all rows
  int64_t rows, blocks;  // of the whole x
  int64_t block_begin, block_end;
  float* y;
  int64_t y_stride;
  const float* bias;  // N, or null
  bool accumulate;
  const std::byte* next;  // the block that this worker will likely need after this part, or null
  LookAhead ahead = {};   // of a single row
};

struct RowsIn {
  const float* x;
  int64_t stride, rows, cols;
};

struct Kernels {
  int max_rows;                                          // rows of a row block
  void (*quantize)(const RowsIn& in, std::byte* out);    // one row block
  void (*interleave)(const RowsIn& in, std::byte* out);  // one row block, for float weights
  void (*matmul[kDTypes])(const MatmulPart& part);       // by DType; null: no such weight
  void (*rms_norm)(const RowsIn& in, const float* weight, float eps, float* y, int64_t y_stride);
  void (*silu_mul)(float* gate, const float* up, int64_t count);
  void (*gelu_mul)(float* gate, const float* up, int64_t count);
  void (*clamped_mul)(float* gate, const float* up, int64_t count);
};

// BF16 weights and rows of bf16 pairs, instead of Kernels::interleave and matmul[kBF16].
struct PairKernels {
  int64_t max_rows;                                     // rows of a row block, if all weights are of this kind
  void (*pack_rows)(const RowsIn& in, std::byte* out);  // one row block
  void (*matmul)(const MatmulPart& part);
};

// Many rows of int8 and Q formats in AMX's tiles, instead of Kernels::quantize and matmul.
struct TiledKernels {
  void (*quantize)(const RowsIn& in, std::byte* out);  // one row block
  void (*matmul[kDTypes])(const MatmulPart& part);     // by DType; null: of a float weight
};

}  // namespace kvilt::x86

#define KVILT_DECLARE(isa)            \
  namespace kvilt::isa {              \
  extern const x86::Kernels kKernels; \
  }
KVILT_EACH_LINEAR_ISA(KVILT_DECLARE)
#undef KVILT_DECLARE
namespace kvilt::avx512 {
void quantize_tiles(const x86::RowsIn& in, std::byte* out);  // TiledKernels::quantize
}
namespace kvilt::avx512bf16 {
extern const x86::PairKernels kPairs;
}
namespace kvilt::amx {
extern const x86::PairKernels kPairs;
extern const x86::TiledKernels kTiled;
}  // namespace kvilt::amx

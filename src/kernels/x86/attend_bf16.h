// kernels/x86/attend_bf16.h: attention with pairs of bf16 multiplied into fp32 sums, by vectors (vdpbf16ps) or in AMX's
// tiles (tdpbf16ps), for KV types whose rows are exact in bf16: kBF16, and kI8 without its scales.
// Role:     replaces the functions of TileKernels that touch products; the rest is AVX-512's. attend_bf16.cc puts the
//           tables together. Has declarations only, as attend_tile.h.
// Layouts:  of vectors; attend_amx_tile.cc has those of tiles.
//            words are pairs of stored elements (2e, 2e + 1). Query tile: lines x E/2 words, those of even e first; with
//           at most kDirectLines lines the same once more, from float 4 E on, as E/4 x 8 x 2 words (e = 2k, 2k + 1 of
//           line l).
//           Key tile: E/2 x 64 words (of column j), those of even e first, then 64 scales.
//           Value tile: 32 x width words (columns 2j, 2j + 1 of element e), then 64 scales.
//           They fit in the memory of the fp32 tiles.
//           Weights of values: as pairs, a line's words in the first half of its 64 floats.
// Rounded:  queries and softmax weights, to bf16 (2^-9 of each). The sum of weights is of the unrounded ones.
// Requires: AVX512_BF16; E a multiple of 32.
#pragma once

#include "kernels/x86/attend_tile.h"

namespace kvilt::x86 {

struct Bf16Tiles {
  void (*load_queries)(const TileShape&, const float* q, int64_t stride, int rows, const float* rotation, float* out);
  void (*gather_keys)(const TileShape&, const void* const* keys, uint64_t wanted, float* kt);
  void (*gather_values)(const TileShape&, const void* const* values, int first, int last, float* v);
  void (*scores)(const TileShape&, const float* q, int lines, const float* kt, WantedColumns wanted, float* s);
  void (*scores_direct)(const TileShape&, const float* q, int lines, const DirectKeys& keys, float* s);  // kBF16 only
  void (*add_values_direct)(const TileShape&, int lines, const float* p, const DirectValues& v, const float* scale_back,
                            float* acc);  // kBF16 only
  void (*softmax)(const TileShape&, int rows, const uint64_t* visible, float* s, const TileState&, float* scale_back);
  void (*add_values)(const TileShape&, int lines, const float* p, const ValueTile& v, const float* scale_back,
                     float* acc);
  void (*enter)(const TileShape&, int lines) = nullptr;
  void (*leave)() = nullptr;
};

// The AVX-512 tiles for a shape: with bf16 products where the KV type allows it and this machine runs them faster.
const TileKernels& avx512_tiles(const TileShape& shape);
// The same with AMX's.
const TileKernels& amx_tiles(const TileShape& shape);

// This machine has AVX512_BF16 and multiplies at least 1.3 times as fast with it as with fp32 FMA: measured once, in
// 2 ms.
// KVILT_BF16_DOTS=0 or 1 decides instead (1: only where the machine has it), for measurements.
bool bf16_dots_pay();

// AMX has tdpbf16ps: many times as fast as FMAs, so nothing is measured. KVILT_BF16_DOTS=0: no.
bool bf16_tiles_pay();

// Heads of E elements are multiplied in bf16: bf16_dots_pay(), and E is a multiple of 32.
bool bf16_serves(int E);
bool bf16_tiles_serve(int E);  // the same of bf16_tiles_pay()

}  // namespace kvilt::x86

namespace kvilt::avx512bf16 {
extern const x86::Bf16Tiles kBf16Tiles;
namespace peak {  // as in peak.cc: register-only work, returns its operations
double bf16_dots(int64_t rounds, int* sink);
}
}  // namespace kvilt::avx512bf16
namespace kvilt::amx {
extern const x86::Bf16Tiles kBf16Tiles;
namespace peak {
double bf16_dots(int64_t rounds, int* sink);
}
}  // namespace kvilt::amx

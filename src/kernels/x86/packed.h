// kernels/x86/packed.h: a place in a block of packed weights, and its quants and scales in registers.
// Role:       what matmul.cc and matmul_tiles.cc read weights with; the layout is kernels.h's.
// Invariants: included by per-ISA files only; everything is always inlined and has internal linkage (linear_simd.h).
#pragma once

#include "kernels/x86/kernels.h"
#include "kernels/x86/linear_simd.h"

namespace kvilt::KVILT_ISA {

using x86::Chunk;
using x86::Format;
using x86::kGroup;
using x86::kShared;
using x86::kTogether;
using x86::MatmulPart;

namespace {

// True where quads are of signed weights: AVX2's products of 8 bits want them. Else they are unsigned, as stored.
#ifdef KVILT_VNNI
template <int bits>
constexpr bool kWeightsSigned = false;
#else
template <int bits>
constexpr bool kWeightsSigned = bits == 8;
#endif

template <int n>
KVILT_INLINE VI shifted(VI v) {  // left; right if negative
  if constexpr (n >= 0) {
    return shift_left<n>(v);
  } else {
    return shift_right<-n>(v);
  }
}

// kLanes lanes of a packed block, at one group of it.
template <DType type>
struct Packed {
  static constexpr Format kFormat = x86::format_of(type);
  static constexpr Chunk kChunk = x86::chunk_of(type);
  static_assert(kChunk.groups % kShared == 0);  // so no segment ends between groups that share a scale
  const std::byte* chunk;
  const std::byte* group;  // its quants in the chunk, from the first lane on
  int64_t i;               // which group of the chunk
  int lane;                // the first lane

  KVILT_INLINE Packed at(const std::byte* chunk, int lane) {
    return {chunk, chunk + kChunk.quants + lane * 4, 0, lane};
  }
  // g: where a segment begins.
  KVILT_INLINE Packed at_row(const MatmulPart& part, int64_t n, int64_t g) {
    const int64_t block = n / 16, first = block / kTogether * kTogether, all = (part.N + 15) / 16;
    if (part.segment * kGroup >= part.K) return at(part.w + block * part.block_bytes, static_cast<int>(n % 16));
    const int64_t together = all - first < kTogether ? all - first : kTogether;
    const std::byte* segment = part.w + first * part.block_bytes + g / kChunk.groups * kChunk.bytes * together;
    return at(segment + (block - first) * segment_bytes(part, g), static_cast<int>(n % 16));
  }
  KVILT_INLINE int64_t segment_bytes(const MatmulPart& part, int64_t g) {
    const int64_t left = part.K / kGroup - g, groups = left < part.segment ? left : part.segment;
    return (groups + kChunk.groups - 1) / kChunk.groups * kChunk.bytes;
  }
  KVILT_INLINE void next(Packed& p) {
    p.group += kChunk.group_bytes;
    if (++p.i == kChunk.groups) {
      p.i = 0;
      p.chunk += kChunk.bytes;
      p.group += kChunk.quants;
    }
  }
  template <int j>
  KVILT_INLINE VI quad(const Packed& p) {
    if constexpr (kFormat.bits == 8) {
      const VI w = load_bytes(p.group + j * 64);
      if constexpr (kWeightsSigned<8>) return xor_i(w, set_i(static_cast<int>(0x80808080u)));
      return w;
    } else {
      VI w = load_bytes(p.group + j / 2 * 64);
      if constexpr (j % 2 == 1) w = shift_right<4>(w);
      w = and_i(w, set_i(0x0f0f0f0f));
      if constexpr (kFormat.bits == 5) {
        w = or_i(w, and_i(shifted<4 - j>(load_bytes(p.group + kChunk.highs)), set_i(0x10101010)));
      } else if constexpr (kFormat.bits == 6) {
        const VI high = load_bytes(p.group + kChunk.highs + j / 4 * 64);
        w = or_i(w, and_i(shifted<4 - 2 * (j % 4)>(high), set_i(0x30303030)));
      }
      return w;
    }
  }
  KVILT_INLINE VF scale(const Packed& p, int s) {
    if constexpr (!kFormat.super) {
      return load_half(p.chunk + kChunk.scales + p.i * 32 + p.lane * 2);
    } else {
      const std::byte* sub = p.chunk + kChunk.sub + (p.i * kFormat.scales + s) * 16 + p.lane;
      return mul(load_half(p.chunk + kChunk.scales + p.lane * 2), kFormat.scales == 2 ? load_i8(sub) : load_u8(sub));
    }
  }
  KVILT_INLINE VF min(const Packed& p) {
    if constexpr (!kFormat.super) {
      return load_half(p.chunk + kChunk.mins + p.i * 32 + p.lane * 2);
    } else {
      const VF m = load_u8(p.chunk + kChunk.submins + p.i * 16 + p.lane);
      return sub(zero_f(), mul(load_half(p.chunk + kChunk.mins + p.lane * 2), m));
    }
  }
};

template <DType type, int first, int count, int j = 0>
KVILT_INLINE void decode(const Packed<type>& w, VI (&quads)[count]) {
  if constexpr (j < count) {
    quads[j] = Packed<type>::template quad<first + j>(w);
    decode<type, first, count, j + 1>(w, quads);
  }
}

}  // namespace
}  // namespace kvilt::KVILT_ISA

// kernels/x86/amx_tiles.h: AMX's tile registers, for the per-ISA files that use them.
// Role:       included by amx files only; everything has internal linkage. tmm0 to tmm7 are named by number.
// Invariants: whoever configures releases before other code runs: tiles are 8 KB of a thread's state.
// Why asm:    the intrinsics of GCC 12 do not say that a load reads memory. Volatile statements keep their order.
#pragma once

#include <cstdint>

#define KVILT_INLINE static inline __attribute__((always_inline))

namespace kvilt::KVILT_ISA {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int reg, int tile_rows, int bytes) {
    rows[reg] = static_cast<uint8_t>(tile_rows);
    row_bytes[reg] = static_cast<uint16_t>(bytes);
  }
};

void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
void release() { asm volatile("tilerelease"); }

template <int reg>
KVILT_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(reg));
}
template <int reg>
KVILT_INLINE void load_tile(const void* at, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(at), "r"(stride), "i"(reg) : "memory");
}
template <int reg>
KVILT_INLINE void store_tile(void* at, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(at), "r"(stride), "i"(reg) : "memory");
}
// sum += a . b, of signed bytes into int32: a has rows of 4 k each word, b words of 4 k.
template <int sum, int a, int b>
KVILT_INLINE void add_int8_product() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
}
// The same of pairs of bf16 into fp32. Numbers below 2^-126 count as 0, in the sums too.
template <int sum, int a, int b>
KVILT_INLINE void add_bf16_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
}

// What a step of bf16 products reads: one or two tiles of lines, one or two of columns (rows of pairs).
struct Bf16Step {
  const void *a[2], *b[2];
  int64_t a_stride, b_stride;
};

// The sums tmm0 to 3 (kTall tiles of lines x kWide of columns, line by line) += a . b; tmm4 to 7 hold a and b.
template <int kTall, int kWide>
KVILT_INLINE void add_bf16_step(const Bf16Step& step) {
  load_tile<6>(step.b[0], step.b_stride);
  load_tile<4>(step.a[0], step.a_stride);
  add_bf16_product<0, 4, 6>();
  if constexpr (kWide == 2) {
    load_tile<7>(step.b[1], step.b_stride);
    add_bf16_product<1, 4, 7>();
  }
  if constexpr (kTall == 2) {
    load_tile<5>(step.a[1], step.a_stride);
    add_bf16_product<2, 5, 6>();
    if constexpr (kWide == 2) add_bf16_product<3, 5, 7>();
  }
}

}  // namespace
}  // namespace kvilt::KVILT_ISA

// kernels/x86/pack.cc: GGUF blocks to the blocked layout of kernels.h.
// Cost: about 0.2 s a thread for 500 M weights; done once at start.
#include "kernels/x86/pack.h"

#include <cstring>

#include "base/check.h"

namespace kvilt::x86 {
namespace {

uint32_t word(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}
void put(std::byte* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

// Where lane `lane` of a block lies.
struct Lane {
  std::byte* block;
  const Layout& layout;
  int64_t lane;

  // 32 unsigned quants of group g.
  void quants(int64_t g, const uint8_t* q, int bits) const {
    std::byte* to = block + layout.quants + g * (bits == 8 ? 512 : 256) + lane * 4;
    if (bits == 8) {
      for (int j = 0; j < 8; ++j) put(to + j * 64, q + 4 * j, 4);
      return;
    }
    uint32_t high[2] = {0, 0};
    for (int j = 0; j < 8; ++j) {
      const uint32_t upper = word(q + 4 * j) >> 4 & 0x0f0f0f0fu;
      if (bits == 5) high[0] |= upper << j;
      if (bits == 6) high[j / 4] |= upper << (2 * (j % 4));
    }
    for (int z = 0; z < 4; ++z) {
      const uint32_t both = (word(q + 8 * z) & 0x0f0f0f0fu) | (word(q + 8 * z + 4) & 0x0f0f0f0fu) << 4;
      put(to + z * 64, &both, 4);
    }
    if (bits == 5) put(block + layout.highs + g * 64 + lane * 4, &high[0], 4);
    if (bits == 6) {
      put(block + layout.highs + g * 128 + lane * 4, &high[0], 4);
      put(block + layout.highs + g * 128 + 64 + lane * 4, &high[1], 4);
    }
  }
  void scale(int64_t i, const uint8_t* half) const { put(block + layout.scales + i * 32 + lane * 2, half, 2); }
  void min(int64_t i, const uint8_t* half) const { put(block + layout.mins + i * 32 + lane * 2, half, 2); }
  void sub(int64_t i, uint8_t value) const { block[layout.sub + i * 16 + lane] = std::byte{value}; }
  void submin(int64_t i, uint8_t value) const { block[layout.submins + i * 16 + lane] = std::byte{value}; }
};

void nibbles32(const uint8_t* q, uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = q[i] & 15;
    out[i + 16] = q[i] >> 4;
  }
}

void fifth_bits(uint32_t high, uint8_t* out) {
  for (int i = 0; i < 32; ++i) out[i] = static_cast<uint8_t>(out[i] | (high >> i & 1u) << 4);
}

// Q4_0, Q4_1, Q5_0, Q5_1: d, [m,] [32 high bits,] 16 bytes.
void legacy_row(const uint8_t* b, int64_t groups, bool has_min, bool has_high, const Lane& lane) {
  for (int64_t g = 0; g < groups; ++g) {
    uint8_t q[32];
    lane.scale(g, b);
    b += 2;
    if (has_min) lane.min(g, b), b += 2;
    const uint32_t high = has_high ? word(b) : 0;
    if (has_high) b += 4;
    nibbles32(b, q);
    b += 16;
    if (has_high) fifth_bits(high, q);
    lane.quants(g, q, has_high ? 5 : 4);
  }
}

void q8_0_row(const uint8_t* b, int64_t groups, const Lane& lane) {
  for (int64_t g = 0; g < groups; ++g, b += 34) {
    uint8_t q[32];
    for (int i = 0; i < 32; ++i) q[i] = b[2 + i] ^ 0x80;
    lane.scale(g, b);
    lane.quants(g, q, 8);
  }
}

void k_row(const uint8_t* b, int64_t supers, bool has_high, const Lane& lane) {
  for (int64_t s = 0; s < supers; ++s) {
    lane.scale(s, b);
    lane.min(s, b + 2);
    const uint8_t* packed = b + 4;
    const uint8_t* high = b + 16;
    const uint8_t* q4 = has_high ? b + 48 : b + 16;
    for (int g = 0; g < 8; ++g) {
      const int scale = g < 4 ? packed[g] & 63 : (packed[g + 4] & 15) | (packed[g - 4] >> 6 << 4);
      const int min = g < 4 ? packed[g + 4] & 63 : (packed[g + 4] >> 4) | (packed[g] >> 6 << 4);
      lane.sub(8 * s + g, static_cast<uint8_t>(scale));
      lane.submin(8 * s + g, static_cast<uint8_t>(min));
      uint8_t q[32];
      for (int i = 0; i < 32; ++i) {
        q[i] = static_cast<uint8_t>(q4[g / 2 * 32 + i] >> (g % 2 * 4) & 15);
        if (has_high) q[i] = static_cast<uint8_t>(q[i] | (high[i] >> g & 1) << 4);
      }
      lane.quants(8 * s + g, q, has_high ? 5 : 4);
    }
    b += has_high ? 176 : 144;
  }
}

void q6_k_row(const uint8_t* b, int64_t supers, const Lane& lane) {
  for (int64_t s = 0; s < supers; ++s, b += 210) {
    lane.scale(s, b + 208);
    for (int i = 0; i < 16; ++i) lane.sub(16 * s + i, b[192 + i]);
    for (int g = 0; g < 8; ++g) {
      const int half = g / 4, quarter = g % 4;
      const uint8_t* low = b + half * 64 + quarter % 2 * 32;
      const uint8_t* high = b + 128 + half * 32;
      uint8_t q[32];
      for (int i = 0; i < 32; ++i) {
        q[i] = static_cast<uint8_t>((low[i] >> (quarter / 2 * 4) & 15) | (high[i] >> (2 * quarter) & 3) << 4);
      }
      lane.quants(8 * s + g, q, 6);
    }
  }
}

void float_row(const std::byte* row, DType dtype, int64_t K, std::byte* block, int64_t lane) {
  if (dtype == DType::kF32) {
    for (int64_t k = 0; k < K; ++k) put(block + (k * 16 + lane) * 4, row + k * 4, 4);
  } else if (dtype == DType::kF16) {
    for (int64_t k = 0; k < K; ++k) put(block + (k * 16 + lane) * 2, row + k * 2, 2);
  } else {
    for (int64_t k = 0; k < K; ++k) put(block + (k / 2 * 16 + lane) * 4 + k % 2 * 2, row + k * 2, 2);
  }
}

void pack_row(const WeightView& w, const std::byte* row, const Lane& lane) {
  const auto* b = reinterpret_cast<const uint8_t*>(row);
  const int64_t groups = w.cols / 32, supers = w.cols / 256;
  switch (w.dtype) {
    case DType::kQ4_0:
      return legacy_row(b, groups, false, false, lane);
    case DType::kQ4_1:
      return legacy_row(b, groups, true, false, lane);
    case DType::kQ5_0:
      return legacy_row(b, groups, false, true, lane);
    case DType::kQ5_1:
      return legacy_row(b, groups, true, true, lane);
    case DType::kQ8_0:
      return q8_0_row(b, groups, lane);
    case DType::kQ4_K:
      return k_row(b, supers, false, lane);
    case DType::kQ5_K:
      return k_row(b, supers, true, lane);
    case DType::kQ6_K:
      return q6_k_row(b, supers, lane);
    default:
      return float_row(row, w.dtype, w.cols, lane.block, lane.lane);
  }
}

}  // namespace

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

Layout layout_of(DType dtype, int64_t K) {
  Layout layout;
  auto plane = [&layout](int64_t bytes) {
    const int64_t at = layout.bytes;
    layout.bytes += (bytes + 63) / 64 * 64;
    return at;
  };
  const int64_t groups = K / 32, supers = K / 256;
  if (is_float(dtype)) {
    plane(dtype == DType::kF32 ? K * 64 : (K + 1) / 2 * 64);
    return layout;
  }
  plane(groups * (dtype == DType::kQ8_0 ? 512 : 256));
  if (dtype == DType::kQ5_0 || dtype == DType::kQ5_1 || dtype == DType::kQ5_K) layout.highs = plane(groups * 64);
  if (dtype == DType::kQ6_K) layout.highs = plane(groups * 128);
  const bool super = dtype == DType::kQ4_K || dtype == DType::kQ5_K || dtype == DType::kQ6_K;
  layout.scales = plane((super ? supers : groups) * 32);
  const bool mins = dtype == DType::kQ4_1 || dtype == DType::kQ5_1 || dtype == DType::kQ4_K || dtype == DType::kQ5_K;
  if (mins) layout.mins = plane((super ? supers : groups) * 32);
  if (super) layout.sub = plane(groups * (dtype == DType::kQ6_K ? 32 : 16));
  if (super && mins) layout.submins = plane(groups * 16);
  return layout;
}

std::unique_ptr<BlockedWeight> pack(const WeightView& w, ThreadPool& pool) {
  const DTypeInfo info = dtype_info(w.dtype);
  CHECK(w.dtype != DType::kI8 && w.cols % info.block == 0 && w.cols > 0 && w.rows > 0);
  auto packed = std::make_unique<BlockedWeight>();
  packed->N = w.rows;
  packed->K = w.cols;
  packed->dtype = w.dtype;
  packed->layout = layout_of(w.dtype, w.cols);
  const int64_t count = (w.rows + kBlockRows - 1) / kBlockRows;
  packed->bytes = static_cast<size_t>(count * packed->layout.bytes);
  packed->blocks = Buffer(packed->bytes);
  auto* blocks = packed->blocks.as<std::byte>();
  const size_t row_bytes = dtype_bytes(w.dtype, static_cast<size_t>(w.cols));
  constexpr int64_t kBlocks = 4;  // of one task
  pool.parallel_for((count + kBlocks - 1) / kBlocks, [&](int64_t task, int) {
    for (int64_t b = task * kBlocks; b < count && b < (task + 1) * kBlocks; ++b) {
      std::byte* block = blocks + b * packed->layout.bytes;
      std::memset(block, 0, static_cast<size_t>(packed->layout.bytes));  // lanes beyond N, padding
      for (int64_t lane = 0; lane < kBlockRows && b * kBlockRows + lane < w.rows; ++lane) {
        const std::byte* row = w.data + static_cast<size_t>(b * kBlockRows + lane) * row_bytes;
        pack_row(w, row, {block, packed->layout, lane});
      }
    }
  });
  return packed;
}

}  // namespace kvilt::x86

// kernels/reference/dequantize.cc: GGUF v3's block formats, one scalar function each.
// Source: the block layouts of GGUF v3 (docs/formats/gguf.md). All are little endian; d, m, dmin are fp16.
#include "kernels/reference/dequantize.h"

#include <cstring>

#include "base/check.h"

namespace kvilt::reference {
namespace {

float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return f16_to_f32(bits);
}

// Element i < 16 is the low nibble of byte i, element i + 16 its high nibble; `high` holds a fifth bit per element.
void nibbles32(const uint8_t* q, uint32_t high, float d, float offset, float* out) {
  for (int i = 0; i < 16; ++i) {
    const uint32_t lo = (q[i] & 15u) | ((high >> i & 1u) << 4);
    const uint32_t hi = (q[i] >> 4u) | ((high >> (i + 16) & 1u) << 4);
    out[i] = static_cast<float>(lo) * d + offset;
    out[i + 16] = static_cast<float>(hi) * d + offset;
  }
}

uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

void q4_0(const uint8_t* b, float* out) {  // d, 16 bytes
  const float d = half_at(b);
  nibbles32(b + 2, 0, d, -8 * d, out);
}

void q4_1(const uint8_t* b, float* out) {  // d, m, 16 bytes
  nibbles32(b + 4, 0, half_at(b), half_at(b + 2), out);
}

void q5_0(const uint8_t* b, float* out) {  // d, 32 high bits, 16 bytes
  const float d = half_at(b);
  nibbles32(b + 6, word_at(b + 2), d, -16 * d, out);
}

void q5_1(const uint8_t* b, float* out) {  // d, m, 32 high bits, 16 bytes
  nibbles32(b + 8, word_at(b + 4), half_at(b), half_at(b + 2), out);
}

void q8_0(const uint8_t* b, float* out) {  // d, 32 signed bytes
  const float d = half_at(b);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(b[2 + i])) * d;
}

// The 6-bit scale and min of sub-block g of a K block: 12 bytes; the last four pairs lend their top bits from the
// first.
void scale_min(const uint8_t* s, int g, int* scale, int* min) {
  if (g < 4) {
    *scale = s[g] & 63;
    *min = s[g + 4] & 63;
  } else {
    *scale = (s[g + 4] & 15) | (s[g - 4] >> 6 << 4);
    *min = (s[g + 4] >> 4) | (s[g] >> 6 << 4);
  }
}

// d, dmin, 12 scale bytes, [32 bytes of fifth bits,] 128 bytes: 32 bytes hold sub-block 2p low and 2p + 1 high.
void k_block(const uint8_t* b, const uint8_t* high, const uint8_t* q, float* out) {
  const float d = half_at(b), dmin = half_at(b + 2);
  for (int g = 0; g < 8; ++g) {
    int scale, min;
    scale_min(b + 4, g, &scale, &min);
    for (int i = 0; i < 32; ++i) {
      const int byte = q[g / 2 * 32 + i];
      int value = g % 2 == 0 ? byte & 15 : byte >> 4;
      if (high != nullptr) value |= (high[i] >> g & 1) << 4;
      out[g * 32 + i] = d * static_cast<float>(scale) * static_cast<float>(value) - dmin * static_cast<float>(min);
    }
  }
}

void q4_k(const uint8_t* b, float* out) { k_block(b, nullptr, b + 16, out); }
void q5_k(const uint8_t* b, float* out) { k_block(b, b + 16, b + 48, out); }

// 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales (one for 16 elements), d.
void q6_k(const uint8_t* b, float* out) {
  const float d = half_at(b + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, in_half = i % 128, quarter = in_half / 32, l = in_half % 32;
    const int low = b[half * 64 + (quarter % 2) * 32 + l] >> (quarter / 2 * 4) & 15;
    const int high = b[128 + half * 32 + l] >> (2 * quarter) & 3;
    const int scale = static_cast<int8_t>(b[192 + i / 16]);
    out[i] = d * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
  }
}

template <class Decode>
void blocks(DType dtype, const std::byte* row, int64_t count, float* out, Decode decode) {
  const DTypeInfo info = dtype_info(dtype);
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  for (int64_t i = 0; i < count / info.block; ++i) decode(bytes + i * info.block_bytes, out + i * info.block);
}

}  // namespace

void dequantize_row(DType dtype, const std::byte* row, int64_t count, float* out) {
  CHECK(count % dtype_info(dtype).block == 0);
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, row, static_cast<size_t>(count) * 4);
      return;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) out[i] = half_at(bytes + 2 * i);
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) {
        uint16_t bits;
        std::memcpy(&bits, bytes + 2 * i, 2);
        out[i] = bf16_to_f32(bits);
      }
      return;
    case DType::kQ4_0:
      return blocks(dtype, row, count, out, q4_0);
    case DType::kQ4_1:
      return blocks(dtype, row, count, out, q4_1);
    case DType::kQ5_0:
      return blocks(dtype, row, count, out, q5_0);
    case DType::kQ5_1:
      return blocks(dtype, row, count, out, q5_1);
    case DType::kQ8_0:
      return blocks(dtype, row, count, out, q8_0);
    case DType::kQ4_K:
      return blocks(dtype, row, count, out, q4_k);
    case DType::kQ5_K:
      return blocks(dtype, row, count, out, q5_k);
    case DType::kQ6_K:
      return blocks(dtype, row, count, out, q6_k);
    case DType::kI8:
      break;
  }
  CHECK(!"not a weight type");
}

}  // namespace kvilt::reference

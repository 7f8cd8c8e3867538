// tensor/dequantize.cc: block formats of GGUF v3 to fp32, one scalar function a format.
// Source:   the GGUF v3 block layouts (docs/formats/gguf.md); scales are fp16, numbers little-endian.
// Exact:    every product is rounded in the order of the definition (scale of the block times scale of the sub-block
//           first), so values equal the `gguf` Python package bit for bit; kernels are tested against this file.
// Not here: speed. Kernels unpack for themselves.
#include "tensor/dequantize.h"

#include <array>

#include "base/check.h"
#include "tensor/small_blocks.h"

namespace kvilt {
namespace {

const uint8_t* as_bytes(const std::byte* data) { return reinterpret_cast<const uint8_t*>(data); }

uint16_t load_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }
uint32_t load_u32(const uint8_t* p) { return load_u16(p) | static_cast<uint32_t>(load_u16(p + 2)) << 16; }

// 32 elements; byte j holds element j in its low and element j + 16 in its high nibble.
void block_q4_0(const uint8_t* p, float* out) {
  const float d = load_f16(p);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>((p[2 + j] & 15) - 8) * d;
    out[j + 16] = static_cast<float>((p[2 + j] >> 4) - 8) * d;
  }
}

void block_q4_1(const uint8_t* p, float* out) {
  const float d = load_f16(p), min = load_f16(p + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>(p[4 + j] & 15) * d + min;
    out[j + 16] = static_cast<float>(p[4 + j] >> 4) * d + min;
  }
}

// As Q4 with the fifth bit of element j in bit j of a 32-bit word.
int five_bits(const uint8_t* nibbles, uint32_t high, int j) {
  const int low = j < 16 ? nibbles[j] & 15 : nibbles[j - 16] >> 4;
  return low | static_cast<int>(high >> j & 1) << 4;
}

void block_q5_0(const uint8_t* p, float* out) {
  const float d = load_f16(p);
  const uint32_t high = load_u32(p + 2);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(five_bits(p + 6, high, j) - 16) * d;
}

void block_q5_1(const uint8_t* p, float* out) {
  const float d = load_f16(p), min = load_f16(p + 2);
  const uint32_t high = load_u32(p + 4);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(five_bits(p + 8, high, j)) * d + min;
}

void block_q8_0(const uint8_t* p, float* out) {
  const float d = load_f16(p);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<int8_t>(p[2 + j])) * d;
}

// Six-bit scale and minimum of sub-block j of 8, packed in 12 bytes: the first four in the low six bits of bytes 0-3
// and 4-7, the last four as nibbles of bytes 8-11 with their top two bits above those.
struct ScaleMin {
  int scale, min;
};
ScaleMin k_scale_min(const uint8_t* p, int j) {
  if (j < 4) return {p[j] & 63, p[j + 4] & 63};
  return {(p[j + 4] & 15) | (p[j - 4] >> 6) << 4, (p[j + 4] >> 4) | (p[j] >> 6) << 4};
}

// 256 elements in 8 sub-blocks of 32; each 32 bytes hold two sub-blocks, low nibbles first.
void block_q4_k(const uint8_t* p, float* out) {
  const float d = load_f16(p), dmin = load_f16(p + 2);
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleMin sm = k_scale_min(p + 4, sub);
    const float scale = d * static_cast<float>(sm.scale), min = dmin * static_cast<float>(sm.min);
    const uint8_t* q = p + 16 + sub / 2 * 32;
    for (int j = 0; j < 32; ++j) {
      const int value = sub % 2 == 0 ? q[j] & 15 : q[j] >> 4;
      out[sub * 32 + j] = scale * static_cast<float>(value) - min;
    }
  }
}

// As Q4_K; the fifth bit of element j of sub-block s is bit s of byte j of 32 high bytes.
void block_q5_k(const uint8_t* p, float* out) {
  const float d = load_f16(p), dmin = load_f16(p + 2);
  const uint8_t* high = p + 16;
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleMin sm = k_scale_min(p + 4, sub);
    const float scale = d * static_cast<float>(sm.scale), min = dmin * static_cast<float>(sm.min);
    const uint8_t* q = p + 48 + sub / 2 * 32;
    for (int j = 0; j < 32; ++j) {
      const int low = sub % 2 == 0 ? q[j] & 15 : q[j] >> 4;
      out[sub * 32 + j] = scale * static_cast<float>(low | (high[j] >> sub & 1) << 4) - min;
    }
  }
}

// 256 elements in two halves of 128: 64 bytes of low nibbles, 32 bytes of bit pairs, 8 signed scales of 16 elements
// each. Quarter n of a half (32 elements) takes nibble n / 2 of byte 32 * (n % 2) + j, and bits 2n of pair byte j.
void block_q6_k(const uint8_t* p, float* out) {
  const float d = load_f16(p + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = p + half * 64;
    const uint8_t* high = p + 128 + half * 32;
    const uint8_t* scales = p + 192 + half * 8;
    for (int n = 0; n < 4; ++n) {
      for (int j = 0; j < 32; ++j) {
        const int nibble = low[n % 2 * 32 + j] >> (n / 2 * 4) & 15;
        const int value = (nibble | (high[j] >> (2 * n) & 3) << 4) - 32;
        const float scale = d * static_cast<float>(static_cast<int8_t>(scales[n * 2 + j / 16]));
        out[half * 128 + n * 32 + j] = scale * static_cast<float>(value);
      }
    }
  }
}

void scaled32(const small_blocks::Quants32& block, float scale, float* out) {
  for (int j = 0; j < 32; ++j) out[j] = scale * static_cast<float>(block.q[j]);
}

void scaled256(const small_blocks::Quants256& block, float d, float* out) {
  for (int i = 0; i < 256; ++i) out[i] = d * static_cast<float>(block.scale[i / 16]) * static_cast<float>(block.q[i]);
}

void block_q2_k(const uint8_t* p, float* out) {
  const float d = load_f16(p + 80), dmin = load_f16(p + 82);
  const small_blocks::Quants256 block = small_blocks::q2_k(p);
  scaled256(block, d, out);
  for (int i = 0; i < 256; ++i) out[i] -= dmin * static_cast<float>(block.min[i / 16]);
}

template <class Block>
void each_block(DType dtype, const std::byte* data, size_t count, float* out, Block block) {
  const DTypeInfo info = dtype_info(dtype);
  const size_t elements = info.block;
  DCHECK(count % elements == 0);
  const uint8_t* p = as_bytes(data);
  for (size_t i = 0; i + elements <= count; i += elements, p += info.block_bytes) block(p, out + i);
}

}  // namespace

void dequantize(DType dtype, const std::byte* data, size_t count, float* out) {
  const auto run = [&](auto block) { each_block(dtype, data, count, out, block); };
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, data, count * sizeof(float));
      return;
    case DType::kF16:
      return run([](const uint8_t* p, float* y) { *y = load_f16(p); });
    case DType::kBF16:
      return run([](const uint8_t* p, float* y) { *y = bf16_to_f32(load_u16(p)); });
    case DType::kI8:
      return run([](const uint8_t* p, float* y) { *y = static_cast<float>(static_cast<int8_t>(*p)); });
    case DType::kQ4_0:
      return run(block_q4_0);
    case DType::kQ4_1:
      return run(block_q4_1);
    case DType::kQ5_0:
      return run(block_q5_0);
    case DType::kQ5_1:
      return run(block_q5_1);
    case DType::kQ8_0:
      return run(block_q8_0);
    case DType::kQ4_K:
      return run(block_q4_k);
    case DType::kQ5_K:
      return run(block_q5_k);
    case DType::kQ6_K:
      return run(block_q6_k);
    case DType::kQ2_K:
      return run(block_q2_k);
    case DType::kQ3_K:
      return run([](const uint8_t* p, float* y) { scaled256(small_blocks::q3_k(p), load_f16(p + 108), y); });
    case DType::kIQ4NL:
      return run([](const uint8_t* p, float* y) { scaled32(small_blocks::iq4_nl(p), load_f16(p), y); });
    case DType::kIQ4XS:
      return run([](const uint8_t* p, float* y) { scaled256(small_blocks::iq4_xs(p), load_f16(p), y); });
    case DType::kMXFP4:
      return run(
          [](const uint8_t* p, float* y) { scaled32(small_blocks::mxfp4(p), small_blocks::mxfp4_scale(*p), y); });
  }
}

}  // namespace kvilt

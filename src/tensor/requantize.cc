#include "tensor/requantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/dequantize.h"
#include "tensor/small_blocks.h"

namespace kvilt {
namespace {

constexpr float kLargestF16 = 65504;

void put_f16(uint8_t* to, float value) {
  const uint16_t half = f32_to_f16(std::clamp(value, -kLargestF16, kLargestF16));
  to[0] = static_cast<uint8_t>(half);
  to[1] = static_cast<uint8_t>(half >> 8);
}

// 32 signed bytes behind a scale.
void put_q8_0(float scale, const int8_t* q, uint8_t* out) {
  put_f16(out, scale);
  std::memcpy(out + 2, q, 32);
}

void put_q5_0(float scale, const int8_t* q, uint8_t* out) {
  put_f16(out, scale);
  uint32_t high = 0;
  for (int j = 0; j < 32; ++j) high |= static_cast<uint32_t>((q[j] + 16) >> 4) << j;
  for (int z = 0; z < 4; ++z) out[2 + z] = static_cast<uint8_t>(high >> (8 * z));
  for (int j = 0; j < 16; ++j) out[6 + j] = static_cast<uint8_t>(((q[j] + 16) & 15) | ((q[j + 16] + 16) & 15) << 4);
}

// The inverse of dequantize.cc's reading.
void put_q6_k(const uint8_t* d, const small_blocks::Quants256& from, uint8_t* out) {
  std::memset(out, 0, 192);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, n = i % 128 / 32, j = i % 32, value = from.q[i] + 32;
    uint8_t& low = out[half * 64 + n % 2 * 32 + j];
    uint8_t& high = out[128 + half * 32 + j];
    low = static_cast<uint8_t>(low | (value & 15) << (n / 2 * 4));
    high = static_cast<uint8_t>(high | (value >> 4) << (2 * n));
  }
  std::memcpy(out + 192, from.scale, 16);
  std::memcpy(out + 208, d, 2);
}

void iq4_xs_as_q8_0(const uint8_t* p, uint8_t* out) {
  const small_blocks::Quants256 block = small_blocks::iq4_xs(p);
  for (int s = 0; s < 8; ++s)
    put_q8_0(load_f16(p) * static_cast<float>(block.scale[2 * s]), block.q + 32 * s, out + 34 * s);
}

// By values, to the nearest.
void rounded_to_q8_0(const float* x, uint8_t* out) {
  float most = 0;
  for (int j = 0; j < 32; ++j) most = std::max(most, std::fabs(x[j]));
  put_f16(out, most / 127);
  const float scale = load_f16(out);
  for (int j = 0; j < 32; ++j) {
    const float q = scale > 0 ? std::nearbyint(std::clamp(x[j] / scale, -127.0f, 127.0f)) : 0;
    out[2 + j] = static_cast<uint8_t>(static_cast<int8_t>(q));
  }
}

void q2_k_as_q8_0(const uint8_t* p, uint8_t* out) {
  float values[256];
  dequantize(DType::kQ2_K, reinterpret_cast<const std::byte*>(p), 256, values);
  for (int s = 0; s < 8; ++s) rounded_to_q8_0(values + 32 * s, out + 34 * s);
}

void one_block(DType dtype, const uint8_t* p, uint8_t* out) {
  switch (dtype) {
    case DType::kQ2_K:
      return q2_k_as_q8_0(p, out);
    case DType::kQ3_K:
      return put_q6_k(p + 108, small_blocks::q3_k(p), out);
    case DType::kIQ4NL:
      return put_q8_0(load_f16(p), small_blocks::iq4_nl(p).q, out);
    case DType::kIQ4XS:
      return iq4_xs_as_q8_0(p, out);
    case DType::kMXFP4:
      return put_q5_0(small_blocks::mxfp4_scale(*p), small_blocks::mxfp4(p).q, out);
    default:
      CHECK(false);
  }
}

}  // namespace

DType kernel_type(DType dtype) {
  switch (dtype) {
    case DType::kQ3_K:
      return DType::kQ6_K;
    case DType::kMXFP4:
      return DType::kQ5_0;
    case DType::kQ2_K:
    case DType::kIQ4NL:
    case DType::kIQ4XS:
      return DType::kQ8_0;
    default:
      return dtype;
  }
}

void requantize(DType dtype, const std::byte* data, size_t count, std::byte* out) {
  const DTypeInfo from = dtype_info(dtype);
  const size_t to = dtype_bytes(kernel_type(dtype), static_cast<size_t>(from.block));
  for (size_t i = 0; i < count; i += static_cast<size_t>(from.block), data += from.block_bytes, out += to)
    one_block(dtype, reinterpret_cast<const uint8_t*>(data), reinterpret_cast<uint8_t*>(out));
}

}  // namespace kvilt

// kernels/x86/pack.cc: GGUF blocks to the blocked layout of kernels.h.
// Cost: about 0.2 s a thread for 500 M weights, once at start. Groups of keys (forward/key_groups.h) are packed all the
//       time: of 16,000 keys 2 MB, in memory that the ones before them left.
#include "kernels/x86/pack.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "tensor/dequantize.h"
#include "tensor/requantize.h"

namespace kvilt::x86 {
namespace {

uint32_t word(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}
void put(std::byte* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

// Blocks that are stored together segment by segment (kernels.h), and one of them. Without segments: each by itself.
struct BlockPlace {
  std::byte* first;  // where the first of them begins
  int64_t index, count;
  int64_t chunks, segment;  // of a block; of its segments but the last
};

// Where lane `lane` of a block is.
struct Lane {
  BlockPlace block;
  const Format& format;
  const Chunk& chunk;
  int64_t lane;

  std::byte* at(int64_t g) const {
    const int64_t c = g / chunk.groups, first = c / block.segment * block.segment;
    const int64_t length = std::min(block.segment, block.chunks - first);
    return block.first + (first * block.count + block.index * length + c - first) * chunk.bytes;
  }

  // 32 unsigned quants of group g.
  void quants(int64_t g, const uint8_t* q) const {
    const int bits = format.bits;
    std::byte* to = at(g) + chunk.quants + g % chunk.groups * chunk.group_bytes + lane * 4;
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
    for (int z = 0; z < bits - 4; ++z) put(to + chunk.highs + z * 64, &high[z], 4);
  }
  // Group g's (Qx_K: g's chunk's) scale and min.
  void scale(int64_t g, const uint8_t* half) const { put_half(g, chunk.scales, half); }
  void min(int64_t g, const uint8_t* half) const { put_half(g, chunk.mins, half); }
  void sub(int64_t g, int s, uint8_t value) const {
    at(g)[chunk.sub + (g % chunk.groups * format.scales + s) * 16 + lane] = std::byte{value};
  }
  void submin(int64_t g, uint8_t value) const {
    at(g)[chunk.submins + g % chunk.groups * 16 + lane] = std::byte{value};
  }

 private:
  void put_half(int64_t g, int64_t plane, const uint8_t* half) const {
    put(at(g) + plane + (format.super ? 0 : g % chunk.groups * 32) + lane * 2, half, 2);
  }
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
    lane.quants(g, q);
  }
}

void q8_0_row(const uint8_t* b, int64_t groups, const Lane& lane) {
  for (int64_t g = 0; g < groups; ++g, b += 34) {
    uint8_t q[32];
    for (int i = 0; i < 32; ++i) q[i] = b[2 + i] ^ 0x80;
    lane.scale(g, b);
    lane.quants(g, q);
  }
}

void k_row(const uint8_t* b, int64_t supers, bool has_high, const Lane& lane) {
  for (int64_t s = 0; s < supers; ++s) {
    lane.scale(8 * s, b);
    lane.min(8 * s, b + 2);
    const uint8_t* packed = b + 4;
    const uint8_t* high = b + 16;
    const uint8_t* q4 = has_high ? b + 48 : b + 16;
    for (int g = 0; g < 8; ++g) {
      const int scale = g < 4 ? packed[g] & 63 : (packed[g + 4] & 15) | (packed[g - 4] >> 6 << 4);
      const int min = g < 4 ? packed[g + 4] & 63 : (packed[g + 4] >> 4) | (packed[g] >> 6 << 4);
      lane.sub(8 * s + g, 0, static_cast<uint8_t>(scale));
      lane.submin(8 * s + g, static_cast<uint8_t>(min));
      uint8_t q[32];
      for (int i = 0; i < 32; ++i) {
        q[i] = static_cast<uint8_t>(q4[g / 2 * 32 + i] >> (g % 2 * 4) & 15);
        if (has_high) q[i] = static_cast<uint8_t>(q[i] | (high[i] >> g & 1) << 4);
      }
      lane.quants(8 * s + g, q);
    }
    b += has_high ? 176 : 144;
  }
}

void q6_k_row(const uint8_t* b, int64_t supers, const Lane& lane) {
  for (int64_t s = 0; s < supers; ++s, b += 210) {
    lane.scale(8 * s, b + 208);
    for (int i = 0; i < 16; ++i) lane.sub(8 * s + i / 2, i % 2, b[192 + i]);
    for (int g = 0; g < 8; ++g) {
      const int half = g / 4, quarter = g % 4;
      const uint8_t* low = b + half * 64 + quarter % 2 * 32;
      const uint8_t* high = b + 128 + half * 32;
      uint8_t q[32];
      for (int i = 0; i < 32; ++i) {
        q[i] = static_cast<uint8_t>((low[i] >> (quarter / 2 * 4) & 15) | (high[i] >> (2 * quarter) & 3) << 4);
      }
      lane.quants(8 * s + g, q);
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

// A row of quantised weights as floats, or rounded to BF16.
void wide_row(const std::vector<float>& row, DType dtype, std::byte* block, int64_t lane) {
  const auto* bytes = reinterpret_cast<const std::byte*>(row.data());
  const auto K = static_cast<int64_t>(row.size());
  if (dtype == DType::kF32) return float_row(bytes, dtype, K, block, lane);
  for (int64_t k = 0; k < K; ++k) {
    const uint16_t half = f32_to_bf16(row[k]);
    put(block + (k / 2 * 16 + lane) * 4 + k % 2 * 2, &half, 2);
  }
}

void pack_row(DType dtype, int64_t K, const std::byte* row, const Lane& lane) {
  const auto* b = reinterpret_cast<const uint8_t*>(row);
  const int64_t groups = K / 32, supers = K / 256;
  switch (dtype) {
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
      return float_row(row, dtype, K, lane.block.first, lane.lane);
  }
}

}  // namespace

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

WeightMemory::Slice WeightMemory::take(size_t bytes) {
  constexpr size_t kSlab = size_t{32} << 20;
  bytes = (bytes + 63) / 64 * 64;
  const MutexLock lock(mutex_);
  if (slab_ != nullptr && slab_.use_count() == 1) {  // nobody uses it any more, and nobody else can begin to
    std::atomic_thread_fence(std::memory_order_acquire);
    used_ = 0;
  }
  if (slab_ == nullptr || used_ + bytes > slab_->bytes()) {
    slab_ = std::make_shared<const Buffer>(std::max(bytes, kSlab));
    used_ = 0;
  }
  std::byte* data = slab_->as<std::byte>() + used_;
  used_ += bytes;
  return {slab_, data};
}

namespace {

DType packed_dtype(const WeightView& w) {
  if (is_float(w.dtype) || w.activations == Activations::kAuto) return kernel_type(w.dtype);
  return w.activations == Activations::kBF16 ? DType::kBF16 : DType::kF32;
}

// Everything but the bytes.
std::unique_ptr<BlockedWeight> blocked(const WeightView& w, bool pairs) {
  auto packed = std::make_unique<BlockedWeight>();
  packed->N = w.rows;
  packed->K = w.cols;
  packed->dtype = packed_dtype(w);
  packed->pairs = pairs && packed->dtype == DType::kBF16 && w.activations != Activations::kF32;
  if (is_float(packed->dtype)) {
    packed->block_bytes = packed->dtype == DType::kF32 ? w.cols * 64 : (w.cols + 1) / 2 * 64;
  } else {
    const Chunk chunk = chunk_of(packed->dtype);
    const int64_t chunks = (w.cols / kGroup + chunk.groups - 1) / chunk.groups;
    packed->block_bytes = chunks * chunk.bytes;
    const int64_t segments =
        packed->block_bytes > kLongBlock ? (packed->block_bytes + kSegmentBytes - 1) / kSegmentBytes : 1;
    packed->segment = (chunks + segments - 1) / segments * chunk.groups;
  }
  packed->bytes = (w.rows + kBlockRows - 1) / kBlockRows * packed->block_bytes;
  return packed;
}

void place(BlockedWeight& weight, const std::byte* blocks, std::shared_ptr<const void> owner) {
  weight.blocks = blocks;
  weight.image = {blocks, weight.bytes};
  weight.owner = std::move(owner);
}

}  // namespace

std::unique_ptr<BlockedWeight> adopt(const WeightView& w, bool pairs, std::span<const std::byte> image,
                                     std::shared_ptr<const void> owner) {
  auto packed = blocked(w, pairs);
  if (image.size() != packed->bytes) return nullptr;
  CHECK(reinterpret_cast<uintptr_t>(image.data()) % 64 == 0);
  place(*packed, image.data(), std::move(owner));
  return packed;
}

std::unique_ptr<BlockedWeight> pack(const WeightView& w, bool pairs, WeightMemory& memory, ThreadPool& pool) {
  CHECK(w.dtype != DType::kI8 && w.cols % dtype_info(w.dtype).block == 0 && w.cols > 0 && w.rows > 0);
  auto packed = blocked(w, pairs);
  const Format format = format_of(packed->dtype);
  const Chunk chunk = chunk_of(packed->dtype);
  const int64_t count = (w.rows + kBlockRows - 1) / kBlockRows;
  auto [slab, blocks] = memory.take(packed->bytes);
  place(*packed, blocks, slab);
  const size_t row_bytes = dtype_bytes(w.dtype, w.cols);
  const int64_t groups = w.cols / kGroup;
  const bool segmented = !is_float(packed->dtype) && packed->segment < groups;
  pool.parallel_for((count + kTogether - 1) / kTogether, [&, to = blocks](int64_t task, int) {
    const int64_t begin = task * kTogether, together = std::min(kTogether, count - begin);
    std::byte* first = to + begin * packed->block_bytes;
    std::memset(first, 0, together * packed->block_bytes);  // lanes beyond N, padding
    const size_t K = static_cast<size_t>(w.cols);
    std::vector<float> wide(is_float(packed->dtype) && !is_float(w.dtype) ? K : 0);
    std::vector<std::byte> other(wide.empty() && packed->dtype != w.dtype ? dtype_bytes(packed->dtype, K) : 0);
    for (int64_t i = 0; i < together; ++i) {
      BlockPlace place = {first + i * packed->block_bytes, 0, 1, INT64_MAX, INT64_MAX};
      if (segmented) place = {first, i, together, packed->block_bytes / chunk.bytes, packed->segment / chunk.groups};
      for (int64_t lane = 0; lane < kBlockRows && (begin + i) * kBlockRows + lane < w.rows; ++lane) {
        const std::byte* row = w.data + ((begin + i) * kBlockRows + lane) * row_bytes;
        if (!wide.empty()) {
          dequantize(w.dtype, row, K, wide.data());
          wide_row(wide, packed->dtype, place.first, lane);
          continue;
        }
        if (!other.empty()) requantize(w.dtype, row, K, other.data());
        pack_row(packed->dtype, w.cols, other.empty() ? row : other.data(), {place, format, chunk, lane});
      }
    }
  });
  return packed;
}

}  // namespace kvilt::x86

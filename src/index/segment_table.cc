// index/segment_table.cc: see segment_table.h.
#include "index/segment_table.h"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace kvilt {
namespace {
constexpr size_t kBlock = 16;  // ids compared at once by memcmp; 16 are one cache line
}

bool ChainChild::operator<(const ChainChild& other) const {
  if (attach != other.attach) return attach < other.attach;
  const auto a = ids(), b = other.ids();
  const size_t same = common_prefix(a, b);
  if (same < a.size() && same < b.size()) return a[same] < b[same];
  return std::tuple(a.size(), id) < std::tuple(b.size(), other.id);
}

size_t SegmentTable::bytes() const {
  size_t bytes = records_.bytes() + texts_.bytes() + free_.capacity() * sizeof(uint32_t) + by_id_.bytes();
  for (uint32_t slot = 0; slot < slots(); ++slot) {
    const SegmentRecord& r = records_[slot];
    bytes += r.info.tokens.capacity() * sizeof(int32_t) + r.info.spread.capacity() * sizeof(TokenSpread) +
             (r.window_nodes.capacity() + r.near.nodes.capacity()) * sizeof(uint32_t) +
             r.marks.capacity() * sizeof(MarkEntry) + r.chain.keys.capacity() * sizeof(Digest) +
             r.chain.nodes.capacity() * sizeof(uint32_t) + r.chain.children.size() * (sizeof(ChainChild) + 32);
  }
  return bytes;
}

int32_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  size_t i = 0;
  while (i + kBlock <= n && std::memcmp(a.data() + i, b.data() + i, kBlock * sizeof(int32_t)) == 0) i += kBlock;
  while (i < n && a[i] == b[i]) ++i;
  return static_cast<int32_t>(i);
}

int32_t common_suffix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  const int32_t *a_end = a.data() + a.size(), *b_end = b.data() + b.size();
  size_t i = 0;
  while (i + kBlock <= n && std::memcmp(a_end - i - kBlock, b_end - i - kBlock, kBlock * sizeof(int32_t)) == 0) {
    i += kBlock;
  }
  while (i < n && a_end[-1 - static_cast<ptrdiff_t>(i)] == b_end[-1 - static_cast<ptrdiff_t>(i)]) ++i;
  return static_cast<int32_t>(i);
}

}  // namespace kvilt

#include "base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace kvilt {
namespace {

std::vector<std::byte> counting(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  return bytes;
}

TEST(Checksum, EveryFlippedBitAndEveryLengthShows) {
  for (const size_t size : {1u, 63u, 64u, 65u, 200u}) {
    std::vector<std::byte> bytes = counting(size);
    std::set<uint64_t> seen{checksum(bytes)};
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      EXPECT_TRUE(seen.insert(checksum(bytes)).second) << size << ": bit " << bit;
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
  }
  std::set<uint64_t> lengths;
  const std::vector<std::byte> zeros(300);
  for (size_t size = 0; size <= zeros.size(); ++size) lengths.insert(checksum({zeros.data(), size}));
  EXPECT_EQ(lengths.size(), 301u);
}

TEST(Checksum, SwappedWordsShow) {
  std::vector<std::byte> bytes = counting(256);
  const uint64_t before = checksum(bytes);
  std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 64);  // of one lane
  EXPECT_NE(checksum(bytes), before);
}

// With another value every pack on disk would be "damaged": the version of the format would have to change too.
TEST(Checksum, ValuesAreThoseOfTheFormat) {
  EXPECT_EQ(checksum({}), 0x6ddd082f6be040bcu);
  EXPECT_EQ(checksum(counting(1000)), 0x7cddd7b32cc87fc5u);
}

}  // namespace
}  // namespace kvilt

// What was sealed opens with its key in its place, and nothing else does.
#include "base/sealer.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

using What = Sealer::What;

std::vector<std::byte> some_bytes(size_t size) {
  std::vector<std::byte> out(size);
  for (size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(i * 37);
  return out;
}

std::vector<std::byte> opened(const Sealer& sealer, const Sealer::Place& place, std::vector<std::byte> bytes) {
  return sealer.open(place, bytes) ? bytes : std::vector<std::byte>{std::byte{0xEE}};
}

TEST(Sealer, OpensWhatItSealed) {
  const Sealer one(HashSecret::fixed(1));
  for (const size_t size : {0, 1, 63, 64, 4096, 100'000}) {
    const auto plain = some_bytes(size);
    auto sealed = one.sealed({What::kChunk, 3, 4}, plain);
    ASSERT_EQ(sealed.size(), size + Sealer::kExtra);
    EXPECT_EQ(opened(Sealer(HashSecret::fixed(1)), {What::kChunk, 3, 4}, sealed), plain) << size;
  }
}

TEST(Sealer, NothingElseOpens) {
  const Sealer one(HashSecret::fixed(1));
  const auto plain = some_bytes(100);
  const auto sealed = one.sealed({What::kChunk, 3, 4}, plain);
  const auto opens = [&](const Sealer& sealer, const Sealer::Place& place, std::vector<std::byte> bytes) {
    return sealer.open(place, bytes).has_value();
  };
  ASSERT_TRUE(opens(one, {What::kChunk, 3, 4}, sealed)) << "power";
  EXPECT_FALSE(opens(Sealer(HashSecret::fixed(2)), {What::kChunk, 3, 4}, sealed));
  EXPECT_FALSE(opens(one, {What::kRecord, 3, 4}, sealed));
  EXPECT_FALSE(opens(one, {What::kChunk, 2, 4}, sealed));
  EXPECT_FALSE(opens(one, {What::kChunk, 3, 5}, sealed));
  for (size_t i = 0; i < sealed.size(); ++i) {
    auto changed = sealed;
    changed[i] ^= std::byte{0x80};
    EXPECT_FALSE(opens(one, {What::kChunk, 3, 4}, changed)) << i;
    EXPECT_FALSE(opens(one, {What::kChunk, 3, 4}, {sealed.begin(), sealed.begin() + static_cast<ptrdiff_t>(i)})) << i;
  }
}

TEST(Sealer, EverySealingHasAMarkOfItsOwn) {
  const Sealer one(HashSecret::fixed(1));
  const auto plain = some_bytes(50);
  std::vector<std::byte> first(plain.size() + Sealer::kExtra), second = first;
  const uint64_t a = one.seal({What::kChunk, 1, 0}, plain, first), b = one.seal({What::kChunk, 1, 0}, plain, second);
  EXPECT_NE(a, b);
  EXPECT_NE(first, second);
  EXPECT_EQ(one.open({What::kChunk, 1, 0}, first), a);
  EXPECT_EQ(one.open({What::kChunk, 1, 0}, second), b);
}

TEST(Sealer, DerivedKeysDependOnAllThatTheyAreMadeOf) {
  const uint8_t salt[] = {1, 2, 3};
  const auto bytes = [](const HashSecret& key) { return std::vector<uint8_t>(key.bytes().begin(), key.bytes().end()); };
  const HashSecret key = HashSecret::fixed(1);
  const auto derived = bytes(derived_key(key, "a", salt));
  EXPECT_EQ(bytes(derived_key(key, "a", salt)), derived);
  EXPECT_NE(bytes(derived_key(key, "b", salt)), derived);
  EXPECT_NE(bytes(derived_key(key, "a")), derived);
  EXPECT_NE(bytes(derived_key(HashSecret::fixed(2), "a", salt)), derived);
  EXPECT_NE(Sealer(key).name(), Sealer(HashSecret::fixed(2)).name());
}

}  // namespace
}  // namespace kvilt

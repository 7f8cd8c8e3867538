// What one process stores in a Redis others find, with a key and without one; what is not what was put is never returned.
#include "tier/redis_tier.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tier/redis_tier_for_test.h"

namespace kvilt {
namespace {

// With and without a key.
class RedisValuesTest : public RedisTierTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    RedisTierTest::SetUp();
    if (GetParam()) key = HashSecret::fixed(42);
  }
};
INSTANTIATE_TEST_SUITE_P(Keys, RedisValuesTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Sealed" : "Plain"; });

TEST_P(RedisValuesTest, WhatOnePutsOthersFind) {
  const auto one = open(), two = open();
  EXPECT_TRUE(known(*one).empty());
  EXPECT_TRUE(known(*two).empty());
  StoredPiece first = piece_for_test(one->new_id(), 700);
  first.marks = {{3, 90}, {80, 200}};
  first.clean = {{{3, 90}, 12, maker_of(4)}};
  std::vector<uint64_t> removed;
  ASSERT_TRUE(one->put(first, values_for_test(first), removed).ok());
  const StoredPiece second = put(*one, 100, first.id);
  expect_whole(*one, first);
  const Tier::News heard = news(*two, [](const Tier::News& now) { return now.stored.size() == 2; });
  EXPECT_EQ(heard.errors, 0);
  EXPECT_EQ(heard.stored[0].checksums.size(), 3u);
  first.checksums = heard.stored[0].checksums;
  EXPECT_EQ(heard.stored[0], first);
  EXPECT_EQ(heard.stored[1].parent, first.id);
  expect_whole(*two, first);
  expect_whole(*two, second);
  EXPECT_TRUE(one->news().empty()) << "its own are no news";
  const StoredPiece third = put(*two, 10, second.id);  // what one stored the other continues
  EXPECT_GT(third.id, second.id);

  const auto late = open();
  EXPECT_EQ(known(*late).size(), 3u);
  expect_whole(*late, third);
  EXPECT_EQ(late->bytes(), int64_t{810} * kTokenBytes);

  news(*one, [](const Tier::News& now) { return now.stored.size() == 1; });
  one->remove(third.id);
  EXPECT_EQ(news(*two, [](const Tier::News& now) { return !now.removed.empty(); }).removed[0], third.id);
  EXPECT_EQ(code_of(*two, third.id), Code::kNotFound);
  expect_whole(*two, second);
}

TEST_F(RedisTierTest, OtherModelsAndOtherSecretsFindNothing) {
  const auto one = open();
  known(*one);
  put(*one, 20);
  const auto other = open();
  EXPECT_TRUE(other->known(maker_of(8), kTokenBytes)->empty());
  const auto stranger = open(server->address(), 30000, HashSecret::fixed(5));
  EXPECT_TRUE(known(*stranger).empty());
  EXPECT_EQ(known(*open()).size(), 1u) << "power";
  for (const std::string& key : server->keys()) EXPECT_TRUE(key.starts_with("kvilt:")) << key;
}

TEST_F(RedisTierTest, TheSecretIsDrawnOnceOrGiven) {
  EXPECT_TRUE(std::ranges::equal(open()->secret().bytes(), open()->secret().bytes()));
  const HashSecret given = HashSecret::fixed(9);
  EXPECT_TRUE(std::ranges::equal(open(server->address(), 30000, given)->secret().bytes(), given.bytes()));
  server->ask({"SET", "kvilt:secret", "what"});
  const auto bad = RedisTier::open({server->address(), {}, std::chrono::seconds(30), {}});
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, Code::kCorrupt);
}

// Every way in which a value can be another: it is never returned, and goes for all.
TEST_P(RedisValuesTest, WrongValuesAreFoundAndRemoved) {
  struct Damage {
    const char* name;
    std::function<void(const std::string& first, const std::string& second)> done;
    Code code;
  };
  const auto set = [&](const std::string& key, const std::string& value) { server->ask({"SET", key, value}); };
  const auto get = [&](const std::string& key) { return server->ask({"GET", key}).text; };
  const Damage damages[] = {
      {"a bit",
       [&](const auto& a, const auto&) {
         auto v = get(a);
         v[100] ^= 1;
         set(a, v);
       },
       Code::kCorrupt},
      {"cut", [&](const auto& a, const auto&) { set(a, get(a).substr(1)); }, Code::kCorrupt},
      {"longer", [&](const auto& a, const auto&) { set(a, get(a) + "x"); }, Code::kCorrupt},
      {"much longer", [&](const auto& a, const auto&) { set(a, std::string(size_t{9} << 20, 'x')); }, Code::kCorrupt},
      {"another's", [&](const auto& a, const auto& b) { set(a, get(b)); }, Code::kCorrupt},
      {"a list",
       [&](const auto& a, const auto&) {
         server->ask({"DEL", a});
         server->ask({"LPUSH", a, "x"});
       },
       Code::kCorrupt},
      {"empty", [&](const auto& a, const auto&) { set(a, ""); }, Code::kNotFound},
      {"gone",
       [&](const auto& a, const auto&) {
         server->ask({"DEL", a});
       },
       Code::kNotFound},
  };
  const auto one = open(), two = open();
  known(*one);
  known(*two);
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.name);
    const StoredPiece piece = put(*one, 600);
    news(*two, [](const Tier::News& now) { return now.stored.size() == 1; });
    const std::string first = key_of(fmt::format("*:v:{:016x}:0", piece.id));
    damage.done(first, key_of(fmt::format("*:v:{:016x}:1", piece.id)));
    EXPECT_EQ(code_of(*two, piece.id), damage.code);
    EXPECT_EQ(code_of(*two, piece.id), Code::kNotFound) << "it was removed";
    EXPECT_TRUE(two->ready());
    EXPECT_EQ(news(*one, [](const Tier::News& now) { return !now.removed.empty(); }).removed[0], piece.id);
    EXPECT_TRUE(server->keys(fmt::format("*{:016x}*", piece.id)).empty());
  }
  expect_whole(*two, put(*two, 600));
}

TEST_P(RedisValuesTest, WithAKeyNothingOfItCanBeRead) {
  const auto one = open();
  known(*one);
  const StoredPiece piece = put(*one, 300);
  std::string all;
  for (const std::string& name : server->keys()) {
    all += name;
    if (server->ask({"TYPE", name}).text == "string") all += server->ask({"GET", name}).text;
  }
  const std::vector<std::byte> values = values_for_test(piece);
  const auto holds_bytes = [&](const void* data, size_t size) {
    return all.find(std::string_view(static_cast<const char*>(data), size)) != std::string::npos;
  };
  const bool readable = !GetParam();  // power: without a key all of it is there
  EXPECT_EQ(holds_bytes(piece.tokens.data(), 4 * sizeof(int32_t)), readable);
  EXPECT_EQ(holds_bytes(values.data(), 16), readable);
  EXPECT_EQ(holds_bytes(piece.domain.data(), piece.domain.size()), readable);
  EXPECT_EQ(server->ask({"EXISTS", "kvilt:secret"}).number, readable ? 1 : 0) << "it follows from the key";
}

// What others sealed is nothing to whoever has another key or none, and stays.
TEST_F(RedisTierTest, AnotherKeyFindsNothingAndLeavesItThere) {
  const HashSecret digests = HashSecret::fixed(3), a = HashSecret::fixed(1), b = HashSecret::fixed(2);
  const auto tier_of = [&](const std::optional<HashSecret>& key) {
    return open_with(key, server->address(), 30000, digests);
  };
  const auto one = tier_of(a);
  known(*one);
  const StoredPiece piece = put(*one, 300);
  for (const std::optional<HashSecret>& key : {std::optional<HashSecret>(b), std::optional<HashSecret>()}) {
    const auto other = tier_of(key);
    EXPECT_TRUE(known(*other).empty());
    const StoredPiece theirs = put(*other, 20);
    ASSERT_TRUE(other->clear().ok());
    EXPECT_EQ(code_of(*other, theirs.id), Code::kNotFound);
  }
  const auto again = tier_of(a);
  EXPECT_EQ(known(*again).size(), 1u) << "power";
  expect_whole(*again, piece);
}

// With its key alone it may start before Redis does, as with a secret.
TEST_F(RedisTierTest, AKeyIsASecretToo) {
  server->end();
  const auto one = open_with(HashSecret::fixed(1), server->address());
  ASSERT_TRUE(one);
  EXPECT_TRUE(known(*one).empty());
  server->start();
  news(*one, [&](const Tier::News&) { return one->ready(); });
  expect_whole(*one, put(*one, 300));
  EXPECT_EQ(server->ask({"EXISTS", "kvilt:secret"}).number, 0);
}

// A chunk that was right for this piece before is not taken for the one that is there now.
TEST_P(RedisValuesTest, OlderValuesOfTheSamePlaceAreNotTaken) {
  const auto one = open();
  known(*one);
  const StoredPiece piece = put(*one, 20);
  const std::string name = key_of("*:v:*:0"), older = server->ask({"GET", name}).text;
  one->remove(piece.id);
  std::vector<std::byte> others = values_for_test(piece);
  others[7] ^= std::byte{1};
  std::vector<uint64_t> removed;
  ASSERT_TRUE(one->put(piece, others, removed).ok());
  ASSERT_TRUE(chunk_of(*one, piece.id, 0).ok()) << "power";
  server->ask({"SET", name, older});
  EXPECT_EQ(code_of(*one, piece.id), Code::kCorrupt);
}

// Two servers that drew one id: of neither piece anything is left, for nobody.
TEST_P(RedisValuesTest, TwoPiecesOfOneIdAreNone) {
  const auto one = open(), two = open(), third = open();
  for (RedisTier* tier : {one.get(), two.get(), third.get()}) known(*tier);
  const StoredPiece a = put(*one, 300);
  news(*third, [](const Tier::News& now) { return now.stored.size() == 1; });
  StoredPiece b = piece_for_test(a.id, 300);
  b.tokens[0] += 1;
  std::vector<uint64_t> removed;
  ASSERT_TRUE(two->put(b, values_for_test(b), removed).ok());
  for (RedisTier* tier : {one.get(), two.get(), third.get()}) {
    const Tier::News heard = news(*tier, [&](const Tier::News&) { return tier->pieces() == 0; });
    EXPECT_EQ(heard.removed, std::vector<uint64_t>{a.id});
    EXPECT_TRUE(heard.stored.empty());
  }
  EXPECT_TRUE(server->keys(fmt::format("*{:016x}*", a.id)).empty());
  const auto late = open();
  EXPECT_TRUE(known(*late).empty());
  const StoredPiece usual = put(*one, 300);  // power: one line is no collision, wherever it is read
  news(*late, [](const Tier::News& now) { return now.stored.size() == 1; });
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(one->news().removed.empty());
  expect_whole(*late, usual);
}

TEST_P(RedisValuesTest, WrongRecordsAreLeftOut) {
  const auto one = open();
  known(*one);
  const StoredPiece good = put(*one, 50), flipped = put(*one, 60), garbage = put(*one, 70), other = put(*one, 80);
  const auto key = [&](const StoredPiece& piece) { return key_of(fmt::format("*:r:{:016x}", piece.id)); };
  std::string record = server->ask({"GET", key(flipped)}).text;
  record[60] ^= 1;
  server->ask({"SET", key(flipped), record});
  server->ask({"SET", key(garbage), "garbage"});
  server->ask({"SET", key(other), server->ask({"GET", key(good)}).text});
  server->ask({"SADD", key_of("*:all"), "0123"});
  server->ask({"XADD", key_of("*:log"), "*", "put", "zzzzzzzzzzzzzzzz"});
  server->ask({"XADD", key_of("*:log"), "*", "later", "word", "of", "others"});
  const auto two = open();
  const std::vector<StoredPiece> found = known(*two);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].id, good.id);
  EXPECT_EQ(two->news().errors, 3);
  EXPECT_TRUE(two->ready());
  expect_whole(*two, good);
}

// Whoever knows the secret can say that a token has any number of bytes. That is damage, found before it is read.
TEST_P(RedisValuesTest, ARecordOfAnotherSizeIsDamage) {
  const auto one = open();
  known(*one);
  put(*one, 300);
  const auto other = open();
  const auto found = other->known(maker_of(7), 2 * kTokenBytes);
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->empty());
  EXPECT_EQ(other->news().errors, 1);
  EXPECT_TRUE(server->keys("*:r:*").empty());
}

TEST_F(RedisTierTest, WhatIsContinuedMustBeThere) {
  const auto one = open();
  known(*one);
  const StoredPiece parent = put(*one, 300);
  server->ask({"DEL", key_of("*:r:*")});
  const StoredPiece child = piece_for_test(one->new_id(), 10, parent.id);
  std::vector<uint64_t> removed;
  EXPECT_EQ(one->put(child, values_for_test(child), removed).error().code, Code::kNotFound);
  EXPECT_EQ(removed, std::vector<uint64_t>{parent.id});
}

TEST_F(RedisTierTest, WhatIsContinuedHasTheSmallerId) {
  const auto one = open();
  known(*one);
  const StoredPiece parent = put(*one, 300), child = piece_for_test(parent.id - 1, 10, parent.id);
  std::vector<uint64_t> removed;
  EXPECT_EQ(one->put(child, values_for_test(child), removed).error().code, Code::kNotFound);
  EXPECT_TRUE(removed.empty());
  EXPECT_EQ(server->keys("*:r:*").size(), 1u);
}

}  // namespace
}  // namespace kvilt

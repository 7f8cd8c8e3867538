#include "tier/redis_tier.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "tier/piece_for_test.h"
#include "tier/redis_for_test.h"

namespace kvilt {
namespace {

using Mode = RedisProxyForTest::Mode;

Digest maker_of(uint8_t n) {
  Digest out{};
  out[0] = n;
  return out;
}

class RedisTierTest : public testing::Test {
 protected:
  void SetUp() override {
    if (RedisServerForTest::program().empty()) GTEST_SKIP() << "neither redis-server nor valkey-server is installed";
    server.emplace();
  }
  std::unique_ptr<RedisTier> open(const RedisAddress& address, int ms = 30000,
                                  std::optional<HashSecret> secret = {}) const {
    return open_with(key, address, ms, secret);
  }
  static std::unique_ptr<RedisTier> open_with(const std::optional<HashSecret>& key, const RedisAddress& address,
                                              int ms = 30000, const std::optional<HashSecret>& secret = {}) {
    auto out = RedisTier::open({address, secret, std::chrono::milliseconds(ms), key});
    EXPECT_TRUE(out.ok()) << (out.ok() ? "" : out.error().message);
    return out.ok() ? std::move(out).value() : nullptr;
  }
  std::unique_ptr<RedisTier> open() const { return open(server->address()); }
  static std::vector<StoredPiece> known(RedisTier& tier) {
    auto out = tier.known(maker_of(7));
    EXPECT_TRUE(out.ok());
    return out.ok() ? std::move(out).value() : std::vector<StoredPiece>();
  }
  static StoredPiece put(RedisTier& tier, int32_t count, uint64_t parent = 0) {
    const StoredPiece piece = piece_for_test(tier.new_id(), count, parent);
    std::vector<uint64_t> removed;
    const Status done = tier.put(piece, values_for_test(piece), removed);
    EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().message);
    return piece;
  }
  static void expect_whole(RedisTier& tier, const StoredPiece& piece) {
    const std::vector<std::byte> values = values_for_test(piece);
    for (int32_t i = 0; i < chunks_of(piece.count()); ++i) {
      const kvilt::Run run = chunk_run(i, piece.count());
      const auto chunk = chunk_of(tier, piece.id, i);
      ASSERT_TRUE(chunk.ok()) << chunk.error().message;
      EXPECT_TRUE(std::ranges::equal(*chunk, std::span(values).subspan(static_cast<size_t>(run.begin) * kTokenBytes,
                                                                       static_cast<size_t>(run.size()) * kTokenBytes)));
    }
  }
  static Code code_of(RedisTier& tier, uint64_t id, int32_t chunk = 0) {
    const auto got = chunk_of(tier, id, chunk);
    EXPECT_FALSE(got.ok());
    return got.ok() ? Code::kInternal : got.error().code;
  }
  std::string key_of(const std::string& pattern) const {
    const std::vector<std::string> found = server->keys(pattern);
    return found.size() == 1 ? found[0] : "";
  }
  // All that is news until done() says yes.
  template <class Done>
  static Tier::News news(RedisTier& tier, Done done) {
    Tier::News out;
    for (int i = 0; i < 3000; ++i) {
      Tier::News some = tier.news();
      out.stored.insert(out.stored.end(), some.stored.begin(), some.stored.end());
      out.removed.insert(out.removed.end(), some.removed.begin(), some.removed.end());
      out.errors += some.errors;
      if (done(out)) return out;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "it never came";
    return out;
  }

  std::optional<RedisServerForTest> server;
  std::optional<HashSecret> key;
};

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
  EXPECT_TRUE(other->known(maker_of(8))->empty());
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

TEST_F(RedisTierTest, FullIsAnErrorOfThePut) {
  server.emplace(std::vector<std::string>{"--maxmemory", "4mb", "--maxmemory-policy", "noeviction"});
  const auto one = open();
  known(*one);
  std::vector<StoredPiece> stored;
  Status done;
  for (int i = 0; i < 2000 && done.ok(); ++i) {
    const StoredPiece piece = piece_for_test(one->new_id(), 600);
    std::vector<uint64_t> removed;
    done = one->put(piece, values_for_test(piece), removed);
    if (done.ok()) stored.push_back(piece);
  }
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, Code::kExhausted) << done.error().message;
  ASSERT_FALSE(stored.empty());
  EXPECT_TRUE(one->ready());
  expect_whole(*one, stored.back());
}

TEST_F(RedisTierTest, ARedisThatDropsWhatItLikes) {
  server.emplace(std::vector<std::string>{"--maxmemory", "4mb", "--maxmemory-policy", "volatile-lru"});
  const auto one = open();
  known(*one);
  std::vector<StoredPiece> stored;
  for (int i = 0; i < 400; ++i) stored.push_back(put(*one, 600));
  int whole = 0;
  for (const StoredPiece& piece : stored) {
    const auto got = chunk_of(*one, piece.id, 0);
    whole += got.ok() ? 1 : 0;
    EXPECT_TRUE(got.ok() || got.error().code == Code::kNotFound);
  }
  EXPECT_GT(whole, 0);
  EXPECT_LT(whole, 400) << "power: it is too small";
}

// What Redis drops by itself is forgotten by all, though nobody wants it; what is there is not.
TEST_F(RedisTierTest, WhatRedisDroppedIsForgotten) {
  const auto one = open(), two = open();
  known(*one), known(*two);
  std::vector<StoredPiece> pieces;
  for (int i = 0; i < 20; ++i) pieces.push_back(put(*one, 700));
  news(*two, [](const Tier::News& now) { return now.stored.size() == 20; });
  std::set<uint64_t> dropped;
  for (int i = 0; i < 18; ++i) {  // of some the record, of others a chunk, or the last one
    const uint64_t id = pieces[i].id;
    const std::string pattern = i % 3 == 0 ? fmt::format("*r:{:016x}", id) : fmt::format("*v:{:016x}:{}", id, i % 3);
    const std::string name = key_of(pattern);
    ASSERT_EQ(server->ask({"DEL", name}).number, 1) << pattern;
    dropped.insert(id);
  }
  Tier::News heard = news(*one, [](const Tier::News& now) { return now.removed.size() >= 18; });
  EXPECT_EQ(std::set<uint64_t>(heard.removed.begin(), heard.removed.end()), dropped);
  EXPECT_EQ(heard.errors, 0);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(one->news().removed.empty());  // all were looked at by now
  EXPECT_EQ(one->pieces(), 2);
  news(*two, [&](const Tier::News&) { return two->pieces() == 2; });
  EXPECT_EQ(server->ask({"SCARD", key_of("*:all")}).number, 2);
  for (Tier* tier : {one.get(), two.get()}) {
    for (int i = 18; i < 20; ++i) expect_whole(dynamic_cast<RedisTier&>(*tier), pieces[i]);
  }
}

// Of what is read the record is used too, or a full Redis drops it first; looking for what was dropped is no use.
TEST_F(RedisTierTest, ReadingKeepsTheRecord) {
  server.emplace(std::vector<std::string>{"--maxmemory", "1gb", "--maxmemory-policy", "volatile-lfu",
                                          "--lfu-log-factor", "0", "--lfu-decay-time", "0"});
  const auto tier = open();
  known(*tier);
  const StoredPiece read = put(*tier, 100), idle = put(*tier, 100);
  const auto uses = [&](uint64_t id) {
    const std::string name = key_of(fmt::format("*r:{:016x}", id));
    return server->ask({"OBJECT", "FREQ", name}).number;
  };
  const int64_t before = uses(read.id), before_idle = uses(idle.id);
  ASSERT_GT(before, 0);
  for (int i = 0; i < 5; ++i) {
    expect_whole(*tier, read);
    EXPECT_TRUE(tier->news().removed.empty());
  }
  EXPECT_GE(uses(read.id), before + 5);
  EXPECT_EQ(uses(idle.id), before_idle);
}

TEST_F(RedisTierTest, GoneAndBack) {
  const HashSecret secret = HashSecret::fixed(3);
  const auto one = open(server->address(), 30000, secret);
  known(*one);
  const StoredPiece piece = put(*one, 300);
  server->end();
  EXPECT_EQ(code_of(*one, piece.id), Code::kUnavailable);
  EXPECT_FALSE(one->ready());
  const StoredPiece other = piece_for_test(one->new_id(), 20);
  std::vector<uint64_t> removed;
  EXPECT_EQ(one->put(other, values_for_test(other), removed).error().code, Code::kUnavailable);
  const auto late = open(server->address(), 30000, secret);  // with a key it may start before Redis does
  EXPECT_TRUE(known(*late).empty());
  EXPECT_EQ(RedisTier::open({server->address(), {}, std::chrono::seconds(30), {}}).error().code, Code::kUnavailable);
  server->start();  // empty
  const Tier::News lost = news(*one, [&](const Tier::News&) { return one->ready(); });
  EXPECT_EQ(lost.removed, std::vector<uint64_t>{piece.id});
  news(*late, [&](const Tier::News&) { return late->ready(); });
  const StoredPiece again = put(*one, 300);
  EXPECT_EQ(news(*late, [](const Tier::News& now) { return !now.stored.empty(); }).stored[0].id, again.id);
}

TEST_F(RedisTierTest, AnEmptiedRedisGetsTheSecretAgain) {
  const auto one = open();
  known(*one);
  const std::string before = server->ask({"GET", "kvilt:secret"}).text;
  server->end();
  EXPECT_EQ(one->news().errors, 1);
  server->start();
  news(*one, [&](const Tier::News&) { return one->ready(); });
  EXPECT_EQ(server->ask({"GET", "kvilt:secret"}).text, before);
  EXPECT_EQ(before.size(), 64u);
}

TEST_F(RedisTierTest, AStalledServerHoldsNobody) {
  const auto one = open(server->address(), 50);
  known(*one);
  news(*one, [&](const Tier::News&) { return one->ready(); });
  StoredPiece piece;
  for (Status done = Error{}; !done.ok();) {  // 50 ms may be too short on a busy machine
    news(*one, [&](const Tier::News&) { return one->ready(); });
    piece = piece_for_test(one->new_id(), 300);
    std::vector<uint64_t> removed;
    done = one->put(piece, values_for_test(piece), removed);
  }
  server->stop();
  EXPECT_EQ(code_of(*one, piece.id), Code::kUnavailable);
  EXPECT_FALSE(one->ready());
  EXPECT_EQ(one->clear().error().code, Code::kUnavailable);
  server->go_on();
  news(*one, [&](const Tier::News&) { return one->ready(); });
  EXPECT_TRUE(server->keys("*:v:*").empty()) << "it was cleared when it came back, before it was listed";
  EXPECT_EQ(one->pieces(), 0);
}

TEST_F(RedisTierTest, WhateverItSaysNothingWrongIsReturned) {
  RedisProxyForTest proxy(*server);
  const HashSecret secret = HashSecret::fixed(3);
  const auto honest = open(server->address(), 30000, secret);
  known(*honest);
  for (const Mode mode :
       {Mode::kStall, Mode::kClose, Mode::kFlip, Mode::kGarbage, Mode::kTrickle, Mode::kClaimMuch, Mode::kSendMuch}) {
    SCOPED_TRACE(static_cast<int>(mode));
    proxy.set(Mode::kPass);
    const auto tier = open(proxy.address(), 300, secret);
    known(*tier);
    news(*tier, [&](const Tier::News&) { return tier->ready(); });
    const StoredPiece piece = put(*honest, 600);
    news(*tier, [&](const Tier::News&) { return tier->pieces() > 0 && chunk_of(*tier, piece.id, 1).ok(); });
    proxy.set(mode);
    EXPECT_FALSE(chunk_of(*tier, piece.id, 0).ok());
    const StoredPiece other = piece_for_test(tier->new_id(), 600);
    std::vector<uint64_t> removed;
    (void)tier->put(other, values_for_test(other), removed);
    for (int i = 0; i < 3; ++i) (void)tier->news();
    EXPECT_EQ(tier->ready(), mode == Mode::kFlip);
    proxy.set(Mode::kPass);
    news(*tier, [&](const Tier::News&) { return tier->ready(); });
    honest->remove(piece.id);
  }
}

TEST_F(RedisTierTest, ClearingIsForAll) {
  const auto one = open(), two = open();
  known(*one);
  known(*two);
  for (int i = 0; i < 5; ++i) put(i % 2 == 0 ? *one : *two, 300);
  const auto other = open();
  (void)other->known(maker_of(8));
  StoredPiece theirs = piece_for_test(other->new_id(), 30);
  theirs.maker = maker_of(8);
  std::vector<uint64_t> removed;
  ASSERT_TRUE(other->put(theirs, values_for_test(theirs), removed).ok());
  ASSERT_TRUE(one->clear().ok());
  EXPECT_EQ(one->pieces(), 0);
  news(*two, [&](const Tier::News&) { return two->pieces() == 0; });
  EXPECT_TRUE(known(*open()).empty());
  expect_whole(*other, theirs);
}

TEST_F(RedisTierTest, Passwords) {
  server.emplace(std::vector<std::string>{"--requirepass", "hidden"});
  RedisAddress address = server->address();
  for (const char* password : {"", "wrong"}) {
    address.password = password;
    const auto out = RedisTier::open({address, {}, std::chrono::seconds(30), {}});
    ASSERT_FALSE(out.ok());
    EXPECT_EQ(out.error().message.find("hidden"), std::string::npos);
    EXPECT_EQ(out.error().message.find("wrong "), std::string::npos);
  }
  address.password = "hidden";
  const auto one = open(address);
  known(*one);
  expect_whole(*one, put(*one, 10));
  address.user = "default";
  address.db = 3;
  EXPECT_TRUE(known(*open(address)).empty()) << "another database";
}

// A server that may not read leaves what is there to the others.
TEST_F(RedisTierTest, WhatRedisRefusesIsNotRemoved) {
  const HashSecret secret = HashSecret::fixed(3);
  const auto one = open(server->address(), 30000, secret);
  known(*one);
  const StoredPiece piece = put(*one, 300);
  if (server->ask({"ACL", "SETUSER", "blind", "on", ">word", "~*", "+@all", "-getrange"}).failed())
    GTEST_SKIP() << "this Redis has no ACL";
  RedisAddress address = server->address();
  address.user = "blind";
  address.password = "word";
  const auto blind = open(address, 30000, secret);
  EXPECT_TRUE(known(*blind).empty());
  EXPECT_GT(blind->news().errors, 0);
  EXPECT_FALSE(blind->ready());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(one->news().removed.empty());
  expect_whole(*one, piece);
  EXPECT_EQ(known(*open(server->address(), 30000, secret)).size(), 1u);
}

// One News never says that a piece came and went: its readers take what went first.
TEST_F(RedisTierTest, WhatWentInTheMeantimeIsNoNews) {
  const auto one = open(), two = open();
  known(*one), known(*two);
  const StoredPiece piece = put(*one, 300);
  ASSERT_EQ(server->ask({"DEL", key_of("*:v:*:1")}).number, 1);
  Tier::News all;  // the line is read, and that a chunk is gone is found right then, or by a later call
  while (all.removed.empty()) {
    Tier::News some = two->news();
    EXPECT_TRUE(some.stored.empty() || some.removed.empty()) << "not both";
    all.removed.insert(all.removed.end(), some.removed.begin(), some.removed.end());
  }
  EXPECT_EQ(all.removed, std::vector<uint64_t>{piece.id});
}

// A large set is listed by many calls, of which none takes long; what is put meanwhile is not taken to be gone.
TEST_F(RedisTierTest, ALongListComesInParts) {
  constexpr int kPieces = 100;
  const auto one = open();
  known(*one);
  for (int i = 0; i < kPieces; ++i) put(*one, 10);
  RedisOptions options{.address = server->address(), .secret = {}, .timeout = std::chrono::seconds(30)};
  options.list_for = options.known_for = std::chrono::milliseconds(0);
  const auto slow = std::move(RedisTier::open(options)).value();
  std::vector<StoredPiece> found = known(*slow);
  EXPECT_LT(found.size(), size_t{kPieces}) << "not all at once";
  EXPECT_FALSE(slow->ready());
  const StoredPiece own = put(*slow, 10);
  while (!slow->ready()) {
    const Tier::News more = slow->news();
    EXPECT_TRUE(more.removed.empty());
    EXPECT_EQ(more.errors, 0);
    found.insert(found.end(), more.stored.begin(), more.stored.end());
  }
  EXPECT_EQ(found.size(), size_t{kPieces});
  EXPECT_TRUE(std::ranges::is_sorted(found, {}, &StoredPiece::id)) << "what is continued comes first";
  expect_whole(*slow, own);
  const Tier::News heard = news(*one, [](const Tier::News& now) { return now.stored.size() == 1; });
  EXPECT_EQ(heard.stored[0].id, own.id);
}

// A record that is gone is removed, and with that the connection may end; the listing is begun anew behind the next one.
TEST_F(RedisTierTest, AListingEndsWithItsConnection) {
  constexpr int kPieces = 40;
  const auto one = open();
  known(*one);
  std::vector<StoredPiece> pieces;
  for (int i = 0; i < kPieces; ++i) pieces.push_back(put(*one, 10));
  RedisProxyForTest proxy(*server);
  proxy.close_at("UNLINK");
  for (const int gone : {kPieces - 1, kPieces / 2}) {
    ASSERT_EQ(server->ask({"DEL", key_of(fmt::format("*:r:{:016x}", pieces[gone].id))}).number, 1);
    const auto two = open(proxy.address());
    EXPECT_LT(known(*two).size(), size_t{kPieces});
    EXPECT_FALSE(two->ready());
  }
  const auto three = open();
  EXPECT_EQ(known(*three).size(), size_t{kPieces - 2}) << "power: they were all there";
  EXPECT_TRUE(three->ready());
}

// What another puts while a long listing goes on goes with a clear, too.
TEST_F(RedisTierTest, ClearingListsAnew) {
  const auto one = open();
  known(*one);
  for (int i = 0; i < 40; ++i) put(*one, 10);
  RedisOptions options{.address = server->address(), .secret = {}, .timeout = std::chrono::seconds(30)};
  options.list_for = std::chrono::milliseconds(0);
  options.known_for = std::chrono::milliseconds(0);
  const auto slow = std::move(RedisTier::open(options)).value();
  known(*slow);
  ASSERT_FALSE(slow->ready()) << "power: it is in the middle";
  put(*one, 10);
  (void)slow->clear();
  for (int i = 0; i < 1000 && !slow->ready(); ++i) (void)slow->news();
  EXPECT_TRUE(slow->ready());
  EXPECT_EQ(slow->pieces(), 0);
  EXPECT_TRUE(server->keys("*:r:*").empty()) << "the new one as well";
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

// Replies of a protocol that nobody asked for are no replies, with any hiredis.
TEST_F(RedisTierTest, RepliesOfRespThreeAreRefused) {
  RedisProxyForTest proxy(*server);
  for (const std::string reply : {",1.5\r\n", "#t\r\n", "_\r\n"}) {
    const auto connection = RedisConnection::open(proxy.address(), std::chrono::seconds(30));
    ASSERT_TRUE(connection.ok());
    proxy.say(reply);
    const RedisCommand ping{"PING"};
    const auto replies = (*connection)->ask({&ping, 1}, std::chrono::seconds(30));
    EXPECT_TRUE(!replies.ok() || (*replies)[0].kind == RedisReply::Kind::kNil) << reply;
  }
}

}  // namespace
}  // namespace kvilt

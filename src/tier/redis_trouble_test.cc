// A Redis that is full, gone, emptied, stalled, that lies or refuses: each is an error in time, and nothing wrong is returned.
#include <gtest/gtest.h>

#include <set>

#include "tier/redis_tier_for_test.h"

namespace kvilt {
namespace {

using Mode = RedisProxyForTest::Mode;

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

// One of several that stays away counts as empty, and is listed when it is back. One that is alone does not: nobody else
// could hold what it has.
TEST_F(RedisTierTest, WhoStaysAwayCountsAsEmpty) {
  RedisOptions options{.address = server->address(), .secret = {}, .timeout = std::chrono::seconds(30)};
  const auto alone = std::move(RedisTier::open(options)).value();
  options.patience = std::chrono::milliseconds(300);
  const auto tier = std::move(RedisTier::open(options)).value();
  known(*alone), known(*tier);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(put(*tier, 10).id);
  news(*alone, [](const Tier::News& now) { return now.stored.size() == 20; });
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(tier->news().empty());
  server->ask({"SAVE"});
  server->end();
  const Tier::News lost = news(*tier, [](const Tier::News& now) { return !now.removed.empty(); });
  EXPECT_EQ(std::set<uint64_t>(lost.removed.begin(), lost.removed.end()), std::set<uint64_t>(ids.begin(), ids.end()));
  EXPECT_EQ(tier->pieces(), 0);
  EXPECT_EQ(code_of(*tier, ids[0]), Code::kNotFound);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(alone->news().removed.empty());
  EXPECT_EQ(alone->pieces(), 20);
  server->start();
  const Tier::News back = news(*tier, [&](const Tier::News&) { return tier->ready(); });
  EXPECT_EQ(back.stored.size(), 20u) << "it is listed again";
  EXPECT_TRUE(back.removed.empty());
  const Tier::News again = news(*alone, [&](const Tier::News&) { return alone->ready(); });
  EXPECT_TRUE(again.stored.empty() && again.removed.empty()) << "power: this one never forgot them";
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

}  // namespace
}  // namespace kvilt

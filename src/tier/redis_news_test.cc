// What comes and goes in a Redis is heard by all who share it: the list of what is there, what it dropped, clearing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tier/redis_tier_for_test.h"

namespace kvilt {
namespace {

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

// Of more ids than may be listed some are known, and the rest of what it does goes on; it is one error.
TEST_F(RedisTierTest, ALargerSetThanMayBeListedIsKnownInPart) {
  constexpr size_t kPieces = 400, kMost = 50;
  const auto one = open();
  known(*one);
  std::vector<StoredPiece> pieces;
  for (size_t i = 0; i < kPieces; ++i) pieces.push_back(put(*one, 10));
  RedisOptions options{.address = server->address(), .secret = {}, .timeout = std::chrono::seconds(30)};
  options.most_ids = kMost;
  const auto two = std::move(RedisTier::open(options)).value();
  const std::vector<StoredPiece> found = known(*two);
  EXPECT_GT(found.size(), kMost);
  EXPECT_LT(found.size(), kPieces) << "power";
  EXPECT_TRUE(two->ready());
  for (const StoredPiece& piece : found) expect_whole(*two, piece);
  EXPECT_EQ(two->news().errors, 1);

  const StoredPiece own = put(*two, 10), others = put(*one, 10);
  EXPECT_EQ(news(*two, [](const Tier::News& now) { return !now.stored.empty(); }).stored[0].id, others.id);
  one->remove(found[0].id);
  EXPECT_EQ(news(*two, [](const Tier::News& now) { return !now.removed.empty(); }).removed[0], found[0].id);

  server->ask({"CLIENT", "KILL", "TYPE", "normal"});
  EXPECT_EQ(two->news().errors, 1) << "the lost connection";
  const Tier::News again = news(*two, [&](const Tier::News&) { return two->ready(); });
  EXPECT_TRUE(again.removed.empty()) << "what was not listed may well be there";
  EXPECT_EQ(again.errors, 0) << "it was said";
  expect_whole(*two, own);
  expect_whole(*two, others);

  ASSERT_TRUE(two->clear().ok());
  while (two->pieces() > 0 || !server->keys("*:r:*").empty()) EXPECT_EQ(two->news().errors, 0);
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

TEST_F(RedisTierTest, ClearingIsForAll) {
  const auto one = open(), two = open();
  known(*one);
  known(*two);
  for (int i = 0; i < 5; ++i) put(i % 2 == 0 ? *one : *two, 300);
  const auto other = open();
  (void)other->known(maker_of(8), kTokenBytes);
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

}  // namespace
}  // namespace kvilt

// DiskCache's way back, chunk by chunk.
#include <thread>

#include "engine/loader_for_test.h"

namespace kvilt {
namespace {

TEST_F(LoaderTest, APartIsFoundWhenItsLastChunkIsThere) {
  const auto wanted = fetch();
  ASSERT_TRUE(wanted);
  tier->give(2);
  ASSERT_TRUE(run_one() && run_one());
  EXPECT_EQ(prefix(prompt), 0) << "two of three";
  EXPECT_GT(used(), 0) << "power: what came is in pages";
  run_until_done(*wanted);
  EXPECT_EQ(prefix(prompt), kTokens);
  EXPECT_EQ(used(), 0);
  expect_as_stored(0);
}

TEST_F(LoaderTest, WhatIsOnItsWayGivesWay) {
  const auto wanted = fetch();
  EXPECT_FALSE(store->give_way()) << "nothing came yet";
  tier->give(1);
  ASSERT_TRUE(run_one());
  ASSERT_GT(used(), 0);
  EXPECT_FALSE(cache->make_room(cache->store().pages())) << "power: somebody lacks its pages";
  EXPECT_TRUE(store->give_way());
  EXPECT_FALSE(store->give_way());
  EXPECT_EQ(used(), 0);
  EXPECT_TRUE(cache->make_room(cache->store().pages()));
  run_until_done(*wanted);
  EXPECT_EQ(prefix(prompt), 0);
  EXPECT_LE(tier->reads(), 2) << "the one that was being read is the last";
}

TEST_F(LoaderTest, ADamagedChunkGivesThePagesBack) {
  tier->damage(2);
  const auto wanted = fetch();
  run_until_done(*wanted);
  EXPECT_EQ(prefix(prompt), 0);
  EXPECT_EQ(used(), 0);
  EXPECT_EQ(store->stats().errors, 1u);
  EXPECT_FALSE(fetch()) << "it is forgotten";
}

TEST_F(LoaderTest, ClearedOnItsWayItIsNotAdopted) {
  const auto wanted = fetch();
  tier->give(1);
  ASSERT_TRUE(run_one());
  store->clear();
  EXPECT_EQ(used(), 0);
  run_until_done(*wanted);
  EXPECT_EQ(prefix(prompt), 0);
}

// The slots of a chunk that was not copied hold what their pages held before.
TEST_F(LoaderTest, NothingIsAdoptedBehindAGap) {
  ask(text(5, 700));  // the pool is full of it
  bool ends = true;
  cache->on_evict([&](SegmentId) {
    if (std::exchange(ends, false)) throw std::bad_alloc();
  });
  const auto wanted = fetch();
  tier->give(3);
  EXPECT_FALSE(run_one()) << "power: memory ended while the first chunk was copied";
  while (!wanted->done) run_one();
  EXPECT_EQ(prefix(prompt), 0);
  EXPECT_EQ(used(), 0);
  const auto again = fetch();
  ASSERT_TRUE(again);
  run_until_done(*again);
  EXPECT_EQ(prefix(prompt), kTokens) << "power: with memory it is";
}

// The engine thread cannot be told for want of memory. Whoever waits hears of the end all the same.
TEST_F(LoaderTest, WhereMemoryEndsItIsSaidAgain) {
  posts_that_fail = 4;  // a chunk, and then the end of its part
  const auto wanted = fetch();
  ASSERT_TRUE(wanted);
  run_until_done(*wanted);
  EXPECT_EQ(posts_that_fail, 0);
  EXPECT_FALSE(store->busy());
  EXPECT_EQ(prefix(prompt), 0) << "power: a chunk was lost";
  EXPECT_EQ(used(), 0);
  const auto again = fetch();
  ASSERT_TRUE(again);
  run_until_done(*again);
  EXPECT_EQ(prefix(prompt), kTokens);
}

TEST_F(LoaderTest, WhatMemoryGotMeanwhileIsNotKeptTwice) {
  const auto wanted = fetch();
  tier->give(2);
  ASSERT_TRUE(run_one() && run_one());
  ask(text(1, 160), {}, false);
  ASSERT_EQ(prefix(prompt), 160);
  run_until_done(*wanted);
  EXPECT_EQ(prefix(prompt), kTokens);
  EXPECT_EQ(store->stats().loaded_tokens, 440u);
  EXPECT_EQ(used(), 0);
}

TEST_F(LoaderTest, WhatTakesLongerThanComputingIsNotRead) {
  EXPECT_TRUE(fetch()) << "before any prefill was timed, reading is tried";
  begin();
  store->computed(1000, 1e-6);  // a nanosecond a token: no disk reads its bytes in that
  EXPECT_FALSE(fetch());
  EXPECT_EQ(store->stats().refused, 1u);
  EXPECT_EQ(store->stats().loads, 0u);
  store->computed(1000, 1000);
  const auto wanted = fetch();
  ASSERT_TRUE(wanted) << "power: computing became slow";
  EXPECT_EQ(store->stats().refused, 1u);
  run_until_done(*wanted);
  EXPECT_EQ(prefix(prompt), kTokens);
}

// Nobody waits for a shared tier longer than for computing, or its patience; it computes, and what comes later is
// neither waited for nor an error.
TEST_F(LoaderTest, WhatComesTooLateIsGivenUp) {
  begin(std::chrono::hours(1));
  auto wanted = fetch();
  ASSERT_TRUE(wanted);
  EXPECT_TRUE(wanted->remote);
  EXPECT_TRUE(store->patience_ends().has_value());
  EXPECT_FALSE(store->give_up_late());
  EXPECT_FALSE(wanted->done) << "power: with patience it is waited for";
  run_until_done(*wanted);
  EXPECT_FALSE(wanted->late);

  cache->clear();
  begin(std::chrono::milliseconds(1));
  wanted = fetch();
  ASSERT_TRUE(wanted);
  while (!store->give_up_late()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(wanted->done && wanted->late);
  EXPECT_EQ(store->stats().late, 1u);
  EXPECT_FALSE(store->patience_ends().has_value());
  EXPECT_FALSE(store->give_up_late()) << "once";
  EXPECT_EQ(prefix(prompt), 0);
  tier->give(3);
  while (store->busy()) run_one();
  EXPECT_LE(tier->reads(), 1) << "the one that was being read is the last";
  EXPECT_LE(prefix(prompt), StoredPiece::kChunkTokens);
  EXPECT_EQ(used(), 0);
  EXPECT_EQ(store->stats().errors, 0u);
}

// A disk that hangs: who waits for it computes, nobody asks it until it goes on, and what it gives then is dropped.
TEST_F(LoaderTest, ADiskThatHangsIsNotWaitedFor) {
  store->disk_patience(std::chrono::hours(1));
  auto wanted = fetch();
  ASSERT_TRUE(wanted);
  EXPECT_TRUE(store->patience_ends().has_value());
  EXPECT_FALSE(store->give_up_late());
  run_until_done(*wanted);
  EXPECT_FALSE(wanted->late) << "power: with patience it is waited for";
  EXPECT_EQ(prefix(prompt), kTokens);

  cache->clear();
  store->disk_patience(std::chrono::milliseconds(1));
  wanted = fetch();
  ASSERT_TRUE(wanted);
  tier->give(1);
  ASSERT_TRUE(run_one());
  while (!store->give_up_late()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(wanted->done && wanted->late);
  EXPECT_EQ(store->stats().late, 1u);
  EXPECT_EQ(used(), 0) << "its pages are free, though it has not come back";
  EXPECT_FALSE(store->patience_ends().has_value());
  EXPECT_FALSE(store->give_up_late()) << "once";
  EXPECT_FALSE(fetch()) << "nobody else waits for it";
  tier->give(3);
  while (store->busy()) run_one();
  EXPECT_LE(tier->reads(), 5) << "the one that was being read is the last";
  EXPECT_EQ(prefix(prompt), 0);
  EXPECT_EQ(used(), 0);
  EXPECT_EQ(store->stats().errors, 0u);
  store->disk_patience(std::chrono::hours(1));
  wanted = fetch();
  ASSERT_TRUE(wanted) << "it goes on, and is asked again";
  run_until_done(*wanted);
  EXPECT_EQ(prefix(prompt), kTokens);

  cache->clear();
  store->disk_patience(std::chrono::milliseconds(1));
  wanted = fetch();
  ASSERT_TRUE(wanted);
  while (!store->give_up_late()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  tier->give(1);  // the first chunk, of which nobody has pages yet
  while (store->busy()) run_one();
  EXPECT_EQ(prefix(prompt), 0);
}

// A slow one is waited for, as long as something comes.
TEST_F(LoaderTest, ADiskThatIsSlowIsWaitedFor) {
  constexpr auto kPatience = std::chrono::milliseconds(300);
  store->disk_patience(kPatience);
  const auto wanted = fetch();
  ASSERT_TRUE(wanted);
  const auto begin = Clock::now();
  std::optional<Clock::time_point> ends = store->patience_ends();
  for (int chunk = 0; chunk < 2; ++chunk) {
    while (Clock::now() < begin + (chunk + 1) * kPatience / 3) std::this_thread::yield();
    tier->give(1);
    ASSERT_TRUE(run_one());
    ASSERT_TRUE(store->patience_ends().has_value());
    EXPECT_GT(*store->patience_ends(), *ends) << "it begins anew with each chunk";
    ends = store->patience_ends();
  }
  run_until_done(*wanted);
}

// A slow one no longer than computing takes, however regularly something comes.
TEST_F(LoaderTest, ADiskThatIsSlowerThanComputingIsGivenUp) {
  for (const bool known : {false, true}) {
    cache->clear();
    begin();
    store->disk_patience(std::chrono::milliseconds(1));
    if (known) store->computed(kTokens, 0.05);
    const auto wanted = fetch();
    ASSERT_TRUE(wanted) << "nobody knows how slow it is";
    store->disk_patience(std::chrono::hours(1));
    tier->give(1);
    ASSERT_TRUE(run_one()) << "it does not hang";
    const auto start = Clock::now();
    while (!store->give_up_late() && (known || Clock::now() < start + std::chrono::milliseconds(150)))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(wanted->late, known) << "power: before any prefill was timed it is waited for";
    tier->give(3);
    while (store->busy()) run_one();
    EXPECT_EQ(prefix(prompt), known ? 0 : kTokens);
  }
}

// Whether the policy would use what is read is asked of a layout whose pieces are measured one by one.
TEST_F(LoaderTest, ThePolicyHearsOfEachPieceByItself) {
  Tokens rows;
  for (int32_t name = 0; name < 10; ++name) rows = join(rows, Tokens{1, 2, 3, 100 + name, 4});
  ask(join(text(5, 10), text(3, 40)));
  ask(join(text(6, 10), rows));
  const Tokens asked = join(text(7, 9), join(text(3, 40), rows, text(1, kTokens)), text(8, 10));
  const ContentCache::Wanted wanted{.look_alikes = true};
  const ContentCache::Found found = cache->find(asked, {}, domains, wanted);
  ASSERT_EQ(found.layout.pieces, (Runs{{9, 49}, {49, 99}})) << "they touch each other, and what is read";
  PromptLayout heard;
  const auto uses = [&](const PromptLayout& layout) {
    heard = layout;
    return false;
  };
  EXPECT_FALSE(store->fetch({asked, {}, domains, wanted, rope, uses, 0}, found));
  EXPECT_EQ(heard.pieces, (Runs{{9, 49}, {49, 99}, {99, 99 + kTokens}}));
  ASSERT_EQ(heard.piece_look_alikes.size(), 3u);
  EXPECT_NEAR(heard.piece_look_alikes[1], 10.0 / 47, 1e-9);
  EXPECT_LT(heard.look_alikes, 0.03);
}

// Memory answers, and the tier hears that the piece is used: once, however many ask.
TEST_F(LoaderTest, WhatMemoryHoldsIsUsedInTheTierToo) {
  ask(prompt);
  EXPECT_FALSE(fetch());
  EXPECT_FALSE(fetch());
  EXPECT_FALSE(fetch(text(9, kTokens)));  // another prompt uses nothing
  SlowTier& asked = *tier;
  store->finish();
  EXPECT_EQ(asked.touched(), 1);
}

// Others removed much, and this too: under its id the tier may have other bytes by now.
TEST_F(LoaderTest, WhatIsGoneAndNotForgottenYetIsNotRead) {
  const auto wait_for = [this](size_t tasks) {
    std::unique_lock lock(mutex);
    came.wait(lock, [&] { return inbox.size() >= tasks; });
  };
  for (const bool gone : {false, true}) {
    Tier::News news;
    for (uint64_t id = 1; id < kPiece; ++id) news.removed.push_back(id);
    if (gone) news.removed.push_back(kPiece);
    begin(std::chrono::hours(1), news);
    wait_for(1);  // it was told, which nobody heard yet
    const auto wanted = fetch();
    ASSERT_TRUE(wanted);
    ASSERT_TRUE(run_one());
    EXPECT_EQ(fetch() == wanted, !gone) << "who asks now";
    tier->give(3);
    wait_for(6);  // the next part of what is gone; three chunks, that these are all, and the end
    while (!wanted->done) run_one();
    EXPECT_EQ(store->stats().tokens, kTokens) << "power: it is not forgotten yet";
    EXPECT_EQ(prefix(prompt), gone ? 0 : kTokens);
    cache->clear();
  }
}

TEST_F(LoaderTest, WhatNobodyWaitsForIsNotReadOn) {
  auto wanted = fetch();
  tier->give(1);
  ASSERT_TRUE(run_one());
  std::weak_ptr<const Fetch> watched = wanted;
  wanted.reset();
  tier->give(3);
  while (!watched.expired()) run_one();
  EXPECT_LE(tier->reads(), 2);
  EXPECT_EQ(used(), 0);
}

}  // namespace
}  // namespace kvilt

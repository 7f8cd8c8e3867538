// DiskCache's way back, layer by layer: what is there is told, nothing is cached before all of it is, and its pages are
// given back once, by whoever ends it.
#include "engine/loader_for_test.h"

namespace kvilt {
namespace {

class LayerLoaderTest : public LoaderTest {
 protected:
  LayerLoaderTest() : LoaderTest(kShape.L) { store->layers_at_once(1); }

  // Of a segment over the piece, layer by layer, how many are as stored.
  int layers_as_stored(const KvSegment& kv) {
    int layers = 0;
    for (; layers < kShape.L; ++layers) {
      for (int32_t i = 0; i < 3; ++i) {
        std::vector<std::byte> got(tier->chunk(i).size());
        copy_rows_out(cache->store(), kv, chunk_run(i, kTokens), got);
        const size_t size = got.size() / kShape.L, at = static_cast<size_t>(layers) * size;
        if (!std::ranges::equal(std::span(got).subspan(at, size), tier->chunk(i).subspan(at, size))) return layers;
      }
    }
    return layers;
  }
  void run_to_the_end(const Fetch& fetch) {
    tier->give(100);
    while (!fetch.done) run_one();
  }
};

TEST_F(LayerLoaderTest, LayersComeInOrderAndThenItIsCached) {
  {  // the pool may have another test's memory, which held the same values
    const auto all = table_for_rows(cache->store(), rope, {0, kTokens + 200});
    const std::vector<std::byte> other(static_cast<size_t>(kTokens + 200) * kShape.token_bytes(), std::byte{9});
    copy_rows_in(*all, {0, kTokens + 200}, other, {0, kTokens + 200});
  }
  const auto wanted = fetch();
  ASSERT_TRUE(wanted);
  ASSERT_EQ(wanted->coming.parts.size(), 1u);
  EXPECT_EQ(wanted->coming.layers, 0);
  EXPECT_EQ(wanted->coming.prompt, text(1, kTokens));
  EXPECT_GT(used(), 0) << "its pages are there";
  const std::shared_ptr<const KvSegment> kv = wanted->coming.parts[0];
  for (int layers = 1; layers < kShape.L; ++layers) {
    tier->give(3);
    ASSERT_TRUE(run_one());
    EXPECT_EQ(wanted->coming.layers, layers);
    EXPECT_EQ(layers_as_stored(*kv), layers);
    EXPECT_EQ(prefix(prompt), 0) << "nobody else sees it";
  }
  run_to_the_end(*wanted);
  EXPECT_FALSE(wanted->coming.broken);
  EXPECT_TRUE(wanted->coming.parts.empty());
  EXPECT_EQ(prefix(prompt), kTokens);
  EXPECT_EQ(used(), 0);
  expect_as_stored(0);
  EXPECT_EQ(store->stats().loaded_tokens, static_cast<uint64_t>(kTokens));
}

TEST_F(LayerLoaderTest, WhatNobodyRunsOnGivesWay) {
  const auto wanted = fetch();
  ASSERT_EQ(wanted->coming.parts.size(), 1u);
  {
    const Placement placed(wanted->coming.parts[0], 0, kTokens, 0);
    EXPECT_FALSE(store->give_way()) << "its pages would not be free";
  }
  EXPECT_FALSE(cache->make_room(cache->store().pages())) << "power: somebody lacks its pages";
  EXPECT_TRUE(store->give_way());
  EXPECT_FALSE(store->give_way());
  EXPECT_TRUE(wanted->coming.broken);
  EXPECT_EQ(used(), 0);
  EXPECT_TRUE(cache->make_room(cache->store().pages()));
  run_to_the_end(*wanted);
  EXPECT_EQ(prefix(prompt), 0);
  EXPECT_LE(tier->reads(), 1);
  EXPECT_TRUE(fetch()) << "it is still stored";
}

TEST_F(LayerLoaderTest, DamageOfTheLastLayerEndsIt) {
  tier->damage(2);
  const auto wanted = fetch();
  tier->give(3);
  ASSERT_TRUE(run_one());
  EXPECT_EQ(wanted->coming.layers, 1) << "power: its first layers are right";
  run_to_the_end(*wanted);
  EXPECT_TRUE(wanted->coming.broken);
  EXPECT_EQ(prefix(prompt), 0);
  EXPECT_EQ(used(), 0);
  EXPECT_EQ(store->stats().errors, 1u);
  EXPECT_FALSE(fetch()) << "it is forgotten";
}

TEST_F(LayerLoaderTest, ClearedOnItsWayItIsNotAdopted) {
  const auto wanted = fetch();
  tier->give(3);
  ASSERT_TRUE(run_one());
  {
    const Placement placed(wanted->coming.parts[0], 0, kTokens, 0);
    store->clear();
    EXPECT_TRUE(wanted->coming.broken);
    EXPECT_GT(used(), 0) << "power: somebody runs on it";
  }
  EXPECT_EQ(used(), 0);
  run_to_the_end(*wanted);
  EXPECT_EQ(prefix(prompt), 0);
}

TEST_F(LayerLoaderTest, WhatNobodyWaitsForIsNotReadOn) {
  auto wanted = fetch();
  tier->give(3);
  ASSERT_TRUE(run_one());
  std::weak_ptr<const Fetch> watched = wanted;
  wanted.reset();
  tier->give(100);
  while (!watched.expired()) run_one();
  EXPECT_LE(tier->reads(), 5);
  EXPECT_EQ(used(), 0);
}

TEST_F(LayerLoaderTest, ADiskThatHangsIsNotWaitedFor) {
  store->disk_patience(std::chrono::milliseconds(1));
  const auto wanted = fetch();
  ASSERT_EQ(wanted->coming.parts.size(), 1u);
  tier->give(3);
  ASSERT_TRUE(run_one());
  EXPECT_EQ(wanted->coming.layers, 1);
  EXPECT_GT(used(), 0) << "power";
  while (!store->give_up_late()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(wanted->coming.broken && wanted->late) << "whoever runs on it starts again";
  EXPECT_EQ(store->stats().late, 1u);
  EXPECT_EQ(used(), 0);
  EXPECT_FALSE(fetch());
  const auto of_others = table_for_rows(cache->store(), rope, {0, kTokens});  // in pages that it had
  const std::vector<std::byte> theirs(static_cast<size_t>(kTokens) * kShape.token_bytes(), std::byte{7});
  copy_rows_in(*of_others, {0, kTokens}, theirs, {0, kTokens});
  tier->give(100);
  while (store->busy()) run_one();
  std::vector<std::byte> after(theirs.size());
  copy_rows_out(cache->store(), *of_others->publish({0, kTokens}), {0, kTokens}, after);
  EXPECT_EQ(after, theirs) << "the late block was dropped";
  EXPECT_EQ(prefix(prompt), 0);
}

// The server stops: what is read belongs to nobody, and its pages go with the store.
TEST_F(LayerLoaderTest, FinishedWhileItIsRead) {
  auto wanted = fetch();
  tier->give(3);
  ASSERT_TRUE(run_one());
  EXPECT_GT(used(), 0) << "power";
  wanted.reset();
  begin();  // ends the one before
  EXPECT_EQ(used(), 0);
}

TEST_F(LayerLoaderTest, ChunkByChunkWhereMuchIsToCompute) {
  const auto many = fetch(join(text(1, kTokens), text(2, 600)));
  ASSERT_TRUE(many);
  EXPECT_TRUE(many->coming.parts.empty());
  EXPECT_EQ(used(), 0) << "it takes pages when something is there";
  run_to_the_end(*many);
  EXPECT_EQ(prefix(prompt), kTokens);
}

TEST_F(LayerLoaderTest, ChunkByChunkWhereItIsAskedFor) {
  store->layers_at_once(0);
  const auto wanted = fetch();
  EXPECT_TRUE(wanted->coming.parts.empty());
  run_to_the_end(*wanted);
  EXPECT_EQ(prefix(prompt), kTokens);
}

}  // namespace
}  // namespace kvilt

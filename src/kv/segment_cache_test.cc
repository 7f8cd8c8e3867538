// Cached segments as recipes: what they place, which extents they are in, what they lose with one.
#include "kv/segment_cache.h"

#include <gtest/gtest.h>

#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

class SegmentCacheTest : public testing::Test {
 protected:
  SegmentCacheTest() : store(PageStore::create(kShape, 4000 * kShape.page_bytes()).value()) {}

  std::unique_ptr<PageTable> table_with(const Runs& own) {
    auto table = std::make_unique<PageTable>(store, rope);
    table->add(std::vector<Runs>{own}, std::vector<uint16_t>(kShape.L, 0));
    return table;
  }
  std::shared_ptr<const KvSegment> kv(int32_t begin, int32_t end) {
    return table_with({{begin, end}})->publish({begin, end});
  }
  // Caches positions [pos, pos + count) of a request.
  SegmentId add(int32_t pos, int32_t count, bool chain = false) {
    const SegmentId id = cache.next_id();
    cache.insert({id, pos, count, chain, {{kv(pos, pos + count), 0, count, pos}}});
    return id;
  }

  const RopeConfig rope = small_rope();
  PageStore store;
  SegmentCache cache;
};

TEST_F(SegmentCacheTest, KeepsWhatWasInsertedById) {
  EXPECT_TRUE(cache.empty());
  const SegmentId one = add(0, 10), two = add(5, 20), chain = add(0, 40, true);
  ASSERT_NE(cache.find(two), nullptr);
  EXPECT_EQ(cache.find(two)->count, 20);
  EXPECT_EQ(cache.find(99), nullptr);
  EXPECT_EQ(cache.segments(), 3);
  EXPECT_EQ(cache.tokens(), 30) << "a chain's tokens are others' as well";
  cache.erase(one);
  cache.erase(one);
  EXPECT_EQ(cache.find(one), nullptr);
  EXPECT_EQ(cache.tokens(), 20);
  cache.erase(two), cache.erase(chain);
  EXPECT_TRUE(cache.empty());
  EXPECT_EQ(store.free_pages(), store.pages());
}

TEST_F(SegmentCacheTest, WhatIsErasedUnderOneNameStaysUnderTheOther) {
  const SegmentId own = add(0, 30), view = cache.next_id();
  cache.insert({view, 5, 20, false, cache.find(own)->within(5, 20), 0, own});
  EXPECT_EQ(cache.tokens(), 30) << "a view has no tokens of its own";
  EXPECT_EQ(std::pair(cache.view_tokens(), cache.oldest_view()), std::pair(int64_t{20}, view));
  const int64_t used = store.pages() - store.free_pages();
  cache.erase(own);
  ASSERT_NE(cache.find(view), nullptr);
  EXPECT_LE(store.pages() - store.free_pages(), used);
  EXPECT_GT(store.pages() - store.free_pages(), 0) << "its KV stays";
  std::vector<Placement> placed;
  cache.find(view)->place(0, 20, 7, placed);
  ASSERT_EQ(placed.size(), 1u);
  EXPECT_EQ(std::pair(placed[0].pos, placed[0].count), std::pair(7, 20));
  placed.clear();
  cache.erase(view);
  EXPECT_EQ(cache.tokens(), 0);
  EXPECT_EQ(std::pair(cache.view_tokens(), cache.oldest_view()), std::pair(int64_t{0}, SegmentId{0}));
  EXPECT_EQ(store.free_pages(), store.pages()) << "power check: nobody else has it";
}

TEST_F(SegmentCacheTest, ChainsAreInTheOrderOfTheirUse) {
  const SegmentId one = add(0, 10, true), two = add(0, 20, true);
  add(0, 40);
  EXPECT_EQ(std::pair(cache.chain_tokens(), cache.oldest_chain()), std::pair(int64_t{30}, one));
  cache.renew(one);
  EXPECT_EQ(cache.oldest_chain(), two);
  cache.truncate(two, 5);
  EXPECT_EQ(std::pair(cache.chain_tokens(), cache.oldest_chain()), std::pair(int64_t{15}, two)) << "no use";
  cache.erase(two);
  EXPECT_EQ(std::pair(cache.chain_tokens(), cache.oldest_chain()), std::pair(int64_t{10}, one));
  cache.erase(one);
  EXPECT_EQ(std::pair(cache.chain_tokens(), cache.oldest_chain()), std::pair(int64_t{0}, SegmentId{0}));
}

TEST_F(SegmentCacheTest, PlacesThePartsOfARange) {
  const auto first = kv(0, 30), second = kv(100, 130);
  const SegmentId id = cache.next_id();
  cache.insert({id, 50, 60, true, {{first, 0, 30, 50}, {second, 5, 20, 85}}});  // positions 80 to 84 are nobody's
  std::vector<Placement> placed;
  cache.find(id)->place(20, 30, 7, placed);  // positions 70 to 99, now at 7
  ASSERT_EQ(placed.size(), 2u);
  EXPECT_EQ(placed[0].segment, first);
  EXPECT_EQ(std::tuple(placed[0].offset, placed[0].count, placed[0].pos), std::tuple(20, 10, 7));
  EXPECT_EQ(placed[1].segment, second);
  EXPECT_EQ(std::tuple(placed[1].offset, placed[1].count, placed[1].pos), std::tuple(5, 15, 22));
  placed.clear();
  cache.find(id)->place(30, 5, 0, placed);
  EXPECT_TRUE(placed.empty()) << "power: the gap";
}

// A view is what a table reads: its own rows where they are whole, else what it placed with its own rows on top.
TEST_F(SegmentCacheTest, TheViewOfATableReadsTheSame) {
  const auto source = kv(0, 40);
  PageTable table(store, rope);
  table.place({source, 0, 40, 10});
  const std::vector<Runs> sets{{{0, 10}, {12, 20}, {50, 60}}, {{0, 10}, {14, 16}, {50, 60}}};
  table.add(sets, std::vector<uint16_t>{0, 0, 1});
  for (int layer = 0; layer < kShape.L; ++layer) {
    for (const int32_t pos : positions(sets[layer == 2 ? 1 : 0]))
      table.write(layer, pos, row(9, layer, pos).data(), row(9, layer, pos).data());
  }
  const auto parts = view_of(table, {0, 60});
  const SegmentId id = cache.next_id();
  cache.insert({id, 0, 60, true, parts});
  std::vector<Placement> placed;
  cache.find(id)->place(0, 60, 0, placed);
  PageTable again(store, rope);
  int overlays = 0;
  for (const Placement& p : placed) {
    p.segment->whole() ? again.place(p) : again.overlay(p);
    overlays += p.segment->whole() ? 0 : 1;
  }
  EXPECT_EQ(overlays, 1);
  for (int layer = 0; layer < kShape.L; ++layer) {
    for (int head = 0; head < kShape.G; ++head) {
      std::vector<KvSpan> want, got;
      table.resolve(layer, head, {0, 60}, {}, want);
      again.resolve(layer, head, {0, 60}, {}, got);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].k, want[i].k) << layer << " " << want[i].pos;
        EXPECT_EQ(std::tuple(got[i].pos, got[i].count), std::tuple(want[i].pos, want[i].count));
        EXPECT_EQ(got[i].rotation == nullptr, want[i].rotation == nullptr);
      }
    }
    EXPECT_EQ(again.known(layer), table.known(layer));
  }
  // A private row hides both; the next turn's view has that one, and the overlay below it elsewhere.
  again.add(std::vector<Runs>{{{13, 15}}}, std::vector<uint16_t>(kShape.L, 0));
  again.write(0, 13, row(8, 0, 13).data(), row(8, 0, 13).data());
  std::vector<KvSpan> spans;
  again.resolve(0, 0, {13, 14}, {}, spans);
  EXPECT_EQ(static_cast<const float*>(spans.back().k)[0], row(8, 0, 13)[0]);
}

TEST_F(SegmentCacheTest, EveryExtentKnowsItsSegments) {
  const int32_t slots = store.extent_slots();
  auto table = table_with({{0, 2 * slots + 10}});
  const SegmentId id = cache.next_id(), inner = cache.next_id();
  const auto all = table->publish({0, 2 * slots + 10});
  cache.insert({id, 0, 2 * slots + 10, false, {{all, 0, 2 * slots + 10, 0}}});
  cache.insert({inner, 0, 10, true, {{all, slots + 5, 10, 0}}});
  const KvSegment::Extents extents = all->extents_of(all->positions());
  ASSERT_EQ(extents.list.size(), 3u);
  EXPECT_EQ(extents.list[0]->segments, (std::vector<SegmentId>{id}));
  EXPECT_EQ(extents.list[1]->segments, (std::vector<SegmentId>{id, inner}));
  EXPECT_EQ(cache.lost(id, *extents.list[1].get()), (Runs{{slots, 2 * slots}}));
  EXPECT_EQ(cache.lost(inner, *extents.list[1].get()), (Runs{{0, 10}}));
  EXPECT_TRUE(cache.lost(inner, *extents.list[0].get()).empty()) << "power";
  cache.truncate(id, slots + 1);
  EXPECT_TRUE(extents.list[2]->segments.empty());
  EXPECT_EQ(extents.list[1]->segments, (std::vector<SegmentId>{inner, id}));
  EXPECT_EQ(cache.tokens(), slots + 1);
  cache.erase(id);
  EXPECT_EQ(extents.list[1]->segments, (std::vector<SegmentId>{inner}));
}

using SegmentCacheDeathTest = SegmentCacheTest;
TEST_F(SegmentCacheDeathTest, AnIdIsInsertedOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const SegmentId id = add(0, 10);
  EXPECT_DEATH(cache.insert({id, 0, 10, false, {}}), "CHECK failed");
}

}  // namespace
}  // namespace kvilt

// Who holds pages: users, keepers, the idle order, and what comes free when.
#include "kv/extent.h"

#include <gtest/gtest.h>

#include <random>

#include "kv/page_table.h"
#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

constexpr int64_t kPages = 4000;

class ExtentTest : public testing::Test {
 protected:
  ExtentTest() : store(PageStore::create(kShape, kPages * kShape.page_bytes()).value()), slots(store.extent_slots()) {}

  std::unique_ptr<PageTable> table_with(int32_t positions) {
    auto table = std::make_unique<PageTable>(store, rope);
    table->add(std::vector<Runs>{{{0, positions}}}, std::vector<uint16_t>(kShape.L, 0));
    return table;
  }
  int64_t used() const { return store.pages() - store.free_pages(); }
  int64_t pages_of(int32_t positions) const { return (positions + kShape.P - 1) / kShape.P * kShape.L * kShape.G; }
  std::vector<Extent*> extents(const KvSegment& segment) {
    std::vector<Extent*> out;
    for (const ExtentKeep& extent : segment.extents_of(segment.positions()).list) out.push_back(extent.get());
    return out;
  }

  const RopeConfig rope = small_rope();
  PageStore store;
  const int32_t slots;
};

TEST_F(ExtentTest, WhatNothingKeepsReturnsAtOnce) {
  auto table = table_with(3 * slots);
  EXPECT_EQ(used(), pages_of(3 * slots));
  const auto kept = table->publish({slots, slots + kShape.P});  // one page of each (layer, head) in the second extent
  table.reset();
  EXPECT_EQ(used(), pages_of(kShape.P)) << "not the whole list, and not the whole extent";
  EXPECT_EQ(store.idle().pages(), used());
}

TEST_F(ExtentTest, APlacementPinsWhatItCoversAndNoMore) {
  auto writer = table_with(3 * slots);
  const auto kept = writer->publish({0, 3 * slots});
  writer.reset();
  EXPECT_EQ(store.idle().pages(), pages_of(3 * slots));
  PageTable reader(store, rope);
  reader.place({kept, slots + 1, 5, 40});
  EXPECT_EQ(store.idle().pages(), pages_of(2 * slots));
  EXPECT_EQ(store.idle().next(), extents(*kept)[2]) << "the end before the beginning";
  store.idle().next()->evict();
  EXPECT_EQ(store.idle().next(), extents(*kept)[0]);
  store.idle().next()->evict();
  EXPECT_EQ(store.idle().next(), nullptr) << "what is read is never evicted";
  EXPECT_EQ(used(), pages_of(slots));
  std::vector<KvSpan> spans;
  reader.resolve(0, 0, {40, 46}, {}, spans);
  EXPECT_EQ(spans.empty(), false);
}

TEST_F(ExtentTest, PagesLeaveWithTheLastSegmentThatIsInThem) {
  auto table = table_with(2 * kShape.P);
  auto one = table->publish({0, kShape.P + 4}), two = table->publish({kShape.P, 2 * kShape.P});
  table.reset();
  EXPECT_EQ(used(), pages_of(2 * kShape.P));
  one.reset();
  EXPECT_EQ(used(), pages_of(kShape.P)) << "the second page is shared, the first was only its";
  EXPECT_EQ(store.idle().pages(), used());
  two.reset();
  EXPECT_EQ(used(), 0);
  EXPECT_EQ(store.idle().next(), nullptr);
}

TEST_F(ExtentTest, TheOrderIsThatOfTheLastUse) {
  std::vector<std::shared_ptr<const KvSegment>> kept;
  for (int i = 0; i < 3; ++i) kept.push_back(table_with(slots)->publish({0, slots}));
  const auto next = [&] { return store.idle().next(); };
  EXPECT_EQ(next(), extents(*kept[0])[0]);
  { const Placement used(kept[0], 0, 1, 0); }
  EXPECT_EQ(next(), extents(*kept[1])[0]) << "it was used";
  next()->touch();
  EXPECT_EQ(next(), extents(*kept[2])[0]) << "it was touched";
}

// Conversations may take half of what can be evicted; beyond that they make room for one another.
TEST_F(ExtentTest, ChainsLeaveFirstWhileTheyHoldMost) {
  const auto piece = table_with(2 * slots)->publish({0, 2 * slots});
  std::vector<std::shared_ptr<const KvSegment>> chains;
  for (int i = 0; i < 3; ++i) {
    auto table = table_with(slots);
    chains.push_back(table->publish({0, slots}));
    extents(*chains.back())[0]->order = IdleExtents::Order::kChains;
  }
  EXPECT_EQ(store.idle().next(), extents(*chains[0])[0]) << "three of five";
  store.idle().next()->evict();
  EXPECT_EQ(store.idle().next(), extents(*piece)[1]) << "power: two of four, and the piece is older";
}

TEST_F(ExtentTest, ThePagesThatAreReclaimableAreKeptAsANumber) {
  std::mt19937 rng(5);
  std::vector<std::shared_ptr<const KvSegment>> kept;
  std::vector<std::unique_ptr<PageTable>> tables;
  for (int step = 0; step < 400; ++step) {
    const auto pick = [&](auto& list) { return list.begin() + static_cast<ptrdiff_t>(rng() % list.size()); };
    switch (rng() % 5) {
      case 0:
        tables.push_back(table_with(static_cast<int32_t>(1 + rng() % (2 * slots))));
        break;
      case 1:
        if (tables.empty()) break;
        if (auto segment = (*pick(tables))->publish({0, static_cast<int32_t>(1 + rng() % slots)}))
          kept.push_back(std::move(segment));
        break;
      case 2:
        if (!tables.empty()) tables.erase(pick(tables));
        break;
      case 3:
        if (!kept.empty()) kept.erase(pick(kept));
        break;
      default:
        if (store.idle().next()) store.idle().next()->evict();
    }
    if (store.free_pages() < pages_of(4 * slots)) tables.clear();
    int64_t held = 0;
    for (const auto& table : tables) held += table->private_pages();
    const int64_t free_after = store.free_pages() + store.idle().pages();
    EXPECT_LE(free_after, store.pages() - held);
    if (tables.empty()) {
      EXPECT_EQ(store.idle().pages(), used()) << "nobody uses anything";
    }
  }
  tables.clear(), kept.clear();
  EXPECT_EQ(used(), 0);
}

}  // namespace
}  // namespace kvilt

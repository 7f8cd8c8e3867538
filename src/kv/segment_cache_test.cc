// Which segment leaves next, what evicting would free, and when pages really return.
#include "kv/segment_cache.h"

#include <gtest/gtest.h>

#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

using Pages = std::shared_ptr<PageList>;
using Segment = std::shared_ptr<const KvSegment>;

class SegmentCacheTest : public testing::Test {
 protected:
  SegmentCacheTest() : store(PageStore::create(kShape, 40 * kShape.page_bytes()).value()) {}

  Pages pages(int32_t count) {
    auto out = std::make_shared<PageList>(store);
    out->grow(0, 0, count * kShape.P);
    return out;
  }
  // Caches a segment of 10 tokens; by default with two pages of its own.
  Segment add(SegmentId id, Pages list = nullptr) {
    auto segment = std::make_shared<KvSegment>();
    segment->id = id;
    segment->tokens.assign(10, static_cast<int32_t>(id));
    segment->pages = list ? list : pages(2);
    cache.insert(segment);
    return segment;
  }
  std::vector<SegmentId> evict_all() {
    std::vector<SegmentId> out;
    while (const auto id = cache.evict()) out.push_back(*id);
    return out;
  }

  PageStore store;
  SegmentCache cache;
};

using Ids = std::vector<SegmentId>;

TEST_F(SegmentCacheTest, KeepsWhatWasInsertedById) {
  EXPECT_TRUE(cache.empty());
  add(cache.next_id());
  add(cache.next_id());
  ASSERT_NE(cache.find(2), nullptr);
  EXPECT_EQ(cache.find(2)->tokens[0], 2);
  EXPECT_EQ(cache.find(3), nullptr);
  EXPECT_EQ(cache.segments(), 2);
  EXPECT_EQ(cache.tokens(), 20);
  EXPECT_FALSE(cache.empty());
  EXPECT_EQ(cache.next_id(), SegmentId{3});
}

TEST_F(SegmentCacheTest, TheLeastRecentlyUsedLeavesFirst) {
  for (SegmentId id = 1; id <= 4; ++id) add(id);
  cache.touch(1);
  cache.touch(3);
  cache.touch(99);  // unknown
  EXPECT_NE(cache.find(2), nullptr) << "finding is not using";
  EXPECT_EQ(evict_all(), (Ids{2, 4, 1, 3}));
  EXPECT_TRUE(cache.empty());
  EXPECT_EQ(cache.tokens(), 0);
  for (SegmentId id = 1; id <= 4; ++id) add(id);
  EXPECT_EQ(evict_all(), (Ids{1, 2, 3, 4})) << "power: untouched";
}

TEST_F(SegmentCacheTest, SegmentsInUseLeaveLast) {
  const Pages running = pages(2);  // of a sequence that has published and still runs
  for (SegmentId id = 1; id <= 5; ++id) add(id, id == 3 ? running : nullptr);
  const Segment placed = cache.find(1);
  EXPECT_EQ(evict_all(), (Ids{2, 4, 5, 1, 3})) << "those in use: in order of last use as well";
  for (SegmentId id = 1; id <= 3; ++id) add(id);
  EXPECT_EQ(evict_all(), (Ids{1, 2, 3})) << "power: nobody uses them";
}

TEST_F(SegmentCacheTest, SegmentsOfOneListAreNotInUseByEachOther) {
  Pages shared = pages(3);
  add(1, shared);
  add(2, std::move(shared));
  add(3);
  EXPECT_EQ(evict_all(), (Ids{1, 2, 3}));
}

TEST_F(SegmentCacheTest, PagesReturnWhenTheLastHolderGoes) {
  const int64_t before = store.free_pages();
  add(4);
  EXPECT_EQ(store.free_pages(), before - 2);
  const RopeConfig rope = small_rope();
  auto table = std::make_unique<PageTable>(store, rope);
  table->place({cache.find(4), 0, 10, 7});
  EXPECT_EQ(cache.evict(), SegmentId{4});
  EXPECT_EQ(cache.find(4), nullptr);
  EXPECT_EQ(store.free_pages(), before - 2) << "still placed";
  table.reset();
  EXPECT_EQ(store.free_pages(), before);
  EXPECT_EQ(cache.evict(), std::nullopt);
  add(5);
  cache.evict();
  EXPECT_EQ(store.free_pages(), before) << "power: nobody placed it";
}

TEST_F(SegmentCacheTest, ReclaimableIsWhatEvictingFreesNow) {
  Pages shared = pages(3);
  add(1);
  add(2, shared);
  add(3, std::move(shared));
  add(4);
  EXPECT_EQ(cache.reclaimable(1000), 2 + 3 + 2);
  EXPECT_EQ(cache.reclaimable(1), 2) << "the oldest one is enough";
  EXPECT_EQ(cache.reclaimable(3), 2 + 3);
  EXPECT_EQ(cache.reclaimable(0), 0);
  Segment placed = cache.find(3);
  EXPECT_EQ(cache.reclaimable(1000), 2 + 2) << "the list of 2 and 3 stays while one of them is placed";
  placed.reset();
  const int64_t before = store.free_pages(), promised = cache.reclaimable(1000);
  evict_all();
  EXPECT_EQ(store.free_pages() - before, promised);
  EXPECT_EQ(cache.reclaimable(1000), 0);
}

TEST_F(SegmentCacheTest, ErasedSegmentsAreForgotten) {
  const int64_t before = store.free_pages();
  for (SegmentId id = 1; id <= 3; ++id) add(id);
  cache.erase(2);
  cache.erase(2);
  cache.erase(99);
  EXPECT_EQ(cache.find(2), nullptr);
  EXPECT_EQ(cache.segments(), 2);
  EXPECT_EQ(cache.tokens(), 20);
  EXPECT_EQ(store.free_pages(), before - 4);
  EXPECT_EQ(evict_all(), (Ids{1, 3}));
}

using SegmentCacheDeathTest = SegmentCacheTest;
TEST_F(SegmentCacheDeathTest, AnIdIsInsertedOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  add(1);
  EXPECT_DEATH(add(1), "CHECK failed");
  cache.erase(1);
  EXPECT_EQ(add(1)->id, SegmentId{1}) << "power";
}

}  // namespace
}  // namespace kvilt

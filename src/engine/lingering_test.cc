// Whose prefill goes where more of them linger than may.
#include "engine/lingering.h"

#include <gtest/gtest.h>

#include <string>

#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

TEST(Lingering, TheTenantThatHasMostGivesUpItsOldest) {
  Lingering lingering(30);
  RequestId id = 0;
  const auto add = [&](const std::string& tenant) {
    auto left = std::make_unique<Sequence>();
    left->id = ++id;
    left->request.tenant = tenant;
    lingering.add(std::move(left));
  };
  for (const char* tenant : {"b", "a", "a", "a"}) add(tenant);
  EXPECT_EQ(lingering.beyond_most(), nullptr) << "power check: so many may linger";
  add("a");
  EXPECT_EQ(lingering.beyond_most()->id, 2u);
  add("b"), add("b");
  EXPECT_EQ(lingering.beyond_most()->id, 1u) << "as many each: the oldest of all";
}

// What was not noted while the first one was looked up cannot be told of the second.
TEST(Lingering, WhoAsksForMoreReasonsDoesNotJoin) {
  const auto joins = [](Explain first, Explain second) {
    Sequence left, next;
    left.request.explain = first;
    next.request.explain = second;
    return same_prefill(left, next);
  };
  EXPECT_FALSE(joins(Explain::kBrief, Explain::kFull));
  EXPECT_FALSE(joins(Explain::kNo, Explain::kBrief));
  EXPECT_TRUE(joins(Explain::kFull, Explain::kBrief)) << "power: all else is equal";
  EXPECT_TRUE(joins(Explain::kFull, Explain::kFull));
}

// What another reads of a prefill stays when that goes.
TEST(Lingering, PagesThatOthersReadAreNotItsToGive) {
  PageStore store = PageStore::create(kShape, 500 * kShape.page_bytes()).value();
  const RopeConfig rope = small_rope();
  auto left = std::make_unique<Sequence>();
  left->running.kv = std::make_unique<PageTable>(store, rope);
  const int32_t size = 2 * store.extent_pages() * kShape.P;  // two extents
  left->running.kv->add(std::vector<Runs>{{{0, size}}}, std::vector<uint16_t>(kShape.L, 0));
  left->running.kv->hold({0, kShape.L}, {0, size});
  const int64_t all = left->running.kv->private_pages();
  const auto segment = left->running.kv->publish({0, size / 2});
  Lingering lingering(30);
  lingering.add(std::move(left));
  EXPECT_EQ(lingering.pages(), all);
  {
    PageTable reader(store, rope);
    reader.place({segment, 0, 8, 0});
    EXPECT_EQ(lingering.pages(), all / 2);
    const int64_t before = store.free_pages() + store.idle().pages(), pages = lingering.pages();
    lingering.oldest();
    EXPECT_EQ(store.free_pages() + store.idle().pages(), before + pages);
  }
}

}  // namespace
}  // namespace kvilt

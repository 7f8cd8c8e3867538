// The pool and its lists: every page has one owner, addresses never overlap, and all pages come back.
#include "kv/page_store.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <vector>

#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

PageStore make_store(int64_t pages) { return PageStore::create(kShape, pages * kShape.page_bytes()).value(); }

TEST(KvShape, BytesAreThoseOfTheType) {
  EXPECT_EQ(kShape.row_bytes(), 16);
  EXPECT_EQ(kShape.page_bytes(), 2 * 8 * 16);
  EXPECT_EQ(kShape.token_bytes(), 2 * 16 * 3 * 2);
  KvShape small = kShape;
  small.dtype = DType::kBF16;
  EXPECT_EQ(small.page_bytes(), kShape.page_bytes() / 2) << "power";
}

TEST(PageStore, RefusesAPoolThatIsTooSmall) {
  const auto refused = PageStore::create(kShape, 5 * kShape.page_bytes());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("at least 6"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(PageStore::create(kShape, 6 * kShape.page_bytes()).ok()) << "power: one page for each layer and KV head";
}

// The first pages have memory before they are written; what is in a page stays.
TEST(PageStore, ATouchGivesMemoryAndChangesNothing) {
#ifdef MADV_POPULATE_WRITE
  constexpr int64_t kMiB = int64_t{1} << 20;
  PageStore store = make_store(32 * kMiB / kShape.page_bytes());
  const auto system_page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto resident = [&](int64_t begin, int64_t end) {
    std::vector<unsigned char> there(static_cast<size_t>(end - begin) / system_page);
    EXPECT_EQ(::mincore(store.k(0) + begin, static_cast<size_t>(end - begin), there.data()), 0);
    size_t out = 0;
    for (const unsigned char page : there) out += page & 1u;
    return static_cast<double>(out) / static_cast<double>(there.size());
  };
  const PageId page = store.alloc();
  std::memset(store.k(page), 7, 16);
  EXPECT_EQ(resident(8 * kMiB, 16 * kMiB), 0) << "power";
  store.touch(0, 16 * kMiB);
  EXPECT_EQ(resident(0, 16 * kMiB), 1);
  EXPECT_EQ(resident(20 * kMiB, 32 * kMiB), 0);
  EXPECT_EQ(std::to_integer<int>(store.k(page)[15]), 7);
  EXPECT_EQ(std::to_integer<int>(store.k(page)[16]), 0);
  store.touch(30 * kMiB, 100 * kMiB);  // no further than the pool
  EXPECT_EQ(resident(30 * kMiB, 32 * kMiB), 1);
#endif
}

TEST(PageStore, HandsOutEachPageOnceUntilItIsFreed) {
  PageStore store = make_store(10);
  std::set<PageId> pages;
  for (int64_t left = 10; left > 0; --left) {
    EXPECT_EQ(store.free_pages(), left);
    pages.insert(store.alloc());
  }
  EXPECT_EQ(pages.size(), 10u);
  EXPECT_EQ(store.free_pages(), 0);
  store.free(3);
  store.free(7);
  EXPECT_EQ(store.free_pages(), 2);
  EXPECT_EQ((std::set<PageId>{store.alloc(), store.alloc()}), (std::set<PageId>{3, 7}));
  EXPECT_EQ(store.pages(), 10);
}

TEST(PageStore, WhatIsGivenBackIsZeroWhereThatIsWanted) {
  for (const bool zeroes : {false, true}) {
    PageStore store = make_store(60);
    if (zeroes) store.zero_freed();
    const auto size = static_cast<size_t>(kShape.page_bytes());
    {
      PageList list(store);
      list.reserve(6);
      for (int head = 0; head < 2; ++head) list.grow(0, head, 20);
      for (PageId page = 0; page < 60; ++page) std::memset(store.k(page), 7, size);
      const PageId held = list.extents()[0]->at(0, 0), dropped = list.extents()[0]->at(0, 1);
      list.reserve(0);
      list.drop(0, 0, 1);
      EXPECT_EQ(store.k(dropped)[size - 1] == std::byte{0}, zeroes);
      EXPECT_EQ(store.k(held)[0], std::byte{7}) << "it is in use";
    }
    int zero = 0, freed = 0;
    while (store.free_pages() > 0) {  // those that were never handed out are left as they are
      const PageId page = store.alloc();
      const auto bytes = std::span(store.k(page), size);
      zero += std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; }) ? 1 : 0;
      ++freed;
    }
    EXPECT_EQ(freed, 60);
    EXPECT_EQ(zero > 0, zeroes);  // power
    EXPECT_GE(zero, zeroes ? 6 : 0);
  }
}

TEST(PageStore, KeysAndValuesOfAllPagesAreDisjoint) {
  PageStore store = make_store(10);
  const auto half = static_cast<size_t>(kShape.page_bytes() / 2);
  for (PageId page = 0; page < 10; ++page) {
    std::memset(store.k(page), 2 * page, half);
    std::memset(store.v(page), 2 * page + 1, half);
  }
  for (PageId page = 0; page < 10; ++page) {
    for (size_t i = 0; i < half; ++i) {
      ASSERT_EQ(store.k(page)[i], std::byte(2 * page)) << page << " " << i;
      ASSERT_EQ(store.v(page)[i], std::byte(2 * page + 1)) << page << " " << i;
    }
  }
  std::memset(store.k(4), 99, half + 1);
  EXPECT_EQ(store.v(4)[0], std::byte{99}) << "power: one byte more would be the first value's";
}

class PageListTest : public testing::Test {
 protected:
  PageStore store = make_store(20);
};

TEST_F(PageListTest, GrowHoldsEveryPageUpToASlot) {
  PageList list(store);
  list.grow(1, 0, 9);
  EXPECT_EQ(list.pages_of(9), 2);
  EXPECT_EQ(list.held(1, 0), 2);
  EXPECT_TRUE(list.held(1, 0, 0) && list.held(1, 0, 1));
  EXPECT_FALSE(list.held(1, 0, 2));
  EXPECT_EQ(list.held(1, 1) + list.held(0, 0), 0) << "lists are per layer and head";
  list.grow(1, 0, 16);
  list.grow(1, 0, 3);
  EXPECT_EQ(list.pages(), 2);
  EXPECT_EQ(store.free_pages(), 18);
  list.grow(1, 0, 17);
  EXPECT_EQ(list.held(1, 0), 3) << "power";
}

TEST_F(PageListTest, PagesMayBeMissing) {
  PageList list(store);
  list.hold(2, 1, 3);
  EXPECT_TRUE(list.held(2, 1, 3));
  EXPECT_FALSE(list.held(2, 1, 2) || list.held(2, 1, 4) || list.held(2, 0, 3));
  EXPECT_EQ(list.held(2, 1), 1);
  list.hold(2, 1, 1);
  list.drop(2, 1, 3);
  EXPECT_FALSE(list.held(2, 1, 3));
  EXPECT_EQ(list.held(2, 1), 1);
  EXPECT_EQ(list.pages(), 1);
  EXPECT_EQ(store.free_pages(), 19);
}

TEST_F(PageListTest, EverySlotHasItsOwnBytes) {
  PageList list(store);
  std::set<const std::byte*> rows;
  for (int head = 0; head < kShape.G; ++head) {
    list.grow(0, head, 20);
    for (int32_t slot = 0; slot < 20; ++slot) {
      rows.insert(list.k(0, head, slot));
      rows.insert(list.v(0, head, slot));
      EXPECT_EQ(list.v(0, head, slot) - list.k(0, head, slot), kShape.P * kShape.row_bytes());
      if (slot % kShape.P != 0) {
        EXPECT_EQ(list.k(0, head, slot) - list.k(0, head, slot - 1), kShape.row_bytes());
      }
    }
  }
  EXPECT_EQ(rows.size(), 2u * 2 * 20);
}

TEST_F(PageListTest, SparePagesAreTakenFirstAndFilledUpAgain) {
  PageList list(store);
  list.reserve(3);
  EXPECT_EQ(list.spare(), 3);
  EXPECT_EQ(list.pages(), 3);
  EXPECT_EQ(store.free_pages(), 17);
  list.hold(0, 0, 0);
  list.hold(0, 0, 1);
  EXPECT_EQ(list.spare(), 1);
  EXPECT_EQ(store.free_pages(), 17) << "reserved before";
  list.drop(0, 0, 0);
  EXPECT_EQ(list.spare(), 2) << "fewer than reserved: it stays here";
  list.grow(0, 1, 24);
  EXPECT_EQ(list.spare(), 0);
  EXPECT_EQ(store.free_pages(), 16) << "two spare ones and a free one";
  for (int32_t page = 0; page < 3; ++page) list.drop(0, 1, page);
  list.drop(0, 0, 1);
  EXPECT_EQ(list.spare(), 3);
  EXPECT_EQ(store.free_pages(), 17) << "more than reserved: it goes back";
  list.reserve(1);
  EXPECT_EQ(list.spare(), 1);
  EXPECT_EQ(list.pages(), 1);
  EXPECT_EQ(store.free_pages(), 19);
}

TEST_F(PageListTest, AllPagesReturnWhenTheListDies) {
  {
    PageList list(store);
    list.grow(0, 0, 20);
    list.hold(1, 1, 4);
    list.hold(1, 1, 2);
    list.drop(1, 1, 4);
    list.reserve(5);
    EXPECT_EQ(list.pages(), 9);
    EXPECT_EQ(store.free_pages(), 11) << "power";
  }
  EXPECT_EQ(store.free_pages(), 20);
}

using PageListDeathTest = PageListTest;
TEST_F(PageListDeathTest, AnEmptyPoolAMissingPageAndAStrangersPageAreBugs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  PageList list(store);
  list.grow(0, 0, 8);
  EXPECT_NE(list.k(0, 0, 7), nullptr) << "power";
  EXPECT_DEATH(list.k(0, 0, 8), "CHECK failed");
  EXPECT_DEATH(list.drop(0, 0, 1), "CHECK failed");
  list.reserve(19);
  EXPECT_EQ(store.free_pages(), 0);
  EXPECT_DEATH(store.alloc(), "CHECK failed");
  EXPECT_DEATH(list.reserve(20), "CHECK failed");
}

}  // namespace
}  // namespace kvilt

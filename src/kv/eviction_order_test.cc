#include "kv/eviction_order.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

namespace kvilt {
namespace {

using Rule = EvictionOrder::Rule;

class OrderTest : public testing::Test {
 protected:
  OrderTest() {
    for (int i = 0; i < 20; ++i) items_.emplace_back();
  }
  void enter(EvictionOrder& order, int i, bool again = false, int64_t pages = 1) {
    items_[i].again = again;
    order.enter(items_[i], pages, ++clock_);
  }
  // Which leave, one after the other.
  std::vector<int> drain(EvictionOrder& order) {
    std::vector<int> out;
    while (Evictable* const next = order.next()) {
      for (int i = 0; i < 20; ++i) {
        if (&items_[i] == next) out.push_back(i);
      }
      order.leave(*next);
    }
    return out;
  }
  std::deque<Evictable> items_;
  uint64_t clock_ = 0;
};

TEST_F(OrderTest, LruKnowsTheTimeOnly) {
  EvictionOrder order(Rule::kLru);
  for (int i = 0; i < 6; ++i) enter(order, i, i % 2 == 0);
  EXPECT_EQ(order.pages(), 6);
  EXPECT_EQ(drain(order), (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(order.pages(), 0);
  EXPECT_EQ(order.next(), nullptr);
}

TEST_F(OrderTest, SegmentedKeepsWhatWasUsedAgain) {
  EvictionOrder order(Rule::kSegmented);
  for (int i = 0; i < 6; ++i) enter(order, i, i % 2 == 0);
  EXPECT_EQ(drain(order), (std::vector<int>{1, 3, 5, 0, 2, 4}));
  for (int i = 0; i < 10; ++i) enter(order, i, true);  // of ten, eight stay protected
  enter(order, 10);
  const std::vector<int> out = drain(order);
  EXPECT_EQ(out[0], 0) << "the oldest of those used again went back";
  EXPECT_EQ(out.size(), 11u);
}

TEST_F(OrderTest, AdaptiveKeepsTheShareOfEachKind) {
  EvictionOrder order(Rule::kAdaptive);
  for (int i = 0; i < 8; ++i) enter(order, i, i >= 4);
  EXPECT_EQ(order.share(), 0);
  EXPECT_EQ(order.next(), &items_[0]);
  order.missed(4, false, 1);  // what was used once should have stayed
  EXPECT_EQ(order.share(), 0.5);
  EXPECT_EQ(order.next(), &items_[4]) << "half of the pages is not more than half";
  order.missed(8, true, 1);
  EXPECT_EQ(order.share(), 0);
  EXPECT_EQ(order.next(), &items_[0]);
  order.missed(100, false, 1);
  EXPECT_EQ(order.share(), 1);
  EXPECT_EQ(order.next(), &items_[4]);
  order.missed(1, true, 4);
  EXPECT_EQ(order.share(), 0.5) << "a page of eight, four times as odd";
  order.missed(1, true, 0.1);
  EXPECT_EQ(order.share(), 0.375) << "at least once";
}

TEST_F(OrderTest, PagesFollowTheItem) {
  EvictionOrder order(Rule::kAdaptive);
  enter(order, 0, false, 10);
  enter(order, 1, true, 5);
  order.add_pages(items_[0], -4);
  EXPECT_EQ(order.pages(), 11);
  EXPECT_TRUE(items_[0].waits());
  order.leave(items_[0]);
  EXPECT_FALSE(items_[0].waits());
  EXPECT_EQ(order.pages(), 5);
  enter(order, 0, true, 3);
  EXPECT_EQ(drain(order), (std::vector<int>{1, 0}));
}

}  // namespace
}  // namespace kvilt

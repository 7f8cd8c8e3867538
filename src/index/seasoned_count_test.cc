// How many means over contexts the index holds.
#include <gtest/gtest.h>

#include "index/content_index.h"
#include "index/index_for_test.h"

namespace kvilt {
namespace {

TEST_F(IndexTest, CountsMeansByTheirContexts) {
  const auto seasoned = [&](SegmentId id, int32_t size, int contexts) {
    SegmentInfo info{.tokens = fresh(size), .domain = domain_};
    info.contexts = contexts;
    index_.insert(id, std::move(info));
  };
  index_.insert(1, {.tokens = fresh(50), .domain = domain_});
  seasoned(2, 40, 1);
  seasoned(3, 60, 4);
  seasoned(4, 70, 99);
  EXPECT_EQ(index_.seasoned().tokens, 170);
  EXPECT_EQ(index_.seasoned().by_contexts[1], 1);
  EXPECT_EQ(index_.seasoned().by_contexts[4], 1);
  EXPECT_EQ(index_.seasoned().by_contexts[16], 1) << "or more";
  index_.truncate(3, 35);
  EXPECT_EQ(index_.seasoned().tokens, 145);
  for (const SegmentId id : {1, 2, 3, 4}) index_.erase(id);
  EXPECT_EQ(index_.seasoned().tokens, 0);
  EXPECT_EQ(index_.seasoned().by_contexts, SeasonedCount().by_contexts);
}

}  // namespace
}  // namespace kvilt

#include "kv/ghost_list.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

TEST(GhostList, RemembersTheNewestOfEachKind) {
  GhostList ghosts(3);
  for (uint64_t key = 1; key <= 5; ++key) ghosts.add(key, false);
  ghosts.add(6, true);
  EXPECT_EQ(ghosts.size(false), 3u);
  EXPECT_EQ(ghosts.size(true), 1u);
  EXPECT_FALSE(ghosts.take(1).has_value());
  EXPECT_FALSE(ghosts.take(2).has_value());
  EXPECT_EQ(ghosts.take(3), false);
  EXPECT_FALSE(ghosts.take(3).has_value()) << "it is here again";
  EXPECT_EQ(ghosts.take(6), true);
  EXPECT_EQ(ghosts.odds(true), 2.0) << "two of the other kind, and the one that was taken";
  ghosts.add(4, true);
  EXPECT_EQ(ghosts.take(4), true) << "as it left last";
  EXPECT_EQ(ghosts.take(5), false);
  EXPECT_EQ(ghosts.size(false) + ghosts.size(true), 0u);
}

TEST(GhostList, WhatIsTakenAndComesBackLeavesNothingBehind) {
  GhostList ghosts(8);
  for (uint64_t i = 0; i < 10'000; ++i) {
    ghosts.add(i % 6, i % 2 == 0);
    if (i % 3 == 0) ghosts.take((i + 1) % 6);
    ASSERT_LE(ghosts.size(false), 8u);
    ASSERT_LE(ghosts.size(true), 8u);
  }
  ghosts.clear();
  EXPECT_EQ(ghosts.size(false) + ghosts.size(true), 0u);
  ghosts.add(1, false);
  EXPECT_EQ(ghosts.take(1), false);
  GhostList none(0);
  none.add(1, false);
  EXPECT_FALSE(none.take(1).has_value());
}

}  // namespace
}  // namespace kvilt

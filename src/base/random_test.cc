#include "base/random.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>

namespace kvilt {
namespace {

std::string shuffled(std::string text, uint64_t seed) {
  std::vector<char> items(text.begin(), text.end());
  std::mt19937_64 rng(seed);
  shuffle(items, rng);
  return {items.begin(), items.end()};
}

// The cases of suites, the orders of benches and the control maps of RedKnot depend on these.
TEST(Random, AShuffleIsTheSameEverywhereAndForEver) {
  EXPECT_EQ(shuffled("abcdefgh", 1), "egdfbhca");
  EXPECT_EQ(shuffled("abcdefgh", 2), "hfcadbge") << "power: another seed, another order";
  EXPECT_EQ(shuffled("a", 1), "a");
  EXPECT_EQ(shuffled("", 1), "");
}

TEST(Random, AShuffleDrawsOneNumberLessThanItHasItems) {
  std::vector<int> items(10);
  std::mt19937_64 rng(5), same(5);
  shuffle(items, rng);
  EXPECT_NE(rng, same) << "power";
  same.discard(9);
  EXPECT_EQ(rng, same);
}

TEST(Random, EveryOrderIsDrawn) {
  std::map<std::string, int> seen;
  for (uint64_t seed = 0; seed < 2400; ++seed) ++seen[shuffled("abcd", seed)];
  EXPECT_EQ(seen.size(), 24u);
  for (const auto& [order, times] : seen) {
    EXPECT_GT(times, 50) << order;
    EXPECT_LT(times, 200) << order;
  }
}

}  // namespace
}  // namespace kvilt

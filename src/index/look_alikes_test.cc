#include "index/look_alikes.h"

#include <gtest/gtest.h>

#include "index/tokens_for_test.h"

namespace kvilt {
namespace {

TEST(LookAlikes, RowsThatDifferInOneTokenAre) {
  Tokens rows;
  for (int32_t name = 0; name < 20; ++name) rows = join(rows, Tokens{1, 2, 3, 100 + name, 4});
  const kvilt::Run all{0, static_cast<int32_t>(rows.size())};
  // Of a row's five tokens only the name stands behind three that others have too: [1 2 3] goes on with 20 names.
  EXPECT_NEAR(look_alike_share(rows, {&all, 1}), 20.0 / 97, 1e-9);
  rows[3] = rows[8];  // power: two rows of one name go on alike, but the other names still differ
  EXPECT_NEAR(look_alike_share(rows, {&all, 1}), 20.0 / 97, 1e-9);
}

TEST(LookAlikes, TextThatNeverRepeatsAndTextThatRepeatsToTheLetterAreNot) {
  const Tokens once = text(1, 50), twice = join(once, once);
  const kvilt::Run all{0, 50}, parts[] = {{0, 50}, {50, 100}};
  EXPECT_EQ(look_alike_share(once, {&all, 1}), 0);
  EXPECT_EQ(look_alike_share(twice, parts), 0);
  Tokens other = twice;
  other[70] = 7;  // power: now [17 18 19] goes on with 20 and with 7
  EXPECT_NEAR(look_alike_share(other, parts), 2.0 / 94, 1e-9);
}

// Three tokens that stand twice in a stretch are look-alikes; the same two so far apart that no stretch has both are not.
TEST(LookAlikes, SharesDoNotGrowWithTheLength) {
  Tokens prompt = text(1, 6 * kLookAlikeStretch);
  const kvilt::Run all{0, static_cast<int32_t>(prompt.size())};
  const auto share = [&] { return look_alike_share(prompt, {&all, 1}) * static_cast<double>(prompt.size() - 3); };
  const auto copy = [&](int32_t to) { std::copy_n(prompt.begin() + 10, 3, prompt.begin() + to); };
  copy(5 * kLookAlikeStretch);
  EXPECT_NEAR(share(), 0, 1e-6);
  copy(100);
  EXPECT_NEAR(share(), 2, 1e-6) << "power";
}

TEST(LookAlikes, PartsEndAtTheirEnds) {
  const Tokens prompt = {1, 2, 3, 4, 9, 1, 2, 3, 5};
  const kvilt::Run apart[] = {{0, 4}, {5, 9}}, cut[] = {{0, 3}, {5, 9}};
  EXPECT_EQ(look_alike_share(prompt, apart), 1);
  EXPECT_EQ(look_alike_share(prompt, cut), 0);
  EXPECT_EQ(look_alike_share(prompt, {}), 0);
}

TEST(LookAlikes, OnePartOfManyShowsByItself) {
  Tokens rows;
  for (int32_t name = 0; name < 8; ++name) rows = join(rows, Tokens{1, 2, 3, 100 + name, 4});
  const Tokens prompt = join(text(5, 200), rows, text(6, 200));
  const kvilt::Run parts[] = {{0, 200}, {200, 240}, {240, 440}};
  const std::vector<double> shares = look_alike_shares(prompt, parts);
  ASSERT_EQ(shares.size(), 3u);
  EXPECT_NEAR(shares[1], 8.0 / 37, 1e-9);
  EXPECT_EQ(shares[0] + shares[2], 0);
  EXPECT_LT(look_alike_share(prompt, parts), 0.02) << "power: together they hardly do";
}

}  // namespace
}  // namespace kvilt

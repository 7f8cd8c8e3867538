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
  EXPECT_NEAR(look_alikes(rows, {&all, 1}).all, 20.0 / 97, 1e-9);
  rows[3] = rows[8];  // power: two rows of one name go on alike, but the other names still differ
  EXPECT_NEAR(look_alikes(rows, {&all, 1}).all, 20.0 / 97, 1e-9);
}

TEST(LookAlikes, TextThatNeverRepeatsAndTextThatRepeatsToTheLetterAreNot) {
  const Tokens once = text(1, 50), twice = join(once, once);
  const kvilt::Run all{0, 50}, parts[] = {{0, 50}, {50, 100}};
  EXPECT_EQ(look_alikes(once, {&all, 1}).all, 0);
  EXPECT_EQ(look_alikes(twice, parts).all, 0);
  Tokens other = twice;
  other[70] = 7;  // power: now [17 18 19] goes on with 20 and with 7
  EXPECT_NEAR(look_alikes(other, parts).all, 2.0 / 94, 1e-9);
}

// Three tokens that stand twice in a stretch are look-alikes; the same two so far apart that no stretch has both are not.
TEST(LookAlikes, SharesDoNotGrowWithTheLength) {
  Tokens prompt = text(1, 6 * kLookAlikeStretch);
  const kvilt::Run all{0, static_cast<int32_t>(prompt.size())};
  const auto share = [&] { return look_alikes(prompt, {&all, 1}).all * static_cast<double>(prompt.size() - 3); };
  const auto copy = [&](int32_t to) { std::copy_n(prompt.begin() + 10, 3, prompt.begin() + to); };
  copy(5 * kLookAlikeStretch);
  EXPECT_NEAR(share(), 0, 1e-6);
  copy(100);
  EXPECT_NEAR(share(), 2, 1e-6) << "power";
}

TEST(LookAlikes, PartsEndAtTheirEnds) {
  const Tokens prompt = {1, 2, 3, 4, 9, 1, 2, 3, 5};
  const kvilt::Run apart[] = {{0, 4}, {5, 9}}, cut[] = {{0, 3}, {5, 9}};
  EXPECT_EQ(look_alikes(prompt, apart).all, 1);
  EXPECT_EQ(look_alikes(prompt, cut).all, 0);
  EXPECT_EQ(look_alikes(prompt, {}).all, 0);
}

TEST(LookAlikes, OneTableAmongTextsShowsInItsParts) {
  const auto rows = [](int32_t from, int32_t to) {
    Tokens out;
    for (int32_t name = from; name < to; ++name) out = join(out, Tokens{1, 2, 3, 100 + name, 4});
    return out;
  };
  const Tokens prompt = join(text(5, 200), rows(0, 8), text(6, 200), rows(8, 9));
  const kvilt::Run parts[] = {{0, 200}, {200, 240}, {240, 440}, {440, 445}};
  const LookAlikes found = look_alikes(prompt, parts);
  ASSERT_EQ(found.parts.size(), 4u);
  EXPECT_NEAR(found.parts[1], 8.0 / 37, 1e-9);
  EXPECT_NEAR(found.parts[3], 1.0 / 2, 1e-9) << "by itself it is one row, which resembles nothing";
  EXPECT_EQ(found.parts[0] + found.parts[2], 0);
  EXPECT_LT(found.all, 0.03) << "power: together they hardly do";
  EXPECT_EQ(look_alikes(prompt, {&parts[3], 1}).parts[0], 0) << "power";
}

}  // namespace
}  // namespace kvilt

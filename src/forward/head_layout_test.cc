// Heads in a larger layout and back: nothing is lost, pairs stay pairs, and repeated KV heads meet their own queries.
#include "forward/head_layout.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvilt {
namespace {

FloatMat rows(int64_t n, HeadRow heads) {
  FloatMat out;
  const Mat<float> x = out.reshape(n, heads.width());
  for (int64_t i = 0; i < n * heads.width(); ++i) x.data[i] = static_cast<float>(i + 1);
  return out;
}

std::vector<float> values(const FloatMat& x) {
  const Mat<float>& view = x.view();
  return {view.data, view.data + view.rows * view.cols};
}

TEST(HeadLayout, EachHalfIsWidened) {
  ThreadPool pool(2);
  FloatMat x = rows(1, {2, 4}), spare;
  widen_heads(x, {2, 4}, {2, 8}, spare, pool);
  EXPECT_EQ(values(x), (std::vector<float>{1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0, 0, 7, 8, 0, 0}));
}

TEST(HeadLayout, AHeadThatStandsForSeveralIsRepeated) {
  ThreadPool pool(2);
  FloatMat x = rows(1, {2, 2}), spare;
  widen_heads(x, {2, 2}, {4, 2}, spare, pool);
  EXPECT_EQ(values(x), (std::vector<float>{1, 2, 1, 2, 3, 4, 3, 4}));
}

TEST(HeadLayout, NarrowTakesBackWhatWidenMade) {
  ThreadPool pool(2);
  for (const int64_t n : {0, 1, 40}) {
    FloatMat x = rows(n, {3, 6}), spare;
    const std::vector<float> before = values(x);
    widen_heads(x, {3, 6}, {3, 16}, spare, pool);
    EXPECT_EQ(x.view().cols, 48);
    narrow_heads(x, {3, 16}, {3, 6}, spare, pool);
    EXPECT_EQ(values(x), before);
  }
}

TEST(HeadLayout, TheSameLayoutIsLeftAlone) {
  ThreadPool pool(1);
  FloatMat x = rows(2, {2, 4}), spare;
  const float* at = x.view().data;
  widen_heads(x, {2, 4}, {2, 4}, spare, pool);
  EXPECT_EQ(x.view().data, at);
}

}  // namespace
}  // namespace kvilt

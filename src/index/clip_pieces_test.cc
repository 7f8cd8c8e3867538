// Pieces that are cut to the text where they may be used: borders, and what becomes of short parts.
#include "index/clip_pieces.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

constexpr int32_t kLeast = 8;

// Cut to the marks, as where marks are the consent.
std::vector<Piece> inside(std::vector<Piece> pieces, const Runs& marks, int32_t from = 0) {
  return clip_pieces(pieces, normalize(marks), {marks, from, kLeast});
}

TEST(ClipPieces, OnlyWhatIsInsideStays) {
  const Piece all{7, 100, 60, 10};  // tokens 100-159 of segment 7, at positions 10-69
  EXPECT_EQ(inside({all}, {}), std::vector<Piece>{});
  EXPECT_EQ(inside({all}, {{0, 10}, {70, 90}}), std::vector<Piece>{});
  EXPECT_EQ(inside({all}, {{0, 80}}), std::vector<Piece>{all});
  EXPECT_EQ(inside({all}, {{20, 40}, {45, 60}}), (std::vector<Piece>{{7, 110, 20, 20}, {7, 135, 15, 45}}));
  EXPECT_EQ(inside({all, {8, 0, 20, 70}}, {{0, 20}, {60, 85}}),
            (std::vector<Piece>{{7, 100, 10, 10}, {7, 150, 10, 60}, {8, 0, 15, 70}}));
}

TEST(ClipPieces, MarksThatTouchAreOneText) {
  const Piece all{7, 0, 40, 0};
  EXPECT_EQ(inside({all}, {{0, 20}, {20, 40}}), std::vector<Piece>{all});
  EXPECT_EQ(inside({all}, {{0, 20}, {21, 40}}).size(), 2u) << "power check";
}

TEST(ClipPieces, ShortPartsStayIfTheyAreAWholeMark) {
  const Piece all{7, 0, 40, 0};
  EXPECT_EQ(inside({all}, {{10, 13}}), (std::vector<Piece>{{7, 10, 3, 10}}));
  EXPECT_EQ(inside({all}, {{37, 50}}), std::vector<Piece>{}) << "three tokens of a mark";
  EXPECT_EQ(inside({all}, {{32, 50}}), (std::vector<Piece>{{7, 32, 8, 32}}));
  EXPECT_EQ(inside({{7, 5, 20, 30}}, {{10, 33}}), std::vector<Piece>{});
  EXPECT_EQ(inside({{7, 5, 20, 30}}, {{10, 33}}, 30), (std::vector<Piece>{{7, 5, 3, 30}})) << "the rest is prefix";
  EXPECT_EQ(inside({{7, 5, 20, 30}}, {{10, 30}, {30, 33}, {40, 80}}, 30),
            (std::vector<Piece>{{7, 5, 3, 30}, {7, 15, 10, 40}}));
  EXPECT_EQ(inside({{7, 5, 20, 30}}, {{10, 33}, {33, 36}, {60, 80}}), (std::vector<Piece>{{7, 5, 6, 30}}));
  EXPECT_EQ(inside({{7, 5, 20, 30}}, {{10, 36}, {60, 80}}), std::vector<Piece>{}) << "power check";
  EXPECT_EQ(inside({{7, 5, 3, 30}}, {{10, 50}}), (std::vector<Piece>{{7, 5, 3, 30}})) << "it was not cut";
}

}  // namespace
}  // namespace kvilt

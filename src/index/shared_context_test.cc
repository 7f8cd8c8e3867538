// How much of the text before a piece stood before it where its KV was computed: through parents, to position 0. And
// whether all of it did, but for a few tokens next to the piece.
#include <gtest/gtest.h>

#include "index/index_for_test.h"

namespace kvilt {
namespace {

class SharedContextTest : public IndexTest {
 protected:
  int32_t shared(const Ids& prompt, const Piece& piece, int32_t limit = INT32_MAX) const {
    return index_.shared_context(prompt, piece, limit);
  }
  const Ids start = fresh(40), middle = fresh(50), end = fresh(60);
};

TEST_F(SharedContextTest, GoesBackThroughParents) {
  index_.insert(1, {.tokens = start, .domain = domain_, .exact = true});
  index_.insert(2, {.tokens = join({middle, end}), .domain = domain_, .exact = true, .parent = 1, .parent_tokens = 40});
  const Ids whole = join({start, middle, end});
  EXPECT_EQ(shared(whole, {2, 50, 60, 90}), INT32_MAX);
  EXPECT_EQ(shared(whole, {2, 50, 60, 90}, 40), 50) << "it stops once it has as many";
  const Ids later = join({fresh(3), start, middle, end});
  EXPECT_EQ(shared(later, {2, 50, 60, 93}), 90) << "the same text, but not from position 0 on";
  const Ids shorter = join({part(start, 20, 40), middle, end});
  EXPECT_EQ(shared(shorter, {2, 50, 60, 70}), 70);
  Ids changed = whole;
  changed[60] += 1000;
  EXPECT_EQ(shared(changed, {2, 50, 60, 90}), 29);
  EXPECT_EQ(shared(join({fresh(9), end}), {2, 50, 60, 9}), 0);
  index_.erase(1);
  EXPECT_EQ(shared(whole, {2, 50, 60, 90}), 50) << "what stood before it is not known any more";
}

TEST_F(SharedContextTest, OfApproximatePiecesOnlyTheirOwnTextIsKnown) {
  index_.insert(1, {.tokens = join({middle, end}), .domain = domain_});
  EXPECT_EQ(shared(join({middle, end}), {1, 50, 60, 50}), 50) << "it may have stood anywhere";
  index_.insert(2, {.tokens = join({start, end}), .domain = domain_, .exact = true});
  EXPECT_EQ(shared(join({start, end}), {2, 40, 60, 40}), INT32_MAX) << "power";
  EXPECT_FALSE(index_.same_beginning(join({middle, end}), {1, 50, 60, 50}, 16));
  EXPECT_TRUE(index_.same_beginning(join({start, end}), {2, 40, 60, 40}, 16)) << "power";
}

// A prompt of 40 + 50 tokens and then a seam; the piece stood behind the same 90 and another seam.
TEST_F(SharedContextTest, TheSameBeginningMayEndInASeam) {
  const Ids seam = fresh(12), other = fresh(16), long_seam = fresh(17);
  const auto insert = [&](SegmentId id, const Ids& between) {
    const auto parent_tokens = static_cast<int32_t>(start.size());
    index_.insert(id, {.tokens = join({middle, between, end}),
                       .domain = domain_,
                       .exact = true,
                       .parent = 1,
                       .parent_tokens = parent_tokens});
  };
  index_.insert(1, {.tokens = start, .domain = domain_, .exact = true});
  insert(2, seam);
  insert(3, long_seam);
  const auto same = [&](const Ids& before, SegmentId id, int32_t offset) {
    return index_.same_beginning(join({before, end}), {id, offset, 60, static_cast<int32_t>(before.size())}, 16);
  };
  EXPECT_TRUE(same(join({start, middle, other}), 2, 62));
  EXPECT_TRUE(same(join({start, middle}), 2, 62)) << "no seam here";
  EXPECT_TRUE(same(join({start, middle, seam}), 2, 62)) << "the same one";
  EXPECT_FALSE(same(join({start, middle, long_seam}), 2, 62));
  EXPECT_FALSE(same(join({start, middle, other}), 3, 67));
  EXPECT_FALSE(same(join({start, fresh(50), other}), 2, 62));
  EXPECT_FALSE(same(join({fresh(40), middle, seam}), 2, 62)) << "it begins otherwise";
  EXPECT_FALSE(same(join({middle, other}), 2, 62));
  EXPECT_TRUE(same(join({start, middle, other}), 2, 60)) << "a piece that begins in the seam";
  index_.erase(1);
  EXPECT_FALSE(same(join({start, middle, other}), 2, 62)) << "what stood before it is not known any more";
}

// Behind next to nothing in both is not behind the same.
TEST_F(SharedContextTest, ABeginningIsAsLongAsASeam) {
  const Ids fifteen = part(start, 0, 15), sixteen = part(start, 0, 16);
  index_.insert(1, {.tokens = join({fifteen, end}), .domain = domain_, .exact = true});
  index_.insert(2, {.tokens = join({sixteen, middle}), .domain = domain_, .exact = true});
  index_.insert(3, {.tokens = start, .domain = domain_, .exact = true});
  EXPECT_FALSE(index_.same_beginning(join({fifteen, end}), {1, 15, 60, 15}, 16));
  EXPECT_TRUE(index_.same_beginning(join({sixteen, middle}), {2, 16, 50, 16}, 16));
  EXPECT_FALSE(index_.same_beginning(start, {3, 0, 40, 0}, 16));
  EXPECT_TRUE(index_.same_beginning(start, {3, 0, 40, 0}, 0)) << "power";
}

}  // namespace
}  // namespace kvilt

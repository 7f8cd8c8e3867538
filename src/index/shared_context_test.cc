// How much of the text before a piece stood before it where its KV was computed: through parents, to position 0.
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
}

}  // namespace
}  // namespace kvilt

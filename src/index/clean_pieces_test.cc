// Whose copies of a document a prompt finds: those that stand behind a beginning of its own, and no others.
#include "index/clean_pieces.h"

#include <gtest/gtest.h>

#include "index/tokens_for_test.h"

namespace kvilt {
namespace {

class CleanPiecesTest : public testing::Test {
 protected:
  // `document` computed behind `before`, from token 3 of a new segment on.
  SegmentId add(const Tokens& before, const Tokens& document, DomainId domain = 1) {
    const auto begin = static_cast<int32_t>(before.size());
    const Tokens prompt = join(before, document, text(99, 5));
    known.add(domain, prompt, {begin, begin + static_cast<int32_t>(document.size())}, ++last, 3);
    return last;
  }
  // The segment in which a prompt of `before` and `document` finds the document; 0: none.
  SegmentId find(const Tokens& before, const Tokens& document, DomainId domain = 1) const {
    const auto begin = static_cast<int32_t>(before.size());
    const kvilt::Run mark{begin, begin + static_cast<int32_t>(document.size())};
    const auto pieces = known.find(domain, join(before, document, text(98, 7)), {&mark, 1});
    if (pieces.empty()) return 0;
    EXPECT_EQ(pieces[0], (Piece{pieces[0].segment, 3, mark.size(), mark.begin}));
    return pieces[0].segment;
  }

  CleanPieces known{HashSecret::fixed(1)};
  SegmentId last = 0;
  const Tokens head = text(1, 9), attack = text(2, 9), document = text(3, 20), other = text(4, 12);
};

TEST_F(CleanPiecesTest, WhatStoodBeforeMustBeTheAskersOwn) {
  EXPECT_EQ(find(head, document), 0u);
  const SegmentId id = add(head, document);
  EXPECT_EQ(find(head, document), id);
  EXPECT_EQ(find(join(head, other), document), id) << "further on in the prompt";
  EXPECT_EQ(find(attack, document), 0u);
  EXPECT_EQ(find(join(other, head), document), 0u) << "not its beginning";
  EXPECT_EQ(find({}, document), 0u);
  EXPECT_EQ(find(head, join(document, text(5, 1))), 0u) << "another document";
  EXPECT_EQ(find(head, document, 2), 0u) << "another domain";
  const SegmentId alone = add({}, document);
  EXPECT_EQ(find(attack, document), alone) << "nothing stood before it";
  EXPECT_EQ(find(join(head, other), document), id) << "most text before it";
}

TEST_F(CleanPiecesTest, OthersCopiesDoNotHideIt) {
  for (size_t i = 0; i + 1 < CleanPieces::kMaxCopies; ++i) add(text(100 + static_cast<int32_t>(i), 9), document);
  const SegmentId id = add(head, document);
  EXPECT_EQ(find(head, document), id);
  for (size_t i = 0; i + 1 < CleanPieces::kMaxCopies; ++i) add(text(200 + static_cast<int32_t>(i), 9), document);
  EXPECT_EQ(find(head, document), id);
  add(attack, document);
  EXPECT_EQ(find(head, document), 0u) << "the oldest leaves";
  EXPECT_EQ(known.size(), CleanPieces::kMaxCopies);
}

TEST_F(CleanPiecesTest, ANewCopyTakesThePlaceOfItsLike) {
  const SegmentId first = add(head, document), second = add(head, document);
  EXPECT_EQ(known.size(), 1u);
  EXPECT_EQ(find(head, document), second);
  known.erase(first);
  EXPECT_EQ(find(head, document), second);
  known.erase(second);
  EXPECT_EQ(find(head, document), 0u);
  EXPECT_EQ(known.size(), 0u);
  EXPECT_LE(known.bytes(), CleanPieces(HashSecret::fixed(1)).bytes());
}

// A segment may hold a text twice: what it still holds stays.
TEST_F(CleanPiecesTest, WhatIsCutLeaves) {
  const SegmentId id = add(head, document);  // tokens [3, 23)
  const Tokens later = join(head, other, document);
  known.add(1, later, {21, 41}, id, 40);
  EXPECT_EQ(known.size(), 2u);
  known.truncate(id, 60);
  EXPECT_EQ(known.size(), 2u) << "power: it still holds both";
  known.truncate(id, 59);
  EXPECT_EQ(known.size(), 1u);
  EXPECT_EQ(find(head, document), id);
  known.truncate(id, 22);
  EXPECT_EQ(known.size(), 0u);
  EXPECT_EQ(find(head, document), 0u);
  EXPECT_TRUE(known.notes(id).empty());
}

TEST_F(CleanPiecesTest, EachMarkIsFoundByItself) {
  const SegmentId a = add(head, document), b = add(head, other);
  const Tokens prompt = join(head, text(5, 4), other, document, text(6, 10));
  const Runs marks{{13, 25}, {25, 45}, {45, 50}};
  EXPECT_EQ(known.find(1, prompt, marks), (std::vector<Piece>{{b, 3, 12, 13}, {a, 3, 20, 25}}));
}

}  // namespace
}  // namespace kvilt

// Which documents get a clean copy in idle time, and which of them goes first.
#include "engine/clean_copier.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

// A beginning of two tokens and documents of 10 that all hold their number.
Sequence asks_for(int32_t documents) {
  Sequence out;
  out.request.prompt.ids = {-1, -2};
  for (int32_t d = 0; d < documents; ++d) out.request.prompt.add_marked(std::vector<int32_t>(10, d));
  out.tokens = out.request.prompt.ids;
  return out;
}

int32_t document_of(const Sequence& s) { return s.request.prompt.ids.back(); }

TEST(CleanCopier, WhatIsAskedForOftenIsCopiedBehindTheBeginning) {
  CleanCopier copier;
  const Sequence asked = asks_for(2);
  for (int i = 1; i < CleanCopier::kOften; ++i) copier.asked(asked, asked.request.prompt.marks);
  EXPECT_FALSE(copier.ready());
  copier.asked(asked, asked.request.prompt.marks);
  ASSERT_TRUE(copier.ready());
  EXPECT_EQ(copier.start()->request.prompt.ids, (std::vector<int32_t>{-1, -2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  copier.finish({});
  EXPECT_EQ(document_of(*copier.start()), 1);
  copier.finish({});
  EXPECT_FALSE(copier.ready());
}

TEST(CleanCopier, WhatStandsBeforeIsBounded) {
  for (const size_t more : {0, 1}) {
    CleanCopier copier;
    Sequence s;
    s.request.prompt.ids.assign(CleanCopier::kMaxTokens - 10 + more, -1);
    s.request.prompt.add_marked(std::vector<int32_t>(10, 1));
    s.tokens = s.request.prompt.ids;
    for (int i = 0; i < CleanCopier::kOften; ++i) copier.asked(s, s.request.prompt.marks);
    EXPECT_EQ(copier.ready().has_value(), more == 0);
  }
}

TEST(CleanCopier, TenantsTakeTurns) {
  CleanCopier copier;
  Sequence many = asks_for(30), one = asks_for(1);
  many.owner = 1, one.owner = 2, one.domains.exact = 5;
  for (int i = 0; i < CleanCopier::kOften; ++i) copier.asked(many, many.request.prompt.marks);
  for (int i = 0; i < CleanCopier::kOften; ++i) copier.asked(one, one.request.prompt.marks);
  std::vector<OwnerId> turns;
  for (int i = 0; i < 3; ++i) {
    turns.push_back(copier.start()->owner);
    copier.finish({});
  }
  EXPECT_EQ(turns, (std::vector<OwnerId>{1, 2, 1}));
}

TEST(CleanCopier, TheTurnsOfAConversationAreNotMany) {
  CleanCopier copier;
  Sequence turn = asks_for(2);
  turn.tokens.push_back(-10);
  for (int i = 0; i < 2 * CleanCopier::kOften; ++i) {
    copier.asked(turn, turn.request.prompt.marks);
    turn.tokens.insert(turn.tokens.end(), 9, 100 + i);
  }
  EXPECT_FALSE(copier.ready());
  for (int i = 1; i < CleanCopier::kOften; ++i) {
    Sequence other = asks_for(2);
    other.tokens.push_back(-10 - i);
    copier.asked(other, other.request.prompt.marks);
  }
  EXPECT_TRUE(copier.ready());
}

TEST(CleanCopier, OneThatIsAlwaysInterruptedKeepsNobodyFromItsTurn) {
  CleanCopier copier;
  const Sequence asked = asks_for(2);
  for (int i = 0; i < CleanCopier::kOften; ++i) copier.asked(asked, asked.request.prompt.marks);
  for (int i = 0; i < CleanCopier::kMostInterrupts; ++i) {
    ASSERT_TRUE(copier.ready()) << i;
    EXPECT_EQ(document_of(*copier.start()), 0) << i;
    copier.interrupt();
    if (i > 0) continue;
    EXPECT_EQ(document_of(*copier.start()), 1) << "the other one's turn";
    copier.finish({});
  }
  EXPECT_FALSE(copier.ready()) << "it has had its tries";
  copier.interrupt();
  EXPECT_FALSE(copier.ready());
}

TEST(CleanCopier, OneThatIsAskedForAllTheTimeWaitsOnce) {
  CleanCopier copier;
  const Sequence one = asks_for(1), both = asks_for(2);
  for (size_t i = 0; i < CleanCopier::kOften * 2 * CleanCopier::kMaxWaiting; ++i)
    copier.asked(one, one.request.prompt.marks);
  for (int i = 0; i < CleanCopier::kOften; ++i) copier.asked(both, both.request.prompt.marks);
  EXPECT_EQ(document_of(*copier.start()), 0);
  for (int i = 0; i < CleanCopier::kOften; ++i) copier.asked(one, one.request.prompt.marks);
  copier.finish({});
  EXPECT_EQ(document_of(*copier.start()), 1);
  copier.finish({});
  EXPECT_FALSE(copier.ready()) << "nor again while it was copied";
}

}  // namespace
}  // namespace kvilt

// How often documents were asked for, when more of them are named than are counted.
#include "engine/ask_counter.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

TEST(AskCounter, ManyThatAreNamedOnceTakeNothingFromOthers) {
  AskCounter counter(3);
  const auto document = [&](int32_t id) { return counter.key(1, {&id, 1}); };
  const auto asked = [&](int32_t id) {
    AskCounter::Asker asker(counter, {});
    return counter.asked(document(id), asker);
  };
  EXPECT_TRUE(counter.first(document(-1)));
  for (int32_t i = 0; i < 3000; ++i) EXPECT_FALSE(asked(i));
  EXPECT_FALSE(asked(-1));
  for (int32_t i = 3000; i < 7000; ++i) EXPECT_FALSE(asked(i));
  EXPECT_TRUE(asked(-1)) << "the third time";
  EXPECT_FALSE(asked(7000));
  for (int32_t i = 10000; i < 20000; ++i) asked(i);
  EXPECT_TRUE(counter.first(document(-1))) << "nobody asked for long";
}

// The turns of a conversation are one that asks; so is a prompt that holds a document twice.
TEST(AskCounter, AConversationCountsOnce) {
  AskCounter counter(2);
  const int32_t id = 1;
  const Digest document = counter.key(1, {&id, 1});
  const auto asked = [&](const std::vector<int32_t>& prompt) {
    AskCounter::Asker asker(counter, prompt);
    counter.asked(document, asker);
    return counter.asked(document, asker);
  };
  std::vector<int32_t> prompt(20, 1);
  EXPECT_FALSE(asked(prompt));
  for (int turn = 0; turn < 5; ++turn) {
    prompt.insert(prompt.end(), 30, turn);
    EXPECT_FALSE(asked(prompt)) << "the next turn";
  }
  std::vector<int32_t> other(20, 1);
  other[0] = 2;
  other.insert(other.end(), 30, 0);
  EXPECT_TRUE(asked(other)) << "it ends as a turn, and is another conversation";
  counter.forget(document);
  EXPECT_FALSE(asked(prompt));
  EXPECT_TRUE(asked(prompt)) << "the same again is another one";
}

}  // namespace
}  // namespace kvilt

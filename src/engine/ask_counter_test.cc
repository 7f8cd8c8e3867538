// How often documents were asked for, when more of them are named than are counted.
#include "engine/ask_counter.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

TEST(AskCounter, ManyThatAreNamedOnceTakeNothingFromOthers) {
  AskCounter counter(3);
  const auto document = [&](int32_t id) { return counter.key(1, {&id, 1}); };
  EXPECT_TRUE(counter.first(document(-1)));
  for (int32_t i = 0; i < 3000; ++i) EXPECT_FALSE(counter.asked(document(i)));
  EXPECT_FALSE(counter.asked(document(-1)));
  for (int32_t i = 3000; i < 7000; ++i) EXPECT_FALSE(counter.asked(document(i)));
  EXPECT_TRUE(counter.asked(document(-1))) << "the third time";
  EXPECT_FALSE(counter.asked(document(7000)));
  for (int32_t i = 10000; i < 20000; ++i) counter.asked(document(i));
  EXPECT_TRUE(counter.first(document(-1))) << "nobody asked for long";
}

}  // namespace
}  // namespace kvilt

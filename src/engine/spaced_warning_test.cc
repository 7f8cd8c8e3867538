#include "engine/spaced_warning.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

using std::chrono::seconds;

TEST(SpacedWarning, IsSaidOnceAMinuteWithHowManyThereWere) {
  SpacedWarning warning("it is computed");
  const SpacedWarning::Clock::time_point start{seconds(1000)};
  EXPECT_EQ(warning.text_of("a", start), "it is computed: a");
  for (int i = 1; i <= 20; ++i) EXPECT_EQ(warning.text_of("b", start + seconds(i)), std::nullopt) << i;
  EXPECT_EQ(warning.text_of("c", start + seconds(60)), "it is computed: c (the last of 21 since this was said before)");
  EXPECT_EQ(warning.text_of("d", start + seconds(61)), std::nullopt);
  EXPECT_NE(warning.text_of("e", start + seconds(7200))->find("of 2 since"), std::string::npos) << "and hours later";
  EXPECT_EQ(warning.text_of("f", start + seconds(9000)), "it is computed: f");
}

}  // namespace
}  // namespace kvilt

#include "base/line_limits.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

// The text that is left, and a bar where it ended by its lines; in pieces of so many bytes.
std::string lines_of(const std::string& text, int min_indent, double seconds = -1, size_t piece = 1) {
  LineLimits limits(min_indent, seconds);
  std::string out;
  for (size_t at = 0; at < text.size(); at += piece) {
    const size_t begin = out.size();
    out += text.substr(at, piece);
    if (limits.ends(out, begin)) return out + "|";
  }
  return out;
}

TEST(LineLimits, EndAtALineThatIsIndentedLess) {
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{100}}) {
    EXPECT_EQ(lines_of("a\n    b\n  c\n", 4, -1, piece), "a\n    b\n  |") << piece;
    EXPECT_EQ(lines_of("a\n    b\n  c\n", 2, -1, piece), "a\n    b\n  c\n") << "power";
    EXPECT_EQ(lines_of("a\n\t\tb\n\tc", 2, -1, piece), "a\n\t\tb\n\t|") << "tabs";
    EXPECT_EQ(lines_of("a\n  b\n\n  c", 2, -1, piece), "a\n  b\n|") << "an empty line has none";
    EXPECT_EQ(lines_of("a\n  b\nc", 0, -1, piece), "a\n  b\nc");
  }
  EXPECT_EQ(lines_of("first", 4), "first") << "it goes on from the prompt";
  EXPECT_EQ(lines_of("a\n  ", 4), "a\n  ") << "more may come";
}

TEST(LineLimits, EndWithALineOnceTheTimeIsOver) {
  EXPECT_EQ(lines_of("a b\nc\nd", 0, 0), "a b\n|");
  EXPECT_EQ(lines_of("a b c", 0, 0), "a b c") << "not within a line";
  EXPECT_EQ(lines_of("a b\nc\nd", 0, 1e9), "a b\nc\nd");
  EXPECT_EQ(lines_of("a b\n c\nd", 1, 1e9), "a b\n c\n|") << "both";
}

}  // namespace
}  // namespace kvilt

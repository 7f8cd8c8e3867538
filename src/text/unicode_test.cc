// Unicode forms next to ICU's own, and what a terminal is shown.
#include "text/unicode.h"

#include <gtest/gtest.h>
#include <unicode/normalizer2.h>
#include <unicode/unistr.h>

#include <random>

namespace kvilt {
namespace {

constexpr NormalForm kForms[] = {NormalForm::kNfc, NormalForm::kNfd, NormalForm::kNfkc, NormalForm::kNfkd};

std::string utf8(const std::vector<int32_t>& characters) {
  std::string out;
  for (const int32_t c : characters) append_utf8(out, c);
  return out;
}

std::string formed(std::string_view text, NormalForm form) {
  auto out = to_normal_form(text, form);
  EXPECT_TRUE(out.ok());
  return out.ok() ? std::move(out).value() : "";
}

// ICU alone, over UTF-16.
std::string icu_form(const std::string& text, NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = form == NormalForm::kNfc    ? icu::Normalizer2::getNFCInstance(status)
                                       : form == NormalForm::kNfd  ? icu::Normalizer2::getNFDInstance(status)
                                       : form == NormalForm::kNfkc ? icu::Normalizer2::getNFKCInstance(status)
                                                                   : icu::Normalizer2::getNFKDInstance(status);
  std::string out;
  normalizer->normalize(icu::UnicodeString::fromUTF8(text), status).toUTF8String(out);
  EXPECT_TRUE(U_SUCCESS(status));
  return out;
}

// Marks of many classes; two that decompose into marks (344, F73); marks only after compatibility decomposition (FF9E);
// characters that compose backwards but are no marks (9BE, 1161, 11A8); composites with marks of their own.
constexpr int32_t kMarks[] = {0x300,  0x301,  0x302,  0x308,   0x323,   0x327,   0x338,  0x345, 0x344, 0x340,
                              0xF71,  0xF72,  0xF73,  0xF74,   0xF80,   0x5B0,   0x64B,  0x651, 0x94D, 0x93C,
                              0x3099, 0x302A, 0xFF9E, 0x1D165, 0x1D16E, 0x110BA, 0x20D2, 0x34F};
constexpr int32_t kStarters[] = {'a',    'e',    ' ',    0xE9,   0x1E69, 0x1EA5, 0x9C7,   0x9BE,  0x1100,
                                 0x1161, 0x11A8, 0xAC00, 0x304B, 0xFDFA, 0x2126, 0x1D15E, 0x4E2D, 0x110A5};

TEST(NormalForm, AnyRunOfMarksIsAsIcuHasIt) {
  std::mt19937_64 rng(7);
  int changed = 0, long_runs = 0, forms_differ = 0;
  for (int round = 0; round < 4000; ++round) {
    // A few marks only, or all: runs of one class, and of many.
    const size_t kinds = 1 + rng() % std::size(kMarks), first = rng() % std::size(kMarks);
    std::vector<int32_t> text;
    for (int part = static_cast<int>(rng() % 4); part >= 0; --part) {
      if (rng() % 8) text.push_back(kStarters[rng() % std::size(kStarters)]);
      const size_t run = rng() % (round % 2 ? 100 : 36);
      for (size_t i = 0; i < run; ++i) text.push_back(kMarks[(first + rng() % kinds) % std::size(kMarks)]);
      long_runs += run > 40;
    }
    const std::string given = utf8(text);
    for (const NormalForm form : kForms) {
      const std::string wanted = icu_form(given, form);
      ASSERT_EQ(formed(given, form), wanted) << "round " << round << " form " << static_cast<int>(form);
      changed += wanted != given;
      forms_differ += wanted != icu_form(given, NormalForm::kNfc);
    }
  }
  EXPECT_GT(changed, 4000);  // power: order and form do matter
  EXPECT_GT(forms_differ, 4000);
  EXPECT_GT(long_runs, 1000);
}

TEST(NormalForm, MarksOfOneClassKeepTheirOrder) {
  std::vector<int32_t> one{'x'}, other{'x'};
  for (int i = 0; i < 50; ++i) {
    one.insert(one.end(), {0x300, 0x301, 0x323});
    other.insert(other.end(), {0x301, 0x300, 0x323});
  }
  for (const NormalForm form : kForms) {
    EXPECT_EQ(formed(utf8(one), form), icu_form(utf8(one), form));
    EXPECT_NE(formed(utf8(one), form), formed(utf8(other), form));
  }
}

// The square of these lengths takes minutes.
TEST(NormalForm, AMegabyteOfMarksEnds) {
  constexpr size_t kTimes = 250'000;
  const auto times = [](int32_t c, size_t n) {
    std::string one, out;
    append_utf8(one, c);
    for (size_t i = 0; i < n; ++i) out += one;
    return out;
  };
  const auto alternate = [](std::vector<int32_t> unit) {
    std::string out = "a", one = utf8(unit);
    for (size_t i = 0; i < kTimes; ++i) out += one;
    return out;
  };
  const std::string above_below = alternate({0x301, 0x323});
  const std::string rest = times(0x323, kTimes - 1), above = times(0x301, kTimes);
  EXPECT_TRUE(formed(above_below, NormalForm::kNfd) == "a" + times(0x323, 1) + rest + above);
  EXPECT_TRUE(formed(above_below, NormalForm::kNfc) == utf8({0x1EA1}) + rest + above);
  EXPECT_TRUE(formed(above_below, NormalForm::kNfkc) == utf8({0x1EA1}) + rest + above);
  EXPECT_TRUE(formed(above_below, NormalForm::kNfkd) == "a" + times(0x323, 1) + rest + above);
  // Marks that only a decomposition shows.
  EXPECT_TRUE(formed(alternate({0x344, 0x323}), NormalForm::kNfd) ==
              "a" + times(0x323, kTimes) + formed(times(0x344, kTimes), NormalForm::kNfd));
  EXPECT_TRUE(formed(alternate({0xF73, 0x301, 0xF71}), NormalForm::kNfd) ==
              "a" + times(0xF71, 2 * kTimes) + times(0xF72, kTimes) + above);
  EXPECT_TRUE(formed(alternate({0x301, 0xFF9E}), NormalForm::kNfkd) == "a" + times(0x3099, kTimes) + above);
}

TEST(ForTerminal, ControlsAreShownAndTextStays) {
  EXPECT_EQ(for_terminal("Qwen2.5 \xE4\xB8\xAD\xF0\x9F\x90\xB1 \"x\\y\""),
            "Qwen2.5 \xE4\xB8\xAD\xF0\x9F\x90\xB1 \"x\\y\"");
  EXPECT_EQ(for_terminal("\x1b[31m\a\n\x7f"), "\\u001b[31m\\u0007\\u000a\\u007f");
  EXPECT_EQ(for_terminal("\xC2\x9B"
                         "2J"),
            "\\u009b2J");
  EXPECT_EQ(for_terminal("\xE2\x80\xAE"), "\\u202e");  // right to left from here
  EXPECT_EQ(for_terminal("a\x9b\xE4\xB8"), "a\\x9b\\xe4\\xb8");
  EXPECT_EQ(for_terminal(std::string_view("\0", 1)), "\\u0000");
  EXPECT_EQ(for_terminal(""), "");
}

}  // namespace
}  // namespace kvilt

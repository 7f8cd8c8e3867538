#include "server/input_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "server/json_fields.h"

namespace kvilt::server {
namespace {

// The text, cut after every `step` bytes of the arguments; and how many pieces had some of it.
std::string input_of_pieces(const std::string& arguments, size_t step, int* pieces = nullptr) {
  InputText reader;
  std::string out;
  for (size_t at = 0; at < arguments.size(); at += step) {
    const std::string piece = reader.push(std::string_view(arguments).substr(at, step));
    if (pieces && !piece.empty()) ++*pieces;
    out += piece;
  }
  return out + reader.finish();
}

TEST(InputText, IsTheStringHoweverItWasCut) {
  const std::vector<std::string> texts = {"",
                                          "x",
                                          "*** Begin Patch\n+\"a\\b\"\t{}\r\n*** End Patch",
                                          "caf\xC3\xA9 \xF0\x9F\x99\x82",
                                          std::string("\x01\x1f\0", 3),
                                          "\"}",
                                          "\\\\u0041\\"};
  for (const std::string& text : texts) {
    for (const bool ascii : {false, true}) {
      const std::string written = Json{{"input", text}}.dump(-1, ' ', ascii);
      for (const size_t step : {1, 2, 5, 100}) EXPECT_EQ(input_of_pieces(written, step), text) << written << step;
    }
  }
  int pieces = 0;
  EXPECT_EQ(input_of_pieces(" { \"input\" :\n\"abcdefgh\" , \"more\": \"no\"}", 1, &pieces), "abcdefgh");
  EXPECT_EQ(pieces, 8) << "each letter is given as it comes";
}

TEST(InputText, OtherArgumentsAreReadWhole) {
  for (const size_t step : {1, 3, 100}) {
    EXPECT_EQ(input_of_pieces(R"({"why": 1, "input": "a\nb"})", step), "a\nb");
    for (const char* other : {R"({"patch": "x"})", R"({"input": 3})", "*** Begin Patch", "{}", "[\"input\"]"})
      EXPECT_EQ(input_of_pieces(other, step), other);
  }
}

TEST(InputText, WhatWasCutOrIsNoJsonLosesNothingBefore) {
  for (const size_t step : {1, 4, 100}) {
    EXPECT_EQ(input_of_pieces(R"({"input": "abc)", step), "abc");
    EXPECT_EQ(input_of_pieces(R"({"input": "abc\u00)", step), "abc");
    EXPECT_EQ(input_of_pieces(R"({"inp)", step), "");
    EXPECT_EQ(input_of_pieces(R"({"input": "\d\q\ud800x\ud83d\u0041"})", step), R"(\d\q\ud800x\ud83d\u0041)");
    EXPECT_EQ(input_of_pieces(R"({"input": "\u00"})", step), R"(\u00)");
    EXPECT_EQ(input_of_pieces(R"({"input": "\ud83d"})", step), R"(\ud83d)");
  }
}

}  // namespace
}  // namespace kvilt::server

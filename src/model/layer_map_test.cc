#include "model/layer_map.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

TEST(LayerMap, IsReadAsItWasWritten) {
  const LayerMap map = choose_layer_map({0.5, 0, 1, 0.5}, 2);
  EXPECT_EQ(map.stable, (std::vector<int>{2, 3})) << "the deeper of two that are alike";
  EXPECT_EQ(choose_layer_map({0.5, 0, 1, 0.5}, 9).stable.size(), 4u);
  const auto read = parse_layer_map(layer_map_json(map), "test");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->L, 4);
  EXPECT_EQ(read->stable, map.stable);
  EXPECT_EQ(read->scores, map.scores);
  EXPECT_TRUE(check_layer_map(*read, 4, "test").ok());
  EXPECT_FALSE(check_layer_map(*read, 5, "test").ok());
}

TEST(LayerMap, WhatIsNoMapIsRefusedWithItsField) {
  const auto message = [](const std::string& text) {
    const auto map = parse_layer_map(text, "file");
    return map.ok() ? std::string() : map.error().message;
  };
  EXPECT_EQ(message(R"({"num_layers": 4, "stable_layers": [0, 3]})"), "") << "power";
  EXPECT_NE(message("[]").find("JSON object"), std::string::npos);
  EXPECT_NE(message(R"({"stable_layers": [0]})").find("num_layers"), std::string::npos);
  EXPECT_NE(message(R"({"num_layers": -4, "stable_layers": [0]})").find("num_layers"), std::string::npos);
  for (const char* stable : {"[]", "[4]", "[-1]", "[1, 1]", "[2, 1]", "[0.5]", "3", "[\"1\"]"}) {
    SCOPED_TRACE(stable);
    EXPECT_NE(message(std::string(R"({"num_layers": 4, "stable_layers": )") + stable + "}").find("stable_layers"),
              std::string::npos);
  }
  for (const char* scores : {"[1]", "[1, \"a\"]", "null"}) {
    SCOPED_TRACE(scores);
    EXPECT_NE(
        message(std::string(R"({"num_layers": 2, "stable_layers": [0], "scores": )") + scores + "}").find("scores"),
        std::string::npos);
  }
}

}  // namespace
}  // namespace kvilt

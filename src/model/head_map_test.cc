// Head maps: a map that is written is read back; other programs' names; a map of another model is refused, and the
// message says why.
#include "model/head_map.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace kvilt {
namespace {

const std::string kGood = R"({"num_layers": 2, "num_kv_heads": 3,
  "kv_head_classification": [["local", "global", "retrieval"], ["dense", "local", "local"]],
  "kv_head_max_distance": [[64, -1, -1], [-1, 0, -1]], "kv_head_sink_size": [[4, 0, 0], [0, 0, 8]],
  "retrieval_top_p": 0.8, "dense_prefix_layers": 1, "created_by": "someone"})";

std::string why(const std::string& text) {
  const auto map = parse_head_map(text, "m.json");
  return map.ok() ? "" : map.error().message;
}
std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(HeadMap, Reads) {
  const HeadMap map = parse_head_map(kGood, "m.json").value();
  EXPECT_EQ(map.L, 2);
  EXPECT_EQ(map.G, 3);
  EXPECT_EQ(map.heads[2], HeadClass::kRetrieval);
  EXPECT_EQ(map.heads[3], HeadClass::kDense);
  EXPECT_EQ(map.window, (std::vector<int32_t>{64, -1, -1, -1, 0, 512}));
  EXPECT_EQ(map.sink, (std::vector<int32_t>{4, 0, 0, 0, 0, 8}));
  EXPECT_EQ(map.retrieval_top_p, 0.8);
  EXPECT_FALSE(map.local(0, 0)) << "below dense_prefix_layers";
  EXPECT_TRUE(map.local(1, 1));
  EXPECT_EQ(map.count(HeadClass::kLocal), 3);
  EXPECT_DOUBLE_EQ(map.global_share(), 4 / 6.0);
}

TEST(HeadMap, DefaultsAndOldNames) {
  const HeadMap map = parse_head_map(R"({"num_layers": 1, "num_kv_heads": 4,
      "kv_head_classification": [["local_full", "limited", "streaming", "sink_dominant"]]})",
                                     "m.json")
                          .value();
  EXPECT_EQ(map.count(HeadClass::kLocal), 4);
  EXPECT_EQ(map.window[2], 512);
  EXPECT_EQ(map.sink[2], 4);
  EXPECT_EQ(map.retrieval_top_p, 0.9);
  EXPECT_EQ(map.dense_prefix_layers, 0);
}

TEST(HeadMap, WrittenAndReadIsTheSame) {
  const HeadMap map = parse_head_map(kGood, "m.json").value();
  const std::string text = head_map_json(map);
  const HeadMap again = parse_head_map(text, "again").value();
  EXPECT_EQ(head_map_json(again), text);
  EXPECT_EQ(again.heads, map.heads);
  EXPECT_EQ(again.window, map.window);
  EXPECT_EQ(again.sink, map.sink);
  EXPECT_EQ(again.dense_prefix_layers, 1);
  EXPECT_EQ(again.retrieval_top_p, 0.8);
  EXPECT_NE(text, head_map_json(uniform_head_map(2, 3, HeadClass::kLocal))) << "power";
}

TEST(HeadMap, MistakesAreNamed) {
  EXPECT_EQ(why(kGood), "");
  EXPECT_NE(why("[]").find("m.json"), std::string::npos);
  EXPECT_NE(why("{").find("m.json"), std::string::npos);
  EXPECT_NE(why(with(kGood, "\"num_layers\": 2", "\"num_layers\": 3")).find("3 layers"), std::string::npos);
  EXPECT_NE(why(with(kGood, "\"num_layers\": 2", "\"num_layers\": 4000000000")).find("num_layers"), std::string::npos);
  EXPECT_NE(why(with(kGood, "\"num_layers\": 2", "\"num_layers\": -1")).find("num_layers"), std::string::npos);
  EXPECT_NE(why(with(kGood, "\"num_kv_heads\": 3", "\"num_kv_heads\": 2")).find("kv_head_classification[0]"),
            std::string::npos);
  EXPECT_NE(why(with(kGood, "\"dense\"", "\"densest\"")).find("kv_head_classification[1][0]"), std::string::npos);
  EXPECT_NE(why(with(kGood, "\"dense\"", "7")).find("kv_head_classification[1][0]"), std::string::npos);
  EXPECT_NE(why(with(kGood, "[64,", "[-2,")).find("kv_head_max_distance[0][0]"), std::string::npos);
  EXPECT_NE(why(with(kGood, "[64,", "[\"64\",")).find("kv_head_max_distance[0][0]"), std::string::npos);
  EXPECT_NE(why(with(kGood, "[0, 0, 8]", "[0, 0, -8]")).find("kv_head_sink_size[1][2]"), std::string::npos);
  EXPECT_NE(why(with(kGood, "[[4, 0, 0]", "[[4, 0]")).find("kv_head_sink_size[0]"), std::string::npos);
  EXPECT_NE(why(with(kGood, "0.8", "1.5")).find("retrieval_top_p"), std::string::npos);
  EXPECT_NE(why(with(kGood, "layers\": 1", "layers\": 3")).find("dense_prefix_layers"), std::string::npos);
  EXPECT_NE(why(with(kGood, "kv_head_classification", "classes")).find("is missing"), std::string::npos);
  EXPECT_NE(why(R"({"num_layers": 4096, "num_kv_heads": 4096, "kv_head_classification": []})").find("million"),
            std::string::npos);
  EXPECT_FALSE(read_head_map("tests/data/no such map.json").ok());
}

TEST(HeadMap, IsOfThisModel) {
  ModelConfig config;
  config.L = 2;
  config.G = 3;
  const HeadMap map = parse_head_map(kGood, "m.json").value();
  EXPECT_TRUE(check_head_map(map, config, "m.json").ok());
  config.G = 2;
  const Status bad = check_head_map(map, config, "m.json");
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("2 layers and 3 KV heads"), std::string::npos);
  EXPECT_NE(bad.error().message.find("2 layers and 2 KV heads"), std::string::npos);
  EXPECT_NE(bad.error().message.find("m.json"), std::string::npos);
}

}  // namespace
}  // namespace kvilt

// Sparse maps: a map that is written is read back, byte for byte as its page says; mistakes are named. And the choice:
// each head takes what holds most at the cost that all have.
#include "model/sparse_map.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/pattern_choice.h"

namespace kvilt {
namespace {

using Is = HeadPattern::Is;

const std::string kGoodMap = R"({
  "num_layers": 2,
  "num_kv_heads": 2,
  "kv_head_pattern": [
    [{"pattern": "lines", "columns": 100, "distances": 800}, {"pattern": "blocks", "blocks": 40}],
    [{"pattern": "ashape", "sink": 64, "window": 1024}, {"pattern": "lines", "columns": 0, "distances": 0}]
  ]
}
)";

std::string why_not(const std::string& text) {
  const auto map = parse_sparse_map(text, "m.json");
  return map.ok() ? "" : map.error().message;
}
std::string changed(const std::string& from, const std::string& to) {
  std::string text = kGoodMap;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(SparseMap, WhatIsWrittenIsReadAgain) {
  const SparseMap map = parse_sparse_map(kGoodMap, "m.json").value();
  ASSERT_EQ(map.heads.size(), 4u);
  EXPECT_EQ(map.heads[0], (HeadPattern{.is = Is::kLines, .columns = 100, .distances = 800}));
  EXPECT_EQ(map.heads[1], (HeadPattern{.is = Is::kBlocks, .blocks = 40}));
  EXPECT_EQ(map.heads[2], (HeadPattern{.is = Is::kAShape, .sink = 64, .window = 1024}));
  EXPECT_EQ(sparse_map_json(map), kGoodMap);
  EXPECT_NE(sparse_map_json(uniform_sparse_map(2, 2, {})), kGoodMap) << "power";
  EXPECT_EQ(why_not(changed("\"blocks\": 40", "\"blocks\": 40, \"columns\": -5, \"by\": \"me\"")), "")
      << "other fields are ignored";
}

TEST(SparseMap, MistakesAreNamed) {
  const auto names = [](const std::string& from, const std::string& to, const std::string& what) {
    const std::string message = why_not(changed(from, to));
    EXPECT_NE(message.find("m.json"), std::string::npos) << to;
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  EXPECT_EQ(why_not(kGoodMap), "") << "power";
  names("{\n", "[\n", "m.json");
  names("\"num_layers\": 2", "\"num_layers\": 3", "3 layers");
  names("\"num_kv_heads\": 2", "\"num_kv_heads\": 0", "num_kv_heads");
  names("kv_head_pattern", "patterns", "'kv_head_pattern' is missing");
  names("\"blocks\", \"blocks\"", "\"block\", \"blocks\"", "kv_head_pattern[0][1]");
  names("\"blocks\": 40", "\"blocks\": 0", "kv_head_pattern[0][1].blocks");
  names("\"blocks\": 40", "\"blocks\": 1e9", "kv_head_pattern[0][1].blocks");
  names(", \"distances\": 800", "", "kv_head_pattern[0][0].distances");
  names("\"window\": 1024", "\"window\": -1", "kv_head_pattern[1][0].window");
  names("{\"pattern\": \"ashape\", \"sink\": 64, \"window\": 1024}", "7", "kv_head_pattern[1][0]");
  names("{\"pattern\": \"blocks\", \"blocks\": 40}", "{\"pattern\": 3}", "kv_head_pattern[0][1]");
  EXPECT_FALSE(read_sparse_map("tests/data/no such map.json").ok());
}

TEST(SparseMap, IsOfThisModel) {
  ModelConfig config;
  config.L = 2, config.G = 2;
  const SparseMap map = parse_sparse_map(kGoodMap, "m.json").value();
  EXPECT_TRUE(check_sparse_map(map, config, "m.json").ok());
  config.L = 3;
  const Status bad = check_sparse_map(map, config, "m.json");
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("2 layers and 2 KV heads"), std::string::npos);
  EXPECT_NE(bad.error().message.find("3 layers and 2 KV heads"), std::string::npos);
}

// Two heads of one layer, three patterns.
SparseProfile small_profile() {
  SparseProfile out{1, 2, 1000, {}, {}, {}, {3, 1}};
  out.patterns = {{.is = Is::kAShape}, {.is = Is::kBlocks, .blocks = 3}, {.is = Is::kLines}};
  out.held = {0.5, 0.6, 0.9, 0.8, 0.7, 0.8};
  out.cost = {0.1, 0.2, 0.4, 0.1, 0.2, 0.4};
  return out;
}

TEST(PatternChoice, TakesWhatHoldsMostAtTheCost) {
  const SparseProfile profile = small_profile();
  const auto chosen = [&](double share, std::optional<Is> only = {}) {
    const SparseMap map = choose_sparse_map(profile, share, only);
    return std::pair(map.heads[0].is, map.heads[1].is);
  };
  EXPECT_EQ(chosen(1), std::pair(Is::kLines, Is::kAShape)) << "the first on a tie";
  EXPECT_EQ(chosen(0.3), std::pair(Is::kBlocks, Is::kAShape));
  EXPECT_EQ(chosen(0.15), std::pair(Is::kAShape, Is::kAShape));
  EXPECT_EQ(chosen(0.05), std::pair(Is::kAShape, Is::kAShape)) << "nothing fits: the cheapest";
  EXPECT_EQ(chosen(0.05, Is::kBlocks), std::pair(Is::kBlocks, Is::kBlocks));
  const HeldAt held = held_at(profile, choose_sparse_map(profile, 0.3));
  EXPECT_DOUBLE_EQ(held.held, (3 * 0.6 + 0.8) / 4) << "three rows of four are the first head's";
  EXPECT_DOUBLE_EQ(held.cost, (3 * 0.2 + 0.1) / 4);
}

TEST(PatternChoice, ProfilesAreAveraged) {
  SparseProfile other = small_profile();
  for (double& held : other.held) held /= 2;
  for (double& cost : other.cost) cost *= 3;
  other.tokens = 2000;
  const SparseProfile mean = mean_profile({small_profile(), other});
  EXPECT_EQ(mean.tokens, 1500);
  EXPECT_DOUBLE_EQ(mean.held[2], 0.675);
  EXPECT_DOUBLE_EQ(mean.cost[2], 0.8);
  EXPECT_EQ(mean.rows, (std::vector<double>{6, 2}));
}

TEST(PatternChoice, CandidatesAreOfAllKindsAndDiffer) {
  const std::vector<HeadPattern> all = candidate_patterns(3000);
  for (const Is is : {Is::kAShape, Is::kLines, Is::kBlocks})
    EXPECT_GT(std::ranges::count(all, is, &HeadPattern::is), 3);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(std::ranges::find(all, all[i]) - all.begin(), static_cast<int>(i));
  EXPECT_LT(candidate_patterns(10).size(), all.size());
  EXPECT_FALSE(candidate_patterns(10).empty());
}

}  // namespace
}  // namespace kvilt

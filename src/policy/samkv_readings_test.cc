// What SamKV's paper leaves open, on matrices made by hand: each reading and what it changes.
#include <gtest/gtest.h>

#include "policy/policy.h"
#include "policy/samkv_choice.h"

namespace kvilt {
namespace {

constexpr BlockCut kReadCut{.block = 4, .initial = 1, .local = 2};
using Anchor = BlockChoice::Anchor;

// A document of one layer: by block the mean key's channel 0, with the blocks that are looked at most and least.
DocumentStats with_keys(const std::vector<float>& keys, int32_t most, int32_t least, std::vector<float> local) {
  LayerStats layer;
  for (const float key : keys) layer.block_keys.insert(layer.block_keys.end(), {key, 0});
  layer.local_query = std::move(local);
  layer.attention.max_block = most;
  layer.attention.min_block = least;
  return {static_cast<int32_t>(keys.size()) * 4, {layer}};
}

BlockChoice choice_for(const std::vector<DocumentStats>& documents) {
  BlockChoice out;
  out.cut = kReadCut;
  out.stable = {0};
  out.documents = static_cast<int32_t>(documents.size());
  for (const DocumentStats& of : documents) out.all_blocks += kReadCut.blocks(of.tokens);
  return out;
}

// First block .9, last ones .1: the anchor is .37, .9 or .1 of a scale from 0 to 1.
TEST(SamKVReadings, TheAnchorIsOfBothEndsOrOfOne) {
  const std::vector<DocumentStats> one{with_keys({.9F, .2F, 1, .6F, .5F, .4F, .3F, 0, .1F, .1F}, 2, 7, {1, 0})};
  BlockChoice choice = choice_for(one);
  const auto kept = [&] { return choose_blocks(choice, {.H = 1, .G = 1, .E = 2}, {{1, 0}}, one)[0][0].size(); };
  EXPECT_EQ(kept(), 4u) << ".63 of seven";
  choice.anchor = Anchor::kFirst;
  EXPECT_EQ(kept(), 1u) << ".1 of seven";
  choice.anchor = Anchor::kLast;
  EXPECT_EQ(kept(), 6u) << ".9 of seven";
  choice.cut.initial = 0;  // nothing is first: the last ones stand for it
  choice.anchor = Anchor::kFirst;
  EXPECT_EQ(kept(), 7u) << ".9 of eight";
}

// Two documents of ten blocks, seven of them middle ones, all of which are proposed.
TEST(SamKVReadings, WhatIsKeptIsAShareOfAllBlocksOrOfTheMiddle) {
  const DocumentStats a = with_keys({-9, 1, 2, 3, 4, 5, 6, 7, -9, -9}, 7, 1, {1, 0}),
                      b = with_keys({-9, 1.5F, 2.5F, 3.5F, 4.5F, 5.5F, 6.5F, 7.5F, -9, -9}, 7, 1, {1, 0});
  const std::vector<DocumentStats> two{a, b};
  BlockChoice choice = choice_for(two);
  const auto kept = [&] {
    const auto layer = choose_blocks(choice, {.H = 1, .G = 1, .E = 2}, {{1, 0}}, two)[0];
    return layer[0].size() + layer[1].size();
  };
  EXPECT_EQ(kept(), 10u);
  choice.middle_only = true;
  EXPECT_EQ(kept(), 7u);
}

// Two query heads of two channels over one KV head. The other document's end asks in its first head across the
// question (a cosine of 0), in its second along it: over both heads the cosine is .71, and what it asks in the first
// comes along with that weight; by head it does not. Only along that channel does block 4 weigh.
TEST(SamKVReadings, TheCosineIsOfTheLayerOrOfEachHead) {
  DocumentStats a = with_keys({0, .1F, .2F, .3F, .1F, .1F, .1F, 0, 0, 0}, 3, 5, {0, 0, 0, 0}), b = a;
  a.layers[0].block_keys[3 * 2] = .5F;
  a.layers[0].block_keys[4 * 2 + 1] = 4;
  b.layers[0].local_query = {0, 1, 1, 0};
  const std::vector<DocumentStats> two{a, b};
  BlockChoice choice = choice_for(two);
  choice.keep = 0.35;  // one middle block
  const auto kept = [&] { return choose_blocks(choice, {.H = 2, .G = 1, .E = 2}, {{1, 0, 1, 0}}, two)[0][0]; };
  EXPECT_EQ(kept(), (std::vector<int32_t>{4}));
  choice.cosine_by_head = true;
  EXPECT_EQ(kept(), (std::vector<int32_t>{3}));
  choice.bias = false;
  EXPECT_EQ(kept(), (std::vector<int32_t>{3})) << "as without the bias";
}

TEST(SamKVReadings, AreParametersOfThePolicy) {
  const auto taken = [](std::map<std::string, std::string> params) { return make_policy("samkv", params).ok(); };
  EXPECT_TRUE(taken({{"anchor", "first"}, {"total", "middle"}, {"cosine", "head"}}));
  EXPECT_TRUE(taken({{"keep", "0.5"}, {"cosine", "head"}}));
  EXPECT_FALSE(taken({{"keep", "0.5"}, {"anchor", "first"}})) << "nobody asks how much";
  EXPECT_FALSE(taken({{"keep", "0.5"}, {"total", "middle"}}));
  EXPECT_FALSE(taken({{"bias", "no"}, {"cosine", "head"}})) << "there is none";
  EXPECT_FALSE(taken({{"anchor", "both"}}));
  EXPECT_FALSE(taken({{"fate", "fuse"}, {"theta", "-0.5"}})) << "neither a share nor -1";
  EXPECT_TRUE(taken({{"fate", "fuse"}, {"theta", "-1"}}));
}

}  // namespace
}  // namespace kvilt

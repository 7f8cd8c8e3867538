// What SamKV knows of documents and makes of a question, on matrices made by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "policy/plans_for_test.h"
#include "policy/samkv_choice.h"

namespace kvilt {
namespace {

constexpr BlockCut kCut{.block = 4, .initial = 1, .local = 2};

// The sums of kFade for a document whose token t gets the weight w(t, distance).
template <typename W>
std::vector<double> fade_of(int32_t tokens, W weight) {
  std::vector<double> out(static_cast<size_t>(tokens) * 3, 0);
  for (int32_t t = 0; t < tokens; ++t) {
    for (int32_t x = 1; t + x < tokens; ++x) {
      const double w = weight(t, x);
      out[t * 3] += w;
      out[t * 3 + 1] += std::log(w);
      out[t * 3 + 2] += std::log(w) * std::log(static_cast<double>(x));
    }
  }
  return out;
}

TEST(SamKVStats, TheMaxBlockFadesLeast) {
  // 8 blocks of 4: the middle is 1 .. 5. Each block's first token is the one that is looked at.
  const auto weight = [](double strong, int32_t slow) {
    return [=](int32_t t, int32_t x) {
      const double alpha = t / 4 == slow ? 0.2 : 1.0, scale = t % 4 == 0 ? strong : 0.01;
      return scale * (t / 4 == 3 ? 0.1 : 1) * std::pow(x, -alpha);
    };
  };
  for (const int32_t slow : {1, 2, 4, 5}) {
    const AttentionStats stats = attention_stats(fade_of(32, weight(0.2, slow)), kCut);
    EXPECT_EQ(stats.max_block, slow);
    EXPECT_EQ(stats.min_block, 3);
  }
}

TEST(SamKVStats, OutliersAreBeyondThreeDeviationsOfTheMiddle) {
  const auto stats = [](double sink, double high) {
    return attention_stats(fade_of(80,
                                   [=](int32_t t, int32_t) {
                                     return t == 0 ? sink : t == 21 || t == 22 ? high : 0.01 + 0.0001 * (t % 3);
                                   }),
                           kCut);
  };
  EXPECT_EQ(stats(0.01, 0.3).outliers, (Runs{{21, 23}}));
  EXPECT_EQ(stats(0.9, 0.3).outliers, (Runs{{21, 23}})) << "a sink hides nothing";
  EXPECT_TRUE(stats(0.9, 0.01).outliers.empty()) << "power";
}

// 12 blocks in each of three layers. The model looks most at block 4; it stands out in layers 0 and 2.
TEST(SamKVStats, ALayerIsStableWhereTheMostSeenBlockStandsOut) {
  const auto layer = [](double of_four) {
    std::vector<BlockFade> out;
    for (int b = 0; b < 12; ++b) out.push_back({0.1, b == 4 ? of_four : 1 + 0.01 * b});
    return out;
  };
  const std::vector<std::vector<BlockFade>> layers = {layer(0.2), layer(0.995), layer(0.1)};
  EXPECT_EQ(stable_layers(layers, 3), (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(stable_layers(layers, 1.2), (std::vector<uint8_t>{1, 1, 1})) << "power";
  // Of another block that stands out in one layer nobody speaks.
  auto other = layers;
  other[1][7].alpha = -3;
  EXPECT_EQ(stable_layers(other, 3), (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(stable_layers({std::vector<BlockFade>(12)}, 3), (std::vector<uint8_t>{0})) << "all alike";
}

// A last block that is short ends with the document: what lies behind is another's.
TEST(SamKVStats, AShortLastBlockEndsWithTheDocument) {
  constexpr BlockCut kAll{.block = 4, .initial = 0, .local = 0};
  std::vector<double> fade = fade_of(42, [](int32_t t, int32_t) { return t == 9 ? 0.3 : 0.01 + 0.0001 * (t % 3); });
  const size_t own = fade.size();
  fade.resize(own + 6, 1e6);
  EXPECT_EQ(attention_stats(std::span(fade).first(own), kAll).outliers, (Runs{{9, 10}}));
}

// One layer of a document of `scores.size()` blocks of 4, whose mean keys meet the query {1, 0} at these scores.
DocumentStats document(std::vector<double> scores, int32_t max_block, int32_t min_block, double local = 0) {
  DocumentStats out;
  out.tokens = static_cast<int32_t>(scores.size()) * 4;
  LayerStats layer;
  layer.local_query = {static_cast<float>(local), 0};
  for (const double s : scores) layer.block_keys.insert(layer.block_keys.end(), {static_cast<float>(s), 1});
  layer.attention = {max_block, min_block, {}};
  out.layers = {layer};
  return out;
}

TEST(SamKVStats, GoThroughBytes) {
  DocumentStats stats = document({.5, .1, 1, .6, 0, .5, .5}, 2, 4, 3);
  stats.layers.push_back(stats.layers[0]);
  stats.layers[1].attention.outliers = {{5, 7}, {9, 10}};
  const auto bytes = to_bytes(stats, kCut);
  ASSERT_TRUE(stats_from(bytes, kCut));
  EXPECT_EQ(*stats_from(bytes, kCut), stats);
  for (const size_t l : {0u, 1u}) EXPECT_EQ(layer_from(bytes, static_cast<int>(l)), stats.layers[l]);
  EXPECT_NE(stats.layers[0], stats.layers[1]) << "power";
  EXPECT_FALSE(stats_from(bytes, {.block = 5, .initial = 1, .local = 2})) << "cut in another way";
}

// Bytes from a disk may be anything: what passes is read without a CHECK, and chooses only blocks that there are.
TEST(SamKVStats, OnlySoundBytesAreTaken) {
  DocumentStats stats = document({.5, .1, 1, .6, 0, .5, .5}, 2, 4, 3);
  stats.layers.push_back(stats.layers[0]);
  stats.layers[1].attention.outliers = {{5, 7}, {9, 10}};
  const StatsSizes sizes{.tokens = 28, .layers = 2, .query = 2, .block_key = 2};
  const auto sound = [&](const DocumentStats& of, const BlockCut& cut = kCut) {
    return are_sound(to_bytes(of, cut), sizes);
  };
  EXPECT_TRUE(sound(stats));
  for (const StatsSizes& other : {StatsSizes{27, 2, 2, 2}, StatsSizes{28, 1, 2, 2}, StatsSizes{28, 3, 2, 2},
                                  StatsSizes{28, 2, 4, 2}, StatsSizes{28, 2, 2, 4}, StatsSizes{28, 2, 0, 2}})
    EXPECT_FALSE(are_sound(to_bytes(stats, kCut), other));
  EXPECT_FALSE(sound(stats, {.block = 8, .initial = 1, .local = 2})) << "more keys than blocks";
  EXPECT_FALSE(sound(stats, {.block = 0, .initial = 1, .local = 2}));
  EXPECT_FALSE(sound(stats, {.block = 4, .initial = -1, .local = 2}));
  const auto changed = [&](auto change) {
    DocumentStats out = stats;
    change(out.layers[1]);
    return sound(out);
  };
  EXPECT_FALSE(changed([](LayerStats& layer) { layer.attention.max_block = 5; })) << "no middle one";
  EXPECT_FALSE(changed([](LayerStats& layer) { layer.attention.min_block = -1; }));
  EXPECT_FALSE(changed([](LayerStats& layer) { layer.attention.outliers = {{5, 29}}; }));
  EXPECT_FALSE(changed([](LayerStats& layer) { layer.attention.outliers = {{9, 10}, {5, 7}}; }));
  EXPECT_FALSE(changed([](LayerStats& layer) { layer.block_keys[3] = NAN; }));
  EXPECT_FALSE(changed([](LayerStats& layer) { layer.local_query.push_back(1); }));
  EXPECT_TRUE(changed([](LayerStats& layer) { layer.attention.max_block = 3; })) << "power";

  DocumentStats means = stats;
  for (LayerStats& layer : means.layers) layer = {.local_query = {}, .block_keys = layer.block_keys, .attention = {}};
  EXPECT_TRUE(are_sound(to_bytes(means, kCut), {28, 2, 0, 2}));
  EXPECT_FALSE(sound(means));

  const std::vector<std::byte> bytes = to_bytes(stats, kCut);
  int taken = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(are_sound(std::span(bytes).first(i), sizes)) << i;
    for (const uint8_t change : {0x01, 0x10, 0x80, 0xff}) {
      std::vector<std::byte> bad = bytes;
      bad[i] ^= std::byte{change};
      if (!are_sound(bad, sizes)) continue;
      ++taken;
      for (const int l : {0, 1}) {
        const LayerStats layer = layer_from(bad, l);
        EXPECT_EQ(layer.block_keys.size(), 14u);
        EXPECT_TRUE(layer.attention.max_block >= 0 && layer.attention.max_block < 7);
      }
    }
  }
  EXPECT_GT(taken, 50) << "power: other numbers are as good";
}

const HeadShape kShape{.H = 1, .G = 1, .E = 2};
const std::vector<std::vector<double>> kQuery{{1, 0}};

BlockChoice choice_of(const std::vector<DocumentStats>& documents) {
  BlockChoice out;
  out.cut = kCut;
  out.stable = {0};
  for (const DocumentStats& of : documents) {
    ++out.documents;
    out.all_blocks += kCut.blocks(of.tokens);
  }
  return out;
}

TEST(SamKVChoice, TheShareIsWhatIsAboveTheAnchor) {
  // Anchor 0.5; of max 1 and min 0 a half of four middle blocks.
  const std::vector<DocumentStats> one{document({.5, .1, 1, .6, 0, .5, .5}, 2, 4)};
  EXPECT_EQ(choose_blocks(choice_of(one), kShape, kQuery, one)[0][0], (std::vector<int32_t>{2, 3}));
  const std::vector<DocumentStats> above{document({2, .1, 1, .6, 0, 2, 2}, 2, 4)};
  EXPECT_TRUE(choose_blocks(choice_of(above), kShape, kQuery, above)[0][0].empty()) << "the anchor is above all";
  const std::vector<DocumentStats> below{document({-1, .1, 1, .6, 0, -1, -1}, 2, 4)};
  BlockChoice choice = choice_of(below);
  EXPECT_EQ(choose_blocks(choice, kShape, kQuery, below)[0][0].size(), 4u) << "the anchor is below all";
  choice.literal = true;
  EXPECT_TRUE(choose_blocks(choice, kShape, kQuery, below)[0][0].empty());
}

TEST(SamKVChoice, KeepIsAShareOfAllBlocks) {
  const std::vector<DocumentStats> one{document({.5, .1, 1, .6, 0, .2, .3, .5, .5, .4}, 2, 4)};
  BlockChoice choice = choice_of(one);
  for (const auto& [keep, blocks] : {std::pair{0.3, 0u}, {0.5, 2u}, {0.8, 5u}, {1.0, 7u}}) {
    choice.keep = keep;
    EXPECT_EQ(choose_blocks(choice, kShape, kQuery, one)[0][0].size(), blocks);
  }
}

TEST(SamKVChoice, LayersTakeAboutTheBlocksOfOneDocument) {
  // Two documents of 10 blocks propose all 14 middle ones: 10 are kept, the heaviest of both.
  const std::vector<DocumentStats> two{document({-9, 1, 2, 3, 4, 5, 6, 7, -9, -9}, 7, 1),
                                       document({-9, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, -9, -9}, 7, 1)};
  const auto kept = choose_blocks(choice_of(two), kShape, kQuery, two)[0];
  EXPECT_EQ(kept[0], (std::vector<int32_t>{3, 4, 5, 6, 7}));
  EXPECT_EQ(kept[1], (std::vector<int32_t>{3, 4, 5, 6, 7}));
  const std::vector<DocumentStats> apart{two[0], document({-9, 11, 12, 13, 14, 15, 16, 17, -9, -9}, 7, 1)};
  EXPECT_EQ(choose_blocks(choice_of(apart), kShape, kQuery, apart)[0][0].size(), 3u) << "power";
}

TEST(SamKVChoice, CopiesFareAlike) {
  const DocumentStats a = document({-9, 1, 2, 3, 4, 5, 6, 7, -9, -9}, 7, 1, 3);
  for (const size_t copies : {2u, 3u, 4u}) {
    const std::vector<DocumentStats> all(copies, a);
    const auto kept = choose_blocks(choice_of(all), kShape, kQuery, all)[0];
    for (const auto& blocks : kept) EXPECT_EQ(blocks, kept[0]);
    EXPECT_LT(kept[0].size(), 7u);
    EXPECT_GT(kept[0].size(), 1u);
  }
}

TEST(SamKVChoice, OtherDocumentsBiasTheQuery) {
  // The second document's end asks along the second channel, where the first one's last block is.
  DocumentStats a = document({.5, 1, .9, .8, .1, .5, .5}, 1, 4), b = a;
  a.layers[0].block_keys[4 * 2 + 1] = 9;
  b.layers[0].local_query = {1, 3};
  const std::vector<DocumentStats> two{a, b};
  BlockChoice choice = choice_of(two);
  choice.keep = 0.6;
  const auto with = choose_blocks(choice, kShape, kQuery, two)[0][0];
  choice.bias = false;
  const auto without = choose_blocks(choice, kShape, kQuery, two)[0][0];
  EXPECT_TRUE(std::ranges::find(with, 4) != with.end());
  EXPECT_TRUE(std::ranges::find(without, 4) == without.end());
}

// A document of these layers, of as many blocks of 4 as each layer has keys (of `width` numbers).
DocumentStats layered(const std::vector<std::vector<float>>& keys, size_t width, const AttentionStats& attention,
                      const std::vector<float>& local = {0, 0}) {
  DocumentStats out;
  out.tokens = static_cast<int32_t>(keys[0].size() / width) * 4;
  for (const std::vector<float>& of : keys) out.layers.push_back({local, of, attention});
  return out;
}

// Equation (1) of three documents. Q = (2, 0) meets the ends (6, 8), (-3, 4) and (4, 3) at cosines of .6, -.6 and .8:
//   Q_0 = (2, 0) + 1/2 (.6 (-3, 4) + .8 (4, 3)) = (2.7, 2.4),  y / x = .889
//   Q_1 = (2, 0) + 1/2 (.6 (6, 8) + .8 (4, 3))  = (5.4, 3.6),          .667
//   Q_2 = (2, 0) + 1/2 (.6 (6, 8) + .6 (-3, 4)) = (2.9, 3.6),         1.241
// The key (1, 0) has the score x, and (1 - 100 t, 100) has x + 100 (y - t x): above it only where y / x is more than t.
// With t = y / x -+ .01 it is 2 x and 0.
TEST(SamKVChoice, TheQueryIsEquationOne) {
  const auto document_of = [](float ratio, std::vector<float> local) {
    const float low = ratio - 0.01f, high = ratio + 0.01f;
    return layered({{0, 0, 1 - 100 * high, 100, 1, 0, 1 - 100 * low, 100, 0, 0, 0, 0}}, 2, {1, 2, {}}, local);
  };
  const std::vector<DocumentStats> three{document_of(2.4f / 2.7f, {6, 8}), document_of(3.6f / 5.4f, {-3, 4}),
                                         document_of(3.6f / 2.9f, {4, 3})};
  BlockChoice choice = choice_of(three);
  for (const auto& [keep, blocks] : {std::pair{12 / 18.0, std::vector<int32_t>{3}}, {15 / 18.0, {2, 3}}}) {
    choice.keep = keep;
    EXPECT_EQ(choose_blocks(choice, kShape, {{2, 0}}, three)[0], KeptBlocks::value_type(3, blocks));
  }
  choice.bias = false;
  choice.keep = 12 / 18.0;
  EXPECT_EQ(choose_blocks(choice, kShape, {{2, 0}}, three)[0], KeptBlocks::value_type(3, {2})) << "power: y is 0";
}

// Equation (3): P is the mean over the stable layers, here of .75 and .25; with it each layer takes its own heaviest two
// of four. The layer between, whose own P is 1, has no say.
TEST(SamKVChoice, TheShareIsTheMeanOfTheStableLayers) {
  const auto keys = [](float anchor, std::vector<float> middle) {  // of one number: the score
    std::vector<float> out{anchor};
    out.insert(out.end(), middle.begin(), middle.end());
    out.insert(out.end(), 2, anchor);
    return out;
  };
  const std::vector<DocumentStats> one{layered(
      {keys(.25f, {1, .6f, 0, .1f}), keys(-1, {1, .2f, 0, .3f}), keys(.75f, {1, .8f, 0, .9f})}, 1, {1, 3, {}}, {0})};
  const HeadShape shape{.H = 1, .G = 1, .E = 1};
  const std::vector<std::vector<double>> query(3, {1});
  BlockChoice choice = choice_of(one);
  const auto kept_with = [&](std::vector<int> stable) {
    choice.stable = std::move(stable);
    std::vector<std::vector<int32_t>> out;
    for (const auto& of_layer : choose_blocks(choice, shape, query, one)) out.push_back(of_layer[0]);
    return out;
  };
  using Blocks = std::vector<std::vector<int32_t>>;
  EXPECT_EQ(kept_with({0, 2}), (Blocks{{1, 2}, {1, 4}, {1, 4}}));
  EXPECT_EQ(kept_with({0}), (Blocks{{1, 2, 4}, {1, 2, 4}, {1, 2, 4}})) << "power";
  EXPECT_EQ(kept_with({2}), (Blocks{{1}, {1}, {1}})) << "power";
  EXPECT_EQ(kept_with({0, 1, 2}), (Blocks{{1, 2, 4}, {1, 2, 4}, {1, 2, 4}})) << "power: 2/3 of four";
}

// Four query heads, of which two and two read a KV head: heads 0 and 1 ask for its first channel, 2 and 3 for its second.
// Block 1 has 2 3 + 2 3 and block 2 has 2 2 + 2 2. If heads took turns, they would have 6 and 8, with the KV heads
// exchanged 0 and 8.
TEST(SamKVChoice, AQueryHeadMeetsItsOwnKvHead) {
  const std::vector<float> keys{0, 0, 0, 0, 3, 0, 0, 3, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0};
  const std::vector<DocumentStats> one{layered({keys}, 4, {1, 2, {}}, std::vector<float>(8, 0))};
  BlockChoice choice = choice_of(one);
  choice.keep = 4 / 5.0;
  const auto kept_of = [&](std::vector<double> query) {
    return choose_blocks(choice, {.H = 4, .G = 2, .E = 2}, {std::move(query)}, one)[0][0];
  };
  EXPECT_EQ(kept_of({1, 0, 1, 0, 0, 1, 0, 1}), (std::vector<int32_t>{1}));
  EXPECT_EQ(kept_of({1, 0, 0, 1, 1, 0, 0, 1}), (std::vector<int32_t>{2})) << "power: as if heads took turns";
  EXPECT_EQ(kept_of({0, 1, 0, 1, 1, 0, 1, 0}), (std::vector<int32_t>{2})) << "power: as if exchanged";
}

// Two copies of one document and two others, in every order, in four layers that choose for themselves: what is kept of a
// document depends on its text alone.
TEST(SamKVChoice, CopiesFareAlikeInAnyOrderInEveryLayer) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  const auto random = [&](size_t n) {
    std::vector<float> out(n);
    for (float& x : out) x = normal(rng);
    return out;
  };
  constexpr size_t kLayers = 4;
  const HeadShape shape{.H = 4, .G = 2, .E = 3};
  const auto document_of = [&](size_t blocks) {
    std::vector<std::vector<float>> keys;
    for (size_t l = 0; l < kLayers; ++l) keys.push_back(random(blocks * 6));
    DocumentStats out = layered(keys, 6, {3, 4, {}});
    for (LayerStats& layer : out.layers) layer.local_query = random(12);
    return out;
  };
  int layers_differ = 0, some_kept = 0;
  for (int round = 0; round < 20; ++round) {
    const std::vector<DocumentStats> texts{document_of(9), document_of(9), document_of(12)};
    std::vector<std::vector<double>> query;
    for (size_t l = 0; l < kLayers; ++l) {
      const std::vector<float> of = random(12);
      query.emplace_back(of.begin(), of.end());
    }
    for (const double keep : {0.0, 0.5, 0.6}) {
      for (const bool by_range : {false, true}) {
        std::vector<size_t> order{0, 0, 1, 2};
        std::map<std::pair<size_t, size_t>, std::vector<int32_t>> first;  // by layer and text
        do {
          std::vector<DocumentStats> documents;
          for (const size_t text : order) documents.push_back(texts[text]);
          BlockChoice choice = choice_of(documents);
          choice.keep = keep;
          choice.by_range = by_range;
          choice.stable = {1, 3};
          const KeptBlocks kept = choose_blocks(choice, shape, query, documents);
          for (size_t l = 0; l < kLayers; ++l) {
            for (size_t i = 0; i < order.size(); ++i) {
              const auto [known, fresh] = first.try_emplace({l, order[i]}, kept[l][i]);
              EXPECT_EQ(kept[l][i], known->second) << round << " layer " << l << " document " << i;
            }
          }
        } while (std::ranges::next_permutation(order).found);
        for (const size_t text : {0u, 1u, 2u}) {
          some_kept += first[{0, text}].empty() ? 0 : 1;
          layers_differ += first[{0, text}] == first[{1, text}] ? 0 : 1;
        }
      }
    }
  }
  EXPECT_GT(some_kept, 200) << "power";
  EXPECT_GT(layers_differ, 200) << "power";
}

// A prefix of 3, documents of 40 (long) and 10 tokens, a question of 5; the model of plans' tests.
ModelConfig model_of(int L) {
  ModelConfig c;
  c.L = L;
  c.H = 2;
  c.G = 1;
  c.E = 2;
  return c;
}
PromptLayout layout_of() {
  PromptLayout layout;
  layout.prompt_len = 58;
  layout.prefix = 3;
  layout.pieces = {{3, 43}, {43, 53}};
  return layout;
}
const Runs kKnown{{0, 53}};

std::unique_ptr<ReusePolicy> samkv(std::map<std::string, std::string> params) {
  params.try_emplace("block", "8");
  return policy("samkv", std::move(params));
}

TEST(SamKVPlan, StagesAreDocumentsQuestionRepairAnswer) {
  const ModelConfig config = model_of(3);
  const Plan plan = samkv({})->plan(layout_of(), config);
  EXPECT_TRUE(validate(plan, config, kKnown).ok());
  ASSERT_EQ(plan.stages.size(), 4u) << "the short document is kept whole";
  EXPECT_EQ(plan.stages[0].unseen[1], (Runs{{0, 3}}));
  EXPECT_EQ(plan.stages[1].unseen[1], (Runs{{11, 27}}));
  EXPECT_TRUE(plan.narrowed());
  EXPECT_EQ(samkv({{"recompute", "none"}})->plan(layout_of(), config).stages.size(), 3u);
  const Plan all = samkv({{"keep", "1"}, {"recompute", "all"}})->plan(layout_of(), config);
  EXPECT_EQ(all.stages.size(), 2u);
  EXPECT_FALSE(all.narrowed());
  PromptLayout silent = layout_of();
  silent.prompt_len = 53;
  const Plan quiet = samkv({})->plan(silent, config);
  ASSERT_EQ(quiet.stages.size(), 2u) << "nobody asks";
  EXPECT_EQ(quiet.stages[1].unseen[0], (Runs{{11, 27}}));
  EXPECT_TRUE(validate(quiet, config, kKnown).ok());
}

// Mean keys are all that it reads of a document: nobody looks for what SamKV needs besides. Each cut chooses for its own
// layer, by that layer's keys and query.
TEST(MultiInfLLM, MeasuresMeanKeysAndChoosesOncePerLayer) {
  const ModelConfig config = model_of(4);
  const auto policy =
      std::move(make_policy("multi-infllm", {{"block", "8"}, {"init", "0"}, {"local", "0"}, {"topk", "1"}}).value());
  Plan plan = policy->plan(layout_of(), config);
  ASSERT_TRUE(validate(plan, config, kKnown).ok());
  ASSERT_EQ(plan.stages.size(), 4u);
  std::vector<Probe> probes;
  for (const int s : {0, 1}) {
    ASSERT_EQ(plan.stages[s].probes.size(), 1u);
    EXPECT_EQ(plan.stages[s].probes[0].estimator, Estimator::kBlockKeys);
    probes.push_back(empty_probe(plan.stages[s].probes[0], config, 58));
  }
  const Plan samkv_plan = samkv({})->plan(layout_of(), config);
  EXPECT_TRUE(std::ranges::any_of(samkv_plan.stages[0].probes, [](const ProbeSpec& probe) {
    return probe.estimator == Estimator::kFade;
  })) << "power";
  // In layer l of the first document block l stands out; in layer 3 the second document's last one.
  for (int l = 0; l < 3; ++l) probes[0].sums[l][static_cast<size_t>(l) * 2] = 8;
  probes[1].sums[3][2] = 8;
  const std::vector<Runs> wanted{{{3, 11}}, {{11, 19}}, {{19, 27}}, {{51, 53}}};
  const auto seen = [&](int l) { return subtract(Runs{{3, 53}}, plan.stages.back().unseen[l]); };
  probes.push_back(empty_probe(plan.stages[2].probes[0], config, 58));
  probes.back().sums[0].assign(4, 1);
  policy->refine(layout_of(), config, 2, probes, plan);
  EXPECT_EQ(seen(0), wanted[0]);
  probes.push_back(empty_probe(plan.stages[3].probes[0], config, 58));
  for (int l = 1; l < 4; ++l) {
    EXPECT_TRUE(seen(l).empty());
    probes.back().sums[l].assign(4, 1);
    if (l > 1) plan.stages.back().unseen[l - 1].clear();  // as if it had been chosen otherwise
    policy->refine(layout_of(), config, 3, probes, plan);
    EXPECT_EQ(seen(l), wanted[l]);
    if (l > 1) {
      EXPECT_TRUE(plan.stages.back().unseen[l - 1].empty()) << "layers before are left as they are";
    }
  }
}

TEST(MultiInfLLM, ASingleAngleIsThatOfTheEnd) {
  const ModelConfig config = model_of(3);
  const auto plan_of = [&](std::map<std::string, std::string> params) {
    params.insert({{"block", "8"}, {"init", "0"}, {"topk", "1"}, {"angle", "single"}});
    const auto policy = std::move(make_policy("multi-infllm", params).value());
    Plan plan = policy->plan(layout_of(), config);
    EXPECT_TRUE(validate(plan, config, kKnown).ok());
    for (const Stage& stage : plan.stages) EXPECT_TRUE(!stage.far || &stage == &plan.stages.back());
    return plan;
  };
  const Plan plan = plan_of({{"local", "20"}});
  ASSERT_TRUE(plan.stages.back().far);
  EXPECT_EQ(plan.stages.back().far->rows, 53);
  EXPECT_EQ(plan.stages.back().far->before, 33);
  EXPECT_EQ(plan.stages.back().far->distance, 20);
  EXPECT_EQ(plan.stages.back().unseen, plan_of({{"local", "20"}, {"angle", "true"}}).stages.back().unseen);
  EXPECT_FALSE(plan_of({{"local", "20"}, {"angle", "true"}}).stages.back().far);
  const Plan all = plan_of({{"local", "20"}, {"topk", "100"}});
  EXPECT_EQ(all.stages.size(), 1u) << "nobody chooses";
  EXPECT_TRUE(all.stages.back().far && all.narrowed());
  EXPECT_FALSE(plan_of({{"local", "53"}}).stages.back().far) << "all is in the end";
  EXPECT_FALSE(plan_of({{"local", "4096"}}).narrowed());
  const auto wrong = make_policy("multi-infllm", {{"angle", "wide"}});
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("angle"), std::string::npos) << wrong.error().message;
  EXPECT_NE(wrong.error().message.find("single"), std::string::npos) << wrong.error().message;
  EXPECT_FALSE(make_policy("samkv", {{"angle", "single"}}).ok());
}

TEST(SamKVPlan, ParametersAreChecked) {
  for (const auto& params : std::vector<std::map<std::string, std::string>>{
           {{"theta", "0.5"}}, {{"block", "4"}}, {{"keep", "2"}}, {{"decode", "snapkv"}}, {{"fate", "mix"}}}) {
    EXPECT_FALSE(make_policy("samkv", params).ok());
  }
  EXPECT_TRUE(make_policy("samkv", {{"fate", "fuse"}, {"theta", "0.5"}}).ok());
}

}  // namespace
}  // namespace kvilt

// Which keys choosers take, against what is written out over hand-made keys.
#include "forward/key_chooser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "forward/prompt_for_test.h"
#include "plan/page_bounds.h"

namespace kvilt {
namespace {

constexpr int32_t kPlaced = 64, kPlacedAt = 37, kKeys = 160, kPageSize = 8, kPageBudget = 40;
using ByPosition = std::vector<std::vector<float>>;  // keys of one head as this request sees them

// 37 keys of its own, 64 that are placed with a shift, then its own again.
class PageChooserTest : public testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  PageChooserTest()
      : on(kProbe, std::get<0>(GetParam())),
        c(on.config()),
        store(PageStore::create({c.L, c.G, c.E, 16, std::get<1>(GetParam())}, int64_t{16} << 20).value()),
        table(store, c.ropes()),
        q(random_floats(static_cast<size_t>(c.H * c.E), 9)),
        heads(static_cast<size_t>(c.G)) {
    std::iota(heads.begin(), heads.end(), 0);
    PageTable source(store, c.ropes());
    const std::vector<uint16_t> write(static_cast<size_t>(c.L), 0);
    source.add(std::vector<Runs>{{{0, kPlaced}}}, write);
    for (int32_t pos = 0; pos < kPlaced; ++pos) put(source, pos, static_cast<uint32_t>(kPlacedAt + pos));
    table.place({source.publish({0, kPlaced}), 0, kPlaced, kPlacedAt});
    const Runs own{{0, kPlacedAt}, {kPlacedAt + kPlaced, kKeys}};
    table.add(std::vector<Runs>{own}, write);
    for (const int32_t pos : positions(own)) put(table, pos, static_cast<uint32_t>(pos));
  }
  std::vector<float> floats(int layer, uint32_t seed) const {
    return random_floats(static_cast<size_t>(c.G * c.E), seed * 100 + static_cast<uint32_t>(layer));
  }
  void put(PageTable& to, int32_t pos, uint32_t seed) const {
    for (int l = 0; l < c.L; ++l) to.write(l, pos, floats(l, seed).data(), floats(l, seed).data());
  }
  ByPosition keys(int layer, int head, bool turned) const {
    const RopeConfig rope = c.ropes().at(layer);
    ByPosition out;
    for (int32_t pos = 0; pos < kKeys; ++pos) {
      const std::vector<float> all = floats(layer, static_cast<uint32_t>(pos));
      std::vector<float>& key = out.emplace_back(all.begin() + head * c.E, all.begin() + (head + 1) * c.E);
      if (turned && pos >= kPlacedAt && pos < kPlacedAt + kPlaced)
        rotate_head(rope.pairs, rope.rotary_dim, rotation(rope, kPlacedAt).data(), 1, key.data());
    }
    return out;
  }
  // Of the pages of [0, end); summed over the group's queries.
  std::vector<double> bounds(const ByPosition& keys, int head, int32_t end, int32_t page = kPageSize) const {
    const int group = c.H / c.G;
    std::vector<double> out;
    for (int32_t begin = 0; begin < end; begin += page) {
      double sum = 0;
      for (int h = head * group; h < (head + 1) * group; ++h) {
        for (int e = 0; e < c.E; ++e) {
          double most = -1e30;
          for (int32_t j = begin; j < std::min(end, begin + page); ++j)
            most = std::max(most, double{q[h * c.E + e]} * keys[j][e]);
          sum += most;
        }
      }
      out.push_back(sum);
    }
    return out;
  }

  ModelForTest on;
  const ModelConfig& c;
  PageStore store;
  PageTable table;
  const std::vector<float> q;
  std::vector<int> heads;  // all
  const DecodeRule rule{.by = DecodeRule::By::kPages, .budget = kPageBudget, .every = 1, .page = kPageSize};
};

// Pages hold keys of both kinds, and the second choice goes on from the first.
TEST_P(PageChooserTest, TakesThePagesWithTheHighestBounds) {
  const auto chooser = make_key_chooser(rule, c, 100, 100);
  int compared = 0, turned = 0;
  for (int l = 0; l < c.L; ++l) {
    for (const int32_t end : {101, 141, 147, kKeys}) {
      ChoiceCost cost;
      const auto chosen = chooser->choose({*on.model, table, on.pool}, {l, end}, q.data(), heads, cost);
      EXPECT_GT(cost.flops, 0);
      for (int g = 0; g < c.G; ++g) {
        const std::vector<double> of = bounds(keys(l, g, true), g, end);
        std::vector<double> order(of.begin(), of.end() - 1);
        std::ranges::sort(order, std::greater());
        const auto more = static_cast<size_t>((kPageBudget - (end - (std::ssize(of) - 1) * kPageSize)) / kPageSize);
        if (order[more - 1] - order[more] < 0.3) continue;  // rounding of the KV type may decide
        ++compared;
        EXPECT_EQ(chosen[g], choose_pages(rule, l, c.L, std::array{of}, end)[0]) << l << ' ' << end << ' ' << g;
        const std::vector<double> as_stored = bounds(keys(l, g, false), g, end);
        turned += chosen[g] != choose_pages(rule, l, c.L, std::array{as_stored}, end)[0];
      }
    }
  }
  EXPECT_GT(compared, 10);
  EXPECT_GT(turned, 3) << "power: keys as they were rotated where they were computed choose otherwise";
}

// More pages than PageBounds has in a block.
TEST_P(PageChooserTest, TakesPagesOfAllBlocks) {
  DecodeRule single = rule;
  single.page = 1;
  static_assert(kKeys > 2 * PageBounds::kBlock);
  const double rounding = std::get<1>(GetParam()) == DType::kF32 ? 1e-3 : 0.3;
  const auto chooser = make_key_chooser(single, c, 100, 100);
  int compared = 0;
  std::array<int, 3> taken = {};  // by block
  for (int l = 0; l < c.L; ++l) {
    ChoiceCost cost;
    const auto chosen = chooser->choose({*on.model, table, on.pool}, {l, kKeys}, q.data(), heads, cost);
    for (int g = 0; g < c.G; ++g) {
      const std::vector<double> of = bounds(keys(l, g, true), g, kKeys, 1);
      std::vector<double> order(of.begin(), of.end() - 1);
      std::ranges::sort(order, std::greater());
      for (const int32_t pos : positions(chosen[g])) {
        ++taken[pos / PageBounds::kBlock];
        if (pos == kKeys - 1) continue;
        EXPECT_GE(of[pos], order[kPageBudget - 2] - 0.5) << l << ' ' << g << ' ' << pos;
      }
      if (order[kPageBudget - 2] - order[kPageBudget - 1] < rounding) continue;
      ++compared;
      EXPECT_EQ(chosen[g], choose_pages(single, l, c.L, std::array{of}, kKeys)[0]) << l << ' ' << g;
    }
  }
  if (rounding < 0.1) {
    EXPECT_GT(compared, 2);
  }
  for (const int n : taken) EXPECT_GT(n, 0) << "power";
}

// Of the chosen pages, the keys with the largest weights, each query head's summing to 1 over these pages.
TEST_P(PageChooserTest, ATopShareKeepsTheHeaviestOfTheChosenPages) {
  DecodeRule pruned = rule;
  pruned.top_p = 0.6;
  const auto chooser = make_key_chooser(pruned, c, 100, 100), whole = make_key_chooser(rule, c, 100, 100);
  const AttendShape shape = on.model->attend_shape(std::get<1>(GetParam()));
  int compared = 0, fewer = 0;
  for (int l = 0; l < c.L; ++l) {
    ChoiceCost cost, of_pages;
    const KeySource from{*on.model, table, on.pool};
    const auto chosen = chooser->choose(from, {l, 147}, q.data(), heads, cost);
    const auto pages = whole->choose(from, {l, 147}, q.data(), heads, of_pages);
    EXPECT_GT(cost.bytes, of_pages.bytes);
    for (int g = 0; g < c.G; ++g) {
      const ByPosition all = keys(l, g, true);
      const std::vector<int32_t> candidates = positions(pages[g]);
      std::vector<double> weights(candidates.size(), 0);
      for (int h = g * shape.group; h < (g + 1) * shape.group; ++h) {
        std::vector<double> of_head;
        double sum = 0;
        for (const int32_t j : candidates) {
          double score = 0;
          for (int e = 0; e < c.E; ++e) score += double{q[h * c.E + e]} * all[j][e];
          sum += of_head.emplace_back(std::exp(score * shape.scale));
        }
        for (size_t j = 0; j < weights.size(); ++j) weights[j] += of_head[j] / sum;
      }
      EXPECT_TRUE(includes(pages[g], chosen[g]));
      fewer += count(chosen[g]) < count(pages[g]);
      const Runs less = heaviest(pages[g], weights, 0.57), more = heaviest(pages[g], weights, 0.63);
      EXPECT_GE(count(chosen[g]), count(less));
      EXPECT_LE(count(chosen[g]), count(more));
      const Runs by_hand = heaviest(pages[g], weights, 0.6);
      compared += chosen[g] == by_hand;  // rounding of the KV type may decide
      if (std::get<1>(GetParam()) == DType::kF32) {
        EXPECT_EQ(chosen[g], by_hand) << l << ' ' << g;
      }
    }
  }
  EXPECT_GT(compared, c.L / 2);
  EXPECT_EQ(fewer, c.L * c.G) << "power";
}

INSTANTIATE_TEST_SUITE_P(Backends, PageChooserTest,
                         testing::Combine(testing::Values("reference", "auto"),
                                          testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kI8)));

TEST(ChooseSideBySide, IsTheChoiceOfAllHeadsAtOnce) {
  constexpr int32_t kScored = 300;
  std::vector<std::vector<double>> scores;
  for (uint32_t g = 0; g < 4; ++g) {
    const std::vector<float> of = random_floats(kScored, 70 + g);
    for (double& score : scores.emplace_back(of.begin(), of.end())) score = std::exp(score * (g + 1));
  }
  DecodeRule same{.budget = 40, .sink = 4, .recent = 8}, shared = same, pruned = same, random = same, all = same;
  shared.own_share = 0.2;
  pruned.top_p = 0.7;
  random.by = DecodeRule::By::kRandom;
  all.budget = kScored;
  int together = 0;
  for (const DecodeRule& rule : {same, shared, pruned, random, all}) {
    const std::vector<Runs> expected = choose_keys(rule, 1, 3, scores, kScored);
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      EXPECT_EQ(choose_side_by_side(pool, rule, {1, kScored}, 3, scores), expected);
    }
    for (size_t g = 0; g < scores.size(); ++g)
      together += expected[g] != choose_keys(rule, 1, 3, {&scores[g], 1}, kScored).front();
  }
  EXPECT_GT(together, 4) << "power: heads that share a budget, or random numbers, do not choose alone";
}

}  // namespace
}  // namespace kvilt

// Which keys a decode rule keeps, from scores made by hand.
#include "plan/decode_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace kvilt {
namespace {

using Scores = std::vector<std::vector<double>>;

Scores random_scores(int heads, int keys, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Scores out(static_cast<size_t>(heads), std::vector<double>(static_cast<size_t>(keys)));
  for (auto& head : out) {
    for (double& score : head) score = static_cast<double>(rng() % 100000);
  }
  return out;
}

TEST(DecodeRule, ChoosesOnceOrEveryFewRows) {
  const DecodeRule once{.dense_rows = 3}, often{.dense_rows = 4, .every = 2}, at_once{};
  const auto rows = [](const DecodeRule& rule) {
    std::vector<int> out;
    for (int n = 0; n < 10; ++n) {
      if (rule.chooses_at(n)) out.push_back(n);
    }
    return out;
  };
  EXPECT_EQ(rows(once), (std::vector<int>{3}));
  EXPECT_EQ(rows(often), (std::vector<int>{4, 6, 8}));
  EXPECT_EQ(rows(at_once), (std::vector<int>{0}));
}

// The rows before the only choice, of the prompt alone; before the first of many, as far as the prefill has them.
TEST(DecodeRule, TheLastRowsLook) {
  const DecodeRule once{.budget = 40, .recent = 32, .queries = 32};
  EXPECT_EQ(once.looking(300, 300), (Runs{{268, 300}}));
  EXPECT_EQ(once.looking(41, 41), (Runs{{9, 41}}));
  EXPECT_EQ(once.looking(40, 40), Runs{}) << "it takes all";
  EXPECT_EQ(once.looking(300, 350), (Runs{{268, 300}})) << "50 tokens of its answer are computed again";
  EXPECT_EQ((DecodeRule{.budget = 40, .queries = 32, .top_p = 0.5}).looking(20, 20), (Runs{{0, 20}}));
  const DecodeRule later{.budget = 40, .recent = 32, .queries = 32, .dense_rows = 5};
  EXPECT_EQ(later.looking(300, 300), (Runs{{273, 300}}));
  EXPECT_EQ(later.looking(300, 303), (Runs{{273, 303}}));
  EXPECT_EQ(later.looking(300, 350), (Runs{{273, 305}}));
  const DecodeRule often{.queries = 4, .dense_rows = 16, .every = 16};
  EXPECT_EQ(often.looking(300, 300), Runs{}) << "rows of the answer look";
  EXPECT_EQ(often.looking(300, 314), (Runs{{312, 314}}));
  EXPECT_EQ(often.looking(300, 350), (Runs{{346, 350}}));
  EXPECT_EQ((DecodeRule{.by = DecodeRule::By::kAllRows}).looking(300, 350), (Runs{{0, 350}}));
  EXPECT_EQ((DecodeRule{.by = DecodeRule::By::kPages}).looking(300, 350), Runs{});
}

TEST(DecodeRule, ALateChoiceIsTheOnlyOne) {
  using By = DecodeRule::By;
  for (const By by : {By::kAttention, By::kNearest, By::kRandom})
    EXPECT_EQ((DecodeRule{.by = by, .dense_rows = 3}).chooses_as(50), 3);
  for (const By by : {By::kPages, By::kLayer, By::kAllRows})
    EXPECT_EQ((DecodeRule{.by = by, .dense_rows = 3}).chooses_as(50), 50);
  EXPECT_EQ((DecodeRule{.dense_rows = 3, .every = 4}).chooses_as(50), 50);
}

TEST(DecodeRule, KeepsTheBestTheFirstAndTheLast) {
  const DecodeRule rule{.budget = 5, .sink = 1, .recent = 2};
  const Scores scores{{0, 5, 1, 4, 4, 0, 9, 9}};
  EXPECT_EQ(choose_keys(rule, 0, 1, scores, 8)[0], (Runs{{0, 2}, {3, 4}, {6, 8}})) << "the lower one on a tie";
}

// Against a sort: ties, zeros of both signs, tiny and huge scores, and keys that are out.
TEST(DecodeRule, KeepsWhatASortWouldKeep) {
  std::mt19937_64 rng(3);
  const double some[] = {0.0, -0.0, 1e-310, 1e-300, 1e-9, 0.25, 0.25 + 1e-16, 1, 28, 1e300, -HUGE_VAL};
  for (const int keys : {1, 2, 7, 300, 4095, 4096, 5000}) {
    for (int round = 0; round < 40; ++round) {
      std::vector<double> score(static_cast<size_t>(keys));
      for (double& s : score)
        s = round % 2 == 0 ? some[rng() % std::size(some)] : std::exp2(-0.001 * double(rng() % 40000));
      std::vector<int32_t> order(score.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return score[a] > score[b]; });
      const int budget = 1 + static_cast<int>(rng() % keys);
      order.resize(static_cast<size_t>(budget));
      std::ranges::sort(order);
      EXPECT_EQ(choose_keys({.budget = budget}, 0, 1, Scores{score}, keys)[0], runs_of(order)) << keys;
    }
  }
}

TEST(DecodeRule, ABudgetOfAllKeysIsAll) {
  for (const int budget : {8, 9}) {
    const DecodeRule rule{.budget = budget};
    EXPECT_EQ(choose_keys(rule, 0, 1, random_scores(2, 8, 1), 8), (std::vector<Runs>(2, Runs{{0, 8}})));
  }
  EXPECT_EQ(count(choose_keys({.budget = 7}, 0, 1, random_scores(2, 8, 1), 8)[0]), 7) << "power";
}

// Against sums and maxima written out.
TEST(DecodeRule, PoolsAsWrittenOut) {
  const Scores scores = random_scores(1, 60, 5);
  for (const int pool : {1, 3, 7, 59, 61, 121}) {
    for (const bool max : {false, true}) {
      std::vector<double> by_hand(60);
      for (int j = 0; j < 60; ++j) {
        for (int i = std::max(0, j - pool / 2); i <= std::min(59, j + pool / 2); ++i)
          by_hand[j] = max ? std::max(by_hand[j], scores[0][i]) : by_hand[j] + scores[0][i];
      }
      const DecodeRule plain{.budget = 13}, pooled{.budget = 13, .pool = pool, .pool_max = max};
      EXPECT_EQ(choose_keys(pooled, 0, 1, scores, 60), choose_keys(plain, 0, 1, Scores{by_hand}, 60)) << pool << max;
    }
  }
}

TEST(DecodeRule, PoolsOverNeighbours) {
  const Scores scores{{0, 0, 0, 9, 0, 0, 0, 4, 4, 4, 0, 0}};
  EXPECT_EQ(choose_keys({.budget = 1}, 0, 1, scores, 12)[0], (Runs{{3, 4}}));
  EXPECT_EQ(choose_keys({.budget = 1, .pool = 3}, 0, 1, scores, 12)[0], (Runs{{8, 9}})) << "by the mean of three";
  EXPECT_EQ(choose_keys({.budget = 3, .pool = 3, .pool_max = true}, 0, 1, scores, 12)[0], (Runs{{2, 5}}));
}

// The weights that the last rows give their own keys raise no key before them.
TEST(DecodeRule, TheKeysThatStayAreNoNeighbours) {
  const Scores scores{{9, 9, 0, 0, 3, 0, 0, 2, 0, 0, 50, 60, 70}};
  for (const bool max : {false, true}) {
    const auto rule = [&](int32_t recent) {
      return DecodeRule{.budget = 3 + 2 + recent, .sink = 2, .recent = recent, .pool = 3, .pool_max = max};
    };
    EXPECT_EQ(choose_keys(rule(3), 0, 1, scores, 13)[0], (Runs{{0, 2}, {3, 6}, {10, 13}})) << max;
    EXPECT_EQ(choose_keys(rule(2), 0, 1, scores, 13)[0], (Runs{{0, 2}, {3, 4}, {9, 13}})) << "power";
  }
}

// So a share, in which they count, is of what each part was pooled to.
TEST(DecodeRule, ASharePoolsTheKeysThatStayByThemselves) {
  const Scores scores{{0, 0, 6, 0, 0, 0, 0, 3, 0, 0, 9, 9}};
  const auto chosen = [&](double top_p) {
    return choose_keys({.budget = 8, .recent = 2, .pool = 3, .top_p = top_p}, 0, 1, scores, 12)[0];
  };
  // 6 + 6 of 21 at the end; then 2, 2, 2, 1, 1, 1 in the middle.
  EXPECT_EQ(chosen(0.57), (Runs{{10, 12}}));
  EXPECT_EQ(chosen(0.66), (Runs{{1, 2}, {10, 12}}));
  EXPECT_EQ(chosen(0.85), (Runs{{1, 4}, {10, 12}}));
}

TEST(DecodeRule, HeadsCompeteForWhatTheyDoNotOwn) {
  Scores scores = random_scores(4, 100, 7);
  for (double& score : scores[2]) score += 1e6;
  const auto sizes = [&](double own_share) {
    std::vector<int64_t> out;
    const DecodeRule rule{.budget = 20, .recent = 4, .own_share = own_share};
    for (const Runs& keys : choose_keys(rule, 0, 1, scores, 100)) out.push_back(count(keys));
    return out;
  };
  EXPECT_EQ(sizes(1), (std::vector<int64_t>{20, 20, 20, 20}));
  EXPECT_EQ(sizes(0), (std::vector<int64_t>{4, 4, 68, 4}));
  for (const double own : {0.0, 0.2, 0.5, 0.77}) {
    const auto of = sizes(own);
    EXPECT_EQ(std::accumulate(of.begin(), of.end(), int64_t{0}), 80) << own;
    EXPECT_GE(*std::ranges::min_element(of), 4 + static_cast<int64_t>(16 * own)) << own;
  }
  for (double& score : scores[2]) score = scores[0][&score - scores[2].data()];
  scores[1] = scores[3] = scores[0];
  EXPECT_EQ(sizes(0), (std::vector<int64_t>{20, 20, 20, 20})) << "equal scores, equal budgets";
}

TEST(DecodeRule, NoHeadGetsMoreThanThereIs) {
  Scores scores = random_scores(2, 30, 3);
  for (double& score : scores[1]) score += 1e6;
  const auto keys = choose_keys({.budget = 25, .own_share = 0}, 0, 1, scores, 30);
  EXPECT_EQ(count(keys[1]), 30);
  EXPECT_EQ(count(keys[0]), 20);
}

// The numbers are those that the published code gives: what is chosen falls, the recent keys come on top.
TEST(DecodeRule, PyramidsFallAboveTheRecentKeys) {
  const auto budgets = [](const DecodeRule& rule, int layers, int32_t keys) {
    std::vector<int> out;
    for (int l = 0; l < layers; ++l) out.push_back(rule.budget_of(l, layers, keys));
    return out;
  };
  const auto of = budgets({.budget = 256, .recent = 32, .pyramid = 20}, 24, 4000);
  EXPECT_EQ(of[0], 437 + 32);
  EXPECT_EQ(of[1], 437 - 18 + 32);
  EXPECT_EQ(of[22], 41 + 32);
  EXPECT_EQ(of[23], 23 + 32);
  EXPECT_EQ(budgets({.budget = 256, .recent = 32}, 24, 4000), std::vector<int>(24, 256)) << "power: without a pyramid";
  // Of 448 keys 416 are there for the first layer to choose from: the last ones have the rest.
  const auto short_of = budgets({.budget = 256, .recent = 32, .pyramid = 20}, 24, 448);
  EXPECT_EQ(short_of[0], 448);
  EXPECT_EQ(short_of[23], 416 - 23 * 16 + 32);
  EXPECT_EQ(budgets({.budget = 256, .recent = 32, .pyramid = 20}, 24, 447), std::vector<int>(24, 256))
      << "below twice what is chosen all layers have the same";
  const DecodeRule rule{.budget = 104, .sink = 1, .recent = 3, .pyramid = 20};  // 100 are chosen
  EXPECT_EQ(budgets(rule, 6, 1000), (std::vector<int>{199, 161, 123, 85, 47, 9}));
  EXPECT_EQ(budgets(rule, 6, 200), (std::vector<int>{199, 161, 123, 85, 47, 9})) << "there are just enough";
  for (const int32_t keys : {50, 103, 104}) {
    for (int l = 0; l < 6; ++l) EXPECT_TRUE(rule.takes_all(l, 6, keys)) << keys;
  }
  EXPECT_FALSE(rule.takes_all(0, 6, 105)) << "power";
  for (const auto& keys : choose_keys(rule, 5, 6, random_scores(2, 300, 4), 300)) EXPECT_EQ(count(keys), 9);
}

TEST(DecodeRule, LayersSeeTheChoiceOfTheSelectionLayerBelow) {
  const auto below = [](const DecodeRule& rule) {
    std::vector<int> out;
    for (int l = rule.dense_layers; l < 8; ++l) out.push_back(rule.selection_below(l, 8));
    return out;
  };
  using By = DecodeRule::By;
  EXPECT_EQ(below({.by = By::kLayer, .dense_layers = 2}), (std::vector<int>{2, 2, 4, 4, 4, 4})) << "2 and the middle";
  EXPECT_EQ(below({.by = By::kLayer, .dense_layers = 1, .select = 6}), (std::vector<int>{1, 1, 1, 1, 1, 6, 6}));
  for (const int one : {0, 1, 2, 8})
    EXPECT_EQ(below({.by = By::kLayer, .dense_layers = 2, .select = one}), std::vector<int>(6, 2)) << "only one";
}

// Against sets that are grown one key at a time from the order by score.
TEST(DecodeRule, TopSharesAreHeldByTheFewestKeys) {
  int capped = 0, whole = 0, alone = 0;
  for (const double p : {0.01, 0.3, 0.6, 0.95}) {
    for (const int budget : {10, 30, 70}) {
      const DecodeRule rule{.budget = budget, .sink = 1, .recent = 3, .top_p = p};
      Scores scores = random_scores(3, 60, static_cast<uint64_t>(budget));
      for (double& score : scores[1]) score = score * score * score;  // few keys hold much
      const auto chosen = choose_keys(rule, 0, 1, scores, 60);
      for (size_t g = 0; g < scores.size(); ++g) {
        std::vector<int32_t> order(56);
        std::iota(order.begin(), order.end(), 1);
        std::ranges::sort(order, [&](int a, int b) { return scores[g][a] > scores[g][b]; });
        std::vector<int32_t> by_hand{0, 57, 58, 59};
        double held = 0;
        for (const int32_t j : by_hand) held += scores[g][j];
        const double all = std::accumulate(scores[g].begin(), scores[g].end(), 0.0);
        size_t n = 0;
        for (; n < order.size() && std::ssize(by_hand) < budget && held < p * all; ++n) {
          by_hand.push_back(order[n]);
          held += scores[g][order[n]];
        }
        std::ranges::sort(by_hand);
        EXPECT_EQ(chosen[g], runs_of(by_hand)) << p << ' ' << budget << ' ' << g;
        (held < p * all ? capped : n == 0 ? alone : whole) += 1;
      }
    }
  }
  EXPECT_GT(capped, 5) << "power: the budget is the end";
  EXPECT_GT(whole, 5) << "power: the share is";
  EXPECT_GT(alone, 5) << "power: what is always there holds it";
}

// What is out counts for the share, and is not taken, however much is lacking.
TEST(DecodeRule, ATopShareCountsWhatIsLost) {
  const DecodeRule rule{.by = DecodeRule::By::kAllRows, .budget = 6, .recent = 1, .top_p = 0.5};
  const Scores scores{{6, 3, 2, 1, 1}};  // of 7
  const auto with_lost = [&](double lost) { return choose_keys(rule, 0, 1, scores, 7, std::vector<double>{lost})[0]; };
  EXPECT_EQ(with_lost(0), (Runs{{0, 1}, {4, 5}})) << "7 of 13";
  EXPECT_EQ(with_lost(5), (Runs{{0, 2}, {4, 5}})) << "10 of 18";
  EXPECT_EQ(with_lost(1000), (Runs{{0, 5}})) << "all that are in";
}

TEST(DecodeRule, TheHeaviestHoldTheShare) {
  const Runs candidates{{10, 13}, {20, 22}};
  const std::vector<double> weights{1, 5, 2, 2, 4};
  const auto kept = [&](double share) { return heaviest(candidates, weights, share); };
  EXPECT_EQ(kept(0.01), (Runs{{11, 12}}));
  EXPECT_EQ(kept(0.5), (Runs{{11, 12}, {21, 22}})) << "9 of 14";
  EXPECT_EQ(kept(0.7), (Runs{{11, 13}, {21, 22}})) << "the lower one on a tie";
  EXPECT_EQ(kept(0.99), candidates);
  EXPECT_EQ(heaviest(candidates, std::vector<double>(5, 0.0), 0.1), candidates) << "nothing is known";
}

TEST(DecodeRule, ATopShareOfNothingKnownIsTheBudget) {
  const DecodeRule rule{.budget = 6, .top_p = 0.5};
  EXPECT_EQ(count(choose_keys(rule, 0, 1, Scores{std::vector<double>(20, 0.0)}, 20)[0]), 6);
  const DecodeRule wide{.budget = 100, .sink = 10, .recent = 12, .top_p = 0.5};
  EXPECT_EQ(choose_keys(wide, 0, 1, random_scores(1, 20, 1), 20)[0], (Runs{{0, 20}})) << "sink and recent are all";
}

// Against a search through all pages, for budgets and numbers of keys that leave pages unfilled.
TEST(DecodeRule, KeepsTheBestPagesAndTheNewest) {
  for (const int keys : {33, 40, 47, 48}) {
    for (const int budget : {8, 20, 24, 31, 32}) {
      const DecodeRule rule{.by = DecodeRule::By::kPages, .budget = budget, .page = 8};
      const int pages = (keys + 7) / 8;
      const Scores scores = random_scores(3, pages, static_cast<uint64_t>(keys * 100 + budget));
      const auto chosen = choose_pages(rule, 0, 1, scores, keys);
      for (size_t g = 0; g < scores.size(); ++g) {
        const int newest = keys - (pages - 1) * 8, more = (budget - newest) / 8;
        EXPECT_EQ(count(chosen[g]), newest + more * 8);
        EXPECT_LE(count(chosen[g]), budget);
        EXPECT_TRUE(includes(chosen[g], Runs{{keys - newest, keys}}));
        for (int p = 0; p + 1 < pages; ++p) {
          const auto better =
              std::count_if(scores[g].begin(), scores[g].end() - 1, [&](double score) { return score > scores[g][p]; });
          EXPECT_EQ(includes(chosen[g], Runs{{p * 8, p * 8 + 8}}), better < more) << p;
          EXPECT_EQ(contains(chosen[g], p * 8 + 5), better < more) << "whole pages";
        }
      }
    }
  }
  const DecodeRule all{.by = DecodeRule::By::kPages, .budget = 40, .page = 8};
  EXPECT_EQ(choose_pages(all, 0, 1, Scores(2), 40), (std::vector<Runs>(2, Runs{{0, 40}})));
}

TEST(DecodeRule, NearestAndRandomReadNoScores) {
  const DecodeRule nearest{.by = DecodeRule::By::kNearest, .budget = 6, .sink = 2};
  EXPECT_EQ(choose_keys(nearest, 0, 1, Scores(2), 20), (std::vector<Runs>(2, Runs{{0, 2}, {16, 20}})));
  const DecodeRule random{.by = DecodeRule::By::kRandom, .budget = 10, .recent = 2};
  const auto a = choose_keys(random, 0, 2, Scores(2), 50), b = choose_keys(random, 1, 2, Scores(2), 50);
  EXPECT_EQ(count(a[0]), 10);
  EXPECT_NE(a[0], a[1]);
  EXPECT_NE(a, b);
  EXPECT_EQ(a, choose_keys(random, 0, 2, Scores(2), 50));
}

}  // namespace
}  // namespace kvilt

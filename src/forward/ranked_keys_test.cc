// Sets of keys by their rank: one that takes over keys of another is the one that is asked for anew.
#include "forward/ranked_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <utility>

#include "forward/prompt_for_test.h"

namespace kvilt {
namespace {

constexpr int32_t kPositions = 120;

using Where = std::tuple<const void*, const void*, const float*, int32_t, int32_t>;

std::vector<Where> where(const RankedKeys& keys) {
  std::vector<Where> out;
  for (const KvSpan& span : keys.spans()) out.emplace_back(span.k, span.v, span.rotation, span.pos, span.count);
  return out;
}

RankedKeys keys_at(const PageTable& kv, int layer, int head, const Runs& positions) {
  RankedKeys out;
  out.append(kv, layer, head, positions);
  return out;
}

// Each position with this chance.
Runs some_of(const Runs& of, double share, std::mt19937& rng) {
  std::vector<int32_t> out;
  for (const int32_t pos : positions(of)) {
    if (std::bernoulli_distribution(share)(rng)) out.push_back(pos);
  }
  return runs_of(out);
}

// 60 keys that were computed elsewhere, in two pieces of which the second lay before the first, between 60 of the
// prompt's own.
struct Placed {
  ModelForTest on;
  Driver driver{*on.model, on.pool};
  PromptForTest source{on, random_tokens(kPositions, 3, on.config())},
      prompt{on, random_tokens(kPositions, 4, on.config())};
  explicit Placed(DType kv = DType::kF32) : on(kProbe, "reference", kv) {
    source.run(driver);
    const std::shared_ptr<const KvSegment> segment = source.publish();
    prompt.table.place({segment, 40, 40, 0});
    prompt.table.place({segment, 10, 20, 70});
    prompt.plan.stages = {uniform_stage({{40, 70}, {90, kPositions}}, on.config().L)};
    prompt.enter();
    Chunk chunk = prompt.chunk({0, kPositions});
    driver.run({&chunk, 1});
  }
};

// Sets of two rows: nested, overlapping, without a key in common; each from what the one before left.
void expect_sets_as_asked_for(const PageTable& kv, int layer, int head, const Runs& all) {
  std::mt19937 rng(1);
  const auto anew = [&](const Runs& positions) { return where(keys_at(kv, layer, head, positions)); };
  size_t most = 0, both = 0, gone = 0, added = 0;
  RankedKeys keys;
  for (const double before : {1.0, 0.7, 0.03, 0.0}) {
    for (const double after : {1.0, 0.98, 0.5, 0.03, 0.0}) {
      for (int n = 0; n < 30; ++n) {
        const Runs old = some_of(all, before, rng), now = some_of(n % 2 ? old : all, after, rng);
        for (const Runs& set : {old, now}) {
          keys.replace(kv, layer, head, set);
          ASSERT_EQ(where(keys), anew(set));
          ASSERT_EQ(keys.positions(), set);
          ASSERT_EQ(keys.size(), count(set));
          most = std::max(most, keys.spans().size());
        }
        both += !intersect(old, now).empty();
        gone += !subtract(old, now).empty();
        added += !subtract(now, old).empty();
        const Run next{kPositions - 1, kPositions};
        if (contains(now, next.begin)) continue;
        keys.append(kv, layer, head, {&next, 1});  // as the next row does
        ASSERT_EQ(where(keys), anew(unite(now, Runs{next})));
      }
    }
  }
  EXPECT_GT(most, 20u) << "power: sets of many spans";
  EXPECT_GT(std::min({both, gone, added}), 100u) << "power";
}

TEST(RankedKeys, ASetThatReplacesAnotherIsTheOneAskedForAnew) {
  for (const DType kv : {DType::kF32, DType::kI8}) {
    Placed placed(kv);
    const ModelConfig& c = placed.on.config();
    EXPECT_GT(c.G, 1) << "power";
    const auto turned = [](const KvSpan& span) { return span.rotation != nullptr; };
    EXPECT_TRUE(std::ranges::any_of(keys_at(placed.prompt.table, 1, 0, {{0, kPositions}}).spans(), turned)) << "power";
    for (const auto& [layer, head] : {std::pair{1, 0}, {1, c.G - 1}, {c.L - 1, 0}})
      expect_sets_as_asked_for(placed.prompt.table, layer, head, {{0, kPositions}});
  }
}

// Heads that let go of keys have the others packed, each in its own pages.
TEST(RankedKeys, SetsOfPackedKeysToo) {
  Placed placed;
  const ModelConfig& c = placed.on.config();
  std::mt19937 rng(2);
  std::vector<Runs> kept;
  for (int i = 0; i < c.L * c.G; ++i)
    kept.push_back(unite(some_of({{0, kPositions}}, 0.8, rng), Runs{{kPositions - 1, kPositions}}));
  placed.prompt.table.compact(kept);
  for (const int head : {0, c.G - 1})
    expect_sets_as_asked_for(placed.prompt.table, 1, head, kept[static_cast<size_t>(c.G + head)]);
}

// What is taken over is not asked for: keys that moved meanwhile are where they were.
TEST(RankedKeys, KeysThatStayAreNotAskedForAgain) {
  Placed placed;
  PageTable& kv = placed.prompt.table;
  RankedKeys keys = keys_at(kv, 1, 0, {{95, 110}});
  const std::vector<Where> before = where(keys);
  kv.compact(
      std::vector<Runs>(static_cast<size_t>(placed.on.config().L * placed.on.config().G), Runs{{90, kPositions}}));
  EXPECT_NE(where(keys_at(kv, 1, 0, {{95, 110}})), before) << "power";
  keys.replace(kv, 1, 0, Runs{{95, 110}});
  EXPECT_EQ(where(keys), before);
}

}  // namespace
}  // namespace kvilt

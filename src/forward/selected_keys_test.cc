// Which keys the rows of an answer see: against attention weights written out, and by changing K and V in the cache.
#include "forward/selected_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "forward/prompt_for_test.h"

namespace kvilt {
namespace {

constexpr int32_t kPrompt = 120, kBudget = 20, kQueries = 8;

const DecodeRule kHeavy{.by = DecodeRule::By::kAllRows, .budget = kBudget, .recent = kBudget / 2, .every = 1};

class SelectedKeysTest : public testing::TestWithParam<const char*> {
 protected:
  explicit SelectedKeysTest(DType kv = DType::kF32)
      : on(kProbe, GetParam(), kv), c(on.config()), driver(*on.model, on.pool) {}

  // A prompt whose last rows were kept, then rows of an answer, one at a time. again: so many tokens 5, 6, ... of the
  // answer are computed with the prompt, which has prompt_len.
  struct Answering {
    Answering(SelectedKeysTest& test, const DecodeRule& rule, const std::function<void(PromptForTest&)>& place = {},
              int32_t again = 0, int32_t prompt_len = kPrompt)
        : of(test), prompt(test.on, with_answer(test.c, again)), keys(rule, test.c, prompt_len, prompt.T()) {
      if (place) place(prompt);
      prompt.keys_of_answer = &keys;
      prompt.stage().lookers = rule.looking(prompt_len, prompt.T());
      prompt.run(test.driver, 50);
    }
    static std::vector<int32_t> with_answer(const ModelConfig& config, int32_t again) {
      std::vector<int32_t> out = random_tokens(kPrompt, 3, config);
      for (int32_t i = 0; i < again; ++i) out.push_back(5 + i);
      return out;
    }
    std::vector<float> next(int32_t id) {
      compute(id);
      keys.evict(prompt.table, prompt.T(), [&](int64_t pages) { return of.on.store->free_pages() >= pages; });
      return prompt.logits;
    }
    void compute(int32_t id) {
      const auto pos = static_cast<int32_t>(ids().size());
      ids().push_back(id);
      prompt.table.add_next(pos);
      row.prompt_len = pos + 1;
      row.stages = {uniform_stage({{pos, pos + 1}}, of.c.L)};
      band = next_band(row.stages[0], 0, of.c.L, {{pos, pos + 1}});
      Chunk chunk = prompt.chunk({pos, pos + 1});
      chunk.plan = &row;
      chunk.stage = &row.stages[0];
      chunk.band = &band;
      chunk.probes = {};
      chunk.logits = prompt.logits.data();
      of.driver.run({&chunk, 1});
    }
    std::vector<int32_t>& ids() { return prompt.ids; }
    // The positions that a head's rows see, out of where their K lies.
    std::vector<int32_t> seen(int layer, int head) {
      const auto last = static_cast<int32_t>(ids().size()) - 1;
      std::map<const void*, int32_t> at;
      for (int32_t pos = 0; pos <= last; ++pos) at[prompt.table.private_k(layer, head, pos)] = pos;
      std::vector<int32_t> out;
      const SelectedKeys::Seen* found = keys.seen(prompt.table, {}, {layer, last}, head);
      if (!found) return out;
      for (const KvSpan& span : found->spans) {
        EXPECT_EQ(span.pos, std::ssize(out)) << "ranks";
        for (int32_t i = 0; i < span.count; ++i)
          out.push_back(at.at(static_cast<const std::byte*>(span.k) + i * prompt.table.shape().row_bytes()));
      }
      EXPECT_EQ(found->row[0] + 1, std::ssize(out));
      return out;
    }
    void scramble(int layer, int head, int32_t pos) {
      const std::vector<float> other = random_floats(static_cast<size_t>(2 * of.c.E), 77);
      write(layer, head, pos, other.data(), other.data() + of.c.E);
    }
    // Whatever reads it is NaN.
    void lose(int layer, int head, int32_t pos) {
      const std::vector<float> nan(static_cast<size_t>(of.c.E), std::numeric_limits<float>::quiet_NaN());
      write(layer, head, pos, nan.data(), nan.data());
    }
    void write(int layer, int head, int32_t pos, const float* k, const float* v) {
      const KvShape& shape = prompt.table.shape();
      std::vector<std::byte> rows(static_cast<size_t>(2 * shape.row_bytes()));
      encode_kv_row(shape.dtype, shape.E, k, rows.data());
      encode_kv_row(shape.dtype, shape.E, v, rows.data() + shape.row_bytes());
      prompt.table.restore(layer, head, pos, rows.data(), rows.data() + shape.row_bytes());
    }

    SelectedKeysTest& of;
    PromptForTest prompt;
    SelectedKeys keys;
    Plan row;
    Band band;
  };

  void what_is_left_out_has_no_effect();

  ModelForTest on;
  const ModelConfig& c;
  Driver driver;
};

class SelectedBf16KeysTest : public SelectedKeysTest {
 protected:
  SelectedBf16KeysTest() : SelectedKeysTest(DType::kBF16) {}
};

// The keys that the last row of `prompt` gave most weight in one layer, summed over a group; as many as kBudget. Empty:
// rounding may decide.
std::vector<int32_t> best_of(const Probe& probe, const ModelConfig& c, int layer, int head, int32_t keys) {
  const int group = c.H / c.G;
  std::vector<double> sums(static_cast<size_t>(keys), 0);
  for (int h = head * group; h < (head + 1) * group; ++h) {
    for (int32_t j = 0; j < keys; ++j) sums[j] += probe.weights[layer][h * int64_t{keys + 1} + j];
  }
  std::vector<int32_t> best(static_cast<size_t>(keys));
  std::iota(best.begin(), best.end(), 0);
  std::ranges::sort(best, [&](int32_t a, int32_t b) { return sums[a] > sums[b]; });
  if (sums[best[kBudget - 1]] - sums[best[kBudget]] < 1e-6) return {};
  best.resize(kBudget);
  std::ranges::sort(best);
  return best;
}

// Single keys from all over a long prompt: its heads find them on the pool's threads, each its own.
TEST_P(SelectedKeysTest, HeadsFindManyRunsSideBySide) {
  constexpr int32_t kLong = 400;
  const DecodeRule rule{.by = DecodeRule::By::kRandom, .budget = kLong / 2};
  Answering answering(*this, rule, {}, kLong - kPrompt, kLong);
  answering.next(7);
  for (int layer = 0; layer < c.L; ++layer) {
    const auto chosen = choose_keys(rule, layer, c.L, std::vector<std::vector<double>>(c.G), kLong);
    size_t runs = 0;
    for (int head = 0; head < c.G; ++head) {
      std::vector<int32_t> want = positions(chosen[head]);
      want.push_back(kLong);
      EXPECT_EQ(answering.seen(layer, head), want) << layer << " " << head;
      runs += chosen[head].size();
    }
    EXPECT_GE(runs, 128u) << "else they are found one head after the other";
  }
}

// Layers see what the row itself chose in the selection layer below, by its weights there. Up to the lower of the layers
// that are compared rows are dense, so their weights are those of a dense prompt.
TEST_P(SelectedKeysTest, LayersSeeWhatTheRowLookedAtBelow) {
  for (const int select : {3, 5}) {
    const int from = select == 3 ? 3 : 2, until = select == 3 ? 6 : 5;
    Answering answering(
        *this, {.by = DecodeRule::By::kLayer, .budget = kBudget, .every = 1, .dense_layers = 2, .select = select});
    std::vector<int32_t> ids = random_tokens(kPrompt, 3, c);
    int compared = 0, changed = 0;
    std::vector<std::vector<int32_t>> last(static_cast<size_t>(c.G));
    for (const int32_t id : {5, 6, 7}) {
      const auto pos = static_cast<int32_t>(ids.size());
      ids.push_back(id);
      answering.next(id);
      PromptForTest looked(on, ids);
      looked.stage().probes = {{Estimator::kWeights, {2, 3}, {{pos, pos + 1}}}};
      looked.run(driver);
      for (int g = 0; g < c.G; ++g) {
        const auto seen_at = [&](int l) { return answering.seen(l, g); };
        EXPECT_TRUE(seen_at(0).empty() && seen_at(1).empty()) << "they choose nothing";
        for (const int l : {2, select}) EXPECT_EQ(std::ssize(seen_at(l)), pos + 1) << "it sees all where it selects";
        std::vector<int32_t> best = best_of(looked.probes[0], c, from, g, pos);
        if (best.empty()) continue;
        EXPECT_NE(best_of(looked.probes[0], c, 5 - from, g, pos), best) << "power: another layer looks elsewhere";
        changed += std::exchange(last[g], best) != best;
        best.push_back(pos);  // the row itself
        for (int l = from + 1; l < until; ++l, ++compared) EXPECT_EQ(seen_at(l), best) << l << ' ' << g << ' ' << pos;
      }
    }
    EXPECT_GT(compared, 3);
    EXPECT_GT(changed, c.G) << "power: another row looks elsewhere";
  }
}

// The keys with the largest sums of the weights that the last rows of the prompt gave them.
TEST_P(SelectedKeysTest, TheyAreWhatTheLastRowsLookedAtMost) {
  Answering answering(*this, {.budget = kBudget, .queries = kQueries});
  answering.next(5);
  PromptForTest looked(on, random_tokens(kPrompt, 3, c));
  std::vector<int> layers(static_cast<size_t>(c.L));
  std::iota(layers.begin(), layers.end(), 0);
  looked.stage().probes = {{Estimator::kWeights, layers, {{kPrompt - kQueries, kPrompt}}}};
  looked.run(driver);
  const int group = c.H / c.G;
  for (int l = 0; l < c.L; ++l) {
    for (int g = 0; g < c.G; ++g) {
      std::vector<double> sums(kPrompt, 0);
      for (int row = 0; row < group * kQueries; ++row) {
        for (int j = 0; j < kPrompt; ++j)
          sums[j] += looked.probes[0].weights[l][(g * group * kQueries + row) * int64_t{kPrompt} + j];
      }
      std::vector<int32_t> best(kPrompt);
      std::iota(best.begin(), best.end(), 0);
      std::ranges::sort(best, [&](int32_t a, int32_t b) { return sums[a] > sums[b]; });
      if (sums[best[kBudget - 1]] - sums[best[kBudget]] < 1e-5) continue;  // a tie but for rounding
      best.resize(kBudget);
      std::ranges::sort(best);
      best.push_back(kPrompt);  // the row itself
      EXPECT_EQ(answering.seen(l, g), best) << l << ' ' << g;
    }
  }
}

// Rows look whose K and V are placed, as if they had been computed here; chunks end among them.
TEST_P(SelectedKeysTest, RowsOfAPlacedPromptLook) {
  PromptForTest known(on, random_tokens(kPrompt, 3, c));
  known.run(driver);
  const std::shared_ptr<const KvSegment> segment = known.publish();
  const auto all_but_the_last = [&](PromptForTest& prompt) {
    prompt.table.place({segment, 0, kPrompt - 1, 0});
    prompt.stage() = uniform_stage({{kPrompt - 1, kPrompt}}, c.L);
  };
  const DecodeRule one{.budget = kBudget, .queries = 1};
  const DecodeRule rules[] = {{.budget = kBudget, .queries = 32},
                              {.budget = kBudget, .recent = 8, .queries = 32, .pool = 5, .own_share = 0.2},
                              kHeavy};
  for (const DecodeRule& rule : rules) {
    Answering alone(*this, rule), behind(*this, rule, all_but_the_last);
    EXPECT_EQ(behind.prompt.table.owned(), (Runs{{kPrompt - 1, kPrompt}})) << "power: nothing else is written";
    Answering with_one(*this, one, all_but_the_last);
    for (const int32_t id : {5, 6, 7}) {
      const std::vector<float> logits = alone.next(id);
      EXPECT_EQ(behind.next(id), logits);
      EXPECT_NE(with_one.next(id), logits) << "power: who looks matters";
    }
  }
}

// A request that was preempted computes its answer so far again. What it chose once is chosen as it was: by the prompt's
// rows, among the prompt's keys.
TEST_P(SelectedKeysTest, AResumedAnswerChoosesWhatItChose) {
  const DecodeRule rules[] = {{.budget = kBudget, .queries = kQueries},
                              {.budget = kBudget, .queries = kQueries, .pool = 5, .own_share = 0.2},
                              {.by = DecodeRule::By::kRandom, .budget = kBudget, .recent = 4}};
  constexpr int32_t kBefore = kQueries + 3;  // tokens of the answer, more than look
  for (const DecodeRule& rule : rules) {
    Answering whole(*this, rule);
    for (int32_t id = 5; id < 5 + kBefore + 1; ++id) whole.next(id);
    Answering again(*this, rule, {}, kBefore), as_prompt(*this, rule, {}, kBefore, kPrompt + kBefore);
    again.next(5 + kBefore);
    as_prompt.next(5 + kBefore);
    int differ = 0;
    for (int l = 0; l < c.L; ++l) {
      for (int g = 0; g < c.G; ++g) {
        EXPECT_EQ(again.seen(l, g), whole.seen(l, g)) << l << ' ' << g;
        differ += as_prompt.seen(l, g) != whole.seen(l, g);
      }
    }
    EXPECT_GT(differ, c.L) << "power: what a prompt would choose that ends where the answer was broken off";
  }
}

// Of what a row does not see K and V may be anything, even NaN; of what it sees no cell may. One run says what the row
// sees, the next ones change that before it is computed: what it chooses by, it has kept, or sees all of.
void SelectedKeysTest::what_is_left_out_has_no_effect() {
  using By = DecodeRule::By;
  const DecodeRule rules[] = {{.budget = kBudget, .queries = kQueries},
                              kHeavy,
                              {.by = By::kPages, .budget = kBudget, .every = 1, .page = 4},
                              {.by = By::kLayer, .budget = kBudget, .every = 1, .dense_layers = 2, .select = 4},
                              {.by = By::kNearest, .budget = kBudget, .sink = 3, .every = 1, .at_ranks = true},
                              {.by = By::kRandom, .budget = kBudget, .recent = 4}};
  for (const DecodeRule& rule : rules) {
    SCOPED_TRACE(static_cast<int>(rule.by));
    using Change = std::function<void(Answering&)>;
    const auto third = [&](const Change& before, const Change& behind) {
      Answering answering(*this, rule);
      for (const int32_t id : {5, 6}) answering.next(id);
      if (before) before(answering);
      const std::vector<float> logits = answering.next(7);
      if (behind) behind(answering);
      return logits;
    };
    std::vector<std::vector<int32_t>> seen(static_cast<size_t>(c.L * c.G));
    const std::vector<float> as_it_is = third({}, [&](Answering& answering) {
      for (size_t i = 0; i < seen.size(); ++i)
        seen[i] = answering.seen(static_cast<int>(i) / c.G, static_cast<int>(i) % c.G);
    });
    const auto sees = [&](size_t i, int32_t pos) {
      return seen[i].empty() || std::ranges::binary_search(seen[i], pos);
    };
    int64_t hidden = 0;
    const auto lost = [&](Answering& answering) {
      for (size_t i = 0; i < seen.size(); ++i) {
        for (int32_t pos = 0; pos < kPrompt + 2; ++pos) {
          if (sees(i, pos)) continue;
          answering.lose(static_cast<int>(i) / c.G, static_cast<int>(i) % c.G, pos);
          ++hidden;
        }
      }
    };
    EXPECT_EQ(third(lost, {}), as_it_is);
    EXPECT_GT(hidden, kPrompt) << "power";
    for (const int layer : {1, c.L - 1}) {
      const int head = layer % c.G;
      const std::vector<int32_t>& of_head = seen[static_cast<size_t>(layer * c.G + head)];
      if (of_head.empty()) continue;  // all
      const auto one_lost = [&](Answering& answering) { answering.lose(layer, head, of_head[of_head.size() / 2]); };
      EXPECT_NE(third(one_lost, {}), as_it_is) << "power: " << layer << ' ' << head;
    }
    const auto scrambled = [&](Answering& answering) {
      for (const int32_t pos : seen.back()) {
        if (pos < kPrompt) answering.scramble(c.L - 1, c.G - 1, pos);
      }
    };
    EXPECT_NE(third(scrambled, {}), as_it_is) << "power: what is seen is a value, not only read";
  }
}

TEST_P(SelectedKeysTest, WhatIsLeftOutHasNoEffect) { what_is_left_out_has_no_effect(); }
TEST_P(SelectedBf16KeysTest, WhatIsLeftOutHasNoEffect) { what_is_left_out_has_no_effect(); }

// Half of the budget by the weights that all rows of the prompt gave, half the last ones.
TEST_P(SelectedKeysTest, HeavyKeysAreWhatAllRowsLookedAt) {
  Answering answering(*this, kHeavy);
  answering.next(5);
  PromptForTest looked(on, random_tokens(kPrompt, 3, c));
  std::vector<int> layers(static_cast<size_t>(c.L));
  std::iota(layers.begin(), layers.end(), 0);
  looked.stage().probes = {{Estimator::kWeights, layers, {{0, kPrompt}}}};
  looked.run(driver);
  const int64_t group = c.H / c.G, of_head = group * kPrompt * kPrompt;
  int compared = 0;
  for (int l = 0; l < c.L; ++l) {
    for (int g = 0; g < c.G; ++g) {
      std::vector<double> sums(kPrompt, 0);
      for (int64_t i = 0; i < of_head; ++i) sums[i % kPrompt] += looked.probes[0].weights[l][g * of_head + i];
      std::vector<int32_t> best(kPrompt - kBudget / 2);
      std::iota(best.begin(), best.end(), 0);
      std::ranges::sort(best, [&](int32_t a, int32_t b) { return sums[a] > sums[b]; });
      if (sums[best[kBudget / 2 - 1]] - sums[best[kBudget / 2]] < 1e-4) continue;  // rounding may decide
      best.resize(kBudget / 2);
      std::ranges::sort(best);
      for (int32_t j = kPrompt - kBudget / 2; j <= kPrompt; ++j) best.push_back(j);
      EXPECT_EQ(answering.seen(l, g), best) << l << ' ' << g;
      ++compared;
    }
  }
  EXPECT_GT(compared, c.L);
}

// What is out has no effect on any row that follows, and every row leaves one key out.
TEST_P(SelectedKeysTest, AnEvictedKeyIsGone) {
  const auto rows = [&](bool change, bool of_seen) {
    Answering answering(*this, kHeavy);
    answering.next(5);
    answering.next(6);
    const auto last = static_cast<int32_t>(answering.ids().size()) - 1;
    for (int l = 0; change && l < c.L; ++l) {
      for (int g = 0; g < c.G; ++g) {
        const std::vector<int32_t> seen = answering.seen(l, g);
        EXPECT_EQ(std::ssize(seen), kBudget + 1);
        for (int32_t pos = 0; pos < last; ++pos) {
          if (std::ranges::binary_search(seen, pos) == of_seen) answering.scramble(l, g, pos);
        }
      }
    }
    std::vector<float> logits;
    for (int32_t id = 7; id < 7 + kBudget; ++id) {
      std::vector<int32_t> before = answering.seen(1, 0);
      const std::vector<float> of_row = answering.next(id);
      before.push_back(static_cast<int32_t>(answering.ids().size()) - 1);
      EXPECT_TRUE(std::ranges::includes(before, answering.seen(1, 0)));
      EXPECT_EQ(std::ssize(answering.seen(1, 0)), kBudget + 1);
      logits.insert(logits.end(), of_row.begin(), of_row.end());
    }
    return logits;
  };
  const std::vector<float> as_it_is = rows(false, false);
  EXPECT_EQ(rows(true, false), as_it_is);
  EXPECT_NE(rows(true, true), as_it_is) << "power";
}

// Every free page of the pool becomes noise.
void poison(PageStore& store) {
  std::vector<PageId> free;
  while (store.free_pages() > 0) free.push_back(store.alloc());
  for (const PageId page : free) std::memset(store.k(page), 0xff, static_cast<size_t>(store.shape().page_bytes()));
  for (const PageId page : free) store.free(page);
}

// The pages that were given back may hold anything; what stays may not.
TEST_P(SelectedKeysTest, WhatWasLetGoOfHasNoEffect) {
  using By = DecodeRule::By;
  const DecodeRule rules[] = {{.budget = kBudget, .queries = kQueries, .evict = true},
                              {.budget = kBudget, .queries = kQueries, .dense_rows = 2, .evict = true},
                              {.by = By::kAllRows, .budget = kBudget, .recent = 9, .every = 1, .evict = true},
                              {.by = By::kNearest, .budget = kBudget, .sink = 4, .every = 1, .evict = true},
                              {.by = By::kNearest, .budget = kBudget, .sink = 4, .every = 3, .at_ranks = true}};
  for (const DecodeRule& rule : rules) {
    SCOPED_TRACE(static_cast<int>(rule.by));
    const auto rows = [&](bool evict, bool poisoned, bool change) {
      DecodeRule with = rule;
      with.evict = evict;
      Answering answering(*this, with);
      const int64_t whole = answering.prompt.table.private_pages();
      std::vector<float> out;
      for (int32_t id = 5; id < 60; ++id) {
        const std::vector<float> logits = answering.next(id);
        out.insert(out.end(), logits.begin(), logits.end());
        if (poisoned) poison(*on.store);
        if (change && id == 20) answering.scramble(2, 1, answering.prompt.T() - 3);
      }
      EXPECT_EQ(answering.prompt.table.private_pages() < whole, evict);
      return out;
    };
    const std::vector<float> stays = rows(false, false, false);
    EXPECT_EQ(rows(true, true, false), stays);
    EXPECT_NE(rows(true, true, true), stays) << "power";
  }
}

// The keys of a layer 0 that stand at their ranks are those of a prompt that never had the others. They are compared as
// the row sees them, which stands at its own place in the text.
TEST_P(SelectedKeysTest, KeysAtTheirRanksAreThoseOfAShorterText) {
  constexpr int32_t kSink = 3;
  for (const bool at_ranks : {true, false}) {
    Answering answering(
        *this, {.by = DecodeRule::By::kNearest, .budget = kBudget, .sink = kSink, .every = 2, .at_ranks = at_ranks});
    for (const int32_t id : {5, 6, 7, 8}) answering.next(id);
    const auto pos = static_cast<int32_t>(answering.ids().size()) - 1;
    for (int head = 0; head < c.G; ++head) {
      const SelectedKeys::Seen* seen = answering.keys.seen(answering.prompt.table, {}, {0, pos}, head);
      const int32_t rank = seen->row[0];
      EXPECT_EQ(rank, kBudget + 1) << "the row after the one that chose";
      std::vector<int32_t> shorter(answering.ids().begin(), answering.ids().begin() + kSink);
      shorter.insert(shorter.end(), answering.ids().end() - (rank + 1 - kSink), answering.ids().end());
      PromptForTest alone(on, shorter);
      alone.run(driver);
      const RopeConfig& rope = c.ropes().at(0);
      double apart[2] = {0, 0};  // of the sink, and of the others
      int32_t at = 0;
      for (const KvSpan& span : seen->spans) {
        for (int32_t i = 0; i < span.count; ++i, ++at) {
          const auto* stored = static_cast<const float*>(span.k) + i * c.E;
          std::vector<float> key(stored, stored + c.E), expected(static_cast<size_t>(c.E));
          if (span.rotation) rotate_head(rope.pairs, rope.rotary_dim, span.rotation, 1, key.data());
          std::memcpy(expected.data(), alone.table.private_k(0, head, at), sizeof(float) * expected.size());
          rotate_head(rope.pairs, rope.rotary_dim, rotation(rope, pos - rank).data(), 1, expected.data());
          double& of = apart[at >= kSink];
          of = std::max(of, largest_difference(key, expected));
        }
      }
      EXPECT_EQ(at, rank + 1);
      EXPECT_LT(apart[1], 1e-4) << "the last ones stand as in the text";
      EXPECT_EQ(apart[0] < 1e-4, at_ranks) << apart[0] << " power: in the text the sink is far away";
    }
  }
}

// The same where sink and last ones come from other texts, each with its rotation, before and after the move.
TEST_P(SelectedKeysTest, PlacedKeysStandAtTheirRanksToo) {
  constexpr int32_t kSink = 3;
  PromptForTest source(on, random_tokens(90, 4, c));
  source.run(driver);
  const auto segment = source.publish();
  const auto place = [&](PromptForTest& prompt) {
    std::copy(source.ids.begin() + 30, source.ids.end(), prompt.ids.begin());
    std::copy(source.ids.begin() + 50, source.ids.begin() + 66, prompt.ids.begin() + 100);
    prompt.table.place({segment, 30, 60, 0});
    prompt.table.place({segment, 50, 16, 100});
    prompt.plan.stages = {uniform_stage({{60, 100}, {116, kPrompt}}, c.L)};
  };
  for (const auto& [at_ranks, evict] : {std::pair{true, false}, {true, true}, {false, true}}) {
    Answering answering(*this,
                        {.by = DecodeRule::By::kNearest,
                         .budget = kBudget,
                         .sink = kSink,
                         .every = 2,
                         .evict = evict,
                         .at_ranks = at_ranks},
                        place);
    for (const int32_t id : {5, 6, 7}) answering.next(id);
    answering.compute(8);
    EXPECT_EQ(answering.prompt.table.compacted(), evict);
    const auto pos = static_cast<int32_t>(answering.ids().size()) - 1;
    for (int head = 0; head < c.G; ++head) {
      const SelectedKeys::Seen* seen = answering.keys.seen(answering.prompt.table, {}, {0, pos}, head);
      const int32_t rank = seen->row[0];
      ASSERT_EQ(rank, kBudget + 1);
      std::vector<int32_t> shorter(answering.ids().begin(), answering.ids().begin() + kSink);
      shorter.insert(shorter.end(), answering.ids().end() - (rank + 1 - kSink), answering.ids().end());
      PromptForTest alone(on, shorter);
      alone.run(driver);
      const RopeConfig& rope = c.ropes().at(0);
      double apart[2] = {0, 0}, as_stored = 0;  // apart: of the sink, and of the others
      int32_t at = 0;
      for (const KvSpan& span : seen->spans) {
        for (int32_t i = 0; i < span.count; ++i, ++at) {
          const auto* stored = static_cast<const float*>(span.k) + i * c.E;
          std::vector<float> key(stored, stored + c.E), expected(static_cast<size_t>(c.E));
          std::memcpy(expected.data(), alone.table.private_k(0, head, at), sizeof(float) * expected.size());
          rotate_head(rope.pairs, rope.rotary_dim, rotation(rope, pos - rank).data(), 1, expected.data());
          as_stored = std::max(as_stored, at < kSink ? 0 : largest_difference(key, expected));
          if (span.rotation) rotate_head(rope.pairs, rope.rotary_dim, span.rotation, 1, key.data());
          double& of = apart[at >= kSink];
          of = std::max(of, largest_difference(key, expected));
        }
      }
      EXPECT_EQ(at, rank + 1);
      EXPECT_LT(apart[1], 1e-4);
      EXPECT_GT(as_stored, 1e-2) << "power: some of the last ones are turned by their placement";
      EXPECT_EQ(apart[0] < 1e-4, at_ranks) << apart[0] << " power: in the text the sink is far away";
    }
  }
}

TEST_P(SelectedKeysTest, RowsOfTheAnswerJoinAndALaterChoiceMayLeaveThemOut) {
  Answering answering(*this, {.budget = kBudget, .queries = kQueries, .dense_rows = 2, .every = 4});
  answering.next(5);
  EXPECT_TRUE(answering.seen(0, 0).empty()) << "it sees all";
  for (const int32_t id : {6, 7, 8, 9}) answering.next(id);
  for (int l = 0; l < c.L; ++l) {
    const std::vector<int32_t> seen = answering.seen(l, 0);
    ASSERT_EQ(std::ssize(seen), kBudget + 3) << "chosen before row 2 of the answer";
    EXPECT_TRUE(std::ranges::equal(std::vector<int32_t>{122, 123, 124}, std::span(seen).last(3)));
  }
  for (const int32_t id : {10, 11}) answering.next(id);  // row 6 chooses again
  for (int l = 0; l < c.L; ++l) EXPECT_EQ(std::ssize(answering.seen(l, 0)), kBudget + 1);
}

// A request that was preempted computes its answer so far again, and chooses where it goes on.
TEST_P(SelectedKeysTest, AnAnswerThatStartsAgainChoosesAtOnce) {
  const DecodeRule rule{.budget = kBudget, .queries = kQueries, .dense_rows = 4};
  SelectedKeys first(rule, c, 100, 100), again(rule, c, 100, 110);
  for (const int32_t pos : {90, 103}) EXPECT_FALSE(first.chooses_at({0, pos}));
  for (const int32_t pos : {90, 104, 109}) EXPECT_FALSE(again.chooses_at({0, pos})) << "rows of the prefill see all";
  EXPECT_TRUE(first.chooses_at({0, 104}));
  EXPECT_TRUE(again.chooses_at({0, 110}));
  for (SelectedKeys* keys : {&first, &again}) {  // the only choice looks with the rows that it looked with
    EXPECT_TRUE(keys->wants(103));
    EXPECT_FALSE(keys->wants(104)) << "no choice comes after it";
    EXPECT_FALSE(keys->wants(109));
    EXPECT_FALSE(keys->wants(103 - kQueries));
  }
  const DecodeRule often{.budget = kBudget, .queries = kQueries, .dense_rows = 4, .every = 4};
  SelectedKeys anew(often, c, 100, 110);  // who chooses again and again looks with the last rows
  EXPECT_TRUE(anew.chooses_at({0, 110}));
  EXPECT_TRUE(anew.wants(109));
  EXPECT_FALSE(anew.wants(109 - kQueries));
}

INSTANTIATE_TEST_SUITE_P(Backends, SelectedKeysTest, testing::Values("reference", "auto"));
INSTANTIATE_TEST_SUITE_P(Backends, SelectedBf16KeysTest, testing::Values("reference", "auto"));

}  // namespace
}  // namespace kvilt

// Chunks, bands and stages of a prefill: every row once, in order, whatever the chunk size; refine when it is due.
#include "sched/prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kv/rows_for_test.h"
#include "sched/near_policy_for_test.h"

namespace kvilt {
namespace {

using Params = std::map<std::string, std::string>;

ModelConfig config_of(int L) {
  ModelConfig config;
  config.L = L;
  config.G = 1;
  return config;
}

const PromptLayout kLayout{40, 5, {{5, 15}, {20, 30}}};

std::unique_ptr<ReusePolicy> sparsex(const std::string& phase1) {
  return std::move(make_policy("sparsex", {{"l_star", "3"}, {"b", "1"}, {"k", "0.2"}, {"phase1", phase1}})).value();
}

// Rows per (stage, band start), as driven with chunks of `rows`.
std::map<std::pair<const void*, int>, Runs> drive(Prefill& prefill, int rows) {
  std::map<std::pair<const void*, int>, Runs> seen;
  while (!prefill.done()) {
    const Run chunk = prefill.next_chunk(rows);
    EXPECT_LE(prefill.rows_in(chunk), rows);
    EXPECT_GE(prefill.rows_in(chunk), 1);
    const Band& band = prefill.band();
    const Runs& in = band.in.empty() ? band.cut_rows : band.in[0];
    Runs& done = seen[{&prefill.stage(), band.layer_begin}];
    const Runs now = intersect(in, Runs{chunk});
    EXPECT_TRUE(intersect(done, now).empty());
    EXPECT_EQ(prefill.at_band_start(), done.empty());
    done = unite(done, now);
    const int64_t logits = prefill.logit_rows(chunk);
    if (band.cut) prefill.probes()[0].score[7] = 5, prefill.probes()[0].score[25] = 4;
    prefill.advance(chunk);
    EXPECT_EQ(logits, prefill.done() ? 1 : 0) << "of the prefill's last chunk only";
  }
  return seen;
}

// The prefix' KV comes layer by layer: a band ends at the last layer that is there, and all rows run in each layer once.
TEST(Prefill, BandsEndAtTheLastLayerThatIsThere) {
  const ModelConfig config = config_of(5);
  const auto policy = make_policy("prefix", {}).value();
  const PromptLayout layout{40, 30, {}};
  for (const int rows : {3, 1000}) {
    Prefill prefill(*policy, layout, config);
    ASSERT_TRUE(prefill.goes_by_layers());
    EXPECT_TRUE(prefill.can_run()) << "power: at first all layers are there";
    std::vector<int> ends;
    const auto run_band = [&] {
      ASSERT_TRUE(prefill.can_run());
      const Band band = prefill.band();
      EXPECT_EQ(band.rows, (Runs{{30, 40}})) << band.layer_begin;
      EXPECT_EQ(band.cut_rows, band.cut ? (Runs{{30, 40}}) : Runs{});
      ends.push_back(band.layer_end);
      do {
        prefill.advance(prefill.next_chunk(rows));
      } while (!prefill.done() && !prefill.at_band_start());
    };
    prefill.layers_there(1);
    run_band();
    EXPECT_FALSE(prefill.can_run());
    prefill.layers_there(1);
    EXPECT_FALSE(prefill.can_run());
    EXPECT_EQ(prefill.settled(), 30) << "nothing of it is there at all layers";
    prefill.layers_there(2);
    EXPECT_TRUE(prefill.can_run());
    prefill.layers_there(3);  // before the band began
    run_band();
    EXPECT_FALSE(prefill.can_run());
    EXPECT_GT(prefill.rows_left(), 0);
    prefill.layers_there(5);
    run_band();
    EXPECT_TRUE(prefill.done());
    EXPECT_EQ(ends, (std::vector<int>{1, 3, 5}));
  }
}

TEST(Prefill, ABandThatHasItsSlotsStaysAsItIs) {
  const ModelConfig config = config_of(5);
  const auto policy = make_policy("prefix", {}).value();
  Prefill prefill(*policy, {40, 30, {}}, config);
  prefill.layers_there(2);
  prefill.slots_added();
  prefill.layers_there(4);
  EXPECT_EQ(prefill.band().layer_end, 2);
  prefill.advance(prefill.next_chunk(100));
  EXPECT_EQ(prefill.band().layer_end, 4);
  EXPECT_TRUE(prefill.can_run());
}

TEST(Prefill, WhatAPolicyCutsOrChoosesWaitsForAllLayers) {
  const ModelConfig config = config_of(5);
  EXPECT_FALSE(Prefill(Near(), {40, 30, {}}, config).goes_by_layers());
  EXPECT_FALSE(Prefill(*sparsex("all"), kLayout, config).goes_by_layers());
  EXPECT_FALSE(Prefill(*make_policy("naive", {}).value(), kLayout, config).goes_by_layers()) << "it has pieces";
  EXPECT_TRUE(Prefill(*make_policy("naive", {}).value(), {40, 30, {}}, config).goes_by_layers()) << "power";
}

TEST(Prefill, EveryRowOnceWhateverTheChunk) {
  const ModelConfig config = config_of(5);
  for (const char* phase1 : {"all", "catchup"}) {
    const auto policy = sparsex(phase1);
    std::vector<Runs> first;
    for (const int rows : {1, 3, 7, 1000}) {
      Prefill prefill(*policy, kLayout, config);
      std::vector<Runs> runs;
      for (const auto& [key, value] : drive(prefill, rows)) runs.push_back(value);
      std::ranges::sort(runs, {}, [](const Runs& run) { return count(run); });
      if (first.empty()) first = runs;
      EXPECT_EQ(runs, first);
      EXPECT_TRUE(contains(prefill.plan().stages.back().write_at(4), 7));
      EXPECT_EQ(count(prefill.recomputed()), 7);  // 7 and 25 by score, 5 and 6 by order, 14, 20 and 29 by overflow
    }
  }
}

// A carry's group is never cut, whatever max_rows says: so its range, with new text between its parts, must be short.
TEST(Prefill, FarPiecesDoNotMakeALongChunk) {
  const auto mend = std::move(make_policy("mend", {})).value();
  const PromptLayout layout{4200, 0, {{0, 100}, {150, 250}, {4000, 4100}}};
  const ModelConfig config = config_of(5);
  Prefill prefill(*mend, layout, config);
  int64_t longest = 0, rows = 0;
  while (!prefill.done()) {
    const kvilt::Run chunk = prefill.next_chunk(16);
    longest = std::max(longest, prefill.rows_in(chunk));
    rows += prefill.rows_in(chunk);
    prefill.advance(chunk);
  }
  EXPECT_GT(longest, 50);  // the first two pieces and what is between them
  EXPECT_LE(longest, 250);
  EXPECT_GT(rows, 2 * 3800);
}

// A later stage's choice reads what an earlier one saw: refine() has the probes of all stages so far, and the
// driver those of its stage.
TEST(Prefill, ProbesOfEarlierStagesStay) {
  const auto policy = make_policy("auto", {{"hop", "0.1"}}).value();
  const PromptLayout layout{300, 0, {{0, 140}, {140, 280}}};
  const ModelConfig config = config_of(3);
  const auto last_choice = [&](int32_t from_first) {
    Prefill prefill(*policy, layout, config);
    for (int stage = 0; !prefill.done(); ++stage) {
      if (stage < 2) {
        EXPECT_EQ(prefill.probes().size(), 1u);
        for (const double score : prefill.probes()[0].score) EXPECT_EQ(score, 0);
        std::fill_n(prefill.probes()[0].score.begin() + (stage == 0 ? from_first : 200), 40, 1.0);
      }
      prefill.advance(prefill.next_chunk(1000));
    }
    return prefill.recomputed();
  };
  const Runs early = last_choice(20), late = last_choice(80);
  EXPECT_TRUE(includes(early, Runs{{20, 60}, {200, 225}}));
  EXPECT_TRUE(includes(late, Runs{{80, 120}, {200, 225}})) << "power";
}

// Three of four tokens ahead are guessed: an end token would be the fourth.
TEST(Prefill, TokensAheadRunOneByOneBeforeTheRepair) {
  const ModelConfig config = config_of(5);
  const auto mend = std::move(make_policy("mend", {{"ahead", "4"}})).value();
  for (const int guesses : {0, 1, 3, 4}) {
    Prefill prefill(*mend, kLayout, config);
    for (const Runs& set : prefill.writes().sets) EXPECT_TRUE(set.empty() || set.back().end == 44) << "they have slots";
    std::vector<kvilt::Run> ahead;
    bool asked_last = false;
    const auto* looks = &prefill.plan().stages[0];
    while (prefill.plan().stages.size() == 2 && (&prefill.stage() == looks || prefill.guessing())) {
      const kvilt::Run chunk = prefill.next_chunk(1000);
      if (prefill.guessing()) ahead.push_back(chunk);
      asked_last = prefill.guesses_after(chunk);
      EXPECT_EQ(prefill.logit_rows(chunk), asked_last ? 1 : 0);
      if (asked_last && std::ssize(prefill.guessed()) < guesses) prefill.guess(9);
      prefill.advance(chunk);
    }
    ASSERT_EQ(std::ssize(ahead), guesses);
    for (int i = 0; i < guesses; ++i) EXPECT_EQ(ahead[i], (kvilt::Run{40 + i, 41 + i}));
    EXPECT_EQ(asked_last, guesses < 4) << "the last of all tells no other";
    EXPECT_TRUE(prefill.take_guesses_over()) << "there were slots for four, whatever was guessed";
    EXPECT_FALSE(prefill.take_guesses_over()) << "once";
    EXPECT_FALSE(prefill.has_slots());
    EXPECT_EQ(prefill.guessed().size(), 0u);
    while (!prefill.done()) prefill.advance(prefill.next_chunk(1000));
    EXPECT_FALSE(prefill.take_guesses_over()) << "the repair guesses none";
  }
}

TEST(Prefill, WritesNameTheBandsLayersOnly) {
  const auto policy = sparsex("all");
  const ModelConfig config = config_of(5);
  Prefill prefill(*policy, kLayout, config);
  const auto at = [](const Prefill::Writes& writes, int layer) { return writes.sets[writes.write[layer]]; };
  const auto before = prefill.writes();
  for (const int layer : {0, 1, 2}) EXPECT_EQ(at(before, layer), (Runs{{5, 40}}));
  for (const int layer : {3, 4}) EXPECT_TRUE(at(before, layer).empty());
  EXPECT_EQ(prefill.band().cut_rows, (Runs{{5, 40}}));
  prefill.slots_added();
  prefill.advance({5, 20});
  EXPECT_TRUE(prefill.has_slots());
  prefill.advance({20, 40});
  EXPECT_FALSE(prefill.has_slots()) << "of the next band";
  const auto after = prefill.writes();
  for (const int layer : {0, 1, 2}) EXPECT_TRUE(at(after, layer).empty());
  for (const int layer : {3, 4}) EXPECT_TRUE(includes(at(after, layer), kLayout.fresh()));
  EXPECT_LT(count(at(after, 4)), 35);
}

// A decode rule's last rows run wherever their K and V come from, and write nothing that is there.
TEST(Prefill, TheRowsThatADecodeRuleLooksWithRun) {
  const ModelConfig config = config_of(5);
  const auto with = [](const std::string& name, Params params) {
    params.insert({{"decode", "snapkv"}, {"decode_budget", "40"}});
    return std::move(make_policy(name, params)).value();
  };
  struct Case {
    std::string name;
    PromptLayout layout;
    Runs run, written;
  };
  const Case cases[] = {
      {"prefix", {80, 79, {}}, {{48, 80}}, {{79, 80}}},
      {"prefix", {80, 60, {}}, {{48, 80}}, {{60, 80}}},
      {"prefix", {80, 30, {}}, {{30, 80}}, {{30, 80}}},
      {"naive", {80, 0, {{20, 80}}}, {{0, 20}, {48, 80}}, {{0, 20}, {79, 80}}},
      {"prefix", {40, 39, {}}, {{39, 40}}, {{39, 40}}},                // all keys are taken
      {"prefix", {90, 84, {}, 80}, {{48, 80}, {84, 90}}, {{84, 90}}},  // of its prompt, which ends at 80
  };
  for (const Case& of : cases) {
    SCOPED_TRACE(of.name + std::to_string(of.layout.prompt_len) + ' ' + std::to_string(of.layout.prefix));
    const auto policy = with(of.name, {});
    for (const int rows : {5, 1000}) {
      Prefill prefill(*policy, of.layout, config);
      EXPECT_EQ(prefill.band().rows, of.run);
      EXPECT_EQ(prefill.stage().write_at(4), of.written);
      EXPECT_EQ(prefill.looks_again(), count(subtract(prefill.stage().lookers, of.written)));
      EXPECT_LE(prefill.settled(), std::max(of.layout.prefix, 0));
      EXPECT_EQ(drive(prefill, rows).size(), 1u);
    }
    EXPECT_EQ(Prefill(*std::move(make_policy(of.name, {})).value(), of.layout, config).band().rows, of.written);
  }
  // A cut right below the last layer: behind it they look as well.
  const auto cut = with("cacheblend", {{"check_layer", "4"}, {"r", "0"}});
  Prefill prefill(*cut, {200, 0, {{20, 190}}}, config);
  prefill.advance(prefill.next_chunk(1000));
  EXPECT_EQ(prefill.band().layer_begin, 4);
  EXPECT_EQ(prefill.band().in[0], (Runs{{168, 200}}));
  EXPECT_EQ(prefill.band().out[0], (Runs{{199, 200}}));
}

// All rows of what is exact; of placed pieces those that run anyway.
TEST(Prefill, ARuleOfAllRowsLooksBehindAPrefix) {
  const ModelConfig config = config_of(5);
  const Params h2o = {{"decode", "h2o"}, {"decode_budget", "40"}};
  EXPECT_EQ(Prefill(*std::move(make_policy("prefix", h2o)).value(), {80, 79, {}}, config).band().rows, (Runs{{0, 80}}));
  EXPECT_EQ(Prefill(*std::move(make_policy("naive", h2o)).value(), {80, 10, {{20, 70}}}, config).band().rows,
            (Runs{{0, 20}, {70, 80}}));
}

// What is left falls to nothing; where refine() has yet to choose, it is about what will be chosen.
TEST(Prefill, RowsLeftAreWhatIsStillToRun) {
  const ModelConfig config = config_of(5);
  const auto mend = std::move(make_policy("mend", {{"r", "0.2"}})).value();
  for (const auto& policy : {sparsex("all"), sparsex("catchup")}) {
    Prefill prefill(*policy, kLayout, config);
    const int64_t expected = prefill.rows_left();
    int64_t rows = 0;
    while (!prefill.done()) {
      const kvilt::Run chunk = prefill.next_chunk(4);
      EXPECT_GE(prefill.rows_left(), prefill.rows_in(chunk));
      EXPECT_LE(prefill.band_rows_left(), prefill.rows_left());
      rows += prefill.rows_in(chunk);
      prefill.advance(chunk);
    }
    EXPECT_EQ(prefill.rows_left(), 0);
    EXPECT_NEAR(static_cast<double>(expected), static_cast<double>(rows), 5) << "borders are not counted";
    EXPECT_LT(expected, 60) << "power: stages at their largest have more";
  }
  const PromptLayout layout{1200, 0, {{100, 1100}}};
  EXPECT_EQ(Prefill(*mend, layout, config).rows_left(), 200 + 200 + 200);
}

TEST(Prefill, HiddenStatesOfACutCount) {
  ModelConfig config = config_of(5);
  config.D = 8;
  EXPECT_EQ(Prefill(*sparsex("all"), kLayout, config).hidden_bytes(), 35 * 8 * 4);
  EXPECT_EQ(Prefill(*sparsex("catchup"), kLayout, config).hidden_bytes(), 0) << "its first stage ends at the cut";
}

// What a pass keeps for means is its own affair: the plan does not name it, so it is not published with segments.
TEST(Prefill, WhatIsKeptForMeansIsKeptBesides) {
  ModelConfig config = config_of(5);
  config.D = 8;
  constexpr AnnexKind kPlans{AnnexOf::kHiddenF32, 4}, kMeans{AnnexOf::kHiddenBF16, 1};
  const auto full = make_policy("full", {}).value();
  const auto keeps = make_policy("crossquery", {{"regime", "b"}, {"l_cut", "4"}}).value();
  const PromptLayout layout{40, 0, {}};
  Prefill without(*full, layout, config), means(*full, layout, config), both(*keeps, layout, config);
  EXPECT_EQ(without.kept_for_means(), nullptr);
  EXPECT_EQ(without.hidden_bytes(), 0);
  means.keep_for_means(kMeans, {{5, 25}});
  ASSERT_NE(means.kept_for_means(), nullptr);
  EXPECT_EQ(means.kept_for_means()->kind, kMeans);
  EXPECT_TRUE(means.kept_by_plan().empty());
  EXPECT_EQ(means.hidden_bytes(), 20 * 8 * 4) << "of the marks alone";
  EXPECT_FALSE(means.goes_by_layers()) << "a band would end below the layer";
  both.keep_for_means(kMeans, {{5, 25}});
  ASSERT_EQ(both.kept_by_plan().size(), 1u);
  EXPECT_EQ(both.kept_by_plan()[0].kind, kPlans);
  EXPECT_EQ(both.kept_for_means()->kind, kMeans);
  both.start_keeping();
  EXPECT_EQ(both.kept_for_means()->rows.rows(), (Runs{{5, 25}}));
  EXPECT_EQ(both.kept_by_plan()[0].rows.rows(), (Runs{{0, 40}}));
}

// What probes find by layer is memory that the request holds until its prefill ends.
TEST(Prefill, WhatProbesFindByLayerCounts) {
  ModelConfig config = config_of(6);
  config.H = 4, config.E = 8;
  const auto samkv = std::move(make_policy("samkv", {{"block", "8"}, {"stable_begin", "0"}})).value();
  Prefill prefill(*samkv, {400, 0, {{10, 200}, {200, 380}}}, config);
  int64_t bytes = 0;
  for (const Stage& stage : prefill.plan().stages) {
    for (const ProbeSpec& spec : stage.probes) {
      for (const auto& sums : empty_probe(spec, config, 400).sums) bytes += std::ssize(sums) * 8;
    }
  }
  EXPECT_EQ(prefill.probe_bytes(), bytes);
  EXPECT_GT(bytes, 1000) << "power";
  const auto mend = std::move(make_policy("mend", {})).value();
  EXPECT_EQ(Prefill(*mend, kLayout, config).probe_bytes(), 0);
}

// The most that any stage needs, before the first has begun.
TEST(Prefill, PagesToComeAreThoseOfTheLargestStage) {
  ModelConfig config = config_of(kShape.L);
  config.G = config.H = kShape.G;
  config.E = kShape.E;
  config.rope = small_rope();
  PageStore store = PageStore::create(kShape, 1000 * kShape.page_bytes()).value();
  PageTable kv(store, config.ropes());
  const auto mend = std::move(make_policy("mend", {})).value();
  const PromptLayout layout{80, 0, {{8, 72}}};
  Prefill prefill(*mend, layout, config);
  const auto first = prefill.writes();
  EXPECT_EQ(kv.pages_for(first.sets, first.write), 2 * 6) << "16 new tokens, pages of 8, 6 heads";
  EXPECT_EQ(prefill.pages_to_come(kv), 10 * 6) << "what is carried over to the piece";
  kv.add(first.sets, first.write);
  EXPECT_EQ(prefill.pages_to_come(kv), 8 * 6);
}

}  // namespace
}  // namespace kvilt

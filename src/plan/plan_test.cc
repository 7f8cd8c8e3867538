#include "plan/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvilt {
namespace {

ModelConfig small_config(int L) {
  ModelConfig config;
  config.L = L;
  config.G = 2;
  return config;
}

Plan dense(int T, int L) {
  Plan plan;
  plan.prompt_len = T;
  plan.stages = {uniform_stage({{0, T}}, L)};
  return plan;
}

// 12 positions: 0-3 exact prefix, 4-9 reused, 10-11 fresh. All rows until the cut at layer 2, then 5, 10 and 11.
Plan cut_plan() {
  Plan plan;
  plan.prompt_len = 12;
  Stage stage = uniform_stage({{4, 12}}, 4);
  stage.sets.push_back({{5, 6}, {10, 12}});
  stage.write = {0, 0, 0, 1, 1};
  stage.cuts = {2};
  stage.probes = {{Estimator::kColumnSum, {2}, {{10, 12}}}};
  plan.stages = {stage};
  return plan;
}

TEST(Plan, PictureOfACut) {
  EXPECT_EQ(picture(cut_plan(), 0, 1),
            "  3   .....#....##\n"
            "  2 | ....########\n"
            "  1   ....########\n"
            "  0   ....########\n");
  EXPECT_EQ(picture(dense(8, 2), 0, 4), "  1   ##\n  0   ##\n");
}

TEST(Plan, BandsDeriveRows) {
  const Plan plan = cut_plan();
  const Runs last{{11, 12}};
  const Band first = next_band(plan.stages[0], 0, 4, last);
  EXPECT_EQ(first.layer_end, 2);
  EXPECT_TRUE(first.cut);
  EXPECT_FALSE(first.last);
  for (const Runs& rows : first.in) EXPECT_EQ(rows, (Runs{{4, 12}}));
  EXPECT_EQ(first.cut_rows, (Runs{{4, 12}}));
  const Band second = next_band(plan.stages[0], 2, 4, last);
  EXPECT_EQ(second.layer_end, 4);
  EXPECT_TRUE(second.last);
  EXPECT_FALSE(second.cut);
  EXPECT_EQ(second.in[0], (Runs{{5, 6}, {10, 12}}));  // K and V at the cut are there; only these still run
  EXPECT_EQ(second.out[0], (Runs{{5, 6}, {10, 12}}));
  EXPECT_EQ(second.out[1], last);  // only the last row's logits are wanted
  EXPECT_TRUE(validate(plan, small_config(4), {{0, 10}}).ok());
}

TEST(Plan, DenseNeedsOnlyTheLastRowAfterTheLastLayer) {
  const Band band = next_band(dense(6, 3).stages[0], 0, 3, {{5, 6}});
  EXPECT_EQ(band.in[2], (Runs{{0, 6}}));
  EXPECT_EQ(band.out[1], (Runs{{0, 6}}));
  EXPECT_EQ(band.out[2], (Runs{{5, 6}}));
}

TEST(Plan, AProbeStageMayEndAtItsCut) {
  Plan plan = dense(10, 3);
  Stage probe = uniform_stage({{8, 10}}, 1);
  probe.cuts = {1};
  probe.probes = {{Estimator::kColumnSum, {1}, {{8, 10}}}};
  plan.stages.insert(plan.stages.begin(), probe);
  ASSERT_TRUE(validate(plan, small_config(3), {{0, 8}}).ok());
  const Band band = next_band(plan.stages[0], 0, 3, {});
  EXPECT_TRUE(band.cut && band.last);
  EXPECT_EQ(band.in[0], (Runs{{8, 10}}));
  EXPECT_EQ(band.cut_rows, (Runs{{8, 10}}));
  plan.stages[0] = uniform_stage({{8, 10}}, 0);
  plan.stages[0].cuts = {0};
  plan.stages[0].probes = {{Estimator::kColumnSum, {0}, {{8, 10}}}};
  ASSERT_TRUE(validate(plan, small_config(3), {{0, 8}}).ok());
  EXPECT_EQ(next_band(plan.stages[0], 0, 3, {}).cut_rows, (Runs{{8, 10}}));
}

// 10 positions: 2-6 are placed and enter at layer 2 of 4.
Plan entry_plan() {
  Plan plan;
  plan.prompt_len = 10;
  Stage stage = uniform_stage({{0, 2}, {7, 10}}, 4);
  stage.sets.push_back({{0, 10}});
  stage.write = {0, 0, 1, 1, 1};
  stage.entries = {{{AnnexOf::kHiddenF32, 2}, {{2, 7}}}};
  plan.stages = {stage};
  return plan;
}

// What a session can hold: windows and nothing else.
TEST(Plan, OnlyWindowsIsSaidOfWindowsAlone) {
  Plan windows = dense(8, 4);
  windows.views.push_back({{2, 3}});
  windows.head_view.assign(8, 0);
  windows.head_view[3] = 1;
  EXPECT_TRUE(windows.only_windows(0));
  EXPECT_TRUE(dense(8, 4).only_windows(0)) << "a pass with none";
  EXPECT_FALSE(windows.only_windows(2)) << "it computes more than the rest";
  const auto said_with = [&](auto change) {
    Plan plan = windows;
    change(plan);
    return plan.only_windows(0);
  };
  EXPECT_FALSE(said_with([](Plan& p) { p.stages.push_back(p.stages[0]); }));
  EXPECT_FALSE(said_with([](Plan& p) { p.stages[0].sets = {{{0, 3}, {5, 8}}}; }));
  EXPECT_FALSE(said_with([](Plan& p) { p.stages[0].cuts = {2}; }));
  EXPECT_FALSE(said_with([](Plan& p) { p.stages[0].probes.emplace_back(); }));
  EXPECT_FALSE(said_with([](Plan& p) { p.stages[0].ffn.emplace(); }));
  EXPECT_FALSE(said_with([](Plan& p) { p.stages[0].carry.emplace(); }));
  EXPECT_FALSE(said_with([](Plan& p) { p.stages[0].unseen.resize(4); }));
  EXPECT_FALSE(said_with([](Plan& p) { p.stages[0].far.emplace(); }));
  EXPECT_FALSE(said_with([](Plan& p) { p.stages[0].keeps_placed.resize(8); }));
  EXPECT_FALSE(said_with([](Plan& p) { p.views[1].dense_last_rows = 1; }));
  EXPECT_FALSE(said_with([](Plan& p) { p.decode.emplace(); }));
  EXPECT_FALSE(said_with([](Plan& p) { p.sparse.emplace(); }));
}

TEST(Plan, RowsEnterAtALayer) {
  const Plan plan = entry_plan();
  ASSERT_TRUE(validate(plan, small_config(4), {{2, 7}}).ok());
  const Band band = next_band(plan.stages[0], 0, 4, {{9, 10}});
  const Runs fresh{{0, 2}, {7, 10}}, all{{0, 10}};
  EXPECT_EQ(band.in[1], fresh);
  EXPECT_EQ(band.out[1], fresh) << "the layer below gives none of those that enter";
  EXPECT_EQ(band.in[2], all);
  EXPECT_EQ(band.out[2], all);
  EXPECT_EQ(band.rows, all);
  EXPECT_EQ(picture(plan, 0, 1), "  3   ##########\n  2   ##########\n  1   ##.....###\n  0   ##.....###\n");
  Plan without = plan;
  without.stages[0].entries.clear();
  EXPECT_EQ(next_band(without.stages[0], 0, 4, {{9, 10}}).in[0], all) << "power: without an entry rows run from below";
}

TEST(Plan, ValidateKnowsEntriesAndWhatIsKept) {
  const auto broken = [&](auto change, const Runs& known = {{2, 7}}) {
    Plan plan = entry_plan();
    change(plan, plan.stages[0].entries[0]);
    return !validate(plan, small_config(4), known).ok();
  };
  ASSERT_FALSE(broken([](Plan&, RowEntry&) {}));
  EXPECT_TRUE(broken([](Plan&, RowEntry& e) { e.state.layer = 0; }));
  EXPECT_TRUE(broken([](Plan&, RowEntry& e) { e.state.layer = 4; }));
  EXPECT_TRUE(broken([](Plan&, RowEntry& e) { e.state.layer = 3; })) << "they are written at layer 2";
  EXPECT_TRUE(broken([](Plan&, RowEntry& e) { e.state.layer = 1; })) << "they are not written at layer 1";
  EXPECT_TRUE(broken([](Plan&, RowEntry& e) { e.rows = {{1, 7}}; }, {{1, 7}})) << "1 runs below";
  EXPECT_TRUE(broken([](Plan&, RowEntry&) {}, {{3, 7}})) << "2 is not placed";
  EXPECT_TRUE(broken([](Plan& p, RowEntry&) { p.stages[0].cuts = {2}; }));
  EXPECT_FALSE(broken([](Plan& p, RowEntry&) { p.stages[0].cuts = {3}; }));
  EXPECT_TRUE(broken([](Plan& p, RowEntry& e) { p.stages[0].entries.push_back({{e.state.of, 3}, {{2, 3}}}); }));
  EXPECT_TRUE(broken([](Plan& p, RowEntry&) { p.stages[0].probes = {{Estimator::kColumnSum, {1}, {{2, 3}}}}; }));
  EXPECT_FALSE(broken([](Plan& p, RowEntry&) { p.keep = {{AnnexOf::kHiddenF32, 3}}; }));
  EXPECT_TRUE(broken([](Plan& p, RowEntry&) { p.keep = {{AnnexOf::kHiddenF32, 4}}; }));
  EXPECT_TRUE(broken([](Plan& p, RowEntry&) { p.keep = {{AnnexOf::kHiddenF32, 0}}; }));
}

TEST(Plan, ValidateKnowsFarKeys) {
  const ModelConfig config = small_config(4);
  const auto broken = [&](FarKeys far, auto change) {  // 10 and 11 are the question's rows, which probe at the cut
    Plan plan = cut_plan();
    plan.stages[0].far = far;
    change(plan);
    return !validate(plan, config, {{0, 10}}).ok();
  };
  const auto alone = [](Plan&) {};
  ASSERT_FALSE(broken({10, 6, 4}, alone));
  EXPECT_FALSE(broken({10, 10, 0}, alone));
  EXPECT_FALSE(broken({12, 0, 100}, alone)) << "rows of the answer only, and no key";
  EXPECT_TRUE(broken({13, 6, 4}, alone)) << "outside the prompt";
  EXPECT_TRUE(broken({10, 11, 4}, alone)) << "10 would see itself elsewhere";
  EXPECT_TRUE(broken({10, -1, 4}, alone));
  EXPECT_TRUE(broken({10, 6, -1}, alone));
  const FarKeys far{10, 6, 4};
  EXPECT_TRUE(broken(far, [](Plan& p) { p.stages.push_back(cut_plan().stages[0]); })) << "not the last stage";
  EXPECT_FALSE(broken(far, [](Plan& p) { p.stages.insert(p.stages.begin(), cut_plan().stages[0]); }));
  const auto probes = [](Estimator estimator, int layer) {
    return [=](Plan& p) { p.stages[0].probes = {{estimator, {layer}, {{10, 12}}}}; };
  };
  EXPECT_TRUE(broken(far, probes(Estimator::kColumnSum, 1))) << "it looks where keys are moved";
  EXPECT_TRUE(broken(far, probes(Estimator::kColumnSum, 3)));
  EXPECT_FALSE(broken(far, probes(Estimator::kColumnSum, 2)));
  EXPECT_FALSE(broken(far, probes(Estimator::kValueChange, 1))) << "it does not look";
  EXPECT_TRUE(broken(far, [](Plan& p) { p.head_view.assign(8, 0); }));
  EXPECT_TRUE(broken(far, [](Plan& p) { p.views[0].window = 5; }));
  EXPECT_TRUE(broken(far, [](Plan& p) { p.sparse.emplace(); }));
  EXPECT_TRUE(broken(far, [](Plan& p) { p.decode.emplace(); }));
  EXPECT_TRUE(broken(far, [](Plan& p) {
    p.stages[0].probes.clear();
    p.stages[0].sights = {{{{2, 4}}, {{0, 4}}}};
  }));
  EXPECT_FALSE(broken(far, [](Plan& p) { p.stages[0].unseen.assign(4, {{1, 3}}); }));
}

TEST(Plan, AMovedKeyNarrowsThePlan) {
  Plan plan = dense(8, 4);
  EXPECT_FALSE(plan.narrowed());
  plan.stages[0].far = {.rows = 6, .before = 3, .distance = 2};
  EXPECT_TRUE(plan.narrowed());
}

TEST(Plan, ValidateNamesEveryBrokenRule) {
  const ModelConfig config = small_config(4);
  const Runs known{{0, 10}};
  const auto broken = [&](auto change) {
    Plan plan = cut_plan();
    change(plan);
    return !validate(plan, config, known).ok();
  };
  ASSERT_FALSE(broken([](Plan&) {}));
  EXPECT_TRUE(broken([](Plan& p) { p.stages[0].sets[1] = {{5, 6}, {10, 11}}; }));    // T - 1 missing
  EXPECT_TRUE(broken([](Plan& p) { p.stages[0].sets[1] = {{11, 12}}; }));            // 10 neither known nor written
  EXPECT_TRUE(broken([](Plan& p) { p.stages[0].sets[1] = {{10, 13}}; }));            // outside the prompt
  EXPECT_TRUE(broken([](Plan& p) { p.stages[0].sets[1] = {{10, 11}, {11, 12}}; }));  // touching
  EXPECT_TRUE(broken([](Plan& p) { p.stages[0].cuts = {5}; }));
  EXPECT_TRUE(broken([](Plan& p) { p.stages[0].cuts = {2, 2}; }));
  EXPECT_TRUE(broken([](Plan& p) { p.stages[0].probes[0].layers = {4}; }));
  EXPECT_TRUE(broken([](Plan& p) { p.stages[0].layer_end = 3; }));
  EXPECT_TRUE(broken([](Plan& p) { p.stages[0].write[1] = 7; }));
  const auto first = [](const Runs& rows, std::vector<int> cuts) {  // a stage before the one that is there
    return [=](Plan& p) {
      p.stages.insert(p.stages.begin(), uniform_stage(rows, 4));
      p.stages[0].cuts = cuts;
      if (!cuts.empty()) p.stages[0].sets.emplace_back(), p.stages[0].write = {0, 0, 0, 1, 1};
    };
  };
  EXPECT_FALSE(broken(first({{5, 6}}, {})));
  EXPECT_TRUE(broken(first({}, {}))) << "it has no rows";
  EXPECT_FALSE(broken(first({{5, 6}}, {1})));
  EXPECT_TRUE(broken(first({{5, 6}}, {2}))) << "none behind the cut";
  EXPECT_TRUE(broken([](Plan& p) { p.head_view = {0}; }));
  EXPECT_TRUE(broken([](Plan& p) { p.views[0].window = -2; }));
  const auto hides = [](Plan& p, Runs at_first, Runs then) { p.stages[0].unseen = {at_first, at_first, then, then}; };
  EXPECT_FALSE(broken([&](Plan& p) { hides(p, {{0, 3}}, {{1, 4}}); }));
  EXPECT_TRUE(broken([&](Plan& p) { hides(p, {{3, 5}}, {}); }));  // 4 runs through the first layers
  EXPECT_FALSE(broken([&](Plan& p) { hides(p, {}, {{1, 4}}); }));
  EXPECT_TRUE(broken([&](Plan& p) { hides(p, {}, {{4, 6}}); }));           // 5 is written deeper still
  EXPECT_TRUE(broken([&](Plan& p) { hides(p, {}, {{2, 3}, {3, 4}}); }));   // touching
  EXPECT_TRUE(broken([&](Plan& p) { p.stages[0].unseen = {{{0, 3}}}; }));  // of one layer only
  EXPECT_TRUE(broken([&](Plan& p) {
    hides(p, {{0, 3}}, {});
    p.head_view.assign(static_cast<size_t>(config.L * config.G), 0);
  }));
  const auto sights = [](Plan& p, std::vector<Sight> all) {
    p.stages[0].sights = std::move(all), p.stages[0].probes = {};
  };
  EXPECT_FALSE(broken([&](Plan& p) { sights(p, {{{{2, 4}}, {{0, 4}, {6, 7}}}, {{{5, 6}}, {{5, 6}}}}); }));
  EXPECT_TRUE(broken([&](Plan& p) { sights(p, {{{{2, 4}}, {{0, 3}}}}); }));    // 3 does not see itself
  EXPECT_TRUE(broken([&](Plan& p) { sights(p, {{{{9, 11}}, {{0, 11}}}}); }));  // 10 is not placed
  EXPECT_TRUE(broken([&](Plan& p) { sights(p, {{{{2, 4}}, {{0, 4}}}, {{{3, 5}}, {{0, 5}}}}); }));  // 3 has two
  EXPECT_TRUE(broken([&](Plan& p) { sights(p, {{{{2, 4}}, {{0, 13}}}}); }));                       // outside the prompt
  EXPECT_TRUE(broken([&](Plan& p) { p.stages[0].sights = {{{{2, 4}}, {{0, 4}}}}; }));              // a probe looks
  EXPECT_TRUE(broken([&](Plan& p) {
    sights(p, {{{{2, 4}}, {{0, 4}}}});
    hides(p, {{0, 1}}, {});
  }));
  EXPECT_FALSE(broken([&](Plan& p) { p.stages[0].fate = Fate{.share = 0.5}; }));
  EXPECT_TRUE(broken([&](Plan& p) { p.stages[0].fate = Fate{.share = 1.5}; }));
  const auto carries = [](Plan& p, Carry::Kernel kernel, std::vector<CarryGroup> groups) {
    p.stages[0].carry.emplace().kernel = kernel;
    p.stages[0].carry->groups = std::move(groups);
  };
  using Kernel = Carry::Kernel;
  EXPECT_FALSE(broken([&](Plan& p) { carries(p, Kernel::kContent, {{{{0, 3}, {4, 6}}}, {{{6, 8}}}}); }));
  EXPECT_TRUE(broken([&](Plan& p) { carries(p, Kernel::kMean, {{{{0, 3}, {4, 6}}}}); }));     // takes one part only
  EXPECT_TRUE(broken([&](Plan& p) { carries(p, Kernel::kContent, {{{{0, 3}, {2, 6}}}}); }));  // not disjoint
  EXPECT_TRUE(broken([&](Plan& p) { carries(p, Kernel::kContent, {{}}); }));
  EXPECT_TRUE(broken([&](Plan& p) { carries(p, Kernel::kContent, {{{{8, 11}}}}); }));  // 10 is not placed
  const auto shares = [&](Plan& p, size_t n, float share) {
    carries(p, Kernel::kMean, {{{{0, 3}}}});
    p.stages[0].carry->share_v.assign(n, share);
  };
  EXPECT_FALSE(broken([&](Plan& p) { shares(p, 3, 0.5f); }));
  EXPECT_TRUE(broken([&](Plan& p) { shares(p, 2, 0.5f); }));  // 2 has none
  EXPECT_TRUE(broken([&](Plan& p) { shares(p, 3, 1.5f); }));
  EXPECT_TRUE(broken([&](Plan& p) { shares(p, 3, NAN); }));
}

// Random plans: validate never crashes, and what it accepts has nested rows that cover what is written.
TEST(Plan, FuzzValidate) {
  std::mt19937 rng(11);
  const auto some_runs = [&](int T) {
    Runs runs;
    for (int n = static_cast<int>(rng() % 4); n > 0; --n) {
      const int begin = static_cast<int>(rng() % static_cast<unsigned>(T + 2)) - 1;
      runs.push_back({begin, begin + static_cast<int>(rng() % 8)});
    }
    return rng() % 8 ? intersect(normalize(runs), Runs{{0, T}}) : runs;
  };
  const auto add_entry = [&](Stage& stage, int T, Runs rows) {
    const int layer = static_cast<int>(rng() % 5);
    if (rng() % 4 != 0) {  // mostly one that nothing below names
      rows = intersect(normalize(rows), Runs{{0, T - T / 2 - 1}});
      stage.sets = {subtract(Runs{{0, T}}, rows), {{0, T}}};
      for (size_t l = 0; l < stage.write.size(); ++l) stage.write[l] = static_cast<int>(l) >= layer;
    }
    stage.entries.push_back({{AnnexOf::kHiddenF32, layer}, rows});
  };
  int accepted = 0, entered = 0;
  for (int round = 0; round < 20000; ++round) {
    const int T = 1 + static_cast<int>(rng() % 20), L = 1 + static_cast<int>(rng() % 4);
    Plan plan;
    plan.prompt_len = T;
    for (int s = 1 + static_cast<int>(rng() % 2); s > 0; --s) {
      Stage stage = uniform_stage(some_runs(T), rng() % 4 ? L : static_cast<int>(rng() % 5));
      stage.sets.push_back(rng() % 2 ? Runs{{0, T}}
                                     : unite(intersect(normalize(some_runs(T)), Runs{{0, T}}), Runs{{T - 1, T}}));
      for (auto& set : stage.write) set = rng() % 16 ? 1 : static_cast<uint16_t>(rng() % 3);
      if (rng() % 2) stage.cuts.push_back(static_cast<int>(rng() % 5));
      if (rng() % 2) stage.probes.push_back({Estimator::kColumnSum, {static_cast<int>(rng() % 5)}, some_runs(T)});
      if (rng() % 2) add_entry(stage, T, some_runs(T));
      plan.stages.push_back(stage);
    }
    if (!validate(plan, small_config(L), Runs{{0, T - T / 2}}).ok()) continue;
    ++accepted;
    for (const Stage& stage : plan.stages) {
      for (int layer = 0;;) {
        const Band band = next_band(stage, layer, L, {{T - 1, T}});
        for (size_t i = 0; i < band.in.size(); ++i) {
          EXPECT_TRUE(includes(band.in[i], band.out[i]));
          const RowEntry* entry = i > 0 ? stage.entry_at(band.layer_begin + static_cast<int>(i)) : nullptr;
          if (i > 0) {
            EXPECT_EQ(band.in[i], entry ? unite(band.out[i - 1], entry->rows) : band.out[i - 1]);
          }
          if (entry) {
            EXPECT_TRUE(intersect(band.out[i - 1], entry->rows).empty());
            entered += entry->rows.empty() ? 0 : 1;
          }
          EXPECT_TRUE(includes(band.rows, band.in[i]));
          if (i > 0 || layer == 0) {
            EXPECT_TRUE(includes(band.in[i], stage.write_at(band.layer_begin + static_cast<int>(i))));
          }
        }
        if (band.last) break;
        layer = band.layer_end;
      }
    }
  }
  EXPECT_GT(accepted, 200);
  EXPECT_GT(entered, 50);
}

}  // namespace
}  // namespace kvilt

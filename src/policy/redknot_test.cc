// RedKnot's plans: views from a head map, controls, parameters.
#include <gtest/gtest.h>

#include "policy/policy.h"

namespace kvilt {
namespace {

ModelConfig model() {
  ModelConfig config;
  config.L = 4;
  config.G = 2;
  config.H = 4;
  return config;
}
const PromptLayout kLayout{40, 5, {{5, 15}}};

PolicyFiles with_map() {
  HeadMap map = uniform_head_map(4, 2, HeadClass::kLocal, 7, 2);
  map.heads[1] = HeadClass::kGlobal;
  map.heads[4] = HeadClass::kRetrieval;
  map.heads[5] = HeadClass::kDense;
  map.window[6] = 9;
  PolicyFiles files;
  files.head_maps[PolicyFiles::kDefaultMap] = std::make_shared<const HeadMap>(map);
  map.heads.assign(8, HeadClass::kGlobal);
  files.head_maps["open"] = std::make_shared<const HeadMap>(map);
  return files;
}

Plan plan_of(std::map<std::string, std::string> params, const PolicyFiles& files = with_map()) {
  const auto policy = make_policy("redknot", params, files);
  EXPECT_TRUE(policy.ok()) << policy.error().message;
  if (!policy.ok()) return {};
  Plan plan = (*policy)->plan(kLayout, model());
  const Status good = validate(plan, model(), unite(Runs{{0, kLayout.prefix}}, kLayout.reused()));
  EXPECT_TRUE(good.ok()) << good.error().message;
  return plan;
}
View view(const Plan& plan, size_t i) { return plan.views[plan.head_view[i]]; }
std::vector<int> open_heads(const Plan& plan) {
  std::vector<int> out;
  for (size_t i = 0; i < plan.head_view.size(); ++i) {
    if (view(plan, i) == View{}) out.push_back(static_cast<int>(i));
  }
  return out;
}

TEST(RedKnot, ViewsAreTheMaps) {
  const Plan plan = plan_of({});
  EXPECT_EQ(open_heads(plan), (std::vector<int>{1, 4, 5}));
  EXPECT_EQ(view(plan, 0), (View{{2, 7}}));
  EXPECT_EQ(view(plan, 6), (View{{2, 9}}));
  EXPECT_EQ(plan.views.size(), 3u);
  EXPECT_EQ(plan.stages[0].write_at(3), (Runs{{5, 40}})) << "everything after the exact prefix";
  EXPECT_TRUE(plan.narrowed());
  EXPECT_FALSE(plan_of({{"map", "open"}}).narrowed());
  EXPECT_EQ(view(plan_of({{"window", "3"}, {"sink", "0"}}), 6), (View{{0, 3}}));
  EXPECT_EQ(open_heads(plan_of({{"dense_prefix_layers", "2"}})), (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

TEST(RedKnot, ControlsHaveTheShareThatIsAskedFor) {
  EXPECT_EQ(open_heads(plan_of({{"global", "first"}, {"share", "0.25"}})), (std::vector<int>{0, 1}));
  EXPECT_EQ(open_heads(plan_of({{"global", "last"}, {"share", "0.5"}})), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(open_heads(plan_of({{"global", "none"}})).size(), 0u);
  EXPECT_EQ(open_heads(plan_of({{"global", "all"}})).size(), 8u);
  const auto random = [](const char* seed) { return open_heads(plan_of({{"global", "random"}, {"seed", seed}})); };
  EXPECT_EQ(random("1").size(), 3u) << "the map's own share";
  EXPECT_EQ(random("1"), random("1"));
  EXPECT_NE(random("1"), random("2"));
  EXPECT_EQ(plan_of({{"global", "none"}}, {}).views[1], (View{{4, 512}}));
}

TEST(RedKnot, ParametersAreChecked) {
  const auto why = [](std::map<std::string, std::string> params, const PolicyFiles& files) {
    const auto made = make_policy("redknot", params, files);
    return made.ok() ? std::string() : made.error().message;
  };
  EXPECT_NE(why({}, {}).find("--head-map"), std::string::npos);
  EXPECT_NE(why({{"map", "mine"}}, {}).find("'mine'"), std::string::npos);
  EXPECT_NE(why({{"map", "mine"}}, with_map()).find("default, open"), std::string::npos);
  EXPECT_NE(why({{"global", "some"}}, with_map()).find("first"), std::string::npos);
  EXPECT_NE(why({{"ffn_mass", "2"}}, with_map()).find("from 0 to 1"), std::string::npos);
  EXPECT_EQ(why({{"global", "first"}}, {}), "");
  // What does nothing is refused.
  EXPECT_NE(why({{"share", "0.5"}}, with_map()).find("no parameter 'share'"), std::string::npos);
  for (const char* global : {"map", "all", "none"})
    EXPECT_NE(why({{"global", global}, {"budget", "0.5"}}, with_map()).find("no parameter 'budget'"),
              std::string::npos);
  for (const char* global : {"first", "last", "random"})
    EXPECT_EQ(why({{"global", global}, {"share", "0.5"}}, with_map()), "");
  EXPECT_NE(why({{"restore_rows", "9"}}, with_map()).find("no parameter 'restore_rows'"), std::string::npos);
  EXPECT_EQ(why({{"restore", "0.5"}, {"restore_rows", "9"}}, with_map()), "");
  for (const char* param : {"ffn_start", "ffn_deep", "ffn_recent"}) {
    EXPECT_NE(why({{param, "3"}}, with_map()).find("no parameter"), std::string::npos) << param;
    for (const char* mass : {"ffn_mass", "ffn_deep_mass", "ffn_experts"})
      EXPECT_EQ(why({{param, "3"}, {mass, "0.5"}}, with_map()), "") << param << mass;
  }
  EXPECT_NE(why({{"ffn_by", "random"}}, with_map()).find("no parameter"), std::string::npos);
}

// Another request has published prompt and answer: the prefix reaches into the answer when this one starts again.
TEST(RedKnot, TheLookIsOfTheQuestionWhereverThePrefixEnds) {
  PromptLayout again{60, 5, {{5, 15}}};
  again.answer = 40;
  const auto policy =
      std::move(make_policy("redknot", {{"restore", "0.5"}, {"restore_rows", "8"}}, with_map())).value();
  const auto opened = [&](int32_t prefix, double outside) {
    PromptLayout layout = again;
    layout.prefix = prefix;
    if (prefix > 5) layout.pieces.clear();
    Plan plan = policy->plan(layout, model());
    const Status good = validate(plan, model(), unite(Runs{{0, layout.prefix}}, layout.reused()));
    EXPECT_TRUE(good.ok()) << good.error().message;
    const Runs rows = plan.stages[0].probes[0].rows;
    EXPECT_EQ(rows, (Runs{{std::min(39, std::max(prefix, 32)), 40}}));
    std::vector<Probe> probes{empty_probe(plan.stages[0].probes[0], model(), 60)};
    for (double& sum : probes[0].outside) sum = outside * static_cast<double>(count(rows));
    policy->refine(layout, model(), 0, probes, plan);
    return open_heads(plan).size();
  };
  for (const int32_t prefix : {5, 36, 40, 50, 59}) {
    SCOPED_TRACE(prefix);
    EXPECT_EQ(opened(prefix, 0), 3u) << "the map's own";
    EXPECT_EQ(opened(prefix, 0.4), 3u);
    EXPECT_EQ(opened(prefix, 0.6), 8u) << "power";
  }
}

TEST(RedKnot, TheFfnRuleIsOffByDefault) {
  EXPECT_FALSE(plan_of({}).stages[0].ffn.has_value());
  const Plan plan = plan_of(
      {{"global", "all"}, {"ffn_mass", "0.5"}, {"ffn_start", "1"}, {"ffn_deep", "3"}, {"ffn_deep_mass", "0.1"}});
  const FfnRule& rule = *plan.stages[0].ffn;
  EXPECT_EQ(rule.mass_at(0), 1);
  EXPECT_EQ(rule.mass_at(2), 0.5);
  EXPECT_EQ(rule.mass_at(3), 0.1);
  EXPECT_TRUE(plan.narrowed());
}

}  // namespace
}  // namespace kvilt

// The default does no harm: without a word about quality, from request or engine, text is reused approximately where the
// request marks it, and computed exactly everywhere else.
#include "probe_prompts.h"

namespace kvilt {
namespace {

class Consent : public testing::Test {
 protected:
  void open(EngineOptions options = {}) {
    options.model = kModel;
    engine = open_for_test(std::move(options));
    warm(*engine, join({tokens(5, 1), known, tokens(40, 2)}));
  }
  Outcome ask(const std::string& policy, Params params, bool marked) {
    Request request = unpublished(prompt, policy, std::move(params));
    request.evaluation.all_logits = true;
    if (marked) request.prompt.marks = {mark};
    return ask_ok(*engine, std::move(request));
  }
  Outcome by_default(bool marked, Params params = {}) { return ask("", std::move(params), marked); }

  const std::vector<int32_t> known = tokens(600, 3);
  // The mark holds all but the first 60 tokens of what is known.
  const std::vector<int32_t> prompt = join({tokens(30, 4), known, tokens(24, 5)});
  const TokenMark mark{90, 630};
  std::unique_ptr<Engine> engine;
};

TEST_F(Consent, TextWithoutMarksIsExact) {
  open();
  const Outcome exact = ask("auto", {{"quality", "exact"}}, false), out = by_default(false);
  EXPECT_EQ(out.usage().reused, 0);
  EXPECT_EQ(out.usage().policy, "auto");
  expect_equal(out, exact);
  const Outcome balanced = by_default(false, {{"quality", "balanced"}});
  EXPECT_EQ(balanced.usage().reused, 600);
  expect_differ(balanced, exact);
}

TEST_F(Consent, MarkedTextIsReusedAndNoOther) {
  open();
  const Outcome exact = ask("auto", {{"quality", "exact"}}, true), out = by_default(true);
  EXPECT_EQ(out.usage().reused, 540);
  EXPECT_EQ(out.usage().fresh, 114);
  expect_differ(out, exact);
  EXPECT_EQ(by_default(true, {{"quality", "balanced"}}).usage().reused, 600);
  EXPECT_EQ(by_default(true, {{"quality", "balanced"}, {"text", "marked"}}).usage().reused, 540);
  EXPECT_EQ(by_default(true, {{"text", "all"}}).usage().reused, 600);
}

TEST_F(Consent, WhatIsAskedForByNameIsForAllText) {
  open();
  for (const char* policy : {"auto", "naive", "mend"}) EXPECT_EQ(ask(policy, {}, false).usage().reused, 600) << policy;
  EXPECT_EQ(ask("auto", {{"quality", "auto"}}, false).usage().reused, 0);
}

TEST_F(Consent, TheEnginesQualityIsForAllTextToo) {
  for (const auto& [quality, policy, unmarked, marked] : {std::tuple(Quality::kAuto, "", 0, 540),
                                                          {Quality::kBalanced, "", 600, 600},
                                                          {Quality::kExact, "", 0, 0},
                                                          {Quality::kAuto, "auto", 600, 600},
                                                          {Quality::kAuto, "naive", 600, 600}}) {
    EngineOptions options;
    options.quality = quality, options.policy = policy;
    open(options);
    EXPECT_EQ(by_default(false).usage().reused, unmarked) << quality_name(quality) << " " << policy;
    EXPECT_EQ(by_default(true).usage().reused, marked) << quality_name(quality) << " " << policy;
    EXPECT_EQ(by_default(true, {{"quality", "auto"}}).usage().reused, 540) << quality_name(quality) << " " << policy;
    const ModelInfo& info = engine->info();
    EXPECT_EQ(info.default_text, unmarked ? "all" : marked ? "marked" : "none");
    EXPECT_EQ(info.default_policy, *policy ? policy : "auto");
    EXPECT_EQ(info.default_quality, info.default_policy == "naive" ? ""
                                    : *policy                      ? "balanced"
                                                                   : std::string(quality_name(quality)));
  }
}

}  // namespace
}  // namespace kvilt

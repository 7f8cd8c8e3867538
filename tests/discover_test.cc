// discover=near: what is equal in a text that nearly repeats a cached one is reused, what differs is computed. Limit
// cases with power checks.
#include <gtest/gtest.h>

#include <algorithm>

#include "probe_prompts.h"

namespace kvilt {
namespace {

class DiscoverTest : public testing::Test {
 protected:
  const std::vector<int32_t> head = tokens(20, 1), document = tokens(294, 2), question = tokens(32, 5);
  const Params kNear{{"discover", "near"}}, kEqual{{"discover", "equal"}};

  std::unique_ptr<Engine> engine(Discover discover = Discover::kEqual) const {
    auto out = open_for_test({.model = kModel, .discover = discover});
    ask_ok(*out, request_of(join({head, document, tokens(16, 9)}), "prefix", 0));
    return out;
  }
  // Every 21st token is another one: nothing of 32 tokens is equal.
  std::vector<int32_t> edited() const {
    std::vector<int32_t> out = document;
    for (size_t at = 20; at < out.size(); at += 21) out[at] = 3 + (out[at] + 5) % 900;
    return out;
  }
  std::vector<int32_t> asked(const std::vector<int32_t>& text) const { return join({tokens(9, 3), text, question}); }
  static Outcome run(Engine& engine, std::vector<int32_t> ids, const std::string& policy, Params params,
                     bool publish = false) {
    Request request = request_of(std::move(ids), policy, 5);
    request.policy.params = std::move(params);
    request.publish = publish;
    request.evaluation.all_logits = true;
    return ask_ok(engine, std::move(request));
  }
  static Params with(Params params, const Params& more) {
    params.insert(more.begin(), more.end());
    return params;
  }
};

TEST_F(DiscoverTest, WhatIsEqualIsReusedAndWhatDiffersIsComputed) {
  const auto e = engine();
  const Outcome equal = run(*e, asked(edited()), "naive", kEqual), near = run(*e, asked(edited()), "naive", kNear);
  EXPECT_EQ(equal.usage().reused, 0);
  EXPECT_EQ(equal.usage().near, 0);
  EXPECT_EQ(near.usage().reused, 280);  // 14 of 294 differ
  EXPECT_EQ(near.usage().near, 280);
  EXPECT_EQ(near.usage().recomputed, 0);
  for (size_t at = 20; at < 294; at += 21) {
    const auto pos = static_cast<int32_t>(9 + at);
    for (const TokenMark& run : near.completion.reused_runs)
      EXPECT_FALSE(run.begin <= pos && pos < run.end) << "a token that differs is never reused: " << at;
  }
  expect_differ(near, equal);
}

TEST_F(DiscoverTest, OfEqualTextNearMakesTheSamePlanAsEqual) {
  const auto e = engine();
  for (const char* policy : {"naive", "mend", "sparsex", "prefix", "full"}) {
    const Outcome equal = run(*e, asked(document), policy, kEqual), near = run(*e, asked(document), policy, kNear);
    expect_equal(near, equal);
    EXPECT_EQ(near.usage().reused, equal.usage().reused) << policy;
    EXPECT_EQ(near.usage().recomputed, equal.usage().recomputed) << policy;
    EXPECT_EQ(near.usage().near, 0) << policy;
  }
}

TEST_F(DiscoverTest, AHaloOverAllRunsIsFull) {
  const auto e = engine();
  const Outcome full = run(*e, asked(edited()), "full", {});
  const Outcome all = run(*e, asked(edited()), "crossquery", with(kNear, {{"halo", "20"}}));
  expect_equal(all, full);
  const Outcome some = run(*e, asked(edited()), "crossquery", with(kNear, {{"halo", "4"}}));
  EXPECT_EQ(some.usage().reused, 280);
  EXPECT_EQ(some.usage().recomputed, 14 * 8) << "4 tokens at each end of 14 runs";
  expect_differ(some, full);
}

TEST_F(DiscoverTest, WhoAsksForEqualGetsWhatNobodyChanged) {
  const auto untouched = engine(), e = engine();
  run(*e, asked(edited()), "mend", kNear, true);  // it publishes under its own name
  for (const std::vector<int32_t>& text : {document, edited()}) {
    for (const char* policy : {"mend", "naive"}) {
      const Outcome before = run(*untouched, asked(text), policy, {}), now = run(*e, asked(text), policy, {});
      EXPECT_EQ(now.usage().reused, before.usage().reused);
      EXPECT_EQ(now.usage().chain, 0);
      expect_equal(now, before);
    }
  }
  EXPECT_GT(run(*e, asked(edited()), "mend", kNear).usage().chain, 0) << "power: it did publish";
}

TEST_F(DiscoverTest, SaltsAndNamespacesDoNotShare) {
  const auto e = engine();
  for (int which = 0; which < 3; ++which) {
    Request request = unpublished(asked(edited()), "naive", kNear);
    if (which == 1) request.cache_salt = "other";
    if (which == 2) request.namespaces = {"other"};
    EXPECT_EQ(ask_ok(*e, std::move(request)).usage().near, which == 0 ? 280 : 0) << which;
  }
}

TEST_F(DiscoverTest, WhatLeavesIsNotFound) {
  const auto e = engine();
  EXPECT_EQ(run(*e, asked(edited()), "naive", kNear).usage().near, 280);
  e->clear_cache();
  EXPECT_EQ(run(*e, asked(edited()), "naive", kNear).usage().near, 0);
  ask_ok(*e, request_of(join({head, document}), "prefix", 0));
  EXPECT_EQ(run(*e, asked(edited()), "naive", kNear).usage().near, 280) << "power: what comes later is";
}

TEST_F(DiscoverTest, ConsentIsForMarkedTextOnly) {
  const auto e = engine();
  Request request = unpublished(asked(edited()), "", kNear);
  EXPECT_EQ(ask_ok(*e, Request(request)).usage().reused, 0);
  request.prompt.marks = {{9, 303}};
  EXPECT_EQ(ask_ok(*e, Request(request)).usage().near, 280);
  request.prompt.marks = {};
  request.policy.params["quality"] = "balanced";
  EXPECT_EQ(ask_ok(*e, Request(request)).usage().near, 280) << "power: it is for all text then";
}

TEST_F(DiscoverTest, CleanTrustsNoNeighbours) {
  const auto e = engine();
  EXPECT_EQ(run(*e, asked(edited()), "naive", with(kNear, {{"trust", "clean"}})).usage().reused, 0);
}

// Repaired pieces that are too short to be found again would be kept once more by each request.
TEST_F(DiscoverTest, WhatIsLeftOfShortRunsDoesNotPileUp) {
  std::vector<uint64_t> segments;
  for (const char* from : {"first", "last"}) {
    const auto e = engine();
    for (uint32_t i = 0; i < 3; ++i) {
      const auto prompt = join({tokens(9, 30 + i), edited(), question});
      const Outcome out = run(*e, prompt, "mend", with(kNear, {{"reuse_from", from}, {"r", "0.3"}}), true);
      EXPECT_GE(out.usage().near, 280);
    }
    segments.push_back(static_cast<uint64_t>(e->stats().cached_segments));
  }
  EXPECT_EQ(segments[1], segments[0] + 1) << "the question, a piece of 32 tokens, may be kept";
}

TEST_F(DiscoverTest, TheEnginesOptionIsTheDefault) {
  const auto e = engine(Discover::kNear);
  EXPECT_EQ(run(*e, asked(edited()), "naive", {}).usage().near, 280);
  EXPECT_EQ(run(*e, asked(edited()), "naive", kEqual).usage().near, 0);
  const auto wrong = e->check_policy({"mend", {{"discover", "far"}}});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().message, "discover is 'far', not equal or near");
}

TEST_F(DiscoverTest, TheLeastRunIsAnOption) {
  auto e = open_for_test({.model = kModel, .min_near = 21});
  ask_ok(*e, request_of(join({head, document}), "prefix", 0));
  EXPECT_EQ(run(*e, asked(edited()), "naive", kNear).usage().near, 0) << "its runs have 20 tokens";
  EXPECT_FALSE(open_engine({.model = kModel, .min_near = 7}).ok());
}

}  // namespace
}  // namespace kvilt

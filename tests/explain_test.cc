// Completion::quilt says of every token where its KV came from, or why it was computed; progress never falls.
#include <gtest/gtest.h>

#include "probe_prompts.h"

namespace kvilt {
namespace {

std::unique_ptr<Engine> engine() {
  return open_for_test({.model = kModel, .threads = 2, .kv_type = KvType::kF32, .chunk_tokens = 32});
}

Request explained(std::vector<int32_t> ids, const std::string& policy, Explain how = Explain::kFull) {
  Request request = request_of(std::move(ids), policy, 1);
  request.explain = how;
  return request;
}

int tokens_of(const std::vector<PromptPatch>& quilt, PatchKind kind) {
  int sum = 0;
  for (const PromptPatch& patch : quilt) sum += patch.kind == kind ? patch.count : 0;
  return sum;
}

int fresh_of(const std::vector<PromptPatch>& quilt, FreshWhy why) {
  int sum = 0;
  for (const PromptPatch& patch : quilt) sum += patch.kind == PatchKind::kFresh && patch.why == why ? patch.count : 0;
  return sum;
}

void expect_agrees(const Completion& done) {
  const PromptUsage& usage = done.usage;
  int32_t at = 0;
  for (const PromptPatch& patch : done.quilt) {
    EXPECT_EQ(patch.begin, at);
    EXPECT_GT(patch.count, 0);
    at += patch.count;
  }
  EXPECT_EQ(at, usage.prompt);
  EXPECT_EQ(tokens_of(done.quilt, PatchKind::kPrefix), usage.prefix);
  EXPECT_EQ(tokens_of(done.quilt, PatchKind::kRecomputed), usage.recomputed);
  EXPECT_EQ(tokens_of(done.quilt, PatchKind::kReused), usage.reused - usage.recomputed);
  EXPECT_EQ(tokens_of(done.quilt, PatchKind::kFresh), usage.fresh);
}

TEST(Explained, EveryTokenOfEveryPolicyIsAccountedFor) {
  const auto head = tokens(40, 9), a = tokens(200, 1), b = tokens(200, 2);
  for (const char* policy : {"full", "prefix", "naive", "sparsex", "mend", "auto"}) {
    auto one = engine();
    const auto first = warm(*one, join({head, a, b}));
    Request request = explained(join({head, b, tokens(50, 3), a, tokens(20, 4)}), policy);
    const Completion done = ask_ok(*one, request).completion;
    expect_agrees(done);
    for (const PromptPatch& patch : done.quilt) {
      if (patch.kind == PatchKind::kFresh) continue;
      EXPECT_NE(patch.segment, 0u);
      EXPECT_EQ(patch.request, 1u) << "the one that warmed";
      EXPECT_TRUE(patch.exact);
      const bool of_b = patch.begin >= 40 && patch.begin < 240;
      EXPECT_EQ(patch.shift, patch.begin < 40 ? 0 : of_b ? -200 : 250) << policy << patch.begin;
    }
  }
}

TEST(Explained, FreshTokensHaveReasons) {
  auto one = engine();
  const auto a = tokens(200, 1);
  warm(*one, a);
  const auto prompt = join({tokens(100, 2), a, tokens(20, 3)});
  const auto quilt = [&](Request request) {
    const Completion done = ask_ok(*one, std::move(request)).completion;
    expect_agrees(done);
    return done.quilt;
  };
  Request request = explained(prompt, "naive");
  request.publish = false;
  EXPECT_EQ(fresh_of(quilt(request), FreshWhy::kNew), 100);
  EXPECT_EQ(fresh_of(quilt(request), FreshWhy::kShort), 20);
  request.policy = {"full", {}};
  EXPECT_EQ(fresh_of(quilt(request), FreshWhy::kRefused), 320);
  request.policy = {"auto", {{"quality", "auto"}}};  // which is for marked text
  EXPECT_EQ(fresh_of(quilt(request), FreshWhy::kUnmarked), 200);
  request.explain = Explain::kBrief;
  EXPECT_EQ(fresh_of(quilt(request), FreshWhy::kUnmarked), 0) << "power: it was not looked for";
  request.explain = Explain::kNo;
  EXPECT_TRUE(ask_ok(*one, request).completion.quilt.empty());
}

// Documents that begin alike: what they share is computed anew, and did not leave the cache.
TEST(Explained, TheBeginningOfAMarkedPartIsTooShort) {
  auto one = engine();
  const auto head = tokens(40, 9), title = tokens(10, 8);
  const auto quilt = [&](int seed, bool marked) {
    Request request = explained(join({head, title, tokens(150, seed), tokens(20, seed + 1)}), "prefix");
    if (marked) request.prompt.marks = {{40, 200}};
    const Completion done = ask_ok(*one, std::move(request)).completion;
    expect_agrees(done);
    return done.quilt;
  };
  quilt(1, true);
  const auto again = quilt(3, true);
  EXPECT_EQ(tokens_of(again, PatchKind::kPrefix), 40);
  EXPECT_EQ(fresh_of(again, FreshWhy::kShort), 10);
  EXPECT_EQ(fresh_of(again, FreshWhy::kNew), 170);
  const auto plain = quilt(5, false);
  EXPECT_EQ(tokens_of(plain, PatchKind::kPrefix), 50) << "power: nothing is cut without a mark";
  EXPECT_EQ(fresh_of(plain, FreshWhy::kShort), 0);
}

// A piece that would save less than a fifth of the work is known and computed all the same.
TEST(Explained, WhatTheDialDeclinesIsSaid) {
  auto one = engine();
  const auto a = tokens(60, 1);
  warm(*one, a);
  const auto quilt = [&](const std::string& policy, Params params, int before) {
    Request request = explained(join({tokens(before, 2), a, tokens(40, 3)}), policy);
    request.policy.params = std::move(params);
    request.publish = false;
    const Completion done = ask_ok(*one, request).completion;
    expect_agrees(done);
    return done.quilt;
  };
  const auto declined = quilt("auto", {{"quality", "balanced"}}, 600);
  EXPECT_EQ(fresh_of(declined, FreshWhy::kDeclined), 60);
  EXPECT_EQ(fresh_of(declined, FreshWhy::kNew), 640);
  const auto taken = quilt("naive", {}, 600);
  EXPECT_EQ(fresh_of(taken, FreshWhy::kDeclined), 0) << "power: another policy uses it";
  EXPECT_EQ(tokens_of(taken, PatchKind::kReused), 60);
}

// Tokens that a request leaves as an exact prefix say so: all of them, those before the first piece, or none.
TEST(Explained, WhatIsLeftAsAnExactPrefixIsSaid) {
  const auto a = tokens(200, 1);
  const auto prompt = join({tokens(100, 2), a, tokens(120, 3)});
  const auto left = [&](const std::string& policy, Params params = {}, bool publish = true, bool known = true) {
    auto one = engine();
    if (known) warm(*one, a);
    Request request = explained(prompt, policy, Explain::kBrief);
    request.policy.params = std::move(params);
    request.publish = publish;
    const Completion done = ask_ok(*one, request).completion;
    expect_agrees(done);
    int sum = 0;
    for (const PromptPatch& patch : done.quilt) sum += patch.kind == PatchKind::kFresh && patch.exact ? patch.count : 0;
    // What says so is found again, but for the last token.
    const int found = ask_ok(*one, request_of(prompt, "prefix", 1)).completion.usage.prefix;
    EXPECT_EQ(found, std::min(sum, 419)) << policy;
    return sum;
  };
  EXPECT_EQ(left("prefix"), 420);
  EXPECT_EQ(left("naive"), 100);
  EXPECT_EQ(left("naive", {}, true, false), 420) << "power: there was no piece";
  EXPECT_EQ(left("prefix", {}, false), 0);
  EXPECT_EQ(left("prefix", {{"decode", "snapkv"}, {"decode_evict", "yes"}}), 0);
  EXPECT_EQ(left("prefix", {{"decode", "snapkv"}}), 420) << "power: all of it stays";
  EXPECT_EQ(left("minference"), 0);
  EXPECT_EQ(left("ashape"), 0);
}

// Holds the engine thread when the first step of its prompt is computed, until open().
class HoldingPrefill : public CollectingSink, public Turnstile {
 public:
  void on_progress(const PromptProgress&) override { pass(); }
};

// Of a text that another request computes just then: too little of it to wait for (engine/in_flight.h).
TEST(Explained, WhatARunningRequestComputesIsSaid) {
  auto one = engine();
  const auto head = tokens(50, 1);
  const auto fresh = [&](const std::vector<int32_t>& others_head, Explain how) {
    one->clear_cache();
    Request other = request_of(join({others_head, tokens(600, 2)}), "prefix");
    other.progress = true;
    const auto others = std::make_shared<HoldingPrefill>();
    const auto own = std::make_shared<CollectingSink>();
    EXPECT_TRUE(one->submit(std::move(other), others).ok());
    others->wait_until_reached();
    EXPECT_TRUE(one->submit(explained(join({head, tokens(400, 3)}), "prefix", how), own).ok());
    others->open();
    const Completion done = own->wait();
    expect_agrees(done);
    others->wait();
    return std::pair(fresh_of(done.quilt, FreshWhy::kRunning), fresh_of(done.quilt, FreshWhy::kNew));
  };
  EXPECT_EQ(fresh(head, Explain::kFull), std::pair(50, 400));
  EXPECT_EQ(fresh(tokens(50, 4), Explain::kFull), std::pair(0, 450)) << "power: another text";
  EXPECT_EQ(fresh(head, Explain::kBrief), std::pair(0, 450)) << "power: it was not looked for";
}

class ProgressSink : public CollectingSink {
 public:
  void on_progress(const PromptProgress& now) override {
    EXPECT_TRUE(ids.empty());
    said.push_back(now);
  }
  std::vector<PromptProgress> said;
};

TEST(Progress, NeverFallsAndEndsAtTheWhole) {
  for (const char* policy : {"prefix", "auto", "sparsex"}) {
    auto one = engine();
    const auto a = tokens(200, 1);
    warm(*one, a);
    Request request = request_of(join({tokens(100, 2), a, tokens(20, 3)}), policy, 2);
    for (const bool asked : {true, false}) {
      auto sink = std::make_shared<ProgressSink>();
      request.progress = asked;
      request.publish = false;
      ASSERT_TRUE(one->submit(request, sink).ok());
      const Completion done = sink->wait();
      EXPECT_EQ(sink->said.empty(), !asked) << "power";
      if (!asked) continue;
      ASSERT_EQ(static_cast<int>(sink->said.size()), done.usage.steps);
      int last = 0;
      for (const PromptProgress& now : sink->said) {
        EXPECT_EQ(now.total, 320);
        EXPECT_EQ(now.cached, done.usage.prefix + done.usage.reused);
        EXPECT_GE(now.processed, std::max(last, now.cached));
        last = now.processed;
      }
      EXPECT_EQ(last, 320) << policy;
    }
  }
}

}  // namespace
}  // namespace kvilt

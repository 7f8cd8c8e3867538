// trust=clean: no text of another request reaches an answer, whatever it put into the cache.
#include <chrono>
#include <thread>

#include "probe_prompts.h"

namespace kvilt {
namespace {

class TrustTest : public testing::Test {
 protected:
  void open(bool attacked, Trust trust = Trust::kAny) {
    engine = open_for_test({.model = kModel, .trust = trust});
    if (attacked) publish({tokens(40, 7), document, tokens(20, 8)}, false);
  }
  void publish(std::initializer_list<std::vector<int32_t>> parts, bool clean_copy) {
    Request request = request_of(join(parts), "prefix", 0);
    const auto begin = static_cast<int32_t>(parts.begin()->size());
    request.prompt.marks = {{begin, begin + static_cast<int32_t>(document.size())}};
    request.clean_copy = clean_copy;
    ask_ok(*engine, std::move(request));
  }
  Outcome ask(const std::string& policy, Params params) {
    Request request = unpublished(join({head, tokens(9, 3), document, tokens(24, 4)}), policy, std::move(params));
    request.prompt.marks = {{39, 439}};
    request.evaluation.all_logits = true;
    return ask_ok(*engine, std::move(request));
  }

  const std::vector<int32_t> head = tokens(30, 1), document = tokens(400, 2);
  std::unique_ptr<Engine> engine;
};

TEST_F(TrustTest, CleanIsAsIfNobodyElseHadAsked) {
  for (const char* policy : {"", "naive", "sparsex", "mend"}) {
    open(false);
    const Outcome alone = ask(policy, {});
    EXPECT_EQ(alone.usage().reused, 0);
    open(true);
    const Outcome any = ask(policy, {}), clean = ask(policy, {{"trust", "clean"}});
    EXPECT_EQ(any.usage().reused, 400) << policy;
    expect_differ(any, alone);
    EXPECT_EQ(clean.usage().reused, 0) << policy;
    expect_equal(clean, alone);
    open(true, Trust::kClean);
    EXPECT_EQ(engine->info().default_trust, "clean");
    expect_equal(ask(policy, {}), alone);
    EXPECT_EQ(ask(policy, {{"trust", "any"}}).usage().reused, 400) << policy;
  }
}

TEST_F(TrustTest, WarmedDocumentsAreReusedAndComeFirst) {
  for (const char* policy : {"", "naive", "mend"}) {
    open(false);
    publish({head, document}, true);
    const Outcome alone = ask(policy, {});
    EXPECT_EQ(alone.usage().reused, 400) << policy;
    open(true);
    const Outcome attacked = ask(policy, {});
    publish({head, document}, true);
    const Outcome clean = ask(policy, {{"trust", "clean"}});
    EXPECT_EQ(clean.usage().reused, 400) << policy;
    expect_equal(clean, alone);
    expect_equal(ask(policy, {}), alone);
    expect_differ(attacked, alone);
  }
}

// The attacker warms it too, behind its own messages.
TEST_F(TrustTest, AWarmedCopyIsCleanForThoseWhoBeginAlike) {
  open(false);
  publish({tokens(30, 9), document}, true);
  EXPECT_EQ(ask("naive", {}).usage().reused, 400) << "power";
  EXPECT_EQ(ask("naive", {{"trust", "clean"}}).usage().reused, 0);
}

// Documents that are asked for often get a clean copy when nothing else is to be done.
TEST_F(TrustTest, WhatIsAskedForOftenGetsACleanCopyInIdleTime) {
  const auto ask_for_both = [&](uint32_t which, bool publish) {
    const auto first = tokens(100, 50 + which);
    Request request = request_of(join({head, first, document, tokens(24, 80 + which)}), "naive", 1);
    request.policy.params = {{"trust", "clean"}};
    request.prompt.marks = {{30, 130}, {130, 530}};
    request.publish = publish;
    return ask_ok(*engine, std::move(request)).usage().reused;
  };
  const auto copied = [&] {
    // Every question interrupts the copy, which then begins anew: a slow machine needs a longer rest between two.
    for (auto rest = std::chrono::milliseconds(600); rest < std::chrono::minutes(2); rest *= 2) {
      std::this_thread::sleep_for(rest);
      if (ask_for_both(20, false) > 0) return true;
    }
    return false;
  };
  open(false);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(ask_for_both(i, false), 0);
  EXPECT_EQ(ask_for_both(3, true), 0);
  EXPECT_EQ(ask_for_both(4, true), 0) << "power: twice is not often, and what is not published does not count";
  EXPECT_EQ(ask_for_both(5, true), 0);
  EXPECT_TRUE(copied());
  EXPECT_EQ(ask_for_both(6, false), 400);
  EXPECT_EQ(engine->stats().requests_failed, 0u);
}

TEST_F(TrustTest, AWrongWordIsRefused) {
  open(false);
  const Status refused = engine->check_policy({"naive", {{"trust", "nobody"}}});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "trust is 'nobody', not any or clean");
}

}  // namespace
}  // namespace kvilt

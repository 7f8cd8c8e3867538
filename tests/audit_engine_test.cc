// Audits inside an engine: they run when nothing else does, find what a limit case predicts, and can switch a policy
// off.
#include <gtest/gtest.h>

#include "probe_prompts.h"

namespace kvilt {
namespace {

std::unique_ptr<Engine> audited(double limit = 0) {
  auto engine = open_for_test({.model = kModel, .audit = 1, .audit_limit = limit});
  warm(*engine, join({tokens(9, 1), tokens(70, 2), tokens(64, 4)}));
  return engine;
}

const std::vector<int32_t> kAsked = join({tokens(9, 1), tokens(64, 4), tokens(70, 2), tokens(21, 5)});

Outcome ask_once(Engine& engine, const std::string& policy, Params params = {}) {
  return ask_with(engine, kAsked, policy, std::move(params), 4);
}

TEST(AuditedEngine, FindsTheTrueDistance) {
  const auto engine = audited();
  ask_once(*engine, "mend", {{"r", "1"}});  // equal to full
  ASSERT_TRUE(eventually([&] { return engine->stats().audits.size() == 1; }));
  ask_once(*engine, "naive");
  ASSERT_TRUE(eventually([&] { return engine->stats().audits.size() == 2; }));
  ask_once(*engine, "full");  // never sampled
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.audits[0].policy, "mend");
  EXPECT_LT(stats.audits[0].kl_first, 1e-5);
  EXPECT_LT(stats.audits[0].kl_answer, 1e-5);
  EXPECT_EQ(stats.audits[0].top1, 1);
  EXPECT_EQ(stats.audits[1].policy, "naive");
  EXPECT_GT(stats.audits[1].kl_first, 1e-3) << "power";
  EXPECT_EQ(stats.requests_ok, 4u);  // audits are no requests
  EXPECT_EQ(stats.running, 0);
}

TEST(AuditedEngine, ABadPolicyFallsBackToPrefix) {
  const auto engine = audited(1e-4);
  for (uint64_t i = 1; i <= 20; ++i) {
    EXPECT_EQ(ask_once(*engine, "naive").usage().policy, "naive");
    ASSERT_TRUE(eventually([&] { return !engine->stats().audits.empty() && engine->stats().audits[0].requests == i; }));
  }
  const Outcome after = ask_once(*engine, "naive");
  EXPECT_EQ(after.usage().policy, "prefix");
  EXPECT_EQ(after.usage().reused, 0);
  EXPECT_TRUE(engine->stats().audits[0].off);
}

TEST(AuditedEngine, WaitingRequestsComeFirst) {
  const auto engine = audited();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 12; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine->submit(unpublished(kAsked, i % 2 ? "mend" : "naive", {}, 5), sinks.back()).ok());
  }
  for (auto& sink : sinks) EXPECT_FALSE(sink->wait().error);
  EXPECT_TRUE(eventually([&] { return !engine->stats().audits.empty(); }));  // at most kWaiting of them
  EXPECT_EQ(engine->stats().requests_ok, 13u);
}

}  // namespace
}  // namespace kvilt

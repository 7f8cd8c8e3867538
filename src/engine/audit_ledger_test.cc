// The accounts by themselves; sequences: auditor_test.cc; with an engine around them: AuditedEngine in tests/.
#include "engine/audit_ledger.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

std::unique_ptr<AuditRecord> record(AuditLedger& ledger, std::vector<float> logits, int tokens = 1) {
  auto out = ledger.sample("naive", 10);
  if (!out) return nullptr;
  out->prompt.ids = {1, 2, 3};
  for (int i = 0; i < tokens; ++i) {
    out->answer.push_back(i);
    out->logits.push_back(logits);
  }
  return out;
}

TEST(AuditLedger, SamplesTheShareOfWhatReused) {
  AuditLedger none(0, 0, 1), some(0.25, 0, 1);
  int taken = 0;
  for (int i = 0; i < 4000; ++i) {
    EXPECT_EQ(none.sample("naive", 5), nullptr);
    taken += some.sample("naive", 5) ? 1 : 0;
  }
  EXPECT_NEAR(taken, 1000, 120);
  AuditLedger all(1, 0, 1);
  EXPECT_EQ(all.sample("full", 5), nullptr);
  EXPECT_EQ(all.sample("prefix", 5), nullptr);
  EXPECT_EQ(all.sample("naive", 0), nullptr);
  EXPECT_NE(all.sample("naive", 1), nullptr);
}

TEST(AuditLedger, CountsDistances) {
  AuditLedger audit(1, 0, 1);
  audit.add(record(audit, {0, 1}, 2));
  audit.finish(audit.take(), {{0, 1}, {0, 1}});
  audit.add(record(audit, {1, 0}));
  audit.finish(audit.take(), {{0, 1}});
  const auto stats = audit.stats();
  ASSERT_EQ(stats.size(), 1u);
  EXPECT_EQ(stats[0].requests, 2u);
  EXPECT_EQ(stats[0].top1, 0.5);
  // KL(p || q) of (1, e) and (e, 1), over 1 + e: (e - 1) / (e + 1); half of it is the mean.
  EXPECT_NEAR(stats[0].kl_first, 0.4621 / 2, 1e-3);
  EXPECT_FALSE(stats[0].off);
}

TEST(AuditLedger, WhatIsInterruptedIsTriedAgainAndThenDropped) {
  AuditLedger audit(1, 0, 1);
  audit.add(record(audit, {0, 1}));
  for (int i = 1; i <= AuditLedger::kAttempts; ++i) {
    ASSERT_TRUE(audit.waiting());
    EXPECT_EQ(audit.try_again(audit.take()) != nullptr, i == AuditLedger::kAttempts) << "then it is given up";
  }
  EXPECT_FALSE(audit.waiting());
  for (int i = 0; i < 9; ++i) {
    if (auto next = record(audit, {0, 1}); audit.takes(*next)) audit.add(std::move(next));
  }
  EXPECT_FALSE(audit.takes(*record(audit, {0, 1})));
  int waiting = 0;
  for (; audit.waiting(); ++waiting) audit.take();
  EXPECT_EQ(waiting, static_cast<int>(AuditLedger::kWaiting));
  EXPECT_TRUE(audit.takes(*record(audit, {0, 1})));
  EXPECT_FALSE(audit.takes({})) << "nothing to compare";
}

TEST(AuditLedger, ABadPolicyIsSwitchedOff) {
  AuditLedger strict(1, 0.1, 1), lenient(1, 10, 1);
  for (AuditLedger* audit : {&strict, &lenient}) {
    for (size_t i = 0; i < AuditLedger::kRecent; ++i) {
      EXPECT_FALSE(audit->off("naive"));
      audit->add(record(*audit, {3, 0}));
      audit->finish(audit->take(), {{0, 3}});
    }
  }
  EXPECT_TRUE(strict.off("naive"));
  EXPECT_FALSE(strict.off("mend"));
  EXPECT_FALSE(lenient.off("naive"));
}

}  // namespace
}  // namespace kvilt

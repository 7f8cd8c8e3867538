// From a request that runs to the sequence that audits it, without an engine.
#include "engine/auditor.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace kvilt {
namespace {

using Logits = std::vector<float>;

Sequence request(RequestId id) {
  Sequence s;
  s.id = id;
  s.request.policy.name = "naive";
  s.request.sampling.max_tokens = 2;
  s.usage.reused = 10;
  s.tokens = {1, 2, 3};
  s.prompt_len = 3;
  return s;
}

// Two tokens, each chosen from `logits`.
void answer(Auditor& auditor, Sequence& s, const Logits& logits, Finish finish = Finish::kLength) {
  auditor.sample(s);
  for (const int32_t id : {7, 8}) {
    s.running.logits = logits;
    auditor.choosing(s);
    s.tokens.push_back(id);
  }
  s.completion.finish = finish;
  auditor.ended(s);
}

TEST(Auditor, ASampledRequestIsComputedAgainInFull) {
  Auditor auditor(1, 0, 1);
  Sequence s = request(5);
  answer(auditor, s, {0, 1});
  ASSERT_TRUE(auditor.ready().has_value());
  EXPECT_FALSE(auditor.auditing());
  const auto audit = auditor.start();
  EXPECT_TRUE(auditor.auditing());
  EXPECT_FALSE(auditor.ready().has_value());
  EXPECT_EQ(audit->id, IdleWork::kId);
  EXPECT_EQ(audit->request.policy.name, "full");
  EXPECT_FALSE(audit->request.publish);
  EXPECT_EQ(audit->tokens, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(audit->request.evaluation.forced, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(audit->max_len, 5);
  Completion full;
  full.logits.all = {{0, 1}, {1, 0}};
  auditor.finish(std::move(full));
  EXPECT_FALSE(auditor.auditing());
  const auto stats = auditor.stats();
  ASSERT_EQ(stats.size(), 1u);
  EXPECT_EQ(stats[0].policy, "naive");
  EXPECT_EQ(stats[0].kl_first, 0);
  EXPECT_GT(stats[0].kl_answer, 0.2) << "power check: the second token's distributions differ";
}

// Whether the audit of such a request is a context for means.
bool seasons(Auditor& auditor, bool from_seasoned, bool publish, bool cleared = false) {
  Sequence s = request(5);
  s.request.prompt.marks = {{0, 2}};
  s.request.publish = publish;
  s.domains.seasoned = 9;
  s.from_seasoned = from_seasoned;
  answer(auditor, s, {0, 1});
  if (cleared) auditor.clear();
  const auto audit = auditor.start();
  EXPECT_EQ(audit->domains.seasoned, audit->request.season ? 9 : 0);
  EXPECT_EQ(audit->request.prompt.marks.size(), 1u);
  EXPECT_EQ(audit->tokens, (std::vector<int32_t>{1, 2, 3}));
  return audit->request.season;
}

TEST(Auditor, ARequestThatWantedMeansGivesThemAContext) {
  Auditor wanted(1, 0, 1), other(1, 0, 1), silent(1, 0, 1), cleared(1, 0, 1);
  EXPECT_TRUE(seasons(wanted, true, true));
  EXPECT_FALSE(seasons(other, false, true));
  EXPECT_FALSE(seasons(silent, true, false)) << "what is not published leaves nothing";
  EXPECT_FALSE(seasons(cleared, true, true, true)) << "the cache was cleared";
}

TEST(Auditor, APromptIsOneContextHoweverOftenItIsAudited) {
  Auditor auditor(1, 0, 1);
  EXPECT_TRUE(seasons(auditor, true, true));
  auditor.interrupt();
  EXPECT_TRUE(auditor.start()->request.season) << "it had not come that far";
  auditor.seasoned();
  auditor.interrupt();
  EXPECT_FALSE(auditor.start()->request.season);
  auditor.finish({});
  Auditor twice(1, 0, 1);
  EXPECT_TRUE(seasons(twice, true, true));
  Completion full;
  full.logits.all = {{0, 1}, {1, 0}};
  twice.finish(std::move(full));
  EXPECT_FALSE(seasons(twice, true, true)) << "the next turn of the same conversation";
}

// Neither of one that finds the queue full, nor of one that is given up, is a context taken away.
TEST(Auditor, WhatIsNotAuditedWasNoContext) {
  const auto ask = [](Auditor& auditor, int32_t first, Finish finish = Finish::kLength) {
    Sequence s = request(5);
    s.tokens[0] = first;
    s.request.prompt.marks = {{0, 2}};
    s.domains.seasoned = 9;
    s.from_seasoned = true;
    answer(auditor, s, {0, 1}, finish);
  };
  Auditor auditor(1, 0, 1);
  ask(auditor, 1, Finish::kCancelled);
  for (int32_t i = 0; i < 6; ++i) ask(auditor, i);
  Completion full;
  full.logits.all = {{0, 1}, {1, 0}};
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(auditor.start()->request.season);
    auditor.finish(full);
  }
  ASSERT_FALSE(auditor.ready().has_value()) << "four wait at most";
  for (int32_t i = 2; i < 6; ++i) {
    ask(auditor, i);
    EXPECT_EQ(auditor.start()->request.season, i >= 4) << i;
    for (int tries = 1; tries < AuditLedger::kAttempts; ++tries) {
      auditor.interrupt();
      auditor.start();
    }
    auditor.interrupt();
    ASSERT_FALSE(auditor.ready().has_value()) << "given up";
  }
  ask(auditor, 5);
  EXPECT_TRUE(auditor.start()->request.season);
  auditor.finish(full);
  ask(auditor, 5);
  EXPECT_FALSE(auditor.start()->request.season) << "power";
}

// Audits keep to their share of the idle time, as seasoning does.
TEST(Auditor, AuditsTakeTheirShareOfTheTime) {
  for (const bool interrupted : {false, true}) {
    Auditor auditor(1, 0, 1, 0.1);
    Sequence one = request(5), two = request(6);
    answer(auditor, one, {0, 1});
    answer(auditor, two, {0, 1});
    const auto before = Clock::now();
    EXPECT_LE(*auditor.ready(), before);
    auditor.start();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    interrupted ? auditor.interrupt() : auditor.finish({});
    ASSERT_TRUE(auditor.ready().has_value());
    EXPECT_GE(*auditor.ready() - before, std::chrono::milliseconds(200)) << "20 ms of work, nine times as long a pause";
  }
}

TEST(Auditor, AnInterruptedAuditWaitsAgain) {
  Auditor auditor(1, 0, 1);
  Sequence s = request(5);
  answer(auditor, s, {0, 1});
  auditor.start();
  auditor.interrupt();
  EXPECT_FALSE(auditor.auditing());
  EXPECT_TRUE(auditor.ready().has_value());
  auditor.finish({});  // of the sequence that was broken off
  EXPECT_TRUE(auditor.stats().empty());
  auditor.start();
  auditor.finish({});  // without logits: it counts as interrupted
  EXPECT_TRUE(auditor.ready().has_value());
  EXPECT_TRUE(auditor.stats().empty());
}

TEST(Auditor, SomeRequestsAreNotAudited) {
  Auditor auditor(1, 0, 1);
  Sequence forced = request(1), warming = request(2), cancelled = request(3), exact = request(4);
  forced.request.evaluation.forced = {7, 8};
  warming.request.sampling.max_tokens = 0;
  exact.usage.reused = 0;
  for (Sequence* s : {&forced, &warming, &exact}) answer(auditor, *s, {0, 1});
  answer(auditor, cancelled, {0, 1}, Finish::kCancelled);
  EXPECT_FALSE(auditor.ready().has_value());
  Sequence plain = request(6);
  answer(auditor, plain, {0, 1});
  EXPECT_TRUE(auditor.ready().has_value()) << "power check";
}

}  // namespace
}  // namespace kvilt

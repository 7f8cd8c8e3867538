// Power: each bound stands next to work that is within it.
#include "grammar/budget.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "grammar/xgrammar_hooks.h"

namespace kvilt {
namespace {

void work_until_a_look() {
  for (int i = 0; i < 1024; ++i) kvilt_grammar_works();
}

// As when others have the core: little is done, and much time goes by.
TEST(Budget, ASleepIsNoWork) {
  const Budget budget(.05, INT64_MAX);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_NO_THROW(work_until_a_look());
  EXPECT_LT(budget.seconds(), .05);
}

TEST(Budget, WorkIsBounded) {
  const Budget budget(.02, INT64_MAX);
  try {
    for (;;) work_until_a_look();
  } catch (const OverBudget& over) {
    EXPECT_EQ(over.what_ran_out, OverBudget::What::kTime);
  }
  EXPECT_GT(budget.seconds(), .02);
}

TEST(Budget, WhatGrowsIsBounded) {
  const Budget budget(1e6, 3);
  for (int i = 0; i < 3; ++i) EXPECT_NO_THROW(kvilt_grammar_grows());
  EXPECT_THROW(kvilt_grammar_grows(), OverBudget);
}

TEST(Budget, IsItsThreadsAlone) {
  const Budget none(0, 0);
  std::thread([] { EXPECT_NO_THROW(work_until_a_look()); }).join();
  EXPECT_THROW(work_until_a_look(), OverBudget) << "power";
}

}  // namespace
}  // namespace kvilt

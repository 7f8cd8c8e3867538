// Which rows pay, on steps whose times are given.
#include "engine/draft_length.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvilt {
namespace {

// After steps of one row, and some of five, that take base + row seconds a row.
StepCost learned(double base, double row, int decodes = 1) {
  StepCost cost;
  for (int i = 0; i < 100; ++i) {
    const int rows = decodes + (i % 5 == 0 ? 4 : 0);
    cost.add(rows, base + row * rows);
  }
  return cost;
}

int rows_that_pay(const StepCost& cost, int decodes, double chance) {
  DraftLength length;
  length.begin(cost, decodes);
  double all = 1;
  int n = 0;
  while (n < 1000 && length.add(all *= chance)) ++n;
  return n;
}

TEST(StepCost, LearnsWhatARowTakes) {
  for (const double row : {0.0002, 0.001, 0.005}) {
    const StepCost cost = learned(0.01, row);
    EXPECT_NEAR(cost.row_s(), row, 0.1 * row + 0.0002);
    EXPECT_NEAR(cost.step_s(3), 0.01 + 3 * row, 0.001);
  }
}

TEST(StepCost, HoldsToAGuessWhileItSeesOneKindOfStep) {
  StepCost cost;
  EXPECT_FALSE(cost.known());
  for (int i = 0; i < 50; ++i) cost.add(1, 0.01);
  EXPECT_NEAR(cost.row_s(), 0.001, 1e-6);
  EXPECT_NEAR(cost.step_s(1), 0.01, 1e-9);
}

TEST(StepCost, OneDisturbedStepIsNotBelieved) {
  StepCost cost = learned(0.01, 0.001), calm = cost;
  cost.add(5, 100);
  calm.add(5, 0.015);
  EXPECT_LT(cost.row_s(), 3 * calm.row_s());
  EXPECT_TRUE(std::isfinite(cost.step_s(1)));
}

TEST(DraftLength, NothingIsKnownNothingIsTried) {
  const StepCost cost;
  EXPECT_EQ(rows_that_pay(cost, 1, 1), 0);
}

TEST(DraftLength, GoodGuessesAreLongAndPoorOnesAreNone) {
  const StepCost cost = learned(0.01, 0.001);
  const int sure = rows_that_pay(cost, 1, 0.97), fair = rows_that_pay(cost, 1, 0.6);
  EXPECT_GT(sure, 8);
  EXPECT_GT(fair, 0);
  EXPECT_LT(fair, 5);
  EXPECT_EQ(rows_that_pay(cost, 1, 0.05), 0);
}

TEST(DraftLength, DearRowsAreFew) {
  EXPECT_GT(rows_that_pay(learned(0.01, 0.0003), 1, 0.8), rows_that_pay(learned(0.01, 0.003), 1, 0.8));
  EXPECT_EQ(rows_that_pay(learned(0.001, 0.01), 1, 0.8), 0) << "a step is nothing but its rows";
}

// With many sequences the step's time is mostly rows, and a guess has to be better than sure.
TEST(DraftLength, ManySequencesDraftLess) {
  const StepCost cost = learned(0.01, 0.001, 16);
  EXPECT_LT(rows_that_pay(cost, 16, 0.9), rows_that_pay(learned(0.01, 0.001), 1, 0.9));
  EXPECT_EQ(rows_that_pay(learned(0.01, 0.001, 200), 200, 0.9), 0);
}

// An answer of so many steps whose unsure guesses are right or not; each step tries up to eight. What it lost, in tokens.
double lost(int steps, double share, double chance, bool right, DraftAccount& account) {
  int drafted = 0, accepted = 0;
  for (int step = 0; step < steps; ++step) {
    account.settle(drafted, accepted, share);
    for (int row = 0; row < 8 && account.allow(chance, share); ++row) ++drafted, accepted += right ? 1 : 0;
  }
  return drafted * share - accepted;
}

TEST(DraftAccount, WhatUnsureGuessesLoseIsBounded) {
  for (const double share : {.02, .1, .19, .3, .9}) {
    for (const int steps : {1, 127, 5000}) {
      DraftAccount account;
      const double all = lost(steps, share, .69, false, account);
      EXPECT_LE(all, .2 + .01 * steps + 1e-9) << share;
      if (steps > 100) {
        EXPECT_GT(all, .8) << share << ": they are tried now and then";
      }
    }
  }
  DraftAccount account;
  EXPECT_LE(lost(127, .2, .3, false, account), .02 * 127) << "2 % of free text's pace";
}

TEST(DraftAccount, WhoWinsMayGuess) {
  DraftAccount account;
  EXPECT_LT(lost(20, .1, .5, true, account), -100) << "eight in nearly every step";
  EXPECT_EQ(account.balance(), 1) << "no more is kept";
  EXPECT_LE(lost(100, .1, .5, false, account), 2.1) << "and that is lost once";
}

TEST(DraftAccount, SureGuessesAreNotItsBusiness) {
  DraftAccount account;
  EXPECT_GT(lost(50, .1, .7, false, account), 39);
  EXPECT_FALSE(account.allow(.69, .1)) << "they are in the account all the same";
}

}  // namespace
}  // namespace kvilt

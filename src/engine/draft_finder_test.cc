// Drafts on texts whose continuation is known.
#include "engine/draft_finder.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "index/tokens_for_test.h"

namespace kvilt {
namespace {

constexpr auto any_chance = [](double) { return true; };

// One request: its prompt, then its answer token by token.
struct Asker {
  explicit Asker(Tokens prompt, const ContentIndex* cached = nullptr, DomainId exact = 0, DomainId approximate = 0)
      : own(std::move(prompt)), cached(cached), exact(exact), approximate(approximate) {}
  Tokens draft(int most = 8, FunctionRef<bool(double)> worth = any_chance) {
    const DraftFinder::Texts texts{own, cached, exact, approximate};
    finder.read(texts);
    Tokens out;
    finder.propose(texts, most, worth, out);
    return out;
  }
  // How many of the tokens would have been drafted right, one by one.
  int said(const Tokens& answer) {
    int right = 0;
    for (const int32_t id : answer) {
      const Tokens guess = draft(1);
      right += !guess.empty() && guess[0] == id ? 1 : 0;
      own.push_back(id);
    }
    return right;
  }
  Tokens own;
  const ContentIndex* cached;
  DomainId exact, approximate;
  DraftFinder finder{7};
};

TEST(DraftFinder, QuotesThePrompt) {
  Asker asker(join(text(1, 50), text(2, 50), text(3, 50)));
  EXPECT_TRUE(asker.draft().empty()) << "nothing repeats itself";
  for (int i = 10; i < 13; ++i) asker.own.push_back(2000 + i);
  EXPECT_EQ(asker.draft(4), (Tokens{2013, 2014, 2015, 2016}));
  EXPECT_EQ(asker.draft(60).size(), 60u) << "as far as asked";
  Asker few(text(1, 50));
  few.own.push_back(1010), few.own.push_back(1011);
  EXPECT_TRUE(few.draft().empty()) << "power: two tokens are too few";
}

// Behind tokens that somebody else drafted it goes on where its text has the same ones.
TEST(DraftFinder, GoesOnBehindADraft) {
  Asker asker(join(text(1, 50), text(2, 50)));
  for (int i = 10; i < 13; ++i) asker.own.push_back(1000 + i);
  const DraftFinder::Texts texts{asker.own};
  asker.finder.read(texts);
  Tokens draft{1013, 1014};
  asker.finder.propose(texts, 5, any_chance, draft);
  EXPECT_EQ(draft, (Tokens{1013, 1014, 1015, 1016, 1017}));
  draft = {1013, 7};
  asker.finder.propose(texts, 5, any_chance, draft);
  EXPECT_EQ(draft, (Tokens{1013, 7}));
}

TEST(DraftFinder, WhatRepeatsItselfGoesOn) {
  Asker asker({1, 2, 3, 1, 2, 3, 1, 2, 3});
  EXPECT_EQ(asker.draft(7), (Tokens{1, 2, 3, 1, 2, 3, 1}));
}

TEST(DraftFinder, TheLongerMatchComesFirst) {
  const Tokens head = text(1, 6), tail = text(2, 4);
  Asker asker(join(head, tail, Tokens{7}, text(3, 9), tail, Tokens{8}, text(4, 9), head, tail));
  EXPECT_EQ(asker.draft(1), (Tokens{7})) << "of ten tokens, before the latest of four";
  asker = Asker(join(head, tail, Tokens{7}, text(3, 9), tail, Tokens{8}, text(4, 9), tail));
  EXPECT_EQ(asker.draft(1), (Tokens{8})) << "power: the latest";
}

// A text that is said again with some tokens changed, put in, or left out.
TEST(DraftFinder, GoesOnBehindAnEdit) {
  const Tokens old = text(1, 400);
  for (const int kind : {0, 1, 2, 3}) {
    Asker asker(join(old, text(9, 5)));
    Tokens said;
    for (int i = 0; i < 400; ++i) {
      const bool edit = i % 40 == 20;
      if (edit && kind == 1) said.push_back(50000 + i);                               // put in
      if (edit && kind == 2) continue;                                                // left out
      if (edit && kind == 3) said.insert(said.end(), {60000 + i, 70000 + i, 80000});  // three for one
      if (edit && kind == 3) continue;
      said.push_back(edit && kind == 0 ? 40000 + i : old[static_cast<size_t>(i)]);
    }
    const int right = asker.said(said);
    // Three tokens to begin with; around each of ten edits three at most.
    EXPECT_GE(right, 400 - 3 - 10 - 10 * 3) << kind;
    EXPECT_LE(right, 400 - 3 - 10) << "power: no edit can be foreseen";
  }
}

// The latest place of a few tokens that stand everywhere is not where the text goes on; the place that was right is.
TEST(DraftFinder, StaysWhereItWasRight) {
  Tokens file;
  for (int f = 0; f < 20; ++f) file = join(file, text(f + 1, 12), Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9});
  Asker asker(join(file, text(99, 3)));
  EXPECT_GE(asker.said(file), static_cast<int>(file.size()) - 3);
}

TEST(DraftFinder, LearnsFromWhatItWouldHaveSaid) {
  std::mt19937 rng(3);
  Tokens noise;
  for (int i = 0; i < 3000; ++i) noise.push_back(static_cast<int32_t>(rng() % 8));  // three tokens occur again at once
  Asker asker(noise);
  double first = 0, last = 0;
  const auto note = [](double& to) {
    return [&to](double chance) {
      to = chance;
      return false;
    };
  };
  asker.draft(1, note(first));
  for (int i = 0; i < 300; ++i) {
    asker.draft(1, note(last));  // nothing is drafted
    asker.own.push_back(static_cast<int32_t>(rng() % 8));
  }
  EXPECT_GT(first, 0.25);
  EXPECT_LT(last, 0.25) << "an eighth is right";
}

TEST(DraftFinder, FindsCachedTextsOfItsDomains) {
  ContentIndex index(HashSecret::fixed(1));
  index.keep_continuations();
  const DomainId mine = index.domain("m", "", ""), approximate = index.domain("m/a", "", ""),
                 other = index.domain("m", "", "salt");
  index.insert(1, {.tokens = text(1, 30), .domain = mine});
  index.insert(2, {.tokens = text(2, 30), .domain = approximate});
  index.insert(3, {.tokens = text(3, 30), .domain = other});
  const auto next = [&](int who, bool cached = true) {
    const Tokens said = text(who, 9);
    Asker asker(join(text(9, 20), said), cached ? &index : nullptr, mine, approximate);
    return asker.draft(3);
  };
  EXPECT_EQ(next(1), (Tokens{1009, 1010, 1011}));
  EXPECT_EQ(next(2), (Tokens{2009, 2010, 2011}));
  EXPECT_TRUE(next(3).empty()) << "another's";
  EXPECT_TRUE(next(1, false).empty()) << "power";
}

// A place in a text that leaves is left.
TEST(DraftFinder, ACachedTextMayLeave) {
  ContentIndex index(HashSecret::fixed(1));
  index.keep_continuations();
  const DomainId mine = index.domain("m", "", "");
  index.insert(1, {.tokens = text(1, 60), .domain = mine});
  Asker asker(join(text(9, 20), text(1, 10)), &index, mine);
  EXPECT_EQ(asker.draft(1), (Tokens{1010}));
  index.truncate(1, 12);
  EXPECT_EQ(asker.draft(5), (Tokens{1010, 1011}));
  index.erase(1);
  EXPECT_TRUE(asker.draft(5).empty());
  asker.own.push_back(1010);
  EXPECT_TRUE(asker.draft(5).empty());
}

TEST(DraftFinder, MemoryIsAFewBytesAToken) {
  Asker asker(Tokens(20000, 1));
  EXPECT_EQ(asker.finder.bytes(), 0u) << "nothing before the first look";
  asker.draft();
  EXPECT_LE(asker.finder.bytes(), size_t{20000} * 32 + 64 * 1024);
  EXPECT_GT(asker.finder.bytes(), 0u);
}

}  // namespace
}  // namespace kvilt

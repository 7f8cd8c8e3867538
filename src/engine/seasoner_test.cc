// Which prompts season what, and when, without an engine.
#include "engine/seasoner.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <thread>

namespace kvilt {
namespace {

// A head of two tokens, and documents of `size` tokens each that all hold their number.
std::vector<Prompt> documents(int count, int32_t size) {
  std::vector<Prompt> out;
  for (int32_t d = 0; d < count; ++d) {
    Prompt& prompt = out.emplace_back(Prompt{{-1, -2}, {{2, 2 + size}}});
    prompt.ids.insert(prompt.ids.end(), static_cast<size_t>(size), d);
  }
  return out;
}

using Order = std::vector<int32_t>;
// The numbers of the documents that are marked.
Order held(const Prompt& prompt) {
  Order out;
  for (const TokenMark& mark : prompt.marks) out.push_back(prompt.ids[static_cast<size_t>(mark.begin)]);
  return out;
}
std::vector<Order> orders(int count, int contexts, uint64_t seed) {
  std::vector<Order> out;
  for (const Prompt& prompt : season_prompts(documents(count, 10), {.contexts = contexts, .seed = seed}))
    out.push_back(held(prompt));
  return out;
}

TEST(SeasonPrompts, EveryDocumentStandsInSoManyContexts) {
  const auto prompts = season_prompts(documents(5, 10), {.contexts = 4});
  ASSERT_EQ(prompts.size(), 4u);
  std::map<std::vector<int32_t>, int> orders;
  for (const Prompt& prompt : prompts) {
    EXPECT_EQ(prompt.ids.size(), 52u);
    EXPECT_EQ(prompt.ids[1], -2);
    ASSERT_EQ(prompt.marks.size(), 5u);
    std::vector<int32_t> order;
    for (const TokenMark& mark : prompt.marks) {
      EXPECT_EQ(mark.end - mark.begin, 10);
      order.push_back(prompt.ids[static_cast<size_t>(mark.begin)]);
      EXPECT_EQ(order.back(), prompt.ids[static_cast<size_t>(mark.end) - 1]);
    }
    ++orders[order];
    std::ranges::sort(order);
    EXPECT_EQ(order, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  }
  EXPECT_GT(orders.size(), 1u) << "orders are random";
  EXPECT_TRUE(season_prompts({}, {.contexts = 4}).empty());
  EXPECT_TRUE(season_prompts(documents(2, 5), {.contexts = 0}).empty());
}

TEST(SeasonPrompts, NoPromptIsLongerThanItsBounds) {
  const auto count_marks = [](const std::vector<Prompt>& prompts) {
    size_t out = 0;
    for (const Prompt& prompt : prompts) out += prompt.marks.size();
    return out;
  };
  const auto many = season_prompts(documents(30, 500), {.contexts = 2});
  EXPECT_EQ(count_marks(many), 60u);
  for (const Prompt& prompt : many) EXPECT_LE(prompt.ids.size(), 2u + kSeasonTokens);
  const auto narrow = season_prompts(documents(6, 50), {.contexts = 1, .context = 110});
  EXPECT_EQ(count_marks(narrow), 6u);
  for (const Prompt& prompt : narrow) EXPECT_LE(prompt.ids.size(), 110u);
  const auto large = season_prompts(documents(4, 3000), {.contexts = 3});
  ASSERT_EQ(large.size(), 6u);
  for (const Prompt& prompt : large) EXPECT_EQ(prompt.marks.size(), 2u) << "by itself it would have no context";
  EXPECT_TRUE(season_prompts(documents(1, 30), {.contexts = 4}).empty());
}

// Who is left alone stands behind another one's text, which gets no context of it.
TEST(SeasonPrompts, NobodyStandsAlone) {
  std::map<int32_t, int> held;
  const auto prompts = season_prompts(documents(5, 3000), {.contexts = 3});
  ASSERT_EQ(prompts.size(), 9u);
  for (const Prompt& prompt : prompts) {
    ASSERT_EQ(prompt.ids.size(), 6002u) << "two of them";
    EXPECT_EQ(prompt.marks.back().end, 6002);
    EXPECT_NE(prompt.ids[2], prompt.ids.back());
    for (const TokenMark& mark : prompt.marks) ++held[prompt.ids[static_cast<size_t>(mark.begin)]];
  }
  for (int32_t d = 0; d < 5; ++d) EXPECT_EQ(held[d], 3) << d;
  // Number 2 fits with nobody.
  std::vector<Prompt> sizes = documents(3, 10);
  sizes[2].add_marked(std::vector<int32_t>(85, 2)), sizes[2].marks = {{2, 97}};
  held.clear();
  for (const Prompt& prompt : season_prompts(sizes, {.contexts = 6, .context = 100})) {
    EXPECT_EQ(prompt.ids.size(), 22u);
    for (const TokenMark& mark : prompt.marks) ++held[prompt.ids[static_cast<size_t>(mark.begin)]];
  }
  EXPECT_EQ(held, (std::map<int32_t, int>({{0, 6}, {1, 6}})));
  EXPECT_TRUE(season_prompts(documents(3, 60), {.contexts = 3, .context = 100}).empty());
}

// Orders do not repeat one another, nor the one in which the documents came, while there are others.
TEST(SeasonPrompts, OrdersDoNotRepeat) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(orders(2, 1, seed), (std::vector<Order>{{1, 0}}));
    const auto three = orders(3, 5, seed);
    EXPECT_EQ(std::set<Order>(three.begin(), three.end()).size(), 5u) << seed;
    EXPECT_EQ(std::ranges::count(three, Order({0, 1, 2})), 0) << seed;
    std::map<Order, int> eleven;  // and the one in which they came: each of six twice
    for (const Order& order : orders(3, 11, seed)) ++eleven[order];
    for (const auto& [order, times] : eleven) EXPECT_EQ(times, std::ranges::is_sorted(order) ? 1 : 2) << seed;
  }
}

// Random orders are those of a plain shuffle; after each comes the same from its end.
TEST(SeasonPrompts, OrdersComeInPairs) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (const int count : {8, 10}) {
      std::mt19937_64 rng(seed);
      Order order;
      for (int32_t i = 0; i < count; ++i) order.push_back(i);
      const auto drawn = orders(count, 4, seed);
      for (const int first : {0, 2}) {
        for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng() % i]);
        EXPECT_EQ(drawn[first], order) << seed << " " << count;
        EXPECT_EQ(drawn[first + 1], Order(order.rbegin(), order.rend())) << seed << " " << count;
      }
    }
    // The last one from its end is the order in which they came: another one is drawn, and turned.
    const auto three = orders(3, 4, seed);
    if (three[0] != Order({2, 1, 0})) continue;
    EXPECT_EQ(three[2], Order(three[1].rbegin(), three[1].rend()));
  }
}

// Documents that take several prompts stay with whom they stood, from the end; of two that share a prompt each is before
// the other once. Who stands alone stands behind somebody else.
TEST(SeasonPrompts, PromptsTurnAsTheyAre) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto prompts = season_prompts(documents(9, 500), {.contexts = 2, .seed = seed});
    ASSERT_EQ(prompts.size(), 6u);
    for (size_t i = 0; i < 3; ++i) {
      const Order there = held(prompts[i]), back = held(prompts[5 - i]);
      EXPECT_EQ(back, Order(there.rbegin(), there.rend())) << seed;
    }
    const auto large = season_prompts(documents(5, 3000), {.contexts = 2, .seed = seed});
    ASSERT_EQ(large.size(), 6u);
    std::map<Order, int> texts;
    for (const Prompt& prompt : large) ++texts[{prompt.ids[2], prompt.ids.back()}];
    EXPECT_EQ(texts.size(), 6u) << seed << ": nobody stands behind the same text twice";
  }
}

// What stands before all is the first one's beginning; the others need none.
TEST(SeasonPrompts, OtherBeginningsDoNotCount) {
  std::vector<Prompt> some = documents(2, 10);
  some[1] = {std::vector<int32_t>(10, 1), {{0, 10}}};
  const auto prompts = season_prompts(some, {.contexts = 1});
  ASSERT_EQ(prompts.size(), 1u);
  EXPECT_EQ(prompts[0].ids.size(), 22u);
  EXPECT_EQ(prompts[0].marks[1].end, 22);
}

class SeasonerTest : public testing::Test {
 protected:
  // A request that marks documents `of`, all of which lack contexts.
  static void ask(Seasoner& seasoner, const std::vector<int32_t>& of, const std::vector<int32_t>& behind = {},
                  OwnerId owner = 0, int32_t before = 2) {
    Sequence s;
    s.owner = owner;
    s.domains.exact = 7;
    s.domains.seasoned = 9;
    s.tokens.assign(static_cast<size_t>(before), -1);
    for (const int32_t d : of) {
      const auto begin = static_cast<int32_t>(s.tokens.size());
      s.tokens.insert(s.tokens.end(), 40, d);
      s.request.prompt.marks.push_back({begin, begin + 40});
    }
    s.tokens.insert(s.tokens.end(), behind.begin(), behind.end());
    std::vector<LacksContexts> missing;
    for (const TokenMark& mark : s.request.prompt.marks) missing.push_back({mark, seasoner.contexts()});
    seasoner.asked(s, missing);
  }
  static std::vector<int32_t> run(Seasoner& seasoner, DomainId exact = 7) {
    const auto s = seasoner.start();
    EXPECT_EQ(s->request.policy.name, "full");
    EXPECT_TRUE(s->request.season);
    EXPECT_FALSE(s->request.publish);
    EXPECT_EQ(s->domains.seasoned, 9);
    EXPECT_EQ(s->domains.exact, exact);
    std::vector<int32_t> held;
    for (const TokenMark& mark : s->request.prompt.marks) held.push_back(s->tokens[static_cast<size_t>(mark.begin)]);
    std::ranges::sort(held);
    return held;
  }
};

TEST_F(SeasonerTest, TheSecondPromptPutsASetInLine) {
  Seasoner seasoner({.contexts = 2}, 1);
  ask(seasoner, {1, 2});
  EXPECT_FALSE(seasoner.ready().has_value());
  ask(seasoner, {1, 2});
  ASSERT_TRUE(seasoner.ready().has_value());
  for (int i = 0; i < 3; ++i) ask(seasoner, {2, 1});  // they wait already, in whatever order
  EXPECT_EQ(seasoner.waiting(), 1);
  for (int pass = 0; pass < 2; ++pass) {
    ASSERT_TRUE(seasoner.ready().has_value());
    EXPECT_EQ(run(seasoner), (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(seasoner.running(), 1);
    EXPECT_EQ(seasoner.waiting(), 0);
    seasoner.finish({});
    EXPECT_EQ(seasoner.running(), 0);
    EXPECT_EQ(seasoner.waiting(), 1 - pass);
  }
  EXPECT_FALSE(seasoner.ready().has_value());
  Seasoner none({.contexts = 0}, 1), wanted({.contexts = 2}, 1);
  for (int i = 0; i < 3; ++i) ask(none, {1, 2}), ask(wanted, {1});
  EXPECT_FALSE(none.ready().has_value());
  EXPECT_FALSE(wanted.ready().has_value()) << "one document has no context";
}

TEST_F(SeasonerTest, SetsTakeTurnsAndAnInterruptedPassComesAgain) {
  Seasoner seasoner({.contexts = 2}, 1);
  const std::vector<int32_t> one{1, 2}, two{3, 4};
  for (int i = 0; i < 2; ++i) ask(seasoner, one), ask(seasoner, two);
  EXPECT_EQ(run(seasoner), one);
  seasoner.interrupt();
  seasoner.finish({});  // of the sequence that was broken off
  EXPECT_EQ(run(seasoner), two) << "who was interrupted gets in line";
  Completion failed;
  failed.error = Error{Code::kExhausted, "no memory"};
  seasoner.finish(std::move(failed));  // a set that does not fit is not tried again
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(run(seasoner), one);
    seasoner.finish({});
  }
  EXPECT_FALSE(seasoner.ready().has_value());
}

TEST_F(SeasonerTest, WhatIsInterruptedTooOftenIsGivenUp) {
  Seasoner seasoner({.contexts = 2}, 1);
  for (int i = 0; i < 2; ++i) ask(seasoner, {1, 2});
  int tries = 0;
  for (; seasoner.ready(); ++tries) run(seasoner), seasoner.interrupt();
  EXPECT_EQ(tries, Seasoner::kMostInterrupts);
}

TEST_F(SeasonerTest, ItTakesItsShareOfTheTime) {
  for (const bool interrupted : {false, true}) {
    Seasoner seasoner({.contexts = 2}, 0.1);
    for (int i = 0; i < 2; ++i) ask(seasoner, {1, 2});
    const auto before = Clock::now();
    EXPECT_LE(*seasoner.ready(), before);
    run(seasoner);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    interrupted ? seasoner.interrupt() : seasoner.finish({});
    EXPECT_GE(*seasoner.ready() - before, std::chrono::milliseconds(200))
        << "20 ms of work, nine times as long a pause";
  }
}

// What stands before the documents is computed in every pass: long ones are left alone.
TEST_F(SeasonerTest, WhatStandsBeforeIsBounded) {
  for (const int32_t more : {0, 1}) {
    Seasoner seasoner({.contexts = 2}, 1);
    for (int i = 0; i < 2; ++i) ask(seasoner, {1, 2}, {}, 0, Seasoner::kMaxBefore + more);
    EXPECT_EQ(seasoner.ready().has_value(), more == 0);
  }
}

// One tenant's many sets neither fill the line nor take all turns.
TEST_F(SeasonerTest, TenantsTakeTurns) {
  Seasoner seasoner({.contexts = 2}, 1);
  const auto ask_twice = [&](int32_t document, OwnerId owner) {
    for (int i = 0; i < 2; ++i) ask(seasoner, {document, document + 1}, {}, owner);
  };
  for (int32_t i = 0; i < 30; ++i) ask_twice(10 * i, 1);
  EXPECT_EQ(seasoner.waiting(), static_cast<int>(Seasoner::kMaxWaiting));
  ask_twice(1000, 2);
  EXPECT_EQ(seasoner.waiting(), static_cast<int>(Seasoner::kMaxWaiting)) << "in place of the other one's last";
  std::vector<OwnerId> turns;
  for (int pass = 0; pass < 6; ++pass) {
    turns.push_back(seasoner.start()->owner);
    seasoner.finish({});
  }
  EXPECT_EQ(turns, (std::vector<OwnerId>{1, 2, 1, 2, 1, 1})) << "its two passes, one at a time";
}

TEST_F(SeasonerTest, TheTurnsOfAConversationDoNotPutItInLine) {
  Seasoner seasoner({.contexts = 2}, 1);
  std::vector<int32_t> said;
  for (int32_t turn = 0; turn < 5; ++turn) {
    said.push_back(1000 + turn);
    ask(seasoner, {1, 2}, said);
  }
  EXPECT_FALSE(seasoner.ready().has_value());
  ask(seasoner, {1, 2}, {2000});
  EXPECT_TRUE(seasoner.ready().has_value());
}

TEST_F(SeasonerTest, ASetsOrdersDoNotRepeat) {
  Seasoner seasoner({.contexts = 5}, 1);
  for (int i = 0; i < 2; ++i) ask(seasoner, {1, 2, 3});
  std::set<std::vector<int32_t>> orders;
  for (int pass = 0; pass < 5; ++pass) {
    orders.insert(seasoner.start()->tokens);
    seasoner.finish({});
  }
  EXPECT_EQ(orders.size(), 5u);
}

TEST_F(SeasonerTest, AsManyOrdersAsTheOneWithTheFewestLacks) {
  Seasoner seasoner({.contexts = 5}, 1);
  Sequence s;
  s.domains.seasoned = 9;
  s.request.prompt.marks = {{0, 40}, {40, 80}, {80, 120}};
  s.tokens.resize(120);
  for (size_t i = 0; i < 120; ++i) s.tokens[i] = static_cast<int32_t>(i / 40);
  const LacksContexts missing[] = {{{0, 40}, 1}, {{80, 120}, 2}};
  s.tokens.push_back(0);
  for (int32_t end = 0; end < 2; ++end) s.tokens.back() = end, seasoner.asked(s, missing);  // two conversations
  int passes = 0;
  for (; seasoner.ready(); ++passes) run(seasoner, 0), seasoner.finish({});
  EXPECT_EQ(passes, 2);
}

// Four documents of which two fit into one prompt, in two prompts an order: the one without the document that lacks a
// context adds nothing.
TEST_F(SeasonerTest, OnlyPassesThatHoldOneWhichLacksContexts) {
  for (const bool all : {false, true}) {
    Seasoner seasoner({.contexts = 3, .context = 82}, 1);
    Sequence s;
    s.domains.seasoned = 9;
    s.tokens.assign(161, 0);
    std::vector<LacksContexts> missing;
    for (int32_t d = 0; d < 4; ++d) {
      s.request.prompt.marks.push_back({40 * d, 40 * d + 40});
      std::fill_n(s.tokens.begin() + 40 * d, 40, d);
      if (all || d == 2) missing.push_back({s.request.prompt.marks.back(), 3});
    }
    for (int32_t end = 0; end < 2; ++end) s.tokens.back() = end, seasoner.asked(s, missing);  // two conversations
    int passes = 0;
    for (; seasoner.ready(); ++passes) {
      const std::vector<int32_t> held = run(seasoner, 0);
      EXPECT_TRUE(all || std::ranges::find(held, 2) != held.end());
      seasoner.finish({});
    }
    EXPECT_EQ(passes, all ? 6 : 3) << (all ? "power" : "");
  }
}

TEST_F(SeasonerTest, DocumentsOfWhichNoTwoFitAreLeftAlone) {
  Seasoner narrow({.contexts = 2, .context = 81}, 1), wide({.contexts = 2, .context = 82}, 1);
  for (int i = 0; i < 2; ++i) ask(narrow, {1, 2, 3}), ask(wide, {1, 2, 3});
  EXPECT_FALSE(narrow.ready().has_value());
  EXPECT_TRUE(wide.ready().has_value());
}

TEST_F(SeasonerTest, WhatWaitsIsBounded) {
  Seasoner seasoner({.contexts = 1}, 1);
  for (int32_t d = 0; d < 40; ++d) ask(seasoner, {d, 100 + d}), ask(seasoner, {d, 100 + d});
  size_t passes = 0;
  for (; seasoner.ready(); ++passes) run(seasoner), seasoner.finish({});
  EXPECT_EQ(passes, Seasoner::kMaxWaiting);
  ask(seasoner, {1, 2}), ask(seasoner, {1, 2});
  ASSERT_TRUE(seasoner.ready().has_value());
  seasoner.clear();
  EXPECT_FALSE(seasoner.ready().has_value());
}

}  // namespace
}  // namespace kvilt

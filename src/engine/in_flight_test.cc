// Who waits for whom: what a running prefill will publish, as far as the policy can use it, and when it is worth it.
#include "engine/in_flight.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

using Ids = std::vector<int32_t>;

Ids words(int32_t who, int32_t n) {
  Ids out;
  for (int32_t i = 0; i < n; ++i) out.push_back(who * 10000 + i);
  return out;
}

Ids one_after(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

class InFlightTest : public testing::Test {
 protected:
  InFlightTest() : store(PageStore::create(kShape, int64_t{6000} * kShape.page_bytes()).value()) {
    config.L = kShape.L;
    config.G = config.H = kShape.G;
    config.E = kShape.E;
    config.D = 16;
    config.F = 32;
    config.rope = small_rope();
  }

  std::unique_ptr<Sequence> make(const Ids& tokens, const std::string& policy, int32_t prefix = 0, Runs pieces = {},
                                 const std::map<std::string, std::string>& params = {}) {
    auto s = std::make_unique<Sequence>();
    s->id = ++last_id;
    s->starts = 1;
    s->domains.exact = 7;
    s->request.policy = {policy, params};
    s->policy = make_policy(policy, params).value();
    s->tokens = tokens;
    const PromptLayout layout{static_cast<int32_t>(tokens.size()), prefix, std::move(pieces)};
    s->running.kv = std::make_unique<PageTable>(store, config.ropes());
    s->running.prefill = std::make_unique<Prefill>(*s->policy, layout, config);
    return s;
  }
  Sequence& run(std::unique_ptr<Sequence> s) { return *running.emplace_back(std::move(s)); }
  bool waits(std::unique_ptr<Sequence> s) {
    last = std::move(s);
    return in_flight.worth_waiting(*last, running, config);
  }

  ModelConfig config;
  PageStore store;
  InFlight in_flight{32};
  std::vector<std::unique_ptr<Sequence>> running;
  std::unique_ptr<Sequence> last;
  RequestId last_id = 0;
};

const Ids kDocs = words(1, 300);

TEST_F(InFlightTest, ForACommonPrefixThatIsNotCached) {
  const Sequence& first = run(make(one_after(kDocs, words(2, 20)), "full"));
  EXPECT_TRUE(waits(make(one_after(kDocs, words(3, 20)), "prefix")));
  EXPECT_EQ(last->waited_for, std::vector<RequestId>{first.id});
  EXPECT_FALSE(waits(make(one_after(kDocs, words(3, 20)), "prefix", 300))) << "it is cached";
  EXPECT_FALSE(waits(make(one_after(kDocs, words(3, 20)), "prefix", 250))) << "a few tokens are not worth it";
  EXPECT_FALSE(waits(make(one_after(kDocs, words(3, 20)), "full"))) << "it would not look";
  EXPECT_FALSE(waits(make(words(3, 320), "prefix")));
  EXPECT_FALSE(waits(make(one_after(kDocs, words(3, 1000)), "prefix"))) << "less than a quarter of what is missing";
}

TEST_F(InFlightTest, ForPiecesAnywhere) {
  const Ids other = words(5, 300);
  run(make(one_after(kDocs, words(2, 20)), "full"));
  const Ids tokens = one_after(one_after(words(4, 10), kDocs), words(3, 20));
  EXPECT_TRUE(waits(make(tokens, "naive")));
  EXPECT_FALSE(waits(make(tokens, "prefix"))) << "it uses no pieces";
  EXPECT_FALSE(waits(make(tokens, "naive", 0, {{10, 310}}))) << "they are cached";
  EXPECT_FALSE(waits(make(one_after(one_after(words(4, 10), other), words(3, 20)), "naive")));
  run(make(one_after(other, words(2, 20)), "full"));
  EXPECT_TRUE(waits(make(one_after(one_after(words(4, 10), other), words(3, 20)), "naive"))) << "the index follows";
  running.clear();
  EXPECT_FALSE(waits(make(tokens, "naive")));
  run(make(words(6, 320), "full"));
  EXPECT_FALSE(waits(make(tokens, "naive"))) << "what ended is not in the index";
}

// Nothing that it computes behind a placed piece becomes a prefix; what it computes anew becomes a piece.
TEST_F(InFlightTest, NotForWhatItCannotUse) {
  const Ids tokens = one_after(one_after(words(4, 10), kDocs), words(3, 300));
  const auto approximate = [&] { return make(tokens, "naive", 0, {{10, 310}}); };
  run(approximate());
  EXPECT_FALSE(waits(make(tokens, "prefix"))) << "the very prompt, exact up to token 10";
  EXPECT_TRUE(waits(approximate())) << "the same policy";
  const auto asks = [&](DomainId policy) {
    auto s = make(one_after(words(8, 10), words(3, 300)), "naive");
    s->domains.approximate = policy;
    return s;
  };
  EXPECT_FALSE(waits(asks(0))) << "what it computes behind a piece is kept nowhere";
  running.clear();
  run(approximate()).domains.approximate = 21;
  EXPECT_TRUE(waits(asks(21))) << "its new text, under the same policy";
  EXPECT_FALSE(waits(asks(22))) << "another policy's new text";
  running.clear();
  run(make(one_after(words(4, 10), words(3, 300)), "naive")).domains.approximate = 21;
  EXPECT_TRUE(waits(asks(22))) << "new text without a piece before it is exact";
  running.clear();
  run(make(tokens, "full")).request.publish = false;
  EXPECT_FALSE(waits(make(tokens, "prefix")));
  running[0]->request.publish = true;
  EXPECT_TRUE(waits(make(tokens, "prefix"))) << "power";
  running[0]->domains.exact = 8;
  EXPECT_FALSE(waits(make(tokens, "prefix"))) << "a stranger's";
}

// The default policy reuses marked text only, so what others compute of the rest is nothing to wait for.
TEST_F(InFlightTest, NotForUnmarkedTextWhereMarksAreTheConsent) {
  const Ids docs = words(1, 1000);  // of fewer, repair is hardly cheaper than computing all
  run(make(one_after(docs, words(2, 20)), "full"));
  const auto asks = [&](const std::string& text, std::vector<TokenMark> marks) {
    const Ids tokens = one_after(one_after(words(4, 10), docs), words(3, 20));
    auto s = make(tokens, "auto", 0, {}, {{"quality", "auto"}, {"text", text}});
    s->request.prompt.marks = std::move(marks);
    return s;
  };
  EXPECT_FALSE(waits(asks("marked", {})));
  EXPECT_EQ(in_flight.computed_by(*last, running), Runs{});
  EXPECT_TRUE(waits(asks("all", {}))) << "power: it uses unmarked text";
  EXPECT_TRUE(waits(asks("marked", {{10, 1010}})));
  EXPECT_EQ(in_flight.computed_by(*last, running), (Runs{{10, 1010}}));
  EXPECT_FALSE(waits(asks("marked", {{10, 50}}))) << "a small part of it is marked";
  EXPECT_EQ(in_flight.computed_by(*last, running), (Runs{{10, 50}}));
}

// Clean copies are of a prompt's first marked part, behind what the asker's own prompt begins with.
TEST_F(InFlightTest, ForCleanCopiesOnlyWhereNothingElseIsTrusted) {
  const Ids sys = words(4, 10);
  const auto mark = [](std::unique_ptr<Sequence> s, std::vector<TokenMark> marks) {
    s->request.prompt.marks = std::move(marks);
    return s;
  };
  const auto asks = [&](const Ids& front, bool clean_only) {
    const auto n = static_cast<int32_t>(front.size());
    auto s = mark(make(one_after(one_after(front, kDocs), words(3, 20)), "naive"), {{n, n + 300}});
    s->clean_only = clean_only;
    return s;
  };
  const Ids history = one_after(sys, words(5, 50)), foreign = words(6, 60);
  run(mark(make(one_after(one_after(sys, kDocs), words(2, 20)), "full"), {{10, 310}}));
  EXPECT_TRUE(waits(asks(history, true)));
  EXPECT_FALSE(waits(asks(foreign, true))) << "the copy stands behind words that are not its own";
  EXPECT_TRUE(waits(asks(foreign, false))) << "power: who trusts everything waits";
  running.clear();
  run(mark(make(one_after(one_after(sys, kDocs), words(2, 20)), "full"), {{0, 10}, {10, 310}}));
  EXPECT_FALSE(waits(asks(history, true))) << "the second marked part is behind the first";
  EXPECT_TRUE(waits(asks(history, false))) << "power";
}

// Rows that see few keys leave a chain of their policy and nothing exact.
TEST_F(InFlightTest, NotForSparsePrompts) {
  const Ids prompt = one_after(kDocs, words(2, 20)), piece_inside = one_after(words(4, 10), kDocs);
  for (const char* policy : {"loopserve", "full"}) {
    SCOPED_TRACE(policy);
    running.clear();
    run(make(prompt, policy));
    const bool exact = policy == std::string("full");
    EXPECT_EQ(waits(make(one_after(kDocs, words(3, 20)), "prefix")), exact) << "power: what full leaves";
    EXPECT_EQ(waits(make(one_after(piece_inside, words(3, 20)), "naive")), exact) << "nor as a piece";
  }
  running.clear();
  run(make(prompt, "loopserve"));
  EXPECT_TRUE(waits(make(prompt, "loopserve"))) << "the same question";
}

// A short request goes first where it would wait for a long one; and it waits for a few of them only.
TEST_F(InFlightTest, NotForTooLong) {
  run(make(one_after(kDocs, words(2, 900)), "full"));
  EXPECT_TRUE(waits(make(one_after(kDocs, words(3, 20)), "prefix")));
  run(make(one_after(kDocs, words(2, 1100)), "full"));
  running.erase(running.begin());
  EXPECT_FALSE(waits(make(one_after(kDocs, words(3, 20)), "prefix")));
  auto patient = make(one_after(kDocs, words(3, 20)), "prefix");
  for (int i = 0; i < InFlight::kMostWaits + 1; ++i) {
    running.clear();
    run(make(one_after(kDocs, words(2, 20)), "full"));
    EXPECT_EQ(in_flight.worth_waiting(*patient, running, config), i < InFlight::kMostWaits) << i;
  }
}

}  // namespace
}  // namespace kvilt

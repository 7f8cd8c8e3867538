// What a constraint leaves next is drafted (engine/foreseen_tokens.h), and changes nothing but the number of steps: tokens,
// text, log-probabilities and the end equal those of single steps to the bit, alone, beside others, preempted and cut.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine_harness.h"

namespace kvilt {
namespace {

constexpr const char* kStories = "tests/data/models/stories260K/derived-stories260K-F32.gguf";

// Letters that no token of this vocabulary joins: they are written in one way (or as bytes), so the draft is right.
constexpr const char* kMostlyForced = "(QXZVK[ab]){6}";
constexpr const char* kFreeText = "[a-z ]{20,40}";

constexpr const char* kPerson =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,)"
    R"("maximum":120},"happy":{"type":"boolean"},"kind":{"const":"a person of the village"},"pets":{"type":"array",)"
    R"("items":{"enum":["cat","dog","bird"]},"minItems":2,"maxItems":3}},"required":["name","age","happy","kind",)"
    R"("pets"],"additionalProperties":false})";

struct Said : Heard {
  int deltas = 0;
  int steps() const { return completion.completion_tokens - usage().accepted; }
};

class Deltas : public CollectingSink {
 public:
  void on_tokens(const TokenDelta& delta) override {
    EXPECT_LE(delta.ids.size(), 1u);
    count += static_cast<int>(delta.ids.size());
    CollectingSink::on_tokens(delta);
  }
  int count = 0;
};

Said said(Deltas& sink) { return {heard(sink), sink.count}; }

Said say(Engine& engine, Request request, int draft) {
  request.draft = draft;
  const auto sink = std::make_shared<Deltas>();
  EXPECT_TRUE(engine.submit(std::move(request), sink).ok());
  return said(*sink);
}

void expect_same(const Said& a, const Said& b) {
  EXPECT_EQ(a.deltas, b.deltas);
  kvilt::expect_same(static_cast<const Heard&>(a), static_cast<const Heard&>(b));
}

class ForeseenAnswers : public testing::TestWithParam<int> {
 protected:
  EngineOptions options() const { return {.model = kStories, .draft = GetParam()}; }
  Request request(Constraint::Form form, const char* text, float temperature, uint64_t seed = 3) {
    Request out;
    out.prompt.ids = engine_->tokenize("Once upon a time", false, true).value();
    out.constraint.form = form;
    out.constraint.text = text;
    out.sampling.max_tokens = 300;
    out.sampling.temperature = temperature;
    out.sampling.seed = seed;
    out.sampling.logprobs = 2;
    out.publish = false;
    return out;
  }
  Request forced(float temperature, uint64_t seed = 3) {
    return request(Constraint::Form::kRegex, kMostlyForced, temperature, seed);
  }
  Request person(float temperature, uint64_t seed = 3) {
    return request(Constraint::Form::kSchema, kPerson, temperature, seed);
  }
  std::unique_ptr<Engine> engine_ = open_for_test(options());
};

TEST_P(ForeseenAnswers, AreTheSameInFewerSteps) {
  for (const float temperature : {0.f, 1.5f}) {
    for (const uint64_t seed : {1, 2, 3, 4}) {
      SCOPED_TRACE(fmt::format("temperature {} seed {}", temperature, seed));
      for (const Request& asked : {forced(temperature, seed), person(temperature, seed)}) {
        const uint64_t before = engine_->stats().steps;
        const Said single = say(*engine_, asked, 0);
        const uint64_t between = engine_->stats().steps;
        const Said out = say(*engine_, asked, -1);
        const uint64_t after = engine_->stats().steps;
        expect_same(out, single);
        EXPECT_EQ(single.completion.usage.drafted, 0);
        EXPECT_EQ(static_cast<int>(between - before - (after - between)), out.completion.usage.accepted);
      }
      const Said out = say(*engine_, forced(temperature, seed), -1);
      EXPECT_LE(out.steps() * 2, out.completion.completion_tokens) << "power: steps fell";
    }
  }
  EXPECT_NE(say(*engine_, person(1.5f, 1), -1).ids, say(*engine_, person(1.5f, 2), -1).ids) << "power: seeds matter";
}

// Where every letter is the model's choice, nothing is foreseen.
TEST_P(ForeseenAnswers, AFreeTextIsNotDrafted) {
  if (GetParam() > 0) GTEST_SKIP() << "drafts are looked for";
  const Said out = say(*engine_, request(Constraint::Form::kRegex, kFreeText, 1), -1);
  EXPECT_GT(out.completion.completion_tokens, 5);
  EXPECT_EQ(out.completion.usage.drafted, 0);
  EXPECT_GT(say(*engine_, forced(1), -1).completion.usage.drafted, 0) << "power";
}

TEST_P(ForeseenAnswers, BesideOthersAndPreempted) {
  for (const bool scarce : {false, true}) {
    EngineOptions small = options();
    if (scarce) small.kv_bytes = 1400 * engine_->info().kv_bytes_per_token;
    const auto e = open_for_test(small);
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 5; ++i) {
      const float temperature = i % 2 == 0 ? 0.f : 1.5f;
      requests.push_back(forced(temperature, i));
      requests.push_back(person(temperature, i));
      requests.push_back(request(Constraint::Form::kRegex, "(QXZV[a-z ]{30}){5,9}", temperature, i));
      requests.push_back(request(Constraint::Form::kNone, "", temperature, i));
    }
    std::vector<std::shared_ptr<Deltas>> sinks;
    const auto gate = hold(*e);
    for (const Request& one : requests) {
      sinks.push_back(std::make_shared<Deltas>());
      ASSERT_TRUE(e->submit(one, sinks.back()).ok());
    }
    gate->open();
    for (size_t i = 0; i < sinks.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same(said(*sinks[i]), say(*engine_, requests[i], 0));
    }
    EXPECT_EQ(e->stats().preemptions > 0, scarce) << "power";
    EXPECT_GT(e->stats().accepted_tokens, 20u) << "power";
    EXPECT_EQ(e->stats().kv_pages_used, 0);
  }
}

// At every length, and at stop strings and stop tokens that lie inside of what is foreseen.
TEST_P(ForeseenAnswers, EndWhereSingleStepsEnd) {
  const Said whole = say(*engine_, forced(1), 0);
  int cut = 0;
  for (int most = 1; most < whole.completion.completion_tokens; ++most) {
    Request asked = forced(1);
    asked.sampling.max_tokens = most;
    const Said out = say(*engine_, asked, -1);
    expect_same(out, say(*engine_, asked, 0));
    EXPECT_EQ(out.completion.finish, Finish::kLength);
    cut += out.completion.usage.accepted > 0;
  }
  EXPECT_GT(cut, 10) << "power";
  for (const char* stop : {"ZV", "K", "QX", "VK", "XZVK"}) {
    Request asked = forced(1);
    asked.sampling.stop = {stop};
    const Said out = say(*engine_, asked, -1);
    expect_same(out, say(*engine_, asked, 0));
    EXPECT_LT(out.text.size(), whole.text.size()) << stop;
  }
  for (const size_t at : {size_t{2}, size_t{9}}) {
    Request asked = forced(1);
    asked.sampling.stop_ids = {whole.ids[at]};
    expect_same(say(*engine_, asked, -1), say(*engine_, asked, 0));
  }
}

// Penalties count the tokens that were drawn, a bias may speak against what is foreseen, and a request bounds its drafts.
TEST_P(ForeseenAnswers, SamplersAndBounds) {
  Request asked = person(1.2f);
  asked.sampling.repetition_penalty = 1.4f;
  asked.sampling.presence_penalty = .5f;
  asked.sampling.top_k = 20;
  asked.sampling.min_p = .01f;
  asked.sampling.logit_bias[engine_->tokenize("\":", false, false).value().back()] = -100;
  const Said single = say(*engine_, asked, 0);
  for (const int draft : {-1, 1, 2, 64}) expect_same(say(*engine_, asked, draft), single);
  const Said bounded = say(*engine_, forced(0), 1);
  expect_same(bounded, say(*engine_, forced(0), 0));
  EXPECT_GE(bounded.steps() * 2, bounded.completion.completion_tokens - 1) << "one token a draft";
}

// What is published, and what is exported, is what single steps leave.
TEST_P(ForeseenAnswers, LeaveTheSameBehind) {
  const auto with = open_for_test(options()), without = open_for_test(options());
  Request asked = forced(1);
  asked.publish = true;
  asked.export_session = true;
  const Said out = say(*with, asked, -1), single = say(*without, asked, 0);
  expect_same(out, single);
  EXPECT_GT(out.completion.usage.accepted, 0) << "power";
  EXPECT_EQ(out.completion.session->bytes, single.completion.session->bytes);
  EXPECT_EQ(with->stats().cached_tokens, without->stats().cached_tokens);
  EXPECT_EQ(with->stats().kv_pages_used, without->stats().kv_pages_used);
}

// With drafts that are looked for, and without.
INSTANTIATE_TEST_SUITE_P(Draft, ForeseenAnswers, testing::Values(0, 16));

}  // namespace
}  // namespace kvilt

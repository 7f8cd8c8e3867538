// Constrained answers through a real engine, whose small model writes stories: held to schemas, expressions and words it
// writes what they say; batched, streamed, preempted and drawn by chance it is the same answer.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine_harness.h"
#include "grammar/schema_validator_for_test.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;
using Form = Constraint::Form;

EngineOptions stories() { return {.model = "tests/data/models/stories260K/derived-stories260K-F32.gguf"}; }

Constraint constraint(Form form, std::string text) {
  Constraint out;
  out.form = form;
  out.text = std::move(text);
  return out;
}

Request request_for(Engine& engine, const std::string& prompt, Constraint must, int max_tokens = 200,
                    float temperature = 0) {
  Request out;
  out.prompt.ids = engine.tokenize(prompt, false, true).value();
  out.constraint = std::move(must);
  out.sampling.max_tokens = max_tokens;
  out.sampling.temperature = temperature;
  out.sampling.seed = 17;
  out.publish = false;
  return out;
}

const std::vector<const char*> kSchemas = {
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,)"
    R"("maximum":120},"happy":{"type":"boolean"}},"required":["name","age","happy"],"additionalProperties":false})",
    R"({"type":"array","items":{"enum":["cat","dog","bird"]},"minItems":2,"maxItems":3})",
    R"({"anyOf":[{"type":"null"},{"type":"integer","minimum":-5,"maximum":5}]})",
    R"({"$ref":"#/$defs/leaf","$defs":{"leaf":{"type":"object","properties":{"v":{"const":1},"w":{"$ref":"#/$defs/b"}},)"
    R"("required":["v","w"]},"b":{"type":"boolean"}}})",
    R"({"type":"string","pattern":"^[A-Z][a-z]{2,5}$"})",
};

class Constrained : public testing::Test {
 protected:
  std::unique_ptr<Engine> engine = open_for_test(stories());
};

TEST_F(Constrained, AnswersFitTheirSchemas) {
  int free_ones = 0;
  for (const char* text : kSchemas) {
    const Json schema = Json::parse(text);
    for (const float temperature : {0.f, 1.f, 1.7f}) {
      for (const char* prompt : {"Once upon a time", "Lily said", "{"}) {
        const auto out =
            ask_ok(*engine, request_for(*engine, prompt, constraint(Form::kSchema, text), 450, temperature));
        const Json value = Json::parse(out.text, nullptr, false);
        ASSERT_EQ(out.completion.finish, Finish::kStop) << text << "\n" << out.text;
        ASSERT_FALSE(value.is_discarded()) << text << "\n" << out.text;
        EXPECT_TRUE(SchemaValidator(schema).fits(value)) << text << "\n" << out.text;
        const auto without = ask_ok(*engine, request_for(*engine, prompt, {}, 40, temperature));
        const Json story = Json::parse(without.text, nullptr, false);
        free_ones += !story.is_discarded() && SchemaValidator(schema).fits(story);
      }
    }
  }
  EXPECT_EQ(free_ones, 0) << "power: the model itself writes stories";
}

TEST_F(Constrained, WordsExpressionsAndGrammars) {
  Constraint choice;
  choice.form = Form::kChoice;
  choice.choices = {"yes", "no", "yes and no"};
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Request request = request_for(*engine, "Is it so?", choice, 20, 1);
    request.sampling.seed = seed;
    const auto out = ask_ok(*engine, request);
    EXPECT_TRUE(std::ranges::find(choice.choices, out.text) != choice.choices.end()) << out.text;
    EXPECT_EQ(out.completion.finish, Finish::kStop);
  }
  EXPECT_EQ(ask_ok(*engine, request_for(*engine, "a", constraint(Form::kRegex, "ab{3}c"))).text, "abbbc");
  const auto sum =
      ask_ok(*engine, request_for(*engine, "a", constraint(Form::kGrammar, "root ::= d \"+\" d\nd ::= [1-9]")));
  EXPECT_EQ(sum.text.size(), 3u);
  EXPECT_EQ(sum.text[1], '+');
  const char* lark = "start: D \"-\" D\nD: /[1-9]/";
  const auto difference = ask_ok(*engine, request_for(*engine, "a", constraint(Form::kGrammar, lark)));
  EXPECT_EQ(difference.text.size(), 3u);
  EXPECT_EQ(difference.text[1], '-');
  const auto any = ask_ok(*engine, request_for(*engine, "a", constraint(Form::kJson, ""), 200));
  EXPECT_TRUE(any.text.starts_with("{")) << any.text;
}

// Beside others, free ones too, as alone: to the bit.
TEST_F(Constrained, BatchedEqualsAlone) {
  std::vector<Request> requests;
  for (const char* text : kSchemas)
    requests.push_back(request_for(*engine, "One day", constraint(Form::kSchema, text), 60, 1));
  requests.push_back(request_for(*engine, "One day", {}, 60, 1));
  requests.push_back(request_for(*engine, "One day", constraint(Form::kRegex, "[a-z ]{20,40}"), 60, 1));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.seed = i;
    requests[i].evaluation.first_logits = true;
  }
  expect_batched_equals_alone(*engine, requests);
  Request other = requests[0];
  other.sampling.seed = 99;
  EXPECT_NE(ask_ok(*engine, other).ids, ask_ok(*engine, requests[0]).ids) << "power";
}

// Some of the masks at least: which ones is the machine's affair.
TEST_F(Constrained, MasksAreFilledBesideTheForwardPass) {
  ask_ok(*engine, request_for(*engine, "One day", {}, 60));
  EXPECT_EQ(engine->stats().mask_s, 0) << "power";
  const Request request = request_for(*engine, "One day", constraint(Form::kRegex, "[a-z ]{60,80}"), 60, 1);
  const auto first = ask_ok(*engine, request);
  for (int i = 0; i < 100 && engine->stats().mask_ahead_s == 0; ++i) EXPECT_EQ(ask_ok(*engine, request).ids, first.ids);
  const EngineStats stats = engine->stats();
  EXPECT_GT(stats.mask_ahead_s, 0);
  EXPECT_LT(stats.mask_ahead_s, stats.mask_s) << "tokens are taken behind the forward pass";
}

TEST_F(Constrained, APreemptedAnswerIsTheSame) {
  auto options = stories();
  options.kv_bytes = int64_t{1} << 20;
  auto small = open_for_test(options);
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(request_for(*engine, "Tom and Ben", constraint(Form::kRegex, "([a-z]{3} ){60,90}"), 300, 1));
    requests.back().sampling.seed = static_cast<uint64_t>(i);
  }
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  const auto gate = hold(*small);
  for (const Request& request : requests) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(small->submit(request, sinks.back()).ok());
  }
  gate->open();
  for (size_t i = 0; i < sinks.size(); ++i) {
    sinks[i]->wait();
    EXPECT_EQ(sinks[i]->ids, ask_ok(*engine, requests[i]).ids) << i;
  }
  EXPECT_GT(small->stats().preemptions, 0u) << "power";
}

// What comes in pieces is what comes whole; an answer that is cut is the beginning of one that is not.
TEST_F(Constrained, StreamsAndIsCut) {
  const Request whole = request_for(*engine, "Once", constraint(Form::kSchema, kSchemas[0]), 450);
  const auto answer = ask_ok(*engine, whole);
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine->submit(whole, sink).ok());
  sink->wait();
  EXPECT_EQ(sink->text, answer.text);
  Request cut = whole;
  cut.sampling.max_tokens = 5;
  const auto shorter = ask_ok(*engine, cut);
  EXPECT_EQ(shorter.completion.finish, Finish::kLength);
  EXPECT_EQ(shorter.ids.size(), 5u);
  EXPECT_TRUE(answer.text.starts_with(shorter.text));
  cut.sampling.max_tokens = static_cast<int>(answer.ids.size());
  EXPECT_EQ(ask_ok(*engine, cut).completion.finish, Finish::kStop) << "it is whole: no end token has to come";
}

// The distribution that is drawn from: of two words the probabilities are one together.
TEST_F(Constrained, LogprobsAreOfWhatMayCome) {
  Request request = request_for(*engine, "a", constraint(Form::kRegex, "[xyz]"));
  request.sampling.logprobs = 10;
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine->submit(request, sink).ok());
  sink->wait();
  ASSERT_EQ(sink->logprobs.size(), 1u);
  double sum = 0;
  for (const auto& [id, logprob] : sink->logprobs[0].top) sum += std::exp(static_cast<double>(logprob));
  EXPECT_NEAR(sum, 1, 1e-5);
  EXPECT_LT(sink->logprobs[0].top.size(), 10u) << "what cannot come is not there";
  request.constraint = {};
  const auto free_sink = std::make_shared<CollectingSink>();
  request.sampling.max_tokens = 1;
  ASSERT_TRUE(engine->submit(request, free_sink).ok());
  free_sink->wait();
  EXPECT_EQ(free_sink->logprobs[0].top.size(), 10u) << "power";
}

// Also of the token with which the answer may end, where the next one's mask is made at once.
TEST_F(Constrained, DrawnLogprobsAreOfWhatTheTokenWasDrawnFrom) {
  SamplingParams greedy, warm, filtered;
  greedy.temperature = 0;
  filtered.top_p = 0.99f, filtered.top_k = 3;
  for (const char* expression : {"a|b|c", "(a|b|c)q", "[abc]+"}) {
    for (const SamplingParams& sampling : {greedy, warm, filtered}) {
      Request request = request_for(*engine, "a", constraint(Form::kRegex, expression));
      request.sampling = sampling;
      request.sampling.max_tokens = 1;
      request.sampling.seed = 5;
      request.sampling.logprobs = 64;
      request.sampling.drawn_logprobs = true;
      const auto sink = std::make_shared<CollectingSink>();
      ASSERT_TRUE(engine->submit(request, sink).ok());
      sink->wait();
      ASSERT_EQ(sink->logprobs.size(), 1u) << expression;
      const TokenLogprob& told = sink->logprobs[0];
      double sum = 0;
      bool has_own = false;
      for (const auto& [id, logprob] : told.top) {
        sum += std::exp(static_cast<double>(logprob));
        has_own = has_own || (id == told.id && logprob == told.logprob);
        EXPECT_EQ(engine->token_text(id).find_first_not_of("abc"), std::string::npos) << engine->token_text(id);
      }
      EXPECT_TRUE(has_own) << expression;
      EXPECT_NEAR(sum, 1, 1e-5) << expression;
      EXPECT_EQ(told.logprob == 0, sampling.temperature == 0) << "power: sampled, there is a choice";
    }
  }
}

// Penalties and biases change what is drawn, never what may be.
TEST_F(Constrained, PenaltiesDoNotFreeIt) {
  Request request = request_for(*engine, "a", constraint(Form::kRegex, "[ab]{30}"), 100, 1);
  request.sampling.repetition_penalty = 5;
  request.sampling.presence_penalty = 2;
  request.sampling.top_k = 50;
  request.sampling.logit_bias[engine->tokenize("z", false, false).value().back()] = 100;
  const auto out = ask_ok(*engine, request);
  EXPECT_EQ(out.text.size(), 30u);
  EXPECT_EQ(out.text.find_first_not_of("ab"), std::string::npos) << out.text;
}

TEST_F(Constrained, AllowedIdsAreForFreeAnswers) {
  Request request = request_for(*engine, "a", constraint(Form::kRegex, "[ab]{30}"), 20, 1);
  request.sampling.allowed_ids = {400, 401};
  EXPECT_EQ(ask(*engine, request).error().code, Code::kInvalidArgument);
  request.constraint = {};
  const auto out = ask_ok(*engine, request);
  EXPECT_EQ(out.ids.size(), 20u) << "no end token is among them";
  for (const int32_t id : out.ids) EXPECT_TRUE(id == 400 || id == 401) << id;
  request.sampling.allowed_ids = {engine->info().vocab};
  EXPECT_EQ(ask(*engine, request).error().code, Code::kInvalidArgument);
  request.sampling.allowed_ids = {};
  EXPECT_EQ(std::ranges::count(ask_ok(*engine, request).ids, 400), 0) << "power";
}

TEST_F(Constrained, LeastTokensAreForFreeAnswers) {
  Request request = request_for(*engine, "a", constraint(Form::kRegex, "[ab]{30}"), 20, 1);
  request.sampling.min_tokens = 5;
  EXPECT_EQ(ask(*engine, request).error().code, Code::kInvalidArgument);
  request.constraint = {};
  request.sampling.min_tokens = 0;
  const auto free = ask_ok(*engine, request);
  ASSERT_EQ(free.ids.size(), 20u);
  request.sampling.stop_ids = {free.ids[0], free.ids[3]};
  EXPECT_TRUE(ask_ok(*engine, request).ids.empty()) << "power";
  request.sampling.min_tokens = 8;
  const auto held = ask_ok(*engine, request);
  ASSERT_GE(held.ids.size(), 8u);
  for (size_t i = 0; i < 8; ++i)
    EXPECT_EQ(std::ranges::count(request.sampling.stop_ids, held.ids[i]), 0) << "none of them is drawn";
  request.sampling.allowed_ids = {request.sampling.stop_ids[0]};
  EXPECT_EQ(ask(*engine, request).error().code, Code::kInvalidArgument) << "nothing else may be drawn";
  request.sampling.allowed_ids = {};
  request.sampling.min_tokens = -1;
  EXPECT_EQ(ask(*engine, request).error().code, Code::kInvalidArgument);
}

TEST_F(Constrained, WhatCannotBeIsRefused) {
  const auto refused = [&](Constraint must) {
    const Status checked = engine->check_constraint(must, false);
    const auto answer = ask(*engine, request_for(*engine, "a", std::move(must)));
    EXPECT_FALSE(checked.ok());
    EXPECT_FALSE(answer.ok());
    return checked.ok() ? Code::kInternal : checked.error().code;
  };
  EXPECT_EQ(refused(constraint(Form::kSchema, "{")), Code::kInvalidArgument);
  EXPECT_EQ(refused(constraint(Form::kSchema, R"({"not":{}})")), Code::kInvalidArgument);
  EXPECT_EQ(refused(constraint(Form::kSchema, std::string(100'000, '['))), Code::kInvalidArgument);
  EXPECT_EQ(refused(constraint(Form::kSchema, "{\"const\":\"\xFF\"}")), Code::kInvalidArgument);
  EXPECT_EQ(refused(constraint(Form::kRegex, "(a")), Code::kInvalidArgument);
  EXPECT_EQ(refused(constraint(Form::kGrammar, "hello")), Code::kInvalidArgument);
  EXPECT_EQ(refused(constraint(Form::kGrammar, "start: /a*?/")), Code::kInvalidArgument);
  EXPECT_EQ(refused(constraint(Form::kChoice, "")), Code::kInvalidArgument);
  Constraint calls;
  calls.form = Form::kCalls;
  calls.tools = {{"f", ""}};
  EXPECT_EQ(refused(calls), Code::kUnsupported) << "this model's template knows no calls";
  Request endless = request_for(*engine, "a", constraint(Form::kRegex, "a"));
  endless.sampling.ignore_eos = true;
  EXPECT_FALSE(ask(*engine, endless).ok());
  EXPECT_TRUE(engine->check_constraint(constraint(Form::kRegex, "a"), false).ok());
}

// A vocabulary of words without brackets cannot write what is asked for: the request says so and the engine lives.
TEST(ConstrainedWords, AVocabularyThatCannotWriteIt) {
  auto engine = open_for_test({.model = "tests/data/models/probe-1M"});
  Request request;
  request.prompt.ids = {5, 6, 7};
  request.constraint = constraint(Form::kJson, "");
  request.sampling.max_tokens = 10;
  const auto none = ask(*engine, request);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Code::kInvalidArgument);
  request.constraint = constraint(Form::kRegex, " ?[0-9]");  // words come with the space before them
  const auto digit = ask(*engine, request);
  ASSERT_TRUE(digit.ok()) << digit.error().message;
  ASSERT_FALSE(digit->text.empty());
  EXPECT_TRUE(digit->text.back() >= '0' && digit->text.back() <= '9') << digit->text;
}

}  // namespace
}  // namespace kvilt

#include "server/openai_request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace kvilt::server {
namespace {

Json json(const char* text) { return Json::parse(text); }

constexpr const char* kMessages = R"("messages": [{"role": "user", "content": "hi"}])";

Json chat_with(const std::string& fields) {
  return Json::parse(std::string("{") + kMessages + (fields.empty() ? "" : ", ") + fields + "}");
}

Generation good(const std::string& fields) {
  RequestLimits limits;
  limits.vocab = 1000;
  auto parsed = parse_chat(chat_with(fields), limits);
  EXPECT_TRUE(parsed.ok()) << fields << ": " << (parsed.ok() ? "" : parsed.error().message);
  return parsed.ok() ? parsed.value().generation : Generation{};
}

ApiError bad(const std::string& fields) {
  RequestLimits limits;
  limits.vocab = 1000;
  auto parsed = parse_chat(chat_with(fields), limits);
  EXPECT_FALSE(parsed.ok()) << fields;
  if (parsed.ok()) return {};
  EXPECT_EQ(parsed.error().status, 400) << fields;
  return parsed.error();
}

TEST(ParseChat, Defaults) {
  const Generation g = good("");
  EXPECT_EQ(g.model, "");
  EXPECT_EQ(g.sampling.max_tokens, -1);
  EXPECT_EQ(g.sampling.temperature, 1);
  EXPECT_EQ(g.sampling.top_p, 1);
  EXPECT_EQ(g.sampling.top_k, 0);
  EXPECT_EQ(g.sampling.logprobs, -1);
  EXPECT_FALSE(g.sampling.seed.has_value());
  EXPECT_EQ(g.choices, 1);
  EXPECT_FALSE(g.stream);
}

TEST(ParseChat, ReadsHowLongThePromptIsKept) {
  EXPECT_EQ(good("").retention, Retention::kNone);
  EXPECT_EQ(good(R"("prompt_cache_retention": "in_memory")").retention, Retention::kNone);
  EXPECT_EQ(good(R"("prompt_cache_retention": null)").retention, Retention::kNone);
  EXPECT_EQ(good(R"("prompt_cache_retention": "24h")").retention, Retention::kDay);
  for (const char* wrong : {R"("1h")", "24", R"("")"}) {
    const ApiError error = bad(R"("prompt_cache_retention": )" + std::string(wrong));
    EXPECT_EQ(error.param, "prompt_cache_retention") << wrong;
  }
  EXPECT_NE(bad(R"("prompt_cache_retention": "1h")").message.find(R"("in_memory" or "24h")"), std::string::npos);
}

TEST(ParseChat, ReadsEveryField) {
  const Generation g = good(
      R"("model": "m", "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5,
         "presence_penalty": -1, "frequency_penalty": 2, "logit_bias": {"5": -100, "999": 1.5}, "max_tokens": 9, "seed": 42,
         "stop": ["a", "bc"], "stop_token_ids": [3, 4], "ignore_eos": true, "logprobs": true, "top_logprobs": 3, "n": 4,
         "stream": true, "stream_options": {"include_usage": true}, "cache_salt": "s", "user": "u",
         "kvilt": {"policy": "sparsex", "budget": 0.15, "hybrid": false, "l_star": 4, "phase1": "all"})");
  const SamplingParams& s = g.sampling;
  EXPECT_EQ(g.model, "m");
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_p, 0.25f);
  EXPECT_EQ(s.top_k, 7);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.repetition_penalty, 1.5f);
  EXPECT_EQ(s.presence_penalty, -1);
  EXPECT_EQ(s.frequency_penalty, 2);
  EXPECT_EQ(s.logit_bias, (std::map<int32_t, float>{{5, -100.f}, {999, 1.5f}}));
  EXPECT_EQ(s.max_tokens, 9);
  EXPECT_EQ(s.seed, 42u);
  EXPECT_EQ(s.stop, (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(s.stop_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.logprobs, 3);
  EXPECT_EQ(g.choices, 4);
  EXPECT_TRUE(g.stream);
  EXPECT_TRUE(g.include_usage);
  EXPECT_EQ(g.cache_salt, "s");
  EXPECT_EQ(g.policy.name, "sparsex");
  EXPECT_EQ(g.policy.params, (std::map<std::string, std::string>{
                                 {"budget", "0.15"}, {"hybrid", "false"}, {"l_star", "4"}, {"phase1", "all"}}));
}

TEST(ParseChat, AcceptsWhatClientsSend) {
  EXPECT_TRUE(good("").publish);
  EXPECT_FALSE(good(R"("kvilt": {"publish": false})").publish);
  EXPECT_TRUE(good(R"("kvilt": {"publish": false})").policy.params.empty());
  EXPECT_EQ(good(R"("max_completion_tokens": 5)").sampling.max_tokens, 5);
  EXPECT_EQ(good(R"("max_tokens": 5.0)").sampling.max_tokens, 5);
  EXPECT_EQ(good(R"("top_k": -1)").sampling.top_k, 0);
  EXPECT_GT(good(R"("top_p": 0)").sampling.top_p, 0);  // the engine wants more than 0
  EXPECT_EQ(good(R"("stop": "x")").sampling.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(good(R"("seed": -3)").sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(good(R"("logprobs": true)").sampling.logprobs, 0);
  EXPECT_EQ(good(R"("logprobs": false, "top_logprobs": 0)").sampling.logprobs, -1);
  EXPECT_EQ(good(R"("kvilt": {"namespaces": ["b", "", "a"]})").namespaces, (std::vector<std::string>{"b", "", "a"}));
  EXPECT_TRUE(good("").namespaces.empty());
  EXPECT_NE(good(R"("kvilt": {"namespaces": ["b"]})").cache_space(), good("").cache_space());
  EXPECT_EQ(good(R"("kvilt": {"namespaces": ["", "b"]})").cache_space(), good("").cache_space());
  good(R"("temperature": null, "stop": null, "n": null, "stream_options": null, "kvilt": null, "logit_bias": null)");
  good(R"("unknown_field": {"deep": [1, 2]}, "store": false, "metadata": {}, "parallel_tool_calls": true)");
  good(R"("response_format": {"type": "text"}, "tool_choice": "auto", "modalities": ["text"])");
  good(R"("tools": [{"type": "function", "function": {"name": "f"}}])");
  good(R"("tools": [{"function": {"name": "f"}}])");
  good(R"("function_call": "none", "use_beam_search": false, "prompt_logprobs": null)");
  EXPECT_EQ(good(R"("allowed_token_ids": [5, 999])").sampling.allowed_ids, (std::vector<int32_t>{5, 999}));
  EXPECT_TRUE(good("").sampling.allowed_ids.empty());
  EXPECT_EQ(good("").prompt_logprobs.most(), -1);
  EXPECT_EQ(good(R"("prompt_logprobs": 3)").prompt_logprobs.most(), 3);
}

// Each field, with a value that is wrong, and the path that the error must name.
TEST(ParseChat, WrongValuesNameTheirPath) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("model": 3)", "model"},
      {R"("temperature": "hot")", "temperature"},
      {R"("temperature": true)", "temperature"},
      {R"("temperature": -0.1)", "temperature"},
      {R"("temperature": 1e308)", "temperature"},
      {R"("top_p": 1.01)", "top_p"},
      {R"("top_p": [])", "top_p"},
      {R"("min_p": -1)", "min_p"},
      {R"("top_k": 1.5)", "top_k"},
      {R"("top_k": -2)", "top_k"},
      {R"("top_k": 99999999999)", "top_k"},
      {R"("repetition_penalty": 0)", "repetition_penalty"},
      {R"("presence_penalty": 2.1)", "presence_penalty"},
      {R"("frequency_penalty": {})", "frequency_penalty"},
      {R"("logit_bias": [1])", "logit_bias"},
      {R"("logit_bias": {"x": 1})", "logit_bias.x"},
      {R"("logit_bias": {"1000": 1})", "logit_bias.1000"},
      {R"("logit_bias": {"-1": 1})", "logit_bias.-1"},
      {R"("logit_bias": {"5": 101})", "logit_bias.5"},
      {R"("logit_bias": {"5": "1"})", "logit_bias.5"},
      {R"("max_tokens": -2)", "max_tokens"},
      {R"("max_tokens": "5")", "max_tokens"},
      {R"("max_tokens": 1e300)", "max_tokens"},
      {R"("max_completion_tokens": 18446744073709551615)", "max_completion_tokens"},
      {R"("seed": "x")", "seed"},
      {R"("seed": 18446744073709551615)", "seed"},
      {R"("stop": 5)", "stop"},
      {R"("stop": ["a", 5])", "stop[1]"},
      {R"("stop": ["", null])", "stop[1]"},
      {R"("stop_token_ids": [1000])", "stop_token_ids"},
      {R"("stop_token_ids": "a")", "stop_token_ids"},
      {R"("ignore_eos": 1)", "ignore_eos"},
      {R"("logprobs": 3)", "logprobs"},
      {R"("top_logprobs": 2)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": -1)", "top_logprobs"},
      {R"("n": 0)", "n"},
      {R"("n": -1)", "n"},
      {R"("n": 17)", "n"},
      {R"("n": 2, "best_of": 3)", "best_of"},
      {R"("stream": "yes")", "stream"},
      {R"("stream_options": {"include_usage": true})", "stream_options"},
      {R"("stream": true, "stream_options": 1)", "stream_options"},
      {R"("stream": true, "stream_options": {"include_usage": 1})", "stream_options.include_usage"},
      {R"("stream": true, "stream_options": {"continuous_usage_stats": 1})", "stream_options.continuous_usage_stats"},
      {R"("cache_salt": "")", "cache_salt"},
      {R"("cache_salt": 1)", "cache_salt"},
      {R"("kvilt": "sparsex")", "kvilt"},
      {R"("kvilt": {"policy": 1})", "kvilt.policy"},
      {R"("kvilt": {"budget": [1]})", "kvilt.budget"},
      {R"("kvilt": {"budget": null})", "kvilt.budget"},
      {R"("kvilt": {"publish": 0})", "kvilt.publish"},
      {R"("kvilt": {"namespaces": "a"})", "kvilt.namespaces"},
      {R"("kvilt": {"namespaces": []})", "kvilt.namespaces"},
      {R"("kvilt": {"namespaces": [1]})", "kvilt.namespaces[0]"},
      {R"("kvilt": {"namespaces": ["a", "b", "a"]})", "kvilt.namespaces[2]"},
      {R"("kvilt": {"namespaces": ["1", "2", "3", "4", "5", "6", "7", "8", "9"]})", "kvilt.namespaces"},
      {R"("response_format": "text")", "response_format"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tool_choice": {"type": "function"})", "tool_choice"},
      {R"("functions": [{"name": "f"}])", "functions"},
      {R"("modalities": ["audio"])", "modalities"},
      {R"("prompt_logprobs": 21)", "prompt_logprobs"},
      {R"("allowed_token_ids": [])", "allowed_token_ids"},
      {R"("allowed_token_ids": 5)", "allowed_token_ids"},
      {R"("allowed_token_ids": [1000])", "allowed_token_ids"},
      {R"("allowed_token_ids": [-1])", "allowed_token_ids"},
      {R"("allowed_token_ids": [1], "guided_choice": ["a"])", "allowed_token_ids"},
      {R"("prompt_logprobs": -1)", "prompt_logprobs"},
      {R"("prompt_logprobs": 1, "stream": true)", "prompt_logprobs"},
  };
  for (const auto& [fields, path] : cases) {
    const ApiError error = bad(fields);
    EXPECT_EQ(error.param, path) << fields;
    EXPECT_EQ(error.message.rfind(path, 0), 0u) << error.message;
  }
}

TEST(ParseChat, MessagesMustBeMessages) {
  const std::pair<const char*, const char*> cases[] = {
      {"{}", "messages"},
      {R"({"messages": null})", "messages"},
      {R"({"messages": "hi"})", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": ["hi"]})", "messages[0]"},
      {R"({"messages": [{"role": "user", "content": "a"}, {"content": "b"}]})", "messages[1].role"},
      {R"({"messages": [{"role": 5, "content": "a"}]})", "messages[0].role"},
  };
  for (const auto& [text, path] : cases) {
    auto parsed = parse_chat(json(text), {});
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error().param, path) << text;
  }
  for (const char* text : {"[]", "null", "3", "\"x\""}) EXPECT_FALSE(parse_chat(json(text), {}).ok()) << text;
}

TEST(ParseCompletion, Prompts) {
  RequestLimits limits;
  limits.vocab = 1000;
  auto one = parse_completion(json(R"({"prompt": "hi"})"), limits);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one.value().prompts, std::vector<TextPrompt>{std::string("hi")});
  EXPECT_EQ(one.value().generation.sampling.max_tokens, 16);

  auto list = parse_completion(json(R"({"prompt": ["a", "b"], "logprobs": 2, "max_tokens": 0})"), limits);
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(list.value().prompts, (std::vector<TextPrompt>{std::string("a"), std::string("b")}));
  EXPECT_EQ(list.value().generation.sampling.logprobs, 2);
  EXPECT_EQ(list.value().generation.sampling.max_tokens, 0);

  auto ids = parse_completion(json(R"({"prompt": [1, 2, 999], "echo": true})"), limits);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids.value().prompts, std::vector<TextPrompt>{(std::vector<int32_t>{1, 2, 999})});
  EXPECT_TRUE(ids.value().echo);

  const auto shown = [&](const char* fields) {
    auto parsed =
        parse_completion(Json::parse(R"({"prompt": "a", "max_tokens": 0)" + std::string(fields) + "}"), limits);
    return parsed.ok() ? parsed.value().generation.prompt_logprobs : PromptLogprobs{-9, -9};
  };
  EXPECT_EQ(shown(R"(, "logprobs": 2, "echo": true)").echoed, 2);
  EXPECT_EQ(shown(R"(, "logprobs": 2, "echo": true, "stream": true)").echoed, 2);
  EXPECT_EQ(shown(R"(, "logprobs": 2)").most(), -1) << "those of the answer alone";
  EXPECT_EQ(shown(R"(, "echo": true)").most(), -1);
  EXPECT_EQ(shown(R"(, "logprobs": 1, "echo": true, "prompt_logprobs": 4)").most(), 4);

  auto lists = parse_completion(json(R"({"prompt": [[1], [2, 3]]})"), limits);
  ASSERT_TRUE(lists.ok());
  EXPECT_EQ(lists.value().prompts.size(), 2u);

  const std::pair<const char*, const char*> cases[] = {
      {"{}", "prompt"},
      {R"({"prompt": 5})", "prompt"},
      {R"({"prompt": {}})", "prompt"},
      {R"({"prompt": []})", "prompt"},
      {R"({"prompt": [1, 1000]})", "prompt[1]"},
      {R"({"prompt": [1, "a"]})", "prompt[1]"},
      {R"({"prompt": ["a", 1]})", "prompt[1]"},
      {R"({"prompt": [[1], [-1]]})", "prompt[1][0]"},
      {R"({"prompt": [[1], []]})", "prompt[1]"},
      {R"({"prompt": "a", "logprobs": true})", "logprobs"},
      {R"({"prompt": "a", "prompt_logprobs": 1, "echo": true, "stream": true})", "prompt_logprobs"},
      {R"({"prompt": "a", "suffix": ["b"]})", "suffix"},
      {R"({"prompt": "a", "allowed_token_ids": [1000]})", "allowed_token_ids"},
  };
  for (const auto& [text, path] : cases) {
    auto parsed = parse_completion(json(text), limits);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error().param, path) << text;
  }
  Json many = {{"prompt", Json::array()}};
  for (int i = 0; i < 257; ++i) many["prompt"].push_back("a");
  EXPECT_FALSE(parse_completion(many, limits).ok());
  many["prompt"].erase(0);
  EXPECT_TRUE(parse_completion(many, limits).ok());  // power: one less is fine
  many["n"] = 2;
  EXPECT_EQ(parse_completion(many, limits).error().param, "n");
}

TEST(ParseCompletion, DraftIsNoPolicysParameter) {
  const auto parsed = parse_completion(json(R"({"prompt": "a", "kvilt": {"draft": 8, "budget": 0.5}})"), {});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.value().generation.draft, 8);
  EXPECT_EQ(parsed.value().generation.policy.params, (std::map<std::string, std::string>{{"budget", "0.5"}}));
  EXPECT_EQ(parse_completion(json(R"({"prompt": "a"})"), {}).value().generation.draft, -1);
  EXPECT_EQ(parse_completion(json(R"({"prompt": "a", "kvilt": {"draft": 0}})"), {}).value().generation.draft, 0);
  for (const char* bad : {"65", "-1", "2.5", "true", R"("x")", R"("")", "1e3", "99999999999"}) {
    const auto body = fmt::format(R"({{"prompt": "a", "kvilt": {{"draft": {}}}}})", bad);
    const auto wrong = parse_completion(json(body.c_str()), {});
    ASSERT_FALSE(wrong.ok()) << bad;
    EXPECT_EQ(wrong.error().param, "kvilt.draft");
  }
}

TEST(ParseTokenize, BothForms) {
  auto text = parse_tokenize(json(R"({"prompt": "a", "add_special_tokens": false, "return_token_strs": true})"), {});
  ASSERT_TRUE(text.ok());
  EXPECT_FALSE(text.value().chat);
  EXPECT_FALSE(text.value().add_special_tokens);
  EXPECT_TRUE(text.value().return_token_strs);
  EXPECT_TRUE(parse_tokenize(chat_with(""), {}).value().chat);
  EXPECT_EQ(parse_tokenize(json("{}"), {}).error().param, "prompt");
  EXPECT_EQ(parse_tokenize(json(R"({"prompt": [1]})"), {}).error().param, "prompt");
  RequestLimits limits;
  limits.vocab = 10;
  EXPECT_EQ(parse_detokenize(json(R"({"tokens": [1, 9]})"), limits).value().tokens, (std::vector<int32_t>{1, 9}));
  EXPECT_EQ(parse_detokenize(json(R"({"tokens": [1, 10]})"), limits).error().param, "tokens[1]");
  EXPECT_EQ(parse_detokenize(json(R"({"tokens": "x"})"), limits).error().param, "tokens");
  EXPECT_EQ(parse_detokenize(json("{}"), limits).error().param, "tokens");
}

TEST(ParseDocuments, Checks) {
  EXPECT_TRUE(parse_documents(json(R"({"documents": [{"title": "t", "text": "x"}, {"text": "y"}]})"), {}).ok());
  const auto seasoned = parse_documents(json(R"({"documents": [{"text": "x"}], "kvilt": {"season": 4}})"), {});
  ASSERT_TRUE(seasoned.ok());
  EXPECT_EQ(seasoned.value().season, 4);
  EXPECT_TRUE(seasoned.value().policy.params.empty());
  const std::pair<const char*, const char*> cases[] = {
      {"{}", "documents"},
      {R"({"documents": []})", "documents"},
      {R"({"documents": "x"})", "documents"},
      {R"({"documents": ["x"]})", "documents[0]"},
      {R"({"documents": [{"text": "x"}, {"title": "t"}]})", "documents[1].text"},
      {R"({"documents": [{"text": 1}]})", "documents[0].text"},
      {R"({"documents": [{"text": "x", "title": 1}]})", "documents[0].title"},
      {R"({"documents": [{"text": "x"}], "messages": [1]})", "messages[0]"},
      {R"({"documents": [{"text": "x"}], "cache_salt": ""})", "cache_salt"},
      {R"({"documents": [{"text": "x"}], "kvilt": {"season": 17}})", "kvilt.season"},
      {R"({"documents": [{"text": "x"}], "kvilt": {"season": -1}})", "kvilt.season"},
      {R"({"documents": [{"text": "x"}], "kvilt": {"season": 2.5}})", "kvilt.season"},
      {R"({"documents": [{"text": "x"}], "kvilt": {"season": true}})", "kvilt.season"},
  };
  for (const auto& [text, path] : cases) {
    auto parsed = parse_documents(json(text), {});
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error().param, path) << text;
  }
}

// A value of any type in any field: an answer, never a crash; and both outcomes do happen.
TEST(ParseFuzz, AnyValueInAnyField) {
  const char* names[] = {"messages",
                         "model",
                         "temperature",
                         "top_p",
                         "top_k",
                         "min_p",
                         "repetition_penalty",
                         "presence_penalty",
                         "frequency_penalty",
                         "logit_bias",
                         "max_tokens",
                         "seed",
                         "stop",
                         "stop_token_ids",
                         "ignore_eos",
                         "logprobs",
                         "top_logprobs",
                         "n",
                         "best_of",
                         "stream",
                         "stream_options",
                         "cache_salt",
                         "user",
                         "kvilt",
                         "response_format",
                         "structured_outputs",
                         "guided_json",
                         "guided_regex",
                         "guided_choice",
                         "guided_grammar",
                         "tool_choice",
                         "tools",
                         "prompt",
                         "documents",
                         "tokens",
                         "echo",
                         "suffix"};
  const char* values[] = {"null",
                          "true",
                          "false",
                          "0",
                          "-1",
                          "1",
                          "1.5",
                          "-0.0",
                          "1e308",
                          "-1e308",
                          "9223372036854775807",
                          "18446744073709551615",
                          "-9223372036854775808",
                          "\"\"",
                          "\"x\"",
                          "\"\\u0000\"",
                          "[]",
                          "[[]]",
                          "{}",
                          "[1]",
                          "[-1]",
                          "[1e300]",
                          "[\"\"]",
                          "[null]",
                          "{\"a\": null}",
                          "{\"\": []}",
                          "{\"1\": 1}",
                          "[{\"role\": \"user\", \"content\": \"x\"}]",
                          "[{\"text\": \"x\"}]",
                          "{\"type\": \"text\"}"};
  std::mt19937 random(7);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 20000; ++round) {
    Json body = round % 2 ? chat_with("") : json(R"({"prompt": "x", "tokens": [1], "documents": [{"text": "x"}]})");
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < changes; ++i)
      body[names[random() % std::size(names)]] = json(values[random() % std::size(values)]);
    RequestLimits limits;
    limits.vocab = static_cast<int>(random() % 2) * 100;
    const bool ok[] = {parse_chat(body, limits).ok(), parse_completion(body, limits).ok(),
                       parse_tokenize(body, limits).ok(), parse_detokenize(body, limits).ok(),
                       parse_documents(body, limits).ok()};
    for (const bool one : ok) ++(one ? accepted : refused);
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(ParseChat, WhatWouldChangeAnswersIsAllowedWhereItDoesNothing) {
  const RequestLimits limits{.vocab = 1000};
  const auto chat = [&](const std::string& field) {
    return parse_chat(Json::parse(R"({"messages": [{"role": "user", "content": "x"}], )" + field + "}"), limits);
  };
  for (const char* field : {R"("chat_template": "x")",
                            R"("bad_words": ["x"])",
                            R"("truncate_prompt_tokens": 5)",
                            R"("typical_p": 0.5)",
                            R"("mirostat": 1)",
                            R"("echo": true)",
                            R"("lora": [{"id": 0}])",
                            R"("dry_multiplier": 1)",
                            R"("grammar_lazy": true)",
                            R"("skip_special_tokens": false)",
                            R"("add_special_tokens": true)",
                            R"("verbosity": "low")",
                            R"("reasoning_format": "deepseek-legacy")",
                            R"("thinking_budget_tokens": 0)",
                            R"("thinking_token_budget": 512)",
                            R"("guided_whitespace_pattern": "[ ]?")",
                            R"("adaptive_target": 0.5)",
                            R"("n_cmpl": 2)",
                            R"("post_sampling_probs": true)",
                            R"("min_keep": 1)",
                            R"("samplers": ["top_p", "top_k"])",
                            R"("samplers": "pkmt")",
                            R"("dynatemp_exponent": 2)",
                            R"("stop_regex": "a+")",
                            R"("no_stop_trim": true)",
                            R"("min_new_tokens": 3)",
                            R"("custom_logit_processor": "x")",
                            R"("lora_path": "x")",
                            R"("logprob_token_ids": [5])",
                            R"("structural_tag": {})",
                            R"("samplers": ["top_k", "top_p", "min_p", "temperature", "infill"])",
                            R"("samplers": 5)",
                            R"("min_tokens": 2, "guided_regex": "a+")"}) {
    const auto refused = chat(field);
    ASSERT_FALSE(refused.ok()) << field;
    EXPECT_EQ(refused.error().code, "unsupported");
    EXPECT_EQ("\"" + refused.error().param, std::string(field).substr(0, refused.error().param.size() + 1));
  }
  EXPECT_TRUE(
      chat(R"("continue_final_message": false, "min_tokens": 0, "bad_words": [], "typical_p": 1.0, "mirostat": 0,
      "length_penalty": 1, "echo": false, "chat_template": null, "skip_special_tokens": true, "add_special_tokens": false, "verbosity": "medium",
       "thinking_budget_tokens": -1, "thinking_token_budget": null, "reasoning_format": "auto", "repeat_last_n": 64,
       "n_predict": -1, "repeat_penalty": 1.0, "stream": true, "adaptive_target": -0.01, "n_cmpl": 1,
       "post_sampling_probs": false, "min_keep": 0, "dynatemp_exponent": 1.0, "stop_regex": null, "no_stop_trim": false,
       "min_new_tokens": 0, "custom_logit_processor": null, "lora_path": null, "logprob_token_ids": [],
       "structural_tag": null,
       "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
      "stream_options": {"continuous_usage_stats": false})")
          .ok());
  for (const char* order : {R"("edskypmxt")", R"(["temperature", "top_k", "top_p", "min_p"])"})
    EXPECT_TRUE(chat(std::string(R"("samplers": )") + order).ok()) << order;
  EXPECT_TRUE(parse_completion(Json::parse(R"({"prompt": "x", "echo": true})"), limits).ok());
  EXPECT_FALSE(parse_completion(Json::parse(R"({"prompt": "x", "min_new_tokens": 3})"), limits).ok());
  EXPECT_TRUE(chat(R"("echo": true, "continue_final_message": true)").value().echo);
}

TEST(ParseChat, WhereThoughtsGoIsSaidInSeveralWords) {
  const auto thoughts = [](const std::string& fields) {
    return parse_chat(Json::parse(R"({"messages": [{"role": "user", "content": "x"}])" + fields + "}"), {})
        .value()
        .thoughts;
  };
  EXPECT_EQ(thoughts(""), Thoughts::kApart);
  EXPECT_EQ(thoughts(R"(, "reasoning_format": "deepseek", "separate_reasoning": true, "include_reasoning": true)"),
            Thoughts::kApart);
  EXPECT_EQ(thoughts(R"(, "reasoning_format": "none")"), Thoughts::kInContent);
  EXPECT_EQ(thoughts(R"(, "separate_reasoning": false)"), Thoughts::kInContent);
  EXPECT_EQ(thoughts(R"(, "include_reasoning": false, "reasoning_format": "none")"), Thoughts::kLeftOut);
  EXPECT_EQ(thoughts(R"(, "reasoning": {"exclude": true})"), Thoughts::kLeftOut);
  EXPECT_EQ(thoughts(R"(, "reasoning": {"exclude": false}, "include_reasoning": true)"), Thoughts::kApart);
  EXPECT_EQ(thoughts(R"(, "reasoning": {"effort": "low"}, "include_reasoning": false)"), Thoughts::kLeftOut);
  for (const char* wrong : {R"("exclude": 1)", R"("exclude": true)"}) {
    const auto refused = parse_chat(Json::parse(std::string(R"({"messages": [{"role": "user", "content": "x"}],
            "include_reasoning": true, "reasoning": {)") +
                                                wrong + "}}"),
                                    {});
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_EQ(refused.error().param, "reasoning.exclude");
  }
}

TEST(ParseChat, PenaltiesLookBackAsFarAsTheyAreTold) {
  const auto window = [](const std::string& fields) {
    return parse_chat(Json::parse(R"({"messages": [{"role": "user", "content": "x"}])" + fields + "}"), {});
  };
  EXPECT_EQ(window("").value().generation.sampling.penalty_window, -1);
  EXPECT_EQ(window(R"(, "repeat_last_n": 64)").value().generation.sampling.penalty_window, 64);
  EXPECT_EQ(window(R"(, "repeat_last_n": 0)").value().generation.sampling.penalty_window, 0);
  EXPECT_EQ(window(R"(, "repeat_last_n": -2)").error().param, "repeat_last_n");
}

// Nothing would read a call of others.
TEST(ParseChat, ToolsAreFunctionsAndCustomOnes) {
  const auto tools = [](const char* list) {
    return parse_chat({{"messages", Json::array({{{"role", "user"}, {"content", "x"}}})}, {"tools", Json::parse(list)}},
                      {});
  };
  EXPECT_TRUE(tools(R"([{"type": "function", "function": {"name": "f"}}])").ok()) << "power";
  const auto custom = tools(R"([{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name":
      "patch", "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: \"a\""}}}}])");
  ASSERT_TRUE(custom.ok()) << custom.error().message;
  EXPECT_EQ(custom.value().custom_tools, std::vector<std::string>{"patch"});
  EXPECT_EQ(custom.value().generation.constraint.constraint.form, Constraint::Form::kCalls);
  const auto other = tools(R"([{"type": "function", "function": {"name": "f"}}, {"type": "mcp"}])");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().param, "tools[1].type");
  EXPECT_EQ(other.error().code, "unsupported");
}

TEST(ParseChat, WhatIsNotUsedIsNotJudged) {
  const Json user = Json::array({{{"role", "user"}, {"content", "x"}}});
  for (const Json& who : {Json(5), Json::object(), Json(std::string(2000, 'u'))})
    EXPECT_TRUE(parse_chat({{"messages", user}, {"user", who}, {"metadata", who}}, {}).ok()) << who;
}

TEST(ParseChat, OtherServersNamesAreRead) {
  const RequestLimits limits{.vocab = 1000, .context = 100};
  const auto chat = [&](const std::string& fields) {
    return parse_chat(Json::parse(R"({"messages": [{"role": "user", "content": "x"}])" + fields + "}"), limits);
  };
  const auto llama = chat(R"(, "n_predict": 5, "repeat_penalty": 1.5, "grammar": "root ::= \"a\"")");
  ASSERT_TRUE(llama.ok()) << llama.error().message;
  EXPECT_EQ(llama.value().generation.sampling.max_tokens, 5);
  EXPECT_EQ(llama.value().generation.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(llama.value().generation.constraint.constraint.form, Constraint::Form::kGrammar);
  EXPECT_EQ(chat(R"(, "json_schema": {"const": 1})").value().generation.constraint.constraint.text, R"({"const":1})");
  const auto both = chat(R"(, "max_tokens": 7, "n_predict": 5, "repetition_penalty": 2, "repeat_penalty": 1.5)");
  EXPECT_EQ(both.value().generation.sampling.max_tokens, 7) << "OpenAI's name comes first";
  EXPECT_EQ(both.value().generation.sampling.repetition_penalty, 2);
  EXPECT_EQ(chat(R"(, "repeat_penalty": 99)").error().param, "repeat_penalty");
  EXPECT_EQ(chat(R"(, "n_predict": -2)").error().param, "n_predict");
  EXPECT_EQ(chat(R"(, "grammar": "x", "json_schema": {})").error().param, "json_schema") << "one of both";
  EXPECT_EQ(chat(R"(, "min_tokens": 5, "max_tokens": 5, "stop": "x")").value().generation.sampling.min_tokens, 5);
  EXPECT_EQ(chat(R"(, "min_tokens": 6, "max_tokens": 5)").error().param, "min_tokens");
  EXPECT_EQ(chat(R"(, "min_tokens": -1)").error().param, "min_tokens");
  EXPECT_TRUE(chat(R"(, "include_stop_str_in_output": true)").value().generation.shows_stop);
  EXPECT_TRUE(chat(R"(, "return_tokens_as_token_ids": true)").value().generation.tokens_as_ids);
  const auto text = [&](const std::string& fields) {
    return parse_completion(Json::parse(R"({"prompt": "x")" + fields + "}"), limits);
  };
  EXPECT_EQ(text(R"(, "n_predict": 5)").value().generation.sampling.max_tokens, 5);
  EXPECT_EQ(text("").value().generation.sampling.max_tokens, 16);
  EXPECT_EQ(text(R"(, "truncate_prompt_tokens": 9)").value().last_tokens, 9);
  EXPECT_EQ(text(R"(, "truncate_prompt_tokens": 101)").error().param, "truncate_prompt_tokens");
  EXPECT_EQ(text(R"(, "truncate_prompt_tokens": 9, "echo": true)").error().code, "unsupported");
}

}  // namespace
}  // namespace kvilt::server

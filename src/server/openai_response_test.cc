#include "server/openai_response.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "server/fake_engine.h"
#include "server/metrics.h"
#include "server/page.html.h"
#include "server/sse.h"

namespace kvilt::server {
namespace {

Completion completion(int tokens, PromptUsage usage, Finish finish = Finish::kStop) {
  Completion end;
  end.finish = finish;
  end.completion_tokens = tokens;
  end.usage = std::move(usage);
  return end;
}

PromptUsage usage_of(int prefix, int reused, int recomputed, int fresh) {
  PromptUsage usage;
  usage.prompt = prefix + reused + fresh;
  usage.prefix = prefix;
  usage.chain = prefix / 4;
  usage.reused = reused;
  usage.seasoned = reused > 0 ? 20 : 0;
  usage.near = reused > 0 ? 15 : 0;
  usage.disk = reused > 0 ? 12 : 0;
  usage.remote = reused > 0 ? 6 : 0;
  usage.recomputed = recomputed;
  usage.fresh = fresh;
  usage.kv_bytes = {1000, 200, 30, 4};
  usage.evicted_bytes = 70;
  usage.policy = "sparsex";
  usage.ttft_s = 0.5;
  return usage;
}

TEST(Usage, CountsWhatWasNotComputed) {
  UsageSum sum;
  sum.add_prompt(usage_of(100, 50, 10, 7));
  Completion first = completion(5, {}), second = completion(6, {});
  first.usage.drafted = 9, first.usage.accepted = 3;
  second.usage.drafted = 2, second.usage.accepted = 1;
  sum.add_choice(first);
  sum.add_choice(second);
  const Json json = usage_json(sum);
  EXPECT_EQ(json["prompt_tokens"], 157);
  EXPECT_EQ(json["completion_tokens"], 11);
  EXPECT_EQ(json["total_tokens"], 168);
  EXPECT_EQ(json["prompt_tokens_details"]["cached_tokens"], 140);
  EXPECT_EQ(
      json["kvilt"],
      Json::parse(
          R"({"prefix": 100, "chain": 25, "reused": 50, "seasoned": 20, "near": 15, "disk": 12, "remote": 6, "recomputed": 10, "fresh": 7, "kv_bytes": {"global": 1000,
                            "local": 200, "retrieval": 30, "dense": 4}, "evicted_bytes": 70, "drafted": 11, "accepted": 4, "policy": "sparsex", "ttft_s": 0.5})"));
  sum.add_prompt(usage_of(1, 0, 0, 1));
  EXPECT_EQ(usage_json(sum)["kvilt"]["kv_bytes"]["local"], 400);
}

TEST(Usage, SaysWhereDocumentsAre) {
  UsageSum sum;
  const std::pair<DocumentsPlace, const char*> kWords[] = {{DocumentsPlace::kTemplate, "template"},
                                                           {DocumentsPlace::kFirstUserMessage, "first_user_message"},
                                                           {DocumentsPlace::kMadeUserMessage, "made_user_message"}};
  EXPECT_FALSE(kvilt_usage(sum).contains("documents_place"));
  for (const auto& [place, word] : kWords) {
    sum.set_documents(place);
    EXPECT_EQ(kvilt_usage(sum)["documents_place"], word);
  }
}

TEST(Answers, WholeChat) {
  FakeEngine engine;
  Choice choice;
  choice.text = "hi";
  choice.with_logprobs = true;
  choice.logprobs = {{104, -0.5f, {{104, -0.5f}, {105, -std::numeric_limits<float>::infinity()}}}};
  choice.end = completion(1, usage_of(0, 0, 0, 3), Finish::kLength);
  UsageSum sum;
  sum.add_prompt(choice.end->usage);
  const Json json = whole_answer(make_envelope(true, "m", "b1"), engine, {choice}, sum);
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "m");
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("chatcmpl-"));
  const Json& item = json["choices"][0];
  EXPECT_EQ(item["message"]["role"], "assistant");
  EXPECT_EQ(item["message"]["content"], "hi");
  EXPECT_EQ(item["finish_reason"], "length");
  const Json& token = item["logprobs"]["content"][0];
  EXPECT_EQ(token["token"], "h");
  EXPECT_EQ(token["bytes"], Json::array({104}));
  EXPECT_EQ(token["logprob"], -0.5);
  EXPECT_EQ(token["top_logprobs"].size(), 2u);
  EXPECT_EQ(token["top_logprobs"][1]["logprob"], -9999.0);  // JSON has no infinity
}

TEST(Answers, TextLogprobsHaveOffsetsInCharacters) {
  FakeEngine engine;
  Choice choice;
  choice.offset = 2;
  choice.logprobs = {{'a', -1}, {0xC3, -1}, {0xA9, -1, {{'b', -3}}}, {'z', -1}};
  const Json json = text_logprobs(engine, choice);
  EXPECT_EQ(json["text_offset"], Json::array({2, 3, 4, 4}));  // é is one character in two tokens
  EXPECT_EQ(choice.offset, 5u);
  EXPECT_EQ(json["tokens"].size(), 4u);
  EXPECT_EQ(json["token_logprobs"], Json::array({-1.0, -1.0, -1.0, -1.0}));
  EXPECT_EQ(json["top_logprobs"][2]["b"], -3.0);
  choice.logprobs = {{0xC3, -1, {{'b', -3}}}};
  const Json named = text_logprobs(engine, choice, true);
  EXPECT_EQ(named["tokens"][0], "token_id:195") << "half a character has an id, and no text of its own";
  EXPECT_EQ(named["top_logprobs"][0]["token_id:98"], -3.0);
  EXPECT_EQ(chat_logprobs(engine, {{'a', -1, {}}}, true)["content"][0]["token"], "token_id:97");
}

TEST(Answers, EchoedLogprobsComeBeforeTheAnswers) {
  FakeEngine engine;
  Choice choice;
  choice.shown.echoed = 1;
  choice.prompt = {{FakeEngine::kBos}, {'h', -1, {{'x', -0.5f}, {'y', -4}}}, {0xC3, -2}, {0xA9, -3}};
  choice.prompt_offsets = offsets_in(engine, "h\u00e9", choice.prompt);
  choice.offset = characters("h\u00e9");
  choice.logprobs = {{'z', -1}};
  const Json json = text_logprobs(engine, choice);
  EXPECT_EQ(json["tokens"].size(), 5u);
  EXPECT_EQ(json["token_logprobs"], Json::array({nullptr, -1.0, -2.0, -3.0, -1.0}));
  EXPECT_EQ(json["text_offset"], Json::array({0, 0, 1, 2, 2})) << "BOS is no part of the text";
  EXPECT_TRUE(json["top_logprobs"][0].is_null());
  EXPECT_EQ(json["top_logprobs"][1], (Json{{"h", -1.0}, {"x", -0.5}})) << "as many likely ones as were asked for";
  choice.shown = {};
  EXPECT_EQ(text_logprobs(engine, choice)["tokens"].size(), 1u) << "none is echoed";
}

// Half a character is one sign, whichever half it is: a client that looks whether a token was the likeliest must not be
// told so of another's value.
TEST(Answers, TokensOfTheSameTextShareTheLikeliestsPlace) {
  FakeEngine engine;
  Choice choice;
  choice.logprobs = {{0xC3, -2, {{0xA9, -0.5f}, {0xC3, -2}}}, {0xC3, -0.5f, {{0xC3, -0.5f}, {0xA9, -2}}}};
  const Json json = Json::parse(dump(text_logprobs(engine, choice)));
  EXPECT_EQ(json["top_logprobs"][0], (Json{{"\ufffd", -0.5}}));
  EXPECT_EQ(json["top_logprobs"][1], (Json{{"\ufffd", -0.5}}));
}

TEST(Answers, PromptLogprobsAreVllms) {
  FakeEngine engine;
  const std::vector<TokenLogprob> prompt{{'a'}, {'b', -2, {{'c', -0.5f}, {'d', -1}}, 3}, {'c', -0.5f, {{'c', -0.5f}}}};
  EXPECT_EQ(prompt_logprobs_json(engine, prompt, 1),
            Json::parse(R"([null, {"98": {"logprob": -2.0, "rank": 3, "decoded_token": "b"},
                                   "99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"}},
                            {"99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"}}])"));
  EXPECT_EQ(prompt_logprobs_json(engine, prompt, 0)[1].size(), 1u);
  Choice choice;
  choice.shown.listed = 0;
  choice.prompt = prompt;
  choice.end = completion(0, {}, Finish::kLength);
  const Json chat = whole_answer(make_envelope(true, "m", "b1"), engine, {choice, choice}, {});
  EXPECT_EQ(chat["prompt_logprobs"].size(), 3u) << "beside the choices: all have the same prompt";
  const Json text = whole_answer(make_envelope(false, "m", "b1"), engine, {choice}, {});
  EXPECT_EQ(text["choices"][0]["prompt_logprobs"].size(), 3u);
  EXPECT_FALSE(text.contains("prompt_logprobs"));
  EXPECT_TRUE(check_prompt_logprobs({5, 1}, 43'690).ok());
  EXPECT_FALSE(check_prompt_logprobs({5, 1}, 43'691).ok());
  EXPECT_TRUE(check_prompt_logprobs({}, 1 << 30).ok());
}

TEST(Answers, Offsets) {
  FakeEngine engine;
  const auto offsets = [&](const std::string& text, const std::vector<TokenLogprob>& tokens) {
    return offsets_in(engine, text, tokens);
  };
  using Sizes = std::vector<size_t>;
  EXPECT_EQ(offsets("ab", {{' '}, {'a'}, {'b'}}), (Sizes{0, 0, 1})) << "a space that the text does not have";
  EXPECT_EQ(offsets("ab", {{'A'}, {'A'}, {'a'}, {'c'}, {'d'}}), (Sizes{0, 0, 0, 1, 2})) << "never beyond its end";
  EXPECT_EQ(offsets("", {{'A'}}), Sizes{0});
}

TEST(Answers, Chunks) {
  FakeEngine engine;
  const Envelope chat = make_envelope(true, "m", "b1");
  EXPECT_EQ(role_chunk(chat, 1, true)["choices"][0]["delta"]["role"], "assistant");
  EXPECT_TRUE(role_chunk(chat, 1, true)["usage"].is_null());
  EXPECT_FALSE(role_chunk(chat, 1, false).contains("usage"));
  Choice grown;
  grown.index = 1;
  grown.text = "x";
  const Json said{{"content", "y"}};
  EXPECT_EQ(delta_chunk(chat, engine, grown, false, said)["choices"][0]["delta"], said);
  EXPECT_EQ(delta_chunk(make_envelope(false, "m", "b1"), engine, grown, false, said)["choices"][0]["text"], "x");
  grown.end = completion(3, {});
  grown.end->stop_text = "END";
  EXPECT_EQ(end_chunk(chat, grown, false)["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(end_chunk(chat, grown, false)["choices"][0]["stop_reason"], "END");
  grown.called = true;
  EXPECT_EQ(end_chunk(chat, grown, false)["choices"][0]["finish_reason"], "tool_calls");
  grown.end->finish = Finish::kLength;
  EXPECT_EQ(end_chunk(chat, grown, false)["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(usage_chunk(chat, {})["choices"], Json::array());
  EXPECT_EQ(sse_event(Json{{"a", "b\nc"}}), "data: {\"a\":\"b\\nc\"}\n\n");
}

TEST(Errors, HaveOpenAisShape) {
  const Json json = Json::parse(error_body({400, "wrong", "n", ""}));
  EXPECT_EQ(
      json,
      Json::parse(R"({"error": {"message": "wrong", "type": "invalid_request_error", "param": "n", "code": null}})"));
  EXPECT_EQ(api_error(Error{Code::kTooLong, "x"}).code, "context_length_exceeded");
  EXPECT_EQ(api_error(Error{Code::kTooLong, "x"}).status, 400);
  EXPECT_EQ(api_error(Error{Code::kExhausted, "x"}).status, 503);
  EXPECT_EQ(api_error(Error{Code::kUnavailable, "x"}).status, 503);
  EXPECT_EQ(api_error(Error{Code::kInternal, "x"}).status, 500);
  EXPECT_EQ(api_error(Error{Code::kUnsupported, "x"}, "p").param, "p");
  EXPECT_EQ(api_error(Error{Code::kInvalidArgument, "messages[2].content: wrong"}, "p").param, "messages[2].content");
  EXPECT_EQ(api_error(Error{Code::kInvalidArgument, "chat template: wrong"}, "p").param, "p");
  EXPECT_EQ(api_error(Error{Code::kInvalidArgument, ": wrong"}, "p").param, "p");
}

TEST(MetricsPage, HasTheNamesAndCounts) {
  auto metrics = std::make_shared<Metrics>("m\"odel");
  RequestTimer timer(metrics);
  timer.tokens(1);
  timer.tokens(1);
  timer.finish(completion(2, usage_of(1, 2, 1, 3)));
  metrics->count_response(200);
  FakeEngine engine;
  const std::string text = metrics->text(&engine, {3, 1});
  for (const char* line : {
           "# TYPE kvilt:num_requests_running gauge",
           "# TYPE kvilt:prompt_tokens_total counter",
           "# TYPE kvilt:time_to_first_token_seconds histogram",
           "kvilt:time_to_first_token_seconds_count{model_name=\"m\\\"odel\"} 1",
           "kvilt:inter_token_latency_seconds_count{model_name=\"m\\\"odel\"} 1",
           "kvilt:e2e_request_latency_seconds_bucket{model_name=\"m\\\"odel\",le=\"+Inf\"} 1",
           "kvilt:request_prompt_tokens_sum{model_name=\"m\\\"odel\"} 6",
           "kvilt:request_success_total{finished_reason=\"stop\",model_name=\"m\\\"odel\"} 1",
           "kvilt:request_success_total{finished_reason=\"abort\",model_name=\"m\\\"odel\"} 0",
           "kvilt:prompt_tokens_by_source_total{source=\"recomputed\",model_name=\"m\\\"odel\"} 0",
           "kvilt:kv_request_pages{heads=\"global\",model_name=\"m\\\"odel\"} 1",
           "kvilt:kv_request_pages{heads=\"local\",model_name=\"m\\\"odel\"} 2",
           "kvilt:kv_request_pages{heads=\"retrieval\",model_name=\"m\\\"odel\"} 3",
           "kvilt:kv_request_pages{heads=\"dense\",model_name=\"m\\\"odel\"} 4",
           "kvilt:http_connections{model_name=\"m\\\"odel\"} 3",
           "kvilt:http_responses_total{status=\"200\"} 1",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  EXPECT_EQ(metrics->text(nullptr, {}).find("num_requests_running"), std::string::npos);
  // One family appears once.
  const std::string type = "# TYPE kvilt:prompt_tokens_by_source_total";
  EXPECT_EQ(text.find(type), text.rfind(type));
}

TEST(PageTest, IsSelfContained) {
  EXPECT_EQ(kPageHtml.find("http://"), std::string::npos);
  EXPECT_EQ(kPageHtml.find("https://"), std::string::npos);
  EXPECT_NE(kPageHtml.find("/v1/chat/completions"), std::string::npos);
}

}  // namespace
}  // namespace kvilt::server

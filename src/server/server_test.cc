// What the server answers over loopback, serving the fake engine.
#include "server/server.h"

#include <gtest/gtest.h>

#include <map>

#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

TEST(ServerTest, LoadsThenServes) {
  LiveServer running({}, {}, false);
  EXPECT_EQ(running.client().Get("/health")->status, 503);
  EXPECT_EQ(running.client().Get("/metrics")->status, 200);
  EXPECT_EQ(running.client().Get("/")->status, 200);
  EXPECT_EQ(error_of(running.post("/v1/chat/completions", kChat))["code"], "unavailable");
  EXPECT_EQ(running.post("/v1/chat/completions", kChat)->get_header_value("Retry-After"), "1");
  running.server->attach(running.engine);
  EXPECT_EQ(running.client().Get("/health")->status, 200);
  EXPECT_EQ(running.post("/v1/chat/completions", kChat)->status, 200);
}

TEST(ServerTest, PortInUse) {
  LiveServer running;
  ServerOptions options;
  options.port = running.server->port();
  auto second = kvilt::Server::listen(options);
  // SO_REUSEPORT would share the port silently and half of the requests would go to the wrong server.
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find(std::to_string(options.port)), std::string::npos);
}

TEST(ServerTest, StreamEqualsWhole) {
  LiveServer running;
  const Json whole = Json::parse(running.post("/v1/chat/completions", kChat)->body);
  Json body = Json::parse(kChat);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  auto reply = running.post("/v1/chat/completions", body.dump());
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->get_header_value("Content-Type"), "text/event-stream");
  EXPECT_TRUE(reply->body.ends_with("data: [DONE]\n\n"));
  std::string text, role, finish;
  Json usage;
  for (const Json& event : events(reply->body)) {
    if (event["choices"].empty()) {
      usage = event["usage"];
      continue;
    }
    EXPECT_TRUE(event["usage"].is_null());
    const Json& choice = event["choices"][0];
    text += choice["delta"].value("content", "");
    role += choice["delta"].value("role", "");
    if (choice["finish_reason"].is_string()) finish += choice["finish_reason"].get<std::string>();
  }
  EXPECT_EQ(text, whole["choices"][0]["message"]["content"]);
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(role, "assistant");
  EXPECT_EQ(finish, "length");
  EXPECT_EQ(usage["completion_tokens"], 8);
  EXPECT_EQ(usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"].get<int>() - 1);
}

// vLLM's: each chunk has what its choice took so far.
TEST(ServerTest, EveryChunkMayHaveItsUsage) {
  LiveServer running;
  const auto streamed = [&](const char* path, Json body, bool last, bool every) {
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", last}, {"continuous_usage_stats", every}};
    return events(running.post(path, body.dump())->body);
  };
  const Json text = Json::parse(R"({"prompt": ["abc", "a"], "echo": true, "max_tokens": 12, "seed": 1})");
  for (const auto& [path, body] :
       {std::pair("/v1/chat/completions", Json::parse(kChat)), std::pair("/v1/completions", text)}) {
    const std::vector<Json> all = streamed(path, body, true, true);
    const Json sum = all.back()["usage"];
    EXPECT_TRUE(all.back()["choices"].empty());
    std::map<int, Json> now;  // by choice
    for (size_t i = 0; i + 1 < all.size(); ++i) {
      const int choice = all[i]["choices"][0]["index"];
      const Json usage = all[i]["usage"];
      EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
      const int before = now.contains(choice) ? now[choice]["completion_tokens"].get<int>() : 0;
      EXPECT_GE(usage["completion_tokens"], before);
      EXPECT_EQ(now.contains(choice) || usage["completion_tokens"] == 0, true) << "a role, or the prompt";
      now[choice] = usage;
    }
    int prompt = 0, completion = 0;
    for (const auto& [choice, usage] : now) {
      prompt += usage["prompt_tokens"].get<int>();
      completion += usage["completion_tokens"].get<int>();
    }
    EXPECT_EQ(sum["prompt_tokens"], prompt);
    EXPECT_EQ(sum["completion_tokens"], completion);
    EXPECT_GT(completion, 0);
    for (const Json& event : streamed(path, body, false, true)) EXPECT_FALSE(event.contains("usage")) << "as in vLLM";
    EXPECT_TRUE(streamed(path, body, true, false)[0]["usage"].is_null()) << "power";
  }
}

// A proxy, or a client, may end a connection that is silent for long.
TEST(ServerTest, SilentStreamsArePingedWithComments) {
  FakeOptions slow;
  slow.seconds_per_token = 0.3;
  Json body = Json::parse(kChat);
  body["stream"] = true;
  body["max_tokens"] = 3;
  const auto answer = [&](double ping_s) {
    ServerOptions options;
    options.ping_s = ping_s;
    LiveServer running(slow, options);
    return running.post("/v1/chat/completions", body.dump())->body;
  };
  const std::string pinged = answer(0.02), silent = answer(100);
  EXPECT_NE(pinged.find("\n\n:\n\n"), std::string::npos) << pinged;
  EXPECT_EQ(silent.find("\n\n:\n\n"), std::string::npos) << "power";
  EXPECT_EQ(events(pinged).size(), events(silent).size());
}

TEST(ServerTest, ChoicesPromptsAndEcho) {
  LiveServer running;
  auto reply =
      running.post("/v1/completions", R"({"prompt": ["ab", "cd"], "n": 2, "echo": true, "seed": 5, "max_tokens": 12})");
  const Json json = Json::parse(reply->body);
  ASSERT_EQ(json["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_TRUE(json["choices"][i]["text"].get<std::string>().starts_with(i < 2 ? "ab" : "cd"));
  }
  EXPECT_NE(json["choices"][0]["text"], json["choices"][1]["text"]);  // the seed moves with the choice
  EXPECT_EQ(json["usage"]["prompt_tokens"], 6);                       // two prompts, once each
  EXPECT_EQ(json["usage"]["completion_tokens"], 48);
  const Json again = Json::parse(
      running.post("/v1/completions", R"({"prompt": ["ab", "cd"], "n": 2, "echo": true, "seed": 5, "max_tokens": 12})")
          ->body);
  EXPECT_EQ(again["choices"], json["choices"]);
  auto stream =
      running.post("/v1/completions",
                   R"({"prompt": ["ab", "cd"], "n": 2, "echo": true, "seed": 5, "max_tokens": 12, "stream": true})");
  std::string texts[4];
  for (const Json& event : events(stream->body)) {
    for (const Json& choice : event["choices"]) texts[choice["index"].get<int>()] += choice["text"].get<std::string>();
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(texts[i], json["choices"][i]["text"]);
}

// As lm-evaluation-harness asks: prompts as ids, nothing or one token generated.
TEST(ServerTest, LogprobsOfEchoedPrompts) {
  LiveServer running;
  const std::string asked = R"({"prompt": [[97, 98], [99, 100, 101]], "echo": true, "logprobs": 1, "temperature": 0)";
  for (const int made : {0, 1}) {
    const auto reply = running.post("/v1/completions", asked + R"(, "max_tokens": )" + std::to_string(made) + "}");
    ASSERT_EQ(reply->status, 200) << reply->body;
    const Json json = Json::parse(reply->body);
    const Json& second = json["choices"][1];
    ASSERT_EQ(second["logprobs"]["tokens"].size(), static_cast<size_t>(3 + made));
    EXPECT_TRUE(second["text"].get<std::string>().starts_with("cde"));
    EXPECT_TRUE(made == 1 || second["text"] == "cde") << "nothing but the prompt";
    EXPECT_TRUE(second["logprobs"]["token_logprobs"][0].is_null());
    EXPECT_EQ(second["logprobs"]["token_logprobs"][1], -0.25);
    EXPECT_EQ(second["logprobs"]["top_logprobs"][1], (Json{{"d", -0.25}}));
    EXPECT_EQ(second["logprobs"]["text_offset"][2], 2);
    EXPECT_EQ(second["finish_reason"], "length");
    EXPECT_EQ(json["usage"]["completion_tokens"], 2 * made);
    EXPECT_EQ(running.engine->last_request().prompt_logprobs, 1);
  }
  running.post("/v1/completions", R"({"prompt": "ab", "logprobs": 1, "max_tokens": 1})");
  EXPECT_EQ(running.engine->last_request().prompt_logprobs, -1) << "power: only with echo";
}

TEST(ServerTest, AStreamBeginsWithTheEchoedPrompt) {
  LiveServer running;
  const auto stream = running.post("/v1/completions", R"({"prompt": "ab", "echo": true, "logprobs": 1, "stream": true,
                                                          "max_tokens": 3, "seed": 5})");
  const std::vector<Json> all = events(stream->body);
  const Json first = all.at(0)["choices"][0];
  EXPECT_EQ(first["text"], "ab");
  EXPECT_EQ(first["logprobs"]["tokens"].size(), 3u) << "BOS too";
  EXPECT_EQ(first["logprobs"]["text_offset"], Json::array({0, 0, 1}));
  EXPECT_EQ(all.at(1)["choices"][0]["logprobs"]["text_offset"][0], 2);
  EXPECT_EQ(all.at(1)["choices"][0]["logprobs"]["tokens"].size(), 1u);
}

TEST(ServerTest, PromptLogprobsAreAList) {
  LiveServer running;
  const Json text = Json::parse(
      running.post("/v1/completions", R"({"prompt": [97, 98], "prompt_logprobs": 2, "max_tokens": 1})")->body);
  const Json list = text["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(list.size(), 2u);
  EXPECT_TRUE(list[0].is_null());
  EXPECT_EQ(list[1]["98"]["decoded_token"], "b");
  EXPECT_TRUE(text["choices"][0]["logprobs"].is_null());
  const Json chat = Json::parse(
      running
          .post("/v1/chat/completions",
                R"({"messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 0, "max_tokens": 1})")
          ->body);
  EXPECT_EQ(chat["prompt_logprobs"].size(), chat["usage"]["prompt_tokens"].get<size_t>());
  EXPECT_FALSE(Json::parse(running.post("/v1/chat/completions", kChat)->body).contains("prompt_logprobs"));
  Json large{{"prompt", Json::array()}, {"prompt_logprobs", 20}, {"max_tokens", 0}};
  for (int i = 0; i < 256; ++i) large["prompt"].push_back(std::string(60, 'x'));
  const Json error = error_of(running.post("/v1/completions", large.dump()));
  EXPECT_NE(error["message"].get<std::string>().find("12483 tokens at once"), std::string::npos) << error;
}

// Where nothing is streamed, an answer's are kept until it is whole.
TEST(ServerTest, LogprobsOfWholeAnswersAreBounded) {
  FakeOptions long_context;
  long_context.context = 32768;
  LiveServer running(long_context);
  const auto chat = [](const std::string& more) {
    return R"({"messages": [{"role": "user", "content": "hi"}], "logprobs": true, "top_logprobs": 20)" + more + "}";
  };
  const char* path = "/v1/chat/completions";
  EXPECT_EQ(running.post(path, chat(""))->status, 200) << "clients seldom say max_tokens";
  EXPECT_EQ(running.post(path, chat(R"(, "n": 6)"))->status, 200);
  const std::string why = error_of(running.post(path, chat(R"(, "n": 7)"))).value("message", "");
  EXPECT_NE(why.find("set max_tokens to 28532 at most, ask for fewer answers or likely ones, or stream"),
            std::string::npos)
      << why;
  EXPECT_EQ(running.post(path, chat(R"(, "n": 7, "max_tokens": 28532)"))->status, 200);
  EXPECT_EQ(running.post(path, chat(R"(, "n": 7, "max_tokens": 28533)"))->status, 400);
  EXPECT_EQ(running.post(path, chat(R"(, "n": 7, "stream": true)"))->status, 200) << "they leave as they come";
  EXPECT_EQ(running.post(path, R"({"messages": [{"role": "user", "content": "hi"}], "n": 7})")->status, 200) << "power";
  Json several{{"prompt", Json::array()}, {"logprobs", 20}, {"n", 16}, {"max_tokens", 1000}};
  for (int i = 0; i < 16; ++i) several["prompt"].push_back("x");
  EXPECT_EQ(running.post("/v1/completions", several.dump())->status, 400) << "prompts count too";
}

// llama.cpp's clients leave out /v1.
TEST(ServerTest, RoutesWithoutTheirVersion) {
  LiveServer running;
  const Json with = Json::parse(running.post("/v1/chat/completions", kChat)->body),
             without = Json::parse(running.post("/chat/completions", kChat)->body);
  EXPECT_EQ(with["choices"], without["choices"]);
  EXPECT_EQ(running.client().Get("/models")->body, running.client().Get("/v1/models")->body);
  EXPECT_EQ(running.client().Get("/v1/health")->status, 200);
  EXPECT_TRUE(Json::parse(running.client().Get("/version")->body)["version"].is_string());
  EXPECT_EQ(running.post("/responses", R"({"input": "hi"})")->status, 200);
  EXPECT_EQ(running.post("/embeddings", R"({"input": "hi"})")->status, 200);
  for (const char* path : {"/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"})
    EXPECT_EQ(Json::parse(running.post(path, kChat)->body)["input_tokens"], with["usage"]["prompt_tokens"]);
  EXPECT_EQ(error_of(running.post("/chat/completions/input_tokens", "{}"))["param"], "messages");
}

TEST(ServerTest, NamesOfTheModel) {
  const auto chat = [](const std::string& name) {
    return R"({"model": ")" + name + R"(", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})";
  };
  ServerOptions options;
  options.model_alias = "one";
  options.more_aliases = {"two"};
  LiveServer running({}, options);
  for (const char* name : {"one", "two"}) {
    const auto reply = running.post("/v1/chat/completions", chat(name));
    ASSERT_EQ(reply->status, 200) << name;
    EXPECT_EQ(Json::parse(reply->body)["model"], "one");
  }
  EXPECT_EQ(running.post("/v1/chat/completions", chat("three"))->status, 404);
  const Json list = Json::parse(running.client().Get("/v1/models")->body)["data"];
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]["aliases"], (Json{"one", "two"}));
  options.any_model = true;
  LiveServer any({}, options);
  EXPECT_EQ(any.post("/v1/chat/completions", chat("three"))->status, 200);
}

TEST(ServerTest, AFingerprintNamesWhatComputes) {
  LiveServer running;
  const auto of = [&](const char* body) { return Json::parse(running.post("/v1/chat/completions", body)->body); };
  const Json print = of(kChat)["system_fingerprint"];
  ASSERT_TRUE(print.is_string());
  EXPECT_TRUE(print.get<std::string>().starts_with("b"));
  for (const Json& event : events(running.post("/v1/completions", R"({"prompt": "a", "stream": true})")->body))
    EXPECT_EQ(event["system_fingerprint"], print);
  FakeOptions fewer;
  LiveServer other(fewer);
  EXPECT_EQ(Json::parse(other.post("/v1/chat/completions", kChat)->body)["system_fingerprint"], print);
}

TEST(ServerTest, StopStringsAreShownIfAsked) {
  LiveServer running;
  const std::string body = R"({"prompt": "hello", "max_tokens": 40, "temperature": 0, "stop": " ")";
  const auto text = [&](const std::string& more) {
    return Json::parse(running.post("/v1/completions", body + more + "}")->body)["choices"][0]["text"]
        .get<std::string>();
  };
  const std::string hidden = text("");
  EXPECT_EQ(hidden.find(' '), std::string::npos);
  EXPECT_EQ(text(R"(, "include_stop_str_in_output": true)"), hidden + " ");
  std::string streamed;
  for (const Json& event :
       events(running.post("/v1/completions", body + R"(, "include_stop_str_in_output": true, "stream": true})")->body))
    streamed += event["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(streamed, hidden + " ");
}

TEST(ServerTest, ChatsThatGoOnBeginWithTheirTextIfAsked) {
  FakeOptions thinks;
  thinks.answers = FakeOptions::calls_tools();
  for (const FakeOptions& fake : {FakeOptions(), thinks}) {
    LiveServer running(fake);
    const auto body = [](const char* content, const char* more) {
      return std::string(R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": )") +
             content + R"(}], "continue_final_message": true, "n": 2)" + more + "}";
    };
    const auto said = [&](const std::string& sent) {
      const Json json = Json::parse(running.post("/v1/chat/completions", sent)->body);
      EXPECT_EQ(json["choices"][0]["message"]["content"], json["choices"][1]["message"]["content"]);
      return json["choices"][1]["message"]["content"].get<std::string>();
    };
    const char* text = R"("An apple FAKE_SAY a day")";
    EXPECT_EQ(said(body(text, "")), "a day");
    EXPECT_EQ(said(body(text, R"(, "echo": true)")), "An apple FAKE_SAY a daya day");
    const char* parts = R"([{"type": "text", "text": "An"}, {"type": "text", "text": "FAKE_SAY apple"}])";
    EXPECT_EQ(said(body(parts, R"(, "echo": true, "part_separator": " ")")), "An FAKE_SAY appleapple");
    std::string streamed, first;
    for (const Json& event :
         events(running.post("/v1/chat/completions", body(text, R"(, "echo": true, "stream": true)"))->body)) {
      const Json& choice = event["choices"][0];
      if (choice["index"] != 1) continue;
      if (first.empty()) first = choice["delta"].value("role", "none");
      streamed += choice["delta"].value("content", "");
    }
    EXPECT_EQ(first, "assistant") << "the role comes before all text";
    EXPECT_EQ(streamed, "An apple FAKE_SAY a daya day");
  }
}

TEST(ServerTest, PromptsAreCutIfAsked) {
  LiveServer running;
  ASSERT_EQ(running
                .post("/v1/completions", R"({"prompt": ["abcdef", [1, 2, 3]], "max_tokens": 1,
      "truncate_prompt_tokens": 2})")
                ->status,
            200);
  EXPECT_EQ(running.engine->last_request().prompt.ids, (std::vector<int32_t>{2, 3}));
  ASSERT_EQ(
      running.post("/v1/completions", R"({"prompt": "abcdef", "max_tokens": 1, "truncate_prompt_tokens": 2})")->status,
      200);
  EXPECT_EQ(running.engine->last_request().prompt.ids, (std::vector<int32_t>{'e', 'f'}));
  ASSERT_EQ(running.post("/v1/completions", R"({"prompt": "abcdef", "max_tokens": 1})")->status, 200);
  EXPECT_EQ(running.engine->last_request().prompt.ids.size(), 7u) << "power";
}

TEST(ServerTest, TextsMayStandWithoutSpecialTokens) {
  LiveServer running;
  const auto ids = [&](const char* more) {
    EXPECT_EQ(running.post("/v1/completions", std::string(R"({"prompt": "ab", "max_tokens": 1)") + more + "}")->status,
              200);
    return running.engine->last_request().prompt.ids;
  };
  EXPECT_EQ(ids(R"(, "add_special_tokens": false)"), (std::vector<int32_t>{'a', 'b'}));
  EXPECT_EQ(ids(""), (std::vector<int32_t>{FakeEngine::kBos, 'a', 'b'})) << "power";
  EXPECT_EQ(error_of(running.post("/v1/completions", R"({"prompt": "a", "add_special_tokens": 1})"))["param"],
            "add_special_tokens");
}

TEST(ServerTest, FieldsReachTheEngine) {
  LiveServer running;
  auto reply = running.post("/v1/chat/completions",
                            R"({"messages": [{"role": "user", "content": "hi"}], "cache_salt": "s", "max_tokens": 3,
                                "kvilt": {"policy": "sparsex", "budget": 0.15}, "logit_bias": {"7": 2}})");
  ASSERT_EQ(reply->status, 200);
  const Request request = running.engine->last_request();
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.policy.name, "sparsex");
  EXPECT_EQ(request.policy.params.at("budget"), "0.15");
  EXPECT_EQ(request.sampling.logit_bias.at(7), 2);
  EXPECT_EQ(Json::parse(reply->body)["usage"]["kvilt"]["policy"], "sparsex");
}

TEST(ServerTest, NamespacesReachTheEngineOnEveryRoute) {
  LiveServer running;
  const std::pair<const char*, const char*> bodies[] = {
      {"/v1/chat/completions", R"("messages": [{"role": "user", "content": "hi"}], "max_tokens": 1)"},
      {"/v1/completions", R"("prompt": "hi", "max_tokens": 1)"},
      {"/v1/messages", R"("messages": [{"role": "user", "content": "hi"}], "max_tokens": 1)"},
      {"/v1/documents", R"("documents": [{"text": "hi"}])"}};
  auto seasoned = running.post("/v1/documents", R"({"documents": [{"text": "hi there"}, {"text": "so long"}],
      "kvilt": {"namespaces": ["b", "a"], "season": 1}})");
  ASSERT_EQ(seasoned->status, 200) << seasoned->body;
  EXPECT_TRUE(running.engine->last_request().season) << "power check";
  EXPECT_EQ(running.engine->last_request().namespaces, (std::vector<std::string>{"b", "a"}));
  for (const auto& [route, body] : bodies) {
    auto reply = running.post(route, std::string("{") + body + R"(, "kvilt": {"namespaces": ["b", "a"]}})");
    ASSERT_EQ(reply->status, 200) << route << reply->body;
    EXPECT_EQ(running.engine->last_request().namespaces, (std::vector<std::string>{"b", "a"})) << route;
    reply = running.post(route, std::string("{") + body + "}");
    ASSERT_EQ(reply->status, 200) << route;
    EXPECT_TRUE(running.engine->last_request().namespaces.empty()) << route;
  }
}

TEST(ServerTest, Errors) {
  FakeOptions fake;
  fake.context = 64;
  LiveServer running(fake);
  const auto post = [&](const std::string& body) { return running.post("/v1/chat/completions", body); };
  EXPECT_EQ(error_of(post("{"))["code"], "invalid_json");
  EXPECT_EQ(error_of(post(std::string(2'000'000, '[')))["type"], "invalid_request_error");
  EXPECT_EQ(error_of(post("\xff\xfe"))["code"], "invalid_json");
  EXPECT_EQ(error_of(post(R"({"messages": [{"role": "user", "content": 5}]})"))["param"], "messages[0].content");
  const std::string long_text(100, 'x');
  auto too_long = post(R"({"messages": [{"role": "user", "content": ")" + long_text + R"("}]})");
  EXPECT_EQ(too_long->status, 400);
  EXPECT_EQ(error_of(too_long)["code"], "context_length_exceeded");
  auto unknown = post(R"({"model": "gpt-9", "messages": [{"role": "user", "content": "x"}]})");
  EXPECT_EQ(unknown->status, 404);
  EXPECT_EQ(error_of(unknown)["code"], "model_not_found");
  auto policy = post(R"({"messages": [{"role": "user", "content": "x"}], "kvilt": {"policy": "magic"}})");
  EXPECT_EQ(policy->status, 400);
  EXPECT_EQ(error_of(policy)["param"], "kvilt");
  EXPECT_EQ(error_of(running.client().Get("/v1/nothing"))["type"], "not_found_error");
  EXPECT_EQ(running.client().Get("/v1/models/fake")->status, 200);
  EXPECT_EQ(running.client().Get("/v1/models/a/b")->status, 404);
  auto method = running.client().Get("/v1/chat/completions");
  EXPECT_EQ(method->status, 405);
  EXPECT_EQ(method->get_header_value("Allow"), "POST");
  EXPECT_EQ(running.client().Post("/v1/chat/completions", kChat, "text/plain")->status, 415);
  EXPECT_EQ(running.client().Delete("/v1/models")->status, 405);
  EXPECT_EQ(running.post("/v1/chat/completions", kChat)->status, 200);  // and the server goes on
}

TEST(ServerTest, LateErrors) {
  LiveServer running;
  auto early = running.post("/v1/completions", R"({"prompt": "FAKE_FAIL_EARLY", "stream": true})");
  EXPECT_EQ(early->status, 503);  // nothing was sent yet: a status is possible
  EXPECT_EQ(error_of(early)["code"], "overloaded");
  EXPECT_EQ(running.post("/v1/completions", R"({"prompt": "FAKE_FAIL_LATE"})")->status, 503);
  auto late = running.post("/v1/completions", R"({"prompt": "FAKE_FAIL_LATE", "stream": true})");
  EXPECT_EQ(late->status, 200);
  const auto list = events(late->body);
  ASSERT_GE(list.size(), 2u);
  EXPECT_TRUE(list[0].contains("choices"));
  EXPECT_EQ(list.back()["error"]["code"], "overloaded");
}

TEST(ServerTest, FullQueue) {
  FakeOptions fake;
  fake.max_queue = 1;
  fake.seconds_per_token = 0.005;
  LiveServer running(fake);
  RawClient first(running.server->port());
  first.send(request("/v1/chat/completions", kLong));
  ASSERT_TRUE(eventually([&] { return running.engine->stats().running == 1; }));
  auto second = running.post("/v1/chat/completions", kChat);
  EXPECT_EQ(second->status, 503);
  EXPECT_EQ(second->get_header_value("Retry-After"), "1");
}

TEST(ServerTest, ApiKey) {
  ServerOptions options;
  options.api_key = "se%41cret";  // httplib would decode it
  LiveServer running({}, options);
  EXPECT_EQ(running.client().Get("/health")->status, 200);
  EXPECT_EQ(running.client().Get("/metrics")->status, 401);
  EXPECT_EQ(running.client().Get("/metrics", {{"Authorization", "Bearer se%41cret"}})->status, 200);
  for (const httplib::Headers& headers :
       {httplib::Headers{}, httplib::Headers{{"Authorization", "Bearer "}},
        httplib::Headers{{"Authorization", "Bearer seAcret"}}, httplib::Headers{{"Authorization", "se%41cret"}}}) {
    auto refused = running.post("/v1/chat/completions", kChat, headers);
    EXPECT_EQ(refused->status, 401);
    EXPECT_EQ(error_of(refused)["code"], "invalid_api_key");
    EXPECT_EQ(running.post("/v1/cache/clear", "", headers)->status, 401);
    EXPECT_EQ(running.post("/tokenize", R"({"prompt": "x"})", headers)->status, 401);
  }
  const httplib::Headers key = {{"Authorization", "Bearer se%41cret"}};
  EXPECT_EQ(running.post("/v1/chat/completions", kChat, key)->status, 200);
  EXPECT_EQ(running.post("/v1/cache/clear", "", key)->status, 200);
}

TEST(ServerTest, MetricsMayBeOpenBesideAKey) {
  ServerOptions options;
  options.api_key = "secret";
  options.open_metrics = true;
  LiveServer running({}, options);
  EXPECT_EQ(running.client().Get("/metrics")->status, 200);
  EXPECT_EQ(running.client().Get("/v1/models")->status, 401) << "power: all else needs it";
}

TEST(ServerTest, OtherOrigins) {
  LiveServer closed;
  const httplib::Headers other = {{"Origin", "http://evil.example"}};
  EXPECT_EQ(closed.post("/v1/chat/completions", kChat, other)->status, 403);
  const httplib::Headers own = {{"Origin", "http://127.0.0.1:" + std::to_string(closed.server->port())}};
  EXPECT_EQ(closed.post("/v1/chat/completions", kChat, own)->status, 200);
  // A name that its owner points at 127.0.0.1 makes origin and host agree.
  EXPECT_EQ(
      closed.post("/v1/chat/completions", kChat, {{"Origin", "http://evil.example"}, {"Host", "evil.example"}})->status,
      403);
  ServerOptions options;
  options.allow_origin = "http://good.example";
  LiveServer open({}, options);
  const httplib::Headers good = {{"Origin", "http://good.example"}};
  auto reply = open.post("/v1/chat/completions", kChat, good);
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->get_header_value("Access-Control-Allow-Origin"), "http://good.example");
  EXPECT_EQ(open.client().Options("/v1/chat/completions", good)->status, 204);
  EXPECT_EQ(open.post("/v1/chat/completions", kChat, other)->status, 403);
}

TEST(ServerTest, TellsOfItsTokenizerIfAsked) {
  LiveServer silent;
  EXPECT_EQ(error_of(silent.client().Get("/tokenizer_info"))["code"], "not_found");
  ServerOptions options;
  options.tokenizer_info = true;
  LiveServer running({}, options);
  const Json info = Json::parse(running.client().Get("/tokenizer_info")->body);
  EXPECT_EQ(info["chat_template"], "{{ messages }}");
  EXPECT_EQ(info["bos_token"], "<s>");
  EXPECT_EQ(info["eos_token"], "</s>");
  EXPECT_EQ(info["model_max_length"], 4096);
}

TEST(ServerTest, TokensAndDocuments) {
  LiveServer running;
  Json tokens = Json::parse(running.post("/tokenize", R"({"prompt": "ab", "return_token_strs": true})")->body);
  EXPECT_EQ(tokens["tokens"], Json::array({256, 97, 98}));
  EXPECT_EQ(tokens["count"], 3);
  EXPECT_EQ(tokens["max_model_len"], 4096);
  EXPECT_EQ(tokens["token_strs"], Json::array({"<s>", "a", "b"}));
  EXPECT_EQ(Json::parse(running.post("/tokenize", kChat)->body)["count"], 5);
  EXPECT_EQ(Json::parse(running.post("/detokenize", R"({"tokens": [97, 98]})")->body)["prompt"], "ab");
  Json body = {{"documents", Json::array()}};
  for (int i = 0; i < 20; ++i) body["documents"].push_back({{"title", "t"}, {"text", "document " + std::to_string(i)}});
  const Json warmed = Json::parse(running.post("/v1/documents", body.dump())->body);
  ASSERT_EQ(warmed["documents"].size(), 20u);
  EXPECT_EQ(warmed["documents"][3]["index"], 3);
  EXPECT_EQ(warmed["documents"][3]["tokens"], 10);
  EXPECT_EQ(warmed["documents"][12]["prefix"].get<int>() + warmed["documents"][12]["fresh"].get<int>(), 13);
  EXPECT_EQ(running.engine->last_request().sampling.max_tokens, 0);
  EXPECT_EQ(running.engine->last_request().policy.name, "prefix") << "a copy without other text in its KV";
  EXPECT_TRUE(running.engine->last_request().clean_copy);
  body["kvilt"] = {{"policy", "naive"}};
  running.post("/v1/documents", body.dump());
  EXPECT_EQ(running.engine->last_request().policy.name, "naive");
  EXPECT_FALSE(running.engine->last_request().clean_copy);
  EXPECT_EQ(running.post("/v1/cache/clear", "")->status, 200);
}

}  // namespace
}  // namespace kvilt::server

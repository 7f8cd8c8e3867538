// POST /v1/messages and /v1/messages/count_tokens over loopback, serving the fake engine.
#include <gtest/gtest.h>

#include <algorithm>

#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

constexpr const char* kMessages = "/v1/messages";
constexpr const char* kCount = "/v1/messages/count_tokens";

Json ask(const char* more = "") {
  return Json::parse(std::string(R"({"model": "fake", "max_tokens": 8, "temperature": 0,
      "messages": [{"role": "user", "content": "hi"}])") +
                     more + "}");
}

Json error_in(const httplib::Result& result, int status) {
  EXPECT_TRUE(result);
  if (!result) return nullptr;
  EXPECT_EQ(result->status, status) << result->body;
  const Json json = Json::parse(result->body, nullptr, false);
  EXPECT_TRUE(json.is_object() && json.value("type", "") == "error" && json.contains("error")) << result->body;
  return json.is_object() && json.contains("error") ? json["error"] : Json(Json::object());
}

// Types of a stream's events in order, runs of one type once. Each event's name must be its type.
std::vector<std::string> order_of(const std::string& body) {
  std::vector<std::string> order;
  size_t named = 0;
  for (const Json& event : events(body)) {
    const auto type = event["type"].get<std::string>();
    named += body.find("event: " + type + "\ndata: " + dump(event) + "\n\n") != std::string::npos;
    if (order.empty() || order.back() != type) order.push_back(type);
  }
  EXPECT_EQ(named, events(body).size()) << body;
  return order;
}

TEST(MessagesRoute, AnswersWhole) {
  LiveServer running;
  const auto reply = running.post(kMessages, dump(ask()));
  ASSERT_EQ(reply->status, 200) << reply->body;
  const Json json = Json::parse(reply->body);
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(reply->get_header_value("request-id"), json["id"]);
  EXPECT_EQ(json["type"], "message");
  EXPECT_EQ(json["role"], "assistant");
  EXPECT_EQ(json["model"], "fake");
  EXPECT_EQ(json["stop_reason"], "max_tokens");
  EXPECT_TRUE(json["stop_sequence"].is_null());
  const Json theirs = Json::parse(running.post("/v1/chat/completions", kChat)->body);
  EXPECT_EQ(json["content"], Json::array({{{"type", "text"}, {"text", theirs["choices"][0]["message"]["content"]}}}));
  EXPECT_FALSE(json["content"][0]["text"].get<std::string>().empty());
  EXPECT_EQ(json["usage"]["input_tokens"], theirs["usage"]["prompt_tokens"]);
  EXPECT_EQ(json["usage"]["cache_read_input_tokens"], 0);
  EXPECT_EQ(json["usage"]["cache_creation_input_tokens"], 0);
  EXPECT_EQ(json["usage"]["output_tokens"], 8);
  const Json again = Json::parse(running.post(kMessages, dump(ask()))->body)["usage"];
  EXPECT_EQ(again["input_tokens"], 1) << "all but the last token is read from the cache";
  EXPECT_EQ(again["cache_read_input_tokens"], theirs["usage"]["prompt_tokens"].get<int>() - 1);
  EXPECT_EQ(again["kvilt"]["prefix"], again["cache_read_input_tokens"]);
}

TEST(MessagesRoute, SaysWhyItStopped) {
  LiveServer running;
  const Json end = Json::parse(running.post(kMessages, dump(ask(R"(, "max_tokens": 100)")))->body);
  EXPECT_EQ(end["stop_reason"], "end_turn");
  const auto text = end["content"][0]["text"].get<std::string>();
  Json body = ask(R"(, "max_tokens": 100)");
  body["stop_sequences"] = {text.substr(10, 4)};
  const Json stopped = Json::parse(running.post(kMessages, dump(body))->body);
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], text.substr(10, 4));
  EXPECT_EQ(stopped["content"][0]["text"], text.substr(0, text.find(text.substr(10, 4))));
  const Json none = Json::parse(running.post(kMessages, dump(ask(R"(, "max_tokens": 0)")))->body);
  EXPECT_EQ(none["content"], Json::parse(R"([{"type": "text", "text": ""}])")) << "clients read the first block";
}

TEST(MessagesRoute, AStreamSaysTheSameInOrder) {
  LiveServer running;
  const Json whole = Json::parse(running.post(kMessages, dump(ask()))->body);
  const auto reply = running.post(kMessages, dump(ask(R"(, "stream": true)")));
  ASSERT_EQ(reply->status, 200);
  EXPECT_EQ(reply->get_header_value("Content-Type"), "text/event-stream");
  EXPECT_EQ(order_of(reply->body),
            (std::vector<std::string>{"message_start", "ping", "content_block_start", "content_block_delta",
                                      "content_block_stop", "message_delta", "message_stop"}));
  EXPECT_EQ(reply->body.find("[DONE]"), std::string::npos);
  const std::vector<Json> list = events(reply->body);
  const Json& start = list[0]["message"];
  EXPECT_EQ(start["content"], Json::array());
  EXPECT_TRUE(start["stop_reason"].is_null());
  EXPECT_EQ(start["usage"]["input_tokens"], 5) << "the whole prompt: nothing more is known yet";
  std::string text;
  int deltas = 0;
  for (const Json& event : list) {
    if (event["type"] != "content_block_delta") continue;
    EXPECT_EQ(event["index"], 0);
    EXPECT_EQ(event["delta"]["type"], "text_delta");
    text += event["delta"]["text"].get<std::string>();
    ++deltas;
  }
  EXPECT_GT(deltas, 1);
  EXPECT_EQ(text, whole["content"][0]["text"]);
  const Json& end = list[list.size() - 2];
  EXPECT_EQ(end["delta"], Json::parse(R"({"stop_reason": "max_tokens", "stop_sequence": null})"));
  EXPECT_EQ(end["usage"]["input_tokens"], 1);
  EXPECT_EQ(end["usage"]["cache_read_input_tokens"], 4);
  EXPECT_EQ(end["usage"]["output_tokens"], 8);
  const auto empty = running.post(kMessages, dump(ask(R"(, "stream": true, "max_tokens": 0)")));
  EXPECT_EQ(order_of(empty->body), (std::vector<std::string>{"message_start", "ping", "content_block_start",
                                                             "content_block_stop", "message_delta", "message_stop"}));
}

TEST(MessagesRoute, SilentStreamsArePinged) {
  FakeOptions slow;
  slow.seconds_per_token = 0.3;
  const auto pings = [&](double ping_s) {
    ServerOptions options;
    options.ping_s = ping_s;
    LiveServer running(slow, options);
    const auto reply = running.post(kMessages, dump(ask(R"(, "stream": true, "max_tokens": 3)")));
    const auto list = events(reply->body);
    EXPECT_EQ(list.back()["type"], "message_stop");
    return std::ranges::count_if(list, [](const Json& event) { return event["type"] == "ping"; });
  };
  EXPECT_GT(pings(0.02), 1);
  EXPECT_EQ(pings(100), 1) << "power: without a silence there is the one at the start";
}

TEST(MessagesRoute, TheEngineGetsTheSamePromptByBothRoutes) {
  LiveServer running;
  const char* openai =
      R"({"max_tokens": 2, "cache_salt": "s", "top_k": 3, "kvilt": {"policy": "sparsex", "budget": 0.15},
      "stop": ["zz"], "messages": [{"role": "system", "content": [{"type": "text", "text": "a document", "cache_control":
      {"type": "ephemeral"}}, {"type": "text", "text": "be brief"}]}, {"role": "user", "content": "q"}, {"role":
      "assistant", "content": "calling", "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f",
      "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "t", "content": "seen"}]})";
  const char* anthropic = R"({"max_tokens": 2, "cache_salt": "s", "top_k": 3, "kvilt": {"policy": "sparsex", "budget":
      0.15}, "stop_sequences": ["zz"], "system": [{"type": "text", "text": "a document", "cache_control": {"type":
      "ephemeral"}}, {"type": "text", "text": "be brief"}], "messages": [{"role": "user", "content": "q"}, {"role":
      "assistant", "content": [{"type": "text", "text": "calling"}, {"type": "tool_use", "id": "t", "name": "f", "input":
      {}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "seen"}]}]})";
  ASSERT_EQ(running.post("/v1/chat/completions", openai)->status, 200);
  const Request by_openai = running.engine->last_request();
  ASSERT_EQ(running.post(kMessages, R"({"max_tokens": 2, "messages": [{"role": "user", "content": "x"}]})")->status,
            200);
  EXPECT_NE(running.engine->last_request().prompt.ids, by_openai.prompt.ids) << "power";
  const auto reply = running.post(kMessages, anthropic);
  ASSERT_EQ(reply->status, 200) << reply->body;
  const Request by_anthropic = running.engine->last_request();
  EXPECT_EQ(by_anthropic.prompt.ids, by_openai.prompt.ids);
  ASSERT_EQ(by_anthropic.prompt.marks.size(), 1u);
  EXPECT_EQ(by_anthropic.prompt.marks[0].begin, by_openai.prompt.marks.at(0).begin);
  EXPECT_EQ(by_anthropic.prompt.marks[0].end, by_openai.prompt.marks.at(0).end);
  EXPECT_EQ(by_anthropic.cache_salt, "s");
  EXPECT_EQ(by_anthropic.policy.name, "sparsex");
  EXPECT_EQ(by_anthropic.policy.params, by_openai.policy.params);
  EXPECT_EQ(by_anthropic.sampling.top_k, 3);
  EXPECT_EQ(by_anthropic.sampling.max_tokens, 2);
  EXPECT_EQ(by_anthropic.sampling.stop, std::vector<std::string>{"zz"});
}

TEST(MessagesRoute, AnAnswerThatTheClientBeginsGoesOn) {
  LiveServer running;
  const std::string begun = R"({"max_tokens": 2, "messages": [{"role": "user", "content": "q"}, {"role": "assistant",
      "content": "It is"})";
  ASSERT_EQ(running.post(kMessages, begun + "]}")->status, 200);
  const Request asked = running.engine->last_request();
  const std::vector<int32_t> expected = {
      FakeEngine::kBos, FakeEngine::kRole, 'q', FakeEngine::kRole, 'I', 't', ' ', 'i', 's'};
  EXPECT_EQ(asked.prompt.ids, expected) << "no new turn behind it";
  ASSERT_EQ(running.post(kMessages, begun + R"(, {"role": "user", "content": "q"}]})")->status, 200);
  EXPECT_EQ(running.engine->last_request().prompt.ids.back(), FakeEngine::kRole) << "power";
}

TEST(MessagesRoute, ErrorsHaveAnthropicsShape) {
  FakeOptions fake;
  fake.context = 64;
  ServerOptions options;
  options.max_body_bytes = 4096;
  LiveServer running(fake, options);
  const auto post = [&](const std::string& body) { return running.post(kMessages, body); };
  EXPECT_EQ(error_in(post("{"), 400)["type"], "invalid_request_error");
  EXPECT_EQ(error_in(post("[]"), 400)["message"], "the body must be a JSON object, not a list");
  EXPECT_EQ(error_in(post(R"({"messages": []})"), 400)["message"], "max_tokens: is required");
  const Json hot = error_in(post(dump(ask(R"(, "temperature": "hot")"))), 400);
  EXPECT_EQ(hot, Json::parse(R"({"type": "invalid_request_error", "message":
      "temperature: must be a number, not a string"})"));
  EXPECT_TRUE(
      error_in(post(dump(ask(R"(, "stop_sequences": ["a", 5])"))), 400)["message"].get<std::string>().starts_with(
          "stop_sequences[1]: "));
  EXPECT_EQ(error_in(post(dump(ask(R"(, "model": "gpt-9")"))), 404)["type"], "not_found_error");
  EXPECT_EQ(error_in(post(dump(ask(R"(, "kvilt": {"policy": "magic"})"))), 400)["type"], "invalid_request_error");
  const std::string long_text(100, 'x');
  EXPECT_EQ(error_in(post(R"({"max_tokens": 1, "messages": [{"role": "user", "content": ")" + long_text + "\"}]}"),
                     400)["type"],
            "invalid_request_error");
  EXPECT_EQ(error_in(post(std::string(5000, ' ')), 413)["type"], "request_too_large");
  EXPECT_EQ(error_in(running.client().Get(kMessages), 405)["type"], "invalid_request_error");
  EXPECT_EQ(error_in(running.post("/v1/messages/batches", "{}"), 404)["type"], "not_found_error");
  EXPECT_EQ(error_of(running.post("/v1/messages_of_others", "{}"))["code"], "not_found") << "power: OpenAI's shape";
  EXPECT_EQ(post(dump(ask()))->status, 200);
}

TEST(MessagesRoute, ErrorsOfTheEngine) {
  LiveServer running;
  const auto post = [&](const char* text, const char* more) {
    return running.post(kMessages, std::string(R"({"max_tokens": 9, "messages": [{"role": "user", "content": ")") +
                                       text + "\"}]" + more + "}");
  };
  for (const char* stream : {"", R"(, "stream": true)"}) {
    const auto early = post(FakeEngine::kFailEarly, stream);
    EXPECT_EQ(error_in(early, 503)["type"], "overloaded_error");
    EXPECT_TRUE(early->has_header("Retry-After"));
  }
  const auto late = post(FakeEngine::kFailLate, R"(, "stream": true)");
  EXPECT_EQ(late->status, 200);
  EXPECT_EQ(order_of(late->body),
            (std::vector<std::string>{"message_start", "ping", "content_block_start", "content_block_delta", "error"}));
  EXPECT_EQ(events(late->body).back()["error"]["type"], "overloaded_error");
  LiveServer loading({}, {}, false);
  EXPECT_EQ(error_in(loading.post(kMessages, dump(ask())), 503)["type"], "api_error");
}

TEST(MessagesRoute, AKeyMayComeAsXApiKey) {
  ServerOptions options;
  options.api_key = "the key";
  LiveServer running({}, options);
  const std::string body = dump(ask());
  EXPECT_EQ(running.post(kMessages, body, {{"x-api-key", "the key"}})->status, 200);
  EXPECT_EQ(running.post(kMessages, body, {{"X-Api-Key", "the key"}})->status, 200);
  EXPECT_EQ(running.post(kMessages, body, {{"Authorization", "Bearer the key"}})->status, 200);
  EXPECT_EQ(running.post("/v1/chat/completions", kChat, {{"x-api-key", "the key"}})->status, 200);
  for (const char* wrong : {"", "another", "Bearer the key", "the%20key"}) {
    const auto refused = running.post(kMessages, body, {{"x-api-key", wrong}});
    EXPECT_EQ(error_in(refused, 401)["type"], "authentication_error") << wrong;
  }
  EXPECT_EQ(running.post(kMessages, body)->status, 401);
  EXPECT_EQ(error_of(running.post("/v1/chat/completions", kChat))["code"], "invalid_api_key");
  const auto both = running.post(kMessages, body, {{"x-api-key", "the key"}, {"Authorization", "Bearer the key"}});
  EXPECT_EQ(error_in(both, 400)["message"], "a request has one header with a key at most: Authorization or x-api-key");
  const auto twice = running.post(kMessages, body, {{"x-api-key", "the key"}, {"x-api-key", "another"}});
  EXPECT_EQ(twice->status, 400);
}

TEST(MessagesRoute, AKeyOfATenantMayComeAsXApiKey) {
  ServerOptions options;
  options.tenants = {{.name = "red", .keys = {ApiKey::of("red's key", false)}},
                     {.name = "blue", .keys = {ApiKey::of("blue's key", false)}}};
  LiveServer running({}, options);
  const auto read_by = [&](const char* header, const char* key) {
    const auto reply = running.post(kMessages, dump(ask()), {{header, key}});
    EXPECT_EQ(reply->status, 200) << reply->body;
    return Json::parse(reply->body)["usage"]["cache_read_input_tokens"].get<int>();
  };
  EXPECT_EQ(read_by("x-api-key", "red's key"), 0);
  EXPECT_EQ(read_by("x-api-key", "blue's key"), 0);
  EXPECT_EQ(read_by("x-api-key", "red's key"), 4) << "power: the same tenant finds it";
  EXPECT_EQ(read_by("Authorization", "Bearer blue's key"), 4) << "one tenant, however its key came";
  EXPECT_EQ(error_in(running.post(kMessages, dump(ask()), {{"x-api-key", "green"}}), 401)["type"],
            "authentication_error");
  EXPECT_EQ(error_in(running.post(kMessages, dump(ask()),
                                  {{"x-api-key", "red's key"}, {"Authorization", "Bearer blue's key"}}),
                     400)["type"],
            "invalid_request_error");
}

TEST(MessagesRoute, VersionsQueriesAndOtherMethods) {
  LiveServer running;
  for (const char* version : {"2023-06-01", "1999-01-01", ""})
    EXPECT_EQ(running.post(kMessages, dump(ask()), {{"anthropic-version", version}})->status, 200) << version;
  EXPECT_EQ(running.post("/v1/messages?beta=true", dump(ask()), {{"anthropic-beta", "x-2026"}})->status, 200);
  EXPECT_EQ(running.post("/v1/messages/count_tokens?beta=true", dump(ask()))->status, 200);
  EXPECT_EQ(error_in(running.post("/v1/messages?beta=true", "{}"), 400)["message"], "max_tokens: is required");
  for (const char* path : {kMessages, kCount}) {
    EXPECT_EQ(running.client().Get(path)->get_header_value("Allow"), "POST");
    EXPECT_EQ(running.client().Head(path)->status, 405);
    EXPECT_EQ(error_in(running.client().Delete(path), 405)["type"], "invalid_request_error");
  }
}

TEST(MessagesRoute, HostileBodies) {
  LiveServer running;
  const std::string deep = std::string(5000, '[') + std::string(5000, ']');
  std::string nested = R"({"type":"object"})";
  for (int i = 0; i < 40; ++i) nested.insert(0, R"({"properties":)").append("}");
  const std::string head = R"({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], )";
  for (const char* path : {kMessages, kCount}) {
    const auto refused = [&](const std::string& body) {
      return error_in(running.post(path, body), 400)["type"] == "invalid_request_error";
    };
    EXPECT_TRUE(refused(deep));
    EXPECT_TRUE(refused(head + R"("system": )" + deep + "}"));
    EXPECT_TRUE(refused(head + "\"system\": \"\xff\"}"));
    EXPECT_TRUE(refused(head + R"("system": [{"type": ")" + std::string(100000, 'x') + "\"}]}"));
    EXPECT_EQ(running.post(path, head + R"("tools": [{"name": "f", "input_schema": )" + nested + "}]}")->status, 200);
  }
  std::string stops = R"("stop_sequences": [)";
  for (int i = 0; i < 65; ++i) stops += "\"" + std::to_string(i) + "\",";
  stops.back() = ']';
  EXPECT_EQ(error_in(running.post(kMessages, head + stops + "}"), 400)["message"],
            "stop_sequences: has more than 64 entries");
  EXPECT_EQ(error_in(running.post(kMessages, head + R"("stop_sequences": [""]})"), 400)["message"],
            "stop_sequences[0]: must not be empty");
  EXPECT_EQ(error_in(running.post(kMessages, head + R"("stop_sequences": [")" + std::string(1025, 'x') + "\"]}"),
                     400)["message"],
            "stop_sequences[0]: is longer than 1024 bytes");
}

TEST(MessagesRoute, AClientThatLeavesIsCancelled) {
  FakeOptions fake;
  fake.seconds_per_token = 0.005;  // 4,000 tokens would take 20 s
  LiveServer running(fake);
  int left = 0;
  for (const char* stream : {R"(, "stream": true)", ""}) {
    RawClient client(running.server->port());
    Json body = ask((std::string(R"(, "ignore_eos": true)") + stream).c_str());
    body["max_tokens"] = 4000;
    ASSERT_TRUE(client.send(request(kMessages, dump(body))));
    if (*stream) {
      EXPECT_NE(client.receive("content_block_delta").find("message_start"), std::string::npos);
    }
    ASSERT_TRUE(eventually([&] { return running.engine->stats().running > 0; }));
    EXPECT_EQ(running.engine->cancelled(), left) << "power: it is the leaving that cancels";
    client.close();
    ++left;
    EXPECT_TRUE(eventually([&] { return running.engine->cancelled() == left; })) << stream;
    // It is counted before its client hears of it, and goes after that: the next one must not be taken for it.
    EXPECT_TRUE(eventually([&] { return running.engine->stats().running == 0; })) << stream;
  }
  EXPECT_EQ(running.post(kMessages, dump(ask()))->status, 200);
}

TEST(MessagesRoute, CountsTokens) {
  LiveServer running;
  const char* body = R"({"model": "fake", "system": "be brief", "messages": [{"role": "user", "content": "hello"}]})";
  const auto counted = running.post(kCount, body);
  ASSERT_EQ(counted->status, 200) << counted->body;
  const Json count = Json::parse(counted->body);
  const Json tokenized = Json::parse(
      running
          .post("/tokenize", R"({"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content":
          "hello"}]})")
          ->body);
  EXPECT_EQ(count, (Json{{"input_tokens", tokenized["count"]}}));
  Json asked = Json::parse(body);
  asked["max_tokens"] = 1;
  EXPECT_EQ(Json::parse(running.post(kMessages, dump(asked))->body)["usage"]["input_tokens"], count["input_tokens"]);
  EXPECT_TRUE(error_in(running.post(kCount, "{}"), 400)["message"].get<std::string>().starts_with("messages: "));
  EXPECT_EQ(
      error_in(running.post(kCount, R"({"model": 5, "messages": [{"role": "user", "content": "x"}]})"), 400)["message"],
      "model: must be a string, not a number");
  EXPECT_EQ(
      error_in(running.post(kCount, R"({"model": "m", "messages": [{"role": "user", "content": "x"}]})"), 404)["type"],
      "not_found_error");
}

TEST(MessagesRoute, ManySmallThingsAreRefusedBeforeTheyAreRendered) {
  LiveServer running;
  std::string many = R"({"max_tokens": 1, "messages": [)", results = many + R"({"role":"user","content":[)";
  for (int i = 0; i < 5000; ++i) {
    many += R"({"role":"user","content":"a"},{"role":"assistant","content":"b"},)";
    results += R"({"type":"tool_result","tool_use_id":"a"},)";
  }
  many += R"({"role":"user","content":"a"},)";
  many.back() = results.back() = ']';
  for (const std::string& body : {many + "}", results + "}]}"}) {
    for (const char* path : {kMessages, kCount}) {
      EXPECT_EQ(error_in(running.post(path, body), 400)["message"],
                "messages: has too many entries; this model's context of 4096 tokens cannot hold them");
    }
  }
}

}  // namespace
}  // namespace kvilt::server

// POST /v1/responses and what is stored of it, over loopback, serving the fake engine.
#include <gtest/gtest.h>

#include <algorithm>

#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

constexpr const char* kResponses = "/v1/responses";

Json asked(const char* more = "") {
  return Json::parse(std::string(R"({"model": "fake", "max_output_tokens": 8, "temperature": 0, "input": "hi")") +
                     more + "}");
}

FakeOptions thinks_and_calls() {
  FakeOptions options;
  options.answers = FakeOptions::calls_tools();
  return options;
}

constexpr const char* kSays = R"(, "max_output_tokens": 1000, "tools": [{"type": "function", "name": "weather",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}],
    "input": "FAKE_SAY <think>Let me look.</think>I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"Bonn\"}}\n</tool_call>")";

std::vector<std::string> kinds_of(const std::string& body) {
  std::vector<std::string> order;
  int64_t number = 0;
  for (const Json& event : events(body)) {
    EXPECT_EQ(event["sequence_number"], number++);
    const auto type = event["type"].get<std::string>();
    EXPECT_NE(body.find("event: " + type + "\ndata: " + dump(event) + "\n\n"), std::string::npos);
    if (order.empty() || order.back() != type) order.push_back(type);
  }
  return order;
}

Json without(Json response, std::initializer_list<const char*> names) {
  for (const char* name : names) response.erase(name);
  for (Json& item : response["output"]) {
    item.erase("id");
    item.erase("call_id");
  }
  return response;
}

TEST(ResponsesRoute, AnswersWhole) {
  LiveServer running;
  const auto reply = running.post(kResponses, dump(asked(R"(, "metadata": {"a": "b"}, "instructions": "")")));
  ASSERT_EQ(reply->status, 200) << reply->body;
  const Json json = Json::parse(reply->body);
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("resp_"));
  EXPECT_EQ(json["object"], "response");
  EXPECT_EQ(json["status"], "incomplete");
  EXPECT_EQ(json["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(json["metadata"], (Json{{"a", "b"}}));
  EXPECT_EQ(json["max_output_tokens"], 8);
  EXPECT_EQ(json["store"], true);
  const Json theirs = Json::parse(running.post("/v1/chat/completions", kChat)->body);
  ASSERT_EQ(json["output"].size(), 1u);
  EXPECT_EQ(json["output"][0]["type"], "message");
  EXPECT_EQ(json["output"][0]["content"][0]["text"], theirs["choices"][0]["message"]["content"]);
  EXPECT_EQ(json["usage"]["input_tokens"], theirs["usage"]["prompt_tokens"]);
  EXPECT_EQ(json["usage"]["output_tokens"], 8);
  EXPECT_EQ(json["usage"]["input_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(theirs["usage"]["prompt_tokens_details"]["cached_tokens"], theirs["usage"]["prompt_tokens"].get<int>() - 1)
      << "the same prompt by both routes";
  EXPECT_EQ(Json::parse(running.post(kResponses, dump(asked(R"(, "max_output_tokens": 100)")))->body)["status"],
            "completed");
}

TEST(ResponsesRoute, AStreamSaysTheSameInOrder) {
  LiveServer running(thinks_and_calls());
  for (const char* more : {"", kSays}) {
    const Json whole = Json::parse(running.post(kResponses, dump(asked(more)))->body);
    Json body = asked(more);
    body["stream"] = true;
    const auto reply = running.post(kResponses, dump(body));
    ASSERT_EQ(reply->status, 200) << reply->body;
    const std::vector<Json> list = events(reply->body);
    std::vector<std::string> order = kinds_of(reply->body);
    std::vector<std::string> expected = {"response.created", "response.in_progress"};
    const auto item = [&](const char* kind) {
      const std::string delta = std::string("response.") + kind + ".delta",
                        done = std::string("response.") + kind + ".done";
      expected.push_back("response.output_item.added");
      if (kind != std::string("function_call_arguments")) expected.push_back("response.content_part.added");
      expected.insert(expected.end(), {delta, done});
      if (kind != std::string("function_call_arguments")) expected.push_back("response.content_part.done");
      expected.push_back("response.output_item.done");
    };
    if (*more) item("reasoning_text");
    item("output_text");
    if (*more) item("function_call_arguments");
    expected.push_back(*more ? "response.completed" : "response.incomplete");
    EXPECT_EQ(order, expected);
    EXPECT_EQ(reply->body.find("[DONE]"), std::string::npos);
    const Json last = list.back()["response"];
    EXPECT_EQ(without(last, {"id", "created_at", "usage"}), without(whole, {"id", "created_at", "usage"}));
    EXPECT_EQ(list[0]["response"]["status"], "in_progress");
    EXPECT_EQ(list[0]["response"]["id"], last["id"]);
    std::string text;
    for (const Json& event : list) {
      if (event["type"] == "response.output_text.delta") text += event["delta"].get<std::string>();
    }
    const Json& output = whole["output"];
    const auto message =
        std::find_if(output.begin(), output.end(), [](const Json& one) { return one["type"] == "message"; });
    EXPECT_EQ(text, (*message)["content"][0]["text"]);
  }
}

TEST(ResponsesRoute, ReasoningAndCallsAreItems) {
  LiveServer running(thinks_and_calls());
  const Json response = Json::parse(running.post(kResponses, dump(asked(kSays)))->body);
  const Json& output = response["output"];
  ASSERT_EQ(output.size(), 3u) << response;
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"][0]["text"], "Let me look.");
  EXPECT_EQ(output[1]["content"][0]["text"], "I look.");
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["name"], "weather");
  EXPECT_EQ(Json::parse(output[2]["arguments"].get<std::string>()), (Json{{"place", "Bonn"}}));
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"], 12) << "bytes are the fake's tokens";
  // The turn goes on, by the response's id or by its items: the same prompt.
  Json next = asked(R"(, "instructions": "go on")");
  const Json result = {{"type", "function_call_output"}, {"call_id", output[2]["call_id"]}, {"output", "rain"}};
  next["input"] = Json::array({result});
  next["previous_response_id"] = response["id"];
  const Json stored = Json::parse(running.post(kResponses, dump(next))->body);
  const auto by_id = running.engine->last_request().prompt.ids;
  next.erase("previous_response_id");
  next["input"] = Json::array({{{"role", "user"}, {"content", asked(kSays)["input"]}}});
  for (const Json& item : output) next["input"].push_back(item);
  next["input"].push_back(result);
  ASSERT_EQ(running.post(kResponses, dump(next))->status, 200);
  EXPECT_EQ(by_id, running.engine->last_request().prompt.ids);
  EXPECT_EQ(stored["previous_response_id"], response["id"]);
  next["input"].erase(next["input"].begin() + 1);
  ASSERT_EQ(running.post(kResponses, dump(next))->status, 200);
  EXPECT_EQ(by_id.size(), running.engine->last_request().prompt.ids.size())
      << "the fake's template leaves reasoning out";
  next["input"].erase(next["input"].begin());
  ASSERT_EQ(running.post(kResponses, dump(next))->status, 200);
  EXPECT_NE(by_id, running.engine->last_request().prompt.ids) << "power";
}

// Codex finds the tool of a call by both names.
TEST(ResponsesRoute, ACallOfANamespacesToolHasItsNamesApart) {
  LiveServer running(thinks_and_calls());
  Json body = asked(R"(, "max_output_tokens": 1000, "tools": [{"type": "function", "name": "look"},
      {"type": "namespace", "name": "team", "description": "d", "tools": [{"type": "function", "name": "ask"},
                                                                          {"type": "custom", "name": "tell"}]}])");
  body["input"] = R"(FAKE_SAY <tool_call>{"name": "team__ask", "arguments": {"who": "a"}}</tool_call>)"
                  R"(<tool_call>{"name": "look", "arguments": {}}</tool_call>)"
                  R"(<tool_call>{"name": "team__tell", "arguments": {"input": "hi"}}</tool_call>)";
  const Json whole = Json::parse(running.post(kResponses, dump(body))->body);
  ASSERT_EQ(whole["output"].size(), 3u) << whole;
  std::string told;
  for (const Json& item : whole["output"])
    told += item.value("namespace", "-") + "." + item["name"].get<std::string>() + " " +
            item.value("arguments", item.value("input", "")) + "; ";
  EXPECT_EQ(told, R"(team.ask {"who": "a"}; -.look {}; team.tell hi; )");
  EXPECT_EQ(whole["tools"], body["tools"]) << "as they were sent";
  body["stream"] = true;
  const std::vector<Json> streamed = events(running.post(kResponses, dump(body))->body);
  EXPECT_EQ(without(streamed.back()["response"], {"id", "created_at", "usage"}),
            without(whole, {"id", "created_at", "usage"}));
  const auto added = std::find_if(streamed.begin(), streamed.end(),
                                  [](const Json& one) { return one["type"] == "response.output_item.added"; });
  EXPECT_EQ((*added)["item"]["namespace"], "team");
  // The call in the next turn is the one that the model wrote.
  Json next = asked();
  next["input"] = whole["output"];
  ASSERT_EQ(running.post(kResponses, dump(next))->status, 200);
  const Json calls = Json::parse(running.post("/v1/responses/input_tokens", dump(next))->body);
  for (Json& item : next["input"]) {
    if (item.contains("namespace")) item["name"] = "team__" + item["name"].get<std::string>();
    item.erase("namespace");
  }
  EXPECT_EQ(Json::parse(running.post("/v1/responses/input_tokens", dump(next))->body), calls);
}

// Agents run calls that are completed. What an answer ended in is the item that is not, and no empty message follows.
TEST(ResponsesRoute, WhatWasCutIsIncomplete) {
  LiveServer running(thinks_and_calls());
  const Json body = asked(kSays);
  const std::string said = body["input"].get<std::string>().substr(std::string(FakeEngine::kSay).size());
  const auto items = [&](const char* field, const Json& value) {
    Json cut = body;
    cut[field] = value;
    const Json whole = Json::parse(running.post(kResponses, dump(cut))->body);
    cut["stream"] = true;
    const Json streamed = events(running.post(kResponses, dump(cut))->body).back()["response"];
    EXPECT_EQ(without(streamed, {"id", "created_at", "usage"}), without(whole, {"id", "created_at", "usage"}));
    std::string out;
    for (const Json& item : whole["output"])
      out += item["type"].get<std::string>() + " " + item["status"].get<std::string>() + "; ";
    return out + whole["status"].get<std::string>();
  };
  const auto behind = [&](const char* word) { return said.find(word) + std::string(word).size(); };
  const std::string before = "reasoning completed; message completed; ";
  EXPECT_EQ(items("max_output_tokens", behind("Let me")), "reasoning incomplete; incomplete");
  EXPECT_EQ(items("max_output_tokens", behind("I lo")), "reasoning completed; message incomplete; incomplete");
  EXPECT_EQ(items("max_output_tokens", behind("\"place\": ")), before + "function_call incomplete; incomplete");
  EXPECT_EQ(items("stop", "Bonn"), before + "function_call incomplete; completed");
  EXPECT_EQ(items("max_output_tokens", behind("\"Bonn\"}")), before + "function_call completed; incomplete") << "power";
  EXPECT_EQ(items("max_output_tokens", 1000), before + "function_call completed; completed") << "power";
}

TEST(ResponsesRoute, StoredOnesAreFoundAndDeleted) {
  LiveServer running;
  auto client = running.client();
  const Json first = Json::parse(running.post(kResponses, dump(asked()))->body);
  const std::string path = std::string(kResponses) + "/" + first["id"].get<std::string>();
  EXPECT_EQ(Json::parse(client.Get(path)->body), first);
  Json body = asked(R"(, "stream": true)");
  body["previous_response_id"] = first["id"];
  body["input"] = Json::array({{{"role", "user"}, {"content", "one"}}, {{"role", "user"}, {"content", "two"}}});
  const Json second = events(running.post(kResponses, dump(body))->body).back()["response"];
  const std::string later = std::string(kResponses) + "/" + second["id"].get<std::string>();
  EXPECT_EQ(Json::parse(client.Get(later)->body), second);
  const Json items = Json::parse(client.Get(later + "/input_items?order=asc")->body);
  ASSERT_EQ(items["data"].size(), 2u);
  EXPECT_EQ(items["data"][0]["content"], "one");
  EXPECT_EQ(items["has_more"], false);
  const Json page = Json::parse(client.Get(later + "/input_items?limit=1")->body);
  EXPECT_EQ(page["data"][0], items["data"][1]) << "the newest first";
  EXPECT_EQ(page["has_more"], true);
  const Json rest = Json::parse(client.Get(later + "/input_items?after=" + page["last_id"].get<std::string>())->body);
  EXPECT_EQ(rest["data"], Json::array({items["data"][0]}));
  for (const char* query : {"?limit=0", "?limit=x", "?order=up", "?after=nobody"})
    EXPECT_EQ(client.Get(later + "/input_items" + query)->status, 400) << query;

  EXPECT_EQ(Json::parse(client.Delete(path)->body),
            (Json{{"id", first["id"]}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(client.Get(path)->status, 404);
  EXPECT_EQ(client.Delete(path)->status, 404);
  const auto orphan = running.post(kResponses, dump(body));
  EXPECT_EQ(orphan->status, 404);
  EXPECT_EQ(error_of(orphan)["code"], "previous_response_not_found");
  EXPECT_EQ(error_of(orphan)["param"], "previous_response_id");
  const Json forgotten = Json::parse(running.post(kResponses, dump(asked(R"(, "store": false)")))->body);
  EXPECT_EQ(forgotten["store"], false);
  EXPECT_EQ(client.Get(std::string(kResponses) + "/" + forgotten["id"].get<std::string>())->status, 404);
}

TEST(ResponsesRoute, AStoreOfNothingSaysSo) {
  ServerOptions options;
  options.response_store_bytes = 0;
  LiveServer running({}, options);
  const Json response = Json::parse(running.post(kResponses, dump(asked()))->body);
  EXPECT_EQ(response["store"], false);
  EXPECT_EQ(running.client().Get(std::string(kResponses) + "/" + response["id"].get<std::string>())->status, 404);
}

TEST(ResponsesRoute, OthersTenantsFindNothing) {
  ServerOptions options;
  options.tenants = {{.name = "a", .keys = {ApiKey::of("key-a", false)}},
                     {.name = "b", .keys = {ApiKey::of("key-b", false)}}};
  LiveServer running({}, options);
  const httplib::Headers a = {{"Authorization", "Bearer key-a"}}, b = {{"Authorization", "Bearer key-b"}};
  const Json response = Json::parse(running.post(kResponses, dump(asked()), a)->body);
  const std::string path = std::string(kResponses) + "/" + response["id"].get<std::string>();
  Json next = asked();
  next["previous_response_id"] = response["id"];
  for (const char* tail : {"", "/input_items"}) {
    EXPECT_EQ(running.client().Get(path + tail, b)->status, 404);
    EXPECT_EQ(running.client().Get(path + tail, a)->status, 200) << "power";
    EXPECT_EQ(running.client().Get(path + tail)->status, 401);
  }
  EXPECT_EQ(running.client().Delete(path, b)->status, 404);
  EXPECT_EQ(running.post(kResponses, dump(next), b)->status, 404);
  EXPECT_EQ(running.post(kResponses, dump(next), a)->status, 200) << "power";
  EXPECT_EQ(running.client().Delete(path, a)->status, 200);
}

TEST(ResponsesRoute, ErrorsNameTheClientsFields) {
  LiveServer running;
  const std::pair<const char*, const char*> cases[] = {
      {R"(, "max_output_tokens": -1)", "max_output_tokens"},
      {R"(, "temperature": 9)", "temperature"},
      {R"(, "input": [{"role": "user", "content": 5}])", "input[0].content"},
      {R"(, "kvilt": {"policy": 5})", "kvilt.policy"},
      {R"(, "background": true)", "background"}};
  for (const auto& [more, param] : cases) {
    const auto refused = running.post(kResponses, dump(asked(more)));
    EXPECT_EQ(refused->status, 400) << refused->body;
    EXPECT_EQ(error_of(refused)["param"], param);
  }
  EXPECT_EQ(running.post(kResponses, dump(asked(R"(, "model": "gpt-9")")))->status, 404);
  auto client = running.client();
  EXPECT_EQ(client.Get(kResponses)->get_header_value("Allow"), "POST");
  EXPECT_EQ(running.post("/v1/responses/x", "{}")->status, 405);
  EXPECT_EQ(client.Delete("/v1/models/fake")->status, 405);
  EXPECT_EQ(client.Get("/v1/responses/x/y/z")->status, 404);
  EXPECT_EQ(client.Get("/v1/responses/")->status, 404);
}

TEST(ResponsesRoute, FailuresAndSilence) {
  LiveServer running;
  Json body = asked(R"(, "max_output_tokens": 100, "stream": true, "input": "FAKE_FAIL_LATE")");
  const auto late = running.post(kResponses, dump(body));
  EXPECT_EQ(late->status, 200);
  const Json last = events(late->body).back();
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["status"], "failed");
  EXPECT_EQ(last["response"]["error"]["code"], "overloaded");
  body["input"] = "FAKE_FAIL_EARLY";
  EXPECT_EQ(running.post(kResponses, dump(body))->status, 503);
  // Codex takes no notice of comments, and gives up a stream without an event.
  FakeOptions slow;
  slow.seconds_per_token = 0.3;
  const auto silent = [&](double ping_s) {
    ServerOptions options;
    options.ping_s = ping_s;
    LiveServer server(slow, options);
    return server.post(kResponses, dump(asked(R"(, "max_output_tokens": 3, "stream": true)")))->body;
  };
  const auto told = [](const std::string& stream) {
    return std::ranges::count_if(events(stream), [](const Json& event) {
      return event["type"] == "response.in_progress" && event["response"]["status"] == "in_progress";
    });
  };
  const std::string pinged = silent(0.02);
  EXPECT_GT(told(pinged), 3);
  EXPECT_EQ(pinged.find("\n:"), std::string::npos) << "no comment";
  kinds_of(pinged);  // all of them are numbered, in order
  EXPECT_EQ(events(pinged).back()["type"], "response.incomplete");
  EXPECT_EQ(told(silent(100)), 1) << "power: without a silence there is the one at the start";
}

TEST(ResponsesRoute, CountsItsInput) {
  LiveServer running;
  const auto counted = running.post("/v1/responses/input_tokens", R"({"input": "hello", "instructions": "be brief"})");
  ASSERT_EQ(counted->status, 200) << counted->body;
  const Json answer = Json::parse(running
                                      .post(kResponses, R"({"input": "hello", "instructions": "be brief",
      "max_output_tokens": 1})")
                                      ->body);
  EXPECT_EQ(Json::parse(counted->body),
            (Json{{"object", "response.input_tokens"}, {"input_tokens", answer["usage"]["input_tokens"]}}));
  EXPECT_EQ(error_of(running.post("/v1/responses/input_tokens", "{}"))["param"], "input");
}

}  // namespace
}  // namespace kvilt::server

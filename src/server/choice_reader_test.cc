// Tool calls and reasoning over the routes, whole and streamed, from an engine that says what it is told.
#include "server/choice_reader.h"

#include <gtest/gtest.h>

#include "server/harmony_for_test.h"
#include "server/live_server_for_test.h"
#include "server/tagged_for_test.h"

namespace kvilt::server {
namespace {

FakeOptions calling_engine() {
  FakeOptions out;
  out.answers = FakeOptions::calls_tools();
  out.answers.reasoning_ids = {7};
  out.answers.call_ids = {8, 9};
  return out;
}

const std::string kTwoCalls =
    "<think>hm</think>Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"caf\xc3\xa9 "
    "}\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";

Json asking(const std::string& answer) {
  const Json tool{{"type", "function"}, {"function", {{"name", "f"}}}};
  return {{"messages", Json::array({{{"role", "user"}, {"content", FakeEngine::kSay + answer}}})},
          {"tools", Json::array({tool})}};
}

class ChatAnswers : public testing::Test {
 protected:
  Json choice(const Json& body) {
    const auto reply = running.post("/v1/chat/completions", body.dump());
    EXPECT_EQ(reply->status, 200) << reply->body;
    return Json::parse(reply->body)["choices"][0];
  }

  // The deltas joined as a client joins them.
  Json streamed(Json body) {
    body["stream"] = true;
    const auto reply = running.post("/v1/chat/completions", body.dump());
    Json message{{"role", ""}, {"content", ""}, {"reasoning_content", ""}, {"tool_calls", Json::array()}};
    for (const Json& event : events(reply->body)) {
      const Json& item = event["choices"][0];
      const Json& delta = item["delta"];
      for (const char* key : {"role", "content", "reasoning_content"})
        message[key] = message[key].get<std::string>() + delta.value(key, "");
      for (const Json& piece : delta.value("tool_calls", Json::array())) {
        const size_t index = piece["index"];
        if (index == message["tool_calls"].size()) {
          message["tool_calls"].push_back(piece);
        } else {
          Json& arguments = message["tool_calls"].at(index)["function"]["arguments"];
          arguments = arguments.get<std::string>() + piece["function"]["arguments"].get<std::string>();
        }
      }
      if (item["finish_reason"].is_string()) message["finish_reason"] = item["finish_reason"];
    }
    return message;
  }

  LiveServer running{calling_engine()};
};

TEST_F(ChatAnswers, CallsAndReasoningHaveOpenAisShape) {
  const Json whole = choice(asking(kTwoCalls));
  const Json& message = whole["message"];
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
  EXPECT_EQ(message["content"], "Let me see.");
  EXPECT_EQ(message["reasoning_content"], "hm");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  const Json& call = message["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "f");
  EXPECT_EQ(Json::parse(call["function"]["arguments"].get<std::string>()), Json::parse("{\"a\": \"caf\xc3\xa9 }\"}"));
  EXPECT_EQ(call["id"].get<std::string>().size(), 9u);
  EXPECT_NE(call["id"], message["tool_calls"][1]["id"]);
  const std::string only = kTwoCalls.substr(kTwoCalls.find("<tool_call>"));
  EXPECT_TRUE(choice(asking(only))["message"]["content"].is_null());
}

TEST_F(ChatAnswers, AStreamIsTheWholeInPieces) {
  const Json whole = choice(asking(kTwoCalls))["message"], joined = streamed(asking(kTwoCalls));
  EXPECT_EQ(joined["content"], whole["content"]);
  EXPECT_EQ(joined["reasoning_content"], whole["reasoning_content"]);
  EXPECT_EQ(joined["finish_reason"], "tool_calls");
  ASSERT_EQ(joined["tool_calls"].size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(joined["tool_calls"][i]["function"], whole["tool_calls"][i]["function"]);
}

TEST_F(ChatAnswers, WordsAroundACallStayApart) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  const Json body = asking(call + " and text " + call + " end");
  for (const Json& message : {choice(body)["message"], streamed(body)}) {
    EXPECT_EQ(message["content"], "and text\nend");
    EXPECT_EQ(message["tool_calls"].size(), 2u);
  }
  Json one = asking("a" + call + "b" + call + "end");
  one["parallel_tool_calls"] = false;
  for (const Json& message : {choice(one)["message"], streamed(one)}) EXPECT_EQ(message["content"], "a\nb\nend");
}

// As vLLM's, SGLang's and llama.cpp's clients ask for it. Calls are read all the same.
TEST_F(ChatAnswers, ThoughtsGoWhereTheRequestWantsThem) {
  const auto said = [&](const char* field, const Json& value, const std::string& answer) {
    Json body = asking(answer);
    body[field] = value;
    const Json whole = choice(body)["message"], joined = streamed(body);
    EXPECT_EQ(joined["content"], whole["content"].is_null() ? Json("") : whole["content"]) << field;
    EXPECT_EQ(joined["reasoning_content"], whole.value("reasoning_content", "")) << field;
    EXPECT_EQ(joined["tool_calls"].size(), whole.value("tool_calls", Json::array()).size()) << field;
    return std::pair(whole.value("reasoning_content", ""), joined["content"].get<std::string>());
  };
  using Said = std::pair<std::string, std::string>;
  EXPECT_EQ(said("include_reasoning", true, kTwoCalls), Said("hm", "Let me see.")) << "power";
  EXPECT_EQ(said("include_reasoning", false, kTwoCalls), Said("", "Let me see."));
  const Said inside("", "<think>\nhm\n</think>\n\nLet me see.");
  EXPECT_EQ(said("separate_reasoning", false, kTwoCalls), inside);
  EXPECT_EQ(said("separate_reasoning", false, "<think>a</think>"), Said("", "<think>\na\n</think>")) << "no word more";
  EXPECT_EQ(said("reasoning_format", "none", kTwoCalls), inside);
  const std::string call = kTwoCalls.substr(kTwoCalls.find("<tool_call>"));
  EXPECT_EQ(said("reasoning_format", "none", "<think>" + call + "</think>hello").second,
            "<think>\n" + call + "\n</think>\n\nhello")
      << "what is thought calls nothing";
  EXPECT_EQ(said("reasoning_format", "none", "<think>hm").second, "<think>\nhm") << "one that was cut";
  EXPECT_EQ(said("reasoning_format", "none", "hello").second, "hello");
}

TEST_F(ChatAnswers, RequestsSayWhatIsRead) {
  Json body = asking(kTwoCalls);
  body["parallel_tool_calls"] = false;
  EXPECT_EQ(choice(body)["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(streamed(body)["tool_calls"].size(), 1u);
  body["tool_choice"] = "none";
  Json message = choice(body);
  EXPECT_FALSE(message["message"].contains("tool_calls"));
  EXPECT_EQ(message["finish_reason"], "stop");
  EXPECT_EQ(message["message"]["reasoning_content"], "hm");
  EXPECT_NE(message["message"]["content"].get<std::string>().find("<tool_call>"), std::string::npos);
  body.erase("tools");
  body.erase("tool_choice");
  EXPECT_FALSE(choice(body)["message"].contains("tool_calls"));
  // A call that max_tokens cut is one, and the reason stays.
  body = asking(kTwoCalls);
  body["max_tokens"] = static_cast<int>(kTwoCalls.find("caf"));
  message = choice(body);
  EXPECT_EQ(message["finish_reason"], "length");
  EXPECT_EQ(message["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice(asking("no call"))["finish_reason"], "stop");
}

// Control tokens are in the text of answers that are read for them, and of no others.
TEST_F(ChatAnswers, MarkersAreShownToTheReader) {
  const auto shown = [&](const Json& body, const char* path = "/v1/chat/completions") {
    EXPECT_EQ(running.post(path, body.dump())->status, 200);
    return running.engine->last_request().sampling.shown_ids;
  };
  Json body = asking("x");
  EXPECT_EQ(shown(body), (std::vector<int32_t>{7, 8, 9}));
  body["tool_choice"] = "none";
  EXPECT_EQ(shown(body), std::vector<int32_t>{7});
  EXPECT_EQ(shown({{"prompt", "x"}}, "/v1/completions"), std::vector<int32_t>{});
}

// Each choice is read by itself, every token's log probability is sent, and a stop string ends a call as it ends text.
TEST_F(ChatAnswers, ChoicesLogprobsAndStops) {
  const size_t kTokens = kTwoCalls.size() + 1;  // the end token too
  Json body = asking(kTwoCalls);
  body["n"] = 2;
  body["logprobs"] = true;
  const Json whole = Json::parse(running.post("/v1/chat/completions", body.dump())->body);
  ASSERT_EQ(whole["choices"].size(), 2u);
  for (const Json& choice : whole["choices"]) {
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    EXPECT_EQ(choice["message"]["tool_calls"].size(), 2u);
    EXPECT_EQ(choice["logprobs"]["content"].size(), kTokens);
  }
  body["stream"] = true;
  size_t logprobs[2] = {}, calls[2] = {};
  for (const Json& event : events(running.post("/v1/chat/completions", body.dump())->body)) {
    const Json& item = event["choices"][0];
    const size_t i = item["index"];
    if (item["logprobs"].is_object()) logprobs[i] += item["logprobs"]["content"].size();
    for (const Json& piece : item["delta"].value("tool_calls", Json::array())) calls[i] += piece.contains("id");
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(logprobs[i], kTokens);
    EXPECT_EQ(calls[i], 2u);
  }
  body = asking(kTwoCalls);
  body["stop"] = "caf";
  const Json cut = choice(body);
  EXPECT_EQ(cut["finish_reason"], "tool_calls");
  EXPECT_EQ(cut["stop_reason"], "caf");
  ASSERT_EQ(cut["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(cut["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": \"");
}

// What Anthropic's clients are told of the same answer.
class MessagesAnswers : public ChatAnswers {
 protected:
  static Json body(const std::string& answer) {
    const Json tool{{"name", "f"}, {"input_schema", {{"type", "object"}}}};
    return {{"max_tokens", 1000},
            {"messages", Json::array({{{"role", "user"}, {"content", FakeEngine::kSay + answer}}})},
            {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}},
            {"tools", Json::array({tool})}};
  }
  Json whole(const Json& body) {
    const auto reply = running.post("/v1/messages", body.dump());
    EXPECT_EQ(reply->status, 200) << reply->body;
    return Json::parse(reply->body);
  }
  // The events put together as a client does it.
  Json streamed_message(Json body) {
    body["stream"] = true;
    const auto reply = running.post("/v1/messages", body.dump());
    Json message, inputs;
    int open = -1;
    for (const Json& event : events(reply->body)) {
      const auto type = event["type"].get<std::string>();
      if (type == "message_start") message = event["message"];
      if (type == "content_block_start") {
        EXPECT_EQ(open, -1) << "one block at a time";
        open = event["index"];
        EXPECT_EQ(static_cast<size_t>(open), message["content"].size());
        message["content"].push_back(event["content_block"]);
        inputs.push_back("");
      }
      if (type == "content_block_delta") {
        EXPECT_EQ(event["index"], open);
        Json& block = message["content"].back();
        const auto add = [](Json& to, const Json& text) { to = to.get<std::string>() + text.get<std::string>(); };
        const Json& delta = event["delta"];
        if (delta["type"] == "text_delta") add(block["text"], delta["text"]);
        if (delta["type"] == "thinking_delta") add(block["thinking"], delta["thinking"]);
        if (delta["type"] == "input_json_delta") add(inputs.back(), delta["partial_json"]);
      }
      if (type == "content_block_stop") {
        EXPECT_EQ(event["index"], std::exchange(open, -1));
        if (inputs.back() != "") message["content"].back()["input"] = Json::parse(inputs.back().get<std::string>());
      }
      if (type == "message_delta") message["stop_reason"] = event["delta"]["stop_reason"];
    }
    EXPECT_EQ(open, -1);
    return message;
  }
};

TEST_F(MessagesAnswers, CallsAreBlocks) {
  const Json message = whole(body(kTwoCalls)), joined = streamed_message(body(kTwoCalls));
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_EQ(joined["stop_reason"], "tool_use");
  const Json& blocks = message["content"];
  ASSERT_EQ(blocks.size(), 4u) << blocks;
  EXPECT_EQ(blocks[0], Json::parse(R"({"type": "thinking", "thinking": "hm", "signature": ""})"));
  EXPECT_EQ(blocks[1], Json::parse(R"({"type": "text", "text": "Let me see."})"));
  EXPECT_EQ(blocks[2]["type"], "tool_use");
  EXPECT_EQ(blocks[2]["name"], "f");
  EXPECT_EQ(blocks[2]["input"], Json::parse("{\"a\": \"caf\xc3\xa9 }\"}"));
  EXPECT_EQ(blocks[3]["input"], Json::object());
  EXPECT_NE(blocks[2]["id"], blocks[3]["id"]);
  ASSERT_EQ(joined["content"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    Json a = blocks[i], b = joined["content"][i];
    a.erase("id");
    b.erase("id");
    EXPECT_EQ(a, b);
  }
}

// Blocks stay apart by themselves; only where the call between them is left out they are one text.
TEST_F(MessagesAnswers, WordsBehindACallAreABlock) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  Json request = body("a " + call + " b " + call + " end");
  const auto texts = [](const Json& message) {
    Json out = Json::array();
    for (const Json& block : message["content"]) out.push_back(block.value("text", block["type"].get<std::string>()));
    return out;
  };
  const Json all = {"a", "tool_use", "b", "tool_use", "end"}, one = {"a", "tool_use", "b\nend"};
  EXPECT_EQ(texts(whole(request)), all);
  EXPECT_EQ(texts(streamed_message(request)), all);
  request["tool_choice"] = {{"type", "auto"}, {"disable_parallel_tool_use", true}};
  EXPECT_EQ(texts(whole(request)), one);
  EXPECT_EQ(texts(streamed_message(request)), one);
}

TEST_F(MessagesAnswers, ThinkingIsSentToWhoAskedForIt) {
  Json quiet = body("<think>hm</think>hello");
  EXPECT_EQ(whole(quiet)["content"].size(), 2u) << "power";
  quiet["thinking"] = {{"type", "disabled"}};
  Json absent = quiet;
  absent.erase("thinking");
  for (const Json& request : {quiet, absent}) {
    const Json content = whole(request)["content"];
    EXPECT_EQ(content, Json::parse(R"([{"type": "text", "text": "hello"}])"));
    EXPECT_EQ(streamed_message(request)["content"], content);
  }
}

TEST_F(ChatAnswers, WordsBehindACallAreAnItemOfResponses) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  Json request = {{"input", FakeEngine::kSay + ("a " + call + " b " + call + " end")},
                  {"tools", Json::array({{{"type", "function"}, {"name", "f"}}})}};
  const auto texts = [](const Json& output) {
    Json out = Json::array();
    for (const Json& item : output)
      out.push_back(item["type"] == "message" ? item["content"][0]["text"] : item["type"]);
    return out;
  };
  const auto whole = [&] { return texts(Json::parse(running.post("/v1/responses", dump(request))->body)["output"]); };
  // The items by their deltas, which the last event's output must be.
  const auto streamed = [&] {
    Json body = request, out = Json::array(), last;
    body["stream"] = true;
    for (const Json& event : events(running.post("/v1/responses", dump(body))->body)) {
      const auto type = event["type"].get<std::string>();
      if (type == "response.output_item.added")
        out.push_back(event["item"]["type"] == "message" ? Json("") : event["item"]["type"]);
      if (type == "response.output_text.delta")
        out.back() = out.back().get<std::string>() + event["delta"].get<std::string>();
      if (type == "response.completed") last = texts(event["response"]["output"]);
    }
    EXPECT_EQ(last, out);
    return out;
  };
  const Json all = {"a", "function_call", "b", "function_call", "end"}, one = {"a", "function_call", "b\nend"};
  EXPECT_EQ(whole(), all);
  EXPECT_EQ(streamed(), all);
  request["parallel_tool_calls"] = false;
  EXPECT_EQ(whole(), one);
  EXPECT_EQ(streamed(), one);
}

// From its name on it is a call, wherever it is cut; before that it is text.
TEST_F(ChatAnswers, ACallThatIsCutBehindItsName) {
  const std::string head = "<tool_call>\n{\"name\": \"f\"", call = head + ", \"arguments\": {}}\n</tool_call>";
  Json request = asking(call);
  for (size_t tokens = 1; tokens < call.size(); ++tokens) {
    request["max_tokens"] = tokens;
    const Json message =
        Json::parse(running.post("/v1/chat/completions", dump(request))->body)["choices"][0]["message"];
    const bool called = message.contains("tool_calls") && !message["tool_calls"].empty();
    EXPECT_EQ(called, tokens > head.size()) << tokens << message;
    if (!called) continue;
    EXPECT_TRUE(message["content"].is_null()) << message;
    const Json& function = message["tool_calls"][0]["function"];
    EXPECT_EQ(function["name"], "f");
    const std::string whole = call.substr(0, tokens);
    const size_t arguments = whole.find('{', head.size());
    EXPECT_EQ(function["arguments"], arguments == std::string::npos              ? ""
                                     : whole.substr(arguments).starts_with("{}") ? "{}"
                                                                                 : "{");
  }
}

TEST(TaggedAnswers, ACutCallIsNoJson) {
  FakeOptions fake = calling_engine();
  fake.answers.calls = tagged_calls();
  LiveServer server(fake);
  const std::string begun = "<tool_call>\n<function=f>\n<parameter=path>\na\n</parameter>\n";
  Json body = asking(begun + "<parameter=force>\ntrue\n</parameter>\n</function>\n</tool_call>");
  const auto arguments = [&] {
    const Json choice = Json::parse(server.post("/v1/chat/completions", dump(body))->body)["choices"][0];
    return choice["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>();
  };
  EXPECT_EQ(arguments(), R"({"path": "a", "force": true})") << "power";
  body["max_tokens"] = begun.size() + 5;
  EXPECT_EQ(arguments(), R"({"path": "a")");
  body.erase("max_tokens");
  body["stop"] = "<parameter=force";
  EXPECT_EQ(arguments(), R"({"path": "a")");
}

// Tokens of which nothing is sent are a silence: proxies cut such a stream.
TEST(SilentTokens, ArePinged) {
  FakeOptions fake = calling_engine();
  fake.seconds_per_token = 0.002;
  const auto pings = [&](double ping_s, const std::string& answer) {
    ServerOptions options;
    options.ping_s = ping_s;
    LiveServer server(fake, options);
    const Json body{{"max_tokens", 1000},
                    {"stream", true},
                    {"messages", Json::array({{{"role", "user"}, {"content", FakeEngine::kSay + answer}}})}};
    const auto list = events(server.post("/v1/messages", dump(body))->body);
    return std::ranges::count_if(list, [](const Json& event) { return event["type"] == "ping"; });
  };
  const std::string thought = "<think>" + std::string(300, 'x') + "</think>";
  EXPECT_GT(pings(0.1, thought), 2);
  EXPECT_EQ(pings(100, thought), 1) << "power: the one at the start";
}

TEST_F(MessagesAnswers, WhatIsLeftOutAndWhatIsBroken) {
  Json one = body(kTwoCalls);
  one["tool_choice"] = {{"type", "auto"}, {"disable_parallel_tool_use", true}};
  EXPECT_EQ(whole(one)["content"].size(), 3u);
  EXPECT_EQ(streamed_message(one)["content"].size(), 3u);
  const Json broken = whole(body("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1"));
  EXPECT_EQ(broken["content"][0]["input"], Json::parse(R"({"INVALID_JSON": "{\"a\": [1"})"));
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": ";
  const auto input_of = [&](Json request) {
    const Json message = whole(request), streamed = streamed_message(request);
    EXPECT_EQ(message["content"].size(), 1u) << message;
    EXPECT_EQ(message["content"][0]["input"], streamed["content"][0]["input"]);
    return message["content"][0]["input"];
  };
  Json lost = body(call + "null}");
  lost["stop_sequences"] = {"ull"};
  const Json nothing = Json::parse(R"({"INVALID_JSON": ""})");
  EXPECT_EQ(input_of(lost), nothing) << "no call with {}, which a client would run";
  lost = body(call + "{}}");
  EXPECT_EQ(input_of(lost), Json::object()) << "power";
  lost["max_tokens"] = call.size();
  EXPECT_EQ(input_of(lost), nothing) << "cut behind its name";
  const Json silent = whole(body("<think>hm</think>")), streamed = streamed_message(body("<think>hm</think>"));
  ASSERT_EQ(silent["content"].size(), 2u);
  EXPECT_EQ(silent["content"][1], Json::parse(R"({"type": "text", "text": ""})"));
  EXPECT_EQ(streamed["content"], silent["content"]);
  EXPECT_EQ(silent["stop_reason"], "end_turn");
}

// An engine whose answers are messages: the same fields, whole and streamed, and thoughts also without tools.
TEST(ChatMessages, AreReadByTheirHeaders) {
  FakeOptions options;
  options.answers.tools = true;
  options.answers.reasoning_ids = {7};
  options.answers.messages = harmony_syntax();
  LiveServer server{options};
  const auto ask = [&](const Json& body) {
    const auto reply = server.post("/v1/chat/completions", body.dump());
    EXPECT_EQ(reply->status, 200) << reply->body;
    return Json::parse(reply->body)["choices"][0];
  };
  const std::string thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
  Json body = asking(thought + "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}");
  const Json called = ask(body);
  EXPECT_EQ(called["finish_reason"], "tool_calls");
  EXPECT_EQ(called["message"]["reasoning_content"], "hm");
  EXPECT_EQ(called["message"]["tool_calls"][0]["function"], Json::parse(R"({"name": "f", "arguments": "{\"a\": 1}"})"));
  body["stream"] = true;
  std::string arguments, reasoning;
  for (const Json& event : events(server.post("/v1/chat/completions", body.dump())->body)) {
    const Json& delta = event["choices"][0]["delta"];
    reasoning += delta.value("reasoning_content", "");
    for (const Json& piece : delta.value("tool_calls", Json::array()))
      arguments += piece["function"]["arguments"].get<std::string>();
  }
  EXPECT_EQ(reasoning, "hm");
  EXPECT_EQ(arguments, "{\"a\": 1}");
  body = asking(thought + "<|channel|>final<|message|>It rains.");
  body.erase("tools");
  const Json spoken = ask(body);
  EXPECT_EQ(spoken["finish_reason"], "stop");
  EXPECT_EQ(spoken["message"]["content"], "It rains.");
  EXPECT_EQ(server.engine->last_request().sampling.shown_ids, (std::vector<int32_t>{7})) << "marks are in the text";
  EXPECT_EQ(spoken["message"]["reasoning_content"], "hm");
}

TEST_F(ChatAnswers, Refusals) {
  Json body = asking("x");
  body["tools"] = "f";
  EXPECT_EQ(error_of(running.post("/v1/chat/completions", body.dump()))["param"], "tools");
  body = asking("x");
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "nobody"}}}};
  EXPECT_EQ(error_of(running.post("/v1/chat/completions", body.dump()))["param"], "tool_choice");
  FakeOptions without;
  without.answers = {};
  LiveServer plain{without};  // a template without tools
  body = asking("x");
  const auto reply = plain.post("/v1/chat/completions", body.dump());
  EXPECT_EQ(reply->status, 400);
  EXPECT_EQ(error_of(reply)["param"], "tools");
  body["tool_choice"] = "none";
  EXPECT_EQ(plain.post("/v1/chat/completions", body.dump())->status, 200);
}

}  // namespace
}  // namespace kvilt::server

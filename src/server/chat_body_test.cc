// What chats say to the template, by every route that makes a prompt.
#include "server/chat_body.h"

#include <gtest/gtest.h>

#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

TEST(ChatBody, EffortsReachThePromptByEveryRoute) {
  LiveServer running;
  const auto ids = [&](const char* path, const Json& more) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"max_tokens", 1}};
    if (path == std::string("/v1/responses")) body = {{"input", "hi"}};
    body.update(more);
    const auto reply = running.post(path, dump(body));
    EXPECT_EQ(reply->status, 200) << reply->body;
    return running.engine->last_request().prompt.ids;
  };
  const char* chat = "/v1/chat/completions";
  const auto told = ids(chat, {{"chat_template_kwargs", {{"reasoning_effort", "low"}, {"enable_thinking", true}}}});
  EXPECT_EQ(ids(chat, {{"reasoning_effort", "low"}}), told);
  EXPECT_EQ(ids("/v1/responses", {{"reasoning", {{"effort", "low"}}}}), told);
  EXPECT_EQ(ids(chat, {{"reasoning", {{"effort", "low"}}}}), told);
  EXPECT_NE(ids(chat, Json::object()), told) << "power";
  const auto thinks = ids("/v1/messages", {{"thinking", {{"type", "adaptive"}}}});
  EXPECT_EQ(thinks, ids(chat, {{"chat_template_kwargs", {{"enable_thinking", true}}}}));
  const auto none = ids("/v1/messages", {{"thinking", {{"type", "disabled"}}}});
  EXPECT_EQ(none, ids(chat, {{"chat_template_kwargs", {{"enable_thinking", false}}}}));
  EXPECT_EQ(ids("/v1/messages", Json::object()), none) << "who does not ask for thoughts";
  for (const Json& off : {Json{{"enable_thinking", false}}, Json{{"thinking", {{"type", "disabled"}}}},
                          Json{{"reasoning", {{"enabled", false}}}}})
    EXPECT_EQ(ids(chat, off), none) << off;
  EXPECT_EQ(ids(chat, {{"thinking", {{"type", "enabled"}}}}), thinks);
  EXPECT_NE(thinks, none) << "power";

  const std::string body = R"({"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low"})";
  const auto count = [&](const char* path, const char* field) {
    return Json::parse(running.post(path, body)->body)[field];
  };
  EXPECT_EQ(count("/v1/chat/completions/input_tokens", "input_tokens"), told.size());
  EXPECT_EQ(count("/tokenize", "count"), told.size());
  EXPECT_EQ(count("/apply-template", "prompt"),
            R"(<s>{"reasoning_effort":"low","enable_thinking":true}<role>hi<role>)");
  EXPECT_EQ(error_of(running.post(chat, R"({"messages": [{"role": "user", "content": "hi"}],
      "reasoning_effort": "hard"})"))["param"],
            "reasoning_effort");
  EXPECT_EQ(error_of(running.post("/v1/responses", R"({"input": "hi", "reasoning": {"effort": "hard"}})"))["param"],
            "reasoning.effort");
}

// What they become: old_calls_test.cc.
TEST(ChatBody, CallsOfTheFirstFormAreReadByEveryRoute) {
  LiveServer running;
  const auto reply = [&](const char* path, const char* call) {
    return running.post(path, std::string(R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant",
        "content": null, "function_call": {"name": "f", "arguments": )") +
                                  call + R"(}}, {"role": "function", "name": "f", "content": "x"}]})");
  };
  for (const char* path :
       {"/v1/chat/completions", "/v1/chat/completions/input_tokens", "/tokenize", "/apply-template"}) {
    EXPECT_EQ(reply(path, R"("{}")")->status, 200) << path;
    EXPECT_EQ(error_of(reply(path, "5"))["param"], "messages[1].function_call.arguments") << path;
  }
}

TEST(ChatBody, TheServersWordsReachPromptsThatDoNotSayThem) {
  ServerOptions options;
  options.chat_template_kwargs = R"({"enable_thinking": false, "tone": "dry"})";
  LiveServer running({}, options);
  const auto told = [&](const std::string& more) {
    const auto reply =
        running.post("/apply-template", R"({"messages": [{"role": "user", "content": "hi"}])" + more + "}");
    EXPECT_EQ(reply->status, 200) << reply->body;
    return Json::parse(reply->body)["prompt"].get<std::string>();
  };
  EXPECT_EQ(told(""), R"(<s>{"enable_thinking":false,"tone":"dry"}<role>hi<role>)");
  EXPECT_EQ(told(R"(, "chat_template_kwargs": {"tone": "warm"})"),
            R"(<s>{"tone":"warm","enable_thinking":false}<role>hi<role>)");
  EXPECT_EQ(told(R"(, "chat_template_kwargs": {"enable_thinking": true, "tone": null})"),
            R"(<s>{"enable_thinking":true,"tone":null}<role>hi<role>)");
  EXPECT_EQ(told(R"(, "reasoning_effort": "high")"),
            R"(<s>{"reasoning_effort":"high","enable_thinking":true,"tone":"dry"}<role>hi<role>)");
  for (const char* path : {"/v1/documents", "/v1/knowledge_bases/rivers/documents"}) {
    running.post("/v1/knowledge_bases", R"({"name": "rivers"})");
    EXPECT_EQ(running.post(path, R"({"documents": [{"text": "x"}], "chat_template_kwargs": 3})")->status, 400) << path;
    EXPECT_EQ(running.post(path, R"({"documents": [{"text": "x"}]})")->status, 200) << path;
  }
}

// What a prompt is made of is told the server's words, whatever the route.
TEST(ChatBody, TheServersWordsReachThePromptsOfEveryRoute) {
  ServerOptions options;
  options.chat_template_kwargs = R"({"tone": "dry"})";
  LiveServer running({}, options), plain;
  for (LiveServer* server : {&running, &plain}) server->post("/v1/knowledge_bases", R"({"name": "rivers"})");
  const std::string chat = R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1)";
  const std::string documents = R"({"documents": [{"text": "the Rhine"}])";
  const std::pair<const char*, std::string> answering[] = {
      {"/v1/chat/completions", chat},
      {"/v1/messages", chat},
      {"/v1/responses", R"({"input": "hi")"},
      {"/v1/embeddings", R"({"messages": [{"role": "user", "content": "hi"}])"},
      {"/v1/rerank", R"({"query": "q", "documents": ["d"])"},
      {"/v1/score", R"({"text_1": "q", "text_2": "d")"},
      {"/v1/documents", documents},
      {"/v1/knowledge_bases/rivers/documents", documents}};
  const auto text = [](LiveServer& server, const char* path, const std::string& body) {
    const auto reply = server.post(path, body + "}");
    EXPECT_EQ(reply->status, 200) << path << reply->body;
    return server.engine->detokenize(server.engine->last_request().prompt.ids).value();
  };
  for (const auto& [path, body] : answering) {
    EXPECT_NE(text(running, path, body).find(R"("tone":"dry")"), std::string::npos) << path;
    EXPECT_EQ(text(plain, path, body).find("tone"), std::string::npos) << path;
  }
  const std::pair<const char*, std::string> counting[] = {{"/v1/messages/count_tokens", chat},
                                                          {"/v1/chat/completions/input_tokens", chat},
                                                          {"/v1/responses/input_tokens", R"({"input": "hi")"},
                                                          {"/tokenize", chat},
                                                          {"/apply-template", chat}};
  for (const auto& [path, body] : counting) {
    const auto told = running.post(path, body + "}"), untold = plain.post(path, body + "}");
    EXPECT_EQ(told->status, 200) << path << told->body;
    EXPECT_NE(told->body, untold->body) << path;
  }
}

TEST(ChatBody, LeastTokensAreHeldToByEveryRoute) {
  LiveServer running;
  const char* chat = R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, "min_tokens": 50)";
  for (const auto& [path, body] : {std::pair("/v1/chat/completions", chat),
                                   {"/v1/messages", chat},
                                   {"/v1/completions", R"({"prompt": "hi", "max_tokens": 60, "min_tokens": 50)"},
                                   {"/v1/responses", R"({"input": "hi", "max_output_tokens": 60, "min_tokens": 50)"}}) {
    for (const char* more : {"}", R"(, "temperature": 0})"}) {
      const Json reply = Json::parse(running.post(path, std::string(body) + more)->body);
      const Json& usage = reply["usage"];
      const Json& made = usage.contains("output_tokens") ? usage["output_tokens"] : usage["completion_tokens"];
      EXPECT_GE(made.get<int>(), 50) << path << reply;
    }
  }
}

TEST(ChatBody, TheServersWordsAreAnObject) {
  for (const char* wrong : {"[]", "3", "{", "{\"a\": }"}) {
    ServerOptions options{.port = 0};
    options.chat_template_kwargs = wrong;
    const auto server = kvilt::Server::listen(options);
    ASSERT_FALSE(server.ok()) << wrong;
    EXPECT_EQ(server.error().code, Code::kInvalidArgument);
    EXPECT_NE(server.error().message.find("--chat-template-kwargs"), std::string::npos) << server.error().message;
  }
}

TEST(ChatBody, DocumentsOfKnowledgeBasesAreFoundByEveryRoute) {
  LiveServer running;
  EXPECT_EQ(running.post("/v1/knowledge_bases", R"({"name": "rivers"})")->status, 200);
  EXPECT_EQ(running
                .post("/v1/knowledge_bases/rivers/documents",
                      R"({"documents": [{"id": "elbe", "title": "Elbe", "text": "1,094 km"}]})")
                ->status,
            200);
  const std::string chat = R"({"max_tokens": 1, "messages": [{"role": "user", "content": "how long?"}], "documents": )",
                    response = R"({"input": "how long?", "documents": )";
  const std::string named = R"([{"knowledge_base": "rivers", "id": "elbe"}]})",
                    sent = R"([{"title": "Elbe", "text": "1,094 km"}]})";
  for (const char* path : {"/v1/chat/completions", "/v1/messages", "/v1/responses"}) {
    const std::string& body = path == std::string("/v1/responses") ? response : chat;
    const auto ids = [&](const std::string& documents) {
      EXPECT_EQ(running.post(path, body + documents)->status, 200) << path;
      return running.engine->last_request().prompt.ids;
    };
    EXPECT_EQ(ids(named), ids(sent)) << path;
    EXPECT_NE(ids(named), ids("[]}")) << "power";
  }
  for (const char* path : {"/v1/chat/completions/input_tokens", "/v1/messages/count_tokens", "/tokenize",
                           "/apply-template", "/v1/responses/input_tokens"}) {
    const std::string& body = path == std::string("/v1/responses/input_tokens") ? response : chat;
    const auto counted = [&](const std::string& documents) { return running.post(path, body + documents)->body; };
    EXPECT_EQ(counted(named), counted(sent)) << path;
    EXPECT_NE(counted(named), counted("[]}")) << "power";
    EXPECT_EQ(running.post(path, body + R"([{"knowledge_base": "lakes"}]})")->status, 404) << path;
  }
}

}  // namespace
}  // namespace kvilt::server

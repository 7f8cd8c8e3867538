// Small bodies that would take much memory, large ones that come together, and policies that clients may not name.
#include <gtest/gtest.h>

#include <optional>

#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

std::string many_messages(int n) {
  std::string body = R"({"messages": [)";
  for (int i = 0; i < n; ++i) body += R"({"role":"u","content":"a"},)";
  body.back() = ']';
  return body + "}";
}

TEST(HostileBodies, MoreMessagesThanTokensAreRefusedBeforeTheyAreRendered) {
  LiveServer running;
  for (const char* path : {"/v1/chat/completions", "/tokenize"}) {
    const Json error = error_of(running.post(path, many_messages(300000)));
    EXPECT_EQ(error["message"], "messages: has 300000 entries; this model's context of 4096 tokens cannot hold them");
    EXPECT_EQ(error["param"], "messages");
    EXPECT_EQ(error["code"], "context_length_exceeded");
  }
  EXPECT_EQ(running.post("/tokenize", many_messages(4096))->status, 200) << "power check";
}

TEST(HostileBodies, ATextThatCannotFitIsRefusedBeforeItIsTokenised) {
  LiveServer running;
  const std::string text(1 << 20, 'a');
  const Json error = error_of(running.post("/v1/completions", R"({"prompt": ["b", ")" + text + "\"]}"));
  EXPECT_EQ(error["message"], "prompt[1]: has 1048576 bytes; this model's context of 4096 tokens holds 16384 at most");
  EXPECT_EQ(error["code"], "context_length_exceeded");
  const auto counted = running.post("/tokenize", R"({"prompt": ")" + text + "\"}");
  ASSERT_EQ(counted->status, 200) << "counting is not bounded by the context";
  EXPECT_EQ(Json::parse(counted->body)["count"], text.size() + 1);
}

TEST(HostileBodies, LargeBodiesThatComeTogetherAreAllAnswered) {
  LiveServer running;
  const std::string body = many_messages(220000);  // of 6 MB two fit in at once
  std::vector<std::thread> threads;
  std::atomic<int> refused{0};
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      const auto result = running.post("/tokenize", body);
      refused += result && result->status == 400;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 6);
}

TEST(HostileBodies, BodiesThatArriveTogetherAreBounded) {
  ServerOptions options;
  options.max_body_bytes = options.max_arriving_bytes = 100000;
  LiveServer running({}, options);
  std::optional<RawClient> slow;
  const std::string body = R"({"prompt": ")" + std::string(50000, 'a') + "\"}";
  ASSERT_TRUE(eventually([&] {  // if both arrive at once, either is the one that is refused: then again
    slow.emplace(running.server->port());
    slow->send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n" + std::string(80000, ' '));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const auto second = running.post("/tokenize", body);
    return second && second->status == 503 && error_of(second)["code"] == "overloaded" &&
           second->has_header("Retry-After");
  }));
  EXPECT_EQ(running.post("/tokenize", R"({"prompt": "b"})")->status, 200);
  slow->close();
  EXPECT_TRUE(eventually([&] { return running.post("/tokenize", body)->status == 200; }));
}

TEST(HostileBodies, PoliciesThatClientsMayName) {
  ServerOptions options;
  options.allow_policies = {"prefix", "naive"};
  LiveServer running({}, options);
  const auto ask = [&](const std::string& kvilt) {
    return running.post(
        "/v1/chat/completions",
        R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "kvilt": )" + kvilt + "}");
  };
  EXPECT_EQ(ask(R"({"policy": "naive"})")->status, 200);
  EXPECT_EQ(ask(R"({})")->status, 200) << "the server's own choice needs no leave";
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/documents"}) {
    const auto refused = running.post(path, R"({"messages": [{"role": "user", "content": "hi"}], "prompt": "hi",
        "documents": [{"text": "x"}], "kvilt": {"policy": "full"}})");
    ASSERT_EQ(refused->status, 403) << path;
    const Json error = error_of(refused);
    EXPECT_EQ(error["param"], "kvilt.policy");
    EXPECT_EQ(error["code"], "policy_not_allowed");
    EXPECT_EQ(error["message"],
              "policy 'full' may not be named here; this server allows prefix, naive (--allow-policies)");
  }
  EXPECT_EQ(ask(R"({"policy": "magic"})")->status, 400) << "a policy that there is not is a mistake, not a secret";
  const Json model = Json::parse(running.client().Get("/v1/models")->body)["data"][0];
  EXPECT_EQ(model["kvilt"]["policies"], Json::array({"prefix", "naive"}));
}

}  // namespace
}  // namespace kvilt::server

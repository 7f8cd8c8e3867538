// Documents that are computed before anybody asks: what is told of it meanwhile, over loopback, serving the fake engine.
#include "server/warming.h"

#include <gtest/gtest.h>

#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

constexpr const char* kThree =
    R"({"documents": [{"text": "hi there"}, {"text": "so long"}, {"text": "and on"}], "kvilt": {"season": 2}})";

class WarmingTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(running.post("/v1/knowledge_bases", R"({"name": "rivers"})")->status, 200); }
  LiveServer running{{.pool_tokens = 36}};  // room for two of the documents in one prompt
  static constexpr int kPasses = 2;         // over all of them
  const std::vector<std::string> routes = {"/v1/documents", "/v1/knowledge_bases/rivers/documents"};
};

TEST_F(WarmingTest, EventsTellOfDocumentsAndThenOfContexts) {
  for (const std::string& route : routes) {
    const auto reply = running.post(route + "?stream=true", kThree);
    ASSERT_EQ(reply->status, 200) << reply->body;
    EXPECT_EQ(reply->get_header_value("Content-Type"), "text/event-stream");
    EXPECT_TRUE(reply->body.ends_with("data: [DONE]\n\n"));
    const std::vector<Json> told = events(reply->body);
    ASSERT_EQ(told.size(), 3 + kPasses * 2 + 1u) << "one for each document and pass, and the end: " << reply->body;
    for (int i = 0; i < 7; ++i) {
      const Json& event = told[static_cast<size_t>(i)];
      const int passes = std::max(0, i - 2);
      EXPECT_EQ(event["object"], "kvilt.documents.progress");
      EXPECT_EQ(event["of"], 3);
      EXPECT_EQ(event["done"], std::min(i + 1, 3));
      EXPECT_EQ(event["seasoning"]["of"], 2);
      EXPECT_EQ(event["seasoning"]["contexts"], passes / kPasses) << "that all have had";
      EXPECT_TRUE(event["seasoning"]["without"].empty());
      EXPECT_EQ(event["seasoning"]["passes"], passes);
    }
    EXPECT_GE(told[6]["seasoning"]["tokens"], told[3]["seasoning"]["tokens"]);
    EXPECT_EQ(told[7]["object"], "kvilt.documents");
    EXPECT_EQ(told[7]["seasoning"]["contexts"], 2);
    EXPECT_EQ(told[7]["seasoning"]["tokens"], told[6]["seasoning"]["tokens"]);
    EXPECT_EQ(told[7]["documents"].size(), 3u);
    EXPECT_EQ(told[7]["documents"][0].contains("id"), route != routes[0]);
  }
}

TEST_F(WarmingTest, WithoutBeingAskedItSaysTheSameAtTheEnd) {
  for (const std::string& route : routes) {
    const auto reply = running.post(route, kThree);
    EXPECT_EQ(reply->get_header_value("Content-Type"), "application/json");
    const Json whole = Json::parse(reply->body);
    const auto streamed = running.client().Post(route, {{"Accept", "text/event-stream"}}, kThree, "application/json");
    const Json last = events(streamed->body).back();
    for (const char* field : {"object", "model"}) EXPECT_EQ(whole[field], last[field]);
    EXPECT_EQ(whole.contains("knowledge_base"), route != routes[0]);
    EXPECT_EQ(whole["seasoning"]["contexts"], 2);
    EXPECT_EQ(whole["documents"].size(), last["documents"].size());
  }
  const Json plain = Json::parse(running.post(routes[0], R"({"documents": [{"text": "a"}, {"text": "b"}]})")->body);
  EXPECT_FALSE(plain.contains("seasoning"));
  const auto one = running.post(routes[0] + "?stream=1", R"({"documents": [{"text": "a"}], "kvilt": {"season": 2}})");
  EXPECT_EQ(events(one->body).size(), 2u) << "one document has no contexts";
  EXPECT_FALSE(events(one->body).back().contains("seasoning"));
}

// A context counts where the engine added it, and the answer names who got none.
TEST_F(WarmingTest, WhatWasNotAddedDoesNotCount) {
  const auto seasoned = [](const LiveServer& by, const std::string& documents) {
    const auto reply = by.post("/v1/documents", R"({"documents": [)" + documents + R"(], "kvilt": {"season": 2}})");
    EXPECT_EQ(reply->status, 200) << reply->body;
    return Json::parse(reply->body)["seasoning"];
  };
  const std::string three = R"({"text": "hi there"}, {"text": "so"}, {"text": "and on"})";
  Json told = seasoned(running, three);
  EXPECT_EQ(told["contexts"], 2);
  EXPECT_EQ(told["without"], Json::array({1})) << "it is too short for a mean";
  const LiveServer wide{{.pool_tokens = 200}};
  const std::string loses = FakeEngine::kLosesMean;
  for (const int times : {1, 2}) {
    told = seasoned(wide, R"({"text": "hi there"}, {"text": ")" + loses + "\"}");
    EXPECT_EQ(told["contexts"], 1) << "one of them had to begin anew";
    EXPECT_EQ(told["passes"], 2);
    told = seasoned(wide, R"({"text": "hi there"}, {"text": "so long"})");
    EXPECT_EQ(told["contexts"], 2) << "power, and those of other calls do not count: " << times;
  }
  const LiveServer narrow{{.pool_tokens = 20}};  // no room for two
  told = seasoned(narrow, R"({"text": "hi there"}, {"text": "so long"})");
  EXPECT_EQ(told["contexts"], 0);
  EXPECT_EQ(told["passes"], 0);
  EXPECT_EQ(told["without"], Json::array({0, 1}));
}

TEST_F(WarmingTest, AFailureIsTheLastEvent) {
  const std::string body =
      R"({"documents": [{"text": "a"}, {"text": ")" + std::string(FakeEngine::kFailEarly) + "\"}]}";
  for (const std::string& route : routes) {
    const auto plain = running.post(route, body);
    const auto reply = running.post(route + "?stream=true", body);
    ASSERT_EQ(reply->status, 200);
    EXPECT_EQ(events(reply->body).back()["error"], error_of(plain)) << "the same, in an event";
    EXPECT_TRUE(reply->body.ends_with("data: [DONE]\n\n"));
    EXPECT_EQ(running.post(route + "?stream=true", R"({"documents": []})")->status, 400) << "what is known before";
  }
}

TEST_F(WarmingTest, WhoLeavesEndsIt) {
  running.engine->hold(true);
  {
    RawClient client(running.server->port());
    client.send(request("/v1/documents?stream=true", kThree));
    EXPECT_NE(client.receive("\r\n\r\n").find("text/event-stream"), std::string::npos);
    EXPECT_TRUE(eventually([&] { return running.engine->stats().waiting > 0; })) << "power: they were begun";
  }
  EXPECT_TRUE(eventually([&] { return running.engine->cancelled() == 3; }));
  running.engine->hold(false);
  EXPECT_EQ(running.post("/v1/documents", kThree)->status, 200);
}

// Places that others have are waited for as long as some are its own: what was computed is not lost.
TEST(WarmingBesideOthers, WaitsForPlacesInTheQueue) {
  FakeOptions fake;
  fake.max_queue = 2;
  LiveServer running(fake);
  running.engine->hold(true);
  std::thread other([&] { EXPECT_EQ(running.post("/v1/chat/completions", kChat)->status, 200); });
  EXPECT_TRUE(eventually([&] { return running.engine->stats().waiting == 1; }));
  std::thread warming([&] {
    const auto reply = running.post("/v1/documents", R"({"documents": [{"text": "a"}, {"text": "b"}, {"text": "c"}]})");
    EXPECT_EQ(reply->status, 200) << reply->body;
  });
  EXPECT_TRUE(eventually([&] { return running.engine->stats().waiting == 2; }));
  EXPECT_EQ(running.post("/v1/chat/completions", kChat)->status, 503) << "power: the queue is full";
  running.engine->hold(false);
  other.join();
  warming.join();
}

}  // namespace
}  // namespace kvilt::server

// Many documents by one request, over loopback, serving the fake engine.
#include "server/bulk_insert.h"

#include <gtest/gtest.h>

#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

constexpr const char* kBase = "/v1/knowledge_bases/rivers";
constexpr const char* kDocuments = "/v1/knowledge_bases/rivers/documents";
constexpr const char* kLines = "application/x-ndjson";

class BulkInsert : public testing::Test {
 protected:
  void start(FakeOptions fake = {}, ServerOptions options = {}) {
    running = std::make_unique<LiveServer>(fake, options);
    ASSERT_EQ(running->post("/v1/knowledge_bases", R"({"name": "rivers"})")->status, 200);
  }
  httplib::Result send(const std::string& body, const char* type = kLines, const char* query = "") const {
    return running->client().Post(std::string(kDocuments) + query, body, type);
  }
  Json summary(const std::string& body, const char* type = kLines) const {
    const auto reply = send(body, type);
    EXPECT_EQ(reply->status, 200) << reply->body;
    return Json::parse(reply->body);
  }
  Json listed() const { return Json::parse(running->client().Get(kDocuments)->body)["data"]; }

  std::unique_ptr<LiveServer> running;
};

std::string lines(int count, const std::string& text = "a text") {
  std::string out;
  for (int i = 0; i < count; ++i)
    out += R"({"id": "d)" + std::to_string(i) + R"(", "text": ")" + text + " " + std::to_string(i) + "\"}\n";
  return out;
}

TEST_F(BulkInsert, LinesBecomeDocuments) {
  start();
  const Json told = summary(lines(300) + R"({"title": "Elbe", "text": "1,094 km"})");
  EXPECT_EQ(told["stored"], 301);
  EXPECT_EQ(told["computed"], 301);
  EXPECT_EQ(told["bad_count"], 0);
  EXPECT_GT(told["tokens"], 301);
  ASSERT_EQ(listed().size(), 301u);
  EXPECT_EQ(listed()[299]["id"], "d299");
  EXPECT_EQ(listed()[300]["title"], "Elbe");
  EXPECT_TRUE(running->engine->last_request().frozen_as.starts_with("rivers/")) << "they are frozen as others are";
  EXPECT_GT(summary(lines(3))["usage"]["kvilt"]["prefix"], 3) << "sent again they are there, and known";
  EXPECT_EQ(listed().size(), 301u);
}

TEST_F(BulkInsert, ABadLineIsNamedAndTheOthersGoOn) {
  start();
  const Json told = summary(R"({"id": "a", "text": "one"}
{"id": "b", "text": 7}

{"id": "c"
["text"]
{"id": "a/b", "text": "two"}
{"id": "a", "text": "again"}
{"id": ")"
                            "z\", \"text\": \"\xff\"}\n"
                            R"({"id": "d", "text": "last"})");
  EXPECT_EQ(told["stored"], 2);
  EXPECT_EQ(told["bad_count"], 6);
  const auto bad = [&](size_t i, int line, const std::string& why) {
    EXPECT_EQ(told["bad"][i]["line"], line);
    EXPECT_NE(told["bad"][i]["message"].get<std::string>().find(why), std::string::npos) << told["bad"][i];
  };
  bad(0, 2, "text: is required and must be a string");
  bad(1, 4, "is not valid JSON: syntax error");
  bad(2, 5, "must be an object");
  bad(3, 6, "id: must be 1 to 128");
  bad(4, 7, "'a' is there already, in number 1");
  bad(5, 8, "UTF-8");
  EXPECT_EQ(listed()[1]["id"], "d");
  EXPECT_EQ(Json::parse(running->client().Get(std::string(kDocuments) + "/a")->body)["text"], "one");
}

TEST_F(BulkInsert, ADocumentThatTheContextCannotHoldIsABadLine) {
  start();
  const Json told = summary(R"({"text": ")" + std::string(5000, 'a') + "\"}\n" + lines(1));
  EXPECT_EQ(told["stored"], 1);
  EXPECT_EQ(told["bad"][0]["line"], 1);
  EXPECT_NE(told["bad"][0]["message"].get<std::string>().find("context is 4096"), std::string::npos);
}

TEST_F(BulkInsert, EventsTellHowFarItIs) {
  start();
  const auto reply = send("no JSON\n" + lines(100), kLines, "?stream=true");
  ASSERT_EQ(reply->get_header_value("Content-Type"), "text/event-stream");
  const std::vector<Json> told = events(reply->body);
  ASSERT_GT(told.size(), 101u) << "one for each document";
  EXPECT_EQ(told[0]["object"], "kvilt.documents.progress");
  EXPECT_EQ(told[0]["done"], 0);
  ASSERT_EQ(told[0]["bad"].size(), 1u);
  EXPECT_EQ(told[0]["bad"][0]["line"], 1);
  EXPECT_EQ(told[1]["bad"].size(), 0u) << "each is told once";
  int64_t done = 0;
  for (const Json& event : told) {
    if (event["object"] != "kvilt.documents.progress") continue;
    EXPECT_GE(event["done"], done);
    EXPECT_LE(event["done"], event["of"]);
    done = event["done"];
  }
  EXPECT_EQ(done, 100);
  EXPECT_EQ(told.back()["object"], "kvilt.documents.summary");
  EXPECT_EQ(told.back()["stored"], 100);
  EXPECT_EQ(told.back()["bad_count"], 1);
  EXPECT_TRUE(reply->body.ends_with("data: [DONE]\n\n"));
  const auto accepted = running->client().Post(kDocuments, {{"Accept", "text/event-stream"}}, lines(1), kLines);
  EXPECT_EQ(events(accepted->body).back()["computed"], 1);
}

TEST_F(BulkInsert, FilesOfAForm) {
  start();
  const httplib::MultipartFormDataItems files = {
      {"settings", R"({"cache_salt": "mine", "messages": [{"role": "user", "content": "x"}]})", "", "application/json"},
      {"file", "The Rhine\nis long.", "rhine.txt", "text/plain"},
      {"file", "The Elbe is not.", "the elbe.txt", "text/plain"},
      {"note", "no file", "", ""},
      {"file", "\xff\xfe", "picture.png", "image/png"}};
  const auto reply = running->client().Post(kDocuments, files);
  ASSERT_EQ(reply->status, 200) << reply->body;
  const Json told = Json::parse(reply->body);
  EXPECT_EQ(told["stored"], 2);
  ASSERT_EQ(told["bad"].size(), 2u);
  EXPECT_EQ(told["bad"][0]["part"], 4);
  EXPECT_EQ(told["bad"][1]["file"], "picture.png");
  EXPECT_NE(told["bad"][1]["message"].get<std::string>().find("UTF-8"), std::string::npos);
  const Json all = listed();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["id"], "rhine.txt");
  EXPECT_TRUE(all[1]["id"].get<std::string>().starts_with("doc-")) << "its name is none for a document";
  EXPECT_EQ(all[1]["title"], "the elbe.txt");
  const Json rhine = Json::parse(running->client().Get(std::string(kDocuments) + "/rhine.txt")->body);
  EXPECT_EQ(rhine["text"], "The Rhine\nis long.");
  EXPECT_EQ(running->engine->last_request().cache_salt, "mine");
}

TEST_F(BulkInsert, SettingsComeFirst) {
  start();
  EXPECT_EQ(summary(R"({"settings": {"cache_salt": "mine"}})"
                    "\n" +
                    lines(2))["stored"],
            2);
  EXPECT_EQ(running->engine->last_request().cache_salt, "mine");
  EXPECT_EQ(summary(R"({"text": "what \"settings\" are"})")["stored"], 1) << "power: a text with the word is one";
  const auto refused = [&](const std::string& settings, const std::string& why) {
    const Json error = error_of(send(R"({"settings": )" + settings + "}\n" + lines(1)));
    EXPECT_NE(error["message"].get<std::string>().find(why), std::string::npos) << error;
  };
  refused("[]", "must be an object");
  refused(R"({"documents": []})", "come by themselves");
  refused(R"({"kvilt": {"season": 2}})", "not for documents in bulk");
  refused(R"({"kvilt": {"policy": "none"}})", "none");
  refused(R"({"model": "other"})", "is not served here");
  EXPECT_EQ(listed().size(), 3u);
}

TEST_F(BulkInsert, NothingThatIsTakenIsAnError) {
  start();
  const auto error = [&](const std::string& body, int status, const char* type = kLines) {
    const auto reply = send(body, type);
    EXPECT_EQ(reply->status, status) << reply->body;
    return error_of(reply)["message"].get<std::string>();
  };
  EXPECT_EQ(error("", 400), "the body has no documents");
  EXPECT_EQ(error("\n{}\n", 400), "no document was taken of 1: line 2: text: is required and must be a string");
  EXPECT_NE(error("x", 400, "multipart/form-data").find("boundary"), std::string::npos);
  EXPECT_NE(error("x", 415, "text/plain").find("Content-Type"), std::string::npos);
  EXPECT_EQ(running->client().Post("/v1/knowledge_bases/lakes/documents", lines(1), kLines)->status, 404);
  EXPECT_EQ(running->client().Post("/v1/chat/completions", lines(1), kLines)->status, 415) << "of this route alone";
  const auto streamed = send("{}", kLines, "?stream=true");
  EXPECT_EQ(streamed->status, 200);
  EXPECT_TRUE(events(streamed->body).back().contains("error")) << streamed->body;
}

TEST_F(BulkInsert, WhatATenantHasNoRoomForIsNamed) {
  ServerOptions options;
  options.knowledge_bytes = 1000;
  start({}, options);
  const std::string long_text(600, 'a');
  const Json told = summary(lines(1) + lines(1, long_text).replace(8, 2, "x0") +
                            lines(1, long_text).replace(8, 2, "y0") + lines(1, "short").replace(8, 2, "z0"));
  EXPECT_EQ(told["stored"], 3);
  ASSERT_EQ(told["bad_count"], 1);
  EXPECT_EQ(told["bad"][0]["line"], 3);
  EXPECT_NE(told["bad"][0]["message"].get<std::string>().find("--knowledge-bytes"), std::string::npos);
  EXPECT_EQ(send(lines(1, long_text).replace(8, 2, "w0"))->status, 429);
}

TEST_F(BulkInsert, WhoLeavesKeepsWhatIsIn) {
  start();
  running->engine->hold(true);
  {
    RawClient client(running->server->port());
    const std::string body = lines(20);
    client.send("POST " + std::string(kDocuments) + "?stream=true HTTP/1.1\r\nHost: x\r\nContent-Type: " + kLines +
                "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    EXPECT_NE(client.receive("\"of\":20").find("\"done\":0"), std::string::npos);
    EXPECT_TRUE(eventually([&] { return running->engine->stats().waiting > 0; })) << "power: they were begun";
  }
  EXPECT_TRUE(eventually([&] { return running->engine->cancelled() > 0; }));
  EXPECT_TRUE(eventually([&] {  // the fake counts one as running before it is told as cancelled
    const EngineStats stats = running->engine->stats();
    return stats.waiting + stats.running == 0;
  }));
  running->engine->hold(false);
  EXPECT_EQ(listed().size(), 20u);
  EXPECT_EQ(running->engine->stats().requests_ok, 0u) << "nothing was computed of them";
}

TEST_F(BulkInsert, ADocumentThatFailsIsNamedAndTheOthersGoOn) {
  start();
  const Json told = summary(R"({"id": "bad", "text": ")" + std::string(FakeEngine::kFailEarly) + "\"}\n" + lines(20));
  EXPECT_EQ(told["stored"], 21);
  EXPECT_EQ(told["computed"], 20);
  ASSERT_EQ(told["not_computed"].size(), 1u);
  EXPECT_EQ(told["not_computed"][0]["id"], "bad");
}

// A tenant's places are its other requests' too: what waits for one is not lost.
TEST_F(BulkInsert, ItWaitsForAPlace) {
  ServerOptions options;
  options.tenants = {{.name = "a", .keys = {ApiKey::of("key-of-a-0123456789", false)}, .max_requests = 1}};
  running = std::make_unique<LiveServer>(FakeOptions{}, options);
  const httplib::Headers key = {{"Authorization", "Bearer key-of-a-0123456789"}};
  ASSERT_EQ(running->post("/v1/knowledge_bases", R"({"name": "rivers"})", key)->status, 200);
  running->engine->hold(true);
  std::thread other([&] { EXPECT_EQ(running->post("/v1/chat/completions", kChat, key)->status, 200); });
  EXPECT_TRUE(eventually([&] { return running->engine->stats().waiting == 1; }));
  std::thread bulk([&] {
    const auto reply = running->client().Post(kDocuments, key, lines(10), kLines);
    EXPECT_EQ(Json::parse(reply->body)["computed"], 10) << reply->body;
  });
  EXPECT_TRUE(eventually([&] { return Json::parse(running->client().Get(kBase, key)->body)["documents"] == 10; }));
  running->engine->hold(false);
  other.join();
  bulk.join();
}

TEST_F(BulkInsert, ItTakesHalfOfItsTenantsPlaces) {
  ServerOptions options;
  options.tenants = {{.name = "a", .keys = {ApiKey::of("key-of-a-0123456789", false)}, .max_requests = 4}};
  running = std::make_unique<LiveServer>(FakeOptions{}, options);
  const httplib::Headers key = {{"Authorization", "Bearer key-of-a-0123456789"}};
  ASSERT_EQ(running->post("/v1/knowledge_bases", R"({"name": "rivers"})", key)->status, 200);
  running->engine->hold(true);
  std::thread bulk([&] {
    const auto reply = running->client().Post(kDocuments, key, lines(10), kLines);
    EXPECT_EQ(Json::parse(reply->body)["computed"], 10) << reply->body;
  });
  EXPECT_TRUE(eventually([&] { return running->engine->stats().waiting >= 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(120));  // it looks for more places a few times
  EXPECT_EQ(running->engine->stats().waiting, 2);
  std::thread question([&] { EXPECT_EQ(running->post("/v1/chat/completions", kChat, key)->status, 200); });
  EXPECT_TRUE(eventually([&] { return running->engine->stats().waiting == 3; }));
  running->engine->hold(false);
  bulk.join();
  question.join();
}

}  // namespace
}  // namespace kvilt::server

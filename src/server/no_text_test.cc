// With keep_no_text a word of a prompt is neither in the log nor in what any route tells later; without it, it is in all
// of these places.
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>

#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

constexpr const char* kSecret = "Zanzibar";

// What is logged while it lives, from debug on.
class LogForTest {
 public:
  LogForTest() : before_(spdlog::default_logger()) {
    auto log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_));
    log->set_level(spdlog::level::debug);
    spdlog::set_default_logger(std::move(log));
  }
  ~LogForTest() { spdlog::set_default_logger(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_;
};

// As a library may: it quotes what it read.
class QuotingEngine : public FakeEngine {
 public:
  Result<std::vector<int32_t>> tokenize(std::string_view text, bool special, bool add_special) const override {
    if (text.find("quote") == std::string_view::npos) return FakeEngine::tokenize(text, special, add_special);
    throw std::runtime_error("last read: " + std::string(text));
  }
};

bool tells(const std::string& text) { return text.find(kSecret) != std::string::npos; }

class NoTextTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Kept, NoTextTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "KeepNoText" : "Kept"; });

TEST_P(NoTextTest, ASecretWordIsToldNowhere) {
  ServerOptions options;
  options.keep_no_text = GetParam();
  options.show_text = !GetParam();
  const bool told = !GetParam();
  std::string later, log;
  {
    LogForTest logged;
    LiveServer running({}, options, false);
    running.server->attach(std::make_shared<QuotingEngine>());
    const auto post = [&](const char* path, const Json& body) { return running.post(path, dump(body)); };
    const std::string secret = std::string("the word is ") + kSecret;
    const Json messages = {{{"role", "user"}, {"content", secret}}};
    for (int i = 0; i < 2; ++i) {  // the second differs from the first, which is what diagnostics tell
      const Json asked = {{"messages", {{{"role", "user"}, {"content", secret + " and " + std::to_string(i)}}}},
                          {"kvilt", {{"diagnostics", true}}}};
      EXPECT_EQ(post("/v1/chat/completions", asked)->status, 200);
    }
    const Json response = Json::parse(post("/v1/responses", {{"input", secret}, {"instructions", secret}})->body);
    EXPECT_EQ(response["store"], told);
    EXPECT_EQ(post("/v1/knowledge_bases", {{"name", "base"}})->status == 200, told);
    const Json documents = {{"documents", {{{"id", "a"}, {"title", secret}, {"text", secret}}}}};
    const auto put = post("/v1/knowledge_bases/base/documents", documents);
    EXPECT_EQ(put->status == 200, told) << put->body;
    EXPECT_EQ(post("/tokenize", {{"prompt", secret + " quote"}})->status, 500);
    EXPECT_EQ(running.client().Get(std::string("/v1/responses/") + kSecret)->status, 404);

    const std::string id = response["id"];
    const auto read = [&](const std::string& path) {
      const auto got = running.client().Get(path);
      later += path + ": " + (got ? got->body : "nothing") + "\n";
      return got && tells(got->body);
    };
    EXPECT_EQ(read("/v1/responses/" + id), told);
    EXPECT_EQ(read("/v1/responses/" + id + "/input_items"), told);
    EXPECT_EQ(read("/v1/knowledge_bases/base/documents"), told);
    const auto requests = running.client().Get("/v1/requests");
    const Json list = Json::parse(requests->body)["data"];
    EXPECT_EQ(list.empty(), !told);
    bool records = false;
    for (const Json& record : list) records = read("/v1/requests/" + record["id"].get<std::string>()) || records;
    EXPECT_EQ(records, told);
    for (const char* path : {"/v1/requests", "/metrics", "/slots", "/props", "/health", "/v1/models"}) read(path);
    log = logged.text();
  }
  EXPECT_EQ(tells(later), told) << later;
  EXPECT_EQ(tells(log), told) << log;
  EXPECT_NE(log.find("/tokenize") != std::string::npos, GetParam()) << log;
  EXPECT_NE(log.find("error"), std::string::npos) << "that something went wrong is logged";
}

TEST(KeepNoText, WhatItContradictsIsAnError) {
  const auto why = [](ServerOptions options) {
    options.port = 0;
    const auto server = Server::listen(options);
    return server.ok() ? std::string() : server.error().message;
  };
  ServerOptions options;
  options.keep_no_text = true;
  EXPECT_EQ(why(options), "") << "power";
  options.show_text = true;
  EXPECT_NE(why(options).find("--show-text"), std::string::npos);
  options.show_text = false;
  options.knowledge_dir = testing::TempDir() + "kvilt_no_text";
  EXPECT_NE(why(options).find("--knowledge-dir"), std::string::npos);
}

}  // namespace
}  // namespace kvilt::server

// The whole server over loopback, with the fake engine behind it and hostile clients before it.
#include "server/server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "server/fake_engine.h"
#include "server/json_fields.h"

namespace kvilt::server {
namespace {

using std::chrono::milliseconds;

// Waits until a condition holds; bounded, so that a failure ends.
bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 1000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

class Running {
 public:
  explicit Running(FakeOptions fake = {}, ServerOptions options = {}, bool attach = true)
      : engine(std::make_shared<FakeEngine>(fake)) {
    options.port = 0;
    auto listening = kvilt::Server::listen(options);
    EXPECT_TRUE(listening.ok());
    server = std::move(listening.value());
    thread_ = std::thread([this] { server->run(); });
    if (attach) server->attach(engine);
  }
  ~Running() {
    server->shutdown();
    thread_.join();
  }

  httplib::Client client() const {
    httplib::Client client("127.0.0.1", server->port());
    client.set_read_timeout(20);
    return client;
  }
  httplib::Result post(const std::string& path, const std::string& body, const httplib::Headers& headers = {}) const {
    return client().Post(path, headers, body, "application/json");
  }

  std::shared_ptr<FakeEngine> engine;
  std::unique_ptr<kvilt::Server> server;

 private:
  std::thread thread_;
};

// A client that sends bytes, not requests.
class Raw {
 public:
  explicit Raw(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Raw() { close(); }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  bool connected() const { return connected_; }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Reads until the text holds `until`, the end of the connection, or a while without anything.
  std::string receive(const std::string& until = "", int patience_ms = 10000) {
    std::string text;
    char block[4096];
    while (until.empty() || text.find(until) == std::string::npos) {
      pollfd poller{socket_, POLLIN, 0};
      if (::poll(&poller, 1, patience_ms) <= 0) break;
      const ssize_t n = ::recv(socket_, block, sizeof block, 0);
      if (n <= 0) {
        ended_ = true;
        break;
      }
      text.append(block, static_cast<size_t>(n));
    }
    return text;
  }
  bool ended() const { return ended_; }

 private:
  int socket_;
  bool connected_ = false, ended_ = false;
};

std::string request(const std::string& path, const std::string& body) {
  return "POST " + path +
         " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

constexpr const char* kChat = R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0})";
constexpr const char* kLong =
    R"({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true, "max_tokens": 4000, "stream": false})";
constexpr const char* kLongStream =
    R"({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true, "max_tokens": 4000, "stream": true})";

Json error_of(const httplib::Result& result) {
  EXPECT_TRUE(result);
  if (!result) return nullptr;
  EXPECT_GE(result->status, 400);
  const Json json = Json::parse(result->body, nullptr, false);
  EXPECT_TRUE(json.is_object() && json.contains("error")) << result->body;
  return json.is_object() && json.contains("error") ? json["error"] : Json(Json::object());
}

std::vector<Json> events(const std::string& body) {
  std::vector<Json> list;
  size_t at = 0;
  while ((at = body.find("data: ", at)) != std::string::npos) {
    at += 6;
    const std::string line = body.substr(at, body.find("\n\n", at) - at);
    if (line != "[DONE]") list.push_back(Json::parse(line));
  }
  return list;
}

TEST(ServerTest, LoadsThenServes) {
  Running running({}, {}, false);
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
  Running running;
  ServerOptions options;
  options.port = running.server->port();
  auto second = kvilt::Server::listen(options);
  // SO_REUSEPORT would share the port silently and half of the requests would go to the wrong server.
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find(std::to_string(options.port)), std::string::npos);
}

TEST(ServerTest, StreamEqualsWhole) {
  Running running;
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

TEST(ServerTest, ChoicesPromptsAndEcho) {
  Running running;
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

TEST(ServerTest, FieldsReachTheEngine) {
  Running running;
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

TEST(ServerTest, Errors) {
  FakeOptions fake;
  fake.context = 64;
  Running running(fake);
  const auto post = [&](const std::string& body) { return running.post("/v1/chat/completions", body); };
  EXPECT_EQ(error_of(post("{"))["code"], "invalid_json");
  EXPECT_EQ(error_of(post(std::string(2'000'000, '[')))["type"], "invalid_request_error");
  EXPECT_EQ(error_of(post("\xff\xfe"))["code"], "invalid_json");
  EXPECT_EQ(error_of(post(R"({"messages": [{"role": "user", "content": 5}]})"))["param"], "messages");
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
  Running running;
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
  Running running(fake);
  Raw first(running.server->port());
  first.send(request("/v1/chat/completions", kLong));
  ASSERT_TRUE(eventually([&] { return running.engine->stats().running == 1; }));
  auto second = running.post("/v1/chat/completions", kChat);
  EXPECT_EQ(second->status, 503);
  EXPECT_EQ(second->get_header_value("Retry-After"), "1");
}

TEST(ServerTest, ApiKey) {
  ServerOptions options;
  options.api_key = "se%41cret";  // httplib would decode it
  Running running({}, options);
  EXPECT_EQ(running.client().Get("/health")->status, 200);
  EXPECT_EQ(running.client().Get("/metrics")->status, 200);
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

TEST(ServerTest, OtherOrigins) {
  Running closed;
  const httplib::Headers other = {{"Origin", "http://evil.example"}};
  EXPECT_EQ(closed.post("/v1/chat/completions", kChat, other)->status, 403);
  const httplib::Headers own = {{"Origin", "http://127.0.0.1:" + std::to_string(closed.server->port())}};
  EXPECT_EQ(closed.post("/v1/chat/completions", kChat, own)->status, 200);
  ServerOptions options;
  options.allow_origin = "http://good.example";
  Running open({}, options);
  const httplib::Headers good = {{"Origin", "http://good.example"}};
  auto reply = open.post("/v1/chat/completions", kChat, good);
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->get_header_value("Access-Control-Allow-Origin"), "http://good.example");
  EXPECT_EQ(open.client().Options("/v1/chat/completions", good)->status, 204);
  EXPECT_EQ(open.post("/v1/chat/completions", kChat, other)->status, 403);
}

TEST(ServerTest, TokensAndDocuments) {
  Running running;
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
  EXPECT_EQ(running.post("/v1/cache/clear", "")->status, 200);
}

TEST(ServerTest, VanishedClientsAreCancelled) {
  FakeOptions fake;
  fake.seconds_per_token = 0.005;  // 4,000 tokens would take 20 s
  Running running(fake);
  Raw streaming(running.server->port()), whole(running.server->port());
  streaming.send(request("/v1/chat/completions", kLongStream));
  whole.send(request("/v1/chat/completions", kLong));
  EXPECT_NE(streaming.receive("content\":\"").find("200 OK"), std::string::npos);
  ASSERT_TRUE(eventually([&] { return running.engine->stats().running == 2; }));
  streaming.close();
  EXPECT_TRUE(eventually([&] { return running.engine->cancelled() == 1; }));
  whole.close();
  EXPECT_TRUE(eventually([&] { return running.engine->cancelled() == 2; }));
  EXPECT_EQ(running.engine->stats().running, 0);
  EXPECT_EQ(running.engine->stats().requests_ok, 0u);
}

TEST(ServerTest, WarmingIsCancelledToo) {
  FakeOptions fake;
  fake.seconds_per_token = 0.05;
  fake.max_running = 1;
  Running running(fake);
  Json body = {{"documents", Json::array()}};
  for (int i = 0; i < 200; ++i) body["documents"].push_back({{"text", "document " + std::to_string(i)}});
  Raw client(running.server->port());
  client.send(request("/v1/documents", body.dump()));
  ASSERT_TRUE(eventually([&] { return running.engine->stats().waiting > 0; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return running.engine->cancelled() > 0; }));
  EXPECT_TRUE(eventually([&] { return running.engine->stats().running + running.engine->stats().waiting == 0; }));
}

TEST(ServerTest, ClientThatNeverReads) {
  FakeOptions fake;
  fake.context = 1 << 20;
  Running running(fake);  // as fast as it can
  Raw client(running.server->port());
  client.send(request("/v1/chat/completions",
                      R"({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true, "stream": true})"));
  EXPECT_TRUE(eventually([&] { return running.engine->cancelled() == 1; }));
  EXPECT_EQ(running.post("/v1/chat/completions", kChat)->status, 200);
}

TEST(ServerTest, SlowHeadsAndBodies) {
  ServerOptions options;
  options.request_timeout_s = 0.3;
  options.idle_timeout_s = 0.3;
  Running running({}, options);
  Raw idle(running.server->port()), head(running.server->port()), body(running.server->port());
  head.send("POST /v1/chat");
  body.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"mess");
  EXPECT_EQ(idle.receive(), "");
  EXPECT_TRUE(idle.ended());
  EXPECT_NE(head.receive().find("408"), std::string::npos);
  EXPECT_NE(body.receive().find("400"), std::string::npos);
  EXPECT_TRUE(body.ended());
}

TEST(ServerTest, OversizedBodies) {
  ServerOptions options;
  options.max_body_bytes = 10000;
  Running running({}, options);
  auto declared = running.post("/v1/chat/completions", std::string(20000, ' ') + kChat);
  EXPECT_EQ(declared->status, 413);
  EXPECT_EQ(error_of(declared)["type"], "invalid_request_error");
  EXPECT_EQ(running.post("/v1/chat/completions", std::string(5000, ' ') + kChat)->status, 200);

  const std::string head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string block = "400\r\n" + std::string(1024, ' ') + "\r\n";
  Raw chunked(running.server->port());
  chunked.send(head);
  for (int i = 0; i < 100; ++i) chunked.send(block);
  EXPECT_NE(chunked.receive().find("413"), std::string::npos);
  Raw tiny(running.server->port());  // one byte a chunk
  tiny.send(head);
  for (int i = 0; i < 20000; ++i) tiny.send("1\r\n \r\n");
  EXPECT_NE(tiny.receive().find("413"), std::string::npos);
  Raw fits(running.server->port());
  fits.send(head + block + "0\r\n\r\n");
  EXPECT_NE(fits.receive("}}", 2000).find("not valid JSON"), std::string::npos);
  Raw huge(running.server->port());
  huge.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n");
  EXPECT_NE(huge.receive().find("413"), std::string::npos);
}

TEST(ServerTest, BadHeads) {
  Running running;
  const std::pair<std::string, const char*> cases[] = {
      {"\x16\x03\x01garbage\r\n\r\n", "400"},
      {"GET / HTTP/9.9\r\n\r\n", "400"},
      {"GET /\r\n\r\n", "400"},
      {"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "400"},
      {"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "400"},
      {"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", "400"},
      {"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", "400"},
      {"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", "400"},
      {"POST /v1/chat/completions HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde", "415"},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", "411"},
      {"GET /health HTTP/1.1\r\nbad line\r\n\r\n", "400"},
      {"GET /health HTTP/1.1\r\nContent-Length : 5\r\n\r\n", "400"},
      {"GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n\r\n", "414"},
      {"GET /" + std::string(3000, 'a') + " HTTP/1.1\r\n\r\n", "414"},
      {"GET / HTTP/1.1\r\nX: " + std::string(40000, 'a') + "\r\n\r\n", "431"},
      {"GET / HTTP/1.1\r\n" + std::string(100000, 'a'), "431"},
      {"BREW /coffee HTTP/1.1\r\n\r\n", "400"},
      {"TRACE / HTTP/1.1\r\n\r\n", "405"},
  };
  for (const auto& [bytes, status] : cases) {
    Raw client(running.server->port());
    client.send(bytes);
    const std::string reply = client.receive("}}");
    EXPECT_EQ(reply.rfind(std::string("HTTP/1.1 ") + status, 0), 0u)
        << bytes.substr(0, 80) << "\n-> " << reply.substr(0, 300);
    EXPECT_NE(reply.find("\"error\""), std::string::npos) << reply.substr(0, 300);
  }
  // A Range that httplib's regex would recurse over, and one that would multiply the answer.
  for (const std::string& range : {std::string(8000, '1'), [] {
                                     std::string many = "0-";
                                     for (int i = 0; i < 2000; ++i) many += ",0-";
                                     return many;
                                   }()}) {
    Raw client(running.server->port());
    client.send("GET / HTTP/1.1\r\nHost: x\r\nRange: bytes=" + range + "\r\nConnection: close\r\n\r\n");
    const std::string reply = client.receive();
    EXPECT_EQ(reply.rfind("HTTP/1.1 200", 0), 0u);
    EXPECT_LT(reply.size(), 20000u);
  }
}

TEST(ServerTest, OneConnectionManyRequests) {
  Running running;
  Raw client(running.server->port());
  client.send(request("/v1/completions", R"({"prompt": "a", "max_tokens": 3})") +
              request("/v1/completions", R"({"prompt": "b", "max_tokens": 3})") +
              "GET /health HTTP/1.1\r\nConnection: close\r\n\r\n");
  const std::string replies = client.receive();
  size_t answers = 0, at = 0;
  while ((at = replies.find("HTTP/1.1 200 OK", at)) != std::string::npos) ++answers, ++at;
  EXPECT_EQ(answers, 3u) << replies;
  EXPECT_TRUE(client.ended());
}

TEST(ServerTest, MoreConnectionsThanThreads) {
  FakeOptions fake;
  fake.seconds_per_token = 0.005;
  ServerOptions options;
  options.max_connections = 4;
  Running running(fake, options);
  std::vector<std::unique_ptr<Raw>> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(std::make_unique<Raw>(running.server->port()));
    streams.back()->send(request("/v1/chat/completions", kLongStream));
    EXPECT_NE(streams.back()->receive("content\":\"").find("200 OK"), std::string::npos);
  }
  auto refused = running.client().Get("/health");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(error_of(refused)["type"], "server_error");
  streams.pop_back();
  EXPECT_TRUE(eventually([&] {
    auto reply = running.client().Get("/health");
    return reply && reply->status == 200;
  }));
}

TEST(ServerTest, IdleConnectionsGiveWay) {
  ServerOptions options;
  options.max_connections = 2;
  Running running({}, options);
  std::vector<std::unique_ptr<Raw>> idle;
  for (int i = 0; i < 2; ++i) {
    idle.push_back(std::make_unique<Raw>(running.server->port()));
    idle.back()->send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_NE(idle.back()->receive("ok").find("200"), std::string::npos);
  }
  EXPECT_TRUE(eventually([&] {
    auto reply = running.client().Get("/health");
    return reply && reply->status == 200;
  }));
}

TEST(ServerTest, ManyClientsAtOnce) {
  Running running;
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 5; ++j) {
        Json body = Json::parse(kChat);
        body["messages"][0]["content"] = "client " + std::to_string(i);
        body["stream"] = j % 2 == 0;
        auto reply = running.post("/v1/chat/completions", body.dump());
        good += reply && reply->status == 200;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 80);
}

TEST(ServerTest, ShutdownLetsRequestsFinish) {
  FakeOptions fake;
  fake.seconds_per_token = 0.005;
  Running running(fake);
  Raw client(running.server->port()), idle(running.server->port());
  client.send(request(
      "/v1/chat/completions",
      R"({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true, "max_tokens": 60, "stream": true})"));
  ASSERT_TRUE(eventually([&] { return running.engine->stats().running == 1; }));
  std::thread stopper([&] { running.server->shutdown(); });
  const std::string reply = client.receive();
  stopper.join();
  EXPECT_NE(reply.find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_NE(reply.find("[DONE]"), std::string::npos);
  EXPECT_EQ(idle.receive(), "");
  EXPECT_TRUE(idle.ended());
  Raw late(running.server->port());
  EXPECT_FALSE(late.connected());
}

TEST(ServerTest, ShutdownEndsWhatTakesTooLong) {
  FakeOptions fake;
  fake.seconds_per_token = 0.01;
  ServerOptions options;
  options.shutdown_s = 0.2;
  Running running(fake, options);
  Raw streaming(running.server->port()), whole(running.server->port());
  streaming.send(request("/v1/chat/completions", kLongStream));
  whole.send(request("/v1/chat/completions", kLong));
  ASSERT_TRUE(eventually([&] { return running.engine->stats().running == 2; }));
  running.server->shutdown();
  EXPECT_NE(streaming.receive().find("\"code\":\"cancelled\""), std::string::npos);
  EXPECT_NE(whole.receive().find("HTTP/1.1 503"), std::string::npos);
}

TEST(ServerTest, EndsBeforeItRan) {
  ServerOptions options;
  options.port = 0;
  auto server = kvilt::Server::listen(options);
  ASSERT_TRUE(server.ok());
  server.value()->shutdown();
  server.value()->run();  // returns at once
}

// Random bytes and broken requests: each ends, and the server still answers.
TEST(ServerTest, Fuzz) {
  ServerOptions options;
  options.request_timeout_s = 0.05;
  Running running({}, options);
  std::mt19937 random(11);
  const std::string whole = request("/v1/chat/completions", kChat);
  for (int round = 0; round < 100; ++round) {
    std::string bytes = whole;
    const int edits = static_cast<int>(random() % 6);
    for (int i = 0; i < edits; ++i) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, random() % 20);
          break;
        case 2:
          bytes.insert(at, std::string(random() % 50, static_cast<char>(random())));
          break;
        case 3:
          bytes.resize(at + 1);
          break;
      }
      if (bytes.empty()) bytes = "x";
    }
    Raw client(running.server->port());
    client.send(bytes);
    if (round % 3) client.receive("}", 250);
  }
  auto after = running.post("/v1/chat/completions", kChat);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->status, 200);
}

}  // namespace
}  // namespace kvilt::server

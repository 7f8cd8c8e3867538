// Who is let in, as whom, and what a tenant may take; the file that says so; and over HTTP, what each role may.
#include "server/tenants.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "base/reserved_tenants.h"
#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

using std::chrono::seconds;

ServerOptions two_tenants() {
  ServerOptions options;
  options.tenants = {{.name = "red", .keys = {ApiKey::of("red's key", false), ApiKey::of("red's admin", true)}},
                     {.name = "blue", .keys = {ApiKey::of("blue's key", false)}, .max_requests = 1}};
  return options;
}

httplib::Headers with_key(const std::string& key) { return {{"Authorization", "Bearer " + key}}; }

TEST(Tenants, AKeySaysWhoCalls) {
  const Tenants tenants(two_tenants());
  ASSERT_NE(tenants.caller("Bearer red's key"), nullptr);
  EXPECT_EQ(tenants.caller("bearer red's key")->tenant->name(), "red");
  EXPECT_EQ(tenants.caller("Bearer  red's key")->tenant->name(), "red");
  EXPECT_FALSE(tenants.caller("Bearer red's key")->admin);
  EXPECT_TRUE(tenants.caller("Bearer red's admin")->admin);
  EXPECT_EQ(tenants.caller("Bearer blue's key")->tenant->name(), "blue");
  for (const char* wrong :
       {"", "Bearer ", "Bearer   ", "Bearer", "Bearer red's keys", "Bearer red's ke", "red's key", "Basic red's key"})
    EXPECT_EQ(tenants.caller(wrong), nullptr) << wrong;
}

TEST(Tenants, WithoutAnyKeyEverybodyIsAdminOfOne) {
  const Tenants open{ServerOptions{}};
  ASSERT_NE(open.caller(""), nullptr);
  EXPECT_TRUE(open.caller("Bearer whatever")->admin);
  EXPECT_EQ(open.caller("")->tenant->name(), "");
  ServerOptions one;
  one.api_key = "the key";
  const Tenants locked(one);
  EXPECT_EQ(locked.caller(""), nullptr) << "power";
  EXPECT_TRUE(locked.caller("Bearer the key")->admin);
}

TEST(Tenants, PlacesComeBack) {
  const auto tenant = std::make_shared<Tenant>("t", 2, 0);
  auto first = Tenant::enter(tenant);
  {
    const auto second = Tenant::enter(tenant);
    ASSERT_TRUE(second.ok());
    const auto third = Tenant::enter(tenant);
    ASSERT_FALSE(third.ok());
    EXPECT_EQ(third.error().code, Code::kOverLimit);
    EXPECT_EQ(tenant->counts().running, 2);
    EXPECT_EQ(tenant->counts().refused, 0u) << "who waits for a place may get it";
  }
  EXPECT_EQ(tenant->counts().running, 1);
  EXPECT_TRUE(Tenant::enter(tenant).ok());
  const auto free = std::make_shared<Tenant>("free", 0, 0);
  std::vector<Tenant::Place> many;
  for (int i = 0; i < 100; ++i) many.push_back(std::move(Tenant::enter(free).value()));
  EXPECT_EQ(free->counts().running, 100);
}

TEST(Tenants, SeveralPlacesOrNone) {
  const auto tenant = std::make_shared<Tenant>("t", 3, 0);
  {
    const auto two = Tenant::enter(tenant, 2);
    ASSERT_TRUE(two.ok());
    const auto more = Tenant::enter(tenant, 2);
    ASSERT_FALSE(more.ok());
    EXPECT_EQ(more.error().code, Code::kOverLimit);
    EXPECT_EQ(tenant->counts().running, 2) << "neither of the two has one";
    const auto four = Tenant::enter(tenant, 4);
    ASSERT_FALSE(four.ok());
    EXPECT_EQ(four.error().code, Code::kInvalidArgument) << "these never fit";
    EXPECT_EQ(tenant->counts().refused, 0u);
  }
  EXPECT_EQ(tenant->counts().running, 0);
  EXPECT_TRUE(Tenant::enter(tenant, 3).ok()) << "power";
}

TEST(Tenants, ARateRefillsEvenly) {
  Tenant tenant("t", 0, 6);
  const Tenant::Clock::time_point start{seconds(1000)};
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(tenant.arrive(start).ok()) << i;
  EXPECT_FALSE(tenant.arrive(start).ok());
  EXPECT_FALSE(tenant.arrive(start + seconds(9)).ok());
  EXPECT_TRUE(tenant.arrive(start + seconds(19)).ok());  // one each ten seconds
  EXPECT_FALSE(tenant.arrive(start + seconds(19)).ok());
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(tenant.arrive(start + seconds(1000)).ok()) << i;
  EXPECT_FALSE(tenant.arrive(start + seconds(1000)).ok()) << "no more than a minute's requests are saved";
}

TEST(TenantsOverHttp, NoneFindsWhatAnotherLeft) {
  LiveServer running({}, two_tenants());
  const std::string body = R"({"prompt": "hello world, this is cached text", "max_tokens": 2})";
  const auto cached = [&](const std::string& key) {
    const auto reply = running.post("/v1/completions", body, with_key(key));
    EXPECT_EQ(reply->status, 200) << reply->body;
    return Json::parse(reply->body)["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached("red's key"), 0);
  EXPECT_EQ(cached("blue's key"), 0);
  EXPECT_GT(cached("red's admin"), 0) << "power: the same tenant finds it";
  EXPECT_EQ(running.engine->last_request().tenant, "red");
}

TEST(TenantsOverHttp, OnlyAdminsClearAndSeeOthers) {
  LiveServer running({}, two_tenants());
  const auto get = [&](const char* path, const std::string& key) { return running.client().Get(path, with_key(key)); };
  EXPECT_EQ(running.client().Get("/metrics")->status, 401);
  EXPECT_EQ(get("/metrics", "blue's key")->status, 403);
  EXPECT_EQ(get("/metrics", "red's admin")->status, 200);
  EXPECT_EQ(running.client().Get("/health")->status, 200);
  const auto refused = running.post("/v1/cache/clear", "", with_key("red's key"));
  EXPECT_EQ(refused->status, 403);
  EXPECT_EQ(Json::parse(refused->body)["error"]["code"], "not_an_admin");
  EXPECT_EQ(running.post("/v1/cache/clear", "", with_key("red's admin"))->status, 200);
  const Json own = Json::parse(get("/v1/tenants", "blue's key")->body)["data"];
  ASSERT_EQ(own.size(), 1u);
  EXPECT_EQ(own[0]["name"], "blue");
  EXPECT_TRUE(own[0]["pool"].contains("share_bytes"));
  EXPECT_TRUE(own[0]["disk"].contains("share_bytes"));
  EXPECT_EQ(Json::parse(get("/v1/tenants", "red's admin")->body)["data"].size(), 2u);
}

TEST(TenantsOverHttp, LimitsAreTheTenantsOwn) {
  FakeOptions slow;
  slow.seconds_per_token = 0.005;
  ServerOptions options = two_tenants();
  options.tenants[0].requests_per_minute = 2;
  LiveServer running(slow, options);
  RawClient first(running.server->port());
  const std::string body = R"({"prompt": "x", "max_tokens": 2000})";
  first.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer blue's key\r\nContent-Length: " +
             std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_TRUE(eventually([&] { return running.engine->stats().running == 1; }));
  const std::string small = R"({"prompt": "x", "max_tokens": 1})";
  const auto refused = running.post("/v1/completions", small, with_key("blue's key"));
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(Json::parse(refused->body)["error"]["type"], "rate_limit_error");
  EXPECT_TRUE(refused->has_header("Retry-After"));
  EXPECT_EQ(running.post("/v1/completions", small, with_key("red's key"))->status, 200) << "another tenant is served";
  EXPECT_EQ(running.post("/v1/completions", small, with_key("red's key"))->status, 200);
  EXPECT_EQ(running.post("/v1/completions", small, with_key("red's key"))->status, 429) << "two a minute";
  const Json all = Json::parse(running.client().Get("/v1/tenants", with_key("red's admin"))->body)["data"];
  EXPECT_EQ(all[0]["requests"], 3);
  EXPECT_EQ(all[0]["refused"], 1);
  EXPECT_EQ(all[1]["refused"], 1);
  EXPECT_EQ(all[1]["running"], 1);
}

// A batch takes half of its tenant's places: questions find one meanwhile.
TEST(TenantsOverHttp, ABatchLeavesPlacesToQuestions) {
  ServerOptions options = two_tenants();
  options.tenants[1].max_requests = 4;
  LiveServer running({}, options);
  running.engine->hold(true);
  std::thread batch([&] {
    const auto reply = running.post("/v1/embeddings", R"({"input": ["a", "b", "c", "d", "e", "f", "g", "h"]})",
                                    with_key("blue's key"));
    EXPECT_EQ(reply->status, 200) << reply->body;
  });
  EXPECT_TRUE(eventually([&] { return running.engine->stats().waiting >= 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(120));  // it looks for more places a few times
  EXPECT_EQ(running.engine->stats().waiting, 2);
  std::thread question([&] {
    const auto reply = running.post("/v1/completions", R"({"prompt": "x"})", with_key("blue's key"));
    EXPECT_EQ(reply->status, 200) << reply->body;
  });
  EXPECT_TRUE(eventually([&] { return running.engine->stats().waiting == 3; }));
  running.engine->hold(false);
  batch.join();
  question.join();
}

// One whose tenants have a share of its queue, which is used up.
class FullEngine : public FakeEngine {
 public:
  Result<std::vector<RequestId>> submit_all(std::vector<Submission> several) override {
    if (full) return Error{Code::kOverLimit, "the places left are for others too"};
    return FakeEngine::submit_all(std::move(several));
  }
  std::atomic<bool> full{true};
};

TEST(TenantsOverHttp, WhatWasRefusedIsWhatWasAnsweredSo) {
  ServerOptions options = two_tenants();
  options.tenants[1].max_requests = 4;
  LiveServer running({}, options, false);
  const auto engine = std::make_shared<FullEngine>();
  running.server->attach(engine);
  const auto refused = [&](size_t tenant) {
    const auto reply = running.client().Get("/v1/tenants", with_key("red's admin"));
    return Json::parse(reply->body)["data"][tenant]["refused"].get<int>();
  };
  const auto ask = [&](const char* key, const char* body = R"({"prompt": "x"})") {
    return running.post("/v1/completions", body, with_key(key))->status;
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask("red's key"), 429);
  EXPECT_EQ(refused(0), 3) << "for want of room in the queue all share";
  engine->full = false;
  engine->hold(true);
  std::thread question([&] { EXPECT_EQ(ask("blue's key", R"({"prompt": "x", "n": 3})"), 200); });
  EXPECT_TRUE(eventually([&] { return engine->stats().waiting == 3; }));
  std::thread batch([&] {
    const auto reply = running.post("/v1/embeddings", R"({"input": ["a", "b"]})", with_key("blue's key"));
    EXPECT_EQ(reply->status, 200) << reply->body;
  });
  EXPECT_TRUE(eventually([&] { return engine->stats().waiting == 4; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // it asks for its second place again and again
  EXPECT_EQ(refused(1), 0) << "nobody was told so";
  EXPECT_EQ(ask("blue's key"), 429);
  EXPECT_EQ(refused(1), 1) << "power";
  engine->hold(false);
  question.join();
  batch.join();
  EXPECT_EQ(refused(1), 1);
}

// How many requests all have running is told to admins, by /slots.
TEST(TenantsOverHttp, NoneIsToldHowMuchOthersRun) {
  FakeOptions slow;
  slow.seconds_per_token = 0.005;
  LiveServer several(slow, two_tenants()), one(slow);
  const auto slots = [](const LiveServer& running) {
    const std::string body = R"({"prompt": "x", "max_tokens": 2000})";
    RawClient client(running.server->port());
    client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer red's key\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
    EXPECT_TRUE(eventually([&] { return running.engine->stats().running == 1; }));
    const auto props = running.client().Get("/props", with_key("blue's key"));
    EXPECT_EQ(running.engine->stats().running, 1);
    return Json::parse(props->body)["total_slots"].get<int>();
  };
  EXPECT_EQ(slots(several), 1);
  EXPECT_EQ(slots(one), 2) << "power: who is alone is told";
}

// Of `n` answers all are begun, or none: what was computed of some would be computed anew at each try.
TEST(TenantsOverHttp, SeveralAnswersAreBegunTogetherOrNotAtAll) {
  FakeOptions fake;
  fake.max_queue = 4;
  ServerOptions options = two_tenants();
  options.tenants[1].max_requests = 3;
  LiveServer running(fake, options);
  running.engine->hold(true);
  std::thread two([&] {
    const auto reply = running.post("/v1/completions", R"({"prompt": ["x", "y"]})", with_key("blue's key"));
    EXPECT_EQ(reply->status, 200) << reply->body;
  });
  EXPECT_TRUE(eventually([&] { return running.engine->stats().waiting == 2; }));
  const auto ask = [&](int n, const char* key) {
    return running.post("/v1/completions", R"({"prompt": "x", "n": )" + std::to_string(n) + "}", with_key(key));
  };
  EXPECT_EQ(ask(2, "blue's key")->status, 429);
  EXPECT_EQ(ask(3, "red's key")->status, 503);
  const auto never = ask(4, "blue's key"), nowhere = ask(5, "red's key");
  EXPECT_EQ(never->status, 400);
  EXPECT_NE(never->body.find("may have 3"), std::string::npos) << never->body;
  EXPECT_EQ(nowhere->status, 400);
  EXPECT_NE(nowhere->body.find("places for 4"), std::string::npos) << nowhere->body;
  EXPECT_EQ(running.engine->stats().waiting, 2);
  running.engine->hold(false);
  two.join();
  EXPECT_EQ(running.engine->stats().requests_cancelled, 0u) << "nothing of these was begun";
  EXPECT_EQ(ask(3, "blue's key")->status, 200) << "power";
}

class TenantsFile : public testing::Test {
 protected:
  Result<std::vector<TenantOptions>> read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_tenants(path_);
  }
  ~TenantsFile() override { std::remove(path_.c_str()); }
  // A file of its own: ctest runs the cases side by side.
  const std::string path_ = testing::TempDir() + "tenants_" + std::to_string(::getpid()) + ".json";
};

TEST_F(TenantsFile, KeysAndTheirHashesAreTheSame) {
  // printf %s 'sixteen-bytes-or-more' | b2sum -l 256
  const auto read_of = read(R"({"tenants": [{"name": "a", "keys": [{"key": "sixteen-bytes-or-more", "role": "admin"}],
    "max_requests": 3, "requests_per_minute": 60, "pool_share": 0.25, "disk_share": 0.5}, {"name": "b", "keys": [{"blake2b":
    "845e79088de37b32029416f877cfc6b1ef4dcd2a25993529e4f5c74e7e638908"}]}]})");
  ASSERT_TRUE(read_of.ok()) << read_of.error().message;
  EXPECT_EQ((*read_of)[0].max_requests, 3);
  EXPECT_EQ((*read_of)[0].requests_per_minute, 60);
  EXPECT_EQ((*read_of)[0].pool_share, 0.25F);
  EXPECT_EQ((*read_of)[1].pool_share, 0);
  EXPECT_EQ((*read_of)[0].disk_share, 0.5F);
  EXPECT_EQ((*read_of)[1].disk_share, 0);
  EXPECT_TRUE((*read_of)[0].keys[0].admin);
  EXPECT_FALSE((*read_of)[1].keys[0].admin);
  EXPECT_EQ((*read_of)[0].keys[0].blake2b, (*read_of)[1].keys[0].blake2b);
  ServerOptions both;
  both.tenants = *read_of;
  EXPECT_NE(check_tenants(both).error().message.find("given twice"), std::string::npos);
}

TEST_F(TenantsFile, KeysThatOthersMayReadAreAWarning) {
  const std::string plain = R"({"tenants": [{"name": "a", "keys": [{"key": "sixteen-bytes-or-more"}]}]})";
  const std::string hashed = R"({"tenants": [{"name": "a", "keys": [{"blake2b":
    "845e79088de37b32029416f877cfc6b1ef4dcd2a25993529e4f5c74e7e638908"}]}]})";
  const auto warned = [&](const std::string& text, mode_t mode) {
    std::remove(path_.c_str());
    std::ofstream(path_) << text;
    EXPECT_EQ(::chmod(path_.c_str(), mode), 0);
    std::ostringstream log;
    const auto before = spdlog::default_logger();
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
    EXPECT_TRUE(read_tenants(path_).ok()) << "containers mount secrets for all to read";
    spdlog::set_default_logger(before);
    return log.str();
  };
  for (const mode_t fine : {0600, 0400, 0640}) EXPECT_EQ(warned(plain, fine), "") << fine;
  EXPECT_EQ(warned(hashed, 0644), "") << "nobody finds a key in it";
  const std::string read = warned(plain, 0644);
  for (const std::string& part : {path_, std::string("chmod 600"), std::string("may read")})
    EXPECT_NE(read.find(part), std::string::npos) << read;
  for (const std::string& text : {plain, hashed}) {
    for (const mode_t open : {0620, 0602}) EXPECT_NE(warned(text, open).find("may write"), std::string::npos) << open;
  }
}

TEST_F(TenantsFile, WhatIsWrongIsNamed) {
  const std::string good = R"({"key": "sixteen-bytes-or-more"})";
  const auto tenant = [&](const std::string& inside) { return R"({"tenants": [{)" + inside + "}]}"; };
  const std::pair<std::string, std::string> cases[] = {
      {"", "empty"},
      {"{", "JSON"},
      {"[]", "a list 'tenants'"},
      {R"({"tenants": []})", "name at least one"},
      {R"({"tenants": [3]})", "tenants[0]: must be an object"},
      {tenant(R"("keys": [)" + good + "]"), "tenants[0].name"},
      {tenant(R"("name": "a b", "keys": [)" + good + "]"), "tenants[0].name"},
      {tenant(R"X("name": "(peer)", "keys": [)X" + good + "]"), "name: is (peer), which the server uses for itself"},
      {tenant(R"("name": "a")"), "tenants[0].keys: must be a list"},
      {tenant(R"("name": "a", "keys": [])"), "tenants[0].keys: must be a list"},
      {tenant(R"("name": "a", "keys": ["x"])"), "tenants[0].keys[0]: must be an object"},
      {tenant(R"("name": "a", "keys": [{}])"), "tenants[0].keys[0].key: either"},
      {tenant(R"("name": "a", "keys": [{"key": "short"}])"), "has 5 bytes"},
      {tenant(R"("name": "a", "keys": [{"blake2b": "00"}])"), "64 hexadecimal"},
      {tenant(R"("name": "a", "keys": [{"key": "sixteen bytes and a space"}])"), "spaces"},
      {tenant(R"("name": "a", "keys": [{"key": "sixteen-bytes-or-more", "role": "root"}])"), "user or admin"},
      {tenant(R"("name": "a", "keys": [{"key": "sixteen-bytes-or-more", "rolle": "user"}])"), "rolle: is not known"},
      {tenant(R"("name": "a", "limit": 3, "keys": [)" + good + "]"), "tenants[0].limit: is not known"},
      {tenant(R"("name": "a", "max_requests": -1, "keys": [)" + good + "]"), "tenants[0].max_requests"},
      {tenant(R"("name": "a", "pool_share": 1.5, "keys": [)" + good + "]"), "tenants[0].pool_share"},
      {tenant(R"("name": "a", "pool_share": "half", "keys": [)" + good + "]"), "tenants[0].pool_share"},
      {tenant(R"("name": "a", "disk_share": 1.5, "keys": [)" + good + "]"), "tenants[0].disk_share"},
      {tenant(R"("name": "a", "disk_shares": 0.5, "keys": [)" + good + "]"), "tenants[0].disk_shares: is not known"}};
  for (const auto& [text, words] : cases) {
    const auto read_of = read(text);
    ASSERT_FALSE(read_of.ok()) << text;
    EXPECT_NE(read_of.error().message.find(words), std::string::npos) << text << ": " << read_of.error().message;
  }
  EXPECT_FALSE(read_tenants("/nowhere/at/all").ok());
  ServerOptions twins = two_tenants();
  twins.tenants[1].name = "red";
  EXPECT_NE(check_tenants(twins).error().message.find("two tenants"), std::string::npos);
  for (const std::string_view reserved : kReservedTenants) {
    twins.tenants[1].name = reserved;
    EXPECT_NE(check_tenants(twins).error().message.find("uses for itself"), std::string::npos) << reserved;
  }
  twins = two_tenants();
  twins.api_key = "key";
  EXPECT_FALSE(check_tenants(twins).ok());
  EXPECT_TRUE(check_tenants(two_tenants()).ok());
  twins = two_tenants();
  twins.open_metrics = true;
  EXPECT_NE(check_tenants(twins).error().message.find("--open-metrics"), std::string::npos);
  ServerOptions shares = two_tenants();
  shares.tenants[0].pool_share = .6F, shares.tenants[1].pool_share = .5F;
  EXPECT_NE(check_tenants(shares).error().message.find("pool_share"), std::string::npos);
  shares.tenants[1].pool_share = .4F;
  EXPECT_TRUE(check_tenants(shares).ok()) << "power";
  shares.tenants[0].disk_share = .6F, shares.tenants[1].disk_share = .5F;
  EXPECT_NE(check_tenants(shares).error().message.find("disk_share"), std::string::npos);
  shares.tenants[1].disk_share = .4F;
  EXPECT_TRUE(check_tenants(shares).ok()) << "power";
}

}  // namespace
}  // namespace kvilt::server

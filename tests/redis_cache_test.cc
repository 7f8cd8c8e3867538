// Several engines on one Redis: what one computed the others reuse, equal to the bit to a full pass; whatever Redis does,
// answers stay right.
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "engine/load.h"
#include "probe_prompts.h"
#include "tier/redis_for_test.h"

namespace kvilt {
namespace {

using Mode = RedisProxyForTest::Mode;

class RedisCacheTest : public StoredPrompts {
 protected:
  void SetUp() override {
    if (RedisServerForTest::program().empty()) GTEST_SKIP() << "neither redis-server nor valkey-server is installed";
    server.emplace();
    dense = ask_with(*alone(), asked, "full");
  }
  // Waits long enough for a machine that does other things too.
  EngineOptions options(const RedisAddress& address) const {
    EngineOptions out{.model = kModel, .threads = 2, .kv_type = KvType::kF32};
    out.kv_bytes = int64_t{64} << 20;
    out.cache_redis = address.shown();
    out.cache_redis_timeout_ms = 60000;
    return out;
  }
  EngineOptions options() const { return options(server->address()); }
  std::unique_ptr<Engine> open() const { return open_for_test(options()); }
  static void expect_known(Engine& engine, size_t tokens) {
    EXPECT_TRUE(eventually([&] { return engine.stats().remote.tokens >= static_cast<int64_t>(tokens); }));
  }
  static void expect_written(Engine& engine) {
    EXPECT_TRUE(eventually([&] {
      const DiskCounters now = engine.stats().remote;
      return now.written_bytes > 0 && now.queued_bytes == 0;
    }));
  }

  std::optional<RedisServerForTest> server;
  Outcome dense;
};

TEST_F(RedisCacheTest, WhatOneComputedTheOtherReuses) {
  const auto one = open(), two = open();
  const auto none = alone();
  warm(*one, known);
  expect_known(*two, known.size());
  const Outcome shared = ask_prefix(*two, asked);
  EXPECT_EQ(shared.completion.usage.prefix, static_cast<int>(known.size()));
  EXPECT_EQ(shared.completion.usage.remote, static_cast<int>(known.size()));
  EXPECT_EQ(shared.completion.usage.disk, 0);
  expect_equal(shared, dense);
  EXPECT_EQ(two->stats().remote.loaded_tokens, known.size());
  EXPECT_EQ(two->stats().remote.errors, 0u);
  EXPECT_EQ(ask_prefix(*none, asked).completion.usage.prefix, 0) << "power: without Redis it is computed";

  const Outcome back = ask_prefix(*two, asked);
  EXPECT_EQ(back.completion.usage.remote, 0) << "in memory by now";
  warm(*two, tokens(500, 77));  // and the other way round
  expect_known(*one, known.size() + 500);
  EXPECT_GT(ask_prefix(*one, join({tokens(500, 77), question})).completion.usage.remote, 0);
}

TEST_F(RedisCacheTest, Int8IsSharedToTheBit) {
  EngineOptions typed = options();
  typed.kv_type = KvType::kInt8;
  const auto one = open_for_test(typed), two = open_for_test(typed);
  warm(*one, known);
  expect_known(*two, known.size());
  const Outcome shared = ask_prefix(*two, asked);
  EXPECT_EQ(shared.completion.usage.remote, static_cast<int>(known.size()));
  expect_equal(shared, ask_prefix(*one, asked));
  typed.cache_redis = "";
  expect_equal(shared, ask_with(*open_for_test(typed), asked, "full"));
  expect_differ(shared, dense);
}

// One waits for a Redis that does not answer; another one comes after it and is answered before it.
TEST_F(RedisCacheTest, OthersAreAnsweredWhileOneWaits) {
  const auto one = open(), two = open();
  warm(*one, known);
  expect_known(*two, known.size());
  const Outcome fresh = ask_with(*alone(), join({tokens(300, 55), question}), "full");
  server->stop();
  auto waits = std::make_shared<CollectingSink>();
  ASSERT_TRUE(two->submit(unpublished(asked, "prefix"), waits).ok());
  EXPECT_TRUE(eventually([&] { return two->stats().remote.loads == 1; }));
  expect_equal(ask_prefix(*two, join({tokens(300, 55), question})), fresh);
  EXPECT_EQ(two->stats().waiting, 1) << "power: it still waits";
  EXPECT_EQ(two->stats().remote.loaded_tokens, 0u);
  server->go_on();
  const Completion done = waits->wait();
  EXPECT_EQ(done.usage.remote, static_cast<int>(known.size()));
  EXPECT_EQ(done.logits.first, dense.completion.logits.first);
}

TEST_F(RedisCacheTest, UnmarkedTextIsFoundAnywhere) {
  const auto one = open(), two = open();
  warm(*one, known);
  const Outcome was = ask_with(*one, moved, "mend");
  expect_known(*two, known.size());
  const Outcome is = ask_with(*two, moved, "mend");
  EXPECT_GE(was.completion.usage.reused, 700);
  EXPECT_EQ(is.completion.usage.reused, was.completion.usage.reused);
  EXPECT_GE(is.completion.usage.remote, 700);
  expect_equal(is, was);
  expect_differ(ask_with(*two, moved, "naive"), ask_with(*alone(), moved, "full"));
}

TEST_F(RedisCacheTest, ALaterEngineFindsWhatIsThere) {
  warm(*open(), known);
  const auto late = open();
  expect_known(*late, known.size());
  const Outcome out = ask_prefix(*late, asked);
  EXPECT_EQ(out.completion.usage.remote, static_cast<int>(known.size()));
  expect_equal(out, dense);
}

// Each holds a part; when one goes, its part is computed.
TEST_F(RedisCacheTest, SeveralServersHoldOneCache) {
  RedisServerForTest second;
  EngineOptions both = options();
  both.cache_redis += "," + second.address().shown();
  const auto one = open_for_test(both), two = open_for_test(both);
  std::vector<std::vector<int32_t>> texts;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    texts.push_back(tokens(200, 100 + seed));
    warm(*one, texts.back());
  }
  expect_known(*two, 12 * 200);
  EXPECT_FALSE(server->keys("*:v:*").empty());
  EXPECT_FALSE(second.keys("*:v:*").empty());
  EXPECT_LT(server->keys("*:v:*").size(), 12u);
  for (const auto& text : texts) EXPECT_EQ(ask_prefix(*two, join({text, question})).completion.usage.remote, 200);
  const auto three = open_for_test(both);
  expect_known(*three, 12 * 200);
  second.end();
  int remote = 0;
  for (const auto& text : texts) {
    const Outcome out = ask_prefix(*three, join({text, question}));
    remote += out.completion.usage.remote;
    expect_equal(out, ask_with(*alone(), join({text, question}), "full"));
  }
  EXPECT_GT(remote, 0) << "the other one's part";
  EXPECT_LT(remote, 12 * 200) << "power check: a part is gone";
}

// One that hangs for long: what it held goes to the other, from the memory of who has it. Back again, both have it.
TEST_F(RedisCacheTest, OneOfSeveralThatStaysAwayIsReplaced) {
  RedisServerForTest second;
  EngineOptions both = options();
  both.cache_redis += "," + second.address().shown();
  both.cache_redis_timeout_ms = 200;
  const auto one = open_for_test(both);
  std::vector<std::vector<int32_t>> texts;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    texts.push_back(tokens(200, 100 + seed));
    warm(*one, texts.back());
  }
  const auto has_all = [&] { return server->keys("*:r:*").size() >= texts.size(); };
  EXPECT_TRUE(eventually([&] { return server->keys("*:r:*").size() + second.keys("*:r:*").size() >= texts.size(); }));
  ASSERT_FALSE(has_all()) << "power: each holds a part";
  second.stop();
  EXPECT_TRUE(eventually(has_all));
  EngineOptions first = options();
  const auto two = open_for_test(first);
  expect_known(*two, 12 * 200);
  for (const auto& text : texts) {
    const Outcome out = ask_prefix(*two, join({text, question}));
    EXPECT_EQ(out.completion.usage.remote, 200);
    expect_equal(out, ask_with(*alone(), join({text, question}), "full"));
  }
  second.go_on();
  EXPECT_TRUE(eventually([&] { return one->stats().remote.tokens > 12 * 200; })) << "it is listed again";
}

TEST_F(RedisCacheTest, TenantsSaltsAndModelsStayApart) {
  const auto one = open(), two = open();
  Request mine = of("one", "s", "n");
  mine.publish = true;
  ask_ok(*one, mine);
  expect_known(*two, asked.size() - 1);
  EXPECT_EQ(ask_ok(*two, of("two", "s", "n")).completion.usage.prefix, 0);
  EXPECT_EQ(ask_ok(*two, of("one", "t", "n")).completion.usage.prefix, 0);
  EXPECT_EQ(ask_ok(*two, of("one", "s", "m")).completion.usage.prefix, 0);
  EXPECT_EQ(ask_ok(*two, of("", "", "")).completion.usage.prefix, 0);
  EXPECT_GT(ask_ok(*two, of("one", "s", "n")).completion.usage.prefix, 0) << "power";
  EngineOptions other = options();
  other.kv_type = KvType::kF16;
  EXPECT_EQ(ask_ok(*open_for_test(other), of("one", "s", "n")).completion.usage.prefix, 0);
}

TEST_F(RedisCacheTest, AnotherKeySharesNothing) {
  const std::string file = testing::TempDir() + "kvilt_redis_key";
  const auto with_key = [&](char digit) {
    write_key(file, digit);
    EngineOptions out = options();
    out.cache_redis_key = file;
    return open_for_test(out);
  };
  const auto one = with_key('1');
  warm(*one, known);
  expect_written(*one);
  EXPECT_EQ(ask_prefix(*with_key('2'), asked).completion.usage.prefix, 0);
  EXPECT_EQ(ask_prefix(*open(), asked).completion.usage.prefix, 0);
  EXPECT_GT(ask_prefix(*with_key('1'), asked).completion.usage.remote, 0) << "power";
  EXPECT_NE(server->keys("*").size(), 0u);
  std::filesystem::remove(file);
}

// With a key, and without: the parameter.
class DamagedRedisCacheTest : public RedisCacheTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Keys, DamagedRedisCacheTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Sealed" : "Plain"; });

TEST_P(DamagedRedisCacheTest, GarbageInItsValuesMeansComputing) {
  EngineOptions keyed = options();
  if (GetParam()) keyed.cache_key_text = std::string(64, '7');
  const auto one = open_for_test(keyed), two = open_for_test(keyed);
  warm(*one, known);
  expect_known(*two, known.size());
  const std::vector<std::string> values = server->keys("*:v:*");
  ASSERT_FALSE(values.empty());
  for (const std::string& key : values) {
    std::string value = server->ask({"GET", key}).text;
    value[value.size() / 2] ^= 1;
    server->ask({"SET", key, value});
  }
  const Outcome out = ask_prefix(*two, asked);
  expect_equal(out, dense);
  EXPECT_EQ(out.completion.usage.remote, 0);
  EXPECT_GT(two->stats().remote.errors, 0u);
  EXPECT_TRUE(eventually([&] { return one->stats().remote.tokens == 0; })) << "it is removed for all";
}

TEST_F(RedisCacheTest, WithAKeyItIsTheSame) {
  EngineOptions keyed = options();
  keyed.cache_key_text = std::string(64, '7');
  const auto one = open_for_test(keyed), two = open_for_test(keyed), without = open();
  warm(*one, known);
  expect_known(*two, known.size());
  const Outcome shared = ask_prefix(*two, asked);
  EXPECT_EQ(shared.completion.usage.remote, static_cast<int>(known.size()));
  expect_equal(shared, dense);
  EXPECT_EQ(ask_prefix(*without, asked).completion.usage.remote, 0);
}

TEST_F(RedisCacheTest, ClearingIsForAll) {
  const auto one = open(), two = open();
  warm(*one, known);
  expect_known(*two, known.size());
  two->clear_cache();
  EXPECT_TRUE(eventually([&] { return one->stats().remote.tokens == 0 && server->keys("*:v:*").empty(); }));
  EXPECT_EQ(ask_prefix(*two, asked).completion.usage.prefix, 0);
}

// Eight clients that ask on and on, also what pushes the rest out of a small pool; each answer is compared with a dense
// pass. They publish, so that Redis is written all the time.
class RedisUnderLoad : public RedisCacheTest {
 protected:
  static constexpr int kPoolTokens = 2000;  // of fp32
  void SetUp() override {
    RedisCacheTest::SetUp();
    if (IsSkipped()) return;
    const auto none = alone();
    for (int i = 0; i < 7; ++i) {
      prompts.push_back(join({tokens(600, 300 + i), question}));
      answers.push_back(ask_with(*none, prompts.back(), "full"));
    }
    expect_differ(answers[0], answers[1]);  // power
  }
  void TearDown() override { end(); }
  // Reading goes on where it was slower than computing once, which a small model's nearly is: an engine would leave it
  // alone for a while. Its pool holds less than half of what is asked.
  static std::unique_ptr<Engine> open_small(EngineOptions options) {
    options.kv_bytes = int64_t{kPoolTokens} * 3072;
    LoadedEngine made = load_engine(std::move(options), {}).value();
    for (const auto& store : made.parts.stores) store->read_always();
    return start_engine(std::move(made)).value();
  }
  void begin(Engine& engine) {
    engine_ = &engine;
    ends_ = false;
    for (size_t client = 0; client < 8; ++client) {
      clients_.emplace_back([this, client] {
        for (size_t n = client; !ends_; n += 3) {
          while (paused_ && !ends_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          ask_one(n % prompts.size());
        }
      });
    }
  }
  void ask_one(size_t i) {
    const Outcome out = ask_ok(*engine_, request_of(prompts[i], "prefix", 6));
    const bool equal = out.completion.logits.first == answers[i].completion.logits.first && out.ids == answers[i].ids;
    if (!equal) ++wrong_;
    if (out.completion.usage.remote > 0) ++remote_;
    ++answered_;
  }
  // That all of them ask and are answered under what is so now.
  void expect_answers() {
    const int before = answered_;
    EXPECT_TRUE(eventually([&] { return answered_ >= before + 24; }));
    EXPECT_EQ(wrong_, 0);
  }
  // That something comes from Redis, and nothing wrong. The clients pause meanwhile: while all pages are promised to who
  // runs nothing can be read, and on a slow machine they always are. What memory has is not asked of Redis, and which few
  // texts it keeps is its own affair: a new text that needs nearly all pages takes them first.
  void expect_remote() { expect_more_remote_than(remote_); }
  void expect_more_remote_than(int before) {
    paused_ = true;
    for (uint32_t round = 0; round < 100 && remote_ <= before; ++round) {
      for (size_t i = 0; i < prompts.size() && remote_ <= before; ++i) {
        ask_ok(*engine_, unpublished(tokens(kPoolTokens * 9 / 10, 1000 + 10 * round + i), "full", {}, 1));
        ask_one(i);
      }
    }
    EXPECT_GT(remote_, before) << "power: of " << engine_->stats().remote.tokens << " tokens that it has";
    paused_ = false;
    expect_answers();
  }
  void end() {
    ends_ = true;
    for (std::thread& client : clients_) client.join();
    clients_.clear();
  }

  std::vector<std::vector<int32_t>> prompts;
  std::vector<Outcome> answers;

 private:
  Engine* engine_ = nullptr;
  std::atomic<bool> ends_{false}, paused_{false};
  std::atomic<int> answered_{0}, remote_{0}, wrong_{0};
  std::vector<std::thread> clients_;
};

// Redis is slow, lies, or is killed, started again and stopped. An engine for each, since one that met several faults
// waits ever longer before it asks again.
TEST_F(RedisUnderLoad, Faults) {
  RedisProxyForTest proxy(*server);
  EngineOptions through = options(proxy.address());
  through.cache_key_text = std::string(64, '7');
  through.cache_redis_timeout_ms = 100;
  for (const Mode mode :
       {Mode::kStall, Mode::kFlip, Mode::kClose, Mode::kGarbage, Mode::kTrickle, Mode::kClaimMuch, Mode::kSendMuch}) {
    proxy.set(Mode::kPass);
    const auto engine = open_small(through);
    begin(*engine);
    expect_answers();
    const uint64_t before = engine->stats().remote.errors;
    proxy.set(mode);
    EXPECT_TRUE(eventually([&] { return engine->stats().remote.errors > before; }))
        << "power: it met mode " << static_cast<int>(mode);
    expect_answers();
    end();
  }
  proxy.set(Mode::kPass);
  const auto engine = open_small(through);
  const auto is_up = [&](bool up) {
    EXPECT_TRUE(eventually([&] { return engine->stats().remote.ready == up; })) << up;
  };
  begin(*engine);
  expect_remote();
  server->end();
  is_up(false);
  expect_answers();
  server->start();
  is_up(true);
  expect_remote();
  server->stop();
  is_up(false);
  expect_answers();
  server->go_on();
  is_up(true);
  expect_remote();
  end();
}

// Every value that is there is damaged, again and again.
TEST_F(RedisUnderLoad, WrongBytes) {
  EngineOptions keyed = options();
  keyed.cache_redis_timeout_ms = 1000;
  const auto engine = open_small(keyed);
  begin(*engine);
  expect_remote();
  const uint64_t before = engine->stats().remote.errors;
  const auto damage = [&] {
    for (const std::string& key : server->keys("*:v:*")) {
      std::string value = server->ask({"GET", key}).text;
      if (value.empty()) continue;  // it was removed meanwhile
      value[value.size() / 2] ^= 1;
      server->ask({"SET", key, value, "XX"});
    }
    return engine->stats().remote.errors > before + 3;
  };
  EXPECT_TRUE(eventually(damage));
  expect_remote();
  end();
}

// One that is full and drops nothing takes nothing new. A text's KV is 2 MB, and as much again while Redis reads it.
TEST_F(RedisUnderLoad, Full) {
  server.emplace(std::vector<std::string>{"--maxmemory", "8mb", "--maxmemory-policy", "noeviction"});
  const auto engine = open_small(options());
  begin(*engine);
  EXPECT_TRUE(eventually([&] { return engine->stats().remote.errors > 0; })) << "power: it is full";
  expect_more_remote_than(0);  // since it began: memory may keep the few that Redis has by now
  end();
}

TEST_F(RedisCacheTest, AnEmptiedRedisIsFilledAgain) {
  const auto one = open();
  warm(*one, known);
  expect_written(*one);
  server->end();
  server->start();
  EXPECT_TRUE(eventually([&] { return !server->keys("*:r:*").empty(); }));
  EXPECT_TRUE(eventually([&] { return one->stats().remote.queued_bytes == 0; }));
  const auto two = open();
  expect_known(*two, known.size());
  expect_equal(ask_prefix(*two, asked), dense);
}

TEST_F(RedisCacheTest, FullMeansNothingNew) {
  server.emplace(std::vector<std::string>{"--maxmemory", "3mb", "--maxmemory-policy", "noeviction"});
  const auto one = open();
  for (int i = 0; i < 6; ++i) warm(*one, tokens(600, 500 + i));
  EXPECT_TRUE(eventually([&] { return one->stats().remote.errors > 0; }));
  warm(*one, known);
  expect_equal(ask_prefix(*one, asked), dense);
}

TEST_F(RedisCacheTest, FolderAndRedisTogether) {
  std::string folder = testing::TempDir() + "kvilt_both_XXXXXX";
  folder = ::mkdtemp(folder.data());
  EngineOptions both = options();
  both.cache_dir = folder;
  {
    const auto one = open_for_test(both);
    warm(*one, known);
    expect_written(*one);
  }
  {
    const auto one = open_for_test(both);
    const Outcome out = ask_prefix(*one, asked);
    EXPECT_EQ(out.completion.usage.disk, static_cast<int>(known.size())) << "the folder is asked first";
    EXPECT_EQ(out.completion.usage.remote, 0);
    expect_equal(out, dense);
  }
  std::filesystem::remove_all(folder);
  const auto one = open_for_test(both);
  expect_known(*one, known.size());
  const Outcome out = ask_prefix(*one, asked);
  EXPECT_EQ(out.completion.usage.remote, static_cast<int>(known.size()));
  EXPECT_EQ(out.completion.usage.disk, 0);
  expect_equal(out, dense);
  std::filesystem::remove_all(folder);
}

// A folder beside a Redis that forgets all when it ends, and no key: which secret both have.
class FolderAndRedisTest : public RedisCacheTest {
 protected:
  ~FolderAndRedisTest() override {
    for (const std::string& folder : folders_) std::filesystem::remove_all(folder);
  }
  std::string new_folder() {
    std::string name = testing::TempDir() + "kvilt_secret_XXXXXX";
    return folders_.emplace_back(::mkdtemp(name.data()));
  }
  std::unique_ptr<Engine> open_on(const std::string& folder, bool redis = true) const {
    EngineOptions both = options();
    both.cache_dir = folder;
    if (!redis) both.cache_redis = "";
    return open_for_test(both);
  }
  void empty_redis() {
    server->end();
    server->start();
    ASSERT_TRUE(server->keys().empty());
  }
  int from_folder(Engine& engine) const {
    const Outcome out = ask_prefix(engine, asked);
    expect_equal(out, dense);
    return out.completion.usage.disk;
  }
  std::string secret_of(const std::string& folder) const {
    std::ifstream file(folder + "/kvilt-cache/secret", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::vector<std::string> folders_;
};

TEST_F(FolderAndRedisTest, AnEmptyRedisCostsNoFolderAnything) {
  const std::string one = new_folder(), two = new_folder();
  ASSERT_NE(one, two);
  warm(*open_on(one), known);
  const std::string secret = secret_of(one);
  warm(*open_on(two), known);  // reads nothing: it is written beside the first one's secret
  EXPECT_EQ(secret_of(two), secret) << "a folder that held nothing takes what Redis has";
  for (const std::string& first : {one, two}) {
    empty_redis();
    EXPECT_EQ(from_folder(*open_on(first)), static_cast<int>(known.size())) << "whoever comes first";
    EXPECT_EQ(from_folder(*open_on(first == one ? two : one)), static_cast<int>(known.size()));
  }
  EXPECT_EQ(from_folder(*open_on(one, false)), static_cast<int>(known.size())) << "nor does none";
  EXPECT_EQ(from_folder(*open_on(new_folder())), 0) << "power";
}

// A Redis of others goes first. The folder's own secret stays, and is offered to the next one that is empty.
TEST_F(FolderAndRedisTest, AnothersSecretGoesFirst) {
  const std::string folder = new_folder();
  warm(*open_on(folder, false), known);
  warm(*open(), tokens(100, 9));  // Redis has one now
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  EXPECT_EQ(from_folder(*open_on(folder)), 0);
  spdlog::set_default_logger(before);
  EXPECT_NE(log.str().find(folder + ": 1 of its pieces were stored under its own secret"), std::string::npos)
      << log.str();
  ASSERT_EQ(server->ask({"DEL", "kvilt:secret"}).number, 1);
  EXPECT_EQ(from_folder(*open_on(folder)), static_cast<int>(known.size())) << "as the log says";
}

// Folders of earlier versions never had the secret of what they hold: they take it while Redis has it still.
TEST_F(FolderAndRedisTest, WhatWasStoredBesideThisRedisStaysFound) {
  const std::string folder = new_folder();
  warm(*open_on(folder), known);
  const std::string secret = secret_of(folder);
  std::ofstream(folder + "/kvilt-cache/secret", std::ios::binary) << std::string(32, 'x');
  EXPECT_EQ(from_folder(*open_on(folder)), static_cast<int>(known.size()));
  EXPECT_EQ(secret_of(folder), secret);
  empty_redis();
  EXPECT_EQ(from_folder(*open_on(folder)), static_cast<int>(known.size()));
}

TEST_F(RedisCacheTest, WhatIsNoAddressIsAnError) {
  const auto code = [](EngineOptions options) { return open_engine(std::move(options)).error().code; };
  EngineOptions wrong = options();
  wrong.cache_redis = "redis://:secret@cache:x";
  EXPECT_EQ(code(wrong), Code::kInvalidArgument);
  EXPECT_EQ(open_engine(wrong).error().message.find("secret"), std::string::npos);
  wrong = options();
  wrong.cache = false;
  EXPECT_EQ(code(wrong), Code::kInvalidArgument);
  wrong = options();
  wrong.cache_redis_timeout_ms = 0;
  EXPECT_EQ(code(wrong), Code::kInvalidArgument);
  wrong = options();
  wrong.cache_redis_key = "/nowhere";
  EXPECT_EQ(code(wrong), Code::kNotFound);
  wrong.cache_redis = "";
  EXPECT_EQ(code(wrong), Code::kInvalidArgument);
  server->end();
  EXPECT_EQ(code(options()), Code::kUnavailable);
}

}  // namespace
}  // namespace kvilt

// Several engines on one Redis: what one computed the others reuse, equal to the bit to a full pass; whatever Redis does,
// answers stay right.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

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

// One asks while Redis is stalled, lies, or is killed and started again: every answer is right.
TEST_F(RedisCacheTest, FaultsUnderLoad) {
  RedisProxyForTest proxy(*server);
  const std::string file = testing::TempDir() + "kvilt_redis_fault_key";
  write_key(file, '7');
  EngineOptions through = options(proxy.address());
  through.cache_redis_key = file;
  through.cache_redis_timeout_ms = 100;
  through.kv_bytes = int64_t{2000} * 3072;  // 2,000 tokens of fp32
  EngineOptions beside = options();
  beside.cache_redis_key = file;
  const auto writer = open_for_test(beside);
  const auto engine = open_for_test(through);
  std::filesystem::remove(file);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<Outcome> answers;
  {
    const auto none = alone();
    for (int i = 0; i < 4; ++i) {
      prompts.push_back(join({tokens(600, 300 + i), question}));
      answers.push_back(ask_with(*none, prompts.back(), "full"));
      warm(*writer, prompts.back());
    }
  }
  expect_differ(answers[0], answers[1]);  // power
  const auto check = [&] {
    for (size_t i = 0; i < prompts.size(); ++i) expect_equal(ask_prefix(*engine, prompts[i]), answers[i]);
  };
  for (const Mode mode : {Mode::kPass, Mode::kStall, Mode::kFlip, Mode::kClose, Mode::kGarbage, Mode::kTrickle,
                          Mode::kClaimMuch, Mode::kSendMuch, Mode::kPass}) {
    proxy.set(mode);
    for (int i = 0; i < 4; ++i) warm(*engine, tokens(500, 400 + i));  // what was known leaves memory
    check();
  }
  server->end();
  check();
  EXPECT_TRUE(eventually([&] { return !engine->stats().remote.ready; }));
  check();
  server->start();
  EXPECT_TRUE(eventually([&] { return engine->stats().remote.ready; }));
  check();
  server->stop();
  check();
  server->go_on();
  check();
  EXPECT_GT(engine->stats().remote.errors, 0u);
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

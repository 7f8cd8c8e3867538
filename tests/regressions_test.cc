// Regressions of the engine core: each test failed once. They are about requests that end together, requests that are
// submitted while the engine is destroyed, what the cache pins, and what preemption does to the account.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "probe_prompts.h"

namespace kvilt {
namespace {

std::unique_ptr<Engine> engine_with(int64_t kv_bytes = 0, int chunk = 512) {
  // Pools are counted in kTokenBytes, of fp32; nothing here depends on the threads.
  EngineOptions options{.model = kModel, .threads = 1, .kv_type = KvType::kF32, .chunk_tokens = chunk};
  options.kv_bytes = kv_bytes;
  return open_for_test(options);
}

TEST(Marks, AreBounded) {
  const auto engine = engine_with();
  Request request = request_of(tokens(kMaxMarks + 1, 1));
  for (int32_t i = 0; i <= kMaxMarks; ++i) request.prompt.marks.push_back({i, i + 1});
  const auto refused = ask(*engine, request);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_EQ(refused.error().message,
            "the prompt has 4097 marked parts; a request may have 4096: mark fewer, larger ones");
}

TEST(Stats, AreNewWhenTheCacheIsCleared) {
  const auto engine = engine_with();
  for (int i = 0; i < 300; ++i) {
    warm(*engine, tokens(20, 1));
    ASSERT_GT(engine->stats().cached_tokens, 0);
    engine->clear_cache();
    ASSERT_EQ(engine->stats().cached_tokens, 0) << i;
  }
}

TEST(Step, ManyRequestsMayEndInOne) {
  auto engine = engine_with();
  const auto gate = hold(*engine);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint32_t i = 0; i < 7; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine->submit(request_of(tokens(6, i), "full", 3), sinks.back()).ok());
  }
  gate->open();
  for (const auto& sink : sinks) EXPECT_EQ(sink->wait().finish, Finish::kLength);
  EXPECT_EQ(engine->stats().requests_ok, 8u);
}

class Counting : public TokenSink {
 public:
  void on_tokens(const TokenDelta&) override {}
  void on_finish(Completion) override { ++finished; }
  std::atomic<int> finished{0};
};

TEST(Shutdown, WhatWasSubmittedBeforeTheEndIsFinishedOnce) {
  auto engine = engine_with();
  const auto gate = hold(*engine);
  std::vector<std::shared_ptr<Counting>> sinks;
  for (uint32_t i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<Counting>());
    ASSERT_TRUE(engine->submit(request_of(tokens(6, i), "full", 3), sinks.back()).ok());
  }
  std::thread destroyer([&] { engine.reset(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the engine thread is told to stop before it goes on
  gate->open();
  destroyer.join();
  EXPECT_EQ(gate->finished, 1);
  for (const auto& sink : sinks) EXPECT_EQ(sink->finished, 1);
}

// A sink that asks again when it is done.
class Again : public TokenSink {
 public:
  Again(Engine& engine, std::atomic<int>& ends) : engine_(engine), ends_(ends) {}
  void on_tokens(const TokenDelta&) override {}
  void on_finish(Completion) override {
    ++ends_;
    const auto next = std::make_shared<Again>(engine_, ends_);
    refused = refused || !engine_.submit(request_of(tokens(6, 1), "full", 50), next).ok();
  }
  static inline std::atomic<bool> refused{false};

 private:
  Engine& engine_;
  std::atomic<int>& ends_;
};

TEST(Shutdown, ASinkThatAsksAgainIsRefused) {
  std::atomic<int> ends{0};
  auto engine = engine_with();
  ASSERT_TRUE(engine->submit(request_of(tokens(6, 1), "full", 50), std::make_shared<Again>(*engine, ends)).ok());
  Engine* raw = engine.release();  // a unique_ptr is null while it deletes
  delete raw;
  EXPECT_GE(ends, 1);
  EXPECT_TRUE(Again::refused);
}

constexpr int64_t kTokenBytes = 2 * 6 * 2 * 32 * 4;  // of probe-1M, fp32

// A few tokens of a long segment keep the pages of all of it. A lone request that would fit without them must not fail.
TEST(Pool, WhatARequestReusesCannotMakeItFail) {
  for (const char* policy : {"prefix", "naive", "sparsex"}) {
    for (const int answer : {1, 200}) {  // does not fit at once; or outgrows the pool only while it answers
      auto large = engine_with(), small = engine_with(600 * kTokenBytes);
      const auto known = tokens(400, 1);
      ask_ok(*small, request_of(known, "full", 0));
      const auto prompt = join({{known.begin(), known.begin() + 40}, tokens(answer == 1 ? 300 : 130, 2)});
      const Outcome out = ask_ok(*small, request_of(prompt, policy, answer));
      ASSERT_FALSE(out.completion.error) << policy << " " << answer << ": " << out.completion.error->message;
      const Outcome expected = ask_ok(*large, request_of(prompt, "full", answer));
      EXPECT_EQ(out.ids, expected.ids) << policy;
      EXPECT_EQ(out.completion.logits.first, expected.completion.logits.first) << policy;
      const PromptUsage& usage = out.usage();
      EXPECT_EQ(usage.prefix + usage.reused + usage.fresh, usage.prompt);
    }
  }
}

// A request that must wait for pages drops nothing from the cache while dropping would not let it in.
class Watching : public CollectingSink {
 public:
  explicit Watching(const Engine& engine) : engine_(engine) {}
  void on_tokens(const TokenDelta& delta) override {
    evicted = engine_.stats().evicted_segments;
    waiting = std::max(waiting, engine_.stats().waiting);
    CollectingSink::on_tokens(delta);
  }
  int64_t evicted = 0;
  int waiting = 0;

 private:
  const Engine& engine_;
};

TEST(Pool, ARequestThatWaitsDropsNothing) {
  auto engine = engine_with(576 * kTokenBytes);
  ask_ok(*engine, request_of(tokens(100, 1), "full", 0));
  const auto gate = hold(*engine);
  const auto first = std::make_shared<Watching>(*engine), second = std::make_shared<Watching>(*engine);
  ASSERT_TRUE(engine->submit(request_of(tokens(103, 2), "full", 60), first).ok());
  ASSERT_TRUE(engine->submit(request_of(tokens(500, 3), "full", 2), second).ok());
  gate->open();
  first->wait();
  EXPECT_EQ(first->waiting, 1);
  EXPECT_EQ(first->evicted, 0);
  EXPECT_FALSE(second->wait().error);
  EXPECT_GT(second->evicted, 0);
}

// The same prompt and answer, computed again without looking, take no second place in the cache.
TEST(Pool, WhatIsKnownExactlyIsNotKeptTwice) {
  auto engine = engine_with();
  const auto prompt = tokens(100, 1);
  ask_ok(*engine, request_of(prompt, "full", 40));
  const EngineStats once = engine->stats();
  EXPECT_EQ(once.cached_tokens, 139);  // the last token's KV was never computed
  ask_ok(*engine, request_of(prompt, "full", 40));
  EXPECT_EQ(engine->stats().cached_tokens, once.cached_tokens);
  EXPECT_EQ(engine->stats().cached_segments, once.cached_segments);
  ask_ok(*engine, request_of(prompt, "full", 60));  // a longer answer is new
  EXPECT_GT(engine->stats().cached_tokens, once.cached_tokens);
  const auto longer = join({prompt, tokens(30, 2)});
  ask_ok(*engine, request_of(longer, "full", 1));  // and so is a longer prompt
  EXPECT_EQ(ask_ok(*engine, request_of(longer, "prefix", 1)).usage().prefix, 129);
}

// A request that waits for the same prompt's KV does not keep the next ones waiting.
TEST(Queue, OthersPassARequestThatWaitsForTheSamePrompt) {
  auto engine = engine_with(0, 8);
  const auto gate = hold(*engine);
  const auto first = std::make_shared<Watching>(*engine);
  const auto twin = std::make_shared<CollectingSink>(), other = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine->submit(request_of(tokens(64, 1), "prefix", 1), first).ok());
  ASSERT_TRUE(engine->submit(request_of(tokens(64, 1), "prefix", 3), twin).ok());
  ASSERT_TRUE(engine->submit(request_of(tokens(4, 2), "prefix", 1), other).ok());
  gate->open();
  first->wait();
  EXPECT_EQ(first->waiting, 1);  // at its first token: only the twin
  EXPECT_EQ(twin->wait().usage.prefix, 63);
  EXPECT_FALSE(other->wait().error);
}

// Of a conversation's segments the last is evicted first: what is left is still a chain from the first token on.
TEST(Pool, AChainIsEvictedFromItsEnd) {
  auto engine = engine_with(576 * kTokenBytes);  // 18 blocks of 32 tokens
  const auto first = tokens(150, 1);             // 5 blocks
  const auto second = join({first, tokens(150, 2)});
  ask_ok(*engine, request_of(first, "prefix", 0));
  ask_ok(*engine, request_of(second, "prefix", 0));        // 5 more
  ask_ok(*engine, request_of(tokens(380, 3), "full", 0));  // 12: one of the two must go
  EXPECT_EQ(engine->stats().evicted_segments, 1);
  Request again = request_of(second, "prefix", 0);
  again.publish = false;
  EXPECT_EQ(ask_ok(*engine, again).usage().prefix, 150);
}

// Preempted before its first token, it finds other pieces when it starts again: the account is of what was done then.
TEST(Usage, AddsUpWhenAPreemptedPrefillFindsMore) {
  auto engine = engine_with(704 * kTokenBytes, 16);  // 22 blocks: 4 + 17 at first; the answer takes 3 more
  const auto gate = hold(*engine);
  const auto piece = tokens(100, 1);
  auto first = std::make_shared<CollectingSink>(), second = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine->submit(request_of(join({tokens(3, 2), piece}), "full", 100), first).ok());
  ASSERT_TRUE(engine->submit(request_of(join({tokens(200, 3), piece, tokens(210, 4)}), "sparsex", 2), second).ok());
  gate->open();
  first->wait();
  const PromptUsage usage = second->wait().usage;
  ASSERT_GT(engine->stats().preemptions, 0u);
  ASSERT_GT(usage.prefix, 0) << "what the second one had computed before was dropped in vain";
  EXPECT_LE(usage.recomputed, usage.reused);
  EXPECT_EQ(usage.prefix + usage.reused + usage.fresh, usage.prompt);
}

TEST(Submit, RefusesSamplingThatIsNoNumber) {
  auto engine = engine_with();
  const auto refused = [&](auto change) {
    Request request = request_of(tokens(5, 1));
    request.sampling.temperature = 1;
    change(request.sampling);
    return !engine->submit(std::move(request), std::make_shared<Counting>()).ok();
  };
  EXPECT_TRUE(refused([](SamplingParams& s) { s.presence_penalty = std::nanf(""); }));
  EXPECT_TRUE(refused([](SamplingParams& s) { s.frequency_penalty = HUGE_VALF; }));
  EXPECT_TRUE(refused([](SamplingParams& s) { s.logit_bias[3] = std::nanf(""); }));
  EXPECT_TRUE(refused([](SamplingParams& s) { s.logit_bias[3] = HUGE_VALF; }));
  EXPECT_FALSE(refused([](SamplingParams& s) { s.logit_bias[3] = -HUGE_VALF; }));  // never this token
}

}  // namespace
}  // namespace kvilt

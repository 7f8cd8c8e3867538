// Who waits for whom, through an engine: bursts, short requests behind long ones, pools that hold little more than one
// request. Time is counted in steps.
#include <gtest/gtest.h>

#include "probe_prompts.h"

namespace kvilt {
namespace {

constexpr int64_t kProbeTokenBytes = 2 * 6 * 2 * 32 * 4;  // of probe-1M, fp32

std::unique_ptr<Engine> engine_of_pool(int64_t tokens_in_pool = 8000, int chunk = 64,
                                       PlacementMode placement = PlacementMode::kZeroCopy) {
  EngineOptions options{.model = kModel, .threads = 1, .kv_type = KvType::kF32, .chunk_tokens = chunk};
  options.kv_bytes = tokens_in_pool * kProbeTokenBytes;
  options.placement = placement;
  return open_for_test(options);
}

// Requests that arrive in one step, behind a first one that holds the engine until all are submitted.
class Burst {
 public:
  explicit Burst(Engine& engine) : engine_(engine), gate_(hold(engine)) {}
  void add(Request request) {
    sinks_.push_back(std::make_shared<Sink>(*this));
    EXPECT_TRUE(engine_.submit(std::move(request), sinks_.back()).ok());
  }
  std::vector<Completion> run() {
    first_step_ = engine_.stats().steps;
    gate_->open();
    std::vector<Completion> out;
    for (const auto& sink : sinks_) out.push_back(sink->wait());
    return out;
  }
  // Steps until a request's first token.
  int64_t steps_of(size_t i) const { return sinks_[i]->steps; }

 private:
  class Sink : public CollectingSink {
   public:
    explicit Sink(const Burst& burst) : burst_(burst) {}
    void on_tokens(const TokenDelta& delta) override {
      if (steps == 0) steps = static_cast<int64_t>(burst_.engine_.stats().steps - burst_.first_step_);
      CollectingSink::on_tokens(delta);
    }
    std::atomic<int64_t> steps{0};

   private:
    const Burst& burst_;
  };

  Engine& engine_;
  std::shared_ptr<HoldingSink> gate_;
  std::vector<std::shared_ptr<Sink>> sinks_;
  std::atomic<uint64_t> first_step_{0};
};

// Twenty questions about the same six new documents: the first computes them, the others find them.
TEST(Burst, WhatOneComputesTheOthersFind) {
  for (const char* policy : {"prefix", "naive", "auto"}) {
    for (const bool same_order : {true, false}) {
      if (!same_order && policy == std::string("prefix")) continue;
      auto engine = engine_of_pool();
      Burst burst(*engine);
      constexpr int kQuestions = 20, kDocument = 60, kQuestion = 12;
      for (uint32_t i = 0; i < kQuestions; ++i) {
        std::vector<int32_t> prompt;
        for (uint32_t d = 0; d < 6; ++d)
          prompt = join({prompt, tokens(kDocument, 100 + (same_order ? d : (d + i) % 6))});
        burst.add(request_of(join({prompt, tokens(kQuestion, i)}), policy, 1));
      }
      int64_t fresh = 0;
      for (const Completion& done : burst.run()) fresh += done.usage.fresh;
      const int64_t all_new = 6 * kDocument + kQuestions * kQuestion;
      EXPECT_LE(static_cast<double>(fresh), 1.15 * static_cast<double>(all_new)) << policy << same_order;
      EXPECT_GE(fresh, all_new - kQuestions) << "power";  // but for tokens that two have in common by chance
    }
  }
}

// The same prompt under a policy whose result is of no use for it is not waited for.
TEST(Burst, NobodyWaitsForWhatItCannotUse) {
  auto engine = engine_of_pool(8000, 512);
  const auto known = tokens(200, 1);
  warm(*engine, known);
  const auto prompt = join({tokens(4, 2), known, tokens(300, 3)});
  Burst burst(*engine);
  burst.add(request_of(prompt, "naive", 1));
  burst.add(request_of(prompt, "prefix", 1));
  EXPECT_EQ(burst.run()[1].usage.prefix, 0) << "it would have found four tokens";
}

TEST(Shares, AShortRequestDoesNotWaitBehindALongOne) {
  auto engine = engine_of_pool();
  const auto known = tokens(400, 1);
  warm(*engine, known);
  const Request asked = request_of(join({known, tokens(30, 2)}), "prefix", 1);
  const std::vector<float> alone = ask_with(*engine, asked.prompt.ids, "prefix", {}, 1).completion.logits.first;
  Burst burst(*engine);
  burst.add(request_of(tokens(2500, 3), "full", 1));
  burst.add(asked);
  const auto done = burst.run();
  EXPECT_LE(burst.steps_of(1), 3);
  EXPECT_EQ(done[1].usage.prefix, 400);
  EXPECT_EQ(done[1].logits.first, alone) << "whatever shares its steps";
  EXPECT_GT(burst.steps_of(0), 35) << "power";
  EXPECT_LT(burst.steps_of(0), 45);
}

// What a long prefill has done is there for others before it ends: they wait for that much and no more.
TEST(Shares, ALongPrefillPublishesAsItGoes) {
  auto engine = engine_of_pool();
  const auto shared = tokens(1000, 1);
  const auto asked = join({shared, tokens(30, 2)});
  Burst burst(*engine);
  burst.add(request_of(join({shared, tokens(2500, 3)}), "full", 1));
  burst.add(request_of(asked, "prefix", 1));
  const auto done = burst.run();
  EXPECT_EQ(done[1].usage.prefix, 1000);
  EXPECT_LE(burst.steps_of(1), 20);
  EXPECT_GT(burst.steps_of(0), 50) << "power";
  EXPECT_EQ(done[1].logits.first, ask_with(*engine_of_pool(), asked, "full", {}, 1).completion.logits.first);
}

// Five hundred and twelve that repair the same text, each with hidden states and probes of its own, in a pool with room
// for a few: each is answered, none computes more than it would alone, and the next one is served right.
TEST(Pool, FiveHundredRepairsAtOnce) {
  constexpr uint32_t kRequests = kSanitized ? 64 : 512;
  auto engine = engine_of_pool(3000, 512);
  const auto known = tokens(200, 1);
  warm(*engine, known);
  const auto asked = [&](uint32_t i) { return join({tokens(5, 1000 + i), known, tokens(6, 2000 + i)}); };
  const Outcome alone = ask_with(*engine, asked(kRequests), "cacheblend", {}, 1);
  ASSERT_GT(alone.usage().recomputed, 0) << "power";
  Burst burst(*engine);
  for (uint32_t i = 0; i < kRequests; ++i) burst.add(request_of(asked(i), "cacheblend", 1));
  for (const Completion& done : burst.run()) {
    ASSERT_FALSE(done.error) << done.error->message;
    EXPECT_LE(done.usage.flops, 1.05 * alone.usage().flops);
    EXPECT_EQ(done.usage.reused, alone.usage().reused);
  }
  const EngineStats after = engine->stats();
  EXPECT_EQ(after.requests_failed, 0u);
  EXPECT_LE(after.kv_pages_used, after.kv_pages);
  EXPECT_EQ(ask_with(*engine, asked(600), "full", {}, 1).completion.logits.first,
            ask_with(*engine_of_pool(), asked(600), "full", {}, 1).completion.logits.first);
}

// Each of these computes nearly all of its prompt in its last stage: as many start as there is room for then, so that
// nobody's first stages are in vain.
TEST(Pool, APlanStartsWhenAllOfItHasRoom) {
  auto engine = engine_of_pool(770);  // the known text, and one request more
  const auto known = tokens(300, 1);
  warm(*engine, known);
  Burst burst(*engine);
  for (uint32_t i = 0; i < 6; ++i)
    burst.add(request_of(join({tokens(5, 50 + i), known, tokens(20, 10 + i)}), "mend", 4));
  for (const Completion& done : burst.run()) {
    EXPECT_FALSE(done.error);
    EXPECT_GT(done.usage.reused, 250) << "what it knew was not dropped for another";
  }
  EXPECT_EQ(engine->stats().preemptions, 0u);
}

// A stream of long prompts does not keep one from its later stages, and the first to come is the first to be served.
TEST(Pool, NobodyIsOvertaken) {
  auto engine = engine_of_pool(640);
  const auto known = tokens(200, 1);
  warm(*engine, known);
  Burst burst(*engine);
  burst.add(request_of(join({tokens(5, 4), known, tokens(20, 2)}), "mend", 30));
  for (uint32_t i = 0; i < 6; ++i) burst.add(request_of(tokens(370, 10 + i), "full", 1));
  const auto done = burst.run();
  int64_t sum = 0;
  for (size_t i = 0; i < done.size(); ++i) {
    EXPECT_FALSE(done[i].error) << i;
    EXPECT_TRUE(i == 0 || burst.steps_of(i) > burst.steps_of(i - 1)) << i;
    sum += burst.steps_of(i);
  }
  EXPECT_LE(burst.steps_of(6) * 7, 4 * sum);
}

// What was copied in was placed too: a lone request that does not fit with it starts again without.
TEST(Pool, WhatWasCopiedCannotMakeARequestFail) {
  const auto known = tokens(400, 1);
  const auto prompt = join({tokens(3, 5), {known.begin(), known.begin() + 40}, tokens(100, 2)});
  auto large = engine_of_pool();
  const Outcome expected = ask_ok(*large, request_of(prompt, "full", 400));
  auto small = engine_of_pool(600, 512, PlacementMode::kCopy);
  warm(*small, known);
  const Outcome out = ask_ok(*small, request_of(prompt, "naive", 400));
  ASSERT_FALSE(out.completion.error) << out.completion.error->message;
  EXPECT_EQ(out.ids.size(), expected.ids.size());
}

}  // namespace
}  // namespace kvilt

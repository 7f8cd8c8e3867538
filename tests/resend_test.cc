// A client gives up on a long prompt and sends it again: what was computed for it is not computed twice, whatever the
// policy, and nobody else gets it.
#include <gtest/gtest.h>

#include "engine/lingering.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

constexpr int kChunk = 32;

EngineOptions options(double linger_s) {
  EngineOptions out{.model = kModel, .threads = 2, .kv_type = KvType::kF32, .chunk_tokens = kChunk};
  out.linger_s = linger_s;
  return out;
}

// New text, and known documents in another order behind a new beginning.
std::vector<int32_t> long_prompt(uint32_t seed) {
  return join({tokens(40, seed), tokens(300, 2), tokens(64, seed + 1), tokens(300, 1), tokens(40, seed + 2)});
}

std::unique_ptr<Engine> warmed(double linger_s) {
  auto engine = open_for_test(options(linger_s));
  warm(*engine, tokens(300, 1));
  warm(*engine, tokens(300, 2));
  return engine;
}

Request asking(const std::string& policy, uint32_t seed = 50) {
  Request request = request_of(long_prompt(seed), policy, 6);
  if (policy == "auto") request.policy.params["quality"] = "balanced";
  return request;
}

// Sends it and gives up after so many steps; false: it had its answer before.
bool give_up(Engine& engine, const Request& request, uint64_t steps) {
  auto sink = std::make_shared<CollectingSink>();
  const uint64_t before = engine.stats().steps, answered = engine.stats().requests_ok;
  const auto id = engine.submit(request, sink);
  EXPECT_TRUE(id.ok());
  while (engine.stats().steps < before + steps && engine.stats().requests_ok == answered)
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  engine.cancel(id.value());
  return sink->wait().finish == Finish::kCancelled;
}

// Somebody's answer, a token a step: while it comes, nothing that lingers goes on. The engine waits in it until the test
// lets it go on, so what is given up is given up at the step that was meant, however slow the machine is.
class Beside {
 public:
  explicit Beside(Engine& engine) : engine_(engine), sink_(std::make_shared<Sink>()) {
    const auto id = engine.submit(request_of(tokens(8, 99), "full", 1500), sink_);
    EXPECT_TRUE(id.ok());
    id_ = id.value();
    sink_->wait_until_held();
  }
  ~Beside() {
    engine_.cancel(id_);
    sink_->go(Sink::kOn);
    EXPECT_EQ(sink_->wait().finish, Finish::kCancelled) << "it was to last";
  }

  // The request runs for so many steps, is given up, and lingers if it may.
  void give_up(const Request& request, int steps) {
    const auto sink = std::make_shared<CollectingSink>();
    const auto id = engine_.submit(request, sink);
    ASSERT_TRUE(id.ok());
    run(steps);
    engine_.cancel(id.value());
    run(2);  // it hears of it in one step, and the counts in the next
    EXPECT_EQ(sink->wait().finish, Finish::kCancelled);
  }
  PromptUsage usage_of(const Request& request) {
    const auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(engine_.submit(request, sink).ok());
    while (!sink->finished()) run(1);
    return sink->wait().usage;
  }

 private:
  class Sink : public CollectingSink {
   public:
    static constexpr int kOn = 1 << 30;
    void on_tokens(const TokenDelta&) override {
      std::unique_lock lock(mutex_);
      if (left_ > 0) --left_;
      moved_.notify_all();
      moved_.wait(lock, [this] { return left_ > 0; });
    }
    void go(int steps) {
      std::lock_guard lock(mutex_);
      left_ = steps;
      moved_.notify_all();
    }
    void wait_until_held() {
      std::unique_lock lock(mutex_);
      moved_.wait(lock, [this] { return left_ == 0; });
    }

   private:
    std::mutex mutex_;
    std::condition_variable moved_;
    int left_ = 1;  // steps until it holds the engine
  };

  void run(int steps) {
    sink_->go(steps);
    sink_->wait_until_held();
  }

  Engine& engine_;
  std::shared_ptr<Sink> sink_;
  RequestId id_ = 0;
};

struct Tries {
  Outcome answer;
  double flops = 0;
  int given_up = 0;
};

Tries tries(Engine& engine, const Request& request, const std::vector<uint64_t>& steps) {
  Tries out;
  const double before = engine.stats().prefill_flops;
  for (const uint64_t n : steps) out.given_up += give_up(engine, request, n) ? 1 : 0;
  out.answer = ask_ok(engine, request);
  out.flops = engine.stats().prefill_flops - before;
  return out;
}

TEST(Resend, TheThirdTryHasItsAnswerInOneRunsWork) {
  for (const char* policy : {"prefix", "auto", "sparsex"}) {
    auto undisturbed = warmed(15);
    const Tries one = tries(*undisturbed, asking(policy), {});
    const int steps = one.answer.completion.usage.steps;
    ASSERT_GE(steps, 8) << policy;
    EXPECT_EQ(one.answer.completion.usage.joined, 0);
    for (uint32_t turn = 1; turn < 6; ++turn) {
      auto engine = warmed(15);
      const auto at = static_cast<uint64_t>(steps) * turn / 6;
      const Tries three = tries(*engine, asking(policy), {at, 2});
      EXPECT_EQ(three.answer.completion.logits.first, one.answer.completion.logits.first) << policy << turn;
      EXPECT_EQ(three.answer.ids, one.answer.ids) << policy << turn;
      EXPECT_LE(three.flops, 1.1 * one.flops) << policy << turn;
      EXPECT_EQ(engine->stats().requests_cancelled, static_cast<uint64_t>(three.given_up));
    }
  }
}

// What stores and a prefill server are compared with: how long computing takes here.
TEST(Resend, ThePaceIsOfWhatTheLastTryComputed) {
  auto engine = warmed(15);
  const Tries one = tries(*engine, asking("auto", 90), {});
  const PromptUsage& alone = one.answer.completion.usage;
  EXPECT_EQ(computed_since_first_step(alone, 0), alone.fresh + alone.recomputed);
  for (uint32_t seed = 60; seed < 64; ++seed) {
    Beside beside(*engine);
    beside.give_up(asking("auto", seed), alone.steps * 3 / 4);
    const PromptUsage usage = beside.usage_of(asking("auto", seed));
    EXPECT_GT(usage.joined, 0) << "power: it goes on from the try before";
    EXPECT_LE(computed_since_first_step(usage, 0), usage.prompt - usage.joined);
    EXPECT_LE(computed_since_first_step(usage, 0), kChunk * (usage.steps + 1) - usage.joined);
  }
  PromptUsage looking;  // 19,500 of 20,000 rows that look were taken over
  looking.fresh = 1, looking.joined = 19'500;
  EXPECT_EQ(computed_since_first_step(looking, 20'000), 501);
}

// Power: without it, an approximate prompt is computed again from its beginning. What is exact is kept in the cache.
TEST(Resend, NothingLingersWhereItIsOff) {
  auto undisturbed = warmed(0);
  const Tries one = tries(*undisturbed, asking("auto"), {});
  auto engine = warmed(0);
  const auto late = static_cast<uint64_t>(one.answer.completion.usage.steps) * 3 / 4;
  const Tries three = tries(*engine, asking("auto"), {late, late});
  if (three.given_up == 2) {
    EXPECT_GE(three.flops, 1.5 * one.flops);
  }
  expect_equal(three.answer, one.answer);

  auto exact = warmed(0), plain = warmed(0);
  const Tries alone = tries(*plain, asking("prefix"), {});
  const Tries again = tries(*exact, asking("prefix"), {late, late});
  EXPECT_LE(again.flops, 1.1 * alone.flops);
  expect_equal(again.answer, alone.answer);
}

// The second try comes before the first is given up.
TEST(Resend, ATryThatWaitsForTheFirstGoesOnFromIt) {
  auto undisturbed = warmed(15);
  const Tries one = tries(*undisturbed, asking("auto"), {});
  auto engine = warmed(15);
  const double before = engine->stats().prefill_flops;
  const auto first = std::make_shared<CollectingSink>(), second = std::make_shared<CollectingSink>();
  const auto id = engine->submit(asking("auto"), first);
  ASSERT_TRUE(eventually([&] { return engine->stats().steps >= 4 + 20; }));
  ASSERT_TRUE(engine->submit(asking("auto"), second).ok());
  engine->cancel(id.value());
  EXPECT_EQ(second->wait().logits.first, one.answer.completion.logits.first);
  EXPECT_LE(engine->stats().prefill_flops - before, 1.1 * one.flops);
}

// What lingers goes on while nothing else is there, and is a chain in the cache when it is done.
TEST(Resend, ItGoesOnMeanwhile) {
  auto engine = warmed(60);
  ASSERT_TRUE(give_up(*engine, asking("auto"), 5));
  EXPECT_TRUE(eventually([&] { return engine->stats().lingering == 0; }));
  const Outcome again = ask_ok(*engine, asking("auto"));
  EXPECT_EQ(again.completion.usage.fresh, 1);
  EXPECT_EQ(again.completion.usage.steps, 1);
  auto undisturbed = warmed(60);
  expect_equal(again, ask_ok(*undisturbed, asking("auto")));
}

TEST(Resend, NobodyElseJoins) {
  const Request mine = asking("auto");
  std::vector<Request> others(7, mine);
  others[0].tenant = "other";
  others[1].cache_salt = "salt";
  others[2].namespaces = {"space"};
  others[3].policy.params["quality"] = "draft";
  others[4].prompt.ids.back() ^= 1;
  others[5].prompt.marks = {{40, 340}};
  others[6].publish = false;
  for (size_t i = 0; i < others.size(); ++i) {
    auto engine = warmed(60);
    Beside beside(*engine);
    beside.give_up(mine, 20);
    EXPECT_EQ(engine->stats().lingering, 1);
    EXPECT_EQ(beside.usage_of(others[i]).joined, 0) << i;
    EXPECT_EQ(engine->stats().requests_joined, 0u) << i;
  }
  auto engine = warmed(60);
  Beside beside(*engine);
  beside.give_up(mine, 20);
  Request again = mine;
  again.sampling.seed = 7;
  again.sampling.max_tokens = 2;
  EXPECT_GT(beside.usage_of(again).joined, 0) << "power";
}

TEST(Resend, MemoryReturnsWhenNobodyComesBack) {
  EngineOptions small = options(0.05);
  auto engine = open_for_test(small);
  Request request = asking("auto");
  ASSERT_TRUE(give_up(*engine, request, 5));
  EXPECT_TRUE(eventually([&] { return engine->stats().lingering == 0; }));
  engine->clear_cache();
  EXPECT_EQ(engine->stats().kv_pages_used, 0);

  auto holds = open_for_test(options(600));
  for (uint32_t i = 0; i < 8; ++i) give_up(*holds, asking("prefix", 100 + 10 * i), 5);
  EXPECT_LE(holds->stats().lingering, 4);
  holds->clear_cache();
  EXPECT_EQ(holds->stats().lingering, 0);
  EXPECT_EQ(holds->stats().kv_pages_used, 0);
}

// A pool that holds one such prompt: whoever runs gets the pages.
TEST(Resend, ItGivesItsPagesToWhoRuns) {
  EngineOptions small = options(600);
  small.kv_bytes = int64_t{900} * 2 * 6 * 2 * 32 * 4;
  auto engine = open_for_test(small);
  ASSERT_TRUE(give_up(*engine, asking("prefix", 100), 10));
  const Outcome other = ask_ok(*engine, asking("prefix", 200));
  EXPECT_EQ(other.completion.finish, Finish::kLength);
  EXPECT_EQ(engine->stats().preemptions, 0u);
  auto plain = open_for_test(options(600));
  expect_equal(other, ask_ok(*plain, asking("prefix", 200)));
}

}  // namespace
}  // namespace kvilt

// A day's traffic through one engine: conversations over reused documents, retries, choices, preemption, and random
// requests of all kinds at once. What is asked for exactly must be what a fresh engine says, bit for bit, whatever came
// before; what goes on from a chain must be what its first request left.
#include <random>

#include "probe_prompts.h"

namespace kvilt {
namespace {

constexpr int64_t kTrafficTokenBytes = 2 * 6 * 2 * 32 * 4;  // of probe-1M, fp32

std::unique_ptr<Engine> traffic_engine(int64_t tokens_in_pool, PlacementMode placement = PlacementMode::kZeroCopy,
                                       bool cache = true) {
  EngineOptions options{.model = kModel, .threads = 2, .kv_type = KvType::kF32, .chunk_tokens = 64};
  options.kv_bytes = tokens_in_pool * kTrafficTokenBytes;
  options.placement = placement;
  options.cache = cache;
  return open_for_test(options);
}

Request turn_of(std::vector<int32_t> ids, const std::string& policy, Params params = {}, int max_tokens = 4) {
  Request request = request_of(std::move(ids), policy, max_tokens);
  request.policy.params = std::move(params);
  return request;
}

struct Method {
  std::string policy;
  Params params;
};
const std::vector<Method> kMethods = {{"mend", {{"r", "0.2"}}},
                                      {"auto", {{"quality", "balanced"}}},
                                      {"auto", {{"quality", "draft"}}},
                                      {"sparsex", {}},
                                      {"cacheblend", {}},
                                      {"epic", {}},
                                      {"prophetkv", {}},
                                      {"naive", {}}};

class Conversation : public testing::Test {
 protected:
  void warm_documents(Engine& engine) const {
    for (const auto& document : {a, b, c}) warm(engine, join({tokens(3, 90), document}));
  }
  const std::vector<int32_t> a = tokens(150, 1), b = tokens(130, 2), c = tokens(140, 3);
  const std::vector<int32_t> first = join({tokens(20, 4), c, a, b, tokens(24, 5)});
};

// The same prompt again computes its last row, from the very KV that the first time left.
TEST_F(Conversation, ARetryGoesOnFromItsChain) {
  for (const PlacementMode placement : {PlacementMode::kZeroCopy, PlacementMode::kCopy}) {
    for (const Method& method : kMethods) {
      SCOPED_TRACE(method.policy);
      const auto engine = traffic_engine(8000, placement);
      warm_documents(*engine);
      const Outcome once = ask_ok(*engine, turn_of(first, method.policy, method.params));
      EXPECT_LT(once.usage().prefix, 30);
      EXPECT_GT(once.usage().reused, 400);
      const Outcome again = ask_ok(*engine, turn_of(first, method.policy, method.params));
      EXPECT_EQ(again.usage().prefix, static_cast<int>(first.size()) - 1);
      EXPECT_GT(again.usage().chain, 400);
      EXPECT_EQ(once.usage().chain, 0);
      expect_equal(once, again);
      const Outcome exact = ask_ok(*engine, turn_of(first, "prefix"));
      EXPECT_LT(exact.usage().prefix, 30) << "a chain is never an exact prefix";
      if (method.policy == "naive") expect_differ(exact, again);
    }
  }
}

// Turn by turn only what is new is computed; an exact request in the middle makes the exact chain, which then wins.
TEST_F(Conversation, LaterTurnsComputeWhatIsNew) {
  for (const bool exact_in_the_middle : {false, true}) {
    const auto engine = traffic_engine(8000);
    warm_documents(*engine);
    std::vector<int32_t> said = first;
    for (int turn = 0; turn < 5; ++turn) {
      if (exact_in_the_middle && turn == 3) ask_ok(*engine, turn_of(said, "prefix"));
      const Outcome out = ask_ok(*engine, turn_of(said, "auto", {{"quality", "balanced"}}, 8));
      if (turn > 0) {
        EXPECT_LE(out.usage().prompt - out.usage().prefix, 8 + 1 + 12) << turn;
      }
      said = join({said, out.ids, tokens(12, 20 + turn)});
    }
    const Outcome last = ask_ok(*engine, turn_of(said, "auto", {{"quality", "balanced"}}));
    const Outcome truth = ask_ok(*traffic_engine(8000), turn_of(said, "full"));
    if (exact_in_the_middle) {
      expect_equal(last, truth);
    } else {
      expect_differ(last, truth);
    }
  }
}

TEST_F(Conversation, ChoicesOfOnePromptComputeItOnce) {
  const auto engine = traffic_engine(8000);
  warm_documents(*engine);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine->submit(turn_of(first, "mend"), sinks.back()).ok());
  }
  double most = 0, sum = 0;
  for (const auto& sink : sinks) {
    const double flops = sink->wait().usage.flops;
    most = std::max(most, flops);
    sum += flops;
  }
  EXPECT_LT(sum, 1.1 * most);
}

// A pool that holds little more than one conversation: what is preempted goes on, and says the same.
TEST_F(Conversation, PreemptedRequestsGoOnFromTheirChains) {
  const auto roomy = traffic_engine(8000), tight = traffic_engine(1400);
  warm_documents(*roomy), warm_documents(*tight);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<std::vector<int32_t>> prompts, alone;
  for (int i = 0; i < 3; ++i) {
    prompts.push_back(join({first, tokens(9, 60 + i)}));
    alone.push_back(ask_ok(*roomy, turn_of(prompts.back(), "full", {}, 120)).ids);
  }
  for (const auto& prompt : prompts) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(tight->submit(turn_of(prompt, "prefix", {}, 120), sinks.back()).ok());
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    sinks[i]->wait();
    EXPECT_EQ(sinks[i]->ids, alone[i]);
  }
}

// A client that gives up leaves the exact part of its prompt, to himself and to who asks something else of it.
TEST_F(Conversation, WhoAsksAgainGoesOnWhereHeGaveUp) {
  const auto engine = traffic_engine(8000);
  const auto novel = tokens(3000, 70);
  const auto sink = std::make_shared<CollectingSink>();
  const auto id = engine->submit(turn_of(novel, "auto"), sink);
  ASSERT_TRUE(id.ok());
  const uint64_t steps = engine->stats().steps;
  while (engine->stats().steps < steps + 5) std::this_thread::yield();
  engine->cancel(id.value());
  const Completion gave_up = sink->wait();
  if (gave_up.finish != Finish::kCancelled) GTEST_SKIP() << "it was done before it was cancelled";
  const auto else_asked = join({novel, tokens(9, 71)});
  const Outcome other = ask_ok(*engine, turn_of(else_asked, "auto"));
  EXPECT_GE(other.usage().prefix, 4 * 64);
  EXPECT_EQ(other.usage().joined, 0);
  expect_equal(other, ask_ok(*traffic_engine(8000), turn_of(else_asked, "full")));
  const Outcome again = ask_ok(*engine, turn_of(novel, "auto"));
  EXPECT_GE(again.usage().prefix + again.usage().joined, 4 * 64);
  expect_equal(again, ask_ok(*traffic_engine(8000), turn_of(novel, "full")));
}

class RandomTraffic : public testing::TestWithParam<int> {};

TEST_P(RandomTraffic, ExactAnswersAreThoseOfAFreshEngine) {
  std::mt19937 rng(static_cast<uint32_t>(GetParam()));
  const auto any = [&](size_t n) { return rng() % n; };
  const bool copies = GetParam() % 3 == 2;
  const auto engine =
      traffic_engine(GetParam() % 2 ? 1500 : 3000, copies ? PlacementMode::kCopy : PlacementMode::kZeroCopy);
  const auto fresh = traffic_engine(4000, PlacementMode::kZeroCopy, false);
  std::vector<std::vector<int32_t>> documents;
  std::vector<Prompt> talks(3);
  for (int i = 0; i < 5; ++i) documents.push_back(tokens(60 + 40 * i, 100 + i));
  struct Asked {
    Request request;
    RequestId id = 0;
    std::shared_ptr<CollectingSink> sink = std::make_shared<CollectingSink>();
    bool exact = false;
  };
  int compared = 0, different = 0, seasoned = 0, step = 0;
  for (int round = 0; round < 25; ++round) {
    std::vector<Asked> asked(1 + any(4));
    for (Asked& one : asked) {
      Prompt& prompt = talks[any(talks.size())];
      std::vector<int32_t>& talk = prompt.ids;
      std::vector<TokenMark>& marks = prompt.marks;
      if (talk.size() > 700) talk.clear(), marks.clear();
      if (any(2) == 0) {
        const auto begin = static_cast<int32_t>(talk.size());
        talk = join({talk, documents[any(documents.size())]});
        marks.push_back({begin, static_cast<int32_t>(talk.size())});
      }
      talk = join({talk, tokens(5 + static_cast<int>(any(20)), 1000 + ++step)});
      const Method& method = kMethods[any(kMethods.size())];
      one.exact = any(2) == 0;
      one.request = one.exact ? turn_of(talk, any(2) ? "prefix" : "full") : turn_of(talk, method.policy, method.params);
      one.request.sampling.max_tokens = static_cast<int>(any(6));
      one.request.cache_salt = any(4) == 0 ? "salt" : "";
      one.request.publish = any(8) != 0;
      if (any(3) == 0 && talk.size() > 80) {
        one.request.prompt.marks = {{5, 70}};
      } else if (any(2) == 0) {
        one.request.prompt.marks = marks;
      }
      one.request.season = any(2) == 0;
      if (!one.exact && any(4) != 0) one.request.policy.params["reuse_from"] = "seasoned";
    }
    for (Asked& one : asked) {
      const auto id = engine->submit(one.request, one.sink);
      ASSERT_TRUE(id.ok()) << id.error().message;
      one.id = id.value();
    }
    for (Asked& one : asked) {
      if (any(5) == 0) engine->cancel(one.id);
    }
    if (any(10) == 0) engine->clear_cache();
    for (Asked& one : asked) {
      const Completion done = one.sink->wait();
      if (done.finish == Finish::kCancelled) continue;
      ASSERT_NE(done.finish, Finish::kError) << done.error->message;
      seasoned += done.usage.seasoned;
      one.request.policy = {"full", {}};
      one.request.season = false;
      const Outcome truth = ask_ok(*fresh, one.request);
      if (one.exact) {
        ++compared;
        EXPECT_EQ(done.logits.first, truth.completion.logits.first) << "round " << round;
        EXPECT_EQ(one.sink->ids, truth.ids);
      } else {
        different += done.logits.first != truth.completion.logits.first;
      }
    }
  }
  EXPECT_GT(compared, 10);
  EXPECT_GT(different, 0) << "power: the comparison can fail";
  EXPECT_GT(seasoned, 0) << "power: means were used beside them";
  engine->clear_cache();
  EXPECT_EQ(engine->stats().kv_pages_used, 0) << "no page is lost";
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomTraffic, testing::Range(0, 6));

}  // namespace
}  // namespace kvilt

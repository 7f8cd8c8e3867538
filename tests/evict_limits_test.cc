// Answers that let go of keys for good (decode_evict): they say what they say without it, to the bit, and the pool gets
// its pages back. Also where StreamingLLM's keys stand. Each equality next to a setting that must differ.
#include <gtest/gtest.h>

#include <random>

#include "probe_prompts.h"

namespace kvilt {
namespace {

constexpr int kRows = 90;  // of an answer: several pages' worth
constexpr int kPageSlots = 8;
constexpr int kHeadsInAll = 6 * 2;  // layers x KV heads of the probe model

int64_t pages_of_keys(int64_t keys) { return kHeadsInAll * ((keys + kPageSlots - 1) / kPageSlots); }

// The pool's pages in use when each token came.
class CountingPages : public CollectingSink {
 public:
  explicit CountingPages(const Engine& engine) : engine_(engine) {}
  void on_tokens(const TokenDelta& delta) override {
    pages.push_back(engine_.stats().kv_pages_used);  // since the step before
    CollectingSink::on_tokens(delta);
  }
  std::vector<int64_t> pages;

 private:
  const Engine& engine_;
};

struct EvictWay {
  std::string method;
  Params more = {};
};
const std::vector<EvictWay> kEvictWays = {{"snapkv"},
                                          {"snapkv", {{"decode_dense", "5"}, {"decode_dense_layers", "2"}}},
                                          {"snapkv", {{"decode_top_p", "0.7"}}},
                                          {"adakv"},
                                          {"pyramidkv"},
                                          {"h2o"},
                                          {"h2o", {{"decode_top_p", "0.8"}}},
                                          {"h2o", {{"decode_every", "7"}}},
                                          {"streamingllm"},
                                          {"streamingllm", {{"decode_positions", "text"}}},
                                          {"random"}};

Params evict_params(const EvictWay& way, int budget, bool evict) {
  Params out = way.more;
  out.insert({{"decode", way.method}, {"decode_budget", std::to_string(budget)}});
  if (evict) out["decode_evict"] = "yes";
  return out;
}

std::string name_of(const EvictWay& way) {
  std::string out = way.method;
  for (const auto& [name, value] : way.more) out += " " + name + "=" + value;
  return out;
}

// With the logits of every token of a forced answer.
Request evict_request(std::vector<int32_t> ids, const std::string& policy, Params params) {
  Request request = unpublished(std::move(ids), policy, std::move(params), kRows);
  request.evaluation.forced = tokens(kRows, 99);
  return request;
}

int first_row_that_differs(const Outcome& a, const Outcome& b) {
  const auto &left = a.completion.logits.all, &right = b.completion.logits.all;
  EXPECT_EQ(left.size(), right.size());
  size_t i = 0;
  while (i < left.size() && left[i] == right[i]) ++i;
  return static_cast<int>(i);
}

class EvictLimits : public testing::TestWithParam<std::string> {
 protected:
  const std::vector<int32_t> prompt = tokens(300, 7);
  std::unique_ptr<Engine> engine(int chunk = 512, PlacementMode placement = PlacementMode::kZeroCopy,
                                 const std::string& kv_type = "f32") const {
    return open_for_test({.model = kModel,
                          .backend = GetParam(),
                          .placement = placement,
                          .kv_type = *parse_kv_type(kv_type),
                          .page_slots = kPageSlots,
                          .chunk_tokens = chunk});
  }
};

TEST_P(EvictLimits, EvictingChangesNothing) {
  for (const std::string type : {"f32", "int8"}) {
    const auto e = engine(512, PlacementMode::kZeroCopy, type);
    const Outcome dense = ask_ok(*e, evict_request(prompt, "full", {}));
    for (const EvictWay& way : kEvictWays) {
      SCOPED_TRACE(type + " " + name_of(way));
      const Outcome stays = ask_ok(*e, evict_request(prompt, "full", evict_params(way, 40, false)));
      const Outcome goes = ask_ok(*e, evict_request(prompt, "full", evict_params(way, 40, true)));
      expect_equal(goes, stays);
      EXPECT_EQ(stays.usage().evicted_bytes, 0);
      EXPECT_GT(goes.usage().evicted_bytes, 0) << "power";
      EXPECT_LT(first_row_that_differs(stays, dense), 8) << "power: what went would have had an effect";
    }
    EXPECT_EQ(e->stats().kv_pages_used, 0);
  }
}

// After the first row that chose, a head has its budget and that row; a rule that chooses at every row grows no more.
TEST_P(EvictLimits, ThePoolGetsItsPagesBack) {
  const auto e = engine();
  for (const std::string method : {"snapkv", "adakv", "h2o", "streamingllm", "random"}) {
    SCOPED_TRACE(method);
    std::vector<int64_t> pages[2];
    for (const bool evict : {false, true}) {
      const auto sink = std::make_shared<CountingPages>(*e);
      ASSERT_TRUE(e->submit(evict_request(prompt, "full", evict_params({method}, 40, evict)), sink).ok());
      EXPECT_FALSE(sink->wait().error);
      pages[evict] = sink->pages;
      EXPECT_EQ(e->stats().kv_pages_used, 0);
    }
    EXPECT_EQ(pages[0][1], pages_of_keys(300));
    EXPECT_EQ(pages[1][1], pages[0][1]) << "the prompt is computed whole";
    EXPECT_EQ(pages[0].back(), pages_of_keys(300 + kRows - 2)) << "power: it grows";
    if (method == "adakv") {
      EXPECT_LE(pages[1][2], pages_of_keys(41) + kHeadsInAll) << "budgets differ, their sum does not";
    } else {
      EXPECT_EQ(pages[1][2], pages_of_keys(41));
    }
    const bool at_every_row = method == "h2o" || method == "streamingllm";
    const int64_t most = *std::max_element(pages[1].begin() + 2, pages[1].end());
    if (at_every_row) {
      EXPECT_LE(most, pages_of_keys(41 + kPageSlots));
    } else {
      EXPECT_GE(most, pages_of_keys(40 + kRows - 2));
    }
  }
}

// Where every key is kept nothing goes, until the answer has grown beyond the budget.
TEST_P(EvictLimits, NothingGoesWhereAllStay) {
  const auto e = engine();
  const Outcome dense = ask_ok(*e, evict_request(prompt, "full", {}));
  for (const std::string method : {"snapkv", "adakv", "h2o", "streamingllm"}) {
    SCOPED_TRACE(method);
    const Outcome all = ask_ok(*e, evict_request(prompt, "full", evict_params({method}, 300 + kRows, true)));
    expect_equal(all, dense);
    EXPECT_EQ(all.usage().evicted_bytes, 0);
    const Outcome later = ask_ok(*e, evict_request(prompt, "full", evict_params({method}, 310, true)));
    const bool at_every_row = method == "h2o" || method == "streamingllm";
    EXPECT_EQ(later.usage().evicted_bytes > 0, at_every_row) << "power";
    EXPECT_EQ(first_row_that_differs(later, dense), at_every_row ? 1 + 311 - 300 : kRows) << "the row at 311";
  }
}

// Pieces that were placed, with their rotations; some repaired, some copied in.
TEST_P(EvictLimits, GoesWithEveryPrefill) {
  for (const PlacementMode placement : {PlacementMode::kZeroCopy, PlacementMode::kCopy}) {
    const auto e = engine(512, placement);
    const std::vector<int32_t> head = tokens(9, 1), a = tokens(150, 2), b = tokens(153, 3), question = tokens(41, 5);
    warm(*e, join({head, a, b}));
    const int64_t cached = e->stats().kv_pages_used;
    const std::vector<int32_t> asked = join({head, b, a, question});
    for (const std::string policy : {"naive", "mend", "epic"}) {
      for (const EvictWay& way : {kEvictWays[0], kEvictWays[5], kEvictWays[8]}) {
        SCOPED_TRACE(policy + " " + name_of(way));
        const Outcome stays = ask_ok(*e, evict_request(asked, policy, evict_params(way, 40, false)));
        const Outcome goes = ask_ok(*e, evict_request(asked, policy, evict_params(way, 40, true)));
        EXPECT_GT(goes.usage().reused, 290);
        expect_equal(goes, stays);
        EXPECT_GT(goes.usage().evicted_bytes, 0) << "power";
        EXPECT_EQ(e->stats().kv_pages_used, cached) << "what others share stays";
      }
    }
    const Outcome again = ask_with(*e, join({head, a, b, question}), "prefix");
    EXPECT_EQ(again.usage().prefix, 9 + 150 + 153);
    expect_equal(again, ask_with(*engine(), join({head, a, b, question}), "full"));
  }
}

// Every policy that takes a decode method, with what it places, mends, carries over, overlays or reads as 8 bits; a
// dialogue's second turn; and a prompt that seasons the cache.
TEST_P(EvictLimits, GoesWithEveryPolicy) {
  if (GetParam() == "reference") GTEST_SKIP() << "what does not depend on kernels";
  const std::vector<int32_t> head = tokens(9, 1), a = tokens(150, 2), b = tokens(153, 3), question = tokens(41, 5);
  const std::vector<int32_t> asked = join({head, b, a, question});
  for (const std::string policy : {"auto", "mend", "sparsex", "cacheblend", "prophetkv", "agentkvshift", "crossquery",
                                   "oracle", "random", "prefix", "loopserve", "xattention"}) {
    SCOPED_TRACE(policy);
    const auto marked = [&](bool evict, int answer, const std::vector<int32_t>& ids) {
      Request request = evict_request(ids, policy, answer > 0 ? Params{} : evict_params(kEvictWays[0], 40, evict));
      if (answer > 0) request.publish = true;
      request.prompt.marks = {{9, 162}, {162, 312}};
      return request;
    };
    std::vector<Outcome> out;
    for (const bool evict : {false, true}) {
      const auto e = engine();
      Request first = request_of(join({head, a, b}), "full", 0);
      first.prompt.marks = {{9, 159}, {159, 312}};
      ask_ok(*e, first);
      ask_ok(*e, marked(false, 1, asked));
      out.push_back(ask_ok(*e, marked(evict, 0, join({asked, tokens(60, 12)}))));
      Request seasons = marked(evict, 0, join({tokens(5, 30), asked}));
      seasons.prompt.marks = {{14, 167}};
      seasons.season = policy == "prefix";
      ask_ok(*e, seasons);
      e->clear_cache();
      EXPECT_EQ(e->stats().kv_pages_used, 0);
    }
    expect_equal(out[1], out[0]);
    EXPECT_GT(out[1].usage().evicted_bytes, 0) << "power";
  }
}

// Heads with windows, of the model or of a head map, keep what these show.
TEST_P(EvictLimits, WindowsGoOn) {
  for (const std::string model : {"gemma3", "mistral"}) {
    const auto e =
        open_for_test({.model = "tests/data/fixtures/" + model, .backend = GetParam(), .page_slots = kPageSlots});
    std::vector<int32_t> small = tokens(150, 8);
    for (int32_t& id : small) id %= 60;
    for (const EvictWay& way : kEvictWays) {
      SCOPED_TRACE(model + " " + name_of(way));
      Request stays = evict_request(small, "full", evict_params(way, 24, false)), goes = stays;
      for (Request* request : {&stays, &goes}) request->evaluation.forced.assign(kRows, 5);
      goes.policy.params = evict_params(way, 24, true);
      const Outcome out = ask_ok(*e, goes);
      expect_equal(out, ask_ok(*e, stays));
      EXPECT_GT(out.usage().evicted_bytes, 0) << "power";
    }
  }
  const auto e = engine(64);
  for (const std::string global : {"none", "random"}) {
    for (const EvictWay& way : {kEvictWays[0], kEvictWays[5]}) {
      SCOPED_TRACE(global + " " + name_of(way));
      Params params = evict_params(way, 40, false);
      params.insert({{"global", global}, {"window", "20"}, {"sink", "3"}});
      const Outcome stays = ask_ok(*e, evict_request(prompt, "redknot", params));
      params["decode_evict"] = "yes";
      const Outcome goes = ask_ok(*e, evict_request(prompt, "redknot", params));
      expect_equal(goes, stays);
      EXPECT_EQ(e->stats().kv_pages_used, 0);
    }
  }
}

TEST_P(EvictLimits, TheChunkChangesNothing) {
  const auto whole = engine(512), parts = engine(23);
  for (const EvictWay& way : kEvictWays) {
    SCOPED_TRACE(name_of(way));
    const Params params = evict_params(way, 64, true);
    expect_equal(ask_ok(*whole, evict_request(prompt, "full", params)),
                 ask_ok(*parts, evict_request(prompt, "full", params)));
  }
}

TEST_P(EvictLimits, TogetherIsAlone) {
  const auto e = engine();
  std::vector<Request> requests;
  for (const EvictWay& way : kEvictWays) {
    requests.push_back(unpublished(tokens(200 + static_cast<int>(requests.size()), 3), "full",
                                   evict_params(way, 50, requests.size() % 3 != 2), 40));
  }
  expect_batched_equals_alone(*e, requests);
}

// Its pages would not come back from the cache.
TEST_P(EvictLimits, SuchPromptsAreNotPublished) {
  for (const bool evict : {false, true}) {
    const auto e = engine();
    Request request = request_of(prompt, "full", 4);
    request.policy.params = evict_params({"snapkv"}, 40, evict);
    ask_ok(*e, request);
    EXPECT_EQ(e->stats().kv_pages_used > 0, !evict);
    EXPECT_EQ(ask_with(*e, join({prompt, {11}}), "prefix").usage().prefix, evict ? 0 : 300);
  }
}

TEST_P(EvictLimits, WhatIsGoneIsNotWeighed) {
  const auto e = engine();
  Request request = evict_request(prompt, "full", evict_params({"snapkv"}, 40, false));
  request.evaluation.held_mass = true;
  EXPECT_TRUE(ask(*e, request).ok()) << "power";
  request.policy.params["decode_evict"] = "yes";
  const auto refused = ask(*e, request);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("leave 'decode_evict' out"), std::string::npos);
}

// Positions inside the cache, or of the text: the same while nothing is out, and not after it.
TEST_P(EvictLimits, StreamingKeysStandAtTheirRanks) {
  const auto e = engine();
  const Outcome dense = ask_ok(*e, evict_request(prompt, "full", {}));
  const auto streaming = [&](int budget, const std::string& positions) {
    Params params = evict_params({"streamingllm"}, budget, false);
    if (!positions.empty()) params["decode_positions"] = positions;
    return ask_ok(*e, evict_request(prompt, "full", params));
  };
  for (const std::string positions : {"cache", "text"}) {
    expect_equal(streaming(300 + kRows, positions), dense);
    EXPECT_EQ(first_row_that_differs(streaming(310, positions), dense), 1 + 311 - 300) << "power: the row at 311";
  }
  const Outcome cache = streaming(64, "cache"), text = streaming(64, "text");
  EXPECT_EQ(first_row_that_differs(cache, text), 1) << "power";
  expect_equal(streaming(64, ""), cache);
  Params no_sink = evict_params({"streamingllm"}, 64, false);
  no_sink["decode_sink"] = "0";
  Params no_sink_text = no_sink;
  no_sink_text["decode_positions"] = "text";
  expect_equal(ask_ok(*e, evict_request(prompt, "full", no_sink)),
               ask_ok(*e, evict_request(prompt, "full", no_sink_text)));  // without a sink no distance changes
}

INSTANTIATE_TEST_SUITE_P(Backends, EvictLimits, testing::Values("reference", "auto"),
                         [](const auto& info) { return info.param; });

// Requests of all kinds in a pool that is too small for them: some are cancelled, some preempted. Those that were not
// preempted say what they say alone; afterwards the pool has what it had.
class EvictTraffic : public testing::TestWithParam<int> {};

TEST_P(EvictTraffic, LeavesThePoolAsItWas) {
  std::mt19937 rng(static_cast<uint32_t>(GetParam()));
  const auto any = [&](size_t n) { return rng() % n; };
  EngineOptions options{.model = kModel, .kv_type = KvType::kF32, .page_slots = kPageSlots, .chunk_tokens = 64};
  const auto large = open_for_test(options);
  options.kv_bytes = 450 * large->info().kv_bytes_per_token;
  const auto small = open_for_test(options);
  const std::vector<int32_t> known = tokens(150, 2), other = tokens(70, 3);
  warm(*small, join({tokens(4, 1), known, other})), warm(*large, join({tokens(4, 1), known, other}));
  const int64_t cached = small->stats().kv_pages_used;
  struct Asked {
    Request request;
    RequestId id = 0;
    std::shared_ptr<CollectingSink> sink = std::make_shared<CollectingSink>();
    bool cancel = false;
    int reused = 0;
  };
  int compared = 0, cancelled = 0;
  int64_t evicted = 0;
  for (int round = 0; round < 12; ++round) {
    const uint64_t preempted = small->stats().preemptions;
    std::vector<Asked> asked(1 + any(6));
    for (Asked& one : asked) {
      const EvictWay& way = kEvictWays[any(kEvictWays.size())];
      std::vector<int32_t> ids = tokens(40 + static_cast<int>(any(60)), static_cast<uint32_t>(rng()));
      const bool reuses = any(3) == 0;
      if (reuses) ids = join({tokens(10, static_cast<uint32_t>(rng())), other, known, ids});
      one.request = unpublished(std::move(ids), reuses ? "naive" : "full", evict_params(way, 30, any(2) != 0),
                                60 + static_cast<int>(any(150)));
      one.cancel = any(5) == 0;
    }
    const auto gate = hold(*small);
    for (Asked& one : asked) {
      const auto id = small->submit(one.request, one.sink);
      ASSERT_TRUE(id.ok()) << id.error().message;
      one.id = id.value();
    }
    gate->open();
    for (Asked& one : asked) {
      if (!one.cancel) continue;
      one.sink->wait_for_tokens(any(8));
      small->cancel(one.id);
    }
    for (Asked& one : asked) {
      const Completion done = one.sink->wait();
      ASSERT_NE(done.finish, Finish::kError) << done.error->message;
      one.reused = done.usage.reused;
      cancelled += done.finish == Finish::kCancelled;
      evicted += done.usage.evicted_bytes;
    }
    EXPECT_EQ(small->stats().kv_pages_used, small->stats().kv_pages_idle) << "nobody holds a page";
    EXPECT_LE(small->stats().kv_pages_used, cached);
    if (small->stats().preemptions != preempted) continue;
    for (const Asked& one : asked) {
      if (one.cancel) continue;
      const Outcome alone = ask_ok(*large, one.request);
      if (alone.usage().reused != one.reused) continue;  // the pieces had to go
      EXPECT_EQ(one.sink->ids, alone.ids);
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
  EXPECT_GT(cancelled, 0) << "power";
  EXPECT_GT(small->stats().preemptions, 0u) << "power: the pool was too small";
  EXPECT_GT(evicted, 0) << "power";
  small->clear_cache();
  EXPECT_EQ(small->stats().kv_pages_used, 0) << "no page is lost";
}
INSTANTIATE_TEST_SUITE_P(Seeds, EvictTraffic, testing::Range(0, 4));

// How far the first answer was when the last one began.
class LookingAtTheFirst : public CollectingSink {
 public:
  explicit LookingAtTheFirst(const CollectingSink& first) : first_(first) {}
  void on_tokens(const TokenDelta& delta) override {  // both on the engine thread
    if (ids.empty()) first_had = first_.ids.size();
    CollectingSink::on_tokens(delta);
  }
  size_t first_had = 0;

 private:
  const CollectingSink& first_;
};

// Three requests, in a pool that holds one and a half of them densely.
TEST(EvictRoom, AnswersRunTogetherThatWouldWaitElse) {
  for (const bool evict : {false, true}) {
    EngineOptions options{.model = kModel, .kv_type = KvType::kF32, .page_slots = kPageSlots};
    options.kv_bytes = 700 * open_for_test(options)->info().kv_bytes_per_token;
    const auto e = open_for_test(options);
    const auto first = std::make_shared<CollectingSink>(), second = std::make_shared<CollectingSink>();
    const auto last = std::make_shared<LookingAtTheFirst>(*first);
    std::shared_ptr<CollectingSink> sinks[] = {first, second, last};
    for (uint32_t i = 0; i < 3; ++i) {
      Request request = unpublished(tokens(350, i), "full", evict_params({"snapkv"}, 32, evict), 200);
      ASSERT_TRUE(e->submit(request, sinks[i]).ok());
    }
    for (const auto& sink : sinks) EXPECT_FALSE(sink->wait().error);
    EXPECT_EQ(last->first_had < 200, evict) << "power";
  }
}

}  // namespace
}  // namespace kvilt

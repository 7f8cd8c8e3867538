// Limit cases of cross-query reuse with power checks: the settings at which regimes a and b equal the dense pass, naive
// reuse and each other, bit for bit, each beside one at which they differ.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "probe_prompts.h"

namespace kvilt {
namespace {

const Params kRegimeB{{"regime", "b"}, {"l_cut", "4"}};  // of 6 layers

class CrossQueryLimits : public testing::TestWithParam<std::string> {
 protected:
  // head | A | B | C | question, known in the order A B C, asked as C A B: C and "A B" are its pieces.
  const std::vector<int32_t> head = tokens(9, 1), a = tokens(70, 2), b = tokens(53, 3), c = tokens(64, 4),
                             known = join({head, a, b, c}), asked = join({head, c, a, b, tokens(21, 5)});
  static constexpr int kReused = 187;

  // One that knows `known`, computed under these parameters.
  std::unique_ptr<Engine> engine(const Params& params, int chunk = 512, const std::string& model = kModel) const {
    auto out = open_for_test({.model = model, .backend = GetParam(), .kv_type = KvType::kF32, .chunk_tokens = chunk});
    Request request = request_of(known, "crossquery", 0);
    request.policy.params = params;
    ask_ok(*out, request);
    return out;
  }
  Outcome run(Engine& engine, Params params) const { return ask_with(engine, asked, "crossquery", std::move(params)); }
  // The model with these fields of its config.json.
  class Changed {
   public:
    explicit Changed(const std::string& fields) {
      std::filesystem::copy(kModel, folder_, std::filesystem::copy_options::recursive);
      nlohmann::json config = nlohmann::json::parse(std::ifstream(std::string(kModel) + "/config.json"));
      config.update(nlohmann::json::parse(fields));
      std::ofstream(folder_ / "config.json") << config;
    }
    ~Changed() { std::filesystem::remove_all(folder_); }
    Changed(const Changed&) = delete;
    Changed& operator=(const Changed&) = delete;
    std::string path() const { return folder_.string(); }

   private:
    const std::filesystem::path folder_ =
        std::filesystem::temp_directory_path() / ("kvilt_crossquery_" + std::to_string(::getpid()));
  };
};

TEST_P(CrossQueryLimits, AHaloOfAllIsFullAndOfNothingNaive) {
  for (const int chunk : {512, 13}) {
    const auto e = engine({}, chunk);
    const Outcome full = ask_with(*e, asked, "full"), naive = ask_with(*e, asked, "naive");
    const Outcome all = run(*e, {{"halo", "64"}}), none = run(*e, {{"halo", "0"}}), some = run(*e, {{"halo", "4"}});
    EXPECT_EQ(all.usage().recomputed, kReused);
    expect_equal(all, full);
    expect_equal(none, naive);
    EXPECT_EQ(some.usage().recomputed, 4 * 4) << "both ends of both pieces";
    expect_differ(some, full);
    expect_differ(some, naive);
  }
}

TEST_P(CrossQueryLimits, EnteringAtTheFirstLayerIsFullAndAfterTheLastNaive) {
  for (const int chunk : {512, 13}) {
    const auto e = engine(kRegimeB, chunk);
    const Outcome full = ask_with(*e, asked, "full"), naive = ask_with(*e, asked, "naive");
    expect_equal(run(*e, {{"regime", "b"}, {"l_cut", "0"}}), full);
    expect_equal(run(*e, {{"regime", "b"}, {"l_cut", "8"}}), naive);
    const Outcome four = run(*e, kRegimeB);
    EXPECT_EQ(four.usage().reused, kReused);
    expect_differ(four, full);
    expect_differ(four, naive);
    EXPECT_LT(four.usage().flops, 0.6 * full.usage().flops);
    EXPECT_GT(four.usage().flops, 1.5 * naive.usage().flops);
  }
}

// At the model's last layer itself, of a model of four layers; of one of five it is the layer before.
TEST_P(CrossQueryLimits, AfterTheLastLayerBeginsWithTheirNumber) {
  const Params all{{"regime", "b"}, {"l_cut", "4"}};
  for (const int layers : {4, 5}) {
    const Changed model(R"({"num_hidden_layers": )" + std::to_string(layers) + "}");
    const auto e = engine(all, 512, model.path());
    ASSERT_EQ(e->info().layers, layers);
    const Outcome out = run(*e, all), naive = ask_with(*e, asked, "naive");
    EXPECT_EQ(out.usage().reused, kReused);
    if (layers == 4) {
      expect_equal(out, naive);
      expect_differ(out, ask_with(*e, asked, "full"));
    } else {
      expect_differ(out, naive);
    }
  }
}

// What no request kept a state of is computed in full.
TEST_P(CrossQueryLimits, WithoutAStoredStateItIsFull) {
  const auto e = engine({{"regime", "a"}});
  const Outcome full = ask_with(*e, asked, "full");
  expect_equal(run(*e, kRegimeB), full);
  expect_equal(run(*e, {{"regime", "b"}, {"l_cut", "4"}, {"store", "int8"}}), full);
  const auto has = engine(kRegimeB);
  expect_differ(run(*has, kRegimeB), full);
  expect_equal(run(*has, {{"regime", "b"}, {"l_cut", "4"}, {"store", "int8"}}), full);  // it is kept as fp32
}

TEST_P(CrossQueryLimits, AChangedTokenIsNotReused) {
  const auto e = engine(kRegimeB);
  const auto reused = [&](std::vector<int32_t> prompt, const Params& params) {
    return ask_with(*e, std::move(prompt), "crossquery", params).completion.reused_runs;
  };
  const int32_t at = 9 + 35;  // inside C
  const auto holds = [&](const auto& runs) {
    return std::ranges::any_of(runs, [&](const auto& run) { return run.begin <= at && at < run.end; });
  };
  auto changed = asked;
  changed[at] = changed[at] == 7 ? 8 : 7;
  for (const Params& params : {Params{}, kRegimeB}) {
    EXPECT_TRUE(holds(reused(asked, params))) << "power";
    EXPECT_FALSE(holds(reused(changed, params)));
    EXPECT_FALSE(reused(changed, params).empty());
  }
}

TEST_P(CrossQueryLimits, ChunksAndNeighboursChangeNothing) {
  const std::vector<Params> settings = {
      {},
      {{"halo", "4"}, {"store", "int8"}},
      {{"accept", "context"}, {"context", "20"}},
      kRegimeB,
      {{"regime", "b"}, {"l_cut", "4"}, {"accept", "context"}, {"context", "20"}},
  };
  std::vector<std::vector<Outcome>> by_chunk;
  for (const int chunk : {512, 50, 7}) {
    const auto e = engine(kRegimeB, chunk);
    by_chunk.emplace_back();
    for (const Params& params : settings) by_chunk.back().push_back(run(*e, params));
  }
  for (size_t i = 0; i < settings.size(); ++i) {
    SCOPED_TRACE(i);
    expect_equal(by_chunk[0][i], by_chunk[1][i]);
    expect_equal(by_chunk[0][i], by_chunk[2][i]);
    if (i > 0) expect_differ(by_chunk[0][i], by_chunk[0][i - 1]);
  }
  const auto e = engine(kRegimeB, 16);
  std::vector<Request> requests;
  for (const Params& params : settings) requests.push_back(unpublished(asked, "crossquery", params, 9));
  requests.push_back(unpublished(asked, "full", {}, 9));
  expect_batched_equals_alone(*e, requests);
}

// Tokens are accepted that have the same text before them: of pieces whose neighbours are others, all but the first.
TEST_P(CrossQueryLimits, AcceptingByContextIsEpicWithoutAHalo) {
  const auto e = engine(kRegimeB);
  const Outcome full = ask_with(*e, asked, "full");
  const auto by_context = [&](const std::string& tokens, Params params) {
    params.insert({{"accept", "context"}, {"context", tokens}});
    return run(*e, std::move(params));
  };
  expect_equal(by_context("16", {{"halo", "0"}}), ask_with(*e, asked, "epic", {{"k", "16"}}));
  expect_differ(by_context("16", {{"halo", "0"}}), ask_with(*e, asked, "epic", {{"k", "15"}}));
  const Outcome none = by_context("1000", {});
  EXPECT_EQ(none.usage().reused, 0) << "nothing is placed, so that all of it is published exactly";
  expect_equal(none, full);
  expect_equal(by_context("1000", kRegimeB), full);
  expect_differ(by_context("20", kRegimeB), full);
  expect_differ(by_context("20", kRegimeB), run(*e, kRegimeB));
  // Without a number the windows of the method: all of the text before, where all layers are reused.
  expect_equal(run(*e, {{"accept", "context"}}), full);
}

TEST_P(CrossQueryLimits, EightBitsAreNearAndNotEqual) {
  const Params eight{{"regime", "b"}, {"l_cut", "4"}, {"store", "int8"}};
  const auto e = engine(kRegimeB), states = engine(eight);
  const auto distance = [](const Outcome& x, const Outcome& y) {
    return max_abs_difference(x.completion.logits.first, y.completion.logits.first);
  };
  const Outcome plain = run(*e, {{"halo", "4"}}), b = run(*e, kRegimeB), full = ask_with(*e, asked, "full");
  // Off is what reads the pool without a word of storage.
  const Outcome naive = ask_with(*e, asked, "naive");
  for (const Params& none : {Params{{"halo", "0"}}, Params{{"regime", "b"}, {"l_cut", "8"}}}) {
    Params off = none, on = none;
    off["store"] = "pool", on["store"] = "int8";
    expect_equal(run(*e, off), naive);
    expect_differ(run(*e, on), naive);
  }
  const Outcome rounded = run(*e, {{"halo", "4"}, {"store", "int8"}});
  EXPECT_EQ(rounded.usage().recomputed, plain.usage().recomputed);
  const Outcome b_rounded = run(*states, eight);
  for (const auto& [x, y] : {std::pair(&rounded, &plain), std::pair(&b_rounded, &b)}) {
    expect_differ(*x, *y);
    EXPECT_LT(distance(*x, *y), 0.3 * distance(*y, full));
  }
  expect_equal(run(*e, {{"halo", "64"}, {"store", "int8"}}), full);  // what is computed again was not stored
  expect_equal(run(*e, {{"halo", "4"}}), plain);                     // and the store is as it was
}

// A row of this model depends on 42 tokens before it. Of a long piece that lies where it lay, behind another beginning,
// all that the question can reach is what the dense pass would compute, states included: storage that keeps it keeps
// every bit, and 8 bits show. The question is shorter than a window: its last row reads the piece in the last layer too.
TEST_P(CrossQueryLimits, WhereReuseIsExactOnlyEightBitsShow) {
  const Changed model(R"({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0})");
  const std::vector<int32_t> other_head = tokens(9, 21), prompt = join({other_head, a, b, c, tokens(5, 5)});
  for (const std::string store : {"pool", "int8"}) {
    Params b4 = kRegimeB;
    b4["store"] = store;
    const auto e = engine(b4, 512, model.path());
    const Outcome full = ask_with(*e, prompt, "full");
    std::vector<Outcome> outcomes;
    for (Params params : {b4, Params{{"regime", "b"}, {"l_cut", "8"}}, Params{{"halo", "0"}}, Params{{"halo", "4"}}}) {
      SCOPED_TRACE(testing::PrintToString(params));
      params["store"] = store;
      outcomes.push_back(ask_with(*e, prompt, "crossquery", params));
      EXPECT_EQ(outcomes.back().usage().reused, kReused);
      store == "pool" ? expect_equal(outcomes.back(), full) : expect_differ(outcomes.back(), full);
    }
    if (store == "int8") expect_differ(outcomes[0], outcomes[1]);  // a state in 8 bits, and K and V of it
    // Power: what lies elsewhere is not exact.
    const auto moved = join({other_head, c, tokens(5, 5)});
    expect_differ(ask_with(*e, moved, "crossquery", {{"halo", "0"}, {"store", store}}), ask_with(*e, moved, "full"));
  }
}

// What a request of regime b computes itself has its states too: the next one reuses them.
TEST_P(CrossQueryLimits, WhatIsComputedBetweenPiecesIsKept) {
  const auto e = engine(kRegimeB);
  const auto fresh = tokens(60, 9);
  Request request = request_of(join({head, c, fresh, tokens(21, 5)}), "crossquery", 0);
  request.policy.params = kRegimeB;
  ask_ok(*e, request);
  const auto next = join({head, b, fresh, tokens(30, 6)});
  const Outcome out = ask_with(*e, next, "crossquery", kRegimeB);
  EXPECT_EQ(out.usage().reused, 113);
  const Outcome full = ask_with(*e, next, "full");
  expect_differ(out, full);
  EXPECT_LT(out.usage().flops, 0.65 * full.usage().flops);
}

// The next turn goes on from what the one before left at each layer: placed rows below, its own above, its private copy of
// what passed through 8 bits.
TEST_P(CrossQueryLimits, AConversationGoesOnFromItsChain) {
  for (const Params& params : {kRegimeB, Params{{"halo", "4"}, {"store", "int8"}}}) {
    const auto e = engine(kRegimeB);
    const auto longer = join({asked, tokens(40, 11)});
    const Outcome once = ask_with(*e, longer, "crossquery", params);
    EXPECT_EQ(once.usage().chain, 0);
    Request turn = request_of(asked, "crossquery", 0);
    turn.policy.params = params;
    ask_ok(*e, turn);
    const Outcome next = ask_with(*e, longer, "crossquery", params);
    EXPECT_GE(next.usage().chain, kReused);
    EXPECT_LT(next.usage().flops, 0.7 * once.usage().flops);
    expect_equal(next, once);
    expect_differ(next, ask_with(*e, longer, "full"));
  }
}

// What is kept beside the KV takes no page that the request itself still needs: an answer is as long as the pool allows.
TEST_P(CrossQueryLimits, WhatIsKeptLeavesRoomForTheAnswer) {
  const auto said = [&](int64_t kv_bytes, const Params& params) {
    const auto e =
        open_for_test({.model = kModel, .backend = GetParam(), .kv_type = KvType::kF32, .kv_bytes = kv_bytes});
    Request request = request_of(known, "crossquery", 100);
    request.policy.params = params;
    const Result<Answered> out = ask(*e, request);
    return out.ok() ? out->ids.size() : 0;
  };
  int64_t low = 1 << 18, high = int64_t{8} << 20;  // bytes; the least that regime a needs
  ASSERT_LT(said(low, {}), 100u) << "power";
  while (high - low > 1 << 12) (said((low + high) / 2, {}) == 100 ? high : low) = (low + high) / 2;
  EXPECT_EQ(said(high, kRegimeB), 100u);
}

TEST_P(CrossQueryLimits, WrongParametersSayWhatIsAllowed) {
  const auto e = open_for_test({.model = kModel, .backend = GetParam()});
  const auto taken = [&](const Params& params) { return ask(*e, unpublished(asked, "crossquery", params)).ok(); };
  EXPECT_TRUE(taken(kRegimeB)) << "power";
  EXPECT_FALSE(taken({{"regime", "b"}, {"l_cut", "6"}}));
  EXPECT_FALSE(taken({{"regime", "b"}, {"halo", "4"}}));
  EXPECT_FALSE(taken({{"l_cut", "4"}}));
  EXPECT_FALSE(taken({{"accept", "any"}, {"context", "4"}}));
}

INSTANTIATE_TEST_SUITE_P(Backends, CrossQueryLimits, testing::Values("reference", "auto"));

}  // namespace
}  // namespace kvilt

// Limit cases with power checks of answers that see few of the keys (policy/decode_methods.h): settings at which they
// must be dense bit for bit, each with one at which they must not.
#include <gtest/gtest.h>

#include "probe_prompts.h"

namespace kvilt {
namespace {

constexpr int kAnswer = 24;

class DecodeLimits : public testing::TestWithParam<std::string> {
 protected:
  const std::vector<int32_t> prompt = tokens(300, 7);

  std::unique_ptr<Engine> engine(int chunk = 512, const std::string& kv_type = "auto") const {
    return open_for_test(
        {.model = kModel, .backend = GetParam(), .kv_type = *parse_kv_type(kv_type), .chunk_tokens = chunk});
  }
  // With the logits of every token of a forced answer, so that what is compared is not the same token by luck.
  static Outcome run(Engine& engine, std::vector<int32_t> ids, const std::string& policy, Params params) {
    Request request = unpublished(std::move(ids), policy, std::move(params), kAnswer);
    request.evaluation.forced = tokens(kAnswer, 99);
    return ask_ok(engine, std::move(request));
  }
  static Params with(const std::string& method, int budget, Params more = {}) {
    more.insert({{"decode", method}, {"decode_budget", std::to_string(budget)}});
    return more;
  }
  // The first answer token whose logits differ; kAnswer: none does.
  static int first_difference(const Outcome& a, const Outcome& b) {
    EXPECT_EQ(a.completion.logits.all.size(), static_cast<size_t>(kAnswer));
    int i = 0;
    while (i < kAnswer && a.completion.logits.all[i] == b.completion.logits.all[i]) ++i;
    return i;
  }
};

const std::vector<std::string> kDecodeMethods = {"loopserve", "snapkv", "pyramidkv",    "adakv", "quest",
                                                 "tidal",     "h2o",    "streamingllm", "random"};

// Each method, and those that take a share of the weight.
std::vector<Params> all_ways(int budget) {
  std::vector<Params> out;
  const auto add = [&](const std::string& method, Params more) {
    more.insert({{"decode", method}, {"decode_budget", std::to_string(budget)}});
    out.push_back(more);
  };
  for (const std::string& method : kDecodeMethods) add(method, {});
  for (const std::string method : {"loopserve", "adakv", "tidal", "quest", "h2o"})
    add(method, {{"decode_top_p", "0.5"}});
  return out;
}

TEST_P(DecodeLimits, ABudgetOfAllKeysIsDense) {
  const auto e = engine();
  const Outcome dense = run(*e, prompt, "full", {});
  for (const std::string& method : kDecodeMethods) {
    SCOPED_TRACE(method);
    expect_equal(run(*e, prompt, "full", with(method, 300 + kAnswer)), dense);
    const Outcome few = run(*e, prompt, "full", with(method, 64));
    EXPECT_EQ(few.completion.logits.first, dense.completion.logits.first) << "the prompt is computed as it was";
    EXPECT_EQ(first_difference(few, dense), method == "loopserve" ? 17 : 1) << "power: the row after the choice";
  }
}

// A share of the weight: the budget is no more than a bound of it.
TEST_P(DecodeLimits, ATopShareReadsLess) {
  const auto e = engine();
  const Outcome dense = run(*e, prompt, "full", {});
  for (const std::string method : {"loopserve", "snapkv", "tidal", "quest", "h2o"}) {
    SCOPED_TRACE(method);
    const auto with_share = [&](const std::string& p) {
      Params more = {{"decode_top_p", p}};
      if (method == "h2o") more["decode_recent"] = "8";  // half of the budget is all
      return run(*e, prompt, "full", with(method, 1000, more));
    };
    expect_equal(with_share("1"), dense);
    const Outcome most = with_share("0.9"), half = with_share("0.5");
    EXPECT_EQ(first_difference(half, dense), method == "loopserve" ? 17 : 1) << "power";
    EXPECT_LT(half.usage().decode_bytes, most.usage().decode_bytes);
  }
}

// The first layers see all: with all of them, the step is dense.
TEST_P(DecodeLimits, DenseLayersAreDense) {
  const auto e = engine();
  const Outcome dense = run(*e, prompt, "full", {});
  for (const std::string method : {"quest", "snapkv", "tidal", "h2o"}) {
    SCOPED_TRACE(method);
    const auto with_layers = [&](int n) {
      return run(*e, prompt, "full", with(method, 40, {{"decode_dense_layers", std::to_string(n)}}));
    };
    expect_equal(with_layers(6), dense);
    // The layer in which tidal selects sees all as well.
    EXPECT_EQ(first_difference(with_layers(5), dense), method == "tidal" ? kAnswer : 1);
    EXPECT_EQ(first_difference(with_layers(4), dense), 1) << "power";
  }
}

TEST_P(DecodeLimits, NoRowChoosesBeforeItsTime) {
  const auto e = engine();
  const Outcome dense = run(*e, prompt, "full", {});
  for (const int rows : {0, 5, kAnswer}) {
    const Outcome few = run(*e, prompt, "full", with("snapkv", 40, {{"decode_dense", std::to_string(rows)}}));
    EXPECT_EQ(first_difference(few, dense), std::min(rows + 1, kAnswer));
  }
}

TEST_P(DecodeLimits, ALaterChoiceIsNotTheFirst) {
  const auto e = engine();
  const Params once = with("loopserve", 40, {{"decode_every", "0"}}),
               again = with("loopserve", 40, {{"decode_every", "4"}});
  EXPECT_EQ(first_difference(run(*e, prompt, "full", once), run(*e, prompt, "full", again)), 16 + 4 + 1);
}

TEST_P(DecodeLimits, TheChunkChangesNothing) {
  const auto whole = engine(512), parts = engine(23);
  for (const Params& way : all_ways(64)) {
    SCOPED_TRACE(way.at("decode"));
    expect_equal(run(*whole, prompt, "full", way), run(*parts, prompt, "full", way));
  }
}

TEST_P(DecodeLimits, TogetherIsAlone) {
  const auto e = engine();
  std::vector<Request> requests;
  for (const Params& way : all_ways(50)) {
    requests.push_back(unpublished(tokens(200 + static_cast<int>(requests.size()), 3), "full", way, 40));
  }
  expect_batched_equals_alone(*e, requests);
}

const std::vector<std::string> kLookBack = {"snapkv", "adakv", "pyramidkv", "h2o"};

// Methods that look with rows of the prompt look with all of them, also where their K and V are cached: the prompt
// itself, or one with the same beginning. Bit for bit, with chunks that end among these rows, and where the prompt has
// fewer than the method wants.
TEST_P(DecodeLimits, ACacheHitChoosesAsWithoutTheCache) {
  for (const int chunk : {512, 23}) {
    for (const int length : {300, 24}) {
      const std::vector<int32_t> ids(prompt.begin(), prompt.begin() + length);
      const auto e = engine(chunk);
      std::vector<int32_t> longer = ids;
      longer.insert(longer.end(), {7, 8, 9});
      for (const std::string& method : kLookBack) {
        SCOPED_TRACE(method + ' ' + std::to_string(chunk) + ' ' + std::to_string(length));
        const Params way = with(method, length == 300 ? 64 : 10);
        const Outcome alone = run(*e, ids, "full", way), more = run(*e, longer, "full", way);
        if (method == kLookBack[0]) warm(*e, ids);
        const Outcome behind = run(*e, ids, "prefix", way);
        EXPECT_EQ(behind.usage().prefix, length - 1) << "power";
        expect_equal(behind, alone);
        const Outcome behind_most = run(*e, longer, "prefix", way);
        EXPECT_EQ(behind_most.usage().prefix, length) << "power";
        expect_equal(behind_most, more);
        EXPECT_LT(behind.usage().linear_flops, alone.usage().linear_flops) << "K and V are not computed again";
        if (method == "h2o") continue;
        const Outcome one_looks =
            run(*e, ids, "prefix", with(method, length == 300 ? 64 : 10, {{"decode_queries", "1"}}));
        EXPECT_LT(first_difference(one_looks, alone), kAnswer) << "power: which rows look matters";
      }
    }
  }
}

// Prompts of fewer tokens than a method keeps always, or looks with: it sees all, or says something.
TEST_P(DecodeLimits, ShortPromptsAreAnswered) {
  const auto e = engine();
  for (const int n : {1, 2, 5, 31, 33, 65}) {
    const std::vector<int32_t> ids(prompt.begin(), prompt.begin() + n);
    const Outcome dense = run(*e, ids, "full", {});
    for (const std::string& method : kDecodeMethods) {
      SCOPED_TRACE(method + ' ' + std::to_string(n));
      expect_equal(run(*e, ids, "full", {{"decode", method}}), dense);
      for (const Params& more : {Params{}, Params{{"decode_dense", "0"}}, Params{{"decode_dense_layers", "0"}}}) {
        const int differ = first_difference(run(*e, ids, "full", with(method, 4, more)), dense);
        if (n == 65 && method != "loopserve" && more.empty()) {
          EXPECT_EQ(differ, 1) << "power";
        }
      }
    }
  }
}

// Two answers of one prompt at once: the second waits for the first one's prefill and goes on from it.
TEST_P(DecodeLimits, ASecondChoiceOfAPromptIsTheFirst) {
  for (const std::string& method : kLookBack) {
    SCOPED_TRACE(method);
    const auto e = engine();
    Request request = request_of(prompt, "prefix", kAnswer);
    request.policy.params = with(method, 64);
    request.evaluation.forced = tokens(kAnswer, 99);
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    const auto gate = hold(*e);
    for (int i = 0; i < 2; ++i) {
      sinks.push_back(std::make_shared<CollectingSink>());
      ASSERT_TRUE(e->submit(request, sinks.back()).ok());
    }
    gate->open();
    const Completion first = sinks[0]->wait(), second = sinks[1]->wait();
    EXPECT_EQ(first.usage.prefix, 0);
    EXPECT_EQ(second.usage.prefix, 299) << "power";
    EXPECT_EQ(first.logits.all, second.logits.all);
  }
}

// Behind a cut right below the last layer they look as well.
TEST_P(DecodeLimits, TheyLookBehindACutInTheLastLayer) {
  const auto e = engine();
  const std::vector<int32_t> head = tokens(9, 1), a = tokens(150, 2), b = tokens(153, 3), question = tokens(41, 5);
  warm(*e, join({head, a, b}));
  const std::vector<int32_t> asked = join({head, b, a, question});
  const Outcome alone = run(*e, asked, "full", with("snapkv", 64));
  for (const std::string layer : {"1", "5"}) {
    const Outcome behind = run(*e, asked, "cacheblend", with("snapkv", 64, {{"r", "1"}, {"check_layer", layer}}));
    EXPECT_GT(behind.usage().reused, 290) << "power";
    expect_equal(behind, alone);
  }
}

// A pool that is too small for them together: those that start again in the middle of their answers go on, and with a
// budget of all keys say what a dense answer says.
TEST_P(DecodeLimits, PreemptedAnswersGoOn) {
  // Of fp32 on every machine: what the choosers keep beside the KV is then as many tokens' worth.
  const auto large = engine(512, "f32");
  EngineOptions options{.model = kModel, .backend = GetParam(), .kv_type = KvType::kF32};
  options.kv_bytes = 900 * large->info().kv_bytes_per_token;
  const auto small = open_for_test(options);
  for (const bool few : {false, true}) {
    std::vector<Request> requests;
    for (const Params& way : all_ways(few ? 40 : 1000)) {
      if (!few && way.contains("decode_top_p")) continue;  // they never see all
      requests.push_back(unpublished(tokens(100, static_cast<uint32_t>(requests.size())), "full", way, 200));
    }
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    const uint64_t before = small->stats().preemptions;
    const auto gate = hold(*small);
    for (const Request& request : requests) {
      sinks.push_back(std::make_shared<CollectingSink>());
      ASSERT_TRUE(small->submit(request, sinks.back()).ok());
    }
    gate->open();
    for (size_t i = 0; i < sinks.size(); ++i) {
      SCOPED_TRACE(requests[i].policy.params.at("decode"));
      EXPECT_FALSE(sinks[i]->wait().error);
      if (few) continue;
      Request dense = requests[i];
      dense.policy.params.clear();
      EXPECT_EQ(sinks[i]->ids, ask_ok(*large, dense).ids);
    }
    EXPECT_GT(small->stats().preemptions, before) << "power";
  }
}

// After a prefill that reuses pieces, whatever repaired them.
TEST_P(DecodeLimits, GoesWithEveryPrefill) {
  const auto e = engine();
  const std::vector<int32_t> head = tokens(9, 1), a = tokens(150, 2), b = tokens(153, 3), question = tokens(41, 5);
  warm(*e, join({head, a, b}));
  const std::vector<int32_t> asked = join({head, b, a, question});
  for (const std::string policy : {"naive", "mend", "auto", "epic", "sparsex"}) {
    SCOPED_TRACE(policy);
    const Outcome dense = run(*e, asked, policy, {});
    EXPECT_GT(dense.usage().reused, 290);
    for (const std::string method : {"adakv", "quest", "tidal", "h2o"}) {
      expect_equal(run(*e, asked, policy, with(method, 1000)), dense);
      const Outcome few = run(*e, asked, policy, with(method, 64));
      EXPECT_EQ(few.completion.logits.first, dense.completion.logits.first);
      EXPECT_EQ(first_difference(few, dense), 1) << "power";
    }
  }
}

// mend's prompt with LoopServe's answer is each of them alone where the other has nothing to do: mend at r = 1 computes
// all that a full pass does, and a budget of all keys leaves mend's answer as it is.
TEST_P(DecodeLimits, LoopServeBehindMendIsEachAlone) {
  const auto e = engine();
  const std::vector<int32_t> head = tokens(9, 1), a = tokens(150, 2), b = tokens(153, 3), question = tokens(41, 5);
  warm(*e, join({head, a, b}));
  const std::vector<int32_t> asked = join({head, b, a, question});
  const Outcome mend = run(*e, asked, "mend", {});
  EXPECT_GT(mend.usage().reused, 290);
  for (const std::string method : {"loopserve", "snapkv"}) {
    SCOPED_TRACE(method);
    const Outcome alone = run(*e, asked, "full", with(method, 64));
    const Outcome both = run(*e, asked, "mend", with(method, 64));
    expect_equal(run(*e, asked, "mend", with(method, 64, {{"r", "1"}})), alone);
    expect_differ(both, alone);
    expect_equal(run(*e, asked, "mend", with(method, 1000)), mend);
    EXPECT_EQ(first_difference(both, mend), method == "loopserve" ? 17 : 1) << "power: the row after the choice";
  }
}

// Layers whose model has a window keep to it, the others choose: some of gemma3's, none of mistral's.
TEST_P(DecodeLimits, WindowsOfTheModelStay) {
  for (const bool some : {true, false}) {
    const std::string model = std::string("tests/data/fixtures/") + (some ? "gemma3" : "mistral");
    SCOPED_TRACE(model);
    const auto e = open_for_test({.model = model, .backend = GetParam()});
    const std::vector<int32_t> ids(tokens(150, 8));
    std::vector<int32_t> small(ids);
    for (int32_t& id : small) id %= 60;
    Request dense = unpublished(small, "full", {}, kAnswer);
    dense.evaluation.forced.assign(kAnswer, 5);
    const Outcome expected = ask_ok(*e, dense);
    for (const std::string method : {"snapkv", "quest", "tidal", "h2o"}) {
      // The selection layer of tidal has a window; layer 1, which has none, selects for layer 3.
      const Params low = {{"decode_dense_layers", "0"}, {"decode_select", "0"}},
                   more = method == "tidal" ? low : Params{};
      Request all = dense, few = dense;
      all.policy.params = with(method, 1000, more);
      few.policy.params = with(method, 40, more);
      expect_equal(ask_ok(*e, all), expected);
      EXPECT_EQ(first_difference(ask_ok(*e, few), expected), some ? 1 : kAnswer) << "power " << method;
    }
  }
}

// An answer whose rows saw few keys is not what a dense pass leaves: nobody goes on from it.
TEST_P(DecodeLimits, SuchAnswersAreNotPublished) {
  for (const bool few : {true, false}) {
    const auto e = engine();
    Request request = request_of(prompt, "full", kAnswer);
    if (few) request.policy.params = with("snapkv", 40);
    std::vector<int32_t> next = prompt;
    const Outcome answered = ask_ok(*e, request);
    next.insert(next.end(), answered.ids.begin(), answered.ids.end());
    next.push_back(11);
    const int prefix = ask_with(*e, next, "prefix").usage().prefix;
    EXPECT_EQ(prefix, few ? 300 : 300 + kAnswer - 1);
  }
}

// What a prompt leaves in the cache is the same whatever its answer saw: the next one finds it.
TEST_P(DecodeLimits, RepairedPromptsAreSharedByAllRules) {
  const auto e = engine();
  const std::vector<int32_t> head = tokens(9, 1), a = tokens(150, 2), b = tokens(153, 3), question = tokens(41, 5);
  warm(*e, join({head, a, b}));
  Request first = request_of(join({head, b, a, question}), "mend", 4), again = first;
  first.policy.params = with("snapkv", 64);
  ask_ok(*e, first);
  EXPECT_GT(ask_ok(*e, again).usage().chain, 300);
}

TEST_P(DecodeLimits, NoSessionIsExported) {
  const auto e = engine();
  Request request = request_of(prompt, "full", 4);
  request.export_session = true;
  EXPECT_TRUE(ask(*e, request).ok()) << "power";
  request.policy.params = with("snapkv", 64);
  const auto refused = ask(*e, request);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("leave 'decode' out"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Backends, DecodeLimits, testing::Values("reference", "auto"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvilt

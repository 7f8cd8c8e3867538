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

const std::vector<std::string> kDecodeMethods = {"loopserve", "snapkv", "pyramidkv", "adakv", "streamingllm", "random"};

TEST_P(DecodeLimits, ABudgetOfAllKeysIsDense) {
  const auto e = engine();
  const Outcome dense = run(*e, prompt, "full", {});
  for (const std::string& method : kDecodeMethods) {
    SCOPED_TRACE(method);
    const Params none = method == "pyramidkv" ? Params{{"decode_pyramid", "0"}} : Params{};
    expect_equal(run(*e, prompt, "full", with(method, 300 + kAnswer, none)), dense);
    const Outcome few = run(*e, prompt, "full", with(method, 64));
    EXPECT_EQ(few.completion.logits.first, dense.completion.logits.first) << "the prompt is computed as it was";
    EXPECT_EQ(first_difference(few, dense), method == "loopserve" ? 17 : 1) << "power: the row after the choice";
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
  for (const std::string& method : kDecodeMethods) {
    SCOPED_TRACE(method);
    expect_equal(run(*whole, prompt, "full", with(method, 64)), run(*parts, prompt, "full", with(method, 64)));
  }
}

TEST_P(DecodeLimits, TogetherIsAlone) {
  const auto e = engine();
  std::vector<Request> requests;
  for (const std::string& method : kDecodeMethods) {
    requests.push_back(unpublished(tokens(200 + static_cast<int>(requests.size()), 3), "full", with(method, 50), 40));
  }
  expect_batched_equals_alone(*e, requests);
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
    expect_equal(run(*e, asked, policy, with("adakv", 1000)), dense);
    const Outcome few = run(*e, asked, policy, with("adakv", 64));
    EXPECT_EQ(few.completion.logits.first, dense.completion.logits.first);
    EXPECT_EQ(first_difference(few, dense), 1) << "power";
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
    Request dense = unpublished(small, "full", {}, kAnswer), all = dense, few = dense;
    all.policy.params = with("snapkv", 1000);
    few.policy.params = with("snapkv", 40);
    for (Request* request : {&dense, &all, &few}) request->evaluation.forced.assign(kAnswer, 5);
    const Outcome expected = ask_ok(*e, dense);
    expect_equal(ask_ok(*e, all), expected);
    EXPECT_EQ(first_difference(ask_ok(*e, few), expected), some ? 1 : kAnswer) << "power";
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

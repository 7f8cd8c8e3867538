// Limit cases with power checks of prompts whose rows see few keys (policy/loopserve.cc and its baselines).
#include <gtest/gtest.h>

#include "probe_prompts.h"

namespace kvilt {
namespace {

// Results of each backend; the reference is slow.
class SparseLimits : public testing::TestWithParam<std::string> {
 protected:
  const std::vector<int32_t> prompt = tokens(GetParam() == "reference" ? 700 : 1300, 7);
  std::vector<int32_t> begin_of(int n) const { return {prompt.begin(), prompt.begin() + n}; }  // tokens of it
  std::unique_ptr<Engine> engine(int chunk = 512) const {
    return open_for_test({.model = kModel, .backend = GetParam(), .chunk_tokens = chunk});
  }
};

// What does not depend on kernels.
class SparseDialogues : public SparseLimits {};

struct SparseMethod {
  const char* name;
  Params all, few;
};
const std::vector<SparseMethod>& sparse_methods() {
  static const std::vector<SparseMethod> list = {
      {"loopserve", {{"alpha", "1"}}, {{"alpha", "0.2"}, {"rows", "8"}}},
      {"loopserve", {{"alpha", "1"}, {"rule", "printed"}}, {{"alpha", "0.1"}, {"rule", "printed"}, {"rows", "8"}}},
      {"loopserve", {{"alpha", "1"}, {"rows", "8"}}, {{"rule", "threshold"}, {"threshold", "8"}, {"rows", "8"}}},
      {"loopserve",
       {{"rule", "threshold"}, {"threshold", "0"}},
       {{"rule", "threshold"}, {"distances", "tiles"}, {"threshold", "4"}, {"rows", "8"}}},
      {"loopserve",
       {{"alpha", "0.2"}, {"dense_last", "1300"}},
       {{"alpha", "0.2"}, {"dense_last", "30"}, {"rows", "8"}}},
      {"minference",
       {{"columns", "1300"}, {"distances", "0"}},
       {{"columns", "60"}, {"distances", "100"}, {"rows", "8"}}},
      {"minference",
       {{"columns", "0"}, {"distances", "1300"}},
       {{"columns", "0"}, {"distances", "100"}, {"rows", "8"}}},
      {"loopserve", {{"rule", "coverage"}, {"alpha", "1"}}, {{"rule", "coverage"}, {"alpha", "0.2"}, {"rows", "8"}}},
      {"minference",
       {{"pattern", "blocks"}, {"blocks", "21"}},
       {{"pattern", "blocks"}, {"blocks", "3"}, {"pooled", "32"}}},
      {"flexprefill", {{"gamma", "1"}, {"tau", "1"}}, {{"gamma", "0.6"}, {"tau", "1"}, {"rows", "8"}}},
      {"flexprefill",
       {{"gamma", "0.1"}, {"tau", "1"}, {"least", "1300"}},
       {{"gamma", "0.1"}, {"tau", "1"}, {"least", "130"}}},
      {"flexprefill", {{"gamma", "1"}, {"tau", "0"}}, {{"gamma", "0.3"}, {"tau", "0"}, {"rows", "8"}}},
      {"xattention", {{"threshold", "1"}}, {{"threshold", "0.4"}}},
      {"xattention",
       {{"threshold", "1"}, {"stride", "16"}, {"pooled", "16"}},
       {{"threshold", "0.4"}, {"stride", "16"}, {"pooled", "16"}}},
      {"loopserve", {{"rule", "random"}, {"dense_layers", "99"}}, {{"rule", "random"}, {"share", "0.3"}}},
      {"loopserve", {{"alpha", "1"}, {"pooled", "16"}}, {{"alpha", "0.2"}, {"rows", "8"}, {"pooled", "16"}}},
      {"ashape", {{"window", "1300"}}, {{"window", "100"}, {"sink", "10"}}},
      {"ashape",
       {{"window", "0"}, {"dense_layers", "99"}},
       {{"window", "100"}, {"dense_layers", "1"}, {"pooled", "64"}}},
      {"ashape", {{"sink", "1300"}, {"window", "0"}}, {{"window", "100"}, {"last", "40"}}},
  };
  return list;
}

TEST_P(SparseLimits, AllLinesAreDense) {
  const auto e = engine();
  const Outcome dense = ask_with(*e, prompt, "full");
  for (const SparseMethod& method : sparse_methods()) {
    SCOPED_TRACE(method.name);
    expect_equal(ask_with(*e, prompt, method.name, method.all), dense);
    const Outcome few = ask_with(*e, prompt, method.name, method.few);
    expect_differ(few, dense);
    EXPECT_LT(few.usage().attention_flops, 0.95 * dense.usage().attention_flops);
  }
}

// One block less than all of the prompt's last tile, which is one block more than all others have.
TEST_P(SparseLimits, ABlockLessIsNotDense) {
  const auto e = engine();
  const Outcome dense = ask_with(*e, prompt, "full");
  const auto blocks = (static_cast<int>(prompt.size()) + 63) / 64;
  const auto with = [&](int n) {
    return ask_with(*e, prompt, "minference", {{"pattern", "blocks"}, {"blocks", std::to_string(n)}});
  };
  expect_equal(with(blocks), dense);
  expect_differ(with(blocks - 1), dense);
}

// A head chooses blocks where means of these say what it sees, else lines. At tau 0 all choose lines, as with loopserve's
// rule=coverage; at 1 none does; between them some do.
TEST_P(SparseLimits, TheDistanceOfTheMeansChoosesTheBranch) {
  const auto e = engine();
  const auto with = [&](const char* tau) {
    return ask_with(*e, prompt, "flexprefill", {{"gamma", "0.5"}, {"tau", tau}, {"rows", "24"}});
  };
  const Outcome lines =
      ask_with(*e, prompt, "loopserve",
               {{"rule", "coverage"}, {"alpha", "0.5"}, {"sample", "last"}, {"rows", "24"}, {"distances", "exact"}});
  expect_equal(with("0"), lines);
  expect_differ(with("1"), lines);
  expect_differ(with("0.3"), lines);
  expect_differ(with("0.3"), with("1"));
}

// Each key that is skipped stands for itself: as if it were not. Larger blocks are nearer to dense than nothing at all.
TEST_P(SparseLimits, MeansOfOneKeyAreDense) {
  const auto e = open_for_test({.model = kModel, .backend = GetParam(), .kv_type = KvType::kF32, .chunk_tokens = 512});
  const Outcome dense = ask_with(*e, prompt, "full");
  const std::vector<std::pair<const char*, Params>> list = {{"ashape", {{"window", "100"}, {"sink", "10"}}},
                                                            {"ashape", {{"window", "0"}, {"sink", "0"}}},
                                                            {"loopserve", {{"alpha", "0.2"}, {"rows", "8"}}}};
  for (const auto& [policy, few] : list) {
    const auto distance = [&, policy = policy, few = few](const char* pooled) {
      Params params = few;
      params["pooled"] = pooled;
      const Outcome out = ask_with(*e, prompt, policy, params);
      return max_abs_difference(out.completion.logits.first, dense.completion.logits.first);
    };
    const double nothing = distance("0"), one = distance("1");
    EXPECT_GT(nothing, 100 * one) << "power";
    EXPECT_LT(one, 1e-2);
    EXPECT_LT(distance("4"), nothing);
  }
}

// What rows saw is measured: all of it where they see all, less elsewhere, and about as much as a rule aims at.
TEST_P(SparseDialogues, TheMassThatIsHeldIsMeasured) {
  const auto e = engine();
  const auto held = [&](const std::string& policy, Params params) {
    Request request = unpublished(prompt, policy, std::move(params));
    request.evaluation.held_mass = true;
    return ask_ok(*e, std::move(request)).usage();
  };
  EXPECT_NEAR(held("full", {}).held_mass, 1, 1e-4);
  EXPECT_NEAR(held("full", {}).decode_held_mass, 1, 1e-4);
  EXPECT_NEAR(held("loopserve", {{"alpha", "1"}}).held_mass, 1, 1e-4);
  const double most = held("loopserve", {{"alpha", "0.9"}}).held_mass,
               few = held("loopserve", {{"alpha", "0.3"}}).held_mass;
  EXPECT_GT(most, 0.7);
  EXPECT_LT(most, 0.995);
  EXPECT_LT(few, most - 0.1);
  EXPECT_GT(held("xattention", {{"threshold", "0.9"}}).held_mass,
            held("xattention", {{"threshold", "0.3"}}).held_mass + 0.1);
  const PromptUsage answer = held("full", {{"decode", "random"}, {"decode_budget", "60"}, {"decode_recent", "0"}});
  EXPECT_NEAR(answer.held_mass, 1, 1e-4);
  EXPECT_LT(answer.decode_held_mass, 0.9);
  EXPECT_EQ(ask_with(*e, prompt, "full").usage().held_mass, -1) << "nobody asked";
}

TEST_P(SparseLimits, TheChunkChangesNothing) {
  const auto whole = engine(2048), parts = engine(200);
  for (const SparseMethod& method : sparse_methods()) {
    SCOPED_TRACE(method.name);
    expect_equal(ask_with(*whole, prompt, method.name, method.few), ask_with(*parts, prompt, method.name, method.few));
  }
}

TEST_P(SparseDialogues, OthersDoNotFindSuchPrompts) {
  for (const int answer : {0, 40}) {
    const auto e = engine();
    const Outcome said = ask_ok(*e, request_of(prompt, "loopserve", answer));
    std::vector<int32_t> next = prompt;
    next.insert(next.end(), said.ids.begin(), said.ids.end());
    next.push_back(5);
    EXPECT_EQ(ask_with(*e, next, "prefix").usage().prefix, 0);
    EXPECT_EQ(ask_with(*e, next, "mend").usage().reused, 0);
    EXPECT_EQ(ask_with(*e, next, "loopserve", {{"alpha", "0.5"}}).usage().prefix, 0) << "other parameters";
    EXPECT_EQ(ask_with(*e, next, "minference").usage().prefix, 0);
    warm(*e, prompt, "full");
    EXPECT_GT(ask_with(*e, next, "prefix").usage().prefix, 1000) << "power";
  }
}

// The next turn of the dialogue goes on from what the rows of the turns before left, answer included, and equals the
// prefill that starts again, where that has the same blocks.
TEST_P(SparseDialogues, ATurnGoesOnFromItsOwnDialogue) {
  for (const SparseMethod& method : sparse_methods()) {
    SCOPED_TRACE(method.name);
    const auto e = engine();
    Request request = request_of(begin_of(1024), method.name, 0);
    request.policy.params = method.few;
    ask_ok(*e, std::move(request));
    const Outcome next = ask_with(*e, prompt, method.name, method.few);
    EXPECT_EQ(next.usage().prefix, 1024);
    const bool tail = method.few.contains("dense_last") || method.few.contains("last");  // of each turn
    tail ? expect_differ(next, ask_with(*engine(), prompt, method.name, method.few))
         : expect_equal(next, ask_with(*engine(), prompt, method.name, method.few));
  }
  const auto e = engine();
  const Outcome said = ask_ok(*e, request_of(prompt, "loopserve", 40));
  std::vector<int32_t> next = prompt;
  next.insert(next.end(), said.ids.begin(), said.ids.end());
  next.push_back(5);
  EXPECT_EQ(ask_with(*e, next, "loopserve").usage().prefix, 1339) << "the last token's KV is not there";
}

// A turn that finds no history is a single turn, to the bit, whatever the cache holds: another dialogue of the method,
// this one of another method, and this one with something in front. With a history whose end is inside a block it goes on
// from there, and those that choose by their rows choose otherwise.
TEST_P(SparseDialogues, ATurnWithoutAHistoryIsASingleTurn) {
  int differ = 0;
  for (const SparseMethod& method : sparse_methods()) {
    SCOPED_TRACE(method.name);
    const auto e = engine();
    const auto say = [&](std::vector<int32_t> ids, const std::string& policy, const Params& params) {
      Request request = request_of(std::move(ids), policy, 3);
      request.policy.params = params;
      ask_ok(*e, std::move(request));
    };
    say(tokens(900, 31), method.name, method.few);
    say(begin_of(700), method.name, {{"seed", "9"}});
    say(join({tokens(5, 32), prompt}), method.name, method.few);
    const Outcome single = ask_with(*engine(), prompt, method.name, method.few);
    const Outcome turn = ask_with(*e, prompt, method.name, method.few);
    EXPECT_EQ(turn.usage().prefix, 0);
    expect_equal(turn, single);
    say(begin_of(700), method.name, method.few);
    const Outcome second = ask_with(*e, prompt, method.name, method.few);
    EXPECT_EQ(second.usage().prefix, 700) << "power: a history is found";
    differ += second.completion.logits.first != single.completion.logits.first;
  }
  EXPECT_GT(differ, 8) << "power: with a history it is another pass";
}

// Prompts that are shorter than what a method keeps always, than a tile, or than the rows that look.
TEST_P(SparseDialogues, ShortPromptsAreAnswered) {
  const auto e = engine();
  for (const int n : {1, 2, 7, 63, 64, 65, 130}) {
    SCOPED_TRACE(n);
    const std::vector<int32_t> ids = begin_of(n);
    const Outcome dense = ask_with(*e, ids, "full");
    for (const char* keeps_more : {"ashape", "minference"}) expect_equal(ask_with(*e, ids, keeps_more), dense);
    int differ = 0;
    for (const SparseMethod& method : sparse_methods()) {
      SCOPED_TRACE(method.name);
      differ += ask_with(*e, ids, method.name, method.few).completion.logits.first != dense.completion.logits.first;
      Params params = method.few;
      params.insert({{"decode", "snapkv"}, {"decode_budget", "4"}});
      EXPECT_EQ(ask_with(*e, ids, method.name, params).ids.size(), 6u);
    }
    if (n == 130) {
      EXPECT_GT(differ, 5) << "power";
    }
  }
}

// A seed hides a dialogue only where it has an effect.
TEST_P(SparseDialogues, ASeedWithoutEffectHidesNothing) {
  const std::pair<const char*, int> list[] = {{"xattention", 700}, {"ashape", 700}, {"loopserve", 0}};
  for (const auto& [name, prefix] : list) {
    SCOPED_TRACE(name);
    const auto e = engine();
    Request first = request_of(begin_of(700), name, 1);
    first.policy.params = {{"seed", "9"}};
    ask_ok(*e, first);
    EXPECT_EQ(ask_with(*e, prompt, name).usage().prefix, prefix);
  }
}

// A turn goes on from an exact dialogue so far.
TEST_P(SparseDialogues, ATurnGoesOnFromWhatIsExact) {
  const auto e = engine();
  std::vector<int32_t> next = prompt;
  const auto more = tokens(600, 8);
  next.insert(next.end(), more.begin(), more.end());
  warm(*e, prompt, "full");
  const Outcome dense = ask_with(*e, next, "prefix");
  const Outcome all = ask_with(*e, next, "loopserve", {{"alpha", "1"}});
  EXPECT_GE(all.usage().prefix, 1290);
  expect_equal(all, dense);
  expect_differ(ask_with(*e, next, "loopserve", {{"alpha", "0.2"}}), dense);
}

// What shares a step changes nothing, whichever of them pool what they skip.
TEST_P(SparseDialogues, TogetherIsAlone) {
  const auto e = engine();
  std::vector<Request> requests;
  for (uint32_t i = 0; const SparseMethod& method : sparse_methods()) {
    Request request = unpublished(tokens(700 + 90 * i, 20 + i), method.name, method.few, 4);
    if (i % 3 != 1) request.policy.params["pooled"] = "16";
    requests.push_back(std::move(request));
    ++i;
  }
  expect_batched_equals_alone(*e, requests);
}

// The keys of heads that are pooled at once are found before.
TEST_P(SparseDialogues, FixedLinesPoolFromTheFirstLayerOn) {
  const auto e = engine();
  const Params few{{"window", "60"}, {"sink", "4"}, {"pooled", "16"}};
  const Outcome once = ask_with(*e, prompt, "ashape", few);
  for (int round = 0; round < 20; ++round) expect_equal(ask_with(*e, prompt, "ashape", few), once);
}

// A decode rule's rows attend in the last layer too: what the last one sees there does not depend on them.
TEST_P(SparseDialogues, GoesWithDecodeMethods) {
  const auto e = engine();
  for (const SparseMethod& method : sparse_methods()) {
    SCOPED_TRACE(method.name);
    Params params = method.few;
    const Outcome alone = ask_with(*e, prompt, method.name, params);
    params.insert({{"decode", "snapkv"}, {"decode_budget", "5000"}});
    expect_equal(ask_with(*e, prompt, method.name, params), alone);
    params["decode"] = "h2o";  // for which all rows attend
    expect_equal(ask_with(*e, prompt, method.name, params), alone);
    Request request = unpublished(prompt, method.name, method.few);
    request.evaluation.prompt_logits = 150;
    expect_equal(ask_ok(*e, std::move(request)), alone);
  }
}

// Nor behind a chain, where such rows run again for the decode rule alone: what the turn's own rows choose does not
// depend on them, nor does what the turn leaves.
TEST_P(SparseDialogues, GoesWithDecodeMethodsBehindAChain) {
  int kinds = 0;
  for (const SparseMethod& method : sparse_methods()) {
    SCOPED_TRACE(method.name);
    const auto say = [&](Engine& e, int n, const Params& params) {
      Request request = request_of(begin_of(n), method.name, 0);
      request.policy.params = params;
      ask_ok(e, std::move(request));
    };
    const auto e = engine();
    say(*e, 700, method.few);
    for (const int n : {712, 760}) {
      const Outcome alone = ask_with(*e, begin_of(n), method.name, method.few);
      EXPECT_EQ(alone.usage().prefix, 700) << "power: there is a chain";
      kinds += n == 712 && alone.completion.logits.first !=
                               ask_with(*engine(), begin_of(n), method.name, method.few).completion.logits.first;
      for (const auto& [decode, budget] : {std::pair{"snapkv", "64"}, {"h2o", "5000"}, {"loopserve", "64"}}) {
        SCOPED_TRACE(decode);
        Params params = method.few;
        params.insert({{"decode", decode}, {"decode_budget", budget}});
        EXPECT_EQ(ask_with(*e, begin_of(n), method.name, params).completion.logits.first,
                  alone.completion.logits.first);
      }
    }
    Params params = method.few;
    params.insert({{"decode", "snapkv"}, {"decode_budget", "64"}});
    const auto with = engine();
    say(*with, 700, method.few);
    say(*with, 712, params);
    say(*e, 712, method.few);
    const Outcome next = ask_with(*with, begin_of(900), method.name, method.few);
    EXPECT_EQ(next.usage().prefix, 712);
    expect_equal(next, ask_with(*e, begin_of(900), method.name, method.few));
  }
  EXPECT_GT(kinds, 8) << "power: which rows choose together matters";
}

// The same prompt again finds its chain, and its last rows choose together as they did: in their block, or where their
// turn began in it. So does a second choice of one request.
TEST_P(SparseDialogues, ASecondTimeIsTheFirst) {
  int by_one_row = 0;
  for (const SparseMethod& method : sparse_methods()) {
    SCOPED_TRACE(method.name);
    const auto e = engine();
    const auto say = [&](int n) {
      Request request = request_of(begin_of(n), method.name, 3);
      request.policy.params = method.few;
      request.evaluation.first_logits = true;
      return ask_ok(*e, std::move(request));
    };
    for (const auto& [n, from, again] : {std::tuple{700, 0, 512}, {712, 700, 700}, {1025, 712, 1024}}) {
      const Outcome first = say(n), second = say(n);
      EXPECT_EQ(first.usage().prefix, from) << n;
      EXPECT_EQ(second.usage().prefix, again) << n;
      EXPECT_EQ(second.completion.logits.first, first.completion.logits.first) << n;
      EXPECT_EQ(second.ids, first.ids) << n;
    }
    const Outcome one_more = ask_with(*e, begin_of(1026), method.name, method.few);
    by_one_row += one_more.completion.logits.first !=
                  ask_with(*engine(), begin_of(1026), method.name, method.few).completion.logits.first;
  }
  EXPECT_GT(by_one_row, 8) << "power: a row that chooses alone chooses otherwise";
}

// Rows that run for a decode rule alone are not among those that choose whose FFN runs.
TEST_P(SparseDialogues, AnFfnRuleGoesWithDecodeMethodsBehindAPrefix) {
  const auto e = engine();
  warm(*e, begin_of(700), "full");
  Params params{{"global", "all"}, {"ffn_mass", "0.5"}, {"ffn_recent", "1"}};
  const Outcome alone = ask_with(*e, begin_of(712), "redknot", params);
  EXPECT_EQ(alone.usage().prefix, 700);
  expect_differ(alone, ask_with(*e, begin_of(712), "full"));
  for (const char* decode : {"snapkv", "h2o"}) {
    Params with = params;
    with.insert({{"decode", decode}, {"decode_budget", "5000"}});
    EXPECT_EQ(ask_with(*e, begin_of(712), "redknot", with).completion.logits.first, alone.completion.logits.first)
        << decode;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SparseLimits, testing::Values("reference", "auto"));
INSTANTIATE_TEST_SUITE_P(Backends, SparseDialogues, testing::Values("auto"));

}  // namespace
}  // namespace kvilt

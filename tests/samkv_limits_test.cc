// Limit cases with power checks of SamKV (docs/papers.md#samkv): settings at which it must equal the dense pass, naive
// reuse, or itself, bit for bit, each with a setting at which it must differ.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kvilt/layer_profile.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

// Asked is head | C | some new words | B | A | question. Blocks are of 8.
class SamKVLimits : public KnownPieces {
 protected:
  SamKVLimits() : KnownPieces(90, 40, 83) { asked = join({head, c, words, b, a, question}); }

  const std::vector<int32_t> words = tokens(11, 6);
  static Params with(Params params) {
    params.try_emplace("block", "8");
    params.try_emplace("stable_begin", "0");
    return params;
  }
};

TEST_P(SamKVLimits, EverythingIsFullNothingIsNaive) {
  for (const int chunk : {512, 37}) {
    const auto e = engine(chunk);
    const Outcome full = run(*e, "full"), naive = run(*e, "naive");
    const Outcome all = run(*e, "samkv", with({{"keep", "1"}, {"recompute", "all"}}));
    EXPECT_EQ(all.usage().recomputed, all.usage().reused);
    EXPECT_EQ(all.usage().kept, 1);
    expect_equal(all, full);
    expect_equal(run(*e, "samkv", with({{"keep", "1"}, {"recompute", "none"}})), naive);
    const Outcome some = run(*e, "samkv", with({{"keep", "1"}}));
    expect_differ(some, full);
    expect_differ(some, naive);
    EXPECT_EQ(some.usage().kept, 1);
    const Outcome few = run(*e, "samkv", with({})), half = run(*e, "samkv", with({{"keep", "0.6"}}));
    for (const Outcome* out : {&few, &half}) {
      expect_differ(*out, full);
      expect_differ(*out, naive);
      EXPECT_LT(out->usage().kept, 0.95);
      EXPECT_GT(out->usage().kept, 0.25);
      EXPECT_GT(out->usage().recomputed, 50);
      EXPECT_LT(out->usage().recomputed, out->usage().reused);
    }
    EXPECT_NEAR(half.usage().kept, 0.6, 0.06);
    // All that is kept is computed again, over what is kept: neither of the two.
    const Outcome kept = run(*e, "samkv", with({{"keep", "0.6"}, {"recompute", "all"}}));
    expect_differ(kept, full);
    expect_differ(kept, half);
    EXPECT_GT(kept.usage().recomputed, half.usage().recomputed);
  }
}

// With keep=1 nobody asks. Here the documents are studied, the question looks, and of the 28 blocks it chooses all: the
// same two limits, through all stages. A block less is neither.
TEST_P(SamKVLimits, AQuestionThatChoosesEverythingIsFullOrNaiveToo) {
  const double all_blocks = 11 + 5 + 12;  // of C, B and A
  for (const int chunk : {512, 37}) {
    const auto e = engine(chunk);
    const Outcome full = run(*e, "full"), naive = run(*e, "naive");
    const Outcome given = run(*e, "samkv", with({{"keep", "1"}, {"recompute", "none"}}));
    for (const std::string blocks : {"layer", "shared"}) {
      SCOPED_TRACE(testing::Message() << chunk << " " << blocks);
      const auto chosen = [&](const std::string& keep, const std::string& recompute) {
        return run(*e, "samkv", with({{"keep", keep}, {"recompute", recompute}, {"blocks", blocks}}));
      };
      const Outcome again = chosen("0.999", "all"), as_placed = chosen("0.999", "none");
      EXPECT_EQ(again.usage().kept, 1);
      EXPECT_EQ(again.usage().recomputed, again.usage().reused);
      expect_equal(again, full);
      EXPECT_EQ(as_placed.usage().kept, 1);
      EXPECT_EQ(as_placed.usage().recomputed, 0);
      expect_equal(as_placed, naive);
      EXPECT_GT(as_placed.usage().flops, 1.3 * given.usage().flops) << "power: the question looked";
      const Outcome less = chosen("0.965", "all"), less_as_placed = chosen("0.965", "none");
      for (const Outcome* out : {&less, &less_as_placed}) {
        EXPECT_LT(out->usage().kept, 1);
        EXPECT_GT(out->usage().kept, 1 - 2 / all_blocks);
      }
      expect_differ(less, full);
      expect_differ(less_as_placed, naive);
    }
  }
}

TEST_P(SamKVLimits, ShortDocumentsAreKeptWhole) {
  const auto e = engine();
  const Outcome whole = run(*e, "samkv", {{"block", "32"}});  // three blocks each
  EXPECT_EQ(whole.usage().kept, 1);
  expect_equal(whole, run(*e, "full"));
  expect_equal(run(*e, "samkv", {{"block", "32"}, {"recompute", "none"}}), run(*e, "naive"));
  EXPECT_LT(run(*e, "samkv", with({})).usage().kept, 1) << "power";
}

TEST_P(SamKVLimits, AMixtureOfNothingIsOverwrite) {
  const auto e = engine(512, "zero-copy", "f32");
  const auto with_theta = [&](Params params) {
    params.insert({{"fate", "fuse"}, {"keep", "0.6"}});
    return run(*e, "samkv", with(params));
  };
  const Outcome overwrite = run(*e, "samkv", with({{"keep", "0.6"}}));
  expect_equal(with_theta({{"theta", "1"}}), overwrite);
  const Outcome cosine = with_theta({}), half = with_theta({{"theta", "0.5"}});
  expect_differ(cosine, overwrite);
  expect_differ(half, overwrite);
  expect_differ(half, cosine);
  // All of the old one is no recomputation, but for the rounding of a private copy's rotation.
  const Outcome none = run(*e, "samkv", with({{"keep", "0.6"}, {"recompute", "none"}})),
                old = with_theta({{"theta", "0"}});
  EXPECT_LT(max_abs_difference(old.completion.logits.first, none.completion.logits.first), 2e-3);
  EXPECT_GT(max_abs_difference(half.completion.logits.first, none.completion.logits.first), 1e-2) << "power";
}

TEST_P(SamKVLimits, TheChunkAndThePlacementChangeNothing) {
  const std::vector<Params> settings = {with({}),
                                        with({{"blocks", "shared"}}),
                                        with({{"recompute", "none"}}),
                                        with({{"fate", "fuse"}}),
                                        with({{"keep", "0.5"}, {"norm", "range"}}),
                                        with({{"bias", "no"}}),
                                        with({{"keep", "0.5"}, {"recompute", "all"}})};
  const auto whole = engine(512), parts = engine(50), small = engine(7);
  std::vector<Outcome> outcomes;
  for (const Params& params : settings) {
    outcomes.push_back(run(*whole, "samkv", params));
    expect_equal(run(*parts, "samkv", params), outcomes.back());
    expect_equal(run(*small, "samkv", params), outcomes.back());
  }
  for (const size_t other : {1, 2, 3, 4, 6}) expect_differ(outcomes[0], outcomes[other]);
  const auto zero = engine(512, "zero-copy", "f32"), copy = engine(512, "copy", "f32");
  for (const Params& params : settings) {
    const Outcome x = run(*zero, "samkv", params), y = run(*copy, "samkv", params);
    EXPECT_EQ(x.usage().kept, y.usage().kept);
    EXPECT_LT(max_abs_difference(x.completion.logits.first, y.completion.logits.first), 4e-3);
  }
}

TEST_P(SamKVLimits, TogetherIsAlone) {
  const auto e = engine(16);
  std::vector<Request> requests;
  for (const char* policy : {"samkv", "full", "samkv", "naive", "mend", "samkv"}) {
    requests.push_back(unpublished(asked, policy, {}, 9));
    if (requests.back().policy.name == "samkv") requests.back().policy.params = with({});
  }
  requests[2].policy.params = with({{"keep", "0.5"}});
  expect_batched_equals_alone(*e, requests);
}

// Copies of one document are chosen alike, whatever the order of the documents is. With one choice for all layers what is
// computed again is what is kept.
TEST_P(SamKVLimits, CopiesOfADocumentFareAlikeInAnyOrder) {
  const auto e = engine();
  const auto other = tokens(90, 31);  // as long as A
  warm(*e, join({tokens(7, 32), other}));
  const Params params = with({{"keep", "0.6"}, {"blocks", "shared"}, {"recompute", "all"}});
  const std::string orders[] = {"AAB", "ABA", "BAA"};
  for (const std::string& order : orders) {
    std::vector<int32_t> prompt = head;
    std::vector<std::pair<char, int32_t>> begins;
    for (const char which : order) {
      const auto between = tokens(5, 40 + static_cast<uint32_t>(begins.size()));
      prompt = join({prompt, between});
      begins.emplace_back(which, static_cast<int32_t>(prompt.size()));
      prompt = join({prompt, which == 'A' ? a : other});
    }
    prompt = join({prompt, tokens(5, 50), question});
    const Outcome out = ask_with(*e, prompt, "samkv", params);
    EXPECT_EQ(out.usage().reused, 270) << order;
    std::map<char, std::vector<std::vector<int32_t>>> kept;  // offsets in the document
    for (const auto& [which, begin] : begins) {
      std::vector<int32_t> of;
      for (const auto& run : out.completion.recomputed_runs) {
        for (int32_t pos = std::max(run.begin, begin); pos < std::min(run.end, begin + 90); ++pos)
          of.push_back(pos - begin);
      }
      EXPECT_GT(of.size(), 30u) << order;
      EXPECT_LT(of.size(), 90u) << order;
      kept[which].push_back(std::move(of));
    }
    EXPECT_EQ(kept['A'][0], kept['A'][1]) << order;
    EXPECT_NE(kept['A'][0], kept['B'][0]) << "power: " << order;
  }
}

// The answer's rows see what the last stage's saw.
TEST_P(SamKVLimits, TheAnswerSeesWhatIsKept) {
  const auto e = engine();
  const auto bytes = [&](const Params& params) {
    return ask_with(*e, asked, "samkv", params, 24).usage().decode_attention_flops;
  };
  const double all = bytes(with({{"keep", "1"}})), half = bytes(with({{"keep", "0.5"}}));
  EXPECT_LT(half, 0.75 * all);
  EXPECT_GT(half, 0.4 * all);
}

// What was found out about a document is stored with its KV: the next request that reads it does not look again, wherever
// the document is.
TEST_P(SamKVLimits, StatisticsAreMeasuredOnce) {
  const auto e = engine();
  const Outcome first = run(*e, "samkv", with({})), second = run(*e, "samkv", with({}));
  expect_equal(first, second);
  EXPECT_LT(second.usage().flops, 0.6 * first.usage().flops);
  const auto turned = join({head, a, words, c, b, question});
  const Outcome elsewhere = ask_with(*e, turned, "samkv", with({}));
  expect_equal(elsewhere, ask_with(*engine(), turned, "samkv", with({})));
  EXPECT_LT(elsewhere.usage().flops, 0.6 * first.usage().flops);
  EXPECT_GT(run(*e, "samkv", {{"block", "10"}, {"stable_begin", "0"}}).usage().flops, 1.5 * second.usage().flops)
      << "power: blocks of another size";
  expect_equal(run(*e, "naive"), run(*engine(), "naive"));
}

// Without a question nothing speaks for a block in the middle.
TEST_P(SamKVLimits, WithoutAQuestionTheEndsAreKept) {
  const auto e = engine();
  const auto silent = join({head, c, b, a});
  const Outcome out = ask_with(*e, silent, "samkv", with({}));
  // Of 83, 40 and 90 tokens the first block and the last two, of which the last may be short.
  EXPECT_NEAR(out.usage().kept, (8 + 11 + 8 + 16 + 8 + 10) / 213.0, 1e-9);
  expect_equal(ask_with(*engine(7), silent, "samkv", with({})), out);
  expect_differ(out, ask_with(*e, silent, "full"));
}

// The last row sees itself, also where the method keeps nothing of a document's end.
TEST_P(SamKVLimits, WithoutAQuestionOrAnEndTheLastRowSeesItself) {
  const auto e = engine();
  const auto silent = join({head, c, b, a});
  for (const std::string initial : {"1", "0"}) {
    Params params = with({{"local", "0"}});
    params["initial"] = initial;
    const Outcome out = ask_with(*e, silent, "samkv", params);
    EXPECT_NEAR(out.usage().kept, ((initial == "1" ? 3 * 8 : 0) + 1) / 213.0, 1e-9) << "the last row's own key";
    expect_equal(ask_with(*engine(7), silent, "samkv", params), out);
  }
  expect_differ(ask_with(*e, silent, "samkv", with({{"local", "0"}})),
                ask_with(*e, silent, "samkv", with({{"local", "0"}, {"initial", "0"}})));
}

// Where no layer keeps anything of the documents, nothing is there to be computed again.
TEST_P(SamKVLimits, WhatIsKeptNowhereIsNotComputedAgain) {
  const auto e = engine();
  const auto touching = join({head, c, b, a, question});
  const auto ends_too = ask_with(*e, touching, "samkv", with({{"keep", "0.01"}}));
  EXPECT_GT(ends_too.usage().recomputed, 0) << "power";
  for (Params params : {Params{{"keep", "0.01"}}, Params{{"literal", "yes"}}, Params{{"keep", "0.5"}}}) {
    const bool some = params.contains("keep") && params["keep"] == "0.5";
    params.insert({{"initial", "0"}, {"local", "0"}});
    const Outcome out = ask_with(*e, touching, "samkv", with(params));
    expect_equal(ask_with(*engine(7), touching, "samkv", with(params)), out);
    EXPECT_EQ(out.usage().recomputed > 0, some);
    EXPECT_NEAR(out.usage().kept, some ? 0.5 : 0, 0.05);
    params["recompute"] = "none";
    const Outcome none = ask_with(*e, touching, "samkv", with(params));
    some ? expect_differ(out, none) : expect_equal(out, none);
  }
}

// Logits of more rows than the question has: none of a row that does not see itself.
TEST_P(SamKVLimits, LogitsAreOfRowsThatSeeThemselves) {
  const auto e = engine();
  const auto rows = [&](const std::string& policy, Params params) {
    Request request = unpublished(asked, policy, std::move(params));
    request.evaluation.prompt_logits = 60;
    return ask_ok(*e, std::move(request));
  };
  const Outcome plain = run(*e, "samkv", with({})), out = rows("samkv", with({}));
  expect_equal(out, plain);
  ASSERT_EQ(out.completion.logits.prompt.size(), question.size());
  EXPECT_EQ(out.completion.logits.prompt.back(), out.completion.logits.first);
  EXPECT_EQ(rows("full", {}).completion.logits.prompt.size(), 60u) << "power";
}

// A map of layers says how many blocks stay; it is the same as to name them.
TEST_P(SamKVLimits, StableLayersComeFromAFile) {
  const auto path = std::filesystem::temp_directory_path() / ("kvilt_layers_" + GetParam() + ".json");
  std::ofstream(path) << R"({"num_layers": 6, "stable_layers": [0, 1]})";
  EngineOptions options{.model = kModel, .backend = GetParam()};
  options.layer_maps = {"early=" + path.string()};
  const auto e = open_for_test(options);
  warm(*e, join({head, a, b, c}));
  const auto with_layers = [&](Params params) {
    params["block"] = "8";
    return run(*e, "samkv", std::move(params));
  };
  const Outcome early = with_layers({{"layers", "early"}});
  expect_equal(early, with_layers({{"stable_begin", "0"}, {"stable_end", "2"}}));
  expect_differ(early, with_layers({}));
  EXPECT_FALSE(ask(*e, unpublished(asked, "samkv", {{"layers", "late"}})).ok());
  std::ofstream(path) << R"({"num_layers": 7, "stable_layers": [0, 1]})";
  EXPECT_FALSE(open_engine(options).ok()) << "of another model";
  std::filesystem::remove(path);
}

// What is found leaves nothing in the cache; a text is refused in which no block could stand out.
TEST_P(SamKVLimits, LayersAreProfiled) {
  const auto e = engine();
  const auto text = tokens(700, 12);
  const auto few = profile_layers(*e, text, {.block = 8, .sigmas = 0.1}),
             none = profile_layers(*e, text, {.block = 8, .sigmas = 8});
  ASSERT_TRUE(few.ok() && none.ok());
  EXPECT_EQ(few->layers, 6);
  EXPECT_EQ(few->blocks, 700 / 8 + 1 - 3);
  EXPECT_EQ(few->stable, profile_layers(*engine(7), text, {.block = 8, .sigmas = 0.1})->stable);
  EXPECT_GT(std::ranges::count(few->stable, 1), std::ranges::count(none->stable, 1)) << "power";
  EXPECT_FALSE(profile_layers(*e, text, {.block = 64, .sigmas = 3}).ok()) << "8 blocks";
  EXPECT_FALSE(profile_layers(*e, text, {.block = 4}).ok());
  expect_equal(run(*e, "naive"), run(*engine(), "naive"));
}

TEST_P(SamKVLimits, OthersDoNotFindWhatItLeaves) {
  const auto e = engine();
  Request request = request_of(asked, "samkv", 8);
  request.policy.params = with({});
  const Outcome said = ask_ok(*e, std::move(request));
  auto next = asked;
  next.insert(next.end(), said.ids.begin(), said.ids.end());
  next.push_back(5);
  EXPECT_EQ(ask_with(*e, next, "prefix").usage().prefix, 9);
  expect_equal(run(*e, "naive"), run(*engine(), "naive"));
}

TEST_P(SamKVLimits, MultiInfLLMWithAllBlocksIsNaive) {
  const Params few{{"init", "16"}, {"local", "20"}, {"block", "8"}, {"topk", "6"}};
  std::vector<Outcome> by_chunk;
  for (const int chunk : {512, 11}) {
    const auto e = engine(chunk);
    const Outcome naive = run(*e, "naive");
    Params all = few;
    all["topk"] = "1000";
    expect_equal(run(*e, "multi-infllm", all), naive);
    expect_equal(run(*e, "multi-infllm"), naive);  // the window is longer than the text
    // Its choice by layer, of all but one block, is near and another.
    Params most = few;
    most["topk"] = "17";
    const Outcome out = run(*e, "multi-infllm", few), again = run(*e, "multi-infllm", few);
    expect_equal(out, again);
    EXPECT_LT(again.usage().flops, 0.6 * out.usage().flops) << "mean keys are stored";
    expect_differ(out, naive);
    expect_differ(run(*e, "multi-infllm", most), naive);
    EXPECT_EQ(out.usage().recomputed, 0);
    EXPECT_NEAR(out.usage().kept, (16 + 6 * 8 + 20) / 213.0, 0.05);
    by_chunk.push_back(out);
  }
  expect_equal(by_chunk[0], by_chunk[1]);
}

TEST_P(SamKVLimits, MultiInfLLMsSingleAngleMovesWhatIsBeforeTheEnd) {
  const Params few{{"init", "16"}, {"local", "20"}, {"block", "8"}, {"topk", "6"}};
  const auto single = [](Params params) {
    params["angle"] = "single";
    return params;
  };
  std::vector<Outcome> by_chunk;
  for (const int chunk : {512, 11}) {
    const auto e = engine(chunk);
    const Outcome naive = run(*e, "naive");
    expect_equal(run(*e, "multi-infllm", single({})), naive);  // all is in the end
    Params all = few;
    all["topk"] = "1000";
    expect_differ(run(*e, "multi-infllm", single(all)), naive);
    const Outcome plain = run(*e, "multi-infllm", few), out = run(*e, "multi-infllm", single(few));
    expect_equal(run(*e, "multi-infllm", single(few)), out);
    expect_differ(out, plain);
    EXPECT_NEAR(out.usage().kept, plain.usage().kept, 0.05);
    EXPECT_EQ(out.usage().recomputed, 0);
    by_chunk.push_back(out);
    // Copied pieces have other bits, and no shift.
    const Outcome copied = run(*engine(chunk, "copy", "f32"), "multi-infllm", single(all));
    const Outcome placed = run(*engine(chunk, "zero-copy", "f32"), "multi-infllm", single(all));
    EXPECT_LT(max_abs_difference(copied.completion.logits.first, placed.completion.logits.first), 2e-3);
    EXPECT_GT(max_abs_difference(placed.completion.logits.first, naive.completion.logits.first), 2e-2) << "power";
    // Side by side with others.
    std::vector<Request> requests;
    for (const Params& params : {single(few), few, single(all), all})
      requests.push_back(unpublished(asked, "multi-infllm", params, 9));
    expect_batched_equals_alone(*e, requests);
  }
  expect_equal(by_chunk[0], by_chunk[1]);
}

// What its rows computed is of keys elsewhere, also where none is left out.
TEST_P(SamKVLimits, OthersDoNotFindWhatTheSingleAngleLeaves) {
  const std::vector<int32_t> fresh = tokens(300, 50);
  for (const std::string angle : {"single", "true"}) {
    const auto e = engine();
    Request request = request_of(fresh, "multi-infllm", 8);
    request.policy.params = {{"local", "20"}, {"angle", angle}};
    const Outcome said = ask_ok(*e, std::move(request));
    const Outcome next = ask_with(*e, join({fresh, said.ids, {5}}), "prefix");
    EXPECT_EQ(next.usage().prefix > 0, angle == "true") << "power: 'true' is the dense pass here";
    expect_equal(run(*e, "naive"), run(*engine(), "naive"));
  }
}

// A document that was cached in front of the very question is found with it, as one piece.
TEST_P(SamKVLimits, ADocumentIsOneAlsoWhereThePieceRunsOn) {
  const auto e = engine();
  warm(*e, join({head, a, question}));
  const auto ask_marked = [&](const std::string& policy, Params params) {
    Request request = unpublished(join({head, c, a, question}), policy, std::move(params));
    request.prompt.marks = {{9, 92}, {92, 182}};
    return ask_ok(*e, std::move(request));
  };
  const Outcome full = ask_marked("full", {}), naive = ask_marked("naive", {});
  EXPECT_EQ(naive.usage().reused, 83 + 90 + 21) << "power: the question too";
  expect_equal(ask_marked("samkv", with({{"keep", "1"}, {"recompute", "all"}})), full);
  expect_differ(ask_marked("samkv", with({{"keep", "1"}, {"recompute", "none"}})), full);
  const double kept = ask_marked("samkv", with({{"keep", "0.6"}})).usage().kept;
  EXPECT_NEAR(kept, 0.6, 0.06);
}

// Who starts again in the middle of an answer has the distances that its prompt and its answer had.
TEST_P(SamKVLimits, ThePreemptedKeepTheSingleAngle) {
  const auto large = engine();
  const auto small =
      open_for_test({.model = kModel, .backend = GetParam(), .kv_bytes = 1100 * large->info().kv_bytes_per_token});
  std::vector<Request> requests;
  for (uint32_t seed = 40; seed < 44; ++seed) {
    requests.push_back(unpublished(tokens(300, seed), "multi-infllm", {{"local", "20"}, {"angle", "single"}}, 150));
    requests.back().evaluation.forced = tokens(150, seed + 9);
  }
  const auto gate = hold(*small);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const Request& request : requests) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(small->submit(request, sinks.back()).ok());
  }
  gate->open();
  for (size_t i = 0; i < requests.size(); ++i) {
    const Completion done = sinks[i]->wait();
    ASSERT_FALSE(done.error) << done.error->message;
    EXPECT_EQ(done.logits.all, ask_ok(*large, requests[i]).completion.logits.all) << i;
    requests[i].policy.params["angle"] = "true";
    const auto plain = ask_ok(*large, requests[i]).completion.logits.all;
    EXPECT_NE(done.logits.all.back(), plain.back()) << "power: the last row has another angle";
  }
  EXPECT_GT(small->stats().preemptions, 0u) << "power";
}

INSTANTIATE_TEST_SUITE_P(Backends, SamKVLimits, testing::Values("reference", "auto"));

}  // namespace
}  // namespace kvilt

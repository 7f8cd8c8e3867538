// Limit cases with power checks of the methods that repair reused pieces (docs/papers.md): settings at which each must
// equal the dense pass or another method, bit for bit, each with a setting at which it must differ.
#include <gtest/gtest.h>

#include "probe_prompts.h"

namespace kvilt {
namespace {

// Asked is head | C A B | question.
class Repair : public KnownPieces {
 protected:
  Repair() : KnownPieces(70, 53, 64) { asked = join({head, c, a, b, question}); }
};

// The setting of each method that computes everything, and a small budget.
struct Method {
  const char* name;
  Params all, few, none;
};
const std::vector<Method>& methods() {
  static const std::vector<Method> list = {
      {"epic", {{"k", "1000"}}, {{"k", "16"}}, {{"k", "0"}}},
      {"crossquery", {{"halo", "1000"}}, {{"halo", "8"}}, {{"halo", "0"}}},
      {"prophetkv", {{"r", "1"}}, {{"r", "0.2"}}, {{"r", "0"}}},
      {"mend", {{"r", "1"}}, {{"r", "0.2"}}, {{"r", "0"}}},
      {"mend",
       {{"r", "1"}, {"carry", "mean"}},
       {{"r", "0.2"}, {"carry", "nearest"}, {"anchors", "1"}},
       {{"r", "0"}, {"carry", "mean"}}},
      {"mend", {{"r", "1"}, {"carry", "gaussian"}}, {{"r", "0.2"}, {"carry", "gaussian"}}, {{"r", "0"}}},
      {"mend",
       {{"r", "1"}, {"stale", "unseen"}},
       {{"r", "0.2"}, {"stale", "unseen"}},
       {{"r", "0"}, {"stale", "unseen"}}},
      {"mend", {{"r", "1"}, {"ahead", "6"}}, {{"r", "0.2"}, {"ahead", "6"}}, {{"r", "0"}, {"ahead", "6"}}},
      {"auto", {{"r", "1"}}, {{"r", "0.2"}}, {{"r", "0"}, {"hop", "0"}}},
      {"auto",
       {{"r", "1"}, {"ahead", "6"}},
       {{"r", "0.2"}, {"ahead", "6"}},
       {{"r", "0"}, {"hop", "0"}, {"ahead", "6"}}},
      {"random", {{"r", "1"}}, {{"r", "0.2"}}, {{"r", "0"}}},
      {"oracle", {{"r", "1"}}, {{"r", "0.2"}}, {{"r", "0"}}},
  };
  return list;
}

TEST_P(Repair, EverythingIsFullNothingIsNaive) {
  for (const int chunk : {512, 37}) {
    const auto e = engine(chunk);
    const Outcome full = run(*e, "full"), naive = run(*e, "naive");
    for (const Method& method : methods()) {
      SCOPED_TRACE(method.name);
      const Outcome all = run(*e, method.name, method.all);
      EXPECT_EQ(all.usage().recomputed, all.usage().reused);
      expect_equal(all, full);
      expect_equal(run(*e, method.name, method.none), naive);
      const Outcome few = run(*e, method.name, method.few);
      EXPECT_GT(few.usage().recomputed, 20);
      EXPECT_LT(few.usage().recomputed, 45);
      expect_differ(few, full);
      expect_differ(few, naive);
    }
  }
}

TEST_P(Repair, CacheBlendWithEverythingIsFull) {
  const auto e = engine();
  const Outcome full = run(*e, "full");
  expect_equal(run(*e, "cacheblend", {{"r", "1"}}), full);
  expect_differ(run(*e, "cacheblend"), full);
  // The layers up to the check are computed in full: more than naive.
  EXPECT_GT(run(*e, "cacheblend", {{"r", "0"}}).usage().flops, 1.2 * run(*e, "naive").usage().flops);
}

TEST_P(Repair, RelaxKVWithEverythingIsFullWithNothingNaive) {
  for (const int chunk : {512, 37}) {
    const auto e = engine(chunk);
    const Outcome full = run(*e, "full"), naive = run(*e, "naive");
    const auto with = [&](const std::string& r, const std::string& reads) {
      return run(*e, "relaxkv", {{"r", r}, {"reads", reads}});
    };
    for (const std::string reads : {"piece", "anchors"}) {
      expect_equal(with("1", reads), full);
      expect_equal(with("0", reads), naive);
    }
    const Outcome piece = with("0.2", "piece"), anchors = with("0.2", "anchors");
    EXPECT_GT(piece.usage().recomputed, 3) << "in the last layer";
    EXPECT_LT(piece.usage().recomputed, 37);
    expect_differ(piece, full);
    expect_differ(piece, naive);
    expect_differ(piece, anchors);
    expect_differ(piece, run(*e, "prophetkv", {{"r", "0.2"}}));
  }
}

// A short piece was computed behind other text, and nothing of it is recomputed. What is recomputed of the piece after it
// reads that, or does not.
TEST_P(Repair, AStaleNeighbourIsNotReadWhereItIsUnseen) {
  constexpr int kRows = 311;
  const auto stale_piece = tokens(40, 8), last_piece = tokens(300, 9);
  const auto prompt = join({head, stale_piece, last_piece, question});
  const auto first_row = static_cast<int32_t>(prompt.size()) - kRows;
  const auto behind = [&](uint32_t seed) {
    auto e = open_for_test({.model = kModel, .backend = GetParam(), .kv_type = KvType::kF32});
    warm(*e, join({head, last_piece}));
    warm(*e, join({tokens(60, seed), stale_piece}));
    return e;
  };
  const auto one = behind(21), other = behind(22);
  const auto rows = [&](Engine& e, const std::string& stale) {  // nearly all of the last piece, and the question
    const Params params{{"r", "0.011"}, {"anchors", "1"}, {"tail", "1"}, {"carry", "gaussian"}, {"stale", stale}};
    Request request = unpublished(prompt, "mend", params);
    request.evaluation.prompt_logits = kRows;
    return ask_ok(e, std::move(request)).completion;
  };
  for (const std::string stale : {"unseen", "seen"}) {
    const Completion x = rows(*one, stale), y = rows(*other, stale);
    ASSERT_EQ(x.reused_runs.size(), 1u);
    EXPECT_EQ(x.reused_runs[0].end - x.reused_runs[0].begin, 40 + 300) << "both pieces, which touch";
    ASSERT_EQ(x.logits.prompt.size(), static_cast<size_t>(kRows));
    int compared = 0;
    for (const auto& run : x.recomputed_runs) {
      EXPECT_GE(run.begin, first_row);
      for (int32_t pos = run.begin; pos < run.end && pos + 1 < static_cast<int32_t>(prompt.size()); ++pos, ++compared)
        EXPECT_EQ(x.logits.prompt[pos - first_row] == y.logits.prompt[pos - first_row], stale == "unseen") << pos;
    }
    EXPECT_EQ(compared, 3);
    EXPECT_NE(x.logits.prompt.back(), y.logits.prompt.back()) << "the question reads it";
  }
}

TEST_P(Repair, AgentKVShiftIsCacheBlendWithAnOffset) {
  const auto e = engine(512, "zero-copy", "f32");  // a private copy of a narrower type is rounded once more
  const Outcome full = run(*e, "full"), moved = run(*e, "agentkvshift", {{"r", "0.2"}});
  expect_equal(run(*e, "agentkvshift", {{"r", "1"}}), full);
  expect_differ(moved, full);
  // Without probes, and with an offset of nothing, what the layers up to the check left stays as it is.
  expect_equal(run(*e, "agentkvshift", {{"r", "0"}}), run(*e, "cacheblend", {{"r", "0"}}));
  const Outcome still = run(*e, "agentkvshift", {{"r", "0.2"}, {"scale", "0"}});
  EXPECT_EQ(still.usage().recomputed, moved.usage().recomputed);
  EXPECT_GT(max_abs_difference(moved.completion.logits.first, still.completion.logits.first), 1e-2);
}

// The weight min(d, 1): with all computed, or with no offset to weigh, it changes nothing, to the bit.
TEST_P(Repair, AgentKVShiftsWeightIsOfTheOffsetOnly) {
  const auto e = engine(512, "zero-copy", "f32");
  const auto with = [&](Params params, const std::string& weight) {
    params["weight"] = weight;
    return run(*e, "agentkvshift", params);
  };
  for (const Params& none : std::vector<Params>{{{"r", "1"}}, {{"r", "0"}}, {{"r", "0.2"}, {"scale", "0"}}})
    expect_equal(with(none, "divergence"), with(none, "one"));
  const Params some{{"r", "0.2"}};
  expect_equal(with(some, "divergence"), run(*e, "agentkvshift", some));  // the default is the paper's
  EXPECT_EQ(with(some, "divergence").usage().recomputed, with(some, "one").usage().recomputed);
  expect_differ(with(some, "divergence"), with(some, "one"));
  const Params together{{"r", "0.2"}, {"probes", "prompt"}};
  expect_differ(run(*e, "agentkvshift", together), run(*e, "agentkvshift", some));
  expect_equal(run(*e, "agentkvshift", {{"r", "1"}, {"probes", "prompt"}}), run(*e, "full"));
}

TEST_P(Repair, TheChunkChangesNothing) {
  std::vector<std::vector<Outcome>> by_chunk;
  const std::vector<std::pair<const char*, Params>> settings = {{"cacheblend", {}},
                                                                {"cacheblend", {{"measure", "k"}}},
                                                                {"epic", {}},
                                                                {"prophetkv", {}},
                                                                {"mend", {}},
                                                                {"mend", {{"carry", "mean"}}},
                                                                {"mend", {{"r", "0.2"}, {"anchors", "1"}}},
                                                                {"mend", {{"gain", "no"}}},
                                                                {"mend", {{"carry", "gaussian"}}},
                                                                {"oracle", {{"by", "both"}}},
                                                                {"auto", {}},
                                                                {"auto", {{"hop", "0"}}},
                                                                {"agentkvshift", {}},
                                                                {"relaxkv", {}},
                                                                {"relaxkv", {{"reads", "anchors"}}},
                                                                {"mend", {{"stale", "unseen"}}},
                                                                {"mend", {{"ahead", "8"}}},
                                                                {"agentkvshift", {{"weight", "one"}}},
                                                                {"auto", {{"ahead", "8"}}}};
  for (const int chunk : {512, 50, 7}) {
    const auto e = engine(chunk);
    by_chunk.emplace_back();
    for (const auto& [policy, params] : settings) by_chunk.back().push_back(run(*e, policy, params));
  }
  for (size_t i = 0; i < settings.size(); ++i) {
    SCOPED_TRACE(settings[i].first);
    expect_equal(by_chunk[0][i], by_chunk[1][i]);
    expect_equal(by_chunk[0][i], by_chunk[2][i]);
  }
  expect_differ(by_chunk[0][4], by_chunk[0][5]);
  expect_differ(by_chunk[0][4], by_chunk[0][7]);
  expect_differ(by_chunk[0][4], by_chunk[0][8]);
  expect_differ(by_chunk[0][10], by_chunk[0][11]);
  expect_differ(by_chunk[0][13], by_chunk[0][14]);
  expect_differ(by_chunk[0][4], by_chunk[0][15]);
  expect_differ(by_chunk[0][4], by_chunk[0][16]);
  expect_differ(by_chunk[0][12], by_chunk[0][17]);
  expect_differ(by_chunk[0][10], by_chunk[0][18]);
}

// The rows of tokens that were guessed are forgotten: the answer's own take their places, whatever it says.
TEST_P(Repair, TokensAheadLeaveNothingBehind) {
  const auto e = engine();
  const auto forced = [&](const std::string& policy, const Params& params, int32_t id) {
    Request request = unpublished(asked, policy, params);
    request.evaluation.forced.assign(12, id);
    request.evaluation.first_logits = true;
    request.sampling.max_tokens = 12;
    return ask_ok(*e, std::move(request)).completion;
  };
  for (const int32_t id : {7, 500}) {
    const Completion full = forced("full", {}, id), all = forced("mend", {{"r", "1"}, {"ahead", "8"}}, id);
    ASSERT_EQ(full.logits.all.size(), 12u);
    EXPECT_EQ(all.logits.all, full.logits.all);
    EXPECT_GT(all.usage.flops, 1.05 * forced("mend", {{"r", "1"}}, id).usage.flops) << "power: there were such rows";
  }
  EXPECT_NE(forced("full", {}, 7).logits.all.back(), forced("full", {}, 500).logits.all.back());
}

// They neither choose keys for the answer nor tell of what they saw: they stand where its rows will.
TEST_P(Repair, TokensAheadAreNoRowsOfTheAnswer) {
  const auto e = engine();
  const auto forced = [&](const std::string& policy, Params params, const char* decode) {
    params["decode"] = decode;
    if (decode != std::string_view("full")) params["decode_budget"] = "64";
    Request request = unpublished(asked, policy, params);
    request.evaluation.forced.assign(12, 7);
    request.sampling.max_tokens = 12;
    return ask_ok(*e, std::move(request)).completion.logits.all;
  };
  const auto dense = forced("full", {}, "full");
  for (const char* decode : {"streamingllm", "snapkv", "h2o", "quest", "tidal", "random"}) {
    SCOPED_TRACE(decode);
    const auto without = forced("mend", {{"r", "1"}}, decode);
    ASSERT_EQ(without.size(), 12u);
    EXPECT_TRUE(forced("mend", {{"r", "1"}, {"ahead", "8"}}, decode) == without);
    EXPECT_TRUE(without != dense) << "power";
  }
}

TEST_P(Repair, TokensAheadChangeTheChoice) {
  const auto e = engine();
  const auto chosen = [&](const char* ahead) {
    Request request = unpublished(asked, "mend", {{"r", "0.2"}, {"anchors", "0"}, {"ahead", ahead}});
    request.evaluation.first_logits = true;
    return ask_ok(*e, std::move(request)).completion.recomputed_runs;
  };
  const auto none = chosen("0"), two = chosen("2"), many = chosen("16");
  const auto of = [](const auto& runs) {
    std::vector<int> out;
    for (const auto& run : runs) out.push_back(run.begin), out.push_back(run.end);
    return out;
  };
  EXPECT_NE(of(none), of(many));
  EXPECT_NE(of(two), of(many));
}

// New text between pieces of one group is computed like any; it neither shows a change nor carries one.
TEST_P(Repair, NewTextBetweenPiecesOfAGroup) {
  const auto between = join({head, c, tokens(40, 8), a, tokens(7, 9), b, question});
  const auto with = [&](Engine& e, const std::string& policy, Params params) {
    return ask_with(e, between, policy, std::move(params));
  };
  const auto whole = engine(512), small = engine(11);
  const Outcome mended = with(*whole, "mend", {});
  EXPECT_GT(mended.usage().fresh, 60);
  EXPECT_GT(mended.usage().recomputed, 20);
  expect_equal(with(*small, "mend", {}), mended);
  expect_equal(with(*whole, "mend", {{"r", "1"}}), with(*whole, "full", {}));
  const Outcome narrow = with(*whole, "mend", {{"carry", "gaussian"}});
  expect_equal(with(*small, "mend", {{"carry", "gaussian"}}), narrow);
  expect_differ(mended, narrow);
}

TEST_P(Repair, BatchedEqualsAlone) {
  const auto e = engine(16);
  std::vector<Request> requests;
  for (const char* policy :
       {"mend", "cacheblend", "prophetkv", "full", "mend", "auto", "epic", "agentkvshift", "relaxkv", "mend"}) {
    requests.push_back(unpublished(asked, policy, {}, 9));
  }
  requests[4].policy.params = {{"r", "0.05"}, {"carry", "nearest"}};
  requests.back().policy.params = {{"stale", "unseen"}};
  requests[0].policy.params = {{"ahead", "5"}};
  expect_batched_equals_alone(*e, requests);
}

TEST_P(Repair, WithoutItsCarryMendIsProphetKV) {
  const auto e = engine(512, "zero-copy", "f32");  // a private copy of a narrower type is rounded once more
  const Params share{{"r", "0.2"}, {"anchors", "0"}};
  expect_equal(run(*e, "mend", {{"r", "0.2"}, {"anchors", "0"}, {"carry", "none"}}),
               run(*e, "prophetkv", {{"r", "0.2"}, {"value_norm", "yes"}}));
  // A carry of nothing gets the same values another way (private copies).
  const Outcome zero = run(*e, "mend", {{"r", "0.2"}, {"anchors", "0"}, {"scale_k", "0"}, {"scale_v", "0"}});
  const Outcome none = run(*e, "mend", {{"r", "0.2"}, {"anchors", "0"}, {"carry", "none"}});
  EXPECT_LT(max_abs_difference(zero.completion.logits.first, none.completion.logits.first), 2e-3);
  EXPECT_GT(max_abs_difference(run(*e, "mend", share).completion.logits.first, none.completion.logits.first), 2e-2)
      << "power";
}

TEST_P(Repair, TheStoreIsNeverChanged) {
  const auto e = engine();
  const Outcome naive = run(*e, "naive");
  for (const char* policy :
       {"mend", "auto", "oracle", "cacheblend", "agentkvshift", "prophetkv", "crossquery", "relaxkv"})
    run(*e, policy);
  expect_equal(run(*e, "naive"), naive);
}

// Pieces that are known after their own prefix need no repair: every method leaves their true KV as it is.
TEST_P(Repair, TrueKvStaysTrue) {
  const auto e = open_for_test({.model = kModel, .backend = GetParam()});
  warm(*e, asked);
  const auto longer = join({asked, tokens(12, 31)});
  const auto with = [&](const char* policy) { return ask_with(*e, longer, policy); };
  const Outcome full = with("full");
  for (const char* policy :
       {"mend", "auto", "epic", "cacheblend", "agentkvshift", "prophetkv", "crossquery", "relaxkv"}) {
    const Outcome out = with(policy);
    EXPECT_EQ(out.usage().prefix, static_cast<int>(asked.size()));
    expect_equal(out, full);
  }
}

TEST_P(Repair, CopiedEqualsZeroCopyToRounding) {
  const auto zero = engine(512, "zero-copy", "f32"), copy = engine(512, "copy", "f32");
  const Outcome full = run(*zero, "full");
  for (const char* policy : {"mend", "auto", "oracle", "cacheblend", "agentkvshift", "prophetkv", "epic", "random",
                             "crossquery", "relaxkv"}) {
    SCOPED_TRACE(policy);
    const Outcome x = run(*zero, policy), y = run(*copy, policy);
    EXPECT_EQ(x.usage().recomputed, y.usage().recomputed);
    EXPECT_LT(max_abs_difference(x.completion.logits.first, y.completion.logits.first), 4e-3);
    EXPECT_GT(max_abs_difference(x.completion.logits.first, full.completion.logits.first), 1e-2) << "power";
  }
}

// Without a question after them, the last 64 positions are computed twice, in known pieces: what they are compared with
// the second time is what was placed, not what the first stage wrote over a private copy.
TEST_P(Repair, CopiedEqualsZeroCopyWhereThePromptEndsInAPiece) {
  const auto zero = engine(512, "zero-copy", "f32"), copy = engine(512, "copy", "f32");
  const auto ends_known = [&](Engine& engine, const std::string& policy) {
    return ask_with(engine, join({head, c, a, b}), policy, {{"r", "0.3"}});
  };
  for (const char* policy : {"mend", "prophetkv", "cacheblend", "oracle"}) {
    SCOPED_TRACE(policy);
    const Outcome x = ends_known(*zero, policy), y = ends_known(*copy, policy);
    EXPECT_EQ(x.usage().recomputed, y.usage().recomputed);
    EXPECT_LT(max_abs_difference(x.completion.logits.first, y.completion.logits.first), 4e-3);
  }
}

TEST_P(Repair, UnalignedIsAnotherAndWorseNaive) {
  const auto zero = engine(), copy = engine(512, "copy");
  const Outcome aligned = run(*zero, "naive"), unaligned = run(*zero, "naive", {{"align", "no"}});
  EXPECT_EQ(unaligned.usage().reused, aligned.usage().reused);
  expect_differ(aligned, unaligned);
  expect_equal(run(*copy, "naive", {{"align", "no"}}), unaligned);
}

INSTANTIATE_TEST_SUITE_P(Backends, Repair, testing::Values("reference", "auto"));

}  // namespace
}  // namespace kvilt

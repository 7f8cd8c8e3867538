// Limit cases with power checks: settings at which a method must equal the dense pass, bit for bit where kernels are
// row-invariant, each with a setting at which it must differ.
#include <gtest/gtest.h>

#include <random>

#include "probe_prompts.h"

namespace kvilt {
namespace {

// head | A | B | C | question, known in the order A B C, asked as C A B.
struct Quilt {
  std::vector<int32_t> head = tokens(9, 1), a = tokens(70, 2), b = tokens(53, 3), c = tokens(64, 4),
                       question = tokens(21, 5);
  std::vector<int32_t> known() const { return join({head, a, b, c}); }
  std::vector<int32_t> asked() const { return join({head, c, a, b, question}); }
};

class Limits : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Engine> engine_with(int chunk = 512, int threads = 2) const {
    return open_for_test({.model = kModel, .backend = GetParam(), .threads = threads, .chunk_tokens = chunk});
  }
  std::unique_ptr<Engine> fp32_engine(const std::string& placement) const {
    EngineOptions options{.model = kModel, .backend = GetParam(), .kv_type = KvType::kF32};
    options.placement = *parse_placement(placement);
    return open_for_test(options);
  }
  const Quilt quilt{};
};

TEST_P(Limits, ChunksAndThreadsDoNotChangeABit) {
  auto whole = engine_with();
  const Outcome reference = ask_with(*whole, quilt.asked(), "full");
  for (const int chunk : {1, 7, 64}) {
    for (const int threads : {1, 3}) {
      auto engine = engine_with(chunk, threads);
      expect_equal(ask_with(*engine, quilt.asked(), "full"), reference);
    }
  }
  auto other = quilt.asked();
  other[3] ^= 1;  // power: one changed token must show
  EXPECT_NE(ask_with(*whole, other, "full").completion.logits.first, reference.completion.logits.first);
}

TEST_P(Limits, BatchedEqualsAlone) {
  auto engine = engine_with(16);
  warm(*engine, quilt.known());
  std::vector<Request> requests;
  for (const char* policy : {"full", "naive", "sparsex", "prefix", "full"}) {
    requests.push_back(request_of(requests.size() == 4 ? tokens(33, 9) : quilt.asked(), policy, 12));
    requests.back().publish = false;
  }
  expect_batched_equals_alone(*engine, requests);
}

TEST_P(Limits, AnExactPrefixHitIsExact) {
  auto engine = engine_with();
  const auto prompt = join({quilt.head, quilt.a, quilt.question});
  const Outcome full = ask_with(*engine, prompt, "full");
  warm(*engine, join({quilt.head, quilt.a, quilt.b}));
  const Outcome hit = ask_with(*engine, prompt, "prefix");
  EXPECT_EQ(hit.usage().prefix, 79);
  EXPECT_EQ(hit.usage().fresh, 21);
  expect_equal(hit, full);
  // A hit of the whole prompt still gives logits: the last position is computed.
  warm(*engine, prompt);
  const Outcome all = ask_with(*engine, prompt, "prefix");
  EXPECT_EQ(all.usage().prefix, 99);
  EXPECT_EQ(all.usage().fresh, 1);
  expect_equal(all, full);
  // A prefix of a prefix, through two requests' segments, in mid-block.
  const Outcome deeper =
      ask_with(*engine, join({quilt.head, quilt.a, {quilt.question.begin(), quilt.question.begin() + 5}, tokens(3, 8)}),
               "prefix");
  EXPECT_EQ(deeper.usage().prefix, 84);
}

TEST_P(Limits, APieceAfterItsOwnPrefixIsAnExactHit) {
  auto engine = engine_with();
  warm(*engine, join({quilt.head, quilt.a}));
  const auto prompt = join({quilt.head, quilt.a, quilt.question});
  const Outcome naive = ask_with(*engine, prompt, "naive");
  EXPECT_EQ(naive.usage().prefix, 79);
  EXPECT_EQ(naive.usage().reused, 0);
  expect_equal(naive, ask_with(*engine, prompt, "full"));
}

TEST_P(Limits, AWholeMarkedPromptHitStaysExact) {
  auto engine = engine_with();
  Request request = request_of(join({quilt.head, quilt.a}), "full", 0);
  request.prompt.marks = {{9, 79}};
  ask_ok(*engine, request);
  request.policy.name = "naive";
  request.sampling.max_tokens = 4;
  const Outcome again = ask_ok(*engine, request);
  EXPECT_EQ(again.usage().prefix, 78);
  EXPECT_EQ(again.usage().reused, 0);  // and not the last token, as a piece of the mark
  expect_equal(again, ask_with(*engine, join({quilt.head, quilt.a}), "full", {}, 4));
}

TEST_P(Limits, NaiveReusesAndDiffers) {
  auto engine = engine_with();
  warm(*engine, quilt.known());
  const Outcome full = ask_with(*engine, quilt.asked(), "full"), naive = ask_with(*engine, quilt.asked(), "naive");
  EXPECT_EQ(full.usage().prefix + full.usage().reused, 0);
  EXPECT_EQ(naive.usage().prefix, 9);
  EXPECT_EQ(naive.usage().reused, 187);
  EXPECT_EQ(naive.usage().fresh, 21);
  EXPECT_EQ(naive.usage().recomputed, 0);
  EXPECT_NE(naive.completion.logits.first, full.completion.logits.first);
  EXPECT_LT(naive.usage().flops, 0.2 * full.usage().flops);
}

TEST_P(Limits, NothingReusedMeansPlainPrefill) {
  auto engine = engine_with();
  const Outcome full = ask_with(*engine, quilt.asked(), "full");
  for (const char* policy : {"prefix", "naive", "sparsex"})
    expect_equal(ask_with(*engine, quilt.asked(), policy), full);
}

TEST_P(Limits, SparseXWithEverythingIsFull) {
  for (const int chunk : {512, 13}) {
    auto engine = engine_with(chunk);
    warm(*engine, quilt.known());
    const Outcome full = ask_with(*engine, quilt.asked(), "full");
    for (const char* phase1 : {"all", "catchup"}) {
      for (const char* l_star : {"0", "3"}) {
        const Outcome all =
            ask_with(*engine, quilt.asked(), "sparsex", {{"k", "1"}, {"phase1", phase1}, {"l_star", l_star}});
        EXPECT_EQ(all.usage().recomputed, all.usage().reused);
        expect_equal(all, full);
        const Outcome few =
            ask_with(*engine, quilt.asked(), "sparsex", {{"k", "0.1"}, {"phase1", phase1}, {"l_star", l_star}});
        EXPECT_LT(few.usage().recomputed, 60);
        EXPECT_GT(few.usage().recomputed, 18);
        EXPECT_NE(few.completion.logits.first, full.completion.logits.first) << "power: a small budget must differ";
      }
    }
    // l* = L: every layer of the phase-1 pass is full, only the rows that leave the last layer are fewer.
    expect_equal(
        ask_with(*engine, quilt.asked(), "sparsex", {{"k", "0"}, {"b", "0"}, {"phase1", "all"}, {"l_star", "6"}}, 1),
        ask_with(*engine, quilt.asked(), "full", {}, 1));
  }
}

TEST_P(Limits, SparseXWithNothingIsNaive) {
  auto engine = engine_with();
  warm(*engine, quilt.known());
  const Outcome naive = ask_with(*engine, quilt.asked(), "naive");
  expect_equal(ask_with(*engine, quilt.asked(), "sparsex", {{"k", "0"}, {"b", "0"}, {"l_star", "0"}}), naive);
  expect_equal(ask_with(*engine, quilt.asked(), "sparsex", {{"k", "0"}, {"b", "0"}, {"l_star", "3"}}), naive);
  EXPECT_NE(ask_with(*engine, quilt.asked(), "sparsex", {{"k", "0"}, {"b", "2"}}).completion.logits.first,
            naive.completion.logits.first);
}

TEST_P(Limits, SelectionSeesTheWholePromptWhateverTheChunk) {
  std::vector<Outcome> outcomes;
  for (const int chunk : {512, 50, 5}) {
    auto engine = engine_with(chunk);
    warm(*engine, quilt.known());
    for (const char* phase1 : {"all", "catchup"}) {
      outcomes.push_back(
          ask_with(*engine, quilt.asked(), "sparsex", {{"k", "0.2"}, {"l_star", "3"}, {"phase1", phase1}}));
    }
  }
  for (size_t i = 2; i < outcomes.size(); ++i) expect_equal(outcomes[i], outcomes[i % 2]);
  EXPECT_NE(outcomes[0].completion.logits.first, outcomes[1].completion.logits.first);
}

// With fp32 keys: a rotated copy of a narrower type is rounded once more (realign_test.cc, kv_types_test.cc).
TEST_P(Limits, CopiedEqualsZeroCopyToRounding) {
  auto zero = fp32_engine("zero-copy"), copy = fp32_engine("copy");
  for (Engine* engine : {zero.get(), copy.get()}) warm(*engine, quilt.known());
  const Outcome full = ask_with(*zero, quilt.asked(), "full");
  for (const char* policy : {"naive", "sparsex"}) {
    const Outcome a = ask_with(*zero, quilt.asked(), policy), b = ask_with(*copy, quilt.asked(), policy);
    EXPECT_EQ(a.usage().reused, b.usage().reused);
    EXPECT_EQ(a.usage().recomputed, b.usage().recomputed);
    EXPECT_LT(max_abs_difference(a.completion.logits.first, b.completion.logits.first), 2e-3);
    EXPECT_EQ(a.ids, b.ids);
    EXPECT_GT(max_abs_difference(a.completion.logits.first, full.completion.logits.first), 1e-2) << "power";
  }
}

TEST_P(Limits, ApproximateKvIsNeverAnExactPrefix) {
  auto engine = engine_with();
  warm(*engine, quilt.known());
  const Outcome full = ask_with(*engine, quilt.asked(), "full");
  // Published by an approximate request: question and answer, computed over placed pieces.
  const Outcome naive = ask_ok(*engine, request_of(quilt.asked(), "naive", 40));
  EXPECT_EQ(naive.usage().reused, 187);
  const Outcome again = ask_with(*engine, quilt.asked(), "prefix");
  EXPECT_EQ(again.usage().prefix, 9);
  expect_equal(again, full);
}

TEST_P(Limits, AnAnswerIsFoundInAnotherPrompt) {
  auto engine = engine_with();
  const Outcome first = ask_ok(*engine, request_of(quilt.asked(), "full", 60));
  ASSERT_EQ(first.ids.size(), 60u);
  const auto quoted = join({tokens(40, 77), first.ids, tokens(10, 78)});
  const Outcome second = ask_with(*engine, quoted, "naive");
  EXPECT_GE(second.usage().reused, 59);  // the last token's own KV was never computed
  // Multi-turn: prompt and answer are one exact chain.
  const auto turn = join({quilt.asked(), {first.ids.begin(), first.ids.end()}, tokens(12, 79)});
  const Outcome next = ask_with(*engine, turn, "prefix");
  EXPECT_EQ(next.usage().prefix, static_cast<int>(quilt.asked().size()) + 59);
  expect_equal(next, ask_with(*engine, turn, "full"));
}

TEST_P(Limits, TenantsSaltsAndNameSpacesNeverMeet) {
  auto engine = engine_with();
  Request mine = request_of(quilt.known(), "full", 0);
  mine.cache_salt = "mine";
  ask_ok(*engine, mine);
  struct Space {
    std::string salt, name_space, tenant;
    bool found;
  };
  for (const auto& [salt, name_space, tenant, found] : std::vector<Space>{{"mine", "", "", true},
                                                                          {"yours", "", "", false},
                                                                          {"", "", "", false},
                                                                          {"mine", "other", "", false},
                                                                          {"mine", "", "other", false},
                                                                          {"", "", "mine", false}}) {
    Request request = request_of(quilt.asked(), "naive");
    request.cache_salt = salt;
    request.namespaces = {name_space};
    request.tenant = tenant;
    request.publish = false;
    const Outcome out = ask_ok(*engine, request);
    EXPECT_EQ(out.usage().reused + out.usage().prefix > 0, found) << salt << "/" << name_space << "/" << tenant;
  }
}

TEST_P(Limits, AnExactPrefixOfAnotherNamespaceIsExact) {
  auto engine = engine_with();
  const auto in = [&](std::vector<std::string> names, const std::vector<int32_t>& prompt, const char* policy) {
    Request request = request_of(prompt, policy, 8);
    request.namespaces = std::move(names);
    return ask_ok(*engine, request);
  };
  const Outcome full = ask_with(*engine_with(), quilt.known(), "full", {}, 8);
  in({"b"}, join({quilt.head, quilt.a, quilt.b}), "full");
  EXPECT_EQ(in({"c"}, quilt.known(), "prefix").usage().prefix, 0) << "power check";
  const Outcome found = in({"a", "b"}, quilt.known(), "prefix");
  EXPECT_EQ(found.usage().prefix, 132);
  expect_equal(found, full);
  const auto next = join({quilt.known(), {found.ids.begin(), found.ids.end()}, quilt.question});
  const Outcome turn = in({"a"}, next, "prefix");
  EXPECT_EQ(turn.usage().prefix, 203) << "what it found, computed and answered are one chain of its namespace";
  expect_equal(turn, ask_with(*engine, next, "full", {}, 8));
  EXPECT_EQ(in({"b"}, next, "prefix").usage().prefix, 132) << "and of no other";
  Request many = request_of(quilt.known(), "full", 1);
  many.namespaces.resize(kMostNamespaces + 1);
  EXPECT_FALSE(engine->submit(many, nullptr).ok());
}

INSTANTIATE_TEST_SUITE_P(Backends, Limits, testing::Values("reference", "auto"));

// ---- Pool, queue, cancelling: what happens when things run out ----

constexpr int64_t kTokenBytes = 2 * 6 * 2 * 32 * 4;  // of probe-1M, fp32

std::unique_ptr<Engine> engine_with(int64_t kv_bytes) {
  EngineOptions options{.model = kModel, .kv_type = KvType::kF32};
  options.kv_bytes = kv_bytes;
  return open_for_test(options);
}

TEST(Pool, OldSegmentsGoFirstAndResultsStay) {
  const Quilt quilt{};
  auto large = engine_with(0), small = engine_with(600 * kTokenBytes);
  for (int round = 0; round < 3; ++round) {
    for (uint32_t seed = 20; seed < 30; ++seed) {
      const auto prompt = join({tokens(200, seed), quilt.question});
      Request request = request_of(prompt, "prefix", 8);
      expect_equal(ask_ok(*small, request), ask_with(*large, prompt, "full", {}, 8));
    }
  }
  EXPECT_GT(small->stats().evicted_segments, 0);
  EXPECT_LE(small->stats().kv_pages_used, small->stats().kv_pages);
}

TEST(Pool, APromptThatCanNeverFitIsRefused) {
  auto small = engine_with(300 * kTokenBytes);
  const auto refused = small->submit(request_of(tokens(400, 1)), std::make_shared<CollectingSink>());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kTooLong);
  EXPECT_NE(refused.error().message.find("--kv-bytes"), std::string::npos);
  ask_ok(*small, request_of(tokens(200, 1)));  // and the engine goes on
}

TEST(Pool, PreemptedRequestsEndWithTheSameText) {
  auto large = engine_with(0), small = engine_with(700 * kTokenBytes);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<Request> requests;
  const auto gate = hold(*small);
  for (uint32_t seed = 40; seed < 44; ++seed) {
    requests.push_back(request_of(tokens(120, seed), "full", 150));
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(small->submit(requests.back(), sinks.back()).ok());
  }
  gate->open();
  for (size_t i = 0; i < sinks.size(); ++i) {
    const Completion done = sinks[i]->wait();
    EXPECT_FALSE(done.error) << done.error->message;
    EXPECT_EQ(sinks[i]->ids, ask_ok(*large, requests[i]).ids) << i;
  }
  EXPECT_GT(small->stats().preemptions, 0u);
}

TEST(Pool, ALoneAnswerThatOutgrowsThePoolIsCutShort) {
  auto small = engine_with(300 * kTokenBytes);
  const Outcome out = ask_ok(*small, request_of(tokens(250, 1), "full", 400));
  EXPECT_FALSE(out.completion.error);
  EXPECT_EQ(out.completion.finish, Finish::kLength);
  EXPECT_GT(out.ids.size(), 10u);
  EXPECT_LT(out.ids.size(), 400u);
  EXPECT_EQ(small->stats().running, 0);
  ask_ok(*small, request_of(tokens(100, 2)));
}

TEST(Queue, FullIsAnErrorAtOnce) {
  auto engine = open_for_test({.model = kModel, .max_sequences = 1, .max_queue = 2});
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  int refused = 0;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    const auto id = engine->submit(request_of(tokens(100, 3), "full", 200), sinks.back());
    if (!id.ok()) {
      EXPECT_EQ(id.error().code, Code::kExhausted);
      sinks.pop_back();
      ++refused;
    }
  }
  EXPECT_EQ(refused, 3);
  for (auto& sink : sinks) EXPECT_FALSE(sink->wait().error);
}

TEST(Queue, SeveralEnterTogetherOrNotAtAll) {
  auto engine = open_for_test({.model = kModel, .max_sequences = 1, .max_queue = 2});
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  const auto submit = [&](int count) {
    std::vector<Submission> several;
    for (int i = 0; i < count; ++i) {
      sinks.push_back(std::make_shared<CollectingSink>());
      several.push_back({request_of(tokens(100, 3), "full", 200), sinks.back()});
    }
    return engine->submit_all(std::move(several));
  };
  EXPECT_EQ(submit(4).error().code, Code::kInvalidArgument) << "there are never places for four";
  sinks.clear();
  const auto two = submit(2);
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(two->size(), 2u);
  const auto first = sinks;
  EXPECT_EQ(submit(2).error().code, Code::kExhausted);
  for (const auto& sink : first) EXPECT_FALSE(sink->wait().error);
  engine->clear_cache();  // behind which the figures are of now
  EXPECT_EQ(engine->stats().requests_ok, 2u) << "nothing of the others was begun";
  sinks.clear();
  ASSERT_TRUE(submit(3).ok()) << "power";
  for (const auto& sink : sinks) EXPECT_FALSE(sink->wait().error);
}

TEST(Cancel, EndsPromptlyAndFreesEverything) {
  auto engine = open_for_test({.model = kModel, .chunk_tokens = 16});
  auto sink = std::make_shared<CollectingSink>();
  const auto id = engine->submit(request_of(tokens(300, 3), "full", 3000), sink);
  ASSERT_TRUE(id.ok());
  sink->wait_for_tokens(3);
  engine->cancel(*id);
  EXPECT_EQ(sink->wait().finish, Finish::kCancelled);
  engine->cancel(*id);  // again: ignored
  engine->clear_cache();
  EXPECT_EQ(engine->stats().running, 0);
  ask_ok(*engine, request_of(tokens(10, 3)));
  engine->clear_cache();
  ask_with(*engine, tokens(10, 4), "full", {}, 1);
  EXPECT_EQ(engine->stats().kv_pages_used, 0);
}

TEST(Seeds, SameSeedSameTextWhateverElseRuns) {
  auto engine = open_for_test({.model = kModel, .chunk_tokens = 32});
  Request request = request_of(tokens(60, 6), "full", 40);
  request.sampling.temperature = 1.2f;
  request.sampling.seed = 99;
  request.publish = false;
  const auto alone = ask_ok(*engine, request).ids;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    Request other = request;
    other.sampling.seed = i == 2 ? 99 : 100 + static_cast<uint64_t>(i);
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine->submit(other, sinks.back()).ok());
  }
  for (auto& sink : sinks) sink->wait();
  EXPECT_EQ(sinks[2]->ids, alone);
  EXPECT_NE(sinks[0]->ids, alone);
}

// Which thread draws for whom changes nothing: texts and log-probabilities of many, alone and together.
TEST(Seeds, SameSeedSameTextWhateverTheThreads) {
  const auto request = [](int i) {
    Request out = request_of(tokens(20 + i, static_cast<uint64_t>(i)), "full", 12);
    out.sampling.temperature = 0.8f + 0.05f * static_cast<float>(i);
    out.sampling.top_p = i % 2 ? 0.9f : 1;
    out.sampling.top_k = i % 3 ? 0 : 25;
    out.sampling.seed = 5;
    out.sampling.logprobs = i % 4 ? -1 : 2;
    out.publish = false;
    return out;
  };
  std::vector<Outcome> alone;
  const auto one = open_for_test({.model = kModel, .threads = 1});
  for (int i = 0; i < 20; ++i) alone.push_back(ask_ok(*one, request(i)));
  EXPECT_NE(alone[0].ids, alone[12].ids) << "power";
  for (const int threads : {2, 5}) {
    const auto engine = open_for_test({.model = kModel, .threads = threads});
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (int i = 0; i < 20; ++i) {
      sinks.push_back(std::make_shared<CollectingSink>());
      ASSERT_TRUE(engine->submit(request(i), sinks.back()).ok());
    }
    for (size_t i = 0; i < sinks.size(); ++i) {
      sinks[i]->wait();
      EXPECT_EQ(sinks[i]->ids, alone[i].ids) << i;
      const size_t expected = i % 4 ? 0 : sinks[i]->ids.size();
      ASSERT_EQ(sinks[i]->logprobs.size(), expected);
      for (size_t n = 0; n < expected; ++n) EXPECT_EQ(sinks[i]->logprobs[n].id, sinks[i]->ids[n]);
    }
  }
}

}  // namespace
}  // namespace kvilt

// Drafts (docs/design/drafts.md) change nothing but speed: tokens, text, log-probabilities and the end of an answer equal
// those of single steps to the bit, whatever is drafted. Given drafts that are right, wrong, or both show that rows are
// accepted and rejected; what the engine finds itself depends on times, so nothing is expected of how much that is.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <utility>

#include "probe_prompts.h"

namespace kvilt {
namespace {

constexpr int kSaid = 40, kDraft = 7;

enum class Guess { kNone, kRight, kWrong, kMixed, kFound };
constexpr Guess kGuesses[] = {Guess::kRight, Guess::kWrong, Guess::kMixed, Guess::kFound};

// `answer`: what single steps say.
Request guessing(Request request, Guess guess, std::vector<int32_t> answer, int vocab = 900) {
  request.draft = guess == Guess::kNone ? 0 : kDraft;
  if (guess == Guess::kNone || guess == Guess::kFound) return request;
  for (size_t i = 0; i < answer.size(); ++i) {
    const bool wrong = guess == Guess::kWrong || (guess == Guess::kMixed && i % 5 == 3);
    if (wrong) answer[i] = (answer[i] + 1) % vocab;
  }
  request.evaluation.drafts = std::move(answer);
  return request;
}

Heard hear_from(Engine& engine, Request request, Guess guess = Guess::kNone, std::vector<int32_t> answer = {}) {
  const auto sink = std::make_shared<CollectingSink>();
  EXPECT_TRUE(engine.submit(guessing(std::move(request), guess, std::move(answer), engine.info().vocab), sink).ok());
  return heard(*sink);
}

// What the guesses must come to, of an answer that is not cut short.
void expect_verified(const Heard& out, Guess guess) {
  const PromptUsage& usage = out.usage();
  EXPECT_LE(usage.accepted, usage.drafted);
  switch (guess) {
    case Guess::kNone:
      EXPECT_EQ(usage.drafted, 0);
      break;
    case Guess::kRight:
      EXPECT_GT(usage.accepted, kSaid / 2);
      EXPECT_EQ(usage.accepted, usage.drafted);
      break;
    case Guess::kWrong:
      EXPECT_GT(usage.drafted, kSaid / 2);
      EXPECT_EQ(usage.accepted, 0);
      break;
    case Guess::kMixed:
      EXPECT_GT(usage.accepted, 0);
      EXPECT_GT(usage.drafted, usage.accepted);
      break;
    case Guess::kFound:
      break;
  }
}

Request drafted_question(std::vector<int32_t> ids, float temperature, uint64_t seed,
                         const std::string& policy = "full") {
  Request request = unpublished(std::move(ids), policy, {}, kSaid);
  request.evaluation.first_logits = false;
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  request.sampling.logprobs = 2;
  return request;
}

// Alone, each kind of guess says what single steps say.
void expect_guesses_change_nothing(Engine& engine, const Request& request) {
  const Heard plain = hear_from(engine, request);
  EXPECT_EQ(plain.usage().drafted, 0);
  for (const Guess guess : kGuesses) {
    SCOPED_TRACE(static_cast<int>(guess));
    const Heard out = hear_from(engine, request, guess, plain.ids);
    expect_same(out, plain);
    if (plain.ids.size() == kSaid) expect_verified(out, guess);
  }
}

class Drafts : public testing::TestWithParam<std::string> {
 protected:
  EngineOptions options() const {
    EngineOptions out;
    out.model = kModel;
    out.backend = GetParam();
    out.draft = 16;
    return out;
  }
  std::unique_ptr<Engine> engine(const std::string& kv_type = "auto", int draft = 16) const {
    EngineOptions all = options();
    all.kv_type = *parse_kv_type(kv_type);
    all.draft = draft;
    return open_for_test(all);
  }
};

TEST_P(Drafts, TheTextIsTheSame) {
  for (const auto& [chunk, kv] : {std::pair(512, "f32"), {5, "f32"}, {512, "bf16"}, {33, "int8"}}) {
    EngineOptions small = options();
    small.kv_type = *parse_kv_type(kv);
    small.chunk_tokens = chunk;
    if (chunk == 5) small.page_slots = 3;
    const auto e = open_for_test(small);
    for (const float temperature : {0.f, 1.f}) {
      for (const uint64_t seed : {1, 2}) {
        SCOPED_TRACE(fmt::format("chunk {} {} temperature {} seed {}", chunk, kv, temperature, seed));
        expect_guesses_change_nothing(*e,
                                      drafted_question(tokens(150, static_cast<uint32_t>(seed)), temperature, seed));
      }
    }
    EXPECT_EQ(e->stats().kv_pages_used, 0) << "nothing was published, and pages of wrong drafts are back";
    EXPECT_GT(e->stats().drafted_tokens, e->stats().accepted_tokens);
    EXPECT_GT(e->stats().accepted_tokens, 0u);
  }
}

TEST_P(Drafts, SeedsMatter) {
  const auto e = engine();
  const Request one = drafted_question(tokens(150, 1), 1, 1), two = drafted_question(tokens(150, 1), 1, 2);
  EXPECT_NE(hear_from(*e, one).ids, hear_from(*e, two).ids) << "power of the tests at temperature 1";
}

TEST_P(Drafts, SamplersFiltersAndPenaltiesSeeTheAcceptedTokensOnly) {
  const auto e = engine();
  Request request = drafted_question(tokens(90, 3), 1.2f, 5);
  request.sampling.repetition_penalty = 1.3f;
  request.sampling.presence_penalty = 0.7f;
  request.sampling.frequency_penalty = 0.4f;
  request.sampling.top_p = 0.9f;
  request.sampling.min_p = 0.01f;
  request.sampling.top_k = 50;
  request.sampling.logit_bias = {{7, 2.f}};
  expect_guesses_change_nothing(*e, request);
  Request free = request;
  free.sampling.repetition_penalty = 1, free.sampling.presence_penalty = 0, free.sampling.frequency_penalty = 0;
  EXPECT_NE(hear_from(*e, free).ids, hear_from(*e, request).ids) << "power";
}

// Together, with prompts that come in the middle of answers, in a pool that holds them and in one that does not.
TEST_P(Drafts, TogetherIsAlone) {
  const auto large = engine();
  for (const bool scarce : {false, true}) {
    EngineOptions small = options();
    if (scarce) small.kv_bytes = 450 * large->info().kv_bytes_per_token;
    small.chunk_tokens = scarce ? 512 : 32;  // few steps for the prompts: many answers at once
    const auto e = open_for_test(small);
    std::vector<Request> requests;
    std::vector<Heard> plain;
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (int i = 0; i < 15; ++i) {
      requests.push_back(drafted_question(tokens(60 + 9 * i, static_cast<uint32_t>(i)), i % 3 == 0 ? 0.f : 1.f,
                                          static_cast<uint64_t>(i), i % 2 == 0 ? "full" : "prefix"));
      requests.back().sampling.max_tokens = 100;
      plain.push_back(hear_from(*large, requests.back()));
    }
    const Guess all[] = {Guess::kRight, Guess::kWrong, Guess::kMixed, Guess::kFound, Guess::kNone};
    const auto gate = hold(*e);
    for (size_t i = 0; i < requests.size(); ++i) {
      sinks.push_back(std::make_shared<CollectingSink>());
      ASSERT_TRUE(e->submit(guessing(requests[i], all[i % 5], plain[i].ids), sinks[i]).ok());
    }
    gate->open();
    for (size_t i = 0; i < sinks.size(); ++i) {
      SCOPED_TRACE(i);
      const Heard out = heard(*sinks[i]);
      expect_same(out, plain[i]);
      if (all[i % 5] == Guess::kNone) {
        EXPECT_EQ(out.usage().drafted, 0);
      }
    }
    const EngineStats stats = e->stats();
    EXPECT_EQ(stats.preemptions > 0, scarce) << "power";
    EXPECT_GT(stats.accepted_tokens, 0u);
    EXPECT_GT(stats.drafted_tokens, stats.accepted_tokens);
    EXPECT_EQ(stats.kv_pages_used, 0);
  }
}

// A stop string that ends inside a run of right drafts: nothing behind it is said, or kept.
TEST_P(Drafts, StopStringsInsideARun) {
  const auto e = engine();
  const Heard whole = hear_from(*e, drafted_question(tokens(80, 4), 1, 9));
  ASSERT_GT(whole.text.size(), 20u);
  int cut = 0;
  for (size_t at = 3; at + 2 < whole.text.size(); at += 5) {
    Request request = drafted_question(tokens(80, 4), 1, 9);
    request.sampling.stop = {whole.text.substr(at, 2), "no such text"};
    const Heard plain = hear_from(*e, request);
    EXPECT_LT(plain.ids.size(), whole.ids.size());
    for (const Guess guess : {Guess::kRight, Guess::kMixed}) {
      const Heard out = hear_from(*e, request, guess, whole.ids);
      expect_same(out, plain);
      EXPECT_EQ(out.completion.finish, Finish::kStop);
      cut += out.usage().drafted > out.usage().accepted + 1 ? 1 : 0;
    }
  }
  EXPECT_GT(cut, 3) << "power: it ended with drafts left";
}

// An end token is never drafted: what may follow it is not computed.
TEST_P(Drafts, StopTokensInsideARun) {
  const auto e = engine();
  const Heard whole = hear_from(*e, drafted_question(tokens(80, 4), 1, 9));
  for (const size_t at : {size_t{3}, size_t{10}, size_t{30}}) {
    Request request = drafted_question(tokens(80, 4), 1, 9);
    request.sampling.stop_ids = {whole.ids[at]};
    const Heard plain = hear_from(*e, request);
    EXPECT_LE(plain.ids.size(), at);
    for (const Guess guess : kGuesses) expect_same(hear_from(*e, request, guess, whole.ids), plain);
  }
}

TEST_P(Drafts, MaxTokensInsideARun) {
  const auto e = engine();
  const Heard whole = hear_from(*e, drafted_question(tokens(80, 4), 0, 9));
  for (int most = 1; most < 20; ++most) {
    Request request = drafted_question(tokens(80, 4), 0, 9);
    request.sampling.max_tokens = most;
    const Heard out = hear_from(*e, request, Guess::kRight, whole.ids);
    EXPECT_EQ(out.ids, (std::vector<int32_t>(whole.ids.begin(), whole.ids.begin() + most)));
    EXPECT_EQ(out.completion.finish, Finish::kLength);
    EXPECT_EQ(out.usage().accepted, out.usage().drafted) << "no row beyond the end";
  }
}

// Each token is a delta of its own, as without drafts.
TEST_P(Drafts, EveryTokenIsADelta) {
  class Deltas : public CollectingSink {
   public:
    void on_tokens(const TokenDelta& delta) override {
      EXPECT_LE(delta.ids.size(), 1u);
      EXPECT_EQ(delta.ids.size(), delta.logprobs.size());
      count += static_cast<int>(delta.ids.size());
      CollectingSink::on_tokens(delta);
    }
    int count = 0;
  };
  const auto e = engine();
  const Request request = drafted_question(tokens(80, 4), 0, 9);
  const auto sink = std::make_shared<Deltas>();
  ASSERT_TRUE(e->submit(guessing(request, Guess::kRight, hear_from(*e, request).ids), sink).ok());
  EXPECT_GT(heard(*sink).usage().accepted, 0);
  EXPECT_EQ(sink->count, kSaid);
}

// What is published of an answer is what single steps publish: the next turn finds as much, and says the same.
TEST_P(Drafts, WhatIsPublishedIsTheSame) {
  for (const Guess guess : kGuesses) {
    SCOPED_TRACE(static_cast<int>(guess));
    const auto with = engine(), without = engine("auto", 0);
    Request first = drafted_question(tokens(120, 6), 1, 3, "prefix");
    first.publish = true;
    const Heard plain = hear_from(*without, first), out = hear_from(*with, first, guess, plain.ids);
    expect_same(out, plain);
    EXPECT_EQ(with->stats().cached_tokens, without->stats().cached_tokens);
    EXPECT_EQ(with->stats().kv_pages_used, without->stats().kv_pages_used);
    Request second = drafted_question(join({first.prompt.ids, out.ids, tokens(30, 8)}), 1, 4, "prefix");
    const Heard next = hear_from(*with, second), expected = hear_from(*without, second);
    expect_same(next, expected);
    EXPECT_EQ(next.usage().prefix, expected.usage().prefix);
    EXPECT_EQ(next.usage().prefix, 120 + kSaid - 1);
  }
}

TEST_P(Drafts, SessionsAreTheSame) {
  const auto e = engine();
  Request request = drafted_question(tokens(100, 6), 1, 3);
  request.export_session = true;
  const Heard plain = hear_from(*e, request);
  for (const Guess guess : kGuesses) {
    const Heard out = hear_from(*e, request, guess, plain.ids);
    EXPECT_EQ(out.completion.session->bytes, plain.completion.session->bytes);
  }
}

// After prefills that reuse pieces, whatever repaired them.
TEST_P(Drafts, GoWithEveryPrefill) {
  const std::vector<int32_t> head = tokens(9, 1), a = tokens(150, 2), b = tokens(153, 3), last = tokens(41, 5);
  for (const std::string kv : {"auto", "int8"}) {
    for (const std::string placement : {"zero-copy", "copy"}) {
      EngineOptions placing = options();
      placing.placement = *parse_placement(placement);
      placing.kv_type = *parse_kv_type(kv);
      const auto e = open_for_test(placing);
      warm(*e, join({head, a, b}));
      for (const std::string policy : {"naive", "mend", "auto", "epic", "sparsex", "prophetkv"}) {
        SCOPED_TRACE(policy + " " + kv + " " + placement);
        const Request request = drafted_question(join({head, b, a, last}), 1, 7, policy);
        EXPECT_GT(hear_from(*e, request).usage().reused, 290);
        expect_guesses_change_nothing(*e, request);
      }
    }
  }
}

// What mend guesses of an answer stood where the answer's rows and its drafts come to stand: their slots went back.
TEST_P(Drafts, GoWithTokensThatAPrefillGuessed) {
  const std::vector<int32_t> head = tokens(9, 1), a = tokens(150, 2), b = tokens(153, 3), last = tokens(41, 5);
  for (const std::string placement : {"zero-copy", "copy"}) {
    EngineOptions placing = options();
    placing.placement = *parse_placement(placement);
    const auto e = open_for_test(placing);
    warm(*e, join({head, a, b}));
    for (const std::string ahead : {"1", "4", "16"}) {
      if (kSanitized && ahead != "4") continue;  // each takes a minute there
      SCOPED_TRACE(placement + " " + ahead);
      Request request = drafted_question(join({head, b, a, last}), 1, 7, "mend");
      const double flops = hear_from(*e, request).usage().flops;
      request.policy.params = {{"ahead", ahead}};
      EXPECT_GT(hear_from(*e, request).usage().flops, flops) << "power: there were such rows";
      expect_guesses_change_nothing(*e, request);
    }
  }
}

// Where rows choose their keys, or heads keep less than all, and where every row is measured, there are no drafts.
TEST_P(Drafts, NotWhereRowsAreNotAlike) {
  const auto e = engine();
  const auto drafted = [&](Request request) {
    return hear_from(*e, std::move(request), Guess::kRight, tokens(kSaid, 1)).usage().drafted;
  };
  const Request plain = drafted_question(tokens(100, 6), 0, 1);
  EXPECT_GT(drafted(plain), 0) << "power";
  for (const std::string decode : {"loopserve", "snapkv", "quest", "h2o"}) {
    Request request = plain;
    request.policy.params = {{"decode", decode}, {"decode_budget", "40"}};
    EXPECT_EQ(drafted(request), 0) << decode;
  }
  Request request = plain;
  request.policy = {"ashape", {{"window", "20"}}};
  EXPECT_GT(drafted(request), 0) << "its prompt's rows see less, the answer's see all";
  request = plain;
  request.evaluation.forced = tokens(kSaid, 2);
  EXPECT_EQ(drafted(request), 0);
  request = plain;
  request.evaluation.all_logits = true;
  EXPECT_EQ(drafted(request), 0);
  request = plain;
  request.evaluation.held_mass = true;
  EXPECT_EQ(drafted(request), 0);
  const auto none = engine("auto", 0);
  EXPECT_EQ(hear_from(*none, plain, Guess::kRight, tokens(kSaid, 1)).usage().drafted, 0) << "the option is the most";
}

TEST_P(Drafts, DraftsFromOutsideAreChecked) {
  const auto e = engine();
  Request request = drafted_question(tokens(100, 6), 0, 1);
  request.evaluation.drafts = {3, 100000};
  EXPECT_FALSE(e->submit(request, std::make_shared<CollectingSink>()).ok());
  EXPECT_FALSE(open_engine({.model = kModel, .draft = kMostDrafted + 1}).ok());
  EXPECT_FALSE(open_engine({.model = kModel, .draft = -1}).ok());
  request.evaluation.drafts = {3, 3};  // the first token comes from the prompt
  request.draft = 1000000;             // no more than the option
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(e->submit(request, sink).ok());
  EXPECT_EQ(heard(*sink).usage().drafted, 1) << "as many as were given";
}

// The same answer in another conversation is found in the cache, by those who share it. Whether a draft pays follows
// from times, so one of many requests has to show it.
TEST_P(Drafts, CachedAnswersAreDrafted) {
  const auto e = engine();
  // So hot that it does not repeat itself.
  Request request = drafted_question(tokens(100, 6), 3, 1, "prefix");
  request.sampling.max_tokens = 100;
  request.publish = true;
  const Heard plain = hear_from(*e, request);
  request.publish = false;
  // The most of a hundred in one of so many requests.
  const auto accepted = [&](const std::string& salt, int times) {
    request.cache_salt = salt;
    int most = 0;
    for (int i = 0; i < times && most < 60; ++i) {
      const Heard out = hear_from(*e, request, Guess::kFound);
      EXPECT_EQ(out.ids, plain.ids);
      most = std::max(most, out.usage().accepted);
    }
    return most;
  };
  EXPECT_GE(accepted("", 200), 60);
  EXPECT_LT(accepted("another", 3), 60) << "power: its own text says less";
}

INSTANTIATE_TEST_SUITE_P(Backends, Drafts, testing::Values("reference", "auto"));

// Every architecture: windows of the model, experts, rotations that change with the length of the text.
TEST(DraftsOfModels, AreTheSameInEveryArchitecture) {
  int models = 0;
  for (const auto& folder : std::filesystem::directory_iterator("tests/data/fixtures")) {
    if (!std::filesystem::exists(folder.path() / "config.json")) continue;
    SCOPED_TRACE(folder.path().string());
    const auto e = open_for_test({.model = folder.path().string(), .draft = 16});
    std::vector<int32_t> prompt = tokens(110, 3);  // phi3-longrope has others from 128 on
    for (int32_t& id : prompt) id %= 250;
    for (const float temperature : {0.f, 1.f}) {
      const Request request = drafted_question(prompt, temperature, 1);
      const Heard plain = hear_from(*e, request);
      for (const Guess guess : kGuesses) {
        const Heard out = hear_from(*e, request, guess, plain.ids);
        expect_same(out, plain);
        if (plain.ids.size() == kSaid) expect_verified(out, guess);
      }
    }
    ++models;
  }
  EXPECT_GT(models, 10);
}

}  // namespace
}  // namespace kvilt

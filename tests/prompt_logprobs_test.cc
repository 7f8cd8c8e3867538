// Log probabilities of a prompt's tokens (Request::prompt_logprobs): those that an answer of the same tokens has, bit for
// bit, whatever the chunks, the neighbours and the cache; and what they cost.
#include <gtest/gtest.h>

#include "forward/sampler.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

Request scoring(std::vector<int32_t> ids, int top = 3, int max_tokens = 0, const std::string& policy = "auto") {
  Request request = request_of(std::move(ids), policy, max_tokens);
  request.prompt_logprobs = top;
  return request;
}

std::shared_ptr<CollectingSink> send(Engine& engine, Request request) {
  auto sink = std::make_shared<CollectingSink>();
  EXPECT_TRUE(engine.submit(std::move(request), sink).ok());
  return sink;
}

Heard score(Engine& engine, Request request) { return heard(*send(engine, std::move(request))); }

class PromptLogprobs : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Engine> engine_of(const std::string& model = kModel, int chunk = 512, int64_t kv_bytes = 0) const {
    return open_for_test(
        {.model = model, .backend = GetParam(), .threads = 2, .kv_bytes = kv_bytes, .chunk_tokens = chunk});
  }
  const std::vector<int32_t> prompt = tokens(100, 1), other = tokens(77, 2);
};

TEST_P(PromptLogprobs, AreThoseOfAnAnswer) {
  for (const char* model : {kModel, "tests/data/fixtures/gemma3", "tests/data/fixtures/qwen3-moe",
                            "tests/data/fixtures/gemma4", "tests/data/fixtures/gpt-oss"}) {
    SCOPED_TRACE(model);
    const auto engine = engine_of(model, 32);
    std::vector<int32_t> text = tokens(40, 3);
    for (int32_t& id : text) id %= engine->info().vocab;
    Request answered = request_of(text, "full", 8);
    answered.sampling.logprobs = 3;
    const Heard answer = score(*engine, answered);
    ASSERT_EQ(answer.logprobs.size(), 8u);
    EXPECT_EQ(answer.prompts, 0) << "it did not ask";
    std::vector<int32_t> whole = text;
    whole.insert(whole.end(), answer.ids.begin(), answer.ids.end());
    const Heard scored = score(*engine, scoring(whole));
    ASSERT_EQ(scored.prompt.size(), whole.size());
    EXPECT_EQ(scored.prompts, 1);
    kvilt::expect_same(std::span(scored.prompt).last(8), answer.logprobs);
    for (const TokenLogprob& token : std::span(scored.prompt).last(8)) EXPECT_EQ(token.rank, 1) << "it is greedy";
    whole[5] = (whole[5] + 1) % engine->info().vocab;
    EXPECT_NE(score(*engine, scoring(whole)).prompt.back().logprob, answer.logprobs.back().logprob) << "power";
  }
}

TEST_P(PromptLogprobs, AreThoseOfTheRowsLogits) {
  const auto engine = engine_of();
  Request request = unpublished(prompt, "full");
  request.evaluation.prompt_logits = static_cast<int>(prompt.size());
  const auto rows = ask_ok(*engine, request).completion.logits.prompt;
  ASSERT_EQ(rows.size(), prompt.size());
  const Heard scored = score(*engine, scoring(prompt, 5));
  for (size_t i = 1; i < prompt.size(); ++i) {
    const TokenLogprob wanted = Sampler::logprob(rows[i - 1], prompt[i], 5);
    kvilt::expect_same({&scored.prompt[i], 1}, {&wanted, 1});
    EXPECT_EQ(scored.prompt[i].top.size(), 5u);
  }
  EXPECT_EQ(scored.prompt[0].id, prompt[0]);
  EXPECT_TRUE(scored.prompt[0].top.empty());
  const TokenLogprob next = Sampler::logprob(rows[50], prompt[50], 5);
  EXPECT_NE(scored.prompt[50].logprob, next.logprob) << "power: another row says something else";
}

TEST_P(PromptLogprobs, ChunksAndNeighboursDoNotChangeABit) {
  const auto engine = engine_of();
  const Heard wanted = score(*engine, scoring(prompt, 3, 6)), beside = score(*engine, scoring(other, 1, 6));
  for (const int chunk : {1, 7, 33, 64}) {
    SCOPED_TRACE(chunk);
    const auto small = engine_of(kModel, chunk);
    const auto a = send(*small, scoring(prompt, 3, 6)), b = send(*small, scoring(other, 1, 6)),
               plain = send(*small, request_of(tokens(50, 9), "full", 20));
    const Heard got = heard(*a);
    kvilt::expect_same(got.prompt, wanted.prompt);
    EXPECT_EQ(got.ids, wanted.ids);
    EXPECT_EQ(got.completion.logits.first, wanted.completion.logits.first);
    kvilt::expect_same(heard(*b).prompt, beside.prompt);
    EXPECT_FALSE(plain->wait().error);
  }
  EXPECT_NE(wanted.prompt[1].logprob, beside.prompt[1].logprob) << "power";
}

// All of the prompt is computed, and said to be; what was computed serves others.
TEST_P(PromptLogprobs, NothingCachedIsUsed) {
  const auto engine = engine_of();
  const Heard cold = score(*engine, scoring(prompt));
  Request plain = request_of(prompt, "prefix", 1);
  EXPECT_EQ(ask_ok(*engine, plain).usage().prefix, static_cast<int>(prompt.size()) - 1) << "it was published";
  const Heard warm = score(*engine, scoring(prompt));
  kvilt::expect_same(warm.prompt, cold.prompt);
  EXPECT_EQ(warm.completion.usage.prefix + warm.completion.usage.reused, 0);
  EXPECT_EQ(warm.completion.usage.fresh, static_cast<int>(prompt.size()));
  EXPECT_EQ(warm.completion.completion_tokens, 0);
  EXPECT_EQ(warm.completion.finish, Finish::kLength);
  // Every row goes through the last layer and the head, and is counted as if its logits had been kept.
  Request rows = unpublished(prompt, "full", {}, 0);
  const double least = ask_ok(*engine, rows).usage().flops;
  rows.evaluation.prompt_logits = static_cast<int>(prompt.size());
  EXPECT_DOUBLE_EQ(warm.completion.usage.flops, ask_ok(*engine, rows).usage().flops);
  EXPECT_GT(warm.completion.usage.flops, least) << "power";
}

// A request that gives its pages back may have told its prompt, or not: it does so once.
TEST_P(PromptLogprobs, APreemptedRequestTellsThemOnce) {
  const auto large = engine_of();
  const auto small = engine_of(kModel, 512, 600 * large->info().kv_bytes_per_token);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 6; ++i) requests.push_back(scoring(tokens(80, 10 + i), 2, 100));
  const auto gate = hold(*small);
  for (const Request& request : requests) sinks.push_back(send(*small, request));
  gate->open();
  for (size_t i = 0; i < sinks.size(); ++i) {
    const Heard got = heard(*sinks[i]), wanted = score(*large, requests[i]);
    EXPECT_EQ(got.prompts, 1);
    kvilt::expect_same(got.prompt, wanted.prompt);
    EXPECT_EQ(got.ids, wanted.ids);
  }
  EXPECT_GT(small->stats().preemptions, 0u) << "power";
}

TEST_P(PromptLogprobs, EdgesAndErrors) {
  const auto engine = engine_of();
  const Heard one = score(*engine, scoring({prompt[0]}, 2, 1));
  ASSERT_EQ(one.prompt.size(), 1u);
  EXPECT_EQ(one.ids.size(), 1u);
  EXPECT_TRUE(score(*engine, scoring(prompt, 0)).prompt[1].top.empty());
  const auto refused = [&](Request request) {
    const auto out = ask(*engine, std::move(request));
    return out.ok() ? std::string() : out.error().message;
  };
  EXPECT_NE(refused(scoring(prompt, -2)).find("prompt_logprobs"), std::string::npos);
  Request both = scoring(prompt);
  both.evaluation.prompt_logits = 3;
  EXPECT_NE(refused(both).find("prompt_logprobs"), std::string::npos);
  Request session = request_of(prompt, "full", 1);
  session.export_session = true;
  const auto exported = ask_ok(*engine, session).completion.session;
  Request later = scoring(join({prompt, other}));
  later.policy = {};
  later.session = exported;
  EXPECT_NE(refused(later).find("prompt_logprobs"), std::string::npos);
  later.prompt_logprobs = -1;
  EXPECT_EQ(refused(later), "") << "power";
}

// Methods that reuse find nothing, so they compute all rows as the full pass does.
TEST_P(PromptLogprobs, OfEveryMethodThatReuses) {
  const auto engine = engine_of();
  const Heard wanted = score(*engine, scoring(prompt, 1, 4, "full"));
  for (const char* policy : {"auto", "prefix", "naive", "sparsex", "mend", "cacheblend", "prophetkv"}) {
    SCOPED_TRACE(policy);
    const Heard got = score(*engine, scoring(prompt, 1, 4, policy));
    kvilt::expect_same(got.prompt, wanted.prompt);
    EXPECT_EQ(got.ids, wanted.ids);
  }
  EXPECT_NE(score(*engine, scoring(other, 1, 4, "full")).prompt[1].logprob, wanted.prompt[1].logprob) << "power";
}

INSTANTIATE_TEST_SUITE_P(Backends, PromptLogprobs, testing::Values("reference", "auto"));

}  // namespace
}  // namespace kvilt

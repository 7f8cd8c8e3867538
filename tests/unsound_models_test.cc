// Models whose weights hold NaN or infinity: a request that meets them fails and says so, leaves nothing in the cache,
// and the next one is answered as by an engine that never saw it.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "engine_harness.h"
#include "model/tiny_gguf_for_test.h"

namespace kvilt {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class UnsoundModel : public testing::Test {
 protected:
  ~UnsoundModel() override { std::filesystem::remove_all(folder_); }

  // values of the named tensor, in place.
  std::unique_ptr<Engine> engine(std::function<void(const std::string& name, std::span<float> values)> change,
                                 uint32_t context = 64) {
    TinyGguf file{.head = true};
    file.keep_key = [](const std::string& key) { return key != "context_length"; };
    file.metadata = [=](GgufBytes& out) { out.u32("llama.context_length", context); };
    file.change = [&](const std::string& name, std::string& bytes) {
      std::vector<float> values(bytes.size() / sizeof(float));
      std::memcpy(values.data(), bytes.data(), bytes.size());
      change(name, values);
      std::memcpy(bytes.data(), values.data(), bytes.size());
    };
    const std::string bytes = file.build();
    std::filesystem::create_directories(folder_);
    const std::string path = folder_ / (std::to_string(++files_) + ".gguf");  // earlier ones may be mapped
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return open_for_test({.model = path, .kv_bytes = int64_t{8} << 20, .min_segment = 8});
  }
  std::unique_ptr<Engine> sound() {
    return engine([](const std::string&, std::span<float>) {});
  }
  // One token's embedding is NaN: prompts without it are sound.
  std::unique_ptr<Engine> with_bad_token(int32_t token, float value = kNan, uint32_t context = 64) {
    return engine(
        [=](const std::string& name, std::span<float> values) {
          const size_t D = TinyGguf().D;
          if (name == "token_embd.weight") values[static_cast<size_t>(token) * D + 3] = value;
        },
        context);
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("kvilt_unsound_" + std::to_string(::getpid()));
  int files_ = 0;
};

std::vector<int32_t> letters(int32_t first, int n) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < n; ++i) ids.push_back(3 + (first + 7 * i) % 20);  // never 25
  return ids;
}

void expect_refused(const Result<Answered>& outcome) {
  ASSERT_TRUE(outcome.ok() == false || outcome->completion.finish == Finish::kError);
  const Error why = outcome.ok() ? *outcome->completion.error : outcome.error();
  EXPECT_EQ(why.code, Code::kInternal);
  EXPECT_NE(why.message.find("logits are not numbers"), std::string::npos) << why.message;
}

constexpr int32_t kBad = 25;

TEST_F(UnsoundModel, TheRequestFailsAndTheNextIsAnsweredAsEver) {
  const auto good = sound();
  for (const float value : {kNan, kInfinity}) {
    const auto bad = with_bad_token(kBad, value);
    const std::vector<int32_t> clean = letters(0, 20);
    const Outcome wanted = ask_ok(*good, request_of(clean, "full", 8));
    for (const char* policy : {"full", "prefix", "naive", "auto", "mend", "sparsex", "cacheblend", "prophetkv", "samkv",
                               "multi-infllm", "agentkvshift", "relaxkv", "crossquery"}) {
      bad->clear_cache();
      ask_ok(*bad, request_of(letters(3, 16), "full", 1));
      const int64_t cached = bad->stats().cached_tokens;
      std::vector<int32_t> ids = letters(3, 15);  // known
      ids.insert(ids.begin(), {4, kBad, 6});
      for (const int32_t id : letters(11, 8)) ids.push_back(id);
      for (const float temperature : {0.0f, 1.0f}) {
        Request request = request_of(ids, policy, 8);
        request.sampling.temperature = temperature;
        request.sampling.top_p = 0.9f;
        request.sampling.logprobs = 3;
        expect_refused(ask(*bad, request));
        request.sampling.max_tokens = 0;
        expect_refused(ask(*bad, request));
      }
      EXPECT_EQ(bad->stats().cached_tokens, cached) << policy << ": nothing of them is kept";
      const Outcome next = ask_ok(*bad, unpublished(clean, policy, {}, 8));
      EXPECT_EQ(next.ids, wanted.ids) << policy;
    }
    EXPECT_EQ(ask_ok(*bad, request_of(clean, "full", 8)).completion.logits.first, wanted.completion.logits.first);
  }
}

// Methods choose by what a question asks, or by what changed. Where that is no number the choice is a bad one, and the
// request fails; it does no harm.
TEST_F(UnsoundModel, AChoiceByWhatIsNoNumberEndsWithItsRequest) {
  const auto good = sound();
  const Params blocks{{"block", "8"}, {"stable_begin", "0"}}, means{{"block", "8"}, {"init", "8"}, {"local", "8"}};
  const auto with = [](Params params, const Params& more) {
    params.insert(more.begin(), more.end());
    return params;
  };
  const std::vector<std::pair<const char*, Params>> settings{
      {"samkv", blocks},
      {"samkv", with(blocks, {{"keep", "0.6"}, {"norm", "range"}, {"blocks", "shared"}, {"fate", "fuse"}})},
      {"samkv", with(blocks, {{"literal", "yes"}, {"recompute", "all"}})},
      {"multi-infllm", with(means, {{"topk", "2"}})},
      {"multi-infllm", with(means, {{"topk", "2"}, {"angle", "single"}})},
      {"agentkvshift", {{"r", "0.3"}}},
      {"relaxkv", {{"r", "0.3"}}},
      {"crossquery", {{"halo", "4"}, {"store", "int8"}}},
      {"mend", {{"r", "0.3"}}}};
  const std::vector<int32_t> document = letters(3, 44);
  const auto prompt = [&](int32_t before, int32_t behind) {
    std::vector<int32_t> ids{4, before, 6};
    ids.insert(ids.end(), document.begin(), document.end());
    ids.insert(ids.end(), {7, behind, 9, 11, 5});
    return ids;
  };
  for (const float value : {kNan, kInfinity}) {
    const auto bad = with_bad_token(kBad, value);
    for (Engine* each : {good.get(), bad.get()}) ask_ok(*each, request_of(document, "full", 1));
    for (const auto& [policy, params] : settings) {
      SCOPED_TRACE(testing::Message() << policy << " " << testing::PrintToString(params));
      const auto ask_for = [&, policy = policy, params = params](Engine& engine, int32_t before, int32_t behind) {
        return ask(engine, unpublished(prompt(before, behind), policy, params, 8));
      };
      expect_refused(ask_for(*bad, 8, kBad));  // the question
      expect_refused(ask_for(*bad, kBad, 8));  // what is before the document, and computed anew
      const Result<Answered> next = ask_for(*bad, 8, 10), wanted = ask_for(*good, 8, 10);
      ASSERT_TRUE(next.ok() && wanted.ok());
      EXPECT_EQ(wanted->usage().reused, 44) << "power";
      EXPECT_EQ(next->completion.logits.first, wanted->completion.logits.first);
    }
  }
}

// Sparse methods choose by scores that are no numbers, of prompts and of answers. Where the last row sees nothing of the
// bad token the request is answered, and its answer's rows choose among its keys; else it fails. Nobody hangs, and the
// next one is answered as ever.
TEST_F(UnsoundModel, SparseMethodsAnswerOrFail) {
  const std::vector<std::pair<const char*, Params>> prefills{
      {"full", {}},
      {"loopserve", {{"alpha", "0.3"}, {"rows", "4"}}},
      {"loopserve", {{"alpha", "0.3"}, {"rule", "printed"}, {"rows", "4"}}},
      {"loopserve", {{"rule", "threshold"}, {"rows", "4"}, {"pooled", "16"}}},
      {"loopserve", {{"rule", "coverage"}, {"alpha", "0.3"}, {"rows", "4"}}},
      {"loopserve", {{"rule", "random"}, {"share", "0.1"}}},
      {"minference", {{"columns", "2"}, {"distances", "20"}, {"rows", "4"}}},
      {"minference", {{"pattern", "blocks"}, {"blocks", "1"}}},
      {"flexprefill", {{"gamma", "0.3"}, {"tau", "0"}}},
      {"flexprefill", {{"gamma", "0.3"}, {"tau", "1"}}},
      {"xattention", {{"threshold", "0.3"}}},
      {"ashape", {{"window", "8"}, {"sink", "0"}}},
      {"ashape", {{"window", "8"}, {"sink", "0"}, {"pooled", "16"}}}};
  const std::vector<Params> decodes{{},
                                    {{"decode", "loopserve"}, {"decode_dense", "2"}},
                                    {{"decode", "snapkv"}},
                                    {{"decode", "snapkv"}, {"decode_evict", "yes"}},
                                    {{"decode", "adakv"}, {"decode_top_p", "0.5"}},
                                    {{"decode", "pyramidkv"}},
                                    {{"decode", "quest"}, {"decode_dense_layers", "0"}},
                                    {{"decode", "quest"}, {"decode_dense_layers", "0"}, {"decode_top_p", "0.5"}},
                                    {{"decode", "tidal"}, {"decode_dense_layers", "0"}, {"decode_select", "0"}},
                                    {{"decode", "h2o"}},
                                    {{"decode", "h2o"}, {"decode_top_p", "0.5"}},
                                    {{"decode", "streamingllm"}},
                                    {{"decode", "random"}}};
  const std::vector<int32_t> clean = letters(0, 20);
  const Outcome wanted = ask_ok(*sound(), request_of(clean, "full", 8));
  std::vector<int32_t> ids = letters(3, 300);
  ids[100] = kBad;
  for (const float value : {kNan, kInfinity}) {
    const auto bad = with_bad_token(kBad, value, 512);
    int answered = 0, failed = 0;
    for (const auto& [policy, prefill] : prefills) {
      for (const Params& decode : decodes) {
        Params params = prefill;
        params.insert(decode.begin(), decode.end());
        if (!decode.empty()) params["decode_budget"] = "40";
        SCOPED_TRACE(testing::Message() << policy << " " << testing::PrintToString(params));
        const Result<Answered> out = ask(*bad, unpublished(ids, policy, params, 8));
        const bool fails = !out.ok() || out->completion.finish == Finish::kError;
        if (fails) expect_refused(out);
        ++(fails ? failed : answered);
      }
    }
    EXPECT_GT(answered, 2) << "power";
    EXPECT_GT(failed, static_cast<int>(decodes.size())) << "power";
    EXPECT_EQ(ask_ok(*bad, unpublished(clean, "full", {}, 8)).ids, wanted.ids);
  }
}

TEST_F(UnsoundModel, OthersInTheSameStepAreNotTouched) {
  const auto bad = with_bad_token(kBad);
  const Outcome alone = ask_ok(*bad, unpublished(letters(0, 20), "full", {}, 8));
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 8; ++i) {
    std::vector<int32_t> ids = letters(0, 20);
    if (i % 2 == 1) ids[4] = kBad;
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(bad->submit(unpublished(ids, "full", {}, 8), sinks.back()).ok());
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    const Completion end = sinks[i]->wait();
    EXPECT_EQ(end.finish == Finish::kError, i % 2 == 1) << i;
    if (i % 2 == 0) {
      EXPECT_EQ(sinks[i]->ids, alone.ids) << i;
    }
  }
}

TEST_F(UnsoundModel, ATokenThatWasJustDrawnMayBeTheBadOne) {
  const std::vector<int32_t> ids = letters(0, 20);
  const Outcome sound_answer = ask_ok(*sound(), request_of(ids, "full", 8));
  const int32_t second = sound_answer.ids[1];
  ASSERT_EQ(std::ranges::count(ids, second), 0) << "the prompt would fail already";
  const auto bad = with_bad_token(second);
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(bad->submit(request_of(ids, "full", 8), sink).ok());
  const Completion end = sink->wait();
  EXPECT_EQ(end.finish, Finish::kError);
  EXPECT_EQ(sink->ids, std::vector<int32_t>(sound_answer.ids.begin(), sound_answer.ids.begin() + 2));
}

TEST_F(UnsoundModel, AModelThatGivesNothingElseFailsEveryRequest) {
  for (const float value : {kNan, kInfinity}) {
    const auto bad = engine([&](const std::string& name, std::span<float> values) {
      if (name == "blk.1.ffn_down.weight") values[7] = value;
    });
    for (int i = 0; i < 5; ++i) expect_refused(ask(*bad, request_of(letters(i, 20), "auto", 8)));
    EXPECT_EQ(bad->stats().cached_tokens, 0);
    EXPECT_EQ(bad->stats().requests_failed, 5u);
  }
}

}  // namespace
}  // namespace kvilt

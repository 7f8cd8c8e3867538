// Fields at values by which clients mean "none", as real ones send them: llama.vim, LangChain, forms of chat programs.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/openai_request.h"

namespace kvilt::server {
namespace {

ApiResult<ChatRequest> chat_of(const std::string& fields) {
  return parse_chat(Json::parse(R"({"messages": [{"role": "user", "content": "x"}], )" + fields + "}"), {});
}

SamplingParams sampled_as(const std::string& fields, const SamplingDefaults& defaults = {}) {
  RequestLimits limits;
  limits.sampling = defaults;
  limits.seed = 5;
  const auto parsed =
      parse_chat(Json::parse(R"({"messages": [{"role": "user", "content": "x"}], )" + fields + "}"), limits);
  EXPECT_TRUE(parsed.ok()) << fields << ": " << (parsed.ok() ? "" : parsed.error().message);
  return parsed.ok() ? parsed.value().generation.sampling : SamplingParams();
}

TEST(ClientFields, NoFunctionsAreNone) {
  for (const char* none : {R"("functions": [])", R"("functions": null)", R"("functions": [], "function_call": "auto")",
                           R"("function_call": "none")", R"("functions": [], "tools": [])"})
    EXPECT_TRUE(chat_of(none).ok()) << none;
  for (const auto& [some, param] : {std::pair{R"("functions": [{"name": "f"}])", "functions"},
                                    {R"("functions": {})", "functions"},
                                    {R"("function_call": {"name": "f"})", "function_call"},
                                    {R"("use_beam_search": "auto")", "use_beam_search"},
                                    {R"("suffix": "none")", "suffix"}}) {
    const auto refused = chat_of(some);
    ASSERT_FALSE(refused.ok()) << some;
    EXPECT_EQ(refused.error().param, param);
    EXPECT_EQ(refused.error().code, "unsupported");
  }
}

TEST(ClientFields, EmptyStopsAreNone) {
  using Stops = std::vector<std::string>;
  for (const char* none :
       {R"("stop": [""])", R"("stop": ["", ""])", R"("stop": "")", R"("stop": [])", R"("stop": null)"})
    EXPECT_EQ(sampled_as(none).stop, Stops()) << none;
  EXPECT_EQ(sampled_as(R"("stop": ["", "a", "", "b"])").stop, Stops({"a", "b"}));
  EXPECT_EQ(sampled_as(R"("stop": [" "])").stop, Stops({" "})) << "a blank is a text";
}

TEST(ClientFields, MinusOneIsNoLimitOfTokens) {
  EXPECT_EQ(sampled_as(R"("max_tokens": -1)").max_tokens, -1);
  EXPECT_EQ(sampled_as(R"("max_completion_tokens": -1)").max_tokens, -1);
  EXPECT_EQ(sampled_as(R"("max_tokens": -1, "min_tokens": 5)").min_tokens, 5);
  EXPECT_EQ(sampled_as(R"("max_tokens": null, "max_completion_tokens": 7)").max_tokens, 7);
  for (const char* wrong : {"max_tokens", "max_completion_tokens"})
    EXPECT_EQ(chat_of("\"" + std::string(wrong) + "\": -2").error().param, wrong);
  const auto text = [](const char* body) {
    return parse_completion(Json::parse(body), {}).value().generation.sampling.max_tokens;
  };
  EXPECT_EQ(text(R"({"prompt": "x", "max_tokens": -1})"), -1);
  EXPECT_EQ(text(R"({"prompt": "x", "max_tokens": null})"), 16) << "power: null is the default";
}

TEST(ClientFields, MinusOneIsNoSeed) {
  EXPECT_EQ(sampled_as(R"("seed": -1)").seed, std::nullopt) << "not the server's either";
  EXPECT_EQ(sampled_as(R"("seed": null)").seed, 5u);
  EXPECT_EQ(sampled_as(R"("seed": -2)").seed, static_cast<uint64_t>(-2));
}

// What llama.vim sends with an instruction, and while it waits for one.
TEST(ClientFields, SamplersThatAreLeftOutAreOff) {
  const SamplingDefaults usual{
      .temperature = 0.6f, .top_p = 0.8f, .min_p = 0.02f, .repetition_penalty = 1.05f, .top_k = 20};
  const SamplingParams two =
      sampled_as(R"("samplers": ["min_p", "temperature"], "min_p": 0.1, "temperature": 0.1)", usual);
  EXPECT_EQ(two.temperature, 0.1f);
  EXPECT_EQ(two.min_p, 0.1f);
  EXPECT_EQ(two.top_k, 0);
  EXPECT_EQ(two.top_p, 1);
  EXPECT_EQ(two.repetition_penalty, 1);
  for (const char* none : {R"("samplers": [], "n_predict": 0)", R"("samplers": "")", R"("samplers": ["dry", "xtc"])"}) {
    const SamplingParams off =
        sampled_as(std::string(none) + R"(, "presence_penalty": 1, "frequency_penalty": 1)", usual);
    EXPECT_EQ(off.temperature, 1) << none;
    EXPECT_EQ(off.min_p, 0) << none;
    EXPECT_EQ(off.presence_penalty, 0) << none;
    EXPECT_EQ(off.frequency_penalty, 0) << none;
  }
  const SamplingParams all = sampled_as(R"("samplers": "edskypmxt")", usual);
  EXPECT_EQ(all.temperature, 0.6f);
  EXPECT_EQ(all.top_k, 20);
  EXPECT_EQ(all.top_p, 0.8f);
  EXPECT_EQ(all.min_p, 0.02f);
  EXPECT_EQ(all.repetition_penalty, 1.05f);
  for (const char* other : {R"("samplers": ["min_p", "top_p"])", R"("samplers": ["top_k", "top_k"])",
                            R"("samplers": ["temperature", "penalties", "top_k", "temperature"])",
                            R"("samplers": ["top_k", "infill"])", R"("samplers": {})"}) {
    const auto refused = chat_of(other);
    ASSERT_FALSE(refused.ok()) << other;
    EXPECT_EQ(refused.error().param, "samplers");
    EXPECT_EQ(refused.error().code, "unsupported");
  }
}

// llama.cpp's clients send these wherever they send a prompt.
TEST(ClientFields, LimitsOfLinesHoldInChatsToo) {
  const SamplingParams both = sampled_as(R"("n_indent": 4, "t_max_predict_ms": 250)");
  EXPECT_EQ(both.min_indent, 4);
  EXPECT_EQ(both.line_seconds, 0.25);
  const SamplingParams none = sampled_as(R"("n_indent": -4, "t_max_predict_ms": 0)");
  EXPECT_EQ(none.min_indent, 0);
  EXPECT_LT(none.line_seconds, 0);
}

}  // namespace
}  // namespace kvilt::server

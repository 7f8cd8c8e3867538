// Who says how tokens are drawn: a request, else the server's flags, else the model, else the route itself. On every
// route, by what reaches the engine; /infill, which the fake one has not, reads them as /completion does.
#include <gtest/gtest.h>

#include <limits>

#include "server/live_server_for_test.h"
#include "server/llama_request.h"

namespace kvilt::server {
namespace {

constexpr SamplingDefaults kAdvised{
    .temperature = 0.7f, .top_p = 0.8f, .min_p = 0.1f, .repetition_penalty = 1.05f, .top_k = 20};
constexpr SamplingDefaults kFlags{
    .temperature = 0.3f, .top_p = 0.5f, .min_p = 0.2f, .repetition_penalty = 1.5f, .top_k = 7};
constexpr SamplingDefaults kOpenAi{.temperature = 1, .top_p = 1, .min_p = 0, .repetition_penalty = 1, .top_k = 0};
constexpr SamplingDefaults kLlama = kLlamaSampling.or_else(kOpenAi);

SamplingDefaults drawn(const SamplingParams& s) {
  return {.temperature = s.temperature,
          .top_p = s.top_p,
          .min_p = s.min_p,
          .repetition_penalty = s.repetition_penalty,
          .top_k = s.top_k};
}

struct Route {
  const char *path, *body;  // without its end
  SamplingDefaults own;
};
constexpr Route kRoutes[] = {
    {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1)", kOpenAi},
    {"/v1/completions", R"({"prompt": "hi", "max_tokens": 1)", kOpenAi},
    {"/v1/messages", R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1)", kOpenAi},
    {"/v1/responses", R"({"input": "hi", "max_output_tokens": 1)", kOpenAi},
    {"/completion", R"({"prompt": "hi", "n_predict": 1)", kLlama}};

FakeOptions advising(const SamplingDefaults& sampling) {
  FakeOptions fake;
  fake.sampling = sampling;
  return fake;
}

ServerOptions flags(const SamplingDefaults& sampling, bool model = true) {
  ServerOptions options;
  options.sampling = sampling;
  options.model_sampling = model;
  return options;
}

SamplingDefaults drawn_by(const LiveServer& running, const Route& route, const std::string& more = "") {
  const auto reply = running.post(route.path, route.body + more + "}");
  EXPECT_EQ(reply->status, 200) << route.path << ": " << reply->body;
  return drawn(running.engine->last_request().sampling);
}

constexpr const char* kRequests = R"(, "temperature": 0.9, "top_p": 0.6, "top_k": 3)";
constexpr SamplingDefaults kRequested{.temperature = 0.9f, .top_p = 0.6f, .top_k = 3};

// Each link is shown by the answer without it, which differs.
TEST(SamplingDefaults, TheRequestThenTheFlagsThenTheModelThenTheRoute) {
  const LiveServer all(advising(kAdvised), flags(kFlags)), model(advising(kAdvised)), neither,
      only_flags({}, flags(kFlags));
  for (const Route& route : kRoutes) {
    EXPECT_EQ(drawn_by(all, route, kRequests), kRequested.or_else(kFlags)) << route.path;
    EXPECT_EQ(drawn_by(all, route), kFlags) << route.path;
    EXPECT_EQ(drawn_by(only_flags, route), kFlags) << route.path;
    EXPECT_EQ(drawn_by(model, route, kRequests), kRequested.or_else(kAdvised)) << route.path;
    EXPECT_EQ(drawn_by(model, route), kAdvised) << route.path;
    EXPECT_EQ(drawn_by(neither, route, kRequests), kRequested.or_else(route.own)) << route.path;
    EXPECT_EQ(drawn_by(neither, route), route.own) << route.path;
  }
}

TEST(SamplingDefaults, AreWonFieldByField) {
  const LiveServer running(advising({.temperature = 0.7f, .top_p = 0.8f}), flags({.temperature = 0.3f, .top_k = -1}));
  for (const Route& route : kRoutes) {
    SamplingDefaults expected = SamplingDefaults{.temperature = 0.3f, .top_p = 0.8f, .top_k = 0}.or_else(route.own);
    EXPECT_EQ(drawn_by(running, route), expected) << route.path;
    expected.temperature = 0;
    EXPECT_EQ(drawn_by(running, route, R"(, "temperature": 0)"), expected) << route.path;
    expected.temperature = 0.3f;
    EXPECT_EQ(drawn_by(running, route, R"(, "temperature": null)"), expected) << route.path << ": null says nothing";
  }
}

TEST(SamplingDefaults, TheModelsAdviceCanBeLeftOut) {
  const LiveServer running(advising(kAdvised), flags({.top_k = 7}, false));
  for (const Route& route : kRoutes)
    EXPECT_EQ(drawn_by(running, route), SamplingDefaults{.top_k = 7}.or_else(route.own)) << route.path;
}

TEST(SamplingDefaults, OnlyTheLikeliestTokenIsAValueTheEngineTakes) {
  const LiveServer running(advising({.top_p = 0}));
  for (const Route& route : kRoutes) EXPECT_GT(drawn_by(running, route).top_p, 0) << route.path;
}

TEST(SamplingDefaults, AreShown) {
  const auto shown = [](const LiveServer& running) {
    auto client = running.client();
    const Json props = Json::parse(client.Get("/props")->body);
    const Json models = Json::parse(client.Get("/v1/models")->body);
    const Json response =
        Json::parse(running.post("/v1/responses", R"({"input": "hi", "max_output_tokens": 1})")->body);
    return std::tuple(props["default_generation_settings"]["params"], models["data"][0]["kvilt"]["default"]["sampling"],
                      response);
  };
  const LiveServer running(advising(kAdvised), flags({.temperature = 0.3f}));
  const auto [params, sampling, response] = shown(running);
  EXPECT_EQ(params["temperature"].get<float>(), 0.3f);
  EXPECT_EQ(params["top_p"].get<float>(), 0.8f);
  EXPECT_EQ(params["top_k"], 20);
  EXPECT_EQ(params["repeat_penalty"].get<float>(), 1.05f);
  EXPECT_EQ(sampling, Json::parse(R"({"temperature": 0.3, "top_p": 0.8, "top_k": 20, "min_p": 0.1,
      "repetition_penalty": 1.05})"));
  EXPECT_EQ(response["temperature"], 0.3);
  EXPECT_EQ(response["top_p"], 0.8);
  const LiveServer plain;
  const auto [llamas, openais, usual] = shown(plain);
  EXPECT_EQ(llamas["temperature"].get<float>(), 0.8f) << "llama.cpp's own";
  EXPECT_EQ(openais["temperature"], 1);
  EXPECT_EQ(openais["top_k"], 0);
  EXPECT_EQ(usual["temperature"], 1.0);
}

TEST(SamplingDefaults, TheServersSeedIsThatOfRequestsThatNameNone) {
  ServerOptions seeded;
  seeded.seed = 42;
  const LiveServer running({}, seeded), plain;
  const auto seed_of = [](const LiveServer& server, const Route& route, const char* more) {
    drawn_by(server, route, more);
    return server.engine->last_request().sampling.seed;
  };
  for (const Route& route : kRoutes) {
    EXPECT_EQ(seed_of(running, route, ""), 42u) << route.path;
    EXPECT_EQ(seed_of(running, route, R"(, "seed": 7)"), 7u) << route.path;
    EXPECT_EQ(seed_of(plain, route, ""), std::nullopt) << route.path << ": power";
  }
  EXPECT_EQ(seed_of(running, kRoutes[4], R"(, "seed": -1)"), std::nullopt) << "llama.cpp's word for any";
  auto client = running.client();
  EXPECT_EQ(Json::parse(client.Get("/props")->body)["default_generation_settings"]["params"]["seed"], 42);
  EXPECT_EQ(Json::parse(client.Get("/v1/models")->body)["data"][0]["kvilt"]["default"]["sampling"]["seed"], 42);
}

TEST(SamplingDefaults, FlagsOutOfRangeAreNamed) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::pair<SamplingDefaults, const char*> cases[] = {{{.temperature = 2.5f}, "--temperature"},
                                                            {{.temperature = -1.f}, "--temperature"},
                                                            {{.temperature = kNan}, "--temperature"},
                                                            {{.top_p = 1.5f}, "--top-p"},
                                                            {{.min_p = -0.5f}, "--min-p"},
                                                            {{.repetition_penalty = 0.f}, "--repetition-penalty"},
                                                            {{.top_k = -2}, "--top-k"}};
  const auto listen = [](const SamplingDefaults& sampling) {
    ServerOptions options = flags(sampling);
    options.port = 0;
    return kvilt::Server::listen(options);
  };
  for (const auto& [sampling, flag] : cases) {
    const auto server = listen(sampling);
    ASSERT_FALSE(server.ok()) << flag;
    EXPECT_EQ(server.error().code, Code::kInvalidArgument);
    EXPECT_NE(server.error().message.find(flag), std::string::npos) << server.error().message;
  }
  EXPECT_TRUE(listen(kFlags).ok()) << "power";
}

}  // namespace
}  // namespace kvilt::server

// POST /v1/embeddings, /v1/rerank and /score over loopback, serving the fake engine; and what their bodies may hold.
#include <gtest/gtest.h>
#include <sodium.h>

#include <cmath>
#include <cstring>
#include <map>

#include "server/embed_request.h"
#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

constexpr const char* kEmbed = "/v1/embeddings";
constexpr const char* kRank = "/v1/rerank";

std::vector<double> values_of(const Json& row) { return row["embedding"].get<std::vector<double>>(); }

double length_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

Json embedded(const LiveServer& running, const std::string& body) {
  const auto reply = running.post(kEmbed, body);
  EXPECT_EQ(reply->status, 200) << reply->body;
  return Json::parse(reply->body);
}

TEST(EmbeddingsRoute, AnswersEachInput) {
  LiveServer running;
  const Json json = embedded(running, R"({"model": "fake", "input": ["one", "two", "one"]})");
  EXPECT_EQ(json["object"], "list");
  ASSERT_EQ(json["data"].size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(json["data"][i]["index"], i);
    EXPECT_EQ(values_of(json["data"][i]).size(), 16u);
    EXPECT_NEAR(length_of(values_of(json["data"][i])), 1, 1e-6);
  }
  EXPECT_EQ(json["data"][0]["embedding"], json["data"][2]["embedding"]);
  EXPECT_NE(json["data"][0]["embedding"], json["data"][1]["embedding"]) << "power";
  EXPECT_EQ(json["usage"]["prompt_tokens"], 12) << "the tokenizer's first token too";
  EXPECT_FALSE(running.engine->last_request().publish);
  EXPECT_EQ(running.engine->last_request().policy.name, "prefix");
  const Json ids = embedded(running, R"({"input": [256, 111, 110, 101]})");
  EXPECT_EQ(ids["data"][0]["embedding"], json["data"][0]["embedding"]) << "ids are taken as they are";
  embedded(running, R"({"input": "x", "kvilt": {"policy": "naive", "publish": true}})");
  EXPECT_TRUE(running.engine->last_request().publish);
  EXPECT_EQ(running.engine->last_request().policy.name, "naive");
}

// LangChain's OpenAIEmbeddings sends chunks of 1,000; OpenAI takes 2,048.
TEST(EmbeddingsRoute, TakesAsManyInputsAsOpenAi) {
  Json body = {{"input", Json::array()}};
  for (int i = 0; i < 2048; ++i) body["input"].push_back("x");
  const auto read = parse_embeddings(body, {});
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value().inputs.size(), 2048u);
  body["input"].push_back("x");
  EXPECT_EQ(parse_embeddings(body, {}).error().param, "input");
  const Json ranked = {{"query", "q"}, {"documents", body["input"]}};
  EXPECT_EQ(parse_rerank(ranked, {}).error().param, "documents") << "power: a ranking has the common limit";
}

TEST(EmbeddingsRoute, DimensionsAndBase64) {
  LiveServer running;
  const std::vector<double> all = values_of(embedded(running, R"({"input": "one"})")["data"][0]);
  std::vector<double> few = values_of(embedded(running, R"({"input": "one", "dimensions": 4})")["data"][0]);
  ASSERT_EQ(few.size(), 4u);
  EXPECT_NEAR(length_of(few), 1, 1e-6);
  for (int i = 1; i < 4; ++i) EXPECT_NEAR(few[i] / few[0], all[i] / all[0], 1e-4);
  const auto text =
      embedded(running, R"({"input": "one", "encoding_format": "base64"})")["data"][0]["embedding"].get<std::string>();
  std::vector<float> floats(16);
  size_t size = 0;
  ASSERT_EQ(sodium_base642bin(reinterpret_cast<unsigned char*>(floats.data()), floats.size() * 4, text.data(),
                              text.size(), nullptr, &size, nullptr, sodium_base64_VARIANT_ORIGINAL),
            0);
  ASSERT_EQ(size, 64u);
  for (int i = 0; i < 16; ++i) EXPECT_FLOAT_EQ(floats[i], static_cast<float>(all[i]));
  EXPECT_EQ(error_of(running.post(kEmbed, R"({"input": "one", "dimensions": 17})"))["param"], "dimensions");
}

TEST(EmbeddingsRoute, TakesTheLastTokensAndLeavesOutSpecialOnes) {
  LiveServer running;
  const auto ids = [&](const std::string& more) {
    const Json json = embedded(running, R"({"input": "abcdef")" + more + "}");
    const std::vector<int32_t> asked = running.engine->last_request().prompt.ids;
    EXPECT_EQ(json["usage"]["prompt_tokens"], asked.size());
    return asked;
  };
  EXPECT_EQ(ids(""), (std::vector<int32_t>{FakeEngine::kBos, 'a', 'b', 'c', 'd', 'e', 'f'}));
  EXPECT_EQ(ids(R"(, "add_special_tokens": false)"), (std::vector<int32_t>{'a', 'b', 'c', 'd', 'e', 'f'}));
  EXPECT_EQ(ids(R"(, "truncate_prompt_tokens": 2)"), (std::vector<int32_t>{'e', 'f'}));
  EXPECT_EQ(ids(R"(, "truncate_prompt_tokens": 20)").size(), 7u);
  EXPECT_EQ(ids(R"(, "truncate_prompt_tokens": -1)").size(), 7u);
  FakeOptions small;
  small.context = 8;
  LiveServer full(small);
  const Json json = embedded(full, R"({"input": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "truncate_prompt_tokens": -1})");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 8) << "what the context holds";
}

// Of a text completion: where max_tokens leaves no room for a prompt, its answer ends with the context.
TEST(TruncatedPrompts, LeaveRoomForAnAnswer) {
  FakeOptions small;
  small.context = 8;
  LiveServer running(small);
  const auto kept = [&](const char* max_tokens) {
    const auto reply = running.post("/v1/completions", std::string(R"({"prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        "truncate_prompt_tokens": -1, "max_tokens": )") + max_tokens +
                                                           "}");
    EXPECT_EQ(reply->status, 200) << reply->body;
    return running.engine->last_request().prompt.ids;
  };
  EXPECT_EQ(kept("3"), (std::vector<int32_t>{6, 7, 8, 9, 10}));
  EXPECT_EQ(kept("7"), std::vector<int32_t>{10});
  for (const char* all : {"8", "9", "100000", "-1"})
    EXPECT_EQ(kept(all), (std::vector<int32_t>{4, 5, 6, 7, 8, 9, 10})) << all;
}

TEST(EmbeddingsRoute, TakesAChat) {
  ServerOptions options;
  options.chat_template_kwargs = R"({"tone": "dry"})";
  LiveServer running({}, options);
  const std::string chat = R"({"messages": [{"role": "user", "content": "hi"}])";
  const auto text = [&](const std::string& more) {
    const Json json = embedded(running, chat + more + "}");
    EXPECT_EQ(json["data"].size(), 1u);
    return running.engine->detokenize(running.engine->last_request().prompt.ids).value();
  };
  EXPECT_EQ(text(""), R"(<s>{"tone":"dry"}<role>hi)") << "no answer is begun";
  EXPECT_EQ(text(R"(, "add_generation_prompt": true)"), R"(<s>{"tone":"dry"}<role>hi<role>)");
  EXPECT_EQ(text(R"(, "chat_template_kwargs": {"tone": 1})"), R"(<s>{"tone":1}<role>hi)");
  EXPECT_EQ(text(R"(, "truncate_prompt_tokens": 2)"), "hi");
  EXPECT_TRUE(running.engine->last_request().prompt.parts.empty()) << "their places are those of the whole prompt";
}

TEST(RerankRoute, OrdersByScore) {
  LiveServer running;
  const auto reply = running.post(kRank, R"({"query": "rivers", "documents": ["Rhine", {"text": "Elbe"}, "cats"],
                                             "return_documents": true})");
  ASSERT_EQ(reply->status, 200) << reply->body;
  const Json json = Json::parse(reply->body);
  ASSERT_EQ(json["results"].size(), 3u);
  double last = 2;
  std::set<int> seen;
  const std::vector<std::string> texts = {"Rhine", "Elbe", "cats"};
  for (const Json& row : json["results"]) {
    const auto score = row["relevance_score"].get<double>();
    EXPECT_GT(score, 0);
    EXPECT_LT(score, 1);
    EXPECT_LE(score, last);
    last = score;
    const int index = row["index"];
    seen.insert(index);
    EXPECT_EQ(row["document"]["text"], texts[index]);
  }
  EXPECT_EQ(seen.size(), 3u);
  const Request asked = running.engine->last_request();
  EXPECT_EQ(asked.policy.name, "prefix");
  EXPECT_TRUE(asked.publish);
  ASSERT_EQ(asked.prompt.marks.size(), 1u);
  const std::string prompt(asked.prompt.ids.begin() + asked.prompt.marks[0].begin,
                           asked.prompt.ids.begin() + asked.prompt.marks[0].end);
  EXPECT_EQ(prompt, "cats") << "the document is a piece of its own";
  const Json one = Json::parse(running
                                   .post(kRank, R"({"query": "rivers", "documents": ["Rhine", "Elbe", "cats"],
                                                       "top_n": 1})")
                                   ->body);
  ASSERT_EQ(one["results"].size(), 1u);
  EXPECT_EQ(one["results"][0]["index"], json["results"][0]["index"]);
  EXPECT_FALSE(one["results"][0].contains("document"));
  const Json other =
      Json::parse(running.post(kRank, R"({"query": "pets", "documents": ["Rhine", "Elbe", "cats"]})")->body);
  EXPECT_NE(other["results"][0]["relevance_score"], json["results"][0]["relevance_score"]) << "power";
  for (const char* path : {"/rerank", "/v2/rerank"})
    EXPECT_EQ(running.post(path, R"({"query": "q", "documents": ["d"]})")->status, 200);
}

TEST(RerankRoute, AnswersInTheWordsThatItIsAskedIn) {
  LiveServer running;
  const Json theirs = Json::parse(running.post(kRank, R"({"query": "q", "documents": ["a", "b"]})")->body)["results"];
  const Json plain = Json::parse(running.post("/rerank", R"({"query": "q", "texts": ["a", "b"]})")->body);
  const Json told =
      Json::parse(running.post("/reranking", R"({"query": "q", "texts": ["a", "b"], "return_text": true})")->body);
  ASSERT_TRUE(plain.is_array() && told.is_array());
  ASSERT_EQ(plain.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(plain[i], (Json{{"index", theirs[i]["index"]}, {"score", theirs[i]["relevance_score"]}}));
    EXPECT_EQ(told[i]["text"], theirs[i]["index"] == 0 ? "a" : "b");
  }
  EXPECT_EQ(error_of(running.post(kRank, R"({"query": "q", "texts": ["a", 5]})"))["param"], "texts[1]");
}

TEST(ScoreRoute, ScoresPairsAsARankingDoes) {
  LiveServer running;
  const auto scores = [&](const std::string& body) {
    const auto reply = running.post("/score", body);
    EXPECT_EQ(reply->status, 200) << reply->body;
    std::vector<double> out;
    const Json json = Json::parse(reply->body);
    for (const Json& row : json["data"]) {
      EXPECT_EQ(row["index"], out.size());
      EXPECT_EQ(row["object"], "score");
      out.push_back(row["score"]);
    }
    return out;
  };
  std::map<int, double> ranked;
  const Json theirs = Json::parse(running.post(kRank, R"({"query": "q", "documents": ["a", "b"]})")->body);
  for (const Json& row : theirs["results"]) ranked[row["index"]] = row["relevance_score"];
  EXPECT_EQ(scores(R"({"text_1": "q", "text_2": ["a", {"text": "b"}]})"), (std::vector{ranked[0], ranked[1]}));
  EXPECT_EQ(scores(R"({"text_1": ["q", "q"], "text_2": ["b", "a"]})"), (std::vector{ranked[1], ranked[0]}));
  EXPECT_EQ(scores(R"({"text_1": ["q"], "text_2": "b"})"), (std::vector{ranked[1]}));
  const std::vector<double> pairs = scores(R"({"text_1": ["q", "p"], "text_2": ["a", "a"]})");
  ASSERT_EQ(pairs.size(), 2u);
  EXPECT_NE(pairs[0], pairs[1]) << "power";
  EXPECT_EQ(running.post("/v1/score", R"({"text_1": "q", "text_2": "a"})")->status, 200);
}

TEST(EmbedRequest, ErrorsNameTheField) {
  LiveServer running;
  const std::pair<const char*, const char*> embeddings[] = {
      {R"({})", "input"},
      {R"({"input": []})", "input"},
      {R"({"input": [""], "encoding_format": "int8"})", "encoding_format"},
      {R"({"input": ["a", 5]})", "input[1]"},
      {R"({"input": [1, "a"]})", "input[1]"},
      {R"({"input": ["a", [1, "b"]]})", "input[1][1]"},
      {R"({"input": "a", "dimensions": 0})", "dimensions"},
      {R"({"input": "a", "kvilt": 5})", "kvilt"},
      {R"({"input": "a", "truncate_prompt_tokens": 4097})", "truncate_prompt_tokens"},
      {R"({"input": "a", "add_special_tokens": 1})", "add_special_tokens"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": [{"role": "user", "content": 5}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": "a"}], "input": "a"})", "input"},
      {R"({"messages": [{"role": "user", "content": "a"}], "add_special_tokens": true})", "add_special_tokens"},
      {R"({"messages": [{"role": "user", "content": "a"}], "dimensions": 17})", "dimensions"}};
  for (const auto& [body, param] : embeddings) EXPECT_EQ(error_of(running.post(kEmbed, body))["param"], param) << body;
  const std::pair<const char*, const char*> ranks[] = {
      {R"({"documents": ["a"]})", "query"},
      {R"({"query": 5, "documents": ["a"]})", "query"},
      {R"({"query": "q"})", "documents"},
      {R"({"query": "q", "documents": []})", "documents"},
      {R"({"query": "q", "documents": ["a", 5]})", "documents[1]"},
      {R"({"query": "q", "documents": [{}]})", "documents[0].text"},
      {R"({"query": "q", "documents": ["a"], "top_n": 0})", "top_n"},
      {R"({"query": "q", "documents": ["a"], "max_tokens_per_doc": 5})", "max_tokens_per_doc"}};
  for (const auto& [body, param] : ranks) EXPECT_EQ(error_of(running.post(kRank, body))["param"], param) << body;
  const std::pair<const char*, const char*> scores[] = {
      {R"([])", nullptr},
      {R"({"text_2": "a"})", "text_1"},
      {R"({"text_1": "a"})", "text_2"},
      {R"({"text_1": 5, "text_2": "a"})", "text_1"},
      {R"({"text_1": "q", "text_2": []})", "text_2"},
      {R"({"text_1": "q", "text_2": ["a", 5]})", "text_2[1]"},
      {R"({"text_1": ["q", "p"], "text_2": ["a", "b", "c"]})", "text_1"},
      {R"({"text_1": "q", "text_2": "a", "truncate_prompt_tokens": 5})", "truncate_prompt_tokens"},
      {R"({"text_1": "q", "text_2": "a", "kvilt": 5})", "kvilt"}};
  for (const auto& [body, param] : scores)
    EXPECT_EQ(error_of(running.post("/score", body))["param"], param ? Json(param) : Json()) << body;
  EXPECT_EQ(running.post(kEmbed, R"({"input": "a", "model": "other"})")->status, 404);
  EXPECT_EQ(running.post("/score", R"({"text_1": "q", "text_2": "a", "model": "other"})")->status, 404);
  const std::string longer(5000, 'a');
  EXPECT_EQ(error_of(running.post(kEmbed, R"({"input": ")" + longer + "\"}"))["code"], "context_length_exceeded");
  EXPECT_EQ(error_of(running.post(kRank, R"({"query": "q", "documents": [")" + longer + "\"]}"))["code"],
            "context_length_exceeded");
  EXPECT_EQ(error_of(running.post(kEmbed, R"({"input": ["a", "FAKE_FAIL_EARLY"]})"))["code"], "overloaded");
}

}  // namespace
}  // namespace kvilt::server

// llama.cpp's routes over loopback, serving the fake engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "server/infill_prompt.h"
#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

// A fake whose vocabulary has tokens to fill in text.
class FimEngine : public FakeEngine {
 public:
  static constexpr int32_t kPre = 300, kSuf = 301, kMid = 302, kRepo = 303, kSep = 304;
  using FakeEngine::FakeEngine;
  Result<std::vector<int32_t>> tokenize(std::string_view text, bool special, bool add_special) const override {
    const std::pair<std::string_view, int32_t> words[] = {{"<|fim_prefix|>", kPre},
                                                          {"<|fim_suffix|>", kSuf},
                                                          {"<|fim_middle|>", kMid},
                                                          {"<|repo_name|>", kRepo},
                                                          {"<|file_sep|>", kSep}};
    for (const auto& [word, id] : words) {
      if (special && text == word) return std::vector<int32_t>{id};
    }
    return FakeEngine::tokenize(text, special, add_special);
  }
};

// A fake whose vocabulary has these words, from kFirst on, in text that is not the client's. spaced: it puts a space
// before each text, as SentencePiece's do.
class WordsEngine : public FakeEngine {
 public:
  static constexpr int32_t kFirst = 300;
  WordsEngine(std::vector<std::string> words, bool spaced) : words_(std::move(words)), spaced_(spaced) {}
  Result<std::vector<int32_t>> tokenize(std::string_view text, bool special, bool add_special) const override {
    const auto word = std::ranges::find(words_, text);
    if (special && word != words_.end())
      return std::vector<int32_t>{kFirst + static_cast<int32_t>(word - words_.begin())};
    return FakeEngine::tokenize((spaced_ ? " " : "") + std::string(text), special, add_special);
  }

 private:
  const std::vector<std::string> words_;
  const bool spaced_;
};

std::vector<int32_t> bytes_of(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST(LlamaRoutes, CompletesText) {
  LiveServer running;
  const auto reply = running.post("/completion", R"({"prompt": "hello", "n_predict": 6, "temperature": 0, "seed": -1,
      "id_slot": -1, "cache_prompt": true, "samplers": ["top_k"], "t_max_predict_ms": 500, "mirostat": 0})");
  ASSERT_EQ(reply->status, 200) << reply->body;
  const Json json = Json::parse(reply->body);
  const Json theirs =
      Json::parse(running.post("/v1/completions", R"({"prompt": "hello", "max_tokens": 6, "temperature": 0})")->body);
  EXPECT_EQ(json["content"], theirs["choices"][0]["text"]);
  EXPECT_EQ(json["stop"], true);
  EXPECT_EQ(json["stop_type"], "limit");
  EXPECT_EQ(json["tokens_predicted"], 6);
  EXPECT_EQ(json["tokens_evaluated"], 6);
  EXPECT_EQ(json["timings"]["prompt_n"], 6);
  EXPECT_EQ(json["timings"]["cache_n"], 0);
  EXPECT_EQ(json["timings"]["predicted_n"], 6);
  EXPECT_EQ(json["generation_settings"]["top_k"], 40);
  const Json end = Json::parse(running.post("/completion", R"({"prompt": [104, "ello"], "temperature": 0})")->body);
  EXPECT_EQ(end["stop_type"], "eos") << "no n_predict: until the end";
  EXPECT_EQ(end["truncated"], false);
  const Json full =
      Json::parse(running.post("/completion", R"({"prompt": "hello", "n_predict": -1, "ignore_eos": true})")->body);
  EXPECT_EQ(full["truncated"], true) << "the context is full";
  EXPECT_EQ(end["tokens_evaluated"], 5) << "ids first: nothing is put before them";
  const auto content = json["content"].get<std::string>(), first = content.substr(0, content.find(' '));
  const Json word = Json::parse(
      running.post("/completion", R"({"prompt": "hello", "temperature": 0, "stop": [")" + first + "\"]}")->body);
  EXPECT_EQ(word["stop_type"], "word");
  EXPECT_EQ(word["stopping_word"], first);
}

// llama.cpp reads OpenAI's name where its own is not there.
TEST(LlamaRoutes, HowLongAnAnswerIsIsSaidInTwoWords) {
  LiveServer running({}, {}, false);
  running.server->attach(std::make_shared<FimEngine>());
  const auto made = [&](const char* path, const std::string& fields) {
    const auto reply = running.post(path, R"({"prompt": "hello", "input_prefix": "a", "input_suffix": "b",
        "ignore_eos": true, )" + fields + "}");
    EXPECT_EQ(reply->status, 200) << reply->body;
    return Json::parse(reply->body)["tokens_predicted"].get<int>();
  };
  for (const char* path : {"/completion", "/completions", "/infill"}) {
    EXPECT_EQ(made(path, R"("max_tokens": 5)"), 5) << path;
    EXPECT_EQ(made(path, R"("n_predict": 6, "max_tokens": 5)"), 6) << path;
    EXPECT_EQ(made(path, R"("n_predict": null, "max_tokens": 5)"), 5) << path;
    EXPECT_GT(made(path, R"("n_predict": -1, "max_tokens": 5)"), 6) << path << ": until the context is full";
  }
  EXPECT_EQ(error_of(running.post("/completion", R"({"prompt": "a", "max_tokens": -5})"))["param"], "max_tokens");
}

// llama.vim sends the indentation of the line before the cursor: where a line has less, the block is over.
TEST(LlamaRoutes, ALineThatIsIndentedLessEndsTheAnswer) {
  LiveServer running({}, {}, false);
  running.server->attach(std::make_shared<FimEngine>());
  const std::string words = R"("FAKE_SAY a\n    b\n  c\nd")";
  const auto asked = [&](const char* path, const std::string& fields) {
    const bool infill = path == std::string("/infill");
    const auto reply =
        running.post(path, std::string("{") + (infill ? R"("input_prefix": "", "input_suffix": "", )" : "") +
                               R"("prompt": )" + words + fields + "}");
    EXPECT_EQ(reply->status, 200) << reply->body;
    return reply->body;
  };
  for (const char* path : {"/infill", "/completion", "/completions"}) {
    const Json cut = Json::parse(asked(path, R"(, "n_indent": 4)"));
    EXPECT_EQ(cut["content"], "a\n    b\n  ") << path;
    EXPECT_EQ(cut["stop_type"], "limit") << path;
    EXPECT_EQ(cut["has_new_line"], true) << path;
    std::string text;
    const auto list = events(asked(path, R"(, "n_indent": 4, "stream": true)"));
    for (const Json& event : list) text += event["content"].get<std::string>();
    EXPECT_EQ(text, cut["content"]) << path;
    EXPECT_EQ(list.back()["stop_type"], "limit") << path;
    EXPECT_EQ(Json::parse(asked(path, R"(, "n_indent": 2)"))["content"], "a\n    b\n  c\n") << path;
    for (const char* none : {"", R"(, "n_indent": 0)", R"(, "n_indent": -1)", R"(, "n_indent": null)"})
      EXPECT_EQ(Json::parse(asked(path, none))["content"], "a\n    b\n  c\nd") << path << none;
    const Json word = Json::parse(asked(path, R"(, "n_indent": 4, "stop": ["  b"])"));
    EXPECT_EQ(word["stop_type"], "word") << "it comes first";
  }
}

// Each token takes two of the milliseconds at least.
TEST(LlamaRoutes, TheFirstLineThatIsWholeAfterTheTimeEndsTheAnswer) {
  LiveServer running({.seconds_per_token = 0.002});
  const auto asked = [&](const char* field) {
    return Json::parse(
        running.post("/completion", R"({"prompt": "FAKE_SAY one\ntwo\nthree")" + std::string(field) + "}")->body);
  };
  const Json late = asked(R"(, "t_max_predict_ms": 1)");
  EXPECT_EQ(late["content"], "one\n");
  EXPECT_EQ(late["stop_type"], "limit");
  for (const char* none :
       {"", R"(, "t_max_predict_ms": 0)", R"(, "t_max_predict_ms": -1)", R"(, "t_max_predict_ms": 1000000000)"}) {
    EXPECT_EQ(asked(none)["content"], "one\ntwo\nthree") << none;
    EXPECT_EQ(asked(none)["stop_type"], "eos") << none;
  }
}

TEST(LlamaRoutes, SeveralPromptsAndChosenFields) {
  LiveServer running;
  const Json list = Json::parse(running
                                    .post("/completion", R"({"prompt": ["a", "b"], "n_predict": 3, "response_fields":
                                      ["content", "timings/prompt_n", "nothing/here", "index/x"]})")
                                    ->body);
  ASSERT_TRUE(list.is_array());
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[1].size(), 2u);
  EXPECT_TRUE(list[1].contains("content"));
  EXPECT_TRUE(list[1]["timings/prompt_n"].is_number());
}

TEST(LlamaRoutes, Streams) {
  LiveServer running;
  const std::string body = R"({"prompt": "hello", "n_predict": 12, "temperature": 0)";
  const Json whole = Json::parse(running.post("/completion", body + "}")->body);
  const auto reply = running.post("/completion", body + R"(, "stream": true})");
  std::string text;
  const std::vector<Json> list = events(reply->body);
  for (const Json& event : list) text += event["content"].get<std::string>();
  EXPECT_EQ(text, whole["content"]);
  EXPECT_GT(list.size(), 3u);
  for (size_t i = 0; i < list.size(); ++i) EXPECT_EQ(list[i]["stop"], i + 1 == list.size());
  EXPECT_EQ(list.back()["tokens_predicted"], 12);
  const auto said = events(running.post("/completion", body + R"(, "stream": true, "return_progress": true})")->body);
  EXPECT_TRUE(said.at(0)["prompt_progress"]["total"].is_number());
  EXPECT_FALSE(list.at(0).contains("prompt_progress")) << "power";
}

TEST(LlamaRoutes, TokensAndTheirProbabilities) {
  LiveServer running;
  const std::string body = R"({"prompt": {"prompt_string": "hello"}, "n_predict": 3, "temperature": 0)";
  const Json plain = Json::parse(running.post("/completions", body + "}")->body);
  EXPECT_EQ(plain["tokens"], Json::array());
  EXPECT_FALSE(plain.contains("completion_probabilities"));
  const Json told = Json::parse(running.post("/completion", body + R"(, "n_probs": 2, "return_tokens": true})")->body);
  EXPECT_EQ(told["content"], plain["content"]);
  ASSERT_EQ(told["tokens"].size(), 3u);
  ASSERT_EQ(told["completion_probabilities"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const Json& one = told["completion_probabilities"][i];
    EXPECT_EQ(one["id"], told["tokens"][i]);
    EXPECT_EQ(one["bytes"], Json::array({one["id"]})) << "the fake's tokens are bytes";
    EXPECT_EQ(one["top_logprobs"].size(), 2u);
    EXPECT_LE(one["logprob"].get<double>(), 0);
  }
  Json tokens = Json::array(), probabilities = Json::array();
  for (const Json& event : events(running.post("/completion", body + R"(, "n_probs": 2, "stream": true})")->body)) {
    for (const Json& id : event["tokens"]) tokens.push_back(id);
    for (const Json& one : event.value("completion_probabilities", Json::array())) probabilities.push_back(one);
  }
  EXPECT_EQ(tokens, told["tokens"]);
  EXPECT_EQ(probabilities, told["completion_probabilities"]);
}

TEST(LlamaRoutes, ProbabilitiesAreWhatTokensAreDrawnFromWhereAsked) {
  LiveServer running;
  const std::string body = R"({"prompt": "a", "n_predict": 2, "n_probs": 2, "post_sampling_probs": )";
  const Json drawn = Json::parse(running.post("/completion", body + "true}")->body)["completion_probabilities"];
  EXPECT_TRUE(running.engine->last_request().sampling.drawn_logprobs);
  const Json models = Json::parse(running.post("/completion", body + "false}")->body)["completion_probabilities"];
  EXPECT_FALSE(running.engine->last_request().sampling.drawn_logprobs);
  ASSERT_EQ(drawn.size(), 2u);
  for (size_t i = 0; i < drawn.size(); ++i) {
    EXPECT_NEAR(drawn[i]["prob"], std::exp(models[i]["logprob"].get<double>()), 1e-6) << "the fake one has one kind";
    EXPECT_EQ(drawn[i]["top_probs"].size(), models[i]["top_logprobs"].size());
    EXPECT_FALSE(drawn[i].contains("logprob") || models[i].contains("prob"));
  }
}

// Tokens without a text of their own come too: an end token, and what was held back of a stop string.
TEST(LlamaRoutes, AStreamHasAllThatTheWholeAnswerHas) {
  LiveServer running;
  for (const char* prompt : {"FAKE_SAY one\\ntwo", "FAKE_SAY one two"}) {
    for (const char* stop : {"", R"(, "stop": ["two"])"}) {
      const std::string body =
          R"({"n_probs": 1, "return_tokens": true, "prompt": ")" + std::string(prompt) + "\"" + stop;
      const Json whole = Json::parse(running.post("/completion", body + "}")->body);
      Json tokens = Json::array(), probabilities = Json::array();
      std::string text;
      const auto list = events(running.post("/completion", body + R"(, "stream": true})")->body);
      for (const Json& event : list) {
        text += event["content"].get<std::string>();
        for (const Json& id : event["tokens"]) tokens.push_back(id);
        for (const Json& one : event.value("completion_probabilities", Json::array())) probabilities.push_back(one);
      }
      EXPECT_EQ(text, whole["content"]);
      EXPECT_EQ(tokens, whole["tokens"]);
      EXPECT_EQ(probabilities, whole["completion_probabilities"]);
      EXPECT_EQ(list.back()["has_new_line"], whole["has_new_line"]);
      EXPECT_EQ(whole["has_new_line"], std::string(prompt).find('\\') != std::string::npos) << "power";
    }
  }
}

TEST(LlamaRoutes, BiasesAndConstraintsReachTheEngine) {
  LiveServer running;
  EXPECT_EQ(running
                .post("/completion", R"({"prompt": "a", "n_predict": 1, "logit_bias": [["bc", -5], [7, false]],
      "json_schema": {"type": "object"}})")
                ->status,
            200);
  const Request asked = running.engine->last_request();
  EXPECT_EQ(asked.sampling.logit_bias, (std::map<int32_t, float>{{'b', -5}, {'c', -5}, {7, -100}}));
  EXPECT_EQ(asked.constraint.form, Constraint::Form::kSchema);
  EXPECT_EQ(running.post("/completion", R"({"prompt": "a", "n_predict": 1, "logit_bias": {"9": 2, "d": 1}})")->status,
            200);
  EXPECT_EQ(running.engine->last_request().sampling.logit_bias, (std::map<int32_t, float>{{9, 2}, {'d', 1}}));
  EXPECT_FALSE(running.engine->last_request().constraint) << "power";
}

TEST(LlamaRoutes, FillsIn) {
  LiveServer running({}, {}, false);
  const auto engine = std::make_shared<FimEngine>();
  running.server->attach(engine);
  const std::string body = R"({"input_prefix": "int a = ", "input_suffix": ";\n", "prompt": "1 + ", "n_predict": 4,
      "input_extra": [{"filename": "a.h", "text": "int one;\n"}, {"text": "<|fim_middle|> two\n"}])";
  const auto reply = running.post("/infill", body + "}");
  ASSERT_EQ(reply->status, 200) << reply->body;
  EXPECT_EQ(Json::parse(reply->body)["truncated"], false);
  const Request asked = engine->last_request();
  std::vector<int32_t> expected = {FakeEngine::kBos, FimEngine::kRepo};
  const auto add = [&](std::string_view text) { std::ranges::copy(bytes_of(text), std::back_inserter(expected)); };
  add("project\n");
  std::vector<TokenMark> marks;
  for (const char* file : {"a.h\nint one;\n", "tmp\n<|fim_middle|> two\n"}) {
    marks.push_back({static_cast<int32_t>(expected.size()), 0});
    expected.push_back(FimEngine::kSep);
    add(file);
    marks.back().end = static_cast<int32_t>(expected.size());
  }
  expected.push_back(FimEngine::kSep);
  add("filename\n");
  expected.push_back(FimEngine::kPre);
  add("int a = 1 + ");
  expected.push_back(FimEngine::kSuf);
  add(";\n");
  expected.push_back(FimEngine::kMid);
  EXPECT_EQ(asked.prompt.ids, expected) << "the client's own words are no control tokens";
  ASSERT_EQ(asked.prompt.marks.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(asked.prompt.marks[i].begin, marks[i].begin);
    EXPECT_EQ(asked.prompt.marks[i].end, marks[i].end);
  }
  for (const int32_t id : {FimEngine::kSep, FimEngine::kMid, FimEngine::kRepo})
    EXPECT_NE(std::ranges::find(asked.sampling.stop_ids, id), asked.sampling.stop_ids.end());
  EXPECT_EQ(
      running.post("/infill", R"({"input_prefix": "a", "input_suffix": "b", "n_predict": 0, "stream": true})")->status,
      200);
}

// OpenAI's word for the same.
TEST(LlamaRoutes, ASuffixOfATextCompletionIsFilledIn) {
  LiveServer running({}, {}, false);
  const auto engine = std::make_shared<FimEngine>();
  running.server->attach(engine);
  const auto ask = [&](const std::string& rest) {
    return running.post("/v1/completions", R"({"max_tokens": 4, )" + rest + "}");
  };
  const auto expected = [](std::string_view prefix, std::string_view suffix) {
    std::vector<int32_t> out{FakeEngine::kBos, FimEngine::kPre};
    std::ranges::copy(bytes_of(prefix), std::back_inserter(out));
    out.push_back(FimEngine::kSuf);
    std::ranges::copy(bytes_of(suffix), std::back_inserter(out));
    out.push_back(FimEngine::kMid);
    return out;
  };
  ASSERT_EQ(ask(R"("prompt": "int a = ", "suffix": ";\n")")->status, 200);
  const Request asked = engine->last_request();
  EXPECT_EQ(asked.prompt.ids, expected("int a = ", ";\n"));
  EXPECT_NE(std::ranges::find(asked.sampling.stop_ids, FimEngine::kMid), asked.sampling.stop_ids.end());
  ASSERT_EQ(ask(R"("prompt": ["", "b"], "suffix": "c", "stream": true)")->status, 200);
  EXPECT_EQ(engine->last_request().prompt.ids, expected("b", "c"));
  ASSERT_EQ(ask(R"("prompt": "a", "suffix": "")")->status, 200);
  EXPECT_EQ(engine->last_request().prompt.ids, (std::vector<int32_t>{FakeEngine::kBos, 'a'})) << "power: none";
  for (const char* beside :
       {R"("prompt": [5, 6])", R"("prompt": "a", "echo": true)", R"("prompt": "a", "truncate_prompt_tokens": 3)",
        R"("prompt": "a", "add_special_tokens": false)"}) {
    const Json error = error_of(ask(std::string(beside) + R"(, "suffix": "b")"));
    EXPECT_EQ(error["param"], "suffix") << beside;
    EXPECT_EQ(error["code"], "unsupported") << beside;
  }
  EXPECT_EQ(error_of(ask(R"("prompt": "a", "suffix": 5)"))["param"], "suffix");
}

TEST(LlamaRoutes, FurtherFilesThatDoNotFitAreLeftOut) {
  const FimEngine engine;
  const auto tokens = InfillTokens::find(engine);
  ASSERT_TRUE(tokens.ok());
  InfillText text{"p", "s", "", {}};
  for (int i = 0; i < 4; ++i) text.extra.push_back({std::to_string(i), std::string(100, 'x')});
  const auto all = infill_prompt(engine, tokens.value(), text, 1000);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all.value().left_out, 0);
  EXPECT_EQ(all.value().prompt.marks.size(), 4u);
  const auto some = infill_prompt(engine, tokens.value(), text, 250);
  EXPECT_EQ(some.value().left_out, 2);
  EXPECT_LE(some.value().prompt.ids.size(), 250u);
  EXPECT_EQ(some.value().prompt.ids.back(), FimEngine::kMid);
  const auto none = infill_prompt(engine, tokens.value(), text, 1);
  EXPECT_EQ(none.value().left_out, 4);
}

// What cannot fit is left out, or refused, before it is tokenised.
TEST(LlamaRoutes, InfillTokenisesNoTextThatCannotFit) {
  class Counting : public FimEngine {
   public:
    Result<std::vector<int32_t>> tokenize(std::string_view text, bool special, bool add_special) const override {
      bytes += text.size();
      return FimEngine::tokenize(text, special, add_special);
    }
    mutable std::atomic<size_t> bytes{0};
  };
  LiveServer running({}, {}, false);
  const auto engine = std::make_shared<Counting>();
  running.server->attach(engine);
  const std::string large(1 << 20, 'a');
  for (const char* name : {"input_prefix", "input_suffix", "prompt"}) {
    Json body{{"input_prefix", "a"}, {"input_suffix", "b"}, {"n_predict", 1}};
    body[name] = large;
    const Json error = error_of(running.post("/infill", body.dump()));
    EXPECT_EQ(error["param"], name);
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_NE(error["message"].get<std::string>().find("has 1048576 bytes"), std::string::npos) << error;
  }
  const Json suffix{{"prompt", "a"}, {"suffix", large}};
  EXPECT_EQ(error_of(running.post("/v1/completions", suffix.dump()))["param"], "suffix");
  Json body{{"input_prefix", "a"}, {"input_suffix", "b"}, {"n_predict", 1}, {"input_extra", Json::array()}};
  for (const std::string& text : {std::string("first"), large, std::string("last")})
    body["input_extra"].push_back({{"filename", "f"}, {"text", text}});
  const auto reply = running.post("/infill", body.dump());
  ASSERT_EQ(reply->status, 200) << reply->body;
  EXPECT_EQ(Json::parse(reply->body)["truncated"], true);
  EXPECT_EQ(engine->last_request().prompt.marks.size(), 1u) << "the one that fits";
  EXPECT_LT(engine->bytes, size_t{10000});
}

// Each family's words for prefix, suffix and middle, and in what order its models know them.
TEST(LlamaRoutes, FillsInWithTheWordsOfItsFamily) {
  struct Case {
    std::vector<std::string> words;
    bool suffix_first, spaced;
  };
  const Case cases[] = {
      {{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}, false, false},
      {{"<fim_prefix>", "<fim_suffix>", "<fim_middle>"}, false, false},
      {{"<fim-prefix>", "<fim-suffix>", "<fim-middle>"}, false, false},
      {{"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"}, false, true},
      {{"<PRE>", "<SUF>", "<MID>"}, false, false},
      {{"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"}, false, false},
      {{"<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"}, false, false},
      {{"<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"}, true, false},
      {{"[PREFIX]", "[SUFFIX]"}, true, true}};
  for (const Case& one : cases) {
    const std::string& name = one.words[0];
    const WordsEngine engine(one.words, one.spaced);
    const auto tokens = InfillTokens::find(engine);
    ASSERT_TRUE(tokens.ok()) << name;
    const auto made = infill_prompt(engine, tokens.value(), {"pre", "\nsuf", "fix", {}}, 1000);
    ASSERT_TRUE(made.ok()) << name;
    std::vector<int32_t> prefix = {WordsEngine::kFirst}, suffix = {WordsEngine::kFirst + 1};
    std::ranges::copy(bytes_of(one.spaced ? " prefix" : "prefix"), std::back_inserter(prefix));
    std::ranges::copy(bytes_of("\nsuf"), std::back_inserter(suffix));
    if (one.suffix_first) prefix.swap(suffix);
    std::vector<int32_t> expected = {FakeEngine::kBos};
    for (const auto& half : {prefix, suffix}) expected.insert(expected.end(), half.begin(), half.end());
    if (one.words.size() > 2) expected.push_back(WordsEngine::kFirst + 2);
    EXPECT_EQ(made.value().prompt.ids, expected) << name;
    for (size_t i = 0; i < one.words.size(); ++i)
      EXPECT_EQ(tokens.value().ends[i], WordsEngine::kFirst + static_cast<int32_t>(i)) << name;
  }
  const WordsEngine code_llama({"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", "\u2581<EOT>"}, true);
  EXPECT_EQ(InfillTokens::find(code_llama).value().ends.back(), WordsEngine::kFirst + 3) << "which is not its EOS";
  for (const std::vector<std::string>& half : {std::vector<std::string>{"<fim_prefix>", "<fim_suffix>"},
                                               {"<|fim_prefix|>", "<fim_suffix>", "<fim_middle>"},
                                               {"[PREFIX]", "[MIDDLE]"}})
    EXPECT_FALSE(InfillTokens::find(WordsEngine(half, false)).ok()) << half[0];
}

TEST(LlamaRoutes, AModelThatCannotFillInSaysSo) {
  LiveServer running;
  const Json error = error_of(running.post("/infill", R"({"input_prefix": "a", "input_suffix": "b"})"));
  EXPECT_EQ(error["code"], "unsupported");
  const Json of_suffix = error_of(running.post("/v1/completions", R"({"prompt": "a", "suffix": "b"})"));
  EXPECT_EQ(of_suffix["code"], "unsupported");
  EXPECT_EQ(of_suffix["param"], "suffix");
}

TEST(LlamaRoutes, TokenizesContent) {
  LiveServer running;
  EXPECT_EQ(Json::parse(running.post("/tokenize", R"({"content": "ab"})")->body),
            Json::parse(R"({"tokens": [97, 98]})"));
  EXPECT_EQ(
      Json::parse(running.post("/tokenize", R"({"content": "a", "add_special": true, "with_pieces": true})")->body),
      Json::parse(R"({"tokens": [{"id": 256, "piece": "<s>"}, {"id": 97, "piece": "a"}]})"));
  EXPECT_EQ(Json::parse(running.post("/detokenize", R"({"tokens": [97, 98]})")->body)["content"], "ab");
  EXPECT_EQ(error_of(running.post("/tokenize", R"({"content": 5})"))["param"], "content");
  EXPECT_TRUE(Json::parse(running.post("/tokenize", R"({"prompt": "a"})")->body).contains("count")) << "vLLM's form";
}

// A long answer goes out in pieces: it is never in memory as a whole. To its client it is the same JSON.
TEST(LlamaRoutes, LongListsOfTokensAreSentInPieces) {
  LiveServer running;
  const auto asked = [&](const char* path, const Json& body, bool pieces) {
    const auto reply = running.post(path, body.dump());
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(reply->get_header_value("Content-Type"), "application/json");
    EXPECT_EQ(reply->has_header("Content-Length"), !pieces) << path;
    return Json::parse(reply->body);
  };
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "a\"\xc3\xa9\n";
  const Json content = asked("/tokenize", {{"content", text}, {"with_pieces", true}}, true)["tokens"];
  ASSERT_EQ(content.size(), text.size());
  EXPECT_EQ(content[1], (Json{{"id", '"'}, {"piece", "\""}}));
  EXPECT_EQ(content[2], (Json{{"id", 0xc3}, {"piece", "\xef\xbf\xbd"}})) << "half a character";
  EXPECT_EQ(content.back(), (Json{{"id", '\n'}, {"piece", "\n"}}));
  const Json prompt = asked("/tokenize", {{"prompt", text}, {"return_token_strs", true}}, true);
  EXPECT_EQ(prompt["count"], text.size() + 1);
  EXPECT_EQ(prompt["tokens"].size(), text.size() + 1);
  EXPECT_EQ(prompt["token_strs"][2], "\"");
  std::string more = "b";
  for (int i = 0; i < 150000; ++i) more += "\xf0\x9f\x99\x82";  // no piece ends in the middle of one
  std::vector<int> ids;
  for (const char byte : more) ids.push_back(static_cast<unsigned char>(byte));
  const Json both = asked("/detokenize", {{"tokens", ids}}, true);
  EXPECT_EQ(both["prompt"], more);
  EXPECT_EQ(both["content"], more);
  const std::string no_text(600000, '\x80');
  const Json none = asked("/detokenize", {{"tokens", std::vector<int>(no_text.size(), 0x80)}}, true);
  EXPECT_EQ(none["prompt"], Json::parse(Json(no_text).dump(-1, ' ', false, Json::error_handler_t::replace)));
  EXPECT_EQ(asked("/tokenize", {{"prompt", "a"}}, false),
            Json::parse(R"({"count": 2, "max_model_len": 4096, "tokens": [256, 97], "token_strs": null})"));
  EXPECT_EQ(asked("/tokenize", {{"content", ""}}, false), Json::parse(R"({"tokens": []})"));
}

TEST(LlamaRoutes, AnotherModelsTemplateIsNotApplied) {
  LiveServer running;
  const std::string body = R"({"messages": [{"role": "user", "content": "hi"}])";
  const auto other = running.post("/apply-template", body + R"(, "model": "another"})");
  EXPECT_EQ(other->status, 404);
  EXPECT_EQ(error_of(other)["code"], "model_not_found");
  const std::string own = Json::parse(running.client().Get("/props")->body)["model_alias"].get<std::string>();
  EXPECT_EQ(running.post("/apply-template", body + R"(, "model": ")" + own + "\"}")->status, 200);
}

TEST(LlamaRoutes, TellsAboutItself) {
  LiveServer running;
  const Json prompt =
      Json::parse(running.post("/apply-template", R"({"messages": [{"role": "user", "content": "hi"}]})")->body);
  EXPECT_EQ(prompt, (Json{{"prompt", "<s><role>hi<role>"}}));
  const Json props = Json::parse(running.client().Get("/props")->body);
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 4096);
  EXPECT_EQ(props["total_slots"], 1);
  EXPECT_EQ(props["chat_template"], "{{ messages }}");
  EXPECT_EQ(props["bos_token"], "<s>");
  EXPECT_EQ(props["eos_token"], "</s>");
  running.engine->hold(true);
  std::thread waiting([&] { running.post("/completion", R"({"prompt": "a", "n_predict": 1})"); });
  EXPECT_TRUE(eventually([&] { return running.engine->stats().waiting + running.engine->stats().running == 1; }));
  running.engine->hold(false);
  waiting.join();
  const Json slots = Json::parse(running.client().Get("/slots")->body);
  ASSERT_GE(slots.size(), 1u);
  EXPECT_EQ(slots.back()["is_processing"], false);
}

TEST(LlamaRoutes, WhatIsNotHonouredIsNamed) {
  LiveServer running;
  const std::pair<const char*, const char*> cases[] = {
      {R"("grammar": 5)", "grammar"},
      {R"("json_schema": {"uniqueItems": true})", "json_schema"},
      {R"("grammar": "x", "json_schema": {})", "json_schema"},
      {R"("mirostat": 2)", "mirostat"},
      {R"("typical_p": 0.5)", "typical_p"},
      {R"("adaptive_target": 0.5)", "adaptive_target"},
      {R"("n_probs": 21)", "n_probs"},
      {R"("return_tokens": 5)", "return_tokens"},
      {R"("post_sampling_probs": 5)", "post_sampling_probs"},
      {R"("lora": [{"id": 0, "scale": 1}])", "lora"},
      {R"("repeat_penalty": 99)", "repeat_penalty"},
      {R"("repeat_last_n": -2)", "repeat_last_n"},
      {R"("thinking_budget_tokens": 0)", "thinking_budget_tokens"},
      {R"("n_predict": -5)", "n_predict"},
      {R"("n_indent": "4")", "n_indent"},
      {R"("t_max_predict_ms": 0.5)", "t_max_predict_ms"},
      {R"("logit_bias": [["a", 101]])", "logit_bias"},
      {R"("logit_bias": [["a", null]])", "logit_bias"},
      {R"("logit_bias": 5)", "logit_bias"},
      {R"("prompt": {})", "prompt.prompt_string"},
      {R"("prompt": {"prompt_string": "a", "multimodal_data": ["x"]})", "prompt.multimodal_data"},
      {R"("prompt": [1, {}])", "prompt[1]"},
      {R"("prompt": [])", "prompt"},
      {R"("prompt": [[], "a"])", "prompt[0]"},
      {R"("response_fields": "content")", "response_fields"}};
  for (const auto& [field, param] : cases) {
    const bool own = std::string(field).starts_with("\"prompt\"");
    const std::string body = std::string(own ? "{" : R"({"prompt": "a", )") + field + "}";
    const Json error = error_of(running.post("/completion", body));
    EXPECT_EQ(error["param"], param) << body;
    EXPECT_TRUE(error["message"].get<std::string>().starts_with(std::string(param) + ": ")) << error;
  }
  EXPECT_EQ(error_of(running.post("/completion", "{}"))["param"], "prompt");
  const char* off =
      R"({"prompt": "a", "n_predict": 1, "adaptive_target": -0.01, "typical_p": 1, "dynatemp_range": 0.0})";
  EXPECT_EQ(running.post("/completion", off)->status, 200) << "any negative target is off, as in a chat";
  EXPECT_EQ(running.post("/completion", R"({"prompt": "a", "n_predict": 1, "repeat_last_n": 32})")->status, 200);
  EXPECT_EQ(running.engine->last_request().sampling.penalty_window, 32);
  const std::pair<const char*, const char*> infills[] = {
      {R"({"input_prefix": "a"})", "input_suffix"},
      {R"({"input_prefix": "a", "input_suffix": 5})", "input_suffix"},
      {R"({"input_prefix": "a", "input_suffix": "b", "input_extra": {}})", "input_extra"},
      {R"({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "x"}]})", "input_extra[0].text"}};
  for (const auto& [body, param] : infills) EXPECT_EQ(error_of(running.post("/infill", body))["param"], param) << body;
}

}  // namespace
}  // namespace kvilt::server

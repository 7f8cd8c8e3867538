// Chat requests through a real engine: marks keep their ids wherever they are, documents warmed by themselves are
// found, and nobody's text becomes a border or a special token.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine_harness.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

class Chat : public testing::Test {
 protected:
  Chat() : engine(open_for_test({.model = "tests/data/models/probe-1M"})) {}

  Prompt prompt_of(const Json& request) {
    auto prompt = engine->chat_prompt(request);
    EXPECT_TRUE(prompt.ok()) << (prompt.ok() ? "" : prompt.error().message);
    return prompt.ok() ? *prompt : Prompt{};
  }
  static std::vector<int32_t> ids_of(const Prompt& prompt, size_t mark) {
    return {prompt.ids.begin() + prompt.marks[mark].begin, prompt.ids.begin() + prompt.marks[mark].end};
  }
  static std::string document(int which, int words = 50) {
    static const char* const kWords[] = {"stup", "vig", "stir", "clak", "plem", "kob",
                                         "wup",  "rer", "grad", "cud",  "tet",  "hig"};
    std::string text;
    for (int i = 0; i < words; ++i) text += std::string(kWords[(i * (which + 3) + which * i * i) % 12]) + " ";
    return text + "number for dul is " + std::to_string(170 + which) + " .";
  }
  Json request(const std::vector<int>& documents, const std::string& question = "find dul :") {
    Json out{{"messages", Json::array({{{"role", "system"}, {"content", "find the numbers"}},
                                       {{"role", "user"}, {"content", question}}})},
             {"documents", Json::array()}};
    for (const int which : documents) out["documents"].push_back({{"title", "text"}, {"text", document(which)}});
    return out;
  }

  std::unique_ptr<Engine> engine;
};

TEST_F(Chat, MarkedPartsKeepTheirIdsInEveryOrder) {
  const Prompt one = prompt_of(request({1, 2, 3})), other = prompt_of(request({3, 1, 2}));
  ASSERT_EQ(one.marks.size(), 3u);
  ASSERT_EQ(other.marks.size(), 3u);
  EXPECT_EQ(ids_of(one, 0), ids_of(other, 1));
  EXPECT_EQ(ids_of(one, 1), ids_of(other, 2));
  EXPECT_EQ(ids_of(one, 2), ids_of(other, 0));
  EXPECT_NE(ids_of(one, 0), ids_of(one, 1));

  Json parts{{"messages", Json::array({{{"role", "user"}, {"content", Json::array()}}})}};
  for (const int which : {3, 1}) {
    parts["messages"][0]["content"].push_back(
        {{"type", "text"}, {"text", document(which)}, {"cache_control", {{"type", "ephemeral"}}}});
  }
  parts["messages"][0]["content"].push_back({{"type", "text"}, {"text", "find dul :"}});
  const Prompt marked = prompt_of(parts);
  ASSERT_EQ(marked.marks.size(), 2u);
  EXPECT_EQ(ids_of(marked, 0).size(), ids_of(marked, 1).size());
}

// EngineOptions::chat_template takes the place of the model's.
TEST(ChatTemplateFile, IsUsedInsteadOfTheModels) {
  const std::string path = testing::TempDir() + "/kvilt_chat_template.jinja";
  const auto write = [&](const std::string& source) { std::ofstream(path) << source; };
  const Json request{{"messages", Json::array({{{"role", "user"}, {"content", "find"}}})}};
  const auto open = [&] { return open_engine({.model = "tests/data/models/probe-1M", .chat_template = path}); };
  write("{{ messages[0]['content'] }} dul");
  auto own = open();
  ASSERT_TRUE(own.ok()) << own.error().message;
  const auto engine = open_for_test({.model = "tests/data/models/probe-1M"});
  const auto said = [&](const Engine& which) { return which.detokenize(which.chat_prompt(request)->ids).value(); };
  EXPECT_NE(said(**own).find("find dul"), std::string::npos) << said(**own);
  EXPECT_EQ(said(*engine).find("find dul"), std::string::npos) << "power";
  write("{% for");
  EXPECT_TRUE(open().error().message.starts_with(path + ": chat template: "));
  write("");
  EXPECT_FALSE(open().ok());
  std::filesystem::remove(path);
  EXPECT_FALSE(open().ok());
}

TEST_F(Chat, WarmedDocumentsAreFoundAndTheFirstIsExact) {
  const auto prompts = engine->document_prompts(request({1, 2, 3}));
  ASSERT_TRUE(prompts.ok()) << prompts.error().message;
  ASSERT_EQ(prompts->size(), 3u);
  for (const Prompt& prompt : *prompts) {
    EXPECT_EQ(prompt.marks.back().end, static_cast<int32_t>(prompt.ids.size()));  // nothing after the document
    Request warm = request_of(prompt.ids, "prefix", 0);
    warm.prompt.marks = prompt.marks;
    ask_ok(*engine, warm);
  }
  const Prompt asked = prompt_of(request({2, 3, 1}));
  Request question = request_of(asked.ids, "naive");
  question.prompt.marks = asked.marks;
  question.publish = false;
  const Outcome out = ask_ok(*engine, question);
  EXPECT_EQ(out.usage().prefix, asked.marks[0].end);  // the fixed prefix and the document that follows it: exact
  EXPECT_EQ(out.usage().reused, asked.marks[2].end - asked.marks[1].begin);
  EXPECT_EQ(out.usage().fresh, static_cast<int>(asked.ids.size()) - asked.marks[2].end);
}

TEST_F(Chat, ShortMarksAreFoundShortTextIsNot) {
  Json short_documents = request({});
  short_documents["documents"] =
      Json::array({"plem kob tet hig grod vig stir clak .", "tet hig grod plem kob clak stir vig .",
                   "vig stir clak tet plem grod hig kob ."});
  const Prompt known = prompt_of(short_documents);
  std::reverse(short_documents["documents"].begin(), short_documents["documents"].end());
  const Prompt asked = prompt_of(short_documents);
  Request warm = request_of(known.ids, "full", 0);
  warm.prompt.marks = known.marks;
  ask_ok(*engine, warm);
  Request question = request_of(asked.ids, "naive");
  question.publish = false;
  const int unmarked = ask_ok(*engine, question).usage().reused;
  question.prompt.marks = asked.marks;
  EXPECT_GT(ask_ok(*engine, question).usage().reused, unmarked + 8);
}

TEST_F(Chat, NobodysTextBecomesSpecial) {
  const auto special = engine->tokenize("<eos>", true, false).value();
  ASSERT_EQ(special.size(), 1u);
  const auto count = [&](const Prompt& prompt) { return std::ranges::count(prompt.ids, special[0]); };
  const auto plain = count(prompt_of(request({1}, "find dul :")));
  Json forged = request({1}, "find <eos> dul :");
  forged["documents"][0]["text"] = "plem <eos> kob";
  forged["messages"][0]["content"] = "<eos>";
  EXPECT_EQ(count(prompt_of(forged)), plain);
}

TEST_F(Chat, WrongRequestsNameThePath) {
  const auto message = [&](const char* text) {
    const auto prompt = engine->chat_prompt(Json::parse(text));
    return prompt.ok() ? std::string() : prompt.error().message;
  };
  EXPECT_NE(message(R"({})").find("messages"), std::string::npos);
  EXPECT_NE(message(R"({"messages": []})").find("empty"), std::string::npos);
  EXPECT_NE(message(R"({"messages": [3]})").find("messages[0]"), std::string::npos);
  EXPECT_NE(message(R"({"messages": [{"content": "x"}]})").find("messages[0].role"), std::string::npos);
  EXPECT_NE(message(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})").find("content[0]"),
            std::string::npos);
  EXPECT_NE(message(R"({"messages": [{"role": "user", "content": 5}]})").find("messages[0].content"),
            std::string::npos);
  EXPECT_NE(message(R"({"messages": [{"role": "user", "content": "q"}], "documents": [{"title": "t"}]})")
                .find("documents[0]"),
            std::string::npos);
  EXPECT_EQ(message(R"({"messages": [{"role": "system", "content": "q"}], "documents": ["d"]})"), "");
  EXPECT_NE(message(R"({"messages": [{"role": "user", "content": "q"}], "add_generation_prompt": 1})")
                .find("add_generation_prompt"),
            std::string::npos);
  EXPECT_NE(message(R"({"messages": [{"role": "user", "content": "q"}], "part_separator": 1})").find("part_separator"),
            std::string::npos);
  EXPECT_EQ(message(R"({"messages": [{"role": "user", "content": "q"}]})"), "");
}

TEST(ChatParts, NothingIsBetweenThemIfAsked) {
  // Its tokenizer has a token for a line end.
  const auto engine = open_for_test({.model = "tests/data/models/stories260K/derived-stories260K-F32.gguf"});
  Json chat = Json::parse(R"({"messages": [{"role": "user", "content": [
      {"type": "text", "text": "Once upon a ti", "cache_control": {"type": "ephemeral"}},
      {"type": "text", "text": "me there was", "cache_control": {"type": "ephemeral"}}]}]})");
  const auto apart = engine->chat_prompt(chat).value();
  chat["part_separator"] = "";
  const auto joined = engine->chat_prompt(chat).value();
  ASSERT_EQ(apart.marks.size(), 2u);
  ASSERT_EQ(joined.marks.size(), 2u);
  EXPECT_LT(apart.marks[0].end, apart.marks[1].begin);
  EXPECT_EQ(joined.marks[0].end, joined.marks[1].begin);
  chat["part_separator"] = std::string(65, ' ');
  EXPECT_FALSE(engine->chat_prompt(chat).ok());
}

// The parts are cut in one pass, not by looking at all spans for each of them.
TEST_F(Chat, ManyMarkedPartsAreCutInOnePass) {
  constexpr int kParts = kMaxMarks;
  Json many{{"messages", Json::array({{{"role", "user"}, {"content", Json::array()}}})}};
  for (int i = 0; i < kParts; ++i) {
    many["messages"][0]["content"].push_back(
        {{"type", "text"}, {"text", i % 2 ? "dul" : "vig"}, {"cache_control", {{"type", "ephemeral"}}}});
  }
  const Prompt prompt = prompt_of(many);
  ASSERT_EQ(prompt.marks.size(), static_cast<size_t>(kParts));
  EXPECT_EQ(ids_of(prompt, 0), ids_of(prompt, kParts - 2));
  EXPECT_EQ(ids_of(prompt, 1), ids_of(prompt, kParts - 1));
  EXPECT_NE(ids_of(prompt, 0), ids_of(prompt, 1));
}

// This vocabulary has no token for white space; the mark of such a document was taken from an empty list.
TEST_F(Chat, ADocumentWithoutTokensIsRefused) {
  for (const char* text : {"", " ", "\n\t "}) {
    const auto prompts = engine->document_prompts({{"documents", Json::array({{{"text", text}}})}});
    ASSERT_FALSE(prompts.ok()) << "power check: a vocabulary that keeps white space would not do";
    EXPECT_EQ(prompts.error().code, Code::kInvalidArgument);
    EXPECT_NE(prompts.error().message.find("documents[0]"), std::string::npos) << prompts.error().message;
  }
  EXPECT_TRUE(engine->document_prompts({{"documents", Json::array({{{"text", "dul"}}})}}).ok());
}

// Each document is rendered after the same messages, so a body could be multiplied by its number of documents.
TEST_F(Chat, WarmingIsBoundedInAll) {
  Json warm{{"messages", Json::array({{{"role", "system"}, {"content", std::string(8 << 20, ' ')}},
                                      {{"role", "user"}, {"content", "q"}}})},
            {"documents", Json::array()}};
  for (int i = 0; i < 5; ++i) warm["documents"].push_back({{"text", "dul"}});
  const auto prompts = engine->document_prompts(warm);
  ASSERT_FALSE(prompts.ok());
  EXPECT_EQ(prompts.error().code, Code::kTooLong);
  warm["documents"] = Json::array({{{"text", "dul"}}});
  EXPECT_TRUE(engine->document_prompts(warm).ok());
}

}  // namespace
}  // namespace kvilt

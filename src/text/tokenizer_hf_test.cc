// tokenizer.json: the committed model folders, steps one by one, and files that are wrong.
#include "text/tokenizer_hf.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "text/json_reader.h"
#include "text/test_data.h"
#include "text/tokenizer.h"

namespace kvilt {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> from_folder(const std::string& folder) {
  const auto json = file_text(folder + "/tokenizer.json");
  const auto config = file_text(folder + "/tokenizer_config.json");
  if (!json) return nullptr;
  auto made = Tokenizer::from_hf(*json, config.value_or(""));
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return made.ok() ? std::move(made).value() : nullptr;
}

TEST(TokenizerHf, ProbeIsWholeWords) {
  const auto t = from_folder("tests/data/models/probe-1M");
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->vocab_size(), 1024);
  EXPECT_EQ(*t->encode("VAR  =\nnosuchword VAR"), Ids({3, 4, 0, 3}));
  EXPECT_EQ(t->decode(Ids({3, 4, 3})), "VAR = VAR");
  EXPECT_EQ(*t->encode("<bos> VAR"), Ids({0, 3})) << "a user's <bos> is an unknown word";
  EXPECT_EQ(*t->encode("<bos> VAR", {.parse_special = true}), Ids({1, 3}));
  EXPECT_EQ(t->eos(), 2);
}

TEST(TokenizerHf, AttoIsByteLevelWithoutPreSplit) {
  const auto t = from_folder("tests/data/models/llama3-atto-1M/derived-hf");
  ASSERT_NE(t, nullptr);
  const std::string text = "Once upon a time, there was a \xF0\x9F\x90\xB1.\n\nThe end";
  EXPECT_EQ(t->decode(*t->encode(text)), text);
  EXPECT_EQ(t->encode(text, {.add_special = true})->front(), 2045);
  EXPECT_EQ(t->bos(), 2045);
}

// Every kind of step, on vocabularies and with ids made by Hugging Face's tokenizers (tests/data/tokenizers/README.md).
class StepVectors : public testing::TestWithParam<const char*> {};

TEST_P(StepVectors, IdsAndTextsAreTheirs) {
  const std::string stem = std::string("tests/data/tokenizers/") + GetParam();
  const Json base = Json::parse(file_text(stem + ".base.json").value_or("{}"));
  const Json vectors = Json::parse(file_text(stem + ".vectors.json").value_or("{}"));
  size_t rows = 0;
  for (const Json& c : vectors.at("cases")) {
    Json file = base;
    file["decoder"] = vectors.at("decoder");
    file["normalizer"] = nullptr;
    for (const auto& [key, value] : c.at("case").items()) {
      (key == "normalizer" || key == "pre_tokenizer" ? file : file["model"])[key] = value;
    }
    if (!c.at("case").contains("pre_tokenizer")) file["pre_tokenizer"] = nullptr;
    const auto t = Tokenizer::from_hf(file.dump(), "");
    ASSERT_TRUE(t.ok()) << c.at("name") << ": " << t.error().message;
    for (const Json& row : c.at("rows")) {
      const auto ids = (*t)->encode(row[0].get<std::string>(), {.parse_special = true});
      ASSERT_TRUE(ids.ok()) << ids.error().message;
      EXPECT_EQ(*ids, row[1].get<Ids>()) << c.at("name") << ": " << row[0];
      EXPECT_EQ((*t)->decode(row[1].get<Ids>()), row[2].get<std::string>()) << c.at("name") << ": " << row[0];
      EXPECT_EQ((*t)->decode(row[1].get<Ids>(), true), row[3].get<std::string>()) << c.at("name") << ": " << row[0];
      ++rows;
    }
  }
  EXPECT_GE(rows, 200u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, StepVectors, testing::Values("byte-level", "character"));

std::string base_text() { return file_text("tests/data/tokenizers/byte-level.base.json").value_or("{}"); }

// The error of a file in which the member at `pointer` has another value; empty if it loads.
std::string error_with(const char* pointer, Json value) {
  Json file = Json::parse(base_text());
  file[Json::json_pointer(pointer)] = std::move(value);
  const auto t = Tokenizer::from_hf(file.dump(), "");
  return t.ok() ? "" : t.error().message;
}

TEST(TokenizerHf, NamesWhatIsNotSupported) {
  EXPECT_EQ(error_with("/version", "1.0"), "");
  const auto names = [](const char* pointer, Json value, const char* name) {
    const std::string message = error_with(pointer, std::move(value));
    EXPECT_NE(message.find(name), std::string::npos) << pointer << ": " << message;
  };
  names("/model/type", "Unigram", "Unigram");
  names("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  names("/model/dropout", 0.1, "dropout");
  names("/normalizer", {{"type", "Precompiled"}}, "Precompiled");
  names("/pre_tokenizer", {{"type", "UnicodeScripts"}}, "UnicodeScripts");
  names("/decoder", {{"type", "WordPiece"}}, "WordPiece");
  names("/post_processor", {{"type", "NoSuch"}}, "NoSuch");
  names("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "[a&&[b]]"}}}, {"behavior", "Isolated"}},
        "[a&&[b]]");
}

TEST(TokenizerHf, RefusesBrokenFiles) {
  const Json huge = 4'000'000'000u, deep = Json::parse(std::string(60, '[') + std::string(60, ']'));
  const std::vector<std::pair<const char*, Json>> broken = {
      {"/model", nullptr},
      {"/model", 7},
      {"/model/vocab", Json::array({1, 2})},
      {"/model/vocab", "x"},
      {"/model/vocab", Json::object()},
      {"/model/vocab/a", huge},
      {"/model/vocab/a", 2'000'000'000},
      {"/model/vocab/a", -1},
      {"/model/vocab/a", 1.5},
      {"/model/vocab/a", "1"},
      {"/model/vocab/a", 1},  // which another token has
      {"/model/merges", nullptr},
      {"/model/merges", 3},
      {"/model/merges/0", "no-such-token x"},
      {"/model/merges/0", Json::array({"a", "b", "c"})},
      {"/model/merges/0", Json::array({1, 2})},
      {"/model/merges/0", Json::array({"z", "z"})},  // whose merge is no token
      {"/model/ignore_merges", 3},
      {"/model/type", nullptr},
      {"/added_tokens", 3},
      {"/added_tokens/0", 3},
      {"/added_tokens/0/id", nullptr},
      {"/added_tokens/0/id", huge},
      {"/added_tokens/0/id", 901},  // which the next added token has
      {"/added_tokens/0/content", ""},
      {"/added_tokens/0/content", "a"},  // which has another id
      {"/added_tokens/0/special", "yes"},
      {"/normalizer", 3},
      {"/normalizer", {{"type", "Sequence"}}},
      {"/normalizer", {{"type", "Sequence"}, {"normalizers", deep}}},
      {"/normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}}},
      {"/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}}},
      {"/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Sideways"}}},
      {"/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", ""}}},
      {"/post_processor", {{"type", "TemplateProcessing"}, {"single", 3}}},
      {"/post_processor",
       {{"type", "BertProcessing"}, {"cls", Json::array({"a", 99999})}, {"sep", Json::array({"a", 1})}}},
  };
  for (const auto& [pointer, value] : broken) EXPECT_NE(error_with(pointer, value), "") << pointer << " = " << value;
  EXPECT_FALSE(Tokenizer::from_hf("", "").ok());
  EXPECT_FALSE(Tokenizer::from_hf("[]", "").ok());
  EXPECT_FALSE(Tokenizer::from_hf(std::string(1 << 20, '['), "").ok()) << "deep nesting must not exhaust the stack";
  EXPECT_FALSE(Tokenizer::from_hf(base_text(), "{\"eos_token\": \"nowhere\"}").ok());
  EXPECT_FALSE(Tokenizer::from_hf(base_text(), "{\"eos_token\": 3}").ok());
  EXPECT_TRUE(Tokenizer::from_hf(base_text(), "{\"eos_token\": {\"content\": \"<|im_end|>\"}}").ok());
}

TEST(TokenizerHf, EvilPatternsAndReplacementsAreBounded) {
  Json file = Json::parse(base_text());
  file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(x+x+)+[yz]"}}}, {"behavior", "Isolated"}};
  auto t = Tokenizer::from_hf(file.dump(), "");
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_FALSE((*t)->encode(std::string(5000, 'x')).ok()) << "exponential backtracking ends in an error";
  file["pre_tokenizer"] = nullptr;
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(60000, 'b')}};
  t = Tokenizer::from_hf(file.dump(), "");
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_FALSE((*t)->encode(std::string(100'000, 'a')).ok()) << "a text that grows without bound is an error";
}

// Files with bytes changed, removed, doubled: any outcome but a crash, a hang or an absurd tokenizer.
TEST(TokenizerHf, MutatedFilesDoNoHarm) {
  const std::string good = base_text();
  std::mt19937 rng(11);
  int loaded = 0;
  for (int round = 0; round < 400; ++round) {
    std::string bad = good;
    for (uint32_t edits = 1 + rng() % 2; edits > 0; --edits) {
      const size_t at = rng() % bad.size(), other = rng() % bad.size();
      const size_t size = std::min<size_t>(rng() % 40, bad.size() - std::max(at, other));
      switch (rng() % 4) {
        case 0:
          bad[at] = static_cast<char>(rng());
          break;
        case 1:
          bad.erase(at, size);
          break;
        case 2:
          bad.insert(at, std::string(bad, other, size));
          break;
        default:
          bad[at] = "0123456789\",:{}[]"[rng() % 17];
          break;
      }
    }
    const auto t = Tokenizer::from_hf(bad, "");
    if (!t.ok()) continue;
    ++loaded;
    const auto ids = (*t)->encode("Hello <|im_start|> world 123 \xFF", {.add_special = true, .parse_special = true});
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) EXPECT_TRUE(id >= 0 && id < (*t)->vocab_size());
    (*t)->decode(*ids);
  }
  EXPECT_GT(loaded, 5) << "no mutation got past the parser: the test tests nothing";
}

// What a hostile file could multiply: each step was bounded by its own input, so the product of all steps was not.
TEST(TokenizerHf, StepsCannotMultiplyATextWithoutBound) {
  Json file = Json::parse(R"({"added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  const auto encode = [&](const std::string& text) {
    const auto made = Tokenizer::from_hf(file.dump(), "");
    EXPECT_TRUE(made.ok()) << made.error().message;
    return (*made)->encode(text);
  };
  const Json grow = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(60, 'a')}};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {grow, grow, grow}}};
  EXPECT_TRUE(encode("a").ok());
  file["normalizer"]["normalizers"] = {grow, grow, grow, grow, grow, grow};  // 60^6 = 46 GB
  EXPECT_EQ(encode("a").error().code, Code::kExhausted);
  const Json prepend = {{"type", "Prepend"}, {"prepend", std::string(1 << 20, 'a')}};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array({prepend, prepend})}};
  EXPECT_EQ(encode("a").error().code, Code::kExhausted);
  file["normalizer"]["normalizers"] = Json(65, {{"type", "NFC"}});
  EXPECT_FALSE(Tokenizer::from_hf(file.dump(), "").ok()) << "each step walks the whole text";
  file.erase("normalizer");

  Json meta = {{"type", "Metaspace"}, {"replacement", std::string(15, ' ')}, {"split", false}};
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json(6, meta)}};  // 15^6
  EXPECT_EQ(encode(std::string(100, ' ')).error().code, Code::kExhausted);
  meta["replacement"] = std::string(17, ' ');
  file["pre_tokenizer"] = meta;
  EXPECT_FALSE(Tokenizer::from_hf(file.dump(), "").ok());
  file.erase("pre_tokenizer");

  const Json spell = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(10'000, 'a')}};
  file["decoder"] = {{"type", "Sequence"}, {"decoders", {spell}}};
  EXPECT_TRUE(Tokenizer::from_hf(file.dump(), "").ok());
  file["decoder"]["decoders"] = {spell, spell, spell};  // 10^12 bytes
  EXPECT_EQ(Tokenizer::from_hf(file.dump(), "").error().code, Code::kUnsupported);
}

// 2^32 once became token 0.
TEST(TokenizerHf, IdsAroundATextDoNotWrap) {
  Json file = Json::parse(R"({"added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    "post_processor": {"type": "BertProcessing", "cls": ["a", 0], "sep": ["a", 0]}})");
  EXPECT_TRUE(Tokenizer::from_hf(file.dump(), "").ok());
  for (const Json& id : {Json(4294967296), Json(-4294967296), Json(18446744073709551615u)}) {
    file["post_processor"]["sep"][1] = id;
    EXPECT_FALSE(Tokenizer::from_hf(file.dump(), "").ok()) << id;
  }
  file["post_processor"] = Json::parse(R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a"}}],
    "special_tokens": {"a": {"ids": [4294967296]}}})");
  EXPECT_FALSE(Tokenizer::from_hf(file.dump(), "").ok());
}

// A token "aaa..." of kilobytes would be followed from each place of a text of that letter.
TEST(TokenizerHf, AddedTokensAreShort) {
  Json file = Json::parse(R"({"added_tokens": [{"id": 1, "special": true}],
    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  file["added_tokens"][0]["content"] = std::string(256, 'a');
  EXPECT_TRUE(Tokenizer::from_hf(file.dump(), "").ok());
  file["added_tokens"][0]["content"] = std::string(257, 'a');
  EXPECT_EQ(Tokenizer::from_hf(file.dump(), "").error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace kvilt

// Whole vocabularies against vectors made by other tokenizers: llama.cpp's .inp/.out pairs, tiktoken's test plans, and
// ids from Hugging Face's tokenizers for the vocabularies that are committed here.
// The large vocabularies are next to the repository (../shared/data) and are skipped with a message if they are
// missing; the small ones in tests/data always run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/mapped_file.h"
#include "model/gguf.h"
#include "model/gguf_tokenizer.h"
#include "text/test_data.h"
#include "text/tokenizer.h"
#include "text/tokenizer_hf.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;

const std::string kShared = "../shared/data/tokenizers";
const std::string kLlamaCpp = kShared + "/llama.cpp-vocabs/ggml-vocab-";

#define SKIP_WITHOUT_SHARED()            \
  if (!std::filesystem::exists(kShared)) \
  GTEST_SKIP() << kShared << " is not here: the large vocabularies are not checked"

std::unique_ptr<Tokenizer> finish(Result<TokenizerSpec> spec) {
  EXPECT_TRUE(spec.ok()) << (spec.ok() ? "" : spec.error().message);
  if (!spec.ok()) return nullptr;
  auto made = Tokenizer::create(std::move(*spec));
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return made.ok() ? std::move(*made) : nullptr;
}

std::unique_ptr<Tokenizer> from_gguf(const std::string& path) {
  const std::string bytes = file_text(path).value_or("");
  const auto gguf = parse_gguf(std::as_bytes(std::span(bytes)), path);
  EXPECT_TRUE(gguf.ok()) << (gguf.ok() ? "" : gguf.error().message);
  return gguf.ok() ? finish(read_gguf_tokenizer(*gguf, path)) : nullptr;
}

std::unique_ptr<Tokenizer> from_hf(const std::string& folder) {
  return finish(spec_from_hf(file_text(folder + "/tokenizer.json").value_or(""),
                             file_text(folder + "/tokenizer_config.json").value_or("")));
}

// vocab.json and merges.txt, the older pair of files, with the added tokens of tokenizer_config.json.
TokenizerSpec from_pair(const std::string& vocab, const std::string& merges, const std::string& config) {
  TokenizerSpec spec;
  spec.model = "bpe";
  const Json tokens = Json::parse(file_text(vocab).value_or("{}"));
  spec.tokens.resize(tokens.size());
  for (const auto& [text, id] : tokens.items()) spec.tokens.at(id.get<size_t>()) = text;
  std::istringstream lines(file_text(merges).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && !line.starts_with("#version")) spec.merges.push_back(line);
  }
  spec.kinds.assign(spec.tokens.size(), TokenKind::kNormal);
  if (config.empty()) return spec;
  const Json added = Json::parse(file_text(config).value_or("{}")).at("added_tokens_decoder");
  for (const auto& [id, token] : added.items()) {
    const size_t at = std::stoul(id);
    if (at >= spec.tokens.size()) spec.tokens.resize(at + 1);
    spec.kinds.resize(spec.tokens.size(), TokenKind::kUnused);
    spec.tokens[at] = token.at("content").get<std::string>();
    spec.kinds[at] = token.at("special").get<bool>() ? TokenKind::kControl : TokenKind::kUserDefined;
  }
  return spec;
}

std::unique_ptr<Tokenizer> qwen() {
  const std::string folder = kShared + "/qwen2.5/";
  TokenizerSpec spec = from_pair(folder + "vocab.json", folder + "merges.txt", folder + "tokenizer_config.json");
  spec.pre = "qwen2";
  return finish(std::move(spec));
}

// Ranks of whole tokens, as tiktoken stores them. Its merges are found again: the last step that makes a token is what
// merging its bytes with the better ranks leaves, two parts.
std::unique_ptr<Tokenizer> from_tiktoken(const std::string& path, const std::string& pattern) {
  const auto unbase64 = [](std::string_view in) {
    std::string out;
    uint32_t bits = 0;
    int have = 0;
    for (const char c : in) {
      const size_t v = std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/").find(c);
      if (v == std::string_view::npos) break;
      bits = bits << 6 | static_cast<uint32_t>(v);
      if ((have += 6) < 8) continue;
      out.push_back(static_cast<char>(bits >> (have -= 8)));
    }
    return out;
  };
  std::unordered_map<std::string, int32_t> rank;
  std::vector<std::string> tokens;
  std::istringstream lines(file_text(path).value_or(""));
  std::string text;
  for (int32_t id; lines >> text >> id;) {
    tokens.resize(std::max<size_t>(tokens.size(), id + 1));
    tokens[id] = unbase64(text);
    rank[tokens[id]] = id;
  }
  TokenizerSpec spec;
  spec.model = "bpe";
  spec.split.push_back({.pattern = pattern});
  spec.ignore_merges = true;
  for (size_t id = 0; id < tokens.size(); ++id) {
    spec.tokens.push_back(spell_bytes(tokens[id]));
    std::vector<std::string> parts;
    for (const char c : tokens[id]) parts.emplace_back(1, c);
    while (parts.size() > 2) {
      size_t best = 0;
      auto best_rank = static_cast<int32_t>(id);
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto at = rank.find(parts[i] + parts[i + 1]);
        if (at != rank.end() && at->second < best_rank) {
          best = i;
          best_rank = at->second;
        }
      }
      if (best_rank == static_cast<int32_t>(id)) break;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
    }
    if (parts.size() == 2) spec.merge_ids.emplace_back(rank[parts[0]], rank[parts[1]]);
  }
  return finish(std::move(spec));
}

// Checks every vector of `name`; returns how many there were.
size_t check_vectors(const Tokenizer* t, const std::string& name) {
  EXPECT_NE(t, nullptr) << name;
  if (t == nullptr) return 0;
  const auto inp = file_text(kLlamaCpp + name + ".gguf.inp"), out = file_text(kLlamaCpp + name + ".gguf.out");
  EXPECT_TRUE(inp && out) << name;
  const auto vectors = read_vectors(inp.value_or(""), out.value_or(""));
  size_t total = 0;
  for (const TokenVector& v : vectors) {
    const auto ids = t->encode(v.text);
    EXPECT_TRUE(ids.ok());
    if (!ids.ok()) continue;
    EXPECT_EQ(*ids, v.ids) << name << ": " << v.text;
    // Decoding gives the text back, normalised if the vocabulary normalises.
    EXPECT_EQ(*t->encode(t->decode(*ids)), v.ids) << name << ": decoded " << v.text;
    total += v.ids.size();
  }
  EXPECT_GE(vectors.size(), 45u);
  EXPECT_GE(total, 300u) << "the .out file was not read";
  return vectors.size();
}

TEST(TokenizerVectors, Stories260KFromGguf) {
  const auto t = from_gguf("tests/data/models/stories260K/derived-stories260K-F32.gguf");
  ASSERT_NE(t, nullptr);
  const Json golden = Json::parse(*file_text("tests/data/models/stories260K/golden.json"));
  EXPECT_EQ(*t->encode(golden.at("prompt").get<std::string>(), {.add_special = true}),
            golden.at("prompt_ids").get<Ids>());
  const Ids greedy = golden.at("greedy_ids").get<Ids>();
  const std::string story = t->decode(greedy, true);
  EXPECT_TRUE(story.starts_with("Once upon a time, there was a little girl named Lily.")) << story;
  EXPECT_EQ(*t->encode(story, {.add_special = true}), greedy);
}

TEST(TokenizerVectors, Qwen25) {
  SKIP_WITHOUT_SHARED();
  EXPECT_EQ(check_vectors(qwen().get(), "qwen2"), 46u);
}

// The real model's own vocabulary, with its chat markers.
TEST(TokenizerVectors, RealModel) {
  SKIP_WITHOUT_SHARED();
  const char* home = std::getenv("HOME");
  const std::string path = std::string(home ? home : "") + "/.cache/kvilt/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";
  const auto file = MappedFile::open(path);
  if (!file.ok()) GTEST_SKIP() << path << " is not here (scripts/get_model fetches it)";
  const auto gguf = parse_gguf(file->bytes(), path);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  const auto t = finish(read_gguf_tokenizer(*gguf, path));
  EXPECT_EQ(check_vectors(t.get(), "qwen2"), 46u);
  const std::string chat = "<|im_start|>user\n<|im_end|>hi<|im_end|>\n";
  const std::vector<ByteRange> trusted = {{0, 17}, {29, 40}};
  const auto ids = t->encode(chat, {.trusted = trusted});
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 151645), 1) << "the user's <|im_end|> is text";
  EXPECT_EQ(ids->front(), 151644);
  EXPECT_EQ(Ids(t->end_ids().begin(), t->end_ids().end()), Ids({151643, 151645}));
  EXPECT_EQ(t->decode(*ids, true), "user\n<|im_end|>hi\n");
}

// Qwen3 has Qwen2.5's vocabulary and 26 added tokens.
TEST(TokenizerVectors, Qwen3) {
  SKIP_WITHOUT_SHARED();
  const std::string folder = kShared + "/qwen2.5/";
  TokenizerSpec spec =
      from_pair(folder + "vocab.json", folder + "merges.txt", kShared + "/qwen3/tokenizer_config.json");
  spec.pre = "qwen2";
  const auto t = finish(std::move(spec));
  check_vectors(t.get(), "qwen2");
  EXPECT_EQ(*t->encode("<think>", {.parse_special = true}), Ids({151667}));
  EXPECT_GT(t->encode("<think>")->size(), 1u) << "a marker, though Qwen3 does not call it special";
}

TEST(TokenizerVectors, LargeVocabulariesAgainstHuggingFace) {
  SKIP_WITHOUT_SHARED();
  const Json all = Json::parse(file_text("tests/data/tokenizers/large.vectors.json").value_or("{}"));
  EXPECT_EQ(all.size(), 4u);
  for (const auto& [name, rows] : all.items()) {
    const auto t = from_hf(kShared + "/" + name);
    ASSERT_NE(t, nullptr) << name;
    EXPECT_GE(rows.size(), 40u);
    for (const Json& row : rows) {
      EXPECT_EQ(*t->encode(row[0].get<std::string>(), {.parse_special = true}), row[1].get<Ids>())
          << name << ": " << row[0];
      EXPECT_EQ(t->decode(row[1].get<Ids>()), row[2].get<std::string>()) << name << ": " << row[0];
      EXPECT_EQ(t->decode(row[1].get<Ids>(), true), row[3].get<std::string>()) << name << ": " << row[0];
    }
  }
}

TEST(TokenizerVectors, Gpt2) {
  SKIP_WITHOUT_SHARED();
  TokenizerSpec spec = from_pair(kShared + "/gpt2/vocab.json", kShared + "/gpt2/merges.txt", "");
  spec.pre = "gpt-2";
  check_vectors(finish(std::move(spec)).get(), "gpt-2");
  check_vectors(from_gguf(kLlamaCpp + "gpt-2.gguf").get(), "gpt-2");
}

TEST(TokenizerVectors, Phi3AndLlama2) {
  SKIP_WITHOUT_SHARED();
  const auto json = from_hf(kShared + "/phi-3-mini"), gguf = from_gguf(kLlamaCpp + "phi-3.gguf");
  for (const Tokenizer* t : {json.get(), gguf.get()}) {
    check_vectors(t, "phi-3");
    check_vectors(t, "llama-spm");  // Llama 2's vocabulary is the first 32,000 tokens of Phi-3's
    // Of tokenizers 0.23: the markers take the line ends behind them along, three tokens do not.
    EXPECT_EQ(*t->encode("<|system|>\nBe brief.<|end|>\n<|user|>\nHi there<|end|>\n<|assistant|>\nYes.<|end|>\n",
                         {.parse_special = true}),
              Ids({32006, 1522, 11473, 29889, 32007, 32010, 6324, 727, 32007, 32001, 3869, 29889, 32007}));
    EXPECT_EQ(*t->encode("a</s> \nb<unk> c<s> d<|endoftext|>\ne<|placeholder1|>\nf", {.parse_special = true}),
              Ids({263, 2, 289, 0, 29871, 274, 1, 29871, 270, 32000, 29871, 13, 29872, 32002, 285}));
  }
}

TEST(TokenizerVectors, Falcon) {
  SKIP_WITHOUT_SHARED();
  check_vectors(from_hf(kShared + "/falcon").get(), "falcon");
  check_vectors(from_gguf(kLlamaCpp + "falcon.gguf").get(), "falcon");
}

TEST(TokenizerVectors, Mpt) {
  SKIP_WITHOUT_SHARED();
  check_vectors(from_gguf(kLlamaCpp + "mpt.gguf").get(), "mpt");
}

struct Plan {
  std::string encoding, text;
  Ids ids;
};
std::vector<Plan> plans() {
  std::vector<Plan> out;
  std::istringstream lines(file_text(kShared + "/tiktoken/TestPlans.txt").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    while (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.starts_with("EncodingName: ")) {
      out.push_back({line.substr(14), "", {}});
    } else if (line.starts_with("Sample: ")) {
      out.back().text = line.substr(8);
    } else if (line.starts_with("Encoded: ")) {
      out.back().ids = Json::parse(line.substr(9)).get<Ids>();
    }
  }
  return out;
}

TEST(TokenizerVectors, TiktokenPlans) {
  SKIP_WITHOUT_SHARED();
  const std::map<std::string, std::string> patterns = {
      {"r50k_base", R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
      {"cl100k_base",
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      {"o200k_base",
       R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
  std::map<std::string, int> checked;
  for (const auto& [name, pattern] : patterns) {
    const auto t = from_tiktoken(kShared + "/tiktoken/" + name + ".tiktoken", pattern);
    ASSERT_NE(t, nullptr);
    for (const Plan& plan : plans()) {
      if (plan.encoding != name) continue;
      EXPECT_EQ(*t->encode(plan.text), plan.ids) << name << ": " << plan.text.substr(0, 200);
      ++checked[name];
    }
  }
  for (const auto& [name, count] : checked) std::printf("%s: %d plans\n", name.c_str(), count);
  EXPECT_EQ(checked.size(), 3u);
}

}  // namespace
}  // namespace kvilt

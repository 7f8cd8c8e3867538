// text/pre_names.cc: the pre-tokenizers that GGUF files name and do not spell out.
// Source:     the tokenizer.json files of the named models; checked against vectors made with Hugging Face's
//             tokenizers where there are some (tests/tokenizer_vectors_test.cc).
#include <map>

#include "base/error.h"
#include "text/pre_tokenizer.h"

namespace kvilt {
namespace {

using Behavior = SplitStep::Behavior;

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// o200k: words by case, so that "theWord" parts; contractions stay with their word.
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                                R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                                R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

SplitStep split(std::string pattern, Behavior behavior = Behavior::kIsolated) {
  return {.kind = SplitStep::Kind::kSplit, .pattern = std::move(pattern), .behavior = behavior};
}
SplitStep punctuation() { return split(R"([\p{P}$+<=>^`|~])", Behavior::kContiguous); }

NamedPre one(const char* pattern, bool nfc = false, bool ignore_merges = false) {
  NamedPre pre;
  if (nfc) pre.normalize.push_back({.kind = NormalizeStep::Kind::kNfc});
  pre.split.push_back(split(pattern));
  pre.ignore_merges = ignore_merges;
  return pre;
}
NamedPre digits_then_gpt2() { return {{}, {split(R"(\p{N})"), split(kGpt2)}}; }
// What llama.cpp does if a file names none.
NamedPre unnamed() {
  return {{}, {split(R"([\p{P}$+<=>^~|]+)"), split(kGpt2), split(R"(\p{N}+)"), split("[0-9][0-9][0-9]")}};
}
NamedPre falcon() {
  // The pattern looks for digits in the bytes' printable spelling, in which bytes of "²" and the like count as digits.
  return {{},
          {punctuation(), split(kGpt2), SplitStep{.kind = SplitStep::Kind::kByteSpell},
           split(R"(\p{N})", Behavior::kContiguous), split("[0-9][0-9][0-9]")}};
}

const std::map<std::string, NamedPre, std::less<>>& table() {
  static const auto* names = new std::map<std::string, NamedPre, std::less<>>{
      {"gpt-2", one(kGpt2)},
      {"phi-2", one(kGpt2)},
      {"olmo", one(kGpt2, true)},
      {"mpt", one(kGpt2, true)},
      {"gpt-neox", one(kGpt2, true)},
      {"llama-bpe", one(kLlama3, false, true)},
      {"llama3", one(kLlama3, false, true)},
      {"llama-v3", one(kLlama3, false, true)},
      {"smaug-bpe", one(kLlama3, false, true)},
      {"dbrx", one(kLlama3)},
      {"qwen2", one(kQwen2, true)},
      {"stablelm2", one(kQwen2)},
      {"deepseek-r1-qwen", one(kQwen2, true)},
      {"qwen35", one(kQwen35, true)},
      {"gpt-4o", one(kO200k)},
      {"o200k", one(kO200k)},
      {"tekken", one(kTekken, false, true)},
      {"smollm", digits_then_gpt2()},
      {"starcoder", digits_then_gpt2()},
      {"refact", digits_then_gpt2()},
      {"codeshell", digits_then_gpt2()},
      {"command-r", digits_then_gpt2()},
      {"falcon", falcon()},
      {"default", unnamed()},
  };
  return *names;
}

}  // namespace

std::string_view gpt2_pattern() { return kGpt2; }

Result<NamedPre> named_pre_tokenizer(std::string_view name) {
  const auto at = table().find(name);
  if (at != table().end()) return at->second;
  std::string known;
  for (const auto& [key, value] : table()) known += (known.empty() ? "" : ", ") + key;
  return error(Code::kUnsupported, "pre-tokenizer '{}' is not known; known are {}", name, known);
}

}  // namespace kvilt

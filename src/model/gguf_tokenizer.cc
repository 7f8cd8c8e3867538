#include "model/gguf_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "model/fields.h"

namespace kvilt {
namespace {

constexpr size_t kMaxTokens = 1 << 22;
constexpr size_t kMaxTokenBytes = 1 << 16;
constexpr int64_t kTokenKinds = 6;

// How a vocabulary kind behaves if the file leaves a flag out.
struct VocabularyKind {
  std::string_view gguf, spec;
  bool add_bos, add_space_prefix;
  bool of_bytes = true;  // bpe: over bytes
};
constexpr VocabularyKind kKinds[] = {
    {"gpt2", "bpe", false, false},
    {"llama", "spm", true, true},
    {"gemma4", "bpe", true, false, false},
};
constexpr const char* kSpaceMark = "\xe2\x96\x81";  // SentencePiece's
// Pre-tokenizers whose models want BOS although their files, older than the flag, do not say so.
constexpr std::string_view kBosByPre[] = {"llama3", "llama-v3", "llama-bpe"};

Result<std::vector<std::string>> texts(const GgufFile& gguf, const std::string& key, const std::string& where) {
  std::vector<std::string> out;
  const GgufValue* value = gguf.find(key);
  if (!value) return out;
  const auto list = value->as_strings();
  if (!list) return error(Code::kCorrupt, "{}: '{}' must be an array of strings", where, key);
  if (list->size() > kMaxTokens) return error(Code::kCorrupt, "{}: '{}' has {} entries", where, key, list->size());
  out.reserve(list->size());
  for (const std::string_view text : *list) {
    if (text.size() > kMaxTokenBytes)
      return error(Code::kCorrupt, "{}: '{}': an entry of {} bytes", where, key, text.size());
    out.emplace_back(text);
  }
  return out;
}

Status read_kinds(const GgufFile& gguf, const std::string& where, TokenizerSpec& spec) {
  const GgufValue* value = gguf.find("tokenizer.ggml.token_type");
  if (!value) return {};
  const auto list = value->as_ints();
  if (!list || list->size() != spec.tokens.size()) {
    return error(Code::kCorrupt, "{}: 'tokenizer.ggml.token_type' must have one whole number per token", where);
  }
  for (const int64_t kind : *list) {
    if (kind < 1 || kind > kTokenKinds) return error(Code::kCorrupt, "{}: token type {}", where, kind);
    spec.kinds.push_back(static_cast<TokenKind>(kind - 1));
  }
  return {};
}

Status read_scores(const GgufFile& gguf, const std::string& where, TokenizerSpec& spec) {
  const GgufValue* value = gguf.find("tokenizer.ggml.scores");
  if (!value) return {};
  auto list = value->as_floats();
  if (!list || list->size() != spec.tokens.size()) {
    return error(Code::kCorrupt, "{}: 'tokenizer.ggml.scores' must have one number per token", where);
  }
  spec.scores = std::move(*list);
  return {};
}

// As the family's tokenizer.json: merges over characters of a text that is not cut before, with marks for spaces. The
// name in tokenizer.ggml.pre means nothing here.
void over_characters(TokenizerSpec& spec) {
  spec.pre.clear();
  spec.byte_level = false;
  spec.fuse_unknown = true;
  spec.normalize.push_back({.kind = NormalizeStep::Kind::kReplace, .pattern = " ", .content = kSpaceMark});
  spec.decode_replace.push_back({kSpaceMark, " "});
}

// Phi-3's special tokens take the white space behind them along, and no GGUF says so. Its tokenizer.json has the flag for
// all but three; llama.cpp goes by the model's name, too. Phi-4-mini, of the same architecture, is over bytes and has none.
void strip_behind_special(TokenizerSpec& spec) {
  constexpr std::string_view kKeep[] = {"<unk>", "<s>", "<|endoftext|>"};
  for (size_t id = 0; id < spec.kinds.size(); ++id) {
    const TokenKind kind = spec.kinds[id];
    const std::string& text = spec.tokens[id];
    const bool special = kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    if (!special && kind != TokenKind::kUserDefined) continue;
    AddedToken token{.id = static_cast<int32_t>(id)};
    token.rstrip = (special || text == "</s>") && std::ranges::find(kKeep, text) == std::end(kKeep);
    spec.added.push_back(token);
  }
}

// CodeLlama's words for prefix, suffix, middle and its end. Where a file has them as ordinary pieces, a text could spell
// them, and whoever asks for the words would get their letters.
void make_infill_words_special(TokenizerSpec& spec) {
  constexpr std::string_view kWords[] = {"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", "\u2581<EOT>"};
  for (size_t id = 0; id < spec.kinds.size(); ++id) {
    if (std::ranges::find(kWords, spec.tokens[id]) != std::end(kWords)) spec.kinds[id] = TokenKind::kControl;
  }
}

}  // namespace

Result<TokenizerSpec> read_gguf_tokenizer(const GgufFile& gguf, const std::string& where) {
  Fields fields(gguf, "tokenizer.ggml.", where);
  const std::string model = fields.text_or("model", "");
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds), [&](auto& row) { return row.gguf == model; });
  if (kind == std::end(kKinds)) {
    return error(Code::kUnsupported,
                 "{}: tokenizer '{}'; this build reads gpt2 (byte-level BPE), llama (SentencePiece BPE) and gemma4",
                 where, printable(model));
  }
  TokenizerSpec spec;
  spec.model = kind->spec;
  spec.pre = fields.text_or("pre", "default");  // older files lack the key
  if (kind->spec == "bpe" && !kind->of_bytes) over_characters(spec);
  KVILT_ASSIGN(spec.tokens, texts(gguf, "tokenizer.ggml.tokens", where));
  if (spec.tokens.empty()) return error(Code::kCorrupt, "{}: 'tokenizer.ggml.tokens' is missing or empty", where);
  KVILT_ASSIGN(spec.merges, texts(gguf, "tokenizer.ggml.merges", where));
  KVILT_TRY(read_kinds(gguf, where, spec));
  KVILT_TRY(read_scores(gguf, where, spec));
  if (spec.model == "spm") make_infill_words_special(spec);
  const GgufValue* architecture = gguf.find("general.architecture");
  if (architecture && architecture->as_string() == "phi3" && spec.model == "spm") strip_behind_special(spec);

  const bool bos_by_pre = std::find(std::begin(kBosByPre), std::end(kBosByPre), spec.pre) != std::end(kBosByPre);
  spec.add_bos = fields.flag_or("add_bos_token", kind->add_bos || bos_by_pre);
  spec.add_eos = fields.flag_or("add_eos_token", false);
  spec.add_space_prefix = fields.flag_or("add_space_prefix", kind->add_space_prefix);
  spec.byte_fallback = (kind->spec == "spm" || !kind->of_bytes) && std::ranges::count(spec.kinds, TokenKind::kByte) > 0;

  const auto id = [&](const char* key) -> std::optional<int32_t> {
    if (!fields.has(key)) return {};
    const int64_t value = fields.integer_or(key, -1, -1, UINT32_MAX);  // -1, signed or not: none
    if (value == -1 || value == UINT32_MAX) return {};
    if (value < static_cast<int64_t>(spec.tokens.size())) return static_cast<int32_t>(value);
    fields.fail(error(Code::kCorrupt, "{}: 'tokenizer.ggml.{}' is {}, the vocabulary has {} tokens", where, key, value,
                      spec.tokens.size()));
    return {};
  };
  spec.bos = id("bos_token_id");
  spec.eos = id("eos_token_id");
  spec.unknown = id("unknown_token_id");
  spec.eot = id("eot_token_id");
  if (const auto eom = id("eom_token_id")) spec.more_ends.push_back(*eom);
  KVILT_TRY(fields.status());
  return spec;
}

}  // namespace kvilt

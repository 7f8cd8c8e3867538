// text/tokenizer_hf_steps.cc: see tokenizer_hf_steps.h.
#include "text/tokenizer_hf_steps.h"

#include <nlohmann/json.hpp>

#include "text/pre_tokenizer.h"
#include "text/regex.h"

namespace kvilt {
namespace {

// Rust's char::is_alphanumeric and kin, as sets.
constexpr const char* kRustWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
constexpr const char* kPunctuation = R"([\p{P}$+<=>^`|~])";

Error unsupported(std::string_view what, std::string_view type) {
  return error(Code::kUnsupported, "tokenizer.json: the {} '{}' is not supported", what, type);
}

// Calls `read` for each member of a Sequence.
template <class Read>
Status each_of(const Json& step, const char* key, Read&& read) {
  const Json* list = json_member(step, key);
  if (list == nullptr || !list->is_array())
    return error(Code::kCorrupt, "tokenizer.json: a Sequence without '{}'", key);
  for (const Json& member : *list) KVILT_TRY(read(member));
  return {};
}

struct Pattern {
  std::string text;
  bool literal = true;
  std::string regex() const { return literal ? Regex::quote(text) : text; }
};
Result<Pattern> read_pattern(const Json& step) {
  const Json* pattern = json_member(step, "pattern");
  if (pattern == nullptr) return error(Code::kCorrupt, "tokenizer.json: a step without 'pattern'");
  const bool literal = json_member(*pattern, "String") != nullptr;
  KVILT_ASSIGN(std::string text, json_string(*pattern, literal ? "String" : "Regex"));
  if (text.empty()) return error(Code::kCorrupt, "tokenizer.json: an empty pattern");
  return Pattern{std::move(text), literal};
}

Result<SplitStep::Behavior> read_behavior(const Json& step, SplitStep::Behavior otherwise) {
  using Behavior = SplitStep::Behavior;
  if (json_member(step, "behavior") == nullptr) return otherwise;
  KVILT_ASSIGN(const std::string name, json_string(step, "behavior"));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return unsupported("split behavior", name);
}

Result<SplitStep::Prepend> read_prepend(const Json& step) {
  using Prepend = SplitStep::Prepend;
  if (json_member(step, "prepend_scheme") == nullptr) {
    KVILT_ASSIGN(const bool prefix, json_bool(step, "add_prefix_space", true));
    return prefix ? Prepend::kAlways : Prepend::kNever;
  }
  KVILT_ASSIGN(const std::string name, json_string(step, "prepend_scheme"));
  if (name == "always") return Prepend::kAlways;
  if (name == "first") return Prepend::kFirst;
  if (name == "never") return Prepend::kNever;
  return unsupported("prepend scheme", name);
}

SplitStep split_at(std::string pattern, SplitStep::Behavior behavior) {
  return {.kind = SplitStep::Kind::kSplit, .pattern = std::move(pattern), .behavior = behavior};
}

Status read_byte_level(const Json& step, TokenizerSpec& spec, bool& byte_level) {
  KVILT_ASSIGN(const bool prefix, json_bool(step, "add_prefix_space", true));
  KVILT_ASSIGN(const bool use_regex, json_bool(step, "use_regex", true));
  if (prefix) spec.split.push_back({.kind = SplitStep::Kind::kPrefixSpace});
  if (use_regex) spec.split.push_back(split_at(std::string(gpt2_pattern()), SplitStep::Behavior::kIsolated));
  spec.split.push_back({.kind = SplitStep::Kind::kByteSpell});
  byte_level = true;
  return {};
}

Status read_metaspace(const Json& step, TokenizerSpec& spec) {
  SplitStep out{.kind = SplitStep::Kind::kMetaspace};
  KVILT_ASSIGN(out.replacement, json_string(step, "replacement"));
  KVILT_ASSIGN(out.prepend, read_prepend(step));
  KVILT_ASSIGN(out.split, json_bool(step, "split", true));
  spec.split.push_back(std::move(out));
  return {};
}

Status read_strip_decoder(const Json& step, TokenizerSpec& spec) {
  KVILT_ASSIGN(const std::string content, json_string(step, "content"));
  KVILT_ASSIGN(const int64_t start, json_int(step, "start", 0));
  KVILT_ASSIGN(const int64_t stop, json_int(step, "stop", 0));
  if (content != " " || stop != 0 || start < 0 || start > 16)
    return unsupported("decoder", "Strip of more than leading spaces");
  spec.strip_start = static_cast<int>(start);
  return {};
}

}  // namespace

Status read_hf_normalizer(const Json& step, TokenizerSpec& spec) {
  using Kind = NormalizeStep::Kind;
  KVILT_ASSIGN(const std::string type, json_type(step, "normalizer"));
  NormalizeStep out;
  if (type == "Sequence") {
    return each_of(step, "normalizers", [&](const Json& member) { return read_hf_normalizer(member, spec); });
  } else if (type == "NFC") {
    out.kind = Kind::kNfc;
  } else if (type == "NFD") {
    out.kind = Kind::kNfd;
  } else if (type == "NFKC") {
    out.kind = Kind::kNfkc;
  } else if (type == "NFKD") {
    out.kind = Kind::kNfkd;
  } else if (type == "Lowercase") {
    out.kind = Kind::kLowercase;
  } else if (type == "Prepend") {
    out.kind = Kind::kPrepend;
    KVILT_ASSIGN(out.content, json_string(step, "prepend"));
  } else if (type == "Replace") {
    out.kind = Kind::kReplace;
    KVILT_ASSIGN(const Pattern pattern, read_pattern(step));
    KVILT_ASSIGN(out.content, json_string(step, "content"));
    out.pattern = pattern.text;
    out.literal = pattern.literal;
  } else if (type == "Strip") {
    out.kind = Kind::kStrip;
    KVILT_ASSIGN(out.left, json_bool(step, "strip_left", true));
    KVILT_ASSIGN(out.right, json_bool(step, "strip_right", true));
  } else {
    return unsupported("normalizer", type);
  }
  spec.normalize.push_back(std::move(out));
  return {};
}

Status read_hf_pre_tokenizer(const Json& step, TokenizerSpec& spec, bool& byte_level) {
  using Behavior = SplitStep::Behavior;
  KVILT_ASSIGN(const std::string type, json_type(step, "pre_tokenizer"));
  if (type == "Sequence") {
    return each_of(step, "pretokenizers", [&](const Json& m) { return read_hf_pre_tokenizer(m, spec, byte_level); });
  }
  if (type == "ByteLevel") return read_byte_level(step, spec, byte_level);
  if (type == "Metaspace") return read_metaspace(step, spec);
  if (type == "Split") {
    KVILT_ASSIGN(const Pattern pattern, read_pattern(step));
    KVILT_ASSIGN(const Behavior behavior, read_behavior(step, Behavior::kIsolated));
    spec.split.push_back(split_at(pattern.regex(), behavior));
    KVILT_ASSIGN(spec.split.back().invert, json_bool(step, "invert", false));
  } else if (type == "Digits") {
    KVILT_ASSIGN(const bool each, json_bool(step, "individual_digits", false));
    spec.split.push_back(split_at(R"(\p{N})", each ? Behavior::kIsolated : Behavior::kContiguous));
  } else if (type == "Punctuation") {
    KVILT_ASSIGN(const Behavior behavior, read_behavior(step, Behavior::kIsolated));
    spec.split.push_back(split_at(kPunctuation, behavior));
  } else if (type == "WhitespaceSplit") {
    spec.split.push_back(split_at(R"(\s)", Behavior::kRemoved));
  } else if (type == "Whitespace") {
    const std::string word(kRustWord);
    spec.split.push_back(split_at("[" + word + R"(]+|[^\s)" + word + "]+", Behavior::kRemoved));
    spec.split.back().invert = true;
  } else if (type == "BertPreTokenizer") {
    spec.split.push_back(split_at(R"(\s)", Behavior::kRemoved));
    spec.split.push_back(split_at(kPunctuation, Behavior::kIsolated));
  } else if (type == "CharDelimiterSplit") {
    KVILT_ASSIGN(const std::string delimiter, json_string(step, "delimiter"));
    if (delimiter.empty()) return error(Code::kCorrupt, "tokenizer.json: CharDelimiterSplit without a delimiter");
    spec.split.push_back(split_at(Regex::quote(delimiter), Behavior::kRemoved));
  } else {
    return unsupported("pre_tokenizer", type);
  }
  return {};
}

Status read_hf_decoder(const Json& step, TokenizerSpec& spec) {
  KVILT_ASSIGN(const std::string type, json_type(step, "decoder"));
  if (type == "Sequence") {
    return each_of(step, "decoders", [&](const Json& member) { return read_hf_decoder(member, spec); });
  }
  if (type == "ByteLevel" || type == "ByteFallback" || type == "Fuse") return {};  // bytes are joined as bytes anyway
  if (type == "Replace") {
    KVILT_ASSIGN(const Pattern pattern, read_pattern(step));
    if (!pattern.literal) return unsupported("decoder", "Replace of a regular expression");
    KVILT_ASSIGN(std::string content, json_string(step, "content"));
    spec.decode_replace.push_back({pattern.text, std::move(content)});
    return {};
  }
  if (type == "Metaspace") {
    KVILT_ASSIGN(std::string replacement, json_string(step, "replacement"));
    KVILT_ASSIGN(const SplitStep::Prepend prepend, read_prepend(step));
    spec.decode_replace.push_back({std::move(replacement), " "});
    spec.strip_start = prepend == SplitStep::Prepend::kNever ? 0 : 1;
    return {};
  }
  if (type == "Strip") return read_strip_decoder(step, spec);
  return unsupported("decoder", type);
}

namespace {

constexpr size_t kMaxAround = 256;  // tokens put before or after every text

std::optional<int32_t> as_id(const Json& id) {
  if (!id.is_number_integer() || id < 0 || id > INT32_MAX) return std::nullopt;  // a cast would wrap
  return id.get<int32_t>();
}

Status read_pair(const Json& step, const char* key, std::vector<int32_t>& out) {
  const Json* pair = json_member(step, key);
  const bool is_pair = pair != nullptr && pair->is_array() && pair->size() == 2;
  const std::optional<int32_t> id = is_pair ? as_id((*pair)[1]) : std::nullopt;
  if (!id) return error(Code::kCorrupt, "tokenizer.json: post_processor's '{}' is not a token and its id", key);
  out = {*id};
  return {};
}

Status read_template(const Json& step, TokenizerSpec& spec) {
  const Json* single = json_member(step, "single");
  if (single == nullptr || !single->is_array())
    return error(Code::kCorrupt, "tokenizer.json: TemplateProcessing without 'single'");
  bool after_text = false;
  for (const Json& part : *single) {
    if (json_member(part, "Sequence") != nullptr) {
      if (after_text) return unsupported("post_processor", "a template with the text twice");
      after_text = true;
      continue;
    }
    const Json* token = json_member(part, "SpecialToken");
    if (token == nullptr)
      return error(Code::kCorrupt, "tokenizer.json: TemplateProcessing has a part that is neither text nor token");
    KVILT_ASSIGN(const std::string name, json_string(*token, "id"));
    const Json* all = json_member(step, "special_tokens");
    const Json* entry = all == nullptr ? nullptr : json_member(*all, name.c_str());
    const Json* ids = entry == nullptr ? nullptr : json_member(*entry, "ids");
    if (ids == nullptr || !ids->is_array())
      return error(Code::kCorrupt, "tokenizer.json: TemplateProcessing does not say what '{}' is", name);
    for (const Json& id : *ids) {
      const std::optional<int32_t> token_id = as_id(id);
      if (!token_id) return error(Code::kCorrupt, "tokenizer.json: an id of '{}' is not a token's", name);
      std::vector<int32_t>& around = after_text ? spec.suffix : spec.prefix;
      if (around.size() == kMaxAround) return unsupported("post_processor", "a template of very many tokens");
      around.push_back(*token_id);
    }
  }
  return {};
}

}  // namespace

Status read_hf_post_processor(const Json& step, TokenizerSpec& spec) {
  KVILT_ASSIGN(const std::string type, json_type(step, "post_processor"));
  if (type == "Sequence") {
    return each_of(step, "processors", [&](const Json& member) { return read_hf_post_processor(member, spec); });
  }
  if (type == "ByteLevel") return {};  // changes offsets only
  if (type == "TemplateProcessing") return read_template(step, spec);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    KVILT_TRY(read_pair(step, "cls", spec.prefix));
    return read_pair(step, "sep", spec.suffix);
  }
  return unsupported("post_processor", type);
}

}  // namespace kvilt

// text/vocabulary.cc: see vocabulary.h.
#include "text/vocabulary.h"

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

constexpr size_t kMaxTokens = 4 << 20;       // the largest vocabularies have 262,144
constexpr size_t kMaxTokenBytes = 64 << 10;  // one token
constexpr size_t kMaxArena = 1u << 30;
constexpr size_t kMaxReplacements = 64;                     // steps of a decoder, each over all tokens
constexpr size_t kMaxTextGrowth = 4, kTextSlack = 1 << 20;  // of decoded texts, compared with the tokens

// <...> or [...]: what a template puts between texts.
bool looks_like_marker(std::string_view t) {
  return t.size() > 2 && ((t.front() == '<' && t.back() == '>') || (t.front() == '[' && t.back() == ']'));
}

// Markup that gemma's vocabularies have as tokens, and texts have as text. No other words: <think> is a marker. Nor
// <s>, which is BOS to most vocabularies over characters.
bool is_html_element(std::string_view t) {
  static constexpr std::string_view kElements[] = {
      "table", "caption", "thead", "tbody", "tfoot", "tr", "th",  "td",     "h1",  "h2",   "h3",        "h4",
      "h5",    "h6",      "b",     "i",     "u",     "em", "sub", "strong", "sup", "code", "blockquote"};
  if (t.size() < 3 || t.front() != '<' || t.back() != '>') return false;
  t = t.substr(1, t.size() - 2);
  if (t.front() == '/') t.remove_prefix(1);
  return std::ranges::find(kElements, t) != std::end(kElements);
}

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// Stops early when the result is longer than `limit`.
std::string replace_all(std::string_view text, const TextReplacement& r, size_t limit) {
  std::string out;
  size_t from = 0;
  for (size_t at; (at = text.find(r.from, from)) != std::string_view::npos; from = at + r.from.size()) {
    out.append(text.substr(from, at - from)).append(r.to);
    if (out.size() > limit) return out;
  }
  return out.append(text.substr(from));
}

}  // namespace

int byte_of_spelling(std::string_view t) {
  if (t.size() != 6 || !t.starts_with("<0x") || t[5] != '>' || hex(t[3]) < 0 || hex(t[4]) < 0) return -1;
  return hex(t[3]) * 16 + hex(t[4]);
}

Result<Vocabulary> Vocabulary::create(const TokenizerSpec& spec, bool byte_level) {
  const size_t count = spec.tokens.size();
  if (count == 0) return error(Code::kCorrupt, "tokenizer: the vocabulary is empty");
  if (count > kMaxTokens) return error(Code::kUnsupported, "tokenizer: {} tokens are more than {}", count, kMaxTokens);
  if (!spec.kinds.empty() && spec.kinds.size() != count) {
    return error(Code::kCorrupt, "tokenizer: {} tokens but {} token types", count, spec.kinds.size());
  }
  Vocabulary v;
  v.kinds_ = spec.kinds.empty() ? std::vector<TokenKind>(count, TokenKind::kNormal) : spec.kinds;
  v.piece_at_.reserve(count + 1);
  std::string bytes;
  for (size_t id = 0; id < count; ++id) {
    const std::string& token = spec.tokens[id];
    v.piece_at_.push_back(static_cast<uint32_t>(v.pieces_.size()));
    if (token.size() > kMaxTokenBytes || v.pieces_.size() + token.size() > kMaxArena) {
      return error(Code::kUnsupported, "tokenizer: token {} has {} bytes, or the vocabulary too many", id,
                   token.size());
    }
    if (v.kinds_[id] > TokenKind::kByte) return error(Code::kCorrupt, "tokenizer: token {} has no valid type", id);
    const bool spelt = byte_level && v.kinds_[id] == TokenKind::kNormal && unspell_bytes(token, bytes);
    v.pieces_.append(spelt ? bytes : token);
  }
  v.piece_at_.push_back(static_cast<uint32_t>(v.pieces_.size()));
  v.find_bytes(spec, byte_level);
  KVILT_TRY(v.decode_all(spec, byte_level));
  v.index(spec.user_defined_is_text, !byte_level);
  if (byte_level) {
    for (int b = 0; b < 256; ++b) v.of_byte_[b] = v.find_piece(std::string(1, static_cast<char>(b)));
  }
  return v;
}

void Vocabulary::find_bytes(const TokenizerSpec& spec, bool byte_level) {
  of_byte_.fill(-1);
  if (byte_level) return;
  const bool by_spelling = spec.kinds.empty() || spec.byte_fallback;
  for (int32_t id = 0; id < size(); ++id) {
    const int byte = byte_of_spelling(spec.tokens[id]);
    if (kinds_[id] != TokenKind::kByte && !(by_spelling && kinds_[id] == TokenKind::kNormal && byte >= 0)) continue;
    kinds_[id] = TokenKind::kByte;
    if (byte >= 0 && of_byte_[byte] < 0) of_byte_[byte] = id;
  }
}

Status Vocabulary::decode_all(const TokenizerSpec& spec, bool byte_level) {
  if (byte_level || (spec.decode_replace.empty() && !spec.join_with_space && of_byte_[0] < 0)) return {};
  const size_t limit = kTextSlack + kMaxTextGrowth * pieces_.size() + kinds_.size();
  const auto too_much = [&] {
    return error(Code::kUnsupported, "tokenizer: the decoder makes more than {} bytes of the vocabulary", limit);
  };
  if (spec.decode_replace.size() > kMaxReplacements) {
    return error(Code::kUnsupported, "tokenizer: a decoder of {} steps; {} are allowed", spec.decode_replace.size(),
                 kMaxReplacements);
  }
  for (int32_t id = 0; id < size(); ++id) {
    decoded_at_.push_back(static_cast<uint32_t>(decoded_.size()));
    const int byte = kinds_[id] == TokenKind::kByte ? byte_of_spelling(spec.tokens[id]) : -1;
    if (byte >= 0) {
      decoded_.push_back(static_cast<char>(byte));
      continue;
    }
    std::string text(piece(id));
    for (const TextReplacement& r : spec.decode_replace) {
      if (!r.from.empty()) text = replace_all(text, r, limit);
      if (decoded_.size() + text.size() > limit) return too_much();
    }
    if (spec.join_with_space && !text.empty()) decoded_.push_back(' ');
    decoded_.append(text);
  }
  decoded_at_.push_back(static_cast<uint32_t>(decoded_.size()));
  return {};
}

void Vocabulary::index(bool user_defined_is_text, bool html_is_text) {
  const auto text_of = [this](int32_t id) { return piece(id); };
  const auto is_marker = [&](std::string_view text) {
    return !user_defined_is_text && looks_like_marker(text) && !(html_is_text && is_html_element(text));
  };
  for (int32_t id = 0; id < size(); ++id) {
    const TokenKind kind = kinds_[id];
    is_text_.push_back(kind == TokenKind::kNormal || kind == TokenKind::kUnused ||
                       (kind == TokenKind::kUserDefined && !is_marker(piece(id))));
  }
  by_piece_.reserve(kinds_.size());
  others_.reserve(static_cast<size_t>(std::count(is_text_.begin(), is_text_.end(), false)));
  for (int32_t id = 0; id < size(); ++id) {
    const std::string_view text = piece(id);
    if (text.empty()) continue;
    (is_text(id) ? by_piece_ : others_).add(text, id, text_of);  // the first of two equal tokens counts
    if (is_text(id)) longest_piece_ = std::max(longest_piece_, text.size());
  }
}

int32_t Vocabulary::find_piece(std::string_view text) const {
  return by_piece_.find(text, [this](int32_t id) { return piece(id); });
}

int32_t Vocabulary::find_any(std::string_view text) const {
  const int32_t id = find_piece(text);
  return id >= 0 ? id : others_.find(text, [this](int32_t other) { return piece(other); });
}

}  // namespace kvilt

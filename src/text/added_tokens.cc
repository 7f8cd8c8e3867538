// text/added_tokens.cc: see added_tokens.h.
#include "text/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

constexpr size_t kMaxBytes = 256;  // of one token: a text may cost that many steps a byte; real ones have under 60

size_t previous_character(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool word_before(std::string_view text, size_t at) {
  return at > 0 && is_word_character(first_code_point(text.substr(previous_character(text, at))).value);
}
bool word_after(std::string_view text, size_t at) {
  return at < text.size() && is_word_character(first_code_point(text.substr(at)).value);
}

}  // namespace

Result<AddedTokens> AddedTokens::create(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
  AddedTokens added;
  const auto take = [&](const AddedToken& token) -> Status {
    const std::string_view text = vocabulary.piece(token.id);
    if (text.empty() || !is_utf8(text)) return {};  // a part of a character would cut texts inside a character
    if (text.size() > kMaxBytes) {
      return error(Code::kUnsupported, "tokenizer: added token {} has {} bytes; {} are allowed", token.id, text.size(),
                   kMaxBytes);
    }
    const bool is_text = vocabulary.kind(token.id) == TokenKind::kUserDefined && vocabulary.is_text(token.id);
    added.entries_.push_back({token, is_text});
    added.add(token.normalized ? added.second_ : added.first_, text, static_cast<int32_t>(added.entries_.size() - 1));
    return {};
  };
  for (const AddedToken& token : spec.added) {
    if (!vocabulary.contains(token.id)) {
      return error(Code::kCorrupt, "tokenizer: added token {} is not one of {} tokens", token.id, vocabulary.size());
    }
    KVILT_TRY(take(token));
  }
  for (int32_t id = 0; spec.added.empty() && id < vocabulary.size(); ++id) {
    const TokenKind kind = vocabulary.kind(id);
    if (kind == TokenKind::kControl || kind == TokenKind::kUnknown || kind == TokenKind::kUserDefined)
      KVILT_TRY(take({.id = id}));
  }
  return added;
}

void AddedTokens::add(Trie& trie, std::string_view text, int32_t entry) {
  uint32_t node = 0;
  for (const char c : text) {
    const uint64_t key = static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
    const auto [at, fresh] = trie.edges.emplace(key, static_cast<uint32_t>(trie.entry_at.size()));
    if (fresh) trie.entry_at.push_back(-1);
    node = at->second;
  }
  if (trie.entry_at[node] < 0) trie.entry_at[node] = entry;
  trie.first.set(static_cast<uint8_t>(text[0]));
  trie.has_text = trie.has_text || entries_[entry].is_text;
}

int32_t AddedTokens::longest(const Trie& trie, std::string_view text, size_t at, size_t limit, size_t trusted_end,
                             size_t& size) const {
  int32_t found = -1;
  uint32_t node = 0;
  for (size_t i = at; i < limit; ++i) {
    const auto edge = trie.edges.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(text[i]));
    if (edge == trie.edges.end()) break;
    node = edge->second;
    const int32_t entry = trie.entry_at[node];
    if (entry < 0 || !(entries_[entry].is_text || i + 1 <= trusted_end)) continue;
    found = entry;
    size = i + 1 - at;
  }
  return found;
}

void AddedTokens::pass(const Trie& trie, std::string_view text, const Scope& scope, ByteRange within,
                       std::vector<TextPart>& out) const {
  size_t done = within.begin;  // everything before it is in `out`
  auto trusted = scope.trusted.begin();
  for (size_t at = within.begin; at < within.end;) {
    if (!trie.first[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    while (trusted != scope.trusted.end() && trusted->end <= at) ++trusted;
    size_t trusted_end = scope.everywhere ? within.end : 0;
    if (!scope.everywhere && trusted != scope.trusted.end() && trusted->begin <= at) trusted_end = trusted->end;
    size_t size = 0;
    const int32_t entry = longest(trie, text, at, within.end, trusted_end, size);
    if (entry < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = entries_[entry].token;
    size_t begin = at, end = at + size;
    at = end;
    if (token.single_word && (word_before(text, begin) || word_after(text, end))) continue;
    while (token.lstrip && begin > done) {
      const size_t before = previous_character(text, begin);
      if (before < done || !is_white_space(first_code_point(text.substr(before)).value)) break;
      begin = before;
    }
    while (token.rstrip && end < within.end) {
      const CodePoint c = first_code_point(text.substr(end));
      if (!is_white_space(c.value)) break;
      end += c.size;
    }
    if (done < begin) out.push_back({{done, begin}});
    out.push_back({{begin, end}, token.id});
    done = at = end;
  }
  if (done < within.end) out.push_back({{done, within.end}});
}

std::vector<TextPart> AddedTokens::cut(std::string_view text, bool everywhere,
                                       std::span<const ByteRange> trusted) const {
  std::vector<TextPart> parts;
  if (!text.empty()) parts.push_back({{0, text.size()}});
  const Scope scope{everywhere, trusted};
  for (const Trie* trie : {&first_, &second_}) {
    if (trie->first.none() || (!everywhere && trusted.empty() && !trie->has_text)) continue;
    std::vector<TextPart> finer;
    for (const TextPart& s : parts) {
      if (s.id >= 0) {
        finer.push_back(s);
      } else {
        pass(*trie, text, scope, s.range, finer);
      }
    }
    parts = std::move(finer);
  }
  return parts;
}

}  // namespace kvilt

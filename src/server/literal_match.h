// server/literal_match.h: where a literal stands in a text that still grows, or may come to stand.
// Idea:       space within the literal stands for any run of it, since templates and models differ there.
// Cost:       match: O(literal and space); find: O(text), times the literal where its first byte is frequent.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace kvilt::server {

inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

inline size_t space_before(std::string_view text) {
  return static_cast<size_t>(std::ranges::find_if_not(text, is_space) - text.begin());
}

inline size_t size_without_space(std::string_view text) {
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text.size();
}

inline std::string_view trimmed(std::string_view text) {
  text = text.substr(0, size_without_space(text));
  return text.substr(space_before(text));
}

struct Match {
  enum class How { kNo, kPartial, kFull };
  How how = How::kNo;
  size_t size = 0;  // of the text that it took; where it failed, up to there
  bool full() const { return how == How::kFull; }
  bool partial() const { return how == How::kPartial; }
};

// Space in the pattern stands for any run of it. REQUIRES: the pattern begins and ends with something else.
inline Match match(std::string_view pattern, std::string_view text) {
  size_t at = 0;
  for (size_t p = 0; p < pattern.size();) {
    if (is_space(pattern[p])) {
      p += space_before(pattern.substr(p));
      at += space_before(text.substr(at));
      continue;
    }
    if (at == text.size()) return {Match::How::kPartial, at};
    if (text[at] != pattern[p]) return {Match::How::kNo, at};
    ++at;
    ++p;
  }
  return {Match::How::kFull, at};
}

// The first tag of a literal; all of it where it has none.
inline std::string_view first_tag(std::string_view literal) {
  const size_t at = literal.find_first_of(">]");
  return at == std::string_view::npos ? literal : literal.substr(0, at + 1);
}

// Whether what first_tag gave is one.
inline bool is_tag(std::string_view literal) { return literal.ends_with('>') || literal.ends_with(']'); }

// Its tags, one after the other.
inline std::vector<std::string_view> tags_of(std::string_view literal) {
  std::vector<std::string_view> out;
  while (!(literal = trimmed(literal)).empty()) {
    out.push_back(first_tag(literal));
    literal.remove_prefix(out.back().size());
  }
  return out;
}

struct Place {
  size_t at = 0;
  Match match;
};

// The first place from `from` on where the pattern stands, or may stand when more text comes.
inline Place find(std::string_view pattern, std::string_view text, size_t from = 0) {
  if (pattern.empty()) return {text.size(), {}};
  for (size_t at = from; (at = text.find(pattern[0], at)) != std::string_view::npos; ++at) {
    const Match here = match(pattern, text.substr(at));
    if (here.how != Match::How::kNo) return {at, here};
  }
  return {text.size(), {}};
}

}  // namespace kvilt::server

// template/jinja/text.h: strings that know where their bytes came from.
// Role:       the string type of the chat template interpreter.
// Idea:       the borders of the caller's parts are carried through the rendering, not searched for afterwards.
// Invariants: spans are sorted, disjoint and not empty; a byte outside of every span is the template's own (trusted).
//             Borders of spans lie between code points when the inputs' did.
// Cost:       appending copies bytes and the few spans in range; a caller's string has one span per mark plus the gaps.
// Not here:   metering (value.h makes metered, shared texts).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvilt::jinja {

inline constexpr int32_t kUnmarked = -1;  // the caller's text, in no marked part

struct Span {
  size_t begin, end;  // bytes of the text
  int32_t mark;       // >= 0: that marked part; kUnmarked
  size_t source;      // offset of `begin` within the marked part: two spans join only if they were adjacent in it
};

struct Text {
  std::string bytes;
  std::vector<Span> spans;
  bool markup = false;  // went through |safe: Jinja escapes what is then added with +

  static Text trusted(std::string_view bytes) { return Text{std::string(bytes), {}, false}; }
  static Text untrusted(std::string_view bytes);
};

class TextBuilder {
 public:
  size_t size() const { return text_.bytes.size(); }
  void reserve(size_t bytes) { text_.bytes.reserve(bytes); }
  void trusted(std::string_view bytes) { text_.bytes.append(bytes); }
  void append(const Text& text) { append(text, 0, text.bytes.size()); }
  void append(const Text& text, size_t begin, size_t end);

  // Appends map(piece) for the pieces of text[begin, end) that have one origin each; the result of a piece has its
  // origin. map(std::string_view piece, std::string& out) appends to out and may keep state from piece to piece.
  template <class Map>
  void append_mapped(const Text& text, size_t begin, size_t end, Map&& map);

  Text take() { return std::move(text_); }

 private:
  void add_span(size_t begin, size_t end, int32_t mark, size_t source);
  Text text_;
};

template <class Map>
void TextBuilder::append_mapped(const Text& text, size_t begin, size_t end, Map&& map) {
  const std::string_view bytes = text.bytes;
  size_t at = begin;
  for (const Span& span : text.spans) {
    if (span.end <= begin) continue;
    if (span.begin >= end) break;
    const size_t from = std::max(span.begin, begin), to = std::min(span.end, end);
    if (at < from) map(bytes.substr(at, from - at), text_.bytes);
    const size_t out = text_.bytes.size();
    map(bytes.substr(from, to - from), text_.bytes);
    add_span(out, text_.bytes.size(), span.mark, span.source + (from - span.begin));
    at = to;
  }
  if (at < end) map(bytes.substr(at, end - at), text_.bytes);
}

// --- code points; a byte that is no valid UTF-8 counts as one ---
size_t next_char(std::string_view bytes, size_t at);  // offset after the code point at `at`; REQUIRES: at < size
size_t prev_char(std::string_view bytes, size_t at);  // offset of the code point before `at`; REQUIRES: at > 0
char32_t char_at(std::string_view bytes, size_t at);  // its value; 0xDC80 + byte when it is not valid
size_t count_chars(std::string_view bytes);
size_t char_offset(std::string_view bytes, size_t index);  // byte offset of code point `index`, or the size
void append_utf8(char32_t c, std::string& out);
bool is_ascii(std::string_view bytes);
bool is_valid_utf8(std::string_view bytes);
bool is_space(char32_t c);  // Python's str.isspace
bool is_alpha(char32_t c);
char32_t to_upper(char32_t c);
char32_t to_lower(char32_t c);

// First occurrence at or after `from`, or npos; linear.
size_t find_bytes(std::string_view bytes, std::string_view what, size_t from);

}  // namespace kvilt::jinja

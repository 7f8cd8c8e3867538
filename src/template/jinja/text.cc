// template/jinja/text.cc: see text.h.
#include "template/jinja/text.h"

#include <locale.h>
#include <string.h>
#include <wctype.h>

namespace kvilt::jinja {
namespace {

// One locale object for the process, so that case mapping does not depend on setlocale. C.UTF-8 is part of glibc.
locale_t unicode_locale() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

// Length of the valid sequence at `at`, or 0.
size_t sequence_length(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || at + length > bytes.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F)) return 0;
  if ((lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F)) return 0;
  return length;
}

constexpr size_t kKmpFrom = 32, kKmpTo = 256;

// Knuth, Morris and Pratt. REQUIRES: 1 <= what.size() <= kKmpTo.
size_t find_kmp(std::string_view bytes, std::string_view what, size_t from) {
  uint16_t border[kKmpTo + 1];  // border[n]: the longest proper prefix of what[0, n) that also ends it
  border[0] = border[1] = 0;
  for (size_t n = 1, k = 0; n < what.size(); ++n) {
    while (k > 0 && what[n] != what[k]) k = border[k];
    if (what[n] == what[k]) ++k;
    border[n + 1] = static_cast<uint16_t>(k);
  }
  for (size_t at = from, k = 0; at < bytes.size(); ++at) {
    while (k > 0 && bytes[at] != what[k]) k = border[k];
    if (bytes[at] == what[k] && ++k == what.size()) return at + 1 - k;
  }
  return std::string_view::npos;
}

}  // namespace

Text Text::untrusted(std::string_view bytes) {
  Text text{std::string(bytes), {}, false};
  if (!bytes.empty()) text.spans.push_back({0, bytes.size(), kUnmarked, 0});
  return text;
}

void TextBuilder::add_span(size_t begin, size_t end, int32_t mark, size_t source) {
  if (begin == end) return;
  if (!text_.spans.empty()) {
    Span& last = text_.spans.back();
    const bool continues = mark == kUnmarked || last.source + (last.end - last.begin) == source;
    if (last.end == begin && last.mark == mark && continues) {
      last.end = end;
      return;
    }
  }
  text_.spans.push_back({begin, end, mark, source});
}

void TextBuilder::append(const Text& text, size_t begin, size_t end) {
  const size_t base = text_.bytes.size();
  text_.bytes.append(text.bytes, begin, end - begin);
  if (text.spans.empty()) return;
  auto span = std::partition_point(text.spans.begin(), text.spans.end(), [&](const Span& s) { return s.end <= begin; });
  for (; span != text.spans.end() && span->begin < end; ++span) {
    const size_t from = std::max(span->begin, begin), to = std::min(span->end, end);
    add_span(base + from - begin, base + to - begin, span->mark, span->source + (from - span->begin));
  }
}

size_t next_char(std::string_view bytes, size_t at) { return at + std::max<size_t>(1, sequence_length(bytes, at)); }

size_t prev_char(std::string_view bytes, size_t at) {
  for (size_t back = 1; back <= 4 && back <= at; ++back)
    if (sequence_length(bytes, at - back) == back) return at - back;
  return at - 1;
}

char32_t char_at(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[at + i]); };
  switch (sequence_length(bytes, at)) {
    case 1:
      return byte(0);
    case 2:
      return char32_t(byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return char32_t(byte(0) & 0x0F) << 12 | char32_t(byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    case 4:
      return char32_t(byte(0) & 0x07) << 18 | char32_t(byte(1) & 0x3F) << 12 | char32_t(byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
    default:
      return 0xDC00 + byte(0);
  }
}

size_t count_chars(std::string_view bytes) {
  if (is_ascii(bytes)) return bytes.size();
  size_t count = 0;
  for (size_t at = 0; at < bytes.size(); at = next_char(bytes, at)) ++count;
  return count;
}

size_t char_offset(std::string_view bytes, size_t index) {
  if (is_ascii(bytes)) return std::min(index, bytes.size());
  size_t at = 0;
  while (index > 0 && at < bytes.size()) {
    at = next_char(bytes, at);
    --index;
  }
  return at;
}

void append_utf8(char32_t c, std::string& out) {
  if (c >= 0xDC80 && c <= 0xDCFF) {  // an invalid byte stays as it was
    out += static_cast<char>(c - 0xDC00);
  } else if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

bool is_ascii(std::string_view bytes) {
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t eight;
    memcpy(&eight, bytes.data() + at, 8);
    if (eight & 0x8080808080808080u) return false;
  }
  for (; at < bytes.size(); ++at)
    if (static_cast<unsigned char>(bytes[at]) >= 0x80) return false;
  return true;
}

bool is_valid_utf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = sequence_length(bytes, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_alpha(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return unicode_locale() && iswalpha_l(static_cast<wint_t>(c), unicode_locale());
}

char32_t to_upper(char32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z' ? c - 32 : c;
  return unicode_locale() ? static_cast<char32_t>(towupper_l(static_cast<wint_t>(c), unicode_locale())) : c;
}

char32_t to_lower(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  return unicode_locale() ? static_cast<char32_t>(towlower_l(static_cast<wint_t>(c), unicode_locale())) : c;
}

size_t find_bytes(std::string_view bytes, std::string_view what, size_t from) {
  if (from > bytes.size()) return std::string_view::npos;
  if (what.empty()) return from;
  // std::string_view::find is quadratic on texts made for it. glibc's memmem is linear for long needles (two-way) and
  // cheap enough for short ones, but not in between: 25 ms for 250 bytes in 100 KB of the same letter.
  if (what.size() >= kKmpFrom && what.size() <= kKmpTo) return find_kmp(bytes, what, from);
  const void* hit = memmem(bytes.data() + from, bytes.size() - from, what.data(), what.size());
  return hit ? static_cast<size_t>(static_cast<const char*>(hit) - bytes.data()) : std::string_view::npos;
}

}  // namespace kvilt::jinja

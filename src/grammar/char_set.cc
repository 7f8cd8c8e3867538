#include "grammar/char_set.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

constexpr int32_t kFirstHalf = 0xD800, kLastHalf = 0xDFFF;  // of surrogate pairs

bool is_letter(int32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_plain(int32_t c) { return is_letter(c) || (c >= '0' && c <= '9') || c == ' ' || c == '_'; }

// Escapes have a fixed width: digits behind them are characters of their own.
void append_char(std::string& out, int32_t c) {
  if (is_plain(c)) {
    out += static_cast<char>(c);
  } else if (c >= 0x80 && (c < kFirstHalf || c > kLastHalf)) {
    append_utf8(out, c);
  } else {
    out += fmt::format("\\u{:04X}", c);
  }
}

}  // namespace

void CharSet::add(int32_t first, int32_t last) {
  CHECK(first >= 0 && first <= last && last <= kLast);
  ranges_.push_back({first, last});
}

void CharSet::add(const CharSet& other) { ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end()); }

bool CharSet::has_beyond_ascii() const {
  return std::ranges::any_of(ranges_, [](const Range& r) { return r.last > 0x7F; });
}

std::vector<CharSet::Range> CharSet::sorted() const {
  std::vector<Range> in = ranges_, out;
  std::ranges::sort(in, {}, &Range::first);
  for (const Range& r : in) {
    if (!out.empty() && r.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, r.last);
    } else {
      out.push_back(r);
    }
  }
  return out;
}

CharSet CharSet::others() const {
  CharSet out;
  int32_t next = 0;
  for (const Range& r : sorted()) {
    if (r.first > next) out.add(next, r.first - 1);
    next = r.last + 1;
  }
  if (next <= kLast) out.add(next, kLast);
  return out;
}

void CharSet::add_other_cases() {
  constexpr int32_t kApart = 'a' - 'A';
  CharSet more;
  for (const Range& r : ranges_) {
    for (int32_t c = std::max<int32_t>(r.first, 'A'); c <= std::min<int32_t>(r.last, 'z'); ++c) {
      if (is_letter(c)) more.add(c ^ kApart, c ^ kApart);
    }
  }
  add(more);
}

std::string CharSet::to_ebnf() const {
  CHECK(!empty());
  // What has the last one is written by what it leaves out: EBNF's "[^...]" takes whole characters of UTF-8 alone.
  std::vector<Range> written = sorted();
  const bool negated = written.back().last == kLast;
  if (negated) written = others().sorted();
  std::string out = negated ? "[^" : "[";
  const auto append = [&](int32_t first, int32_t last) {
    if (first > last) return;
    append_char(out, first);
    if (last == first) return;
    out += '-';
    append_char(out, last);
  };
  for (const Range& r : written) {
    append(r.first, std::min(r.last, kFirstHalf - 1));
    append(std::max(r.first, kLastHalf + 1), r.last);
  }
  return out + "]";
}

std::string text_to_ebnf(std::string_view text, bool any_case) {
  std::string out, word;
  const auto end_word = [&] {
    if (word.empty()) return;
    out += (out.empty() ? "\"" : " \"") + word + '"';
    word.clear();
  };
  while (!text.empty()) {
    const CodePoint next = first_code_point(text);
    text.remove_prefix(static_cast<size_t>(next.size));
    if (any_case && is_letter(next.value)) {
      end_word();
      CharSet both(next.value, next.value);
      both.add_other_cases();
      out += (out.empty() ? "" : " ") + both.to_ebnf();
    } else {
      append_char(word, next.value);
    }
  }
  end_word();
  return out.empty() ? "\"\"" : out;
}

}  // namespace kvilt

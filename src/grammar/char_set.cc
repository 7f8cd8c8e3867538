#include "grammar/char_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

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

// What JSON has a letter for, with that letter.
constexpr std::pair<int32_t, char> kShort[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                               {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};
constexpr int32_t kLastControl = 0x1F;

bool is_escaped(int32_t c) { return c <= kLastControl || c == '"' || c == '\\'; }

char short_escape(int32_t c) {
  const auto* const found = std::ranges::find(kShort, c, &std::pair<int32_t, char>::first);
  return found == std::end(kShort) ? '\0' : found->second;
}

// The escape of a character that has one.
std::string escaped(int32_t c) {
  const char letter = short_escape(c);
  return letter ? std::string("\\") + letter : fmt::format("\\u{:04x}", c);
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

bool CharSet::has(int32_t c) const {
  return std::ranges::any_of(ranges_, [c](const Range& r) { return r.first <= c && c <= r.last; });
}

// The escapes share their beginnings: a class of all characters stays short.
std::string CharSet::to_ebnf(Spelling spelling) const {
  CHECK(!empty());
  if (spelling == Spelling::kPlain) return class_of();
  CharSet letters, low, high;  // of short escapes; last digits of \u000. and of \u001.
  CharSet left_out = others();
  for (int32_t c = 0; c <= '\\'; ++c) {
    if (!is_escaped(c)) continue;
    left_out.add(c, c);
    if (!has(c)) continue;
    const char letter = short_escape(c);
    const char last = letter ? letter : fmt::format("{:x}", c & 0xF)[0];
    (letter ? letters : c < 0x10 ? low : high).add(last, last);
  }
  if (letters.empty() && low.empty() && high.empty()) return class_of();
  std::vector<std::string> ways;
  if (!letters.empty()) ways.push_back(letters.class_of());
  if (!low.empty()) ways.push_back("\"u000\" " + low.class_of());
  if (!high.empty()) ways.push_back("\"u001\" " + high.class_of());
  const std::string escapes = fmt::format("\"\\u005C\" ({})", fmt::join(ways, " | "));
  const CharSet plain = left_out.others();
  return plain.empty() ? fmt::format("({})", escapes) : fmt::format("({} | {})", plain.class_of(), escapes);
}

std::string CharSet::class_of() const {
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

std::string text_to_ebnf(std::string_view text, bool any_case, Spelling spelling) {
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
      out += (out.empty() ? "" : " ") + both.to_ebnf(Spelling::kPlain);  // letters are never escaped
    } else if (spelling == Spelling::kInJson && is_escaped(next.value)) {
      for (const char c : escaped(next.value)) append_char(word, c);
    } else {
      append_char(word, next.value);
    }
  }
  end_word();
  return out.empty() ? "\"\"" : out;
}

}  // namespace kvilt

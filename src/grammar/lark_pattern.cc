#include "grammar/lark_pattern.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "base/error.h"
#include "grammar/char_set.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

Error wrong(const std::string& why) { return error(Code::kInvalidArgument, "its regular expression {}", why); }

CharSet digits() { return {'0', '9'}; }

CharSet word_characters() {
  CharSet out = digits();
  out.add('a', 'z');
  out.add('A', 'Z');
  out.add('_', '_');
  return out;
}

CharSet space() {
  CharSet out('\t', '\r');
  out.add(' ', ' ');
  return out;
}

bool is_digit(int32_t c) { return c >= '0' && c <= '9'; }
bool is_letter(int32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

int hex_value(int32_t c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// What stands for one place of a text: a character, or a set of them.
struct Place {
  CharSet set;
  int32_t single = -1;  // the character, where it is one

  static Place of(int32_t c) { return {CharSet(c, c), c}; }
  static Place of(CharSet set) { return {std::move(set), -1}; }
};

class Pattern {
 public:
  Pattern(std::string_view text, LarkFlags flags, Spelling spelling) : flags_(flags), spelling_(spelling) {
    while (!text.empty()) {
      const CodePoint next = first_code_point(text);
      chars_.push_back(next.value);
      text.remove_prefix(static_cast<size_t>(next.size));
    }
  }

  Result<std::string> read() {
    KVILT_TRY(alternatives(0));
    if (at_ < chars_.size()) return wrong("has a ) too many");
    return std::move(out_);
  }

 private:
  int32_t peek(size_t ahead = 0) const { return at_ + ahead < chars_.size() ? chars_[at_ + ahead] : -1; }
  bool take(int32_t c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  Status alternatives(int depth);
  Status sequence(int depth);
  Status element(int depth);
  Status group(int depth);
  Result<Place> place();
  Result<Place> escape(bool in_class);
  Result<Place> coded(int digits);
  Result<CharSet> char_class();
  Result<CharSet> folded(CharSet set) const;
  Status quantifier();
  std::optional<std::string> counts();
  void end_word();

  std::vector<int32_t> chars_;
  size_t at_ = 0;
  const LarkFlags flags_;
  const Spelling spelling_;
  std::string out_;
  std::string word_;  // characters in a row that are not in out_ yet
};

void Pattern::end_word() {
  if (word_.empty()) return;
  out_ += text_to_ebnf(word_, flags_.any_case, spelling_) + ' ';
  word_.clear();
}

Status Pattern::alternatives(int depth) {
  if (depth > kMostLarkDepth) return wrong(fmt::format("has more than {} brackets in each other", kMostLarkDepth));
  KVILT_TRY(sequence(depth));
  while (take('|')) {
    out_ += "| ";
    KVILT_TRY(sequence(depth));
  }
  return {};
}

Status Pattern::sequence(int depth) {
  const size_t begin = out_.size();
  while (at_ < chars_.size() && peek() != '|' && peek() != ')') KVILT_TRY(element(depth));
  end_word();
  if (out_.size() == begin) out_ += "\"\" ";
  return {};
}

Status Pattern::element(int depth) {
  const int32_t c = peek();
  if (c == '^' || c == '$')
    return wrong(
        fmt::format("has the anchor {}: leave it out, a terminal is matched as a whole", static_cast<char>(c)));
  if (c == '*' || c == '+' || c == '?') return wrong(fmt::format("has a {} behind nothing", static_cast<char>(c)));
  if (c == '(') {
    end_word();
    KVILT_TRY(group(depth));
    return quantifier();
  }
  KVILT_ASSIGN(const Place one, place());
  const int32_t next = peek();
  const size_t before = at_;
  const bool counted = next == '*' || next == '+' || next == '?' || (next == '{' && counts().has_value());
  at_ = before;
  if (one.single >= 0 && !counted) {
    append_utf8(word_, one.single);
    return {};
  }
  end_word();
  KVILT_ASSIGN(const CharSet set, folded(one.set));
  if (set.empty()) return wrong("has a class of no character");
  out_ += set.to_ebnf(spelling_);
  return quantifier();
}

Status Pattern::group(int depth) {
  ++at_;
  if (take('?')) {
    if (peek() == 'P' && peek(1) == '<') {
      while (at_ < chars_.size() && peek() != '>') ++at_;
      ++at_;
    } else if (!take(':')) {
      return wrong(
          "has a group that begins with (? and is no (?: nor (?P<name>: say without looking around what may be "
          "written, "
          "and put flags behind the last slash");
    }
  }
  out_ += "( ";
  KVILT_TRY(alternatives(depth + 1));
  if (!take(')')) return wrong("has a ( that is not closed");
  out_ += ')';
  return {};
}

// {n}, {n,}, {,m} or {n,m} as EBNF has it; what is none of these is text.
std::optional<std::string> Pattern::counts() {
  if (!take('{')) return std::nullopt;
  int64_t counts[2] = {-1, -1};
  size_t which = 0;
  for (; peek() != '}'; ++at_) {
    if (is_digit(peek())) {
      counts[which] = std::min<int64_t>(std::max<int64_t>(counts[which], 0) * 10 + peek() - '0', kMostLarkCount + 1);
    } else if (peek() == ',' && which == 0) {
      which = 1;
    } else {
      return std::nullopt;
    }
  }
  ++at_;
  if (counts[0] < 0 && counts[1] < 0) return std::nullopt;
  if (which == 0) counts[1] = counts[0];
  const int64_t least = std::max<int64_t>(counts[0], 0);
  return counts[1] < 0 ? fmt::format("{{{},}}", least) : fmt::format("{{{},{}}}", least, counts[1]);
}

Status Pattern::quantifier() {
  const size_t before = at_;
  if (const int32_t c = peek(); c == '*' || c == '+' || c == '?') {
    ++at_;
    out_ += static_cast<char>(c);
  } else if (const auto counted = counts()) {
    int64_t most = 0, least = 0;
    const size_t comma = counted->find(',');
    least = std::stoll(counted->substr(1, comma - 1));
    if (comma + 2 < counted->size()) most = std::stoll(counted->substr(comma + 1));
    if (least > kMostLarkCount || most > kMostLarkCount)
      return wrong(fmt::format("repeats more than {} times", kMostLarkCount));
    if (comma + 2 < counted->size() && most < least)
      return wrong("has counts {n,m} of which the first is the larger one");
    out_ += *counted;
  } else {
    at_ = before;
    out_ += ' ';
    return {};
  }
  if (peek() == '?' || peek() == '+')
    return wrong(
        "has a lazy or possessive quantifier: say what may not stand in between, as [^\"]* in place of .*? before a "
        "quote");
  if (peek() == '*') return wrong("has a * behind a quantifier");
  out_ += ' ';
  return {};
}

Result<CharSet> Pattern::folded(CharSet set) const {
  if (!flags_.any_case) return set;
  set.add_other_cases();
  return set;
}

Result<Place> Pattern::place() {
  const int32_t c = peek();
  if (c == '[') {
    KVILT_ASSIGN(CharSet set, char_class());
    return Place::of(std::move(set));
  }
  if (c == '\\') return escape(false);
  ++at_;
  if (c == '.') return Place::of(flags_.dot_is_all ? CharSet(0, CharSet::kLast) : CharSet('\n', '\n').others());
  if (flags_.any_case && c > 0x7F && is_word_character(c))
    return wrong("has the flag i and letters beyond ASCII: name both cases, as in [äÄ]");
  return Place::of(c);
}

Result<Place> Pattern::coded(int digits) {
  int64_t value = 0;
  for (int i = 0; i < digits; ++i, ++at_) {
    const int one = hex_value(peek());
    if (one < 0) return wrong(fmt::format("has an escape that needs {} hexadecimal digits", digits));
    value = value * 16 + one;
  }
  if (value > CharSet::kLast || (value >= 0xD800 && value <= 0xDFFF))
    return wrong("has an escape that is no character");
  return Place::of(static_cast<int32_t>(value));
}

Result<Place> Pattern::escape(bool in_class) {
  ++at_;
  const int32_t c = peek();
  if (c < 0) return wrong("ends in a backslash");
  ++at_;
  switch (c) {
    case 'd':
      return Place::of(digits());
    case 'D':
      return Place::of(digits().others());
    case 'w':
      return Place::of(word_characters());
    case 'W':
      return Place::of(word_characters().others());
    case 's':
      return Place::of(space());
    case 'S':
      return Place::of(space().others());
    case 'n':
      return Place::of('\n');
    case 'r':
      return Place::of('\r');
    case 't':
      return Place::of('\t');
    case 'f':
      return Place::of('\f');
    case 'v':
      return Place::of('\v');
    case 'a':
      return Place::of('\a');
    case 'x':
      return coded(2);
    case 'u':
      return coded(4);
    case 'U':
      return coded(8);
    default:
      break;
  }
  if (c == 'b' && in_class) return Place::of('\b');
  if (is_letter(c) || is_digit(c))
    return wrong(fmt::format("has \\{}, which is not supported: name the characters that may stand there",
                             static_cast<char>(c)));
  return Place::of(c);
}

Result<CharSet> Pattern::char_class() {
  ++at_;
  const bool negated = take('^');
  CharSet out;
  for (bool first = true; first || peek() != ']'; first = false) {
    if (peek() < 0) return wrong("has a [ that is not closed");
    KVILT_ASSIGN(const Place from, peek() == '\\' ? escape(true) : Result<Place>(Place::of(chars_[at_++])));
    if (peek() != '-' || peek(1) == ']' || peek(1) < 0) {
      out.add(from.set);
      continue;
    }
    ++at_;
    KVILT_ASSIGN(const Place to, peek() == '\\' ? escape(true) : Result<Place>(Place::of(chars_[at_++])));
    if (from.single < 0 || to.single < 0 || from.single > to.single)
      return wrong("has a class with a range whose ends are no characters in order");
    out.add(from.single, to.single);
  }
  ++at_;
  if (flags_.any_case && out.has_beyond_ascii())
    return wrong("has the flag i and a class with characters beyond ASCII: leave the flag out and name both cases");
  KVILT_ASSIGN(out, folded(std::move(out)));
  return negated ? out.others() : out;
}

}  // namespace

Result<std::string> lark_pattern_to_ebnf(std::string_view pattern, LarkFlags flags, Spelling spelling) {
  return Pattern(pattern, flags, spelling).read();
}

}  // namespace kvilt

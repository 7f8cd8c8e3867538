#include "grammar/lark_tokens.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

using Kind = LarkToken::Kind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_name(char c) { return is_letter(c) || is_digit(c) || c == '_'; }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  Result<std::vector<LarkToken>> read() {
    while (at_ < text_.size()) KVILT_TRY(next());
    add(Kind::kEnd, "");
    return std::move(out_);
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  void add(Kind kind, std::string text) { out_.push_back({kind, std::move(text), {}, line_}); }
  Error wrong(std::string_view why) const {
    return error(Code::kInvalidArgument, "the Lark grammar, line {}: {}", line_, why);
  }
  std::string word() {
    const size_t begin = at_;
    while (is_name(peek())) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  void skip_line() {
    while (at_ < text_.size() && peek() != '\n') ++at_;
  }

  Status next();
  Status sign();
  Status string();
  Status pattern();
  std::optional<int32_t> coded(std::string_view text, size_t digits) const;
  Result<std::string> meaning(std::string_view text) const;

  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<LarkToken> out_;
};

Status Lexer::next() {
  const char c = peek();
  if (c == '\n') {
    add(Kind::kLineEnd, "");
    ++line_;
    ++at_;
  } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f') {
    ++at_;
  } else if (c == '#' || (c == '/' && peek(1) == '/')) {
    skip_line();
  } else if (c == '"') {
    return string();
  } else if (c == '/') {
    return pattern();
  } else if (c == '%') {
    ++at_;
    add(Kind::kDirective, word());
  } else if (is_digit(c) || ((c == '-' || c == '+') && is_digit(peek(1)))) {
    std::string number(1, c);
    for (++at_; is_digit(peek()); ++at_) number += peek();
    add(Kind::kNumber, std::move(number));
  } else if (is_name(c)) {
    add(Kind::kName, word());
  } else {
    return sign();
  }
  return {};
}

Status Lexer::sign() {
  for (const std::string_view two : {"->", ".."}) {
    if (!text_.substr(at_).starts_with(two)) continue;
    add(Kind::kSign, std::string(two));
    at_ += two.size();
    return {};
  }
  if (text_.substr(at_).starts_with("::="))
    return wrong("\"::=\" is EBNF: write either all rules in Lark (name: ...) or all in EBNF (name ::= ...)");
  if (std::string_view("()[]{}|*+?!~:.,").find(peek()) == std::string_view::npos) {
    const CodePoint one = first_code_point(text_.substr(at_));
    return wrong(fmt::format("'{}' has no meaning here", text_.substr(at_, static_cast<size_t>(one.size))));
  }
  add(Kind::kSign, std::string(1, peek()));
  ++at_;
  return {};
}

// A character of so many hexadecimal digits.
std::optional<int32_t> Lexer::coded(std::string_view text, size_t digits) const {
  if (text.size() < digits) return std::nullopt;
  int64_t value = 0;
  for (const char c : text.substr(0, digits)) {
    const size_t one = std::string_view("0123456789abcdefABCDEF").find(c);
    if (one == std::string_view::npos) return std::nullopt;
    value = value * 16 + static_cast<int64_t>(one < 16 ? one : one - 6);
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return std::nullopt;
  return static_cast<int32_t>(value);
}

// What Lark makes of a string's text: a backslash that begins no escape of its own is one.
Result<std::string> Lexer::meaning(std::string_view text) const {
  constexpr std::string_view kNames = "ntrf\"\\", kMeant = "\n\t\r\f\"\\";
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    const char c = text[++i];  // a string does not end in a lone backslash
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (const size_t which = kNames.find(c); which != std::string_view::npos) {
      out += kMeant[which];
    } else if (digits > 0) {
      const auto one = coded(text.substr(i + 1), digits);
      if (!one) return wrong(fmt::format("\\{} needs {} hexadecimal digits of a character", c, digits));
      append_utf8(out, *one);
      i += digits;
    } else {
      out += '\\';
      out += c;
    }
  }
  return out;
}

Status Lexer::string() {
  const size_t begin = ++at_;
  while (at_ < text_.size() && peek() != '"' && peek() != '\n') at_ += peek() == '\\' && peek(1) != '\n' ? 2 : 1;
  if (at_ >= text_.size() || peek() != '"') return wrong("a string has no \" at its end on this line");
  KVILT_ASSIGN(std::string text, meaning(text_.substr(begin, at_ - begin)));
  ++at_;
  add(Kind::kString, std::move(text));
  if (peek() == 'i' && !is_name(peek(1))) {
    out_.back().flags.any_case = true;
    ++at_;
  }
  return {};
}

Status Lexer::pattern() {
  const size_t begin = ++at_;
  while (at_ < text_.size() && peek() != '/' && peek() != '\n') at_ += peek() == '\\' && peek(1) != '\n' ? 2 : 1;
  if (at_ >= text_.size() || peek() != '/') return wrong("a regular expression has no / at its end on this line");
  add(Kind::kPattern, std::string(text_.substr(begin, at_ - begin)));
  ++at_;
  for (; is_letter(peek()); ++at_) {
    if (peek() == 'i') {
      out_.back().flags.any_case = true;
    } else if (peek() == 's') {
      out_.back().flags.dot_is_all = true;
    } else if (peek() != 'm' && peek() != 'u') {  // m is for anchors, u is so anyway
      return wrong(fmt::format("the flag {} of a regular expression is not supported: i, s, m and u are", peek()));
    }
  }
  return {};
}

struct CommonTerminal {
  const char *name, *pattern;
};

// Each by itself, so that what nobody names is not compiled.
constexpr CommonTerminal kCommon[] = {
    {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
    {"CPP_COMMENT", R"(//[^\n]*)"},
    {"CR", R"(\r)"},
    {"C_COMMENT", R"(/\*([^*]|\*+[^*/])*\*+/)"},
    {"DECIMAL", R"([0-9]+\.[0-9]*|\.[0-9]+)"},
    {"DIGIT", "[0-9]"},
    {"ESCAPED_STRING", R"("([^"\\\n]|\\[^\n])*")"},
    {"FLOAT", R"([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"HEXDIGIT", "[0-9A-Fa-f]"},
    {"INT", "[0-9]+"},
    {"LCASE_LETTER", "[a-z]"},
    {"LETTER", "[A-Za-z]"},
    {"LF", R"(\n)"},
    {"NEWLINE", R"((\r?\n)+)"},
    {"NUMBER", R"([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?)"},
    {"SH_COMMENT", R"(#[^\n]*)"},
    {"SIGNED_FLOAT", R"([+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?))"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"SIGNED_NUMBER", R"([+-]?([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?))"},
    {"SQL_COMMENT", R"(--[^\n]*)"},
    {"UCASE_LETTER", "[A-Z]"},
    {"WORD", "[A-Za-z]+"},
    {"WS", R"([ \t\f\r\n]+)"},
    {"WS_INLINE", R"([ \t]+)"},
};

}  // namespace

Result<std::vector<LarkToken>> lark_tokens(std::string_view text) { return Lexer(text).read(); }

const char* common_terminal(std::string_view name) {
  const auto found = std::ranges::find_if(kCommon, [&](const CommonTerminal& one) { return one.name == name; });
  return found == std::end(kCommon) ? nullptr : found->pattern;
}

std::string common_terminals() {
  std::string out;
  for (const CommonTerminal& one : kCommon) out += (out.empty() ? "" : ", ") + std::string(one.name);
  return out;
}

}  // namespace kvilt

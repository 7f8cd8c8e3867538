// template/jinja/lexer.cc: see lexer.h.
#include "template/jinja/lexer.h"

#include <array>
#include <optional>

#include "template/jinja/text.h"

namespace kvilt::jinja {
namespace {

std::string unify_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();  // keep_trailing_newline is off
  return out;
}

bool is_name_start(char32_t c) { return c == '_' || is_alpha(c); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_part(char32_t c) { return is_name_start(c) || (c < 0x80 && is_digit(static_cast<char>(c))); }

std::string_view strip_end(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && is_space(char_at(text, prev_char(text, end)))) end = prev_char(text, end);
  return text.substr(0, end);
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) text_until_tag();
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool looking_at(std::string_view what) const { return rest().substr(0, what.size()) == what; }

  [[noreturn]] void fail_here(std::string message) {
    throw Fault{Code::kInvalidArgument, std::move(message), position()};
  }

  // Positions come in growing order, so each newline is counted once.
  Position position() { return position(at_); }
  Position position(size_t at) {
    for (; counted_ < at; ++counted_) {
      if (source_[counted_] != '\n') continue;
      ++line_;
      line_begin_ = counted_ + 1;
    }
    const size_t begin = std::min(line_begin_, at);
    const size_t column =
        at - begin > 4096 ? at - begin : count_chars(std::string_view(source_).substr(begin, at - begin));
    return {line_, static_cast<int32_t>(column + 1)};
  }

  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), position()}); }

  void skip_space() {
    while (at_ < source_.size() && is_space(char_at(source_, at_))) at_ = next_char(source_, at_);
  }

  // Pushes source[at_, tag) less what the tag at `tag` strips, and moves at_ past the tag's two characters and its
  // sign.
  void data_before(size_t tag, bool lstrip) {
    std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (sign == '-') {
      text = strip_end(text);
    } else if (sign != '+' && lstrip) {
      const size_t newline = text.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line > 0 || line_starting_) && strip_end(text.substr(line)).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) push(TokenKind::kData, std::string(text));
    at_ = tag + 2;
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
  }

  void text_until_tag() {
    size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        push(TokenKind::kData, std::string(rest()));
        at_ = source_.size();
        return;
      }
      const char kind = source_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    data_before(tag, kind != '{');
    if (kind == '#') return comment();
    if (kind == '%' && raw_block()) return;
    push(kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
    expression(kind == '{');
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail_here("a comment is not closed: expected #}");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    at_ = end + 2;
    after_block(sign);
  }

  // Skips what `-%}`, `+%}` and `%}` strip after them (trim_blocks).
  void after_block(char sign) {
    const size_t begin = at_;
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && looking_at("\n")) {
      ++at_;
    }
    line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  // {% raw %} ... {% endraw %}; at_ is after "{%" and its sign.
  bool raw_block() {
    const size_t back = at_;
    skip_space();
    if (!looking_at("raw")) return at_ = back, false;
    at_ += 3;
    skip_space();
    if (looking_at("-%}")) {
      at_ += 3;
      skip_space();
    } else if (looking_at("%}")) {
      at_ += 2;
    } else {
      return at_ = back, false;
    }
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      size_t i = tag + 2;
      if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) ++i;
      while (i < source_.size() && is_space(char_at(source_, i))) i = next_char(source_, i);
      if (source_.compare(i, 6, "endraw") != 0) continue;
      i += 6;
      while (i < source_.size() && is_space(char_at(source_, i))) i = next_char(source_, i);
      const char sign = i < source_.size() ? source_[i] : '\0';
      if (sign == '-' || sign == '+') ++i;
      if (source_.compare(i, 2, "%}") != 0) continue;
      line_starting_ = false;
      data_before(tag, true);
      at_ = i + 2;
      after_block(sign);
      return true;
    }
    fail_here("raw block is not closed: expected {% endraw %}");
  }

  void expression(bool variable) {
    std::string open;  // open brackets; while there are any, an end tag is not one
    while (true) {
      skip_space();
      if (at_ >= source_.size()) fail_here(variable ? "expected }} before the end" : "expected %} before the end");
      if (open.empty() && end_of_tag(variable)) return;
      const char c = source_[at_];
      if (is_name_start(char_at(source_, at_))) {
        const Position where = position();
        const size_t begin = at_;
        while (at_ < source_.size() && is_name_part(char_at(source_, at_))) at_ = next_char(source_, at_);
        tokens_.push_back({TokenKind::kName, source_.substr(begin, at_ - begin), where});
      } else if (is_digit(c)) {
        number();
      } else if (c == '\'' || c == '"') {
        string_literal(c);
      } else {
        symbol(open);
      }
    }
  }

  bool end_of_tag(bool variable) {
    char sign = '\0';
    size_t i = at_;
    if (source_[i] == '-' || (source_[i] == '+' && !variable)) sign = source_[i++];
    if (source_.compare(i, 2, variable ? "}}" : "%}") != 0) return false;
    push(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, "");
    at_ = i + 2;
    if (!variable) return after_block(sign), true;
    const size_t begin = at_;
    if (sign == '-') skip_space();
    line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
    return true;
  }

  void symbol(std::string& open) {
    static constexpr std::array<std::string_view, 6> kTwo = {"==", "!=", ">=", "<=", "//", "**"};
    for (std::string_view two : kTwo) {
      if (!looking_at(two)) continue;
      push(TokenKind::kOperator, std::string(two));
      at_ += 2;
      return;
    }
    const char c = source_[at_];
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos)
      fail_here(fmt::format("unexpected character '{}'", source_.substr(at_, next_char(source_, at_) - at_)));
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail_here(fmt::format("unexpected '{}'", c));
      if (open.back() != c) fail_here(fmt::format("unexpected '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    push(TokenKind::kOperator, std::string(1, c));
    ++at_;
  }

  // Digits with single '_' between them.
  std::string digits(size_t& i, std::string_view allowed) const {
    std::string out;
    while (i < source_.size()) {
      const bool gap = source_[i] == '_' && !out.empty() && i + 1 < source_.size();
      const char c = gap ? source_[i + 1] : source_[i];
      if (allowed.find(c) == std::string_view::npos) break;
      out += c;
      i += gap ? 2 : 1;
    }
    return out;
  }

  void number() {
    static constexpr std::string_view kDecimal = "0123456789";
    const Position where = position();
    size_t i = at_;
    for (const auto& [prefix, allowed] : {std::pair<std::string_view, std::string_view>{"xX", "0123456789abcdefABCDEF"},
                                          {"oO", "01234567"},
                                          {"bB", "01"}}) {
      if (source_[i] != '0' || i + 1 >= source_.size() || prefix.find(source_[i + 1]) == std::string_view::npos)
        continue;
      size_t j = i + 2;
      if (j < source_.size() && source_[j] == '_') ++j;
      const std::string found = digits(j, allowed);
      if (found.empty()) break;
      at_ = j;
      tokens_.push_back({TokenKind::kInteger, std::string("0") + prefix[0] + found, where});
      return;
    }
    std::string text = digits(i, kDecimal);
    bool is_float = false;
    if (i + 1 < source_.size() && source_[i] == '.' && is_digit(source_[i + 1])) {
      is_float = true;
      text += source_[i++];
      text += digits(i, kDecimal);
    }
    if (i < source_.size() && (source_[i] == 'e' || source_[i] == 'E')) {
      size_t j = i + 1;
      std::string exponent = "e";
      if (j < source_.size() && (source_[j] == '+' || source_[j] == '-')) exponent += source_[j++];
      const std::string found = digits(j, kDecimal);
      if (!found.empty()) {
        is_float = true;
        text += exponent + found;
        i = j;
      }
    }
    at_ = i;
    tokens_.push_back({is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(text), where});
  }

  void string_literal(char quote) {
    const Position where = position();
    std::string out;
    size_t i = at_ + 1;
    while (true) {
      if (i >= source_.size()) fail_here("a string is not closed");
      const char c = source_[i++];
      if (c == quote) break;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (i >= source_.size()) fail_here("a string is not closed");
      escape(i, out);
    }
    at_ = i;
    tokens_.push_back({TokenKind::kString, std::move(out), where});
  }

  // Python's escapes; an unknown one stays as written. source_[i] is the character after the backslash.
  void escape(size_t& i, std::string& out) {
    const char c = source_[i++];
    static constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
      out += kTo[simple];
    } else if (c == '\n') {  // continues on the next line
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      code_point(i, count, out);
    } else if (c >= '0' && c <= '7') {
      char32_t value = static_cast<char32_t>(c - '0');
      for (int n = 1; n < 3 && i < source_.size() && source_[i] >= '0' && source_[i] <= '7'; ++n)
        value = value * 8 + static_cast<char32_t>(source_[i++] - '0');
      append_utf8(value, out);
    } else {
      out += '\\';
      out += c;
    }
  }

  std::optional<char32_t> hex(size_t i, size_t count) const {
    if (i + count > source_.size()) return std::nullopt;
    char32_t value = 0;
    for (const char c : std::string_view(source_).substr(i, count)) {
      const size_t digit =
          std::string_view("0123456789abcdef").find(static_cast<char>(c >= 'A' && c <= 'F' ? c + 32 : c));
      if (digit == std::string_view::npos) return std::nullopt;
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  void code_point(size_t& i, size_t count, std::string& out) {
    std::optional<char32_t> value = hex(i, count);
    if (!value || *value > 0x10FFFF) fail_here("a string holds an escape that is no character");
    i += count;
    if (*value >= 0xD800 && *value < 0xDC00 && source_.compare(i, 2, "\\u") == 0) {  // a pair of UTF-16 halves
      const std::optional<char32_t> low = hex(i + 2, 4);
      if (low && *low >= 0xDC00 && *low < 0xE000) {
        i += 6;
        value = 0x10000 + ((*value - 0xD800) << 10) + (*low - 0xDC00);
      }
    }
    if (*value >= 0xD800 && *value < 0xE000) fail_here("a string holds half of a UTF-16 pair");
    append_utf8(*value, out);
  }

  const std::string source_;
  size_t at_ = 0;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
  size_t counted_ = 0, line_begin_ = 0;
  int32_t line_ = 1;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (source.size() > kMaxTemplateBytes)
    fail("the chat template has {} bytes; at most {} are read", source.size(), kMaxTemplateBytes);
  if (!is_valid_utf8(source)) fail("the chat template is not valid UTF-8");
  return Lexer(unify_newlines(source)).run();
}

}  // namespace kvilt::jinja

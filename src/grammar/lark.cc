#include "grammar/lark.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/char_set.h"
#include "grammar/lark_tokens.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

using Kind = LarkToken::Kind;

constexpr size_t kMaxShown = 60;  // bytes of the grammar's own words in a message
constexpr const char* kIgnored = "ignored";

// Rules of the grammar begin with a dot in EBNF, so that none is `root`, or what %ignore makes.
std::string ebnf_name(const std::string& name) { return "." + name; }

// Names of terminals are upper case.
bool is_terminal(const std::string& name) {
  return std::ranges::any_of(name, [](char c) { return c >= 'A' && c <= 'Z'; });
}

class Converter {
 public:
  Converter(std::vector<LarkToken> tokens, Spelling spelling) : tokens_(std::move(tokens)), spelling_(spelling) {}
  Result<std::string> convert();

 private:
  struct Use {
    std::string name;
    int line = 0;
  };

  const LarkToken& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  bool is_sign(std::string_view sign) const { return peek().kind == Kind::kSign && peek().text == sign; }
  bool take_sign(std::string_view sign) {
    if (!is_sign(sign)) return false;
    ++at_;
    return true;
  }
  bool skip_line_ends() {
    const size_t before = at_;
    while (peek().kind == Kind::kLineEnd) ++at_;
    return at_ != before;
  }
  // Whether the next alternative begins, perhaps on a later line.
  bool take_bar();
  static Error wrong(int line, std::string_view why) {
    return error(Code::kInvalidArgument, "the Lark grammar, line {}: {}", line, why);
  }
  Error unexpected(std::string_view what) const;

  Status statement();
  Status definition();
  Status add_rule(const std::string& name, int line);
  Status ignore();
  Status import();
  Status import_one(const std::string& name, const std::string& as, int line);
  Status alternatives(int depth);
  Status alternative(int depth);
  Status item(int depth);
  Status atom(int depth);
  Status named();
  Status string();
  Status pattern();
  Result<std::string> quantifier();
  Result<int> count();
  // What stands behind each terminal in a rule.
  void then_ignored() {
    if (ignores_ && !in_terminal_) out_ += std::string(kIgnored) + ' ';
  }
  Status check_names() const;
  Status check_terminals() const;

  const std::vector<LarkToken> tokens_;
  const Spelling spelling_;
  size_t at_ = 0;
  std::string out_;
  bool ignores_ = false;      // somewhere is a %ignore
  bool in_terminal_ = false;  // what is read now
  std::string current_;       // the rule that is read now
  std::string first_;         // rule
  std::vector<std::string> ignored_;
  std::set<std::string> defined_;
  std::vector<Use> uses_;
  std::map<std::string, std::set<std::string>> of_terminals_;  // the terminals in each one
};

Error Converter::unexpected(std::string_view what) const {
  const LarkToken& next = peek();
  const std::string found = next.kind == Kind::kLineEnd ? "the line's end"
                            : next.kind == Kind::kEnd   ? "the end"
                                                        : "'" + next.text.substr(0, kMaxShown) + "'";
  return wrong(next.line, fmt::format("{} must stand here, not {}", what, found));
}

bool Converter::take_bar() {
  const size_t before = at_;
  skip_line_ends();
  if (take_sign("|")) return true;
  at_ = before;
  return false;
}

Status Converter::statement() {
  if (peek().kind != Kind::kDirective) return definition();
  const std::string word = peek().text;
  const int line = peek().line;
  ++at_;
  if (word == "ignore") return ignore();
  if (word == "import") return import();
  return wrong(line,
               fmt::format("%{} is not supported: %import common.NAME and %ignore are", word.substr(0, kMaxShown)));
}

Status Converter::definition() {
  while (take_sign("?") || take_sign("!")) continue;
  if (peek().kind != Kind::kName) return unexpected("a rule (name: ...) or a terminal (NAME: ...)");
  const std::string name = peek().text;
  const int line = peek().line;
  ++at_;
  if (is_sign("{")) return wrong(line, "rules with parameters are not supported: write one rule for each use");
  if (is_sign("[")) return wrong(line, "attributes of rules in [...] are not supported: leave them out");
  if (take_sign(".")) {  // a priority says how a text is read, not which one may be written
    if (peek().kind != Kind::kNumber) return unexpected("a priority (a number)");
    ++at_;
  }
  if (!take_sign(":")) return unexpected("a colon");
  KVILT_TRY(add_rule(name, line));
  in_terminal_ = is_terminal(name);
  current_ = name;
  if (!in_terminal_ && first_.empty()) first_ = name;
  KVILT_TRY(alternatives(0));
  in_terminal_ = false;
  out_ += '\n';
  return {};
}

Status Converter::add_rule(const std::string& name, int line) {
  if (!defined_.insert(name).second)
    return wrong(line, fmt::format("'{}' is defined a second time", name.substr(0, kMaxShown)));
  out_ += ebnf_name(name) + " ::= ";
  return {};
}

// %ignore has a terminal's name, or what one would be made of, which then gets a name.
Status Converter::ignore() {
  const std::string name = fmt::format("{}-{}", kIgnored, ignored_.size());
  ignored_.push_back(name);
  out_ += name + " ::= ";
  in_terminal_ = true;
  current_.clear();
  KVILT_TRY(alternatives(0));
  in_terminal_ = false;
  out_ += '\n';
  return {};
}

// %import common.NAME, common.NAME -> OTHER, or common (NAME, NAME).
Status Converter::import() {
  const int line = peek().line;
  if (peek().kind != Kind::kName || peek().text != "common")
    return wrong(line, "only terminals of 'common' can be imported: write the others here");
  ++at_;
  if (take_sign(".")) {
    const std::string name = peek().text;
    if (peek().kind != Kind::kName) return unexpected("a terminal's name");
    ++at_;
    if (!take_sign("->")) return import_one(name, name, line);
    const std::string as = peek().text;
    if (peek().kind != Kind::kName || !is_terminal(as)) return unexpected("a terminal's name");
    ++at_;
    return import_one(name, as, line);
  }
  if (!take_sign("(")) return unexpected("common.NAME or common (NAME, ...)");
  do {
    skip_line_ends();
    const std::string name = peek().text;
    if (peek().kind != Kind::kName) return unexpected("a terminal's name");
    ++at_;
    KVILT_TRY(import_one(name, name, line));
    skip_line_ends();
  } while (take_sign(","));
  if (!take_sign(")")) return unexpected("a ) behind the names");
  return {};
}

Status Converter::import_one(const std::string& name, const std::string& as, int line) {
  const char* pattern = common_terminal(name);
  if (!pattern)
    return wrong(line,
                 fmt::format("'{}' is not in common, which has {}", name.substr(0, kMaxShown), common_terminals()));
  KVILT_TRY(add_rule(as, line));
  KVILT_ASSIGN(const std::string body, lark_pattern_to_ebnf(pattern, {}, spelling_));
  out_ += body + '\n';
  return {};
}

Status Converter::alternatives(int depth) {
  if (depth > kMostLarkDepth)
    return wrong(peek().line,
                 fmt::format("more than {} brackets in each other: give the inner ones names", kMostLarkDepth));
  KVILT_TRY(alternative(depth));
  while (take_bar()) {
    out_ += "| ";
    KVILT_TRY(alternative(depth));
  }
  return {};
}

Status Converter::alternative(int depth) {
  const size_t begin = out_.size();
  for (;;) {
    if (depth > 0) skip_line_ends();
    const Kind kind = peek().kind;
    const bool bracket = is_sign("(") || is_sign("[");
    if (!bracket && kind != Kind::kName && kind != Kind::kString && kind != Kind::kPattern) break;
    KVILT_TRY(item(depth));
  }
  if (out_.size() == begin) out_ += "\"\" ";
  if (!take_sign("->")) return {};
  if (peek().kind != Kind::kName) return unexpected("an alias (a name)");
  ++at_;
  return {};
}

Status Converter::item(int depth) {
  const size_t begin = out_.size();
  KVILT_TRY(atom(depth));
  KVILT_ASSIGN(const std::string counted, quantifier());
  if (counted.empty()) return {};
  out_.insert(begin, "( ");
  out_ += ')' + counted + ' ';
  return {};
}

Status Converter::atom(int depth) {
  if (take_sign("(")) {
    out_ += "( ";
    KVILT_TRY(alternatives(depth + 1));
    if (!take_sign(")")) return unexpected("a )");
    out_ += ") ";
    return {};
  }
  if (take_sign("[")) {  // may be left out
    out_ += "( ";
    KVILT_TRY(alternatives(depth + 1));
    if (!take_sign("]")) return unexpected("a ]");
    out_ += ")? ";
    return {};
  }
  if (peek().kind == Kind::kName) return named();
  return peek().kind == Kind::kString ? string() : pattern();
}

Status Converter::named() {
  const std::string name = peek().text;
  const int line = peek().line;
  ++at_;
  if (is_sign("{")) return wrong(line, "rules with parameters are not supported: write one rule for each use");
  if (in_terminal_ && !is_terminal(name))
    return wrong(line, fmt::format("a terminal cannot have the rule '{}' in it", name.substr(0, kMaxShown)));
  if (in_terminal_) of_terminals_[current_].insert(name);
  uses_.push_back({name, line});
  out_ += ebnf_name(name) + ' ';
  if (is_terminal(name)) then_ignored();
  return {};
}

Status Converter::string() {
  const LarkToken& first = peek();
  ++at_;
  if (!take_sign("..")) {
    out_ += text_to_ebnf(first.text, first.flags.any_case, spelling_) + ' ';
    then_ignored();
    return {};
  }
  const auto only = [](const LarkToken& token) -> int32_t {
    if (token.kind != Kind::kString || token.text.empty()) return -1;
    const CodePoint one = first_code_point(token.text);
    return static_cast<size_t>(one.size) == token.text.size() ? one.value : -1;
  };
  const int32_t from = only(first), to = only(peek());
  if (from < 0 || to < from)
    return wrong(first.line, "a range must be two strings of one character each, in order: \"a\"..\"z\"");
  CharSet set(from, to);
  if (first.flags.any_case || peek().flags.any_case) set.add_other_cases();
  ++at_;
  out_ += set.to_ebnf(spelling_) + ' ';
  then_ignored();
  return {};
}

Status Converter::pattern() {
  const LarkToken& token = peek();
  if (token.kind != Kind::kPattern) return unexpected("a name, a string or an expression");
  auto body = lark_pattern_to_ebnf(token.text, token.flags, spelling_);
  if (!body.ok()) return wrong(token.line, body.error().message);
  ++at_;
  out_ += "( " + *body + ") ";
  then_ignored();
  return {};
}

Result<int> Converter::count() {
  if (peek().kind != Kind::kNumber) return unexpected("a number");
  const std::string& text = peek().text;
  if (text[0] == '-' || text.size() > 9 || std::stoi(text) > kMostLarkCount)
    return wrong(peek().line, fmt::format("a repetition is from 0 to {} times", kMostLarkCount));
  const int out = std::stoi(text);
  ++at_;
  return out;
}

// As EBNF writes it; empty: none.
Result<std::string> Converter::quantifier() {
  for (const char* sign : {"*", "+", "?"}) {
    if (take_sign(sign)) return std::string(sign);
  }
  if (!take_sign("~")) return std::string();
  const int line = peek().line;
  KVILT_ASSIGN(const int least, count());
  if (!take_sign("..")) return fmt::format("{{{},{}}}", least, least);
  KVILT_ASSIGN(const int most, count());
  if (most < least) return wrong(line, fmt::format("~{}..{}: the first is the larger one", least, most));
  return fmt::format("{{{},{}}}", least, most);
}

Status Converter::check_names() const {
  for (const Use& use : uses_) {
    if (!defined_.contains(use.name))
      return wrong(use.line, fmt::format("'{}' is not defined{}", use.name.substr(0, kMaxShown),
                                         common_terminal(use.name) ? ": add %import common." + use.name : ""));
  }
  return check_terminals();
}

// Those that hold each other in a circle are left when those that hold none are taken out, again and again.
Status Converter::check_terminals() const {
  std::map<std::string, size_t> open;
  std::map<std::string, std::vector<std::string>> users;
  std::vector<std::string> free;
  for (const auto& [name, inner] : of_terminals_) {
    size_t& held = open[name];
    for (const std::string& one : inner) {
      if (!of_terminals_.contains(one)) continue;
      ++held;
      users[one].push_back(name);
    }
    if (held == 0) free.push_back(name);
  }
  while (!free.empty()) {
    const std::string name = std::move(free.back());
    free.pop_back();
    open.erase(name);
    for (const std::string& user : users[name]) {
      if (--open[user] == 0) free.push_back(user);
    }
  }
  if (open.empty()) return {};
  return error(Code::kInvalidArgument, "the Lark grammar: the terminal '{}' is a part of itself: make it a rule",
               open.begin()->first.substr(0, kMaxShown));
}

Result<std::string> Converter::convert() {
  ignores_ =
      std::ranges::any_of(tokens_, [](const LarkToken& t) { return t.kind == Kind::kDirective && t.text == "ignore"; });
  for (skip_line_ends(); peek().kind != Kind::kEnd; skip_line_ends()) {
    KVILT_TRY(statement());
    if (peek().kind != Kind::kLineEnd && peek().kind != Kind::kEnd) return unexpected("the end of a rule");
  }
  KVILT_TRY(check_names());
  const std::string start = defined_.contains("start") ? "start" : first_;
  if (start.empty()) return error(Code::kInvalidArgument, "the Lark grammar has no rule: add start: ...");
  if (!ignores_) return fmt::format("root ::= {}\n{}", ebnf_name(start), out_);
  std::string any;
  for (const std::string& one : ignored_) any += (any.empty() ? "" : " | ") + one;
  return fmt::format("root ::= {} {}\n{} ::= ({})*\n{}", kIgnored, ebnf_name(start), kIgnored, any, out_);
}

}  // namespace

bool is_lark(std::string_view text) {
  const auto skip = [&](auto what) {
    while (!text.empty() && what(text[0])) text.remove_prefix(1);
  };
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  const auto is_named = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '-';
  };
  for (skip(is_space); text.starts_with('#') || text.starts_with("//"); skip(is_space))
    skip([](char c) { return c != '\n'; });
  if (text.empty()) return false;
  if (text[0] == '%' || text[0] == '?' || text[0] == '!') return true;
  if (!is_named(text[0])) return false;
  skip(is_named);
  skip(is_space);
  return (text.starts_with(':') && !text.starts_with("::=")) || text.starts_with('{');
}

Result<std::string> lark_to_ebnf(std::string_view text, Spelling spelling) {
  if (!is_utf8(text)) return error(Code::kInvalidArgument, "the Lark grammar is not UTF-8");
  KVILT_ASSIGN(auto tokens, lark_tokens(text));
  return Converter(std::move(tokens), spelling).convert();
}

Result<std::string> pattern_to_ebnf(std::string_view pattern, Spelling spelling) {
  if (!is_utf8(pattern)) return error(Code::kInvalidArgument, "the regular expression is not UTF-8");
  KVILT_ASSIGN(const std::string body, lark_pattern_to_ebnf(pattern, {}, spelling));
  return fmt::format("root ::= {}\n", body);
}

}  // namespace kvilt

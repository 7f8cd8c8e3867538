#include "grammar/gbnf.h"

#include <algorithm>
#include <set>

namespace kvilt {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
// As xgrammar has it: a dot may be a part of a name.
bool is_of_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '-' || c == '.';
}

class Gbnf {
 public:
  explicit Gbnf(std::string_view text) : text_(text) {}

  std::string rewritten() {
    collect_names();
    while (at_ < text_.size()) step();
    end_alternative();
    return std::move(out_);
  }

 private:
  void step() {
    const char c = text_[at_];
    if (is_blank(c)) {
      out_ += text_[at_++];
    } else if (c == '#') {
      keep(comment_end(at_));
    } else if (c == '"' || c == '[') {
      keep(literal_end(at_));
      end_element();
    } else if (is_of_name(c) && !is_digit(c)) {
      name();
    } else if (c == '{') {
      keep(at_ + 1);
      const size_t next = behind_space(at_);
      if (next < text_.size() && text_[next] == ',') out_ += '0';
      end_element();
    } else {
      mark(c);
    }
  }

  // What stands between elements.
  void mark(char c) {
    if (c == '|' || c == ')') end_alternative();
    const bool assigns = text_.substr(at_).starts_with("::=");
    keep(at_ + (assigns ? 3 : 1));
    if (c == '|' || c == '(' || assigns) {
      empty_ = true;
      behind_ = out_.size();
      pipe_ = c == '|';
      return;
    }
    end_element();
  }

  void name() {
    const size_t end = name_end(at_);
    if (assigned(end)) {
      end_alternative();
      keep(end);
      return;
    }
    const std::string_view word = text_.substr(at_, end - at_);
    if (names_.contains(word)) {
      keep(end);
    } else {
      for (const char c : word) out_ += c == '.' ? std::string(" [^] ") : std::string(1, c);
      if (out_.back() == ' ') out_.pop_back();  // a quantifier may follow
      at_ = end;
    }
    end_element();
  }

  void collect_names() {
    for (size_t i = 0; i < text_.size();) {
      const char c = text_[i];
      if (c == '#') {
        i = comment_end(i);
      } else if (c == '"' || c == '[') {
        i = literal_end(i);
      } else if (is_of_name(c)) {
        const size_t end = name_end(i);
        if (assigned(end)) names_.insert(text_.substr(i, end - i));
        i = end;
      } else {
        ++i;
      }
    }
  }

  // Where nothing stands beside a |, something does. A rule without any alternative stays a mistake.
  void end_alternative() {
    const bool another = pipe_ || (at_ < text_.size() && text_[at_] == '|');
    if (empty_ && another) out_.insert(behind_, " \"\"");
    empty_ = pipe_ = false;
  }
  void end_element() { empty_ = pipe_ = false; }

  void keep(size_t end) {
    out_ += text_.substr(at_, end - at_);
    at_ = end;
  }
  size_t behind_space(size_t i) const {
    while (i < text_.size() && is_blank(text_[i])) ++i;
    return i;
  }
  size_t comment_end(size_t i) const {
    while (i < text_.size() && text_[i] != '\n' && text_[i] != '\r') ++i;
    return i;
  }
  size_t literal_end(size_t i) const {
    const char end = text_[i] == '[' ? ']' : '"';
    for (++i; i < text_.size() && text_[i] != end && text_[i] != '\n'; ++i) {
      if (text_[i] == '\\') ++i;
    }
    return i < text_.size() ? i + 1 : text_.size();
  }
  size_t name_end(size_t i) const {
    while (i < text_.size() && is_of_name(text_[i])) ++i;
    return i;
  }
  // Whether a name that ends here is a rule's, perhaps with what xgrammar takes in brackets.
  bool assigned(size_t i) const {
    if (i < text_.size() && text_[i] == '[') i = literal_end(i);
    return text_.substr(std::min(behind_space(i), text_.size())).starts_with("::=");
  }

  const std::string_view text_;
  size_t at_ = 0;
  std::string out_;
  std::set<std::string_view> names_;
  bool empty_ = false, pipe_ = false;  // the alternative has nothing yet; a | is before it
  size_t behind_ = 0;                  // of out_, where it begins
};

}  // namespace

std::string gbnf_to_ebnf(std::string_view rules) { return Gbnf(rules).rewritten(); }

std::string dots_without_line_feed(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      out += c;
      out += pattern[++i];
      continue;
    }
    if (c == '.' && !in_class) {
      out += "[^\\n]";
      continue;
    }
    const bool opens = c == '[' && !in_class;
    in_class = opens || (in_class && c != ']');
    out += c;
    if (opens && pattern.substr(i + 1).starts_with("^")) out += pattern[++i];
  }
  return out;
}

}  // namespace kvilt

#include "grammar/schema_string.h"

#include <fmt/format.h>

#include <regex>
#include <utility>

#include "text/unicode.h"

namespace kvilt {
namespace {

constexpr int64_t kEndless = int64_t{1} << 40;  // longer than any answer; sums and products of it are cut there
constexpr int kMostNested = 100;                // brackets in each other; the compiler takes 200

int64_t cut(int64_t length) { return std::min(length, kEndless); }
int64_t times(int64_t length, int64_t n) { return n > 0 && length > kEndless / n ? kEndless : length * n; }

struct Lengths {
  int64_t least = 0, most = 0;
};

// An atom of the outermost sequence, with its repeat.
struct Repeated {
  size_t begin = 0, atom_end = 0, end = 0;  // of the pattern's bytes
  Lengths atom;
  int64_t least = 1, most = 1;  // how often
  bool quantified = false;

  int64_t shortest() const { return times(atom.least, least); }
  int64_t longest() const { return times(atom.most, most); }
  int64_t range() const { return longest() - shortest(); }
};

// Reads how long the texts of an expression are, as long as it means the same to every reader.
class LengthReader {
 public:
  explicit LengthReader(const std::string& pattern) : text_(pattern) {}

  std::optional<Lengths> read() {
    if (at_ < text_.size() && text_[at_] == '^') ++at_;
    auto out = alternatives(0);
    return out && at_ == text_.size() ? out : std::nullopt;
  }
  // Of the outermost sequence; empty where that is several.
  const std::vector<Repeated>& items() const { return items_; }

 private:
  bool ends_here() const { return at_ + 1 == text_.size() && text_[at_] == '$'; }

  std::optional<Lengths> alternatives(int depth) {
    std::optional<Lengths> out;
    for (bool more = true; more;) {
      const auto one = sequence(depth);
      if (!one) return std::nullopt;
      out = out ? Lengths{std::min(out->least, one->least), std::max(out->most, one->most)} : *one;
      more = at_ < text_.size() && text_[at_] == '|';
      if (more) ++at_;
      if (more && depth == 0) several_ = true;
    }
    if (depth == 0 && at_ < text_.size() && ends_here()) ++at_;
    if (several_) items_.clear();
    return out;
  }

  std::optional<Lengths> sequence(int depth) {
    Lengths out;
    while (at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')' && !(depth == 0 && ends_here())) {
      Repeated item;
      item.begin = at_;
      const auto length = atom(depth);
      if (!length) return std::nullopt;
      item.atom = *length;
      item.atom_end = at_;
      if (!repeat(item)) return std::nullopt;
      item.end = at_;
      out = {cut(out.least + item.shortest()), cut(out.most + item.longest())};
      if (depth == 0) items_.push_back(item);
    }
    return out;
  }

  std::optional<Lengths> atom(int depth) {
    const char c = text_[at_];
    if (c == '(') return group(depth);
    if (c == '[') return char_class();
    if (c == '\\') return escape();
    if (c == '^' || c == '$' || c == '*' || c == '+' || c == '?' || c == '{' || c == '}' || c == ']')
      return std::nullopt;
    at_ += static_cast<size_t>(first_code_point(std::string_view(text_).substr(at_)).size);
    return Lengths{1, 1};
  }

  std::optional<Lengths> group(int depth) {
    if (depth >= kMostNested) return std::nullopt;
    ++at_;
    if (text_.compare(at_, 2, "?:") == 0) {
      at_ += 2;
    } else if (text_.compare(at_, 1, "?") == 0) {
      return std::nullopt;
    }
    const auto out = alternatives(depth + 1);
    if (!out || at_ >= text_.size() || text_[at_] != ')') return std::nullopt;
    ++at_;
    return out;
  }

  std::optional<Lengths> char_class() {
    for (size_t i = at_ + 1; i < text_.size(); ++i) {
      if (text_[i] == '\\') {
        ++i;
      } else if (text_[i] == '[') {
        return std::nullopt;  // a set in a set is not read alike everywhere
      } else if (text_[i] == ']') {
        const bool empty = i == at_ + 1 || (i == at_ + 2 && text_[at_ + 1] == '^');
        at_ = i + 1;
        return empty ? std::nullopt : std::optional(Lengths{1, 1});
      }
    }
    return std::nullopt;
  }

  std::optional<Lengths> escape() {
    if (at_ + 1 >= text_.size()) return std::nullopt;
    const char c = text_[at_ + 1];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if ((letter && std::string_view("dDwWsSnrtfv").find(c) == std::string_view::npos) || (c & 0x80))
      return std::nullopt;
    at_ += 2;
    return Lengths{1, 1};
  }

  bool number(int64_t& out) {
    const size_t begin = at_;
    for (out = 0; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && at_ - begin < 9; ++at_)
      out = out * 10 + (text_[at_] - '0');
    return at_ > begin;
  }

  bool repeat(Repeated& item) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    if (c == '*' || c == '+' || c == '?') {
      item.least = c == '+' ? 1 : 0;
      item.most = c == '?' ? 1 : kEndless;
      ++at_;
    } else if (c == '{') {
      ++at_;
      if (!number(item.least)) return false;
      item.most = item.least;
      if (at_ < text_.size() && text_[at_] == ',') {
        ++at_;
        if (!number(item.most)) item.most = kEndless;
      }
      if (at_ >= text_.size() || text_[at_] != '}' || item.most < item.least) return false;
      ++at_;
    } else {
      return true;
    }
    item.quantified = true;
    if (at_ < text_.size() && text_[at_] == '?') ++at_;  // lazy: the same texts
    return at_ >= text_.size() || std::string_view("*+?{").find(text_[at_]) == std::string_view::npos;
  }

  const std::string& text_;
  size_t at_ = 0;
  std::vector<Repeated> items_;
  bool several_ = false;
};

// The one with the widest range is repeated more often.
bool lengthen(std::vector<Repeated>& items, int64_t by) {
  if (by <= 0) return true;
  const auto widest = std::ranges::max_element(items, {}, &Repeated::range);
  if (widest == items.end() || !widest->quantified || widest->atom.least == 0) return false;
  widest->least += (by + widest->atom.least - 1) / widest->atom.least;
  return widest->least <= widest->most;
}

// What is left above the shortest texts is shared among the repeats, beginning with those that need least.
bool shorten(std::vector<Repeated>& items, int64_t most) {
  std::vector<Repeated*> open;
  for (Repeated& item : items) {
    most -= item.shortest();
    if (item.range() > 0) open.push_back(&item);
  }
  if (most < 0) return false;
  std::ranges::stable_sort(open, {}, [](const Repeated* item) { return item->range(); });
  for (size_t i = 0; i < open.size(); ++i) {
    Repeated& item = *open[i];
    const int64_t share = most / static_cast<int64_t>(open.size() - i);
    if (item.range() > share) {
      if (!item.quantified || item.atom.most == 0 || item.atom.most >= kEndless) return false;
      item.most = (share + item.shortest()) / item.atom.most;
      if (item.most < item.least) return false;
    }
    most -= item.range();
  }
  return true;
}

std::string written_with(const std::string& pattern, const std::vector<Repeated>& before,
                         const std::vector<Repeated>& items) {
  std::string out = pattern.substr(0, items.front().begin);
  for (size_t i = 0; i < items.size(); ++i) {
    const Repeated& item = items[i];
    if (item.least == before[i].least && item.most == before[i].most) {
      out += pattern.substr(item.begin, item.end - item.begin);
      continue;
    }
    const std::string atom = pattern.substr(item.begin, item.atom_end - item.begin);
    if (item.most == 0) continue;
    out += atom;
    if (item.least == 1 && item.most == 1) continue;
    out += item.most >= kEndless ? fmt::format("{{{},}}", item.least) : fmt::format("{{{},{}}}", item.least, item.most);
  }
  return out + pattern.substr(items.back().end);
}

// Formats that xgrammar writes, and the lengths that their texts have.
struct FormatLengths {
  const char* format;
  int64_t least, most;
};
constexpr FormatLengths kFormats[] = {{"email", 3, kEndless},
                                      {"date", 10, 10},
                                      {"time", 9, kEndless},
                                      {"date-time", 20, kEndless},
                                      {"duration", 3, kEndless},
                                      {"ipv4", 7, 15},
                                      {"ipv6", 2, 45},
                                      {"hostname", 1, kEndless},
                                      {"uuid", 36, 36},
                                      {"uri", 2, kEndless},
                                      {"uri-reference", 0, kEndless},
                                      {"uri-template", 0, kEndless},
                                      {"json-pointer", 0, kEndless},
                                      {"relative-json-pointer", 1, kEndless}};

const FormatLengths* lengths_of(const std::string& format) {
  const auto found = std::ranges::find_if(kFormats, [&](const FormatLengths& one) { return format == one.format; });
  return found == std::end(kFormats) ? nullptr : found;
}

// A part of a host's name: so many characters at most.
std::string label_of(int64_t most) { return fmt::format("[A-Za-z0-9]([A-Za-z0-9-]{{0,{}}}[A-Za-z0-9])?", most - 2); }

// Of up to three parts with dots between them, as long as there is room.
std::string short_email(int64_t most) {
  const std::string atom = "[\\w!#$%&'*+/=?^`{|}~-]";
  const int64_t local = std::min<int64_t>(64, (most - 1) / 2), host = std::min<int64_t>(most - 1 - local, 253);
  const int64_t half = (local - 1) / 2, third = (local - 2) / 3;
  const std::string before = fmt::format(
      "({0}{{1,{1}}}|{0}{{1,{2}}}\\.{0}{{1,{2}}}|{0}{{1,{3}}}(\\.{0}{{1,{3}}}){{2}})", atom, local, half, third);
  const int64_t one = std::min<int64_t>(63, host - 7), two = std::min<int64_t>(63, (host - 8) / 2);
  return fmt::format("^{}@({}|{}\\.{})\\.[A-Za-z]{{2,6}}$", before, label_of(one), label_of(two), label_of(two));
}

// At most so many. In tens and hundreds, which each text is counted in one way: the automaton's cost is the square of a
// count.
std::string up_to(const std::string& one, int64_t n) {
  if (n < 100) return fmt::format("{}{{0,{}}}", one, n);
  const std::string tens = fmt::format("({0}{{10}}){{0,9}}{0}{{0,9}}", one);
  return n < 200 ? tens : fmt::format("(({}{{10}}){{10}}){{0,{}}}{}", one, n / 100 - 1, tens);
}

// With a host, perhaps a port, a path or query, and a fragment. Where there is room, with escapes, each counted as three.
std::string short_uri(int64_t most) {
  const std::string plain = "[\\w.~!$&'()*+,;=:@/?-]";
  const bool escapes = most >= 600;
  const std::string one = escapes ? "(" + plain + "|%[0-9A-Fa-f]{2})" : plain;
  const int64_t host = std::min<int64_t>(62, most / 4), rest = (most - 13 - host - 6 - 2) / (escapes ? 3 : 1);
  const int64_t fragment = std::min<int64_t>(30, rest / 4), path = std::min<int64_t>(rest - fragment, 599);
  return fmt::format(
      "^[a-z][a-z+.-]{{0,9}}://[A-Za-z0-9]([A-Za-z0-9.-]{{0,{}}}[A-Za-z0-9])?(:\\d{{1,5}})?([/?]{})?(#{})?$", host - 2,
      up_to(one, path), up_to(one, fragment));
}

// What Pydantic writes for a Decimal as text looks around to have a digit, and so many of them.
std::optional<std::string> without_looks_of_pydantic(const std::string& pattern) {
  const std::string head = R"(^(?!^[-+.]*$)[+-]?0*)";
  if (!pattern.starts_with(head) || pattern.size() > 160) return std::nullopt;
  const std::string rest = pattern.substr(head.size());
  if (rest == R"(\d*\.?\d*$)") return R"(^[+-]?(\d+\.?\d*|\.\d+)$)";
  std::smatch found;
  static const std::regex places(R"(\\d\*\\\.\?\\d\{0,(\d{1,3})\}0\*\$)");
  if (std::regex_match(rest, found, places)) {
    const int n = std::stoi(found[1]);
    return n == 0 ? R"(^[+-]?\d+$)" : fmt::format(R"(^[+-]?(\d+(\.\d{{0,{0}}})?|\.\d{{1,{0}}})$)", n);
  }
  static const std::regex both(
      R"(\(\?:\\d\{0,(\d{1,3})\}\|\(\?=\[\\d\.\]\{1,(\d{1,3})\}0\*\$\)\\d\{0,(\d{1,3})\}\\\.\\d\{0,(\d{1,3})\}0\*\$\))");
  if (std::regex_match(rest, found, both)) {
    const int whole = std::stoi(found[1]), all = std::stoi(found[2]), again = std::stoi(found[3]);
    const int part = std::min(std::stoi(found[4]), all - 1 - whole);
    if (whole != again || part < 0) return std::nullopt;
    if (part == 0) return whole == 0 ? R"(^[+-]?0$)" : fmt::format(R"(^[+-]?\d{{1,{}}}$)", whole);
    if (whole == 0) return fmt::format(R"(^[+-]?(0|0?\.\d{{1,{}}})$)", part);
    return fmt::format(R"(^[+-]?(\d{{1,{0}}}(\.\d{{0,{1}}})?|\.\d{{1,{1}}})$)", whole, part);
  }
  static const std::regex digits(
      R"(\(\?:\\d\{0,(\d{1,2})\}\|\(\?=\[\\d\.\]\{1,(\d{1,3})\}0\*\$\)\\d\*\\\.\\d\*0\*\$\))");
  if (!std::regex_match(rest, found, digits)) return std::nullopt;
  const int all = std::stoi(found[1]);
  if (all == 0 || std::stoi(found[2]) != all + 1) return std::nullopt;
  std::string out = fmt::format(R"(^[+-]?(\d{{1,{}}})", all);
  for (int whole = 1; whole < all; ++whole) out += fmt::format(R"(|\d{{{}}}\.\d{{1,{}}})", whole, all - whole);
  return out + ")$";
}

// Texts that frameworks write, and the same without looks and anchors inside.
std::optional<std::string> without_looks(const std::string& pattern) {
  if (pattern == R"(^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$)")
    return R"(^([A-Za-z0-9_'+-]+\.)*[A-Za-z0-9_'+-]*[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9-]*\.)+[A-Za-z]{2,}$)";  // Zod
  if (pattern == R"(^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$)")
    return R"(^([0-9a-zA-Z+/]{4})*([0-9a-zA-Z+/]{2}==|[0-9a-zA-Z+/]{3}=)?$)";  // Zod
  return without_looks_of_pydantic(pattern);
}

// Zod's, of which every text of the format is one.
constexpr const char* kZodDuration =
    R"(^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$)";

int64_t length_at(const SchemaJson& schema, const char* word, int64_t otherwise) {
  const auto found = schema.find(word);
  if (found == schema.end()) return otherwise;
  return found->is_number_integer() && *found >= 0 && *found < kEndless ? found->get<int64_t>() : -2;
}

void settle_format(SchemaJson& schema, const std::string& format, int64_t least, int64_t most) {
  const FormatLengths* const lengths = lengths_of(format);
  if (!lengths || least < 0 || most == -2) return;
  const int64_t end = most < 0 ? kEndless : most;
  const bool given = schema.contains("maxLength");
  if (lengths->most <= end && lengths->most < kEndless && lengths->least >= least) {
    schema.erase("minLength");
    schema.erase("maxLength");
  } else if (given && lengths->least >= least && end >= 32 && format == "email") {
    schema["pattern"] = short_email(end);
  } else if (given && lengths->least >= least && end >= 64 && format == "uri") {
    schema["pattern"] = short_uri(end);
  }
  if (!schema.contains("pattern")) return;
  for (const char* word : {"format", "minLength", "maxLength"}) schema.erase(word);
}

}  // namespace

std::optional<std::string> bounded_pattern(const std::string& pattern, int64_t least, int64_t most) {
  LengthReader reader(pattern);
  const auto lengths = reader.read();
  if (!lengths) return std::nullopt;
  const int64_t end = most < 0 ? kEndless : most;
  if (lengths->least >= least && lengths->most <= end) return pattern;
  std::vector<Repeated> items = reader.items();
  if (items.empty() || !lengthen(items, least - lengths->least)) return std::nullopt;
  if (lengths->most > end && !shorten(items, end)) return std::nullopt;
  return written_with(pattern, reader.items(), items);
}

void settle_string(SchemaJson& schema) {
  const auto text_at = [&](const char* word) -> const std::string* {
    const auto found = schema.find(word);
    return found != schema.end() && found->is_string() ? &found->get_ref<const std::string&>() : nullptr;
  };
  if (const std::string* format = text_at("format");
      format && !format->empty() && (*format)[0] < ' ' && (*format)[0] > 0)
    schema.erase("format");  // nobody's: those of numbers begin so (schema_number.h)
  if (const std::string* pattern = text_at("pattern")) {
    const std::string* const format = text_at("format");
    if (format && *format == "duration" && *pattern == kZodDuration) {
      schema.erase("pattern");
    } else if (auto other = without_looks(*pattern)) {
      schema["pattern"] = *other;
    }
  }
  const std::string *pattern = text_at("pattern"), *format = text_at("format");
  const int64_t least = length_at(schema, "minLength", 0), most = length_at(schema, "maxLength", -1);
  if (!pattern) {
    if (format && (schema.contains("minLength") || schema.contains("maxLength")))
      settle_format(schema, std::string(*format), least, most);
    return;
  }
  if (format && lengths_of(*format)) schema.erase("format");  // an annotation then; xgrammar would hold to it alone
  if ((!schema.contains("minLength") && !schema.contains("maxLength")) || least < 0 || most == -2) return;
  const auto bounded = bounded_pattern(std::string(*text_at("pattern")), least, most);
  if (!bounded) return;
  schema["pattern"] = *bounded;
  schema.erase("minLength");
  schema.erase("maxLength");
}

}  // namespace kvilt

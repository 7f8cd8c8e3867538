#include "engine/volatile_lines.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/late_system.h"

namespace kvilt {
namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }
bool hex(char c) { return digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }
// Of any script: bytes beyond ASCII are taken for letters.
bool letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || (c & 0x80) != 0; }

template <class Is>
size_t run_of(std::string_view text, size_t at, Is is) {
  size_t n = 0;
  while (at + n < text.size() && is(text[at + n])) ++n;
  return n;
}

// The bytes of a time of day at `at`: 1 or 2 digits, colon, 2 digits, seconds, AM or PM, zone; 0: there is none.
size_t time_at(std::string_view text, size_t at) {
  if (at > 0 && (digit(text[at - 1]) || text[at - 1] == ':' || text[at - 1] == '.')) return 0;
  size_t end = at + run_of(text, at, digit);
  const auto two = [&](size_t from) {
    return from < text.size() && text[from] == ':' && run_of(text, from + 1, digit) == 2;
  };
  if (end - at < 1 || end - at > 2 || !two(end)) return 0;
  end += 3;
  if (two(end)) {
    end += 3;
    if (end < text.size() && text[end] == '.' && run_of(text, end + 1, digit) > 0)
      end += 1 + run_of(text, end + 1, digit);
  }
  if (end < text.size() && text[end] == ':') return 0;  // an address, a ratio
  const size_t space = end < text.size() && text[end] == ' ' ? 1 : 0;
  if (end + space + 1 < text.size() && (lower(text[end + space]) == 'a' || lower(text[end + space]) == 'p') &&
      lower(text[end + space + 1]) == 'm' && (end + space + 2 == text.size() || !letter(text[end + space + 2])))
    end += space + 2;
  if (end < text.size() && text[end] == 'Z') {
    ++end;
  } else if (end + 2 < text.size() && (text[end] == '+' || text[end] == '-') && run_of(text, end + 1, digit) >= 2) {
    const size_t n = run_of(text, end + 1, digit);
    if (n == 4) end += 5;
    if (n == 2) end += two(end + 3) ? 6 : 3;
  }
  return end - at;
}

// Where the date begins that ends at `end`: 2026-11-24, 24.11.2026, 11/24/2026; npos: none does.
size_t date_before(std::string_view line, size_t end) {
  std::array<size_t, 3> n = {};  // digits of its parts, the last one first
  char sign = '\0';
  size_t at = end;
  for (size_t part = 0; part < 3; ++part) {
    while (at > 0 && digit(line[at - 1])) --at, ++n[part];
    if (part == 2) break;
    if (at == 0 ||
        (part == 0 ? std::string_view("-./").find(line[at - 1]) == std::string_view::npos : line[at - 1] != sign))
      return std::string_view::npos;
    sign = line[--at];
  }
  const auto short_part = [](size_t digits) { return digits == 1 || digits == 2; };
  const bool sound = short_part(n[1]) && ((n[2] == 4 && short_part(n[0])) || (short_part(n[2]) && n[0] == 4));
  return sound ? at : std::string_view::npos;
}

// Behind the first place from `from` on where the word stands in the line; npos: it does not.
size_t behind_next(std::string_view line, std::string_view word, size_t from) {
  const auto same = [](char a, char b) { return lower(a) == b; };
  for (auto at = line.begin() + static_cast<ptrdiff_t>(from);; ++at) {
    at = std::search(at, line.end(), word.begin(), word.end(), same);
    if (at == line.end()) return std::string_view::npos;
    const auto end = at + static_cast<ptrdiff_t>(word.size());
    if ((at == line.begin() || !letter(at[-1])) && (end == line.end() || !letter(*end)))
      return static_cast<size_t>(end - line.begin());
  }
}

// Behind the last one.
size_t behind_word(std::string_view line, std::string_view word) {
  size_t out = std::string_view::npos;
  for (size_t at = 0; (at = behind_next(line, word, at)) != std::string_view::npos;) out = at;
  return out;
}

bool has_word(std::string_view line, std::string_view word) {
  return behind_word(line, word) != std::string_view::npos;
}

std::string_view behind_blanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

constexpr size_t kMostBefore = 64;  // bytes

// What comes before a time says that it is the one of now: a word for it, and then signs or "is" at most, or a heading
// that has one. "from time to time at 10:30" does not.
bool tells_now(std::string_view before) {
  constexpr std::array<std::string_view, 6> kWords = {"time", "clock", "now", "date", "today", "timestamp"};
  before.remove_prefix(before.size() - std::min(before.size(), kMostBefore));  // there may be many times in a line
  while (!before.empty() && !letter(before.back()) && !digit(before.back())) {
    if (before.back() == ':' || before.back() == '=') {  // a heading, whatever else it says
      return std::ranges::any_of(kWords, [&](std::string_view word) { return has_word(before, word); });
    }
    before.remove_suffix(1);
  }
  return std::ranges::any_of(kWords, [&](std::string_view word) {
    const size_t end = behind_word(before, word);
    if (end == std::string_view::npos) return false;
    const std::string_view rest = behind_blanks(before.substr(end));
    return rest.empty() || rest == "is";
  });
}

// "It is 10:31 now".
bool now_follows(std::string_view behind) { return behind_word(behind_blanks(behind).substr(0, 4), "now") == 3; }

// Without signs and one weekday at its end.
std::string_view without_weekday(std::string_view before) {
  constexpr std::array<std::string_view, 7> kDays = {"sun", "mon", "tue", "wed", "thu", "fri", "sat"};
  const auto without_signs = [](std::string_view text) {
    while (!text.empty() && (text.back() == ' ' || text.back() == ',' || text.back() == '.')) text.remove_suffix(1);
    return text;
  };
  const std::string_view text = without_signs(before);
  constexpr size_t kMost = 9;  // "wednesday"
  size_t n = 0;
  while (n < text.size() && n <= kMost && letter(text[text.size() - 1 - n])) ++n;
  std::string word(text.substr(text.size() - n));
  std::ranges::transform(word, word.begin(), lower);
  const bool day = std::ranges::any_of(kDays, [&](std::string_view start) { return word.starts_with(start); });
  return day && (n == 3 || word.ends_with("day")) ? without_signs(text.substr(0, text.size() - n)) : before;
}

// Whether the time in [at, end) is the one of now: by "now" behind it, by what stands before the date that it belongs to,
// or before itself, where it is the line's only one: of "The bus leaves on time: 7:15, 8:15" none is.
bool is_now(std::string_view line, size_t at, size_t end, bool alone) {
  if (now_follows(line.substr(end))) return true;
  size_t date_end = at;
  while (date_end > 0 && at - date_end < 2 && (line[date_end - 1] == ' ' || line[date_end - 1] == ',')) --date_end;
  if (date_end == at && at > 1 && line[at - 1] == 'T') --date_end;
  const size_t date = date_before(line, date_end);
  if (date == std::string_view::npos) return alone && tells_now(line.substr(0, at));
  return tells_now(without_weekday(line.substr(0, date)));
}

// A line that is copied but for some ranges: once, however many there are.
class Rest {
 public:
  explicit Rest(const std::string& line) : line_(line) {}
  // [begin, end) becomes `by`. Ranges come in order.
  void replace(size_t begin, size_t end, std::string_view by) {
    out_.append(line_, taken_, begin - taken_).append(by);
    taken_ = end;
  }
  // Whether anything was replaced: then the line is what is left.
  bool put(std::string& line) {
    if (taken_ == 0) return false;
    line = std::move(out_.append(line_, taken_));
    return true;
  }

 private:
  const std::string& line_;
  std::string out_;
  size_t taken_ = 0;
};

bool fold_billing(std::string& line) {
  constexpr std::string_view kKey = "cch=";
  Rest rest(line);
  for (size_t at = line.find(kKey); at != std::string::npos; at = line.find(kKey, at + kKey.size())) {
    const size_t digits = at + kKey.size(), n = run_of(line, digits, hex);
    if (n >= 4) rest.replace(digits, digits + n, "0");
  }
  return rest.put(line);
}

bool fold_times(std::string& line) {
  std::vector<std::pair<size_t, size_t>> times;
  for (size_t at = 0; at < line.size(); ++at) {
    const size_t n = digit(line[at]) ? time_at(line, at) : 0;
    if (n == 0) continue;
    times.emplace_back(at, at + n);
    at += n - 1;
  }
  Rest rest(line);
  for (const auto& [begin, end] : times) {
    if (!is_now(line, begin, end, times.size() == 1)) continue;
    const bool joined = begin > 1 && (line[begin - 1] == ' ' || (line[begin - 1] == 'T' && digit(line[begin - 2])));
    rest.replace(joined ? begin - 1 : begin, end, "");
  }
  return rest.put(line);
}

// The numbers right behind the word.
bool fold_stamps(std::string& line) {
  constexpr size_t kLeast = 9;
  const auto sign = [](char c) { return !letter(c) && !digit(c); };
  Rest rest(line);
  for (size_t at = 0; (at = behind_next(line, "timestamp", at)) != std::string_view::npos;) {
    at += run_of(line, at, sign);
    if (std::string_view(line).substr(at).starts_with("is ")) at += 3;
    const size_t n = run_of(line, at, digit);
    if (n >= kLeast) rest.replace(at, at + n, "0");
    at += n;
  }
  return rest.put(line);
}

// Whether the line is the heading of a git status.
bool begins_status(std::string_view line) {
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
  return line == "Status:" || line == "gitStatus:" || line == "gitStatus" || line == "Git status:";
}

// " M src/a.cc", "?? b.cc", "R  a.cc -> b.cc", "(clean)"; the first one without the blank that it may begin with, where
// whoever read it took that off. Git quotes a path with blanks, so that "AT home only" is none.
bool is_status(std::string_view line, bool first) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (line == "(clean)") return true;
  const auto coded = [&](size_t n) {
    const std::string_view code = line.substr(0, n);
    return line.size() > n + 1 && line[n] == ' ' && code.find_first_not_of(" MADRCTU?!") == code.npos &&
           code.find_first_not_of(' ') != code.npos;
  };
  const bool whole = coded(2);
  if (!whole && !(first && coded(1))) return false;
  const std::string_view path = line.substr(whole ? 3 : 2);
  return path.starts_with('"') || path.find(' ') == path.npos || path.find(" -> ") != path.npos;
}

}  // namespace

int fold_volatile_text(std::string& text) {
  std::string out;
  out.reserve(text.size());
  int folded = 0;
  bool in_status = false, first_status = false;
  for (size_t at = 0; at < text.size();) {
    const size_t found = text.find('\n', at);
    const size_t end = found == std::string::npos ? text.size() : found;
    std::string line = text.substr(at, end - at);
    at = end + 1;
    in_status = in_status && is_status(line, first_status);
    first_status = false;
    if (in_status) {
      ++folded;
      continue;
    }
    in_status = first_status = begins_status(line);
    const bool billing = fold_billing(line), times = fold_times(line), stamps = fold_stamps(line);
    folded += billing || times || stamps ? 1 : 0;
    out += line;
    if (found != std::string::npos) out += '\n';
  }
  if (folded > 0) text = std::move(out);
  return folded;
}

int fold_volatile_lines(nlohmann::ordered_json& messages) {
  int folded = 0;
  const auto fold = [&folded](nlohmann::ordered_json& text) {
    if (text.is_string()) folded += fold_volatile_text(text.get_ref<std::string&>());
  };
  for (auto& message : messages) {
    if (!message.is_object()) continue;
    const auto role = message.find("role"), content = message.find("content");
    if (role == message.end() || content == message.end() || !is_system(message)) continue;
    fold(*content);
    if (!content->is_array()) continue;
    for (auto& part : *content) {
      if (const auto text = part.is_object() ? part.find("text") : part.end(); part.is_object() && text != part.end())
        fold(*text);
    }
  }
  return folded;
}

}  // namespace kvilt

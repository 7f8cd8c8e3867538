#include "eval/score.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>

#include "base/check.h"
#include "base/error.h"

namespace kvilt {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return text;
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

std::string first_line(const std::string& text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  return text.substr(begin, text.find('\n', begin) - begin);
}

double f1(const std::string& truth, const std::string& text) {
  const auto wanted = words(normalise_answer(truth)), got = words(normalise_answer(text));
  if (wanted.empty() || got.empty()) return wanted.empty() && got.empty() ? 1 : 0;
  std::map<std::string, int> left;
  for (const std::string& word : wanted) ++left[word];
  int common = 0;
  for (const std::string& word : got) common += left[word]-- > 0;
  if (common == 0) return 0;
  const double precision = common / static_cast<double>(got.size()),
               recall = common / static_cast<double>(wanted.size());
  return 2 * precision * recall / (precision + recall);
}

bool digit(char c) { return c >= '0' && c <= '9'; }
// Of names and numbers. Other alphabets' letters have no borders here: some are written without spaces.
bool of_word(char c) { return digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// The place behind the digits that begin there.
size_t behind_digits(const std::string& text, size_t at) {
  while (at < text.size() && digit(text[at])) ++at;
  return at;
}

// 1,500 is 1500: commas before three digits, and not more, leave.
std::string without_thousands(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = text[i] == ',' && i > 0 && digit(text[i - 1]) && behind_digits(text, i + 1) == i + 4;
    if (!between) out += text[i];
  }
  return out;
}

// -12, 1,500 or 3.5.
bool is_number(const std::string& text) {
  const size_t begin = text.empty() || (text[0] != '-' && text[0] != '+') ? 0 : 1;
  return begin < text.size() && digit(text[begin]) && digit(text.back()) &&
         text.find_first_not_of("0123456789.,", begin) == std::string::npos;
}

// Whether the answer occurs in the text, and not as a part of a longer word or number: 3 occurs neither in 13 nor in
// 0.3, and stock_price not in get_stock_price.
bool occurs(const std::string& given, const std::string& read) {
  const bool number = is_number(given);
  const std::string answer = number ? without_thousands(given) : given, text = number ? without_thousands(read) : read;
  if (answer.empty()) return true;
  const auto mark = [](char c) { return c == '.' || c == ','; };
  for (size_t at = text.find(answer); at != std::string::npos; at = text.find(answer, at + 1)) {
    const size_t end = at + answer.size();
    bool longer = (at > 0 && of_word(answer.front()) && of_word(text[at - 1])) ||
                  (end < text.size() && of_word(answer.back()) && of_word(text[end]));
    if (number) {
      longer = longer || (at > 1 && mark(text[at - 1]) && digit(text[at - 2])) ||
               (end + 1 < text.size() && mark(text[end]) && digit(text[end + 1]));
    }
    if (!longer) return true;
  }
  return false;
}

// What stands before the first quotation mark; all, where there is none.
std::string quoted(const std::string& text) {
  const std::string line = first_line(text);
  const std::string inside = line.substr(0, line.find('"'));
  return inside.substr(0, inside.find_last_not_of(" \t\r") + 1);
}

}  // namespace

Result<Metric> parse_metric(const std::string& name) {
  if (name == "f1") return Metric::kF1;
  if (name == "em") return Metric::kExact;
  if (name == "recall") return Metric::kRecall;
  if (name == "contains") return Metric::kContains;
  return error(Code::kInvalidArgument, "no metric '{}'; there are f1, em, recall, contains", name);
}

std::string normalise_answer(const std::string& text) {
  std::string plain;
  for (const char c : lower(text)) {
    if (!std::ispunct(static_cast<unsigned char>(c))) plain += c;
  }
  std::string out;
  for (const std::string& word : words(plain)) {
    if (word != "a" && word != "an" && word != "the") out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

double score_answer(Metric metric, const std::vector<std::string>& answers, const std::string& text) {
  CHECK(!answers.empty());
  const std::string line = first_line(text), all = lower(text);
  double best = 0, found = 0;
  for (const std::string& answer : answers) {
    if (metric == Metric::kF1) best = std::max(best, f1(answer, line));
    if (metric == Metric::kExact) best = std::max(best, normalise_answer(answer) == normalise_answer(line) ? 1.0 : 0.0);
    if (metric == Metric::kQuoted) best = std::max(best, lower(answer) == lower(quoted(text)) ? 1.0 : 0.0);
    found += occurs(lower(answer), all);
  }
  const auto count = static_cast<double>(answers.size());
  if (metric == Metric::kRecall) return found / count;
  if (metric == Metric::kContains) return found == count ? 1 : 0;
  return best;
}

}  // namespace kvilt

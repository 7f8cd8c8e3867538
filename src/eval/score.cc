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

// Whether the answer occurs in the text. One that begins or ends with a digit is not the begin or end of a longer
// number: 3 does not occur in 13.
bool occurs(const std::string& answer, const std::string& text) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  for (size_t at = text.find(answer); at != std::string::npos; at = text.find(answer, at + 1)) {
    const size_t end = at + answer.size();
    if (answer.empty()) return true;
    const bool longer_before = at > 0 && digit(answer.front()) && digit(text[at - 1]);
    const bool longer_behind = end < text.size() && digit(answer.back()) && digit(text[end]);
    if (!longer_before && !longer_behind) return true;
  }
  return false;
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
    found += occurs(lower(answer), all);
  }
  const auto count = static_cast<double>(answers.size());
  if (metric == Metric::kRecall) return found / count;
  if (metric == Metric::kContains) return found == count ? 1 : 0;
  return best;
}

}  // namespace kvilt

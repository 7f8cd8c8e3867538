// index/edits_for_test.h: made-up source text as token ids, and the edits between which agents read the same file; for
// the tests and the benchmark of near discovery.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace kvilt {

using Line = std::vector<int32_t>;
using Lines = std::vector<Line>;

inline constexpr int32_t kNewline = 1, kIndent = 2, kTab = 3, kDigit = 10, kEscape = 30, kFirstWord = 100;

// Lines of 4 to 24 tokens whose words are as unequally common as those of a language; some lines are boilerplate.
inline Lines made_up_lines(int32_t count, std::mt19937_64& random) {
  constexpr uint64_t kWords = 20'000, kBoilerplate = 16;
  std::uniform_real_distribution<double> uniform(0, 1);
  Lines out;
  for (int32_t i = 0; i < count; ++i) {
    Line line{kIndent + 10'000'000 * static_cast<int32_t>(random() % 3)};  // one of three indents
    if (random() % 8 == 0) {
      for (int32_t at = 0; at < 6; ++at)
        line.push_back(90'000 + static_cast<int32_t>(random() % kBoilerplate) / 8 + at);
    } else {
      for (int32_t at = 0, size = 3 + static_cast<int32_t>(random() % 20); at < size; ++at) {
        const double u = uniform(random);
        line.push_back(kFirstWord + static_cast<int32_t>(kWords * u * u * u * u));
      }
    }
    line.push_back(kNewline);
    out.push_back(std::move(line));
  }
  return out;
}

inline std::vector<int32_t> joined(const Lines& lines) {
  std::vector<int32_t> out;
  for (const Line& line : lines) out.insert(out.end(), line.begin(), line.end());
  return out;
}

// "numbered", "indented", "escaped", "notes" (the lines in another order), or a share of lines in per cent: "20", in
// each of which a word is another and one is new.
inline std::vector<int32_t> edited(Lines lines, const std::string& form, std::mt19937_64& random) {
  int32_t number = 0;
  for (Line& line : lines) {
    ++number;
    if (form == "numbered") {
      line.insert(line.begin(), {kDigit + number / 100 % 10, kDigit + number / 10 % 10, kDigit + number % 10, kTab});
    } else if (form == "indented") {
      line.front() += 1'000'000;
    } else if (form == "escaped") {
      line.back() = kEscape;
      line.push_back(kEscape + 1);
      line.front() += 2'000'000;
    } else if (form != "notes" && random() % 100 < std::stoull(form)) {
      const size_t at = 1 + random() % (line.size() - 2);
      line[at] = 50'000 + static_cast<int32_t>(random() % 10'000);
      line.insert(line.begin() + static_cast<std::ptrdiff_t>(at), 60'000 + static_cast<int32_t>(random() % 10'000));
    }
  }
  if (form == "notes") std::shuffle(lines.begin(), lines.end(), random);
  return joined(lines);
}

// Which tokens of the prompt are in a run of `least` tokens that the text has too: what brute force finds.
inline std::vector<bool> equal_runs(const std::vector<int32_t>& prompt, const std::vector<int32_t>& text,
                                    int32_t least) {
  std::vector<bool> out(prompt.size(), false);
  std::vector<int32_t> before(text.size() + 1, 0), now(text.size() + 1, 0);  // equal tokens that end here
  for (size_t i = 0; i < prompt.size(); ++i) {
    for (size_t j = 0; j < text.size(); ++j) {
      now[j + 1] = prompt[i] == text[j] ? before[j] + 1 : 0;
      if (now[j + 1] >= least) std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(i + 1 - least), least, true);
    }
    before.swap(now);
  }
  return out;
}

}  // namespace kvilt

#include "grammar/text_start.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/check.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

std::vector<int32_t> characters_of(std::string_view text) {
  std::vector<int32_t> out;
  while (!text.empty()) {
    const CodePoint next = first_code_point(text);
    CHECK(next.value >= 0);
    out.push_back(next.value);
    text.remove_prefix(static_cast<size_t>(next.size));
  }
  return out;
}

// How many characters of the word are at the end of its first `have` and c; all of them: it is whole.
size_t after(const std::vector<int32_t>& word, size_t have, int32_t c) {
  std::vector<int32_t> text(word.begin(), word.begin() + static_cast<ptrdiff_t>(have));
  text.push_back(c);
  size_t most = text.size();
  while (most > 0 && !std::equal(text.end() - static_cast<ptrdiff_t>(most), text.end(), word.begin())) --most;
  return most;
}

std::string name_of(size_t have) { return have == 0 ? "root" : fmt::format("pending{}", have); }

}  // namespace

std::string text_start_to_ebnf(std::string_view word, const CharSet& never) {
  const std::vector<int32_t> characters = characters_of(word);
  CHECK(!characters.empty());
  const std::set<int32_t> known(characters.begin(), characters.end());
  std::string out;
  for (size_t have = 0; have < characters.size(); ++have) {
    CharSet taken;  // by the rules below; in root also by `never`
    if (have == 0) taken.add(never);
    std::string rules;
    for (const int32_t c : known) {
      const size_t next = after(characters, have, c);
      if (next == 0) continue;  // as any other character
      taken.add(c, c);
      if (next < characters.size())
        rules += fmt::format("{} {} | ", CharSet(c, c).to_ebnf(Spelling::kPlain), name_of(next));
    }
    out += fmt::format("{} ::= {}{}\n", name_of(have), rules, taken.others().to_ebnf(Spelling::kPlain));
  }
  return out;
}

}  // namespace kvilt

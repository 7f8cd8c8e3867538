// grammar/char_set.h: a set of code points, as a class of a regular expression names it, and how EBNF writes it.
// Invariants: halves of surrogate pairs are never written.
// Cost:       adding is constant; what reads a set sorts its ranges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvilt {

// Whether a text is written as it is, or as it stands between the quotes of a string in JSON: there each character has
// one way to be written, the shortest.
enum class Spelling { kPlain, kInJson };

class CharSet {
 public:
  static constexpr int32_t kLast = 0x10FFFF;

  CharSet() = default;
  CharSet(int32_t first, int32_t last) { add(first, last); }

  void add(int32_t first, int32_t last);  // REQUIRES: 0 <= first <= last <= kLast
  void add(const CharSet& other);
  CharSet others() const;  // all that are not in it
  void add_other_cases();  // of ASCII's letters
  bool has_beyond_ascii() const;
  bool empty() const { return ranges_.empty(); }
  // A class, or in JSON one in brackets with what must be escaped. REQUIRES: not empty
  std::string to_ebnf(Spelling spelling) const;

 private:
  struct Range {
    int32_t first, last;
  };
  std::vector<Range> sorted() const;  // ascending; they neither meet nor touch
  std::string class_of() const;       // "[...]"
  bool has(int32_t c) const;

  std::vector<Range> ranges_;
};

// A text as EBNF's string. REQUIRES: UTF-8. any_case: of ASCII's letters.
std::string text_to_ebnf(std::string_view text, bool any_case, Spelling spelling);

}  // namespace kvilt

// grammar/lark_pattern.h: a regular expression between slashes, as Lark's terminals have it, as EBNF.
// Idea:   what a terminal matches as a whole is all that counts, so that groups are brackets and nothing is captured.
// Limits: what needs more than a set of texts is refused by name: looking around, anchors, backreferences, and lazy
//         quantifiers, which say where a reader stops and not what may be written.
#pragma once

#include <string>
#include <string_view>

#include "grammar/char_set.h"
#include "kvilt/result.h"

namespace kvilt {

inline constexpr int kMostLarkDepth = 50;         // brackets in each other, of rules and of an expression
inline constexpr int kMostLarkCount = 1'000'000;  // of a repetition

struct LarkFlags {
  bool any_case = false;    // i: ASCII's letters
  bool dot_is_all = false;  // s
};

// One EBNF expression, to be put into brackets. REQUIRES: UTF-8.
Result<std::string> lark_pattern_to_ebnf(std::string_view pattern, LarkFlags flags, Spelling spelling);

}  // namespace kvilt

// grammar/gbnf.h: what llama.cpp's grammars (GBNF) and expressions say otherwise than xgrammar reads it.
// Idea: EBNF of both is nearly the same. Written otherwise are an alternative of nothing (`ws ::= | " "`), `.` for any
//       character, and `{,n}`. Strings, classes and comments stay as they are, and so do lines: errors name them.
// Cost: linear in the text.
#pragma once

#include <string>
#include <string_view>

namespace kvilt {

std::string gbnf_to_ebnf(std::string_view rules);

// A regular expression in which `.` is no line feed, as Python's and Lark's are.
std::string dots_without_line_feed(std::string_view pattern);

}  // namespace kvilt

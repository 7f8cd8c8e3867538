// grammar/lark.h: a grammar in Lark's language as the EBNF that the compiler takes.
// Idea:       only the texts of a grammar matter here, not the tree that a parser would make of one: aliases, priorities
//             and the marks ? and ! of rules are read and mean nothing. Terminals are rules like others: there is no lexer
//             in between that prefers the longest one, so all that the rules let through is a text of the grammar.
// Invariants: pure; recursion has a depth, and the EBNF grows with the text alone. What is outside the subset is an error
//             with its line and what to do.
// Not here:   whether rules can be met at all, and the size of what they make (compiler.h).
#pragma once

#include <string>
#include <string_view>

#include "grammar/char_set.h"
#include "kvilt/result.h"

namespace kvilt {

// Whether the first thing that a grammar says is Lark's: `name: ...` or `%import ...`, and not EBNF's `name ::= ...`.
bool is_lark(std::string_view text);

// EBNF with the rule `root`, which is `start`, or the first one where there is none of that name.
Result<std::string> lark_to_ebnf(std::string_view text, Spelling spelling = Spelling::kPlain);

// The same of one regular expression that a text matches as a whole, in the words that Lark's terminals take.
Result<std::string> pattern_to_ebnf(std::string_view pattern, Spelling spelling);

}  // namespace kvilt

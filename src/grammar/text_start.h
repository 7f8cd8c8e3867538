// grammar/text_start.h: the beginning of a text in which a word is looked for from behind it on, as EBNF.
// Idea:       text with calls (GrammarPart::text_with) may begin with anything. Where some first characters are taken,
//             the text's first characters come from here: as many as make sure that no part of the word is pending
//             behind them. The rules are the states of the search of Knuth, Morris and Pratt.
// Threads:    any.
#pragma once

#include <string>
#include <string_view>

#include "grammar/char_set.h"

namespace kvilt {

// Does not begin with one of `never`, holds no whole word, and ends as soon as no beginning of the word is at its end.
// REQUIRES: word is UTF-8 and not empty, and does not begin with one of `never`.
std::string text_start_to_ebnf(std::string_view word, const CharSet& never);

}  // namespace kvilt

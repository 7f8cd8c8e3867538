// grammar/schema_number.h: numbers that are multiples of something, as a regular expression.
// Idea:       a multiple of .01 is a number with two decimals at most; one of .25 ends in .0, .25, .5 or .75; a whole
//             multiple of 5 ends in 0 or 5. So where a power of ten is a multiple of it too, the last digits decide, and the
//             digits before them are free, or those of a range.
// Invariants: what fits the expression is a multiple in decimal, as it is written (0.07 is one of .01, whatever the nearest
//             double is), and within the bounds. No exponents, no -0.
// Cost:       the expression has some bytes for each ending, at most kMostEndings of them.
#pragma once

#include "grammar/schema_words.h"

namespace kvilt {

// Of a schema whose type is "number" or "integer" and that has a multipleOf; nothing where the last digits do not decide,
// or where its bounds or endings are too many.
std::optional<std::string> multiples_expression(const SchemaJson& schema);

bool divides_all_integers(const SchemaJson& multiple);  // .5, .01

// Whether xgrammar itself holds integers to it: unbounded, or within a range that it lists.
bool lists_multiples(const SchemaJson& schema);

}  // namespace kvilt

// What xgrammar asks (scripts/get_xgrammar) of a schema as JSON: the expression, until the thread's next call, or null.
const char* kvilt_multiples_expression(const char* schema);

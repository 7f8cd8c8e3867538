// grammar/schema_number.h: numbers that are multiples of something, as a regular expression.
// Idea:       a multiple of .01 is a number with two decimals at most; one of .25 ends in .0, .25, .5 or .75; a whole
//             multiple of 5 ends in 0 or 5. So where a power of ten is a multiple of it too, the last digits decide, and the
//             digits before them are free, or those of a range.
// Invariants: what fits the expression is a multiple in decimal, as it is written (0.07 is one of .01, whatever the nearest
//             double is), and within the bounds. No exponents, no -0.
// Cost:       the expression has some bytes for each ending, at most kMostEndings of them.
#pragma once

#include <string>

#include "grammar/schema_words.h"
#include "kvilt/result.h"

namespace kvilt {

// Of a schema whose type is "number" or "integer" and that has a multipleOf; nothing where the last digits do not decide,
// or where its bounds or endings are too many.
std::optional<std::string> multiples_expression(const SchemaJson& schema);

bool divides_all_integers(const SchemaJson& multiple);  // .5, .01

// Numbers with bounds have six decimals at most (xgrammar's expressions). Whether one of them is within the bounds that
// say something of a number, or of a whole one. REQUIRES: bounds that are numbers count alone
bool leaves_a_number(const SchemaJson& schema, bool whole);

// Bounds of integers that are no integers, rounded inward: xgrammar takes no others. In place.
void round_whole_bounds(SchemaJson& schema);

// Whether xgrammar itself holds integers to it: unbounded, or within a range that it lists.
bool lists_multiples(const SchemaJson& schema);

// Integers beyond int64 among the values of const and enum, as texts that xgrammar's reader of JSON does not round; it has
// them back from kvilt_large_integers. Errors: a text that begins as these do; one in a oneOf.
Status mark_large_integers(SchemaJson& schema, bool in_one_of = false);

}  // namespace kvilt

// What xgrammar asks (scripts/get_xgrammar) of a schema as JSON: the expression, until the thread's next call, or null.
const char* kvilt_multiples_expression(const char* schema);

// And of a value's JSON: the same with those integers.
std::string kvilt_large_integers(const std::string& json);

// grammar/schema_string.h: a string's pattern, length and format, made one condition.
// Idea:       xgrammar holds a string to one of the three and passes over the others. How long the texts of a pattern are
//             is read off it, and its repeats are bounded where that is not within the lengths. A format of bounded length
//             is written as a pattern. Expressions that frameworks are known to write and that look around are replaced by
//             ones that do not.
// Invariants: what fits the result fits what was there; some texts may be left out (a length is shared among repeats).
#pragma once

#include "grammar/schema_words.h"

namespace kvilt {

// In place. What cannot be written as one condition stays as it is; the error is the caller's, or xgrammar's.
void settle_string(SchemaJson& schema);

// The pattern, bounded so that its texts have so many characters (most: -1 for no bound); nothing where that is not seen.
std::optional<std::string> bounded_pattern(const std::string& pattern, int64_t least, int64_t most);

}  // namespace kvilt

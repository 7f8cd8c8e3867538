// grammar/schema_keys.h: conditions on the names of properties: propertyNames, patternProperties, minProperties.
// Idea:       xgrammar passes over some of them where others stand beside them. What says the same otherwise is written so;
//             the rest is an error, whose text names no place: that is the caller's.
// Invariants: what fits the result fits what was there.
#pragma once

#include <string>

#include "grammar/schema_words.h"
#include "kvilt/result.h"

namespace kvilt {

inline constexpr const char* kTooManyKeys = "it has too many properties and values, or these come again too often";

// In place: propertyNames that is a list becomes properties, one that says nothing goes.
Status settle_names(const SchemaJson& root, SchemaJson& schema, Looked& looked);

// What xgrammar does not hold keys to: of those that no property names it knows neither which are properties, nor which
// other pattern they fit, nor which were written before.
Status check_keys(const SchemaJson& schema);

// Whether no text fits both expressions: both begin with fixed characters, of which neither's begin the other's.
bool are_apart(const std::string& pattern, const std::string& other);

}  // namespace kvilt

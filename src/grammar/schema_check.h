// grammar/schema_check.h: which JSON Schemas an answer can be held to.
// Idea:       xgrammar reads one of a schema's ruling keywords ($ref, const, enum, anyOf, oneOf, allOf) and then none
//             beside it, and passes over some keywords without a word. An answer would be let through that the schema
//             does not allow. Such schemas are errors here; what no check is made of are annotations (title, default,
//             examples, an unknown format ...), which mean nothing to a validator either.
// Cost:       linear in the schema, which must not be deeper than kMostSchemaLevels, but for what is read and copied again
//             (unions, $refs, one schema for several names), which is bounded in all (Looked).
#pragma once

#include <nlohmann/json.hpp>

#include "grammar/schema_words.h"
#include "kvilt/result.h"

namespace kvilt {

// An error names the place as a JSON pointer. What xgrammar reads otherwise than the specification is written so that it
// does not: `type` beside const or enum is met here and taken out, an object or list of which nothing is said is open, and
// a `oneOf` with $refs is an `anyOf` where its schemas are seen to exclude each other. Annotations (title ...) are taken
// out. A schema that is settled stays as it is when it is settled again.
Status settle_schema(nlohmann::ordered_json& schema);

}  // namespace kvilt

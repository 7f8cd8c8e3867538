// grammar/schema_refs.h: the $refs of a schema that becomes a part of another one, or leaves it.
// Idea: a $ref begins at the root of its document. A part that is to stand alone takes along what its $refs lead to.
// Cost: linear in the schema.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "kvilt/result.h"

namespace kvilt {

// Where they lead: nowhere (there are none), to the root's $defs and definitions alone, elsewhere too.
enum class SchemaRefs { kNone, kDefinitions, kElsewhere };
SchemaRefs refs_of(const nlohmann::ordered_json& schema);

// What was their root is at `to` (#/$defs/a) from now on.
void move_refs(nlohmann::ordered_json& schema, std::string_view to);

// Errors: a schema within this one has an $id and $refs inside: these begin at it, and here all begin at the root.
Status check_ids(const nlohmann::ordered_json& schema);

}  // namespace kvilt

// server/tool_shapes.h: what a request's tools say of their parameters that an answer's text does not.
// Role:       values in tags have no quotes (answer_parser.h): whether 2024 is a text is in the tool's schema alone.
// Invariants: pure. What the strict grammar writes (is_plain_text in engine/answer_grammar.cc) is read as it was meant:
//             kPlain is what it writes without quotes, and all else is JSON there.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/json_fields.h"

namespace kvilt::server {

// How a parameter that is a string is written: as it is; as it is or as a string of JSON; the same, or null.
enum class TextForm { kPlain, kMaybeJson, kMaybeNull };

struct ToolShape {
  std::string name;
  std::map<std::string, TextForm> texts;  // parameters that are strings
};

std::vector<ToolShape> tool_shapes(const Json& tools);

}  // namespace kvilt::server

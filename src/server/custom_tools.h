// server/custom_tools.h: OpenAI's custom tools, whose input is a text and no JSON.
// Idea:       to the model such a tool is a function with one parameter, the string `input`: its template knows no other.
//             What it is called with becomes a text again (input_text.h), and calls in the history become those of the
//             function. A grammar of the tool holds the input where it is written (constraint_request.h).
// Invariants: pure; an error names the client's field. No exception leaves.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kvilt/constraint.h"
#include "server/json_fields.h"

namespace kvilt::server {

struct CustomTool {
  std::string name, description;
  Constraint::Form form = Constraint::Form::kNone;  // kRegex or kGrammar: what the input is a text of
  std::string definition;

  // As what is enforced: its only parameter, or the grammar of that.
  Constraint::Tool constraint() const;
};

bool is_custom(const Json& tool);
// path: of the tool, e.g. "tools[0]". REQUIRES: is_custom.
ApiResult<CustomTool> read_custom_tool(const Json& tool, const std::string& path);

// Puts functions in the place of custom tools, and of calls of them in messages.
std::optional<ApiError> settle_custom_tools(Json& body);

}  // namespace kvilt::server

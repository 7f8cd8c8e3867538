// server/constraint_request.h: what an answer must be, read from a request's JSON.
// Role:       OpenAI's response_format, tool_choice and strict tools, and vLLM's guided_* and structured_outputs, become a
//             Constraint (kvilt/constraint.h).
// Invariants: pure; one constraint a request, and two fields that ask for different ones are an error. Schemas are handed
//             on as text: the engine says which of them it can hold an answer to.
#pragma once

#include <string>

#include "kvilt/constraint.h"
#include "server/json_fields.h"

namespace kvilt::server {

inline constexpr size_t kMaxConstraint = 128 << 10;  // bytes of one schema, expression or grammar

struct ConstraintRequest {
  Constraint constraint;
  std::string field;  // that asked for it: for messages
};

// response_format, guided_*, structured_outputs.
void read_constraint(Fields& fields, ConstraintRequest& out);

// tool_choice and tools, after read_constraint. one_call: parallel_tool_calls is false.
void read_tool_constraint(Fields& fields, bool one_call, ConstraintRequest& out);

}  // namespace kvilt::server

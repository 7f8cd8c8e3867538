// server/old_calls.h: a conversation that was kept in OpenAI's first form of calls, before there were tools.
// Idea:   an assistant's `function_call` becomes the one call of its `tool_calls`, and the message of role `function`
//         that answers it one of role `tool`. A template that knows only these would leave both out.
// Errors: what is no such call, or stands beside tool_calls, is a 400 that names its place.
#pragma once

#include <optional>

#include "server/json_fields.h"

namespace kvilt::server {

// In the messages of a chat's body.
std::optional<ApiError> settle_old_calls(Json& body);

}  // namespace kvilt::server

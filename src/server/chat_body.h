// server/chat_body.h: what a chat's body says in the words of an API, put into words that Engine::chat_prompt takes.
// Role:       every route that makes a chat's prompt, to answer or to count, does it first, so that all see one prompt.
// Invariants: no exception leaves; an error names the client's field.
// Not here:   settings of the answer (openai_request.h).
#pragma once

#include <optional>

#include "server/json_fields.h"

namespace kvilt::server {

class Service;
struct Call;

// A body in OpenAI's form: `reasoning_effort` as chat_template_kwargs (thinking_effort.h), and documents of the caller's knowledge bases in place of their
// names. REQUIRES: it is an object.
std::optional<ApiError> settle_chat(const Service& service, const Call& call, Json& body);

}  // namespace kvilt::server

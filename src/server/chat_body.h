// server/chat_body.h: what a chat's body says in the words of an API, put into words that Engine::chat_prompt takes.
// Role:       every route that makes a chat's prompt, to answer or to count, does it first, so that all see one prompt.
// Invariants: no exception leaves; an error names the client's field.
// Not here:   settings of the answer (openai_request.h).
#pragma once

#include <optional>
#include <string>

#include "server/json_fields.h"

namespace kvilt::server {

class Service;
struct Call;

// How long a model thinks is its template's: some know reasoning_effort (gpt-oss), some enable_thinking (Qwen3), some
// nothing of it. So an effort, `path` of the client's, becomes chat_template_kwargs. What these say themselves stays.
std::optional<ApiError> set_effort(Json& body, const Json& effort, const std::string& path);
// The same for a model that shall not think at all.
std::optional<ApiError> forbid_thinking(Json& body);

// A body in OpenAI's form: `reasoning_effort` as above, and documents of the caller's knowledge bases in place of their
// names. REQUIRES: it is an object.
std::optional<ApiError> settle_chat(const Service& service, const Call& call, Json& body);

}  // namespace kvilt::server

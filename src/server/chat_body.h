// server/chat_body.h: what a chat's body says in the words of an API, put into words that Engine::chat_prompt takes.
// Role:       every route that makes a chat's prompt, to answer or to count, does it first, so that all see one prompt.
// Invariants: no exception leaves; an error names the client's field.
// Not here:   settings of the answer (openai_request.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kvilt/request.h"
#include "server/json_fields.h"
#include "server/knowledge_bases.h"

namespace kvilt::server {

class Service;
struct Call;

// A body in OpenAI's form: what it says of thinking as chat_template_kwargs (thinking_effort.h), custom tools as functions
// (custom_tools.h), calls of the first form as tool_calls (old_calls.h), and documents of the caller's knowledge bases in
// place of their names. REQUIRES: it is an object.
// Those documents count as the body does (MemoryGate): it waits for its turn, and is a 503 (`overloaded`) without one.
// named: what they are, for who has the chat computed.
std::optional<ApiError> settle_chat(const Service& service, const Call& call, Json& body,
                                    NamedDocuments* named = nullptr);
// The text of the last message, whose content is a string or a list of parts.
std::string last_text(const Json& body);

// Routes make a chat's prompts by these alone: the template is told what the server has been told of it
// (--chat-template-kwargs) and the body leaves out.
Result<Prompt> chat_prompt(const Service& service, const Call& call, Json& body);
Result<std::vector<Prompt>> document_prompts(const Service& service, const Call& call, Json& body);

}  // namespace kvilt::server

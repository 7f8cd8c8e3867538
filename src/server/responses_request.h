// server/responses_request.h: a body of OpenAI's Responses API as the body of a chat completion.
// Idea:       `instructions` is a first system message; input items are messages; what the assistant did in one turn
//             (reasoning, text, function calls) is one message again. So a conversation is the same prompt by both
//             routes, and finds the same cached text. Items of earlier responses come before the request's own.
// Invariants: pure; every field that is read is checked for its type, and the error names its path. What would change
//             the answer and is not supported is a 400. No exception leaves this file.
// Cost:       one pass; texts are moved, not copied, but for what the answer repeats and what is stored.
// Not here:   ranges of numbers, `kvilt`, `cache_salt` (openai_request.h reads them from the new body), keeping
//             responses (response_store.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/json_fields.h"
#include "server/openai_request.h"
#include "server/tool_namespaces.h"

namespace kvilt::server {

// What a body says of stored responses; read before the rest, as what came earlier belongs to the input.
struct ResponseThread {
  std::string previous;  // previous_response_id; empty: none
  bool store = true;
};
ApiResult<ResponseThread> response_thread(const Json& body);

struct ResponsesChat {
  Json body;                              // of a chat completion
  std::vector<std::string> sources;       // per message of body: the path of what it was made of
  std::vector<std::string> tool_sources;  // the same per tool
  ToolNamespaces namespaces;              // of body's tools
  Json input;                             // the request's own items, each with an id; null unless they are to be stored
  Json repeated;                          // the fields of the request that a response repeats

  // What is wrong with `body`, in the client's own paths.
  void in_own_paths(ApiError& error) const;
};

// earlier: the items, oldest first, of the responses that this one goes on from.
ApiResult<ResponsesChat> responses_to_chat(Json body, Json earlier, const ResponseThread& thread,
                                           const RequestLimits& limits);

}  // namespace kvilt::server

// server/responses_writer.h: what an answer looks like to clients of OpenAI's Responses API, whole or in events.
// Role:       one choice becomes a list of items, in the order in which the model wrote them: reasoning, message,
//             function_call or custom_tool_call. An answer with neither text nor calls has a message without text.
// Invariants: events in the order of the API, each with the next sequence_number: response.created and .in_progress;
//             per item output_item.added, its parts and deltas, output_item.done; then response.completed, .incomplete
//             or .failed. The last one, and the whole answer, hold the same response.
// Counts:     cached_tokens as in chat; reasoning_tokens are those of the reasoning's text, counted again.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "kvilt/engine.h"
#include "server/answer_writer.h"
#include "server/tool_namespaces.h"

namespace kvilt::server {

struct ResponseForm {
  std::string model;
  Json repeated;  // ResponsesChat::repeated
  bool store = true;
  ToolNamespaces namespaces;  // ResponsesChat::namespaces
  // Takes the response when it is complete, and says whether it will be found again; before `store` is sent.
  std::function<bool(const Json& response)> keep;
};

// engine outlives the writer.
std::unique_ptr<AnswerWriter> responses_writer(ResponseForm form, const Engine& engine);

}  // namespace kvilt::server

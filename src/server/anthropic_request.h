// server/anthropic_request.h: a body of Anthropic's Messages API as the body that OpenAI's clients would send.
// Role:       so there is one way to a prompt (Engine::chat_prompt) and one to its settings (parse_chat). A conversation
//             that both APIs can express is the same prompt by both routes; one without `thinking` is that of a chat
//             with enable_thinking false.
// Idea:       `system` is a first message; a tool_use block is an assistant's tool call, with its input as a string of
//             JSON, which chat_prompt gives to each template in the form that it takes; a tool_result block is a message
//             of role tool; text blocks with cache_control are parts with it, and so pieces of their own.
// Invariants: pure; every field that is read is checked for its type, and the error names its path. What would change
//             the answer and is not supported is a 400. No exception leaves this file.
// Cost:       one pass; texts are moved, not copied.
// Not here:   ranges of numbers, `kvilt`, `cache_salt` (openai_request.h reads them from the new body).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/json_fields.h"
#include "server/openai_request.h"

namespace kvilt::server {

struct OpenAiChat {
  Json body;
  std::vector<std::string> sources;           // per message of body: the path of what it was made of
  std::string format_path;                    // of output_format, where there was one
  bool shows_thinking = false;                // the field `thinking`, but for its type "disabled"
  const char* stops_path = "stop_sequences";  // what the client said of stops in

  // What is wrong with `body`, in the client's own paths.
  std::string in_own_paths(std::string message) const;
};

enum class MessagesUse { kAnswer, kCount };  // kCount: max_tokens is not needed

ApiResult<OpenAiChat> to_openai_chat(Json body, const RequestLimits& limits, MessagesUse use);

}  // namespace kvilt::server

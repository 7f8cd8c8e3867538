// server/thinking_effort.h: how long a model shall think, in an API's words, put into those of its chat template.
// Role:       chats, Responses (`reasoning.effort`) and Anthropic's Messages (`thinking`) say it, each in its own field;
//             chats in the words of several APIs.
// Invariants: what chat_template_kwargs say themselves stays.
// Not here:   what a template makes of it, which is nothing in most.
#pragma once

#include <optional>
#include <string>

#include "server/json_fields.h"

namespace kvilt::server {

// How long a model thinks is its template's: some know reasoning_effort (gpt-oss), some enable_thinking (Qwen3), some
// nothing of it. So an effort, `path` of the client's, becomes chat_template_kwargs; also that it thinks at all, or not:
// the server's own words (--chat-template-kwargs) may say the opposite.
std::optional<ApiError> set_effort(Json& body, const Json& effort, const std::string& path);
// The same of all that a chat's body says: `reasoning_effort`, Qwen's `enable_thinking`, `thinking` as GLM's, DeepSeek's
// and Kimi's APIs have it, OpenRouter's `reasoning` (but for its `exclude`, which is parse_chat's). An error where one
// is wrong, or two contradict each other. A number of tokens is a target and bounds nothing, as Anthropic's Messages.
std::optional<ApiError> settle_thinking(Json& body);
// One of chat_template_kwargs, unless these have it.
std::optional<ApiError> set_template_word(Json& body, const std::string& name, const Json& value);

}  // namespace kvilt::server

// server/anthropic_response.h: what an answer looks like to clients of Anthropic's Messages API, whole or in events.
// Role:       one choice becomes a message of content blocks, in the order in which the model wrote them: text, thinking
//             (its signature is empty: nobody signs it) and tool_use. An answer with neither text nor calls has an empty
//             block of text, because clients read one without looking.
// Invariants: events in the order of the API: message_start, then per block content_block_start, deltas and
//             content_block_stop, then message_delta and message_stop, or one `error`. A ping may come in between.
// Counts:     cache_read_input_tokens = prefix + reused, input_tokens = the rest of the prompt, and nothing is counted
//             as written to a cache: what is kept costs nothing here. The engine knows these when the prefill has
//             ended; so message_start says the prompt's length as input_tokens, and message_delta what came of it.
#pragma once

#include <memory>
#include <string>

#include "server/answer_writer.h"
#include "server/request_log.h"

namespace kvilt::server {

// prompt_tokens: of the one prompt. shows_thinking: else it is left out, as clients that did not ask for it read the first
// block as the answer.
std::unique_ptr<AnswerWriter> anthropic_writer(std::string model, size_t prompt_tokens, bool shows_thinking);

// `diagnostics` of a message: why the prompt was not a continuation of the one that the client named. has_system: the
// first of the prompt's messages was the request's `system`.
Json anthropic_diagnostics(const RequestRecord& record, bool has_system);

Json anthropic_usage(const UsageSum& usage);

}  // namespace kvilt::server

// server/openai_response.h: what an answer looks like in OpenAI's JSON, whole or in chunks.
// Role:       pure functions from the engine's deltas and completions to JSON, and the writer that sends them.
// Invariants: every text is valid UTF-8 by the time it is dumped (json_fields.h); a logprob is finite.
// Not here:   waiting for tokens (answer_queue.h), framing (sse.h), Anthropic's form (anthropic_response.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "kvilt/engine.h"
#include "server/answer_writer.h"
#include "server/json_fields.h"

namespace kvilt::server {

// What all parts of one answer share.
struct Envelope {
  std::string id, model;
  int64_t created = 0;
  bool chat = true;
  std::string fingerprint = {};  // system_fingerprint: of what computes
  bool tokens_as_ids = false;    // logprobs name tokens by their ids: "token_id:5"
};

Envelope make_envelope(bool chat, std::string model, std::string fingerprint);

// As clients and the metrics' label `finished_reason` read it: stop, length, abort or error.
const char* finish_reason(Finish finish);

// "usage" as OpenAI counts; cached_tokens are those that were not computed.
Json usage_json(const UsageSum& usage);

// {"object": "chat.completion" | "text_completion", ...}; every choice has its end.
Json whole_answer(const Envelope& envelope, const Engine& engine, const std::vector<Choice>& choices,
                  const UsageSum& usage);

// Chunks of a stream. usage_follows: every chunk but the last has "usage": null, as OpenAI's do.
Json role_chunk(const Envelope& envelope, int choice, bool usage_follows);
// said: a chat's `delta`; of a text completion it has no meaning.
Json delta_chunk(const Envelope& envelope, const Engine& engine, Choice& grown, bool usage_follows, Json said);
Json end_chunk(const Envelope& envelope, const Choice& choice, bool usage_follows);
Json usage_chunk(const Envelope& envelope, const UsageSum& usage);

// Where a stream has its usage: nowhere, in a last chunk of its own, or in every other chunk too, of its choice so far.
enum class StreamUsage : uint8_t { kNone, kLast, kEvery };

// engine outlives the writer.
std::unique_ptr<AnswerWriter> openai_writer(Envelope envelope, const Engine& engine, StreamUsage usage);

// JSON has no infinity; OpenAI reports tokens that cannot be drawn with -9999.
double finite(float logprob);
Json bytes_of(const std::string& text);

// Of each token its entry, with those of the likeliest ones under the name `top`.
Json with_top(const std::vector<TokenLogprob>& tokens, FunctionRef<Json(int32_t id, float logprob)> entry,
              const char* top = "top_logprobs");

// The two forms of log probabilities. as_ids: Envelope::tokens_as_ids.
Json chat_logprobs(const Engine& engine, const std::vector<TokenLogprob>& tokens, bool as_ids = false);
// Those of the prompt, where they are echoed, and then of the answer. choice.offset is advanced past the last.
Json text_logprobs(const Engine& engine, Choice& choice, bool as_ids = false);

// How tokens are drawn, as the fields of a request say it.
Json sampling_json(const SamplingParams& sampling);

Json model_json(const ModelInfo& info, const std::string& id, int64_t created);

}  // namespace kvilt::server

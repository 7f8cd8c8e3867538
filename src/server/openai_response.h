// server/openai_response.h: what an answer looks like in OpenAI's JSON, whole or in chunks.
// Role:       pure functions from the engine's deltas and completions to JSON; `usage.kvilt` says where the prompt's KV
//             came from.
// Invariants: every text is valid UTF-8 by the time it is dumped (json_fields.h); a logprob is finite.
// Not here:   waiting for tokens (answer_queue.h), framing (sse.h).
#pragma once

#include <string>
#include <vector>

#include "kvilt/engine.h"
#include "server/json_fields.h"

namespace kvilt::server {

// What all parts of one answer share.
struct Envelope {
  std::string id, model;
  int64_t created = 0;
  bool chat = true;
};

Envelope make_envelope(bool chat, std::string model);

// As clients and the metrics' label `finished_reason` read it: stop, length, abort or error.
const char* finish_reason(Finish finish);

// One choice as it grows.
struct Choice {
  int index = 0;
  std::string text;
  std::vector<TokenLogprob> logprobs;
  bool with_logprobs = false;
  size_t offset = 0;  // characters before logprobs[0]: text completions report it per token
  std::optional<Completion> end;
};

// usage of a whole HTTP request: every prompt counts once (its first choice's numbers), every choice's tokens count.
class UsageSum {
 public:
  void add_prompt(const PromptUsage& usage);
  void add_choice(const Completion& completion) { completion_tokens_ += completion.completion_tokens; }
  Json json() const;

 private:
  int64_t completion_tokens_ = 0;
  PromptUsage sum_;
};

// {"object": "chat.completion" | "text_completion", ...}; every choice has its end.
Json whole_answer(const Envelope& envelope, const Engine& engine, const std::vector<Choice>& choices,
                  const UsageSum& usage);

// Chunks of a stream. usage_follows: every chunk but the last has "usage": null, as OpenAI's do.
Json role_chunk(const Envelope& envelope, int choice, bool usage_follows);
Json delta_chunk(const Envelope& envelope, const Engine& engine, Choice& grown, bool usage_follows);
Json end_chunk(const Envelope& envelope, int choice, const Completion& end, bool usage_follows);
Json usage_chunk(const Envelope& envelope, const UsageSum& usage);

// The two forms of log probabilities.
Json chat_logprobs(const Engine& engine, const std::vector<TokenLogprob>& tokens);
// offset: characters before the first token; it is advanced past the last.
Json text_logprobs(const Engine& engine, const std::vector<TokenLogprob>& tokens, size_t& offset);

Json model_json(const ModelInfo& info, const std::string& id, int64_t created);

}  // namespace kvilt::server

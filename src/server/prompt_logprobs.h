// server/prompt_logprobs.h: log probabilities of a prompt's tokens in an answer: in front of its own (`echo` with
// `logprobs`, OpenAI's), or as a list of their own (`prompt_logprobs`, vLLM's).
// Invariants: pure. What one HTTP request may ask for is bounded: as JSON each entry is some 100 to 300 bytes. So are
//             those of an answer's own tokens, if it is not streamed: they are kept until it is whole.
// Not here:   how they are computed (forward/prompt_scores.h), when they come (answer_queue.h).
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "kvilt/engine.h"
#include "server/json_fields.h"

namespace kvilt::server {

// How many likely tokens are shown beside each of the prompt's. -1: not even that one.
struct PromptLogprobs {
  int listed = -1;                                       // prompt_logprobs
  int echoed = -1;                                       // in `logprobs`, before the answer's
  int most() const { return std::max(listed, echoed); }  // Request::prompt_logprobs
};

// An error if so many tokens of prompts, over all choices, are too many for what is shown of each.
Status check_prompt_logprobs(const PromptLogprobs& shown, size_t tokens);

// The same for an answer that is sent as a whole, by what may come at most. lengths: of its prompts.
Status check_answer_logprobs(const SamplingParams& sampling, int choices, const std::vector<int>& lengths, int context);

// [null, {"5": {"logprob", "rank", "decoded_token"}, ...}, ...]: for each token itself, and the `top` most likely ones.
Json prompt_logprobs_json(const Engine& engine, const std::vector<TokenLogprob>& prompt, int top);

// Where each token begins in `text`, in characters. What was put before a text (BOS) has no place in it.
std::vector<size_t> offsets_in(const Engine& engine, const std::string& text, const std::vector<TokenLogprob>& tokens);

// Of valid UTF-8; else bytes that begin one.
size_t characters(std::string_view text);

}  // namespace kvilt::server

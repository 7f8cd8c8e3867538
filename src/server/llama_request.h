// server/llama_request.h: bodies of llama.cpp's own routes: /completion, /infill, /tokenize with `content`.
// Idea:       what llama.cpp calls by other names becomes a text completion's body, which openai_request.h reads;
//             defaults that neither the server nor the model has are llama.cpp's (kLlamaSampling, until the context is
//             full).
// Invariants: pure; the error names the client's own field. What would change the answer and is not supported is a 400;
//             llama.cpp's cache, slots, time for a prompt and order of samplers have no meaning here and are ignored.
// Not here:   prompts' ids (infill_prompt.h, routes_llama.cc).
#pragma once

#include <string>
#include <vector>

#include "server/infill_prompt.h"
#include "server/openai_request.h"

namespace kvilt::server {

// A prompt is strings and ids in turn; each piece is tokenised by itself.
using LlamaPrompt = std::vector<TextPrompt>;

struct LlamaCompletion {
  Generation generation;
  std::vector<LlamaPrompt> prompts;
  bool several = false;                                     // a list of prompts: the answer is a list
  std::vector<std::pair<std::string, float>> biased_texts;  // logit_bias by text: of each of its tokens
  bool return_tokens = false;                               // `tokens` of a whole answer are its ids
  std::vector<std::string> fields;  // response_fields: paths such as "timings/prompt_n"; empty: all
};

struct LlamaInfill {
  LlamaCompletion completion;  // without prompts
  InfillText text;
};

// What llama.cpp does where neither the request nor the server nor the model says otherwise.
inline constexpr SamplingDefaults kLlamaSampling{.temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f, .top_k = 40};

struct LlamaTokenize {
  std::string content;
  bool add_special = false, parse_special = true, with_pieces = false;
};

ApiResult<LlamaCompletion> parse_llama_completion(const Json& body, const RequestLimits& limits);
ApiResult<LlamaInfill> parse_llama_infill(const Json& body, const RequestLimits& limits);
ApiResult<LlamaTokenize> parse_llama_tokenize(const Json& body);

}  // namespace kvilt::server

// server/openai_request.h: reads what a client asks for from JSON.
// Role:       OpenAI's fields, vLLM's additions (top_k, min_p, repetition_penalty, ignore_eos, cache_salt ...) and our
//             own `kvilt` object become SamplingParams and PolicyChoice.
// Invariants: pure; every field is checked for type and range, and the error names its path. Unknown fields are
//             ignored, as clients of such servers expect; fields that would change the answer but are not supported get
//             a 400.
// Not here:   what an answer must be (constraint_request.h), messages and templates (Engine::chat_prompt), policy parameters (Engine::check_policy).
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "kvilt/engine.h"
#include "server/answer_event.h"
#include "server/constraint_request.h"
#include "server/json_fields.h"
#include "server/prompt_logprobs.h"

namespace kvilt::server {

struct RequestLimits {
  int vocab = 0;                      // 0: ids are bounded by int32 only
  int context = 0;                    // tokens; 0: unknown
  int64_t longest_prompt = 0;         // bytes (ModelInfo); 0: unknown
  int max_choices = 16;               // n
  int max_prompts = 256;              // of one completion request, and documents of one warming
  SamplingDefaults sampling = {};     // of fields that a request leaves out; what these leave out is OpenAI's
  std::optional<uint64_t> seed = {};  // of a request that names none
};

// What chat and text completions share.
struct Generation {
  std::string model;  // empty: not named
  SamplingParams sampling;
  ConstraintRequest constraint;
  PolicyChoice policy;
  bool publish = true;  // kvilt.publish: keep this request's KV for later ones
  int draft = -1;       // kvilt.draft: tokens that are guessed at once at most; -1: not named
  std::string cache_salt;
  std::vector<std::string> namespaces;     // kvilt.namespaces: Request::namespaces
  Retention retention = Retention::kNone;  // prompt_cache_retention: of the whole prompt
  int choices = 1;
  bool stream = false;
  bool include_usage = false;      // a last chunk with the usage
  bool usage_in_chunks = false;    // continuous_usage_stats: the other chunks have what it is so far
  bool progress = false;           // return_progress: chunks while the prompt is computed
  bool shows_stop = false;         // include_stop_str_in_output: the stop string is the answer's end
  bool tokens_as_ids = false;      // return_tokens_as_token_ids: logprobs say "token_id:5" for a token's text
  PromptLogprobs prompt_logprobs;  // what is shown of the prompt's
  bool diagnostics = false;        // kvilt.diagnostics: what became of the prompt, beside the usage

  // Names where, within its tenant, this request leaves what it computes.
  std::string cache_space() const {
    return namespaces.empty() || namespaces[0].empty() ? cache_salt : cache_salt + '\0' + namespaces[0];
  }
};

struct ChatRequest {
  Generation generation;
  bool tools = false;     // some are offered: tool_choice is not "none"
  bool one_call = false;  // parallel_tool_calls: false
  Thoughts thoughts = Thoughts::kApart;
  std::vector<std::string> custom_tools = {};  // names of those that take a text
  bool echo = false;                           // the answer begins with the text of the message from which it goes on
};

using TextPrompt = std::variant<std::string, std::vector<int32_t>>;

struct TextRequest {
  Generation generation;
  std::vector<TextPrompt> prompts;
  std::string suffix;  // not empty: what stands between a prompt and this is asked for (infill_prompt.h)
  bool echo = false;
  bool add_special_tokens = true;  // what the tokenizer puts around a text
  int last_tokens = 0;  // truncate_prompt_tokens: a prompt's last ones alone; 0: all, -1: what the context holds
};

// last_tokens as in TextRequest: leaves a prompt's last ones. most: what the context holds of a prompt.
void keep_last(std::vector<int32_t>& ids, int last_tokens, int most);

// An error where a text of a prompt cannot fit into the context, however its tokens fall: it needs not be tokenised.
void check_fits(Fields& fields, const std::string& name, size_t bytes, const RequestLimits& limits);

struct TokenizeRequest {
  std::string model;
  std::string prompt;  // when messages are absent
  bool chat = false;   // messages: the whole body goes to Engine::chat_prompt
  bool add_special_tokens = true;
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

struct DocumentsRequest {
  std::string model;
  std::string cache_salt;
  std::vector<std::string> namespaces;
  PolicyChoice policy;
  int season = 0;  // contexts over which each document's KV is averaged (kvilt/season.h)
};

// body: an object, or the error says that it is not.
ApiResult<ChatRequest> parse_chat(const Json& body, const RequestLimits& limits);
ApiResult<TextRequest> parse_completion(const Json& body, const RequestLimits& limits);
ApiResult<TokenizeRequest> parse_tokenize(const Json& body, const RequestLimits& limits);
ApiResult<DetokenizeRequest> parse_detokenize(const Json& body, const RequestLimits& limits);
ApiResult<DocumentsRequest> parse_documents(const Json& body, const RequestLimits& limits);

}  // namespace kvilt::server

// server/embed_request.h: the bodies of /v1/embeddings, /v1/rerank and /score.
// Invariants: pure; every field is checked for type and range, and the error names its path. What would change the
//             answer and is not supported is a 400.
// Not here:   prompts of documents (routes_embed.cc).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/openai_request.h"

namespace kvilt::server {

struct EmbedRequest {
  Generation generation;  // its sampling says nothing
  std::vector<TextPrompt> inputs;
  bool chat = false;  // one input, of `messages`: the whole body goes to Engine::chat_prompt
  bool add_special_tokens = true;
  int last_tokens = 0;  // truncate_prompt_tokens (TextRequest)
  int dimensions = 0;   // 0: all
  bool base64 = false;
};

struct RerankRequest {
  Generation generation;
  std::string query, instruction;
  std::vector<std::string> documents;
  int top_n = 0;  // 0: all
  bool return_documents = false;
  bool bare = false;  // asked in text-embeddings-inference's words (`texts`), and answered so
};

// vLLM's: each of `second` with the text of `first` at its place, or with the only one there.
struct ScoreRequest {
  Generation generation;
  std::string instruction;
  std::vector<std::string> first, second;  // text_1, text_2
};

ApiResult<EmbedRequest> parse_embeddings(const Json& body, const RequestLimits& limits);
ApiResult<RerankRequest> parse_rerank(const Json& body, const RequestLimits& limits);
ApiResult<ScoreRequest> parse_score(const Json& body, const RequestLimits& limits);

}  // namespace kvilt::server

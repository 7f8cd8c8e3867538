// server/embed_request.h: the bodies of /v1/embeddings and /v1/rerank.
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
  int dimensions = 0;  // 0: all
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

ApiResult<EmbedRequest> parse_embeddings(const Json& body, const RequestLimits& limits);
ApiResult<RerankRequest> parse_rerank(const Json& body, const RequestLimits& limits);

}  // namespace kvilt::server

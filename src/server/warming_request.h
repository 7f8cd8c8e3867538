// server/warming_request.h: the engine's request that computes a document before anybody asks about it; the server's
// (warming.h) and `kvilt cache build`'s.
#pragma once

#include <algorithm>
#include <utility>

#include "kvilt/request.h"
#include "server/openai_request.h"

namespace kvilt::server {

// A policy, or a parameter of one.
inline bool names_policy(const PolicyChoice& choice) {
  const auto of_policy = [](const auto& param) {
    return param.first != "trust" && param.first != "reuse_from" && param.first != "discover";
  };
  return !choice.name.empty() || std::ranges::any_of(choice.params, of_policy);
}

// Tokens of the document itself: what is marked, or the whole prompt if nothing is.
inline int document_tokens(const Prompt& prompt) {
  int marked = 0;
  for (const TokenMark& mark : prompt.marks) marked += mark.end - mark.begin;
  return marked > 0 ? marked : static_cast<int>(prompt.ids.size());
}

// prompt: of Engine::document_prompts(). Unless a policy is asked for, the document is computed behind the fixed prefix
// alone, even if a copy with other text in its KV is cached.
inline Request warming_request(Prompt prompt, const DocumentsRequest& wanted) {
  const bool asked = names_policy(wanted.policy);
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = 0;
  request.policy = wanted.policy;
  if (!asked) request.policy.name = "prefix";
  request.clean_copy = !asked;
  request.cache_salt = wanted.cache_salt;
  request.namespaces = wanted.namespaces;
  return request;
}

}  // namespace kvilt::server

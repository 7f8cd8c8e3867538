// kvilt/season.h: requests that season documents: each one's KV is also kept as its mean over several contexts, and
// requests that reuse it find that first (EngineOptions::reuse_from, docs/math/seasoning.md).
//
//   auto documents = engine->document_prompts(json);
//   for (Prompt& p : season_prompts(*documents, {.contexts = 4})) ask(*engine, season_request(std::move(p)));
//
// Cost: about `contexts` full passes over all of them, and a second copy of each in the pool. Nothing at question time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvilt/request.h"

namespace kvilt {

// Marked tokens of one seasoning prompt, unless there are only two documents in it. More would cost more attention for
// little: what changes a piece is mostly near.
inline constexpr int kSeasonTokens = 2048;

struct SeasonOptions {
  int contexts = 4;  // of each document
  uint64_t seed = 1;
  int context = INT32_MAX;  // of the model: a prompt is not longer, unless one document alone makes it so
};

// Prompts in which every document stands `contexts` times, each time behind others in random order. documents: each a
// beginning and one marked part that ends it, as Engine::document_prompts returns them; the first one's beginning
// stands before all. Fewer than two documents: none, for they have no other context.
inline std::vector<Prompt> season_prompts(std::span<const Prompt> documents, const SeasonOptions& options) {
  std::vector<Prompt> out;
  if (documents.size() < 2) return out;
  const Prompt& first = documents.front();
  const std::span<const int32_t> head = std::span(first.ids).first(static_cast<size_t>(first.marks.back().begin));
  const auto context = static_cast<size_t>(options.context);
  std::mt19937_64 rng(options.seed);
  std::vector<size_t> order(documents.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (int c = 0; c < options.contexts; ++c) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng() % i]);
    Prompt* prompt = nullptr;
    for (const size_t i : order) {
      const TokenMark& mark = documents[i].marks.back();
      const auto size = static_cast<size_t>(mark.end - mark.begin);
      const size_t after = prompt ? prompt->ids.size() + size : 0;
      if (!prompt || after > context || (prompt->marks.size() > 1 && after > head.size() + kSeasonTokens))
        prompt = &out.emplace_back(Prompt{{head.begin(), head.end()}, {}});
      prompt->add_marked(std::span(documents[i].ids).subspan(static_cast<size_t>(mark.begin), size));
    }
  }
  return out;
}

// SeasonOptions::context for a model and a pool that holds so many tokens: a pass takes half of it at most.
inline int season_context(int64_t model_context, int64_t pool_tokens) {
  return static_cast<int>(std::min(model_context, pool_tokens / 2));
}

// What to submit: the prompt is computed exactly, and nothing of it is kept but the means of its marked parts.
inline Request season_request(Prompt prompt, const std::string& cache_salt = "",
                              const std::vector<std::string>& namespaces = {}) {
  Request out;
  out.prompt = std::move(prompt);
  out.policy.name = "full";
  out.sampling.max_tokens = 0;
  out.cache_salt = cache_salt;
  out.namespaces = namespaces;
  out.publish = false;
  out.season = true;
  return out;
}

}  // namespace kvilt

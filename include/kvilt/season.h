// kvilt/season.h: requests that season documents: each one's KV is also kept as its mean over several contexts, and
// requests that reuse it find that first (EngineOptions::reuse_from, docs/math/seasoning.md).
//
//   auto documents = engine->document_prompts(json);
//   for (Prompt& p : season_prompts(*documents, {.contexts = 4})) ask(*engine, season_request(std::move(p)));
//
// Cost: about `contexts` full passes over all of them, and a second copy of each in the pool. Nothing at question time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
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

// Random orders of documents: none equal to the one in which they came, or to an earlier one, as long as there are
// others; then none more often than others. Two documents have two orders.
class SeasonOrders {
 public:
  explicit SeasonOrders(size_t documents) : drawn_(1, std::vector<size_t>(documents)) {
    std::iota(drawn_[0].begin(), drawn_[0].end(), size_t{0});
  }
  const std::vector<size_t>& as_they_came() const { return drawn_.front(); }
  // `order` shuffled; again, where that order is not wanted.
  std::vector<size_t> draw(std::vector<size_t> order, std::mt19937_64& rng) {
    size_t orders = 1;  // that there are, or more than were drawn
    for (size_t i = 2; i <= order.size() && orders <= drawn_.size(); ++i) orders *= i;
    const auto most = static_cast<std::ptrdiff_t>(drawn_.size() / orders);
    do {
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng() % i]);
    } while (std::ranges::count(drawn_, order) > most);
    drawn_.push_back(order);
    return order;
  }

 private:
  std::vector<std::vector<size_t>> drawn_;
};

// Of the documents of one prompt those that get a context, in order. One by itself would have none but the beginning:
// it stands behind another one's text, which gets none.
struct SeasonSet {
  std::vector<size_t> documents;
  std::optional<size_t> behind = {};
};

// How the documents, in this order, share out over prompts. What fits into no prompt with any other is left out.
// documents: each a beginning and one marked part that ends it, as Engine::document_prompts returns them; the first
// one's beginning stands before all. context: as SeasonOptions'.
inline std::vector<SeasonSet> season_sets(std::span<const Prompt> documents, const std::vector<size_t>& order,
                                          int context) {
  std::vector<SeasonSet> out;
  if (documents.size() < 2) return out;
  const auto head = static_cast<int64_t>(documents[0].marks.back().begin);
  const auto size = [&](size_t i) -> int64_t {
    const TokenMark& mark = documents[i].marks.back();
    return mark.end - mark.begin;
  };
  int64_t tokens = 0;  // of the last prompt
  for (const size_t i : order) {
    tokens += size(i);
    const bool fits = !out.empty() && tokens <= context;
    if (!fits || (out.back().documents.size() > 1 && tokens > head + kSeasonTokens)) {
      out.emplace_back();
      tokens = head + size(i);
    }
    out.back().documents.push_back(i);
  }
  for (SeasonSet& set : out) {
    if (set.documents.size() > 1) continue;
    const size_t alone = set.documents[0];
    const auto other =
        std::ranges::find_if(order, [&](size_t i) { return i != alone && head + size(i) + size(alone) <= context; });
    if (other != order.end()) set.behind = *other;
  }
  std::erase_if(out, [](const SeasonSet& set) { return set.documents.size() < 2 && !set.behind; });
  return out;
}

inline Prompt season_prompt(std::span<const Prompt> documents, const SeasonSet& set) {
  const auto text = [&](size_t i) {
    const TokenMark& mark = documents[i].marks.back();
    return std::span(documents[i].ids)
        .subspan(static_cast<size_t>(mark.begin), static_cast<size_t>(mark.end - mark.begin));
  };
  const Prompt& first = documents.front();
  Prompt out{{first.ids.begin(), first.ids.begin() + first.marks.back().begin}, {}};
  if (set.behind) {
    const auto behind = text(*set.behind);
    out.ids.insert(out.ids.end(), behind.begin(), behind.end());
  }
  for (const size_t i : set.documents) out.add_marked(text(i));
  return out;
}

// Prompts in which every document stands `contexts` times, each time behind others in another random order;
// season_sets() says which are left out. Fewer than two documents: none, for they have no other context.
inline std::vector<Prompt> season_prompts(std::span<const Prompt> documents, const SeasonOptions& options) {
  std::vector<Prompt> out;
  std::mt19937_64 rng(options.seed);
  SeasonOrders orders(documents.size());
  std::vector<size_t> order = orders.as_they_came();
  for (int c = 0; c < options.contexts; ++c) {
    order = orders.draw(std::move(order), rng);
    for (const SeasonSet& set : season_sets(documents, order, options.context))
      out.push_back(season_prompt(documents, set));
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

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

// Of the documents of one prompt those that get a context, in order. One by itself would have none but the beginning:
// it stands behind another one's text, which gets none.
struct SeasonSet {
  std::vector<size_t> documents;
  std::optional<size_t> behind = {};
};

// Rounds, each of which gives every document one context: all of them in a random order, then the same prompts from
// their ends, then another random order, and so on. Of two texts of a prompt each stands before the other in just one
// of such two rounds: their mean holds half of what each does to the other, where that of two random orders holds none,
// half or all of it (docs/math/seasoning.md, equation 4a).
// No round has the order in which the documents came, nor an earlier round's, as long as there are others; then none
// comes more often than others. Two documents have two orders.
class SeasonRounds {
 public:
  // documents: each a beginning and one marked part that ends it, as Engine::document_prompts returns them; the first
  // one's beginning stands before all. context: as SeasonOptions'.
  SeasonRounds(std::span<const Prompt> documents, int context) : order_(documents.size()), context_(context) {
    for (const Prompt& prompt : documents) sizes_.push_back(prompt.marks.back().end - prompt.marks.back().begin);
    if (!documents.empty()) head_ = documents[0].marks.back().begin;
    std::iota(order_.begin(), order_.end(), size_t{0});
    last_ = shared_out();
    drawn_.push_back(order_of(last_));
  }

  // Those of every round. What fits into no prompt with any other is in none.
  const std::vector<size_t>& documents() const { return drawn_.front(); }

  // How the documents share out over the prompts of the next round, in order.
  const std::vector<SeasonSet>& next(std::mt19937_64& rng) {
    size_t orders = 1;  // that there are, or more than were drawn
    for (size_t i = 2; i <= drawn_[0].size() && orders <= drawn_.size(); ++i) orders *= i;
    const auto most = static_cast<std::ptrdiff_t>(drawn_.size() / orders);
    const auto wanted = [&] { return std::ranges::count(drawn_, order_of(last_)) <= most; };
    if (turns_) turn();
    turns_ = !turns_ || !wanted();
    if (turns_) {
      do {
        for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[rng() % i]);
        last_ = shared_out();
      } while (!wanted());
    }
    drawn_.push_back(order_of(last_));
    return last_;
  }

 private:
  static std::vector<size_t> order_of(const std::vector<SeasonSet>& sets) {
    std::vector<size_t> out;
    for (const SeasonSet& set : sets) out.insert(out.end(), set.documents.begin(), set.documents.end());
    return out;
  }

  std::vector<SeasonSet> shared_out() const {
    std::vector<SeasonSet> out;
    if (order_.size() < 2) return out;
    int64_t tokens = 0;  // of the last prompt
    for (const size_t i : order_) {
      tokens += sizes_[i];
      const bool fits = !out.empty() && tokens <= context_;
      if (!fits || (out.back().documents.size() > 1 && tokens > head_ + kSeasonTokens)) {
        out.emplace_back();
        tokens = head_ + sizes_[i];
      }
      out.back().documents.push_back(i);
    }
    for (SeasonSet& set : out) {
      if (set.documents.size() == 1) set.behind = another(set.documents[0], order_);
    }
    std::erase_if(out, [](const SeasonSet& set) { return set.documents.size() < 2 && !set.behind; });
    return out;
  }

  // The first in `order` that fits into a prompt with document `alone`.
  std::optional<size_t> another(size_t alone, std::span<const size_t> order) const {
    const auto fits = [&](size_t i) { return i != alone && head_ + sizes_[i] + sizes_[alone] <= context_; };
    const auto found = std::ranges::find_if(order, fits);
    return found == order.end() ? std::nullopt : std::optional(*found);
  }

  // Each of the last round's prompts from its end.
  void turn() {
    std::ranges::reverse(last_);
    for (SeasonSet& set : last_) std::ranges::reverse(set.documents);
    const std::vector<size_t> order = order_of(last_);
    for (SeasonSet& set : last_) {
      if (set.behind) set.behind = another(set.documents[0], order);
    }
  }

  std::vector<int64_t> sizes_;  // tokens, by document
  std::vector<size_t> order_;   // the last random one, of all documents
  std::vector<SeasonSet> last_;
  std::vector<std::vector<size_t>> drawn_;  // orders: first that in which they came, then the rounds'
  int64_t head_ = 0;                        // tokens before the first document
  int context_;
  bool turns_ = false;  // the last round was a random order
};

// documents: as SeasonRounds'.
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

// Prompts in which every document stands `contexts` times, each time behind others (SeasonRounds says which are left
// out). Fewer than two documents: none, for they have no other context.
inline std::vector<Prompt> season_prompts(std::span<const Prompt> documents, const SeasonOptions& options) {
  std::vector<Prompt> out;
  if (documents.size() < 2) return out;
  std::mt19937_64 rng(options.seed);
  SeasonRounds rounds(documents, options.context);
  for (int c = 0; c < options.contexts; ++c) {
    for (const SeasonSet& set : rounds.next(rng)) out.push_back(season_prompt(documents, set));
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

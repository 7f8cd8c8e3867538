#include "policy/samkv_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

namespace kvilt {
namespace {

template <class A, class B>
double dot(const A& a, const B& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// The layer's query of document i, equation (1).
std::vector<double> query_of(const BlockChoice& choice, int E, const std::vector<double>& query,
                             const std::vector<DocumentStats>& documents, size_t i, size_t layer) {
  std::vector<double> out = query;
  if (!choice.bias || documents.size() < 2) return out;
  const size_t part = choice.cosine_by_head ? static_cast<size_t>(E) : query.size();
  const double others = static_cast<double>(documents.size()) - 1;
  for (size_t j = 0; j < documents.size(); ++j) {
    if (j == i) continue;
    const std::span<const float> all = documents[j].layers[layer].local_query;
    for (size_t from = 0; from < query.size(); from += part) {
      const auto of = std::span(query).subspan(from, part);
      const auto local = all.subspan(from, part);
      const double lengths = std::sqrt(dot(of, of)) * std::sqrt(dot(local, local));
      const double weight = lengths > 0 ? std::abs(dot(of, local)) / lengths / others : 0;
      for (size_t e = 0; e < part; ++e) out[from + e] += weight * local[e];
    }
  }
  return out;
}

// The query against a mean key, summed over the query heads.
template <class T>
double score_of(const HeadShape& shape, const std::vector<double>& query, const T* key) {
  double sum = 0;
  for (int h = 0; h < shape.H; ++h) {
    const double* q = query.data() + h * shape.E;
    const T* k = key + h / (shape.H / shape.G) * shape.E;
    for (int e = 0; e < shape.E; ++e) sum += q[e] * double{k[e]};
  }
  return sum;
}

// Of a model whose numbers are none (the engine refuses its logits later): the lowest score, so that an order is one.
double sound(double score) { return std::isnan(score) ? -HUGE_VAL : score; }

// Without a beginning (or an end) that is always kept, the other one is the anchor.
bool is_anchor(BlockChoice::Anchor anchor, const Run& middle, int32_t block, int32_t blocks) {
  const bool first = block < middle.begin, last = block >= middle.end;
  if (anchor == BlockChoice::Anchor::kFirst && middle.begin > 0) return first;
  if (anchor == BlockChoice::Anchor::kLast && middle.end < blocks) return last;
  return first || last;
}

struct Scores {
  std::vector<double> of_block;  // all of the document's
  double share = 0;              // P of this layer, equation (2)
};

Scores scores_of(const BlockChoice& choice, const HeadShape& shape, const std::vector<double>& query,
                 const DocumentStats& document, size_t layer) {
  const LayerStats& stats = document.layers[layer];
  const size_t width = shape.G * shape.E;
  const int32_t blocks = choice.cut.blocks(document.tokens);
  const Run middle = choice.cut.middle(document.tokens);
  Scores out;
  std::vector<double> anchor(width, 0);
  double anchored = 0;  // tokens
  for (int32_t b = 0; b < blocks; ++b) {
    const float* key = stats.block_keys.data() + b * width;
    out.of_block.push_back(score_of(shape, query, key));
    if (!is_anchor(choice.anchor, middle, b, blocks)) continue;
    const double tokens = choice.cut.tokens_of(b, document.tokens).size();
    anchored += tokens;
    for (size_t e = 0; e < width; ++e) anchor[e] += tokens * key[e];
  }
  for (double& e : anchor) e /= std::max(1.0, anchored);
  const double at_anchor = anchored > 0 ? score_of(shape, query, anchor.data()) : -HUGE_VAL;
  const double most = out.of_block[stats.attention.max_block], least = out.of_block[stats.attention.min_block];
  out.share = at_anchor > most ? 0 : at_anchor > least ? (most - at_anchor) / (most - least) : choice.literal ? 0 : 1;
  if (!std::isfinite(out.share)) out.share = 1;
  // To compare with other documents'.
  double scale = std::sqrt(dot(query, query)), zero = 0;
  if (choice.by_range) {
    const auto [low, high] =
        std::minmax_element(out.of_block.begin() + middle.begin, out.of_block.begin() + middle.end);
    zero = *low;
    scale = *high - *low;
  }
  for (double& s : out.of_block) s = sound(scale > 0 ? (s - zero) / scale : 0);
  return out;
}

struct Candidate {
  double score;
  size_t document;
  int32_t block;
};
bool before(const Candidate& a, const Candidate& b) { return a.score > b.score; }

// Of the document's middle blocks the heaviest `n`.
void propose(const std::vector<double>& scores, const Run& middle, int64_t n, size_t document,
             std::vector<Candidate>& out) {
  std::vector<Candidate> all;
  for (int32_t b = middle.begin; b < middle.end; ++b) all.push_back({scores[b], document, b});
  std::ranges::stable_sort(all, before);
  out.insert(out.end(), all.begin(), all.begin() + std::min<int64_t>(n, std::ssize(all)));
}

}  // namespace

KeptBlocks choose_blocks(const BlockChoice& choice, const HeadShape& shape,
                         const std::vector<std::vector<double>>& query, const std::vector<DocumentStats>& documents) {
  const size_t layers = query.size(), D = documents.size();
  std::vector<std::vector<Scores>> scores(layers, std::vector<Scores>(D));
  std::vector<double> share(D, 0);
  int64_t middle_blocks = 0;
  for (size_t i = 0; i < D; ++i) {
    middle_blocks += choice.cut.middle(documents[i].tokens).size();
    for (size_t l = 0; l < layers; ++l) {
      scores[l][i] = scores_of(choice, shape, query_of(choice, shape.E, query[l], documents, i, l), documents[i], l);
      if (std::ranges::find(choice.stable, static_cast<int>(l)) != choice.stable.end())
        share[i] += scores[l][i].share / static_cast<double>(choice.stable.size());
    }
    for (size_t l = 1; choice.shared && l < layers; ++l) {
      for (size_t b = 0; b < scores[0][i].of_block.size(); ++b)
        scores[0][i].of_block[b] = sound(scores[0][i].of_block[b] + scores[l][i].of_block[b]);
    }
  }
  int64_t most = (choice.middle_only ? middle_blocks : choice.all_blocks) / std::max(1, choice.documents);
  if (choice.keep > 0)
    most = std::max<int64_t>(0, std::llround(choice.keep * choice.all_blocks) - (choice.all_blocks - middle_blocks));
  KeptBlocks out(layers, std::vector<std::vector<int32_t>>(D));
  for (size_t l = 0; l < layers; ++l) {
    if (choice.shared && l > 0) {
      out[l] = out[0];
      continue;
    }
    std::vector<Candidate> found;
    for (size_t i = 0; i < D; ++i) {
      const Run middle = choice.cut.middle(documents[i].tokens);
      propose(scores[l][i].of_block, middle, choice.keep > 0 ? middle.size() : std::llround(share[i] * middle.size()),
              i, found);
    }
    std::ranges::stable_sort(found, before);
    for (size_t n = 0; n < found.size(); ++n) {
      const bool over = std::cmp_greater_equal(n, most);
      if (over && (most == 0 || found[n].score < found[most - 1].score - 1e-6 * std::abs(found[most - 1].score))) break;
      out[l][found[n].document].push_back(found[n].block);
    }
    for (auto& blocks : out[l]) std::ranges::sort(blocks);
  }
  return out;
}

}  // namespace kvilt

#include "plan/blocks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/exp_small.h"
#include "base/highest.h"

namespace kvilt {
namespace {

struct Block {
  size_t tile = 0;
  int32_t at = 0;
  double share = 0;  // of its tile's weights
  bool always = false;
};

double sum_of(std::span<const double> weights) { return std::accumulate(weights.begin(), weights.end(), 0.0); }

void append_blocks(const BlockWeights& weights, size_t tile, bool first, std::vector<Block>& out) {
  const double sum = sum_of(weights);
  const auto n = static_cast<int32_t>(weights.size());
  CHECK(n > 0);
  for (int32_t at = 0; at < n; ++at)
    out.push_back({tile, at, sum > 0 ? weights[at] / sum : 1.0 / n, at + 1 == n || (first && at == 0)});
}

// Of the tiles that these blocks are of.
void choose_among(std::vector<Block> blocks, double wanted, const BlockOptions& options, std::vector<Runs>& out) {
  const auto before = [](const Block& a, const Block& b) {
    return a.always != b.always ? a.always : a.share > b.share;
  };
  std::ranges::stable_sort(blocks, before);
  std::vector<int32_t> taken(out.size());
  double held = 0;
  for (const Block& block : blocks) {
    // 1 is all, whatever rounding says that fewer hold.
    const bool wants = options.mass >= 1 || held < wanted || taken[block.tile] < options.least;
    if (!block.always && (!wants || taken[block.tile] >= options.most)) continue;
    held += block.share;
    ++taken[block.tile];
    out[block.tile].push_back({block.at, block.at + 1});
  }
}

}  // namespace

void add_softmax(std::span<float> scores, int32_t per_block, std::span<double> weights) {
  CHECK(std::ssize(scores) <= std::ssize(weights) * per_block);
  const float most =
      highest(scores.size(), -INFINITY, [&](size_t i) { return scores[i] < INFINITY ? scores[i] : -INFINITY; });
  for (float& score : scores) score = exp_small(score - most);  // 0 for what is not finite
  double sum = 0;
  const size_t all = scores.size(), size = static_cast<size_t>(per_block);
  for (size_t i = 0, block = 0; i < all; ++block) {
    float of_block = 0;
    for (const size_t end = std::min(all, i + size); i < end; ++i) of_block += scores[i];
    scores[block] = of_block;
    sum += double{of_block};
  }
  if (sum == 0) return;
  for (size_t block = 0; block * size < all; ++block) weights[block] += double{scores[block]} / sum;
}

bool takes_all(const BlockOptions& options, int32_t blocks) {
  return (options.mass >= 1 || options.least >= blocks) && options.most >= blocks;
}

std::vector<Runs> choose_blocks(std::span<const BlockWeights> tiles, const BlockOptions& options) {
  std::vector<Runs> out(tiles.size());
  std::vector<Block> blocks;
  for (size_t t = 0; t < tiles.size(); ++t) {
    append_blocks(tiles[t], t, options.first, blocks);
    if (options.together && t + 1 < tiles.size()) continue;
    const double of = options.together ? static_cast<double>(tiles.size()) : 1;
    choose_among(std::move(blocks), options.mass * of, options, out);
    blocks.clear();
  }
  for (Runs& runs : out) runs = normalize(std::move(runs));
  return out;
}

double shannon_distance(std::span<const double> a, std::span<const double> b) {
  CHECK(a.size() == b.size());
  const double sum_a = sum_of(a), sum_b = sum_of(b);
  if (!(sum_a > 0) || !(sum_b > 0)) return std::sqrt(std::log(2.0));
  double divergence = 0;
  const auto term = [](double p, double mean) { return p > 0 ? p / 2 * std::log(p / mean) : 0; };
  for (size_t i = 0; i < a.size(); ++i) {
    const double p = a[i] / sum_a, q = b[i] / sum_b, mean = (p + q) / 2;
    divergence += term(p, mean) + term(q, mean);
  }
  return std::sqrt(std::max(0.0, divergence));
}

}  // namespace kvilt

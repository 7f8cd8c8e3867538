#include "forward/sparse_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/random.h"

namespace kvilt {
namespace {

Lines fixed_lines(const KeyPattern& pattern, int32_t keys) {
  Lines out;
  out.columns.resize(static_cast<size_t>(std::min(pattern.sink, keys)));
  out.distances.resize(static_cast<size_t>(std::min(pattern.window + 1, keys)));
  std::iota(out.columns.begin(), out.columns.end(), 0);
  std::iota(out.distances.begin(), out.distances.end(), 0);
  return out;
}

// The rows of each tile of a block: those by which it chooses.
std::vector<KeyGroups::Tile> rows_of_tiles(const RowsOfBlock& block, bool last_only) {
  std::vector<KeyGroups::Tile> out;
  for (int64_t r = block.begin; r < block.end; ++r) {
    const int32_t at = block.rows.pos[r] / kSparseTile;
    if (out.empty() || out.back().at != at) out.push_back({at, {}});
    if (last_only) out.back().rows.clear();
    out.back().rows.push_back(r);
  }
  return out;
}

// Eight sums, so that they are added side by side.
double sum_of(std::span<const float> weights) {
  double sums[8] = {};
  for (size_t i = 0; i < weights.size(); ++i) sums[i % 8] += weights[i];
  return std::accumulate(sums, sums + 8, 0.0);
}

}  // namespace

Runs SeenKeys::keys(int32_t pos, int32_t end) const {
  const int32_t tile = pos / kSparseTile, first = tile * kSparseTile, last = first + kSparseTile;
  const auto of_tile = std::ranges::find(tiles, tile, &Tile::at);
  Runs blocks, near;  // they rise
  if (of_tile != tiles.end()) {
    for (const Run& run : of_tile->blocks) blocks.push_back({run.begin * kSparseTile, run.end * kSparseTile});
  }
  for (auto run = distances.rbegin(); run != distances.rend(); ++run) {
    const int32_t begin = std::max(0, first - (run->end - 1) * lines.tile), to = last - run->begin * lines.tile;
    if (begin >= to) continue;
    if (!near.empty() && begin <= near.back().end) {
      near.back().end = std::max(near.back().end, to);
    } else {
      near.push_back({begin, to});
    }
  }
  return intersect(unite(unite(columns, blocks), near), Runs{{0, end}});
}

// What the sampled rows of a block see.
struct SparseChoice::Look {
  std::vector<int64_t> rows;                // of the chunk
  std::vector<int32_t> pos;                 // of these
  std::vector<std::vector<float>> weights;  // of each head, summed over its group: row x keys
  std::vector<std::vector<float>> lse;
};

// Rows of the block that look, rising.
std::vector<int64_t> SparseChoice::sampled_rows(const RowsOfBlock& block) const {
  const SparseRule& rule = *block.plan.sparse;
  if (block.last_layer(model_.config())) return {block.end - 1};
  std::vector<int64_t> out(static_cast<size_t>(block.end - block.begin));
  std::iota(out.begin(), out.end(), block.begin);
  const auto n = static_cast<size_t>(rule.sampled);
  if (out.size() <= n) return out;
  if (rule.sample_last) {
    out.erase(out.begin(), out.end() - rule.sampled);
    return out;
  }
  std::mt19937_64 rng(rule.seed * 1000003 + static_cast<uint64_t>(block.positions().begin / kSparseBlock));
  out.pop_back();  // the last one always looks
  shuffle(out, rng);
  out.resize(n - 1);
  out.push_back(block.end - 1);
  std::ranges::sort(out);
  return out;
}

SparseChoice::Look SparseChoice::look(const RowsOfBlock& block, std::span<const int> heads, SparseCost& cost) const {
  const ModelConfig& c = model_.config();
  const int32_t keys = block.positions().end;
  const int64_t group = c.H / c.G;
  Look out;
  out.rows = sampled_rows(block);
  LookingRows rows(model_);
  for (const int64_t r : out.rows) rows.add(block.rows.pos[r], block.rows.q.row(r));
  rows.find_keys(block.kv, block.rows.layer, heads, keys);
  const DType kv_type = block.kv.shape().dtype;
  rows.attend(kv_type, pool_);
  std::vector<ColumnSumTask> weights;
  out.weights.resize(heads.size());
  for (size_t i = 0; i < heads.size(); ++i) {
    out.weights[i].resize(static_cast<size_t>(rows.rows() * keys));
    weights.push_back({&rows.tasks()[i], nullptr, false, out.weights[i].data(), keys});
    out.lse.emplace_back(rows.lse(i), rows.lse(i) + rows.rows() * group);
  }
  model_.backend().column_sums(model_.attend_shape(kv_type), weights, pool_);
  for (std::vector<float>& of : out.weights) {  // a sort needs an order
    for (float& weight : of) weight = std::isfinite(weight) ? weight : 0;
  }
  out.pos.assign(rows.pos().begin(), rows.pos().end());
  for (const int32_t at : out.pos) cost.flops += 6.0 * c.E * static_cast<double>(group * std::ssize(heads)) * (at + 1);
  cost.keys += 3.0 / 2 * static_cast<double>(heads.size()) * keys;
  return out;
}

const KeyPattern& SparseChoice::pattern_of(const RowsOfBlock& block, int head) const {
  return block.plan.sparse->of(block.rows.layer * model_.config().G + head);
}

KeyGroups SparseChoice::groups_of(const RowsOfBlock& block, int head, SparseCost& cost) const {
  const int32_t keys = block.positions().end;
  KeyGroups out(model_, block.kv, {block.rows.layer, head, keys}, pattern_of(block, head).blocks, memory_);
  cost += {out.build(pool_), 0.5 * keys};
  return out;
}

// What each tile of the block sees of the groups' head.
std::vector<SeenKeys::Tile> SparseChoice::tiles_of(const RowsOfBlock& block, const KeyGroups& groups,
                                                   SparseCost& cost) const {
  const bool last_layer = block.last_layer(model_.config());
  BlockOptions options = groups.options();
  if (last_layer) options.together = false;  // else T - 1 would depend on which others attend
  const std::vector<KeyGroups::Tile> tiles = rows_of_tiles(block, last_layer);
  std::vector<BlockWeights> weights;
  for (KeyGroups::Weighed& of : groups.weigh(block.rows, tiles, pool_)) {
    cost.flops += of.flops;
    weights.push_back(std::move(of.blocks));
  }
  std::vector<Runs> chosen = choose_blocks(weights, options);
  std::vector<SeenKeys::Tile> out;
  for (size_t t = 0; t < tiles.size(); ++t) out.push_back({tiles[t].at, std::move(chosen[t])});
  return out;
}

SeenKeys SparseChoice::by_blocks(const RowsOfBlock& block, int head, SparseCost& cost) const {
  SeenKeys out;
  if (takes_all(pattern_of(block, head).blocks, (block.positions().end - 1) / kSparseTile + 1)) {
    for (const KeyGroups::Tile& tile : rows_of_tiles(block, true)) out.tiles.push_back({tile.at, {{0, tile.at + 1}}});
    return out;
  }
  const KeyGroups groups = groups_of(block, head, cost);
  out.tiles = tiles_of(block, groups, cost);
  return out;
}

SeenKeys SparseChoice::by_chance(const RowsOfBlock& block, int head) const {
  const KeyPattern& pattern = pattern_of(block, head);
  const int32_t keys = block.positions().end;
  const auto at =
      static_cast<uint64_t>((block.rows.layer * model_.config().G + head) * 4096 + (keys - 1) / kSparseBlock);
  return {random_lines(keys, pattern.lines.tile, pattern.share, block.plan.sparse->seed * 1000003 + at)};
}

// How far an estimate by means is from what the sampled rows of Look's head i see of each block: FlexPrefill's test.
double SparseChoice::means_miss(const RowsOfBlock& block, const KeyGroups& groups, const Look& look, size_t i,
                                SparseCost& cost) const {
  const int32_t keys = block.positions().end;
  const KeyGroups::Tile last{(keys - 1) / kSparseTile, look.rows};
  const KeyGroups::Weighed estimate = groups.weigh(block.rows, {&last, 1}, pool_).front();
  cost.flops += estimate.flops;
  BlockWeights seen(static_cast<size_t>(last.at) + 1);
  for (const float *row = look.weights[i].data(), *end = row + look.weights[i].size(); row < end; row += keys) {
    for (int32_t j = 0; j < keys; j += kSparseTile)
      seen[j / kSparseTile] += sum_of({row + j, row + std::min(keys, j + kSparseTile)});
  }
  return shannon_distance(estimate.blocks, seen);
}

// For heads[which].
void SparseChoice::by_sample(const RowsOfBlock& block, std::span<const int> heads, std::span<const size_t> which,
                             Made& out) const {
  std::vector<int> looking;
  for (const size_t i : which) looking.push_back(heads[i]);
  Look look = this->look(block, looking, out.cost);
  for (size_t n = 0; n < which.size(); ++n) {
    const double tau = pattern_of(block, looking[n]).tau;
    if (tau <= 0) continue;
    const KeyGroups groups = groups_of(block, looking[n], out.cost);
    if (means_miss(block, groups, look, n, out.cost) < tau)
      out.heads[which[n]].tiles = tiles_of(block, groups, out.cost);
  }
  const int32_t keys = block.positions().end;
  const Run whole{keys - 1 - (keys - 1) % kSparseBlock, keys};  // who pays for a line: whichever of them attend
  pool_.parallel_for(std::ssize(which), [&](int64_t n, int) {
    SeenKeys& to = out.heads[which[n]];
    if (to.tiles.empty())
      to.lines = choose_lines({look.pos, look.weights[n], keys}, whole, pattern_of(block, looking[n]).lines).lines;
  });
  out.looked = std::move(look.rows);
  out.lse.resize(heads.size());
  for (size_t n = 0; n < which.size(); ++n) out.lse[which[n]] = std::move(look.lse[n]);
}

SparseChoice::Made SparseChoice::choose(const RowsOfBlock& block, std::span<const int> heads) const {
  Made out;
  out.heads.resize(heads.size());
  std::vector<size_t> sampled;
  for (size_t i = 0; i < heads.size(); ++i) {
    const KeyPattern& pattern = pattern_of(block, heads[i]);
    switch (pattern.by) {
      case KeyPattern::By::kSample:
        sampled.push_back(i);
        break;
      case KeyPattern::By::kBlocks:
        out.heads[i] = by_blocks(block, heads[i], out.cost);
        break;
      case KeyPattern::By::kFixed:
        out.heads[i].lines = fixed_lines(pattern, block.positions().end);
        break;
      case KeyPattern::By::kRandom:
        out.heads[i] = by_chance(block, heads[i]);
        break;
    }
  }
  if (!sampled.empty()) by_sample(block, heads, sampled, out);
  for (SeenKeys& seen : out.heads) {
    seen.columns = runs_of(seen.lines.columns);
    seen.distances = runs_of(seen.lines.distances);
  }
  return out;
}

}  // namespace kvilt

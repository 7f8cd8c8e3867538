#include "policy/samkv_stats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace kvilt {
namespace {

constexpr size_t kSums = 3;

// Sums of log x and of (log x)^2 over distances 1 .. n, for every n below `tokens`.
struct LogSums {
  explicit LogSums(int32_t tokens) : one(static_cast<size_t>(tokens)), two(static_cast<size_t>(tokens)) {
    for (int32_t n = 1; n < tokens; ++n) {
      const double x = std::log(static_cast<double>(n));
      one[n] = one[n - 1] + x;
      two[n] = two[n - 1] + x * x;
    }
  }
  std::vector<double> one, two;
};

// Of the attention that later tokens pay to token t.
double mean_of(std::span<const double> fade, int32_t t) {
  const auto tokens = static_cast<int32_t>(fade.size() / kSums);
  return fade[t * kSums] / std::max(1, tokens - 1 - t);
}

}  // namespace

std::vector<BlockFade> block_fades(std::span<const double> fade, const BlockCut& cut) {
  const auto tokens = static_cast<int32_t>(fade.size() / kSums);
  const Run middle = cut.middle(tokens);
  const LogSums logs(tokens);
  const auto mean = [&](int32_t t) { return mean_of(fade, t); };
  const auto alpha = [&](int32_t t) {
    const double n = tokens - 1 - t, x = logs.one[tokens - 1 - t], xx = logs.two[tokens - 1 - t];
    const double y = fade[t * kSums + 1], xy = fade[t * kSums + 2], spread = n * xx - x * x;
    return spread > 0 ? -(n * xy - x * y) / spread : HUGE_VAL;
  };
  std::vector<BlockFade> out;
  for (int32_t b = middle.begin; b < middle.end; ++b) {
    const Run of = cut.tokens_of(b, tokens);
    int32_t best = of.begin;
    for (int32_t t = of.begin; t < of.end; ++t) {
      if (mean(t) > mean(best)) best = t;
    }
    out.push_back({mean(best), alpha(best)});
  }
  return out;
}

std::vector<uint8_t> stable_layers(const std::vector<std::vector<BlockFade>>& by_layer, double sigmas) {
  CHECK(!by_layer.empty());
  const size_t blocks = by_layer[0].size();
  std::vector<uint8_t> out(by_layer.size(), 0);
  std::vector<double> rank(blocks, 0);
  for (const auto& layer : by_layer) {
    for (size_t b = 0; b < blocks; ++b) {
      for (const BlockFade& other : layer) rank[b] += other.alpha < layer[b].alpha ? 1 : 0;
    }
  }
  if (blocks == 0) return out;
  const auto most = static_cast<size_t>(std::ranges::min_element(rank) - rank.begin());
  for (size_t l = 0; l < by_layer.size(); ++l) {
    double sum = 0, square = 0;
    for (const BlockFade& block : by_layer[l]) {
      sum += block.alpha;
      square += block.alpha * block.alpha;
    }
    const auto n = static_cast<double>(blocks);
    const double average = sum / n, sigma = std::sqrt(std::max(0.0, square / n - average * average));
    out[l] = sigma > 0 && by_layer[l][most].alpha < average - sigmas * sigma ? 1 : 0;
  }
  return out;
}

AttentionStats attention_stats(std::span<const double> fade, const BlockCut& cut) {
  const auto tokens = static_cast<int32_t>(fade.size() / kSums);
  const Run middle = cut.middle(tokens);
  CHECK(middle.size() > 0);
  const auto mean = [&](int32_t t) { return mean_of(fade, t); };
  const std::vector<BlockFade> blocks = block_fades(fade, cut);
  AttentionStats out;
  out.max_block =
      middle.begin + static_cast<int32_t>(std::ranges::min_element(blocks, {}, &BlockFade::alpha) - blocks.begin());
  out.min_block =
      middle.begin + static_cast<int32_t>(std::ranges::min_element(blocks, {}, &BlockFade::mean) - blocks.begin());
  const int32_t first = middle.begin * cut.block, end = cut.tokens_of(middle.end - 1, tokens).end;
  double sum = 0, square = 0;
  for (int32_t t = first; t < end; ++t) {
    sum += mean(t);
    square += mean(t) * mean(t);
  }
  const double n = end - first, average = sum / n, sigma = std::sqrt(std::max(0.0, square / n - average * average));
  std::vector<int32_t> outliers;
  for (int32_t t = first; t < end; ++t) {
    if (mean(t) > average + 3 * sigma) outliers.push_back(t);
  }
  out.outliers = runs_of(outliers);
  return out;
}

namespace {

// Fixed-size values one after the other.
struct Writer {
  std::vector<std::byte> out;
  template <class T>
  void put(std::span<const T> values) {
    const size_t before = out.size();
    out.resize(before + values.size_bytes());
    if (!values.empty()) std::memcpy(out.data() + before, values.data(), values.size_bytes());
  }
  void put(int32_t value) { put(std::span<const int32_t>(&value, 1)); }
};
struct Reader {
  std::span<const std::byte> in;
  template <class T>
  std::vector<T> take(int64_t n) {
    const auto bytes = static_cast<size_t>(n) * sizeof(T);
    CHECK(n >= 0 && bytes <= in.size());
    std::vector<T> values(static_cast<size_t>(n));
    if (n > 0) std::memcpy(values.data(), in.data(), bytes);
    in = in.subspan(bytes);
    return values;
  }
  int32_t one() { return take<int32_t>(1)[0]; }
  bool has(int64_t n, size_t size) const { return n >= 0 && std::cmp_less_equal(n, in.size() / size); }
  void skip(int64_t n, size_t size) {
    const auto bytes = static_cast<size_t>(n) * size;
    CHECK(n >= 0 && bytes <= in.size());
    in = in.subspan(bytes);
  }
};

constexpr int64_t kHead = 5;  // of a document's numbers: those of its cut, its tokens, its layers

LayerStats take_layer(Reader& from) {
  LayerStats out;
  out.local_query = from.take<float>(from.one());
  out.block_keys = from.take<float>(from.one());
  out.attention.max_block = from.one();
  out.attention.min_block = from.one();
  const int32_t runs = from.one();
  for (int32_t i = 0; i < runs; ++i) {
    const std::vector<int32_t> run = from.take<int32_t>(2);
    out.attention.outliers.push_back({run[0], run[1]});
  }
  return out;
}

// Of values that may be anything: whether they are a layer's.
bool takes_sound_layer(Reader& from, const StatsSizes& sizes, const BlockCut& cut) {
  for (const int64_t floats : {sizes.query, cut.blocks(sizes.tokens) * sizes.block_key}) {
    if (!from.has(1, sizeof(int32_t)) || from.one() != floats || !from.has(floats, sizeof(float))) return false;
    for (const float value : from.take<float>(floats)) {
      if (!std::isfinite(value)) return false;
    }
  }
  if (!from.has(3, sizeof(int32_t))) return false;
  const Run middle = cut.middle(sizes.tokens);
  const int32_t most = from.one(), least = from.one(), runs = from.one();
  const bool means = sizes.query == 0 && most == -1 && least == -1 && runs == 0;
  const bool of_middle = contains(Runs{middle}, most) && contains(Runs{middle}, least);
  if ((sizes.query == 0 ? !means : !of_middle) || !from.has(runs, 2 * sizeof(int32_t))) return false;
  for (int32_t i = 0, behind = 0; i < runs; ++i) {
    const int32_t begin = from.one(), end = from.one();
    if (begin < behind || begin >= end || end > sizes.tokens) return false;
    behind = end;
  }
  return true;
}

void skip_layer(Reader& from) {
  for (int vector = 0; vector < 2; ++vector) from.skip(from.one(), sizeof(float));
  from.skip(2, sizeof(int32_t));
  from.skip(from.one(), 2 * sizeof(int32_t));
}

}  // namespace

std::vector<std::byte> to_bytes(const DocumentStats& stats, const BlockCut& cut) {
  Writer to;
  for (const int32_t head :
       {cut.block, cut.initial, cut.local, stats.tokens, static_cast<int32_t>(stats.layers.size())})
    to.put(head);
  for (const LayerStats& layer : stats.layers) {
    for (const auto* vector : {&layer.local_query, &layer.block_keys}) {
      to.put(static_cast<int32_t>(vector->size()));
      to.put(std::span<const float>(*vector));
    }
    to.put(layer.attention.max_block);
    to.put(layer.attention.min_block);
    to.put(static_cast<int32_t>(layer.attention.outliers.size()));
    for (const Run& run : layer.attention.outliers) {
      to.put(run.begin);
      to.put(run.end);
    }
  }
  return std::move(to.out);
}

bool are_of(std::span<const std::byte> bytes, const BlockCut& cut) {
  Reader from{bytes};
  const std::vector<int32_t> head = from.take<int32_t>(kHead);
  return head[0] == cut.block && head[1] == cut.initial && head[2] == cut.local;
}

bool are_sound(std::span<const std::byte> bytes, const StatsSizes& sizes) {
  constexpr int32_t kMost = 1 << 16;
  Reader from{bytes};
  if (!from.has(kHead, sizeof(int32_t))) return false;
  const std::vector<int32_t> head = from.take<int32_t>(kHead);
  const BlockCut cut{.block = head[0], .initial = head[1], .local = head[2]};
  const bool cuts =
      cut.block > 0 && cut.initial >= 0 && cut.local >= 0 && std::max({cut.block, cut.initial, cut.local}) <= kMost;
  if (!cuts || head[3] != sizes.tokens || head[4] != sizes.layers) return false;
  for (int32_t l = 0; l < sizes.layers; ++l) {
    if (!takes_sound_layer(from, sizes, cut)) return false;
  }
  return from.in.empty();
}

std::optional<DocumentStats> stats_from(std::span<const std::byte> bytes, const BlockCut& cut) {
  if (!are_of(bytes, cut)) return {};
  Reader from{bytes};
  const std::vector<int32_t> head = from.take<int32_t>(kHead);
  DocumentStats out;
  out.tokens = head[3];
  for (int32_t l = 0; l < head[4]; ++l) out.layers.push_back(take_layer(from));
  return out;
}

LayerStats layer_from(std::span<const std::byte> bytes, int layer) {
  Reader from{bytes};
  CHECK(layer < from.take<int32_t>(kHead)[4]);
  for (int l = 0; l < layer; ++l) skip_layer(from);
  return take_layer(from);
}

}  // namespace kvilt

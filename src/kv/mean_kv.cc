#include "kv/mean_kv.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

struct Source {
  const MeanPart& part;
  PinnedPages pages;
};

// Cos and sin of one position under every kind of RoPE.
std::vector<std::vector<float>> angles(const LayerRopes& ropes, int32_t pos) {
  std::vector<std::vector<float>> out;
  for (int kind = 0; kind < ropes.kinds(); ++kind) out.push_back(rotation(ropes.of_kind(kind), pos));
  return out;
}

void rotate(const RopeConfig& rope, const std::vector<float>& by, float sign, float* k) {
  rotate_head(rope.pairs, rope.rotary_dim, by.data(), sign, k);
}

double squared_distance(std::span<const float> a, std::span<const float> b) {
  double out = 0;
  for (size_t i = 0; i < a.size(); ++i) out += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return out;
}

// One token, at all layers and heads, and how far the last source is from the first.
TokenSpread mean_of_token(const LayerRopes& ropes, std::span<const Source> sources, int32_t token, PageTable& out) {
  const KvShape& shape = out.shape();
  const int E = shape.E;
  const int32_t to = sources[0].part.positions.begin + token;
  std::vector<std::vector<std::vector<float>>> turns;
  for (const Source& from : sources) turns.push_back(angles(ropes, from.part.positions.begin + token));
  std::vector<float> k(shape.G * E), v(shape.G * E), first_k(shape.G * E), first_v(shape.G * E), one(E);
  double of_k = 0, of_v = 0;
  for (int layer = 0; layer < shape.L; ++layer) {
    const int kind = ropes.kind(layer);
    const RopeConfig& rope = ropes.at(layer);
    std::ranges::fill(k, 0.0f);
    std::ranges::fill(v, 0.0f);
    for (size_t s = 0; s < sources.size(); ++s) {
      const auto& [part, pages] = sources[s];
      const int32_t slot = part.kv->map(layer).slot_of(part.positions.begin + token);
      CHECK(slot >= 0);
      const bool last = s > 0 && s + 1 == sources.size();
      for (int g = 0; g < shape.G; ++g) {
        const auto add = [&, weight = part.weight](std::vector<float>& sum, std::vector<float>& first, double& apart) {
          for (int e = 0; e < E; ++e) sum[g * E + e] += weight * one[e];
          if (s == 0) std::ranges::copy(one, first.begin() + g * E);
          if (last) apart += squared_distance(std::span(first).subspan(g * E, E), one);
        };
        decode_kv_row(shape.dtype, E, pages.k(layer, g, slot), one.data());
        rotate(rope, turns[s][kind], -1, one.data());
        add(k, first_k, of_k);
        decode_kv_row(shape.dtype, E, pages.v(layer, g, slot), one.data());
        add(v, first_v, of_v);
      }
    }
    for (int g = 0; g < shape.G; ++g) rotate(rope, turns[0][kind], 1, k.data() + g * E);
    out.write(layer, to, k.data(), v.data());
  }
  return {static_cast<float>(of_k), static_cast<float>(of_v)};
}

// The rows of the only part as they are.
void copy_token(const Source& from, int32_t token, PageTable& out) {
  const KvShape& shape = out.shape();
  const int32_t pos = from.part.positions.begin + token;
  for (int layer = 0; layer < shape.L; ++layer) {
    const int32_t slot = from.part.kv->map(layer).slot_of(pos);
    CHECK(slot >= 0);
    for (int g = 0; g < shape.G; ++g)
      out.restore(layer, g, pos, from.pages.k(layer, g, slot), from.pages.v(layer, g, slot));
  }
}

}  // namespace

std::unique_ptr<PageTable> mean_kv(PageStore& store, const LayerRopes& ropes, std::span<const MeanPart> parts,
                                   ThreadPool& pool, std::vector<TokenSpread>* apart) {
  CHECK(!parts.empty());
  if (apart) apart->assign(static_cast<size_t>(parts[0].positions.size()), {0, 0});
  std::vector<Source> sources;
  for (const MeanPart& part : parts) {
    CHECK(part.positions.size() == parts[0].positions.size());
    sources.push_back({part, part.kv->pin(part.positions)});
  }
  auto out = std::make_unique<PageTable>(store, ropes);
  out->add(std::vector<Runs>{{parts[0].positions}}, std::vector<uint16_t>(store.shape().L, 0));
  const bool copy = parts.size() == 1 && parts[0].weight == 1;
  pool.parallel_for(parts[0].positions.size(), [&](int64_t i, int) {
    const auto token = static_cast<int32_t>(i);
    if (copy) return copy_token(sources[0], token, *out);
    const TokenSpread spread = mean_of_token(ropes, sources, token, *out);
    if (apart) (*apart)[static_cast<size_t>(i)] = spread;
  });
  return out;
}

}  // namespace kvilt

#include "kv/mean_kv.h"

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

// One token, at all layers and heads.
void mean_of_token(const LayerRopes& ropes, std::span<const Source> sources, int32_t token, PageTable& out) {
  const KvShape& shape = out.shape();
  const int E = shape.E;
  const int32_t to = sources[0].part.positions.begin + token;
  std::vector<std::vector<std::vector<float>>> turns;
  for (const Source& from : sources) turns.push_back(angles(ropes, from.part.positions.begin + token));
  std::vector<float> k(shape.G * E), v(shape.G * E), one(E);
  for (int layer = 0; layer < shape.L; ++layer) {
    const int kind = ropes.kind(layer);
    const RopeConfig& rope = ropes.at(layer);
    std::ranges::fill(k, 0.0f);
    std::ranges::fill(v, 0.0f);
    for (size_t s = 0; s < sources.size(); ++s) {
      const auto& [part, pages] = sources[s];
      const int32_t slot = part.kv->map(layer).slot_of(part.positions.begin + token);
      CHECK(slot >= 0);
      for (int g = 0; g < shape.G; ++g) {
        decode_kv_row(shape.dtype, E, pages.k(layer, g, slot), one.data());
        rotate(rope, turns[s][kind], -1, one.data());
        for (int e = 0; e < E; ++e) k[g * E + e] += part.weight * one[e];
        decode_kv_row(shape.dtype, E, pages.v(layer, g, slot), one.data());
        for (int e = 0; e < E; ++e) v[g * E + e] += part.weight * one[e];
      }
    }
    for (int g = 0; g < shape.G; ++g) rotate(rope, turns[0][kind], 1, k.data() + g * E);
    out.write(layer, to, k.data(), v.data());
  }
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
                                   ThreadPool& pool) {
  CHECK(!parts.empty());
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
    copy ? copy_token(sources[0], token, *out) : mean_of_token(ropes, sources, token, *out);
  });
  return out;
}

}  // namespace kvilt

// forward/prompt_for_test.h: a small model and prompts that a driver computes, without an engine. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "forward/driver.h"
#include "kernels/dispatch.h"
#include "model/model_file.h"

namespace kvilt {

inline constexpr const char* kGemma = "tests/data/fixtures/gemma3";   // 4 layers; post norms, two ropes, windows of 24
inline constexpr const char* kMoe = "tests/data/fixtures/qwen3-moe";  // 3 layers; experts, q and k norms
inline constexpr const char* kProbe = "tests/data/models/probe-1M";   // 6 layers; the one whose weights mean something

inline std::vector<int32_t> random_tokens(int n, uint32_t seed, const ModelConfig& config) {
  std::mt19937 rng(seed);
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& id : out) id = static_cast<int32_t>(rng() % static_cast<uint32_t>(config.V));
  return out;
}

inline std::vector<float> random_floats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(rng);
  return out;
}

struct ModelForTest {
  explicit ModelForTest(const std::string& path, const std::string& backend = "reference", DType kv = DType::kF32) {
    auto opened = open_model(path);
    EXPECT_TRUE(opened.ok()) << path;
    file = std::move(opened).value();
    model = PreparedModel::prepare(file, *find_backend(backend).value(), pool, nullptr);
    const ModelConfig& c = model->config();
    store = std::make_unique<PageStore>(PageStore::create({c.L, c.G, c.E, 16, kv}, int64_t{32} << 20).value());
  }
  const ModelConfig& config() const { return model->config(); }

  ThreadPool pool{2};
  std::shared_ptr<const ModelFile> file;
  std::unique_ptr<PreparedModel> model;
  std::unique_ptr<PageStore> store;
};

// One prompt and its plan's only stage.
class PromptForTest {
 public:
  PromptForTest(ModelForTest& on, std::vector<int32_t> tokens)
      : ids(std::move(tokens)),
        table(*on.store, on.config().ropes()),
        logits(static_cast<size_t>(on.config().V)),
        config_(on.config()) {
    plan.prompt_len = T();
    plan.stages = {uniform_stage({{0, T()}}, config_.L)};
  }
  int32_t T() const { return static_cast<int32_t>(ids.size()); }
  Stage& stage() { return plan.stages[0]; }

  // The next band, once the first of them has got its room.
  void enter(int layer_begin = 0) {
    const Stage& s = stage();
    band = next_band(s, layer_begin, config_.L, s.layer_end == config_.L ? Runs{{T() - 1, T()}} : Runs{});
    if (layer_begin == 0) {
      std::vector<Runs> sets = s.sets;
      if (s.carry) {  // mended positions get private copies
        for (Runs& set : sets) {
          for (const CarryGroup& group : s.carry->groups) set = unite(set, group.positions());
        }
      }
      std::vector<uint16_t> write(s.write.begin(), s.write.end());
      write.resize(static_cast<size_t>(config_.L), 0);
      table.add(sets, write);
      for (const ProbeSpec& spec : s.probes) probes.push_back(empty_probe(spec, config_, T()));
      for (const AnnexKind& kind : plan.keep) {
        kept.push_back({kind, {}});
        kept.back().rows.reset(s.write_at(kind.layer), config_.D);
      }
    }
    if (band.cut && !band.last) hidden.reset(band.cut_rows, config_.D);
  }
  // Rows [begin, end) of the band.
  Chunk chunk(Run range) {
    Chunk out;
    out.kv = &table;
    out.plan = &plan;
    out.stage = &stage();
    out.band = &band;
    out.range = range;
    out.tokens = ids;
    out.hidden = &hidden;
    out.kept = kept;
    out.carry = &carry;
    out.keys = keys_of_answer;
    out.probes = probes;
    if (band.layer_end == config_.L && range.end == T()) out.logits = logits.data();
    return out;
  }
  // All bands, in chunks of `rows` positions.
  void run(Driver& driver, int32_t rows = INT32_MAX) {
    rows = std::min(rows, T());
    for (enter();; enter(band.layer_end)) {
      for (int32_t begin = 0; begin < T(); begin += rows) {
        const Run range{begin, std::min(T(), begin + rows)};
        if (intersect(band.rows, Runs{range}).empty()) continue;
        Chunk part = chunk(range);
        driver.run({&part, 1});
      }
      if (band.last) return;
    }
  }
  // K of `positions`, all layers and KV heads. REQUIRES: they are private, and fp32.
  std::vector<float> keys(Run positions) const {
    std::vector<float> out;
    for (int l = 0; l < config_.L; ++l) {
      for (int g = 0; g < config_.G; ++g) {
        for (int32_t pos = positions.begin; pos < positions.end; ++pos) {
          const auto* k = reinterpret_cast<const float*>(table.private_k(l, g, pos));
          out.insert(out.end(), k, k + config_.E);
        }
      }
    }
    return out;
  }
  // All of it as a segment for other prompts.
  std::shared_ptr<const KvSegment> publish() const { return table.publish({0, T()}); }

  std::vector<int32_t> ids;
  PageTable table;
  Plan plan;
  Band band;
  HiddenRows hidden;
  std::vector<KeptRows> kept;  // one per plan.keep
  CarryState carry;
  std::vector<Probe> probes;
  std::vector<float> logits;  // of the last row
  SelectedKeys* keys_of_answer = nullptr;

 private:
  const ModelConfig& config_;
};

// A power check's measure: how far apart two results are.
inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double out = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) out = std::max(out, std::abs(double{a[i]} - b[i]));
  return out;
}

}  // namespace kvilt

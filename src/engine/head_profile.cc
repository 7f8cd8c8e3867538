#include "engine/head_profile.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/check.h"
#include "base/divergence.h"
#include "base/error.h"

namespace kvilt {
namespace {

constexpr int32_t kSpread = 64;  // rows besides the last ones whose attention is looked at
constexpr int kLadder[] = {16, 32, 64, 128, 256, 512, 1024, 2048, 4096};

size_t heads_of(const ModelConfig& config) { return static_cast<size_t>(config.L) * static_cast<size_t>(config.G); }

class Profiler {
 public:
  Profiler(const ProfilerParts& parts, std::span<const int32_t> ids, const HeadProfileOptions& options)
      : parts_(parts),
        config_(parts.model.config()),
        ids_(ids),
        options_(options),
        T_(static_cast<int32_t>(ids.size())),
        last_{{std::max(0, T_ - options.rows), T_}},
        pass_(parts, ids),
        logits_(static_cast<size_t>(count(last_)) * static_cast<size_t>(config_.V)) {}

  HeadProfile run() {
    HeadProfile out;
    out.layers = config_.L, out.kv_heads = config_.G, out.tokens = T_;
    dense(out);
    if (!options_.prefixes.empty()) shift(out);
    if (!options_.ablation) return out;
    const size_t heads = heads_of(config_);
    out.ablation.resize(heads);
    size_t done = 0;
    for (int l = config_.L - 1; l >= 0; --l) {
      for (int g = 0; g < config_.G; ++g) {
        out.ablation[l * config_.G + g] = without(l, g);
        if (options_.progress) options_.progress(static_cast<double>(++done) / static_cast<double>(heads));
      }
    }
    return out;
  }

 private:
  Plan plan_of(std::vector<int> cuts) const {
    Plan plan;
    plan.prompt_len = T_;
    plan.stages = {uniform_stage({{0, T_}}, config_.L)};
    plan.stages[0].cuts = std::move(cuts);
    return plan;
  }

  // One band; logits_ gets the last rows'.
  void run_band(const Plan& plan, const Band& band, std::span<Probe> probes) {
    pass_.run(plan, band, probes, last_, logits_.data());
  }

  void dense(HeadProfile& out) {
    std::vector<int> cuts(static_cast<size_t>(config_.L) - 1);
    std::iota(cuts.begin(), cuts.end(), 1);
    Plan plan = plan_of(std::move(cuts));
    plan.stages[0].probes = {outside_probe()};
    const ProbeSpec& spec = plan.stages[0].probes[0];
    Probe probe;
    probe.outside.assign(spec.views.size() * static_cast<size_t>(config_.L * config_.H), 0);
    entering_.resize(config_.L);
    pass_.hidden.reset({{0, T_}}, config_.D);
    for (int l = 0; l < config_.L;) {
      const Band band = next_band(plan.stages[0], l, config_.L, last_);
      run_band(plan, band, {&probe, 1});
      l = band.layer_end;
      if (!band.last && options_.ablation) keep(entering_[l]);
    }
    summarise(spec, probe, out);
    for (int64_t r = 0; options_.ablation && r < count(last_); ++r) {
      const auto begin = logits_.begin() + r * config_.V;
      reference_.emplace_back(std::vector<float>(begin, begin + config_.V));
    }
  }

  ProbeSpec outside_probe() const {
    ProbeSpec probe;
    probe.estimator = Estimator::kOutside;
    probe.layers.resize(static_cast<size_t>(config_.L));
    std::iota(probe.layers.begin(), probe.layers.end(), 0);
    Runs spread;
    const int32_t first = T_ / 4, step = std::max(1, (T_ - first) / kSpread);
    for (int32_t pos = first; pos < T_; pos += step) spread = unite(spread, Runs{{pos, pos + 1}});
    probe.rows = unite(spread, last_);
    probe.views = {View{{options_.sink, options_.window}}};
    for (const int window : kLadder) {
      if (window < T_) probe.views.push_back({{options_.sink, window}});
    }
    return probe;
  }

  // From sums over rows and query heads to figures of KV heads.
  void summarise(const ProbeSpec& spec, const Probe& probe, HeadProfile& out) const {
    const int group = config_.H / config_.G;
    const size_t views = spec.views.size();
    const auto rows = static_cast<double>(count(spec.rows));
    for (size_t v = 1; v < views; ++v) out.windows.push_back(spec.views[v].window);
    out.inside.resize(views - 1);
    for (int head = 0; head < config_.L * config_.G; ++head) {
      std::vector<double> mean(views, 0);
      double most = 0;
      for (int h = head * group; h < (head + 1) * group; ++h) {
        const double* outside = probe.outside.data() + static_cast<size_t>(h) * views;
        most = std::max(most, outside[0] / rows);
        for (size_t v = 0; v < views; ++v) mean[v] += outside[v] / rows / group;
      }
      out.edge_max.push_back(most);
      out.edge_mean.push_back(mean[0]);
      for (size_t v = 1; v < views; ++v) out.inside[v - 1].push_back(1 - mean[v]);
    }
  }

  // The prompt, by itself or after a prefix, one layer at a time.
  struct Side {
    Side(const ProfilerParts& parts, std::vector<int32_t> with_prefix) : ids(std::move(with_prefix)), pass(parts, ids) {
      const ModelConfig& config = parts.model.config();
      const auto n = static_cast<int32_t>(ids.size());
      plan.prompt_len = n;
      plan.stages = {uniform_stage({{0, n}}, config.L)};
      for (int l = 1; l < config.L; ++l) plan.stages[0].cuts.push_back(l);
      pass.hidden.reset({{0, n}}, config.D);
    }
    std::vector<int32_t> ids;
    ProfilePass pass;
    Plan plan;
    Probe probe;
  };

  // Layer by layer in lock-step, so that one layer's weights are in memory at a time.
  void shift(HeadProfile& out) {
    std::vector<std::unique_ptr<Side>> sides;
    const int32_t at = options_.prefix_at;
    const ProbeSpec near = outside_probe();
    for (size_t i = 0; i <= options_.prefixes.size(); ++i) {
      std::vector<int32_t> ids(ids_.begin(), ids_.end());
      if (i > 0) ids.insert(ids.begin() + at, options_.prefixes[i - 1].begin(), options_.prefixes[i - 1].end());
      const auto moved = static_cast<int32_t>(ids.size()) - T_;
      Side& side = *sides.emplace_back(std::make_unique<Side>(parts_, std::move(ids)));
      ProbeSpec probe;
      probe.estimator = Estimator::kWeights;
      probe.layers = near.layers;
      for (const Run& run : near.rows) {
        if (run.end > at) probe.rows.push_back({std::max(run.begin, at) + moved, run.end + moved});
      }
      side.plan.stages[0].probes = {std::move(probe)};
    }
    out.shift_max.assign(heads_of(config_), 0);
    out.shift_mean.assign(heads_of(config_), 0);
    for (int l = 0; l < config_.L;) {
      const Band band = next_band(sides[0]->plan.stages[0], l, config_.L, {});
      for (const auto& side : sides)
        side->pass.run(side->plan, next_band(side->plan.stages[0], l, config_.L, {}), {&side->probe, 1});
      for (int layer = l == 0 ? 0 : l + 1; layer <= band.layer_end && layer < config_.L; ++layer)
        compare(sides, layer, out);
      l = band.layer_end;
    }
  }

  void compare(std::vector<std::unique_ptr<Side>>& sides, int layer, HeadProfile& out) const {
    const int group = config_.H / config_.G;
    const double weight = 1.0 / static_cast<double>(sides.size() - 1);
    for (size_t i = 1; i < sides.size(); ++i) {
      for (int g = 0; g < config_.G; ++g) {
        const auto head = static_cast<size_t>(layer * config_.G + g);
        double most = 0;
        for (int h = g * group; h < (g + 1) * group; ++h) {
          const double found = shift_of(*sides[0], *sides[i], layer, static_cast<size_t>(h));
          most = std::max(most, found);
          out.shift_mean[head] += weight * found / group;
        }
        out.shift_max[head] += weight * most;
      }
    }
    for (const auto& side : sides) side->probe.weights[layer] = {};
  }

  // 1 - cosine of the rows' weights among the prompt's own tokens from prefix_at on, all in one list.
  double shift_of(const Side& plain, const Side& moved, int layer, size_t h) const {
    const auto l = static_cast<size_t>(layer), T = plain.ids.size(), n = moved.ids.size();
    const auto rows = static_cast<size_t>(count(plain.plan.stages[0].probes[0].rows));
    double ab = 0, aa = 0, bb = 0;
    for (size_t r = 0; r < rows; ++r) {
      const float* a = plain.probe.weights[l].data() + (h * rows + r) * T;
      const float* b = moved.probe.weights[l].data() + (h * rows + r) * n + (n - T);
      for (size_t j = static_cast<size_t>(options_.prefix_at); j < T; ++j) {
        ab += double{a[j]} * b[j];
        aa += double{a[j]} * a[j];
        bb += double{b[j]} * b[j];
      }
    }
    return aa > 0 && bb > 0 ? 1 - ab / std::sqrt(aa * bb) : 0;
  }

  void keep(std::vector<float>& out) {
    out.resize(static_cast<size_t>(T_) * static_cast<size_t>(config_.D));
    for (int32_t pos = 0; pos < T_; ++pos)
      std::copy_n(pass_.hidden.row(pos), config_.D, out.data() + int64_t{pos} * config_.D);
  }

  // KL(full || only this head local), the mean over the last rows.
  double without(int layer, int head) {
    Plan plan = plan_of(layer > 0 ? std::vector<int>{layer} : std::vector<int>{});
    plan.views.push_back({{options_.sink, options_.window}});
    plan.head_view.assign(config_.L * config_.G, 0);
    plan.head_view[layer * config_.G + head] = 1;
    const std::vector<float>& from = entering_[layer];
    for (int32_t pos = 0; layer > 0 && pos < T_; ++pos)
      std::copy_n(from.data() + int64_t{pos} * config_.D, config_.D, pass_.hidden.row(pos));
    run_band(plan, next_band(plan.stages[0], layer, config_.L, last_), {});
    std::vector<double> kl(reference_.size());
    parts_.pool.parallel_for(static_cast<int64_t>(kl.size()), [&](int64_t r, int) {
      const auto row = std::span<const float>(logits_).subspan(r * config_.V, config_.V);
      kl[r] = reference_[r].kl(row);
    });
    return std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(kl.size());
  }

  const ProfilerParts& parts_;
  const ModelConfig& config_;
  const std::span<const int32_t> ids_;
  const HeadProfileOptions& options_;
  const int32_t T_;
  const Runs last_;
  ProfilePass pass_;
  std::vector<std::vector<float>> entering_;  // per layer, T x D; layer 0 starts from the embeddings
  std::vector<float> logits_;                 // of the last rows
  std::vector<Reference> reference_;
};

}  // namespace

int64_t head_profile_pages(const ProfilerParts& parts, size_t tokens, const HeadProfileOptions& options) {
  int64_t sum = profiled_pages(parts, tokens);
  if (!options.prefixes.empty()) sum += profiled_pages(parts, tokens);
  for (const auto& prefix : options.prefixes) sum += profiled_pages(parts, tokens + prefix.size());
  return sum;
}

HeadProfile profile_heads(const ProfilerParts& parts, std::span<const int32_t> ids, const HeadProfileOptions& options) {
  CHECK(check_profile(ids, options).ok());
  return Profiler(parts, ids, options).run();
}

Status check_profile(std::span<const int32_t> ids, const HeadProfileOptions& options) {
  if (ids.size() < 2)
    return error(Code::kInvalidArgument, "a prompt of {} tokens says nothing about heads", ids.size());
  if (options.window < 0 || options.sink < 0 || options.rows < 1 || options.rows > 1024) {
    return error(Code::kInvalidArgument, "window and sink must be 0 or more tokens, rows from 1 to 1024");
  }
  if (options.prefix_at < 0 || static_cast<size_t>(options.prefix_at) >= ids.size())
    return error(Code::kInvalidArgument, "prefix_at must be inside the prompt");
  return {};
}

}  // namespace kvilt

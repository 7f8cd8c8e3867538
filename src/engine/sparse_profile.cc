#include "engine/sparse_profile.h"

#include "base/check.h"
#include "base/error.h"
#include "forward/pattern_trials.h"
#include "plan/head_patterns.h"

namespace kvilt {

SparseProfile profile_patterns(const ProfilerParts& parts, std::span<const int32_t> ids,
                               const SparseProfileOptions& options) {
  CHECK(check_profile(ids, options).ok());
  const ModelConfig& config = parts.model.config();
  const auto T = static_cast<int32_t>(ids.size());
  PageTable kv(parts.store, config.ropes(T));
  Plan plan;
  plan.prompt_len = T;
  plan.stages = {uniform_stage({{0, T}}, config.L)};
  kv.add(plan.stages[0].sets, std::vector<uint16_t>(static_cast<size_t>(config.L), 0));
  for (int layer = 1; layer < config.L; ++layer) plan.stages[0].cuts.push_back(layer);  // progress is told at each
  HiddenRows hidden;
  hidden.reset({{0, T}}, config.D);
  PatternTrials trials;
  for (const HeadPattern& pattern : options.patterns) trials.rules.push_back(rule_of(pattern));
  trials.tried.resize(static_cast<size_t>(config.L) * static_cast<size_t>(config.G) * trials.rules.size());
  for (int layer = 0; layer < config.L;) {
    const Band band = next_band(plan.stages[0], layer, config.L, {{T - 1, T}});
    Chunk chunk = chunk_of(kv, plan, band, ids);
    chunk.hidden = &hidden;
    chunk.trials = &trials;
    run_chunks(parts.driver, chunk);
    layer = band.layer_end;
    if (options.progress) options.progress(static_cast<double>(layer) / config.L);
  }
  SparseProfile out{config.L, config.G, T, options.patterns, {}, {}, {}};
  for (size_t i = 0; i < trials.tried.size(); ++i) {
    const PatternTrials::Tried& tried = trials.tried[i];
    const double group = config.H / config.G;
    out.held.push_back(tried.rows > 0 ? tried.held / tried.rows : 0);
    out.cost.push_back(tried.dense > 0 ? tried.flops / tried.dense : 0);
    if (i % options.patterns.size() == 0) out.rows.push_back(tried.rows / group);
  }
  return out;
}

Status check_profile(std::span<const int32_t> ids, const SparseProfileOptions& options) {
  if (ids.size() < 2)
    return error(Code::kInvalidArgument, "a prompt of {} tokens says nothing about heads", ids.size());
  if (options.patterns.empty()) return error(Code::kInvalidArgument, "there is no pattern to try");
  for (const HeadPattern& pattern : options.patterns) {
    if (pattern.sink < 0 || pattern.window < 0 || pattern.columns < 0 || pattern.distances < 0 || pattern.blocks < 1)
      return error(Code::kInvalidArgument, "a pattern has sizes of 0 or more, and 1 block at least");
  }
  return {};
}

}  // namespace kvilt

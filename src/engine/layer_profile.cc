#include "engine/layer_profile.h"

#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "policy/document_stage.h"

namespace kvilt {
namespace {

BlockCut cut_of(const LayerProfileOptions& options) { return {.block = options.block}; }

// Of blocks that are all alike but one, that one is sqrt(blocks - 1) deviations away from the mean.
bool can_stand_out(int32_t blocks, double sigmas) { return blocks > sigmas * sigmas + 1; }

}  // namespace

LayerProfile profile_layers(const ProfilerParts& parts, std::span<const int32_t> ids,
                            const LayerProfileOptions& options) {
  CHECK(check_profile(ids, options).ok());
  const ModelConfig& config = parts.model.config();
  const auto T = static_cast<int32_t>(ids.size());
  Plan plan;
  plan.prompt_len = T;
  plan.stages = {uniform_stage({{0, T}}, config.L)};
  ProbeSpec spec;
  spec.estimator = Estimator::kFade;
  spec.rows = {{0, T}};
  spec.layers = all_layers(config.L);
  plan.stages[0].probes = {spec};
  Probe probe = empty_probe(spec, config, T);
  ProfilePass pass(parts, ids);
  pass.run(plan, next_band(plan.stages[0], 0, config.L, {}), {&probe, 1});
  std::vector<std::vector<BlockFade>> by_layer;
  for (const std::vector<double>& fade : probe.sums) by_layer.push_back(block_fades(fade, cut_of(options)));
  LayerProfile out{config.L, T, static_cast<int>(by_layer[0].size()), {}};
  for (const uint8_t stable : stable_layers(by_layer, options.sigmas)) out.stable.push_back(stable);
  return out;
}

Status check_profile(std::span<const int32_t> ids, const LayerProfileOptions& options) {
  if (options.block < kLeastBlock || options.block > 1 << 16)
    return error(Code::kInvalidArgument, "blocks have from {} to {} tokens", kLeastBlock, 1 << 16);
  if (!(options.sigmas > 0 && options.sigmas <= 100))
    return error(Code::kInvalidArgument, "sigmas must be above 0, at most 100");
  const int32_t blocks = cut_of(options).middle(static_cast<int32_t>(ids.size())).size();
  if (can_stand_out(blocks, options.sigmas)) return {};
  return error(Code::kInvalidArgument,
               "a prompt of {} tokens has {} blocks of {} between its ends; none can be {} deviations off the others: "
               "take longer prompts, or smaller blocks",
               ids.size(), blocks, options.block, options.sigmas);
}

}  // namespace kvilt

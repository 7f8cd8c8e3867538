#include "engine/check_sampling.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace kvilt {
namespace {

// Where nothing else may come, the sampler draws what is barred (forward/sampler.h): an answer would end at once that
// must not.
Status check_least(const SamplingParams& s, const std::vector<int32_t>& eos_ids) {
  if (s.min_tokens == 0 || s.allowed_ids.empty()) return {};
  const std::vector<int32_t> ends = ends_of(s, eos_ids);
  const auto is_end = [&](int32_t id) { return std::ranges::find(ends, id) != ends.end(); };
  if (!std::ranges::all_of(s.allowed_ids, is_end)) return {};
  return error(Code::kInvalidArgument,
               "min_tokens: each token that is allowed ends the answer, and none of those may be among its first {}: "
               "allow another token, or leave min_tokens out",
               s.min_tokens);
}

}  // namespace

std::vector<int32_t> ends_of(const SamplingParams& params, const std::vector<int32_t>& eos_ids) {
  std::vector<int32_t> ends = params.stop_ids;
  if (!params.ignore_eos) ends.insert(ends.end(), eos_ids.begin(), eos_ids.end());
  return ends;
}

Status check_sampling(const SamplingParams& s, const std::vector<int32_t>& eos_ids) {
  if (!(s.temperature >= 0) || !(s.top_p > 0 && s.top_p <= 1) || !(s.min_p >= 0 && s.min_p <= 1) || s.top_k < 0 ||
      !(s.repetition_penalty > 0) || s.max_tokens < -1 || s.min_tokens < 0 || s.penalty_window < -1 ||
      s.min_indent < 0) {
    return error(Code::kInvalidArgument,
                 "sampling: temperature >= 0, 0 < top_p <= 1, 0 <= min_p <= 1, top_k >= 0, repetition_penalty > 0, "
                 "max_tokens >= 0, min_tokens >= 0, min_indent >= 0");
  }
  bool finite = std::isfinite(s.temperature) && std::isfinite(s.repetition_penalty) &&
                std::isfinite(s.presence_penalty) && std::isfinite(s.frequency_penalty);
  for (const auto& [id, bias] : s.logit_bias) finite = finite && !std::isnan(bias) && bias < HUGE_VALF;
  if (!finite) return error(Code::kInvalidArgument, "sampling: penalties, biases and temperature must be finite");
  return check_least(s, eos_ids);
}

}  // namespace kvilt

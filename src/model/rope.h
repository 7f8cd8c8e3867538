// model/rope.h: from the RoPE settings of a file to the angles that kernels use.
// Source:  "RoFormer" (arXiv:2104.09864); YaRN (arXiv:2309.00071, eqs. 17-22); Llama 3's wavelength bands. The formulas
//          are those of Transformers' rope utilities, so that the same settings give the same angles.
// Not here: rotating vectors (kernels/).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kvilt/result.h"
#include "model/config.h"

namespace kvilt {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kDynamic, kLongRope };

struct RopeSettings {
  RopePairs pairs = RopePairs::kHalves;
  RopeScaling scaling = RopeScaling::kNone;
  int head_dim = 0, rotary_dim = 0;
  double theta = 10000;
  double factor = 1;
  double original_context = 0;                                     // positions before scaling
  double low_freq_factor = 1, high_freq_factor = 4;                // llama3
  double beta_fast = 32, beta_slow = 1;                            // YaRN
  bool truncate = true;                                            // YaRN: whole dimensions as borders of the ramp
  std::optional<double> attention_factor, mscale, mscale_all_dim;  // YaRN, LongRoPE
  std::vector<double> divisors;       // per pair: llama3's as stored in a GGUF, LongRoPE's short factors; empty: none
  std::vector<double> long_divisors;  // LongRoPE's, for sequences beyond the original context; empty: none
};

// Reads the names that config.json and GGUF use; nothing for a name that this build does not know.
std::optional<RopeScaling> rope_scaling_by_name(const std::string& name);

// Errors: kCorrupt for settings that contradict each other.
Result<RopeConfig> make_rope(const RopeSettings& settings, const std::string& where);

}  // namespace kvilt

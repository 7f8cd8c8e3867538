#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace kvilt {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Llama 3: long wavelengths grow, short ones stay, and those between are blended.
double llama3_frequency(double frequency, const RopeSettings& s) {
  const double wavelength = kTwoPi / frequency;
  const double low = s.original_context / s.low_freq_factor, high = s.original_context / s.high_freq_factor;
  if (wavelength < high) return frequency;
  if (wavelength > low) return frequency / s.factor;
  const double smooth =
      (s.original_context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

// YaRN: the pair that rotates `rotations` times over the original context.
double yarn_pair(double rotations, const RopeSettings& s) {
  return s.rotary_dim * std::log(s.original_context / (rotations * kTwoPi)) / (2 * std::log(s.theta));
}

void apply_yarn(std::vector<double>& inv_freq, const RopeSettings& s) {
  double low = yarn_pair(s.beta_fast, s), high = yarn_pair(s.beta_slow, s);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, s.rotary_dim - 1.0);
  if (low == high) high += 0.001;  // no singular ramp
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inv_freq[i] = inv_freq[i] / s.factor * ramp + inv_freq[i] * (1 - ramp);
  }
}

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

double magnitude(const RopeSettings& s) {
  if (s.scaling == RopeScaling::kYarn) {
    if (s.attention_factor) return *s.attention_factor;
    if (s.mscale && s.mscale_all_dim && *s.mscale != 0 && *s.mscale_all_dim != 0) {
      return yarn_mscale(s.factor, *s.mscale) / yarn_mscale(s.factor, *s.mscale_all_dim);
    }
    return yarn_mscale(s.factor, 1);
  }
  if (s.scaling == RopeScaling::kLongRope) {
    if (s.attention_factor) return *s.attention_factor;
    return s.factor <= 1 ? 1 : std::sqrt(1 + std::log(s.factor) / std::log(s.original_context));
  }
  return 1;
}

Status check(const RopeSettings& s, const std::string& where) {
  const auto bad = [&](const char* why) { return error(Code::kCorrupt, "{}: RoPE settings: {}", where, why); };
  if (s.rotary_dim < 2 || s.rotary_dim % 2 != 0 || s.rotary_dim > s.head_dim) {
    return error(Code::kCorrupt, "{}: RoPE rotates {} of a head's {} elements; it must be an even number of them",
                 where, s.rotary_dim, s.head_dim);
  }
  if (!(s.theta > 1)) return bad("the base (rope_theta) must be above 1");
  if (s.scaling != RopeScaling::kNone && !(s.factor > 0)) return bad("the factor must be positive");
  const bool bands =
      s.scaling == RopeScaling::kLlama3 || s.scaling == RopeScaling::kYarn || s.scaling == RopeScaling::kLongRope;
  if (bands && !(s.original_context > 1)) return bad("the original context length must be above 1");
  if (s.scaling == RopeScaling::kLlama3 && !(s.low_freq_factor > 0 && s.high_freq_factor > s.low_freq_factor)) {
    return bad("high_freq_factor must be above low_freq_factor, and both positive");
  }
  if (s.scaling == RopeScaling::kYarn && !(s.beta_slow > 0 && s.beta_fast > 0)) return bad("betas must be positive");
  if (!s.divisors.empty()) {
    if (s.divisors.size() != static_cast<size_t>(s.rotary_dim / 2)) return bad("not one frequency factor per pair");
    for (const double divisor : s.divisors) {
      if (!(divisor > 0) || !std::isfinite(divisor)) return bad("a frequency factor is not a positive number");
    }
  }
  return {};
}

}  // namespace

std::optional<RopeScaling> rope_scaling_by_name(const std::string& name) {
  static constexpr struct {
    const char* name;
    RopeScaling scaling;
  } kNames[] = {{"default", RopeScaling::kNone},  {"none", RopeScaling::kNone},
                {"linear", RopeScaling::kLinear}, {"llama3", RopeScaling::kLlama3},
                {"yarn", RopeScaling::kYarn},     {"dynamic", RopeScaling::kDynamic},
                {"su", RopeScaling::kLongRope},   {"longrope", RopeScaling::kLongRope}};
  for (const auto& row : kNames) {
    if (name == row.name) return row.scaling;
  }
  return {};
}

Result<RopeConfig> make_rope(const RopeSettings& s, const std::string& where) {
  KVILT_TRY(check(s, where));
  RopeConfig rope;
  rope.pairs = s.pairs;
  rope.rotary_dim = s.rotary_dim;
  rope.theta = s.theta;
  for (int i = 0; i < s.rotary_dim / 2; ++i) {
    double frequency = std::pow(s.theta, -2.0 * i / s.rotary_dim);
    if (!s.divisors.empty()) frequency /= s.divisors[i];
    if (s.scaling == RopeScaling::kLinear) frequency /= s.factor;
    if (s.scaling == RopeScaling::kLlama3) frequency = llama3_frequency(frequency, s);
    rope.inv_freq.push_back(frequency);
  }
  if (s.scaling == RopeScaling::kYarn) apply_yarn(rope.inv_freq, s);
  rope.magnitude = magnitude(s);
  rope.length_dependent = s.scaling == RopeScaling::kDynamic || s.scaling == RopeScaling::kLongRope;
  const auto finite = [](double x) { return std::isfinite(x) && x > 0; };
  if (!finite(rope.magnitude) || !std::ranges::all_of(rope.inv_freq, finite)) {
    return error(Code::kCorrupt, "{}: RoPE settings give angles that are no positive numbers", where);
  }
  return rope;
}

}  // namespace kvilt

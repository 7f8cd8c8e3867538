// kvilt/sampling_defaults.h: how tokens are drawn where a request does not say; plain data of the public interface.
// Idea:  a model's files, a server's flags and the fields of a request are three layers of the same few settings, and
//        the later one wins field by field. What nobody says is SamplingParams' own.
#pragma once

#include <optional>

#include "kvilt/request.h"

namespace kvilt {

// What these fields may be, whoever says it. top_p and min_p are from 0 to 1; top_k is from -1 on (-1 and 0: all).
inline constexpr double kMaxTemperature = 2, kMinRepetitionPenalty = 0.01, kMaxRepetitionPenalty = 10;

struct SamplingDefaults {
  std::optional<float> temperature = {}, top_p = {}, min_p = {}, repetition_penalty = {};
  std::optional<int> top_k = {};

  // These, and what `other` says where they say nothing.
  constexpr SamplingDefaults or_else(const SamplingDefaults& other) const {
    return {.temperature = temperature ? temperature : other.temperature,
            .top_p = top_p ? top_p : other.top_p,
            .min_p = min_p ? min_p : other.min_p,
            .repetition_penalty = repetition_penalty ? repetition_penalty : other.repetition_penalty,
            .top_k = top_k ? top_k : other.top_k};
  }

  void set(SamplingParams& sampling) const {
    sampling.temperature = temperature.value_or(sampling.temperature);
    sampling.top_p = top_p.value_or(sampling.top_p);
    sampling.min_p = min_p.value_or(sampling.min_p);
    sampling.repetition_penalty = repetition_penalty.value_or(sampling.repetition_penalty);
    sampling.top_k = top_k.value_or(sampling.top_k);
  }

  friend bool operator==(const SamplingDefaults&, const SamplingDefaults&) = default;
};

}  // namespace kvilt

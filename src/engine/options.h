// engine/options.h: an engine's options as they are in force: checked, and with every `auto` decided.
// Role:     the one place for those decisions; the engine, `kvilt info` and the benchmarks ask here.
// Not here: the options themselves and their words (kvilt/options.h); backends by name (kernels/dispatch.h).
#pragma once

#include "kernels/backend.h"
#include "kvilt/options.h"
#include "model/config.h"
#include "tensor/dtype.h"

namespace kvilt {

// The options asked for, in which no auto, and no 0 that stands for a default, is left.
struct ResolvedOptions : EngineOptions {
  DType kv_dtype = DType::kF32;  // as kv_type
};

// What can be said without a model. Errors: kInvalidArgument, naming the option and its range.
Status check_options(const EngineOptions& options);

// Call it when the weights are in memory: the default pool is half of what is available then. Errors: check_options'.
Result<ResolvedOptions> resolve(const EngineOptions& options, const ModelConfig& config, const Backend& backend);

// Those that a model is opened with, before its config is known: threads > 0, and what its rows are rounded to.
int threads_of(const EngineOptions& options);
Activations activations_of(ActivationType type);

// Of requests that name none. Where the model forbids reuse, the default falls back to the exact prefix.
std::string default_policy(const EngineOptions& options, bool reuse);
// `auto` that somebody asked for by name (asked) is for all text; without a word from anybody marks are the consent.
std::string default_quality(const EngineOptions& options, bool asked);

}  // namespace kvilt

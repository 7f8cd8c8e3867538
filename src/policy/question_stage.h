// policy/question_stage.h: the first of two stages: the question reads the placed pieces as they are, and its attention
// shows which of their tokens matter to it; the next stage computes those again.
// Source: ProphetKV (arXiv:2602.02579), Stage I; docs/papers.md#prophetkv.
// Cost:   the fresh rows through all layers, and three passes of q k over the context for the rows of the probe.
#pragma once

#include "policy/policy.h"

namespace kvilt {

// Computes the fresh runs and the suffix in all layers. The probe sums the suffix's attention to the keys before it,
// normalised over these keys, over layers, heads and rows.
Stage question_stage(const PromptLayout& layout, const ModelConfig& config, Estimator estimator, int32_t tail);

// What the next stage computes whatever was chosen: the fresh runs and the suffix.
Runs always_computed(const PromptLayout& layout, int32_t tail);

// floor(share * |reused|), the number that the papers' r stands for; or of some of the text.
int64_t budget_of(const PromptLayout& layout, double share);
int64_t budget_of(const Runs& text, double share);

// always_computed(), and of the other reused tokens the budget_of(r) with the highest score.
Runs always_and_highest(const PromptLayout& layout, int32_t tail, std::span<const double> score, double r);

}  // namespace kvilt

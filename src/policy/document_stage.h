// policy/document_stage.h: what methods share that read a question over blocks of documents: where the question is, and a
// stage in which a document looks at itself, whose results are stored with it.
// Idea:       a document's rows run once more over its own cached KV, as when it was prefilled alone: nothing is written,
//             and what is found out does not depend on the prompt around it.
// Threads:    pure; any thread.
#pragma once

#include <optional>

#include "policy/policy.h"
#include "policy/samkv_stats.h"

namespace kvilt {

inline constexpr AnnexKind kBlockStats{AnnexOf::kBlockStats, 0}, kBlockMeans{AnnexOf::kBlockMeans, 0};
inline constexpr int kLeastBlock = 8;        // a block's mean key is G E numbers in each layer
inline constexpr int kProbesOfDocument = 3;  // of document_stage()

// Where the question is: from the last mark on, or the last fresh run; its last 256 positions.
std::optional<Run> question_in(const PromptLayout& layout);
// What the last stage computes: all that is new, and the question; without one the last position.
Runs rows_of_question(const PromptLayout& layout, const std::optional<Run>& question);

std::vector<int> all_layers(int L);
// The document by itself, as it is cached.
Stage document_stage(const Run& document, const BlockCut& cut, const ModelConfig& config);
// What it found. of: its probes.
DocumentStats measured(int32_t tokens, const BlockCut& cut, const ModelConfig& config, const Probe* of);
// What is stored of the document from an earlier request.
std::optional<DocumentStats> stored_of(const PromptLayout& layout, AnnexKind kind, const Run& document,
                                       const BlockCut& cut);

}  // namespace kvilt

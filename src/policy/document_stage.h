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

// Documents whose blocks a question chooses from. What an earlier request stored of one is taken; each of the others
// looks at itself in a stage of its own, and these are a plan's first ones.
class StudiedDocuments {
 public:
  // kind: of what is stored. The layout outlives this.
  StudiedDocuments(const PromptLayout& layout, AnnexKind kind, const BlockCut& cut)
      : layout_(layout), kind_(kind), cut_(cut) {}
  void add(const Run& document);

  size_t size() const { return documents_.size(); }
  const Run& operator[](size_t i) const { return documents_[i]; }
  int stages() const { return static_cast<int>(unknown_.size()); }
  void add_stages(const ModelConfig& config, std::vector<Stage>& out) const;
  // Of each document. probes: of all stages(), and maybe more.
  std::vector<DocumentStats> stats(const ModelConfig& config, std::span<const Probe> probes) const;
  // What a stage found; nothing of later ones.
  std::vector<AnnexBlock> findings(const ModelConfig& config, int stage, std::span<const Probe> probes) const;

 private:
  std::optional<DocumentStats> stored_of(const Run& document) const;

  const PromptLayout& layout_;
  const AnnexKind kind_;
  const BlockCut cut_;
  std::vector<Run> documents_;
  std::vector<std::optional<DocumentStats>> stored_;
  std::vector<size_t> unknown_;  // documents of which nothing is stored
};

// The question's mean query, before it meets any key, at these layers.
ProbeSpec query_probe(const Run& question, std::vector<int> layers);

}  // namespace kvilt

// policy/document_stage.h: what methods share that read a question over blocks of documents: where the question is, and a
// stage in which a document looks at itself, whose results are stored with it.
// Idea:       a document's rows run once more over its own cached KV and see nothing before it: nothing is written,
//             and what is found out does not depend on the prompt around it.
// Threads:    pure; any thread.
#pragma once

#include <optional>

#include "policy/policy.h"
#include "policy/samkv_stats.h"

namespace kvilt {

inline constexpr AnnexKind kBlockStats{AnnexOf::kBlockStats, 0}, kBlockMeans{AnnexOf::kBlockMeans, 0};
inline constexpr int kLeastBlock = 8;  // a block's mean key is G E numbers in each layer

// Whether an annex that comes from outside of memory is one that these methods stored of so many tokens.
bool is_sound_annex(const AnnexKind& kind, int32_t tokens, std::span<const std::byte> bytes, const ModelConfig& config);

// Where the question is: from the last mark on, or the last fresh run; its last 256 positions.
std::optional<Run> question_in(const PromptLayout& layout);
// In its place, where there is none: the last position, of a prompt that starts again the last one before its answer.
Run end_of_prompt(const PromptLayout& layout);
// What the last stage computes: all that is new, and from the question on; without one from the end of the prompt on.
Runs rows_of_question(const PromptLayout& layout, const std::optional<Run>& question);

// The pieces, as far as they lie before the question: one may run on into it.
std::vector<Run> documents_before(const PromptLayout& layout, int32_t question);

std::vector<int> all_layers(int L);

// Documents whose blocks a question chooses from. What an earlier request stored of one is taken; each of the others
// looks at itself in a stage of its own, by itself as it is cached, and these are a plan's first ones.
class StudiedDocuments {
 public:
  // kind: of what is stored; of kBlockMeans only LayerStats::block_keys is known. The layout outlives this.
  StudiedDocuments(const PromptLayout& layout, AnnexKind kind, const BlockCut& cut)
      : layout_(layout), kind_(kind), cut_(cut) {}
  void add(const Run& document);

  size_t size() const { return documents_.size(); }
  const Run& operator[](size_t i) const { return documents_[i]; }
  int stages() const { return static_cast<int>(unknown_.size()); }
  void add_stages(const ModelConfig& config, std::vector<Stage>& out) const;
  // Of each document. probes: of all stages(), and maybe more.
  std::vector<DocumentStats> stats(const ModelConfig& config, std::span<const Probe> probes) const;
  // One layer of document i.
  LayerStats layer_of(size_t i, const ModelConfig& config, std::span<const Probe> probes, int layer) const;
  // What a stage found; nothing of later ones.
  std::vector<AnnexBlock> findings(const ModelConfig& config, int stage, std::span<const Probe> probes) const;

 private:
  bool means_only() const { return kind_ == kBlockMeans; }
  size_t probes_of_stage() const { return means_only() ? 1 : 3; }
  Stage stage_of(const Run& document, const ModelConfig& config) const;
  DocumentStats measured(const Run& document, const ModelConfig& config, std::span<const Probe> probes) const;
  LayerStats measured(const Run& document, const ModelConfig& config, std::span<const Probe> probes, int layer) const;
  std::span<const Probe> probes_of(size_t unknown, std::span<const Probe> all) const {
    return all.subspan(unknown * probes_of_stage(), probes_of_stage());
  }

  const PromptLayout& layout_;
  const AnnexKind kind_;
  const BlockCut cut_;
  std::vector<Run> documents_;
  std::vector<std::span<const std::byte>> stored_;  // empty: nothing
  std::vector<size_t> unknown_;                     // documents of which nothing is stored
};

// The question's mean query, before it meets any key, at these layers.
ProbeSpec query_probe(const Run& question, std::vector<int> layers);

}  // namespace kvilt

#include "policy/document_stage.h"

#include <algorithm>
#include <numeric>

namespace kvilt {

namespace {

// Where the local blocks begin; without them, the last token stands for them.
int32_t local_begin(int32_t tokens, const BlockCut& cut) {
  return std::min(tokens - 1, std::max(0, cut.blocks(tokens) - cut.local) * cut.block);
}

}  // namespace

std::optional<Run> question_in(const PromptLayout& layout) {
  constexpr int32_t kLongest = 256;
  const int32_t end = layout.answer >= 0 ? layout.answer : layout.prompt_len;
  const Runs fresh = layout.fresh();
  int32_t begin = end;
  if (layout.question >= 0) {
    begin = layout.question;
  } else if (!fresh.empty() && fresh.back().end == layout.prompt_len) {
    begin = fresh.back().begin;
  }
  if (begin >= end) return {};
  return Run{std::clamp(std::max(begin, end - kLongest), std::min(layout.prefix, end - 1), end - 1), end};
}

Runs rows_of_question(const PromptLayout& layout, const std::optional<Run>& question) {
  const Run end = question ? Run{question->begin, layout.prompt_len} : layout.tail();
  return unite(layout.fresh(), Runs{{std::max(end.begin, std::min(layout.prefix, layout.prompt_len - 1)), end.end}});
}

std::vector<int> all_layers(int L) {
  std::vector<int> out(static_cast<size_t>(L));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

Stage document_stage(const Run& document, const BlockCut& cut, const ModelConfig& config) {
  Stage stage = uniform_stage({}, config.L);
  ProbeSpec queries, keys;
  queries.estimator = Estimator::kQueries;
  queries.rows = {{document.begin + local_begin(document.size(), cut), document.end}};
  keys.rows = {document};
  keys.block = cut.block;
  queries.layers = keys.layers = all_layers(config.L);
  ProbeSpec fade = keys;
  keys.estimator = Estimator::kBlockKeys;
  fade.estimator = Estimator::kFade;
  stage.probes = {queries, keys, fade};
  if (document.begin > 0) stage.unseen.assign(static_cast<size_t>(config.L), Runs{{0, document.begin}});
  return stage;
}

DocumentStats measured(int32_t tokens, const BlockCut& cut, const ModelConfig& config, const Probe* of) {
  const size_t width = config.G * config.E;
  const double local = tokens - local_begin(tokens, cut);
  DocumentStats out{tokens, {}};
  for (int l = 0; l < config.L; ++l) {
    LayerStats& stats = out.layers.emplace_back();
    for (const double q : of[0].sums[l]) stats.local_query.push_back(static_cast<float>(q / local));
    for (const double k : of[1].sums[l]) {
      const auto block = static_cast<int32_t>(stats.block_keys.size() / width);
      stats.block_keys.push_back(static_cast<float>(k / cut.tokens_of(block, tokens).size()));
    }
    stats.attention = attention_stats(of[2].sums[l], cut);
  }
  return out;
}

void StudiedDocuments::add(const Run& document) {
  documents_.push_back(document);
  stored_.push_back(stored_of(document));
  if (!stored_.back()) unknown_.push_back(documents_.size() - 1);
}

std::optional<DocumentStats> StudiedDocuments::stored_of(const Run& document) const {
  for (const AnnexBlock& block : layout_.blocks) {
    if (block.kind == kind_ && block.positions == document) return stats_from(block.bytes, cut_);
  }
  return {};
}

void StudiedDocuments::add_stages(const ModelConfig& config, std::vector<Stage>& out) const {
  for (const size_t i : unknown_) out.push_back(document_stage(documents_[i], cut_, config));
}

std::vector<DocumentStats> StudiedDocuments::stats(const ModelConfig& config, std::span<const Probe> probes) const {
  std::vector<DocumentStats> out;
  const Probe* next = probes.data();
  for (size_t i = 0; i < size(); ++i) {
    out.push_back(stored_[i] ? *stored_[i] : measured(documents_[i].size(), cut_, config, next));
    if (!stored_[i]) next += kProbesOfDocument;
  }
  return out;
}

std::vector<AnnexBlock> StudiedDocuments::findings(const ModelConfig& config, int stage,
                                                   std::span<const Probe> probes) const {
  if (stage >= stages()) return {};
  const Run& document = documents_[unknown_[static_cast<size_t>(stage)]];
  const Probe* of = &probes[static_cast<size_t>(stage) * kProbesOfDocument];
  return {{kind_, document, to_bytes(measured(document.size(), cut_, config, of), cut_)}};
}

ProbeSpec query_probe(const Run& question, std::vector<int> layers) {
  ProbeSpec out;
  out.estimator = Estimator::kQueries;
  out.layers = std::move(layers);
  out.rows = {question};
  return out;
}

}  // namespace kvilt

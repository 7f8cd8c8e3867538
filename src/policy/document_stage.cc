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

bool is_sound_annex(const AnnexKind& kind, int32_t tokens, std::span<const std::byte> bytes,
                    const ModelConfig& config) {
  const int64_t query = config.H * config.E, key = config.G * config.E;
  if (kind == kBlockStats) return are_sound(bytes, {tokens, config.L, query, key});
  return kind == kBlockMeans && are_sound(bytes, {tokens, config.L, 0, key});
}

std::optional<Run> question_in(const PromptLayout& layout) {
  constexpr int32_t kLongest = 256;
  const int32_t end = layout.asked_end();
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

Run end_of_prompt(const PromptLayout& layout) { return {layout.asked_end() - 1, layout.asked_end()}; }

std::vector<Run> documents_before(const PromptLayout& layout, int32_t question) {
  std::vector<Run> out;
  for (const Run& piece : layout.pieces) {
    if (piece.begin < question) out.push_back({piece.begin, std::min(piece.end, question)});
  }
  return out;
}

Runs rows_of_question(const PromptLayout& layout, const std::optional<Run>& question) {
  const Run end{question.value_or(end_of_prompt(layout)).begin, layout.prompt_len};
  return unite(layout.fresh(), Runs{{std::max(end.begin, std::min(layout.prefix, layout.prompt_len - 1)), end.end}});
}

std::vector<int> all_layers(int L) {
  std::vector<int> out(static_cast<size_t>(L));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// Keys are read as they are cached; queries, and how attention fades, are asked for only where somebody reads them: kFade
// is as much attention once more.
Stage StudiedDocuments::stage_of(const Run& document, const ModelConfig& config) const {
  Stage stage = uniform_stage({}, config.L);
  ProbeSpec keys;
  keys.estimator = Estimator::kBlockKeys;
  keys.rows = {document};
  keys.block = cut_.block;
  keys.layers = all_layers(config.L);
  ProbeSpec queries = keys, fade = keys;
  queries.estimator = Estimator::kQueries;
  queries.rows = {{document.begin + local_begin(document.size(), cut_), document.end}};
  fade.estimator = Estimator::kFade;
  stage.probes = {keys};
  if (!means_only()) stage.probes = {keys, queries, fade};
  if (document.begin > 0) stage.unseen.assign(static_cast<size_t>(config.L), Runs{{0, document.begin}});
  return stage;
}

LayerStats StudiedDocuments::measured(const Run& document, const ModelConfig& config, std::span<const Probe> probes,
                                      int layer) const {
  const size_t width = config.G * config.E;
  const int32_t tokens = document.size();
  LayerStats out;
  for (const double k : probes[0].sums[layer]) {
    const auto block = static_cast<int32_t>(out.block_keys.size() / width);
    out.block_keys.push_back(static_cast<float>(k / cut_.tokens_of(block, tokens).size()));
  }
  if (means_only()) return out;
  const double local = tokens - local_begin(tokens, cut_);
  for (const double q : probes[1].sums[layer]) out.local_query.push_back(static_cast<float>(q / local));
  out.attention = attention_stats(probes[2].sums[layer], cut_);
  return out;
}

DocumentStats StudiedDocuments::measured(const Run& document, const ModelConfig& config,
                                         std::span<const Probe> probes) const {
  DocumentStats out{document.size(), {}};
  for (int l = 0; l < config.L; ++l) out.layers.push_back(measured(document, config, probes, l));
  return out;
}

void StudiedDocuments::add(const Run& document) {
  documents_.push_back(document);
  std::span<const std::byte>& stored = stored_.emplace_back();
  for (const AnnexBlock& block : layout_.blocks) {
    if (block.kind != kind_ || !(block.positions == document)) continue;
    if (are_of(block.bytes, cut_)) stored = block.bytes;
    break;
  }
  if (stored.empty()) unknown_.push_back(documents_.size() - 1);
}

void StudiedDocuments::add_stages(const ModelConfig& config, std::vector<Stage>& out) const {
  for (const size_t i : unknown_) out.push_back(stage_of(documents_[i], config));
}

std::vector<DocumentStats> StudiedDocuments::stats(const ModelConfig& config, std::span<const Probe> probes) const {
  std::vector<DocumentStats> out;
  size_t unknown = 0;
  for (size_t i = 0; i < size(); ++i) {
    out.push_back(stored_[i].empty() ? measured(documents_[i], config, probes_of(unknown++, probes))
                                     : stats_from(stored_[i], cut_).value());
  }
  return out;
}

LayerStats StudiedDocuments::layer_of(size_t i, const ModelConfig& config, std::span<const Probe> probes,
                                      int layer) const {
  if (!stored_[i].empty()) return layer_from(stored_[i], layer);
  const auto unknown = static_cast<size_t>(std::ranges::lower_bound(unknown_, i) - unknown_.begin());
  return measured(documents_[i], config, probes_of(unknown, probes), layer);
}

std::vector<AnnexBlock> StudiedDocuments::findings(const ModelConfig& config, int stage,
                                                   std::span<const Probe> probes) const {
  if (stage >= stages()) return {};
  const Run& document = documents_[unknown_[static_cast<size_t>(stage)]];
  const auto of = probes_of(static_cast<size_t>(stage), probes);
  return {{kind_, document, to_bytes(measured(document, config, of), cut_)}};
}

ProbeSpec query_probe(const Run& question, std::vector<int> layers) {
  ProbeSpec out;
  out.estimator = Estimator::kQueries;
  out.layers = std::move(layers);
  out.rows = {question};
  return out;
}

}  // namespace kvilt

#include "forward/selected_keys.h"

#include "base/check.h"
#include "forward/key_masks.h"

namespace kvilt {

SelectedKeys::SelectedKeys(const DecodeRule& rule, const ModelConfig& config, int32_t prompt_len, int32_t prefill_len)
    : rule_(rule),
      config_(config),
      prompt_len_(prompt_len),
      prefill_len_(prefill_len),
      chooser_(make_key_chooser(rule, config, prompt_len, prefill_len)) {
  heads_.resize(static_cast<size_t>(config.L) * static_cast<size_t>(config.G));
  chosen_.resize(static_cast<size_t>(config.L));
}

bool SelectedKeys::chooses_at(LayerRow at) const {
  const int32_t n = at.pos - prompt_len_;
  if (at.layer < rule_.dense_layers || at.pos < prefill_len_ || n < rule_.dense_rows) return false;
  // A request that was preempted starts again in the middle of its answer.
  return rule_.chooses_at(n) || !chosen_[at.layer];
}

ChoiceCost SelectedKeys::choose(const KeySource& from, std::span<const KeyMask> masks, LayerRow at, const float* q) {
  chosen_[at.layer] = 1;
  open_.clear();
  for (int g = 0; g < config_.G; ++g) {
    if (sees_all(masks[g], at.pos)) open_.push_back(g);
  }
  ChoiceCost cost;
  if (open_.empty()) return cost;
  const std::vector<Runs> keys = chooser_->choose(from, at, q, open_, cost);
  CHECK(keys.size() == open_.size());
  for (size_t i = 0; i < open_.size(); ++i) {
    Head& head = heads_[at.layer * config_.G + open_[i]];
    head.chosen = true;
    head.keys.clear();
    for (const Run& run : keys[i]) head.keys.append(from.kv, at.layer, open_[i], run);
    head.until = at.pos;
  }
  return cost;
}

const SelectedKeys::Seen* SelectedKeys::seen(const PageTable& kv, const KeyMask& mask, LayerRow at, int head) {
  Head& of = heads_[at.layer * config_.G + head];
  if (!of.chosen || !sees_all(mask, at.pos)) return nullptr;
  if (of.until <= at.pos) of.keys.append(kv, at.layer, head, {of.until, at.pos + 1});
  of.until = at.pos + 1;
  of.row = of.keys.size() - 1;
  of.seen = {of.keys.spans(), {&of.row, 1}};
  return &of.seen;
}

ChoiceCost SelectedKeys::attended(const KeySource& from, AttendedQueries rows) {
  seen_.assign(static_cast<size_t>(config_.G), nullptr);
  for (int g = 0; g < config_.G; ++g) {
    const Head& head = heads_[rows.layer * config_.G + g];
    if (head.chosen && sees_all(rows.masks[g], rows.pos.front())) seen_[g] = &head.keys;
  }
  rows.seen = seen_;
  return chooser_->attended(from, rows);
}

}  // namespace kvilt

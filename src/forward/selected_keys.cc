#include "forward/selected_keys.h"

#include <algorithm>
#include <utility>

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
  at.pos = prompt_len_ + rule_.chooses_as(at.pos - prompt_len_);
  const std::vector<Runs> keys = chooser_->choose(from, at, q, open_, cost);
  CHECK(keys.size() == open_.size());
  const auto take = [&](int64_t i, int) {
    Head& head = heads_[at.layer * config_.G + open_[i]];
    head.chosen = true;
    head.keys.replace(from.kv, at.layer, open_[i], keys[i]);
    head.until = at.pos;
  };
  // Single keys from all over a text are some 700 runs a head; Quest's pages are 30 to 64, of which a new one takes 80 ns
  // to find. A loop costs 2 us.
  constexpr size_t kManyRuns = 32;
  size_t runs = 0;
  for (const Runs& of : keys) runs += of.size();
  if (runs >= kManyRuns) {
    from.kv.prepare_reads(at.layer);
    from.pool.parallel_for(std::ssize(open_), take);
  } else {
    for (int64_t i = 0; i < std::ssize(open_); ++i) take(i, 0);
  }
  return cost;
}

const SelectedKeys::Seen* SelectedKeys::seen(const PageTable& kv, const KeyMask& mask, LayerRow at, int head) {
  Head& of = heads_[at.layer * config_.G + head];
  of.mask = mask;
  if (!of.chosen || !sees_all(mask, at.pos)) return nullptr;
  const Run more{of.until, at.pos + 1};
  if (more.begin < more.end) of.keys.append(kv, at.layer, head, {&more, 1});
  of.until = at.pos + 1;
  of.row = of.keys.size() - 1;
  const bool moved = rule_.at_ranks && of.row < at.pos;
  of.seen = {moved ? at_ranks(kv, at, of) : of.keys.spans(), {&of.row, 1}};
  return &of.seen;
}

// The keys of the row at at.pos, each turned to where it stands.
std::span<const KvSpan> SelectedKeys::at_ranks(const PageTable& kv, LayerRow at, Head& of) {
  if (std::exchange(angles_at_, at.pos) != at.pos) angles_.clear();
  of.turned.clear();
  const int64_t row_bytes = kv.shape().row_bytes();
  auto run = of.keys.positions().begin();
  int32_t rank = 0;  // of the run's first key
  for (const KvSpan& span : of.keys.spans()) {
    for (int32_t done = 0; done < span.count;) {
      while (rank + run->size() <= span.pos + done) rank += run++->size();
      const int32_t here = std::min(span.count - done, rank + run->size() - span.pos - done);
      const int32_t by = at.pos - of.row - (run->begin - rank);
      of.turned.push_back({static_cast<const std::byte*>(span.k) + done * row_bytes,
                           static_cast<const std::byte*>(span.v) + done * row_bytes,
                           turned(kv, at.layer, span.rotation, by), span.pos + done, here});
      done += here;
    }
  }
  return of.turned;
}

// One for all heads and layers, so that kernels turn a query once.
const float* SelectedKeys::turned(const PageTable& kv, int layer, const float* from, int32_t by) {
  if (by == 0) return from;
  const LayerRopes ropes = kv.ropes();
  const int kind = ropes.kind(layer);
  for (const Angle& angle : angles_) {
    if (angle.from == from && angle.kind == kind && angle.by == by) return angle.angles.data();
  }
  std::vector<float> angles = rotation(ropes.of_kind(kind), by);
  const size_t half = angles.size() / 2;
  for (size_t i = 0; from && i < half; ++i) {
    const double c = angles[i], s = angles[half + i], c0 = from[i], s0 = from[half + i];
    angles[i] = static_cast<float>(c * c0 - s * s0);
    angles[half + i] = static_cast<float>(s * c0 + c * s0);
  }
  return angles_.emplace_back(Angle{from, kind, by, std::move(angles)}).angles.data();
}

// Of the keys before `next`, those that rows from there on see.
Runs SelectedKeys::Head::kept(int32_t next) const {
  if (chosen) return keys.positions();
  const int32_t low = mask.reach < 0 ? 0 : std::max(0, next - mask.reach);
  if (mask.window < 0 || next >= mask.dense_from) return normalize({{low, next}});
  return normalize({{low, std::min(mask.sink, next)}, {std::max(low, next - mask.window), next}});
}

int64_t SelectedKeys::Head::keeps(int32_t next) const { return chosen ? keys.size() : count(kept(next)); }

// Head i's keys lie elsewhere now. Returns the bytes of that.
double SelectedKeys::moved(const PageTable& kv, int i) {
  Head& head = heads_[i];
  const int layer = i / config_.G, g = i % config_.G;
  if (head.chosen) {  // asked for anew: replace() would leave them where they were
    const Runs positions = head.keys.positions();
    head.keys.clear();
    head.keys.append(kv, layer, g, positions);
  }
  return 4.0 * kv.slots_of(layer, g) * static_cast<double>(kv.shape().row_bytes());
}

double SelectedKeys::evict(PageTable& kv, int32_t next, FunctionRef<bool(int64_t pages)> make_room) {
  if (!config_.kv_readers.empty()) return 0;  // each reader chooses for itself
  if (!rule_.evict || std::ranges::find(chosen_, 1) == chosen_.end()) return 0;
  return kv.compacted() ? evict_more(kv, next) : evict_first(kv, next, make_room);
}

double SelectedKeys::evict_first(PageTable& kv, int32_t next, FunctionRef<bool(int64_t pages)> make_room) {
  const int64_t P = kv.shape().P, all = (next + P - 1) / P;
  const auto frees = [&](const Head& head) { return (head.keeps(next) + P - 1) / P < all; };
  if (std::ranges::none_of(heads_, frees)) return 0;
  std::vector<Runs> kept;
  for (const Head& head : heads_) kept.push_back(head.kept(next));
  if (!make_room(kv.pages_to_compact(kept))) return 0;
  kv.compact(kept);
  double bytes = 0;
  for (int i = 0; i < static_cast<int>(heads_.size()); ++i) bytes += moved(kv, i);
  return bytes;
}

// A head's keys move again when a page's worth of its slots is dead.
double SelectedKeys::evict_more(PageTable& kv, int32_t next) {
  double bytes = 0;
  for (int i = 0; i < static_cast<int>(heads_.size()); ++i) {
    const int layer = i / config_.G, g = i % config_.G;
    if (kv.slots_of(layer, g) - heads_[i].keeps(next) < kv.shape().P) continue;
    kv.compact(layer, g, heads_[i].kept(next));
    bytes += moved(kv, i);
  }
  return bytes;
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

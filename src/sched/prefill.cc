#include "sched/prefill.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"

namespace kvilt {
namespace {

// What both write, as PageTable takes it.
Prefill::Writes together(const Prefill::Writes& a, const Prefill::Writes& b) {
  Prefill::Writes out;
  std::map<std::pair<uint16_t, uint16_t>, uint16_t> known;
  for (size_t l = 0; l < a.write.size(); ++l) {
    const auto [it, fresh] = known.try_emplace({a.write[l], b.write[l]}, static_cast<uint16_t>(out.sets.size()));
    if (fresh) out.sets.push_back(unite(a.sets[a.write[l]], b.sets[b.write[l]]));
    out.write.push_back(it->second);
  }
  return out;
}

}  // namespace

Prefill::Prefill(const ReusePolicy& policy, const PromptLayout& layout, const ModelConfig& config, int last_rows)
    : policy_(policy),
      layout_(layout),
      config_(config),
      final_rows_{{std::clamp(layout.prompt_len - std::max(1, last_rows), layout.prefix, layout.prompt_len - 1),
                   layout.prompt_len}},
      plan_(policy.plan(layout, config)),
      layers_there_(config.L) {
  plan_.decode = policy.decode_rule();
  layout_.dense = !plan_.sparse;
  if (policy.answer_sees_less()) {  // another row might be among the keys that nobody sees
    const Runs& computed = plan_.stages.back().write_at(config.L - 1);
    final_rows_ = intersect(final_rows_, Runs{computed.back()});
  }
  for (const AnnexKind& kind : plan_.keep) kept_.push_back({kind, {}});
  enter_stage(0);
}

void Prefill::enter_stage(size_t stage) {
  stage_ = stage;
  guessing_ = false;
  guessed_.clear();
  first_probe_ = probes_.size();
  for (const ProbeSpec& spec : plan_.stages[stage].probes) {
    probes_.push_back(empty_probe(spec, config_, plan_.prompt_len));
  }
  enter_band(0);
}

bool Prefill::goes_by_layers() const {
  const Stage& of = plan_.stages[0];
  const bool plain = of.layer_end == config_.L && of.cuts.empty() && of.probes.empty() && of.entries.empty() &&
                     !of.carry && !of.ffn && !of.fate && of.ahead == 0;
  return plain && plan_.stages.size() == 1 && kept_.empty() && !plan_.sparse && !plan_.decode && !plan_.narrowed() &&
         layout_.pieces.empty();
}

// Where the band has not begun, it ends anew.
void Prefill::layers_there(int layers) {
  by_layers_ = true;
  if (std::exchange(layers_there_, layers) != layers && at_band_start() && !has_slots_) enter_band(band_.layer_begin);
}

// Without a layer of its own the band waits for the next one.
void Prefill::cut_at_last_layer(int layer_begin) {
  std::vector<int>& cuts = plan_.stages[stage_].cuts;
  std::erase_if(cuts, [&](int cut) { return cut > layer_begin; });
  if (const int cut = std::max(layers_there_, layer_begin + 1); cut < config_.L) cuts.push_back(cut);
}

// A rule that looks with the last rows has all of them, wherever their K and V come from: else its choice would depend
// on what happens to be cached. One that looks with all rows leaves those of placed pieces out, where they are not
// computed anyway: with them no piece would save anything.
Runs Prefill::lookers() const {
  if (!plan_.decode) return {};
  const Runs all = plan_.decode->looking(layout_.asked_end(), plan_.prompt_len);
  if (plan_.decode->by != DecodeRule::By::kAllRows) return all;
  return subtract(all, subtract(layout_.reused(), stage().write_at(config_.L - 1)));
}

int64_t Prefill::looks_again() const {
  const Stage& last = plan_.stages.back();
  return count(subtract(last.lookers, last.write_at(config_.L - 1)));
}

void Prefill::enter_band(int layer_begin) {
  if (by_layers_) cut_at_last_layer(layer_begin);
  const bool last_stage = stage_ + 1 == plan_.stages.size();
  if (last_stage) plan_.stages[stage_].lookers = lookers();
  const Runs leaving = last_stage ? final_rows_ : stage().ahead > 0 ? Runs{layout_.tail()} : Runs{};
  band_ = next_band(stage(), layer_begin, config_.L, leaving);
  next_pos_ = 0;
  if (layer_begin == 0) carry_ = {};
  CHECK(!entering().empty());
  band_rows_left_ = count(entering());
  rows_after_band_ = band_.last ? 0 : expected_rows(stage(), band_.layer_end);
  for (size_t i = stage_ + 1; i < plan_.stages.size(); ++i) rows_after_band_ += expected_rows(plan_.stages[i], 0);
}

// The rows that the stage has guessed: a band of as many as there can be, one row a chunk.
void Prefill::enter_ahead() {
  const Stage& looks = plan_.stages[stage_];
  const Run rows{plan_.prompt_len, plan_.prompt_len + looks.ahead};
  ahead_ = uniform_stage(Runs{rows}, config_.L);
  ahead_.probes = looks.probes;
  for (ProbeSpec& probe : ahead_.probes) probe.rows = {rows};
  guessing_ = true;
  band_ = next_band(ahead_, 0, config_.L, Runs{rows});
  next_pos_ = rows.begin;
  band_rows_left_ = rows.size();
}

bool Prefill::guesses_after(Run chunk) const {
  if (guessing_) return chunk.end < plan_.prompt_len + plan_.stages[stage_].ahead;
  return stage().ahead > 0 && chunk.end == plan_.prompt_len;
}

// After a chunk: whether the next one is of a row that was guessed.
bool Prefill::guesses_next() {
  const int32_t next = plan_.prompt_len + static_cast<int32_t>(guessed_.size());
  if (guessing_) return next_pos_ < next;
  if (guessed_.empty() || next_pos_ < entering().back().end) return false;
  enter_ahead();
  return true;
}

// Rows of the stage's bands from layer_begin on, of which the sets may still be to be chosen: they are whole then.
int64_t Prefill::expected_rows(const Stage& of, int layer_begin) const {
  Runs rows;
  for (const Runs& set : of.sets) rows = unite(rows, set);
  const int64_t all = count(rows), reused = count(intersect(rows, layout_.reused()));
  const auto chosen = all - reused + static_cast<int64_t>(std::ceil(static_cast<double>(reused) * of.expected));
  int64_t sum = 0;
  // A stage's first band is not chosen by its own cuts; what follows a cut is.
  if (layer_begin == 0) sum += (of.cuts.empty() ? chosen : all) + of.ahead;
  for (const int cut : of.cuts) {
    if (cut >= std::max(layer_begin, 1) && cut < of.layer_end) sum += chosen;
  }
  return sum;
}

Prefill::Writes Prefill::writes() const {
  const int first = band_.layer_begin + (band_.layer_begin > 0 ? 1 : 0);  // a cut's own layer was written before it
  return writes_of(stage(), first, band_.layer_end + (band_.cut ? 1 : 0));
}

Prefill::Writes Prefill::writes_of(const Stage& of) const {
  const bool cut_at_end = !of.cuts.empty() && of.cuts.back() == of.layer_end;
  return writes_of(of, 0, of.layer_end + (cut_at_end ? 1 : 0));
}

Prefill::Writes Prefill::writes_of(const Stage& of, int layer_begin, int layer_end) const {
  Writes out;
  out.sets = of.sets;
  const auto none = static_cast<uint16_t>(out.sets.size());
  out.sets.emplace_back();
  out.write.assign(static_cast<size_t>(config_.L), none);
  for (int l = layer_begin; l < layer_end; ++l) out.write[l] = of.write[l];
  if (of.carry) {  // the neighbours that take a change over get private copies
    for (Runs& set : out.sets) {
      Runs mended;
      for (const CarryGroup& group : of.carry->groups) {
        const Runs positions = group.positions();
        if (!intersect(set, positions).empty()) mended = unite(mended, positions);
      }
      set = unite(set, mended);
    }
  }
  if (of.ahead > 0) {
    const Run rows{plan_.prompt_len, plan_.prompt_len + of.ahead};
    for (Runs& set : out.sets) set = unite(set, Runs{rows});
  }
  return out;
}

// Sets are at their largest until refine() has chosen, and stages whose writes are kept add up. The slots that a table
// has now can only be more than a later stage finds when writes before it are forgotten: what it adds to them is enough.
int64_t Prefill::pages_to_come(const PageTable& kv) const {
  int64_t most = 0;
  Writes sum;
  for (size_t i = stage_; i < plan_.stages.size(); ++i) {
    const bool anew = i == stage_ || plan_.stages[i - 1].discard;
    sum = anew ? writes_of(plan_.stages[i]) : together(sum, writes_of(plan_.stages[i]));
    most = std::max(most, kv.pages_for(sum.sets, sum.write));
  }
  return most;
}

int64_t Prefill::hidden_bytes() const {
  int64_t rows = 0;
  for (const Stage& of : plan_.stages) {
    if (of.cuts.empty() || of.cuts.front() >= of.layer_end) continue;
    rows = std::max(rows, count(next_band(of, 0, config_.L, {}).cut_rows));
  }
  for (const KeptRows& kept : kept_) rows += count(rows_kept(kept));
  return rows * config_.D * static_cast<int64_t>(sizeof(float));
}

int64_t Prefill::probe_bytes() const {
  int64_t bytes = 0;
  for (const Stage& of : plan_.stages) {
    for (const ProbeSpec& spec : of.probes) bytes += kvilt::probe_bytes(spec, config_);
  }
  return bytes;
}

void Prefill::keep_for_means(AnnexKind kind, Runs positions) {
  CHECK(kept_.size() == plan_.keep.size() && stage_ == 0 && at_band_start());
  kept_.push_back({kind, {}});
  for_means_ = std::move(positions);
}

Runs Prefill::rows_kept(const KeptRows& kept) const {
  const Runs& written = plan_.stages.back().write_at(kept.kind.layer);
  const bool of_plan = &kept < kept_.data() + plan_.keep.size();
  return of_plan ? written : intersect(written, for_means_);
}

void Prefill::start_keeping() {
  const int first = band_.layer_begin + (band_.layer_begin > 0 ? 1 : 0);
  for (KeptRows& kept : kept()) {
    const int layer = kept.kind.layer;
    if (layer >= first && layer < layers_written().end) kept.rows.reset(rows_kept(kept), config_.D);
  }
}

Run Prefill::next_chunk(int max_rows) const {
  CHECK(!done_ && max_rows >= 1);
  int64_t left = guessing_ ? 1 : max_rows;
  Run chunk{-1, -1};
  for (const Run& run : entering()) {
    if (run.end <= next_pos_) continue;
    const int32_t begin = std::max(run.begin, next_pos_);
    if (chunk.begin < 0) chunk.begin = begin;
    chunk.end = static_cast<int32_t>(std::min<int64_t>(run.end, begin + left));
    left -= chunk.end - begin;
    if (left == 0) break;
  }
  CHECK(chunk.begin >= 0);
  return whole_groups(chunk);
}

// The group of positions around `pos` whose rows are needed at once, if any: a carry's, or an ffn rule's block.
std::optional<Run> Prefill::group_of(int32_t pos) const {
  static_assert(kSparseBlock == kFfnBlock);
  if (!guessing_ && (stage().ffn || plan_.sparse)) {
    const int32_t begin = pos / kFfnBlock * kFfnBlock;
    return Run{begin, std::min(begin + kFfnBlock, plan_.prompt_len)};
  }
  if (!stage().carry) return {};
  const auto& groups = stage().carry->groups;
  const auto group = std::upper_bound(groups.begin(), groups.end(), pos,
                                      [](int32_t p, const CarryGroup& g) { return p < g.range().end; });
  if (group == groups.end() || group->range().begin > pos) return {};
  return group->range();
}

// A chunk that ends inside a group ends before it, or takes all of it.
Run Prefill::whole_groups(Run chunk) const {
  const std::optional<Run> group = group_of(chunk.end - 1);
  if (!group || chunk.end >= group->end) return chunk;
  if (intersect(entering(), Runs{{chunk.end, group->end}}).empty()) return chunk;
  const bool rows_before = group->begin > chunk.begin;  // chunk.begin is a row
  return {chunk.begin, rows_before ? group->begin : group->end};
}

int64_t Prefill::rows_in(Run range) const { return count(intersect(entering(), Runs{range})); }

int64_t Prefill::logit_rows(Run chunk) const {
  if (guesses_after(chunk)) return 1;
  const bool ends = stage_ + 1 == plan_.stages.size() && band_.last;
  return ends ? count(intersect(final_rows_, Runs{chunk})) : 0;
}

void Prefill::advance(Run chunk) {
  CHECK(!done_ && chunk.begin >= next_pos_);
  next_pos_ = chunk.end;
  band_rows_left_ -= rows_in(chunk);
  if (guesses_next() || (!guessing_ && next_pos_ < entering().back().end)) return;
  has_slots_ = false;
  guessing_ = false;
  if (!by_layers_ && (band_.cut || (band_.last && !stage().probes.empty() && stage().cuts.empty()))) {
    policy_.refine(layout_, config_, static_cast<int>(stage_), probes_, plan_);
    findings_ = policy_.findings(layout_, config_, static_cast<int>(stage_), probes_);
    DCHECK(validate(plan_, config_, unite(Runs{{0, layout_.prefix + 1}}, layout_.reused())).ok());
  }
  if (!band_.last) {
    enter_band(band_.layer_end);
  } else if (stage_ + 1 < plan_.stages.size()) {
    restart_ = stage().discard;
    guesses_over_ = !restart_ && stage().ahead > 0;
    enter_stage(stage_ + 1);
  } else {
    done_ = true;
  }
}

std::vector<HeadKeep> Prefill::keeps() const {
  const bool open =
      stage_ + 1 < plan_.stages.size() || !band_.last || (!stage().probes.empty() && stage().cuts.empty());
  if (open && !done_) return {};
  std::vector<HeadKeep> out;
  for (int i = 0; i < config_.L * config_.G; ++i) {
    const View& view = plan_.views[plan_.head_view.empty() ? 0 : plan_.head_view[i]];
    const HeadKeep keep = view.dense_last_rows > 0 ? HeadKeep{} : HeadKeep{view};
    const int layer = i / config_.G;
    if (config_.writes_kv(layer)) {
      out.push_back(keep);
    } else {  // what any of its readers sees
      HeadKeep& of = out[config_.kv_layer(layer) * config_.G + i % config_.G];
      of = of.all() || keep.all() ? HeadKeep{}
                                  : HeadKeep{std::max(of.sink, keep.sink), std::max(of.window, keep.window)};
    }
  }
  return out;
}

Run Prefill::written_by(Run chunk) const {
  if (!stage().carry) return chunk;
  Run out = chunk;
  for (const CarryGroup& group : stage().carry->groups) {
    const Run range = group.range();
    if (range.begin >= chunk.end || range.end <= chunk.begin) continue;
    out = {std::min(out.begin, range.begin), std::max(out.end, range.end)};
  }
  return out;
}

// Only the last stage's rows are the last ones: a later stage starts again from the first row.
LayerRange Prefill::layers_passed() const {
  if (stage_ + 1 < plan_.stages.size()) return {};
  return {band_.layer_begin, band_.layer_end};
}

int32_t Prefill::passed_by(Run chunk) const {
  if (!stage().carry) return chunk.end;
  int32_t next = chunk.end;
  for (const CarryGroup& group : stage().carry->groups) {
    const Run range = group.range();
    if (range.begin < chunk.end && chunk.end < range.end) next = std::min(next, range.begin);
  }
  return next;
}

int32_t Prefill::settled() const {
  const bool plain = plan_.stages.size() == 1 && stage().cuts.empty() && !stage().carry && !stage().ffn &&
                     layout_.dense && layout_.pieces.empty();
  return plain ? std::max(next_pos_, layout_.prefix) : layout_.prefix;
}

Runs Prefill::recomputed() const {
  Runs written = plan_.stages.back().write_at(config_.L - 1);
  for (size_t i = 0; i + 1 < plan_.stages.size(); ++i) {
    const Stage& of = plan_.stages[i];
    if (of.layer_end == config_.L) written = of.discard ? written : unite(written, of.write_at(config_.L - 1));
  }
  return intersect(layout_.reused(), written);
}

double Prefill::kept_share() const {
  const Runs reused = layout_.reused();
  const auto all = static_cast<double>(count(reused)) * config_.L;
  double unseen = 0;
  for (const Runs& runs : plan_.stages.back().unseen) unseen += static_cast<double>(count(intersect(runs, reused)));
  return all > 0 ? 1 - unseen / all : 1;
}

}  // namespace kvilt

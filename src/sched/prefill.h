// sched/prefill.h: how far a request has come in its plan (stage, band, chunk), and what one band hands to the next.
// The scheduler's unit of work is a chunk of a band.
// Invariants: rows of a band are taken in increasing position, each once; refine() is called after the last of them.
// Threads:    the engine thread.
// Not here:   which requests run (scheduler.h), the computing (forward/).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "forward/carry.h"
#include "forward/hidden_rows.h"
#include "kv/page_table.h"
#include "plan/plan.h"
#include "policy/policy.h"

namespace kvilt {

class Prefill {
 public:
  // policy and config must outlive it. REQUIRES: the policy's plan is valid for the layout.
  // last_rows: of how many of the prompt's last positions the logits are wanted; those of the exact prefix have none,
  // and where the answer sees less than all, only those have that the plan computes.
  Prefill(const ReusePolicy& policy, const PromptLayout& layout, const ModelConfig& config, int last_rows = 1);

  bool done() const { return done_; }
  const Plan& plan() const { return plan_; }
  const PromptLayout& layout() const { return layout_; }
  const Stage& stage() const { return guessing_ ? ahead_ : plan_.stages[stage_]; }
  const Band& band() const { return band_; }
  std::span<Probe> probes() { return std::span(probes_).subspan(first_probe_); }  // of this stage

  // What the current band writes, as PageTable::add takes it: sets, and per layer an index into them.
  struct Writes {
    std::vector<Runs> sets;
    std::vector<uint16_t> write;
  };
  Writes writes() const;
  // What the rest of the plan asks for, whatever refine() chooses: pages beyond those that `kv` has now, and bytes of
  // hidden states outside of the pool. probe_bytes(): the same of what all of its probes find, which is kept to the end.
  int64_t pages_to_come(const PageTable& kv) const;
  int64_t hidden_bytes() const;
  int64_t probe_bytes() const;
  // Whether the band's positions have their slots: false again at the start of every band.
  bool has_slots() const { return has_slots_; }
  void slots_added() { has_slots_ = true; }

  // The next chunk: positions [begin, end) that hold at most max_rows (>= 1) rows of the band, or all of one group of a
  // carry or one block of an ffn rule (512 positions at most), which are never cut.
  Run next_chunk(int max_rows) const;
  int64_t rows_in(Run range) const;
  // Rows that are still to run as the steps' budgets count them: of the band exactly; where refine() has yet to choose,
  // as many as Stage::expected says.
  int64_t band_rows_left() const { return band_rows_left_; }
  int64_t rows_left() const { return band_rows_left_ + rows_after_band_; }
  // KV of the exact prefix that comes layer by layer: whether the plan can be cut anywhere, which is asked before the
  // first layers_there(); how many layers have theirs now; and whether those of the band do. A band ends at the last of
  // them, as at a cut of which no policy hears.
  bool goes_by_layers() const;
  void layers_there(int layers);
  bool can_run() const { return band_.layer_end <= layers_there_; }
  // No chunk of the band was computed yet.
  bool at_band_start() const { return next_pos_ <= entering().front().begin; }
  // The chunk's rows whose logits are wanted: they leave the last layer.
  int64_t logit_rows(Run chunk) const;
  // Whether these are rows of the prompt's final pass.
  bool is_final(Run chunk) const { return !guesses_after(chunk) && logit_rows(chunk) > 0; }

  // Tokens ahead (Stage::ahead). Whether the chunk's last row tells the next of them: guess() takes it then, before
  // advance(), and an end token is not given. guessed(): those so far; their rows are at T, T + 1, ...
  bool guesses_after(Run chunk) const;
  void guess(int32_t id) { guessed_.push_back(id); }
  bool guessing() const { return guessing_; }
  std::span<const int32_t> guessed() const { return guessed_; }

  // What the driver keeps between bands and layers (forward/driver.h, Chunk).
  HiddenRows& hidden() { return hidden_; }
  // What the plan keeps, of the last stage; before it none. start_keeping(): the states of the band's rows get their
  // memory. Called at the band's start.
  std::span<KeptRows> kept() { return stage_ + 1 == plan_.stages.size() ? std::span(kept_) : std::span<KeptRows>(); }
  void start_keeping();
  // One more kind, which the plan does not name, of these positions: of a request that makes means. Called before
  // anything is computed.
  void keep_for_means(AnnexKind kind, Runs positions);
  std::span<KeptRows> kept_by_plan() { return kept().first(kept().empty() ? 0 : plan_.keep.size()); }
  KeptRows* kept_for_means() { return kept().size() > plan_.keep.size() ? &kept_.back() : nullptr; }
  CarryState& carry() { return carry_; }  // of this stage

  // What each KV head must keep (PageTable::keep): everything while refine() may still change the plan, then what its
  // view shows to the rows to come. A view with dense last rows keeps everything.
  std::vector<HeadKeep> keeps() const;
  // What a chunk writes: layers, and positions with the groups of a carry that it mends.
  LayerRange layers_written() const { return {band_.layer_begin, band_.layer_end + (band_.cut ? 1 : 0)}; }
  Run written_by(Run chunk) const;
  // After the chunk, no row below passed_by() looks at these layers again.
  LayerRange layers_passed() const;
  int32_t passed_by(Run chunk) const;

  // Positions before it have their final KV at all layers, if nothing is approximate there: what can be published of a
  // prefill that is broken off. The prefix's length where the plan has several stages or cuts.
  int32_t settled() const;

  // True right after a stage whose writes are to be forgotten (plan.h, Stage::discard); asking clears it.
  bool take_restart() { return std::exchange(restart_, false); }
  // True right after a stage that had slots for guessed tokens, if its other writes stand: these slots, of the positions
  // from T on, are the last ones that were handed out, and go back before a later stage is given more. Asking clears it.
  bool take_guesses_over() { return std::exchange(guesses_over_, false); }

  // What the policy found out since it was asked last, to be stored.
  std::vector<AnnexBlock> take_findings() { return std::exchange(findings_, {}); }

  // The chunk was computed. Where it ends a band, the next band needs its slots.
  void advance(Run chunk);

  // Of the reused positions, those that a stage wrote again at its last layer, the last one or one whose writes stand.
  Runs recomputed() const;
  // Rows that run only for a decode rule to look with their queries: their K and V are there.
  int64_t looks_again() const;
  // Of the reused positions' keys, all layers together, the share that the answer's rows see.
  double kept_share() const;

 private:
  Runs rows_kept(const KeptRows& kept) const;
  std::optional<Run> group_of(int32_t pos) const;
  Run whole_groups(Run chunk) const;
  const Runs& entering() const { return band_.rows; }
  Runs lookers() const;
  void enter_stage(size_t stage);
  void enter_band(int layer_begin);
  void cut_at_last_layer(int layer_begin);
  void enter_ahead();
  bool guesses_next();
  Writes writes_of(const Stage& stage, int layer_begin, int layer_end) const;
  Writes writes_of(const Stage& stage) const;
  int64_t expected_rows(const Stage& stage, int layer_begin) const;

  const ReusePolicy& policy_;
  PromptLayout layout_;
  const ModelConfig& config_;
  Runs final_rows_;
  Plan plan_;
  size_t stage_ = 0;
  Band band_;
  int32_t next_pos_ = 0;
  int64_t band_rows_left_ = 0, rows_after_band_ = 0;
  HiddenRows hidden_;
  std::vector<KeptRows> kept_;  // one per Plan::keep
  CarryState carry_;
  std::vector<AnnexBlock> findings_;
  Stage ahead_;                   // of the rows that are guessed, while they run
  std::vector<int32_t> guessed_;  // of this stage
  Runs for_means_;                // positions of keep_for_means()
  bool guessing_ = false;
  std::vector<Probe> probes_;  // of the stages so far, in order
  size_t first_probe_ = 0;     // of this stage
  int layers_there_ = 0;
  bool by_layers_ = false;  // its cuts are those of layers_there()
  bool has_slots_ = false;
  bool done_ = false;
  bool restart_ = false;
  bool guesses_over_ = false;
};

}  // namespace kvilt

// forward/selected_keys.h: the keys that the rows of one sequence's answer see, by (layer, KV head), where its plan has a
// decode rule (plan/decode_rule.h).
// Role:       AttendPass asks it for a decode row's keys, and tells it of the rows that have attended.
// Idea:       chosen keys are read where they lie, by their rank (ranked_keys.h): a set of all keys is the dense step.
//             A rule that evicts lets go of the others once a row is done, as soon as that frees a page.
//             Where keys stand at their ranks (DecodeRule::at_ranks), RoPE asks for distances only: a row at pos whose
//             rank is n stays as it is, and a key at p of rank r is turned forward by (pos - n) - (p - r). For nearest
//             keys that is 0, so only the sink is turned: it stands right before them.
// Invariants: heads that a view or the model's window narrows keep to that.
// Threads:    the engine thread; kernels run on the pool, and heads find there what they chose.
// Cost:       the ranked keys, and what the rule's chooser keeps.
// Not here:   who looks (key_chooser.h), the choice of given scores (plan/), who says which rule (policy/).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "forward/key_chooser.h"
#include "forward/ranked_keys.h"
#include "kv/page_table.h"
#include "plan/plan.h"

namespace kvilt {

class SelectedKeys {
 public:
  // As make_key_chooser() takes them.
  SelectedKeys(const DecodeRule& rule, const ModelConfig& config, int32_t prompt_len, int32_t prefill_len);

  const DecodeRule& rule() const { return rule_; }

  // The row at `pos` of the answer chooses before it attends.
  bool chooses_at(LayerRow at) const;
  // Chooses among the positions before the row, for the heads of the layer that see all. masks: by head; q: the row's,
  // H x E, rotated.
  ChoiceCost choose(const KeySource& from, std::span<const KeyMask> masks, LayerRow at, const float* q);

  // The keys of a decode row and its rank among them; they live until the next call for this layer and head. Null: the
  // head sees what its view shows. REQUIRES: each row of the answer asks, in order.
  struct Seen {
    std::span<const KvSpan> spans;
    std::span<const int32_t> row;  // one
  };
  const Seen* seen(const PageTable& kv, const KeyMask& mask, LayerRow at, int head);

  // Rows of the last stage, or of the answer, have attended: a later choice may look with them. rows.seen is set here.
  ChoiceCost attended(const KeySource& from, AttendedQueries rows);
  bool wants(int32_t pos) const { return chooser_->wants(pos); }

  // The row before `next` is done at all layers. Of a rule that evicts: the table lets go of what no later row sees, if
  // a choice was made, that frees pages, and make_room() has those that it takes; else after a later row. Returns the
  // bytes that were moved; 0: nothing was.
  double evict(PageTable& kv, int32_t next, FunctionRef<bool(int64_t pages)> make_room);

 private:
  struct Head {
    bool chosen = false;  // it keeps to a choice; never where a view or a window narrows it
    RankedKeys keys;
    int32_t until = 0, row = 0;  // they are of the positions before `until`
    KeyMask mask;                // of the last row
    std::vector<KvSpan> turned;  // the keys where they stand at their ranks
    Seen seen;
    int64_t keeps(int32_t next) const;
    Runs kept(int32_t next) const;
  };
  struct Angle {  // `from` turned by `by` more
    const float* from;
    int kind;
    int32_t by;
    std::vector<float> angles;
  };
  std::span<const KvSpan> at_ranks(const PageTable& kv, LayerRow at, Head& of);
  const float* turned(const PageTable& kv, int layer, const float* from, int32_t by);
  double evict_first(PageTable& kv, int32_t next, FunctionRef<bool(int64_t pages)> make_room);
  double evict_more(PageTable& kv, int32_t next);
  double moved(const PageTable& kv, int i);
  const DecodeRule rule_;
  const ModelConfig& config_;
  const int32_t prompt_len_, prefill_len_;
  const std::unique_ptr<KeyChooser> chooser_;
  std::vector<Head> heads_;      // layer * G + head
  std::vector<uint8_t> chosen_;  // by layer: a row has chosen
  std::vector<int> open_;        // heads of the layer that see all
  std::vector<const RankedKeys*> seen_;
  std::deque<Angle> angles_;  // of the row at angles_at_
  int32_t angles_at_ = -1;
};

}  // namespace kvilt

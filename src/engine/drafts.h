// engine/drafts.h: drafts from the quilt: what may follow each answer's last token, so that a step verifies several
// tokens at once. docs/design/drafts.md.
// Idea:       rows are computed alike whatever is beside them, so the logits behind a right draft are those of a step of
//             its own, bit for bit: an answer's text is the same with and without, at every temperature.
// Threads:    the engine thread.
// Not here:   verifying (progress.cc), slots and rows (sched/scheduler.cc).
#pragma once

#include <memory>
#include <span>
#include <unordered_map>

#include "engine/draft_finder.h"
#include "engine/draft_length.h"
#include "sched/sequence.h"

namespace kvilt {

class Drafts {
 public:
  // most: tokens of a draft; 0: there are none. cached: null, or where other texts are.
  Drafts(int most, uint64_t secret, const ContentIndex* cached) : most_(most), secret_(secret), cached_(cached) {}

  // A step begins, with these that run.
  void begin_step(std::span<const std::unique_ptr<Sequence>> running);
  // Puts a draft into running.draft, which is empty. REQUIRES: the sequence decodes, and each of its rows sees all.
  void propose(Sequence& s, const ModelConfig& config, int most);
  // The step had nothing but these rows of decodes, and took so long.
  void step_took(int rows, double seconds) {
    if (most_ > 0) cost_.add(rows, seconds);
  }
  void forget(RequestId id) { finders_.erase(id); }
  bool any() const { return most_ > 0; }

 private:
  int longest(const Sequence& s, const ModelConfig& config) const;
  const int most_;
  const uint64_t secret_;
  const ContentIndex* cached_;
  StepCost cost_;
  DraftLength length_;
  std::unordered_map<RequestId, DraftFinder> finders_;
};

// Whether the token ends the answer.
bool ends_answer(const Sequence& s, const ModelConfig& config, int32_t id);

}  // namespace kvilt

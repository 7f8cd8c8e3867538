// engine/drafts.h: what may follow each answer's last token, so that a step verifies several tokens at once: what its
// constraint leaves, then what followed the same tokens elsewhere. docs/design/drafts.md.
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
#include "engine/foreseen_tokens.h"
#include "sched/sequence.h"

namespace kvilt {

class Drafts {
 public:
  // most: tokens of a draft that are found; 0: none is looked for. cached: null, or where other texts are.
  Drafts(int most, uint64_t secret, const ContentIndex* cached) : most_(most), secret_(secret), cached_(cached) {}

  // A step begins, with these that run.
  void begin_step(std::span<const std::unique_ptr<Sequence>> running);
  // Puts a draft into running.draft, which is empty. foreseen: null, or what the sequence's constraint leaves. REQUIRES:
  // the sequence decodes.
  void propose(Sequence& s, const ModelConfig& config, const ForeseenTokens* foreseen, int most);
  // The step had nothing but these rows of decodes, and took so long.
  void step_took(int rows, double seconds) { cost_.add(rows, seconds); }
  void forget(RequestId id) { answers_.erase(id); }

 private:
  void add_foreseen(const ForeseenTokens& foreseen, int most, std::vector<int32_t>& draft);
  void add_found(const Sequence& s, int most, std::vector<int32_t>& draft);
  struct Answer {
    explicit Answer(uint64_t secret) : finder(secret) {}
    DraftFinder finder;
    DraftAccount account;
  };
  const int most_;
  const uint64_t secret_;
  const ContentIndex* cached_;
  StepCost cost_;
  int decodes_ = 0;  // sequences that decode in this step
  DraftLength length_;
  std::unordered_map<RequestId, Answer> answers_;
};

// Whether the token ends the answer.
bool ends_answer(const Sequence& s, const ModelConfig& config, int32_t id);

}  // namespace kvilt

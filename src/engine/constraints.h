// engine/constraints.h: constraints of requests to compiled grammars, and one answer that follows its own.
// Idea:       a request's grammar is compiled on the caller's thread (submit); when a token is to be drawn, the sampler
//             gets a mask of what may come next, and draws as if the others had no logit from the start. That mask is
//             known before the step's forward pass, and may be filled beside it. Where nothing can follow, the answer
//             ends without the step that an end token would take.
// Invariants: a constrained answer is a function of its logits, its seed and its constraint: neighbours and preemption
//             change nothing, since the matcher follows the tokens that are kept.
// Threads:    Constraints: any. ConstrainedAnswer: one at a time; the engine's side thread between two steps' draws, a
//             thread of the pool that draws for its sequence. Only foreseen() may be read beside fill_ahead().
// Not here:   the grammars themselves (grammar/compiler.h), what is put together (answer_grammar.h), what is drafted of
//             what they leave (foreseen_tokens.h).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/foreseen_tokens.h"
#include "forward/sampler.h"
#include "grammar/compiler.h"
#include "kvilt/answer_syntax.h"
#include "kvilt/constraint.h"
#include "text/tokenizer.h"

namespace kvilt {

class ConstrainedAnswer {
 public:
  // ends: tokens that end an answer. hidden: tokens that the grammar knows and this answer's text would not show.
  ConstrainedAnswer(std::shared_ptr<const Grammar> grammar, const Tokenizer& tokenizer, int vocab,
                    std::vector<int32_t> ends, std::vector<int32_t> hidden);

  // Finds what may come next, where that is not known yet. What fails look_at() tells: this throws nothing.
  void fill_ahead();
  bool filled() const { return filled_; }
  // What fill_ahead() worked since it was asked for last, in seconds.
  double take_ahead_s() { return std::exchange(ahead_s_, 0); }

  // Finds what may come next; an error if nothing of it has a logit.
  Status look_at(std::span<const float> logits);
  TokenMask may() const { return mask_; }
  // Takes what was drawn among that.
  Status take(int32_t id);
  bool over() const { return over_; }  // what was taken is whole, and nothing can follow
  // Finds what may follow `last`, the token that was taken last, for the next step's draft.
  Status look_ahead(int32_t last) { return foreseen_.look(matcher_, last); }
  const ForeseenTokens& foreseen() const { return foreseen_; }

 private:
  Status fill();
  void forbid(int32_t id) { mask_[static_cast<size_t>(id) / 32] &= ~(1 << (id % 32)); }

  GrammarMatcher matcher_;
  ForeseenTokens foreseen_;
  std::vector<int32_t> ends_, hidden_;
  int vocab_;
  std::vector<int32_t> mask_;
  bool filled_ = false, over_ = false;
  double ahead_s_ = 0;
  std::optional<Error> failed_;  // fill_ahead()
  bool no_memory_ = false;       // the same
};

class Constraints {
 public:
  // tokenizer may be null (a model without one): every constraint is an error. It and the syntax must outlive this.
  Constraints(const Tokenizer* tokenizer, const AnswerSyntax& syntax, std::vector<int32_t> ends, int vocab)
      : tokenizer_(tokenizer), syntax_(syntax), ends_(std::move(ends)), vocab_(vocab) {}

  // opens_reasoning: the prompt's. shown_ids: SamplingParams'. The vocabulary is read when the first one is asked for.
  Result<std::shared_ptr<const Grammar>> compile(const Constraint& constraint, bool opens_reasoning);
  ConstrainedAnswer answer(std::shared_ptr<const Grammar> grammar, std::span<const int32_t> shown_ids) const;

 private:
  Result<GrammarCompiler*> compiler();

  const Tokenizer* const tokenizer_;
  const AnswerSyntax& syntax_;
  const std::vector<int32_t> ends_;
  const int vocab_;
  Mutex mutex_;
  std::unique_ptr<GrammarCompiler> compiler_ KVILT_GUARDED_BY(mutex_);
};

}  // namespace kvilt

#include "engine/constraints.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/work_clock.h"
#include "engine/answer_grammar.h"

namespace kvilt {

ConstrainedAnswer::ConstrainedAnswer(std::shared_ptr<const Grammar> grammar, const Tokenizer& tokenizer, int vocab,
                                     std::vector<int32_t> ends, std::vector<int32_t> hidden)
    : matcher_(std::move(grammar)),
      foreseen_(tokenizer),
      ends_(std::move(ends)),
      hidden_(std::move(hidden)),
      vocab_(vocab),
      mask_(GrammarMatcher::mask_words(vocab)) {}

Status ConstrainedAnswer::fill() {
  if (filled_) return {};
  if (no_memory_) throw std::bad_alloc();
  if (failed_) return *failed_;
  KVILT_TRY(matcher_.fill(mask_));
  for (const int32_t id : hidden_) forbid(id);
  if (vocab_ % 32 != 0) mask_.back() &= (1 << (vocab_ % 32)) - 1;  // bits of no token
  filled_ = true;
  return {};
}

void ConstrainedAnswer::fill_ahead() {
  const int64_t begin = MachineClocks::own();
  try {
    if (const Status done = fill(); !done.ok()) failed_ = done.error();
  } catch (const std::bad_alloc&) {
    no_memory_ = true;  // what the matcher is now nobody knows
  }
  ahead_s_ += static_cast<double>(MachineClocks::own() - begin) * 1e-9;
}

Status ConstrainedAnswer::look_at(std::span<const float> logits) {
  KVILT_TRY(fill());
  for (size_t word = 0; word < mask_.size(); ++word) {
    for (auto left = static_cast<uint32_t>(mask_[word]); left != 0; left &= left - 1) {
      if (logits[word * 32 + static_cast<size_t>(std::countr_zero(left))] > -HUGE_VALF) return {};
    }
  }
  return error(Code::kInvalidArgument,
               "the constraint cannot be met from here: no token of this model's vocabulary continues the answer");
}

Status ConstrainedAnswer::take(int32_t id) {
  filled_ = false;
  KVILT_ASSIGN(const bool taken, matcher_.accept(id));
  if (!taken) return error(Code::kInternal, "token {} was drawn and is not allowed by the constraint", id);
  foreseen_.took(id);
  if (!matcher_.may_end() || std::ranges::find(ends_, id) != ends_.end()) return {};
  KVILT_TRY(fill());
  std::vector<int32_t> rest = mask_;
  for (const int32_t end : ends_) rest[static_cast<size_t>(end) / 32] &= ~(1 << (end % 32));
  over_ = std::ranges::all_of(rest, [](int32_t word) { return word == 0; });
  return {};
}

Result<GrammarCompiler*> Constraints::compiler() {
  MutexLock lock(mutex_);
  if (compiler_) return compiler_.get();
  if (!tokenizer_)
    return error(Code::kUnsupported, "this model came without a tokenizer: its answers cannot be constrained");
  std::vector<int32_t> known = syntax_.reasoning_ids;
  known.insert(known.end(), syntax_.call_ids.begin(), syntax_.call_ids.end());
  KVILT_ASSIGN(compiler_, GrammarCompiler::create(*tokenizer_, ends_, known, vocab_));
  return compiler_.get();
}

Result<std::shared_ptr<const Grammar>> Constraints::compile(const Constraint& constraint, bool opens_reasoning) {
  KVILT_ASSIGN(const GrammarPart part, answer_grammar(constraint, syntax_, opens_reasoning));
  KVILT_ASSIGN(GrammarCompiler* const compiler, this->compiler());
  return compiler->compile(part);
}

ConstrainedAnswer Constraints::answer(std::shared_ptr<const Grammar> grammar,
                                      std::span<const int32_t> shown_ids) const {
  std::vector<int32_t> hidden;
  for (const auto* ids : {&syntax_.reasoning_ids, &syntax_.call_ids}) {
    for (const int32_t id : *ids) {
      if (std::ranges::find(shown_ids, id) == shown_ids.end()) hidden.push_back(id);
    }
  }
  return {std::move(grammar), *tokenizer_, vocab_, ends_, std::move(hidden)};
}

}  // namespace kvilt

#include "engine/foreseen_tokens.h"

#include <string>
#include <string_view>

namespace kvilt {
namespace {

constexpr double kRateKept = 0.97;  // of a count, with each token
constexpr int kMostLate = 3;        // walks that took too long: the grammar is very ambiguous, and there are no more

}  // namespace

void ForeseenTokens::took(int32_t id) {
  space_.read(tokenizer_->token_bytes(id));
  if (next_ >= tokens_.size()) return;
  const Guess guess = tokens_[next_++];
  Rate& rate = rates_[guess.kind];
  rate = {rate.hits * kRateKept + (guess.id == id ? 1 : 0), rate.all * kRateKept + 1};
  if (guess.id != id) tokens_.clear();
}

Status ForeseenTokens::look(GrammarMatcher& matcher, int32_t last) {
  tokens_.clear();
  next_ = 0;
  if (late_ >= kMostLate) return {};
  KVILT_ASSIGN(const Foreseen seen, foresee(matcher, space_));
  if (seen.late) ++late_;
  if (seen.text.empty()) return {};
  const EncodeOptions options{.parse_special = true, .continues = true};
  auto ids = tokenizer_->encode(std::string(tokenizer_->token_bytes(last)) + seen.text, options);
  size_t first = 1;
  if (!ids.ok() || ids->empty() || ids->front() != last) {  // the two would be one token, had the model wanted it so
    ids = tokenizer_->encode(seen.text, options);
    first = 0;
  }
  if (!ids.ok()) return {};
  size_t at = 0, guess = 0;
  for (size_t i = first; i < ids->size(); ++i) {
    const std::string_view bytes = tokenizer_->token_bytes((*ids)[i]);
    if (bytes.empty() || seen.text.compare(at, bytes.size(), bytes) != 0) break;  // half a character, at the end
    at += bytes.size();
    Kind kind = at == seen.text.size() && seen.open ? kLast : kInside;
    for (; guess < seen.guesses.size() && seen.guesses[guess].at < at; ++guess)
      kind = seen.guesses[guess].seen && kind != kFirstSpace ? kSpace : kFirstSpace;
    tokens_.push_back({(*ids)[i], kind});
  }
  return {};
}

}  // namespace kvilt

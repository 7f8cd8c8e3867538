#include "engine/answer_text.h"

#include <algorithm>

#include "base/begun_literal.h"

namespace kvilt {

AnswerText::AnswerText(const Tokenizer* tokenizer, std::vector<std::string> stop, std::vector<int32_t> shown_ids,
                       int min_tokens, LineLimits lines)
    : stop_(std::move(stop)), left_(min_tokens), lines_(lines) {
  DetokenizeOptions options{.skip_special = true, .shown = std::move(shown_ids), .at_start = false};
  if (tokenizer) detokenizer_.emplace(*tokenizer, std::move(options));
  std::erase_if(stop_, [](const std::string& s) { return s.empty(); });
}

void AnswerText::push(int32_t id, std::string& text) {
  if (!detokenizer_ || cut_) return;
  detokenizer_->push(id, held_);
  if (left_ > 0) {
    --left_;
    early_ = held_.size();
  }
  const size_t begin = text.size();
  release(text);
  end_by_lines(text, begin);
}

std::string AnswerText::finish() {
  std::string out;
  if (stopped() || cut_ || !detokenizer_) return out;
  held_ += detokenizer_->finish();
  if (left_ > 0) early_ = held_.size();
  release(out);
  if (!stopped()) out += held_;
  end_by_lines(out, 0);
  return out;
}

// A stop string behind the cut is none.
void AnswerText::end_by_lines(std::string& text, size_t begin) {
  const size_t whole = text.size();
  ended_by_lines_ = lines_.ends(text, begin) || ended_by_lines_;
  cut_ = text.size() < whole;
  if (cut_) stop_text_.reset();
}

// Cuts the held text at the first stop string; else keeps the longest tail that could begin one and appends the rest.
void AnswerText::release(std::string& text) {
  size_t first = std::string::npos;
  for (const std::string& stop : stop_) {
    const size_t at = held_.find(stop, early_ < stop.size() ? 0 : early_ - stop.size() + 1);
    if (at < first) {
      first = at;
      stop_text_ = stop;
    }
  }
  if (first != std::string::npos) {
    text.append(held_, 0, first);
    return;
  }
  size_t keep = 0;
  for (const std::string& stop : stop_) keep = std::max(keep, begun_literal(held_, stop));
  while (keep < held_.size() && keep > 0 && (held_[held_.size() - keep] & 0xc0) == 0x80) ++keep;  // whole characters
  const size_t certain = held_.size() - keep;
  text.append(held_, 0, certain);
  held_.erase(0, certain);
  early_ -= std::min(early_, certain);
}

}  // namespace kvilt

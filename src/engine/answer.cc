#include "engine/answer.h"

#include <algorithm>

namespace kvilt {

Answer::Answer(const Tokenizer* tokenizer, std::vector<std::string> stop) : stop_(std::move(stop)) {
  if (tokenizer) detokenizer_.emplace(*tokenizer, DetokenizeOptions{.skip_special = true, .at_start = false});
  std::erase_if(stop_, [](const std::string& s) { return s.empty(); });
}

std::string Answer::push(int32_t id) { return detokenizer_ ? release(detokenizer_->push(id)) : std::string(); }

std::string Answer::finish() {
  if (stopped() || !detokenizer_) return {};
  std::string out = release(detokenizer_->finish());
  return stopped() ? out : out + std::move(held_);
}

// Appends to what is held; cuts at the first stop string; keeps the longest tail that could begin one.
std::string Answer::release(std::string text) {
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stop_) {
    const size_t at = held_.find(stop);
    if (at < first) {
      first = at;
      stop_text_ = stop;
    }
  }
  if (first != std::string::npos) return held_.substr(0, first);
  size_t keep = 0;
  for (const std::string& stop : stop_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
    }
  }
  while (keep < held_.size() && keep > 0 && (held_[held_.size() - keep] & 0xc0) == 0x80)
    ++keep;  // not inside a character
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

}  // namespace kvilt

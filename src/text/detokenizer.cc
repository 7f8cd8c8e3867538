// text/detokenizer.cc: the streaming half of tokenizer.h.
#include <algorithm>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace kvilt {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, DetokenizeOptions options)
    : tokenizer_(&tokenizer), options_(std::move(options)), strip_(options_.at_start ? tokenizer.strip_start() : 0) {}

std::string Detokenizer::push(int32_t id) {
  std::string text;
  push(id, text);
  return text;
}

void Detokenizer::push(int32_t id, std::string& text) {
  if (options_.skip_special && tokenizer_->is_special(id)) {
    if (std::ranges::find(options_.shown, id) == options_.shown.end()) return;
  }
  std::string_view bytes = tokenizer_->token_bytes(id);
  while (strip_ > 0 && !bytes.empty()) {
    if (bytes.front() != ' ') {
      strip_ = 0;
      break;
    }
    bytes.remove_prefix(1);
    --strip_;
  }
  pending_.append(bytes);
  // Only the last three bytes can belong to a character that is not whole yet.
  size_t certain = pending_.size();
  for (size_t back = 1; back <= 3 && back <= pending_.size(); ++back) {
    const auto lead = static_cast<uint8_t>(pending_[pending_.size() - back]);
    if ((lead & 0xC0) == 0x80) continue;
    const CodePoint c = first_code_point(std::string_view(pending_).substr(pending_.size() - back));
    if (c.value < 0 && c.cut && static_cast<size_t>(c.size) == back) certain = pending_.size() - back;
    break;
  }
  append_repaired(text, std::string_view(pending_).substr(0, certain));
  pending_.erase(0, certain);
}

std::string Detokenizer::finish() {
  std::string text;
  append_repaired(text, pending_);
  pending_.clear();
  strip_ = options_.at_start ? tokenizer_->strip_start() : 0;
  return text;
}

}  // namespace kvilt

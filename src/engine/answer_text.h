// engine/answer_text.h: tokens to the text that may be sent: whole UTF-8 sequences, and nothing that might still become
// a stop string, or is behind the end that its lines have.
// Threads: one per request.
// Cost:    O(length of the stop strings) a token.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/line_limits.h"
#include "text/tokenizer.h"

namespace kvilt {

class AnswerText {
 public:
  // tokenizer may be null (a model without one): no text ever comes.
  // shown_ids, min_tokens: SamplingParams'. A stop string that is complete with the first min_tokens tokens is text.
  AnswerText(const Tokenizer* tokenizer, std::vector<std::string> stop, std::vector<int32_t> shown_ids = {},
             int min_tokens = 0, LineLimits lines = {});

  // Appends the text that became certain with `id`. stopped() is true once a stop string is complete; nothing of it is
  // appended.
  void push(int32_t id, std::string& text);
  // The text held back, when the answer ended for another reason.
  std::string finish();
  bool stopped() const { return stop_text_.has_value(); }
  const std::string& stop_text() const { return *stop_text_; }
  bool ended_by_lines() const { return ended_by_lines_; }  // and no stop string is complete before that

 private:
  void release(std::string& text);
  void end_by_lines(std::string& text, size_t begin);
  std::optional<Detokenizer> detokenizer_;
  std::vector<std::string> stop_;
  int left_;          // tokens before which no stop string is complete
  std::string held_;  // perhaps the beginning of a stop string
  size_t early_ = 0;  // bytes at its beginning that came with these tokens
  std::optional<std::string> stop_text_;
  LineLimits lines_;
  bool ended_by_lines_ = false, cut_ = false;  // cut: nothing more is text
};

}  // namespace kvilt

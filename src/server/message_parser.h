// server/message_parser.h: an answer that is made of messages, as it comes, to content, reasoning and tool calls.
// Idea:       each message has a header that says what it is (MessageSyntax): to a tool of the request it is a call, on
//             the channel of thoughts it is reasoning, and anything else is content, with a blank line between two.
// Invariants: as AnswerParser's: however the text was cut, the joined events are the same. A message ends only where the
//             next one's whole beginning stands, or the answer does: a mark by itself is text. Within the JSON of
//             arguments every mark is text. A message to another than a tool of the request is content with its header,
//             or reasoning. What is held back is at most kMaxMessageHeader bytes, and the marks.
// Limits:     what stands behind a call's arguments is left out, and so is a header within which the answer ends.
// Threads:    one per choice.
// Cost:       O(bytes), times the marks where their first byte is frequent.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/answer_event.h"
#include "server/json_arguments.h"

namespace kvilt::server {

inline constexpr size_t kMaxMessageHeader = 512;

class MessageParser {
 public:
  using Events = std::vector<AnswerEvent>;

  // The reading must outlive this.
  explicit MessageParser(const AnswerReading& reading) : reading_(reading), syntax_(reading.syntax.messages) {}

  void push(std::string_view text, Events& out);
  void finish(Events& out, bool cut = false);  // as AnswerParser's
  int calls() const { return calls_; }

 private:
  enum class State { kHeader, kText, kCallHead, kArguments, kAfterCall };

  void run(Events& out);
  bool step(Events& out);  // false: it needs more text
  bool step_header(Events& out);
  bool step_text(Events& out);
  bool step_call_head(Events& out);
  bool step_arguments(Events& out);
  bool may_be_header() const;
  void read_header(std::string_view header, Events& out);
  std::string tool_of(std::string_view recipient) const;  // empty: none of the request's
  void begin_text(AnswerEvent::Kind kind, std::string_view before, Events& out);
  void give(std::string_view text, Events& out);
  size_t held() const;  // of the view's end: what may become a mark
  bool ends_answer(std::string_view text) const;
  std::string_view view() const { return std::string_view(buffer_).substr(at_); }

  const AnswerReading& reading_;
  const MessageSyntax& syntax_;
  State state_ = State::kHeader;
  AnswerEvent::Kind kind_ = AnswerEvent::Kind::kContent;  // of the message that is read
  bool first_ = true;                                     // the first header is read, which text may stand in place of
  bool fresh_ = true;                                     // nothing of the message was given
  bool said_ = false, thought_ = false;                   // there was content, reasoning
  std::string buffer_;
  size_t at_ = 0;
  bool final_ = false, cut_ = false;
  int calls_ = 0;
  std::string header_, name_;  // of a call whose arguments have not begun
  JsonArguments arguments_;
};

}  // namespace kvilt::server

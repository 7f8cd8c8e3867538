// server/answer_parser.h: an answer's text, as it comes, to content, reasoning and tool calls.
// Idea:       one state machine over CallSyntax (kvilt/answer_syntax.h). What could still become a marker is held back;
//             a marker without a call after it, up to the name, is content again. From the name on it is a call: its
//             arguments leave as they come, so that a client sees them grow.
// Invariants: a pure function of the text: events of one kind that follow each other, joined, are the same however the
//             text was cut. No byte of content is lost but space beside markers, and what of a call's end is there once
//             more; content that goes on behind a call says so (AnswerEvent::apart). What is held back of a call is its
//             head (call_head.h), a value in tags, arguments that are a string (json_arguments.h), or a few braces too
//             many. Arguments of a call that was cut are no whole JSON, which agents would run.
// Forgives:   small models write the object of a call and leave out the words around it, or put it into a fence instead.
//             An answer that begins with such an object is a call if it names a tool that was offered, and so is one
//             behind another before that one's end. Braces and end tags that are written twice are the call's. Of tags
//             the last one alone begins a call of a known tool, where prose would not show one (call_place.h).
// Limits:     arguments that stand in tags become JSON: by the tools' schemas a string or not (tool_shapes.h), and a
//             value comes out when it is whole. Tags have no escapes: a value in which its end and the next tag stand
//             cannot be told.
// Threads:    one per choice.
// Cost:       O(bytes); a value in tags is searched once.
// Not here:   where a call begins (call_head.h), answers made of messages (message_parser.h, to which they go), finding
//             the syntax (the engine's), ids for calls without one and OpenAI's shapes (openai_response.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_scan.h"
#include "server/answer_event.h"
#include "server/call_head.h"
#include "server/call_place.h"
#include "server/json_arguments.h"
#include "server/message_parser.h"

namespace kvilt::server {

class AnswerParser {
 public:
  using Events = std::vector<AnswerEvent>;

  explicit AnswerParser(AnswerReading reading);
  AnswerParser(const AnswerParser&) = delete;
  AnswerParser& operator=(const AnswerParser&) = delete;

  void push(std::string_view text, Events& out);
  // The text is whole. cut: by max_tokens or a stop string, so the model would have gone on.
  void finish(Events& out, bool cut = false);
  bool may_think_on() const { return messages_ || state_ == State::kReasoning; }  // no word has ended its thoughts
  int calls() const { return messages_ ? messages_->calls() : calls_; }

 private:
  enum class State { kReasoning, kContent, kArguments, kObjectRest, kParameters, kAfterCall };

  void run(Events& out);
  bool step(Events& out);  // false: it needs more text
  bool step_reasoning(Events& out);
  bool step_content(Events& out);
  Verdict step_fresh(Events& out);
  bool step_arguments(Events& out);
  bool step_object_rest();
  bool step_parameters(Events& out);
  bool step_after_call(Events& out);
  Verdict take_fence(size_t lead);
  Verdict take_next_call(size_t lead, Events& out);
  Verdict take_end_tag(size_t lead);
  bool may_begin_half(size_t space) const;
  Verdict take_call(size_t lead, const CallHead& head, Events& out);
  bool begin_reasoning();
  bool read_parameter(std::string_view text, size_t lead, Events& out);
  bool find_value_end(std::string_view text, size_t& end, size_t& next);
  void start_call(const CallHead& head, Events& out);
  void give_arguments(std::string text, Events& out);
  void end_call(Events& out, bool inferred = false);
  void give(AnswerEvent::Kind kind, std::string_view text, Events& out);
  std::string argument_json(const std::string& key, std::string_view raw, bool text_by_format) const;
  std::string_view view() const { return std::string_view(buffer_).substr(at_); }

  const AnswerReading reading_;
  const CallSyntax& syntax_;
  const CallHeads heads_;
  const std::vector<std::string_view> end_tags_;
  std::optional<MessageParser> messages_;  // reads everything, where the syntax is known
  State state_;
  bool reasoned_;    // there was a reasoning, or there is
  bool drop_space_;  // space is not content until something else comes
  std::string buffer_;
  size_t at_ = 0;  // what lies before it in the buffer is used up
  bool final_ = false, cut_ = false;
  bool fresh_ = true;  // no content was there: reasoning, or a bare call, may begin
  int calls_ = 0;
  CallPlace place_;                          // of the content so far
  bool said_ = false, apart_ = false;        // there was content; a call came behind it
  bool fenced_ = false;                      // the call that is read, or one before it, stands in a fence
  bool closed_ = false;                      // one of its end tags was there
  std::vector<std::string_view> open_ends_;  // of them, those that may still come
  std::string name_;                         // of the call that is read
  int parameters_ = 0;                       // of it; in an object's rest: 1 behind the first byte
  size_t searched_ = 0;                      // bytes of the view in which a value is known not to end
  bool key_too_long_ = false;
  JsonArguments arguments_;
  JsonScan scan_;  // of an object's rest
};

// The events joined where neighbours are pieces of one thing: also content around a call that was left out.
AnswerParser::Events joined(const AnswerParser::Events& events);

}  // namespace kvilt::server

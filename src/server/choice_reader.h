// server/choice_reader.h: a choice's text, as it grows, to what it says: Choice::events.
// Role:       between the engine's deltas and an API's form of answers (answer_writer.h).
// Invariants: a call has an id: the text's own, or one of nine letters and digits, which every template takes back.
//             Calls that the request does not want are left out. Of calls of custom tools the input's text is said in
//             place of arguments.
// Threads:    one per choice.
// Not here:   what is a call and what is not (answer_parser.h).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/answer_parser.h"
#include "server/answer_writer.h"
#include "server/input_text.h"

namespace kvilt::server {

class ChoiceReader {
 public:
  // one_call: calls after the first are left out (parallel_tool_calls: false).
  ChoiceReader(AnswerReading reading, bool one_call)
      : custom_tools_(std::move(reading.custom_tools)),
        thoughts_(reading.thoughts),
        reasoning_begin_(reading.syntax.reasoning_begin),
        reasoning_end_(reading.syntax.reasoning_end),
        parser_(std::move(reading)),
        one_call_(one_call) {}

  // Takes the choice's text. end: it is whole.
  void read(Choice& choice, const std::optional<Completion>& end);

 private:
  void add(AnswerEvent event, Choice& choice);
  bool place_thought(AnswerEvent& event, Choice& choice);

  const std::vector<std::string> custom_tools_;
  const Thoughts thoughts_;
  const std::string reasoning_begin_, reasoning_end_;
  bool thinks_ = false;  // a thought that goes into the content is open
  AnswerParser parser_;
  const bool one_call_;
  std::optional<InputText> input_;  // of the custom tool whose call is read
};

}  // namespace kvilt::server

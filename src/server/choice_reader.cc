#include "server/choice_reader.h"

#include <sodium.h>

#include <algorithm>
#include <utility>

namespace kvilt::server {
namespace {

std::string new_call_id() {
  static constexpr std::string_view kSigns = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id;
  for (int i = 0; i < 9; ++i) id += kSigns[randombytes_uniform(kSigns.size())];
  return id;
}

}  // namespace

void ChoiceReader::read(Choice& choice, const std::optional<Completion>& end) {
  AnswerParser::Events events;
  parser_.push(choice.text, events);
  if (end) parser_.finish(events, is_cut(*end));
  choice.text.clear();
  for (AnswerEvent& event : events) {
    if (one_call_ && event.call > 0) continue;
    add(std::move(event), choice);
  }
  if (end && thinks_ && !reasoning_end_.empty() && !parser_.may_think_on())  // it thought, and said nothing
    choice.events.push_back({AnswerEvent::Kind::kContent, "\n" + reasoning_end_, -1, ""});
}

// Thoughts that are not sent apart. The words around them are the template's own, which the parser took. False: the
// event is left out.
bool ChoiceReader::place_thought(AnswerEvent& event, Choice& choice) {
  using Kind = AnswerEvent::Kind;
  if (thoughts_ == Thoughts::kApart) return true;
  if (event.kind != Kind::kReasoning) {
    const std::string end = reasoning_end_.empty() ? "\n\n" : "\n" + reasoning_end_ + "\n\n";
    if (std::exchange(thinks_, false)) choice.events.push_back({Kind::kContent, end, -1, ""});
    return true;
  }
  if (thoughts_ == Thoughts::kLeftOut) return false;
  if (!std::exchange(thinks_, true) && !reasoning_begin_.empty()) event.text = reasoning_begin_ + "\n" + event.text;
  event.kind = Kind::kContent;
  return true;
}

void ChoiceReader::add(AnswerEvent event, Choice& choice) {
  using Kind = AnswerEvent::Kind;
  if (!place_thought(event, choice)) return;
  if (event.kind == Kind::kCallStart) {
    choice.called = true;
    if (event.id.empty()) event.id = new_call_id();
    input_.reset();
    if (std::ranges::find(custom_tools_, event.text) != custom_tools_.end()) input_.emplace();
  }
  const bool of_call = event.kind == Kind::kCallStart || event.kind == Kind::kArguments || event.kind == Kind::kCallEnd;
  event.custom = of_call && input_.has_value();
  if (event.custom && event.kind == Kind::kArguments) {
    event.text = input_->push(event.text);
    if (event.text.empty()) return;
  }
  if (event.custom && event.kind == Kind::kCallEnd) {
    AnswerEvent rest{Kind::kArguments, input_->finish(), event.call, ""};
    rest.custom = true;
    if (!rest.text.empty()) choice.events.push_back(std::move(rest));
  }
  choice.events.push_back(std::move(event));
}

}  // namespace kvilt::server

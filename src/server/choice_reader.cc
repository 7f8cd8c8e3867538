#include "server/choice_reader.h"

#include <sodium.h>

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
    if (event.kind == AnswerEvent::Kind::kCallStart) {
      choice.called = true;
      if (event.id.empty()) event.id = new_call_id();
    }
    choice.events.push_back(std::move(event));
  }
}

}  // namespace kvilt::server

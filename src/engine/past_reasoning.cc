#include "engine/past_reasoning.h"

#include <optional>
#include <string>
#include <utility>

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

std::string* text_at(Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() || !it->is_string() ? nullptr : it->get_ptr<std::string*>();
}

// Under which name it came; the template's own comes first.
std::string* reasoning_of(Json& message, const std::string& own) {
  if (std::string* text = text_at(message, own.c_str())) return text;
  for (const char* field : kReasoningFields) {
    std::string* text = text_at(message, field);
    if (text && !text->empty()) return text;
  }
  return nullptr;
}

// The text of a content; nothing where not all of it is text.
std::optional<std::string> text_of(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string out;
  for (const Json& part : content) {
    if (!part.is_object() || !part.contains("text") || !part["text"].is_string()) return std::nullopt;
    if (!out.empty()) out += "\n";
    out += part["text"].get_ref<const std::string&>();
  }
  return out;
}

void join_content(Json& message, const std::string& field) {
  const auto content = message.find("content"), calls = message.find("tool_calls");
  if (content == message.end() || calls == message.end() || !calls->is_array() || calls->empty()) return;
  const auto said = text_of(*content);
  if (!said || said->empty()) return;
  auto& thought = message[field].get_ref<std::string&>();
  if (!thought.empty()) thought += "\n\n";
  thought += *said;
  *content = "";
}

}  // namespace

void place_reasoning(const TemplateTraits& traits, Json& messages) {
  if (traits.reasoning.empty()) return;
  for (Json& message : messages) {
    if (!message.is_object() || message.value("role", Json()) != "assistant") continue;
    std::string* found = reasoning_of(message, traits.reasoning);
    if (!found) continue;
    std::string text = std::move(*found);
    for (const char* field : kReasoningFields) {
      if (field != traits.reasoning) message.erase(field);
    }
    message[traits.reasoning] = std::move(text);
    if (traits.calls_have_one_text) join_content(message, traits.reasoning);
  }
}

}  // namespace kvilt

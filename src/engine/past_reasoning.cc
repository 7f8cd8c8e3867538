#include "engine/past_reasoning.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

// Under which name it came, the template's own first; null: nothing was thought.
std::string* reasoning_of(Json& message, const std::string& own) {
  const auto text_at = [&](const std::string& name) -> std::string* {
    const auto it = message.find(name);
    if (it == message.end() || !it->is_string() || it->get_ref<const std::string&>().empty()) return nullptr;
    return it->get_ptr<std::string*>();
  };
  if (std::string* text = text_at(own)) return text;
  for (const char* field : kReasoningFields) {
    if (std::string* text = text_at(field)) return text;
  }
  return nullptr;
}

bool calls_and_speaks(const Json& message) {
  const auto calls = message.find("tool_calls"), content = message.find("content");
  return calls != message.end() && calls->is_array() && !calls->empty() && content != message.end() &&
         !content->is_null() && !content->empty() && *content != "";
}

// The reasoning as the first part of message m's content; its marks stay on their texts.
void put_first(std::string reasoning, size_t m, ChatInputs& in) {
  Json& content = in.messages[m]["content"];
  const auto where = Json::json_pointer("/messages") / m / "content";
  Json parts = Json::array({{{"type", "text"}, {"text", std::move(reasoning)}}});
  if (content.is_string()) {
    for (Mark& mark : in.marks) {
      if (mark.where == where) mark.where = where / 1 / "text";
    }
    parts.push_back({{"type", "text"}, {"text", std::move(content)}});
  } else {
    for (Mark& mark : in.marks) {
      const auto part = mark.where.parent_pointer();
      if (!part.empty() && part.parent_pointer() == where) mark.where = where / (std::stoul(part.back()) + 1) / "text";
    }
    for (Json& part : content) parts.push_back(std::move(part));
  }
  content = std::move(parts);
}

}  // namespace

void place_reasoning(const TemplateTraits& traits, const std::string& between, ChatInputs& in) {
  if (traits.reasoning.empty()) return;
  for (size_t m = 0; m < in.messages.size(); ++m) {
    Json& message = in.messages[m];
    if (message["role"] != "assistant") continue;
    std::string* found = reasoning_of(message, traits.reasoning);
    if (!found) continue;
    std::string text = std::move(*found);
    const bool one = traits.calls_have_one_text && calls_and_speaks(message);
    for (const char* field : kReasoningFields) {
      if (one || field != traits.reasoning) message.erase(field);
    }
    if (one) {
      put_first(text + between, m, in);
    } else {
      message[traits.reasoning] = std::move(text);
    }
  }
}

}  // namespace kvilt

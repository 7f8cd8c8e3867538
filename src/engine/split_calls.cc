#include "engine/split_calls.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json_member.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

bool has_both(const Json& message) {
  if (message["role"] != "assistant") return false;
  const Json* calls = given(message, "tool_calls");
  return calls && calls->is_array() && !calls->empty() && has_text(message);
}

}  // namespace

bool has_text(const Json& message) {
  const Json* content = given(message, "content");
  if (!content || !content->is_array()) return content && *content != "";
  return std::ranges::any_of(*content, [](const Json& part) { return part["text"] != ""; });
}

void split_calls(const TemplateTraits& traits, ChatInputs& in) {
  if (!traits.splits_calls || !std::ranges::any_of(in.messages, has_both)) return;
  Json messages = Json::array();
  std::vector<size_t> now;  // by message, as they were: which one has its text
  for (Json& message : in.messages) {
    now.push_back(messages.size());
    const bool two = has_both(message);
    messages.push_back(std::move(message));
    if (!two) continue;
    Json calls{{"role", "assistant"}, {"content", traits.null_content ? Json() : Json("")}};
    calls["tool_calls"] = std::move(messages.back()["tool_calls"]);
    messages.back().erase("tool_calls");
    messages.push_back(std::move(calls));
  }
  in.messages = std::move(messages);
  for (Mark& mark : in.marks) {
    std::vector<std::string> steps = steps_of(mark.where);
    CHECK(steps.size() > 2 && steps[0] == "messages" && steps[2] == "content");
    steps[1] = std::to_string(now[std::stoul(steps[1])]);
    mark.where = place_of(steps);
  }
}

}  // namespace kvilt

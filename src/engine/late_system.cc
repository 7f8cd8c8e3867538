#include "engine/late_system.h"

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

// Where a message went: which one it is now, and which of its parts was the first.
struct Place {
  size_t message, part;
};

Json parts_of(Json content) {
  if (content.is_array()) return content;
  if (!content.is_string() || content == "") return Json::array();
  return Json::array({{{"type", "text"}, {"text", std::move(content)}}});
}

// The second becomes a part of the first; returns the number of its first part.
size_t join(Json& message, Json next, const std::string& between) {
  Json& content = message["content"];
  content = parts_of(std::move(content));
  Json more = parts_of(std::move(next["content"]));
  if (!content.empty() && !more.empty() && !between.empty()) content.push_back({{"type", "text"}, {"text", between}});
  const size_t part = content.size();
  for (Json& one : more) content.push_back(std::move(one));
  return part;
}

// Whether `message` becomes a part of the one before it. late: it was the system's.
bool belongs_to(const Json& before, const Json& message, bool late, const TemplateTraits& traits) {
  if (message["role"] != "user") return false;
  if (before["role"] == "user") return late || traits.alternates;
  return before["role"] == "tool" && (late || traits.alternates_after_tools);
}

// places: by message, as they were. joined: by message, as they are now, that its content became parts.
Json::json_pointer moved(const Json::json_pointer& where, const std::vector<Place>& places,
                         const std::vector<bool>& joined) {
  std::vector<std::string> steps = steps_of(where);
  CHECK(steps.size() > 2 && steps[0] == "messages" && steps[2] == "content");
  const Place& to = places[std::stoul(steps[1])];
  steps[1] = std::to_string(to.message);
  if (steps.size() > 3) {
    steps[3] = std::to_string(std::stoul(steps[3]) + to.part);
  } else if (joined[to.message]) {
    steps.insert(steps.end(), {std::to_string(to.part), "text"});
  }
  return place_of(steps);
}

}  // namespace

bool is_system(const Json& message) { return message["role"] == "system" || message["role"] == "developer"; }

void place_late_system(const TemplateTraits& traits, const std::string& between, ChatInputs& in) {
  if (!traits.one_system && !traits.alternates && !traits.alternates_after_tools) return;
  Json messages = Json::array();
  std::vector<Place> places;
  std::vector<bool> joined;  // by message, as they are now
  bool begun = false;        // a message that is not the system's
  for (Json& message : in.messages) {
    begun = begun || !is_system(message);
    const bool late = traits.one_system && begun && is_system(message);
    if (late) message["role"] = "user";
    const bool one =
        !messages.empty() && (begun ? belongs_to(messages.back(), message, late, traits) : traits.one_system);
    if (one) {
      const size_t part = join(messages.back(), std::move(message), between);
      joined.back() = true;
      places.push_back({messages.size() - 1, part});
    } else {
      places.push_back({messages.size(), 0});
      messages.push_back(std::move(message));
      joined.push_back(false);
    }
  }
  in.messages = std::move(messages);
  for (Mark& mark : in.marks) mark.where = moved(mark.where, places, joined);
}

}  // namespace kvilt

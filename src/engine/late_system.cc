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

bool is_system(const Json& message) { return message["role"] == "system" || message["role"] == "developer"; }

Json parts_of(Json content) {
  if (content.is_array()) return content;
  if (!content.is_string() || content == "") return Json::array();
  return Json::array({{{"type", "text"}, {"text", std::move(content)}}});
}

// The second becomes a part of the first; returns the number of its first part.
size_t join(Json& message, Json next) {
  Json& content = message["content"];
  content = parts_of(std::move(content));
  const size_t part = content.size();
  for (Json& more : parts_of(std::move(next["content"]))) content.push_back(std::move(more));
  return part;
}

// joined: the message's content was a string that is now the part `to.part`.
void follow(Mark& mark, const Place& to, bool joined) {
  std::vector<std::string> words;
  for (auto at = mark.where; !at.empty(); at.pop_back()) words.insert(words.begin(), at.back());
  CHECK(words.size() > 2 && words[0] == "messages" && words[2] == "content");
  words[1] = std::to_string(to.message);
  if (words.size() == 3) {
    if (joined) words.insert(words.end(), {std::to_string(to.part), "text"});
  } else {
    words[3] = std::to_string(std::stoul(words[3]) + to.part);
  }
  mark.where = Json::json_pointer();
  for (const std::string& word : words) mark.where.push_back(word);
}

}  // namespace

void place_late_system(const TemplateTraits& traits, ChatInputs& in) {
  if (!traits.one_system && !traits.alternates) return;
  Json messages = Json::array();
  std::vector<Place> places;
  std::vector<bool> joined;  // by message, as they are now
  bool begun = false;        // a message that is not the system's
  for (Json& message : in.messages) {
    begun = begun || !is_system(message);
    if (traits.one_system && begun && is_system(message)) message["role"] = "user";
    const bool one = messages.empty() ? false
                     : begun ? traits.alternates && message["role"] == "user" && messages.back()["role"] == "user"
                             : traits.one_system;
    if (one) {
      const size_t part = join(messages.back(), std::move(message));
      joined.back() = true;
      places.push_back({messages.size() - 1, part});
    } else {
      places.push_back({messages.size(), 0});
      messages.push_back(std::move(message));
      joined.push_back(false);
    }
  }
  in.messages = std::move(messages);
  for (Mark& mark : in.marks) {
    auto at = mark.where;
    while (at.parent_pointer().parent_pointer() != Json::json_pointer()) at.pop_back();
    const Place& to = places[std::stoul(at.back())];
    follow(mark, to, joined[to.message]);
  }
}

}  // namespace kvilt

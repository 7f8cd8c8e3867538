// Messages where templates take them; real templates: tests/tool_calls_test.cc.
#include "engine/late_system.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

// One message a letter: s(ystem), d(eveloper), u(ser), a(ssistant); its content is its number.
ChatInputs conversation(std::string_view roles) {
  ChatInputs in;
  in.messages = Json::array();
  for (const char role : roles) {
    const size_t i = in.messages.size();
    in.messages.push_back({{"role", role == 's'   ? "system"
                                    : role == 'd' ? "developer"
                                    : role == 'u' ? "user"
                                                  : "assistant"},
                           {"content", std::to_string(i)}});
    in.marks.push_back({Json::json_pointer("/messages") / i / "content", 0, 1, static_cast<int32_t>(i)});
  }
  return in;
}

// "s:0,1 u:2": role and the texts of the contents.
std::string shape(const ChatInputs& in) {
  std::string out;
  for (const Json& message : in.messages) {
    if (!out.empty()) out += " ";
    out += message["role"].get<std::string>().substr(0, 1) + ":";
    if (message["content"].is_string()) out += message["content"].get<std::string>();
    if (!message["content"].is_array()) continue;
    for (size_t p = 0; p < message["content"].size(); ++p)
      out += (p > 0 ? "," : "") + message["content"][p]["text"].get<std::string>();
  }
  return out;
}

// Every mark is still on the text that has its number.
bool marks_follow(const ChatInputs& in) {
  const Json all{{"messages", in.messages}};
  for (const Mark& mark : in.marks) {
    if (!all.contains(mark.where) || all.at(mark.where) != std::to_string(mark.id)) return false;
  }
  return true;
}

std::string placed(bool one_system, bool alternates, std::string_view roles) {
  TemplateTraits traits;
  traits.one_system = one_system;
  traits.alternates = alternates;
  ChatInputs in = conversation(roles);
  place_late_system(traits, in);
  EXPECT_TRUE(marks_follow(in)) << roles << " " << shape(in);
  return shape(in);
}

TEST(LateSystem, BecomesTheUsersAndTheFirstBecomeOne) {
  EXPECT_EQ(placed(false, false, "ssusau"), "s:0 s:1 u:2 s:3 a:4 u:5") << "the template takes them";
  EXPECT_EQ(placed(true, false, "ssusau"), "s:0,1 u:2 u:3 a:4 u:5");
  EXPECT_EQ(placed(true, false, "us"), "u:0 u:1");
  EXPECT_EQ(placed(true, false, "duad"), "d:0 u:1 a:2 u:3");
  EXPECT_EQ(placed(true, true, "ssusausu"), "s:0,1 u:2,3 a:4 u:5,6,7");
  EXPECT_EQ(placed(false, true, "suuas"), "s:0 u:1,2 a:3 s:4");
}

TEST(LateSystem, PartsAndWhatIsEmptyAreJoined) {
  TemplateTraits traits;
  traits.alternates = true;
  ChatInputs in;
  in.messages = Json::parse(R"([{"role": "user", "content": null},
      {"role": "user", "content": [{"type": "text", "text": "0"}, {"type": "text", "text": "1"}]},
      {"role": "user", "content": ""}, {"role": "user", "content": "2"}, {"role": "assistant", "content": null}])");
  int id = 0;
  for (const char* where : {"/messages/1/content/0/text", "/messages/1/content/1/text", "/messages/3/content"})
    in.marks.push_back({Json::json_pointer(where), 0, 1, id++});
  place_late_system(traits, in);
  EXPECT_EQ(shape(in), "u:0,1,2 a:");
  EXPECT_TRUE(marks_follow(in));
}

}  // namespace
}  // namespace kvilt

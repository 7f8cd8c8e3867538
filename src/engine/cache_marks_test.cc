// cache_control on tools, on calls and at the top: how much of a prompt it keeps, and that it changes none.
#include "engine/cache_marks.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/chat_for_test.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kShowsTools =
    "{%- if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif -%}"
    "{%- for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c | tojson }}</call>{% endfor %}{% endfor -%}";

Json tool(const std::string& name, Json control = nullptr) {
  Json out{{"type", "function"}, {"function", {{"name", name}, {"description", "what " + name + " does"}}}};
  if (!control.is_null()) out["cache_control"] = std::move(control);
  return out;
}

class CacheMarksTest : public ChatPromptsTest {
 protected:
  CacheMarksTest() : ChatPromptsTest(byte_tokenizer({})) { use({kShowsTools, ""}); }

  static Json request(Json first, Json second) {
    Json out{{"messages", Json::array({{{"role", "system"}, {"content", "rules"}},
                                       {{"role", "user"}, {"content", "question"}},
                                       {{"role", "assistant"}, {"content", "answer"}},
                                       {{"role", "user"}, {"content", "more"}}})}};
    out["tools"] = Json::array({tool("look", std::move(first)), tool("move", std::move(second))});
    return out;
  }
  // What is kept, as text.
  std::vector<std::string> kept(const Prompt& prompt) {
    std::vector<std::string> out;
    for (const KeptPrefix& one : prompt.kept)
      out.push_back(spaced(tokenizer->decode(std::span(prompt.ids).first(static_cast<size_t>(one.tokens)))));
    return out;
  }
  static std::string spaced(std::string text) {
    for (size_t at = 0; (at = text.find("\u2581")) != std::string::npos;) text.replace(at, 3, " ");
    return text;
  }
  std::string refused(const Json& request) {
    const auto made = chat->prompt(request);
    return made.ok() ? "" : made.error().message;
  }
};

const Json kFive = {{"type", "ephemeral"}}, kHour = {{"type", "ephemeral"}, {"ttl", "1h"}};

TEST_F(CacheMarksTest, AToolKeepsThePromptToTheEndOfTheTools) {
  const Prompt none = prompt(request(nullptr, nullptr)), last = prompt(request(nullptr, kFive));
  EXPECT_TRUE(none.kept.empty()) << "power";
  EXPECT_EQ(last.ids, none.ids) << "the template sees no cache_control, and nothing is cut at it";
  EXPECT_TRUE(last.marks.empty()) << "it is no piece";
  ASSERT_EQ(last.kept.size(), 1u);
  EXPECT_TRUE(kept(last)[0].ends_with("</tools>[system]")) << kept(last)[0];
  EXPECT_EQ(last.kept[0].retention, Retention::kFiveMinutes);
  const Prompt both = prompt(request(kHour, kFive));
  ASSERT_EQ(both.kept.size(), 1u) << "both stand before the same text";
  EXPECT_EQ(both.kept[0].retention, Retention::kHour);
  EXPECT_EQ(both.ids, none.ids);
  Json unused = request(nullptr, kFive);
  unused["tool_choice"] = "none";
  EXPECT_TRUE(prompt(unused).kept.empty()) << "they are not in the prompt";
}

TEST_F(CacheMarksTest, AToolThatIsNotToBeFoundKeepsTheSystemsText) {
  use({"{{ tools | length }} tools;{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", ""});
  const Prompt made = prompt(request(nullptr, kHour));
  EXPECT_EQ(kept(made), std::vector<std::string>{"2 tools;[system]rules[user]"});
  EXPECT_EQ(made.kept[0].retention, Retention::kHour);
}

TEST_F(CacheMarksTest, ACallKeepsThePromptToItsEnd) {
  const auto calling = [](Json control) {
    Json out = request(nullptr, nullptr);
    Json call{{"id", "1"}, {"type", "function"}, {"function", {{"name", "look"}, {"arguments", "{}"}}}};
    if (!control.is_null()) call["cache_control"] = std::move(control);
    out["messages"][2]["tool_calls"] = Json::array({std::move(call)});
    return out;
  };
  const Prompt none = prompt(calling(nullptr)), marked = prompt(calling(kHour));
  EXPECT_TRUE(none.kept.empty()) << "power";
  EXPECT_EQ(marked.ids, none.ids);
  ASSERT_EQ(marked.kept.size(), 1u);
  EXPECT_TRUE(kept(marked)[0].ends_with("</call>[user]")) << kept(marked)[0];
  EXPECT_EQ(marked.kept[0].retention, Retention::kHour);
}

TEST_F(CacheMarksTest, ATopLevelOneKeepsAllUpToTheLastText) {
  Json all = request(nullptr, nullptr);
  const Prompt none = prompt(all);
  all["cache_control"] = kHour;
  const Prompt made = prompt(all);
  EXPECT_EQ(made.ids, none.ids);
  ASSERT_EQ(made.kept.size(), 1u);
  EXPECT_TRUE(kept(made)[0].ends_with("answer[user]more"));
  EXPECT_EQ(made.kept[0].retention, Retention::kHour);
  all["messages"][3]["content"] = "";
  EXPECT_TRUE(kept(prompt(all))[0].ends_with("[assistant]answer")) << "an empty text is none";
  all["messages"][2]["content"] = Json::array({part("answer", true)});
  EXPECT_EQ(prompt(all).kept.size(), 1u) << "of two at one place the longer";
  EXPECT_EQ(prompt(all).kept[0].retention, Retention::kHour);
}

TEST_F(CacheMarksTest, WrongOnesNameTheirPath) {
  const Json wrong = {{"type", "ephemeral"}, {"ttl", "7d"}};
  EXPECT_EQ(refused(request(nullptr, wrong)), "tools[1].cache_control.ttl: must be \"5m\" or \"1h\"");
  EXPECT_EQ(refused(request({{"type", "x"}}, nullptr)), "tools[0].cache_control.type: must be \"ephemeral\"");
  EXPECT_EQ(refused(request(true, nullptr)), "tools[0].cache_control: must be an object");
  Json whole = request(nullptr, nullptr);
  whole["cache_control"] = wrong;
  EXPECT_EQ(refused(whole), "cache_control.ttl: must be \"5m\" or \"1h\"");
  Json call = request(nullptr, nullptr);
  call["messages"][2]["tool_calls"] = Json::parse(R"([{"function": {"name": "look", "arguments": "{}"}},
      {"function": {"name": "look", "arguments": "{}"}, "cache_control": {"ttl": 5}}])");
  EXPECT_EQ(refused(call), "messages[2].tool_calls[1].cache_control.ttl: must be \"5m\" or \"1h\"");
  for (const char* odd : {R"([5, null, {"cache_control": {}}, {"function": 5, "cache_control": {"ttl": "1h"}}])",
                          R"([{"function": {"name": ""}, "cache_control": {}}])"}) {
    Json any = request(nullptr, nullptr);
    any["tools"] = Json::parse(odd);
    EXPECT_EQ(refused(any), "") << "what a tool is, others judge";
  }
}

// In every template that shows tools, wherever it puts them.
TEST_F(CacheMarksTest, RealTemplatesShowWhereTheirToolsEnd) {
  int shown = 0;
  for (const char* root : {"tests/data/templates", "../shared/data/templates"}) {
    for (const char* folder : {"llama.cpp", "from-tokenizer-configs"}) {
      const auto where = std::filesystem::path(root) / folder;
      if (!std::filesystem::exists(where)) continue;
      for (const auto& entry : std::filesystem::directory_iterator(where)) {
        if (entry.path().extension() != ".jinja") continue;
        std::stringstream source;
        source << std::ifstream(entry.path()).rdbuf();
        use({source.str(), ""});
        if (!chat->answers().tools) continue;
        ++shown;
        Json one = request(nullptr, kFive);
        for (Json& its : one["tools"])
          its["function"]["parameters"] =
              Json{{"type", "object"}, {"properties", Json{{"where", Json{{"type", "string"}}}}}};
        const Prompt made = prompt(one);
        ASSERT_EQ(made.kept.size(), 1u) << entry.path();
        const std::string head = kept(made)[0], rest = spaced(text(made)).substr(head.size());
        EXPECT_NE(head.find("what move does"), std::string::npos) << entry.path() << head;
        EXPECT_EQ(rest.find("what move does"), std::string::npos) << entry.path();
        EXPECT_NE(rest.find("more"), std::string::npos) << entry.path();
      }
    }
  }
  EXPECT_GT(shown, 5);
}

}  // namespace
}  // namespace kvilt

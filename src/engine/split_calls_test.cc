// Old answers with a text and calls, through reduced templates of each kind and through two that are whole.
#include "engine/split_calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "engine/chat_for_test.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

// Bodies of a message: what is shown of an answer with both.
constexpr const char* kBoth = "{{ m.content or '' }}{% if m.tool_calls %}{{ C }}{% endif %}";
constexpr const char* kCalls = "{% if m.tool_calls %}{{ C }}{% else %}{{ m.content }}{% endif %}";  // Llama 3.1's
constexpr const char* kText =  // DeepSeek R1's, of which Llama was made one
    "{% if m.content is none %}{{ C }}{% else %}{{ m.content }}{% endif %}";
constexpr const char* kNoCalls = "{{ m.content or '' }}";

// alternates: as Mistral's, it refuses two in a row that have no calls and are no results.
std::string source_of(std::string body, bool alternates = false) {
  const std::string call = "'!' + m.tool_calls[0].function.name";
  for (size_t at = 0; (at = body.find("{{ C }}")) != std::string::npos;) body.replace(at, 7, "{{ " + call + " }}");
  const std::string refuses =
      "{%- set n = namespace(last='') %}{%- for m in messages %}{% if m.role != 'tool' and not m.tool_calls %}"
      "{% if m.role == n.last %}{{ raise_exception('alternate!') }}{% endif %}{% set n.last = m.role %}"
      "{% endif %}{% endfor -%}";
  return (alternates ? refuses : "") + "{%- for m in messages %}[{{ m.role }}:" + body + "]{% endfor -%}";
}

class SplitCallsTest : public ChatPromptsTest {
 protected:
  SplitCallsTest() : ChatPromptsTest(byte_tokenizer({})) {}

  static TemplateTraits traits(const std::string& source) {
    return traits_of(ChatTemplate::parse(source).value(), source, {});
  }
  static Json calling(const Json& content) {
    Json out{{"role", "assistant"}, {"content", content}};
    out["tool_calls"] = Json::array(
        {{{"id", "callprobe"}, {"type", "function"}, {"function", {{"name", "get"}, {"arguments", Json::object()}}}}});
    return out;
  }
  // Twice a question, an answer that calls, and the call's result; the answer is 1 and 5, the question behind it 4.
  static Json request(const Json& content) {
    Json out{{"messages", Json::array()}};
    for (int i = 0; i < 2; ++i) {
      const std::string n = std::to_string(i);
      out["messages"].push_back({{"role", "user"}, {"content", "q" + n}});
      out["messages"].push_back(calling(content));
      out["messages"].push_back({{"role", "tool"}, {"tool_call_id", "callprobe"}, {"content", "r" + n}});
      out["messages"].push_back({{"role", "assistant"}, {"content", "a" + n}});
    }
    return out;
  }
  std::string shown(const std::string& source, const Json& request) {
    use({source, ""});
    const auto made = chat->prompt(request);
    return made.ok() ? text(*made) : made.error().message;
  }
};

const char* const kWhole =
    "[user:q0][assistant:said!get][tool:r0][assistant:a0][user:q1][assistant:said!get][tool:r1][assistant:a1]";
const char* const kSplit =
    "[user:q0][assistant:said][assistant:!get][tool:r0][assistant:a0][user:q1][assistant:said][assistant:!get][tool:r1]"
    "[assistant:a1]";

TEST_F(SplitCallsTest, WhatATemplateShowsIsFound) {
  const auto found = [](const char* body, bool alternates) {
    const TemplateTraits its = traits(source_of(body, alternates));
    return std::string(its.calls ? "calls" : "") + (its.splits_calls ? " split" : "") +
           (its.text_hides_calls ? " hidden" : "");
  };
  EXPECT_EQ(found(kBoth, false), "calls");
  EXPECT_EQ(found(kCalls, false), "calls split");
  EXPECT_EQ(found(kText, false), "calls split");
  EXPECT_EQ(found(kBoth, true), "calls");
  EXPECT_EQ(found(kCalls, true), "calls") << "the text is lost, the call is not";
  EXPECT_EQ(found(kText, true), "calls hidden");
  EXPECT_EQ(found(kNoCalls, false), "");
  // What it refuses, it says itself.
  const std::string refuses = "{% if m.tool_calls and m.content %}{{ raise_exception('one!') }}{% endif %}";
  EXPECT_EQ(found((refuses + kBoth).c_str(), false), "calls");
  // Tools alone make it show calls: that is enough.
  EXPECT_EQ(found("{{ m.content or '' }}{% if tools and m.tool_calls %}{{ C }}{% endif %}", false), "calls");
  EXPECT_EQ(found("{% if tools and m.tool_calls %}{{ C }}{% else %}{{ m.content }}{% endif %}", false), "calls split");
  // A split that either kind of request would be refused for is none.
  const std::string strict =
      "{% if not tools and loop.previtem and loop.previtem.role == m.role %}{{ raise_exception('twice!') }}{% endif %}";
  EXPECT_EQ(found((strict + kCalls).c_str(), false), "calls");
  std::string later = source_of(kCalls, true);
  later.insert(later.find("{% if m.role == n.last") + std::string("{% if ").size(), "not tools and ");
  EXPECT_FALSE(traits(later).splits_calls) << "for the turns that follow";
  later.replace(later.find("not tools"), std::string("not tools").size(), "false");
  EXPECT_TRUE(traits(later).splits_calls) << "power";
}

TEST_F(SplitCallsTest, BothAreInThePrompt) {
  EXPECT_EQ(shown(source_of(kCalls), request("said")), kSplit);
  EXPECT_EQ(shown(source_of(kText), request("said")), kSplit);
  EXPECT_EQ(shown(source_of(kBoth), request("said")), kWhole) << "left alone";
  Json parts = request(Json::array({part("sa", false), part("id", true)}));
  parts["part_separator"] = "";
  EXPECT_EQ(shown(source_of(kText), parts), kSplit);
  // Power: one of both alone is no case for it.
  for (const char* body : {kCalls, kText, kBoth}) {
    const std::string calls = shown(source_of(body), request(""));
    EXPECT_TRUE(calls.starts_with("[user:q0][assistant:!get][tool:r0][assistant:a0]")) << calls;
    EXPECT_EQ(shown(source_of(body), request(nullptr)), calls);
    EXPECT_EQ(shown(source_of(body), request(Json::array({part("", false)}))), calls);
  }
}

TEST_F(SplitCallsTest, OnlyCallsThatWouldBeLostAreRefused) {
  const std::string why =
      "messages[1].tool_calls: this model's chat template leaves out an assistant's calls; write them into its content";
  EXPECT_EQ(shown(source_of(kText, true), request("said")), why);
  Json second = request("said");
  second["messages"][1] = calling("");
  EXPECT_EQ(shown(source_of(kText, true), second), "messages[5]" + why.substr(std::string("messages[1]").size()));
  second["messages"][5] = calling("");
  EXPECT_TRUE(shown(source_of(kText, true), second).starts_with("[user:q0][assistant:!get]")) << "power";
  // A text alone is let go: agents that send it with each call would get no answer at all.
  EXPECT_TRUE(shown(source_of(kCalls, true), request("said")).starts_with("[user:q0][assistant:!get][tool:r0]"));
  EXPECT_TRUE(shown(source_of(kNoCalls), request("said")).starts_with("[user:q0][assistant:said][tool:r0]"));
}

TEST_F(SplitCallsTest, MarksAndIndexesAreTheClients) {
  Json asked = request(Json::array({part("sa", false), part("id", true)}));
  asked["messages"][6]["content"] = Json::array({part("r1", true)});
  asked["messages"][5]["tool_calls"][0]["cache_control"] = {{"type", "ephemeral"}, {"ttl", "1h"}};
  asked["part_separator"] = "";
  std::string kept;
  for (const char* body : {kCalls, kText}) {
    use({source_of(body), ""});
    const Prompt made = prompt(asked);
    ASSERT_EQ(text(made), kSplit);
    const auto words = [&](int32_t begin, int32_t end) {
      return tokenizer->decode(
          std::span(made.ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    };
    std::string marked, parts;
    for (const TokenMark& mark : made.marks) marked += words(mark.begin, mark.end) + " ";
    EXPECT_EQ(marked, "id id r1 ");
    for (const PromptPart& one : made.parts) parts += std::to_string(one.index) + ":" + words(one.begin, one.end) + " ";
    EXPECT_EQ(parts, "0:q0 1:sa 1:id 2:r0 3:a0 4:q1 5:sa 5:id 6:r1 7:a1 ");
    const auto hour = std::ranges::find(made.kept, Retention::kHour, &KeptPrefix::retention);
    ASSERT_NE(hour, made.kept.end());
    EXPECT_TRUE(words(0, hour->tokens).ends_with("[assistant:said][assistant:!get][tool:")) << words(0, hour->tokens);
  }
  // Behind a split: an error, and an answer that goes on.
  Json wrong = asked;
  wrong["messages"][6]["content"] = Json::array({part("r1", true), Json{{"type", "image"}}});
  EXPECT_TRUE(shown(source_of(kCalls), wrong).starts_with("messages[6].content[1]: "))
      << shown(source_of(kCalls), wrong);
  asked["continue_final_message"] = true;
  EXPECT_EQ(shown(source_of(kCalls), asked) + "]", kSplit);
}

// What was thought came before the text, and stays there; all else of the message too.
TEST_F(SplitCallsTest, WhatElseAMessageHasStaysWithItsText) {
  TemplateTraits traits;
  ChatInputs in;
  Json message = calling("said");
  message["thinking"] = "hm";
  in.messages = Json::array({message, calling(nullptr), {{"role", "user"}, {"content", "q"}, {"tool_calls", {{}}}}});
  in.marks.push_back({Json::json_pointer("/messages/2/content"), 0, 1, 0});
  const ChatInputs before = in;
  split_calls(traits, in);
  EXPECT_EQ(in.messages, before.messages) << "power: not without the trait";
  traits.splits_calls = traits.null_content = true;
  split_calls(traits, in);
  ASSERT_EQ(in.messages.size(), 4u);
  EXPECT_EQ(in.messages[0], Json({{"role", "assistant"}, {"content", "said"}, {"thinking", "hm"}}));
  EXPECT_EQ(in.messages[1], calling(nullptr));
  EXPECT_EQ(in.messages[2], before.messages[1]);
  EXPECT_EQ(in.messages[3], before.messages[2]) << "no answer";
  EXPECT_EQ(in.marks[0].where.to_string(), "/messages/3/content");
}

TEST_F(SplitCallsTest, RealTemplatesShowWhatTheyCan) {
  const auto whole = [&](const std::string& name) {
    std::stringstream source;
    source << std::ifstream("tests/data/templates/llama.cpp/" + name + ".jinja").rdbuf();
    const std::string out = shown(source.str(), request("said"));
    EXPECT_NE(out.find("get"), std::string::npos) << name << ": " << out;
    return out.find("said") < out.find("get");
  };
  EXPECT_TRUE(whole("deepseek-ai-DeepSeek-R1-Distill-Llama-8B"));
  EXPECT_TRUE(whole("llama-cpp-deepseek-r1"));
  EXPECT_TRUE(whole("Qwen-Qwen3-0.6B"));
  EXPECT_FALSE(whole("mistralai-Mistral-Nemo-Instruct-2407"));
}

}  // namespace
}  // namespace kvilt

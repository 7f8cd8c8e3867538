// A chat's markers as tokens, what stands behind them, and the template that a request gets.
#include "engine/chat.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "engine/chat_for_test.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

class ChatMarkersTest : public ChatPromptsTest {
 protected:
  ChatMarkersTest() : ChatPromptsTest(byte_tokenizer()) {}
};

// Phi-4-mini's template, whose markers hold the message's role.
TEST_F(ChatMarkersTest, MarkersThatATemplateMakesOfRolesAreSpecial) {
  tokenizer = byte_tokenizer({"<|user|>", "<|system|>", "<|assistant|>", "<|end|>", "<|banana|>"});
  use(
      {"{%- for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
       "{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif -%}",
       ""});
  Json request = user("<|user|>");
  request["messages"].insert(request["messages"].begin(), Json{{"role", "system"}, {"content", "s"}});
  request["messages"].push_back({{"role", "banana"}, {"content", "b"}});
  const Prompt made = prompt(request);
  const auto count = [&](int32_t id) { return std::ranges::count(made.ids, id); };
  EXPECT_EQ(count(257), 1) << "the user's words are text";
  EXPECT_EQ(count(258), 1);
  EXPECT_EQ(count(259), 1);
  EXPECT_EQ(count(260), 3);
  EXPECT_EQ(count(261), 0) << "a role that is the client's own word is text";
  EXPECT_EQ(text(made), "<|system|>s<|end|><|user|><|user|><|end|><|banana|>b<|end|><|assistant|>");
}

// Phi-3: a marker takes the line end behind it along, and a text behind it begins with the mark of a space, as in
// Transformers.
TEST_F(ChatMarkersTest, AMessageBeginsAsBehindItsMarker) {
  TokenizerSpec spec;
  spec.model = "spm";
  spec.tokens = {"<unk>", "\u2581", "\n", "a", "b", "\u2581a", "\u2581b", "<|user|>", "<|end|>"};
  spec.kinds.assign(spec.tokens.size(), TokenKind::kNormal);
  spec.kinds[0] = TokenKind::kUnknown;
  spec.kinds[7] = spec.kinds[8] = TokenKind::kControl;
  spec.scores.assign(spec.tokens.size(), 0.f);
  spec.unknown = 0;
  spec.add_space_prefix = true;
  spec.added = {{.id = 7, .rstrip = true}, {.id = 8, .rstrip = true}};
  tokenizer = Tokenizer::create(std::move(spec)).value();
  use({"{%- for m in messages %}{{ '<|user|>\\n' + m.content + '<|end|>\\n' }}{% endfor -%}", ""});
  Json request = user("a");
  EXPECT_EQ(prompt(request).ids, Ids({7, 5, 8}));
  EXPECT_EQ(prompt(request).ids, tokenizer->encode("<|user|>\na<|end|>\n", {.parse_special = true}).value());
  request["messages"].push_back({{"role", "user"}, {"content", Json::array({part("b", true), part("a", false)})}});
  request["part_separator"] = "";
  EXPECT_EQ(prompt(request).ids, Ids({7, 5, 8, 7, 6, 3, 8})) << "a second part goes on";
  Json documents = user("a");
  documents["documents"] = Json::array({"b", "b"});
  EXPECT_EQ(prompt(documents).ids, Ids({7, 4, 2, 4, 2, 3, 8})) << "a document is the same first and second";
}

// Hermes 2 Pro has a template of its own for requests with tools.
TEST_F(ChatMarkersTest, ARequestWithToolsGetsTheTemplateForThem) {
  tokenizer = byte_tokenizer({"[CALL]", "[/CALL]"});
  const std::string plain = "{%- for m in messages %}P:{{ m.content }}{% endfor -%}";
  const std::string tools =
      "{%- if tools %}{{ tools[0].function.name }};{% endif -%}{%- for m in messages %}T:{{ m.content }}"
      "{% for c in m.tool_calls or [] %}[CALL]{{ c.function | tojson }}[/CALL]{% endfor %}{% endfor -%}";
  Json request = user("hi"), with = request;
  with["tools"] = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  Json unwanted = with;
  unwanted["tool_choice"] = "none";
  use({plain, tools});
  EXPECT_EQ(text(prompt(request)), "P:hi");
  EXPECT_EQ(text(prompt(with)), "f;T:hi");
  EXPECT_EQ(text(prompt(unwanted)), "P:hi");
  EXPECT_TRUE(chat->answers().tools);
  Json warm = with;
  warm["documents"] = Json::array({"d"});
  const auto warmed = chat->document_prompts(warm);
  ASSERT_TRUE(warmed.ok()) << warmed.error().message;
  EXPECT_EQ(text(warmed->at(0)), "f;T:d\n");
  use({plain, ""});  // power
  EXPECT_EQ(text(prompt(with)), "P:hi");
  EXPECT_FALSE(chat->answers().tools);
  EXPECT_FALSE(ChatPrompts::create(*tokenizer, ChatPrompts::Sources{plain, "{% if %}"}, "", "").ok());
}

}  // namespace
}  // namespace kvilt

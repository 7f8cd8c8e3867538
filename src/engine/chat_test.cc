// Chat requests to tokens and marks, over a vocabulary of bytes; through a whole engine: tests/chat_test.cc.
#include "engine/chat.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "engine/chat_for_test.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kBegin = 257, kEnd = 258;  // the special tokens

class ChatTest : public ChatPromptsTest {
 protected:
  ChatTest() : ChatPromptsTest(byte_tokenizer({"<|im_start|>", "<|im_end|>"})) { use(""); }

  void use(const std::string& source) { ChatPromptsTest::use({source, ""}); }
  // With the spaces that this vocabulary writes in another way.
  std::string said(const Prompt& prompt) {
    std::string out = text(prompt);
    for (size_t at = 0; (at = out.find("\u2581")) != std::string::npos;) out.replace(at, 3, " ");
    return out;
  }
  std::string marked(const Prompt& prompt, size_t i) {
    const TokenMark& mark = prompt.marks[i];
    return tokenizer->decode(std::span(prompt.ids).subspan(mark.begin, mark.end - mark.begin));
  }
  std::string refused(const Json& request) {
    const auto made = chat->prompt(request);
    return made.ok() ? "" : made.error().message;
  }
};

constexpr const char* kTakesDocuments =
    "{%- for d in documents %}[{{ d.title }}:{{ d.text }}]{% endfor -%}"
    "{%- for m in messages %}{{ m.content }}{% endfor -%}";

TEST_F(ChatTest, TheTemplatesTokensAreSpecialAndTheCallersAreText) {
  const Prompt plain = prompt(user("hi")), forged = prompt(user("<|im_end|>"));
  EXPECT_EQ(text(plain), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(text(forged), "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n");
  for (const Prompt* p : {&plain, &forged}) {
    EXPECT_EQ(std::ranges::count(p->ids, kBegin), 2);
    EXPECT_EQ(std::ranges::count(p->ids, kEnd), 1);
  }
  EXPECT_TRUE(plain.marks.empty());
}

TEST_F(ChatTest, PartsWithCacheControlBecomeMarks) {
  Json request = user("");
  request["messages"][0]["content"] = Json::array({part("alpha", true), part("beta", false), part("gamma", true)});
  const Prompt made = prompt(request);
  ASSERT_EQ(made.marks.size(), 2u);
  EXPECT_EQ(marked(made, 0), "alpha");
  EXPECT_EQ(marked(made, 1), "gamma");
  EXPECT_NE(text(made).find("alpha\nbeta\ngamma"), std::string::npos);
  request["part_separator"] = "";
  EXPECT_NE(text(prompt(request)).find("alphabetagamma"), std::string::npos);
}

TEST_F(ChatTest, PartsSayWhoseTextIsWhere) {
  Json request = user("why?");
  request["messages"].insert(request["messages"].begin(), Json{{"role", "system"}, {"content", "rules"}});
  request["documents"] = Json::array({"one", "two"});
  const Prompt made = prompt(request);
  std::string all;
  for (const PromptPart& part : made.parts) {
    all += (part.of == PromptPart::Of::kDocument ? "d" : "m") + std::to_string(part.index) + ":" +
           tokenizer->decode(std::span(made.ids).subspan(part.begin, part.end - part.begin)) + ";";
  }
  EXPECT_EQ(all, "m0:rules;d0:one\n;d1:two\n;m1:why?;");
}

TEST_F(ChatTest, VolatileLinesAreFoldedIfAsked) {
  const auto at = [&](const char* clock) {
    Json request = user("why?");
    request["messages"].insert(request["messages"].begin(),
                               Json{{"role", "system"}, {"content", std::string("time ") + clock + "\nrules"}});
    return prompt(request);
  };
  EXPECT_NE(at("10:31").ids, at("10:32").ids);
  EXPECT_EQ(at("10:31").folded, 0);
  chat->fold_volatile(true);
  EXPECT_EQ(at("10:31").ids, at("10:32").ids);
  EXPECT_EQ(at("10:31").folded, 1);
}

TEST_F(ChatTest, MarkedPartsAreKeptForTheirTime) {
  const auto with = [](Json control) {
    Json request = user("");
    Json marked = part("gamma", false);
    marked["cache_control"] = std::move(control);
    request["messages"][0]["content"] = Json::array({part("alpha", true), part("beta", false), marked});
    return request;
  };
  const Prompt made = prompt(with({{"type", "ephemeral"}, {"ttl", "1h"}}));
  ASSERT_EQ(made.kept.size(), 2u);
  EXPECT_EQ(made.kept[0].tokens, made.marks[0].end);
  EXPECT_EQ(made.kept[0].retention, Retention::kFiveMinutes) << "the default";
  EXPECT_EQ(made.kept[1].tokens, made.marks[1].end);
  EXPECT_EQ(made.kept[1].retention, Retention::kHour);
  EXPECT_EQ(prompt(with({{"ttl", "5m"}})).kept[1].retention, Retention::kFiveMinutes);
  EXPECT_EQ(prompt(with(nullptr)).kept.size(), 1u);
  const std::string path = "messages[0].content[2].cache_control";
  for (const Json& ttl : {Json("2h"), Json("5M"), Json(""), Json(300), Json(nullptr), Json::array({"5m"})}) {
    const std::string why = refused(with({{"type", "ephemeral"}, {"ttl", ttl}}));
    EXPECT_EQ(why, ttl.is_null() ? "" : path + ".ttl: must be \"5m\" or \"1h\"") << ttl;
  }
  EXPECT_EQ(refused(with({{"type", "forever"}})), path + ".type: must be \"ephemeral\"");
  EXPECT_EQ(refused(with(true)), path + ": must be an object");
  Json request = user("q");
  request["documents"] = Json::array({"one"});
  EXPECT_TRUE(prompt(request).kept.empty()) << "documents say nothing about a time";
}

TEST_F(ChatTest, DocumentsStandBeforeTheFirstQuestionOrWhereTheTemplatePutsThem) {
  Json request = user("what?");
  request["messages"].push_back({{"role", "assistant"}, {"content", "this"}});
  request["messages"].push_back({{"role", "user"}, {"content", "why?"}});
  request["documents"] = Json::array({"one", {{"title", "T"}, {"text", "two"}}});
  const Prompt joined = prompt(request);
  EXPECT_NE(text(joined).find("one\nT\ntwo\nwhat?<|im_end|>"), std::string::npos);
  EXPECT_NE(text(joined).find("user\nwhy?<|im_end|>"), std::string::npos);
  ASSERT_EQ(joined.marks.size(), 2u);
  EXPECT_EQ(marked(joined, 0), "one\n");
  EXPECT_EQ(marked(joined, 1), "T\ntwo\n");

  use(kTakesDocuments);
  const Prompt placed = prompt(request);
  EXPECT_EQ(text(placed), "[:one][T:two]what?thiswhy?");
  EXPECT_EQ(placed.documents, DocumentsPlace::kTemplate);
  ASSERT_EQ(placed.marks.size(), 2u);
  EXPECT_EQ(marked(placed, 0), "one");
  EXPECT_EQ(marked(placed, 1), "two");
}

// Clients whose types have optional fields send them as null.
TEST_F(ChatTest, NullCountsAsAbsent) {
  for (const char* source : {"", kTakesDocuments}) {
    use(source);
    Json absent = user("why?");
    absent["messages"][0]["content"] = Json::array({part("a", false), part("b", false)});
    absent["documents"] = Json::array({{{"text", "one"}}});
    Json nulls = absent;
    nulls["documents"][0]["title"] = nullptr;
    nulls["documents"][0]["content"] = nullptr;
    for (const char* name : {"add_generation_prompt", "part_separator", "tools", "chat_template_kwargs"}) {
      nulls[name] = nullptr;
    }
    EXPECT_EQ(refused(nulls), "");
    EXPECT_EQ(prompt(nulls).ids, prompt(absent).ids);
    nulls["documents"][0]["title"] = "T";
    EXPECT_NE(prompt(nulls).ids, prompt(absent).ids) << "power check";
    nulls["documents"][0] = {{"text", nullptr}, {"content", "one"}};
    EXPECT_EQ(prompt(nulls).ids, prompt(absent).ids);
    nulls["documents"] = nullptr;
    absent.erase("documents");
    EXPECT_EQ(refused(nulls), refused(absent));
  }
}

// Where the model wants BOS before a text, ChatML begins with it; a template of its own says so itself.
TEST_F(ChatTest, FallbackBeginsWithBos) {
  constexpr int32_t kBos = 259;
  const auto with = byte_tokenizer({"<|im_start|>", "<|im_end|>", "<s>"}, kBos),
             without = byte_tokenizer({"<|im_start|>", "<|im_end|>", "<s>"});
  const auto ids = [&](const Tokenizer& of, const std::string& source) {
    return ChatPrompts::create(of, source, "<s>", "").value().prompt(user("<s>hi")).value().ids;
  };
  const std::vector<int32_t> plain = ids(*without, "");
  std::vector<int32_t> wanted = plain;
  wanted.insert(wanted.begin(), kBos);
  EXPECT_EQ(ids(*with, ""), wanted);
  EXPECT_EQ(plain.front(), kBegin) << "power";
  EXPECT_EQ(std::ranges::count(ids(*with, ""), kBos), 1) << "a user's text is none";
  const std::string own = "{%- for m in messages -%}<|im_start|>{{ m.content }}{%- endfor -%}";
  EXPECT_EQ(ids(*with, own), ids(*without, own));
  EXPECT_EQ(ChatPrompts::create(*with, own, "<s>", "").value().source(), own);
  EXPECT_NE(ChatPrompts::create(*with, "", "<s>", "").value().source(), "") << "that of the fallback";
}

TEST_F(ChatTest, FallbackTakesToolCallsWithoutContent) {
  Json request = user("why?");
  request["messages"].push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array()}});
  request["messages"].push_back({{"role", "assistant"}, {"tool_calls", Json::array()}});
  request["messages"].push_back({{"role", "tool"}, {"content", "42"}});
  ASSERT_EQ(refused(request), "");
  const std::string turn = "<|im_start|>assistant\n<|im_end|>\n";
  EXPECT_NE(text(prompt(request)).find("why?<|im_end|>\n" + turn + turn + "<|im_start|>tool\n42<|im_end|>"),
            std::string::npos);
  request["messages"][1]["content"] = 5;
  EXPECT_NE(refused(request), "") << "power check: what is no text is refused still";
}

// As transformers do it: what the template writes behind the last message's text is left out.
TEST_F(ChatTest, AnAnswerThatTheClientBeginsGoesOn) {
  Json request = user("why?");
  request["messages"].push_back({{"role", "assistant"}, {"content", "Because "}});
  const std::string ended = "<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\nBecause ";
  EXPECT_EQ(said(prompt(request)), ended + "<|im_end|>\n<|im_start|>assistant\n") << "power";
  request["continue_final_message"] = true;
  EXPECT_EQ(said(prompt(request)), ended);
  request["messages"][1]["content"] = Json::array({part("Because", false), part("it", true)});
  request["documents"] = Json::array({"one"});
  const Prompt parts = prompt(request);
  EXPECT_TRUE(text(parts).ends_with("assistant\nBecause\nit")) << text(parts);
  EXPECT_EQ(marked(parts, 1), "it");
  request.erase("documents");
  request["add_generation_prompt"] = false;
  EXPECT_TRUE(refused(request).empty());
  request["add_generation_prompt"] = true;
  EXPECT_TRUE(refused(request).starts_with("continue_final_message: "));
  request.erase("add_generation_prompt");
  for (const Json& last : {Json{{"role", "user"}, {"content", "x"}}, Json{{"role", "assistant"}, {"content", ""}},
                           Json{{"role", "assistant"}, {"content", nullptr}}}) {
    request["messages"][1] = last;
    EXPECT_TRUE(refused(request).starts_with("continue_final_message: ")) << last;
  }
  request["continue_final_message"] = 1;
  EXPECT_TRUE(refused(request).starts_with("continue_final_message: "));
  use("{%- for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}{{ m.role }}{% endif %}{% endfor -%}");
  EXPECT_FALSE(refused({{"messages", Json::array({{{"role", "user"}, {"content", "q"}},
                                                  {{"role", "assistant"}, {"content", "a"}}})},
                        {"continue_final_message", true}})
                   .empty());
}

// The next turn has the same beginning, and marks keep what they hold.
// OpenAI's clients send null beside calls; Qwen3's template looks for a word in it.
TEST_F(ChatTest, CallsWithoutContentAreReadByEveryTemplate) {
  const Json request =
      Json::parse(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null,
      "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]})");
  const std::string calls = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor -%}";
  use("{%- for m in messages %}{% if 'x' in m.content %}X{% endif %}[{{ m.content }}]" + calls);
  EXPECT_EQ(text(prompt(request)), "[q][]f");
  use("{%- for m in messages %}[{{ 'nothing' if m.content is none else m.content }}]" + calls);
  EXPECT_EQ(text(prompt(request)), "[q][nothing]f") << "power: a template that knows null gets it";
}

// What openai-python's message.model_dump() sends: templates ask whether a member is there, and add contents to texts.
TEST_F(ChatTest, MembersOfAMessageThatSayNothingAreLeftOut) {
  use("{%- for m in messages %}{% if 'tool_calls' in m %}{{ m.tool_calls[0].function.name }}{% endif %}"
      "{% if m.audio is defined %}audio{% endif %}{{ '[' + m.content + ']' }}{% endfor -%}");
  Json request = user("q");
  Json& message = request["messages"][0];
  for (const Json& calls : {Json(), Json::array()}) {
    message["tool_calls"] = calls;
    message["audio"] = nullptr;
    EXPECT_EQ(refused(request), "");
    EXPECT_EQ(text(prompt(request)), "[q]");
  }
  message["content"] = nullptr;  // of a turn that only thought, as /v1/responses makes it
  EXPECT_EQ(text(prompt(request)), "[]");
  message.erase("content");
  EXPECT_EQ(text(prompt(request)), "[]");
  message["audio"] = "x";
  message["content"] = "";
  message["tool_calls"] = Json::parse(R"([{"function": {"name": "f", "arguments": "{}"}}])");
  EXPECT_EQ(text(prompt(request)), "faudio[]") << "power";
}

TEST_F(ChatTest, DocumentsStayWhereTheyWereAsAConversationGrows) {
  Json request = user("why?");
  request["documents"] = Json::array({"one", "two"});
  const std::string first = text(prompt(request));
  EXPECT_EQ(prompt(request).documents, DocumentsPlace::kFirstUserMessage);
  EXPECT_EQ(prompt(user("why?")).documents, DocumentsPlace::kNone) << "power";
  request["messages"].push_back({{"role", "assistant"}, {"content", "so"}});
  request["messages"].push_back({{"role", "user"}, {"content", Json::array({part("and?", true)})}});
  const Prompt second = prompt(request);
  EXPECT_TRUE(text(second).starts_with(first + "so<|im_end|>\n")) << text(second);
  ASSERT_EQ(second.marks.size(), 3u);
  EXPECT_EQ(marked(second, 2), "and?");

  Json none{{"messages", Json::array({{{"role", "system"}, {"content", "rules"}}})}, {"documents", {"one"}}};
  none["messages"].push_back({{"role", "assistant"}, {"content", Json::array({part("greetings", true)})}});
  const Prompt made = prompt(none);
  EXPECT_NE(text(made).find("rules<|im_end|>\n<|im_start|>user\none\n<|im_end|>\n<|im_start|>assistant\ngreetings"),
            std::string::npos)
      << text(made);
  EXPECT_EQ(made.documents, DocumentsPlace::kMadeUserMessage);
  ASSERT_EQ(made.marks.size(), 2u);
  EXPECT_EQ(marked(made, 1), "greetings");
  const Prompt warm = chat->document_prompts(none)->at(0);
  EXPECT_TRUE(text(made).starts_with(text(warm)));
}

// What a mark holds is tokenised by itself: the same ids wherever it is.
TEST_F(ChatTest, WarmingPromptsEndWithTheirDocument) {
  Json request = user("why?");
  request["documents"] = Json::array({"one", "two"});
  const auto warm = chat->document_prompts(request);
  ASSERT_TRUE(warm.ok()) << warm.error().message;
  ASSERT_EQ(warm->size(), 2u);
  const Prompt asked = prompt(request);
  for (size_t i = 0; i < 2; ++i) {
    const Prompt& one = warm->at(i);
    EXPECT_EQ(text(one), std::string("<|im_start|>user\n") + (i == 0 ? "one\n" : "two\n"));
    ASSERT_EQ(one.marks.size(), 1u);
    EXPECT_EQ(one.marks[0].end, static_cast<int32_t>(one.ids.size()));
    EXPECT_EQ(marked(one, 0), marked(asked, i));
  }
  EXPECT_NE(marked(asked, 0), marked(asked, 1)) << "power check";

  request["documents"] = Json::array({"one", ""});
  EXPECT_EQ(chat->document_prompts(user("q")).error().message, "documents: must be an array");
  use(kTakesDocuments);
  const auto empty = chat->document_prompts(request);
  ASSERT_FALSE(empty.ok());
  EXPECT_NE(empty.error().message.find("documents[1]"), std::string::npos) << empty.error().message;
}

TEST_F(ChatTest, WrongRequestsNameThePath) {
  EXPECT_EQ(refused(user("fine")), "") << "power check";
  EXPECT_EQ(refused(Json::array()), "request: must be an object");
  EXPECT_EQ(refused(Json::object()), "messages: must be an array");
  EXPECT_EQ(refused({{"messages", Json::array()}}), "messages: must not be empty");
  EXPECT_EQ(refused({{"messages", Json::array({3})}}), "messages[0]: must be an object");
  EXPECT_EQ(refused({{"messages", Json::array({{{"content", "x"}}})}}), "messages[0].role: must be a string");
  Json wrong = user("");
  wrong["messages"][0]["content"] = Json::array({{{"type", "image_url"}}});
  EXPECT_EQ(refused(wrong), "messages[0].content[0]: only parts of type 'text' are supported");
  wrong = user("q");
  wrong["part_separator"] = std::string(65, ' ');
  EXPECT_EQ(refused(wrong), "part_separator: must be a string of at most 64 bytes");
  use("{%- for m in messages %}{{ m.content }}{% endfor -%}");
  EXPECT_EQ(refused(user("")), "messages: they render to an empty prompt");
}

TEST_F(ChatTest, MarksAreBounded) {
  Json request = user("");
  Json& content = request["messages"][0]["content"] = Json::array();
  for (int i = 0; i < kMaxMarks; ++i)
    content.push_back({{"type", "text"}, {"text", "x"}, {"cache_control", {{"type", "ephemeral"}}}});
  EXPECT_EQ(prompt(request).marks.size(), static_cast<size_t>(kMaxMarks));
  Json with_document = request;
  with_document["documents"] = Json::array({"y"});
  EXPECT_EQ(refused(with_document),
            "documents: 4097 parts are marked as pieces (cache_control, documents); a request may have 4096: mark "
            "fewer, larger ones");
  content.push_back(content.front());
  EXPECT_EQ(refused(request),
            "messages: 4097 parts are marked as pieces (cache_control, documents); a request may have 4096: mark "
            "fewer, larger ones");
}

// A template like Qwen's: it writes an object as JSON, and a string once more in quotes.
constexpr const char* kWritesJson =
    "{%- for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor -%}"
    "{% endfor -%}";
// And like DeepSeek's: what it is given is appended.
constexpr const char* kAppends =
    "{%- for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor -%}"
    "{% endfor -%}";

Json called(const Json& arguments) {
  Json request{{"messages", Json::array({{{"role", "user"}, {"content", "weather?"}}})}};
  Json call{{"id", "1"}, {"type", "function"}, {"function", {{"name", "get"}, {"arguments", arguments}}}};
  request["messages"].push_back({{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}});
  return request;
}

TEST_F(ChatTest, ArgumentsOfACallStandInThePromptAsTheyWereWritten) {
  for (const char* source : {kWritesJson, kAppends}) {
    use(source);
    EXPECT_NE(said(prompt(called(R"({"city": "Paris"})"))).find(R"(get({"city": "Paris"}))"), std::string::npos)
        << source;
  }
  use(kWritesJson);
  EXPECT_EQ(said(prompt(called(R"({"city": "Paris"})"))), said(prompt(called(Json{{"city", "Paris"}}))));
}

// A template that appends arguments to a text fails with an object; clients may send one all the same.
TEST_F(ChatTest, ArgumentsBecomeAStringWhereTheTemplateWantsOne) {
  use(kAppends);
  const std::string object = said(prompt(called(Json{{"city", "Paris"}, {"days", {1, 2}}})));
  EXPECT_NE(object.find(R"(get({"city":"Paris","days":[1,2]}))"), std::string::npos) << object;
  EXPECT_EQ(said(prompt(called(R"({"city":"Paris","days":[1,2]})"))), object);
  for (const Json& nothing : {Json(), Json::object()})
    EXPECT_NE(said(prompt(called(nothing))).find("get({})"), std::string::npos) << nothing;
  EXPECT_NE(said(prompt(called(3))).find("get(3)"), std::string::npos);
  EXPECT_NE(said(prompt(called("{\"a\": [1"))).find("get({\"a\": [1)"), std::string::npos) << "as it was written";
  Json absent = called("");
  absent["messages"][1]["tool_calls"][0]["function"].erase("arguments");
  EXPECT_NE(said(prompt(absent)).find("get({})"), std::string::npos);
}

// This server sends calls that max_tokens cut, and its clients send them back: a template that takes objects gets one.
TEST_F(ChatTest, ArgumentsThatAreNoObjectAreWithinOne) {
  const std::string object = "{\"a\": " + std::string(100, '[') + std::string(100, ']') + "}";  // too deep to be read
  constexpr const char* kTakesObjects =
      "{%- for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}("
      "{% for k, v in c.function.arguments|items %}{{ k }}={{ v }}{% endfor %}){% endfor %}{% endfor -%}";
  for (const Json& text : {Json("not json"), Json("[1]"), Json("3"), Json("{\"a\": [1"), Json(object), Json(3)}) {
    const std::string shown = text.is_string() ? text.get<std::string>() : text.dump();
    use(kWritesJson);
    EXPECT_NE(said(prompt(called(text))).find("get({\"INVALID_JSON\": " + Json(shown).dump() + "})"),
              std::string::npos);
    use(kTakesObjects);
    EXPECT_NE(said(prompt(called(text))).find("get(INVALID_JSON=" + shown + ")"), std::string::npos) << text;
  }
  for (const Json& nothing : {Json(""), Json(" \n"), Json("null"), Json(), Json("{}"), Json::object()})
    EXPECT_NE(said(prompt(called(nothing))).find("get()"), std::string::npos) << nothing;
  EXPECT_NE(said(prompt(called("{\"a\": 1}"))).find("get(a=1)"), std::string::npos) << "power";
}

TEST_F(ChatTest, TheDeveloperIsTheSystemWhereTheTemplateDoesNotKnowIt) {
  Json request = user("q");
  request["messages"] = Json::array({{{"role", "developer"}, {"content", "be brief"}}, request["messages"][0]});
  EXPECT_NE(said(prompt(request)).find("<|im_start|>system\nbe brief"), std::string::npos);
  use("{%- for m in messages %}{{ m.role }}:{{ m.content }};{% endfor -%}{# developer #}");
  EXPECT_EQ(said(prompt(request)), "developer:be brief;user:q;");
}

// Through all that moves contents: reasoning, a late system message, parts that become one text, documents.
TEST_F(ChatTest, MarksStayWhereMessagesBecomeOne) {
  use("{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first!') }}{% endif %}"
      "{% if m.thinking and m.content and m.tool_calls %}{{ raise_exception('one text!') }}{% endif %}"
      "[{{ m.role }}:{{ m.thinking }}{{ m.content }}]{% endfor %}");
  Json request = user("");
  Json& messages = request["messages"];
  messages[0]["content"] = Json::array({part("ask", false), part("alpha", true)});
  messages.push_back({{"role", "system"}, {"content", Json::array({part("beta", true)})}});
  Json calling{{"role", "assistant"}, {"content", Json::array({part("gamma", true)})}, {"reasoning_content", "hm"}};
  calling["tool_calls"] =
      Json::array({{{"id", "1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", Json::object()}}}}});
  messages.push_back(calling);
  messages.push_back({{"role", "tool"}, {"tool_call_id", "1"}, {"content", "done"}});
  messages.push_back({{"role", "assistant"}, {"content", "so"}, {"reasoning_content", "why"}});
  messages.push_back({{"role", "user"}, {"content", "next"}});
  request["documents"] = Json::array({{{"text", "delta"}}});
  const Prompt made = prompt(request);
  EXPECT_EQ(said(made), "[user:delta\nask\nalpha\nbeta][assistant:hm\ngamma][tool:done][assistant:whyso][user:next]");
  ASSERT_EQ(made.marks.size(), 4u);
  EXPECT_EQ(marked(made, 0), "delta\n");
  EXPECT_EQ(marked(made, 1), "alpha");
  EXPECT_EQ(marked(made, 2), "beta");
  EXPECT_EQ(marked(made, 3), "gamma");
}

TEST_F(ChatTest, AMessageThatWouldLeaveNoTraceIsRefused) {
  constexpr const char* kKnowsThree =
      "{%- for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}{{ m.role }}:{{ m.content }};"
      "{% endif %}{% endfor -%}";
  use(kKnowsThree);
  Json request = user("q");
  request["messages"].push_back({{"role", "banana"}, {"content", "hi"}});
  EXPECT_NE(refused(request).find("messages[1].role"), std::string::npos) << refused(request);
  EXPECT_NE(refused(request).find("'banana'"), std::string::npos);
  request["messages"][1]["role"] = "system";
  EXPECT_EQ(refused(request), "");
  request["messages"][1]["role"] = std::string(100, 'x');
  EXPECT_NE(refused(request).find("too long"), std::string::npos);
  use("{%- for m in messages %}{{ m.role }}:{{ m.content }};{% endfor -%}");  // power: this one shows any role
  request["messages"][1]["role"] = "banana";
  EXPECT_EQ(refused(request), "");
  use("{%- for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('only two') }}"
      "{% endif %}{{ m.content }}{% endfor -%}");
  EXPECT_NE(refused(request).find("only two"), std::string::npos) << "the template says it itself";
  use("");
  for (int i = 0; i < 8; ++i) {
    request["messages"].push_back({{"role", "r" + std::to_string(i)}, {"content", "x"}});
    EXPECT_EQ(refused(request) == "", i < 7) << i << ": with the banana eight others";
  }
}

// Nor may a call: the model would be shown a tool's result that nobody asked for.
TEST_F(ChatTest, CallsThatWouldLeaveNoTraceAreRefused) {
  constexpr const char* kShowsNone = "{%- for m in messages %}{{ m.role }}:{{ m.content or '' }};{% endfor -%}";
  use(kShowsNone);
  Json request = called(Json{{"city", "Paris"}});
  const std::string why =
      "messages[1].tool_calls: this model's chat template leaves out an assistant's calls; write them into its content";
  EXPECT_EQ(refused(request), why);
  request["messages"][1]["content"] = nullptr;
  EXPECT_EQ(refused(request), why);
  request["messages"][1]["content"] = Json::array();
  EXPECT_EQ(refused(request), why);
  request["messages"][1]["content"] = "get(Paris)";
  EXPECT_EQ(refused(request), "") << "what it says is shown";
  request["messages"][1] = {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array()}};
  EXPECT_EQ(refused(request), "") << "no calls";
  for (const char* shows : {kWritesJson, kAppends}) {
    use(shows);
    EXPECT_EQ(refused(called(Json{{"city", "Paris"}})), "") << "power: this one shows them";
  }
  use("{%- for m in messages %}{% if m.tool_calls %}{% if not tools %}{{ raise_exception('no tools') }}{% endif %}"
      "{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor -%}");
  EXPECT_NE(refused(called(Json::object())).find("no tools"), std::string::npos) << "the template says it itself";
}

constexpr const char* kCallsByControlTokens =
    "{%- if tools %}{{ tools | tojson }}{% endif -%}"
    "{%- for m in messages %}[U]{{ m.content }}{% for c in m.tool_calls or [] %}[CALL]{{ c.function.name }}[ARGS]"
    "{{ c.function.arguments | tojson }}{% endfor %}{% if m.role == 'assistant' %}</s>{% endif %}{% endfor -%}";

// Which control tokens an answer's reader has to see: those of calls, not the turns', and no end token.
TEST(ChatAnswers, MarkersAreFoundInTheVocabulary) {
  const auto tokenizer = byte_tokenizer({"[U]", "[CALL]", "[ARGS]", "<think>", "</s>"});
  const auto made = ChatPrompts::create(*tokenizer, kCallsByControlTokens, "", "").value();
  EXPECT_EQ(made.answers().calls.form, CallSyntax::Form::kNamed);
  EXPECT_EQ(made.answers().calls.begin, "[CALL]");
  EXPECT_EQ(made.answers().call_ids, (std::vector<int32_t>{258, 259}));
  EXPECT_TRUE(made.answers().reasoning_ids.empty());
  const auto plain = byte_tokenizer({"[U]"});  // where they are plain text
  const auto other = ChatPrompts::create(*plain, kCallsByControlTokens, "", "").value();
  EXPECT_EQ(other.answers().calls.begin, "[CALL]");
  EXPECT_TRUE(other.answers().call_ids.empty());
}

constexpr const char* kMessages =
    "{%- for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}</u>{% else %}"
    "{% if m.thinking %}<a><in>plan<is>{{ m.thinking }}</is>{% endif %}<a><in>say<is>{{ m.content }}</end>{% endif %}"
    "{% endfor -%}{% if add_generation_prompt %}<a>{% endif %}";

// All marks between messages are shown, with tools or without; what ends an answer is not.
TEST(ChatAnswers, MarkersOfMessagesAreFoundInTheVocabulary) {
  const auto tokenizer = byte_tokenizer({"<u>", "</u>", "<a>", "<in>", "<is>", "</is>", "</end>"});
  const auto made = ChatPrompts::create(*tokenizer, kMessages, "", "").value();
  const MessageSyntax& messages = made.answers().messages;
  EXPECT_EQ(messages.channel, "<in>");
  EXPECT_EQ(messages.message, "<is>");
  EXPECT_EQ(messages.reasoning, "plan");
  EXPECT_EQ(messages.answer, "say");
  EXPECT_EQ(messages.end, "</is>");
  EXPECT_FALSE(messages.calls()) << "the template has none";
  std::vector<std::string> shown;
  for (const int32_t id : made.answers().reasoning_ids) shown.emplace_back(tokenizer->token_bytes(id));
  std::ranges::sort(shown);
  EXPECT_EQ(shown, (std::vector<std::string>{"</is>", "<a>", "<in>", "<is>"}));
  EXPECT_TRUE(made.answers().call_ids.empty());
  // Calls, with the recipient before the channel or behind it.
  for (const char* head : {"to=f.{{ c.function.name }}<in>do ", "<in>do to=f.{{ c.function.name }} "}) {
    std::string with = std::string("{% if tools %}{{ tools | tojson }}{% endif %}") + kMessages;
    with.insert(with.find("{% if m.thinking"), std::string("{% if m.tool_calls %}{% set c = m.tool_calls[0] %}<a> ") +
                                                   head +
                                                   "<json><is>{{ c.function.arguments | tojson }}</end>{% else %}");
    with.insert(with.rfind("{% endif %}{% endfor"), "{% endif %}");
    const auto words = byte_tokenizer({"<a>", "<in>", "<is>", "</is>", "<json>"});
    const auto calling = ChatPrompts::create(*words, with, "", "").value();
    const MessageSyntax& found = calling.answers().messages;
    EXPECT_EQ(found.recipient, "to=") << head;
    EXPECT_EQ(found.tools, "f.") << head;
    EXPECT_EQ(found.after_name, "<in>do <json><is>") << head;
    EXPECT_EQ(found.call_end, "</end>") << head;
    EXPECT_EQ(calling.answers().reasoning_ids.size(), 5u) << head;
  }
  // Without a field for thoughts nothing tells one message from another.
  const std::string source = kMessages;
  const auto plain = ChatPrompts::create(
      *tokenizer,
      "{% set m = 0 %}" + source.substr(0, source.find("{% if m.thinking")) + source.substr(source.find("<a><in>say")),
      "", "");
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE(plain.value().answers().messages.known());
}

TEST_F(ChatTest, ThePromptSaysWhetherReasoningIsOpen) {
  use("{%- for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
      "{{ m.content }}{% endfor %}{% if add_generation_prompt and thinking %}<think>\n{% endif %}");
  EXPECT_EQ(chat->answers().reasoning_begin, "<think>");
  EXPECT_EQ(chat->answers().reasoning_end, "</think>");
  Json request = user("hello");
  EXPECT_FALSE(prompt(request).opens_reasoning);
  request["chat_template_kwargs"] = {{"thinking", true}};
  EXPECT_TRUE(prompt(request).opens_reasoning);
  EXPECT_FALSE(prompt(user("what is <think>")).opens_reasoning);  // the client's own words
}

}  // namespace
}  // namespace kvilt

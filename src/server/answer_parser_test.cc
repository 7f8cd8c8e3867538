// Answers read by hand-written syntaxes; every template's own: tests/tool_calls_test.cc.
#include "server/answer_parser.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "server/answers_for_test.h"

namespace kvilt::server {
namespace {

using namespace answers_for_test;

TEST(AnswerParser, ReadsObjects) {
  const auto syntax = hermes();
  EXPECT_EQ(shown(syntax, "hello\n"), "hello\n");
  EXPECT_EQ(shown(syntax, "ok\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\"}}\n</tool_call>"),
            "ok|f({\"a\": \"}\"})|");
  EXPECT_EQ(shown(syntax,
                  "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n\n"
                  "<tool_call>{\"name\":\"g\",\"arguments\":{\"b\":[1]}, \"id\": \"}\"}</tool_call>\n"),
            "|f({})||g({\"b\":[1]})|");
  // The arguments first, none at all, and words after the calls.
  EXPECT_EQ(shown(syntax, "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>"), "|f({\"a\": 1})|");
  EXPECT_EQ(shown(syntax, "<tool_call>{\"name\": \"f\"}</tool_call> done"), "|f({})|done");
}

TEST(AnswerParser, ForgivesWhatModelsForget) {
  const auto syntax = hermes();
  EXPECT_EQ(shown(syntax, "<tool_call>{\"name\": \"f\", \"arguments\": {}"), "|f({})|");
  EXPECT_EQ(shown(syntax, "<tool_call>{\"name\": \"f\", \"arguments\": {}}"), "|f({})|");
  EXPECT_EQ(shown(syntax, "<tool_call>{\"name\": \"f\", \"arguments\": {}\n</tool_call>"), "|f({})|");
  EXPECT_EQ(shown(syntax, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1"), "|f({\"a\": [1)|");
  EXPECT_EQ(shown(tagged(), "<tool_call>\n<function=f>\n<parameter=text>\n5\n</parameter>\n</function>"),
            "|f({\"text\": \"5\"})|");
}

TEST(AnswerParser, GivesBackWhatIsNoCall) {
  for (const auto& syntax : {hermes(), tagged(), named()}) {
    for (const std::string text :
         {"use <tool_call> tags", "<tool_call>", "<tool_call>\n{\"nam", "a <tool_call>{\"x\": 1}</tool_call> b\n",
          "<tool_call>[1]</tool_call>", "1 < 2 <too", "[TOOL_CALLS]", "[TOOL_CALLS]f(x)", "  ",
          "<tool_call>\n<function=>", "\n\nx  ", "<tool_call>\n<function=f>oh", "{\"name\": \"f\", \"arguments\": {}}"})
      EXPECT_EQ(shown(syntax, text), text);
  }
  // A call behind what looked like one.
  EXPECT_EQ(shown(hermes(), "<tool_call> is <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
            "<tool_call> is|f({})|");
  // Without tools in the request a call is text.
  auto off = hermes();
  off.calls = false;
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(shown(off, call), call);
  // A head without an end is bounded, and what follows it is still read.
  const std::string endless = "<tool_call>{\"x\": \"" + std::string(2 * kMaxCallHead, 'x');
  EXPECT_EQ(shown(hermes(), endless + call), endless + "|f({})|");
}

TEST(AnswerParser, ABareObjectIsACallOfAKnownTool) {
  auto bare = hermes();
  bare.syntax.calls.begin = bare.syntax.calls.end = bare.syntax.calls.between = "";
  bare.tools = {{"f", {}}};
  EXPECT_EQ(shown(bare, "{\"name\": \"f\", \"arguments\": {\"a\": 1}}"), "|f({\"a\": 1})|");
  const std::string other = "{\"name\": \"Ann\", \"arguments\": {}}";
  EXPECT_EQ(shown(bare, other), other);
  EXPECT_EQ(shown(bare, "x {\"name\": \"f\", \"arguments\": {}}"), "x {\"name\": \"f\", \"arguments\": {}}");
}

// What models write that leave out the words around a call.
TEST(AnswerParser, AKnownToolsObjectNeedsNoWordsAround) {
  auto syntax = hermes();
  syntax.tools = {{"f", {}}, {"g", {}}};
  const std::string f = "{\"name\": \"f\", \"arguments\": {\"a\": \"```\"}}", g = "{\"name\":\"g\",\"arguments\":{}}";
  const std::string fg = "|f({\"a\": \"```\"})||g({})|";
  EXPECT_EQ(shown(syntax, f + "\n" + g), fg);
  EXPECT_EQ(shown(syntax, "```json\n" + f + "\n" + g + "\n```\n"), fg);
  EXPECT_EQ(shown(syntax, "```\n" + f + "\n```\n```json\n" + g + "```"), fg);
  EXPECT_EQ(shown(syntax, f + "\n</tool_call>\n<tool_call>\n" + g + "</tool_call>"), fg);
  EXPECT_EQ(shown(syntax, "<think>hm</think>```json\n" + f + "```done"), "{hm}|f({\"a\": \"```\"})|done");
  for (const std::string text :
       {"{\"name\": \"h\", \"arguments\": {}}", "{\"name\": \"f\"}", "{\"x\": 1, \"name\": \"f\", \"arguments\": {}}",
        "```python\n{\"name\": \"f\", \"arguments\": {}}\n```", "```", "``", "{", "{}", "[{\"name\": \"f\"}]"})
    EXPECT_EQ(shown(syntax, text), text);
  EXPECT_EQ(shown(syntax, "So: " + f), "So: " + f);  // not at the start
}

// Braces and tags that are there twice, and calls within one pair of tags.
TEST(AnswerParser, TheEndOfACallLeavesNothing) {
  auto syntax = hermes(), bare = hermes(), list = hermes(), name = named();
  bare.syntax.calls.begin = bare.syntax.calls.end = bare.syntax.calls.between = "";
  list.syntax.calls.begin = "[TOOL_CALLS][";
  list.syntax.calls.between = ",";
  list.syntax.calls.end = "]";
  const std::string f = "{\"name\": \"f\", \"arguments\": {}}", g = "{\"name\": \"g\", \"arguments\": {\"a\": 1}}";
  const std::string h = "{\"name\": \"h\", \"arguments\": {}}", fg = "|f({})||g({\"a\": 1})|";
  const std::string tags = "<tool_call>\n<function=f>\n</function>";
  const auto expect = [](AnswerReading reading, const std::string& text, const std::string& wanted) {
    reading.tools.push_back({"f", {}});
    reading.tools.push_back({"g", {}});
    EXPECT_EQ(shown(reading, text), wanted);
    EXPECT_EQ(read(reading, text, 1), read(reading, text)) << text;
  };
  expect(syntax, "<tool_call>\n" + f + "}\n</tool_call>", "|f({})|");
  expect(syntax, "<tool_call>\n" + f + "}} }", "|f({})|");
  expect(syntax, "<tool_call>\n" + f + "}\n</tool_call>\n<tool_call>\n" + g + "\n</tool_call>", fg);
  expect(syntax, "<tool_call>\n" + f + "\n</tool_call></tool_call>\n</tool_call>", "|f({})|");
  expect(syntax, "<tool_call>\n" + f + "\n</tool_call></tool_call>\n<tool_call>\n" + g + "\n</tool_call>", fg);
  expect(syntax, "<tool_call>\n" + f + "\n</tool_call></tool_call>\ndone", "|f({})|done");
  expect(syntax, "<tool_call>\n" + f + "\n" + g + "\n</tool_call>", fg);
  expect(syntax, "<tool_call>\n" + f + "}\n" + g + "}\n</tool_call>", fg);
  expect(bare, f + "}", "|f({})|");
  expect(bare, "```json\n" + f + "}\n```", "|f({})|");
  expect(list, "[TOOL_CALLS][" + f + "}, " + g + "}]]", fg);
  expect(name, "[TOOL_CALLS]f[CALL_ID]a[ARGS]{}}[TOOL_CALLS]g[CALL_ID]b[ARGS]{}", "|fa({})||gb({})|");
  expect(tagged(), tags + "\n</tool_call>\n</tool_call>", "|f({})|");
  expect(tagged(), tags + "</function>\n</tool_call>", "|f({})|");
  // Power: what does not belong to the call is content, and so is what would begin none.
  expect(syntax, "<tool_call>" + f + "} is it", "|f({})|} is it");
  expect(syntax, "<tool_call>" + f + "</tool_call>}", "|f({})|}");
  expect(syntax, "<tool_call>" + f + "</tool_call> </tool", "|f({})|");
  expect(syntax, "<tool_call>" + f + "</tool_call>a</tool_call>", "|f({})|a</tool_call>");
  expect(syntax, "<tool_call>" + f + "\n" + h + "</tool_call>", "|f({})|" + h + "</tool_call>");
  expect(syntax, "<tool_call>" + f + "</tool_call>" + g, "|f({})|" + g);
  expect(list, "[TOOL_CALLS][" + f + "], " + g, "|f({})|, " + g);
  expect(tagged(), tags + "}", "|f({})|}");
}

TEST(AnswerParser, WordsAroundACallStayApart) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  const std::string text = call + " and text " + call + call + " end" + call + " \n";
  EXPECT_EQ(shown(hermes(), text), "|f({})|and text|f({})||f({})|\nend|f({})|");
  EXPECT_EQ(read(hermes(), text, 1), read(hermes(), text));
  EXPECT_EQ(shown(hermes(), "<think>hm</think>" + call + "a <b"), "{hm}|f({})|a <b");  // nothing was said before it
}

// Qwen3-Coder leaves out <tool_call> before a call, and writes it behind.
TEST(AnswerParser, TheLastTagBeginsACallOfAKnownTool) {
  auto syntax = tagged();
  syntax.tools.push_back({"g", {}});
  const auto expect = [&](const std::string& text, const std::string& wanted) {
    EXPECT_EQ(shown(syntax, text), wanted);
    for (const size_t piece : {1, 2, 3, 7}) EXPECT_EQ(read(syntax, text, piece), read(syntax, text)) << text;
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      AnswerParser parser(syntax);
      Events out;
      parser.push(text.substr(0, cut), out);
      parser.push(text.substr(cut), out);
      parser.finish(out);
      EXPECT_EQ(joined(out), read(syntax, text)) << text.substr(0, cut);
    }
  };
  const std::string f = "<function=f>\n<parameter=text>\nZZ\n</parameter>\n</function>", end = "\n</tool_call>";
  const std::string called = "|f({\"text\": \"ZZ\"})|";
  expect(f + end, called);
  expect("I look.\n\n" + f + end, "I look." + called);
  expect("<think>hm</think>\n" + f + end, "{hm}" + called);
  expect(f + end + "\n<tool_call>\n" + f + end, called + called);
  expect(f + "\n<function=g>\n</function>" + end, called + "|g({})|");
  expect("<tool_call>\n" + f + "\n<function=g></function>" + end, called + "|g({})|");
  expect("<tool_call> is\n<function=g>\n</function>" + end + " done", "<tool_call> is|g({})|\ndone");
  // Unknown names and prose are text.
  for (const std::string text :
       {"<function=h>\n<parameter=text>\nZZ\n</parameter>\n</function>", "write <function=f> to call it",
        "<function=", "<function=f", "<function=f>", "<function=f>\n<param", "<function=f g>\n</function>",
        "<function=ff>\n</function>", "<function=f>\n</tool_call>", "function=f>\n</function>"})
    expect(text, text);
  syntax.calls = false;  // the request offered none
  expect(f, f);
  // Only what may become a call is held back.
  syntax.calls = true;
  AnswerParser parser(syntax);
  Events events;
  parser.push("see\n<function=no", events);
  ASSERT_EQ(events.size(), 1u);
  parser.push("body>", events);
  EXPECT_EQ(joined(events)[0].text, "see\n<function=nobody>");
}

TEST(AnswerParser, ReadsNamesAndIds) {
  EXPECT_EQ(shown(named(), "[TOOL_CALLS]f[CALL_ID]abc[ARGS]{\"a\": \"\\\"}\"}[TOOL_CALLS]g[CALL_ID]d[ARGS]{}"),
            "|fabc({\"a\": \"\\\"}\"})||gd({})|");
}

// json.loads, and every client, refuses a line end or a tab within a string.
TEST(AnswerParser, ControlCharactersInArgumentsAreEscaped) {
  auto no_id = named();
  no_id.syntax.calls.has_id = false;
  no_id.syntax.calls.after_name = "[ARGS]";
  const std::string raw = "{\n\t\"a\": \"x\n\ty\\\n\\\\\n\r\x01\x1f\",\r\n \"b\": 1}";
  const std::string clean = R"(x\n\ty\n\\\n\r\u0001\u001f)";
  const std::string wanted = "|f({\n\t\"a\": \"" + clean + "\",\r\n \"b\": 1})|";
  EXPECT_FALSE(Json::accept(raw)) << "power";
  const std::vector<std::pair<AnswerReading, std::string>> answers{
      {hermes(), "<tool_call>{\"name\": \"f\", \"arguments\": " + raw + "}</tool_call>"},
      {hermes(), "<tool_call>{\"arguments\": " + raw + ", \"name\": \"f\"}</tool_call>"},
      {no_id, "[TOOL_CALLS]f[ARGS]" + raw}};
  for (const auto& [reading, text] : answers) {
    EXPECT_EQ(shown(reading, text), wanted);
    EXPECT_EQ(read(reading, text, 1), read(reading, text));
  }
  const std::string arguments = wanted.substr(3, wanted.size() - 5);
  EXPECT_EQ(Json::parse(arguments), Json({{"a", "x\n\ty\n\\\n\r\x01\x1f"}, {"b", 1}}));
  // What is cut within such a string is cut as it was.
  EXPECT_EQ(shown(hermes(), "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny"), "|f({\"a\": \"x\\ny)|");
}

TEST(AnswerParser, ArgumentsThatStandForAnObjectAreOne) {
  const auto call = [](const std::string& arguments, bool first = false) {
    const std::string named = R"("name": "f")", them = R"("arguments": )" + arguments;
    return "<tool_call>{" + (first ? them + ", " + named : named + ", " + them) + "}</tool_call>";
  };
  const std::vector<std::pair<std::string, std::string>> answers{
      {R"("{\"place\": \"Bonn\"}")", R"({"place": "Bonn"})"},
      {R"(" {\"a\": [\"}\"]}\n")", R"({"a": ["}"]})"},
      {R"("{\"a\": \"x\ny\"}")", R"({"a": "x\ny"})"},  // its escape was the string's
      {"\"{\\\"a\\\":\n1}\"", "{\"a\":\n1}"},
      {"null", "{}"},
      {R"("Bonn")", R"("Bonn")"},
      {R"("{\"a\": ")", R"("{\"a\": ")"},
      {R"("{} {}")", R"("{} {}")"},
      {R"("")", R"("")"},
      {"5", "5"},
      {"nullable", "nullable"},
      {R"([{"a": 1}])", R"([{"a": 1}])"}};
  for (const auto& [written, wanted] : answers) {
    for (const bool first : {false, true}) {
      EXPECT_EQ(shown(hermes(), call(written, first)), "|f(" + wanted + ")|");
      EXPECT_EQ(read(hermes(), call(written, first), 1), read(hermes(), call(written, first)));
    }
  }
  // What was cut within them is no JSON, and what the model forgot to end is forgiven.
  const std::string begin = R"(<tool_call>{"name": "f", "arguments": )";
  EXPECT_EQ(shown(hermes(), begin + "null"), "|f({})|");
  for (const std::string text : {"null", "5", R"("{\"a\": \"x)"}) {
    const std::string cut = shown(hermes(), begin + text, true);
    ASSERT_TRUE(cut.starts_with("|f(") && cut.ends_with(")|")) << cut;
    EXPECT_FALSE(Json::accept(cut.substr(3, cut.size() - 5))) << cut;
  }
  // Until it is whole nothing of such a string is sent.
  AnswerParser parser(hermes());
  Events events;
  parser.push(begin + R"("{\"place\": \"Bonn\"})", events);
  ASSERT_EQ(events.size(), 1u);
  parser.push("\"", events);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].text, R"({"place": "Bonn"})");
}

TEST(AnswerParser, ArgumentsUnderAnotherKeyAreFound) {
  const auto call = [](const std::string& members) { return "<tool_call>\n{" + members + "}\n</tool_call>"; };
  const auto expect = [&](const std::string& members, const std::string& wanted) {
    EXPECT_EQ(shown(hermes(), call(members)), wanted);
    EXPECT_EQ(read(hermes(), call(members), 1), read(hermes(), call(members)));
  };
  expect(R"("name": "f", "parameters": {"place": "Bonn"})", R"(|f({"place": "Bonn"})|)");
  expect(R"("input": {"a": "}"}, "name": "f")", R"(|f({"a": "}"})|)");
  expect(R"("type": "function", "name": "f", "args": {"a": 1}, "id": "x")", R"(|f({"a": 1})|)");
  expect("\"name\": \"f\", \"args\": {\"a\": \"x\ny\"}", R"(|f({"a": "x\ny"})|)");
  expect(R"("name": "f")", "|f({})|");
  // The key that is expected is the one that counts, wherever it comes.
  expect(R"("name": "f", "meta": {"a": 1}, "arguments": {"b": 2})", R"(|f({"b": 2})|)");
  expect(R"("meta": {"a": 1}, "arguments": {"b": 2}, "name": "f")", R"(|f({"b": 2})|)");
  // Which of two they are, or whether they are there, nobody can tell.
  for (const std::string members : {R"("name": "f", "a": {}, "b": {})", R"("name": "f", "place": "Bonn")",
                                    R"("name": "f", "parameters": [1])", R"("parameters": {"a": 1})"})
    expect(members, call(members));
  // A tool that is described looks the same, where no words around it say that it is called.
  auto known = hermes();
  known.tools = {{"f", {}}};
  const std::string described = R"({"name": "f", "parameters": {"type": "object"}})";
  EXPECT_EQ(shown(known, described), described);
}

TEST(AnswerParser, TagsBecomeJsonByTheSchema) {
  const std::string head = "<tool_call>\n<function=f>\n", tail = "</function>\n</tool_call>";
  const auto value = [&](const char* key, const std::string& text) {
    return shown(tagged(), head + "<parameter=" + key + ">\n" + text + "\n</parameter>\n" + tail);
  };
  EXPECT_EQ(value("text", "5"), "|f({\"text\": \"5\"})|");
  EXPECT_EQ(value("number", "5"), "|f({\"number\": 5})|");
  EXPECT_EQ(value("number", "True"), "|f({\"number\": true})|");
  EXPECT_EQ(value("number", "five"), "|f({\"number\": \"five\"})|");
  // A string that may be null stays one; the strict grammar writes it in quotes.
  for (const std::string key : {"may", "json"}) {
    for (const std::string text : {"2024", "true", "[1]", "x", "\"x", "\"x\" y", "nullable"})
      EXPECT_EQ(value(key.c_str(), text), "|f({\"" + key + "\": " + dump(Json(text)) + "})|");
    EXPECT_EQ(value(key.c_str(), "\"5\\n\""), "|f({\"" + key + "\": \"5\\n\"})|");
  }
  EXPECT_EQ(value("may", "null"), "|f({\"may\": null})|");
  EXPECT_EQ(value("may", "None"), "|f({\"may\": null})|");
  EXPECT_EQ(value("json", "null"), "|f({\"json\": \"null\"})|");
  EXPECT_EQ(value("text", "\n\"x\"\n"), "|f({\"text\": \"\\n\\\"x\\\"\\n\"})|");
  // An end tag within a value ends it only where the format goes on behind it.
  EXPECT_EQ(value("text", "a</parameter>b"), "|f({\"text\": \"a</parameter>b\"})|");
  EXPECT_EQ(value("text", "a</parameter></function>b").find("|f({\"text\": \"a\"})|"), 0u);
  EXPECT_EQ(shown(tagged(), head + tail), "|f({})|");
}

// Agents run calls whose arguments are JSON: what max_tokens cut must be none, wherever that was.
TEST(AnswerParser, ACutCallIsNoJson) {
  const std::string whole =
      "<tool_call>\n<function=f>\n<parameter=text>\na\n</parameter>\n<parameter=number>\n5\n"
      "</parameter>\n</function>\n</tool_call>";
  const std::string empty = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
  int cuts = 0;
  for (const std::string& text : {whole, empty}) {
    for (size_t size = 0; size <= text.size(); ++size) {
      std::string arguments, content;
      for (const AnswerEvent& event : read(tagged(), text.substr(0, size), std::string::npos, true)) {
        if (event.kind == Kind::kArguments) arguments += event.text;
        if (event.kind == Kind::kContent) content += event.text;
      }
      if (!content.empty() || size == 0) continue;  // no call was begun
      const bool ended = text.substr(0, size).find("</function>") != std::string::npos;
      EXPECT_EQ(Json::accept(arguments), ended) << text.substr(0, size) << "\n" << arguments;
      cuts += !ended;
    }
  }
  EXPECT_GT(cuts, 20) << "power";
  const std::string between = whole.substr(0, whole.find("<parameter=number"));
  EXPECT_EQ(shown(tagged(), between, true), "|f({\"text\": \"a\")|");
  EXPECT_EQ(shown(tagged(), between), "|f({\"text\": \"a\"})|") << "power: a model that forgot the end is forgiven";
}

TEST(AnswerParser, SplitsReasoning) {
  const auto syntax = hermes();
  EXPECT_EQ(shown(syntax, "<think>\nhm\n</think>\n\nyes"), "{hm}yes");
  EXPECT_EQ(shown(syntax, "<think>\n\n</think>\n\nyes"), "yes");
  EXPECT_EQ(shown(syntax, "so <think>hm</think>"), "so <think>hm</think>");  // at the start only
  EXPECT_EQ(shown(syntax, "<think>never ends"), "{never ends}");
  EXPECT_EQ(shown(syntax, "<think>hm</think><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
            "{hm}|f({})|");
  auto open = syntax;
  open.in_reasoning = true;
  EXPECT_EQ(shown(open, "hm</think>yes"), "{hm}yes");
  EXPECT_EQ(shown(syntax, "hm</think>yes"), "hm</think>yes");  // nothing had opened it
}

// Texts of pieces that mean something: cut anywhere, they are read as the whole.
TEST(AnswerParser, ChunkedEqualsWhole) {
  const std::vector<std::string> words{"<tool_call>",
                                       "</tool_call>",
                                       "\n",
                                       " ",
                                       "{\"name\": \"f\", ",
                                       "\"arguments\": {\"a\": \"}\\\"\"}",
                                       "}",
                                       "{",
                                       "x",
                                       "<function=",
                                       "f",
                                       ">",
                                       "<parameter=",
                                       "text",
                                       ">\n",
                                       "\n</parameter>\n",
                                       "</function>",
                                       "[TOOL_CALLS]",
                                       "[CALL_ID]",
                                       "[ARGS]",
                                       "{}",
                                       "<think>",
                                       "</think>",
                                       "\xc3\xa9",
                                       "<",
                                       "\"",
                                       "]",
                                       ",",
                                       "```json",
                                       "``",
                                       "`",
                                       "</",
                                       "<function=f>",
                                       "\"other\": {\"b\": 1}",
                                       "\"arguments\": ",
                                       "\"{\\\"a\\\":1}\"",
                                       "null",
                                       "\"x\ny\""};
  std::mt19937 random(1);
  int calls = 0, plain = 0;
  for (int round = 0; round < 3000; ++round) {
    AnswerReading syntax = round % 3 == 0 ? hermes() : round % 3 == 1 ? tagged() : named();
    if (round % 2) syntax.tools.push_back({"f", {}});
    std::string text;
    for (size_t n = random() % 14; n > 0; --n) text += words[random() % words.size()];
    if (random() % 2) text.insert(random() % (text.size() + 1), "<tool_call>\n<function=f>\n<parameter=text>\nx");
    const Events whole = read(syntax, text);
    for (const size_t piece : {1, 2, 3, 7}) {
      ASSERT_EQ(read(syntax, text, piece), whole) << text;
      ASSERT_EQ(read(syntax, text, piece, true), read(syntax, text, std::string::npos, true)) << text;
    }
    const bool called = std::ranges::any_of(whole, [](const AnswerEvent& e) { return e.kind != Kind::kContent; });
    calls += called;
    plain += !called;
    const size_t first = std::min(text.find_first_not_of(" \n"), text.size());
    if (!called && text.compare(first, 7, "<think>") != 0) {  // a thought that holds nothing leaves nothing
      ASSERT_EQ(shown(syntax, text), text);
    }
  }
  EXPECT_GT(calls, 100);
  EXPECT_GT(plain, 100);
}

TEST(AnswerParser, StreamsArgumentsAndHoldsMarkersBack) {
  AnswerParser parser(hermes());
  Events events;
  parser.push("one <tool", events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "one");  // the space before a call is none of the content
  parser.push("_call>{\"name\": \"f\", \"arguments\": {\"a\"", events);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].kind, Kind::kCallStart);
  EXPECT_EQ(events[2].text, "{\"a\"");
  parser.push(": 1}", events);
  EXPECT_EQ(events[3].text, ": 1}");
  EXPECT_EQ(events[4].kind, Kind::kCallEnd);
}

TEST(AnswerParser, ToolShapes) {
  const auto shapes = tool_shapes(Json::parse(R"([
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties":
      {"a": {"type": "string"}, "b": {"type": ["string", "null"]}, "c": {"type": "number"}, "d": true,
       "e": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "f": {"enum": ["1", "2"]}, "g": {"const": "1"},
       "h": {"oneOf": [{"const": "a"}, {"type": "string"}]}, "i": {"enum": ["1", null]}, "j": {"type": ["string"]},
       "k": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "l": {"enum": ["1", 2]}, "m": {"type": "null"},
       "n": {"anyOf": [{"anyOf": [{"type": "string"}]}, {"enum": [null]}]}, "o": {"type": "string", "enum": [null, "x"]},
       "p": {}, "q": {"anyOf": 5}, "r": {"enum": 5}, "s": {"type": ["string", "number"]}}}}},
    {"name": "g"}, 3, {"function": {"parameters": {}}}, {"function": {"name": "h", "parameters": {"properties": []}}}])"));
  ASSERT_EQ(shapes.size(), 3u);
  const auto kPlain = TextForm::kPlain, kJson = TextForm::kMaybeJson, kNull = TextForm::kMaybeNull;
  EXPECT_EQ(shapes[0].texts, (std::map<std::string, TextForm>{{"a", kPlain},
                                                              {"b", kNull},
                                                              {"e", kNull},
                                                              {"f", kPlain},
                                                              {"g", kPlain},
                                                              {"h", kJson},
                                                              {"i", kNull},
                                                              {"j", kJson},
                                                              {"n", kNull},
                                                              {"o", kNull}}));
  EXPECT_EQ(shapes[1].name, "g");
}

}  // namespace
}  // namespace kvilt::server

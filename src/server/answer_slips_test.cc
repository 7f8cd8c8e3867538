// What models get nearly right, and what only looks like it, read by hand-written syntaxes; see answer_parser_test.cc.
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "server/answers_for_test.h"

namespace kvilt::server {
namespace {

using namespace answers_for_test;

const std::string kTaggedCall = "<function=f>\n<parameter=text>\nX\n</parameter>\n</function>";
const std::string kTaggedShown = "|f({\"text\": \"X\"})|";
const std::string kObject = "{\"name\": \"f\", \"arguments\": {}}";

// Cohere's Command R writes its calls into a fence of its own.
AnswerReading in_fence() {
  AnswerReading out = hermes();
  CallSyntax& calls = out.syntax.calls;
  calls.begin = "Action: ```json\n[";
  calls.between = ",";
  calls.end = "]\n```";
  return out;
}

void expect_read(const AnswerReading& reading, const std::string& text, const std::string& wanted) {
  EXPECT_EQ(shown(reading, text), wanted);
  for (const size_t piece : {1, 2, 3, 7}) EXPECT_EQ(read(reading, text, piece), read(reading, text)) << text;
}

TEST(AnswerSlips, ProseThatShowsACallIsContent) {
  for (const std::string& text :
       {"To call it I would write: ```\n" + kTaggedCall + "\n```", "It is:\n```xml\n" + kTaggedCall + "\n```\n",
        "~~~\n" + kTaggedCall + "\n~~~", "````\n```\n" + kTaggedCall + "\n```\n````\n",
        "```\n~~~\n" + kTaggedCall + "\n```", "write " + kTaggedCall, "- " + kTaggedCall, "`" + kTaggedCall + "`",
        std::string("\0\0\0 ", 4) + kTaggedCall, "<tool_call> is " + kTaggedCall + "\n</tool_call> done"})
    expect_read(tagged(), text, text);
  // Power: at the start, behind a line end, behind a call, and behind a fence that was closed.
  const std::pair<std::string, std::string> calls[] = {
      {" \n " + kTaggedCall, kTaggedShown},
      {"<think>so: ```</think>" + kTaggedCall, "{so: ```}" + kTaggedShown},
      {"It is:\n" + kTaggedCall, "It is:" + kTaggedShown},
      {"Like ```x``` this ~~~\n" + kTaggedCall, "Like ```x``` this ~~~" + kTaggedShown},
      {"```sh\nls ``\n```\n" + kTaggedCall, "```sh\nls ``\n```" + kTaggedShown},
      {"~~~~\n```\n~~~~\n" + kTaggedCall, "~~~~\n```\n~~~~" + kTaggedShown},
      {std::string("\0\0\0\n", 4) + kTaggedCall, std::string("\0\0\0", 3) + kTaggedShown},
      {kTaggedCall + " " + kTaggedCall, kTaggedShown + kTaggedShown},
      {"```\n<tool_call>\n" + kTaggedCall + "\n</tool_call>\n" + kTaggedCall + "\n```\nor\n" + kTaggedCall,
       "```" + kTaggedShown + kTaggedShown + "\n```\nor" + kTaggedShown}};
  for (const auto& [text, wanted] : calls) expect_read(tagged(), text, wanted);
}

TEST(AnswerSlips, WordsAroundAFunctionAreNoArguments) {
  auto reading = hermes();
  reading.tools = {{"now", {}}, {"get", {{"id", TextForm::kPlain}}}};
  const auto expect = [&](const std::string& members, const std::string& wanted) {
    expect_read(reading, "<tool_call>{" + members + "}</tool_call>", wanted);
  };
  const auto expect_text = [&](const std::string& members) {
    expect(members, "<tool_call>{" + members + "}</tool_call>");
  };
  expect(R"("name": "now", "type": "function")", "|now({})|");
  expect(R"("name": "now", "id": "1")", "|now({})|");
  expect(R"("type": "function", "id": "1", "name": "other")", "|other({})|");
  expect(R"("name": "get", "id": "1", "args": {"id": "2"})", R"(|get({"id": "2"})|)");
  expect(R"("name": "get", "type": "function")", "|get({})|");
  // Power: what may be arguments is not left out.
  expect_text(R"("name": "get", "id": "1")");
  expect_text(R"("name": "now", "type": "clock")");
  expect_text(R"("name": "now", "id": 1)");
  expect_text(R"("name": "now", "id": "1", "place": "Bonn")");
}

TEST(AnswerSlips, AFenceThatEndsACallIsTakenOnce) {
  const std::string begin = "Action: ```json\n[", end = "]\n```";
  expect_read(in_fence(), begin + kObject + end + "\n```python\nx\n```", "|f({})|```python\nx\n```");
  expect_read(in_fence(), begin + kObject + end + "\n" + begin + kObject + end + "\n```sh", "|f({})||f({})|```sh");
  expect_read(in_fence(), begin + kObject + "]\n```\n]", "|f({})|");  // tags come again
  expect_read(in_fence(), begin + kObject + "]" + end, "|f({})|");
  expect_read(hermes(), "<tool_call>" + kObject + "</tool_call></tool_call>\n```", "|f({})|```");
}

TEST(AnswerSlips, BracesWithoutEndAreContent) {
  const std::string call = "<tool_call>\n" + kObject;
  const std::string most(256, '}'), more(257, '}');
  std::string spaced;
  for (int i = 0; i < 200; ++i) spaced += "} ";
  expect_read(hermes(), call + most, "|f({})|");
  expect_read(hermes(), call + most.substr(1) + "\n</tool_call>x", "|f({})|x");
  expect_read(hermes(), call + std::string(300, ' ') + most + "</tool_call>", "|f({})|");
  for (const std::string& text : {more, more + "</tool_call>", spaced, more + "\n<tool_call> x"})
    expect_read(hermes(), call + text, "|f({})|" + text);
  // No more is held back.
  AnswerParser parser(hermes());
  Events events;
  parser.push(call + most, events);
  ASSERT_EQ(joined(events).size(), 3u);
  parser.push("}", events);
  ASSERT_EQ(joined(events).size(), 4u);
  EXPECT_EQ(joined(events)[3].text, more);
}

// Any text, in any pieces, says what it says as a whole.
TEST(AnswerSlips, AnyPiecesAreTheWhole) {
  const std::vector<std::string> words{"```",
                                       "````",
                                       "`",
                                       "~~~",
                                       "\n",
                                       " ",
                                       "x",
                                       "and ",
                                       "\r\n",
                                       kTaggedCall,
                                       kTaggedCall,
                                       "<tool_call>\n",
                                       "<tool_call>",
                                       "</tool_call>",
                                       "</function>",
                                       "<function=",
                                       "<function=f>",
                                       "\n</function>",
                                       kObject,
                                       kObject,
                                       "{\"name\": \"f\", \"type\": \"function\"}",
                                       "{\"name\": \"f\", \"id\": \"1\"}",
                                       "}",
                                       std::string(130, '}'),
                                       "]",
                                       "Action: ```json\n[",
                                       "Action:",
                                       ",",
                                       "<think>hm</think>",
                                       "[TOOL_CALLS]f[CALL_ID]a[ARGS]{}",
                                       "{",
                                       "\n```\n",
                                       "<tool_call>" + kObject + "</tool_call>"};
  const AnswerReading readings[] = {hermes(), tagged(), named(), in_fence()};
  std::mt19937 random(28);
  int calls = 0, apart = 0, marks = 0;
  for (int round = 0; round < 6000; ++round) {
    AnswerReading reading = readings[round % 4];
    if (round % 8 < 6) reading.tools = {{"f", {{"text", TextForm::kPlain}}}};
    std::string text;
    for (size_t n = random() % 12; n > 0; --n) text += words[random() % words.size()];
    const bool cut = random() % 4 == 0;
    const Events whole = read(reading, text, std::string::npos, cut);
    for (const size_t most : {2, 9, 60}) {
      AnswerParser parser(reading);
      Events events;
      for (size_t at = 0; at < text.size();) {
        const size_t size = std::min(text.size() - at, 1 + random() % most);
        parser.push(std::string_view(text).substr(at, size), events);
        at += size;
      }
      parser.finish(events, cut);
      ASSERT_EQ(joined(events), whole) << text;
    }
    for (const AnswerEvent& event : whole) {
      calls += event.kind == Kind::kCallStart;
      apart += event.apart;
      marks += event.kind == Kind::kContent && event.text.find(kTaggedCall) != std::string::npos;
    }
  }
  EXPECT_GT(calls, 300) << "power";
  EXPECT_GT(apart, 100) << "power";
  EXPECT_GT(marks, 100) << "power";
}

}  // namespace
}  // namespace kvilt::server

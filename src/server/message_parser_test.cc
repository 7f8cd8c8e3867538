// Answers made of messages, as gpt-oss writes them; that the syntax is found: tests/tool_calls_test.cc.
#include "server/message_parser.h"

#include <gtest/gtest.h>

#include "server/answer_parser.h"
#include "server/harmony_for_test.h"

namespace kvilt::server {
namespace {

using EventKind = AnswerEvent::Kind;

const std::string kThought = "<|channel|>analysis<|message|>thinking", kNext = "<|end|><|start|>assistant",
                  kFinal = "<|channel|>final<|message|>";

AnswerReading harmony() {
  AnswerReading out;
  out.calls = true;
  out.syntax.tools = true;
  out.syntax.messages = harmony_syntax();
  out.tools = {{"f", {}}};
  return out;
}

AnswerParser::Events events_of(const AnswerReading& reading, std::string_view text, size_t piece, bool cut) {
  AnswerParser parser(reading);
  AnswerParser::Events out;
  for (size_t at = 0; at < text.size(); at += std::min(piece, text.size() - at))
    parser.push(text.substr(at, piece), out);
  parser.finish(out, cut);
  return joined(out);
}

// content | {reasoning} | f(arguments); "cuts differ" where pieces of a few bytes say something else.
std::string said(const AnswerReading& reading, std::string_view text, bool cut = false) {
  const auto whole = events_of(reading, text, text.size() + 1, cut);
  for (const size_t piece : {1, 2, 3, 7, 20}) {
    if (events_of(reading, text, piece, cut) != whole) return "cuts differ";
  }
  std::string out;
  for (const AnswerEvent& event : whole) {
    if (event.kind == EventKind::kContent) out += event.text;
    if (event.kind == EventKind::kReasoning) out += "{" + event.text + "}";
    if (event.kind == EventKind::kCallStart) out += "|" + event.text + "(";
    if (event.kind == EventKind::kArguments) out += event.text;
    if (event.kind == EventKind::kCallEnd) out += ")|";
  }
  return out;
}

TEST(MessageParser, ReadsThoughtsAndText) {
  const auto reading = harmony();
  EXPECT_EQ(said(reading, kThought + kNext + kFinal + "text<|return|>"), "{thinking}text");
  EXPECT_EQ(said(reading, kThought + kNext + kFinal + "text"), "{thinking}text");  // an end token is no text
  EXPECT_EQ(said(reading, kFinal + " text\n"), " text\n");
  EXPECT_EQ(said(reading, kThought), "{thinking}");
  EXPECT_EQ(said(reading, kThought + "<|end|>"), "{thinking}");
  EXPECT_EQ(said(reading, kThought + kNext + "<|channel|>fin"), "{thinking}") << "a header that is cut says nothing";
  EXPECT_EQ(said(reading, ""), "");
  // A preamble is content; two of a kind are two paragraphs.
  EXPECT_EQ(said(reading, "<|channel|>commentary<|message|>First" + kNext + kFinal + "text"), "First\n\ntext");
  EXPECT_EQ(said(reading, kThought + kNext + kThought), "{thinking\n\nthinking}");
}

TEST(MessageParser, ReadsCalls) {
  const auto reading = harmony();
  const std::string call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}";
  EXPECT_EQ(said(reading, call), "|f({\"a\":1})|");
  EXPECT_EQ(said(reading, call + "<|call|>"), "|f({\"a\":1})|");
  EXPECT_EQ(said(reading, kThought + kNext + call), "{thinking}|f({\"a\":1})|");
  EXPECT_EQ(said(reading, kThought + kNext + "<|channel|>commentary<|message|>I look." + kNext + call),
            "{thinking}I look.|f({\"a\":1})|");
  // To whom it goes may stand before the channel, or close to a mark; kinds of content may be missing.
  for (const char* header :
       {" to=functions.f<|channel|>commentary json<|message|>", "to=functions.f<|channel|>commentary<|message|>",
        "<|channel|>commentary to=functions.f<|constrain|>json<|message|>",
        "<|channel|>analysis to=functions.f<|message|>", "<|channel|>commentary to=f json<|message|>"})
    EXPECT_EQ(said(reading, header + std::string("{\"a\":1}")), "|f({\"a\":1})|") << header;
  EXPECT_EQ(said(reading, call + kNext + call), "|f({\"a\":1})||f({\"a\":1})|");
  // One that ended without arguments has empty ones, which clients can parse; one that was cut has none.
  const std::string bare = call.substr(0, call.size() - 7);
  EXPECT_EQ(said(reading, bare), "|f({})|");
  EXPECT_EQ(said(reading, bare + "<|call|>"), "|f({})|");
  EXPECT_EQ(said(reading, bare + kNext + call), "|f({})||f({\"a\":1})|");
  EXPECT_EQ(said(reading, bare, true), "|f()|");
  EXPECT_EQ(said(reading, call.substr(0, call.size() - 2)), "|f({\"a\":)|");
}

TEST(MessageParser, ControlCharactersInArgumentsAreEscaped) {
  EXPECT_EQ(said(harmony(), "<|channel|>commentary to=functions.f json<|message|>{\n\"a\": \"x\ny\\\n\"}"),
            "|f({\n\"a\": \"x\\ny\\n\"})|");
}

TEST(MessageParser, WhatLooksLikeAMarkIsText) {
  const auto reading = harmony();
  for (const std::string text : {"a <|end|> b", "<|start|>assistant", "<|channel|>final<|message|>x", "a <|return|> b",
                                 "<|call|> it", "<|en", "<", "to=functions.f"})
    EXPECT_EQ(said(reading, kFinal + text), text);
  const std::string arguments = R"({"a":"}<|end|><|start|>assistant<|channel|>final<|message|><|call|>\""})";
  EXPECT_EQ(said(reading, "<|channel|>commentary to=functions.f json<|message|>" + arguments + "<|call|>"),
            "|f(" + arguments + ")|");
}

TEST(MessageParser, WhatIsNoMessageIsContent) {
  const auto reading = harmony();
  for (const std::string text : {"plain", "  plain", "to be", "to=functions.f", "<|chan", " ", "{\"a\":1}"})
    EXPECT_EQ(said(reading, text), text);
  const std::string endless = "<|channel|>" + std::string(2 * kMaxMessageHeader, 'x');
  EXPECT_EQ(said(reading, endless), endless);
}

TEST(MessageParser, OnlyToolsOfTheRequestAreCalled) {
  auto reading = harmony();
  const std::string other = "<|channel|>commentary to=python code<|message|>1 + 1";
  EXPECT_EQ(said(reading, other), other);
  EXPECT_EQ(said(reading, "<|channel|>analysis to=python code<|message|>1 + 1"), "{1 + 1}");
  const std::string text = "<|channel|>commentary to=functions.f<|message|>no JSON";
  EXPECT_EQ(said(reading, text), text);
  reading.calls = false;  // it offered none
  const std::string call = "<|channel|>commentary to=functions.f<|message|>{\"a\":1}";
  EXPECT_EQ(said(reading, call), call);
}

}  // namespace
}  // namespace kvilt::server

// server/answers_for_test.h: syntaxes written by hand, and answers read by them, for the tests of AnswerParser.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "server/answer_parser.h"
#include "server/tagged_for_test.h"

namespace kvilt::server::answers_for_test {

using Kind = AnswerEvent::Kind;
using Events = AnswerParser::Events;

inline AnswerReading hermes() {
  AnswerReading out;
  out.calls = true;
  out.syntax.tools = true;
  out.syntax.reasoning_begin = "<think>";
  out.syntax.reasoning_end = "</think>";
  CallSyntax& calls = out.syntax.calls;
  calls.form = CallSyntax::Form::kObject;
  calls.begin = "<tool_call>";
  calls.end = "</tool_call>";
  calls.between = "</tool_call>\n<tool_call>";
  calls.name_key = "name";
  calls.arguments_key = "arguments";
  return out;
}

inline AnswerReading tagged() {
  AnswerReading out = hermes();
  out.syntax.calls = tagged_calls();
  out.tools = {{"f", {{"text", TextForm::kPlain}, {"json", TextForm::kMaybeJson}, {"may", TextForm::kMaybeNull}}}};
  return out;
}

inline AnswerReading named() {
  AnswerReading out = hermes();
  CallSyntax& calls = out.syntax.calls;
  calls = {};
  calls.form = CallSyntax::Form::kNamed;
  calls.begin = calls.between = "[TOOL_CALLS]";
  calls.after_name = "[CALL_ID]";
  calls.has_id = true;
  calls.after_id = "[ARGS]";
  return out;
}

inline Events read(const AnswerReading& reading, std::string_view text, size_t piece = std::string::npos,
                   bool cut = false) {
  AnswerParser parser(reading);
  Events out;
  for (size_t at = 0; at < text.size(); at += std::min(piece, text.size() - at))
    parser.push(text.substr(at, piece), out);
  parser.finish(out, cut);
  return joined(out);
}

// content | {reasoning} | f(arguments), joined as they came, with the line end of words that go on behind a call.
inline std::string shown(const AnswerReading& reading, std::string_view text, bool cut = false) {
  std::string out;
  for (const AnswerEvent& event : read(reading, text, std::string::npos, cut)) {
    if (event.kind == Kind::kContent) out += (event.apart ? "\n" : "") + event.text;
    if (event.kind == Kind::kReasoning) out += "{" + event.text + "}";
    if (event.kind == Kind::kCallStart) out += "|" + event.text + event.id + "(";
    if (event.kind == Kind::kArguments) out += event.text;
    if (event.kind == Kind::kCallEnd) out += ")|";
  }
  return out;
}

}  // namespace kvilt::server::answers_for_test

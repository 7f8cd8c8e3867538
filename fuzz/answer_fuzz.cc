// What a model says, read for tool calls and reasoning: two bytes choose how its template writes them and where the text
// is cut, the rest is the text. However it is cut, it says the same; and every call that begins also ends.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "server/answer_parser.h"
#include "server/harmony_for_test.h"
#include "server/message_parser.h"
#include "text/unicode.h"

using namespace kvilt;
using namespace kvilt::server;

namespace {

using Kind = AnswerEvent::Kind;

AnswerReading reading(uint8_t which) {
  AnswerReading out;
  out.syntax.reasoning_begin = "<think>";
  out.syntax.reasoning_end = "</think>";
  out.calls = (which & 4) == 0;
  out.in_reasoning = (which & 8) != 0;
  out.tools = {{"f", {{"a", TextForm::kPlain}, {"b", TextForm::kMaybeNull}}}, {"g", {}}};
  CallSyntax& calls = out.syntax.calls;
  switch (which & 3) {
    case 0:
      calls = {.form = CallSyntax::Form::kObject,
               .begin = "<tool_call>",
               .between = "</tool_call>\n<tool_call>",
               .end = "</tool_call>",
               .name_key = "name",
               .arguments_key = "arguments",
               .id_key = "",
               .after_name = "",
               .after_id = "",
               .has_id = false,
               .key_begin = "",
               .key_end = "",
               .other_key_end = "",
               .value_end = ""};
      break;
    case 1:
      calls = {.form = CallSyntax::Form::kObject,
               .begin = "",
               .between = "",
               .end = "",
               .name_key = "name",
               .arguments_key = "parameters",
               .id_key = "id",
               .after_name = "",
               .after_id = "",
               .has_id = false,
               .key_begin = "",
               .key_end = "",
               .other_key_end = "",
               .value_end = ""};
      break;
    case 2:
      calls = {.form = CallSyntax::Form::kNamed,
               .begin = "[TOOL_CALLS]",
               .between = "[TOOL_CALLS]",
               .end = "",
               .name_key = "",
               .arguments_key = "",
               .id_key = "",
               .after_name = "[CALL_ID]",
               .after_id = "[ARGS]",
               .has_id = true,
               .key_begin = "",
               .key_end = "",
               .other_key_end = "",
               .value_end = ""};
      break;
    default:
      calls = {.form = CallSyntax::Form::kTagged,
               .begin = "<tool_call>\n<function=",
               .between = "</function>\n</tool_call>\n<tool_call>\n<function=",
               .end = "</function>\n</tool_call>",
               .name_key = "",
               .arguments_key = "",
               .id_key = "",
               .after_name = ">",
               .after_id = "",
               .has_id = false,
               .key_begin = "<parameter=",
               .key_end = ">\n",
               .other_key_end = ">\n",
               .value_end = "\n</parameter>\n"};
  }
  return out;
}

template <class Parser>
AnswerParser::Events read_with(const AnswerReading& reading, std::string_view text, size_t piece) {
  Parser parser(reading);
  AnswerParser::Events out;
  for (size_t at = 0; at < text.size(); at += piece) parser.push(text.substr(at, piece), out);
  parser.finish(out);
  return joined(out);
}

AnswerParser::Events read(uint8_t which, std::string_view text, size_t piece) {
  AnswerReading how = reading(which);
  if ((which & 16) == 0) return read_with<AnswerParser>(how, text, piece);
  how.syntax.messages = harmony_syntax();
  return read_with<MessageParser>(how, text, piece);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (!is_utf8(text)) return 0;
  const AnswerParser::Events whole = read(data[0], text, std::max<size_t>(1, text.size()));
  CHECK(whole == read(data[0], text, 1));
  CHECK(whole == read(data[0], text, size_t{2} + data[1] % 31));
  const auto count = [&](Kind kind) { return std::ranges::count(whole, kind, &AnswerEvent::kind); };
  CHECK(count(Kind::kCallStart) == count(Kind::kCallEnd));
  return 0;
}

// server/answer_event.h: what an answer's text says, piece by piece, and what a request says about how to read it.
// Role: plain data between the readers of answers (answer_parser.h, message_parser.h) and the APIs' writers.
#pragma once

#include <string>
#include <vector>

#include "kvilt/answer_syntax.h"
#include "server/tool_shapes.h"

namespace kvilt::server {

struct AnswerEvent {
  enum class Kind { kContent, kReasoning, kCallStart, kArguments, kCallEnd };
  Kind kind = Kind::kContent;
  std::string text;       // a piece of content, reasoning or arguments; kCallStart: the name
  int call = -1;          // of calls: 0, 1, ...
  std::string id;         // kCallStart: where the text has it before the arguments
  bool inferred = false;  // kCallEnd: the text ended before the call did
  bool custom = false;    // of a call of a custom tool: what kArguments have is its input, a text
  bool apart = false;     // kContent: a call came since the last one. Who joins these puts a line end between them
  bool operator==(const AnswerEvent&) const = default;
};

// Where what a model thought goes: apart from the content, into it as the model wrote it, or nowhere.
enum class Thoughts { kApart, kInContent, kLeftOut };

struct AnswerReading {
  AnswerSyntax syntax;
  bool calls = false;         // tools were offered
  bool in_reasoning = false;  // the prompt opened it (Prompt::opens_reasoning)
  Thoughts thoughts = Thoughts::kApart;
  std::vector<ToolShape> tools = {};
  std::vector<std::string> custom_tools = {};  // names (custom_tools.h)
};

}  // namespace kvilt::server

// kvilt/constraint.h: what an answer must be: JSON, one of some words, a text of a grammar, or calls of tools.
// Role:   plain data of the public interface. The engine lets through only tokens that can still lead to such a text, and
//         ends the answer where nothing can follow.
// Limits: a constraint from outside is bounded in size, nesting and time (docs/design/constraints.md); an answer that
//         max_tokens, a stop text or a full context cuts is the beginning of such a text.
#pragma once

#include <string>
#include <vector>

namespace kvilt {

struct Constraint {
  enum class Form {
    kNone,
    kJson,     // any JSON object
    kSchema,   // text: a JSON Schema
    kRegex,    // text: a regular expression that the whole answer matches
    kGrammar,  // text: EBNF as llama.cpp's, with the rule `root`; or Lark, told by its first rule (`name: ...`)
    kChoice,   // one of `choices`
    kCalls,    // calls of `tools`, as the model's chat template writes them (ModelInfo::answers)
  };
  struct Tool {
    std::string name;
    std::string parameters;  // a JSON Schema; empty: any object
    // kRegex or kGrammar (Lark): the tool has one parameter, the string "input", and that is a text of `input`.
    Form input_form = Form::kNone;
    std::string input = {};
    bool operator==(const Tool&) const = default;
  };

  Form form = Form::kNone;
  std::string text = {};
  std::vector<std::string> choices = {};
  std::vector<Tool> tools = {};
  bool one_call = false;   // kCalls: never more than one
  bool may_speak = false;  // kCalls: text may come before them, and no call too; what begins like a call is one
  // The answer of a chat: where the model thinks (AnswerSyntax), what it must be begins behind that.
  bool reasons = false;

  explicit operator bool() const { return form != Form::kNone; }
  bool operator==(const Constraint&) const = default;
};

}  // namespace kvilt

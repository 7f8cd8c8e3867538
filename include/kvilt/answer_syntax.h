// kvilt/answer_syntax.h: how a model writes tool calls and reasoning into its answers, as its chat template shows them.
// Role:   plain data of the public interface (ModelInfo::answers): the engine finds it, whoever reads answers uses it.
// Format: the strings are the template's own words around names, keys and values. Space at the ends of begin, between
//         and end means nothing and is left out; a run of it inside them stands for any run, and for none. Beside keys
//         and values of tags it is kept, since it is no part of the value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvilt {

struct CallSyntax {
  enum class Form {
    kNone,    // calls are not known
    kObject,  // {"name": NAME, "arguments": {...}}: one JSON object a call
    kNamed,   // NAME after_name {...}, or NAME after_name ID after_id {...}: the arguments alone are JSON
    kTagged   // NAME after_name, then key_begin KEY key_end VALUE value_end for each parameter
  };
  Form form = Form::kNone;
  std::string begin;    // before the first call; empty: the call is the whole answer (kObject only)
  std::string between;  // from the end of a call to the next one's object, or name; empty: one call an answer
  std::string end;      // after the last call
  std::string name_key, arguments_key, id_key;  // kObject; no id_key: the calls have no ids
  std::string after_name, after_id;             // kNamed and kTagged
  bool has_id = false;                          // an id stands between after_name and after_id
  // kTagged. other_key_end: of values that are no strings; the same as key_end where the format does not tell them.
  std::string key_begin, key_end, other_key_end, value_end;

  // kTagged: the last tag of begin, which models write without the others; empty: it has no others.
  std::string_view last_begin() const {
    const size_t at = form == Form::kTagged ? begin.find_last_of("<[") : std::string::npos;
    return at == 0 || at == std::string::npos ? std::string_view{} : std::string_view(begin).substr(at);
  }
};

// Answers that are messages, each behind a header that says what it is (gpt-oss's harmony). The prompt ends within the
// first header: [recipient NAME] channel WORD [recipient NAME] [kind] message TEXT, then `next` and another header.
struct MessageSyntax {
  std::string channel, message;         // around the word; message empty: answers are no such messages
  std::string next;                     // from a message's text to the next header; it begins with `end`
  std::string end, last_end, call_end;  // behind a text: of any message, of the last one, of a call
  std::string reasoning, answer;        // the channel's words of what the model thinks, and says
  std::string recipient, tools;         // "to=", "functions.": before a tool's name; empty: calls are not known
  std::string after_name;               // from a tool's name to its arguments, as the template writes it

  bool known() const { return !message.empty(); }
  bool calls() const { return known() && !recipient.empty(); }
  bool operator==(const MessageSyntax&) const = default;
};

struct AnswerSyntax {
  bool tools = false;                          // the template has a place for them
  std::string reasoning_begin, reasoning_end;  // empty: not known
  CallSyntax calls;
  MessageSyntax messages;  // where known: calls and reasoning are these, and nothing else
  // The vocabulary's control tokens among these words. They are in an answer's text only where a request asks for them
  // (SamplingParams::shown_ids).
  std::vector<int32_t> reasoning_ids, call_ids;
};

}  // namespace kvilt

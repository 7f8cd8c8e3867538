// server/call_head.h: a tool call in an answer's text up to where its arguments begin, read ahead.
// Idea:       whether text is a call is known behind its name; until then it is held back. Each way in which a call may
//             begin is a function of the text from there on, and of whether more may come.
// Forgives:   an object without the key of arguments has them under another one, if a single other member is an object.
//             One with no member beside its name, an id and `"type": "function"` is a call without arguments.
// Invariants: pure. At most kMaxCallHead bytes are held back, and whether a head is too long depends on the text alone,
//             not on how much of it is here.
// Cost:       O(head), each time that it is asked for.
// Not here:   what stands before and behind a head (answer_parser.h).
#pragma once

#include <string>
#include <string_view>

#include "server/answer_event.h"

namespace kvilt::server {

inline constexpr size_t kMaxCallHead = 8192;  // from behind the words that begin a call to the end of its name

enum class Verdict { kNo, kMore, kYes };  // kMore: it depends on text that is not here yet

struct CallHead {
  Verdict verdict = Verdict::kNo;
  size_t size = 0;
  std::string name, id, arguments;  // arguments: where an object has them before the name, or under another key
  bool arguments_follow = false;
  bool bare = false, fenced = false;  // without the words around it
};

class CallHeads {
 public:
  // The reading must outlive this.
  explicit CallHeads(const AnswerReading& reading) : reading_(reading), syntax_(reading.syntax.calls) {}

  // Behind the words that begin a call. final: no more text comes. cut: the answer would have gone on.
  CallHead marked(std::string_view text, bool final, bool cut) const;
  // Behind the last tag of these words alone (CallSyntax::last_begin): prose may name it, so the tool must be known,
  // and a parameter or the call's end must follow.
  CallHead half_marked(std::string_view text, bool final) const;
  // An object without such words, in a fence or not: it must name a known tool, since nothing else says what it is.
  CallHead bare(std::string_view text, bool final) const;

 private:
  CallHead read_object(std::string_view text, bool bare) const;
  CallHead read_named(std::string_view text, bool known_only) const;
  bool knows_tool(const std::string& name) const;
  bool takes_text(const std::string& name, const std::string& parameter) const;

  const AnswerReading& reading_;
  const CallSyntax& syntax_;
};

}  // namespace kvilt::server

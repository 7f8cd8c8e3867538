// grammar/lark_tokens.h: a Lark grammar's text as words and signs, and the terminals that %import common brings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/lark_pattern.h"
#include "kvilt/result.h"

namespace kvilt {

struct LarkToken {
  enum class Kind { kName, kString, kPattern, kNumber, kDirective, kSign, kLineEnd, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;  // of strings what they mean; of signs one of ( ) [ ] { } | * + ? ! ~ : . , -> ..
  LarkFlags flags;   // of strings and patterns
  int line = 0;
};

// Ends with kEnd. Errors name the line.
Result<std::vector<LarkToken>> lark_tokens(std::string_view text);

// The expression of a terminal of Lark's library `common`, or null.
const char* common_terminal(std::string_view name);
std::string common_terminals();  // their names, for messages

}  // namespace kvilt

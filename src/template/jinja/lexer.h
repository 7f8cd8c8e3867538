// template/jinja/lexer.h: cuts a template into text and tokens.
// Source:     Jinja 3.1's documented syntax, with trim_blocks and lstrip_blocks on and keep_trailing_newline off, as
//             transformers sets its environment.
// Invariants: positions count lines and code points of the source from 1; newlines are "\n" afterwards.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "template/jinja/meter.h"

namespace kvilt::jinja {

enum class TokenKind {
  kData,           // text between tags
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // data, name, operator; the value of a string; digits of a number without '_'
  Position at;
};

// Fails (Fault with a position) for unbalanced brackets, open tags and strings, and characters that start no token.
std::vector<Token> tokenize(std::string_view source);

}  // namespace kvilt::jinja

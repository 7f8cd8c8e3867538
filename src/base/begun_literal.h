// base/begun_literal.h: how much of a text's end may become a literal when more text comes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace kvilt {

// The longest end of the text that begins the literal, in bytes; all of the literal where the text ends with it.
inline size_t begun_literal(std::string_view text, std::string_view literal) {
  size_t size = std::min(text.size(), literal.size());
  while (size > 0 && !text.ends_with(literal.substr(0, size))) --size;
  return size;
}

}  // namespace kvilt

// base/json_scan.h: where a JSON value ends, byte by byte.
// Idea:       brackets are counted outside of strings, and strings know their escapes. The grammar is not checked: what
//             has an end here may still be no JSON.
// Invariants: the state has a fixed size, whatever the text; a value that is cut anywhere goes on with the next byte.
// Threads:    one per scan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvilt {

class JsonScan {
 public:
  enum class Step {
    kInside,  // the byte belongs to the value, or to the space before it
    kLast,    // it is the value's last
    kPast,    // the value (a number or a word) ended before it
    kWrong    // no value begins so
  };

  JsonScan() = default;
  // Of the rest of an object whose brace was read.
  static JsonScan inside_object() {
    JsonScan scan;
    scan.depth_ = 1;
    return scan;
  }

  Step take(char c) {
    if (in_string_) return take_in_string(c);
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (in_word_) return space || c == ',' || c == '}' || c == ']' ? Step::kPast : Step::kInside;
    if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      if (depth_ == 0) return Step::kWrong;
      if (--depth_ == 0) return Step::kLast;
    } else if (depth_ == 0 && !space) {
      const bool starts = c == '-' || (c >= '0' && c <= '9') || c == 't' || c == 'f' || c == 'n';
      if (!starts) return Step::kWrong;
      in_word_ = true;
    }
    return Step::kInside;
  }

  // Where the next byte is.
  bool in_string() const { return in_string_; }
  bool escaped() const { return escaped_; }  // behind a backslash of a string

 private:
  Step take_in_string(char c) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      if (depth_ == 0) return Step::kLast;
    }
    return Step::kInside;
  }

  int64_t depth_ = 0;
  bool in_string_ = false, escaped_ = false, in_word_ = false;
};

// One past the value at the text's start, space before it included; none: it has no end here, or there is no value.
inline std::optional<size_t> json_end(std::string_view text) {
  JsonScan scan;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (scan.take(text[i])) {
      case JsonScan::Step::kInside:
        break;
      case JsonScan::Step::kLast:
        return i + 1;
      case JsonScan::Step::kPast:
        return i;
      case JsonScan::Step::kWrong:
        return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace kvilt

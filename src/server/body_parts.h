// server/body_parts.h: a body that holds many documents, taken apart one by one: lines of JSON, or files of a form.
// Idea:       the body is read whole, within the limits of every body; what is made of it at a time is one part.
//             The library's own reader of forms is not used: it matches their heads with a recursive regex.
// Invariants: next() ends, whatever the bytes are; a part that cannot be read says why, and the others are read all the
//             same, as far as the form still has a boundary.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"

namespace kvilt::server {

class BodyParts {
 public:
  enum class Kind { kLines, kForm };
  struct Part {
    size_t number = 0;       // of the line (empty ones count), or of the form's part, from 1 on
    std::string name, file;  // of a form: the field's, and its file's
    bool is_file = false;
    std::string_view content;  // of the body
    std::string wrong;         // why it cannot be read; empty: nothing is wrong
  };

  // By a Content-Type; nullopt: neither. A form needs a boundary: without one open() refuses.
  static std::optional<Kind> kind_of(std::string_view type);
  // REQUIRES: kind_of(type). body: must outlive it.
  static ApiResult<BodyParts> open(std::string_view type, std::string_view body);

  Kind kind() const { return kind_; }
  std::optional<Part> next();

 private:
  BodyParts(Kind kind, std::string boundary, std::string_view body);
  std::optional<Part> next_line();
  std::optional<Part> next_of_form();
  Part broken(const char* why);

  Kind kind_;
  std::string delimiter_;  // of a form, with the line break before it
  std::string_view left_;
  size_t number_ = 0;
};

}  // namespace kvilt::server

#include "server/body_parts.h"

#include <strings.h>

#include <algorithm>

namespace kvilt::server {
namespace {

constexpr size_t kMostHead = 4096;    // bytes of what a form says of one part
constexpr size_t kMostBoundary = 70;  // RFC 2046 5.1.1

bool starts_with_word(std::string_view text, std::string_view word) {
  return text.size() >= word.size() && strncasecmp(text.data(), word.data(), word.size()) == 0;
}

std::string_view without_blanks(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Takes `; name=value` or `; name="value"` from the front. False: there is none.
bool take_param(std::string_view& text, std::string& name, std::string& value) {
  text = without_blanks(text);
  if (text.empty() || text.front() != ';') return false;
  text = without_blanks(text.substr(1));
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return false;
  name = without_blanks(text.substr(0, equals));
  text = without_blanks(text.substr(equals + 1));
  value.clear();
  if (text.empty() || text.front() != '"') {
    const size_t end = std::min(text.find(';'), text.size());
    value = without_blanks(text.substr(0, end));
    text.remove_prefix(end);
    return true;
  }
  size_t at = 1;
  for (; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\' && at + 1 < text.size()) ++at;
    value += text[at];
  }
  text.remove_prefix(std::min(at + 1, text.size()));
  return true;
}

std::string boundary_of(std::string_view type) {
  std::string name, value;
  std::string_view params = type.substr(std::min(type.find(';'), type.size()));
  while (take_param(params, name, value)) {
    if (name.size() == 8 && starts_with_word(name, "boundary")) return value;
  }
  return {};
}

// A part's head: what its field is called, and its file.
void read_head(std::string_view head, BodyParts::Part& part) {
  while (!head.empty()) {
    const size_t end = std::min(head.find("\r\n"), head.size());
    std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(end + 2, head.size()));
    if (!starts_with_word(line, "Content-Disposition:")) continue;
    line.remove_prefix(std::min(line.find(';'), line.size()));
    std::string name, value;
    while (take_param(line, name, value)) {
      if (name == "name") part.name = value;
      if (name != "filename") continue;
      part.file = value;
      part.is_file = true;
    }
  }
}

}  // namespace

std::optional<BodyParts::Kind> BodyParts::kind_of(std::string_view type) {
  const std::string_view media = without_blanks(type.substr(0, std::min(type.find(';'), type.size())));
  const auto is = [&](std::string_view word) { return media.size() == word.size() && starts_with_word(media, word); };
  if (is("application/x-ndjson") || is("application/jsonl")) return Kind::kLines;
  if (is("multipart/form-data")) return Kind::kForm;
  return std::nullopt;
}

BodyParts::BodyParts(Kind kind, std::string boundary, std::string_view body)
    : kind_(kind), delimiter_("\r\n--" + std::move(boundary)), left_(body) {}

ApiResult<BodyParts> BodyParts::open(std::string_view type, std::string_view body) {
  const Kind kind = kind_of(type).value_or(Kind::kLines);
  if (kind == Kind::kLines) return BodyParts(kind, {}, body);
  std::string boundary = boundary_of(type);
  if (boundary.empty() || boundary.size() > kMostBoundary)
    return ApiError{400, "Content-Type: multipart/form-data needs a boundary of 1 to 70 characters", "", ""};
  BodyParts out(kind, std::move(boundary), body);
  // The first boundary may stand at the very beginning; what is before it says nothing.
  const std::string_view first = std::string_view(out.delimiter_).substr(2);
  const size_t at = body.starts_with(first) ? 0 : body.find(out.delimiter_);
  if (at == std::string_view::npos)
    return ApiError{400, "the body has no part of a form: the boundary of its Content-Type is not in it", "", ""};
  out.left_.remove_prefix(at == 0 && body.starts_with(first) ? first.size() : at + out.delimiter_.size());
  return out;
}

std::optional<BodyParts::Part> BodyParts::next() { return kind_ == Kind::kLines ? next_line() : next_of_form(); }

std::optional<BodyParts::Part> BodyParts::next_line() {
  while (!left_.empty()) {
    const size_t end = std::min(left_.find('\n'), left_.size());
    std::string_view line = left_.substr(0, end);
    left_.remove_prefix(std::min(end + 1, left_.size()));
    ++number_;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Part part;
    part.number = number_;
    part.content = line;
    return part;
  }
  return std::nullopt;
}

// Nothing behind it can be told apart.
BodyParts::Part BodyParts::broken(const char* why) {
  left_ = {};
  Part part;
  part.number = number_;
  part.wrong = why;
  return part;
}

// REQUIRES: left_ begins behind a boundary, or is empty.
std::optional<BodyParts::Part> BodyParts::next_of_form() {
  if (left_.empty() || left_.starts_with("--")) return std::nullopt;
  ++number_;
  const size_t line = left_.find("\r\n");
  if (line == std::string_view::npos || !without_blanks(left_.substr(0, line)).empty())
    return broken("behind a boundary of the form there is no new line");
  left_.remove_prefix(line);  // so that a part without a head begins with an empty line too
  const size_t head = left_.substr(0, kMostHead).find("\r\n\r\n");
  if (head == std::string_view::npos) return broken("the head of a part of the form does not end within 4,096 bytes");
  const size_t end = left_.find(delimiter_, head + 2);
  if (end == std::string_view::npos) return broken("the form ends without its last boundary");
  Part part;
  part.number = number_;
  if (head > 0) read_head(left_.substr(2, head - 2), part);
  if (end >= head + 4) part.content = left_.substr(head + 4, end - head - 4);
  left_.remove_prefix(end + delimiter_.size());
  return part;
}

}  // namespace kvilt::server

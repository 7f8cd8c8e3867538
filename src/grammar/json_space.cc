#include "grammar/json_space.h"

#include <algorithm>

namespace kvilt {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool opens(char c) { return c == '{' || c == '['; }
bool closes(char c) { return c == '}' || c == ']'; }

constexpr size_t kMostKept = 256;  // bytes of white space: more than any habit

}  // namespace

void JsonSpace::read(std::string_view text) {
  for (const char c : text) read(c);
}

void JsonSpace::read(char c) {
  if (in_string_) {
    in_string_ = escaped_ || c != '"';
    escaped_ = !escaped_ && c == '\\';
    return;
  }
  if (is_space(c)) {
    if (space_.size() < kMostKept) space_ += c;
    return;
  }
  learn(c);
  if (opens(c)) {
    if (++depth_ <= 64) arrays_ = (arrays_ & ~(uint64_t{1} << (depth_ - 1))) | uint64_t{c == '['} << (depth_ - 1);
  } else if (closes(c)) {
    depth_ = std::max(0, depth_ - 1);
  }
  in_string_ = c == '"';
  last_ = c;
  space_.clear();
}

JsonSpace::Place JsonSpace::place(char next) const {
  if (closes(next)) return opens(last_) ? kNone : kClose;
  return opens(last_) ? kOpen : last_ == ',' ? kComma : last_ == ':' ? kColon : kNone;
}

// `next` follows the white space.
void JsonSpace::learn(char next) {
  const Place at = place(next);
  if (at == kNone) return;
  const size_t line = space_.rfind('\n');
  const bool lines = line != std::string::npos;
  const auto spaces = static_cast<int>(space_.size() - (lines ? line + 1 : 0));
  habits_[in_array()][at] = {true, lines, lines ? 0 : spaces};
  const int level = depth_ - (at == kClose ? 1 : 0);
  if (lines && level > 0 && spaces % level == 0) unit_ = spaces / level;
}

// What was not seen yet is as what goes with it.
JsonSpace::Habit JsonSpace::habit(Place place) const {
  const auto& here = habits_[in_array()];
  if (here[place].known) return here[place];
  if (place == kColon) return {true, false, 1};
  if (place == kComma) return here[kOpen].line ? here[kOpen] : habit(kColon);
  return here[kOpen];
}

std::string JsonSpace::before(char next) const {
  const Place at = place(next);
  if (in_string_ || at == kNone) return {};
  const Habit wanted = habit(at);
  const int level = std::max(0, depth_ - (at == kClose ? 1 : 0));
  std::string out = wanted.line ? "\n" + std::string(static_cast<size_t>(unit_ * level), ' ')
                                : std::string(static_cast<size_t>(wanted.spaces), ' ');
  if (!out.starts_with(space_)) return {};
  return out.substr(space_.size());
}

}  // namespace kvilt

// grammar/json_space.h: the white space of a JSON text, learned as it is written: on one line or many, and how far in.
// Idea:       after a bracket, a comma and a colon, and before a bracket that closes, in objects and in arrays, a text
//             writes what it wrote there before. Until that is seen: one line, as most programs write it.
// Invariants: a guess: it may be wrong, also about text that is no JSON.
// Threads:    one at a time. Copied freely: small.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvilt {

class JsonSpace {
 public:
  void read(std::string_view text);  // what the text goes on with
  // The white space that is still to come before this byte, as the text was written so far.
  std::string before(char next) const;
  // Whether it follows from what was written at such a place. A place has none, where no bracket, comma or colon is.
  bool is_place(char next) const { return !in_string_ && place(next) != kNone; }
  bool seen(char next) const { return is_place(next) && habits_[in_array()][place(next)].known; }
  // The last byte that is not space; a string's are all '"'.
  char last() const { return last_; }

 private:
  enum Place : uint8_t { kOpen, kComma, kColon, kClose, kPlaces, kNone = kPlaces };
  struct Habit {
    bool known = false, line = false;  // line: a new one begins
    int spaces = 0;                    // without one
  };
  Place place(char next) const;
  Habit habit(Place place) const;
  bool in_array() const { return depth_ > 0 && depth_ <= 64 && (arrays_ >> (depth_ - 1) & 1u); }
  void learn(char next);
  void read(char c);

  bool in_string_ = false, escaped_ = false;
  char last_ = 0;
  int depth_ = 0;
  uint64_t arrays_ = 0;  // which of the open brackets are
  std::string space_;    // since last_
  int unit_ = 2;         // spaces a level
  std::array<std::array<Habit, kPlaces>, 2> habits_;
};

}  // namespace kvilt

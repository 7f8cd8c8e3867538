// server/input_text.h: the text that a custom tool is called with, out of the JSON that the model writes, as it comes.
// Idea:       the model was told of one parameter, the string `input`: between its quotes each piece is known at once.
//             Arguments that begin in another way are read when they are whole; what has no such string is the input
//             itself, as it was written: nothing of it is lost.
// Invariants: a function of the arguments, however they were cut. An escape that JSON does not know stays as it is.
// Cost:       O(bytes).
#pragma once

#include <string>
#include <string_view>

namespace kvilt::server {

class InputText {
 public:
  // More of the arguments; the text that is known by them.
  std::string push(std::string_view arguments);
  // The arguments are whole, or the answer ended within them; the rest of the text.
  std::string finish();

 private:
  enum class State { kHead, kText, kDone, kOther };

  void read_head();
  void read_text(std::string& out);

  State state_ = State::kHead;
  std::string held_;  // not understood yet
};

}  // namespace kvilt::server

// server/call_place.h: whether a call that lacks some of its words may begin where an answer's content has come to.
// Idea:       prose shows calls too, within a line or in a code fence, and these must not be run. So such a call stands
//             at the content's start, behind another call, or behind a line end outside of fences.
// Fences:     a run of three or more backticks opens one, anywhere in a line, since models write "like this: ```"; one
//             of tildes does at a line's start, since prose has them too. As long a run of the same sign ends it.
// Invariants: a function of the content, however it was cut.
// Cost:       O(bytes).
#pragma once

#include <cstddef>
#include <string_view>

#include "server/literal_match.h"

namespace kvilt::server {

class CallPlace {
 public:
  void take(std::string_view content) {
    for (const char c : content) take(c);
  }
  // A call stood here.
  void take_call() {
    end_run();
    untouched_ = blank_line_ = true;
  }
  bool open() const { return untouched_ || (line_start_ && fence_ == 0); }

 private:
  static constexpr size_t kLeastFence = 3;

  void take(char c) {
    if (run_ > 0 && c != sign_) end_run();
    if (run_ > 0) {
      ++run_;
    } else if (c == '`' || (c == '~' && blank_line_)) {
      sign_ = c;
      run_ = 1;
    }
    line_start_ = c == '\n' || c == '\r';
    blank_line_ = line_start_ || (blank_line_ && is_space(c));
    untouched_ = untouched_ && is_space(c);
  }

  // A run of signs ended.
  void end_run() {
    if (fence_ == 0 && run_ >= kLeastFence) {
      fence_ = run_;
      fence_sign_ = sign_;
    } else if (fence_ > 0 && sign_ == fence_sign_ && run_ >= fence_) {
      fence_ = 0;
    }
    run_ = 0;
  }

  bool untouched_ = true;   // nothing but space since the content's start, or the last call
  bool line_start_ = true;  // the last byte was a line end
  bool blank_line_ = true;  // nothing but space since then
  char sign_ = 0;           // of the run of backticks or tildes that is read
  size_t run_ = 0;
  char fence_sign_ = 0;
  size_t fence_ = 0;  // length of the run that opened the fence; 0: none is open
};

}  // namespace kvilt::server

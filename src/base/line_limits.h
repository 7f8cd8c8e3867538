// base/line_limits.h: where an answer ends by its lines: at one that is indented less than it must be, or with the first
// that is whole after a time.
// Role:   what completions of code are bounded by (llama.cpp's n_indent and t_max_predict_ms): a line of an outer block is
//         no part of them, and after the time whole lines are worth more than the rest.
// Limits: an empty line has no indentation, so it ends an answer as well, as in llama.cpp.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace kvilt {

class LineLimits {
 public:
  LineLimits() = default;
  // min_indent: blanks or tabs with which every line begins but the first, which goes on from the prompt; 0: none.
  // seconds: from the first call of ends(); less than 0: any time.
  LineLimits(int min_indent, double seconds) : min_indent_(min_indent), seconds_(seconds) {}

  // What came since the last call is `text` from `begin` on. True: the answer ends with it. What is behind the end is cut
  // off: a line that is indented less, up to its blanks.
  bool ends(std::string& text, size_t begin) {
    if (min_indent_ <= 0 && seconds_ < 0) return false;
    const auto now = std::chrono::steady_clock::now();
    if (!start_) start_ = now;
    bool line = false;
    for (size_t at = begin; at < text.size(); ++at) {
      const bool blank = text[at] == ' ' || text[at] == '\t';
      if (indent_ && blank) {
        ++*indent_;
      } else if (indent_ && *indent_ < min_indent_) {
        text.resize(at);
        return true;
      } else {
        indent_.reset();
        if (text[at] == '\n') indent_ = 0;
        line |= text[at] == '\n';
      }
    }
    return line && seconds_ >= 0 && now - *start_ >= std::chrono::duration<double>(seconds_);
  }

 private:
  int min_indent_ = 0;
  double seconds_ = -1;
  std::optional<std::chrono::steady_clock::time_point> start_;
  std::optional<int> indent_;  // blanks so far of a line that has nothing else yet
};

}  // namespace kvilt

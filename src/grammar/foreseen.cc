#include "grammar/foreseen.h"

#include <bitset>
#include <string_view>

#include "base/work_clock.h"

namespace kvilt {
namespace {

constexpr double kPatience = .003;  // seconds of work; 20 bytes take some 25 us
constexpr std::string_view kSpace = " \n\r\t";

// One answer's text, byte by byte.
class Walk {
 public:
  Walk(GrammarMatcher& matcher, const JsonSpace& space) : matcher_(matcher), space_(space) {}

  Result<Foreseen> run() {
    for (bool more = true; more && out_.text.size() < kMostForeseen;) {
      if (matcher_.may_end()) break;
      out_.late = time_.passed();
      if (out_.late) break;
      KVILT_ASSIGN(more, step());
    }
    out_.late = out_.late || time_.passed();  // by its last step, too
    out_.open = !matcher_.may_end();
    if (taken_ > 0) matcher_.rollback(taken_);
    return std::move(out_);
  }

 private:
  // False: there is a choice.
  Result<bool> step() {
    KVILT_ASSIGN(std::bitset<256> bytes, matcher_.next_bytes());
    // A line feed may not stand in JSON's strings: where it may come, white space separates words.
    const bool separates = bytes['\n'];
    if (separates) {
      for (const char c : kSpace) bytes.reset(static_cast<unsigned char>(c));
    }
    const bool one = bytes.count() == 1;
    const char next = one ? static_cast<char>(bytes._Find_first()) : '0';
    if (!separates) {
      if (!one) return false;
      return take({&next, 1});
    }
    if (!one && space_.last() != ':' && space_.last() != ',') return false;
    if (space_.is_place(next)) out_.guesses.push_back({out_.text.size(), space_.seen(next)});
    if (const std::string before = space_.before(next); !before.empty()) {
      KVILT_ASSIGN(const bool taken, take(before));
      if (!taken) return false;
    }
    if (!one) return false;
    return take({&next, 1});
  }

  Result<bool> take(std::string_view text) {
    KVILT_ASSIGN(const bool taken, matcher_.accept_text(text));
    if (!taken) return false;
    ++taken_;
    out_.text += text;
    space_.read(text);
    return true;
  }

  WorkLimit time_{kPatience};
  GrammarMatcher& matcher_;
  JsonSpace space_;
  Foreseen out_;
  int taken_ = 0;
};

}  // namespace

Result<Foreseen> foresee(GrammarMatcher& matcher, const JsonSpace& space) { return Walk(matcher, space).run(); }

}  // namespace kvilt

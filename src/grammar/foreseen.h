// grammar/foreseen.h: the text that a grammar lets follow, where it leaves no choice but of white space.
// Idea:       at `"name` only `":` may follow, whatever the model says; engines that jump forward write such text without
//             asking it (SGLang's compressed automata, Zheng et al. 2024, arXiv 2312.07104). Here it is a guess that is
//             verified, so it may go further: where white space may come or one other byte, the answer's own habit says
//             which (json_space.h).
// Invariants: the matcher is as it was before.
// Cost:       two steps of the matcher a byte, some 1.2 us together; kMostForeseen bytes at most. An ambiguous grammar's
//             steps take longer: the walk ends after 3 ms of work, and a single step, as any of the matcher's, within
//             its own time.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/json_space.h"
#include "kvilt/result.h"

namespace kvilt {

inline constexpr size_t kMostForeseen = 256;  // bytes

struct Foreseen {
  struct Guess {
    size_t at;  // byte of the text before which white space may stand; where it is guessed, it begins there
    bool seen;  // the answer has shown what it writes there
  };
  std::string text;
  std::vector<Guess> guesses;  // ascending
  bool open = false;           // a token may hold more than the text's end
  bool late = false;           // time ended the walk
};

// space: of the answer so far. After an error the matcher must not be used again.
Result<Foreseen> foresee(GrammarMatcher& matcher, const JsonSpace& space);

}  // namespace kvilt

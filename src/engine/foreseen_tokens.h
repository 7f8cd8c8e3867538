// engine/foreseen_tokens.h: what a constraint leaves next of one answer (grammar/foreseen.h), as tokens to draft.
// Idea:       the text is cut into tokens as the tokenizer cuts it behind the last token, which is how a model mostly
//             writes it. How often the next token was right is counted by kind, also when nothing is drafted.
// Invariants: a draft is a guess: it decides how fast an answer comes, never what it says.
// Threads:    one at a time: whoever draws for the sequence, then the engine thread.
// Cost:       look(): some 1 us a byte that it foresees. It stops for good where that takes too long.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "grammar/foreseen.h"
#include "text/tokenizer.h"

namespace kvilt {

class ForeseenTokens {
 public:
  explicit ForeseenTokens(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  void took(int32_t id);  // the answer's next token
  // What may follow `last`, the token that was taken last. After an error the matcher must not be used again.
  Status look(GrammarMatcher& matcher, int32_t last);

  struct Token {
    int32_t id;
    double chance;  // that it is right if those before it are
  };
  size_t size() const { return tokens_.size(); }
  Token at(size_t i) const { return {tokens_[i].id, rates_[tokens_[i].kind].share()}; }

 private:
  // Inside the text; with white space that was guessed, from what the answer wrote there or before it did; at the text's
  // end, where a longer token may come.
  enum Kind : uint8_t { kInside, kSpace, kFirstSpace, kLast, kKinds };
  struct Rate {
    double hits, all;  // of the last thirty or so
    double share() const { return hits / all; }
  };
  struct Guess {
    int32_t id;
    Kind kind;
  };

  const Tokenizer* tokenizer_;
  JsonSpace space_;
  std::vector<Guess> tokens_;
  size_t next_ = 0;  // of them: what is compared with the next token
  int late_ = 0;     // looks that took too long
  std::array<Rate, kKinds> rates_{{{2.97, 3}, {2.85, 3}, {2.1, 3}, {2.7, 3}}};  // as if some had been seen
};

}  // namespace kvilt

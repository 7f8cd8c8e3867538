// text/regex.h: the regular expressions of tokenizer files, on PCRE2 with UTF, Unicode properties and JIT.
// Role:       normalisers and pre-tokenizers search with it.
// Idea:       tokenizer files are written for Oniguruma; translate() rewrites the few differences and refuses the rest,
//             rather than matching something else quietly.
// Invariants: a search ends: PCRE2's match limit grows with the subject, and exceeding it is an error. The limit holds
//             for each place where a match might begin, so a TimeLimit bounds what all of them take together.
// Threads:    a Regex is immutable; a Search belongs to one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "kvilt/result.h"
#include "text/tokenizer.h"

namespace kvilt {

class Regex {
 public:
  static Result<Regex> compile(std::string_view pattern);
  static std::string quote(std::string_view literal);  // a pattern that matches just this text

  // While it lives, the searches of this thread end with an error once the thread has worked for so long (time in which
  // others have the core does not count). It is for patterns of models that step back almost as far as the match limit
  // allows, again and again. If they nest, the outer one counts.
  class TimeLimit {
   public:
    explicit TimeLimit(double seconds);
    ~TimeLimit();
    TimeLimit(const TimeLimit&) = delete;
    TimeLimit& operator=(const TimeLimit&) = delete;

   private:
    bool outermost_;
  };

  // The matches of one subject, left to right, as Rust's and Python's find_iter give them.
  class Search {
   public:
    // REQUIRES: subject is UTF-8 and outlives the search.
    Search(const Regex& regex, std::string_view subject);
    // Returns false at the end.
    Result<bool> next(ByteRange& match);

   private:
    Result<bool> find(size_t from, ByteRange& match);
    Error too_much(int code) const;
    const Regex* regex_;
    std::string_view subject_;
    size_t from_ = 0;
    size_t last_end_ = 0;
    bool any_ = false;
  };

 private:
  struct Free {
    void operator()(void* code) const;
  };
  std::shared_ptr<void> code_;  // pcre2_code
  bool at_start_ = false;       // it uses \G, the place where a search starts, so that must not move
  std::string pattern_;
};

}  // namespace kvilt

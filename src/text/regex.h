// text/regex.h: the regular expressions of tokenizer files, on PCRE2 with UTF, Unicode properties and JIT.
// Role:       normalisers and pre-tokenizers search with it.
// Idea:       tokenizer files are written for Oniguruma; translate() turns the few differences over and refuses the
// rest,
//             rather than matching something else quietly.
// Invariants: a search ends: PCRE2's match limit grows with the subject and its excess is an error.
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

  // The matches of one subject, left to right, as Rust's and Python's find_iter give them.
  class Search {
   public:
    // REQUIRES: subject is UTF-8 and outlives the search.
    Search(const Regex& regex, std::string_view subject);
    // False at the end.
    Result<bool> next(ByteRange& match);

   private:
    Result<bool> find(size_t from, uint32_t options, ByteRange& match);
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
  std::string pattern_;
};

}  // namespace kvilt

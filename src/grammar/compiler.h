// grammar/compiler.h: grammars to masks over a model's vocabulary. Start here for src/grammar.
// Role:       the only place that knows xgrammar (Dong et al. 2024, arXiv 2411.15100), whose exceptions stop here.
// Idea:       a grammar is compiled once: for each state of its automata the tokens that are allowed, refused, or depend
//             on the stack. A matcher follows one answer, and fills a mask of the tokens that may come next. What took
//             too much to compile is not compiled again for a minute.
// Invariants: what matchers let through is a beginning of a text of the grammar; the end tokens are allowed exactly where
//             the text may end. Control tokens are never allowed, but those that the compiler was told to know.
// Threads:    GrammarCompiler: any, several at once. A matcher: one at a time.
// Cost:       compiling: at most GrammarLimits::seconds of one thread's own time; a mask: `kvilt bench constrained`
//             measures it.
// Limits:     a grammar is bounded in bytes, nesting, states and time, and so is the work on one mask, and on all of an
//             answer: a grammar that is ambiguous enough to explode while it is matched ends that answer with an error.
#pragma once

#include <atomic>
#include <bitset>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/cache.h"
#include "grammar/compile_queue.h"
#include "grammar/part.h"
#include "kvilt/result.h"
#include "text/tokenizer.h"

namespace kvilt {

struct GrammarLimits {
  double seconds = 5;         // of its thread's own time, to compile one
  double wait_seconds = 30;   // by the clock, for others that compile
  size_t waiting = 16;        // grammars that wait so at once; one more is refused
  size_t bytes = 256 << 10;   // of its written form
  int64_t states = 400'000;   // states, edges and masks while it is compiled
  size_t cached = 256 << 20;  // bytes of all that are kept
  double mask_seconds = .25;  // of a thread's own time, to fill a mask, or to take a token
  double answer_seconds = 2;  // the same for all of an answer, and for each of its tokens so much more
  double token_seconds = .02;
  double refused_seconds = 60;  // a text that had too many states, or took too long, is refused without a new try
};

class Grammar;  // compiled; immutable

class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;
  ~GrammarMatcher();

  // Words of 32 bits a mask has: bit id % 32 of word id / 32 says whether the token may come next.
  static size_t mask_words(int vocab) { return (static_cast<size_t>(vocab) + 31) / 32; }
  // After an error (kExhausted: over its time, or that of all so far) the matcher must not be used again.
  Status fill(std::span<int32_t> mask);
  // Takes a token; false if it may not come here, and nothing has changed.
  Result<bool> accept(int32_t id);
  // Takes a text as if it were one token; false if it may not come here, and nothing has changed. REQUIRES: not empty.
  Result<bool> accept_text(std::string_view text);
  void rollback(int tokens);
  // The bytes of which one comes next, unless the text ends here; all where that is not known.
  Result<std::bitset<256>> next_bytes();
  bool may_end() const;  // what was taken is a text of the grammar

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

class GrammarCompiler {
 public:
  // end_ids: the tokens that end an answer. known: control tokens whose text may be part of one. vocab: the width of
  // the model's logits. Reads the vocabulary: a tenth of a second for 150,000 tokens.
  static Result<std::unique_ptr<GrammarCompiler>> create(const Tokenizer& tokenizer, std::span<const int32_t> end_ids,
                                                         std::span<const int32_t> known, int vocab,
                                                         GrammarLimits limits = {});
  ~GrammarCompiler();

  // Errors: kInvalidArgument, with what is wrong with it; kExhausted: too many are compiled, or wait for it, at once.
  Result<std::shared_ptr<const Grammar>> compile(const GrammarPart& part);

  uint64_t compiled() const { return compiled_; }  // so many were not found in the cache
  size_t cached_bytes() const { return cache_.bytes(); }

 private:
  struct Parts;
  GrammarCompiler(std::unique_ptr<Parts> parts, const GrammarLimits& limits);
  Result<std::shared_ptr<const Grammar>> compile_in_turn(const std::string& text);
  Result<std::shared_ptr<const Grammar>> compile_new(const std::string& text);

  static constexpr size_t kAtOnce = 2;  // of compilations: each takes a core

  const std::unique_ptr<Parts> parts_;
  const GrammarLimits limits_;
  CompileQueue queue_{kAtOnce, limits_.waiting, limits_.wait_seconds};
  std::atomic<uint64_t> compiled_{0};
  GrammarCache cache_{limits_.cached};
  RefusedGrammars refused_{std::chrono::duration<double>(limits_.refused_seconds)};
};

}  // namespace kvilt

// eval/prompt.h: a case as token ids, fixed once and the same for every policy, and the prompts that warm its pieces.
// Invariants: every known part is a mark and is tokenised by itself (docs/design/finding.md), so it has the same ids
//             wherever it is. What precedes the first mark is the head: the fixed prefix that --warm system puts
//             before pieces.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/case.h"
#include "kvilt/engine.h"

namespace kvilt {

// What precedes a piece when its KV is computed, before the case is asked.
enum class Warm {
  kAlone,    // nothing
  kSystem,   // the case's head, so that its first piece is an exact continuation
  kContext,  // the head and the other pieces, in another order
  kPrompt,   // all of the prompt before it: the prompt itself was asked, and its exact chain is what is cached
};
// Errors: kInvalidArgument for a name other than alone, system, context, prompt.
Result<Warm> parse_warm(const std::string& name);

// Errors: the tokenizer's or template's, with the case's name.
Result<Prompt> case_prompt(const Engine& engine, const EvalCase& from);

// Which other texts stand before a piece when it is computed to be seasoned (Request::season).
enum class SeasonWith {
  kRelated,  // the case's other pieces: all of them in other orders (SeasonRounds)
  kRandom,   // pieces of other cases, 200 to 650 tokens
};
// Errors: kInvalidArgument for a name other than related, random.
Result<SeasonWith> parse_season_with(const std::string& name);

// What to submit, in this order, so that each warmed piece is seasoned with `contexts` contexts. others: other cases.
struct Seasoning {
  int contexts = 0;
  SeasonWith with = SeasonWith::kRelated;
  uint64_t seed = 1;
};
Result<std::vector<Request>> season_requests(const Engine& engine, const EvalCase& from, const Prompt& prompt,
                                             const Seasoning& seasoning, std::span<const EvalCase> others);

// The numbers below n in a seeded order. 0 is not the first where there are others: the first piece after its own head
// would be found as an exact prefix.
std::vector<size_t> other_order(size_t n, uint64_t seed);

// What to submit before the case is asked, in this order; an empty answer means max_tokens 0.
// prompt: what case_prompt(engine, from) returned.
Result<std::vector<PastRequest>> warm_requests(const Engine& engine, const EvalCase& from, const Prompt& prompt,
                                               Warm warm, uint64_t seed);

}  // namespace kvilt

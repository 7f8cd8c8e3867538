// eval/case.h: what `kvilt eval` asks: a case is turns of marked and plain text, with the answers that are right.
// Role:  the words of this module. A RAG case, a dialogue and every suite become this form (docs/eval.md); prompt.h
//        makes token ids of it, once, so that every policy sees the same.
// Not here: files (case_file.h), generators (suite.h), scores (score.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kvilt/request.h"
#include "kvilt/result.h"

namespace kvilt {

enum class Metric {
  kF1,        // SQuAD's token F1 against the best of the answers
  kExact,     // equal after SQuAD's normalisation
  kRecall,    // the share of the answers that the text contains
  kContains,  // 1 if all of them do
  kQuoted,    // 1 if one of them is what stands before the first quotation mark: `lead` has opened it
};
// Errors: kInvalidArgument for a name other than f1, em, recall, contains. kQuoted is a suite's own.
Result<Metric> parse_metric(const std::string& name);

struct CasePart {
  std::string text;
  bool known = false;             // marked as one piece
  bool warmed = true;             // a known part that the cache holds before the question is asked
  std::vector<int32_t> ids = {};  // not empty: these tokens, whatever `text` says
  std::string was = "";           // not empty: of a known part, the text that the cache holds instead
};

struct CaseTurn {
  std::string role;
  std::vector<CasePart> parts;
};

// A request that came before, with its answer.
struct PastRequest {
  Prompt prompt;
  std::vector<int32_t> answer;
};

struct EvalCase {
  std::string suite, id;
  bool chat = true;  // false: the parts follow each other without a chat template, special tokens by their texts
  std::vector<CaseTurn> turns;
  std::string lead;                  // the first words of the answer, after the template's tail: "Answer:"
  std::vector<int32_t> begun;        // the answer's first tokens, after `lead`
  std::vector<std::string> answers;  // none: the case has no score, only distances
  Metric metric = Metric::kF1;
  std::vector<CasePart> warm_only;   // more pieces that --warm context puts among the known ones
  std::vector<PastRequest> history;  // not empty: what --warm context submits, instead of the pieces in another order
  std::vector<int32_t> truth;        // not empty: distances are taken along these tokens, not along the greedy answer
};

// A case that is made when its turn comes: some are long, and some need the model.
struct CaseSource {
  std::string suite, id;
  std::function<Result<EvalCase>()> make;
  std::string made_of = "";  // not empty: make() runs the model; what its case follows from, beside the model
  std::string digest = "";   // which case it is beyond its name (case_digest.h); empty: not known yet
};

}  // namespace kvilt

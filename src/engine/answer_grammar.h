// engine/answer_grammar.h: what an answer must be, as a grammar.
// Idea: a constraint is one part; calls of tools are written around the tools' schemas as the model's chat template writes
//       them (answer_syntax.h); and where the model thinks, its reasoning comes first.
//       Where answers are messages, the headers are a part of it.
#pragma once

#include "grammar/part.h"
#include "kvilt/answer_syntax.h"
#include "kvilt/constraint.h"
#include "kvilt/result.h"

namespace kvilt {

// REQUIRES: a constraint. opens_reasoning: the prompt's. Errors: kInvalidArgument, and kUnsupported for calls whose syntax
// is not known.
Result<GrammarPart> answer_grammar(const Constraint& constraint, const AnswerSyntax& syntax, bool opens_reasoning);

}  // namespace kvilt

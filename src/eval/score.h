// eval/score.h: compares a text with the answers that are right: SQuAD's F1 and exact match, recall, contains.
// Role: F1 and exact match read the first line of the text that is not empty, since a small model goes on talking;
//       recall and contains read all of it. Letters are compared without case (ASCII).
#pragma once

#include <string>
#include <vector>

#include "eval/case.h"

namespace kvilt {

// In [0, 1]. REQUIRES: answers is not empty.
double score_answer(Metric metric, const std::vector<std::string>& answers, const std::string& text);

// SQuAD's normalisation: lower case, no punctuation, no articles, single spaces.
std::string normalise_answer(const std::string& text);

}  // namespace kvilt

// eval/case_digest.h: which case a result is of. A name and a seed do not say: a suite's parameters may be others, and
// the text of a file may have changed.
// Cost: a case is made, which is tokenising; where it takes the model, CaseSource::made_of is taken instead.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "eval/case.h"

namespace kvilt {

// 16 hexadecimal digits, of each part with its length.
std::string digest_of(std::initializer_list<std::string_view> parts);

// Of all that is asked, warmed and scored; not of the name.
std::string case_digest(const EvalCase& from);

// Fills CaseSource::digest. Errors: what making a case gives.
Status digest_cases(std::vector<CaseSource>& sources);

}  // namespace kvilt

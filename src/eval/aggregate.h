// eval/aggregate.h: results of single cases to rows: per suite and policy means with 95 % bootstrap intervals, and
// paired ratios of distances between two policies (docs/eval.md).
// Role: a row is over the cases that its policy has; a ratio is over the cases that both policies have. With several
//       suites there is a row over all of them, suite "all".
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "eval/runner.h"

namespace kvilt {

// Fields: docs/formats/json.md. policies: in the order of the rows; a policy without results gives none.
nlohmann::ordered_json aggregate_rows(const std::vector<CaseResult>& results, const std::vector<PolicySpec>& policies);

// pairs: labels a, b. A row: suite, a, b, n, kl_ratio, kl_ratio_ci, kl_first_ratio, kl_first_ratio_ci, score_diff,
// score_diff_ci.
nlohmann::ordered_json pair_rows(const std::vector<CaseResult>& results,
                                 const std::vector<std::pair<std::string, std::string>>& pairs);

}  // namespace kvilt

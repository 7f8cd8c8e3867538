#include "eval/aggregate.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "eval/statistics.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAll = "all";

// Suites in the order of their first result; "all" at the end where there are several.
std::vector<std::string> suites_of(const std::vector<CaseResult>& results) {
  std::vector<std::string> out;
  for (const CaseResult& result : results) {
    if (std::ranges::find(out, result.suite) == out.end()) out.push_back(result.suite);
  }
  if (out.size() > 1) out.push_back(kAll);
  return out;
}

bool in_suite(const CaseResult& result, const std::string& suite) { return suite == kAll || result.suite == suite; }

void add_estimate(Json& row, const std::string& name, const std::optional<Estimate>& estimate) {
  row[name] = estimate ? Json(estimate->mean) : Json(nullptr);
  row[name + "_ci"] = estimate ? Json::array({estimate->low, estimate->high}) : Json(nullptr);
}

template <class Get>
std::vector<double> values_of(const std::vector<const CaseResult*>& results, Get get) {
  std::vector<double> out;
  for (const CaseResult* result : results) {
    const std::optional<double> value = get(*result);
    if (value) out.push_back(*value);
  }
  return out;
}

double plain_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

std::optional<double> same_of(const CaseResult& r) {
  return r.same_answer ? std::optional<double>(*r.same_answer ? 1 : 0) : std::nullopt;
}

Json row_of(const std::string& suite, const PolicySpec& policy, const std::vector<const CaseResult*>& of) {
  Json row{{"suite", suite},
           {"policy", policy.choice.name},
           {"label", policy.label},
           {"params", policy.choice.params},
           {"n", of.size()}};
  const auto estimate = [&](const char* name, auto get) {
    add_estimate(row, name, mean_with_interval(values_of(of, get)));
  };
  const auto mean = [&](const char* name, auto get) { row[name] = plain_mean(values_of(of, get)); };
  const auto mean_of_some = [&](const char* name, auto get) {  // null: no case has it
    const std::vector<double> values = values_of(of, get);
    row[name] = values.empty() ? Json(nullptr) : Json(plain_mean(values));
  };
  const auto median = [&](const char* name, auto get) { row[name] = median_of(values_of(of, get)); };
  estimate("score", [](const CaseResult& r) { return r.score; });
  estimate("kl_first", [](const CaseResult& r) { return r.kl_first; });
  estimate("kl_answer", [](const CaseResult& r) { return r.kl_answer; });
  estimate("kl_prompt", [](const CaseResult& r) { return r.kl_prompt; });
  estimate("top1", [](const CaseResult& r) { return r.top1 ? 1.0 : 0.0; });
  estimate("agree", [](const CaseResult& r) { return r.agree; });
  estimate("same_answer", same_of);
  estimate("nll_gap", [](const CaseResult& r) { return r.nll_gap; });
  median("ttft_s", [](const CaseResult& r) { return r.ttft_s; });
  median("ttft_ratio", [](const CaseResult& r) { return r.ttft_ratio; });
  mean("flops_ratio", [](const CaseResult& r) { return r.flops_ratio; });
  mean("reused_ratio", [](const CaseResult& r) { return r.reused_ratio(); });
  mean("recomputed_ratio", [](const CaseResult& r) { return r.recomputed_ratio(); });
  mean("kept_ratio", [](const CaseResult& r) { return r.kept_ratio; });
  mean("cells_ratio", [](const CaseResult& r) { return r.cells_ratio; });
  mean_of_some("decode_cells_ratio", [](const CaseResult& r) { return r.decode_cells_ratio; });
  estimate("held_mass", [](const CaseResult& r) { return r.held_mass; });
  estimate("decode_held_mass", [](const CaseResult& r) { return r.decode_held_mass; });
  const auto token_s = values_of(of, [](const CaseResult& r) { return r.token_s; });
  row["token_s"] = token_s.empty() ? Json(nullptr) : Json(median_of(token_s));
  mean_of_some("decode_bytes", [](const CaseResult& r) { return r.decode_bytes; });
  mean("evicted_bytes", [](const CaseResult& r) { return static_cast<double>(r.evicted_bytes); });
  mean("flops", [](const CaseResult& r) { return r.flops; });
  mean("bytes", [](const CaseResult& r) { return r.bytes; });
  mean("prompt_tokens", [](const CaseResult& r) { return r.prompt; });
  mean("prefix_tokens", [](const CaseResult& r) { return r.prefix; });
  mean("reused_tokens", [](const CaseResult& r) { return r.reused; });
  mean("near_tokens", [](const CaseResult& r) { return r.near; });
  mean("recomputed_tokens", [](const CaseResult& r) { return r.recomputed; });
  mean("fresh_tokens", [](const CaseResult& r) { return r.fresh; });
  return row;
}

}  // namespace

Json aggregate_rows(const std::vector<CaseResult>& results, const std::vector<PolicySpec>& policies) {
  Json rows = Json::array();
  for (const std::string& suite : suites_of(results)) {
    for (const PolicySpec& policy : policies) {
      std::vector<const CaseResult*> of;
      for (const CaseResult& result : results) {
        if (in_suite(result, suite) && result.policy == policy.label) of.push_back(&result);
      }
      if (!of.empty()) rows.push_back(row_of(suite, policy, of));
    }
  }
  return rows;
}

Json pair_rows(const std::vector<CaseResult>& results, const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json rows = Json::array();
  for (const std::string& suite : suites_of(results)) {
    for (const auto& [a, b] : pairs) {
      std::map<std::pair<std::string, std::string>, const CaseResult*> of_b;
      for (const CaseResult& result : results) {
        if (in_suite(result, suite) && result.policy == b) of_b[{result.suite, result.id}] = &result;
      }
      std::vector<double> kl_a, kl_b, first_a, first_b, prompt_a, prompt_b, score;
      for (const CaseResult& result : results) {
        if (!in_suite(result, suite) || result.policy != a) continue;
        const auto other = of_b.find({result.suite, result.id});
        if (other == of_b.end()) continue;
        kl_a.push_back(result.kl_answer), kl_b.push_back(other->second->kl_answer);
        first_a.push_back(result.kl_first), first_b.push_back(other->second->kl_first);
        if (result.kl_prompt && other->second->kl_prompt)
          prompt_a.push_back(*result.kl_prompt), prompt_b.push_back(*other->second->kl_prompt);
        if (result.score && other->second->score) score.push_back(*result.score - *other->second->score);
      }
      if (kl_a.empty()) continue;
      Json row{{"suite", suite}, {"a", a}, {"b", b}, {"n", kl_a.size()}};
      add_estimate(row, "kl_ratio", paired_ratio(kl_a, kl_b));
      add_estimate(row, "kl_first_ratio", paired_ratio(first_a, first_b));
      add_estimate(row, "kl_prompt_ratio", paired_ratio(prompt_a, prompt_b));
      add_estimate(row, "score_diff", mean_with_interval(score));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace kvilt

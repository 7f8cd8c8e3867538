// apps/eval_parity.cc: kvilt eval --parity: this build against logits and greedy tokens from elsewhere
// (docs/formats/json.md#input-a-parity-file).
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "apps/command.h"
#include "apps/report.h"
#include "base/divergence.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace kvilt {
namespace {

// KL(reference || ours) in nats over the tokens that the reference lists, both made to sum to 1 there.
double kl_over(const std::vector<std::pair<int32_t, float>>& top, const std::vector<float>& logits) {
  std::vector<float> theirs, ours;
  for (const auto& [id, value] : top) theirs.push_back(value), ours.push_back(logits[id]);
  return Reference(std::move(theirs)).kl(ours);
}

}  // namespace

void eval_parity(const EngineOptions& options, const std::string& path, const std::string& json, Program& program) {
  constexpr size_t kMaxParityBytes = size_t{256} << 20;
  const auto file = nlohmann::json::parse(value_or_fail(read_file(path, kMaxParityBytes)), nullptr, false);
  if (!file.is_object() || !file.contains("cases") || !file["cases"].is_array())
    fail(path + ": needs an array 'cases' (docs/formats/json.md)");
  Report report(program.argc, program.argv);
  auto engine = open_or_exit(options);
  report.set_model(engine->info());
  std::printf("%-28s %10s %14s %10s %6s %14s\n", "case", "tokens", "max |dlogit|", "KL", "top-1", "greedy equal");
  for (const auto& entry : file["cases"]) {
    std::string name;
    std::vector<int32_t> tokens, greedy;
    std::vector<std::pair<int32_t, float>> top;
    try {
      name = entry.at("name").get<std::string>();
      tokens = entry.at("tokens").get<std::vector<int32_t>>();
      greedy = entry.at("greedy").get<std::vector<int32_t>>();
      top = entry.at("top_logits").get<std::vector<std::pair<int32_t, float>>>();
    } catch (const nlohmann::json::exception& problem) {
      fail(fmt::format("{}: a case is wrong: {}", path, problem.what()));
    }
    if (top.empty() || greedy.empty()) fail(fmt::format("{}: case '{}' has no logits or no greedy tokens", path, name));
    Request request;
    request.prompt.ids = tokens;
    request.policy.name = "full";
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = static_cast<int>(greedy.size());
    request.evaluation.first_logits = true;
    const Answered out = run_request(*engine, std::move(request));
    const std::vector<float>& logits = out.completion.logits.first;
    double most = 0;
    for (const auto& [id, value] : top) {
      if (id < 0 || id >= static_cast<int32_t>(logits.size()))
        fail(fmt::format("{}: case '{}': no token {}", path, name, id));
      most = std::max(most, std::abs(double{value} - double{logits[id]}));
    }
    const double kl = kl_over(top, logits);
    const auto best = std::ranges::max_element(top, [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto equal = static_cast<int>(
        std::mismatch(greedy.begin(), greedy.end(), out.ids.begin(), out.ids.end()).first - greedy.begin());
    const bool top1 = most_likely(logits) == best->first;
    report.add({{"name", name},
                {"max_abs_logit_diff", most},
                {"kl_top_logits", kl},
                {"top1_same", top1},
                {"greedy_same", equal},
                {"greedy_tokens", greedy.size()}});
    std::printf("%-28s %10zu %14.6f %10.1e %6s %7d of %3zu\n", name.c_str(), tokens.size(), most, kl,
                top1 ? "same" : "OTHER", equal, greedy.size());
    std::fflush(stdout);
  }
  report.write(json);
}

}  // namespace kvilt

#include "policy/decode_methods.h"

#include <algorithm>

#include "base/error.h"
#include "policy/policy.h"

namespace kvilt {
namespace {

using By = DecodeRule::By;

constexpr int kMost = 1 << 24;
constexpr int kMostQueries = 64;  // kept per layer: 5.5 MB for 0.5 B, 26 MB for 7 B
constexpr int kMostPage = 1024;
constexpr int kMostLooks = 8;  // each is a product with all keys: as much as a dense row

struct Method {
  const char* name;
  DecodeRule rule;
};

// Parameters as published, but for the budget, which is LoopServe's for all, and LoopServe's queries: 4 choose as well
// as its 16, at a quarter of what choosing costs (docs/papers.md#decode-methods).
const Method kMethods[] = {
    {"loopserve", {.queries = 4, .dense_rows = 16, .every = 16}},
    {"snapkv", {.recent = 32, .queries = 32, .pool = 5}},
    {"pyramidkv", {.recent = 32, .queries = 32, .pool = 5, .pyramid = 20}},
    {"adakv", {.recent = 32, .queries = 32, .pool = 7, .pool_max = true, .own_share = 0.2}},
    {"quest", {.by = By::kPages, .every = 1, .dense_layers = 2}},
    {"tidal", {.by = By::kLayer, .every = 1, .dense_layers = 2}},
    {"h2o", {.by = By::kAllRows, .recent = kMost, .every = 1}},  // half of the budget
    {"streamingllm", {.by = By::kNearest, .sink = 4, .every = 1, .at_ranks = true}},
    {"random", {.by = By::kRandom, .recent = 32}},
};

// How many keys, and which of them always.
void take_budget(PolicyParams& params, DecodeRule& rule) {
  rule.budget = params.integer("decode_budget", rule.budget, 1, kMost);
  if (rule.by == By::kPages) {
    rule.page = params.integer("decode_page", std::min(rule.page, rule.budget), 1, kMostPage);
    if (rule.page > rule.budget)
      params.wrong(fmt::format("decode_page {} is more than decode_budget {}", rule.page, rule.budget));
    return;
  }
  rule.sink = params.integer("decode_sink", std::min(rule.sink, rule.budget / 2), 0, kMost);
  if (rule.by != By::kNearest)
    rule.recent = params.integer("decode_recent", std::min(rule.recent, rule.budget / 2), 0, kMost);
  if (rule.sink + rule.recent > rule.budget) {
    params.wrong(fmt::format("decode_sink {} and decode_recent {} are more than decode_budget {}", rule.sink,
                             rule.recent, rule.budget));
  }
}

// REQUIRES: rule.every is what the request wants.
void take_queries(PolicyParams& params, DecodeRule& rule) {
  rule.queries = params.integer("decode_queries", rule.queries, 1, kMostQueries);
  rule.pool = params.integer("decode_pool", rule.pool, 1, 1023);
  rule.own_share = params.number("decode_own", rule.own_share, 0, 1);
  rule.pyramid = params.number("decode_pyramid", rule.pyramid, 0, 1000);
  if (rule.pool % 2 == 0) params.wrong("parameter 'decode_pool' is even; a key is in the middle of its neighbours");
  if (rule.every > 0 && rule.queries > kMostLooks * rule.every) {
    params.wrong(
        fmt::format("{} decode_queries every {} rows: at most {} for each row", rule.queries, rule.every, kMostLooks));
  }
}

// REQUIRES: the rest of the rule is what the request wants.
void take_evict(PolicyParams& params, const std::string& name, DecodeRule& rule) {
  rule.evict = params.flag("decode_evict", false);
  if (!rule.evict || !rule.takes_back()) return;
  const bool once = rule.by == By::kAttention || rule.by == By::kRandom;
  params.wrong(fmt::format(
      "decode_evict: '{}' may choose what it has left out before, so all keys must stay; {}evicting goes with snapkv, "
      "pyramidkv, adakv, h2o, streamingllm and random",
      name, once ? "with decode_every 0 it chooses once; " : ""));
}

}  // namespace

std::map<std::string, std::string> params_of(const std::map<std::string, std::string>& params, bool decode) {
  std::map<std::string, std::string> out = params;
  std::erase_if(out, [&](const auto& param) { return is_decode_param(param.first) != decode; });
  return out;
}

std::vector<std::string> decode_method_names() {
  std::vector<std::string> names{"full"};
  for (const Method& method : kMethods) names.emplace_back(method.name);
  return names;
}

std::optional<DecodeRule> take_decode_rule(PolicyParams& params) {
  const std::string name = params.choice("decode", "full", decode_method_names());
  for (const Method& method : kMethods) {
    if (name != method.name) continue;
    DecodeRule rule = method.rule;
    take_budget(params, rule);
    rule.every = params.integer("decode_every", rule.every, 0, kMost);
    rule.dense_rows = params.integer("decode_dense", rule.dense_rows, 0, kMost);
    rule.dense_layers = params.integer("decode_dense_layers", rule.dense_layers, 0, kMost);
    if (rule.by == By::kAttention) take_queries(params, rule);
    if (rule.by == By::kLayer) rule.select = params.integer("decode_select", rule.select, -1, kMost);
    if (rule.by != By::kNearest && rule.by != By::kRandom) {
      rule.top_p = params.number("decode_top_p", rule.top_p, 0, 1);
      if (rule.top_p == 0) params.wrong("parameter 'decode_top_p' is 0: a share of nothing is no key");
    }
    if (rule.by == By::kNearest)
      rule.at_ranks = params.choice("decode_positions", "cache", {"cache", "text"}) == "cache";
    take_evict(params, name, rule);
    if (rule.by == By::kRandom) rule.seed = static_cast<uint64_t>(params.integer("decode_seed", 1, 0, kMost));
    return rule;
  }
  return std::nullopt;
}

}  // namespace kvilt

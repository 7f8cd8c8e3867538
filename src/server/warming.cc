#include "server/warming.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <span>

#include "kvilt/season.h"
#include "server/openai_response.h"
#include "server/request_batch.h"
#include "server/warming_request.h"

namespace kvilt::server {
namespace {

Json document_json(size_t index, int tokens, const Completion& end) {
  const PromptUsage& usage = end.usage;
  return {{"index", index},         {"tokens", tokens},       {"prompt_tokens", usage.prompt},
          {"prefix", usage.prefix}, {"reused", usage.reused}, {"recomputed", usage.recomputed},
          {"fresh", usage.fresh},   {"seconds", end.total_s}};
}

// All of the documents in one random order after another; one order's prompts at a time, for their memory. False: the
// response says why it ended. Nothing where no contexts are asked for.
bool season(RequestBatch& batch, const Call& call, const DocumentsRequest& wanted, std::span<const Prompt> documents,
            Json& reply) {
  if (wanted.season == 0 || documents.size() < 2) return true;
  int64_t passes = 0, tokens = 0;
  double seconds = 0;
  const ModelInfo& info = call.engine().info();
  const int64_t pool = info.kv_pool_bytes / std::max<int64_t>(info.kv_bytes_per_token, 1);
  SeasonOptions order{.contexts = 1, .context = season_context(info.context, pool)};
  const auto name = [](size_t) { return std::string("kvilt.season"); };
  const auto add = [&](size_t, const Completion& end) {
    ++passes;
    tokens += end.usage.fresh;
    seconds += end.total_s - end.usage.queued_s;
  };
  std::random_device random;
  for (int c = 0; c < wanted.season; ++c) {
    order.seed = random();
    std::vector<Request> requests;
    for (Prompt& prompt : season_prompts(documents, order))
      requests.push_back(season_request(std::move(prompt), wanted.cache_salt, wanted.namespaces));
    if (!batch.run(std::move(requests), name, add)) return false;
  }
  reply["seasoning"] = {{"contexts", wanted.season}, {"passes", passes}, {"tokens", tokens}, {"seconds", seconds}};
  return true;
}

}  // namespace

std::optional<ApiError> check_warming(const Call& call, const DocumentsRequest& wanted) {
  if (auto error = check_model(call.attached, wanted.model)) return error;
  return check_policy(call.attached, wanted.policy);
}

std::optional<Json> warm(const Call& call, const DocumentsRequest& wanted, std::vector<Prompt> prompts,
                         std::vector<std::string> frozen_as, httplib::Response& response) {
  std::vector<int> tokens;
  std::vector<Request> requests;
  for (Prompt& prompt : prompts) {
    tokens.push_back(document_tokens(prompt));
    requests.push_back(warming_request(wanted.season > 0 ? prompt : std::move(prompt), wanted));
    if (!frozen_as.empty()) requests.back().frozen_as = std::move(frozen_as[requests.size() - 1]);
  }
  std::vector<Json> rows(requests.size());
  UsageSum usage;
  const auto name = [](size_t i) { return fmt::format("documents[{}]", i); };
  const auto add = [&](size_t i, const Completion& end) {
    usage.add_prompt(end.usage);
    rows[i] = document_json(i, tokens[i], end);
  };
  RequestBatch batch(call, response);
  Json out = Json::object();
  if (!batch.run(std::move(requests), name, add)) return std::nullopt;
  if (!season(batch, call, wanted, prompts, out)) return std::nullopt;
  out["documents"] = rows;
  out["usage"] = usage_json(usage);
  return out;
}

}  // namespace kvilt::server

#include "server/warming.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "kvilt/season.h"
#include "server/openai_response.h"
#include "server/sse.h"
#include "server/warming_request.h"

namespace kvilt::server {
namespace {

Json document_json(size_t index, int tokens, const Completion& end) {
  const PromptUsage& usage = end.usage;
  return {{"index", index},         {"tokens", tokens},       {"prompt_tokens", usage.prompt},
          {"prefix", usage.prefix}, {"reused", usage.reused}, {"recomputed", usage.recomputed},
          {"fresh", usage.fresh},   {"seconds", end.total_s}};
}

}  // namespace

std::optional<ApiError> check_warming(const Call& call, const DocumentsRequest& wanted) {
  if (auto error = check_model(call.attached, wanted.model)) return error;
  return check_policy(call.attached, wanted.policy);
}

Warming::Warming(const Call& call, DocumentsRequest wanted, std::vector<Prompt> prompts,
                 std::vector<std::string> frozen_as)
    : attached_(call.attached),
      wanted_(std::move(wanted)),
      prompts_(std::move(prompts)),
      frozen_as_(std::move(frozen_as)),
      batch_(call.account()),
      rows_(prompts_.size()),
      contexts_{.added = std::vector<int>(prompts_.size())} {}

ToldWork::End Warming::run(const Tell& tell) {
  if (const End end = compute(tell); end != End::kDone || !seasons()) return end;
  return season(tell);
}

ToldWork::End Warming::compute(const Tell& tell) {
  std::vector<int> tokens;
  std::vector<Request> requests;
  for (Prompt& prompt : prompts_) {
    tokens.push_back(document_tokens(prompt));
    requests.push_back(warming_request(seasons() ? prompt : std::move(prompt), wanted_));
    if (!frozen_as_.empty()) requests.back().frozen_as = std::move(frozen_as_[requests.size() - 1]);
  }
  const auto name = [](size_t i) { return fmt::format("documents[{}]", i); };
  std::string news;
  const auto add = [&](size_t i, const Completion& end) {
    usage_.add_prompt(end.usage);
    rows_[i] = document_json(i, tokens[i], end);
    tokens_ += tokens[i];
    ++computed_;
    news = sse_event(progress());
  };
  return batch_.run(std::move(requests), name, add, [&] { return tell(std::exchange(news, {})); });
}

// All of the documents, round by round; one round's prompts at a time, for their memory.
ToldWork::End Warming::season(const Tell& tell) {
  const ModelInfo& info = attached_.engine->info();
  const int64_t pool = info.kv_pool_bytes / std::max<int64_t>(info.kv_bytes_per_token, 1);
  const int context = season_context(info.context, pool);
  const auto name = [](size_t) { return std::string("kvilt.season"); };
  const Clock::time_point begun = Clock::now();
  batch_.go_on_without_room();
  std::mt19937_64 rng(std::random_device{}());
  SeasonRounds rounds(prompts_, context);
  for (int round = 0; round < wanted_.season; ++round) {
    const std::vector<SeasonSet>& sets = rounds.next(rng);
    std::vector<Request> requests;
    for (const SeasonSet& set : sets)
      requests.push_back(season_request(season_prompt(prompts_, set), wanted_.cache_salt, wanted_.namespaces));
    size_t missing = requests.size();
    std::string news;
    const auto add = [&](size_t i, const Completion& end) {
      contexts_.passes += end.finish == Finish::kError ? 0 : 1;  // without room nothing is added
      contexts_.tokens += end.usage.fresh;
      contexts_.seconds = std::chrono::duration<double>(Clock::now() - begun).count();
      const size_t documents = std::min(sets[i].documents.size(), end.contexts.size());
      for (size_t k = 0; k < documents; ++k) {
        int& added = contexts_.added[sets[i].documents[k]];  // a mean that left meanwhile begins anew
        if (end.contexts[k] > 0) added = std::min(added + 1, end.contexts[k]);
      }
      if (--missing == 0) contexts_.end_round();
      news = sse_event(progress());
    };
    const auto listens = [&] { return tell(std::exchange(news, {})); };
    if (const End end = batch_.run(std::move(requests), name, add, listens); end != End::kDone) return end;
  }
  contexts_.end_round();  // also where no two of them fit into a prompt
  return End::kDone;
}

Json Warming::progress() const {
  Json out = {{"object", "kvilt.documents.progress"},
              {"done", computed_},
              {"of", rows_.size()},
              {"tokens", tokens_},
              {"seconds", std::chrono::duration<double>(Clock::now() - start_).count()}};
  if (!seasons()) return out;
  out["seasoning"] = contexts();
  out["seasoning"]["of"] = wanted_.season;
  return out;
}

void Warming::Contexts::end_round() {
  over = 0;
  without.clear();
  for (size_t i = 0; i < added.size(); ++i) {
    if (added[i] == 0) {
      without.push_back(i);
    } else {
      over = over == 0 ? added[i] : std::min(over, added[i]);
    }
  }
}

Json Warming::contexts() const {
  return {{"contexts", contexts_.over},
          {"without", contexts_.without},
          {"passes", contexts_.passes},
          {"tokens", contexts_.tokens},
          {"seconds", contexts_.seconds}};
}

Json Warming::summary() {
  Json out = {{"object", "kvilt.documents"}, {"model", attached_.model}};
  if (seasons()) out["seasoning"] = contexts();
  out["documents"] = rows_;
  out["usage"] = usage_json(usage_);
  return out;
}

}  // namespace kvilt::server

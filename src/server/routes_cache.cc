// server/routes_cache.cc: kvilt's own API: warm documents before the questions come, and drop the cache.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/answer_queue.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/service.h"

namespace kvilt::server {
namespace {

constexpr int kAtOnce = 8;  // documents in the engine's queue at once, so that other requests come between

// Tokens of the document itself: what is marked, or the whole prompt if nothing is.
int document_tokens(const Prompt& prompt) {
  int marked = 0;
  for (const TokenMark& mark : prompt.marks) marked += mark.end - mark.begin;
  return marked > 0 ? marked : static_cast<int>(prompt.ids.size());
}

// A policy, or a parameter of one.
bool names_policy(const PolicyChoice& choice) {
  const auto of_policy = [](const auto& param) { return param.first != "trust" && param.first != "reuse_from"; };
  return !choice.name.empty() || std::ranges::any_of(choice.params, of_policy);
}

Json document_json(size_t index, int tokens, const Completion& end) {
  const PromptUsage& usage = end.usage;
  return {{"index", index},         {"tokens", tokens},       {"prompt_tokens", usage.prompt},
          {"prefix", usage.prefix}, {"reused", usage.reused}, {"recomputed", usage.recomputed},
          {"fresh", usage.fresh},   {"seconds", end.total_s}};
}

void warm_documents(const Call& call, httplib::Response& response) {
  auto parsed = parse_documents(call.body, limits_of(call.engine()));
  if (!parsed.ok()) return reply_error(response, parsed.error());
  const DocumentsRequest& wanted = parsed.value();
  if (auto error = check_model(call.attached, wanted.model)) return reply_error(response, *error);
  if (auto error = check_policy(call.attached, wanted.policy)) return reply_error(response, *error);
  auto prompts = call.engine().document_prompts(call.body);
  if (!prompts.ok()) return reply_error(response, api_error(prompts.error(), "documents"));
  const size_t count = prompts.value().size();
  call.drop_body();

  // Unless a policy is asked for, each document is computed behind the fixed prefix alone, even if a copy with other text
  // in its KV is cached.
  const bool asked = names_policy(wanted.policy);

  AnswerQueue answer(call.attached.engine, call.attached.metrics, AnswerQueue::Reader::kWhole);
  std::vector<int> tokens;
  std::vector<Json> rows(count);
  UsageSum usage;
  for (size_t ended = 0; ended < count;) {
    while (static_cast<size_t>(answer.size()) < std::min(count, ended + kAtOnce)) {
      Request request;
      request.prompt = std::move(prompts.value()[answer.size()]);
      tokens.push_back(document_tokens(request.prompt));
      request.sampling.max_tokens = 0;
      request.policy = wanted.policy;
      if (!asked) request.policy.name = "prefix";
      request.clean_copy = !asked;
      request.cache_salt = wanted.cache_salt;
      const std::string name = fmt::format("documents[{}]", answer.size());
      if (Status status = answer.submit(std::move(request)); !status.ok()) {
        return reply_error(response, api_error(status.error(), name));
      }
    }
    auto event = answer.next(AnswerQueue::kLook);
    if (Connection::current()->peer_gone()) {
      Connection::current()->close_after_response();
      response.status = 499;
      return response.set_content(" ", "text/plain");
    }
    if (!event || !event->end) continue;
    const auto index = static_cast<size_t>(event->choice);
    if (event->end->finish == Finish::kError || event->end->finish == Finish::kCancelled) {
      const Error stopped{Code::kUnavailable, "the server is shutting down"};
      return reply_error(response, api_error(event->end->error.value_or(stopped), fmt::format("documents[{}]", index)));
    }
    usage.add_prompt(event->end->usage);
    rows[index] = document_json(index, tokens[index], *event->end);
    ++ended;
  }
  reply_json(
      response,
      {{"object", "kvilt.documents"}, {"model", call.attached.model}, {"documents", rows}, {"usage", usage.json()}});
}

void clear_cache(const Call& call, httplib::Response& response) {
  call.engine().clear_cache();
  reply_json(response, {{"status", "ok"}});
}

}  // namespace

void add_cache_routes(Service& service) {
  service.post("/v1/documents", warm_documents);
  service.post_empty("/v1/cache/clear", clear_cache);
}

}  // namespace kvilt::server

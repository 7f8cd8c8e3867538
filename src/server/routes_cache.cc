// server/routes_cache.cc: kvilt's own API: warm documents before the questions come, and drop the cache.
#include <nlohmann/json.hpp>

#include "server/chat_body.h"
#include "server/openai_request.h"
#include "server/service.h"
#include "server/warming.h"

namespace kvilt::server {
namespace {

void warm_documents(const Service& service, const Call& call, httplib::Response& response) {
  auto parsed = parse_documents(call.body, limits_of(call.attached));
  if (!parsed.ok()) return reply_error(response, parsed.error());
  const DocumentsRequest& wanted = parsed.value();
  if (auto error = check_warming(call, wanted)) return reply_error(response, *error);
  auto prompts = document_prompts(service, call, call.body);
  if (!prompts.ok()) return reply_error(response, api_error(prompts.error(), "documents"));
  call.drop_body();
  auto warming = std::make_shared<Warming>(call, wanted, std::move(prompts.value()), std::vector<std::string>());
  answer_work(service, call.http, response, std::move(warming));
}

void clear_cache(const Call& call, httplib::Response& response) {
  call.engine().clear_cache();
  reply_json(response, {{"status", "ok"}});
}

}  // namespace

void add_cache_routes(Service& service) {
  service.post("/v1/documents",
               [&service](const Call& call, httplib::Response& response) { warm_documents(service, call, response); });
  service.post_empty("/v1/cache/clear", clear_cache);
}

}  // namespace kvilt::server

// server/routes_info.cc: routes about the server itself: models, tokens, health, metrics, the page.
#include "kvilt/version.h"
#include "server/chat_body.h"
#include "server/llama_request.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/page.html.h"
#include "server/service.h"
#include "server/written_list.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvilt::server {
namespace {

Json model_of(const Call& call) {
  Json model = model_json(call.engine().info(), call.attached.model, call.attached.since);
  model["kvilt"]["policies"] = call.attached.policies;
  SamplingParams usual;
  call.attached.sampling.set(usual);
  model["kvilt"]["default"]["sampling"] = sampling_json(usual);
  if (call.attached.seed) model["kvilt"]["default"]["sampling"]["seed"] = *call.attached.seed;
  model["aliases"] = Json::array({call.attached.model});
  for (const std::string& name : call.attached.aliases) model["aliases"].push_back(name);
  return model;
}

void list_models(const Call& call, httplib::Response& response) {
  const Json model = model_of(call);
  reply_json(response, {{"object", "list"}, {"data", Json::array({model})}});
}

void one_model(const Call& call, httplib::Response& response) {
  const std::string id = call.http.path.substr(std::string("/v1/models/").size());
  if (id.empty()) return list_models(call, response);
  if (auto error = check_model(call.attached, id)) return reply_error(response, *error);
  reply_json(response, model_of(call));
}

// As text a token of a list has some 25 bytes; with its own bytes they may be many more, which only sends a short list
// piece by piece too.
constexpr size_t kTokenBytes = 25;

constexpr auto kAddId = [](int32_t id, std::string& text) { text += std::to_string(id); };

// llama.cpp's form: {"content"} to {"tokens"}, with_pieces: of objects. Of the body and the text nothing stays.
void tokenize_content(const Call& call, httplib::Response& response) {
  auto parsed = parse_llama_tokenize(call.body);
  if (!parsed.ok()) return reply_error(response, parsed.error());
  call.body = nullptr;
  LlamaTokenize& wanted = parsed.value();
  auto ids = call.engine().tokenize(wanted.content, wanted.parse_special, wanted.add_special);
  std::string().swap(wanted.content);
  if (!ids.ok()) return reply_error(response, api_error(ids.error(), "content"));
  const size_t bytes = ids.value().size() * kTokenBytes;
  auto writes = [ids = std::move(ids.value()), engine = call.attached.engine,
                 pieces = wanted.with_pieces](WriteText write) {
    const auto add_piece = [&](int32_t id, std::string& text) {
      text += "{\"id\":" + std::to_string(id) + ",\"piece\":" + quoted(engine->token_text(id)) + '}';
    };
    return write("{\"tokens\":") && (pieces ? write_list(ids, add_piece, write) : write_list(ids, kAddId, write)) &&
           write("}");
  };
  reply_written(call.http, response, bytes, std::move(writes));
}

// The tokens of what /tokenize was sent, of which nothing else stays.
ApiResult<std::vector<int32_t>> tokens_of(const Service& service, const Call& call, TokenizeRequest& wanted) {
  if (wanted.chat) {
    if (auto error = settle_chat(service, call, call.body)) return *error;
    auto prompt = chat_prompt(service, call, call.body);
    call.body = nullptr;
    if (!prompt.ok()) return api_error(prompt.error(), "messages");
    return std::move(prompt.value().ids);
  }
  call.body = nullptr;
  auto tokens = call.engine().tokenize(wanted.prompt, true, wanted.add_special_tokens);
  std::string().swap(wanted.prompt);
  if (!tokens.ok()) return api_error(tokens.error(), "prompt");
  return std::move(tokens.value());
}

void tokenize(const Service& service, const Call& call, httplib::Response& response) {
  if (call.body.is_object() && call.body.contains("content") && !call.body.contains("prompt"))
    return tokenize_content(call, response);
  auto parsed = parse_tokenize(call.body, limits_of(call.attached));
  if (!parsed.ok()) return reply_error(response, parsed.error());
  if (auto error = check_model(call.attached, parsed.value().model)) return reply_error(response, *error);
  auto ids = tokens_of(service, call, parsed.value());
  if (!ids.ok()) return reply_error(response, ids.error());
  const size_t bytes = ids.value().size() * kTokenBytes;
  auto writes = [ids = std::move(ids.value()), engine = call.attached.engine,
                 texts = parsed.value().return_token_strs](WriteText write) {
    const auto add_text = [&](int32_t id, std::string& text) { text += quoted(engine->token_text(id)); };
    const std::string head = "{\"count\":" + std::to_string(ids.size()) +
                             ",\"max_model_len\":" + std::to_string(engine->info().context) + ",\"tokens\":";
    return write(head) && write_list(ids, kAddId, write) && write(",\"token_strs\":") &&
           (texts ? write_list(ids, add_text, write) : write("null")) && write("}");
  };
  reply_written(call.http, response, bytes, std::move(writes));
}

void detokenize(const Call& call, httplib::Response& response) {
  auto parsed = parse_detokenize(call.body, limits_of(call.attached));
  if (!parsed.ok()) return reply_error(response, parsed.error());
  if (auto error = check_model(call.attached, parsed.value().model)) return reply_error(response, *error);
  call.body = nullptr;
  auto text = call.engine().detokenize(parsed.value().tokens);
  if (!text.ok()) return reply_error(response, api_error(text.error(), "tokens"));
  std::string said = std::move(text.value());
  const size_t bytes = 2 * said.size();
  reply_written(call.http, response, bytes, [said = std::move(said)](WriteText write) {
    return write("{\"prompt\":") && write_string(said, write) && write(",\"content\":") && write_string(said, write) &&
           write("}");
  });
}

// vLLM's: what a client needs beside /tokenize and /detokenize. A model without a token has null there, as its files do.
void tokenizer_info(const Call& call, httplib::Response& response) {
  const ModelInfo& info = call.engine().info();
  const auto token = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  reply_json(response, {{"tokenizer_class", "kvilt"},
                        {"bos_token", token(info.bos_token)},
                        {"eos_token", token(info.eos_token)},
                        {"chat_template", info.chat_template},
                        {"model_max_length", info.context}});
}

// In bytes; of a tenant that has no share and has not asked yet, nothing.
Json tenant_json(const Engine& engine, const EngineStats& stats, const Tenant& tenant) {
  const auto known = std::ranges::find(stats.tenant_pools, tenant.name(), &TenantPool::tenant);
  const TenantPool pool = known == stats.tenant_pools.end() ? TenantPool{} : *known;
  const int64_t page = engine.info().kv_pool_bytes / std::max<int64_t>(1, stats.kv_pages);
  const Tenant::Counts counts = tenant.counts();
  return {
      {"name", tenant.name()},
      {"running", counts.running},
      {"requests", counts.requests},
      {"refused", counts.refused},
      {"prompt_tokens", counts.prompt_tokens},
      {"cached_tokens", counts.cached},
      {"completion_tokens", counts.generated},
      {"max_requests", tenant.max_requests()},
      {"requests_per_minute", tenant.requests_per_minute()},
      {"pool", {{"bytes", pool.held * page}, {"share_bytes", pool.share * page}, {"pinned_bytes", pool.pinned * page}}},
      {"disk", {{"bytes", pool.disk_bytes}, {"share_bytes", pool.disk_share_bytes}}}};
}

// The caller's own; an admin's answer has all.
void list_tenants(const Tenants& tenants, const Call& call, httplib::Response& response) {
  Json data = Json::array();
  const Caller& caller = call.caller;
  const EngineStats stats = call.engine().stats();
  for (const auto& tenant : tenants.all()) {
    if (caller.admin || tenant == caller.tenant) data.push_back(tenant_json(call.engine(), stats, *tenant));
  }
  reply_json(response, {{"object", "list"}, {"data", std::move(data)}});
}

}  // namespace

void add_info_routes(Service& service) {
  service.get("/v1/models", list_models);
  service.get("/models", list_models);
  service.get_always("/version", [](const Attached&, httplib::Response& response) {
    reply_json(response, {{"version", kVersion}});
  });
  service.get("/v1/models/(.*)", one_model);
  service.post("/tokenize",
               [&service](const Call& call, httplib::Response& response) { tokenize(service, call, response); });
  service.post("/detokenize", detokenize);
  if (service.options().tokenizer_info) service.get("/tokenizer_info", tokenizer_info);
  for (const char* path : {"/health", "/v1/health"}) {
    service.get_always(path, [&service](const Attached& attached, httplib::Response& response) {
      const bool ready = attached.engine && !service.stopping();
      response.status = ready ? 200 : 503;
      reply_json(response, {{"status", ready ? "ok" : service.stopping() ? "shutting down" : "loading"}});
    });
  }
  service.get_always("/metrics", [&service](const Attached& attached, httplib::Response& response) {
    const HttpCounters http{service.http().open_connections(), service.http().refused_connections()};
    response.set_content(attached.metrics->text(attached.engine.get(), http),
                         "text/plain; version=0.0.4; charset=utf-8");
  });
  if (!service.options().open_metrics) service.for_admins("/metrics");
  service.get("/v1/tenants", [&service](const Call& call, httplib::Response& response) {
    list_tenants(service.tenants(), call, response);
  });
  service.get_always("/", [](const Attached&, httplib::Response& response) {
    response.set_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'");
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_content(kPageHtml.data(), kPageHtml.size(), "text/html; charset=utf-8");
  });
}

}  // namespace kvilt::server

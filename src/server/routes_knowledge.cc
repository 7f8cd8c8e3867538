// server/routes_knowledge.cc: knowledge bases over HTTP: made, listed, filled with documents, deleted
// (docs/server.md#knowledge-bases).
// Role:     a document that comes in is written down first (knowledge_bases.h), then computed (warming.h): what was
//           acknowledged or broken off in the middle is there, and computed by the first chat that names it.
// Not here: documents that a chat names (KnowledgeBases::fill, called by chat_body.cc).
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "server/body_parts.h"
#include "server/bulk_insert.h"
#include "server/chat_body.h"
#include "server/knowledge_writer.h"
#include "server/list_page.h"
#include "server/openai_request.h"
#include "server/service.h"
#include "server/warming.h"

namespace kvilt::server {
namespace {

void refuse(httplib::Response& response, const Error& error, const char* param) {
  ApiError refused = api_error(error, param);
  if (error.code == Code::kNotFound) refused.code = "not_found";
  reply_error(response, refused);
}

Json base_json(const KnowledgeBaseInfo& base) {
  return {{"object", "kvilt.knowledge_base"},
          {"name", base.name},
          {"created", base.created},
          {"documents", base.documents},
          {"tokens", base.tokens},
          {"bytes", base.bytes},
          {"hits", base.hits}};
}

Json document_json(const KnowledgeDocument& document) {
  Json out = {{"object", "kvilt.document"},  {"id", document.id},         {"title", document.title},
              {"created", document.created}, {"tokens", document.tokens}, {"bytes", document.bytes()}};
  out["hits"] = document.hits.load();
  return out;
}

// REQUIRES: parse_documents() took the body.
Result<std::vector<KnowledgeDocumentPtr>> read_documents(const Json& body, const std::vector<Prompt>& prompts) {
  std::vector<KnowledgeDocumentPtr> out;
  std::set<std::string> ids;
  for (size_t i = 0; i < body["documents"].size(); ++i) {
    const std::string path = fmt::format("documents[{}].id", i);
    KVILT_ASSIGN(auto document, KnowledgeWriter::read(body["documents"][i], path, prompts[i]));
    if (!ids.insert(document->id).second)
      return error(Code::kInvalidArgument, "{}: '{}' is there twice", path, document->id);
    out.push_back(std::move(document));
  }
  return out;
}

// Of documents that are written down, under their ids.
class StoredWarming : public ToldWork {
 public:
  StoredWarming(Warming warming, KnowledgeWriter writer, std::vector<KnowledgeDocumentPtr> documents)
      : warming_(std::move(warming)), writer_(std::move(writer)), documents_(std::move(documents)) {}

  End run(const Tell& tell) override {
    const End end = warming_.run(tell);
    writer_.thaw_deleted(documents_);
    return end;
  }
  const ApiError& error() const override { return warming_.error(); }
  Json summary() override {
    Json out = warming_.summary();
    out["knowledge_base"] = writer_.base();
    for (size_t i = 0; i < documents_.size(); ++i) out["documents"][i]["id"] = documents_[i]->id;
    return out;
  }

 private:
  Warming warming_;
  KnowledgeWriter writer_;
  const std::vector<KnowledgeDocumentPtr> documents_;
};

constexpr size_t kMostListed = 100'000;  // all that a base may have

class Routes {
 public:
  explicit Routes(Service& service) : service_(service), bases_(service.knowledge()) {}

  void create(const Call& call, httplib::Response& response) {
    Fields fields(call.body);
    std::string name;
    if (!call.body.is_object()) return reply_error(response, {400, "the body must be an object", "", ""});
    fields.string("name", &name, KnowledgeBases::kMaxName);
    if (fields.ok() && name.empty()) fields.fail("name", "is required");
    if (fields.error()) return reply_error(response, *fields.error());
    const std::string& tenant = tenant_of(call);
    if (Status made = bases_.create(tenant, name); !made.ok()) {
      ApiError refused = api_error(made.error(), "name");
      if (bases_.info(tenant, name).ok()) refused.status = 409;
      return reply_error(response, refused);
    }
    reply_base(tenant, name, response);
  }

  void list(const Call& call, httplib::Response& response) {
    Json data = Json::array();
    for (const KnowledgeBaseInfo& base : bases_.list(tenant_of(call))) data.push_back(base_json(base));
    reply_json(response, {{"object", "list"}, {"data", data}});
  }

  void show(const Call& call, httplib::Response& response) {
    reply_base(tenant_of(call), call.http.matches[1], response);
  }

  void erase(const Call& call, httplib::Response& response) {
    const std::string name = call.http.matches[1];
    const Status erased = bases_.erase(tenant_of(call), name);
    const bool gone = erased.ok() || (erased.error().code == Code::kIo && !bases_.info(tenant_of(call), name).ok());
    if (gone) call.engine().thaw(tenant_of(call), {KnowledgeWriter::frozen_as(name)});
    if (!erased.ok()) return refuse(response, erased.error(), "name");
    reply_json(response, {{"object", "kvilt.knowledge_base"}, {"name", name}, {"deleted", true}});
  }

  void add_documents(const Call& call, httplib::Response& response) {
    const std::string tenant = tenant_of(call), name = call.http.matches[1];
    if (const auto base = bases_.info(tenant, name); !base.ok()) return refuse(response, base.error(), "name");
    auto wanted = parse_documents(call.body, limits_of(call.attached));
    if (!wanted.ok()) return reply_error(response, wanted.error());
    if (auto error = check_warming(call, wanted.value())) return reply_error(response, *error);
    auto prompts = document_prompts(service_, call, call.body);
    if (!prompts.ok()) return reply_error(response, api_error(prompts.error(), "documents"));
    auto documents = read_documents(call.body, prompts.value());
    if (!documents.ok()) return refuse(response, documents.error(), "documents");
    call.drop_body();
    KnowledgeWriter writer(bases_, call.attached.engine, tenant, name);
    if (Status put = writer.put(documents.value()); !put.ok()) return refuse(response, put.error(), "documents");
    std::vector<std::string> frozen;
    for (const KnowledgeDocumentPtr& document : documents.value()) frozen.push_back(writer.frozen_as(*document));
    Warming warming(call, std::move(wanted.value()), std::move(prompts.value()), std::move(frozen));
    auto storing = std::make_shared<StoredWarming>(std::move(warming), std::move(writer), std::move(documents.value()));
    answer_work(service_, call.http, response, std::move(storing));
  }

  void add_many(const Call& call, RawBody body, httplib::Response& response) {
    insert_documents(service_, call, std::move(body), response);
  }

  // All of them where no limit is given, as it was before there were pages.
  void list_documents(const Call& call, httplib::Response& response) {
    size_t limit = kMostListed;
    if (call.http.has_param("limit")) {
      const auto given = page_limit(call.http.get_param_value("limit"), kMostListed);
      if (!given) {
        const std::string what = fmt::format("limit: must be a number from 1 to {}", kMostListed);
        return reply_error(response, {400, what, "limit", ""});
      }
      limit = *given;
    }
    const std::string after = call.http.get_param_value("after");
    const auto page = bases_.page(tenant_of(call), call.http.matches[1], after, limit);
    if (!page.ok()) return refuse(response, page.error(), page.error().code == Code::kNotFound ? "name" : "after");
    Json data = Json::array();
    for (const KnowledgeDocumentPtr& document : page->documents) data.push_back(document_json(*document));
    reply_json(response, page_json(std::move(data), page->more));
  }

  void show_document(const Call& call, httplib::Response& response) {
    const auto found = bases_.find(tenant_of(call), call.http.matches[1], call.http.matches[2]);
    if (!found.ok()) return refuse(response, found.error(), "id");
    Json out = document_json(*found.value());
    out["text"] = found.value()->text;
    reply_json(response, out);
  }

  void remove_document(const Call& call, httplib::Response& response) {
    const std::string name = call.http.matches[1], id = call.http.matches[2];
    if (Status removed = bases_.remove(tenant_of(call), name, id); !removed.ok())
      return refuse(response, removed.error(), "id");
    call.engine().thaw(tenant_of(call), {KnowledgeWriter::frozen_as(name, id)});
    reply_json(response, {{"object", "kvilt.document"}, {"id", id}, {"deleted", true}});
  }

 private:
  static const std::string& tenant_of(const Call& call) { return call.caller.tenant->name(); }
  void reply_base(const std::string& tenant, const std::string& name, httplib::Response& response) {
    const auto base = bases_.info(tenant, name);
    if (!base.ok()) return refuse(response, base.error(), "name");
    reply_json(response, base_json(base.value()));
  }

  Service& service_;
  KnowledgeBases& bases_;
};

}  // namespace

void add_knowledge_routes(Service& service) {
  const auto routes = std::make_shared<Routes>(service);
  const auto to = [&routes](void (Routes::*handler)(const Call&, httplib::Response&)) {
    return [routes, handler](const Call& call, httplib::Response& response) { ((*routes).*handler)(call, response); };
  };
  const std::string all = "/v1/knowledge_bases", one = all + "/([^/]+)", documents = one + "/documents";
  service.get(all, to(&Routes::list));
  service.post(all, to(&Routes::create));
  service.get(one, to(&Routes::show));
  service.remove(one, to(&Routes::erase));
  service.get(documents, to(&Routes::list_documents));
  service.post(documents, to(&Routes::add_documents),
               {[](std::string_view type) { return BodyParts::kind_of(type).has_value(); },
                [routes](const Call& call, RawBody body, httplib::Response& response) {
                  routes->add_many(call, std::move(body), response);
                }});
  service.get(documents + "/([^/]+)", to(&Routes::show_document));
  service.remove(documents + "/([^/]+)", to(&Routes::remove_document));
}

}  // namespace kvilt::server

// server/routes_knowledge.cc: knowledge bases over HTTP: made, listed, filled with documents, deleted
// (docs/server.md#knowledge-bases).
// Role:     a document that comes in is written down first (knowledge_bases.h), then computed (warming.h): what was
//           acknowledged or broken off in the middle is there, and computed by the first chat that names it.
// Not here: documents that a chat names (KnowledgeBases::fill, called by chat_body.cc).
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "server/chat_body.h"
#include "server/knowledge_bases.h"
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

// The same title and text have the same id, so that sending them again changes nothing.
std::string id_of(const KnowledgeDocument& document) { return "doc-" + name_of(document.title, document.text); }

// REQUIRES: parse_documents() took the body.
Result<std::vector<KnowledgeDocumentPtr>> read_documents(const Json& body, const std::vector<Prompt>& prompts) {
  std::vector<KnowledgeDocumentPtr> out;
  std::set<std::string> ids;
  for (size_t i = 0; i < body["documents"].size(); ++i) {
    const Json& entry = body["documents"][i];
    const auto document = std::make_shared<KnowledgeDocument>();
    document->text = entry["text"].get<std::string>();
    if (const auto title = entry.find("title"); title != entry.end() && title->is_string())
      document->title = title->get<std::string>();
    const std::string path = fmt::format("documents[{}].id", i);
    const Json id = entry.value("id", Json());
    if (!id.is_null() && !id.is_string()) return error(Code::kInvalidArgument, "{}: must be a string", path);
    document->id = id.is_string() ? id.get<std::string>() : id_of(*document);
    KVILT_TRY(KnowledgeBases::check_name(path, document->id, KnowledgeBases::kMaxId));
    if (!ids.insert(document->id).second)
      return error(Code::kInvalidArgument, "{}: '{}' is there twice", path, document->id);
    document->created = static_cast<int64_t>(std::time(nullptr));
    document->tokens = document_tokens(prompts[i]);
    out.push_back(document);
  }
  return out;
}

// What a document's KV is frozen as (Request::frozen_as), and the beginning of that for all of a base: no name of a base
// or a document has a '/'.
std::string frozen_as(const std::string& base) { return base + "/"; }
std::string frozen_as(const std::string& base, const std::string& id) { return frozen_as(base) + id + "/"; }

class Routes {
 public:
  explicit Routes(const Service& service) : service_(service), bases_(service.knowledge()) {}

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
    if (Status erased = bases_.erase(tenant_of(call), name); !erased.ok())
      return refuse(response, erased.error(), "name");
    call.engine().thaw(tenant_of(call), {frozen_as(name)});
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
    const auto documents = read_documents(call.body, prompts.value());
    if (!documents.ok()) return refuse(response, documents.error(), "documents");
    call.drop_body();
    std::vector<std::string> frozen, replaced;
    for (const KnowledgeDocumentPtr& document : documents.value()) {
      frozen.push_back(frozen_as(name, document->id));
      if (changes(tenant, name, *document)) replaced.push_back(frozen.back());
    }
    if (Status put = bases_.put(tenant, name, documents.value()); !put.ok())
      return refuse(response, put.error(), "documents");
    if (!replaced.empty()) call.engine().thaw(tenant, replaced);
    auto warmed = warm(call, wanted.value(), std::move(prompts.value()), std::move(frozen), response);
    thaw_deleted(call, name, documents.value());
    if (!warmed) return;
    Json reply = {{"object", "kvilt.documents"}, {"knowledge_base", name}, {"model", call.attached.model}};
    reply.update(*warmed);
    for (size_t i = 0; i < documents.value().size(); ++i) reply["documents"][i]["id"] = documents.value()[i]->id;
    reply_json(response, reply);
  }

  void list_documents(const Call& call, httplib::Response& response) {
    const auto all = bases_.documents(tenant_of(call), call.http.matches[1]);
    if (!all.ok()) return refuse(response, all.error(), "name");
    Json data = Json::array();
    for (const KnowledgeDocumentPtr& document : all.value()) data.push_back(document_json(*document));
    reply_json(response, {{"object", "list"}, {"data", data}});
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
    call.engine().thaw(tenant_of(call), {frozen_as(name, id)});
    reply_json(response, {{"object", "kvilt.document"}, {"id", id}, {"deleted", true}});
  }

 private:
  static const std::string& tenant_of(const Call& call) { return call.caller.tenant->name(); }
  // Whether it takes the place of another text.
  bool changes(const std::string& tenant, const std::string& name, const KnowledgeDocument& document) const {
    const auto old = bases_.find(tenant, name, document.id);
    return old.ok() && (old.value()->text != document.text || old.value()->title != document.title);
  }
  // Whoever deleted some of them while they were computed thawed what was not frozen yet.
  void thaw_deleted(const Call& call, const std::string& name, const std::vector<KnowledgeDocumentPtr>& documents) {
    std::vector<std::string> gone;
    for (const KnowledgeDocumentPtr& document : documents) {
      if (!bases_.find(tenant_of(call), name, document->id).ok()) gone.push_back(frozen_as(name, document->id));
    }
    if (!gone.empty()) call.engine().thaw(tenant_of(call), gone);
  }
  void reply_base(const std::string& tenant, const std::string& name, httplib::Response& response) {
    const auto base = bases_.info(tenant, name);
    if (!base.ok()) return refuse(response, base.error(), "name");
    reply_json(response, base_json(base.value()));
  }

  const Service& service_;
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
  service.post(documents, to(&Routes::add_documents));
  service.get(documents + "/([^/]+)", to(&Routes::show_document));
  service.remove(documents + "/([^/]+)", to(&Routes::remove_document));
}

}  // namespace kvilt::server

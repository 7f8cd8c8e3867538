#include "server/knowledge_writer.h"

#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "server/knowledge_journal.h"
#include "server/warming_request.h"

namespace kvilt::server {
namespace {

// The same title and text have the same id, so that sending them again changes nothing.
std::string id_of(const KnowledgeDocument& document) { return "doc-" + name_of(document.title, document.text); }

// Their KV is the same.
bool same_words(const KnowledgeDocument& a, const KnowledgeDocument& b) {
  return a.text == b.text && a.title == b.title;
}

}  // namespace

Result<std::shared_ptr<KnowledgeDocument>> KnowledgeWriter::read(const Json& entry, const std::string& path,
                                                                 const Prompt& prompt) {
  auto document = std::make_shared<KnowledgeDocument>();
  document->text = entry.at("text").get<std::string>();
  if (const auto title = entry.find("title"); title != entry.end() && title->is_string())
    document->title = title->get<std::string>();
  const Json id = entry.value("id", Json());
  if (!id.is_null() && !id.is_string()) return error(Code::kInvalidArgument, "{}: must be a string", path);
  document->id = id.is_string() ? id.get<std::string>() : id_of(*document);
  KVILT_TRY(KnowledgeBases::check_name(path, document->id, KnowledgeBases::kMaxId));
  document->created = static_cast<int64_t>(std::time(nullptr));
  document->tokens = document_tokens(prompt);
  return document;
}

// No name of a base or a document has a '/'.
std::string KnowledgeWriter::frozen_as(const std::string& base) { return base + "/"; }
std::string KnowledgeWriter::frozen_as(const std::string& base, const std::string& id) {
  return frozen_as(base) + id + "/";
}

void KnowledgeWriter::freeze_in(Prompt& prompt, const NamedDocuments& documents) {
  for (const PromptPart& part : prompt.parts) {
    if (part.of != PromptPart::Of::kDocument || std::cmp_greater_equal(part.index, documents.size())) continue;
    const auto& [base, document] = documents[static_cast<size_t>(part.index)];
    if (!document) continue;
    prompt.frozen.push_back({{part.begin, part.end}, frozen_as(base, document->id), document->withdrawn});
  }
}

Status KnowledgeWriter::put(const std::vector<KnowledgeDocumentPtr>& documents) {
  std::vector<std::string> replaced;
  for (const KnowledgeDocumentPtr& document : documents) {
    if (changes(*document)) replaced.push_back(frozen_as(*document));
  }
  KVILT_TRY(bases_.put(tenant_, base_, documents));
  if (!replaced.empty()) engine_->thaw(tenant_, replaced);
  return {};
}

bool KnowledgeWriter::has(const KnowledgeDocument& document) const {
  const auto found = bases_.find(tenant_, base_, document.id);
  return found.ok() && same_words(*found.value(), document);
}

void KnowledgeWriter::thaw_deleted(const std::vector<KnowledgeDocumentPtr>& documents) {
  std::vector<std::string> gone;
  for (const KnowledgeDocumentPtr& document : documents) {
    if (!has(*document)) gone.push_back(frozen_as(*document));
  }
  if (!gone.empty()) engine_->thaw(tenant_, gone);
}

// Whether it takes the place of another text.
bool KnowledgeWriter::changes(const KnowledgeDocument& document) const {
  const auto old = bases_.find(tenant_, base_, document.id);
  return old.ok() && !same_words(*old.value(), document);
}

}  // namespace kvilt::server

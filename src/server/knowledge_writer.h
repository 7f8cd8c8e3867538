// server/knowledge_writer.h: documents on their way into a knowledge base: read, put, and frozen under their names.
// Role:       what comes in by a list (routes_knowledge.cc) and what comes in bulk (bulk_insert.h) share: ids, what
//             takes the place of another text, and whose frozen KV ends with that; and the names for chats that ask
//             about them.
// Threads:    the HTTP thread that answers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvilt/engine.h"
#include "server/json_fields.h"
#include "server/knowledge_bases.h"

namespace kvilt::server {

class KnowledgeWriter {
 public:
  KnowledgeWriter(KnowledgeBases& bases, std::shared_ptr<Engine> engine, std::string tenant, std::string base)
      : bases_(bases), engine_(std::move(engine)), tenant_(std::move(tenant)), base_(std::move(base)) {}

  // entry: as parse_documents() takes it; prompt: its own. `path` is what an error calls it.
  static Result<std::shared_ptr<KnowledgeDocument>> read(const Json& entry, const std::string& path,
                                                         const Prompt& prompt);
  // What KV is frozen as (Request::frozen_as), and the beginning of that for all of a base.
  static std::string frozen_as(const std::string& base);
  static std::string frozen_as(const std::string& base, const std::string& id);
  std::string frozen_as(const KnowledgeDocument& document) const { return frozen_as(base_, document.id); }

  // A chat's documents are frozen under their names again, when its prompt is published: they may have had to give way.
  static void freeze_in(Prompt& prompt, const NamedDocuments& documents);

  const std::string& base() const { return base_; }
  // All of them or none (KnowledgeBases::put). What they take the place of is thawed.
  Status put(const std::vector<KnowledgeDocumentPtr>& documents);
  // With this text: equal ones are one, whichever of them is stored.
  bool has(const KnowledgeDocument& document) const;
  // Whoever deleted or replaced some of them while they were computed thawed what was not frozen yet. What took their
  // place is frozen under the same name, and thawed too: the next chat that names it freezes it again.
  void thaw_deleted(const std::vector<KnowledgeDocumentPtr>& documents);

 private:
  bool changes(const KnowledgeDocument& document) const;

  KnowledgeBases& bases_;
  const std::shared_ptr<Engine> engine_;
  const std::string tenant_, base_;
};

}  // namespace kvilt::server

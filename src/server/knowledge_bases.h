// server/knowledge_bases.h: documents that clients leave here under a name, and ask about later without sending them.
// Role:       a tenant's bases, and the documents in each by id; a chat names documents by base and id, and fill() puts
//             their texts into its body. Their KV is the engine's matter: it is computed when a document comes in
//             (warming.h), and found by content like everything else.
// Invariants: a tenant's bases are found by that tenant alone. With a folder every change is on disk before it is there
//             (knowledge_journal.h): what was acknowledged survives a crash, and a change that cannot be written is an
//             error that changes nothing. Of a document that is deleted or replaced no text is left in its file,
//             or, where the disk refuses that, a warning says so and the next change and the next start try again.
// Threads:    all methods from any thread. Documents are immutable; whoever holds one keeps it. Of a tenant one change is
//             made at a time (Shelf::changes), and only that is held while a disk works: who reads, and other tenants,
//             do not wait for it.
// Locks:      Shelf::changes before mutex_.
// Cost:       texts are in memory, `bytes` a tenant and `all_bytes` in all at most. A change is an fsync, two where it ends a
//             text.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/mutex.h"
#include "kvilt/result.h"
#include "server/json_fields.h"
#include "server/knowledge_journal.h"

namespace kvilt::server {

struct KnowledgeLimits {
  size_t bases = 256, documents = 100'000;  // of a tenant; of a base
  size_t bytes = size_t{256} << 20;         // of a tenant's texts
  size_t all_bytes = size_t{1} << 30;       // of all tenants' texts
  size_t asked_bytes = size_t{64} << 20;    // of the texts that one chat names
};

struct KnowledgeDocument {
  std::string id, title, text;
  int64_t created = 0;  // Unix time
  int tokens = 0;
  mutable std::atomic<uint64_t> hits{0};  // requests that named it and ran, since the server started
  // True from when it is deleted, or another one takes its place, on: before its KV is thawed (FrozenPart::withdrawn).
  const std::shared_ptr<std::atomic<bool>> withdrawn = std::make_shared<std::atomic<bool>>(false);
  size_t bytes() const { return id.size() + title.size() + text.size(); }
};
using KnowledgeDocumentPtr = std::shared_ptr<const KnowledgeDocument>;

// An entry of a chat's documents: of which base it is; null: the client sent it.
struct NamedDocument {
  std::string base;
  KnowledgeDocumentPtr document;
};
using NamedDocuments = std::vector<NamedDocument>;  // all entries, in order; none where no base is named
void count_hits(const NamedDocuments& named);       // each document once: a hit is a request

struct KnowledgeBaseInfo {
  std::string name;
  int64_t created = 0;
  size_t documents = 0, bytes = 0;
  int64_t tokens = 0;
  uint64_t hits = 0;
};

class KnowledgeBases {
 public:
  // folder: is made if it is not there, and belongs to one process at a time; empty: everything is forgotten at the end.
  // kIo, kCorrupt, kInvalidArgument (of the key): names the file.
  static Result<std::unique_ptr<KnowledgeBases>> open(const std::string& folder, KnowledgeLimits limits = {},
                                                      KnowledgeJournal::Disk disk = {});

  // Names of bases: letters, digits, '-', '_', '.', up to 64 bytes; ids of documents: also ':', up to 128.
  static Status check_name(std::string_view what, std::string_view name, size_t most);
  static constexpr size_t kMaxName = 64, kMaxId = 128;

  // kInvalidArgument: the name is wrong, or taken. kOverLimit: the tenant has its share.
  Status create(const std::string& tenant, const std::string& name);
  std::vector<KnowledgeBaseInfo> list(const std::string& tenant) const;  // by name
  // kNotFound from here on: there is no such base, or no such document in it.
  Result<KnowledgeBaseInfo> info(const std::string& tenant, const std::string& name) const;
  // kIo: it is there as before; or it is gone, and a crash may bring it back (info() tells which).
  Status erase(const std::string& tenant, const std::string& name);

  // All of them or none; a document takes the place of one with its id, where it is another one: else that one stays as
  // it is, in its place and with its hits, and nothing is written. kOverLimit: they do not fit into what the tenant, the
  // base or all tenants together may have.
  Status put(const std::string& tenant, const std::string& name, std::vector<KnowledgeDocumentPtr> documents);
  Status remove(const std::string& tenant, const std::string& name, const std::string& id);
  // A page of them: `limit` at most, behind the one with the id `after`, or from the first on where it is empty.
  // kInvalidArgument: there is no `after`.
  struct Page {
    std::vector<KnowledgeDocumentPtr> documents;
    bool more = false;
  };
  Result<Page> page(const std::string& tenant, const std::string& name, const std::string& after, size_t limit) const;
  // In the order in which they came.
  Result<std::vector<KnowledgeDocumentPtr>> documents(const std::string& tenant, const std::string& name) const;
  Result<KnowledgeDocumentPtr> find(const std::string& tenant, const std::string& name, const std::string& id) const;

  // Entries of body["documents"] of the form {"knowledge_base": NAME, "id": ID} become that document, those without an
  // id all of the base. Returns what the entries are then. body: a chat's; what is wrong with other entries is not seen
  // here. has_room: is asked once, before a text is copied, with the bytes of all of them. kUnavailable: it said no.
  Result<NamedDocuments> fill(const std::string& tenant, Json& body, FunctionRef<bool(size_t bytes)> has_room) const;

 private:
  struct Entry {
    uint64_t number = 0;  // of its arrival
    KnowledgeDocumentPtr document = {};
    KnowledgeJournal::Place line = {};  // where the journal has it
  };
  struct Base {
    int64_t created = 0;
    std::map<std::string, Entry> by_id;
    std::map<uint64_t, KnowledgeDocumentPtr> by_arrival;
    size_t bytes = 0;
    std::unique_ptr<KnowledgeJournal> journal;  // null without a folder; used by who holds the shelf's `changes`
  };
  struct Coming;
  // Of a tenant. Changed by who holds both locks: who holds one of them finds it as it was.
  struct Shelf {
    Mutex changes;
    std::map<std::string, Base> bases;
    size_t bytes = 0;
    Base* find(const std::string& name);
  };
  KnowledgeBases(std::string folder, KnowledgeLimits limits, KnowledgeJournal::Disk disk)
      : folder_(std::move(folder)), limits_(limits), disk_(std::move(disk)) {}
  Status load();
  Status load(const std::string& path, KnowledgeJournal::Owner& owner, Base& base) KVILT_REQUIRES(mutex_);
  static Status write_anew(const KnowledgeJournal::Owner& owner, Base& base);
  static std::vector<KnowledgeDocumentPtr> in_order(const Base& base);
  static std::optional<KnowledgeJournal::Place> line_of(const Base& base, const std::string& id);
  Shelf* find_shelf(const std::string& tenant);  // null: nobody made a base there
  // Their bytes beyond those of what they take the place of.
  Result<size_t> check_room(const Shelf& shelf, const Base& base,
                            const std::vector<KnowledgeDocumentPtr>& documents) const;
  class Reserved;
  Status reserve(size_t bytes);
  const Base* find_base(const std::string& tenant, const std::string& name) const KVILT_REQUIRES(mutex_);
  void add(Shelf& shelf, Base& base, Coming& coming, KnowledgeJournal::Place line) KVILT_REQUIRES(mutex_);
  void take_out(Shelf& shelf, Base& base, const std::string& id) KVILT_REQUIRES(mutex_);
  Result<std::vector<KnowledgeDocumentPtr>> named(const std::string& tenant, const Json& entry) const;

  const std::string folder_;
  const KnowledgeLimits limits_;
  const KnowledgeJournal::Disk disk_;
  FolderLock lock_;
  mutable Mutex mutex_;
  std::map<std::string, Shelf> shelves_ KVILT_GUARDED_BY(mutex_);  // by tenant; one that was made stays
  uint64_t arrivals_ KVILT_GUARDED_BY(mutex_) = 0;
  size_t reserved_ KVILT_GUARDED_BY(mutex_) = 0;  // bytes that are being written, and are in no shelf yet
};

}  // namespace kvilt::server

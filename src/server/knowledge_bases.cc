#include "server/knowledge_bases.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/error.h"

namespace kvilt::server {
namespace {

constexpr int64_t kLeastDead = int64_t{64} << 10;  // less is not worth a second file

Error no_base(const std::string& name) {
  return error(Code::kNotFound, "there is no knowledge base '{}': POST /v1/knowledge_bases makes one",
               name.substr(0, KnowledgeBases::kMaxName));
}

Error no_document(const std::string& name, const std::string& id) {
  return error(Code::kNotFound, "knowledge base '{}' has no document '{}'", name, id.substr(0, KnowledgeBases::kMaxId));
}

std::string put_line(const KnowledgeDocument& document) {
  return dump({{"put",
                {{"id", document.id},
                 {"title", document.title},
                 {"text", document.text},
                 {"created", document.created},
                 {"tokens", document.tokens}}}});
}

Result<KnowledgeDocumentPtr> read_put(const Json& put) {
  const auto document = std::make_shared<KnowledgeDocument>();
  const std::pair<const char*, std::string*> texts[] = {
      {"id", &document->id}, {"title", &document->title}, {"text", &document->text}};
  for (const auto& [name, to] : texts) {
    const auto value = put.find(name);
    if (value == put.end() || !value->is_string()) return error(Code::kCorrupt, "put.{} is no string", name);
    *to = value->get<std::string>();
  }
  const Json created = put.value("created", Json(0)), tokens = put.value("tokens", Json(0));
  if (!created.is_number_integer() || !tokens.is_number_integer())
    return error(Code::kCorrupt, "put.created or put.tokens is no integer");
  document->created = created.get<int64_t>();
  document->tokens = tokens.get<int>();
  return KnowledgeDocumentPtr(document);
}

bool same(const KnowledgeDocument& a, const KnowledgeDocument& b) {
  return a.text == b.text && a.title == b.title && a.tokens == b.tokens;
}

Json as_document(const KnowledgeDocument& document) {
  Json out = {{"text", document.text}};
  if (!document.title.empty()) out["title"] = document.title;
  return out;
}

}  // namespace

// A document's entries in both lists, made before it is written: behind that nothing may fail.
struct KnowledgeBases::Coming {
  explicit Coming(KnowledgeDocumentPtr document) {
    std::map<uint64_t, KnowledgeDocumentPtr> arrived;
    std::map<std::string, Entry> entries;
    arrival = arrived.extract(arrived.try_emplace(0, document).first);
    entry = entries.extract(entries.try_emplace(document->id).first);
    entry.mapped().document = std::move(document);
  }
  std::map<uint64_t, KnowledgeDocumentPtr>::node_type arrival;
  std::map<std::string, Entry>::node_type entry;
};

void count_hits(const NamedDocuments& named) {
  std::set<const KnowledgeDocument*> once;
  for (const NamedDocument& one : named) {
    if (one.document && once.insert(one.document.get()).second) ++one.document->hits;
  }
}

std::vector<KnowledgeDocumentPtr> KnowledgeBases::in_order(const Base& base) {
  std::vector<KnowledgeDocumentPtr> out;
  for (const auto& [number, document] : base.by_arrival) out.push_back(document);
  return out;
}

Status KnowledgeBases::check_name(std::string_view what, std::string_view name, size_t most) {
  const auto fits = [&](char c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return letter || c == '-' || c == '_' || c == '.' || (c == ':' && most == kMaxId);
  };
  if (!name.empty() && name.size() <= most && std::ranges::all_of(name, fits)) return {};
  return error(Code::kInvalidArgument, "{}: must be 1 to {} letters, digits, '-', '_', '.'{}", what, most,
               most == kMaxId ? " or ':'" : "");
}

Result<std::unique_ptr<KnowledgeBases>> KnowledgeBases::open(const std::string& folder, KnowledgeLimits limits,
                                                             KnowledgeJournal::Disk disk) {
  std::unique_ptr<KnowledgeBases> out(new KnowledgeBases(folder, limits, std::move(disk)));
  if (folder.empty()) return out;
  KVILT_TRY(out->lock_.take(folder));
  KVILT_TRY(out->load());
  return out;
}

// Reads one file. Of version 1, lines are void by their documents' ids.
Status KnowledgeBases::load(const std::string& path, KnowledgeJournal::Owner& owner, Base& base) {
  Shelf read;
  std::vector<KnowledgeJournal::Place> voids;
  const auto no_longer = [&](const std::string& id) {
    if (const auto old = base.by_id.find(id); old != base.by_id.end()) voids.push_back(old->second.line);
  };
  const auto line = [&](const Json& change, KnowledgeJournal::Place place) KVILT_REQUIRES(mutex_) -> Status {
    if (const auto put = change.find("put"); put != change.end() && put->is_object()) {
      KVILT_ASSIGN(KnowledgeDocumentPtr document, read_put(*put));
      no_longer(document->id);
      Coming coming(std::move(document));
      add(read, base, coming, place);
      return {};
    }
    if (const auto id = change.find("remove"); id != change.end() && id->is_string()) {
      no_longer(id->get<std::string>());
      voids.push_back(place);
      take_out(read, base, id->get<std::string>());
      return {};
    }
    return error(Code::kCorrupt, "neither 'put' nor 'remove'");
  };
  KVILT_ASSIGN(base.journal, KnowledgeJournal::open(path, owner, line, disk_));
  if (!base.journal) return {};
  int64_t alive = 0;
  for (const auto& [id, entry] : base.by_id) alive += entry.line.bytes;
  const int64_t dead = base.journal->size() - alive;
  const bool mostly_dead = dead >= kLeastDead && 2 * dead > base.journal->size();
  base.journal->clean(voids);  // first: the file's bytes outlive its name
  if (!mostly_dead && !base.journal->is_old()) return {};
  return write_anew(owner, base);
}

// Where the disk has no room for it the old file goes on.
Status KnowledgeBases::write_anew(const KnowledgeJournal::Owner& owner, Base& base) {
  std::vector<KnowledgeJournal::Place> lines;
  auto written = [&]() -> Result<std::unique_ptr<KnowledgeJournal>> {
    KVILT_ASSIGN(auto anew, base.journal->begin_again(owner));
    Status done;
    for (const KnowledgeDocumentPtr& document : in_order(base)) {
      const auto line = anew->add({KnowledgeJournal::Change{put_line(*document)}});
      if (!(done = line.ok() ? Status() : line.error()).ok()) break;
      lines.push_back(line.value()[0]);
    }
    if (done.ok()) done = anew->sync();
    if (done.ok()) return anew;
    (void)anew->forget();
    return done.error();
  }();
  if (!written.ok()) {
    spdlog::warn("{}: it has void lines, and could not be written anew", written.error().message);
    return {};
  }
  // What is written into a file that may not be in its place is lost by a crash: this ends the start.
  KVILT_ASSIGN(const bool placed, written.value()->take_place());
  if (!placed) return {};
  base.journal = std::move(written.value());
  size_t i = 0;
  for (const KnowledgeDocumentPtr& document : in_order(base)) base.by_id.at(document->id).line = lines[i++];
  return {};
}

Status KnowledgeBases::load() {
  MutexLock lock(mutex_);
  for (const std::string& path : KnowledgeJournal::files(folder_)) {
    Base base;
    KnowledgeJournal::Owner owner;
    KVILT_TRY(load(path, owner, base));
    if (!base.journal) continue;  // it was never there
    base.created = owner.created;
    Shelf& shelf = shelves_[owner.tenant];
    if (const Base* const first = shelf.find(owner.name)) {
      return error(Code::kCorrupt, "{}: knowledge base '{}' of tenant '{}' is in {} too: move one of them away", path,
                   owner.name, owner.tenant, first->journal->path());
    }
    shelf.bytes += base.bytes;
    shelf.bases.emplace(owner.name, std::move(base));
  }
  return {};
}

const KnowledgeBases::Base* KnowledgeBases::find_base(const std::string& tenant, const std::string& name) const {
  const auto shelf = shelves_.find(tenant);
  if (shelf == shelves_.end()) return nullptr;
  const auto base = shelf->second.bases.find(name);
  return base == shelf->second.bases.end() ? nullptr : &base->second;
}

std::optional<KnowledgeJournal::Place> KnowledgeBases::line_of(const Base& base, const std::string& id) {
  const auto found = base.by_id.find(id);
  return found == base.by_id.end() ? std::nullopt : std::optional(found->second.line);
}

// It comes last.
void KnowledgeBases::add(Shelf& shelf, Base& base, Coming& coming, KnowledgeJournal::Place line) {
  Entry& entry = coming.entry.mapped();
  const size_t bytes = entry.document->bytes();
  entry.number = coming.arrival.key() = ++arrivals_;
  entry.line = line;
  base.by_arrival.insert(std::move(coming.arrival));
  if (const auto placed = base.by_id.insert(std::move(coming.entry)); !placed.inserted) {
    Entry& old = placed.position->second;
    *old.document->withdrawn = true;
    shelf.bytes -= old.document->bytes();
    base.bytes -= old.document->bytes();
    base.by_arrival.erase(old.number);
    old = placed.node.mapped();
  }
  shelf.bytes += bytes;
  base.bytes += bytes;
}

void KnowledgeBases::take_out(Shelf& shelf, Base& base, const std::string& id) {
  const auto found = base.by_id.find(id);
  if (found == base.by_id.end()) return;
  const size_t bytes = found->second.document->bytes();
  *found->second.document->withdrawn = true;
  shelf.bytes -= bytes;
  base.bytes -= bytes;
  base.by_arrival.erase(found->second.number);
  base.by_id.erase(found);
}

KnowledgeBases::Base* KnowledgeBases::Shelf::find(const std::string& name) {
  const auto found = bases.find(name);
  return found == bases.end() ? nullptr : &found->second;
}

KnowledgeBases::Shelf* KnowledgeBases::find_shelf(const std::string& tenant) {
  MutexLock lock(mutex_);
  const auto found = shelves_.find(tenant);
  return found == shelves_.end() ? nullptr : &found->second;
}

Status KnowledgeBases::create(const std::string& tenant, const std::string& name) {
  KVILT_TRY(check_name("name", name, kMaxName));
  if (limits_.bases == 0)
    return error(Code::kUnsupported, "this server keeps no texts, so no knowledge bases (--keep-no-text)");
  Shelf* shelf = nullptr;
  {
    MutexLock lock(mutex_);
    shelf = &shelves_[tenant];
  }
  MutexLock changing(shelf->changes);
  if (shelf->find(name)) return error(Code::kInvalidArgument, "name: knowledge base '{}' is there already", name);
  if (shelf->bases.size() >= limits_.bases)
    return error(Code::kOverLimit, "there are {} knowledge bases already: delete one first", limits_.bases);
  Base base;
  base.created = static_cast<int64_t>(std::time(nullptr));
  if (!folder_.empty()) {
    KVILT_ASSIGN(base.journal, KnowledgeJournal::create(folder_, {tenant, name, base.created}, disk_));
  }
  KnowledgeJournal* const file = base.journal.get();
  MutexLock lock(mutex_);
  try {
    shelf->bases.try_emplace(name, std::move(base));
  } catch (...) {
    if (file) (void)file->forget();  // node and name come first: the base still has it
    throw;
  }
  return {};
}

Status KnowledgeBases::erase(const std::string& tenant, const std::string& name) {
  Shelf* const shelf = find_shelf(tenant);
  if (!shelf) return no_base(name);
  MutexLock changing(shelf->changes);
  const Base* const base = shelf->find(name);
  if (!base) return no_base(name);
  if (base->journal) KVILT_TRY(base->journal->forget());
  decltype(shelf->bases)::node_type gone;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, entry] : base->by_id) *entry.document->withdrawn = true;
    shelf->bytes -= base->bytes;
    gone = shelf->bases.extract(name);
  }
  if (!gone.mapped().journal) return {};
  if (const Status kept = gone.mapped().journal->sync_folder(); !kept.ok())
    return error(Code::kIo, "{}: the knowledge base is deleted, but a crash may bring it back", kept.error().message);
  return {};
}

Result<size_t> KnowledgeBases::check_room(const Shelf& shelf, const Base& base,
                                          const std::vector<KnowledgeDocumentPtr>& documents) const {
  std::map<std::string_view, size_t> bytes_of;  // by id; the last of one id stays
  for (const KnowledgeDocumentPtr& document : documents) bytes_of[document->id] = document->bytes();
  size_t bytes = 0, replaced = 0, fresh = 0;
  for (const auto& [id, size] : bytes_of) {
    bytes += size;
    const auto old = base.by_id.find(std::string(id));
    old == base.by_id.end() ? ++fresh : replaced += old->second.document->bytes();  // it makes room for its successor
  }
  const size_t left = limits_.bytes - std::min(limits_.bytes, shelf.bytes) + replaced;
  if (bytes > left) {
    return error(Code::kOverLimit, "documents: they need {} bytes, and {} of {} are left (--knowledge-bytes)", bytes,
                 left, limits_.bytes);
  }
  if (base.by_id.size() + fresh > limits_.documents)
    return error(Code::kOverLimit, "documents: a knowledge base has {} at most", limits_.documents);
  return bytes - std::min(bytes, replaced);
}

// From before documents are written until they are there: other tenants' changes go on meanwhile.
class KnowledgeBases::Reserved {
 public:
  Reserved(KnowledgeBases& of, size_t bytes) : of_(of), bytes_(bytes) {}
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  ~Reserved() {
    MutexLock lock(of_.mutex_);
    of_.reserved_ -= bytes_;
  }

 private:
  KnowledgeBases& of_;
  const size_t bytes_;
};

// How much is left is not said: it would tell of other tenants.
Status KnowledgeBases::reserve(size_t bytes) {
  MutexLock lock(mutex_);
  size_t all = reserved_;
  for (const auto& [tenant, shelf] : shelves_) all += shelf.bytes;
  if (bytes > limits_.all_bytes - std::min(limits_.all_bytes, all)) {
    return error(Code::kOverLimit,
                 "documents: all tenants together have {} bytes of texts at most, and there is no room for these now: "
                 "delete some, or ask the operator for more (--knowledge-total-bytes)",
                 limits_.all_bytes);
  }
  reserved_ += bytes;
  return {};
}

Status KnowledgeBases::put(const std::string& tenant, const std::string& name,
                           std::vector<KnowledgeDocumentPtr> documents) {
  Shelf* const shelf = find_shelf(tenant);
  if (!shelf) return no_base(name);
  MutexLock changing(shelf->changes);
  Base* const base = shelf->find(name);
  if (!base) return no_base(name);
  KVILT_ASSIGN(const size_t more, check_room(*shelf, *base, documents));
  KVILT_TRY(reserve(more));
  const Reserved reserved(*this, more);
  std::map<std::string, const KnowledgeDocument*> last;  // by id
  for (const KnowledgeDocumentPtr& document : documents) last[document->id] = document.get();
  std::erase_if(documents, [&](const KnowledgeDocumentPtr& document) {
    const auto old = base->by_id.find(document->id);
    const bool known = old != base->by_id.end() && same(*old->second.document, *document);
    return known || last[document->id] != document.get();
  });
  if (documents.empty()) return {};
  std::vector<Coming> coming;
  coming.reserve(documents.size());
  for (const KnowledgeDocumentPtr& document : documents) coming.emplace_back(document);
  std::vector<KnowledgeJournal::Place> lines(documents.size());
  if (base->journal) {
    std::vector<KnowledgeJournal::Change> changes;
    for (const KnowledgeDocumentPtr& document : documents)
      changes.push_back({put_line(*document), line_of(*base, document->id)});
    KVILT_ASSIGN(lines, base->journal->append(changes));
  }
  MutexLock lock(mutex_);
  for (size_t i = 0; i < coming.size(); ++i) add(*shelf, *base, coming[i], lines[i]);
  return {};
}

Status KnowledgeBases::remove(const std::string& tenant, const std::string& name, const std::string& id) {
  Shelf* const shelf = find_shelf(tenant);
  if (!shelf) return no_base(name);
  MutexLock changing(shelf->changes);
  Base* const base = shelf->find(name);
  if (!base) return no_base(name);
  if (!base->by_id.contains(id)) return no_document(name, id);
  if (base->journal) KVILT_TRY(base->journal->append({KnowledgeJournal::Change{"{}", line_of(*base, id)}}));
  MutexLock lock(mutex_);
  take_out(*shelf, *base, id);
  return {};
}

namespace {

template <class Base>
KnowledgeBaseInfo info_of(const std::string& name, const Base& base) {
  KnowledgeBaseInfo out{name, base.created, base.by_id.size(), base.bytes};
  for (const auto& [id, entry] : base.by_id) {
    out.tokens += entry.document->tokens;
    out.hits += entry.document->hits;
  }
  return out;
}

}  // namespace

std::vector<KnowledgeBaseInfo> KnowledgeBases::list(const std::string& tenant) const {
  MutexLock lock(mutex_);
  std::vector<KnowledgeBaseInfo> out;
  const auto shelf = shelves_.find(tenant);
  if (shelf == shelves_.end()) return out;
  for (const auto& [name, base] : shelf->second.bases) out.push_back(info_of(name, base));
  return out;
}

Result<KnowledgeBaseInfo> KnowledgeBases::info(const std::string& tenant, const std::string& name) const {
  MutexLock lock(mutex_);
  const Base* base = find_base(tenant, name);
  if (!base) return no_base(name);
  return info_of(name, *base);
}

Result<std::vector<KnowledgeDocumentPtr>> KnowledgeBases::documents(const std::string& tenant,
                                                                    const std::string& name) const {
  MutexLock lock(mutex_);
  const Base* base = find_base(tenant, name);
  if (!base) return no_base(name);
  return in_order(*base);
}

Result<KnowledgeBases::Page> KnowledgeBases::page(const std::string& tenant, const std::string& name,
                                                  const std::string& after, size_t limit) const {
  MutexLock lock(mutex_);
  const Base* base = find_base(tenant, name);
  if (!base) return no_base(name);
  auto next = base->by_arrival.begin();
  if (!after.empty()) {
    const auto found = base->by_id.find(after);
    if (found == base->by_id.end())
      return error(Code::kInvalidArgument, "after: knowledge base '{}' has no document '{}'", name,
                   after.substr(0, kMaxId));
    next = base->by_arrival.upper_bound(found->second.number);
  }
  Page out;
  for (; next != base->by_arrival.end() && out.documents.size() < limit; ++next) out.documents.push_back(next->second);
  out.more = next != base->by_arrival.end();
  return out;
}

Result<KnowledgeDocumentPtr> KnowledgeBases::find(const std::string& tenant, const std::string& name,
                                                  const std::string& id) const {
  MutexLock lock(mutex_);
  const Base* base = find_base(tenant, name);
  if (!base) return no_base(name);
  const auto found = base->by_id.find(id);
  if (found == base->by_id.end()) return no_document(name, id);
  return found->second.document;
}

// What an entry of a chat's documents stands for.
Result<std::vector<KnowledgeDocumentPtr>> KnowledgeBases::named(const std::string& tenant, const Json& entry) const {
  const Json name = entry["knowledge_base"], id = entry.value("id", Json());
  if (!name.is_string() || !(id.is_null() || id.is_string()))
    return error(Code::kInvalidArgument, "'knowledge_base' and 'id' must be strings");
  if (entry.contains("text") || entry.contains("content"))
    return error(Code::kInvalidArgument, "names a knowledge base and has a text too: send one of them");
  if (id.is_null()) return documents(tenant, name.get<std::string>());
  KVILT_ASSIGN(KnowledgeDocumentPtr one, find(tenant, name.get<std::string>(), id.get<std::string>()));
  return std::vector<KnowledgeDocumentPtr>{std::move(one)};
}

Result<NamedDocuments> KnowledgeBases::fill(const std::string& tenant, Json& body,
                                            FunctionRef<bool(size_t bytes)> has_room) const {
  if (!body.is_object()) return NamedDocuments();
  const auto entries = body.find("documents");
  const auto refers = [](const Json& entry) { return entry.is_object() && entry.contains("knowledge_base"); };
  if (entries == body.end() || !entries->is_array() || std::ranges::none_of(*entries, refers)) return NamedDocuments();
  std::map<size_t, std::vector<KnowledgeDocumentPtr>> asked;  // by the entry's place
  size_t bytes = 0;
  for (size_t i = 0; i < entries->size() && bytes <= limits_.asked_bytes; ++i) {
    if (!refers((*entries)[i])) continue;
    auto found = named(tenant, (*entries)[i]);
    if (!found.ok()) return error(found.error().code, "documents[{}]: {}", i, found.error().message);
    for (const KnowledgeDocumentPtr& document : found.value()) bytes += document->bytes();
    asked.emplace(i, std::move(found.value()));
  }
  if (bytes > limits_.asked_bytes) {
    return error(Code::kTooLong, "documents: those of knowledge bases have more than {} MiB; name fewer",
                 limits_.asked_bytes >> 20);
  }
  if (!has_room(bytes)) return error(Code::kUnavailable, "other large requests are being read: try again soon");
  Json filled = Json::array();
  NamedDocuments out;
  for (size_t i = 0; i < entries->size(); ++i) {
    const auto documents = asked.find(i);
    if (documents == asked.end()) {
      filled.push_back(std::move((*entries)[i]));
      out.emplace_back();
      continue;
    }
    for (const KnowledgeDocumentPtr& document : documents->second) {
      filled.push_back(as_document(*document));
      out.push_back({(*entries)[i]["knowledge_base"].get<std::string>(), document});
    }
  }
  *entries = std::move(filled);
  return out;
}

}  // namespace kvilt::server

// server/knowledge_journal.h: a knowledge base on disk: a file of JSON lines, one a change (docs/formats/knowledge.md).
// Idea:       texts are small beside their KV, and are written once; so a line is appended and synced, and the file is
//             read whole at the start. What a crash left of a last line is cut off; a file whose first line it cut short
//             was never acknowledged, and is deleted.
//             A file that is mostly lines which later ones made void is written anew then, aside, and takes the place of
//             the old one: a crash leaves one or the other.
// Invariants: a line that could not be written whole is taken back, so that the next one begins a line.
// Threads:    one at a time (KnowledgeBases has a lock for each tenant).
// Not here:   KV on disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvilt/result.h"
#include "server/json_fields.h"

namespace kvilt::server {

// 32 hexadecimal digits that follow from two texts: BLAKE2b-128 of both with a zero byte between them.
std::string name_of(std::string_view first, std::string_view second);

// A folder that only one process uses at a time.
class FolderLock {
 public:
  FolderLock() = default;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();
  // Makes the folder if need be. kIo: it cannot be made or written, or another process has it.
  Status take(const std::string& folder);

 private:
  int file_ = -1;
};

class KnowledgeJournal {
 public:
  // Whose base, and which. Its file's name follows from both.
  struct Owner {
    std::string tenant, name;
    int64_t created = 0;
  };
  // As fdatasync(); tests have another one.
  using Sync = std::function<int(int file)>;
  static Sync system_sync();
  using Line = std::function<Status(const Json&, size_t bytes)>;
  // A new file. kIo.
  static Result<std::unique_ptr<KnowledgeJournal>> create(const std::string& folder, const Owner& owner,
                                                          const Sync& sync);
  // An existing one: each line but the first goes to `line`, in order, with its bytes. Null: a crash left no whole first
  // line; the file is deleted then, and a warning says so. kCorrupt: names file and line.
  static Result<std::unique_ptr<KnowledgeJournal>> open(const std::string& path, Owner& owner, const Line& line,
                                                        const Sync& sync);
  // What begin_again() left where it did not come to its end is deleted.
  static std::vector<std::string> files(const std::string& folder);

  KnowledgeJournal(const KnowledgeJournal&) = delete;
  KnowledgeJournal& operator=(const KnowledgeJournal&) = delete;
  ~KnowledgeJournal();

  // On disk when this returns. On kIo nothing was added.
  Status append(std::string_view lines);
  void forget();  // the file is deleted
  int64_t size() const { return size_; }

  // The same base anew: a file aside, for add() and then sync(); take_place() puts it where this one is, which is as it
  // was until then.
  Result<std::unique_ptr<KnowledgeJournal>> begin_again(const Owner& owner) const;
  Status add(std::string_view lines);  // as append(), but for the sync
  Status sync();
  // False: it could not, and is deleted; the old one goes on. An error: which of the two a crash leaves nobody knows.
  Result<bool> take_place();

 private:
  KnowledgeJournal(std::string path, int file, Sync sync)
      : path_(std::move(path)), sync_(std::move(sync)), file_(file) {}
  std::string path_;
  const Sync sync_;
  const int file_;
  int64_t size_ = 0;
};

}  // namespace kvilt::server

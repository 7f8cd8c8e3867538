// server/knowledge_journal.h: a knowledge base on disk: a file of lines, one a change (docs/formats/knowledge.md).
// Idea:       texts are small beside their KV, and are written once; so a line is appended and synced, and the file is
//             read whole at the start. What a crash left of a last line is cut off; a file whose first line it cut short
//             was never acknowledged, and is deleted.
//             A line names those that it makes void. When it is synced, blanks are written over these, so that no text
//             outlives its document; whatever a crash leaves of a line that a later one names, nobody reads it.
//             A file that is mostly such lines is written anew at the start, aside, and takes the place of the old one: a
//             crash leaves one or the other.
// Invariants: a line that could not be written whole is taken back, so that the next one begins a line. Nothing is written
//             over a line before one is on disk that names it and is not void itself: each line names all that are void
//             and not known to be blank on disk. So whatever is half written over can be told from damage.
//             A file is read from disk, not from what an earlier process left in memory: what reads as blank is so there.
// Threads:    one at a time (KnowledgeBases has a lock for each tenant).
// Not here:   KV on disk; what the file system keeps of bytes that are no longer in a file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"
#include "kvilt/result.h"
#include "server/json_fields.h"
#include "server/knowledge_seal.h"

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
  struct Disk {
    Sync sync = system_sync();
    std::optional<HashSecret> key = {};  // seals all lines; a file is sealed from its beginning or never
  };
  // Of a line in the file, without its end.
  struct Place {
    int64_t at = 0, bytes = 0;
  };
  struct Change {
    std::string json;                 // an object; an empty one only takes a line away
    std::optional<Place> voids = {};  // the line that says nothing any more with this one
  };
  using Line = std::function<Status(const Json&, Place)>;
  // A new file. kIo.
  static Result<std::unique_ptr<KnowledgeJournal>> create(const std::string& folder, const Owner& owner,
                                                          const Disk& disk);
  // An existing one: each line but the first that is not void goes to `line`, in order. Null: a crash left no whole first
  // line; the file is deleted then, and a warning says so. kCorrupt: names file and line. kInvalidArgument: the wrong key,
  // one too many or too few; nothing was changed.
  static Result<std::unique_ptr<KnowledgeJournal>> open(const std::string& path, Owner& owner, const Line& line,
                                                        const Disk& disk);
  // What begin_again() left where it did not come to its end is deleted.
  static std::vector<std::string> files(const std::string& folder);

  KnowledgeJournal(const KnowledgeJournal&) = delete;
  KnowledgeJournal& operator=(const KnowledgeJournal&) = delete;
  ~KnowledgeJournal();

  // On disk when this returns, with their places; what they make void is blank then. On kIo nothing was added. Blanks that
  // could not be written are a warning: the next change tries again.
  Result<std::vector<Place>> append(const std::vector<Change>& changes);
  // Lines that say nothing any more, and those that a crash left void and not blank: they are blank when this returns.
  // What fails is a warning.
  void clean(const std::vector<Place>& voids);
  Status forget();             // the file is deleted; kIo: it is there as before
  Status sync_folder() const;  // what was made and deleted in it stays so
  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  bool is_old() const { return version_ != kVersion; }  // it is better written anew

  // The same base anew: a file aside, for add() and then sync(); take_place() puts it where this one is, which is as it
  // was until then.
  Result<std::unique_ptr<KnowledgeJournal>> begin_again(const Owner& owner) const;
  Result<std::vector<Place>> add(const std::vector<Change>& changes);  // as append(), without the sync and the blanks
  Status sync();
  // False: it could not, and is deleted; the old one goes on. An error: which of the two a crash leaves nobody knows.
  Result<bool> take_place();

 private:
  struct Read;
  static constexpr int kVersion = 2;
  KnowledgeJournal(std::string path, int file, Disk disk);
  Result<std::vector<Read>> read_lines(std::string_view text, Owner& owner);
  Result<Json> read_object(std::string_view line, int64_t at) const;
  Status read_head(std::string_view line, Owner& owner);
  Status open_seal(const Json& head);
  Status find_voids(std::vector<Read>& lines) const;
  Status pass_on(std::vector<Read>& lines, const Line& line);
  Status write_head(const Owner& owner);
  Status add_bytes(std::string_view bytes);
  Status write_at(std::string_view bytes, int64_t at);
  Status write_blanks();
  Error damage(size_t number, int64_t at, const Error& why) const;

  std::string path_;
  const Disk disk_;
  const int file_;
  std::optional<KnowledgeSeal> seal_;  // with a key
  int64_t size_ = 0;
  int version_ = kVersion;
  std::vector<Place> void_;  // that some line names, and that are not known to be blank on disk
};

}  // namespace kvilt::server

// hub/hub_store.h: one repository's folder in the hub's cache, written so that Hugging Face's own programs read it.
// Source:     huggingface_hub's layout: models--ORG--NAME/blobs/HASH is a file's contents, snapshots/COMMIT/PATH a
//             relative link to it, refs/REVISION the commit's name; .locks/models--ORG--NAME/HASH.lock is held (flock)
//             while HASH is downloaded into HASH.incomplete.
// Invariants: a blob has its name only when its size and its hash are right, and its bytes are on the disk. Links and
//             refs are replaced in one step.
// Errors:     kExhausted where the disk is full, else kIo; the message names the file.
// Threads:    any, and other processes, for different blobs; for one blob whoever holds its lock.
// Not here:   reading (model/hub_cache.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/function_ref.h"
#include "base/open_file.h"
#include "hub/content_hash.h"
#include "hub/repo_listing.h"
#include "kvilt/result.h"

namespace kvilt {

class HubStore {
 public:
  HubStore(const std::string& hub, const HubName& name);

  bool has(const RepoFile& file) const;             // its blob, of the right size
  int64_t begun_bytes(const RepoFile& file) const;  // what there is of one that is not whole
  // Of a blob. None: another process has it.
  Result<std::optional<OpenFile>> try_lock(const RepoFile& file) const;
  // REQUIRES: the blobs are there. Links the files into the snapshot, then names its commit in refs/revision.
  Status publish(const RepoListing& listing, std::span<const RepoFile> files, const std::string& revision) const;
  // Bytes that may still be written; none: the system does not say.
  std::optional<int64_t> free_bytes() const;

  std::filesystem::path snapshot(const std::string& commit) const { return folder_ / "snapshots" / commit; }
  std::filesystem::path blob(const RepoFile& file) const { return folder_ / "blobs" / file.blob; }
  std::filesystem::path incomplete(const RepoFile& file) const {
    return folder_ / "blobs" / (file.blob + ".incomplete");
  }

 private:
  Status link(const std::filesystem::path& snapshot, const RepoFile& file) const;
  const std::filesystem::path folder_, locks_;
};

// A blob that grows in its .incomplete file, hashed as it comes. REQUIRES: the blob's lock is held.
class GrowingBlob {
 public:
  // Goes on with what an earlier attempt left, which is read once. kCancelled: stopped() said so.
  static Result<GrowingBlob> open(const HubStore& store, const RepoFile& file, FunctionRef<bool()> stopped);

  int64_t bytes() const { return bytes_; }
  Status append(std::span<const std::byte> bytes);  // kCorrupt: more than the file has
  Status restart();                                 // from nothing
  // True: it was what its name says, and now has this name. False: it was not, and is gone.
  // REQUIRES: bytes() is the file's size.
  Result<bool> finish();

 private:
  GrowingBlob(const HubStore& store, const RepoFile& file, OpenFile opened);
  Status read_begun(FunctionRef<bool()> stopped);

  std::string path_, final_path_;
  RepoFile file_;
  OpenFile opened_;
  std::unique_ptr<ContentHash> hash_;
  int64_t bytes_ = 0;
};

}  // namespace kvilt

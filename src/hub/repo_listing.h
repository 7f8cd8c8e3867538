// hub/repo_listing.h: what a repository of the hub holds, as its API says, and which files of it a model's name means.
// Source:     GET /api/models/ORG/NAME/revision/REV?blobs=true of Hugging Face's hub: `sha`, the commit, `siblings`:
//             rfilename, size, blobId (git's hash) and, of large files, lfs: sha256 and size.
// Invariants: paths are relative, without "..", and safe below any folder; hashes are hex; sizes are bounded, and so is
//             their sum. A listing that breaks one of these is refused as a whole: its server is not to be trusted.
// Threads:    any.
// Not here:   the network (pull.h asks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvilt/result.h"
#include "model/hub_names.h"

namespace kvilt {

struct RepoFile {
  std::string path;  // relative to the snapshot
  int64_t size = 0;
  std::string blob;  // the name of its contents (content_hash.h); empty: the hub does not say
};

struct RepoListing {
  std::string commit;
  std::vector<RepoFile> files;
};

constexpr size_t kMaxListingBytes = 8 << 20;
constexpr size_t kMaxListedFiles = 20000;
constexpr int64_t kMaxPulledBytes = int64_t{1} << 50;

// where: what to call the text in messages.
Result<RepoListing> parse_listing(std::string_view json, const std::string& where);

struct ChosenFiles {
  std::string model;            // what open_model() takes of the snapshot; "": the folder itself
  std::vector<RepoFile> files;  // all that it needs
};

// A GGUF file with its parts; or config, tokenizer, template and safetensors.
Result<ChosenFiles> choose_files(const HubName& name, const RepoListing& listing);

// A path that stays below the folder that it is appended to, and can be printed.
bool is_safe_path(std::string_view path);

}  // namespace kvilt

// apps/cache_folder.h: a folder of --cache-dir as the sub-commands of `kvilt cache` see it, and which of its pieces they
// are about.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/flags.h"
#include "base/keyed_hash.h"
#include "tier/disk_tier.h"

namespace kvilt {

struct CacheFolder {
  std::string path, key_file;
};
void add_cache_folder(Command& command, CacheFolder& folder);
// The file's key, or the environment's, or none; exits with 1 if that is no key.
std::optional<HashSecret> cache_key(const CacheFolder& folder);
// Exits with 1 if that fails, or if there is no cache: a folder that is not there is not made.
std::unique_ptr<DiskTier> open_cache_folder(const CacheFolder& folder);

// The first digits of a digest, as `kvilt cache list` shows it.
std::string short_hex(const Digest& digest);
std::string piece_name(uint64_t id);
const char* piece_kind(const StoredPiece& piece);  // prefix, exact, approximate

// By id, or by whose they are. A folder knows no names, only digests: who knows the names can make the digest.
struct PieceChoice {
  std::vector<std::string> ids;
  std::string model, name_space, tenant;
  bool given() const { return !ids.empty() || !model.empty(); }
};
// --model, --namespace and --tenant.
void add_piece_names(Command& command, PieceChoice& choice);
// Those of `all`, by id. Exits with 1 on an id that is not there, and where none is left.
std::vector<StoredPiece> chosen(const DiskTier& tier, std::vector<StoredPiece> all, const PieceChoice& choice);

void add_cache_build(Command& cache);
void add_cache_export(Command& cache);

}  // namespace kvilt

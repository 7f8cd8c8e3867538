#include "tier/folder_secret.h"

#include <spdlog/spdlog.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "base/checksum.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

// Nothing where there is no such file; empty where it is none of ours: an empty one cannot be mapped. Other errors may
// pass, and must not cost what the folder holds.
Result<std::optional<std::string>> read_small(const std::string& path) {
  constexpr size_t kMostBytes = 4096;
  std::error_code failed;
  const auto size = fs::file_size(path, failed);
  if (failed == std::errc::no_such_file_or_directory) return std::optional<std::string>();
  if (failed) return error(Code::kIo, "{}: {}", path, failed.message());
  if (size == 0 || size > kMostBytes) return std::optional<std::string>("");
  KVILT_ASSIGN(std::string bytes, read_file(path, kMostBytes));
  return std::optional(std::move(bytes));
}

// The file `sealed`: docs/formats/cache_folder.md#with-a-key.
struct ProofBytes {
  char magic[8];
  uint8_t salt[32];
  std::byte proof[Sealer::kExtra];  // nothing, sealed
  uint64_t sum;                     // of all before it
};
static_assert(sizeof(ProofBytes) == 88);
constexpr char kProofMagic[] = "KVSEAL1";
static_assert(sizeof kProofMagic == 8);
constexpr Sealer::Place kProofPlace{Sealer::What::kProof};

uint64_t sum_of(const ProofBytes& proof) {
  return checksum(std::as_bytes(std::span(&proof, 1)).first(offsetof(ProofBytes, sum)));
}

HashSecret seed_of(const ProofBytes& proof) {
  return *HashSecret::of({reinterpret_cast<const char*>(proof.salt), sizeof proof.salt});
}

bool was_used_without_a_key(const std::string& folder) {
  std::error_code none;
  return fs::exists(folder + "/secret", none) || fs::exists(folder + "/journal", none);
}

Result<FolderSecret> read_proof(const std::string& folder, const std::string& bytes,
                                const std::optional<HashSecret>& key) {
  if (!key) {
    return error(Code::kInvalidArgument,
                 "{}: it was written with a key: give that (--cache-key FILE, or KVILT_CACHE_KEY), or name another "
                 "folder",
                 folder);
  }
  ProofBytes proof;
  const bool fits = bytes.size() == sizeof proof;
  if (fits) std::memcpy(&proof, bytes.data(), sizeof proof);
  if (!fits || std::memcmp(proof.magic, kProofMagic, sizeof proof.magic) != 0 || sum_of(proof) != proof.sum) {
    return error(Code::kCorrupt,
                 "{}/sealed: damaged, or written by another version: no key opens what the folder holds; name another "
                 "folder, or delete this one",
                 folder);
  }
  std::vector<std::byte> sealed(std::begin(proof.proof), std::end(proof.proof));
  FolderSecret secret = folder_secret(seed_of(proof), key);
  if (secret.sealer->open(kProofPlace, sealed)) return secret;
  return error(Code::kInvalidArgument,
               "{}: it was written with another key: give that, or name another folder; nothing in it was changed",
               folder);
}

Result<FolderSecret> make_proof(const std::string& folder, const HashSecret& key, const HashSecret& seed,
                                Files& files) {
  FolderSecret secret = folder_secret(seed, key);
  ProofBytes proof{};
  std::memcpy(proof.magic, kProofMagic, sizeof proof.magic);
  std::memcpy(proof.salt, seed.bytes().data(), sizeof proof.salt);
  secret.sealer->seal(kProofPlace, {}, proof.proof);
  proof.sum = sum_of(proof);
  KVILT_TRY(files.replace(folder + "/sealed", std::as_bytes(std::span(&proof, 1))));
  return secret;
}

Result<FolderSecret> first_proof(const std::string& folder, const HashSecret& key, Files& files) {
  if (was_used_without_a_key(folder)) {
    return error(Code::kInvalidArgument,
                 "{}: it was written without a key and can be read by whoever gets it: name another folder, or delete "
                 "this one; without --cache-key and KVILT_CACHE_KEY it opens as before",
                 folder);
  }
  return make_proof(folder, key, HashSecret::random(), files);
}

Result<FolderSecret> make_secret(const std::string& folder, const HashSecret& seed, Files& files) {
  KVILT_TRY(files.replace(folder + "/secret", std::as_bytes(std::span(seed.bytes()))));
  return folder_secret(seed, {});
}

Result<FolderSecret> plain_secret(const std::string& folder, Files& files) {
  const std::string path = folder + "/secret";
  KVILT_ASSIGN(const std::optional<std::string> text, read_small(path));
  if (text) {
    if (const auto secret = HashSecret::of(*text)) return folder_secret(*secret, {});
    spdlog::warn("{}: damaged; it is drawn anew, and what the folder holds cannot be found any more", path);
  }
  return make_secret(folder, HashSecret::random(), files);
}

}  // namespace

FolderSecret folder_secret(const HashSecret& seed, const std::optional<HashSecret>& key) {
  if (!key) return {seed, {}, seed};
  return {derived_key(*key, "kvilt.folder.digests", seed.bytes()),
          Sealer(derived_key(*key, "kvilt.folder.values", seed.bytes())), seed};
}

Result<FolderSecret> begin_folder(const std::string& folder, const std::optional<HashSecret>& key,
                                  const HashSecret& seed, Files& files) {
  return key ? make_proof(folder, *key, seed, files) : make_secret(folder, seed, files);
}

Result<FolderSecret> open_folder_secret(const std::string& folder, const std::optional<HashSecret>& key, Files& files) {
  KVILT_ASSIGN(const std::optional<std::string> proof, read_small(folder + "/sealed"));
  if (proof) return read_proof(folder, *proof, key);
  return key ? first_proof(folder, *key, files) : plain_secret(folder, files);
}

}  // namespace kvilt

#include "apps/cache_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>

#include "apps/command.h"
#include "base/hex.h"
#include "engine/kv_maker.h"
#include "index/domains.h"
#include "model/model_file.h"
#include "tier/key_file.h"

namespace kvilt {
namespace {

uint64_t piece_id(const std::string& text) {
  uint64_t id = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), id, 16);
  if (wrong != std::errc() || end != text.data() + text.size() || id == 0)
    fail(fmt::format("'{}': no piece's id; `kvilt cache list DIR --pieces` shows them", text));
  return id;
}

// The KV type is a part of the digest, and which one the pieces have the folder does not say.
std::vector<Digest> domains_of(const DiskTier& tier, const PieceChoice& choice) {
  const auto file = value_or_fail(open_model(choice.model));
  std::vector<Digest> out;
  Domains domains(tier.secret());
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kInt8}) {
    const std::string fingerprint = cache_fingerprint(file->fingerprint, kv_type_name(type));
    out.push_back(*domains.digest(domains.id(fingerprint, choice.name_space, "", choice.tenant)));
  }
  return out;
}

std::string names_of(const PieceChoice& choice) {
  std::string out = choice.name_space.empty() ? "the common namespace" : "namespace '" + choice.name_space + "'";
  if (!choice.tenant.empty()) out += " of tenant '" + choice.tenant + "'";
  return out;
}

}  // namespace

void add_cache_folder(Command& command, CacheFolder& folder) {
  command.add_option("DIR", folder.path, "the folder that --cache-dir names").required();
  command.add_option("--cache-key", folder.key_file,
                     "file with the folder's key, where it has one (or environment KVILT_CACHE_KEY)");
}

std::optional<HashSecret> cache_key(const CacheFolder& folder) {
  const std::string text = folder.key_file.empty() ? cache_key_text() : "";
  return value_or_fail(given_key(folder.key_file, text, "environment KVILT_CACHE_KEY"));
}

std::unique_ptr<DiskTier> open_cache_folder(const CacheFolder& folder) {
  if (!std::filesystem::is_directory(std::filesystem::path(folder.path) / "kvilt-cache"))
    fail(folder.path + ": holds no cache; name the folder that --cache-dir names");
  return value_or_fail(DiskTier::open(folder.path, std::numeric_limits<int64_t>::max(), cache_key(folder)));
}

std::string short_hex(const Digest& digest) { return hex_text(std::span(digest).first(6)); }

std::string piece_name(uint64_t id) { return fmt::format("{:016x}", id); }

const char* piece_kind(const StoredPiece& piece) {
  return piece.prefix ? "prefix" : piece.exact ? "exact" : "approximate";
}

void add_piece_names(Command& command, PieceChoice& choice) {
  const Option model = command.add_option("--model", choice.model,
                                          "only exact pieces of this model, in the namespace and of the tenant below");
  command.add_option("--namespace", choice.name_space, "a namespace's name (default: the common one)").needs(model);
  command.add_option("--tenant", choice.tenant, "a tenant's name (default: none, the one without keys)").needs(model);
}

std::vector<StoredPiece> chosen(const DiskTier& tier, std::vector<StoredPiece> all, const PieceChoice& choice) {
  if (!choice.ids.empty()) {
    std::vector<uint64_t> ids;
    for (const std::string& text : choice.ids) {
      ids.push_back(piece_id(text));
      if (std::ranges::find(all, ids.back(), &StoredPiece::id) == all.end())
        fail(fmt::format("there is no piece {}; `kvilt cache list DIR --pieces` shows them", piece_name(ids.back())));
    }
    std::erase_if(all, [&](const StoredPiece& piece) { return std::ranges::find(ids, piece.id) == ids.end(); });
  }
  if (!choice.model.empty()) {
    const std::vector<Digest> domains = domains_of(tier, choice);
    std::erase_if(all,
                  [&](const StoredPiece& piece) { return std::ranges::find(domains, piece.domain) == domains.end(); });
    if (all.empty()) fail(fmt::format("there is nothing of {} in {}", choice.model, names_of(choice)));
  }
  return all;
}

}  // namespace kvilt

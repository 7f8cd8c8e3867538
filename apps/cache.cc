// apps/cache.cc: kvilt cache list | rm: what a folder of --cache-dir holds (docs/design/disk.md).

#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>

#include "apps/command.h"
#include "apps/flags.h"
#include "base/hex.h"
#include "tier/disk_tier.h"
#include "tier/key_file.h"

namespace kvilt {
namespace {

// A folder that is not there is not made.
std::unique_ptr<DiskTier> open_tier(const std::string& folder, const std::string& key_file) {
  if (!std::filesystem::is_directory(std::filesystem::path(folder) / "kvilt-cache"))
    fail(folder + ": holds no cache; name the folder that --cache-dir names");
  const std::string text = key_file.empty() ? cache_key_text() : "";
  const auto key = value_or_fail(given_key(key_file, text, "environment KVILT_CACHE_KEY"));
  return value_or_fail(DiskTier::open(folder, std::numeric_limits<int64_t>::max(), key));
}

std::string short_hex(const Digest& digest) { return hex_text(std::span(digest).first(6)); }

struct CacheFlags {
  std::string folder, key_file, model;
  bool pieces = false, all = false;
};

void list_cache(const CacheFlags& flags) {
  const auto tier = open_tier(flags.folder, flags.key_file);
  struct Sum {
    int64_t pieces = 0, tokens = 0, bytes = 0;
  };
  std::map<std::string, Sum> makers;
  if (flags.pieces)
    std::printf("%-16s %-12s %-12s %8s %8s %12s\n", "piece", "model", "domain", "tokens", "marks", "kind");
  for (const StoredPiece& piece : value_or_fail(tier->all())) {
    Sum& sum = makers[short_hex(piece.maker)];
    ++sum.pieces;
    sum.tokens += piece.count();
    sum.bytes += piece.bytes();
    if (flags.pieces)
      std::printf("%-16llx %-12s %-12s %8d %8zu %12s\n", static_cast<unsigned long long>(piece.id),
                  short_hex(piece.maker).c_str(), short_hex(piece.domain).c_str(), piece.count(), piece.marks.size(),
                  piece.prefix  ? "prefix"
                  : piece.exact ? "exact"
                                : "approximate");
  }
  std::printf("%-12s %10s %12s %12s\n", "model", "pieces", "tokens", "MiB");
  for (const auto& [maker, sum] : makers)
    std::printf("%-12s %10lld %12lld %12.1f\n", maker.c_str(), static_cast<long long>(sum.pieces),
                static_cast<long long>(sum.tokens), static_cast<double>(sum.bytes) / (1 << 20));
  if (tier->damaged() > 0)
    std::printf("%lld damaged or lost records were left out\n", static_cast<long long>(tier->damaged()));
}

// Of one model (as list shows it), or of all.
void remove_pieces(const CacheFlags& flags) {
  if (flags.model.empty() != flags.all)
    fail("name the model whose pieces go, as `kvilt cache list` shows it, or give --all");
  const auto tier = open_tier(flags.folder, flags.key_file);
  int64_t removed = 0;
  for (const StoredPiece& piece : value_or_fail(tier->all())) {
    if (!flags.all && short_hex(piece.maker) != flags.model) continue;
    tier->remove(piece.id);
    ++removed;
  }
  if (const Status done = tier->flush(); !done.ok()) fail(done.error());
  if (!flags.all && removed == 0) fail(flags.folder + ": holds nothing of model '" + flags.model + "'");
  std::printf("%lld pieces removed\n", static_cast<long long>(removed));
}

}  // namespace

void add_cache(Program& program) {
  auto cache = program.app.add_subcommand("cache", "what a folder of --cache-dir holds");
  cache.require_subcommand();
  const auto given = std::make_shared<CacheFlags>();
  const auto add_key = [given](Command& command) {
    command.add_option("--cache-key", given->key_file,
                       "file with the folder's key, where it has one (or environment KVILT_CACHE_KEY)");
  };
  auto shown = cache.add_subcommand("list", "models, pieces and sizes; the folder must not be in use");
  shown.add_option("DIR", given->folder, "the folder").required();
  shown.add_flag("--pieces", given->pieces, "each piece too");
  add_key(shown);
  shown.callback([given] { list_cache(*given); });
  auto removed = cache.add_subcommand("rm", "removes the pieces of one model, or all");
  removed.add_option("DIR", given->folder, "the folder").required();
  removed.add_option("MODEL", given->model, "as list shows it");
  removed.add_flag("--all", given->all, "of all models");
  add_key(removed);
  removed.callback([given] { remove_pieces(*given); });
}

}  // namespace kvilt

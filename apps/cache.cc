// apps/cache.cc: kvilt cache list | rm: what a folder of --cache-dir holds (docs/design/disk.md).
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>

#include "apps/command.h"
#include "apps/flags.h"
#include "tier/disk_tier.h"

namespace kvilt {
namespace {

// A folder that is not there is not made.
std::unique_ptr<DiskTier> open_tier(const std::string& folder) {
  if (!std::filesystem::is_directory(std::filesystem::path(folder) / "kvilt-cache"))
    fail(folder + ": holds no cache; name the folder that --cache-dir names");
  return value_or_fail(DiskTier::open(folder, std::numeric_limits<int64_t>::max()));
}

std::string short_hex(const Digest& digest) {
  std::string out;
  for (size_t i = 0; i < 6; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

void list_cache(const std::string& folder, bool pieces) {
  const auto tier = open_tier(folder);
  struct Sum {
    int64_t pieces = 0, tokens = 0, bytes = 0;
  };
  std::map<std::string, Sum> makers;
  if (pieces) std::printf("%-12s %-12s %-12s %8s %8s %12s\n", "piece", "model", "domain", "tokens", "marks", "kind");
  for (const StoredPiece& piece : value_or_fail(tier->all())) {
    Sum& sum = makers[short_hex(piece.maker)];
    ++sum.pieces;
    sum.tokens += piece.count();
    sum.bytes += piece.bytes();
    if (pieces)
      std::printf("%-12llx %-12s %-12s %8d %8zu %12s\n", static_cast<unsigned long long>(piece.id),
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
void remove_pieces(const std::string& folder, const std::string& model, bool all) {
  if (model.empty() != all) fail("name the model whose pieces go, as `kvilt cache list` shows it, or give --all");
  const auto tier = open_tier(folder);
  int64_t removed = 0;
  for (const StoredPiece& piece : value_or_fail(tier->all())) {
    if (!all && short_hex(piece.maker) != model) continue;
    tier->remove(piece.id);
    ++removed;
  }
  if (const Status done = tier->flush(); !done.ok()) fail(done.error());
  if (!all && removed == 0) fail(folder + ": holds nothing of model '" + model + "'");
  std::printf("%lld pieces removed\n", static_cast<long long>(removed));
}

}  // namespace

void add_cache(Program& program) {
  auto cache = program.app.add_subcommand("cache", "what a folder of --cache-dir holds");
  cache.require_subcommand();
  struct Given {
    std::string folder, model;
    bool pieces = false, all = false;
  };
  const auto given = std::make_shared<Given>();
  auto shown = cache.add_subcommand("list", "models, pieces and sizes; the folder must not be in use");
  shown.add_option("DIR", given->folder, "the folder").required();
  shown.add_flag("--pieces", given->pieces, "each piece too");
  shown.callback([given] { list_cache(given->folder, given->pieces); });
  auto removed = cache.add_subcommand("rm", "removes the pieces of one model, or all");
  removed.add_option("DIR", given->folder, "the folder").required();
  removed.add_option("MODEL", given->model, "as list shows it");
  removed.add_flag("--all", given->all, "of all models");
  removed.callback([given] { remove_pieces(given->folder, given->model, given->all); });
}

}  // namespace kvilt

// apps/cache.cc: kvilt cache list | show | rm: what a folder of --cache-dir holds (docs/design/disk.md).
// Not here: what is put there (cache_build.cc), or carried to another (cache_export.cc).

#include <fmt/chrono.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/cache_folder.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "base/hex.h"
#include "tier/piece_id.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

struct CacheFlags {
  CacheFolder folder;
  PieceChoice choice;
  std::string model;
  bool pieces = false, all = false, json = false;
};

void list_cache(const CacheFlags& flags) {
  const auto tier = open_cache_folder(flags.folder);
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
      std::printf("%-16s %-12s %-12s %8d %8zu %12s\n", piece_name(piece.id).c_str(), short_hex(piece.maker).c_str(),
                  short_hex(piece.domain).c_str(), piece.count(), piece.marks.size(), piece_kind(piece));
  }
  std::printf("%-12s %10s %12s %12s\n", "model", "pieces", "tokens", "MiB");
  for (const auto& [maker, sum] : makers)
    std::printf("%-12s %10lld %12lld %12.1f\n", maker.c_str(), static_cast<long long>(sum.pieces),
                static_cast<long long>(sum.tokens), static_cast<double>(sum.bytes) / (1 << 20));
  if (tier->damaged() > 0)
    std::printf("%lld damaged or lost records were left out\n", static_cast<long long>(tier->damaged()));
}

// What the folder knows of a piece, but for its tokens: they are a text.
Json about(const StoredPiece& piece, bool sealed) {
  const auto stored = static_cast<std::time_t>(drawn_at_ms(piece.id) / 1000);
  Json out = {{"piece", piece_name(piece.id)},
              {"kind", piece_kind(piece)},
              {"tokens", piece.count()},
              {"bytes", piece.bytes()},
              {"position", piece.pos},
              {"model", hex_text(piece.maker)},
              {"domain", hex_text(piece.domain)},
              {"marks", piece.marks.size()},
              {"clean_copies", piece.clean.size()},
              {"stored", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(stored))},
              {"sealed", sealed}};
  if (piece.parent != 0) {
    out["continues"] = piece_name(piece.parent);
    out["after_tokens"] = piece.parent_tokens;
  }
  return out;
}

void show_pieces(const CacheFlags& flags) {
  if (flags.choice.given() == flags.all)
    fail("name pieces, as `kvilt cache list DIR --pieces` shows them, or give --model, or --all");
  const auto tier = open_cache_folder(flags.folder);
  Json rows = Json::array();
  for (const StoredPiece& piece : chosen(*tier, value_or_fail(tier->all()), flags.choice))
    rows.push_back(about(piece, tier->sealed()));
  if (flags.json) {
    std::printf("%s\n", rows.dump(1).c_str());
    return;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0) std::printf("\n");
    for (const auto& [name, value] : rows[i].items()) {
      const std::string text = value.is_string()    ? value.get<std::string>()
                               : value.is_boolean() ? (value.get<bool>() ? "yes" : "no")
                                                    : value.dump();
      std::printf("%-14s %s\n", name.c_str(), text.c_str());
    }
  }
}

// Of one model (as list shows it), of some names, or all.
void remove_pieces(const CacheFlags& flags) {
  if (int{!flags.model.empty()} + int{flags.all} + int{flags.choice.given()} != 1)
    fail("name the model whose pieces go, as `kvilt cache list` shows it, or give --only, --model or --all");
  const auto tier = open_cache_folder(flags.folder);
  int64_t removed = 0;
  for (const StoredPiece& piece : chosen(*tier, value_or_fail(tier->all()), flags.choice)) {
    if (!flags.model.empty() && short_hex(piece.maker) != flags.model) continue;
    tier->remove(piece.id);
    ++removed;
  }
  if (const Status done = tier->flush(); !done.ok()) fail(done.error());
  if (!flags.all && removed == 0) fail(flags.folder.path + ": holds nothing of model '" + flags.model + "'");
  std::printf("%lld pieces removed\n", static_cast<long long>(removed));
}

void add_list(Command& cache) {
  const auto given = std::make_shared<CacheFlags>();
  auto list = cache.add_subcommand("list", "models, pieces and sizes; the folder must not be in use");
  add_cache_folder(list, given->folder);
  list.add_flag("--pieces", given->pieces, "each piece too");
  list.callback([given] { list_cache(*given); });
}

void add_show(Command& cache) {
  const auto given = std::make_shared<CacheFlags>();
  auto show = cache.add_subcommand("show", "what is known of pieces; the folder must not be in use");
  add_cache_folder(show, given->folder);
  show.add_option("PIECE", given->choice.ids, "ids, as list --pieces shows them");
  show.add_flag("--all", given->all, "all pieces");
  add_piece_names(show, given->choice);
  show.add_flag("--json", given->json, "as JSON");
  show.callback([given] { show_pieces(*given); });
}

void add_rm(Command& cache) {
  const auto given = std::make_shared<CacheFlags>();
  auto rm = cache.add_subcommand("rm", "removes the pieces of one model, some, or all; the folder must not be in use");
  add_cache_folder(rm, given->folder);
  rm.add_option("MODEL", given->model, "as list shows it");
  rm.add_flag("--all", given->all, "of all models");
  rm.add_option("--only", given->choice.ids, "this piece, as list --pieces shows it; may be given more than once");
  add_piece_names(rm, given->choice);
  rm.callback([given] { remove_pieces(*given); });
}

}  // namespace

void add_cache(Program& program) {
  auto cache = program.app.add_subcommand("cache", "what a folder of --cache-dir holds");
  cache.require_subcommand();
  add_cache_build(cache);
  add_list(cache);
  add_show(cache);
  add_rm(cache);
  add_cache_export(cache);
}

}  // namespace kvilt

// apps/cache_export.cc: kvilt cache export | import: pieces of a folder in one file, and into another folder
// (docs/formats/cache_export.md).
#include <cstdio>
#include <filesystem>
#include <limits>

#include "apps/cache_folder.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "tier/cache_export.h"

namespace kvilt {
namespace {

struct CarryFlags {
  CacheFolder folder;
  PieceChoice choice;
  std::string file;
  bool with_secret = false;
};

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void export_cache(const CarryFlags& flags) {
  const auto tier = open_cache_folder(flags.folder);
  if (flags.with_secret && tier->sealed()) fail("--with-secret: a sealed folder's secret follows from its key");
  const std::vector<StoredPiece> all = value_or_fail(tier->all());
  const auto pieces = with_beginnings(all, chosen(*tier, all, flags.choice));
  if (pieces.empty()) fail(flags.folder.path + ": holds nothing");
  const ExportCounts done =
      value_or_fail(export_pieces(*tier, pieces, cache_key(flags.folder), flags.with_secret, flags.file));
  std::printf("%lld pieces, %lld tokens, %.1f MiB in %s%s\n", static_cast<long long>(done.pieces),
              static_cast<long long>(done.tokens), mib(done.bytes), flags.file.c_str(),
              tier->sealed()      ? ", sealed with the folder's key"
              : flags.with_secret ? ", with the folder's secret"
                                  : "");
  if (done.damaged > 0) fail(fmt::format("{} damaged pieces of the folder were left out", done.damaged));
}

void import_cache(const CarryFlags& flags) {
  const MappedFile file = value_or_fail(MappedFile::open(flags.file));
  const auto named = [&](const Error& error) { fail(flags.file + ": " + error.message); };
  const auto key = cache_key(flags.folder);
  const auto head = read_export_head(file.bytes());
  if (!head.ok()) named(head.error());
  if (const auto sealer = export_sealer(*head, key); !sealer.ok()) named(sealer.error());
  const bool there = std::filesystem::is_directory(std::filesystem::path(flags.folder.path) / "kvilt-cache");
  if (!there && !head->seed)
    fail(flags.file +
         ": made without its folder's secret, so a new folder could not find what it holds: export with "
         "--with-secret");
  const auto tier = value_or_fail(DiskTier::open(flags.folder.path, std::numeric_limits<int64_t>::max(), key));
  const auto done = import_pieces(*tier, file.bytes(), key);
  if (!done.ok()) named(done.error());
  std::printf("%lld pieces are new (%.1f MiB), %lld were there, %lld are damaged and were left out\n",
              static_cast<long long>(done->added), mib(done->bytes), static_cast<long long>(done->there),
              static_cast<long long>(done->damaged));
  if (done->annexes_damaged > 0)
    std::printf("the annexes of %lld pieces are damaged; they are computed anew when they are needed\n",
                static_cast<long long>(done->annexes_damaged));
  std::fflush(stdout);
  if (done->stopped) fail("the rest was not imported: " + done->stopped->message);
  if (done->damaged > 0) fail(fmt::format("{}: {} pieces are damaged", flags.file, done->damaged));
}

}  // namespace

void add_cache_export(Command& cache) {
  const auto out = std::make_shared<CarryFlags>();
  auto exported = cache.add_subcommand("export", "writes pieces into one file; the folder must not be in use");
  add_cache_folder(exported, out->folder);
  exported.add_option("FILE", out->file, "the file, for its owner only").required();
  exported.add_option("--only", out->choice.ids,
                      "this piece and what it continues, as list --pieces shows it; may be given more than once");
  add_piece_names(exported, out->choice);
  exported.add_flag("--with-secret", out->with_secret,
                    "the folder's secret too: a new folder that imports it finds the pieces; whoever has it can try "
                    "out guesses of tenants' names and salts");
  exported.callback([out] { export_cache(*out); });

  const auto in = std::make_shared<CarryFlags>();
  auto imported = cache.add_subcommand(
      "import", "adds the pieces of an export to a folder, or makes the folder; nothing that is there changes");
  add_cache_folder(imported, in->folder);
  imported.add_option("FILE", in->file, "the export").required();
  imported.callback([in] { import_cache(*in); });
}

}  // namespace kvilt

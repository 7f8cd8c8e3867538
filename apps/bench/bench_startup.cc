// apps/bench/bench_startup.cc: kvilt bench startup: how long an engine takes to open a cache folder of many pieces.
// Method: an engine writes one piece, so that the folder has this model's maker and domain; as many made-up pieces as
//         asked for are put beside it, random tokens in chains of four. Their values are holes in files of the right
//         size: no start reads values, and no disk has to be filled. Then in each round, without and with the folder: an
//         engine opens; and by itself the tier, which replays its journal and looks at its files, and lists what it has.
// Not here: a cold page cache (the journal leaves it, names of files do not); reads (bench_tiers.cc).
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <limits>
#include <optional>
#include <random>

#include "apps/bench/bench_folder.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/open_file.h"
#include "tier/disk_tier.h"
#include "tier/key_file.h"
#include "tier/piece_record.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

struct StartupOptions {
  EngineOptions engine;
  std::string json;
  int pieces = 100000, tokens = 256, rounds = 3;
  uint64_t seed = 7;
};

// Value files are holes; nothing is synced.
class HollowFiles : public Files {
 public:
  Status write(const std::string& path, std::span<const std::byte> bytes) override {
    if (fs::path(path).stem() == "journal") return Files::write(path, bytes);
    const OpenFile file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (file.fd() < 0 || ::ftruncate(file.fd(), std::ssize(bytes)) != 0) fail(path + ": cannot be written");
    return {};
  }
  Status sync(int /*fd*/) override { return {}; }
};

struct Spent {
  std::vector<double> wall_s, cpu_s;
};

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

template <class Do>
auto timed(Spent& spent, Do what) {
  const double cpu = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  auto out = what();
  spent.wall_s.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  spent.cpu_s.push_back(cpu_seconds() - cpu);
  return out;
}

std::optional<HashSecret> folder_key(const EngineOptions& engine) {
  const std::string text = engine.cache_key.empty() ? cache_key_text() : "";
  return value_or_fail(given_key(engine.cache_key, text, "environment KVILT_CACHE_KEY"));
}

std::vector<int32_t> random_tokens(std::mt19937_64& random, int count, int vocabulary) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  for (int32_t& id : out) id = static_cast<int32_t>(3 + random() % static_cast<uint64_t>(vocabulary - 3));
  return out;
}

void ask(Engine& engine, std::vector<int32_t> prompt, bool publish) {
  Request request;
  request.prompt.ids = std::move(prompt);
  request.policy.name = "full";
  request.sampling.max_tokens = 0;
  request.publish = publish;
  run_request(engine, std::move(request));
}

// One piece by an engine, so that the rest can say whose they are; and the rest.
void fill(const StartupOptions& o, Report& report) {
  std::mt19937_64 random(o.seed);
  int vocabulary = 0;
  {
    auto engine = open_or_exit(o.engine);
    report.set_model(engine->info());
    vocabulary = engine->info().vocab;
    ask(*engine, random_tokens(random, 300, vocabulary), true);
  }
  HollowFiles files;
  auto tier = value_or_fail(DiskTier::open(o.engine.cache_dir, o.engine.cache_disk, folder_key(o.engine), files));
  const std::vector<StoredPiece> first = value_or_fail(tier->all());
  if (first.empty()) fail(o.engine.cache_dir + ": the engine left nothing in it");
  StoredPiece piece = first.front();
  piece.marks.clear();
  piece.clean.clear();
  piece.exact = piece.prefix = true;
  const std::vector<std::byte> values(size_t{piece.token_bytes} * static_cast<size_t>(o.tokens));
  std::vector<uint64_t> removed;
  Progress progress("making pieces");
  for (int i = 0; i < o.pieces; ++i) {
    const bool begins = i % 4 == 0;
    const Digest behind = digest_behind(tier->secret(), piece.behind, piece.tokens);
    piece.behind = begins ? std::nullopt : std::optional(behind);
    piece.parent = begins ? 0 : piece.id;
    piece.parent_tokens = begins ? 0 : o.tokens;
    piece.pos = begins ? 0 : piece.pos + o.tokens;
    piece.id = tier->new_id();
    piece.tokens = random_tokens(random, o.tokens, vocabulary);
    if (const Status done = tier->put(piece, values, removed); !done.ok()) fail(done.error());
    progress.at(static_cast<double>(i) / o.pieces);
  }
  if (!removed.empty()) fail("--cache-disk is smaller than so many pieces");
}

void drop_journal(const std::string& folder) {
  const std::string path = folder + "/kvilt-cache/journal";
  if (!drop_from_page_cache(path)) fail(path + ": cannot be opened");
}

void bench_startup(StartupOptions o, int argc, char** argv) {
  const BenchFolder folder(o.engine.cache_dir);
  if (fs::exists(fs::path(o.engine.cache_dir) / "kvilt-cache"))
    fail(o.engine.cache_dir + ": holds a cache already; name a folder that is empty");
  o.engine.cache_disk = std::numeric_limits<int64_t>::max() / 4;
  Report report(argc, argv);
  fill(o, report);
  EngineOptions without = o.engine;
  without.cache_dir.clear();
  without.cache_key.clear();
  Spent alone, opened, listed, whole;
  int64_t pieces = 0, tokens = 0;
  for (int round = 0; round < o.rounds; ++round) {
    timed(alone, [&] { return open_or_exit(without); });
    drop_journal(o.engine.cache_dir);
    {
      auto tier = timed(opened, [&] {
        return value_or_fail(DiskTier::open(o.engine.cache_dir, o.engine.cache_disk, folder_key(o.engine)));
      });
      timed(listed, [&] { return value_or_fail(tier->all()); });
    }
    drop_journal(o.engine.cache_dir);
    const auto engine = timed(whole, [&] { return open_or_exit(o.engine); });
    ask(*engine, std::vector<int32_t>(8, 3), false);  // its counters are told with a step
    pieces = engine->stats().disk.pieces;
    tokens = engine->stats().disk.tokens;
  }
  if (pieces <= o.pieces) fail("the engine does not know all pieces: " + std::to_string(pieces));
  const auto journal = static_cast<int64_t>(fs::file_size(fs::path(o.engine.cache_dir) / "kvilt-cache/journal"));
  std::printf("%lld pieces, %lld tokens, a journal of %.1f MiB, %s\n", static_cast<long long>(pieces),
              static_cast<long long>(tokens), static_cast<double>(journal) / (1 << 20),
              folder_key(o.engine) ? "sealed" : "without a key");
  std::printf("%-30s %9s %8s %9s\n", "what", "wall s", "+-", "CPU s");
  const std::pair<const char*, const Spent*> rows[] = {{"engine without the folder", &alone},
                                                       {"tier: replay and sweep", &opened},
                                                       {"tier: list", &listed},
                                                       {"engine with the folder", &whole}};
  for (const auto& [what, spent] : rows) {
    std::printf("%-30s %9.3f %8.3f %9.3f\n", what, median(spent->wall_s), spread(spent->wall_s), median(spent->cpu_s));
    report.add({{"what", what},
                {"pieces", pieces},
                {"tokens", tokens},
                {"journal_bytes", journal},
                {"sealed", folder_key(o.engine).has_value()},
                {"wall_s", median(spent->wall_s)},
                {"wall_spread_s", spread(spent->wall_s)},
                {"cpu_s", median(spent->cpu_s)},
                {"rounds", o.rounds}});
  }
  report.write(o.json);
}

}  // namespace

void add_bench_startup(Program& program, Command bench) {
  auto app = bench.add_subcommand("startup", "time to open a cache folder of many pieces");
  auto o = std::make_shared<StartupOptions>();
  add_engine_options(app, o->engine, true);
  app.remove_option("--cache-disk");
  app.add_option("--pieces", o->pieces, "in the folder").range(4, 10000000).show_default();
  app.add_option("--tokens", o->tokens, "of each").range(1, 65536).show_default();
  app.add_option("--rounds", o->rounds, "measurements of each").range(1, 1000).show_default();
  app.add_option("--seed", o->seed, "of the tokens").show_default();
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_startup(*o, program.argc, program.argv); });
}

}  // namespace kvilt

// apps/bench/bench_capacity.cc: kvilt bench capacity: how many sessions one KV pool holds, dense and with head classes.
// It opens page tables as the engine does (chunk by chunk, with the room that a chunk needs) until one does not fit.
// It also reports the bytes that a transfer of one session moves (kv/session_file.h): what its heads keep, and what
// dense ones would. It needs no model; pages are counted, not touched.
#include <algorithm>
#include <cstdio>
#include <random>

#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/error.h"
#include "kv/page_table.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

struct CapacityOptions {
  std::string tokens = "8192,32768", windows = "256,1024", global = "25,50", kv_types = "f32,int8", json;
  int layers = 24, heads = 2, head_size = 64, sink = 4, page_slots = 32, chunk = 512;
  double pool_gib = 8;
};

// `share` per cent of all (layer, head) pairs keep everything; a fixed shuffle spreads them.
std::vector<HeadKeep> spread_keeps(int count, int share, HeadKeep local) {
  std::vector<HeadKeep> out(static_cast<size_t>(count), local);
  std::fill_n(out.begin(), (count * share + 50) / 100, HeadKeep{});
  std::shuffle(out.begin(), out.end(), std::mt19937(11));
  return out;
}

// A prompt of `tokens`, as far as its pages go; false if it does not fit.
bool open_session(PageTable& table, const PageStore& store, const std::vector<HeadKeep>& keeps, int tokens, int chunk) {
  const int layers = store.shape().L;
  const std::vector<Runs> sets{{{0, tokens}}};
  const std::vector<uint16_t> write(static_cast<size_t>(layers), 0);
  table.keep(keeps, chunk);
  if (table.pages_for(sets, write) > store.free_pages()) return false;
  table.add(sets, write);
  for (int begin = 0; begin < tokens; begin += chunk) {
    const kvilt::Run rows{begin, std::min(tokens, begin + chunk)};
    if (table.pages_for_rows({0, layers}, rows) > store.free_pages()) return false;
    table.hold({0, layers}, rows);
    table.passed({0, layers}, rows.end);
  }
  table.keep(keeps, 0);
  return true;
}

int count_sessions(const KvShape& shape, const CapacityOptions& o, int tokens, const std::vector<HeadKeep>& keeps) {
  PageStore store = value_or_fail(PageStore::create(shape, static_cast<int64_t>(o.pool_gib * (1 << 30))));
  RopeConfig rope;
  std::vector<std::unique_ptr<PageTable>> open;
  for (;;) {
    open.push_back(std::make_unique<PageTable>(store, rope));
    if (!open_session(*open.back(), store, keeps, tokens, o.chunk)) return static_cast<int>(open.size()) - 1;
  }
}

void bench_capacity(const CapacityOptions& o, int argc, char** argv) {
  Report report(argc, argv);
  std::printf("%.3g GiB, %d layers x %d KV heads of %d\n", o.pool_gib, o.layers, o.heads, o.head_size);
  std::printf("%-5s %7s %8s %7s %9s %7s %10s %10s %7s\n", "type", "tokens", "global", "window", "sessions", "dense",
              "moved MB", "dense MB", "less");
  for (const std::string& type : split_commas(o.kv_types)) {
    const auto dtype = kv_type_of(type);
    if (!dtype) fail(fmt::format("--kv-types: '{}' is not f32, f16, bf16 or int8", type));
    const KvShape shape{o.layers, o.heads, o.head_size, o.page_slots, *dtype};
    for (const int tokens : split_numbers(o.tokens, "--tokens")) {
      const int dense = count_sessions(shape, o, tokens, {});
      for (const int share : split_numbers(o.global, "--global")) {
        if (share > 100) fail("--global: a share in per cent");
        for (const int window : split_numbers(o.windows, "--window")) {
          const auto keeps = spread_keeps(o.layers * o.heads, share, {o.sink, window});
          const int sessions = count_sessions(shape, o, tokens, keeps);
          double rows = 0;
          for (const HeadKeep& keep : keeps) rows += keep.all() ? tokens : std::min(tokens, keep.sink + keep.window);
          const double moved = rows * 2 * static_cast<double>(shape.row_bytes());
          const double all = static_cast<double>(tokens) * static_cast<double>(shape.token_bytes());
          report.add({{"kv_type", type},
                      {"tokens", tokens},
                      {"global_share", share / 100.0},
                      {"window", window},
                      {"sink", o.sink},
                      {"pool_bytes", o.pool_gib * (1 << 30)},
                      {"sessions", sessions},
                      {"sessions_dense", dense},
                      {"gain", dense > 0 ? static_cast<double>(sessions) / dense : 0},
                      {"transfer_kv_bytes", moved},
                      {"transfer_kv_bytes_dense", all},
                      {"transfer_less", all / moved}});
          std::printf("%-5s %7d %6d %% %7d %9d %7d %10.1f %10.1f %7.2f\n", type.c_str(), tokens, share, window,
                      sessions, dense, moved / 1e6, all / 1e6, all / moved);
          std::fflush(stdout);
        }
      }
    }
  }
  report.write(o.json);
}

}  // namespace

void add_bench_capacity(Program& program, Command bench) {
  auto app = bench.add_subcommand("capacity", "sessions that one KV pool holds when heads keep only sink and window");
  auto o = std::make_shared<CapacityOptions>();
  app.add_option("--tokens", o->tokens, "of a session, comma-separated").show_default();
  app.add_option("--window", o->windows, "of local heads, comma-separated").show_default();
  app.add_option("--global", o->global, "heads that keep everything, in per cent, comma-separated").show_default();
  app.add_option("--kv-types", o->kv_types, "comma-separated").show_default();
  app.add_option("--layers", o->layers, "L").range(1, 1000).show_default();
  app.add_option("--heads", o->heads, "KV heads of a layer").range(1, 1000).show_default();
  app.add_option("--head-size", o->head_size, "E").range(2, 512).show_default();
  app.add_option("--sink", o->sink, "first positions that a local head keeps").range(0, 1 << 20).show_default();
  app.add_option("--page-slots", o->page_slots, "P").range(1, 4096).show_default();
  app.add_option("--chunk", o->chunk, "rows of a prefill step").range(1, 1 << 16).show_default();
  app.add_option("--pool-gib", o->pool_gib, "size of the pool; its memory is not touched")
      .range(0.01, 1000.0)
      .show_default();
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_capacity(*o, program.argc, program.argv); });
}

}  // namespace kvilt

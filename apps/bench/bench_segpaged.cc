// apps/bench/bench_segpaged.cc: kvilt bench segpaged: attention over ragged heads (docs/papers.md#redknot,
// SegPagedAttention) and dense attention, on tables that really hold what each head keeps. It needs no model.
// Baseline:  our dense kernel over all keys, unmasked: dense attention with a mask costs at least that.
// Prefill:   a prompt is written chunk by chunk, as the engine does it; at a few depths, the middles of equal parts,
//            one chunk's rows attend (cost grows linearly with depth, so their sum represents the whole). ideal:
//            visible (query, key) pairs.
// Decode:    steps after the prompt: slot, write, spans, attention, through enough layers that no cache holds them.
//            ideal: bytes of K and V that the heads see.
// Outputs are compared bit for bit with a mask over the dense table.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/error.h"
#include "kernels/dispatch.h"
#include "kv/page_table.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct SegpagedOptions {
  std::string backend = "auto", tokens = "4096,16384,65536", windows = "256,1024", shares = "50,75,90.6";
  std::string phases = "prefill,decode", kv_type = "f32", json;
  int threads = 0, heads = 32, group = 4, head_size = 64, sink = 4, page_slots = 32;
  int chunk = 512, samples = 2, rounds = 3, steps = 12, decode_tokens = 65536;
};

// The first `local` heads of every layer in a fixed shuffle keep sink and window.
std::vector<HeadKeep> keeps_of(const KvShape& shape, int local, HeadKeep keep) {
  std::vector<int> order(static_cast<size_t>(shape.G));
  for (int i = 0; i < shape.G; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937(7));
  std::vector<HeadKeep> out(static_cast<size_t>(shape.L * shape.G));
  for (int layer = 0; layer < shape.L; ++layer) {
    for (int i = 0; i < local; ++i) out[layer * shape.G + order[i]] = keep;
  }
  return out;
}

// Rows of keys and values from a fixed supply of random numbers.
class Rows {
 public:
  explicit Rows(int width) : width_(width), numbers_(size_t{1} << 20) {
    std::minstd_rand random(3);
    for (float& x : numbers_) x = static_cast<float>(random() % 4001) / 2000.f - 1.f;
  }
  const float* at(int layer, int32_t pos, int which) const {
    const uint64_t hash = (static_cast<uint64_t>(pos) * 3 + static_cast<uint64_t>(which)) * 0x9e3779b97f4a7c15ull +
                          static_cast<uint64_t>(layer) * 7919;
    return numbers_.data() + (hash >> 20) % (numbers_.size() - static_cast<size_t>(width_));
  }

 private:
  const int width_;
  std::vector<float> numbers_;
};

// One sequence: its table, and what its heads see. The first one of a run is dense.
struct Text {
  Text(PageStore& store, const RopeConfig& rope, std::vector<HeadKeep> keeps, double share)
      : table(store, rope), keeps(std::move(keeps)), share(share) {}
  PageTable table;
  std::vector<HeadKeep> keeps;  // empty: dense
  double share = 0;             // of local heads
  std::vector<double> times;    // at one place, one for each round
  double prefill_s = 0, pairs = 0;
  std::vector<float> out;
};
using Texts = std::vector<std::unique_ptr<Text>>;

class SegpagedBench {
 public:
  SegpagedBench(const SegpagedOptions& o, const Backend& backend, ThreadPool& pool, Report& report)
      : o_(o), backend_(backend), pool_(pool), report_(report), rows_(o.heads * o.head_size) {
    rope_.rotary_dim = o.head_size;
    rope_.inv_freq.assign(static_cast<size_t>(o.head_size / 2), 0.01);
    attend_ = {.group = o.group,
               .E = o.head_size,
               .scale = 1 / std::sqrt(static_cast<float>(o.head_size)),
               .kv = *kv_type_of(o.kv_type),
               .rotary_dim = o.head_size};
  }

  void run(int tokens, int window, const std::vector<double>& shares);

 private:
  double attend(Text& text, int layer, kvilt::Run rows, const std::vector<HeadKeep>& masks, std::vector<float>& out);
  void check(Text& dense, Text& ragged, int layer, kvilt::Run rows);
  void write(Text& text, kvilt::Run rows);
  void prefill(Texts& texts, int tokens);
  void measure_chunk(Texts& texts, kvilt::Run rows);
  void decode(Texts& texts, int tokens);
  double seen(const HeadKeep& keep, int32_t pos) const;
  double seen_by_all(const Text& text, int layers, int32_t pos) const;
  struct Timed {
    const Text& text;
    double s;
  };
  void add_row(const char* phase, int tokens, int window, Timed dense, Timed ragged);

  const SegpagedOptions& o_;
  const Backend& backend_;
  ThreadPool& pool_;
  Report& report_;
  const Rows rows_;
  RopeConfig rope_;
  AttendShape attend_;
  std::vector<float> q_;
  std::vector<KvSpan> spans_;
  std::vector<size_t> first_;
  std::vector<AttendTask> tasks_;
  std::vector<int32_t> pos_;
};

// One attention call over all heads of a layer, as the driver makes it. Returns its seconds, with finding the spans.
double SegpagedBench::attend(Text& text, int layer, kvilt::Run rows, const std::vector<HeadKeep>& masks,
                             std::vector<float>& out) {
  const int width = o_.group * o_.head_size, stride = o_.heads * width;
  if (q_.size() < static_cast<size_t>(rows.size() * stride)) {
    q_.resize(static_cast<size_t>(rows.size() * stride));
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = static_cast<float>((i * 2654435761u >> 7) % 4001) / 1000.f - 2.f;
  }
  out.resize(static_cast<size_t>(rows.size() * stride));
  pos_.clear();
  for (int32_t pos = rows.begin; pos < rows.end; ++pos) pos_.push_back(pos);
  const auto start = Clock::now();
  tasks_.clear();
  spans_.clear();
  first_.assign(1, 0);
  for (int head = 0; head < o_.heads; ++head) {
    AttendTask task;
    task.q = q_.data() + head * width;
    task.out = out.data() + head * width;
    task.q_stride = task.out_stride = stride;
    task.pos = pos_;
    if (!masks.empty()) {
      const HeadKeep& keep = masks[layer * o_.heads + head];
      task.mask = {.sink = keep.sink, .window = keep.window};
    }
    text.table.resolve(layer, head, rows, task.mask, spans_);
    first_.push_back(spans_.size());
    tasks_.push_back(task);
  }
  for (size_t t = 0; t < tasks_.size(); ++t) {
    tasks_[t].spans = std::span(spans_).subspan(first_[t], first_[t + 1] - first_[t]);
  }
  backend_.attend(attend_, tasks_, pool_);
  return seconds_since(start);
}

// The ragged table's outputs are those of a mask over the dense one.
void SegpagedBench::check(Text& dense, Text& ragged, int layer, kvilt::Run rows) {
  std::vector<float> masked;
  attend(ragged, layer, rows, ragged.keeps, ragged.out);
  attend(dense, layer, rows, ragged.keeps, masked);
  if (std::memcmp(masked.data(), ragged.out.data(), masked.size() * sizeof(float)) != 0) {
    fail("ragged pages and a mask over all keys computed different outputs");
  }
}

void SegpagedBench::write(Text& text, kvilt::Run rows) {
  const int layers = text.table.shape().L;
  text.table.hold({0, layers}, rows);
  for (int layer = 0; layer < layers; ++layer) {
    for (int32_t pos = rows.begin; pos < rows.end; ++pos)
      text.table.write(layer, pos, rows_.at(layer, pos, 0), rows_.at(layer, pos, 1));
  }
}

// Keys that a head shows to the row at pos.
double SegpagedBench::seen(const HeadKeep& keep, int32_t pos) const {
  return keep.all() ? pos + 1.0 : std::min<double>(pos + 1.0, double{1} + keep.sink + keep.window);
}
double SegpagedBench::seen_by_all(const Text& text, int layers, int32_t pos) const {
  if (text.keeps.empty()) return (pos + 1.0) * layers * o_.heads;
  double sum = 0;
  for (int i = 0; i < layers * o_.heads; ++i) sum += seen(text.keeps[i], pos);
  return sum;
}

// All texts one after another, for a few rounds, at the same rows of layer 0.
void SegpagedBench::measure_chunk(Texts& texts, kvilt::Run rows) {
  for (auto& text : texts) text->times.clear();
  for (int round = 0; round < o_.rounds; ++round) {
    for (auto& text : texts) text->times.push_back(attend(*text, 0, rows, text->keeps, text->out));
  }
  for (auto& text : texts) {
    text->prefill_s += median(text->times);
    for (int32_t pos = rows.begin; pos < rows.end; ++pos) text->pairs += seen_by_all(*text, 1, pos);
    if (text != texts.front()) check(*texts.front(), *text, 0, rows);
  }
}

void SegpagedBench::prefill(Texts& texts, int tokens) {
  const bool wanted = o_.phases.find("prefill") != std::string::npos;
  const int chunks = (tokens + o_.chunk - 1) / o_.chunk;
  for (auto& text : texts) {
    text->table.keep(text->keeps, o_.chunk);
    text->table.add(std::vector<Runs>{{{0, tokens}}},
                    std::vector<uint16_t>(static_cast<size_t>(text->table.shape().L), 0));
  }
  for (int n = 0; n < chunks; ++n) {
    const kvilt::Run rows{n * o_.chunk, std::min(tokens, (n + 1) * o_.chunk)};
    for (auto& text : texts) write(*text, rows);
    // Sample s is the chunk in the middle of part s of the prompt.
    for (int s = 0; s < o_.samples && wanted; ++s) {
      if (n == chunks * (2 * s + 1) / (2 * o_.samples)) measure_chunk(texts, rows);
    }
    for (auto& text : texts) text->table.passed({0, text->table.shape().L}, rows.end);
  }
  for (auto& text : texts) text->table.keep(text->keeps, 0);
}

// Steps of all layers, the texts one after another.
void SegpagedBench::decode(Texts& texts, int tokens) {
  for (auto& text : texts) text->times.clear();
  const int layers = texts.front()->table.shape().L;
  for (int n = 0; n < o_.steps; ++n) {
    const int32_t pos = tokens + n;
    for (auto& text : texts) {
      const auto start = Clock::now();
      text->table.add_next(pos);
      for (int layer = 0; layer < layers; ++layer) {
        text->table.write(layer, pos, rows_.at(layer, pos, 0), rows_.at(layer, pos, 1));
        attend(*text, layer, {pos, pos + 1}, text->keeps, text->out);
      }
      text->times.push_back(seconds_since(start));
    }
  }
  for (size_t i = 1; i < texts.size(); ++i)
    check(*texts[0], *texts[i], layers - 1, {tokens + o_.steps - 1, tokens + o_.steps});
}

void SegpagedBench::add_row(const char* phase, int tokens, int window, Timed dense_run, Timed ragged_run) {
  const auto& [dense, dense_s] = dense_run;
  const auto& [ragged, ragged_s] = ragged_run;
  const int layers = dense.table.shape().L;
  const bool decoding = std::string(phase) == "decode";
  const int32_t pos = tokens + o_.steps / 2;
  const double ideal =
      decoding ? seen_by_all(dense, layers, pos) / seen_by_all(ragged, layers, pos) : dense.pairs / ragged.pairs;
  const double speedup = dense_s / ragged_s;
  report_.add({{"phase", phase},
               {"tokens", tokens},
               {"local_share", ragged.share},
               {"window", window},
               {"sink", o_.sink},
               {"speedup", speedup},
               {"ideal_speedup", ideal},
               {"of_ideal", speedup / ideal},
               {"dense_s", dense_s},
               {"ragged_s", ragged_s},
               {"layers", layers},
               {"dense_pages", dense.table.private_pages()},
               {"ragged_pages", ragged.table.private_pages()},
               {"equal_outputs", true}});
  std::printf("%-8s %7d %6.1f %% %7d %11.3f %11.3f %8.2f %8.2f %8.2f %9.2f\n", phase, tokens, 100 * ragged.share,
              window, 1e3 * dense_s, 1e3 * ragged_s, speedup, ideal, speedup / ideal,
              static_cast<double>(dense.table.private_pages()) / static_cast<double>(ragged.table.private_pages()));
  std::fflush(stdout);
}

void SegpagedBench::run(int tokens, int window, const std::vector<double>& shares) {
  KvShape shape{std::max(1, o_.decode_tokens / tokens), o_.heads, o_.head_size, o_.page_slots, attend_.kv};
  if (o_.phases.find("decode") == std::string::npos) shape.L = 1;
  const int64_t text_bytes = (tokens + o_.steps + 2 * o_.page_slots) * shape.token_bytes();
  PageStore store = value_or_fail(PageStore::create(shape, text_bytes * static_cast<int64_t>(1 + shares.size())));
  Texts texts;
  texts.push_back(std::make_unique<Text>(store, rope_, std::vector<HeadKeep>(), 0));
  for (const double share : shares) {
    const int local = static_cast<int>(std::lround(share * o_.heads));
    texts.push_back(std::make_unique<Text>(store, rope_, keeps_of(shape, local, {o_.sink, window}),
                                           static_cast<double>(local) / o_.heads));
  }
  prefill(texts, tokens);
  Text& dense = *texts.front();
  for (size_t i = 1; i < texts.size() && dense.prefill_s > 0; ++i)
    add_row("prefill", tokens, window, {dense, dense.prefill_s}, {*texts[i], texts[i]->prefill_s});
  if (o_.phases.find("decode") == std::string::npos) return;
  decode(texts, tokens);
  for (size_t i = 1; i < texts.size(); ++i)
    add_row("decode", tokens, window, {dense, median(dense.times)}, {*texts[i], median(texts[i]->times)});
}

void bench_segpaged(const SegpagedOptions& o, int argc, char** argv) {
  Report report(argc, argv);
  if (!kv_type_of(o.kv_type)) fail(fmt::format("--kv-type is '{}', not f32, f16, bf16 or int8", o.kv_type));
  const Backend* backend = value_or_fail(find_backend(o.backend));
  ThreadPool pool(o.threads > 0 ? o.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  std::vector<double> shares;
  for (const std::string& text : split_commas(o.shares)) {
    double share = 0;
    const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), share);
    if (bad != std::errc() || end != text.data() + text.size() || !(share > 0 && share <= 100))
      fail(fmt::format("--local: '{}' is not a share in per cent", text));
    shares.push_back(share / 100);
  }
  report.set("shape", {{"backend", std::string(backend->name())},
                       {"threads", pool.size()},
                       {"kv_heads", o.heads},
                       {"group", o.group},
                       {"head_size", o.head_size},
                       {"kv_type", o.kv_type},
                       {"page_slots", o.page_slots},
                       {"chunk", o.chunk}});
  std::printf("%s, %d threads: %d KV heads x %d queries of %d, %s; ms of the chunks measured, and of a step\n",
              std::string(backend->name()).c_str(), pool.size(), o.heads, o.group, o.head_size, o.kv_type.c_str());
  std::printf("%-8s %7s %8s %7s %11s %11s %8s %8s %8s %9s\n", "phase", "tokens", "local", "window", "dense", "ragged",
              "speedup", "ideal", "share", "memory/");
  SegpagedBench bench(o, *backend, pool, report);
  for (const int tokens : split_numbers(o.tokens, "--tokens")) {
    for (const int window : split_numbers(o.windows, "--window")) bench.run(tokens, window, shares);
  }
  report.write(o.json);
}

}  // namespace

void add_bench_segpaged(Program& program, Command bench) {
  auto app =
      bench.add_subcommand("segpaged", "attention over heads that keep sink and window, compared with dense attention");
  auto o = std::make_shared<SegpagedOptions>();
  app.add_option("--tokens", o->tokens, "prompt lengths, comma-separated").show_default();
  app.add_option("--window", o->windows, "keys before the query that a local head sees, comma-separated")
      .show_default();
  app.add_option("--local", o->shares, "local heads in per cent, comma-separated").show_default();
  app.add_option("--phases", o->phases, "prefill, decode or both").show_default();
  app.add_option("--sink", o->sink, "first positions that every head sees").range(0, 1 << 20).show_default();
  app.add_option("--heads", o->heads, "KV heads of a layer").range(1, 4096).show_default();
  app.add_option("--group", o->group, "query heads of a KV head").range(1, 64).show_default();
  app.add_option("--head-size", o->head_size, "E").range(2, 512).show_default();
  app.add_option("--kv-type", o->kv_type, "f32, f16, bf16 or int8").show_default();
  app.add_option("--page-slots", o->page_slots, "P").range(1, 4096).show_default();
  app.add_option("--chunk", o->chunk, "rows of a prefill step").range(1, 1 << 16).show_default();
  app.add_option("--samples", o->samples, "depths at which a chunk is measured").range(1, 1024).show_default();
  app.add_option("--rounds", o->rounds, "of each chunk, alternating; the median counts").range(1, 1000).show_default();
  app.add_option("--steps", o->steps, "decode steps, alternating; the median counts").range(1, 10000).show_default();
  app.add_option("--decode-tokens", o->decode_tokens,
                 "as many layers as make this many tokens: no cache must hold them")
      .range(1, 1 << 24)
      .show_default();
  app.add_option("--backend", o->backend, "auto, amx, avx512, avxvnni, vnni256, avx2, reference").show_default();
  app.add_option("--threads,-t", o->threads, "0: the machine's cores").range(0, 1024).show_default();
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_segpaged(*o, program.argc, program.argv); });
}

}  // namespace kvilt

// kernels/attend_bench.cc: speed of attention as shares of what the machine can do, measured in the same run.
// Prefill:    GFLOP/s (4 E flops a head, row and visible key) and the share of the FMA peak of the threads used.
// Decode:     bytes of K and V read a second compared with the bandwidth of a plain read of as much memory. A layer by
//             itself may lie in the last cache; `step` is what a model's step does: 24 layers whose pages of 32 take
//             turns in memory, and 400 MB of weights read between them.
// Figures are of the best iteration, since the machines are shared; of `step` the median. Shapes are those of
// Qwen2.5-0.5B: H 14, G 2, E 64.
// Run:        attend_bench --benchmark_filter=prefill
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/peak.h"
#include "tensor/kv_row.h"
#include "tensor/view.h"

namespace kvilt {
namespace {

// One thread: its own CPU time, since others use the machine too. Several: the wall clock.
double seconds(int threads) {
  timespec now;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// ---- Problems -------------------------------------------------------------------------------------------------------

struct Case {
  const Backend* backend = nullptr;
  int threads = 1;
  int rows = 1, keys = 1;  // the rows are the last of the keys
  int E = 64;
  DType kv = DType::kF32;
  int pieces = 1;        // spans, each with its own shift if more than one
  int page = INT32_MAX;  // longest span
  int recomputed = 0;    // per cent of the keys, scattered, that need no rotation
};

constexpr int kHeads = 14, kGroups = 2;

struct Problem {
  AttendShape shape;
  Buffer q, out, k, v;
  std::vector<int32_t> pos;
  std::vector<std::vector<float>> rotations;
  std::vector<std::vector<KvSpan>> spans;
  std::vector<AttendTask> tasks;
};

void fill(DType type, int E, size_t rows, uint32_t seed, Buffer& buffer) {
  const auto row_bytes = static_cast<size_t>(kv_row_bytes(type, E));
  buffer = Buffer(rows * row_bytes);
  std::minstd_rand random(seed);
  std::vector<float> row(E);
  for (size_t n = 0; n < rows; ++n) {
    for (float& x : row) x = static_cast<float>(random() % 4096) / 2048 - 1;
    encode_kv_row(type, E, row.data(), buffer.as<std::byte>() + n * row_bytes);
  }
}

AttendShape shape_of(const Case& c) {
  const float scale = 1 / std::sqrt(static_cast<float>(c.E));
  return {.group = kHeads / kGroups, .E = c.E, .scale = scale, .kv = c.kv, .rotary_dim = c.E};
}

// Of KV head g. q, out: rows of all heads.
AttendTask task_of(const Case& c, int g, const Buffer& q, const Buffer& out, std::span<const int32_t> pos,
                   std::span<const KvSpan> spans) {
  AttendTask task;
  task.q = q.as<float>() + g * kHeads / kGroups * c.E;
  task.out = out.as<float>() + g * kHeads / kGroups * c.E;
  task.q_stride = task.out_stride = kHeads * c.E;
  task.pos = pos;
  task.spans = spans;
  return task;
}

void make(const Case& c, Problem& p) {
  const int E = c.E;
  p.shape = shape_of(c);
  fill(DType::kF32, E, static_cast<size_t>(c.rows) * kHeads, 1, p.q);
  fill(DType::kF32, E, static_cast<size_t>(c.rows) * kHeads, 1, p.out);
  fill(c.kv, E, static_cast<size_t>(kGroups) * c.keys, 2, p.k);
  fill(c.kv, E, static_cast<size_t>(kGroups) * c.keys, 3, p.v);
  for (int r = 0; r < c.rows; ++r) p.pos.push_back(c.keys - c.rows + r);
  for (int piece = 0; piece < c.pieces; ++piece) {
    std::vector<float> rotation(E);
    for (int i = 0; i < E / 2; ++i) {
      rotation[i] = std::cos(static_cast<float>(piece * i));
      rotation[E / 2 + i] = std::sin(static_cast<float>(piece * i));
    }
    p.rotations.push_back(rotation);
  }
  p.spans.resize(kGroups);
  std::minstd_rand random(7);
  for (int g = 0; g < kGroups; ++g) {
    const char* k = p.k.as<char>() + kv_row_bytes(c.kv, E) * g * c.keys;
    const char* v = p.v.as<char>() + kv_row_bytes(c.kv, E) * g * c.keys;
    for (int j = 0; j < c.keys;) {
      const int piece = static_cast<int>(int64_t{j} * c.pieces / c.keys);
      const bool fresh = static_cast<int>(random() % 100) < c.recomputed;
      int end = j + 1;
      while (c.recomputed == 0 && end < c.keys && end % c.page != 0 && int64_t{end} * c.pieces / c.keys == piece) ++end;
      const int64_t skip = kv_row_bytes(c.kv, E) * j;
      p.spans[g].push_back(
          {k + skip, v + skip, c.pieces == 1 || fresh ? nullptr : p.rotations[piece].data(), j, end - j});
      j = end;
    }
    p.tasks.push_back(task_of(c, g, p.q, p.out, p.pos, p.spans[g]));
  }
}

const MachinePeak& peak_of(const Backend& backend, ThreadPool& pool) {
  static std::map<std::pair<std::string, int>, MachinePeak> known;
  const auto [entry, missing] = known.try_emplace({std::string(backend.name()), pool.size()});
  if (missing) entry->second = measure_peak(backend, pool);
  return entry->second;
}

void run_case(benchmark::State& state, const Case& c) {
  ThreadPool pool(c.threads);
  Problem p;
  make(c, p);
  double best = 1e30;
  for (auto _ : state) {
    const double start = seconds(c.threads);
    c.backend->attend(p.shape, p.tasks, pool);
    best = std::min(best, seconds(c.threads) - start);
  }
  const MachinePeak& peak = peak_of(*c.backend, pool);
  const double pairs = kHeads * (static_cast<double>(c.rows) * (c.keys - c.rows) + 0.5 * c.rows * (c.rows + 1.0));
  const double flops = 4 * c.E * pairs, bytes = 2.0 * kGroups * static_cast<double>(kv_row_bytes(c.kv, c.E)) * c.keys;
  state.counters["best_us"] = best * 1e6;
  state.counters["GFLOPs"] = flops / best * 1e-9;
  state.counters["of_peak"] = flops / best * 1e-9 / peak.fp32_gflops;
  if (c.rows == 1) {
    state.counters["GBs"] = bytes / best * 1e-9;
    state.counters["of_read"] = bytes / best * 1e-9 / peak.read_gbs;
  }
}

// The K and V of all layers as a pool has them: page after page of 32 positions, in each page all layers' heads.
struct Step {
  static constexpr int kLayers = 24, kPage = 32;
  AttendShape shape;
  Buffer q, out, kv, weights;
  std::vector<int32_t> pos;
  std::vector<std::vector<KvSpan>> spans;
  std::vector<AttendTask> tasks;  // kGroups of a layer
};

void make(const Case& c, Step& step) {
  constexpr int kLists = Step::kLayers * kGroups;
  const int64_t row = kv_row_bytes(c.kv, c.E);
  step.shape = shape_of(c);
  fill(DType::kF32, c.E, kHeads, 1, step.q);
  fill(DType::kF32, c.E, kHeads, 1, step.out);
  const int64_t pages = (c.keys + Step::kPage - 1) / Step::kPage;
  fill(c.kv, c.E, static_cast<size_t>(pages * kLists * 2 * Step::kPage), 2, step.kv);
  step.weights = Buffer(size_t{400} << 20);
  std::fill_n(step.weights.as<int64_t>(), step.weights.bytes() / 8, 1);
  step.pos = {c.keys - 1};
  step.spans.resize(kLists);
  for (int list = 0; list < kLists; ++list) {
    for (int64_t page = 0; page < pages; ++page) {
      const char* k = step.kv.as<char>() + (page * kLists + list) * 2 * Step::kPage * row;
      const auto pos = static_cast<int32_t>(page * Step::kPage);
      step.spans[list].push_back({k, k + Step::kPage * row, nullptr, pos, std::min(Step::kPage, c.keys - pos)});
    }
    step.tasks.push_back(task_of(c, list % kGroups, step.q, step.out, step.pos, step.spans[list]));
  }
}

// A thread's part of a layer's weights, which leave no keys in its cache.
int64_t read_weights(const Step& step, int layer, int thread, int threads) {
  const size_t words = step.weights.bytes() / 8 / Step::kLayers / threads;
  const int64_t* from = step.weights.as<int64_t>() + (layer * threads + thread) * words;
  int64_t sum = 0;
  for (size_t i = 0; i < words; ++i) sum ^= from[i];
  return sum;
}

void run_step(benchmark::State& state, const Case& c) {
  ThreadPool pool(c.threads);
  Step step;
  make(c, step);
  std::vector<double> taken;
  for (auto _ : state) {
    double sum = 0;
    for (int layer = 0; layer < Step::kLayers; ++layer) {
      const double start = seconds(c.threads);
      c.backend->attend(step.shape, std::span(step.tasks).subspan(layer * kGroups, kGroups), pool);
      sum += seconds(c.threads) - start;
      pool.parallel_split(c.threads, [&](int64_t thread, int) {
        benchmark::DoNotOptimize(read_weights(step, layer, static_cast<int>(thread), c.threads));
      });
    }
    taken.push_back(sum);
  }
  std::ranges::nth_element(taken, taken.begin() + taken.size() / 2);
  const double median = taken[taken.size() / 2];
  const double bytes = 2.0 * Step::kLayers * kGroups * static_cast<double>(kv_row_bytes(c.kv, c.E)) * c.keys;
  state.counters["attend_ms"] = median * 1e3;
  state.counters["GBs"] = bytes / median * 1e-9;
  state.counters["of_read"] = bytes / median * 1e-9 / peak_of(*c.backend, pool).read_gbs;
}

void add(const std::string& name, const Case& c, void (*run)(benchmark::State&, const Case&) = run_case) {
  benchmark::RegisterBenchmark(name.c_str(), [c, run](benchmark::State& state) { run(state, c); })
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
}

void add_all(const Backend* backend) {
  const std::string isa(backend->name());
  for (const DType kv : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    for (const int T : {512, 2048, 8192}) {
      add("prefill/" + isa + "/" + std::string(kv_type_name(kv)) + "/T:" + std::to_string(T),
          {.backend = backend, .rows = T, .keys = T, .kv = kv});
    }
  }
  add("prefill/" + isa + "/T:4096/threads:2", {.backend = backend, .threads = 2, .rows = 4096, .keys = 4096});
  for (const int E : {32, 80, 128}) {
    add("prefill/" + isa + "/T:2048/E:" + std::to_string(E), {.backend = backend, .rows = 2048, .keys = 2048, .E = E});
  }
  for (const DType kv : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    const std::string start = "pieces/" + isa + "/" + std::string(kv_type_name(kv));
    for (const int pieces : {1, 16, 64}) {
      const Case placed{.backend = backend, .rows = 512, .keys = 8192, .kv = kv, .pieces = pieces, .page = 32};
      add(start + "/rows:512/keys:8192/pieces:" + std::to_string(pieces), placed);
      const Case decode{.backend = backend, .keys = 8192, .kv = kv, .pieces = pieces, .page = 32};
      add(start + "/decode/keys:8192/pieces:" + std::to_string(pieces), decode);
    }
    add(start + "/rows:512/keys:8192/pieces:64/recomputed:15",
        {.backend = backend, .rows = 512, .keys = 8192, .kv = kv, .pieces = 64, .recomputed = 15});
    for (const int rows : {12, 24, 40}) {  // a question after known pieces
      add(start + "/rows:" + std::to_string(rows) + "/keys:2048/pieces:8/threads:2",
          {.backend = backend, .threads = 2, .rows = rows, .keys = 2048, .kv = kv, .pieces = 8, .page = 32});
    }
  }
  for (const int keys : {8192, 16128}) {
    add("step/" + isa + "/bf16/keys:" + std::to_string(keys) + "/threads:2",
        {.backend = backend, .threads = 2, .keys = keys, .kv = DType::kBF16}, run_step);
  }
  add("prefill/" + isa + "/T:2048/page:32", {.backend = backend, .rows = 2048, .keys = 2048, .page = 32});
  add("decode/" + isa + "/f32/keys:2048/page:32", {.backend = backend, .keys = 2048, .page = 32});
  add("decode/" + isa + "/f32/keys:32768/page:32", {.backend = backend, .keys = 32768, .page = 32});
  for (const DType kv : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    for (const int keys : {2048, 32768}) {
      for (const int threads : {1, 2}) {
        const std::string name = "/keys:" + std::to_string(keys) + "/threads:" + std::to_string(threads);
        add("decode/" + isa + "/" + std::string(kv_type_name(kv)) + name,
            {.backend = backend, .threads = threads, .keys = keys, .kv = kv});
      }
    }
  }
}

}  // namespace
}  // namespace kvilt

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  for (const std::string_view name : kvilt::backend_names()) {
    if (name != "reference") kvilt::add_all(*kvilt::find_backend(name));
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

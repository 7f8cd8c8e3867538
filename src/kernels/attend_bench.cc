// kernels/attend_bench.cc: speed of attention as shares of what the machine can do, measured in the same run.
// Prefill:    GFLOP/s (4 E flops a head, row and visible key) and the share of the FMA peak of the threads used.
// Decode:     bytes of K and V read a second beside the bandwidth of a plain read of as much memory.
// Figures are of the best iteration: the machines are shared. Shapes are those of Qwen2.5-0.5B: H 14, G 2, E 64.
// Run:        attend_bench --benchmark_filter=prefill
#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/reference/attend.h"
#include "kernels/x86/attend.h"
#include "tensor/view.h"

namespace kvilt {
namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class F>
double best_of(int count, const F& f) {
  double best = 1e30;
  for (int i = 0; i < count; ++i) {
    const double start = seconds();
    f();
    best = std::min(best, seconds() - start);
  }
  return best;
}

// ---- What the machine can do ----------------------------------------------------------------------------------------

__attribute__((target("avx512f"))) float fma_loop_avx512(int64_t rounds) {
  __m512 x[12];
  for (auto& y : x) y = _mm512_set1_ps(1);
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& y : x) y = _mm512_fmadd_ps(y, a, b);
  }
  for (auto& y : x) x[0] = _mm512_add_ps(x[0], y);
  return _mm512_cvtss_f32(x[0]);
}

__attribute__((target("avx2,fma"))) float fma_loop_avx2(int64_t rounds) {
  __m256 x[12];
  for (auto& y : x) y = _mm256_set1_ps(1);
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& y : x) y = _mm256_fmadd_ps(y, a, b);
  }
  for (auto& y : x) x[0] = _mm256_add_ps(x[0], y);
  return _mm256_cvtss_f32(x[0]);
}

bool has_avx512() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"); }

// Flops a second of all threads of the pool together.
double fma_peak(ThreadPool& pool) {
  constexpr int64_t kRounds = 2'000'000;
  const double lanes = has_avx512() ? 16 : 8;
  const double time = best_of(5, [&] {
    pool.parallel_for(pool.size(), [&](int64_t, int) {
      benchmark::DoNotOptimize(has_avx512() ? fma_loop_avx512(kRounds) : fma_loop_avx2(kRounds));
    });
  });
  return pool.size() * kRounds * 12 * 2 * lanes / time;
}

// Bytes a second that all threads read of one array of `bytes`.
double read_bandwidth(ThreadPool& pool, size_t bytes) {
  const Buffer buffer(bytes);
  std::fill_n(buffer.as<int64_t>(), bytes / 8, 1);
  const int64_t parts = 16 * pool.size(), words = static_cast<int64_t>(bytes / 8) / parts;
  const double time = best_of(5, [&] {
    pool.parallel_for(parts, [&](int64_t part, int) {
      const int64_t* p = buffer.as<int64_t>() + part * words;
      int64_t sum[8] = {};
      for (int64_t i = 0; i + 8 <= words; i += 8) {
        for (int j = 0; j < 8; ++j) sum[j] += p[i + j];
      }
      for (const int64_t s : sum) benchmark::DoNotOptimize(s);
    });
  });
  return static_cast<double>(bytes) / time;
}

// ---- Problems -------------------------------------------------------------------------------------------------------

using AttendFunction = decltype(&reference::attend);

struct Case {
  AttendFunction attend;
  int threads = 1;
  int rows = 1, keys = 1;  // the rows are the last of the keys
  int E = 64;
  DType kv = DType::kF32;
  int pieces = 1;      // spans, each with its own shift if more than one
  int recomputed = 0;  // per cent of the keys, scattered, that need no rotation
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

void fill(DType type, size_t count, uint32_t seed, Buffer& buffer) {
  buffer = Buffer(dtype_bytes(type, count));
  std::minstd_rand random(seed);
  for (size_t i = 0; i < count; ++i) {
    const float x = static_cast<float>(random() % 4096) / 2048 - 1;
    if (type == DType::kF32) buffer.as<float>()[i] = x;
    if (type == DType::kF16) buffer.as<uint16_t>()[i] = f32_to_f16(x);
    if (type == DType::kBF16) buffer.as<uint16_t>()[i] = f32_to_bf16(x);
  }
}

void make(const Case& c, Problem& p) {
  const int group = kHeads / kGroups, E = c.E;
  p.shape = {.group = group, .E = E, .scale = 1 / std::sqrt(static_cast<float>(E)), .kv = c.kv, .rotary_dim = E};
  fill(DType::kF32, static_cast<size_t>(c.rows) * kHeads * E, 1, p.q);
  fill(DType::kF32, static_cast<size_t>(c.rows) * kHeads * E, 1, p.out);
  fill(c.kv, static_cast<size_t>(kGroups) * c.keys * E, 2, p.k);
  fill(c.kv, static_cast<size_t>(kGroups) * c.keys * E, 3, p.v);
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
    const char* k = p.k.as<char>() + dtype_bytes(c.kv, static_cast<size_t>(g) * c.keys * E);
    const char* v = p.v.as<char>() + dtype_bytes(c.kv, static_cast<size_t>(g) * c.keys * E);
    for (int j = 0; j < c.keys;) {
      const int piece = static_cast<int>(int64_t{j} * c.pieces / c.keys);
      const bool fresh = static_cast<int>(random() % 100) < c.recomputed;
      int end = j + 1;
      while (c.recomputed == 0 && end < c.keys && int64_t{end} * c.pieces / c.keys == piece) ++end;
      const size_t skip = dtype_bytes(c.kv, static_cast<size_t>(j) * E);
      p.spans[g].push_back(
          {k + skip, v + skip, c.pieces == 1 || fresh ? nullptr : p.rotations[piece].data(), j, end - j});
      j = end;
    }
    AttendTask task;
    task.q = p.q.as<float>() + g * group * E;
    task.out = p.out.as<float>() + g * group * E;
    task.q_stride = task.out_stride = kHeads * E;
    task.pos = p.pos;
    task.spans = p.spans[g];
    p.tasks.push_back(task);
  }
}

void run_case(benchmark::State& state, const Case& c) {
  ThreadPool pool(c.threads);
  Problem p;
  make(c, p);
  double best = 1e30;
  for (auto _ : state) best = std::min(best, best_of(1, [&] { c.attend(p.shape, p.tasks, pool); }));
  const double pairs = kHeads * (static_cast<double>(c.rows) * (c.keys - c.rows) + 0.5 * c.rows * (c.rows + 1.0));
  const double flops = 4 * c.E * pairs, bytes = 2.0 * kGroups * static_cast<double>(dtype_bytes(c.kv, c.keys)) * c.E;
  state.counters["best_us"] = best * 1e6;
  state.counters["GFLOPs"] = flops / best * 1e-9;
  state.counters["of_peak"] = flops / best / fma_peak(pool);
  if (c.rows == 1) {
    state.counters["GBs"] = bytes / best * 1e-9;
    state.counters["of_read"] = bytes / best / read_bandwidth(pool, static_cast<size_t>(bytes));
  }
}

void add(const std::string& name, const Case& c) {
  benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { run_case(state, c); })
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
}

void add_all(const std::string& isa, AttendFunction attend) {
  for (const int T : {512, 2048, 8192}) {
    add("prefill/" + isa + "/T:" + std::to_string(T), {.attend = attend, .rows = T, .keys = T});
  }
  add("prefill/" + isa + "/T:4096/bf16", {.attend = attend, .rows = 4096, .keys = 4096, .kv = DType::kBF16});
  add("prefill/" + isa + "/T:4096/threads:2", {.attend = attend, .threads = 2, .rows = 4096, .keys = 4096});
  for (const int E : {32, 80, 128}) {
    add("prefill/" + isa + "/T:2048/E:" + std::to_string(E), {.attend = attend, .rows = 2048, .keys = 2048, .E = E});
  }
  for (const int pieces : {1, 16, 64}) {
    const Case placed{.attend = attend, .rows = 512, .keys = 8192, .pieces = pieces};
    add("pieces/" + isa + "/rows:512/keys:8192/pieces:" + std::to_string(pieces), placed);
    const Case decode{.attend = attend, .keys = 8192, .pieces = pieces};
    add("pieces/" + isa + "/decode/keys:8192/pieces:" + std::to_string(pieces), decode);
  }
  add("pieces/" + isa + "/rows:512/keys:8192/pieces:64/recomputed:15",
      {.attend = attend, .rows = 512, .keys = 8192, .pieces = 64, .recomputed = 15});
  for (const DType kv : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int keys : {2048, 32768}) {
      for (const int threads : {1, 2}) {
        const std::string name = "/keys:" + std::to_string(keys) + "/threads:" + std::to_string(threads);
        add("decode/" + isa + "/" + std::string(dtype_info(kv).name) + name,
            {.attend = attend, .threads = threads, .keys = keys, .kv = kv});
      }
    }
  }
}

}  // namespace
}  // namespace kvilt

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  kvilt::add_all("avx2", kvilt::avx2::attend);
  if (kvilt::has_avx512()) kvilt::add_all("avx512", kvilt::avx512::attend);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

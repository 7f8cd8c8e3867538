// kernels/matmul_bench.cc: matmul by dtype, shape and rows, next to the machine's measured peaks.
// Usage:  matmul_bench [--benchmark_filter=avx512/Q4_0/4864x896/M512] ; KVILT_THREADS=2 (default: all cores).
// Output: GOPs (2 M N K a second), of_peak (share of the int8 or fp32 peak), GBs (weight bytes a second), of_read.
//         Weights are copied until they leave the caches, as in a model. Rates are those of the best call. With one
//         thread CPU time is taken, so that a busy machine does not count; with more, wall time.
#include <benchmark/benchmark.h>

#include <time.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "kernels/dispatch.h"
#include "kernels/peak.h"
#include "kernels/weight_samples.h"

namespace kvilt {
namespace {

struct Shape {
  int64_t N, K;
};

ThreadPool& pool() {
  static ThreadPool instance([] {
    const char* text = std::getenv("KVILT_THREADS");
    return text != nullptr ? std::max(1, std::atoi(text))
                           : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }());
  return instance;
}

const MachinePeak& peak_of(const Backend& backend) {
  static std::map<std::string, MachinePeak> known;
  const std::string name(backend.name());
  auto it = known.find(name);
  if (it == known.end()) it = known.emplace(name, measure_peak(backend, pool())).first;
  return it->second;
}

double seconds_now() {
  timespec now;
  clock_gettime(pool().size() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void matmul(benchmark::State& state, const Backend* backend, DType type, Shape shape, int64_t rows) {
  constexpr size_t kTotal = 192 << 20;
  const auto bytes = random_weight(type, shape.N, shape.K, 1);
  std::vector<std::unique_ptr<PackedWeight>> weights;
  const size_t copies = std::getenv("ONE") ? 1 : rows <= 16 ? std::max<size_t>(1, kTotal / bytes.size()) : 4;
  for (size_t i = 0; i < copies; ++i) weights.push_back(backend->pack({bytes.data(), type, shape.N, shape.K}, pool()));
  std::vector<float> x(static_cast<size_t>(rows * shape.K)), y(static_cast<size_t>(rows * shape.N));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i * 7919 % 201) - 100) / 50.0f;

  const MachinePeak& peak = peak_of(*backend);
  double best = 1e30;  // the machine is shared: the best time is the kernel's
  size_t next = 0;
  for (auto _ : state) {
    const double start = seconds_now();
    const MatmulJob job = {weights[next].get(), nullptr, Mat<float>(y.data(), rows, shape.N), false};
    backend->matmul(Mat<const float>(x.data(), rows, shape.K), {&job, 1}, pool());
    const double seconds = seconds_now() - start;
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
    next = (next + 1) % copies;
  }
  const double gops = 2e-9 * static_cast<double>(rows * shape.N * shape.K) / best;
  const double gbs = 1e-9 * static_cast<double>(weights[0]->bytes) / best;
  const bool int8 = dtype_info(type).block > 1;
  state.counters["GOPs"] = gops;
  state.counters["of_peak"] = gops / (int8 ? peak.int8_gops : peak.fp32_gflops);
  state.counters["GBs"] = gbs;
  state.counters["of_read"] = gbs / peak.read_gbs;
}

void register_all() {
  constexpr DType kTypes[] = {DType::kQ4_0, DType::kQ5_0, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K, DType::kQ4_1,
                              DType::kQ5_1, DType::kQ5_K, DType::kBF16, DType::kF16,  DType::kF32};
  constexpr Shape kShapes[] = {{896, 896}, {128, 896}, {4864, 896}, {896, 4864}, {151936, 896}};
  for (const std::string_view name : backend_names()) {
    if (name == "reference") continue;
    const Backend* backend = *find_backend(name);
    for (const DType type : kTypes) {
      for (Shape shape : kShapes) {
        const bool super = dtype_info(type).block == 256;
        if (super && shape.K == 896) shape.K = 1024;
        for (const int64_t rows : {1, 4, 16, 64, 512}) {
          if (shape.N > 100000 && rows > 16) continue;
          const std::string label = std::string(name) + "/" + std::string(dtype_info(type).name) + "/" +
                                    std::to_string(shape.N) + "x" + std::to_string(shape.K) + "/M" +
                                    std::to_string(rows);
          benchmark::RegisterBenchmark(label.c_str(), matmul, backend, type, shape, rows)
              ->UseManualTime()
              ->MinTime(0.1)
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvilt

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  kvilt::register_all();
  for (const std::string_view name : kvilt::backend_names()) {
    const kvilt::Backend* backend = *kvilt::find_backend(name);
    const kvilt::MachinePeak& peak = kvilt::peak_of(*backend);
    benchmark::AddCustomContext(std::string(name) + " peak, " + std::to_string(kvilt::pool().size()) + " threads",
                                std::to_string(peak.int8_gops) + " int8 GOP/s, " + std::to_string(peak.fp32_gflops) +
                                    " fp32 GFLOP/s, read " + std::to_string(peak.read_gbs) + " GB/s");
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}

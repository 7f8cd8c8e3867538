// kernels/matmul_bench.cc: matmul by dtype, shape and rows, next to the machine's measured peaks.
// Usage:  matmul_bench [--benchmark_filter=avx512/Q4_0/4864x896/M512] ; KVILT_THREADS=2 (default: all cores).
// Output: GOPs (2 M N K a second), of_peak (share of the peak of its instruction), GBs (weight bytes a second),
//         of_read. Weights are copied until they leave the caches, as in a model. Rates are those of the best call.
//         With one thread CPU time is taken, so that a busy machine does not count; with more, wall time.
#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
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
  const size_t copies = rows <= 16 ? std::max<size_t>(1, kTotal / bytes.size()) : 4;
  for (size_t i = 0; i < copies; ++i) weights.push_back(backend->pack({bytes.data(), type, shape.N, shape.K}, pool()));
  std::vector<float> x(rows * shape.K), y(rows * shape.N);
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
  state.counters["GOPs"] = gops;
  state.counters["of_peak"] = 1e9 * gops / peak.matmul(*backend, type);
  state.counters["GBs"] = gbs;
  state.counters["of_read"] = gbs / peak.read_gbs;
}

// Re-ordering a weight for a backend, at start: MBs is the file's bytes a second.
void pack(benchmark::State& state, const Backend* backend, DType type) {
  const auto bytes = random_weight(type, 16384, 1024, 1);
  double best = 1e30;
  for (auto _ : state) {
    const double start = seconds_now();
    benchmark::DoNotOptimize(backend->pack({bytes.data(), type, 16384, 1024}, pool()));
    const double seconds = seconds_now() - start;
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  state.counters["MBs"] = 1e-6 * static_cast<double>(bytes.size()) / best;
}

// All linear layers of one step of Qwen2.5-0.5B in its Q4_K_M file: what a decode step (rows = 1) or a prefill chunk
// costs at least. Layers: q, k, v together; o; gate and up together; down; then the vocabulary for the last row.
void model_step(benchmark::State& state, const Backend* backend, int64_t rows) {
  constexpr int64_t kLayers = 24, D = 896, kKvWidth = 128, F = 4864, V = 151936;
  struct Layer {
    std::unique_ptr<PackedWeight> q, k, v, o, gate, up, down;
  };
  auto make = [&](DType type, int64_t N, int64_t K) {
    const auto bytes = random_weight(type, N, K, 1);
    return backend->pack({bytes.data(), type, N, K}, pool());
  };
  std::vector<Layer> layers;
  for (int64_t l = 0; l < kLayers; ++l) {
    const bool fine = l < 3 || l >= 21 || l % 3 == 2;  // llama.cpp's rule for the layers that get more bits
    layers.push_back({make(DType::kQ5_0, D, D), make(DType::kQ5_0, kKvWidth, D),
                      make(fine ? DType::kQ8_0 : DType::kQ5_0, kKvWidth, D), make(DType::kQ5_0, D, D),
                      make(DType::kQ5_0, F, D), make(DType::kQ5_0, F, D),
                      make(fine ? DType::kQ6_K : DType::kQ4_K, D, F)});
  }
  const auto head = make(DType::kQ8_0, V, D);
  FloatMat memory[6];  // as an engine holds them
  auto buffer = [&](int i, int64_t cols) {
    const Mat<float> y = memory[i].reshape(rows, cols);
    std::fill(y.data, y.data + rows * cols, 0.25f);
    return y;
  };
  const Mat<float> x = buffer(0, D), q = buffer(1, D), k = buffer(2, kKvWidth), v = buffer(3, kKvWidth),
                   gate = buffer(4, F), up = buffer(5, F);
  std::vector<float> logits(V);
  double best = 1e30, bytes = static_cast<double>(head->bytes), ops = 2.0 * static_cast<double>(V * D);
  for (const Layer& l : layers) {
    for (const auto* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) {
      bytes += static_cast<double>((*w)->bytes);
      ops += 2.0 * static_cast<double>(rows * (*w)->N * (*w)->K);
    }
  }
  for (auto _ : state) {
    const double start = seconds_now();
    for (const Layer& l : layers) {
      const MatmulJob qkv[] = {{l.q.get(), nullptr, q}, {l.k.get(), nullptr, k}, {l.v.get(), nullptr, v}};
      backend->matmul(x, qkv, pool());
      const MatmulJob o[] = {{l.o.get(), nullptr, x}};
      backend->matmul(q, o, pool());
      const MatmulJob ffn[] = {{l.gate.get(), nullptr, gate}, {l.up.get(), nullptr, up}};
      backend->matmul(x, ffn, pool());
      const MatmulJob down[] = {{l.down.get(), nullptr, x}};
      backend->matmul(gate, down, pool());
      std::fill(x.data, x.data + rows * D, 0.25f);  // keeps the numbers finite
    }
    const MatmulJob last[] = {{head.get(), nullptr, Mat<float>(logits.data(), 1, V)}};
    backend->matmul(x.slice_rows(0, 1), last, pool());
    const double seconds = seconds_now() - start;
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  const MachinePeak& peak = peak_of(*backend);
  state.counters["tokens_s"] = static_cast<double>(rows) / best;
  state.counters["GOPs"] = 1e-9 * ops / best;
  state.counters["of_peak"] = 1e-9 * ops / best / peak.int8_gops;
  state.counters["GBs"] = 1e-9 * bytes / best;
  state.counters["of_read"] = 1e-9 * bytes / best / peak.read_gbs;
}

// RMSNorm and the FFN's activation: GBs counts what is read and written.
void row_work(benchmark::State& state, const Backend* backend, bool norm, int64_t rows) {
  const int64_t cols = norm ? 896 : 4864;
  FloatMat a, b;
  const Mat<float> x = a.reshape(rows, cols), y = b.reshape(rows, cols);
  std::fill(y.data, y.data + rows * cols, 0.5f);
  const std::vector<float> weight(cols, 1.0f);
  double best = 1e30;
  for (auto _ : state) {
    std::fill(x.data, x.data + rows * cols, 0.25f);
    const double start = seconds_now();
    if (norm) {
      backend->rms_norm(x, weight.data(), 1e-6f, y, pool());
    } else {
      backend->act_mul(Activation::kSilu, x, y, pool());
    }
    const double seconds = seconds_now() - start;
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  state.counters["GBs"] = 1e-9 * static_cast<double>(rows * cols * (norm ? 8 : 12)) / best;
}

void register_all() {
  constexpr DType kTypes[] = {DType::kQ4_0, DType::kQ5_0, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K, DType::kQ4_1,
                              DType::kQ5_1, DType::kQ5_K, DType::kBF16, DType::kF16,  DType::kF32};
  constexpr Shape kShapes[] = {{896, 896}, {128, 896}, {4864, 896}, {896, 4864}, {151936, 896}};
  for (const std::string_view name : backend_names()) {
    if (name == "reference") continue;
    const Backend* backend = *find_backend(name);
    for (const int64_t rows : {1, 512}) {
      for (const bool norm : {true, false}) {
        const std::string label = std::string(name) + (norm ? "/rms_norm/M" : "/silu_mul/M") + std::to_string(rows);
        benchmark::RegisterBenchmark(label.c_str(), row_work, backend, norm, rows)
            ->UseManualTime()
            ->MinTime(0.05)
            ->Unit(benchmark::kMicrosecond);
      }
    }
    for (const int64_t rows : {1, 4, 16, 64, 512}) {
      const std::string label = std::string(name) + "/model/M" + std::to_string(rows);
      benchmark::RegisterBenchmark(label.c_str(), model_step, backend, rows)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
    for (const DType type : kTypes) {
      const std::string label = std::string(name) + "/" + std::string(dtype_info(type).name) + "/pack";
      benchmark::RegisterBenchmark(label.c_str(), pack, backend, type)->UseManualTime()->Unit(benchmark::kMicrosecond);
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

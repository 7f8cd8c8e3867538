// apps/bench/bench_kernels.cc: kvilt bench kernels: every operation of a backend on a model's shapes (default:
// Qwen2.5-0.5B's), each compared with the machine's peaks, measured in the same run.
//   of_peak:   floating point (or integer) operations a second / measured peak of the kernel's instruction
//   of_read:   bytes a second / measured read bandwidth: weights as the file stores them, K and V, rows in and out
//   of_bound:  the larger of the time at peak and the time at bandwidth / time taken; what is in a cache may exceed 1
// Where few rows use them, weights and keys are copied until the caches cannot hold them, as in a model.
// Not here:  quantising activations by itself: it is a part of matmul, and in its time.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <span>
#include <thread>

#include "apps/bench/rates.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "kernels/dispatch.h"
#include "kernels/peak.h"
#include "kernels/weight_samples.h"
#include "model/model_file.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

struct KernelOptions {
  std::string model, backend = "auto", rows = "1,4,16,64,512,2048", lengths = "512,2048,8192", only, json;
  int threads = 0;
  double seconds = 0.2;
};

struct Shapes {
  int64_t D = 896, F = 4864;
  int H = 14, G = 2, E = 64;
  RopeConfig rope;
  std::vector<MatmulShape> matmuls;
};

Shapes default_shapes() {
  Shapes s;
  for (const DType type :
       {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kBF16, DType::kF16, DType::kF32})
    s.matmuls.push_back({type, s.F, s.D});
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K})
    s.matmuls.push_back({type, s.D, s.F});
  s.matmuls.push_back({DType::kQ8_0, 151936, s.D});
  return s;
}

Shapes model_shapes(const ModelFile& file) {
  const ModelConfig& c = file.config;
  Shapes s{c.D, c.F, c.H, c.G, c.E, c.rope, {}};
  std::set<MatmulShape> seen;
  auto add = [&](const LinearWeights& l) {
    if (l.w) seen.insert({l.w.dtype, l.w.rows, l.w.cols});  // a sparse layer has experts in its FFN's place
  };
  for (const LayerWeights& l : file.weights.layers) {
    for (const LinearWeights* linear : {&l.q, &l.k, &l.o, &l.gate, &l.down, &l.router}) add(*linear);
    if (!l.experts.empty()) add(l.experts[0].gate), add(l.experts[0].down);
  }
  add(file.weights.lm_head);
  s.matmuls.assign(seen.begin(), seen.end());
  return s;
}

void fill(Mat<float> x, uint32_t seed) {
  std::minstd_rand random(seed);
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < x.cols; ++c) x.row(r)[c] = static_cast<float>(random() % 2001) / 1000.f - 1.f;
}

// The best of as many calls as fit: work(i) is the i-th.
template <class F>
double best_seconds(double enough, F work) {
  using Clock = std::chrono::steady_clock;
  double best = 1e30, spent = 0;
  for (size_t i = 0; i < 2 || (spent < enough && i < 10000); ++i) {
    const auto begin = Clock::now();
    work(i);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::min(best, seconds), spent += seconds;
  }
  return best;
}

double matmul_seconds(const Backend& backend, ThreadPool& pool, const MatmulShape& s, int64_t rows, double enough) {
  constexpr size_t kBeyondCaches = size_t{96} << 20;
  const auto first = random_weight(s.dtype, s.N, s.K, 1);
  const size_t copies = rows <= 64 ? std::max<size_t>(1, kBeyondCaches / first.size()) : 2;
  const std::vector<std::vector<std::byte>> sources(copies, first);  // a backend may point at them
  std::vector<std::unique_ptr<PackedWeight>> weights;
  for (const auto& source : sources) weights.push_back(backend.pack({source.data(), s.dtype, s.N, s.K}, pool));
  FloatMat x, y;
  fill(x.reshape(rows, s.K), 1);
  const Mat<float> out = y.reshape(rows, s.N);
  return best_seconds(enough, [&](size_t i) {
    const MatmulJob job = {weights[i % copies].get(), nullptr, out, false};
    backend.matmul(x.view(), {&job, 1}, pool);
  });
}

size_t weight_bytes(const MatmulShape& s) {
  return static_cast<size_t>(s.N) * dtype_bytes(s.dtype, static_cast<size_t>(s.K));
}

class KernelBench {
 public:
  KernelBench(const KernelOptions& o, const Backend& backend, Report& report)
      : o_(o),
        backend_(backend),
        pool_(o.threads > 0 ? o.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
        peak_(measure_peak(backend, pool_)),
        report_(report) {
    std::printf("%s, %d threads: int8 %.0f GOP/s, FMA %.0f GFLOP/s, read %.1f GB/s\n",
                std::string(backend.name()).c_str(), pool_.size(), peak_.int8_gops, peak_.fp32_gflops, peak_.read_gbs);
    std::printf("%-12s %-6s %-16s %6s %10s %8s %8s %8s %8s %8s\n", "operation", "type", "shape", "rows", "us", "GOP/s",
                "of peak", "GB/s", "of read", "of bound");
  }

  void matmul(const MatmulShape& s, int64_t rows);
  void attend(const Shapes& s, DType kv, int64_t rows, int64_t keys);
  void row_work(const Shapes& s, int64_t rows);
  bool wanted(const std::string& operation) const { return o_.only.empty() || o_.only == operation; }

 private:
  struct Work {
    std::string operation, dtype, shape;
    int64_t rows = 0;
    double flops = 0, bytes = 0;
    double peak = 0;  // of its instruction, in operations a second
  };

  template <class F>
  double best_seconds(F work) const {
    return kvilt::best_seconds(o_.seconds, work);
  }

  void add(const Work& w, double seconds) const;

  const KernelOptions& o_;
  const Backend& backend_;
  ThreadPool pool_;
  const MachinePeak peak_;
  Report& report_;
};

void KernelBench::add(const Work& w, double seconds) const {
  const double read = 1e9 * peak_.read_gbs;
  const double at_peak = w.peak > 0 ? w.flops / w.peak : 0, at_read = read > 0 ? w.bytes / read : 0;
  report_.add({{"operation", w.operation},
               {"dtype", w.dtype},
               {"shape", w.shape},
               {"rows", w.rows},
               {"threads", pool_.size()},
               {"seconds", seconds},
               {"gops", w.flops / seconds / 1e9},
               {"peak_gops", w.peak / 1e9},
               {"of_peak", at_peak / seconds},
               {"gb_s", w.bytes / seconds / 1e9},
               {"read_gb_s", peak_.read_gbs},
               {"of_read", at_read / seconds},
               {"of_bound", std::max(at_peak, at_read) / seconds}});
  std::printf("%-12s %-6s %-16s %6lld %10.1f %8.1f %8.2f %8.1f %8.2f %8.2f\n", w.operation.c_str(), w.dtype.c_str(),
              w.shape.c_str(), static_cast<long long>(w.rows), seconds * 1e6, w.flops / seconds / 1e9,
              at_peak / seconds, w.bytes / seconds / 1e9, at_read / seconds, std::max(at_peak, at_read) / seconds);
  std::fflush(stdout);
}

void KernelBench::matmul(const MatmulShape& s, int64_t rows) {
  const double seconds = matmul_seconds(backend_, pool_, s, rows, o_.seconds);
  const auto bytes = static_cast<double>(weight_bytes(s)) + 4.0 * static_cast<double>(rows * (s.K + s.N));
  add({"matmul", std::string(dtype_info(s.dtype).name), std::to_string(s.N) + "x" + std::to_string(s.K), rows,
       2.0 * static_cast<double>(rows * s.N * s.K), bytes, peak_.matmul(backend_, s.dtype)},
      seconds);
}

// The last `rows` of `keys` positions attend to all before them: rows == keys is a prefill, rows == 1 a decode.
void KernelBench::attend(const Shapes& s, DType kv, int64_t rows, int64_t keys) {
  const int group = s.H / s.G;
  const AttendShape shape = {.group = group,
                             .E = s.E,
                             .scale = 1 / std::sqrt(static_cast<float>(s.E)),
                             .kv = kv,
                             .pairs = s.rope.pairs,
                             .rotary_dim = s.rope.rotary_dim};
  FloatMat q, out, row;
  fill(q.reshape(rows, int64_t{s.H} * s.E), 1);
  out.reshape(rows, int64_t{s.H} * s.E);
  const auto row_bytes = static_cast<size_t>(kv_row_bytes(kv, s.E));
  const size_t side = static_cast<size_t>(keys) * row_bytes;
  const size_t copies =
      rows == 1 ? 1 + (size_t{64} << 20) / (2 * side * static_cast<size_t>(s.G)) : 1;  // layers of a model
  const Buffer pool(2 * side * static_cast<size_t>(s.G) * copies);
  fill(row.reshape(1, s.E), 2);
  for (size_t at = 0; at < pool.bytes(); at += row_bytes)
    encode_kv_row(kv, s.E, row.view().data, pool.as<std::byte>() + at);
  std::vector<int32_t> pos;
  for (int64_t r = keys - rows; r < keys; ++r) pos.push_back(static_cast<int32_t>(r));
  std::vector<KvSpan> spans(static_cast<size_t>(s.G));
  const double seconds = best_seconds([&](size_t i) {
    const std::byte* kv_of = pool.as<std::byte>() + (i % copies) * 2 * side * static_cast<size_t>(s.G);
    std::vector<AttendTask> tasks;
    for (int g = 0; g < s.G; ++g) {
      KvSpan& span = spans[g];
      const std::byte* k = kv_of + 2 * side * static_cast<size_t>(g);
      span = {k, k + side, nullptr, 0, static_cast<int32_t>(keys)};
      AttendTask task;
      task.q = q.view().data + g * group * s.E;
      task.out = out.view().data + g * group * s.E;
      task.q_stride = task.out_stride = int64_t{s.H} * s.E;
      task.pos = pos;
      task.spans = {&span, 1};
      tasks.push_back(task);
    }
    backend_.attend(shape, tasks, pool_);
  });
  const auto n = static_cast<double>(rows), before = static_cast<double>(keys - rows);
  const double pairs = n * before + n * (n + 1) / 2;
  add({rows == 1 ? "attend-one" : "attend", std::string(dtype_info(kv).name),
       "H" + std::to_string(s.H) + " G" + std::to_string(s.G) + " T" + std::to_string(keys), rows,
       4.0 * s.E * s.H * pairs, 2.0 * static_cast<double>(side) * s.G, peak_.attention(backend_, kv, s.E)},
      seconds);
}

// Work on rows without weights: every byte is read and written once.
void KernelBench::row_work(const Shapes& s, int64_t rows) {
  const int64_t heads = int64_t{s.H} * s.E;
  FloatMat x, y, gate, up, q;
  fill(x.reshape(rows, s.D), 1), y.reshape(rows, s.D);
  fill(gate.reshape(rows, s.F), 2), fill(up.reshape(rows, s.F), 3), fill(q.reshape(rows, heads), 4);
  const std::vector<float> weight(static_cast<size_t>(std::max<int64_t>(s.D, s.E)), 1.0f);
  std::vector<int32_t> pos(static_cast<size_t>(rows));
  for (size_t r = 0; r < pos.size(); ++r) pos[r] = static_cast<int32_t>(r);
  const auto n = static_cast<double>(rows);
  auto run = [&](const char* name, int64_t cols, double moved, auto call) {
    if (!wanted(name)) return;
    const double seconds = best_seconds([&](size_t) { call(); });
    add({name, "F32", std::to_string(cols), rows, 0, 4.0 * moved * n * static_cast<double>(cols),
         1e9 * peak_.fp32_gflops},
        seconds);
  };
  run("rms_norm", s.D, 2, [&] { backend_.rms_norm(x.view(), weight.data(), 1e-6f, y.view(), pool_); });
  run("head_norm", heads, 2, [&] { backend_.head_norm(q.view(), s.E, weight.data(), 1e-6f, pool_); });
  run("rope", heads, 2, [&] { backend_.rope(q.view(), s.E, pos, s.rope, pool_); });
  run("silu_mul", s.F, 3, [&] { backend_.act_mul(Activation::kSilu, gate.view(), up.view(), pool_); });
}

void bench_kernels(const KernelOptions& o, int argc, char** argv) {
  Report report(argc, argv);
  const Backend* backend = value_or_fail(find_backend(o.backend));
  Shapes shapes = default_shapes();
  ModelInfo info;
  info.name = "default shapes (Qwen2.5-0.5B)", info.backend = backend->name(), info.threads = o.threads;
  if (!o.model.empty()) {
    const auto file = value_or_fail(open_model(o.model));
    shapes = model_shapes(*file);
    info.name = o.model, info.description = file->description, info.fingerprint = file->fingerprint;
  }
  if (shapes.rope.inv_freq.empty()) {
    shapes.rope.rotary_dim = shapes.E;
    for (int i = 0; i < shapes.E / 2; ++i)
      shapes.rope.inv_freq.push_back(std::pow(shapes.rope.theta, -2.0 * i / shapes.E));
  }
  report.set_model(info);
  KernelBench bench(o, *backend, report);
  const auto rows = split_numbers(o.rows, "--rows");
  for (const MatmulShape& shape : shapes.matmuls) {
    for (const int m : rows) {
      const bool head =
          shape.N > 8 * shapes.D && shape.N > 8 * shapes.F / 2;  // a vocabulary: one row of a prompt, or a batch
      if (bench.wanted("matmul") && (!head || m <= 64)) bench.matmul(shape, m);
    }
  }
  for (const DType kv : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8}) {
    for (const int keys : split_numbers(o.lengths, "--lengths")) {
      if (bench.wanted("attend")) bench.attend(shapes, kv, keys, keys);
      if (bench.wanted("attend-one")) bench.attend(shapes, kv, 1, keys);
    }
  }
  for (const int m : rows) bench.row_work(shapes, m);
  report.write(o.json);
}

}  // namespace

MatmulRate matmul_rate(const Backend& backend, const MatmulShape& shape, int64_t rows) {
  ThreadPool pool(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const double seconds = matmul_seconds(backend, pool, shape, rows, 0.2);
  return {2e-9 * static_cast<double>(rows * shape.N * shape.K) / seconds,
          1e-9 * static_cast<double>(weight_bytes(shape)) / seconds};
}

void add_bench_kernels(Program& program, Command bench) {
  auto app = bench.add_subcommand("kernels", "each operation and shape, compared with the machine's measured peaks");
  auto o = std::make_shared<KernelOptions>();
  app.add_option("--model", o->model, "take shapes and types from this model (its weights are not read)");
  app.add_option("--backend", o->backend, "kernels: auto, amx, avx512, avxvnni, vnni256, avx2, reference")
      .show_default();
  app.add_option("--threads,-t", o->threads, "threads (0: all cores)").show_default();
  app.add_option("--rows", o->rows, "rows of matmuls and row work, comma-separated").show_default();
  app.add_option("--lengths", o->lengths, "keys of attention, comma-separated").show_default();
  app.add_option("--only", o->only, "one operation: matmul, attend, attend-one, rms_norm, head_norm, rope, silu_mul");
  app.add_option("--seconds", o->seconds, "time for each row of the table; the best call counts").show_default();
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_kernels(*o, program.argc, program.argv); });
}

}  // namespace kvilt

#include "rates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>

#include "command.h"
#include "forward/prepared_model.h"
#include "kernels/dispatch.h"
#include "model/model_file.h"

namespace kvilt {
namespace {

constexpr int kRuns = 5;
constexpr int64_t kMatmulRows = 512;

template <class F>
double best_seconds(F work) {
  double best = 1e30;
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

Mat<float> random_rows(FloatMat& owner, int64_t rows, int64_t cols) {
  const Mat<float> out = owner.reshape(rows, cols);
  std::minstd_rand rng(1);
  for (int64_t i = 0; i < rows * cols; ++i) out.data[i] = static_cast<float>(rng() % 2001) / 1000.f - 1.f;
  return out;
}

// One layer's linear layers as the driver calls them: q k v | o | gate up | down.
double layer_seconds(const PreparedModel& model, const PreparedLayer& l, std::array<FloatMat, 4>& in,
                     ThreadPool& pool) {
  const std::vector<const PreparedLinear*> calls[] = {{&l.q, &l.k, &l.v}, {&l.o}, {&l.gate, &l.up}, {&l.down}};
  std::vector<FloatMat> outs(3);
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i].view().cols == 0) random_rows(in[i], kMatmulRows, calls[i][0]->w->K);
  }
  return best_seconds([&] {
    for (size_t i = 0; i < in.size(); ++i) {
      std::vector<MatmulJob> jobs;
      for (const PreparedLinear* linear : calls[i])
        jobs.push_back(linear->job(outs[jobs.size()].reshape(kMatmulRows, linear->w->N)));
      model.backend().matmul(in[i].view(), jobs, pool);
    }
  });
}

// Over four layers spread through the model: mixed files (Q4_K_M) store some layers in larger types than others.
double matmul_rate(const PreparedModel& model, ThreadPool& pool) {
  std::array<FloatMat, 4> in;
  double flops = 0, seconds = 0;
  for (int i = 0; i < 4; ++i) {
    const PreparedLayer& l = model.layer(i * (model.config().L - 1) / 3);
    for (const PreparedLinear* linear : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) {
      flops += 2.0 * kMatmulRows * static_cast<double>(linear->w->N * linear->w->K);
    }
    seconds += layer_seconds(model, l, in, pool);
  }
  return flops / seconds;
}

double attention_rate(const PreparedModel& model, ThreadPool& pool) {
  constexpr int32_t kRows = 2048;
  const ModelConfig& c = model.config();
  const AttendShape shape = model.attend_shape(DType::kF32);
  FloatMat q, out, k, v;
  random_rows(q, kRows, int64_t{c.H} * c.E);
  out.reshape(kRows, int64_t{c.H} * c.E);
  random_rows(k, kRows, c.E);
  random_rows(v, kRows, c.E);
  std::vector<int32_t> pos(kRows);
  std::iota(pos.begin(), pos.end(), 0);
  const KvSpan span{k.view().data, v.view().data, nullptr, 0, kRows};
  std::vector<AttendTask> tasks;
  for (int g = 0; g < c.G; ++g) {
    AttendTask task;
    task.q = q.view().data + g * shape.group * c.E;
    task.out = out.view().data + g * shape.group * c.E;
    task.q_stride = task.out_stride = int64_t{c.H} * c.E;
    task.pos = pos;
    task.spans = {&span, 1};
    tasks.push_back(task);
  }
  const double seconds = best_seconds([&] { model.backend().attend(shape, tasks, pool); });
  return 4.0 * c.E * c.H * (kRows * (kRows + 1.0) / 2) / seconds;
}

double read_rate(ThreadPool& pool) {
  constexpr size_t kBytes = size_t{512} << 20, kPart = size_t{1} << 20;
  Buffer buffer(kBytes);
  std::fill_n(buffer.as<uint64_t>(), kBytes / 8, 1);
  std::vector<uint64_t> sums(kBytes / kPart);
  const double seconds = best_seconds([&] {
    pool.parallel_for(kBytes / kPart, [&](int64_t part, int) {
      const uint64_t* p = buffer.as<uint64_t>() + static_cast<size_t>(part) * (kPart / 8);
      uint64_t a = 0, b = 0, c = 0, d = 0;
      for (size_t i = 0; i < kPart / 8; i += 4) a += p[i], b += p[i + 1], c += p[i + 2], d += p[i + 3];
      sums[static_cast<size_t>(part)] = a + b + c + d;
    });
  });
  return std::accumulate(sums.begin(), sums.end(), uint64_t{0}) == kBytes / 8 ? kBytes / seconds : 0;
}

}  // namespace

double Rates::bound_s(const PromptUsage& usage) const {
  return std::max(usage.linear_flops / matmul_flops + usage.attention_flops / attention_flops,
                  usage.bytes / read_bytes);
}

Rates measure_rates(const EngineOptions& options) {
  const Backend* backend = value_or_fail(find_backend(options.backend));
  ThreadPool pool(options.threads > 0 ? options.threads
                                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  std::shared_ptr<const ModelFile> file = value_or_fail(open_model(options.model));
  const auto model = PreparedModel::prepare(file, *backend, pool, nullptr);
  return {matmul_rate(*model, pool), attention_rate(*model, pool), read_rate(pool)};
}

}  // namespace kvilt

#include "apps/bench/rates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "apps/command.h"
#include "engine/options.h"
#include "forward/prepared_model.h"
#include "kernels/dispatch.h"
#include "model/model_file.h"
#include "tensor/kv_row.h"
#include "tensor/view.h"

namespace kvilt {
namespace {

constexpr int kRuns = 5;
constexpr double kEnoughS = 2;  // long work is not repeated for longer
constexpr int64_t kMatmulRows = 512;

template <class F>
double best_seconds(F work) {
  double best = 1e30;
  const auto first = std::chrono::steady_clock::now();
  for (int i = 0; i < kRuns; ++i) {
    if (i > 0 && std::chrono::duration<double>(std::chrono::steady_clock::now() - first).count() > kEnoughS) break;
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

// A layer's linear layers as the driver calls them: q k v | o | gate up | down. In a sparse layer the FFN is a router
// and as many experts as a row chooses, which gemma 4 has beside a dense FFN. Its layers with v = k have no v, those that
// read another's KV no k either.
std::vector<std::vector<const PreparedLinear*>> calls_of(const PreparedModel& model, const PreparedLayer& l) {
  std::vector<std::vector<const PreparedLinear*>> calls = {{&l.q}, {&l.o}};
  if (l.k.w) calls[0].push_back(&l.k);
  if (l.v.w) calls[0].push_back(&l.v);
  if (l.gate.w) calls.insert(calls.end(), {{&l.gate, &l.up}, {&l.down}});
  if (l.experts.empty()) return calls;
  calls.push_back({&l.router});
  for (size_t e = 0; e < static_cast<size_t>(model.config().experts.top_k); ++e) {
    calls.insert(calls.end(), {{&l.experts[e].gate, &l.experts[e].up}, {&l.experts[e].down}});
  }
  return calls;
}

using Inputs = std::map<int64_t, FloatMat>;  // by K

double layer_seconds(const PreparedModel& model, const PreparedLayer& l, Inputs& in, ThreadPool& pool) {
  const auto calls = calls_of(model, l);
  std::vector<FloatMat> outs(3);
  for (const auto& call : calls) {
    FloatMat& x = in[call[0]->w->K];
    if (x.view().cols == 0) random_rows(x, kMatmulRows, call[0]->w->K);
  }
  return best_seconds([&] {
    for (const auto& call : calls) {
      std::vector<MatmulJob> jobs;
      for (const PreparedLinear* linear : call)
        jobs.push_back(linear->job(outs[jobs.size()].reshape(kMatmulRows, linear->w->N)));
      model.backend().matmul(in[call[0]->w->K].view(), jobs, pool);
    }
  });
}

// Over four layers spread through the model: mixed files (Q4_K_M) store some layers in larger types than others.
double matmul_rate(const PreparedModel& model, ThreadPool& pool) {
  Inputs in;
  double flops = 0, seconds = 0;
  for (int i = 0; i < 4; ++i) {
    const PreparedLayer& l = model.layer(i * (model.config().L - 1) / 3);
    for (const auto& call : calls_of(model, l)) {
      for (const PreparedLinear* linear : call)
        flops += 2.0 * kMatmulRows * static_cast<double>(linear->w->N * linear->w->K);
    }
    seconds += layer_seconds(model, l, in, pool);
  }
  return flops / seconds;
}

double attention_rate(const PreparedModel& model, DType kv, int64_t rows, ThreadPool& pool) {
  const ModelConfig& c = model.config();
  const AttendShape shape = model.attend_shape(kv);
  FloatMat q, out, k, v;
  random_rows(q, rows, int64_t{c.H} * c.E);
  out.reshape(rows, int64_t{c.H} * c.E);
  random_rows(k, rows, c.E);
  random_rows(v, rows, c.E);
  const auto row_bytes = static_cast<size_t>(kv_row_bytes(kv, c.E)), side = static_cast<size_t>(rows) * row_bytes;
  const Buffer stored(2 * side);
  for (int64_t r = 0; r < rows; ++r) {
    encode_kv_row(kv, c.E, k.view().row(r), stored.as<std::byte>() + static_cast<size_t>(r) * row_bytes);
    encode_kv_row(kv, c.E, v.view().row(r), stored.as<std::byte>() + side + static_cast<size_t>(r) * row_bytes);
  }
  std::vector<int32_t> pos(static_cast<size_t>(rows));
  std::iota(pos.begin(), pos.end(), 0);
  const KvSpan span{stored.as<std::byte>(), stored.as<std::byte>() + side, nullptr, 0, static_cast<int32_t>(rows)};
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
  const auto n = static_cast<double>(rows);
  return 4.0 * c.E * c.H * (n * (n + 1) / 2) / seconds;
}

// What the machine could do on all linear layers of a row, each at the peak of its kernel's instruction.
void fill_peak(const PreparedModel& model, Rates& rates) {
  double flops = 0, seconds = 0;
  auto add = [&](const PackedWeight& w) {
    const double work = 2.0 * static_cast<double>(w.N * w.K);
    const double peak = rates.peak.matmul(model.backend(), w.dtype);
    flops += work;
    seconds += work / (peak > 0 ? peak : rates.matmul_flops);  // the reference backend has no measured instruction
    rates.weight_bytes += static_cast<double>(dtype_bytes(w.dtype, static_cast<size_t>(w.N * w.K)));
  };
  for (int l = 0; l < model.config().L; ++l) {
    for (const auto& call : calls_of(model, model.layer(l))) {
      for (const PreparedLinear* linear : call) add(*linear->w);
    }
  }
  rates.linear_peak_flops = flops / seconds;  // the head is left out: one row of a prompt runs through it
  const PackedWeight& head = *model.lm_head().w;
  rates.weight_bytes += static_cast<double>(dtype_bytes(head.dtype, static_cast<size_t>(head.N * head.K)));
  rates.head_flops = 2.0 * static_cast<double>(head.N * head.K);
  rates.head_bytes = static_cast<double>(head.bytes);
}

}  // namespace

double Rates::bound_s(const PromptUsage& usage) const {
  const double layers =
      std::max((usage.linear_flops - head_flops) / matmul_flops + usage.attention_flops / attention_flops,
               (usage.bytes - head_bytes) / read_bytes);
  return layers + std::max(head_flops / matmul_flops, head_bytes / read_bytes);
}

double Rates::gemm_bound_s(const PromptUsage& usage) const {
  return usage.linear_flops / linear_peak_flops + usage.attention_flops / attention_peak_flops;
}

struct RateProbe::Parts {
  ThreadPool pool;
  std::shared_ptr<const ModelFile> file;
  std::unique_ptr<PreparedModel> model;
  DType kv_type;
};

RateProbe::RateProbe(const EngineOptions& options)
    : parts_(new Parts{ThreadPool(threads_of(options)), nullptr, nullptr, DType::kF32}) {
  const Backend* backend = value_or_fail(find_backend(options.backend));
  parts_->file = value_or_fail(open_model(options.model));
  parts_->model =
      PreparedModel::prepare(parts_->file, *backend, parts_->pool, nullptr, "", activations_of(options.activations));
  parts_->kv_type = value_or_fail(resolve(options, parts_->file->config, *backend)).kv_dtype;
}

RateProbe::~RateProbe() = default;

double RateProbe::attention_flops(int64_t rows) const {
  return attention_rate(*parts_->model, parts_->kv_type, rows, parts_->pool);
}

double RateProbe::read_bytes() const { return 1e9 * measure_read_gbs(parts_->model->backend(), parts_->pool); }

Rates RateProbe::measure() {
  Rates rates;
  rates.matmul_flops = matmul_rate(*parts_->model, parts_->pool);
  rates.attention_flops = attention_flops(2048);
  rates.peak = measure_peak(parts_->model->backend(), parts_->pool);
  rates.kv_type = parts_->kv_type;
  const PreparedModel& model = *parts_->model;
  const double peak = rates.peak.attention(model.backend(), rates.kv_type, model.config().E);
  rates.attention_peak_flops = peak > 0 ? peak : rates.attention_flops;  // the reference backend has none measured
  rates.read_bytes = 1e9 * rates.peak.read_gbs;
  fill_peak(model, rates);
  return rates;
}

Rates measure_rates(const EngineOptions& options) { return RateProbe(options).measure(); }

}  // namespace kvilt

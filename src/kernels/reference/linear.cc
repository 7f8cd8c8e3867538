// kernels/reference/linear.cc: matmul, norms and the FFN's activation, written to be read.
// Invariants: sums run over k in eight interleaved double lanes, then over the lanes: an order that depends on K only.
#include "kernels/reference/linear.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/check.h"
#include "base/checked_whole.h"
#include "tensor/dequantize.h"

namespace kvilt::reference {
namespace {

struct Weight : PackedWeight {
  const std::byte* data = nullptr;
  size_t row_bytes = 0;
};

// Eight lanes, so that the compiler may use vectors without changing the order of the sum.
KVILT_CHECKED_WHOLE double sum_of_products(const float* a, const float* b, int64_t count) {
  double lane[8] = {};
  int64_t k = 0;
  for (; k + 8 <= count; k += 8) {
    for (int j = 0; j < 8; ++j) lane[j] += static_cast<double>(a[k + j]) * static_cast<double>(b[k + j]);
  }
  for (int j = 0; k + j < count; ++j) lane[j] += static_cast<double>(a[k + j]) * static_cast<double>(b[k + j]);
  double sum = 0;
  for (const double value : lane) sum += value;
  return sum;
}

double dot(const float* a, const float* b, int64_t count) {
  check_readable(a, count);
  check_readable(b, count);
  return sum_of_products(a, b, count);
}

void normalize(const float* x, int64_t count, const float* weight, float eps, float* y) {
  const double mean_square = dot(x, x, count) / static_cast<double>(count);
  const double inverse = 1 / std::sqrt(mean_square + static_cast<double>(eps));
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(x[i] * inverse) * weight[i];
}

// gate = act(gate, up).
template <class Activation>
void gate_rows(Mat<float> gate, Mat<const float> up, ThreadPool& pool, Activation act) {
  CHECK(gate.rows == up.rows && gate.cols == up.cols);
  pool.parallel_for(gate.rows, [&](int64_t r, int) {
    for (int64_t c = 0; c < gate.cols; ++c) {
      gate.row(r)[c] = static_cast<float>(act(static_cast<double>(gate.row(r)[c]), static_cast<double>(up.row(r)[c])));
    }
  });
}

double silu(double gate, double up) { return gate / (1 + std::exp(-gate)) * up; }

double gelu(double gate, double up) {
  const double slope = std::sqrt(2 / std::numbers::pi);
  return gate / 2 * (1 + std::tanh(slope * (gate + 0.044715 * gate * gate * gate))) * up;
}

double clamped_swiglu(double gate, double up) {
  const double limit = kSwigluLimit, g = std::min(gate, limit), u = std::clamp(up, -limit, limit);
  return g / (1 + std::exp(-double{kSwigluSlope} * g)) * (u + 1);
}

}  // namespace

std::unique_ptr<PackedWeight> pack(const WeightView& w) {
  auto packed = std::make_unique<Weight>();
  packed->N = w.rows;
  packed->K = w.cols;
  packed->dtype = w.dtype;
  packed->data = w.data;
  packed->row_bytes = dtype_bytes(w.dtype, w.cols);
  packed->bytes = packed->row_bytes * w.rows;
  return packed;
}

void matmul(Mat<const float> x, std::span<const MatmulJob> jobs, ThreadPool& pool) {
  constexpr int64_t kRows = 16;  // weight rows of one task
  for (const MatmulJob& job : jobs) {
    const auto& w = static_cast<const Weight&>(*job.w);
    CHECK(w.K == x.cols && w.N == job.y.cols && x.rows == job.y.rows);
    pool.parallel_for((w.N + kRows - 1) / kRows, [&](int64_t task, int) {
      std::vector<float> row(w.K);
      for (int64_t n = task * kRows; n < std::min(w.N, (task + 1) * kRows); ++n) {
        dequantize(w.dtype, w.data + n * w.row_bytes, w.K, row.data());
        for (int64_t r = 0; r < x.rows; ++r) {
          double value = dot(row.data(), x.row(r), w.K);
          if (job.bias != nullptr) value += job.bias[n];
          if (job.accumulate) value += job.y.row(r)[n];
          job.y.row(r)[n] = static_cast<float>(value);
        }
      }
    });
  }
}

void rms_norm(Mat<const float> x, const float* weight, float eps, Mat<float> y, ThreadPool& pool) {
  CHECK(x.rows == y.rows && x.cols == y.cols);
  pool.parallel_for(x.rows, [&](int64_t r, int) { normalize(x.row(r), x.cols, weight, eps, y.row(r)); });
}

void head_norm(Mat<float> x, int E, const float* weight, float eps, ThreadPool& pool) {
  CHECK(E > 0 && x.cols % E == 0);
  pool.parallel_for(x.rows, [&](int64_t r, int) {
    for (int64_t c = 0; c < x.cols; c += E) normalize(x.row(r) + c, E, weight, eps, x.row(r) + c);
  });
}

void mix(Mat<const float> w, Mat<const float> x, Mat<float> y) {
  CHECK(w.rows == y.rows && w.cols == x.rows && x.cols == y.cols);
  for (int64_t m = 0; m < y.rows; ++m) {
    for (int64_t n = 0; n < y.cols; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < x.rows; ++k) sum += double{w.row(m)[k]} * x.row(k)[n];
      y.row(m)[n] = static_cast<float>(sum);
    }
  }
}

void act_mul(Activation act, Mat<float> gate, Mat<const float> up, ThreadPool& pool) {
  gate_rows(gate, up, pool,
            act == Activation::kSilu            ? silu
            : act == Activation::kClampedSwiglu ? clamped_swiglu
                                                : gelu);
}

void ffn(Mat<const float> x, const FfnJob& job, ThreadPool& pool) {
  const int64_t F = job.gate.w->N;
  std::vector<float> gate(x.rows * F), up(gate.size());
  MatmulJob jobs[] = {job.gate, job.up};
  jobs[0].y = Mat<float>(gate.data(), x.rows, F);
  jobs[1].y = Mat<float>(up.data(), x.rows, F);
  matmul(x, jobs, pool);
  act_mul(job.activation, jobs[0].y, jobs[1].y, pool);
  matmul(jobs[0].y, {&job.down, 1}, pool);
}

}  // namespace kvilt::reference

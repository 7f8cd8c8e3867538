// kernels/reference/attend.cc: attend.h, written to be read.
#include "kernels/reference/attend.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <vector>

#include "base/check.h"
#include "base/checked_whole.h"
#include "tensor/kv_row.h"

namespace kvilt::reference {
namespace {

// Row n of keys or values, as floats.
void load_row(const AttendShape& shape, const void* rows, int64_t n, float* row) {
  const auto* from = static_cast<const std::byte*>(rows) + n * kv_row_bytes(shape.kv, shape.E);
  decode_kv_row(shape.kv, shape.E, from, row);
}

void check_shape(const AttendShape& shape) {
  CHECK(is_kv_type(shape.kv));
  CHECK(shape.group >= 1 && shape.E >= 1 && shape.rotary_dim % 2 == 0 && shape.rotary_dim <= shape.E);
}

// Rotates x by the angles of `rotation` (cos[R/2], sin[R/2]), or back by them if sign is -1.
void rotate(const AttendShape& shape, const float* rotation, float sign, float* x) {
  rotate_head(shape.pairs, shape.rotary_dim, rotation, sign, x);
}

bool sees(const KeyMask& mask, int32_t i, int32_t j) {
  if (mask.reach >= 0 && i - j > mask.reach) return false;
  return j <= i && (mask.window < 0 || i >= mask.dense_from || i - j <= mask.window || j < mask.sink);
}

struct Seen {
  const KvSpan* span;
  int32_t index;  // of the key in its span
  double score;   // scaled
};

// These two have vectors of the callers below, of E elements: nothing is read outside of them.
KVILT_CHECKED_WHOLE double dot(const float* a, const float* b, int E) {
  double sum = 0;
  for (int e = 0; e < E; ++e) sum += static_cast<double>(a[e]) * b[e];
  return sum;
}
KVILT_CHECKED_WHOLE void add_scaled(double by, const float* values, int E, double* sums) {
  for (int e = 0; e < E; ++e) sums[e] += by * values[e];
}

// Scores of all keys that row r sees with head h of the group, in the order of positions.
void score_row(const AttendShape& shape, const AttendTask& task, int64_t r, int h, std::vector<Seen>& seen) {
  const int E = shape.E;
  const float* q = task.q + r * task.q_stride + h * E;
  std::vector<float> rotated(q, q + E), key(E);  // q rotated back by the span's shift
  const float* rotation = nullptr;
  seen.clear();
  for (const KvSpan& span : task.spans) {
    if (span.rotation != rotation) {
      rotation = span.rotation;
      std::copy_n(q, E, rotated.begin());
      if (rotation != nullptr) rotate(shape, rotation, -1.0f, rotated.data());
    }
    for (int32_t n = 0; n < span.count; ++n) {
      if (!sees(task.mask, task.pos[r], span.pos + n)) continue;
      load_row(shape, span.k, n, key.data());
      seen.push_back({&span, n, dot(rotated.data(), key.data(), E) * shape.scale});
    }
  }
}

void attend_row(const AttendShape& shape, const AttendTask& task, int64_t r, int h) {
  const int E = shape.E;
  std::vector<Seen> seen;
  score_row(shape, task, r, h, seen);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const double sink = task.sinks == nullptr ? kNone : task.sinks[h];
  double max = sink;
  for (const Seen& key : seen) max = std::max(max, key.score);
  double sum = sink == kNone ? 0 : std::exp(sink - max);
  std::vector<double> out(E, 0.0);
  std::vector<float> value(E);
  for (const Seen& key : seen) {
    const double p = std::exp(key.score - max);
    sum += p;
    load_row(shape, key.span->v, key.index, value.data());
    add_scaled(p, value.data(), E, out.data());
  }
  float* y = task.out + r * task.out_stride + h * E;
  for (int e = 0; e < E; ++e) y[e] = seen.empty() ? 0.0f : static_cast<float>(out[e] / sum);
  if (task.lse != nullptr) task.lse[r * shape.group + h] = static_cast<float>(max + std::log(sum));
}

void add_column_sums(const AttendShape& shape, const ColumnSumTask& task) {
  const AttendTask& attend = *task.attend;
  CHECK(attend.lse != nullptr);
  std::vector<Seen> seen;
  std::vector<float> value(shape.E);
  for (int64_t r = 0; r < static_cast<int64_t>(attend.pos.size()); ++r) {
    for (int h = 0; h < shape.group; ++h) {
      score_row(shape, attend, r, h, seen);
      for (const Seen& key : seen) {
        double norm = 1;
        if (task.value_norm) {
          double square = 0;
          load_row(shape, key.span->v, key.index, value.data());
          for (const double v : value) square += v * v;
          norm = std::sqrt(square);
        }
        const double over = std::min<double>(key.score - attend.lse[r * shape.group + h], std::numbers::ln2);
        const int64_t pos = key.span->pos + key.index;
        if (task.sums) task.sums[pos] += std::exp(over) * norm;
        if (task.rows) {
          float& of_row = task.rows[r * task.row_stride + pos];
          of_row = (h == 0 ? 0 : of_row) + static_cast<float>(std::exp(over));
        }
      }
    }
  }
}

}  // namespace

void attend(const AttendShape& shape, std::span<const AttendTask> tasks, ThreadPool& pool) {
  check_shape(shape);
  for (const AttendTask& task : tasks) {
    const int64_t lines = static_cast<int64_t>(task.pos.size()) * shape.group;
    pool.parallel_for(lines, [&](int64_t line, int) {
      attend_row(shape, task, line / shape.group, static_cast<int>(line % shape.group));
    });
  }
}

void column_sums(const AttendShape& shape, std::span<const ColumnSumTask> tasks, ThreadPool& pool) {
  check_shape(shape);
  for (const ColumnSumTask& task : tasks) add_column_sums(shape, task);
}

void realign(const AttendShape& shape, const void* src, const float* rotation, int64_t count, void* dst) {
  check_shape(shape);
  std::vector<float> x(shape.E);
  for (int64_t n = 0; n < count; ++n) {
    load_row(shape, src, n, x.data());
    rotate(shape, rotation, 1.0f, x.data());
    encode_kv_row(shape.kv, shape.E, x.data(), static_cast<std::byte*>(dst) + n * kv_row_bytes(shape.kv, shape.E));
  }
}

void rope(Mat<float> x, int E, std::span<const int32_t> pos, const RopeConfig& config, ThreadPool& pool) {
  const int half = config.rotary_dim / 2;
  CHECK(config.rotary_dim % 2 == 0 && config.rotary_dim <= E && static_cast<int>(config.inv_freq.size()) == half);
  CHECK(static_cast<int64_t>(pos.size()) == x.rows && x.cols % E == 0);
  pool.parallel_for(x.rows, [&](int64_t r, int) {
    std::vector<float> angles(2 * half);  // cos, then sin: as KvSpan::rotation
    for (int i = 0; i < half; ++i) {
      const double angle = pos[r] * config.inv_freq[i];
      angles[i] = static_cast<float>(std::cos(angle) * config.magnitude);
      angles[half + i] = static_cast<float>(std::sin(angle) * config.magnitude);
    }
    const AttendShape shape{.E = E, .pairs = config.pairs, .rotary_dim = config.rotary_dim};
    for (int64_t c = 0; c < x.cols; c += E) rotate(shape, angles.data(), 1.0f, x.row(r) + c);
  });
}

}  // namespace kvilt::reference

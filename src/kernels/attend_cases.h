// kernels/attend_cases.h: what the attention tests share: this machine's backends, small problems, a naive softmax in
// double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/dispatch.h"
#include "tensor/kv_row.h"

namespace kvilt {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Queries and weights of values are rounded to bf16 where a backend multiplies in it: 2^-9 of scores and of values, a
// few terms of it.
inline double tolerance(const Backend& backend, const AttendShape& shape, double exact) {
  return attends_in_bf16(backend, shape.kv, shape.E) ? 2e-2 : exact;
}

// By the name of the backend.
class Attend : public testing::TestWithParam<std::string_view> {
 protected:
  const Backend& backend() const { return **find_backend(GetParam()); }
};

// avxvnni and vnni256 attend with avx2's kernels.
inline std::vector<std::string_view> attending_backends() {
  std::vector<std::string_view> names = backend_names();
  std::erase_if(names, [](std::string_view name) { return name == "avxvnni" || name == "vnni256"; });
  return names;
}

// ---- A small attention problem --------------------------------------------------------------------------------------

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8};

inline std::vector<std::byte> to_dtype(DType type, int E, const std::vector<float>& values) {
  const auto row = static_cast<size_t>(kv_row_bytes(type, E));
  std::vector<std::byte> bytes(values.size() / E * row);
  for (size_t n = 0; n < values.size() / E; ++n) encode_kv_row(type, E, &values[n * E], &bytes[n * row]);
  return bytes;
}

inline std::vector<float> from_dtype(DType type, int E, const std::vector<std::byte>& bytes) {
  const auto row = static_cast<size_t>(kv_row_bytes(type, E));
  std::vector<float> values(bytes.size() / row * E);
  for (size_t n = 0; n < bytes.size() / row; ++n) decode_kv_row(type, E, &bytes[n * row], &values[n * E]);
  return values;
}

// Angles of a shift, as KvSpan::rotation.
inline std::vector<float> rotation_of(const AttendShape& shape, double shift) {
  const int half = shape.rotary_dim / 2;
  std::vector<float> rotation(2 * half);
  for (int i = 0; i < half; ++i) {
    const double angle = shift * std::pow(10000.0, -2.0 * i / shape.rotary_dim);
    rotation[i] = static_cast<float>(std::cos(angle));
    rotation[half + i] = static_cast<float>(std::sin(angle));
  }
  return rotation;
}

struct Output {
  std::vector<float> out, lse;
  bool operator==(const Output& other) const {  // bit for bit
    return out.size() == other.out.size() &&
           std::memcmp(out.data(), other.out.data(), out.size() * sizeof(float)) == 0 &&
           std::memcmp(lse.data(), other.lse.data(), lse.size() * sizeof(float)) == 0;
  }
};

// One KV head: keys at positions 0..keys-1 (some may be absent), rows at `pos`.
struct Problem {
  AttendShape shape;
  int64_t keys = 0;
  std::vector<int32_t> pos;
  KeyMask mask;
  std::vector<float> q;
  std::vector<std::byte> k, v;
  std::vector<bool> absent;            // by position
  std::vector<const float*> rotation;  // by position
  std::vector<float> sinks;            // of the group's heads; empty: none

  Problem(const AttendShape& s, int64_t keys, std::vector<int32_t> rows, uint32_t seed, float size = 1)
      : shape(s), keys(keys), pos(std::move(rows)), absent(keys, false), rotation(keys, nullptr) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    q.resize(pos.size() * shape.group * shape.E);
    for (float& x : q) x = size * normal(random);
    std::vector<float> values(keys * shape.E);
    for (float& x : values) x = normal(random);
    k = to_dtype(shape.kv, shape.E, values);
    for (float& x : values) x = normal(random);
    v = to_dtype(shape.kv, shape.E, values);
  }

  size_t row_bytes() const { return static_cast<size_t>(kv_row_bytes(shape.kv, shape.E)); }

  // Spans as long as rotation and presence allow, but at most `longest` keys, cut at random places if `random`.
  std::vector<KvSpan> spans(int64_t longest = INT32_MAX, std::mt19937* random = nullptr) const {
    std::vector<KvSpan> all;
    for (int64_t j = 0; j < keys;) {
      if (absent[j]) {
        ++j;
        continue;
      }
      int64_t most = longest;
      if (random != nullptr) most = 1 + static_cast<int64_t>((*random)() % longest);
      int64_t end = j + 1;
      while (end < keys && end - j < most && !absent[end] && rotation[end] == rotation[j]) ++end;
      all.push_back({k.data() + j * row_bytes(), v.data() + j * row_bytes(), rotation[j], static_cast<int32_t>(j),
                     static_cast<int32_t>(end - j)});
      j = end;
    }
    return all;
  }

  AttendTask task(std::span<const KvSpan> spans, Output& output) const {
    output.out.assign(q.size(), -7);
    output.lse.assign(pos.size() * shape.group, -7);
    AttendTask task;
    task.q = q.data();
    task.out = output.out.data();
    task.q_stride = task.out_stride = shape.group * shape.E;
    task.pos = pos;
    task.spans = spans;
    task.mask = mask;
    task.lse = output.lse.data();
    task.sinks = sinks.empty() ? nullptr : sinks.data();
    return task;
  }

  Output run(const Backend& backend, ThreadPool& pool, std::span<const KvSpan> spans) const {
    Output output;
    const AttendTask one = task(spans, output);
    backend.attend(shape, {&one, 1}, pool);
    return output;
  }
  Output run(const Backend& backend, ThreadPool& pool) const { return run(backend, pool, spans()); }
};

// Rotates x by the angles of `rotation`, in double.
inline void rotate(const AttendShape& shape, const float* rotation, double sign, std::vector<double>& x) {
  const int half = shape.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const int a = shape.pairs == RopePairs::kHalves ? i : 2 * i,
              b = shape.pairs == RopePairs::kHalves ? i + half : a + 1;
    const double c = rotation[i], s = sign * rotation[half + i], xa = x[a], xb = x[b];
    x[a] = xa * c - xb * s;
    x[b] = xa * s + xb * c;
  }
}

struct Oracle {
  std::vector<double> out, lse;
  std::vector<double> columns, columns_by_norm;  // sums over rows and heads, by position
};

inline Oracle oracle(const Problem& p) {
  const int E = p.shape.E, group = p.shape.group;
  const std::vector<float> k = from_dtype(p.shape.kv, E, p.k), v = from_dtype(p.shape.kv, E, p.v);
  Oracle result;
  result.columns.assign(p.keys, 0);
  result.columns_by_norm.assign(p.keys, 0);
  for (size_t line = 0; line < p.pos.size() * group; ++line) {
    const int64_t i = p.pos[line / group];
    std::vector<double> weight(p.keys, 0), out(E, 0), score(p.keys, -INFINITY);
    const double sink = p.sinks.empty() ? -INFINITY : p.sinks[line % group];
    double max = sink, sum = 0;
    for (int64_t j = 0; j < std::min<int64_t>(p.keys, i + 1); ++j) {
      const bool in_window = p.mask.window < 0 || i >= p.mask.dense_from || i - j <= p.mask.window || j < p.mask.sink;
      const bool in_reach = p.mask.reach < 0 || i - j <= p.mask.reach;
      if (p.absent[j] || !in_window || !in_reach) continue;
      std::vector<double> key(k.begin() + j * E, k.begin() + (j + 1) * E);  // here the key is rotated, not the query
      if (p.rotation[j] != nullptr) rotate(p.shape, p.rotation[j], 1, key);
      double dot = 0;
      for (int e = 0; e < E; ++e) dot += p.q[line * E + e] * key[e];
      score[j] = dot * p.shape.scale;
      max = std::max(max, score[j]);
    }
    if (sink != -INFINITY) sum = std::exp(sink - max);
    for (int64_t j = 0; j < p.keys; ++j) {
      if (score[j] != -INFINITY) sum += weight[j] = std::exp(score[j] - max);
    }
    for (int64_t j = 0; j < p.keys; ++j) {
      if (weight[j] == 0) continue;
      double norm = 0;
      for (int e = 0; e < E; ++e) {
        out[e] += weight[j] / sum * v[j * E + e];
        norm += static_cast<double>(v[j * E + e]) * v[j * E + e];
      }
      result.columns[j] += weight[j] / sum;
      result.columns_by_norm[j] += weight[j] / sum * std::sqrt(norm);
    }
    result.out.insert(result.out.end(), out.begin(), out.end());
    result.lse.push_back(max + std::log(sum));
  }
  return result;
}

inline void expect_close(const Output& got, const Oracle& want, double tolerance) {
  ASSERT_EQ(got.out.size(), want.out.size());
  double worst = 0, worst_lse = 0;
  for (size_t i = 0; i < got.out.size(); ++i) worst = std::max(worst, std::abs(got.out[i] - want.out[i]));
  for (size_t i = 0; i < got.lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      EXPECT_EQ(got.lse[i], -kInf);
    } else {
      worst_lse = std::max(worst_lse, std::abs(got.lse[i] - want.lse[i]) / std::max(1.0, std::abs(want.lse[i])));
    }
  }
  EXPECT_FALSE(std::isnan(worst) || std::isnan(worst_lse));
  EXPECT_LE(worst, tolerance);
  EXPECT_LE(worst_lse, tolerance);
}

inline AttendShape shape_of(int E, int group, DType kv = DType::kF32, RopePairs pairs = RopePairs::kHalves) {
  return {
      .group = group, .E = E, .scale = 1 / std::sqrt(static_cast<float>(E)), .kv = kv, .pairs = pairs, .rotary_dim = E};
}

inline std::vector<int32_t> range(int32_t first, int32_t last) {
  std::vector<int32_t> all;
  for (int32_t i = first; i < last; ++i) all.push_back(i);
  return all;
}

// Rows scattered over [0, keys), the last position among them.
inline std::vector<int32_t> scattered(int32_t keys, int every, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> all;
  for (int32_t i = 0; i < keys; ++i) {
    if (i == keys - 1 || static_cast<int>(random() % every) == 0) all.push_back(i);
  }
  return all;
}

// A prompt of pieces placed with three shifts, some positions missing.
inline Problem quilt(std::vector<std::vector<float>>& rotations, DType kv, RopePairs pairs, std::vector<int32_t> rows,
                     uint32_t seed) {
  Problem p(shape_of(32, 3, kv, pairs), 1300, std::move(rows), seed);
  p.shape.rotary_dim = 24;  // partial rotary
  for (const double shift : {17.0, -300.0, 1000.0}) rotations.push_back(rotation_of(p.shape, shift));
  std::mt19937 random(seed);
  for (int64_t j = 0; j < p.keys; ++j) {
    const int64_t piece = j / 90 % 4;
    p.rotation[j] = piece == 3 || random() % 7 == 0 ? nullptr : rotations[piece].data();
    p.absent[j] = random() % 40 == 0;
  }
  return p;
}

}  // namespace kvilt

// Attention of every backend against a naive softmax in double, and its promises: spans, chunks and threads change no
// bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "kernels/reference/attend.h"
#include "tensor/kv_row.h"
#ifdef KVILT_X86
#include "kernels/x86/attend.h"
#include "kernels/x86/attend_bf16.h"
#endif

namespace kvilt {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Kernels {
  std::string name;
  decltype(&reference::attend) attend;
  decltype(&reference::column_sums) column_sums;
  decltype(&reference::realign) realign;
  decltype(&reference::rope) rope;
};

std::vector<Kernels> all_kernels() {
  std::vector<Kernels> all = {
      {"reference", reference::attend, reference::column_sums, reference::realign, reference::rope}};
#ifdef KVILT_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    all.push_back({"avx2", avx2::attend, avx2::column_sums, avx2::realign, avx2::rope});
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    all.push_back({"avx512", avx512::attend, avx512::column_sums, avx512::realign, avx512::rope});
  }
#endif
  return all;
}

// Queries and weights are rounded to bf16 where these kernels multiply in it: 2^-9 of scores and of values, a few terms of it.
double tolerance(const Kernels& kernels, const AttendShape& shape, double exact) {
#ifdef KVILT_X86
  const bool bytes = shape.kv == DType::kBF16 || shape.kv == DType::kI8;
  if (kernels.name == "avx512" && bytes && shape.E % 32 == 0 && x86::bf16_dots_pay()) return 2e-2;
#endif
  return exact;
}

void PrintTo(const Kernels& kernels, std::ostream* stream) { *stream << kernels.name; }

class Attend : public testing::TestWithParam<Kernels> {};
INSTANTIATE_TEST_SUITE_P(Backends, Attend, testing::ValuesIn(all_kernels()),
                         [](const auto& info) { return info.param.name; });

// ---- A small attention problem --------------------------------------------------------------------------------------

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8};

std::vector<std::byte> to_dtype(DType type, int E, const std::vector<float>& values) {
  const auto row = static_cast<size_t>(kv_row_bytes(type, E));
  std::vector<std::byte> bytes(values.size() / E * row);
  for (size_t n = 0; n < values.size() / E; ++n) encode_kv_row(type, E, &values[n * E], &bytes[n * row]);
  return bytes;
}

std::vector<float> from_dtype(DType type, int E, const std::vector<std::byte>& bytes) {
  const auto row = static_cast<size_t>(kv_row_bytes(type, E));
  std::vector<float> values(bytes.size() / row * E);
  for (size_t n = 0; n < bytes.size() / row; ++n) decode_kv_row(type, E, &bytes[n * row], &values[n * E]);
  return values;
}

// Angles of a shift, as KvSpan::rotation.
std::vector<float> rotation_of(const AttendShape& shape, double shift) {
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
    return task;
  }

  Output run(const Kernels& kernels, ThreadPool& pool, std::span<const KvSpan> spans) const {
    Output output;
    const AttendTask one = task(spans, output);
    kernels.attend(shape, {&one, 1}, pool);
    return output;
  }
  Output run(const Kernels& kernels, ThreadPool& pool) const { return run(kernels, pool, spans()); }
};

// Rotates x by the angles of `rotation`, in double.
void rotate(const AttendShape& shape, const float* rotation, double sign, std::vector<double>& x) {
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

Oracle oracle(const Problem& p) {
  const int E = p.shape.E, group = p.shape.group;
  const std::vector<float> k = from_dtype(p.shape.kv, E, p.k), v = from_dtype(p.shape.kv, E, p.v);
  Oracle result;
  result.columns.assign(p.keys, 0);
  result.columns_by_norm.assign(p.keys, 0);
  for (size_t line = 0; line < p.pos.size() * group; ++line) {
    const int64_t i = p.pos[line / group];
    std::vector<double> weight(p.keys, 0), out(E, 0), score(p.keys, -INFINITY);
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < std::min<int64_t>(p.keys, i + 1); ++j) {
      const bool in_window = p.mask.window < 0 || i >= p.mask.dense_from || i - j <= p.mask.window || j < p.mask.sink;
      const bool in_reach = p.mask.reach < 0 || i - j <= p.mask.reach;
      if (p.absent[j] || !in_window || !in_reach) continue;
      std::vector<double> key(k.begin() + j * E, k.begin() + (j + 1) * E);  // here the key is turned, not the query
      if (p.rotation[j] != nullptr) rotate(p.shape, p.rotation[j], 1, key);
      double dot = 0;
      for (int e = 0; e < E; ++e) dot += p.q[line * E + e] * key[e];
      score[j] = dot * p.shape.scale;
      max = std::max(max, score[j]);
    }
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

void expect_close(const Output& got, const Oracle& want, double tolerance) {
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

AttendShape shape_of(int E, int group, DType kv = DType::kF32, RopePairs pairs = RopePairs::kHalves) {
  return {
      .group = group, .E = E, .scale = 1 / std::sqrt(static_cast<float>(E)), .kv = kv, .pairs = pairs, .rotary_dim = E};
}

std::vector<int32_t> range(int32_t first, int32_t last) {
  std::vector<int32_t> all;
  for (int32_t i = first; i < last; ++i) all.push_back(i);
  return all;
}

// Rows scattered over [0, keys), the last position among them.
std::vector<int32_t> scattered(int32_t keys, int every, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> all;
  for (int32_t i = 0; i < keys; ++i) {
    if (i == keys - 1 || static_cast<int>(random() % every) == 0) all.push_back(i);
  }
  return all;
}

// ---- Against the oracle ---------------------------------------------------------------------------------------------

TEST_P(Attend, EveryHeadSizeGroupAndDtype) {
  ThreadPool pool(2);
  uint32_t seed = 0;
  for (const int E : {8, 20, 32, 64, 80, 96, 128, 256}) {
    for (const int group : {1, 3, 7, 8, 16}) {
      if (E > 128 && group > 3) continue;
      for (const DType kv : kTypes) {
        SCOPED_TRACE(testing::Message() << "E " << E << " group " << group << " " << dtype_info(kv).name);
        ++seed;
        const Problem p(shape_of(E, group, kv), 150, scattered(150, 4, seed), seed);
        expect_close(p.run(GetParam(), pool), oracle(p), tolerance(GetParam(), p.shape, 3e-6));
      }
    }
  }
}

// Where products are made in bf16: a bound on the whole, and that it is near (no fp32 in disguise, and nothing lost).
TEST_P(Attend, ErrorOfEveryTypeOverManyKeys) {
  ThreadPool pool(3);
  for (const DType kv : kTypes) {
    const Problem p(shape_of(64, 7, kv), 2000, scattered(2000, 100, 8), 5, 2);
    const Output got = p.run(GetParam(), pool);
    const Oracle want = oracle(p);
    double square = 0;
    for (size_t i = 0; i < got.out.size(); ++i) square += std::pow(got.out[i] - want.out[i], 2);
    const double rms = std::sqrt(square / static_cast<double>(got.out.size()));
    if (tolerance(GetParam(), p.shape, 0) == 0) {
      EXPECT_LT(rms, 1e-6) << kv_type_name(kv);
    } else {
      EXPECT_LT(rms, 3e-3) << kv_type_name(kv);
      EXPECT_GT(rms, 1e-5) << kv_type_name(kv) << ": no rounding at all?";
    }
  }
}

TEST_P(Attend, PrefillAndDecodeOverSeveralSuperBlocks) {
  ThreadPool pool(3);
  const Problem prefill(shape_of(64, 2), 700, range(0, 700), 1);
  expect_close(prefill.run(GetParam(), pool), oracle(prefill), 3e-6);
  const Problem decode(shape_of(64, 7), 3000, {2999}, 2);
  expect_close(decode.run(GetParam(), pool), oracle(decode), 3e-6);
  const Problem ahead(shape_of(64, 7), 3000, {10, 600, 1023, 1024}, 3);  // keys that nobody sees
  expect_close(ahead.run(GetParam(), pool), oracle(ahead), 3e-6);
}

TEST_P(Attend, Masks) {
  ThreadPool pool(2);
  uint32_t seed = 10;
  const KeyMask masks[] = {{.sink = 0, .window = 0},
                           {.sink = 4, .window = 10},
                           {.sink = 100, .window = 150},
                           {.sink = 0, .window = 63},
                           {.sink = 64, .window = 64},
                           {.sink = 500, .window = 3},
                           {.sink = 1000, .window = -1},
                           {.sink = 3, .window = 20, .dense_from = 640},
                           {.reach = 0},
                           {.reach = 130},
                           {.sink = 90, .window = 20, .dense_from = 640, .reach = 200}};
  for (const KeyMask& mask : masks) {
    SCOPED_TRACE(testing::Message() << "sink " << mask.sink << " window " << mask.window << " dense " << mask.dense_from
                                    << " reach " << mask.reach);
    for (const auto& rows : {range(0, 1400), scattered(1400, 50, seed)}) {
      Problem p(shape_of(16, 2), 1400, rows, ++seed);
      p.mask = mask;
      const Output got = p.run(GetParam(), pool);
      expect_close(got, oracle(p), 3e-6);
      Problem causal = p;
      causal.mask = {};
      const bool same = got == causal.run(GetParam(), pool);
      EXPECT_EQ(same, mask.window < 0 && mask.reach < 0) << "the mask did nothing";
    }
  }
}

TEST_P(Attend, MissingPositionsAndRowsThatSeeNothing) {
  ThreadPool pool(2);
  Problem p(shape_of(32, 3), 400, range(0, 400), 20);
  std::mt19937 random(1);
  for (int64_t j = 0; j < 400; ++j) p.absent[j] = j < 5 || random() % 3 == 0 || (j >= 120 && j < 260);
  Output got = p.run(GetParam(), pool);
  expect_close(got, oracle(p), 3e-6);
  for (int i = 0; i < 5 * 3 * 32; ++i) EXPECT_EQ(got.out[i], 0);
  p.absent.assign(400, true);  // no span at all
  got = p.run(GetParam(), pool);
  for (const float x : got.out) EXPECT_EQ(x, 0);
  for (const float x : got.lse) EXPECT_EQ(x, -kInf);
}

TEST_P(Attend, HugeScores) {
  ThreadPool pool(2);
  const Problem p(shape_of(64, 2), 300, range(0, 300), 30, 1e4f);  // scores of tens of thousands: one key takes all
  expect_close(p.run(GetParam(), pool), oracle(p), 2e-2);
  Problem same(shape_of(64, 2), 300, range(0, 300), 31);
  for (float& x : same.q) x = 1e15f;
  std::vector<float> ones(300 * 64, 1e15f);
  same.k = to_dtype(DType::kF32, 64, ones);  // every score 8e30: a plain mean
  const Output got = same.run(GetParam(), pool);
  same.k = to_dtype(DType::kF32, 64, std::vector<float>(300 * 64, 0.0f));
  const Oracle want = oracle(same);
  for (size_t i = 0; i < got.out.size(); ++i) ASSERT_NEAR(got.out[i], want.out[i], 3e-6);
  EXPECT_NEAR(got.lse.back(), 8e30, 1e25);
}

TEST_P(Attend, ManyTasksWithStrides) {
  ThreadPool pool(4);
  const int G = 3;
  std::vector<Problem> problems;
  for (int g = 0; g < G; ++g) problems.emplace_back(shape_of(64, 2), 90 + g * 40, range(50, 90), 40 + g);
  const int64_t stride = G * 2 * 64;  // q and out hold all heads of a row side by side
  std::vector<float> q(40 * stride), out(40 * stride, -7);
  std::vector<std::vector<KvSpan>> spans;
  std::vector<AttendTask> tasks(G);
  for (int g = 0; g < G; ++g) {
    for (int r = 0; r < 40; ++r) std::copy_n(&problems[g].q[r * 128], 128, &q[r * stride + g * 128]);
    spans.push_back(problems[g].spans(50));
    tasks[g] = {&q[g * 128], &out[g * 128], stride, stride, problems[g].pos, spans[g], {}, nullptr};
  }
  GetParam().attend(problems[0].shape, tasks, pool);
  for (int g = 0; g < G; ++g) {
    const Output alone = problems[g].run(GetParam(), pool);
    for (int r = 0; r < 40; ++r) EXPECT_EQ(0, std::memcmp(&out[r * stride + g * 128], &alone.out[r * 128], 128 * 4));
  }
}

// ---- Invariance, bit for bit ----------------------------------------------------------------------------------------

// A prompt of pieces placed with three shifts, some positions missing.
Problem quilt(std::vector<std::vector<float>>& rotations, DType kv, RopePairs pairs, std::vector<int32_t> rows,
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

TEST_P(Attend, SpansDoNotMatter) {
  ThreadPool pool(2);
  for (const DType kv : kTypes) {
    for (const auto& rows : {scattered(1300, 9, 3), std::vector<int32_t>{1299}}) {  // prefill, decode
      std::vector<std::vector<float>> rotations;
      Problem p = quilt(rotations, kv, RopePairs::kHalves, rows, 50);
      for (int64_t j = 640; j < 900; ++j) {  // and a stretch without holes
        p.absent[j] = false;
        p.rotation[j] = nullptr;
      }
      p.mask = {.sink = 70, .window = 600, .dense_from = 1290};
      const Output whole = p.run(GetParam(), pool);
      std::mt19937 random(5);
      EXPECT_TRUE(whole == p.run(GetParam(), pool, p.spans(1)));
      for (const int longest : {2, 37, 64, 100, 300}) {
        EXPECT_TRUE(whole == p.run(GetParam(), pool, p.spans(longest, &random))) << "spans of up to " << longest;
      }
      std::vector<KvSpan> wrong = p.spans(1);  // power: two keys change places
      std::swap(wrong[3].k, wrong[4].k);
      EXPECT_FALSE(whole == p.run(GetParam(), pool, wrong));
    }
  }
}

TEST_P(Attend, RowsAndThreadsDoNotMatter) {
  std::vector<std::vector<float>> rotations;
  ThreadPool one(1), many(5);
  const Problem p = quilt(rotations, DType::kF16, RopePairs::kInterleaved, scattered(1300, 6, 4), 60);
  const Output whole = p.run(GetParam(), one);
  EXPECT_TRUE(whole == p.run(GetParam(), many));
  const size_t row = static_cast<size_t>(p.shape.group * p.shape.E);
  for (const size_t chunk : {size_t{1}, size_t{13}, size_t{100}}) {
    Output joined;
    for (size_t r = 0; r < p.pos.size(); r += chunk) {
      Problem part = p;
      const size_t end = std::min(r + chunk, p.pos.size());
      part.pos.assign(p.pos.begin() + r, p.pos.begin() + end);
      part.q.assign(p.q.begin() + r * row, p.q.begin() + end * row);
      const Output got = part.run(GetParam(), chunk == 13 ? many : one);
      joined.out.insert(joined.out.end(), got.out.begin(), got.out.end());
      joined.lse.insert(joined.lse.end(), got.lse.begin(), got.lse.end());
    }
    EXPECT_TRUE(whole == joined) << "chunks of " << chunk;
  }
}

TEST_P(Attend, InvisibleKeysDoNotMatter) {
  ThreadPool pool(3);
  std::vector<std::vector<float>> rotations;
  Problem p = quilt(rotations, DType::kF32, RopePairs::kHalves, {700, 719, 733}, 70);
  p.mask = {.sink = 10, .window = 150};  // 733 - 150 = 583: 10..549 unseen by all
  const Output before = p.run(GetParam(), pool);
  Problem other = p;
  for (int64_t j = 0; j < p.keys; ++j) {
    if ((j < 10 || j >= 550) && j <= 733) continue;
    other.absent[j] = j % 2 == 0;
    other.rotation[j] = rotations[j % 3].data();
    for (int e = 0; e < 32; ++e) {
      const float x = 1e6f * static_cast<float>(j);
      std::memcpy(&other.k[(j * 32 + e) * 4], &x, 4);
      std::memcpy(&other.v[(j * 32 + e) * 4], &x, 4);
    }
  }
  EXPECT_TRUE(before == other.run(GetParam(), pool));
  other.mask = {};
  EXPECT_FALSE(before == other.run(GetParam(), pool)) << "power: seen keys must matter";
  // A key in the future of one row but not of another.
  Problem future = p;
  future.absent[720] = !p.absent[720];
  const Output after = future.run(GetParam(), pool);
  const size_t row = 3 * 32;
  EXPECT_EQ(0, std::memcmp(before.out.data(), after.out.data(), 2 * row * sizeof(float)));
  EXPECT_NE(0, std::memcmp(&before.out[2 * row], &after.out[2 * row], row * sizeof(float)));
}

// ---- Rotations ------------------------------------------------------------------------------------------------------

TEST_P(Attend, TurningTheQueryEqualsRealigningTheKeys) {
  ThreadPool pool(2);
  for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kInterleaved}) {
    std::vector<std::vector<float>> rotations;
    const Problem p = quilt(rotations, DType::kF32, pairs, scattered(1300, 11, 6), 80);
    const Output zero_copy = p.run(GetParam(), pool);
    expect_close(zero_copy, oracle(p), 5e-6);
    Problem copy = p;
    for (int64_t j = 0; j < p.keys; ++j) {
      if (p.rotation[j] == nullptr) continue;
      GetParam().realign(p.shape, p.k.data() + j * p.row_bytes(), p.rotation[j], 1, copy.k.data() + j * p.row_bytes());
      copy.rotation[j] = nullptr;
    }
    const Output copied = copy.run(GetParam(), pool);
    for (size_t i = 0; i < copied.out.size(); ++i) ASSERT_NEAR(copied.out[i], zero_copy.out[i], 5e-6);
    Problem wrong = p;
    const std::vector<float> shifted = rotation_of(p.shape, 18);
    for (auto& rotation : wrong.rotation) rotation = rotation == rotations[0].data() ? shifted.data() : rotation;
    const Output off = wrong.run(GetParam(), pool);
    double differs = 0;
    for (size_t i = 0; i < off.out.size(); ++i)
      differs = std::max<double>(differs, std::abs(off.out[i] - zero_copy.out[i]));
    EXPECT_GT(differs, 1e-2) << "a shift wrong by one must show";
  }
}

TEST_P(Attend, RealignOfEveryDtype) {
  for (const int E : {8, 20, 64, 80, 128}) {
    for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kInterleaved}) {
      for (const DType kv : kTypes) {
        AttendShape shape = shape_of(E, 1, kv, pairs);
        shape.rotary_dim = E / 4 * 2;
        const Problem p(shape, 30, {0}, 90);
        const std::vector<float> rotation = rotation_of(shape, 123);
        std::vector<std::byte> dst(p.k.size() + 1);
        dst.back() = std::byte{0x5a};
        GetParam().realign(shape, p.k.data(), rotation.data(), 30, dst.data());
        EXPECT_EQ(dst.back(), std::byte{0x5a});
        dst.pop_back();
        const std::vector<float> from = from_dtype(kv, E, p.k), to = from_dtype(kv, E, dst);
        const double ulp = kv == DType::kF32    ? 3e-7
                           : kv == DType::kF16  ? 1.0 / 2048
                           : kv == DType::kBF16 ? 1.0 / 256
                                                : 5.0 / 254;
        for (int n = 0; n < 30; ++n) {
          std::vector<double> x(from.begin() + n * E, from.begin() + (n + 1) * E);
          rotate(shape, rotation.data(), 1, x);
          for (int e = 0; e < E; ++e) ASSERT_NEAR(to[n * E + e], x[e], ulp * std::max(1.0, 2 * std::abs(x[e])));
          for (int e = shape.rotary_dim; e < E && kv != DType::kI8; ++e) ASSERT_EQ(to[n * E + e], from[n * E + e]);
        }
      }
    }
  }
}

TEST_P(Attend, RopeMatchesTheDefinitionAndComposesWithRealign) {
  ThreadPool pool(3);
  for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kInterleaved}) {
    RopeConfig config;
    config.pairs = pairs;
    config.rotary_dim = 48;
    config.magnitude = 1.25;
    for (int i = 0; i < 24; ++i) config.inv_freq.push_back(std::pow(1e6, -i / 24.0));
    const int E = 64;
    const std::vector<int32_t> pos = {0, 1, 2, 77, 4096, 32767, 131071, 1000000};
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> x(pos.size() * 3 * E);
    for (float& value : x) value = normal(random);
    const std::vector<float> before = x;
    GetParam().rope(Mat<float>(x.data(), pos.size(), 3 * E), E, pos, config, pool);
    for (size_t n = 0; n < x.size(); ++n) {
      const size_t r = n / (3 * E), head = n / E * E;
      const int e = static_cast<int>(n % E);
      if (e >= config.rotary_dim) {
        EXPECT_EQ(x[n], before[n]);
        continue;
      }
      const bool halves = pairs == RopePairs::kHalves;
      const int i = halves ? e % 24 : e / 2;
      const bool first = halves ? e < 24 : e % 2 == 0;
      const double a = before[head + (halves ? i : 2 * i)], b = before[head + (halves ? i + 24 : 2 * i + 1)];
      const double angle = pos[r] * config.inv_freq[i];
      const double want =
          1.25 * (first ? a * std::cos(angle) - b * std::sin(angle) : a * std::sin(angle) + b * std::cos(angle));
      ASSERT_NEAR(x[n], want, 1e-6) << "pos " << pos[r] << " e " << e;
    }
  }
}

// ---- Column sums ----------------------------------------------------------------------------------------------------

TEST_P(Attend, ColumnSums) {
  ThreadPool one(1), many(4);
  for (const auto& [value_norm, kv] :
       {std::pair(false, DType::kF16), {true, DType::kF16}, {true, DType::kI8}, {true, DType::kBF16}}) {
    std::vector<std::vector<float>> rotations;
    Problem p = quilt(rotations, kv, RopePairs::kHalves, scattered(1300, kv == DType::kF16 ? 3 : 30, 7), 100);
    const double relative = tolerance(GetParam(), p.shape, 1e-5);
    p.mask = {.sink = 30, .window = 500, .dense_from = 1250};
    const Oracle want = oracle(p);
    Output output;
    const std::vector<KvSpan> spans = p.spans();
    const AttendTask task = p.task(spans, output);
    GetParam().attend(p.shape, {&task, 1}, many);
    const double start = 0.5;  // the sums are added to what is there
    std::vector<double> sums(p.keys, start), again = sums, split = sums, twice = sums;
    const ColumnSumTask columns{&task, sums.data(), value_norm};
    GetParam().column_sums(p.shape, {&columns, 1}, many);
    for (int64_t j = 0; j < p.keys; ++j) {
      const double expected = start + (value_norm ? want.columns_by_norm[j] : want.columns[j]);
      ASSERT_NEAR(sums[j], expected, relative * expected) << j;
      if (p.absent[j]) {
        ASSERT_EQ(sums[j], start);
      }
    }
    const ColumnSumTask other{&task, again.data(), value_norm};
    GetParam().column_sums(p.shape, {&other, 1}, one);
    EXPECT_EQ(sums, again) << "threads";
    // Rows in two tasks that share the sums.
    const size_t cut = p.pos.size() / 3, row = static_cast<size_t>(p.shape.group * p.shape.E);
    AttendTask first = task, second = task;
    first.pos = std::span(p.pos).first(cut);
    second.pos = std::span(p.pos).subspan(cut);
    second.q += cut * row;
    second.lse += cut * p.shape.group;
    const std::vector<ColumnSumTask> both = {{&first, split.data(), value_norm}, {&second, split.data(), value_norm}};
    GetParam().column_sums(p.shape, both, many);
    for (int64_t j = 0; j < p.keys; ++j) ASSERT_NEAR(split[j], sums[j], 1e-6 * sums[j]);
    // Two heads into one array.
    const std::vector<ColumnSumTask> pair = {{&task, twice.data(), value_norm}, {&task, twice.data(), value_norm}};
    GetParam().column_sums(p.shape, pair, many);
    for (int64_t j = 0; j < p.keys; ++j) ASSERT_NEAR(twice[j] - start, 2 * (sums[j] - start), 1e-6 * sums[j]);
  }
}

TEST_P(Attend, ColumnSumsOfRowsThatSeeNothing) {
  ThreadPool pool(2);
  Problem p(shape_of(32, 2), 100, {0, 1, 50}, 110);
  p.absent[0] = p.absent[1] = true;
  Output output;
  const std::vector<KvSpan> spans = p.spans();
  const AttendTask task = p.task(spans, output);
  GetParam().attend(p.shape, {&task, 1}, pool);
  std::vector<double> sums(100, 0);
  const ColumnSumTask columns{&task, sums.data(), false};
  GetParam().column_sums(p.shape, {&columns, 1}, pool);
  double total = 0;
  for (const double x : sums) total += x;
  EXPECT_NEAR(total, 2, 1e-5);  // two heads of one row
}

}  // namespace
}  // namespace kvilt

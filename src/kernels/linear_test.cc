// Linear layers and row operations: every backend against the reference, op x dtype, and against itself bit by bit.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "base/checksum.h"
#include "kernels/dispatch.h"
#include "kernels/reference/backend.h"
#include "kernels/weight_samples.h"
#include "tensor/dequantize.h"
#include "tensor/requantize.h"
#ifdef KVILT_X86
#include "kernels/x86/pack.h"
#endif

namespace kvilt {
namespace {

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                            DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

bool is_quantised(DType type) { return dtype_info(type).block > 1; }

std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// What the int8 kernels make of a row of K activations: 64 at a time rounded to 127 steps of their largest magnitude.
std::vector<float> rounded_activations(const std::vector<float>& x, size_t K) {
  std::vector<float> out(x.size());
  for (size_t begin = 0; begin < x.size();) {
    const size_t end = std::min(begin + 64, (begin / K + 1) * K);
    float peak = 0;
    for (size_t i = begin; i < end; ++i) peak = std::max(peak, std::fabs(x[i]));
    const float scale = peak * (1.0f / 127), inverse = peak > 0 ? 127 / peak : 0;
    for (size_t i = begin; i < end; ++i) out[i] = std::nearbyint(x[i] * inverse) * scale;
    begin = end;
  }
  return out;
}

std::vector<float> bf16_activations(std::vector<float> x) {
  for (float& value : x) value = bf16_to_f32(f32_to_bf16(value));
  return x;
}

double norm(const std::vector<float>& v) {
  double sum = 0;
  for (const float value : v) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// |a - b| / |b|
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference) / norm(b);
}

// Packed weights are kept on disk under the layout's version, so what pack() writes may not change under one number.
TEST(Pack, ALayoutIsOneVersion) {
  const Backend& backend = *find_backend("auto").value();
  if (backend.layout().name != "x86") GTEST_SKIP() << "no x86 kernels";
  ASSERT_EQ(backend.layout().version, 2u);
  ThreadPool pool(1);
  std::string sums;
  for (const DType type : kTypes) {
    const int64_t K = is_quantised(type) ? 4096 : 512;  // long enough for segments
    const auto source = random_weight(type, 37, K, 5);
    const auto weight = backend.pack({source.data(), type, 37, K}, pool);
    sums += fmt::format("{:04x} ", checksum(weight->image) & 0xffff);
  }
  EXPECT_EQ(sums, "0ec5 4170 a4be 0635 8f70 c072 41e1 178b f48c d6f6 0a49 ")
      << "changed on purpose? Then count kLayoutVersion up (x86/pack.h)";
}

struct Case {
  DType type;
  int64_t N, K;
};

// One weight of a case in one backend, and its matmul over rows [begin, end) of x.
class Linear {
 public:
  Linear(const Backend& backend, const Case& shape, ThreadPool& pool, Activations activations = Activations::kAuto,
         uint32_t seed = 7)
      : Linear(backend, shape, random_weight(shape.type, shape.N, shape.K, seed), pool, activations) {}
  Linear(const Backend& backend, const Case& shape, std::vector<std::byte> bytes, ThreadPool& pool,
         Activations activations = Activations::kAuto)
      : backend_(backend),
        shape_(shape),
        pool_(pool),
        bytes_(std::move(bytes)),
        packed_(backend.pack({bytes_.data(), shape.type, shape.N, shape.K, activations}, pool)) {}
  const PackedWeight& packed() const { return *packed_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  std::vector<float> run(const std::vector<float>& x, ThreadPool* pool = nullptr) const {
    const int64_t T = static_cast<int64_t>(x.size()) / shape_.K;
    std::vector<float> y(T * shape_.N, std::numeric_limits<float>::quiet_NaN());
    const MatmulJob job = {packed_.get(), nullptr, Mat<float>(y.data(), T, shape_.N), false};
    backend_.matmul(Mat<const float>(x.data(), T, shape_.K), {&job, 1}, pool == nullptr ? pool_ : *pool);
    return y;
  }

 private:
  const Backend& backend_;
  Case shape_;
  ThreadPool& pool_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<PackedWeight> packed_;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const DType type : kTypes) {
    const int block = dtype_info(type).block;
    for (const int64_t N : {1, 15, 16, 48, 97}) {
      for (const int64_t K : {1, 2, 3, 5}) list.push_back({type, N, K * (block == 1 ? 1 : block)});
    }
    list.push_back({type, 33, block == 256 ? 1024 : 896});
    if (block > 1) list.push_back({type, 97, block == 256 ? 4352 : 4384});  // blocks in segments: 4 together, then 3
    if (block == 1) list.push_back({type, 20, 341}), list.push_back({type, 64, 172});
  }
  return list;
}

class BackendTest : public testing::TestWithParam<std::string_view> {
 protected:
  const Backend& backend() const { return **find_backend(GetParam()); }
  bool is_reference() const { return GetParam() == "reference"; }
  ThreadPool pool_{2};
};

TEST_P(BackendTest, MatmulEqualsReferenceOnTheSameActivations) {
  for (const Case& shape : cases()) {
    const Linear ours(backend(), shape, pool_), reference(reference::backend(), shape, pool_);
    for (const int64_t T : {1, 2, 5, 13, 31}) {
      const auto x = random_floats(T * shape.K, 11);
      const bool int8 = is_quantised(shape.type) && !is_reference();
      const bool bf16 = shape.type == DType::kBF16 && backend().bf16_matmul_pays();
      const auto expected = reference.run(int8   ? rounded_activations(x, static_cast<size_t>(shape.K))
                                          : bf16 ? bf16_activations(x)
                                                 : x);
      // fp32 sums over K; cancelling terms in small shapes leave a few ulps of the largest.
      EXPECT_LT(distance(ours.run(x), expected), 5e-6)
          << dtype_info(shape.type).name << " T " << T << " N " << shape.N << " K " << shape.K;
    }
  }
}

// Sums of 8 or 16 bits on the way must hold these: all quants and all rounded activations at an end of their range.
TEST_P(BackendTest, SumsHoldTheLargestProducts) {
  constexpr int64_t kN = 20, kK = 512;
  const auto rows = [] {
    std::vector<float> x;
    for (const int period : {0, 1, 2, 4, 16}) {  // of the signs; 0: all alike
      for (int64_t k = 0; k < kK; ++k) x.push_back(period > 0 && k / period % 2 == 1 ? -1.0f : 1.0f);
    }
    const size_t half = x.size();
    for (size_t i = 0; i < half; ++i) x.push_back(-x[i]);
    return x;
  }();
  for (const DType type : kTypes) {
    if (!is_quantised(type)) continue;
    for (const int fill : {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0}) {
      const Case shape = {type, kN, kK};
      const Linear ours(backend(), shape, filled_weight(type, kN, kK, std::byte(fill)), pool_);
      const Linear reference(reference::backend(), shape, ours.bytes(), pool_);
      const auto y = ours.run(rows), expected = reference.run(rows);
      const double error = norm(expected) > 0 ? distance(y, expected) : norm(y);
      EXPECT_LT(error, 5e-6) << dtype_info(type).name << " " << fill;
    }
  }
}

TEST_P(BackendTest, RoundingOfActivationsCostsLittle) {
  for (const DType type : kTypes) {
    const Case shape = {type, 64, 1024};
    const auto x = random_floats(8 * shape.K, 3);
    const double error =
        distance(Linear(backend(), shape, pool_).run(x), Linear(reference::backend(), shape, pool_).run(x));
    const bool bf16 = type == DType::kBF16 && backend().bf16_matmul_pays();
    EXPECT_LT(error, is_quantised(type) ? 1e-2 : bf16 ? 3e-3 : 2e-6) << dtype_info(type).name;
  }
}

TEST_P(BackendTest, ActivationsAreRoundedAsAsked) {
  for (const DType type : kTypes) {
    const Case shape = {type, 37, 1024};
    const auto x = random_floats(9 * shape.K, 3);
    const auto exact = Linear(reference::backend(), shape, pool_).run(x);
    const Linear f32(backend(), shape, pool_, Activations::kF32), bf16(backend(), shape, pool_, Activations::kBF16);
    EXPECT_LT(distance(f32.run(x), exact), 2e-6) << dtype_info(type).name;
    const bool rounds = !is_reference() && (is_quantised(type) || f32.packed().dtype == DType::kBF16);
    const double error = distance(bf16.run(x), exact);  // of the weights, and of the rows where that is faster
    EXPECT_LT(error, rounds ? 4e-3 : 2e-6) << dtype_info(type).name;
    if (is_quantised(type) && !is_reference()) {
      EXPECT_GT(error, type == DType::kQ4_0 ? 1e-5 : 1e-4) << dtype_info(type).name;  // power: something was rounded
      EXPECT_EQ(f32.packed().dtype, DType::kF32);
      EXPECT_EQ(bf16.packed().dtype, DType::kBF16);
    }
    const std::vector<float> last(x.end() - shape.K, x.end());  // a row by itself
    for (const Linear* linear : {&f32, &bf16}) {
      const auto whole = linear->run(x), alone = linear->run(last);
      EXPECT_EQ(std::memcmp(alone.data(), whole.data() + 8 * 37, alone.size() * sizeof(float)), 0)
          << dtype_info(type).name;
    }
  }
}

TEST_P(BackendTest, RowsDependOnlyOnThemselves) {
  std::vector<Case> shapes = {
      {DType::kQ4_0, 83, 3296}, {DType::kQ8_0, 83, 3296}, {DType::kQ4_K, 83, 3328}};  // segments
  for (const DType type : kTypes) shapes.push_back({type, 83, dtype_info(type).block == 256 ? 768 : 864});
  for (const Case& shape : shapes) {
    const DType type = shape.type;
    const Linear linear(backend(), shape, pool_);
    const auto x = random_floats(100 * shape.K, 5);
    const auto K = static_cast<size_t>(shape.K), N = static_cast<size_t>(shape.N);
    const auto whole = linear.run(x);
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      for (const size_t T : {1, 2, 3, 5, 7, 8, 12, 13, 17, 24, 64, 100}) {
        for (const size_t first : {size_t{0}, 100 - T}) {
          const std::vector<float> part(x.begin() + (first * K), x.begin() + ((first + T) * K));
          const auto y = linear.run(part, &pool);
          EXPECT_EQ(std::memcmp(y.data(), whole.data() + first * N, y.size() * sizeof(float)), 0)
              << dtype_info(type).name << " T " << T << " first " << first << " threads " << threads;
        }
      }
    }
  }
}

TEST_P(BackendTest, ABitOfAWeightOrAnActivationIsSeen) {  // power: the comparisons above could fail
  for (const DType type : kTypes) {
    const Case shape = {type, 17, 512};
    auto x = random_floats(3 * shape.K, 5);
    const Linear linear(backend(), shape, pool_);
    const auto y = linear.run(x);
    x[2 * shape.K + 77] += 1.5f;
    const auto changed = linear.run(x);
    EXPECT_EQ(std::memcmp(y.data(), changed.data(), 2 * 17 * sizeof(float)), 0);
    int seen = 0;  // by every weight that is not zero
    for (size_t n = 2 * 17; n < 3 * 17; ++n) seen += y[n] != changed[n];
    EXPECT_GE(seen, 13) << dtype_info(type).name;

    auto bytes = linear.bytes();
    bytes[bytes.size() - 1 - (type == DType::kQ6_K ? 30 : 0)] ^= std::byte{0x10};  // last row, last block
    const auto packed = backend().pack({bytes.data(), type, shape.N, shape.K}, pool_);
    std::vector<float> other(3 * 17);
    const MatmulJob job = {packed.get(), nullptr, Mat<float>(other.data(), 3, 17), false};
    backend().matmul(Mat<const float>(x.data(), 3, shape.K), {&job, 1}, pool_);
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(std::memcmp(&other[r * 17], &changed[r * 17], 16 * sizeof(float)), 0) << dtype_info(type).name;
      EXPECT_NE(other[r * 17 + 16], changed[r * 17 + 16]) << dtype_info(type).name;
    }
  }
}

TEST_P(BackendTest, JobsShareX) {
  const int64_t K = 256;
  const Linear a(backend(), {DType::kQ8_0, 40, K}, pool_), b(backend(), {DType::kF32, 16, K}, pool_),
      c(backend(), {DType::kQ4_K, 7, K}, pool_);
  for (const int64_t T : {21, 70}) {
    const auto x = random_floats(T * K, 5);
    const auto bias = random_floats(40, 6);
    std::vector<float> wide(T * 64, 2), out_c(T * 7);
    const Mat<float> y(wide.data(), T, 64);
    const MatmulJob jobs[] = {{&a.packed(), bias.data(), y.slice_cols(0, 40), false},
                              {&b.packed(), nullptr, y.slice_cols(41, 57), true},
                              {&c.packed(), nullptr, Mat<float>(out_c.data(), T, 7), false}};
    backend().matmul(Mat<const float>(x.data(), T, K), jobs, pool_);
    const auto ya = a.run(x), yb = b.run(x);
    EXPECT_EQ(out_c, c.run(x));
    for (int64_t r = 0; r < T; ++r) {
      const float* row = y.row(r);
      for (int64_t n = 0; n < 40; ++n) {
        EXPECT_NEAR(row[n], ya[r * 40 + n] + bias[n], 1e-5);
      }
      EXPECT_EQ(row[40], 2);
      for (int64_t n = 0; n < 16; ++n) EXPECT_NEAR(row[41 + n], 2 + yb[r * 16 + n], 1e-5);
      for (int64_t n = 57; n < 64; ++n) EXPECT_EQ(row[n], 2);
    }
  }
}

TEST_P(BackendTest, PackingKeepsTheSize) {
  for (const DType type : kTypes) {
    const Linear linear(backend(), {type, 128, 1024}, pool_);
    EXPECT_LE(static_cast<double>(linear.packed().bytes), 1.1 * static_cast<double>(linear.bytes().size()));
    EXPECT_GE(linear.packed().bytes, linear.bytes().size());
  }
}

// Formats without kernels are packed as the one that holds them (tensor/requantize_test.cc: with which values).
TEST_P(BackendTest, OtherFormatsArePackedAsTheirKernelType) {
  if (is_reference()) GTEST_SKIP() << "it reads all formats as they are";
  constexpr int64_t kRows = 37, kCols = 4096;
  for (const DType type : {DType::kQ2_K, DType::kQ3_K, DType::kIQ4NL, DType::kIQ4XS, DType::kMXFP4}) {
    const DType as = kernel_type(type);
    const auto source = random_weight(type, kRows, kCols, 5);
    std::vector<std::byte> other(dtype_bytes(as, kRows * kCols));
    requantize(type, source.data(), kRows * kCols, other.data());
    const auto packed = backend().pack({source.data(), type, kRows, kCols}, pool_);
    const auto same = backend().pack({other.data(), as, kRows, kCols}, pool_);
    EXPECT_EQ(packed->dtype, as);
    EXPECT_TRUE(std::ranges::equal(packed->image, same->image)) << dtype_info(type).name;
    EXPECT_NE(backend().adopt({nullptr, type, kRows, kCols}, packed->image, nullptr), nullptr);
    other[40] ^= std::byte{1};
    EXPECT_FALSE(std::ranges::equal(packed->image, backend().pack({other.data(), as, kRows, kCols}, pool_)->image))
        << "power";
    const auto wide = backend().pack({source.data(), type, kRows, kCols, Activations::kF32}, pool_);
    EXPECT_EQ(wide->dtype, DType::kF32);
  }
}

TEST_P(BackendTest, NormsEqualReference) {
  for (const int64_t cols : {1, 7, 64, 341, 896}) {
    const auto x = random_floats(5 * cols, 1), weight = random_floats(cols, 2);
    std::vector<float> ours(x.size()), expected(x.size());
    backend().rms_norm(Mat<const float>(x.data(), 5, cols), weight.data(), 1e-6f, Mat<float>(ours.data(), 5, cols),
                       pool_);
    reference::backend().rms_norm(Mat<const float>(x.data(), 5, cols), weight.data(), 1e-6f,
                                  Mat<float>(expected.data(), 5, cols), pool_);
    EXPECT_LT(distance(ours, expected), 1e-6) << cols;
    std::vector<float> in_place = x;
    backend().rms_norm(Mat<const float>(in_place.data(), 5, cols), weight.data(), 1e-6f,
                       Mat<float>(in_place.data(), 5, cols), pool_);
    EXPECT_EQ(in_place, ours);
  }
  for (const int E : {8, 20, 64, 128}) {
    const int64_t cols = 3 * E;
    const auto x = random_floats(4 * (cols + 5), 1), weight = random_floats(E, 2);
    auto ours = x, expected = x;
    backend().head_norm(Mat<float>(ours.data(), 4, cols, cols + 5), E, weight.data(), 1e-6f, pool_);
    reference::backend().head_norm(Mat<float>(expected.data(), 4, cols, cols + 5), E, weight.data(), 1e-6f, pool_);
    EXPECT_LT(distance(ours, expected), 1e-6) << E;
    EXPECT_NE(ours, x);
    EXPECT_EQ(ours[cols], x[cols]);  // beyond the row's heads
  }
}

// A product's element is one sum in the order of w's columns, whatever else is computed with it: rows and columns that
// make whole tiles and that do not, sums longer than what stays in L1, none at all.
TEST_P(BackendTest, MixIsOneSumAnElement) {
  for (const int64_t K : {0, 1, 64, 65, 300}) {
    for (const int64_t M : {1, 4, 5, 29}) {
      for (const int64_t N : {1, 16, 64, 81}) {
        const auto w = random_floats(M * K + 1, 1), x = random_floats(K * (N + 3) + 1, 2);
        std::vector<float> y(M * (N + 1), 7.0f);
        backend().mix({w.data(), M, K}, {x.data(), K, N, N + 3}, {y.data(), M, N, N + 1});
        for (int64_t m = 0; m < M; ++m) {
          for (int64_t n = 0; n < N; ++n) {
            float sum = 0;
            for (int64_t k = 0; k < K; ++k) sum = std::fma(w[m * K + k], x[k * (N + 3) + n], sum);
            const float off = is_reference() ? 1e-5f * static_cast<float>(K) : 0;  // which rounds products
            ASSERT_NEAR(y[m * (N + 1) + n], sum, off) << K << " " << m << " of " << M << ", " << n << " of " << N;
          }
          ASSERT_EQ(y[m * (N + 1) + N], 7.0f) << "beyond the row";
        }
      }
    }
  }
}

// What the activations are, in double and from their definitions.
double silu_of(double x) { return x / (1 + std::exp(-x)); }
double clamped_of(double gate, double up) {  // gpt-oss
  const double g = std::min(gate, 7.0), u = std::clamp(up, -7.0, 7.0);
  return g / (1 + std::exp(-1.702 * g)) * (u + 1);
}
double gelu_of(double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

TEST_P(BackendTest, ActivationsEqualTheirFormulas) {
  for (const int64_t cols : {1, 9, 64, 333}) {
    auto gate = random_floats(3 * cols, 1);
    const auto up = random_floats(3 * cols, 2);
    for (size_t i = 0; i < gate.size(); i += 3) gate[i] *= 20;
    gate[0] = 200, gate[gate.size() - 1] = -200;
    auto silu = gate, gelu = gate, clamped = gate;
    auto wide = up;
    for (float& x : wide) x *= 6;
    backend().act_mul(Activation::kClampedSwiglu, Mat<float>(clamped.data(), 3, cols),
                      Mat<const float>(wide.data(), 3, cols), pool_);
    backend().act_mul(Activation::kSilu, Mat<float>(silu.data(), 3, cols), Mat<const float>(up.data(), 3, cols), pool_);
    backend().act_mul(Activation::kGeluTanh, Mat<float>(gelu.data(), 3, cols), Mat<const float>(up.data(), 3, cols),
                      pool_);
    for (size_t i = 0; i < gate.size(); ++i) {
      const double want_silu = silu_of(gate[i]) * up[i], want_gelu = gelu_of(gate[i]) * up[i];
      EXPECT_NEAR(silu[i], want_silu, 1e-6 + 1e-6 * std::fabs(want_silu)) << gate[i];
      EXPECT_NEAR(gelu[i], want_gelu, 1e-6 + 1e-6 * std::fabs(want_gelu)) << gate[i];
      EXPECT_NEAR(clamped[i], clamped_of(gate[i], wide[i]), 2e-6 + 2e-6 * std::fabs(clamped_of(gate[i], wide[i])));
    }
  }
}

// ffn() against its three calls: few rows and many, both activations, types that differ, long K and F, edges of slices.
TEST_P(BackendTest, FfnEqualsItsParts) {
  struct Ffn {
    DType gate, up, down;
    int64_t D, F;
  };
  const Ffn shapes[] = {{DType::kQ8_0, DType::kQ8_0, DType::kQ8_0, 96, 288},
                        {DType::kQ4_K, DType::kQ6_K, DType::kQ5_0, 256, 160},
                        {DType::kQ8_0, DType::kQ8_0, DType::kQ4_0, 1632, 160},  // gate and up in segments
                        {DType::kQ5_1, DType::kF32, DType::kF16, 64, 131},      // rows of two formats
                        {DType::kBF16, DType::kBF16, DType::kBF16, 62, 201}};
  for (const Ffn& shape : shapes) {
    const Linear gate(backend(), {shape.gate, shape.F, shape.D}, pool_),
        up(backend(), {shape.up, shape.F, shape.D}, pool_, Activations::kAuto, 8),
        down(backend(), {shape.down, shape.D, shape.F}, pool_);
    const auto bias = random_floats(shape.F, 9);
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      for (const int64_t T : {7, 64, 203}) {
        for (const auto activation : {Activation::kSilu, Activation::kGeluTanh, Activation::kClampedSwiglu}) {
          if (activation != Activation::kSilu && threads != 2) continue;
          auto x = random_floats(T * shape.D, 3);
          const Mat<const float> in(x.data(), T, shape.D);
          std::vector<float> a(T * shape.F), b(a.size()), want = x;
          const Mat<float> to_a(a.data(), T, shape.F), to_b(b.data(), T, shape.F);
          const MatmulJob jobs[] = {{&gate.packed(), bias.data(), to_a, false}, {&up.packed(), nullptr, to_b, false}};
          backend().matmul(in, jobs, pool_);
          backend().act_mul(activation, to_a, to_b, pool_);
          const MatmulJob last = {&down.packed(), nullptr, Mat<float>(want.data(), T, shape.D), true};
          backend().matmul(to_a, {&last, 1}, pool_);

          const MatmulJob over_x = {&down.packed(), nullptr, Mat<float>(x.data(), T, shape.D), true};
          backend().ffn(in, {jobs[0], jobs[1], over_x, activation}, pool);
          EXPECT_EQ(std::memcmp(x.data(), want.data(), x.size() * sizeof(float)), 0)
              << dtype_info(shape.down).name << " T " << T << " threads " << threads;
          if (T == 203) {  // power: gate and up are not the same to it
            auto other = random_floats(x.size(), 3);
            const MatmulJob down_job = {&down.packed(), nullptr, Mat<float>(other.data(), T, shape.D), true};
            const Mat<const float> again(other.data(), T, shape.D);
            backend().ffn(again, {jobs[1], jobs[0], down_job, activation}, pool);
            EXPECT_NE(other, want);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BackendTest, testing::ValuesIn(backend_names()),
                         [](const auto& param) { return std::string(param.param); });

TEST(InstructionSets, GiveTheSameBits) {
  ThreadPool pool(2);
  std::vector<Case> shapes = {{DType::kQ5_0, 83, 3296}, {DType::kQ6_K, 83, 3328}};  // segments
  for (const DType type : kTypes) shapes.push_back({type, 67, 512});
  for (const Case& shape : shapes) {
    const DType type = shape.type;
    const auto x = random_floats(61 * shape.K, 5);  // many enough for tiles
    std::vector<float> first;
    std::map<std::string_view, std::vector<float>> of_bits;
    for (const std::string_view name : backend_names()) {
      const Backend& backend = **find_backend(name);
      const auto own = Linear(backend, shape, pool).run(x);
      const auto [like, fresh] = of_bits.emplace(backend.bits(), own);
      EXPECT_EQ(std::memcmp(like->second.data(), own.data(), own.size() * sizeof(float)), 0)
          << name << " " << dtype_info(type).name << " says that it gives the bits of another";
      if (name == "reference") continue;  // rounds elsewhere
      // BF16: not all have instructions for pairs, so rows in fp32, which all have.
      const Activations rows = type == DType::kBF16 ? Activations::kF32 : Activations::kAuto;
      const auto y = Linear(**find_backend(name), shape, pool, rows).run(x);
      if (first.empty()) first = y;
      EXPECT_EQ(std::memcmp(first.data(), y.data(), y.size() * sizeof(float)), 0)
          << name << " " << dtype_info(type).name;
    }
  }
}

TEST(Dispatch, NamesAndErrors) {
  ASSERT_FALSE(backend_names().empty());
  EXPECT_EQ(backend_names().back(), "reference");
  for (const std::string_view name : backend_names()) EXPECT_EQ((*find_backend(name))->name(), name);
  const auto unknown = find_backend("sse");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, Code::kInvalidArgument);
  EXPECT_NE(unknown.error().message.find("reference"), std::string::npos);
#ifdef KVILT_X86
  const std::vector<std::string_view> names = backend_names();
  for (const std::string_view name : {"amx", "avx512", "avxvnni", "vnni256", "avx2"}) {
    if (std::ranges::find(names, name) != names.end()) continue;
    const auto lacking = find_backend(name);
    ASSERT_FALSE(lacking.ok());
    EXPECT_EQ(lacking.error().code, Code::kUnsupported) << name;
  }
#endif
  ASSERT_EQ(setenv("KVILT_BACKEND", "reference", 1), 0);
  EXPECT_EQ((*find_backend("auto"))->name(), "reference");
  ASSERT_EQ(unsetenv("KVILT_BACKEND"), 0);
  EXPECT_EQ((*find_backend("auto"))->name(), backend_names().front());
}

#ifdef KVILT_X86
// What is packed all the time, groups of keys, does not go through fresh memory each time; and nobody's is taken.
TEST(WeightMemory, ASlabThatNobodyUsesIsUsedAgain) {
  x86::WeightMemory memory;
  ThreadPool pool(2);
  const std::vector<float> ones(40 * 64, 1), twos(40 * 64, 2);
  const auto pack = [&](const std::vector<float>& w) {
    return x86::pack({reinterpret_cast<const std::byte*>(w.data()), DType::kF32, 40, 64}, false, memory, pool);
  };
  const std::byte* first = pack(ones)->blocks;
  auto one = pack(ones);
  EXPECT_EQ(one->blocks, first);
  const std::vector<std::byte> image(one->image.begin(), one->image.end());
  const auto two = pack(twos);
  EXPECT_NE(two->blocks, first) << "somebody's";
  EXPECT_TRUE(std::ranges::equal(one->image, image));
  one.reset();
  EXPECT_NE(pack(ones)->blocks, first) << "the slab is not free";
}
#endif

}  // namespace
}  // namespace kvilt

// Rotated queries and keys, and column sums, of every backend.
#include "kernels/attend_cases.h"

namespace kvilt {
namespace {

class AttendRotations : public Attend {};
INSTANTIATE_TEST_SUITE_P(Backends, AttendRotations, testing::ValuesIn(attending_backends()),
                         [](const auto& info) { return std::string(info.param); });

// ---- Rotations ------------------------------------------------------------------------------------------------------

TEST_P(AttendRotations, RotatingTheQueryEqualsRealigningTheKeys) {
  ThreadPool pool(2);
  for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kInterleaved}) {
    std::vector<std::vector<float>> rotations;
    const Problem p = quilt(rotations, DType::kF32, pairs, scattered(1300, 11, 6), 80);
    const Output zero_copy = p.run(backend(), pool);
    expect_close(zero_copy, oracle(p), 5e-6);
    Problem copy = p;
    for (int64_t j = 0; j < p.keys; ++j) {
      if (p.rotation[j] == nullptr) continue;
      backend().realign(p.shape, p.k.data() + j * p.row_bytes(), p.rotation[j], 1, copy.k.data() + j * p.row_bytes());
      copy.rotation[j] = nullptr;
    }
    const Output copied = copy.run(backend(), pool);
    for (size_t i = 0; i < copied.out.size(); ++i) ASSERT_NEAR(copied.out[i], zero_copy.out[i], 5e-6);
    Problem wrong = p;
    const std::vector<float> shifted = rotation_of(p.shape, 18);
    for (auto& rotation : wrong.rotation) rotation = rotation == rotations[0].data() ? shifted.data() : rotation;
    const Output off = wrong.run(backend(), pool);
    double differs = 0;
    for (size_t i = 0; i < off.out.size(); ++i)
      differs = std::max<double>(differs, std::abs(off.out[i] - zero_copy.out[i]));
    EXPECT_GT(differs, 1e-2) << "a shift wrong by one must show";
  }
}

TEST_P(AttendRotations, RealignOfEveryDtype) {
  for (const int E : {8, 20, 64, 80, 128}) {
    for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kInterleaved}) {
      for (const DType kv : kTypes) {
        AttendShape shape = shape_of(E, 1, kv, pairs);
        shape.rotary_dim = E / 4 * 2;
        const Problem p(shape, 30, {0}, 90);
        const std::vector<float> rotation = rotation_of(shape, 123);
        std::vector<std::byte> dst(p.k.size() + 1);
        dst.back() = std::byte{0x5a};
        backend().realign(shape, p.k.data(), rotation.data(), 30, dst.data());
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

TEST_P(AttendRotations, RopeMatchesTheDefinitionAndComposesWithRealign) {
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
    backend().rope(Mat<float>(x.data(), pos.size(), 3 * E), E, pos, config, pool);
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

// The task's sums in many arrays, on one thread, which takes more blocks at once then.
std::vector<std::vector<double>> column_sums_of_many(const Backend& backend, const Problem& p, ColumnSumTask task,
                                                     double start) {
  ThreadPool one(1);
  std::vector<std::vector<double>> arrays(16, std::vector<double>(p.keys, start));
  std::vector<ColumnSumTask> heads;
  for (std::vector<double>& array : arrays) {
    task.sums = array.data();
    heads.push_back(task);
  }
  backend.column_sums(p.shape, heads, one);
  return arrays;
}

TEST_P(AttendRotations, ColumnSums) {
  ThreadPool one(1), many(4);
  for (const auto& [value_norm, kv] :
       {std::pair(false, DType::kF16), {true, DType::kF16}, {true, DType::kI8}, {true, DType::kBF16}}) {
    std::vector<std::vector<float>> rotations;
    Problem p = quilt(rotations, kv, RopePairs::kHalves, scattered(1300, kv == DType::kF16 ? 3 : 30, 7), 100);
    const double relative = tolerance(backend(), p.shape, 1e-5);
    p.mask = {.sink = 30, .window = 500, .dense_from = 1250};
    const Oracle want = oracle(p);
    Output output;
    const std::vector<KvSpan> spans = p.spans();
    const AttendTask task = p.task(spans, output);
    backend().attend(p.shape, {&task, 1}, many);
    const double start = 0.5;  // the sums are added to what is there
    std::vector<double> sums(p.keys, start), again = sums, split = sums, twice = sums;
    const ColumnSumTask columns{&task, sums.data(), value_norm};
    backend().column_sums(p.shape, {&columns, 1}, many);
    for (int64_t j = 0; j < p.keys; ++j) {
      const double expected = start + (value_norm ? want.columns_by_norm[j] : want.columns[j]);
      ASSERT_NEAR(sums[j], expected, relative * expected) << j;
      if (p.absent[j]) {
        ASSERT_EQ(sums[j], start);
      }
    }
    const ColumnSumTask other{&task, again.data(), value_norm};
    backend().column_sums(p.shape, {&other, 1}, one);
    EXPECT_EQ(sums, again) << "threads";
    // Rows in two tasks that share the sums.
    const size_t cut = p.pos.size() / 3, row = static_cast<size_t>(p.shape.group * p.shape.E);
    AttendTask first = task, second = task;
    first.pos = std::span(p.pos).first(cut);
    second.pos = std::span(p.pos).subspan(cut);
    second.q += cut * row;
    second.lse += cut * p.shape.group;
    const std::vector<ColumnSumTask> both = {{&first, split.data(), value_norm}, {&second, split.data(), value_norm}};
    backend().column_sums(p.shape, both, many);
    for (int64_t j = 0; j < p.keys; ++j) ASSERT_NEAR(split[j], sums[j], 1e-6 * sums[j]);
    // Two heads into one array.
    const std::vector<ColumnSumTask> pair = {{&task, twice.data(), value_norm}, {&task, twice.data(), value_norm}};
    backend().column_sums(p.shape, pair, many);
    for (int64_t j = 0; j < p.keys; ++j) ASSERT_NEAR(twice[j] - start, 2 * (sums[j] - start), 1e-6 * sums[j]);
    for (const std::vector<double>& array : column_sums_of_many(backend(), p, {&task, nullptr, value_norm}, start))
      EXPECT_EQ(array, sums) << "items";
  }
}

// Keys of few lines are read in place. Blocks that no row sees, behind the last one and before a window, are left as they
// are even if a value's norm is infinite, whichever blocks share an item.
TEST_P(AttendRotations, ColumnSumsOfFewRows) {
  ThreadPool many(4);
  std::vector<std::vector<float>> rotations;
  Problem p = quilt(rotations, DType::kBF16, RopePairs::kHalves, {900, 1000}, 120);
  p.mask = {.window = 700};
  for (const int64_t hidden : {100, 1100}) {
    p.absent[hidden] = false;
    const std::vector<float> huge(p.shape.E, 1e30f);
    const std::vector<std::byte> row = to_dtype(p.shape.kv, p.shape.E, huge);
    std::ranges::copy(row, p.v.begin() + hidden * static_cast<int64_t>(p.row_bytes()));
  }
  const double relative = tolerance(backend(), p.shape, 1e-5);
  const Oracle want = oracle(p);
  Output output;
  const std::vector<KvSpan> spans = p.spans();
  const AttendTask task = p.task(spans, output);
  backend().attend(p.shape, {&task, 1}, many);
  const double start = -0.0;
  std::vector<double> sums(p.keys, start);
  std::vector<float> rows(2 * p.keys, 0);
  backend().column_sums(p.shape, {{{&task, sums.data(), true, rows.data(), p.keys}}}, many);
  for (int64_t j = 0; j < p.keys; ++j) {
    if (j < 192 || j >= 1024) {
      ASSERT_TRUE(sums[j] == 0 && std::signbit(sums[j])) << j;
      continue;
    }
    ASSERT_NEAR(sums[j], want.columns_by_norm[j], relative * want.columns_by_norm[j]) << j;
    ASSERT_NEAR(rows[j] + rows[p.keys + j], want.columns[j], relative * want.columns[j]) << j;
  }
  for (const std::vector<double>& array : column_sums_of_many(backend(), p, {&task, nullptr, true}, start))
    EXPECT_EQ(array, sums) << "items";
}

TEST_P(AttendRotations, ColumnSumsOfRowsThatSeeNothing) {
  ThreadPool pool(2);
  Problem p(shape_of(32, 2), 100, {0, 1, 50}, 110);
  p.absent[0] = p.absent[1] = true;
  Output output;
  const std::vector<KvSpan> spans = p.spans();
  const AttendTask task = p.task(spans, output);
  backend().attend(p.shape, {&task, 1}, pool);
  std::vector<double> sums(100, 0);
  const ColumnSumTask columns{&task, sums.data(), false};
  backend().column_sums(p.shape, {&columns, 1}, pool);
  double total = 0;
  for (const double x : sums) total += x;
  EXPECT_NEAR(total, 2, 1e-5);  // two heads of one row
}

}  // namespace
}  // namespace kvilt

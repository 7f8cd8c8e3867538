// Attention of every backend against a naive softmax in double, and its promise: spans, chunks and threads change no bit.
#include "kernels/attend_cases.h"

namespace kvilt {
namespace {

INSTANTIATE_TEST_SUITE_P(Backends, Attend, testing::ValuesIn(attending_backends()),
                         [](const auto& info) { return std::string(info.param); });

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
        expect_close(p.run(backend(), pool), oracle(p), tolerance(backend(), p.shape, 3e-6));
      }
    }
  }
}

// Where products are made in bf16: a bound on the whole, and that it is near (no fp32 in disguise, and nothing lost).
TEST_P(Attend, ErrorOfEveryTypeOverManyKeys) {
  ThreadPool pool(3);
  for (const DType kv : kTypes) {
    const Problem p(shape_of(64, 7, kv), 2000, scattered(2000, 100, 8), 5, 2);
    const Output got = p.run(backend(), pool);
    const Oracle want = oracle(p);
    double square = 0;
    for (size_t i = 0; i < got.out.size(); ++i) square += std::pow(got.out[i] - want.out[i], 2);
    const double rms = std::sqrt(square / static_cast<double>(got.out.size()));
    if (tolerance(backend(), p.shape, 0) == 0) {
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
  expect_close(prefill.run(backend(), pool), oracle(prefill), 3e-6);
  const Problem decode(shape_of(64, 7), 3000, {2999}, 2);
  expect_close(decode.run(backend(), pool), oracle(decode), 3e-6);
  const Problem ahead(shape_of(64, 7), 3000, {10, 600, 1023, 1024}, 3);  // keys that nobody sees
  expect_close(ahead.run(backend(), pool), oracle(ahead), 3e-6);
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
      const Output got = p.run(backend(), pool);
      expect_close(got, oracle(p), 3e-6);
      Problem causal = p;
      causal.mask = {};
      const bool same = got == causal.run(backend(), pool);
      EXPECT_EQ(same, mask.window < 0 && mask.reach < 0) << "the mask did nothing";
    }
  }
}

TEST_P(Attend, MissingPositionsAndRowsThatSeeNothing) {
  ThreadPool pool(2);
  Problem p(shape_of(32, 3), 400, range(0, 400), 20);
  std::mt19937 random(1);
  for (int64_t j = 0; j < 400; ++j) p.absent[j] = j < 5 || random() % 3 == 0 || (j >= 120 && j < 260);
  Output got = p.run(backend(), pool);
  expect_close(got, oracle(p), 3e-6);
  for (int i = 0; i < 5 * 3 * 32; ++i) EXPECT_EQ(got.out[i], 0);
  p.absent.assign(400, true);  // no span at all
  got = p.run(backend(), pool);
  for (const float x : got.out) EXPECT_EQ(x, 0);
  for (const float x : got.lse) EXPECT_EQ(x, -kInf);
}

// A sink takes its share and gives nothing; lse may be wanted or not; rows, threads and neighbours change no bit.
TEST_P(Attend, SinksAreInTheNormaliserOnly) {
  ThreadPool one(1), many(5);
  uint32_t seed = 90;
  for (const DType kv : kTypes) {
    for (const bool decode : {false, true}) {
      SCOPED_TRACE(testing::Message() << dtype_info(kv).name << (decode ? ", decode" : ", prefill"));
      Problem p(shape_of(64, 4, kv), 1300, decode ? std::vector<int32_t>{1299} : scattered(1300, 6, 3), ++seed);
      const Output without = p.run(backend(), many);
      p.sinks = {-2, 3, 9, -kInf};
      const Output whole = p.run(backend(), many);
      expect_close(whole, oracle(p), tolerance(backend(), p.shape, 3e-6));
      EXPECT_TRUE(whole == p.run(backend(), one));
      EXPECT_FALSE(whole == without) << "power";
      const size_t E = 64, width = 4 * E;
      for (size_t r = 0; r < p.pos.size(); ++r) {  // the head without a sink
        EXPECT_EQ(0, std::memcmp(&whole.out[r * width + 3 * E], &without.out[r * width + 3 * E], E * sizeof(float)));
        EXPECT_EQ(whole.lse[r * 4 + 3], without.lse[r * 4 + 3]);
      }
      Output blind;
      const std::vector<KvSpan> spans = p.spans();
      AttendTask task = p.task(spans, blind);
      task.lse = nullptr;
      backend().attend(p.shape, {&task, 1}, many);
      EXPECT_EQ(blind.out, whole.out);
      p.sinks.assign(4, -kInf);
      EXPECT_TRUE(without == p.run(backend(), many));
    }
  }
  Problem p(shape_of(32, 2), 100, {5, 50}, ++seed);  // a row that sees no key: the sink is all there is
  for (int j = 0; j < 10; ++j) p.absent[j] = true;
  p.sinks = {1.5f, -kInf};
  const Output got = p.run(backend(), many);
  expect_close(got, oracle(p), 3e-6);
  EXPECT_EQ(got.lse[0], 1.5f);
  EXPECT_EQ(got.lse[1], -kInf);
}

TEST_P(Attend, HugeScores) {
  ThreadPool pool(2);
  const Problem p(shape_of(64, 2), 300, range(0, 300), 30, 1e4f);  // scores of tens of thousands: one key takes all
  expect_close(p.run(backend(), pool), oracle(p), 2e-2);
  Problem same(shape_of(64, 2), 300, range(0, 300), 31);
  for (float& x : same.q) x = 1e15f;
  std::vector<float> ones(300 * 64, 1e15f);
  same.k = to_dtype(DType::kF32, 64, ones);  // every score 8e30: a plain mean
  const Output got = same.run(backend(), pool);
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
  backend().attend(problems[0].shape, tasks, pool);
  for (int g = 0; g < G; ++g) {
    const Output alone = problems[g].run(backend(), pool);
    for (int r = 0; r < 40; ++r) EXPECT_EQ(0, std::memcmp(&out[r * stride + g * 128], &alone.out[r * 128], 128 * 4));
  }
}

// ---- Invariance, bit for bit ----------------------------------------------------------------------------------------

TEST_P(Attend, SpansDoNotMatter) {
  ThreadPool pool(2);
  for (const DType kv : kTypes) {
    for (const auto& rows : {scattered(1300, 9, 3), std::vector<int32_t>{1299}}) {  // prefill, decode
      std::vector<std::vector<float>> rotations;
      Problem p = quilt(rotations, kv, RopePairs::kHalves, rows, 50);
      for (int64_t j = 640; j < 900; ++j) {  // and some without holes
        p.absent[j] = false;
        p.rotation[j] = nullptr;
      }
      p.mask = {.sink = 70, .window = 600, .dense_from = 1290};
      const Output whole = p.run(backend(), pool);
      std::mt19937 random(5);
      EXPECT_TRUE(whole == p.run(backend(), pool, p.spans(1)));
      for (const int longest : {2, 37, 64, 100, 300}) {
        EXPECT_TRUE(whole == p.run(backend(), pool, p.spans(longest, &random))) << "spans of up to " << longest;
      }
      std::vector<KvSpan> wrong = p.spans(1);  // power: two keys change places
      std::swap(wrong[3].k, wrong[4].k);
      EXPECT_FALSE(whole == p.run(backend(), pool, wrong));
    }
  }
}

// Chunks of `chunk` rows, one after the other.
Output in_chunks(const Problem& p, size_t chunk, const Backend& backend, ThreadPool& pool) {
  const size_t row = static_cast<size_t>(p.shape.group * p.shape.E);
  Output joined;
  for (size_t r = 0; r < p.pos.size(); r += chunk) {
    Problem part = p;
    const size_t end = std::min(r + chunk, p.pos.size());
    part.pos.assign(p.pos.begin() + r, p.pos.begin() + end);
    part.q.assign(p.q.begin() + r * row, p.q.begin() + end * row);
    const Output got = part.run(backend, pool);
    joined.out.insert(joined.out.end(), got.out.begin(), got.out.end());
    joined.lse.insert(joined.lse.end(), got.lse.begin(), got.lse.end());
  }
  return joined;
}

TEST_P(Attend, RowsAndThreadsDoNotMatter) {
  ThreadPool one(1), many(5);
  for (const DType kv : kTypes) {
    std::vector<std::vector<float>> rotations;
    const Problem p = quilt(rotations, kv, RopePairs::kInterleaved, scattered(1300, 6, 4), 60);
    const Output whole = p.run(backend(), one);
    EXPECT_TRUE(whole == p.run(backend(), many));
    for (const size_t chunk : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{13}, size_t{100}}) {
      EXPECT_TRUE(whole == in_chunks(p, chunk, backend(), chunk == 13 ? many : one))
          << dtype_info(kv).name << ", chunks of " << chunk;
    }
  }
}

// Numbers below 2^-126, which some units count as 0: which of a line's sums go through such a unit must not matter.
TEST_P(Attend, RowsDoNotMatterToTheSmallestNumbers) {
  ThreadPool pool(1);
  Problem p(shape_of(64, 2, DType::kBF16), 700, range(0, 700), 61, 3);
  std::vector<float> values = from_dtype(DType::kBF16, 64, p.v);
  for (float& x : values) x *= 0x1p-120f;
  p.v = to_dtype(DType::kBF16, 64, values);
  p.mask = {.sink = 3, .window = 40};
  const Output whole = p.run(backend(), pool);
  EXPECT_TRUE(std::ranges::any_of(whole.out, [](float x) { return x != 0 && std::abs(x) < 0x1p-120f; })) << "power";
  for (const size_t chunk : {size_t{1}, size_t{5}, size_t{31}}) {
    EXPECT_TRUE(whole == in_chunks(p, chunk, backend(), pool)) << "chunks of " << chunk;
  }
}

TEST_P(Attend, InvisibleKeysDoNotMatter) {
  ThreadPool pool(3);
  std::vector<std::vector<float>> rotations;
  Problem p = quilt(rotations, DType::kF32, RopePairs::kHalves, {700, 719, 733}, 70);
  p.mask = {.sink = 10, .window = 150};  // 733 - 150 = 583: 10..549 unseen by all
  const Output before = p.run(backend(), pool);
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
  EXPECT_TRUE(before == other.run(backend(), pool));
  other.mask = {};
  EXPECT_FALSE(before == other.run(backend(), pool)) << "power: seen keys must matter";
  // A key in the future of one row but not of another.
  Problem future = p;
  future.absent[720] = !p.absent[720];
  const Output after = future.run(backend(), pool);
  const size_t row = 3 * 32;
  EXPECT_EQ(0, std::memcmp(before.out.data(), after.out.data(), 2 * row * sizeof(float)));
  EXPECT_NE(0, std::memcmp(&before.out[2 * row], &after.out[2 * row], row * sizeof(float)));
}

}  // namespace
}  // namespace kvilt

// Every KV type under the limit cases that must hold bit for bit (tests/limits_test.cc has them all, on fp32), and what
// each type costs against fp32: a written bound, and a check that the bound is near.
#include <gtest/gtest.h>

#include <cmath>

#include "probe_prompts.h"

namespace kvilt {
namespace {

struct Type {
  std::string name;
  double logit_error;  // largest difference of a logit from fp32's that is allowed on the probe model
};
const Type kTypes[] = {{"f32", 0}, {"f16", 0.03}, {"bf16", 0.25}, {"int8", 0.4}};

const std::vector<int32_t> kHead = tokens(9, 1), kA = tokens(170, 2), kB = tokens(153, 3), kQuestion = tokens(21, 5);

std::unique_ptr<Engine> engine_with(const std::string& type, const std::string& backend, int chunk = 512,
                                    int threads = 2, const std::string& placement = "zero-copy") {
  EngineOptions options{
      .model = kModel, .backend = backend, .threads = threads, .kv_type = *parse_kv_type(type), .chunk_tokens = chunk};
  options.placement = *parse_placement(placement);
  return open_for_test(options);
}

// GoogleTest asks for this name.
// NOLINTNEXTLINE(readability-identifier-naming)
void PrintTo(const Type& type, std::ostream* stream) { *stream << type.name; }

class KvTypes : public testing::TestWithParam<std::tuple<Type, std::string>> {
 protected:
  const Type type = std::get<0>(GetParam());
  const std::string backend = std::get<1>(GetParam());
};

TEST_P(KvTypes, ChunksThreadsAndPrefixHitsChangeNoBit) {
  const auto asked = join({kHead, kA, kQuestion});
  auto engine = engine_with(type.name, backend);
  const Outcome whole = ask_with(*engine, asked, "full");
  for (const int chunk : {1, 30}) {
    auto other = engine_with(type.name, backend, chunk, chunk == 1 ? 1 : 3);
    expect_equal(ask_with(*other, asked, "full"), whole);
  }
  warm(*engine, join({kHead, kA, kB}));
  const Outcome hit = ask_with(*engine, asked, "prefix");
  EXPECT_EQ(hit.usage().prefix, static_cast<int>(kHead.size() + kA.size()));
  expect_equal(hit, whole);
  auto changed = asked;
  changed[3] ^= 1;
  EXPECT_NE(ask_with(*engine, changed, "full").completion.logits.first, whole.completion.logits.first) << "power";
}

TEST_P(KvTypes, BatchedEqualsAlone) {
  auto engine = engine_with(type.name, backend, 40);
  warm(*engine, join({kHead, kA, kB}));
  std::vector<Request> requests;
  for (const char* policy : {"full", "naive", "sparsex"}) {
    requests.push_back(unpublished(join({kHead, kB, kA, kQuestion}), policy, {}, 8));
  }
  expect_batched_equals_alone(*engine, requests);
}

TEST_P(KvTypes, PlacementsAndProbes) {
  const auto asked = join({kHead, kB, kA, kQuestion});
  auto zero = engine_with(type.name, backend), copy = engine_with(type.name, backend, 512, 2, "copy");
  for (Engine* engine : {zero.get(), copy.get()}) warm(*engine, join({kHead, kA, kB}));
  const Outcome full = ask_with(*zero, asked, "full");
  const Outcome all = ask_with(*zero, asked, "sparsex", {{"k", "1"}});
  EXPECT_EQ(all.usage().recomputed, static_cast<int>(kA.size() + kB.size()));
  expect_equal(all, full);
  const Outcome placed = ask_with(*zero, asked, "naive"), copied = ask_with(*copy, asked, "naive");
  EXPECT_EQ(placed.usage().reused, static_cast<int>(kA.size() + kB.size()));
  // A copied key is rotated from its stored form and rounded once more.
  EXPECT_LT(max_abs_difference(placed.completion.logits.first, copied.completion.logits.first),
            2e-3 + 1.5 * type.logit_error);
  EXPECT_GT(max_abs_difference(placed.completion.logits.first, full.completion.logits.first), 0.05) << "power";
}

TEST_P(KvTypes, ErrorAgainstFp32) {
  auto exact = engine_with("f32", backend), rounded = engine_with(type.name, backend);
  double most = 0;
  for (uint32_t seed = 10; seed < 12; ++seed) {
    const auto prompt = tokens(250, seed);
    const Outcome a = ask_with(*exact, prompt, "full"), b = ask_with(*rounded, prompt, "full");
    most = std::max(most, max_abs_difference(a.completion.logits.first, b.completion.logits.first));
  }
  EXPECT_LE(most, type.logit_error);
  EXPECT_GE(most, type.logit_error / 20) << "power: the type does something, and the bound is near";
  EXPECT_LT(rounded->info().kv_bytes_per_token, type.name == "f32" ? 1e9 : 0.6 * exact->info().kv_bytes_per_token);
}

std::string type_and_backend(const testing::TestParamInfo<std::tuple<Type, std::string>>& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param);
}
INSTANTIATE_TEST_SUITE_P(All, KvTypes,
                         testing::Combine(testing::ValuesIn(kTypes), testing::Values("reference", "auto", "avx2")),
                         type_and_backend);

}  // namespace
}  // namespace kvilt

// Another maker in each thing that bits of KV depend on, and the same one where nothing differs.
#include "engine/kv_maker.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/dispatch.h"

namespace kvilt {
namespace {

TEST(KvMaker, NamesAllThatBitsDependOn) {
  const auto model = open_model("tests/data/models/probe-1M");
  const auto other_model = open_model("tests/data/models/stories260K/derived-stories260K-F32.gguf");
  ASSERT_TRUE(model.ok() && other_model.ok());
  const Backend& backend = *find_backend("reference").value();
  ThreadPool pool(1);
  const auto options_of = [&](KvType kv, ActivationType activations) {
    EngineOptions asked;
    asked.kv_type = kv;
    asked.activations = activations;
    asked.kv_bytes = int64_t{64} << 20;
    return resolve(asked, (*model)->config, backend).value();
  };
  const HashSecret secret = HashSecret::fixed(1);
  const ResolvedOptions plain = options_of(KvType::kF32, ActivationType::kF32);
  const Digest one = kv_maker(secret, **model, plain, backend, pool);
  EXPECT_EQ(kv_maker(secret, **model, plain, backend, pool), one);
  EXPECT_EQ(kv_maker(secret, **model, plain, backend, pool, kVersion), one);

  std::set<Digest> all{one};
  const auto expect_another = [&](const Digest& maker, const char* what) {
    EXPECT_TRUE(all.insert(maker).second) << what;
  };
  expect_another(kv_maker(secret, **model, plain, backend, pool, "0.0.9"), "another version of Kvilt");
  expect_another(kv_maker(secret, **model, plain, backend, pool, ""), "none");
  expect_another(kv_maker(HashSecret::fixed(2), **model, plain, backend, pool), "another secret");
  expect_another(kv_maker(secret, **other_model, plain, backend, pool), "another model");
  expect_another(kv_maker(secret, **model, options_of(KvType::kInt8, ActivationType::kF32), backend, pool), "KV type");
  expect_another(kv_maker(secret, **model, options_of(KvType::kF32, ActivationType::kBF16), backend, pool),
                 "activations");
  for (const std::string_view name : backend_names()) {
    const Backend& other = *find_backend(name).value();
    if (other.bits() == backend.bits()) continue;
    EXPECT_NE(kv_maker(secret, **model, plain, other, pool), one) << name << ": other kernels";
  }
}

}  // namespace
}  // namespace kvilt

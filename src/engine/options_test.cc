#include "engine/options.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/dispatch.h"

namespace kvilt {
namespace {

// Every word names its value, and the value its word; a wrong word's error lists them all.
template <class T>
void expect_words(Result<T> (*parse)(std::string_view), std::string_view (*name)(T), std::vector<std::string> words) {
  std::vector<T> seen;
  for (const std::string& word : words) {
    const auto value = parse(word);
    ASSERT_TRUE(value.ok()) << value.error().message;
    EXPECT_EQ(name(*value), word);
    for (const T other : seen) EXPECT_NE(*value, other) << word;
    seen.push_back(*value);
  }
  for (const char* wrong : {"", "nonsense", "AUTO", "f32 "}) {
    const auto refused = parse(wrong);
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
    EXPECT_NE(refused.error().message.find("'" + std::string(wrong) + "'"), std::string::npos);
    for (const std::string& word : words) EXPECT_NE(refused.error().message.find(word), std::string::npos) << word;
  }
}

TEST(Options, WordsAreReadAndGivenBack) {
  expect_words(parse_kv_type, kv_type_name, {"auto", "f32", "f16", "bf16", "int8"});
  expect_words(parse_activations, activations_name, {"auto", "bf16", "f32"});
  expect_words(parse_placement, placement_name, {"zero-copy", "copy"});
  expect_words(parse_reuse_from, reuse_from_name, {"auto", "first", "last", "seasoned"});
  expect_words(parse_discover, discover_name, {"equal", "near"});
  expect_words(parse_trust, trust_name, {"any", "clean"});
  expect_words(parse_quality, quality_name, {"auto", "draft", "balanced", "exact"});
}

TEST(Options, AWrongWordIsToldInWords) {
  EXPECT_EQ(parse_kv_type("q4").error().message, "kv_type is 'q4', not auto, f32, f16, bf16 or int8");
  EXPECT_EQ(parse_reuse_from("nowhere").error().message, "reuse_from is 'nowhere', not auto, first, last or seasoned");
}

ModelConfig config_of(int context) {
  ModelConfig config;
  config.E = 64, config.context = context;
  return config;
}

TEST(Options, EveryAutoIsDecided) {
  const Backend& backend = **find_backend("reference");
  const ResolvedOptions out = *resolve({.model = "m"}, config_of(2048), backend);
  EXPECT_EQ(out.model, "m");
  EXPECT_EQ(out.backend, "reference");
  EXPECT_GE(out.threads, 1);
  EXPECT_GT(out.kv_bytes, 0);
  EXPECT_LE(out.kv_bytes, int64_t{4} << 30);
  EXPECT_EQ(out.context, 2048);
  EXPECT_NE(out.seed, 0u);
  EXPECT_EQ(out.kv_type, KvType::kF32);  // the reference has no faster bf16
  EXPECT_EQ(out.kv_dtype, DType::kF32);
}

TEST(Options, WhatIsAskedForStays) {
  const Backend& backend = **find_backend("reference");
  EngineOptions asked;
  asked.threads = 3, asked.kv_bytes = 1 << 20, asked.context = 100, asked.seed = 7, asked.chunk_tokens = 9;
  for (const auto& [type, dtype] : {std::pair(KvType::kF32, DType::kF32), std::pair(KvType::kF16, DType::kF16),
                                    std::pair(KvType::kBF16, DType::kBF16), std::pair(KvType::kInt8, DType::kI8)}) {
    asked.kv_type = type;
    const ResolvedOptions out = *resolve(asked, config_of(2048), backend);
    EXPECT_EQ(out.kv_type, type);
    EXPECT_EQ(out.kv_dtype, dtype);
    EXPECT_EQ(out.threads, 3);
    EXPECT_EQ(out.kv_bytes, 1 << 20);
    EXPECT_EQ(out.context, 100);
    EXPECT_EQ(out.seed, 7u);
    EXPECT_EQ(out.chunk_tokens, 9);
  }
  asked.context = 4096;  // the model's is the most
  EXPECT_EQ(resolve(asked, config_of(2048), backend)->context, 2048);
}

TEST(Options, KeysAreKeptAsThisMachineAttendsFastest) {
  for (const std::string_view name : backend_names()) {
    const Backend& backend = **find_backend(name);
    const bool pays = backend.bf16_attention_pays(64);
    EXPECT_EQ(resolve({}, config_of(64), backend)->kv_type, pays ? KvType::kBF16 : KvType::kF32) << name;
  }
}

TEST(Options, WrongNumbersAreRefused) {
  EXPECT_TRUE(check_options({}).ok());
  const auto refused = [](auto change) {
    EngineOptions options;
    change(options);
    const Status status = check_options(options);
    return !status.ok() && status.error().code == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](EngineOptions& o) { o.threads = -1; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.threads = 1025; }));
  EXPECT_FALSE(refused([](EngineOptions& o) { o.threads = 1024; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.context = -1; }));
  EXPECT_FALSE(refused([](EngineOptions& o) { o.context = 0; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.kv_bytes = -1; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.min_segment = 0; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.max_sequences = 0; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.page_slots = 0; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.chunk_tokens = 0; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.season = 17; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.season = -1; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.season_share = 0; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.season_share = 1.01; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.pool_shares = {{"a", 0}}; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.pool_shares = {{"a", std::numeric_limits<double>::quiet_NaN()}}; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.pool_shares = {{"a", .6}, {"b", .5}}; }));
  EXPECT_FALSE(refused([](EngineOptions& o) { o.pool_shares = {{"a", .6}, {"b", .4}}; })) << "power";
  EXPECT_TRUE(refused([](EngineOptions& o) { o.disk_shares = {{"a", 1.5}}; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.disk_shares = {{"a", .6}, {"b", .5}}; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.disk_shares = {{"", .5}}; }));
  EXPECT_FALSE(refused([](EngineOptions& o) { o.disk_shares = {{"a", .6}, {"b", .4}}; })) << "power";
  EXPECT_TRUE(refused([](EngineOptions& o) { o.season_share = std::numeric_limits<double>::quiet_NaN(); }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.audit = 1.5; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.audit_limit = -1; }));
  EXPECT_FALSE(refused([](EngineOptions&) {}));
}

TEST(Options, AnErrorNamesTheFlagAndItsRange) {
  EngineOptions options;
  options.threads = 5000;
  EXPECT_EQ(check_options(options).error().message, "threads (--threads) is 5000, not from 0 to 1024");
  options = {};
  options.context = -1;
  EXPECT_EQ(check_options(options).error().message, "context (--context) is -1, not 0 or more");
}

}  // namespace
}  // namespace kvilt

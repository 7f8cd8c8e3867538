// The cache on disk: what was evicted, or was there before a restart, is found again and equal to the bit; what it must
// not serve it does not serve; whatever happens to the folder, answers stay right.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "probe_prompts.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

// A token of the probe model takes 3 KiB of fp32 KV.
constexpr int64_t kPoolOf2000 = int64_t{2000} * 3072;

class DiskCacheTest : public StoredPrompts {
 protected:
  DiskCacheTest() {
    std::string name = testing::TempDir() + "kvilt_disk_XXXXXX";
    folder = ::mkdtemp(name.data());
  }
  ~DiskCacheTest() override { fs::remove_all(folder); }

  EngineOptions options(int64_t kv_bytes = int64_t{64} << 20) const {
    EngineOptions out{.model = kModel, .threads = 2, .kv_type = KvType::kF32};
    out.kv_bytes = kv_bytes;
    out.cache_dir = folder;
    out.cache_key_text = key;
    return out;
  }
  std::unique_ptr<Engine> open(int64_t kv_bytes = int64_t{64} << 20) const { return open_for_test(options(kv_bytes)); }
  // Of the prompts' tokens, other prompts' push everything out of a small pool.
  // Each twice: what was used once leaves before what was used again (kv/eviction_order.h).
  static void fill(Engine& engine, int prompts = 8) {
    for (int i = 0; i < prompts; ++i) {
      for (int use = 0; use < 2; ++use) warm(engine, tokens(700, 900 + i));
    }
  }
  std::vector<fs::path> value_files() const {
    std::vector<fs::path> out;
    for (const auto& item : fs::recursive_directory_iterator(folder)) {
      if (item.is_regular_file() && item.path().parent_path().filename() != "kvilt-cache") out.push_back(item.path());
    }
    return out;
  }

  std::string folder, key;
};

TEST_F(DiskCacheTest, APrefixOutlivesTheProcess) {
  const Outcome dense = ask_with(*alone(), asked, "full");
  int prefix = 0;
  {
    const auto engine = open();
    warm(*engine, known);
    const Outcome before = ask_prefix(*engine, asked);
    prefix = before.completion.usage.prefix;
    EXPECT_EQ(before.completion.usage.disk, 0);
    expect_equal(before, dense);
  }
  const auto engine = open();
  EXPECT_EQ(engine->stats().cached_tokens, 0);
  EXPECT_TRUE(eventually([&] { return engine->stats().disk.tokens >= static_cast<int64_t>(known.size()); }));
  const Outcome after = ask_prefix(*engine, asked);
  EXPECT_EQ(prefix, static_cast<int>(known.size()));
  EXPECT_EQ(after.completion.usage.prefix, prefix);
  EXPECT_EQ(after.completion.usage.disk, prefix);
  expect_equal(after, dense);
  const Outcome again = ask_prefix(*engine, asked);
  EXPECT_EQ(again.completion.usage.prefix, prefix);
  EXPECT_EQ(again.completion.usage.disk, 0) << "in memory by now";
  EXPECT_EQ(engine->stats().disk.errors, 0u);
}

// Under each namespace what was computed there is stored; what is found in another one is stored once, until something
// continues it.
TEST_F(DiskCacheTest, NamespacesOutliveTheProcess) {
  const Outcome dense = ask_with(*alone(), asked, "full");
  const auto in = [&](Engine& engine, std::vector<std::string> names, const std::vector<int32_t>& prompt) {
    Request request = request_of(prompt, "prefix", 0);
    request.namespaces = std::move(names);
    return ask_ok(engine, request).usage();
  };
  {
    const auto engine = open();
    in(*engine, {"b"}, known);
    EXPECT_EQ(in(*engine, {"a", "b"}, known).prefix, static_cast<int>(known.size()) - 1);
  }
  int64_t stored = 0;
  {
    const auto engine = open();
    EXPECT_TRUE(eventually([&] { return engine->stats().disk.tokens >= static_cast<int64_t>(known.size()); }));
    stored = engine->stats().disk.tokens;
    EXPECT_LE(stored, static_cast<int64_t>(known.size()) + 1) << "one copy, and the last token of the other";
    EXPECT_EQ(in(*engine, {"c"}, asked).disk, 0);
    Request request = of("", "", "a");
    request.namespaces = {"a", "b"};
    request.sampling.max_tokens = 6;
    const Outcome after = ask_ok(*engine, request);
    EXPECT_EQ(after.usage().disk, static_cast<int>(known.size()));
    expect_equal(after, dense);
    in(*engine, {"a", "b"}, asked);
  }
  const auto engine = open();
  EXPECT_TRUE(eventually([&] { return engine->stats().disk.tokens > stored + static_cast<int64_t>(known.size()); }))
      << "its beginning is needed now";
  EXPECT_EQ(in(*engine, {"a"}, asked).disk, static_cast<int>(asked.size()) - 1);
}

// What is rounded is stored as it was rounded: equal to the bit to memory's and to a full pass in the same type.
TEST_F(DiskCacheTest, EveryKvTypeOutlivesTheProcess) {
  const Outcome exact = ask_with(*alone(), asked, "full");
  for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kInt8}) {
    SCOPED_TRACE(kv_type_name(type));
    EngineOptions typed = options();
    typed.kv_type = type;
    Outcome before;
    {
      const auto engine = open_for_test(typed);
      warm(*engine, known);
      before = ask_prefix(*engine, asked);
    }
    const auto engine = open_for_test(typed);
    const Outcome after = ask_prefix(*engine, asked);
    EXPECT_EQ(after.completion.usage.disk, static_cast<int>(known.size()));
    expect_equal(after, before);
    typed.cache_dir = "";
    expect_equal(after, ask_with(*open_for_test(typed), asked, "full"));
    expect_differ(after, exact);
  }
}

TEST_F(DiskCacheTest, WithAKeyItIsTheSame) {
  const Outcome dense = ask_with(*alone(), asked, "full");
  key = std::string(64, '7');
  {
    const auto engine = open();
    warm(*engine, known);
  }
  {
    const auto engine = open();
    const Outcome after = ask_prefix(*engine, asked);
    EXPECT_EQ(after.completion.usage.disk, static_cast<int>(known.size()));
    expect_equal(after, dense);
    EXPECT_EQ(engine->stats().disk.errors, 0u);
  }
  for (const char* other : {"", "8"}) {
    EngineOptions wrong = options();
    wrong.cache_key_text = *other ? std::string(64, *other) : "";
    const auto refused = open_engine(wrong);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  }
  EXPECT_GT(ask_prefix(*open(), asked).completion.usage.disk, 0) << "nothing was lost";
}

TEST_F(DiskCacheTest, AKeyWithoutACacheOrNoKeyAtAllIsAnError) {
  const auto why = [](const EngineOptions& options) {
    const auto opened = open_engine(options);
    return opened.ok() ? std::string() : opened.error().message;
  };
  EngineOptions wrong = options();
  wrong.cache_key_text = "7";
  EXPECT_NE(why(wrong).find("64 hexadecimal digits"), std::string::npos);
  wrong.cache_key_text = "";
  wrong.cache_key = folder + "/key";
  EXPECT_NE(why(wrong).find(wrong.cache_key), std::string::npos);
  write_key(wrong.cache_key, '7');
  fs::permissions(wrong.cache_key, fs::perms(0644));
  EXPECT_NE(why(wrong).find("chmod 600"), std::string::npos);
  fs::permissions(wrong.cache_key, fs::perms(0600));
  EXPECT_EQ(why(wrong), "") << "power";
  wrong.cache_key_text = std::string(64, '7');
  EXPECT_NE(why(wrong).find("one of them"), std::string::npos);
  wrong.cache_key_text = "";
  wrong.cache_dir = "";
  EXPECT_NE(why(wrong).find("--cache-dir"), std::string::npos);
}

TEST_F(DiskCacheTest, PiecesOutliveTheProcess) {
  const auto ask_moved = [&](Engine& engine, const char* policy) { return ask_with(engine, moved, policy); };
  std::map<std::string, Outcome> before;
  {
    const auto engine = open();
    warm(*engine, known);
    for (const char* policy : {"naive", "mend", "sparsex"}) before[policy] = ask_moved(*engine, policy);
  }
  for (const auto& [policy, was] : before) {
    const auto engine = open();
    const Outcome is = ask_moved(*engine, policy.c_str());
    EXPECT_GE(was.completion.usage.reused, 700) << policy;
    EXPECT_EQ(is.completion.usage.reused, was.completion.usage.reused) << policy;
    EXPECT_GE(is.completion.usage.disk, 700) << policy;
    expect_equal(is, was);
  }
  expect_differ(before["naive"], ask_with(*alone(), moved, "full"));
}

TEST_F(DiskCacheTest, MarkedPartsAndCleanCopiesOutliveTheProcess) {
  const int32_t begin = 40, middle = 340, end = 740;
  Request first = request_of(known, "full", 0);
  first.prompt.marks = {{begin, middle}, {middle, end}};
  Request second = unpublished(join({head, b, a, question}), "naive", {{"trust", "clean"}});
  second.prompt.marks = {{begin, begin + 400}, {begin + 400, end}};
  Outcome was;
  {
    const auto engine = open();
    ask_ok(*engine, first);
    was = ask_ok(*engine, second);
  }
  const auto engine = open();
  const Outcome is = ask_ok(*engine, second);
  EXPECT_EQ(was.completion.usage.reused, 300) << "the first part alone is a clean copy";
  EXPECT_EQ(is.completion.usage.reused, was.completion.usage.reused);
  expect_equal(is, was);
}

TEST_F(DiskCacheTest, OtherKvIsNeverTakenForIt) {
  {
    const auto engine = open();
    warm(*engine, known);
  }
  const auto found = [&](EngineOptions other) {
    const auto engine = open_for_test(std::move(other));
    const Outcome out = ask_prefix(*engine, asked);
    EXPECT_EQ(out.completion.usage.disk, out.completion.usage.prefix);
    return out.completion.usage.disk;
  };
  EngineOptions type = options(), activations = options(), backend = options();
  type.kv_type = KvType::kF16;
  activations.activations = ActivationType::kBF16;
  backend.backend = "reference";
  EXPECT_EQ(found(type), 0);
  EXPECT_EQ(found(activations), 0);
  EXPECT_EQ(found(backend), 0);
  EXPECT_GT(found(options()), 0) << "power: those of others left it where it was";
}

TEST_F(DiskCacheTest, AnotherModelNeverReadsIt) {
  const std::string copy = folder + "-model";
  fs::copy(kModel, copy, fs::copy_options::recursive);
  {
    const auto engine = open();
    warm(*engine, known);
  }
  std::string fingerprint;
  const auto found = [&] {
    EngineOptions other = options();
    other.model = copy;
    const auto engine = open_for_test(other);
    fingerprint = engine->info().fingerprint;
    return ask_prefix(*engine, asked).completion.usage.disk;
  };
  EXPECT_GT(found(), 0) << "power: the same bytes elsewhere are the same model";
  for (const auto& item : fs::directory_iterator(copy)) {
    if (item.path().extension() != ".safetensors") continue;
    std::fstream file(item.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(fs::file_size(item.path()) / 2);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(byte);
  }
  const std::string before = fingerprint;
  EXPECT_EQ(found(), 0);
  EXPECT_EQ(fingerprint, before) << "power: samples do not see it";
  fs::remove_all(copy);
}

TEST_F(DiskCacheTest, TenantsAndSaltsStayApart) {
  {
    const auto engine = open();
    Request mine = of("one", "s", "n");
    mine.publish = true;
    ask_ok(*engine, mine);
  }
  const auto engine = open();
  EXPECT_EQ(ask_ok(*engine, of("two", "s", "n")).completion.usage.prefix, 0);
  EXPECT_EQ(ask_ok(*engine, of("one", "t", "n")).completion.usage.prefix, 0);
  EXPECT_EQ(ask_ok(*engine, of("one", "s", "m")).completion.usage.prefix, 0);
  EXPECT_EQ(ask_ok(*engine, of("", "", "")).completion.usage.prefix, 0);
  EXPECT_GT(ask_ok(*engine, of("one", "s", "n")).completion.usage.prefix, 0) << "power";
}

TEST_F(DiskCacheTest, ApproximateKvStaysWithItsPolicy) {
  const std::vector<int32_t> behind = tokens(200, 8), prompt = join({question, b, behind}),
                             next = join({tokens(11, 9), behind, tokens(12, 10)});
  const auto ask_next = [&](Engine& engine, const char* policy) {
    return ask_with(engine, next, policy).completion.usage.reused;
  };
  {
    const auto engine = open();
    warm(*engine, known);
    ask_ok(*engine, request_of(prompt, "mend", 0));  // `behind` is computed after a piece: approximate
    EXPECT_EQ(ask_next(*engine, "mend"), 200);
    EXPECT_EQ(ask_next(*engine, "naive"), 0);
  }
  const auto engine = open();
  EXPECT_EQ(ask_next(*engine, "naive"), 0);
  EXPECT_EQ(ask_prefix(*engine, join({prompt, question})).completion.usage.prefix, 0);
  EXPECT_EQ(ask_next(*engine, "mend"), 200);
}

TEST_F(DiskCacheTest, WhatWasEvictedComesBack) {
  const Outcome dense = ask_with(*alone(), asked, "full");
  const auto engine = open(kPoolOf2000);
  warm(*engine, known);
  const Outcome never_left = ask_prefix(*engine, asked);
  fill(*engine);
  EXPECT_TRUE(eventually([&] { return engine->stats().disk.queued_bytes == 0; }));
  const Outcome back = ask_prefix(*engine, asked);
  EXPECT_EQ(back.completion.usage.prefix, never_left.completion.usage.prefix);
  EXPECT_GE(back.completion.usage.disk, 256) << "it had to be read";
  expect_equal(back, never_left);
  expect_equal(back, dense);
}

// A short answer stays in memory when its prompt has left; it is stored behind that, and not once more when it leaves.
TEST_F(DiskCacheTest, NothingIsStoredTwice) {
  const auto engine = open(kPoolOf2000);
  constexpr int kPrompts = 6;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kPrompts; ++i) ask_ok(*engine, request_of(tokens(700, 900 + i), "prefix", 6));
  }
  EXPECT_TRUE(eventually([&] { return engine->stats().disk.queued_bytes == 0; }));
  EXPECT_GT(engine->stats().disk.loads, 0u);
  EXPECT_EQ(engine->stats().disk.tokens, kPrompts * (700 + 5));
}

// A prefill that waits for its client has most of the pool: who asks gets what is stored nevertheless.
TEST_F(DiskCacheTest, WhatLingersGivesWayToWhatIsRead) {
  warm(*open(), known);
  EngineOptions small = options(kPoolOf2000);
  small.linger_s = 600;
  small.chunk_tokens = 32;
  const auto engine = open_for_test(small);
  auto sink = std::make_shared<CollectingSink>();
  const auto id = engine->submit(request_of(tokens(1900, 77), "prefix", 4), sink);
  ASSERT_TRUE(id.ok());
  const int64_t most = engine->stats().kv_pages;
  EXPECT_TRUE(eventually([&] { return engine->stats().kv_pages_used > most * 3 / 4; }));
  engine->cancel(*id);
  ASSERT_EQ(sink->wait().finish, Finish::kCancelled);
  const Outcome after = ask_prefix(*engine, asked);
  EXPECT_EQ(after.completion.usage.disk, static_cast<int>(known.size()));
  EXPECT_EQ(engine->stats().lingering, 0);
  expect_equal(after, ask_with(*alone(), asked, "full"));
}

TEST_F(DiskCacheTest, ABurstReadsOnce) {
  {
    const auto engine = open();
    warm(*engine, known);
  }
  const auto engine = open();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint32_t i = 0; i < 12; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    Request request = request_of(join({known, tokens(20, 50 + i)}), "prefix", 2);
    ASSERT_TRUE(engine->submit(std::move(request), sinks.back()).ok());
  }
  for (const auto& sink : sinks) {
    const Completion done = sink->wait();
    EXPECT_EQ(done.finish, Finish::kLength);
    EXPECT_EQ(done.usage.prefix, static_cast<int>(known.size()));
  }
  EXPECT_LE(engine->stats().disk.loaded_tokens, known.size());
}

TEST_F(DiskCacheTest, CancelledWhileItWaits) {
  {
    const auto engine = open();
    warm(*engine, known);
  }
  for (int i = 0; i < 10; ++i) {
    const auto engine = open();
    const auto sink = std::make_shared<CollectingSink>();
    Request request = request_of(asked, "prefix", 2);
    request.publish = false;  // it may have ended before it is cancelled
    const auto id = engine->submit(request, sink);
    ASSERT_TRUE(id.ok());
    engine->cancel(*id);
    sink->wait();
    EXPECT_EQ(ask_prefix(*engine, asked).completion.usage.prefix, static_cast<int>(known.size()));
  }
}

TEST_F(DiskCacheTest, ClearingLeavesNothing) {
  {
    const auto engine = open();
    warm(*engine, known);
  }
  {
    const auto engine = open();
    engine->clear_cache();
    EXPECT_EQ(ask_prefix(*engine, asked).completion.usage.prefix, 0);
    EXPECT_TRUE(eventually([&] { return engine->stats().disk.bytes == 0; }));
  }
  EXPECT_TRUE(value_files().empty());
  EXPECT_EQ(ask_prefix(*open(), asked).completion.usage.prefix, 0);
}

// With a key, and without: the parameter.
class DamagedDiskCacheTest : public DiskCacheTest, public testing::WithParamInterface<const char*> {
 protected:
  DamagedDiskCacheTest() { key = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Keys, DamagedDiskCacheTest,
                         testing::Values("", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"),
                         [](const auto& info) { return *info.param ? "Sealed" : "Plain"; });

TEST_P(DamagedDiskCacheTest, DamageMeansComputing) {
  const Outcome dense = ask_with(*alone(), asked, "full");
  {
    const auto engine = open();
    warm(*engine, known);
  }
  ASSERT_FALSE(value_files().empty());
  {
    const auto engine = open();
    for (const fs::path& file : value_files()) {
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekp(static_cast<std::streamoff>(fs::file_size(file) / 2));
      bytes.put('\x55').put('\x2a');
    }
    const Outcome out = ask_prefix(*engine, asked);
    expect_equal(out, dense);
    EXPECT_LT(out.completion.usage.prefix, static_cast<int>(known.size()));
    EXPECT_GT(engine->stats().disk.errors, 0u);
    warm(*engine, known);
  }
  const auto engine = open();
  for (const fs::path& file : value_files()) fs::resize_file(file, fs::file_size(file) / 3);
  expect_equal(ask_prefix(*engine, asked), dense);
  EXPECT_GT(engine->stats().disk.errors, 0u);
}

// Chunks are copied into pages as they come. Where a later one is damaged, or memory has no room, these are given back.
TEST_P(DamagedDiskCacheTest, ALateDamageGivesThePagesBack) {
  const std::vector<int32_t> piece = tokens(900, 77), longer = join({piece, tokens(40, 78)});
  const Outcome dense = ask_with(*alone(), longer, "full");
  {
    const auto engine = open();
    warm(*engine, piece);
  }
  const auto ask_again = [&](Engine& engine) {
    Request request = request_of(longer, "prefix", 1);
    request.publish = false;
    const auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(engine.submit(std::move(request), sink).ok());
    return sink->wait();
  };
  {
    const auto engine = open();
    EXPECT_EQ(ask_again(*engine).usage.disk, 900) << "power: whole, it is read";
    EXPECT_GT(engine->stats().kv_pages_used, 0);
  }
  for (const fs::path& file : value_files()) {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(fs::file_size(file)) - 100);
    bytes.put('\x55').put('\x2a');
  }
  const auto engine = open();
  EXPECT_EQ(ask_again(*engine).usage.prefix, 0);
  EXPECT_EQ(engine->stats().disk.errors, 1u);
  EXPECT_TRUE(eventually([&] { return engine->stats().kv_pages_used == 0; })) << engine->stats().kv_pages_used;
  expect_equal(ask_prefix(*engine, longer), dense);
}

TEST_F(DiskCacheTest, AFolderThatIsGoneMeansComputing) {
  const Outcome dense = ask_with(*alone(), asked, "full");
  const auto engine = open(kPoolOf2000);
  warm(*engine, known);
  fs::remove_all(folder + "/kvilt-cache");
  fill(*engine);
  expect_equal(ask_prefix(*engine, asked), dense);
  EXPECT_TRUE(eventually([&] { return engine->stats().disk.errors > 0; }));
}

TEST_F(DiskCacheTest, ASmallLimitIsKept) {
  EngineOptions small = options(kPoolOf2000);
  small.cache_disk = int64_t{1500} * 3072;
  const auto engine = open_for_test(small);
  for (int i = 0; i < 12; ++i) warm(*engine, tokens(700, 200 + i));
  EXPECT_TRUE(eventually([&] { return engine->stats().disk.queued_bytes == 0; }));
  EXPECT_LE(engine->stats().disk.bytes, small.cache_disk);
  EXPECT_GT(engine->stats().disk.pieces, 0);
}

// A tenant that writes more than the folder holds costs another one that has a share nothing, and that one's name is in
// no file.
TEST_F(DiskCacheTest, ATenantWithAShareIsNotPushedOutOfTheFolder) {
  for (const bool shared : {true, false}) {
    fs::remove_all(folder);
    EngineOptions limited = options();
    limited.cache_disk = int64_t{2500} * 3072;
    if (shared) limited.disk_shares = {{"the-small-tenant", .4}};
    Request first = of("the-small-tenant", "", "");
    first.prompt.ids = known;
    first.publish = true;
    ask_ok(*open_for_test(limited), first);
    {
      const auto engine = open_for_test(limited);
      for (int i = 0; i < 6; ++i) {
        Request request = request_of(tokens(700, 300 + i), "prefix", 0);
        request.tenant = "the-large-tenant";
        ask_ok(*engine, request);
      }
    }
    const auto engine = open_for_test(limited);
    const auto again = ask_ok(*engine, of("the-small-tenant", "", "")).usage();
    EXPECT_EQ(again.disk, shared ? static_cast<int>(known.size()) : 0) << "power: without a share age decides";
    ASSERT_TRUE(eventually([&] { return engine->stats().tenant_pools.size() == 1; })) << "who has a share, or asked";
    const auto pools = engine->stats().tenant_pools;
    EXPECT_EQ(pools[0].tenant, "the-small-tenant");
    EXPECT_EQ(pools[0].disk_share_bytes, shared ? limited.cache_disk * 2 / 5 : 0);
    EXPECT_EQ(pools[0].disk_bytes > static_cast<int64_t>(known.size()) * 3072, shared);
    std::string all;
    for (const auto& item : fs::recursive_directory_iterator(folder)) {
      if (!item.is_regular_file()) continue;
      std::ifstream file(item.path(), std::ios::binary);
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    EXPECT_EQ(all.find("-tenant"), std::string::npos);
    EXPECT_GT(all.size(), 1u << 20) << "power";
  }
}

TEST_F(DiskCacheTest, TwoEnginesInOneFolderAreAnError) {
  const auto engine = open();
  const auto second = open_engine(options());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  EngineOptions none = options();
  none.cache = false;
  EXPECT_EQ(open_engine(none).error().code, Code::kInvalidArgument);
  none = options();
  none.cache_disk = 0;
  EXPECT_EQ(open_engine(none).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvilt

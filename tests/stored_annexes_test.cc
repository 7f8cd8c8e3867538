// What SamKV and InfLLM found out about documents outlives memory and the process with the documents' KV: who reads them
// from disk does not look again, and chooses the same. What is damaged, or nobody here knows, is found out anew.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <charconv>
#include <filesystem>
#include <fstream>

#include "base/mapped_file.h"
#include "probe_prompts.h"
#include "tier/cache_export.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSmallPool = int64_t{2000} * 3072;  // a token of the probe model takes 3 KiB of fp32 KV

class StoredAnnexes : public StoredPrompts {
 protected:
  StoredAnnexes() {
    std::string name = testing::TempDir() + "kvilt_annexes_XXXXXX";
    folder = ::mkdtemp(name.data());
  }
  ~StoredAnnexes() override { fs::remove_all(folder); }

  EngineOptions options() const {
    EngineOptions out{.model = kModel, .threads = 2, .kv_type = KvType::kF32};
    out.kv_bytes = int64_t{64} << 20;
    out.cache_dir = folder;
    out.cache_key_text = key;
    return out;
  }
  std::unique_ptr<Engine> open() const { return open_for_test(options()); }
  // B and A are documents of many blocks.
  Outcome ask(Engine& engine, const std::string& policy = "samkv") const {
    const Params samkv = {{"block", "32"}, {"stable_begin", "0"}};
    const Params infllm = {{"block", "32"}, {"init", "32"}, {"local", "64"}, {"topk", "4"}};
    return ask_with(engine, moved, policy, policy == "samkv" ? samkv : infllm);
  }
  // Who had to look at the documents ran their rows once more.
  void expect_looked(const Outcome& out) const { EXPECT_GT(out.usage().flops, 1.5 * seen.usage().flops); }
  void expect_seen(const Outcome& out) const {
    EXPECT_LT(out.usage().flops, 1.01 * seen.usage().flops);
    expect_equal(out, seen);
  }
  // In a folder that has the documents with what is known of them.
  void fill() {
    const auto engine = open();
    warm(*engine, known);
    first = ask(*engine);
    seen = ask(*engine);
    expect_equal(first, seen);
    expect_looked(first);
    EXPECT_GT(seen.usage().kept, 0.1);
    EXPECT_LT(seen.usage().kept, 0.9) << "power: there was a choice";
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> out;
    for (const auto& item : fs::recursive_directory_iterator(folder)) {
      if (item.path().extension() == ".annexes") out.push_back(item.path());
    }
    return out;
  }
  static uint64_t piece_of(const fs::path& file) {
    const std::string name = file.stem().string();
    uint64_t id = 0;
    std::from_chars(name.data(), name.data() + name.size(), id, 16);
    return id;
  }
  // Without a key.
  void change_all(const std::function<void(StoredAnnex&)>& change) const {
    for (const fs::path& file : files()) {
      std::vector<std::byte> bytes(fs::file_size(file));
      std::ifstream(file, std::ios::binary).read(reinterpret_cast<char*>(bytes.data()), std::ssize(bytes));
      const auto plain = annexes_of(piece_of(file), bytes, nullptr);
      ASSERT_TRUE(plain);
      auto annexes = decode_annexes(*plain);
      ASSERT_TRUE(annexes && !annexes->empty());
      for (StoredAnnex& annex : *annexes) change(annex);
      bytes = bound_annexes(piece_of(file), encode_annexes(*annexes), nullptr);
      std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    }
  }

  std::string folder, key;
  Outcome first, seen;
};

TEST_F(StoredAnnexes, OutliveTheProcess) {
  for (const char* text : {"", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}) {
    key = text;
    fs::remove_all(folder + "/kvilt-cache");
    fill();
    ASSERT_FALSE(files().empty());
    {
      const auto engine = open();
      const Outcome back = ask(*engine);
      EXPECT_GE(back.usage().disk, 700);
      expect_seen(back);
      expect_seen(ask(*engine));
      EXPECT_EQ(engine->stats().disk.errors, 0u);
    }
    for (const fs::path& file : files()) fs::remove(file);
    const auto engine = open();
    const Outcome without = ask(*engine);
    EXPECT_GE(without.usage().disk, 700);
    expect_equal(without, seen);
    expect_looked(without);
    EXPECT_EQ(engine->stats().disk.errors, 0u) << "a piece may have none";
  }
}

// Documents that are stored before anybody looks at them: what is found out follows later.
TEST_F(StoredAnnexes, FollowWhatIsStoredAlready) {
  warm(*open(), known);
  EXPECT_TRUE(files().empty());
  {
    const auto engine = open();
    first = ask(*engine);
    EXPECT_GE(first.usage().disk, 700);
  }
  EXPECT_FALSE(files().empty());
  const auto engine = open();
  const Outcome back = ask(*engine);
  expect_equal(back, first);
  EXPECT_LT(back.usage().flops, 0.67 * first.usage().flops);
}

// Two kinds of one document: the second one does not take the first one's place.
TEST_F(StoredAnnexes, OneMethodsStayBesideAnothers) {
  fill();
  Outcome infllm;
  {
    const auto engine = open();
    infllm = ask(*engine, "multi-infllm");
  }
  const auto engine = open();
  const Outcome again = ask(*engine, "multi-infllm");
  expect_equal(again, infllm);
  EXPECT_LT(again.usage().flops, infllm.usage().flops);
  expect_seen(ask(*engine));
}

TEST_F(StoredAnnexes, ComeBackAfterEviction) {
  fs::remove_all(folder + "/kvilt-cache");
  EngineOptions small = options();
  small.kv_bytes = kSmallPool;
  const auto engine = open_for_test(small);
  warm(*engine, known);
  first = ask(*engine);
  seen = ask(*engine);
  expect_looked(first);
  const auto push_out = [&] {
    for (int i = 0; i < 8; ++i) {
      for (int use = 0; use < 2; ++use) warm(*engine, tokens(700, 900 + i));
    }
    EXPECT_TRUE(eventually([&] { return engine->stats().disk.queued_bytes == 0; }));
  };
  push_out();
  const Outcome back = ask(*engine);
  EXPECT_GE(back.usage().disk, 256) << "it had to be read";
  expect_seen(back);
  push_out();
  for (const fs::path& file : files()) fs::remove(file);
  expect_looked(ask(*engine));
}

TEST_F(StoredAnnexes, DamageMeansLookingAgain) {
  for (const char* text : {"", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}) {
    key = text;
    fs::remove_all(folder + "/kvilt-cache");
    fill();
    for (const bool cut : {false, true}) {
      ASSERT_FALSE(files().empty());
      for (const fs::path& file : files()) {
        if (cut) {
          fs::resize_file(file, fs::file_size(file) / 3);
          continue;
        }
        std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
        bytes.seekp(static_cast<std::streamoff>(fs::file_size(file) / 2));
        bytes.put('\x55').put('\x2a');
      }
      {
        const auto engine = open();
        const Outcome back = ask(*engine);
        EXPECT_GE(back.usage().disk, 700) << "the KV is as good";
        expect_equal(back, seen);
        expect_looked(back);
        EXPECT_GT(engine->stats().disk.errors, 0u);
      }
      const auto engine = open();
      expect_seen(ask(*engine));
      EXPECT_EQ(engine->stats().disk.errors, 0u) << "it was found out anew, and kept";
    }
  }
}

// A later version's kinds, and what a forger writes with a right sum.
TEST_F(StoredAnnexes, WhatNobodyKnowsIsNotRead) {
  fill();
  change_all([](StoredAnnex& annex) { annex.of = 77; });
  {
    const auto engine = open();
    const Outcome back = ask(*engine);
    expect_equal(back, seen);
    expect_looked(back);
    EXPECT_EQ(engine->stats().disk.errors, 0u);
  }
  expect_seen(ask(*open()));
  const auto wrong = [&](const std::function<void(StoredAnnex&)>& change) {
    change_all([&](StoredAnnex& annex) {
      if (annex.of != 77) change(annex);
    });
    const auto engine = open();
    const Outcome back = ask(*engine);
    expect_equal(back, seen);
    expect_looked(back);
    return engine->stats().disk.errors;
  };
  EXPECT_GT(wrong([](StoredAnnex& annex) { annex.bytes.resize(annex.bytes.size() / 2); }), 0u);
  EXPECT_GT(wrong([](StoredAnnex& annex) { std::ranges::fill(annex.bytes, std::byte{0xff}); }), 0u);
  EXPECT_GT(wrong([](StoredAnnex& annex) { annex.layer = 1; }), 0u);
  EXPECT_EQ(wrong([](StoredAnnex& annex) { annex.tokens.end += 100000; }), 0u) << "of other tokens";
  expect_seen(ask(*open()));
}

// Other KV has its own statistics, and does not meet these.
TEST_F(StoredAnnexes, StayWithTheirMaker) {
  fill();
  EngineOptions half = options();
  half.kv_type = KvType::kF16;
  {
    const auto engine = open_for_test(half);
    EXPECT_EQ(ask(*engine).usage().disk, 0);
    warm(*engine, known);
    expect_looked(ask(*engine));
  }
  const auto engine = open_for_test(half);
  const Outcome back = ask(*engine);
  EXPECT_GE(back.usage().disk, 700);
  EXPECT_LT(back.usage().flops, 1.01 * seen.usage().flops);
  EXPECT_EQ(engine->stats().disk.errors, 0u);
}

TEST_F(StoredAnnexes, GoWithAnExport) {
  fill();
  const std::string file = folder + "/export", other = folder + "/other";
  {
    const auto tier = DiskTier::open(folder, INT64_MAX, {});
    ASSERT_TRUE(tier.ok());
    const auto done = export_pieces(**tier, (*tier)->all().value(), {}, true, file);
    ASSERT_TRUE(done.ok());
    EXPECT_GT(done->annexed, 0);
  }
  {
    const auto tier = DiskTier::open(other, INT64_MAX, {});
    ASSERT_TRUE(tier.ok());
    const auto bytes = MappedFile::open(file);
    const auto done = import_pieces(**tier, bytes->bytes(), {});
    ASSERT_TRUE(done.ok());
    EXPECT_GT(done->annexed, 0);
  }
  EngineOptions there = options();
  there.cache_dir = other;
  const Outcome back = ask(*open_for_test(there));
  EXPECT_GE(back.usage().disk, 700);
  expect_seen(back);
}

}  // namespace
}  // namespace kvilt

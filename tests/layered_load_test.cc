// A prefix that comes from disk layer by layer: its request computes the first layers before the last ones are there,
// and whatever becomes of the rest, its answer is that of a full pass to the bit.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "engine/kv_maker.h"
#include "engine/load.h"
#include "probe_prompts.h"
#include "tier/disk_tier.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

// Lets reads of layers through that lie below `layers`; whole chunks count as all layers.
class Gate {
 public:
  void open_to(int layers) {
    const std::lock_guard lock(mutex_);
    layers_ = layers;
    moved_.notify_all();
  }
  void open() { open_to(INT32_MAX); }
  void pass(int layers, bool whole) {
    std::unique_lock lock(mutex_);
    ++(whole ? chunks_ : blocks_);
    moved_.wait(lock, [&] { return layers <= layers_; });
  }
  int chunks() const {
    const std::lock_guard lock(mutex_);
    return chunks_;
  }
  int blocks() const {
    const std::lock_guard lock(mutex_);
    return blocks_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable moved_;
  int layers_ = 0, chunks_ = 0, blocks_ = 0;
};

class GatedTier : public Tier {
 public:
  // blocks: whether it stores any; older versions did not.
  GatedTier(std::unique_ptr<Tier> tier, std::shared_ptr<Gate> gate, bool blocks)
      : tier_(std::move(tier)), gate_(std::move(gate)), blocks_(blocks) {}
  Result<std::vector<StoredPiece>> known(const Digest& maker, uint32_t token_bytes) override {
    return tier_->known(maker, token_bytes);
  }
  uint64_t new_id() override { return tier_->new_id(); }
  Status put(const StoredPiece& piece, std::span<const std::byte> values, std::vector<uint64_t>& removed) override {
    return tier_->put(piece, values, removed);
  }
  Status get(uint64_t id, int32_t chunk, std::vector<std::byte>& out) override {
    gate_->pass(INT32_MAX, true);
    return tier_->get(id, chunk, out);
  }
  bool in_blocks() const override { return blocks_; }
  Status get_blocks(uint64_t id, int32_t chunk, Run blocks, std::vector<std::byte>& out) override {
    gate_->pass(blocks.end, false);
    return tier_->get_blocks(id, chunk, blocks, out);
  }
  void touch(uint64_t id) override { tier_->touch(id); }
  void remove(uint64_t id) override { tier_->remove(id); }
  Status clear() override { return tier_->clear(); }
  Status flush() override { return tier_->flush(); }
  int64_t bytes() const override { return tier_->bytes(); }
  int64_t pieces() const override { return tier_->pieces(); }

 private:
  const std::unique_ptr<Tier> tier_;
  const std::shared_ptr<Gate> gate_;
  const bool blocks_;
};

class LayeredLoad : public testing::Test {
 protected:
  LayeredLoad() {
    std::string name = testing::TempDir() + "kvilt_layers_XXXXXX";
    folder = ::mkdtemp(name.data());
  }
  ~LayeredLoad() override {
    gate->open();
    engine.reset();
    fs::remove_all(folder);
  }

  EngineOptions options(bool stores = true) const {
    EngineOptions out{.model = model, .threads = 2, .kv_type = kv_type};
    out.kv_bytes = kv_bytes;
    if (stores) out.cache_dir = folder;
    if (stores) out.cache_key_text = key;
    return out;
  }
  // The folder has the prompt.
  void store(const std::vector<int32_t>& prompt) const { warm(*open_for_test(options()), prompt); }
  // From now on `engine` reads the folder through the gate, so many layers at once.
  void open_gated(int layers, bool blocks = true) {
    LoadedEngine made = load_engine(options(), {}).value();
    EngineParts& parts = made.parts;
    parts.stores.clear();
    std::optional<HashSecret> secret;
    if (!key.empty()) secret = HashSecret::of(std::string(32, '\x77'));
    auto tier = DiskTier::open(folder, int64_t{1} << 30, secret).value();
    const HashSecret keyed = tier->secret();
    const Digest maker = kv_maker(keyed, *parts.file, parts.options, parts.model->backend(), *parts.pool);
    auto cache = DiskCache::open(std::make_unique<GatedTier>(std::move(tier), gate, blocks), keyed, maker, *parts.cache,
                                 parts.options.min_segment)
                     .value();
    cache->layers_at_once(layers);
    parts.stores.push_back(std::move(cache));
    engine = start_engine(std::move(made)).value();
  }
  Request request(const std::vector<int32_t>& ids) const { return unpublished(ids, "prefix"); }
  std::shared_ptr<CollectingSink> submit(const std::vector<int32_t>& ids) {
    auto sink = std::make_shared<CollectingSink>();
    const auto submitted = engine->submit(request(ids), sink);
    EXPECT_TRUE(submitted.ok());
    if (submitted.ok()) id = *submitted;
    return sink;
  }
  // Some of its layers were computed, and no token is there.
  void expect_runs_ahead(const CollectingSink& sink) {
    EXPECT_TRUE(eventually([&] { return engine->stats().prefill_flops > 0 && engine->stats().running == 1; }));
    EXPECT_TRUE(sink.ids.empty());
    EXPECT_GT(gate->blocks(), 0);
    EXPECT_EQ(gate->chunks(), 0);
  }
  // It asks for more than is stored, and runs on the first layers of that: no others come before the gate opens.
  std::shared_ptr<CollectingSink> submit_ahead(const std::vector<int32_t>& ids, int layers = 2) {
    gate->open_to(layers);
    open_gated(layers);
    const auto sink = submit(ids);
    expect_runs_ahead(*sink);
    return sink;
  }
  Outcome dense_of(const std::vector<int32_t>& ids) const {
    return ask_with(*open_for_test(options(false)), ids, "full");
  }
  void expect_is(CollectingSink& sink, const Outcome& wanted) const {
    const Completion is = sink.wait();
    EXPECT_EQ(is.finish, Finish::kLength);
    EXPECT_EQ(is.logits.first, wanted.completion.logits.first);
    EXPECT_EQ(sink.ids, wanted.ids);
  }
  // Nothing runs: all pages that are in use are the cache's.
  void expect_no_page_is_lost() {
    EXPECT_TRUE(eventually([&] {
      const auto now = engine->stats();
      return now.running == 0 && now.kv_pages_used == now.kv_pages_idle;
    }));
  }
  fs::path value_file() const {
    for (const auto& item : fs::recursive_directory_iterator(folder)) {
      if (item.is_regular_file() && item.path().parent_path().filename() != "kvilt-cache") return item.path();
    }
    return {};
  }

  std::string model = kModel, folder, key;
  KvType kv_type = KvType::kF32;
  int64_t kv_bytes = int64_t{64} << 20;
  const std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  std::unique_ptr<Engine> engine;
  RequestId id = 0;
  const std::vector<int32_t> known = tokens(740, 2), asked = join({known, tokens(30, 4)}), other = tokens(50, 9);
};

TEST_F(LayeredLoad, ComputesItsFirstLayersBeforeTheLastOnesCome) {
  const Outcome dense = dense_of(asked);
  store(known);
  const auto sink = submit_ahead(asked);
  const Outcome beside = ask_ok(*engine, request(other));  // and others run meanwhile
  EXPECT_EQ(beside.ids.size(), 6u);
  EXPECT_EQ(engine->stats().running, 1);
  EXPECT_EQ(engine->stats().cached_tokens, 0) << "nobody else sees what did not come yet";
  gate->open();
  expect_is(*sink, dense);
  EXPECT_EQ(sink->wait().usage.disk, static_cast<int>(known.size()));
  EXPECT_EQ(sink->wait().usage.prefix, static_cast<int>(known.size()));
  EXPECT_EQ(engine->stats().preemptions, 0u);
  EXPECT_EQ(engine->stats().disk.errors, 0u);
  const Outcome again = ask_ok(*engine, request(asked));
  EXPECT_EQ(again.completion.usage.prefix, static_cast<int>(known.size()));
  EXPECT_EQ(again.completion.usage.disk, 0) << "in memory by now";
  expect_equal(again, dense);
  expect_no_page_is_lost();
}

TEST_F(LayeredLoad, ReadFirstItComputesNothingBefore) {
  store(known);
  gate->open_to(2);
  open_gated(0);
  const auto sink = submit(asked);
  EXPECT_TRUE(eventually([&] { return gate->chunks() > 0; }));
  ask_ok(*engine, request(other));
  const double flops = engine->stats().prefill_flops;
  ask_ok(*engine, request(tokens(50, 10)));
  EXPECT_DOUBLE_EQ(engine->stats().prefill_flops, 2 * flops) << "theirs alone";
  EXPECT_EQ(engine->stats().running, 0);
  gate->open();
  EXPECT_EQ(sink->wait().usage.disk, static_cast<int>(known.size()));
}

TEST_F(LayeredLoad, DamageOfTheLastLayerIsComputed) {
  const Outcome dense = dense_of(asked);
  store(known);
  gate->open_to(4);
  open_gated(2);
  const auto sink = submit(asked);
  expect_runs_ahead(*sink);
  const fs::path file = value_file();
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<int64_t>(fs::file_size(file)) - 1)
      .put('\x55');
  gate->open();
  expect_is(*sink, dense);
  EXPECT_EQ(sink->wait().usage.disk, 0);
  EXPECT_EQ(engine->stats().disk.errors, 1u);
  EXPECT_EQ(engine->stats().disk.pieces, 0) << "it is removed";
  EXPECT_EQ(engine->stats().cached_tokens, 0) << "nothing of it was published";
  expect_no_page_is_lost();
}

TEST_F(LayeredLoad, CancelledWhileItRunsAheadItLeavesNothing) {
  const Outcome dense = dense_of(asked);
  store(known);
  const auto sink = submit_ahead(asked);
  engine->cancel(id);
  EXPECT_EQ(sink->wait().finish, Finish::kCancelled);
  gate->open();
  expect_no_page_is_lost();
  expect_equal(ask_ok(*engine, request(asked)), dense);
  expect_no_page_is_lost();
}

TEST_F(LayeredLoad, ClearedWhileItRunsAheadItIsComputed) {
  const Outcome dense = dense_of(asked);
  store(known);
  const auto sink = submit_ahead(asked);
  engine->clear_cache();
  gate->open();
  expect_is(*sink, dense);
  EXPECT_EQ(sink->wait().usage.disk, 0);
  EXPECT_EQ(engine->stats().cached_tokens, 0);
  expect_no_page_is_lost();
}

// It holds no pages of what others publish of its prefix while that is read, and starts again on it.
TEST_F(LayeredLoad, WhatOthersComputedMeanwhileIsTaken) {
  const Outcome dense = dense_of(asked);
  store(known);
  const auto sink = submit_ahead(asked);
  warm(*engine, known);
  EXPECT_EQ(engine->stats().cached_tokens, std::ssize(known)) << "power";
  gate->open();
  expect_is(*sink, dense);
  EXPECT_EQ(sink->wait().usage.prefix, static_cast<int>(known.size()));
  EXPECT_EQ(sink->wait().usage.disk, 0);
  expect_no_page_is_lost();
}

// A disk that takes long holds up nobody: who can go on and lacks pages gets them.
TEST_F(LayeredLoad, MakesRoomForWhoCanGoOn) {
  const auto alone = open_for_test(options(false));
  const Outcome dense = ask_with(*alone, asked, "full"), grown = ask_with(*alone, other, "full", {}, 300);
  store(known);
  kv_bytes = 1000 * alone->info().kv_bytes_per_token;
  const auto sink = submit_ahead(asked);
  expect_equal(ask_with(*engine, other, "full", {}, 300), grown);
  EXPECT_EQ(engine->stats().preemptions, 1u);
  EXPECT_EQ(engine->stats().running, 0);
  gate->open();
  expect_is(*sink, dense);
  EXPECT_EQ(sink->wait().usage.disk, static_cast<int>(known.size())) << "it is read anew";
  expect_no_page_is_lost();
}

TEST_F(LayeredLoad, StoppedWhileItRunsAheadItEnds) {
  const Outcome dense = dense_of(asked);
  store(known);
  const auto sink = submit_ahead(asked);
  std::thread disk([&] {
    EXPECT_EQ(sink->wait().finish, Finish::kCancelled);
    gate->open();
  });
  engine.reset();
  disk.join();
  EXPECT_LE(gate->blocks(), 4) << "nobody waited for the rest of six layers";
  open_gated(2);
  const Outcome next = ask_ok(*engine, request(asked));
  expect_equal(next, dense);
  EXPECT_EQ(next.completion.usage.disk, static_cast<int>(known.size())) << "all of it is still stored";
}

// Folders that know one sum for each chunk are read chunk by chunk.
TEST_F(LayeredLoad, OlderFoldersAreReadFirst) {
  const Outcome dense = dense_of(asked);
  gate->open();
  for (const std::string& given : {std::string(), std::string(64, '7')}) {
    fs::remove_all(folder);
    fs::create_directory(folder);
    key = given;
    open_gated(2, false);
    warm(*engine, known);
    engine.reset();
    const int before = gate->chunks();
    open_gated(2);
    const Outcome is = ask_ok(*engine, request(asked));
    expect_equal(is, dense);
    EXPECT_EQ(is.completion.usage.disk, static_cast<int>(known.size()));
    EXPECT_EQ(gate->chunks(), before + 3);
    EXPECT_EQ(gate->blocks(), 0);
    EXPECT_EQ(engine->stats().disk.errors, 0u);
    engine.reset();
  }
}

// Two with one beginning run on one read, also where the second comes when the first layers are there.
TEST_F(LayeredLoad, SeveralRunOnOneRead) {
  const std::vector<int32_t> more = join({known, tokens(40, 5)});
  const auto alone = open_for_test(options(false));
  const Outcome first = ask_with(*alone, asked, "full"), second = ask_with(*alone, more, "full");
  store(known);
  const auto a = submit_ahead(asked);
  const auto b = submit(more);
  EXPECT_TRUE(eventually([&] { return engine->stats().running == 2; }));
  EXPECT_TRUE(a->ids.empty() && b->ids.empty());
  gate->open();
  expect_is(*a, first);
  expect_is(*b, second);
  EXPECT_EQ(a->wait().usage.disk, static_cast<int>(known.size()));
  EXPECT_EQ(b->wait().usage.disk, static_cast<int>(known.size()));
  expect_no_page_is_lost();
}

TEST_F(LayeredLoad, WhatItPublishesContinuesTheRest) {
  store(known);
  gate->open_to(2);
  open_gated(2);
  Request kept = request(asked);
  kept.publish = true;
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine->submit(kept, sink).ok());
  expect_runs_ahead(*sink);
  gate->open();
  sink->wait();
  const Outcome next = ask_ok(*engine, request(join({asked, tokens(20, 6)})));
  EXPECT_GE(next.completion.usage.prefix, static_cast<int>(asked.size()));
  expect_equal(next, dense_of(join({asked, tokens(20, 6)})));
}

// Every kind of attention and of KV rows, with and without a key.
TEST_F(LayeredLoad, EqualToTheBitForEveryModelAndKvType) {
  struct Case {
    const char* model;
    KvType kv_type;
    bool sealed;
  };
  const std::vector<int32_t> prompt = [] {
    std::vector<int32_t> out = tokens(300, 7);
    for (int32_t& token : out) token %= 288;
    return out;
  }();
  const std::vector<int32_t> beginning(prompt.begin(), prompt.end() - 20);
  for (const Case& each : {Case{"tests/data/fixtures/llama", KvType::kF32, true},
                           Case{"tests/data/fixtures/qwen2-window", KvType::kBF16, false},
                           Case{"tests/data/fixtures/gemma3", KvType::kInt8, true},
                           Case{"tests/data/fixtures/gemma4", KvType::kF32, false},
                           Case{"tests/data/fixtures/gemma4-shared", KvType::kBF16, false},
                           Case{"tests/data/fixtures/gpt-oss", KvType::kInt8, false},
                           Case{"tests/data/fixtures/qwen3-moe", KvType::kF16, false}}) {
    SCOPED_TRACE(each.model);
    fs::remove_all(folder);
    fs::create_directory(folder);
    model = each.model, kv_type = each.kv_type, key = each.sealed ? std::string(64, '7') : "";
    Outcome dense, memory;
    {
      const auto alone = open_for_test(options(false));
      dense = ask_with(*alone, prompt, "full");
      warm(*alone, beginning);
      memory = ask_ok(*alone, request(prompt));
    }
    store(beginning);
    const auto sink = submit_ahead(prompt, 1);
    gate->open();
    expect_is(*sink, dense);
    expect_is(*sink, memory);
    EXPECT_EQ(sink->wait().usage.disk, static_cast<int>(beginning.size()));
    expect_no_page_is_lost();
    engine.reset();
  }
}

}  // namespace
}  // namespace kvilt

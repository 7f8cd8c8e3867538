// DiskCache's way back, chunk by chunk: a tier that gives a chunk when it is told to, and an engine thread that is the
// test's.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "engine/content_cache_for_test.h"
#include "engine/disk_cache.h"
#include "kv/kv_rows.h"

namespace kvilt {
namespace {

constexpr int32_t kTokens = 600;  // three chunks

// One exact piece that begins a prompt.
class SlowTier : public Tier {
 public:
  explicit SlowTier(StoredPiece piece) : piece_(std::move(piece)), values_(static_cast<size_t>(piece_.bytes())) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<std::byte>((i * 131) % 251);
  }
  std::span<const std::byte> chunk(int32_t i) const {
    const kvilt::Run run = chunk_run(i, piece_.count());
    return std::span(values_).subspan(static_cast<size_t>(run.begin) * piece_.token_bytes,
                                      static_cast<size_t>(run.size()) * piece_.token_bytes);
  }
  void give(int32_t chunks) {
    const std::lock_guard lock(mutex_);
    given_ += chunks;
    changed_.notify_all();
  }
  void damage(int32_t chunk) { damaged_ = chunk; }
  int reads() const { return reads_; }

  Result<std::vector<StoredPiece>> known(const Digest&, uint32_t) override { return std::vector{piece_}; }
  uint64_t new_id() override { return ++last_; }
  Status put(const StoredPiece&, std::span<const std::byte>, std::vector<uint64_t>&) override { return {}; }
  Status get(uint64_t, int32_t i, std::vector<std::byte>& out) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return given_ > 0; });
    --given_;
    ++reads_;
    if (i == damaged_) return error(Code::kCorrupt, "damaged");
    out.assign(chunk(i).begin(), chunk(i).end());
    return {};
  }
  void touch(uint64_t) override {}
  void remove(uint64_t) override {}
  Status clear() override { return {}; }
  Status flush() override { return {}; }
  int64_t bytes() const override { return piece_.bytes(); }
  int64_t pieces() const override { return 1; }
  // Shared with others: nobody waits longer for it.
  std::optional<std::chrono::milliseconds> patience;
  std::optional<Sharing> sharing() const override {
    if (!patience) return std::nullopt;
    return Sharing{std::chrono::hours(1), *patience};
  }

 private:
  const StoredPiece piece_;
  std::vector<std::byte> values_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int given_ = 0;
  std::atomic<int> reads_{0}, damaged_{-1};
  uint64_t last_ = 1000;
};

class LoaderTest : public ContentCacheTest {
 protected:
  LoaderTest() {
    open(100);  // 800 tokens
    begin();
  }
  void begin(std::optional<std::chrono::milliseconds> patience = {}) {
    if (store) end();
    StoredPiece piece;
    piece.id = 7;
    piece.domain = *cache->index().domain_digest(domains.exact);
    piece.exact = piece.prefix = true;
    piece.token_bytes = static_cast<uint32_t>(kShape.token_bytes());
    piece.tokens = text(1, kTokens);
    auto made = std::make_unique<SlowTier>(piece);
    tier = made.get();
    tier->patience = patience;
    store = DiskCache::open(std::move(made), HashSecret::fixed(1), Digest{}, *cache, kMinSegment).value();
    const auto post = [this](std::function<void()> task) {
      const std::lock_guard lock(mutex);
      inbox.push_back(std::move(task));
      came.notify_all();
    };
    store->attach({post, post, [this](int64_t pages, OwnerId owner) { return cache->make_room(pages, owner); }});
  }
  ~LoaderTest() override { end(); }
  void end() {
    tier->give(100);
    store->finish();
    inbox.clear();
    store.reset();
  }

  std::shared_ptr<const Fetch> fetch() {
    const auto uses = [](const PromptLayout&) { return true; };
    const ContentCache::Wanted wanted;
    return store->fetch({prompt, {}, domains, wanted, rope, uses, 0}, find(prompt));
  }
  // The next of what was posted. False: memory ended in it.
  bool run_one() {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex);
      came.wait(lock, [&] { return !inbox.empty(); });
      task = std::move(inbox.front());
      inbox.pop_front();
    }
    try {
      task();
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }
  void run_until_done(const Fetch& fetch) {
    tier->give(3);
    while (!fetch.done) run_one();
  }
  int64_t used() { return cache->store().pages() - cache->store().free_pages() - cache->reclaimable(); }
  void expect_as_stored(int32_t from_chunk) {
    const std::vector<Piece> chain = cache->index().find_prefix(prompt, domains.exact, kTokens);
    ASSERT_FALSE(chain.empty());
    const CachedSegment& segment = *cache->segments().find(chain.back().segment);
    for (int32_t i = from_chunk; i < 3; ++i) {
      std::vector<std::byte> got(tier->chunk(i).size());
      copy_rows_out(cache->store(), *segment.parts[0].kv, segment.parts[0].of_kv(chunk_run(i, kTokens)), got);
      EXPECT_TRUE(std::ranges::equal(got, tier->chunk(i))) << i;
    }
  }

  const Tokens prompt = join(text(1, kTokens), text(2, 10));
  SlowTier* tier = nullptr;
  std::mutex mutex;
  std::condition_variable came;
  std::deque<std::function<void()>> inbox;
  std::unique_ptr<DiskCache> store;
};

TEST_F(LoaderTest, APartIsFoundWhenItsLastChunkIsThere) {
  const auto wanted = fetch();
  ASSERT_TRUE(wanted);
  tier->give(2);
  ASSERT_TRUE(run_one() && run_one());
  EXPECT_EQ(prefix(prompt), 0) << "two of three";
  EXPECT_GT(used(), 0) << "power: what came is in pages";
  run_until_done(*wanted);
  EXPECT_EQ(prefix(prompt), kTokens);
  EXPECT_EQ(used(), 0);
  expect_as_stored(0);
}

TEST_F(LoaderTest, WhatIsOnItsWayGivesWay) {
  const auto wanted = fetch();
  EXPECT_FALSE(store->give_way()) << "nothing came yet";
  tier->give(1);
  ASSERT_TRUE(run_one());
  ASSERT_GT(used(), 0);
  EXPECT_FALSE(cache->make_room(cache->store().pages())) << "power: somebody lacks its pages";
  EXPECT_TRUE(store->give_way());
  EXPECT_FALSE(store->give_way());
  EXPECT_EQ(used(), 0);
  EXPECT_TRUE(cache->make_room(cache->store().pages()));
  run_until_done(*wanted);
  EXPECT_EQ(prefix(prompt), 0);
  EXPECT_LE(tier->reads(), 2) << "the one that was being read is the last";
}

TEST_F(LoaderTest, ADamagedChunkGivesThePagesBack) {
  tier->damage(2);
  const auto wanted = fetch();
  run_until_done(*wanted);
  EXPECT_EQ(prefix(prompt), 0);
  EXPECT_EQ(used(), 0);
  EXPECT_EQ(store->stats().errors, 1u);
  EXPECT_FALSE(fetch()) << "it is forgotten";
}

TEST_F(LoaderTest, ClearedOnItsWayItIsNotAdopted) {
  const auto wanted = fetch();
  tier->give(1);
  ASSERT_TRUE(run_one());
  store->clear();
  EXPECT_EQ(used(), 0);
  run_until_done(*wanted);
  EXPECT_EQ(prefix(prompt), 0);
}

// The slots of a chunk that was not copied hold what their pages held before.
TEST_F(LoaderTest, NothingIsAdoptedBehindAGap) {
  ask(text(5, 700));  // the pool is full of it
  bool ends = true;
  cache->on_evict([&](SegmentId) {
    if (std::exchange(ends, false)) throw std::bad_alloc();
  });
  const auto wanted = fetch();
  tier->give(3);
  EXPECT_FALSE(run_one()) << "power: memory ended while the first chunk was copied";
  while (!wanted->done) run_one();
  EXPECT_EQ(prefix(prompt), 0);
  EXPECT_EQ(used(), 0);
  const auto again = fetch();
  ASSERT_TRUE(again);
  run_until_done(*again);
  EXPECT_EQ(prefix(prompt), kTokens) << "power: with memory it is";
}

TEST_F(LoaderTest, WhatMemoryGotMeanwhileIsNotKeptTwice) {
  const auto wanted = fetch();
  tier->give(2);
  ASSERT_TRUE(run_one() && run_one());
  ask(text(1, 160), {}, false);
  ASSERT_EQ(prefix(prompt), 160);
  run_until_done(*wanted);
  EXPECT_EQ(prefix(prompt), kTokens);
  EXPECT_EQ(store->stats().loaded_tokens, 440u);
  EXPECT_EQ(used(), 0);
}

TEST_F(LoaderTest, WhatTakesLongerThanComputingIsNotRead) {
  EXPECT_TRUE(fetch()) << "before any prefill was timed, reading is tried";
  begin();
  store->computed(1000, 1e-6);  // a nanosecond a token: no disk reads its bytes in that
  EXPECT_FALSE(fetch());
  EXPECT_EQ(store->stats().refused, 1u);
  EXPECT_EQ(store->stats().loads, 0u);
  store->computed(1000, 1000);
  const auto wanted = fetch();
  ASSERT_TRUE(wanted) << "power: computing became slow";
  EXPECT_EQ(store->stats().refused, 1u);
  run_until_done(*wanted);
  EXPECT_EQ(prefix(prompt), kTokens);
}

// Nobody waits for a shared tier longer than for computing, or its patience; it computes, and what comes later is
// neither waited for nor an error.
TEST_F(LoaderTest, WhatComesTooLateIsGivenUp) {
  begin(std::chrono::hours(1));
  auto wanted = fetch();
  ASSERT_TRUE(wanted);
  EXPECT_TRUE(wanted->remote);
  EXPECT_TRUE(store->patience_ends().has_value());
  EXPECT_FALSE(store->give_up_late());
  EXPECT_FALSE(wanted->done) << "power: with patience it is waited for";
  run_until_done(*wanted);
  EXPECT_FALSE(wanted->late);

  cache->clear();
  begin(std::chrono::milliseconds(1));
  wanted = fetch();
  ASSERT_TRUE(wanted);
  while (!store->give_up_late()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(wanted->done && wanted->late);
  EXPECT_EQ(store->stats().late, 1u);
  EXPECT_FALSE(store->patience_ends().has_value());
  EXPECT_FALSE(store->give_up_late()) << "once";
  EXPECT_EQ(prefix(prompt), 0);
  tier->give(3);
  while (store->busy()) run_one();
  EXPECT_LE(tier->reads(), 1) << "the one that was being read is the last";
  EXPECT_LE(prefix(prompt), StoredPiece::kChunkTokens);
  EXPECT_EQ(used(), 0);
  EXPECT_EQ(store->stats().errors, 0u);
}

TEST_F(LoaderTest, WhatNobodyWaitsForIsNotReadOn) {
  auto wanted = fetch();
  tier->give(1);
  ASSERT_TRUE(run_one());
  std::weak_ptr<const Fetch> watched = wanted;
  wanted.reset();
  tier->give(3);
  while (!watched.expired()) run_one();
  EXPECT_LE(tier->reads(), 2);
  EXPECT_EQ(used(), 0);
}

}  // namespace
}  // namespace kvilt

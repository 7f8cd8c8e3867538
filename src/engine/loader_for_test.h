// engine/loader_for_test.h: a tier that gives a chunk, or some layers of one, when it is told to, and an engine thread that
// is the test's.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "base/error.h"
#include "engine/content_cache_for_test.h"
#include "engine/disk_cache.h"
#include "kv/kv_rows.h"

namespace kvilt {

inline constexpr int32_t kTokens = 600;  // three chunks

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
  void hears(News news) { news_ = std::move(news); }  // by its first call of news(); before it is attached
  News news() override { return std::exchange(news_, {}); }
  void damage(int32_t chunk) { damaged_ = chunk; }  // of a piece in blocks its last one
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
    if (i != kWhole) out.assign(chunk(i).begin(), chunk(i).end());
    return {};
  }
  bool in_blocks() const override { return piece_.blocks > 1; }
  Status get_blocks(uint64_t id, int32_t i, kvilt::Run blocks, std::vector<std::byte>& out) override {
    const auto all = static_cast<int32_t>(piece_.blocks);
    const Status got = get(id, blocks.end == all || i != damaged_ ? i : kWhole, out);
    const auto size = static_cast<std::ptrdiff_t>(chunk(i).size()) / all;
    out.assign(chunk(i).begin() + blocks.begin * size, chunk(i).begin() + blocks.end * size);
    return got;
  }
  void touch(uint64_t id) override { touched_ += id == piece_.id ? 1 : 0; }
  int touched() const { return touched_; }
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
  static constexpr int32_t kWhole = -2;  // what is not damaged
  const StoredPiece piece_;
  std::vector<std::byte> values_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int given_ = 0;
  std::atomic<int> reads_{0}, damaged_{-1}, touched_{0};
  uint64_t last_ = 10'000;
  News news_;
};

class LoaderTest : public ContentCacheTest {
 protected:
  // blocks: of each chunk.
  explicit LoaderTest(uint32_t blocks = 1) : blocks_(blocks) {
    open(100);  // 800 tokens
    begin();
  }
  static constexpr uint64_t kPiece = 7000;
  void begin(std::optional<std::chrono::milliseconds> patience = {}, Tier::News news = {}) {
    if (store) end();
    StoredPiece piece;
    piece.id = kPiece;
    piece.domain = *cache->index().domain_digest(domains.exact);
    piece.exact = piece.prefix = true;
    piece.token_bytes = static_cast<uint32_t>(kShape.token_bytes());
    piece.tokens = text(1, kTokens);
    piece.blocks = blocks_;
    auto made = std::make_unique<SlowTier>(piece);
    tier = made.get();
    tier->patience = patience;
    tier->hears(std::move(news));
    store = DiskCache::open(std::move(made), HashSecret::fixed(1), Digest{}, *cache, kMinSegment).value();
    const auto post = [this](std::function<void()> task) {
      if (posts_that_fail > 0 && posts_that_fail-- > 0) throw std::bad_alloc();
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

  std::shared_ptr<const Fetch> fetch() { return fetch(prompt); }
  std::shared_ptr<const Fetch> fetch(const Tokens& prompt) {
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
  std::atomic<int> posts_that_fail{0};  // the next ones, for want of memory
  std::mutex mutex;
  std::condition_variable came;
  std::deque<std::function<void()>> inbox;
  std::unique_ptr<DiskCache> store;

 private:
  const uint32_t blocks_;
};

}  // namespace kvilt

// DiskCache's way out: what one eviction copies is bounded, and what it leaves follows.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

#include "engine/content_cache_for_test.h"
#include "engine/disk_cache.h"
#include "tier/piece_record.h"

namespace kvilt {
namespace {

// Keeps what it is given.
class RecordingTier : public Tier {
 public:
  Result<std::vector<StoredPiece>> known(const Digest&, uint32_t) override { return known_; }
  void knows(std::vector<StoredPiece> pieces) {
    known_ = std::move(pieces);
    last_ += 1000 * std::ssize(known_);  // new ones are larger
  }
  uint64_t new_id() override { return ++last_; }
  Status put(const StoredPiece& piece, std::span<const std::byte>, std::vector<uint64_t>&) override {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(piece);
    return {};
  }
  Status get(uint64_t, int32_t, std::vector<std::byte>&) override { return {}; }
  bool keeps_annexes() const override { return true; }
  Status put_annexes(uint64_t id, std::span<const std::byte> annexes, std::vector<uint64_t>&) override {
    const std::lock_guard lock(mutex_);
    annexes_[id].assign(annexes.begin(), annexes.end());
    ++annexes_put;
    return {};
  }
  Status get_annexes(uint64_t id, std::vector<std::byte>& out) override {
    const std::lock_guard lock(mutex_);
    const auto it = annexes_.find(id);
    if (it == annexes_.end()) return Error{Code::kNotFound, "none"};
    out = it->second;
    return {};
  }
  // By piece, the tokens that they are about.
  std::map<uint64_t, Runs> annexes() {
    const std::lock_guard lock(mutex_);
    std::map<uint64_t, Runs> out;
    for (const auto& [id, bytes] : annexes_) {
      const auto decoded = decode_annexes(bytes);
      EXPECT_TRUE(decoded);
      for (const StoredAnnex& one : *decoded) out[id].push_back(one.tokens);
      std::ranges::sort(out[id], {}, &kvilt::Run::begin);
    }
    return out;
  }
  std::atomic<int> annexes_put{0};
  void touch(uint64_t) override {}
  void remove(uint64_t) override {}
  Status clear() override { return {}; }
  Status flush() override { return {}; }
  int64_t bytes() const override { return 0; }
  int64_t pieces() const override { return 0; }
  // A tenant's owner begins as its name; "small" has a share of so many bytes.
  std::optional<Digest> owner(std::string_view tenant) const override {
    if (!owners || tenant.empty()) return std::nullopt;
    Digest out{};
    std::ranges::copy(tenant, out.begin());
    return out;
  }
  Part part_of(std::string_view tenant) const override { return {0, tenant == "small" ? share : 0}; }
  bool owners = true;
  int64_t share = 0;
  // One shared with others, from whom this comes.
  void hears(News news) {
    const std::lock_guard lock(mutex_);
    news_.push_back(std::move(news));
  }
  std::optional<Sharing> sharing() const override {
    if (!shared) return std::nullopt;
    return Sharing{std::chrono::milliseconds(1), std::chrono::milliseconds(500)};
  }
  News news() override {
    const std::lock_guard lock(mutex_);
    if (news_.empty()) return {};
    News out = std::move(news_.front());
    news_.pop_front();
    return out;
  }
  bool shared = false;
  std::vector<StoredPiece> put_so_far() {
    const std::lock_guard lock(mutex_);
    return pieces_;
  }

 private:
  std::mutex mutex_;
  std::vector<StoredPiece> pieces_, known_;
  std::map<uint64_t, std::vector<std::byte>> annexes_;
  std::deque<News> news_;
  uint64_t last_ = 100;
};

class SpillTest : public ContentCacheTest {
 protected:
  static constexpr int32_t kTokens = 600, kEach = 250;

  SpillTest() {
    open(200);
    begin({});
    id = ask(prompt).published.segments.at(0);
  }
  void begin(std::vector<StoredPiece> known) {
    auto made = std::make_unique<RecordingTier>();
    tier = made.get();
    tier->knows(std::move(known));
    store = DiskCache::open(std::move(made), HashSecret::fixed(1), Digest{}, *cache, kMinSegment).value();
    store->attach({[](std::function<void()>) {}, [](std::function<void()>) {}, [](int64_t, OwnerId) { return false; }});
    store->copy_at_once(kEach * kShape.token_bytes());
  }
  // What is stored of the prompt: in order, each behind the last one.
  std::vector<int32_t> sizes(const std::vector<StoredPiece>& pieces) const {
    std::vector<int32_t> out;
    Tokens all;
    for (size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_TRUE(pieces[i].prefix);
      EXPECT_EQ(pieces[i].parent, i == 0 ? 0 : pieces[i - 1].id);
      EXPECT_EQ(pieces[i].parent_tokens, i == 0 ? 0 : pieces[i - 1].count());
      out.push_back(pieces[i].count());
      all.insert(all.end(), pieces[i].tokens.begin(), pieces[i].tokens.end());
    }
    EXPECT_TRUE(std::equal(all.begin(), all.end(), prompt.begin()));
    return out;
  }

  const Tokens prompt = text(1, kTokens);
  RecordingTier* tier = nullptr;
  std::unique_ptr<DiskCache> store;
  SegmentId id = 0;
};

TEST_F(SpillTest, AnEvictionCopiesNoMoreThanItMay) {
  store->keep(id);
  EXPECT_EQ(store->stats().dropped, 1u) << "it had no room for the rest";
  store->keep(id);
  store->keep(id);
  store->keep(id);
  store->finish();
  EXPECT_EQ(sizes(tier->put_so_far()), (std::vector<int32_t>{250, 250, 100}));
}

TEST_F(SpillTest, TheEndWritesAll) {
  store->finish();
  EXPECT_EQ(sizes(tier->put_so_far()), (std::vector<int32_t>{250, 250, 100}));
}

// Whoever kills the process finds in the folder what was cached, and not only what had left memory.
TEST_F(SpillTest, WhatComesInIsWritten) {
  std::deque<std::function<void()>> inbox;
  std::mutex mutex;
  const auto post = [&](std::function<void()> task) {
    const std::lock_guard lock(mutex);
    inbox.push_back(std::move(task));
  };
  store->attach({post, post, [](int64_t, OwnerId) { return false; }});
  store->entered(id);
  EXPECT_TRUE(tier->put_so_far().empty());  // not by the engine's step that cached it
  int32_t written = 0;
  for (int i = 0; i < 2000 && written < kTokens; ++i) {
    std::function<void()> task;
    if (const std::lock_guard lock(mutex); !inbox.empty()) {
      task = std::move(inbox.front());
      inbox.pop_front();
    }
    task ? task() : std::this_thread::sleep_for(std::chrono::milliseconds(5));
    written = 0;
    for (const StoredPiece& piece : tier->put_so_far()) written += piece.count();
  }
  EXPECT_EQ(sizes(tier->put_so_far()), (std::vector<int32_t>{250, 250, 100}));
  store->finish();  // its tasks go to `inbox`
}

TEST_F(SpillTest, APieceIsItsTenants) {
  tenant = "mine";
  domains = cache->domains({.tenant = tenant}, "mend");
  const SegmentId own = ask(prompt).published.segments.at(0);
  ASSERT_NE(own, id);
  store->copy_at_once(1 << 30);
  store->keep(id);
  store->keep(own);
  tier->owners = false;
  domains = cache->domains({.tenant = tenant, .salt = "salt"}, "mend");
  store->keep(ask(prompt).published.segments.at(0));
  store->finish();
  const std::vector<StoredPiece> put = tier->put_so_far();
  ASSERT_EQ(put.size(), 3u);
  EXPECT_EQ(put[0].owner, std::nullopt) << "nobody's";
  tier->owners = true;
  EXPECT_EQ(put[1].owner, tier->owner("mine"));
  EXPECT_EQ(put[2].owner, std::nullopt) << "power: a tier that keeps no owners gets none";
}

// At the end more would be written than a tenant's share holds: what came last is what stays.
TEST_F(SpillTest, TheEndWritesWhatATenantsShareHolds) {
  for (const bool shared : {true, false}) {
    begin({});
    tenant = "small";
    domains = cache->domains({.tenant = tenant, .salt = shared ? "a" : "b"}, "mend");
    for (int i = 0; i < 3; ++i) ask(text(10 + i, 100));
    if (shared) tier->share = 250 * kShape.token_bytes();
    store->finish();
    std::vector<int32_t> sizes;
    for (const StoredPiece& piece : tier->put_so_far()) {
      if (piece.owner && piece.domain == *cache->index().domain_digest(domains.exact)) sizes.push_back(piece.tokens[0]);
    }
    std::vector<int32_t> wanted{text(12, 1)[0], text(11, 1)[0]};
    if (!shared) wanted.push_back(text(10, 1)[0]);
    EXPECT_EQ(sizes, wanted) << "power: all without a share";
  }
}

// What was written when it came in counts too: what came earlier, and the folder dropped since, does not come back for it.
TEST_F(SpillTest, TheEndWritesNothingOlderThanWhatIsStored) {
  begin({});
  tenant = "small";
  domains = cache->domains({.tenant = tenant}, "mend");
  std::vector<SegmentId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(ask(text(10 + i, 100)).published.segments.at(0));
  tier->share = 250 * kShape.token_bytes();
  store->keep(ids[2]);
  store->keep(ids[1]);
  store->finish();
  std::vector<int32_t> sizes;
  for (const StoredPiece& piece : tier->put_so_far()) {
    if (piece.owner) sizes.push_back(piece.tokens[0]);
  }
  EXPECT_EQ(sizes, (std::vector<int32_t>{text(12, 1)[0], text(11, 1)[0]}));
}

// What goes on in the middle of a segment is stored behind the part in which it goes on.
TEST_F(SpillTest, ABranchGoesOnWhereItLeaves) {
  const Tokens branch = join(Tokens(prompt.begin(), prompt.begin() + 300), text(9, 40));
  const SegmentId other = ask(branch).published.segments.at(0);
  ASSERT_NE(other, id);
  store->copy_at_once(1 << 30);
  store->keep(id);
  store->copy_at_once(kEach * kShape.token_bytes());
  store->keep(other);
  store->finish();
  const std::vector<StoredPiece> put = tier->put_so_far();
  ASSERT_EQ(put.size(), 2u);
  EXPECT_EQ(put[0].count(), kTokens);
  EXPECT_EQ(put[1].parent, put[0].id);
  EXPECT_EQ(put[1].parent_tokens, 300);
}

// A run that is too short for a piece is found by its mark alone, also where that is not all of it: once it is written.
TEST_F(SpillTest, AShortRunIsWrittenForItsMarkAndOnce) {
  ask(a);
  const Tokens run = text(20, 7);
  SegmentId marked = 0;
  for (const SegmentId each : ask(join(more, a, run), {{31, 36}}).published.segments) {
    if (cache->segments().find(each)->count == std::ssize(run)) marked = each;
  }
  ASSERT_NE(marked, 0u);
  ASSERT_FALSE(cache->index().is_prefix(marked));
  for (int i = 0; i < 3; ++i) store->keep(marked);
  store->finish();
  EXPECT_EQ(std::ranges::count(tier->put_so_far(), run, &StoredPiece::tokens), 1);
}

// A piece that continues another one of its parent's id is no prefix behind this one, though all numbers are right.
TEST_F(SpillTest, WhatContinuesAnothersPieceIsNoneOfTheChain) {
  store->copy_at_once(kEach * kShape.token_bytes());
  for (int i = 0; i < 3; ++i) store->keep(id);
  store->finish();
  std::vector<StoredPiece> chain = tier->put_so_far();
  ASSERT_EQ(chain.size(), 3u);
  begin(chain);
  store->finish();
  EXPECT_TRUE(tier->put_so_far().empty()) << "power: all of it is stored";

  StoredPiece other = chain[0];  // as another server may have it under the id
  other.tokens[0] += 1;
  for (const bool known : {false, true}) {
    std::vector<StoredPiece> mixed = chain;
    mixed[1].behind = known ? std::optional(digest_behind(HashSecret::fixed(1), {}, other.tokens)) : std::nullopt;
    begin(mixed);
    store->finish();
    const std::vector<StoredPiece> put = tier->put_so_far();
    ASSERT_EQ(put.size(), 2u) << "what is behind the first piece is not stored";
    EXPECT_EQ(put[0].parent, chain[0].id);
    EXPECT_EQ(put[0].tokens, chain[1].tokens);
  }
}

// A tier of others, whose news are heard one task at a time.
class HearingTest : public SpillTest {
 protected:
  static constexpr int kPieces = 1000, kSize = 20;
  std::vector<StoredPiece> many() const {
    std::vector<StoredPiece> out;
    for (int i = 0; i < kPieces; ++i) {
      StoredPiece piece;
      piece.id = static_cast<uint64_t>(i + 1);
      piece.domain = *cache->index().domain_digest(domains.exact);
      piece.exact = true;
      piece.token_bytes = static_cast<uint32_t>(kShape.token_bytes());
      piece.tokens = text(1000 + i, kSize);
      out.push_back(piece);
    }
    return out;
  }
  void open_shared(std::vector<StoredPiece> known = {}) {
    auto made = std::make_unique<RecordingTier>();
    made->shared = true;
    made->knows(std::move(known));
    tier = made.get();
    store = DiskCache::open(std::move(made), HashSecret::fixed(1), Digest{}, *cache, kMinSegment).value();
    const auto post = [&](std::function<void()> task) {
      const std::lock_guard lock(mutex);
      inbox.push_back(std::move(task));
      came.notify_all();
    };
    store->attach({post, post, [](int64_t, OwnerId) { return false; }});
  }
  void run_one() {
    std::unique_lock lock(mutex);
    came.wait(lock, [&] { return !inbox.empty(); });
    const auto task = std::move(inbox.front());
    inbox.pop_front();
    lock.unlock();
    task();
  }
  ~HearingTest() override { store->finish(); }

  std::mutex mutex;
  std::condition_variable came;
  std::deque<std::function<void()>> inbox;
};

// What others stored is heard in parts; what they remove meanwhile is not known afterwards.
TEST_F(HearingTest, MuchThatIsNewIsHeardInParts) {
  open_shared();
  Tier::News more, less;
  more.stored = many();
  tier->hears(more);
  run_one();
  const int64_t first = store->stats().tokens;
  EXPECT_GT(first, 0);
  EXPECT_LT(first, kPieces * kSize / 2) << "not all at once";
  less.removed = {1, kPieces};  // one that was heard of, one that was not
  tier->hears(less);
  constexpr auto kEachPart = static_cast<int>(DiskCache::kHeardAtOnce);
  for (int i = 0; i < 1 + (kPieces - 1) / kEachPart; ++i) run_one();  // the other parts, and the other news
  EXPECT_EQ(store->stats().tokens, (kPieces - 2) * kSize);
}

// So is what others removed, as when a Redis restarts. What is cached meanwhile is stored though it was there before,
// once all is forgotten; another piece under an id that was removed is one.
TEST_F(HearingTest, MuchThatIsGoneIsForgottenInParts) {
  std::vector<StoredPiece> pieces = many();
  pieces.back().tokens = prompt;
  pieces.back().prefix = true;
  open_shared(pieces);
  const int64_t all = (kPieces - 1) * kSize + kTokens;
  store->entered(id);
  run_one();
  ASSERT_EQ(store->stats().tokens, all);
  EXPECT_EQ(store->stats().queued_bytes, 0) << "power: it is stored";
  Tier::News news;
  for (const StoredPiece& piece : pieces) news.removed.push_back(piece.id);
  std::ranges::reverse(news.removed);
  news.stored.push_back(pieces[1]);
  news.stored[0].tokens = text(9, 30);
  tier->hears(news);
  run_one();
  constexpr auto kPart = static_cast<int>(DiskCache::kHeardAtOnce);
  EXPECT_EQ(store->stats().tokens, all - kPart * kSize) << "not all at once";
  store->entered(id);
  for (int i = 0; i < 3; ++i) run_one();  // two parts, and what was cached
  EXPECT_EQ(store->stats().tokens, all - 3 * kPart * kSize);
  EXPECT_EQ(store->stats().queued_bytes, 0) << "what leaves is there still";
  for (int i = 3; i < (kPieces + kPart - 1) / kPart; ++i) run_one();
  EXPECT_EQ(store->stats().tokens, 30 + kTokens) << "all went, and two came";
  EXPECT_GT(store->stats().queued_bytes, 0);
}

// However much is known, the engine thread does not go through it.
TEST_F(HearingTest, ClearingForgetsAllAtOnce) {
  open_shared(many());
  ASSERT_EQ(store->stats().tokens, kPieces * kSize);
  store->clear();
  EXPECT_EQ(store->stats().tokens, 0);
  EXPECT_EQ(store->forgotten(), 0);
  store->keep(id);
  EXPECT_EQ(store->stats().tokens, kTokens) << "what is stored from now on is known";
  Tier::News less;
  less.removed = {5000, 7};
  tier->hears(less);
  while (store->forgotten() < 2) run_one();  // power: one by one it is counted
}

// Whoever continues a stored piece names all that is before it. That is hashed once, by who queues the first of them.
TEST_F(SpillTest, WhatIsContinuedIsHashedOnce) {
  for (int i = 0; i < 3; ++i) store->keep(id);
  EXPECT_EQ(store->tokens_hashed(), 2 * kEach) << "what the second and the third piece continue";
  store->finish();
  const std::vector<StoredPiece> put = tier->put_so_far();
  ASSERT_EQ(sizes(put), (std::vector<int32_t>{250, 250, 100}));
  std::vector<StoredPiece> many = put;
  for (uint64_t i = 0; i < 20; ++i) {  // as the last one, each with other text
    many.push_back(put.back());
    many.back().id += 1000 + i;
    many.back().tokens = text(static_cast<int>(20 + i), 100);
  }
  begin(many);
  EXPECT_EQ(store->tokens_hashed(), 2 * kEach);
  store->finish();
}

constexpr AnnexKind kStats{AnnexOf::kBlockStats, 0};

// Each goes beside the piece that has its tokens, once; what lies in two, and what is by token, stays in memory.
TEST_F(SpillTest, AnnexesFollowTheirChain) {
  const ContentCache::Found found = find(prompt);  // its pages are in use
  const KvSegment& kv = *cache->segments().find(id)->parts[0].kv;
  const auto attach = [&](kvilt::Run run) { kv.attach(kStats, run, std::vector<std::byte>(50, std::byte{1})); };
  for (const kvilt::Run& run : {kvilt::Run{10, 40}, kvilt::Run{240, 260}, kvilt::Run{520, 600}}) attach(run);
  kv.attach({AnnexOf::kHiddenF32, 1}, {0, 100}, std::vector<std::byte>(1200));
  for (int i = 0; i < 4; ++i) store->keep(id);
  attach({60, 80});
  for (int i = 0; i < 3; ++i) store->keep(id);
  store->finish();
  const std::vector<StoredPiece> put = tier->put_so_far();
  ASSERT_EQ(sizes(put), (std::vector<int32_t>{250, 250, 100}));
  const std::map<uint64_t, Runs> wanted = {{put[0].id, {{10, 40}, {60, 80}}}, {put[2].id, {{20, 100}}}};
  EXPECT_EQ(tier->annexes(), wanted);
  EXPECT_EQ(tier->annexes_put, 3) << "nothing is written twice";
}

// Equal tokens of another context have other KV: what was found out about this is not written beside that.
TEST_F(SpillTest, AnnexesStayWithTheKvThatTheyAreOf) {
  ask(join(a, b));
  const Asked moved = ask(join(join(question, b), more));
  const SegmentId last = moved.published.segments.back();
  const CachedSegment& segment = *cache->segments().find(last);
  ASSERT_EQ(cache->index().info(last).tokens, more);
  ASSERT_FALSE(exact(last));
  const kvilt::Run all = segment.parts[0].of_kv({segment.pos, segment.pos + segment.count});
  segment.parts[0].kv->attach(kStats, all, std::vector<std::byte>(50, std::byte{1}));
  StoredPiece other;
  other.id = 50;
  other.domain = *cache->index().domain_digest(domains.approximate);
  other.token_bytes = static_cast<uint32_t>(kShape.token_bytes());
  other.tokens = more;
  for (const bool known : {true, false}) {
    store->finish();
    begin(known ? std::vector{other} : std::vector<StoredPiece>());
    store->keep(last);
    store->finish();
    const std::vector<StoredPiece> put = tier->put_so_far();
    const auto piece = std::ranges::find(put, more, &StoredPiece::tokens);
    EXPECT_EQ(piece == put.end(), known) << "equal tokens are stored once";
    EXPECT_EQ(tier->annexes().empty(), known) << known;
    if (known) continue;
    EXPECT_EQ(tier->annexes().begin()->first, piece->id);
  }
}

TEST_F(SpillTest, ABranchOfWhatIsCutToo) {
  const Tokens branch = join(Tokens(prompt.begin(), prompt.begin() + 300), text(9, 40));
  const SegmentId other = ask(branch).published.segments.at(0);
  store->keep(other);  // the first part of what it continues
  store->keep(other);
  store->keep(other);
  store->finish();  // and the rest of that
  const std::vector<StoredPiece> put = tier->put_so_far();
  ASSERT_EQ(put.size(), 4u);
  EXPECT_EQ(put[2].tokens, text(9, 40));
  EXPECT_EQ(put[2].parent, put[1].id);
  EXPECT_EQ(put[2].parent_tokens, 50) << "of tokens 250 to 500";
  EXPECT_EQ(put[3].parent, put[1].id);
  EXPECT_EQ(put[3].parent_tokens, 250);
}

}  // namespace
}  // namespace kvilt

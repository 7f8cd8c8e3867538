// apps/bench/scale_pool.cc: see scale_pool.h.
#include "apps/bench/scale_pool.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "engine/content_cache.h"
#include "kv/extent.h"
#include "kv/ghost_list.h"
#include "kv/page_store.h"

namespace kvilt {
namespace {

constexpr int kIds = kExtentSlots;  // token ids that stand for a block: a page, and an extent

// One layer and one head of two numbers: memory that is reserved and never touched.
PageStore pool_of(int64_t blocks) {
  const KvShape shape{.L = 1, .G = 1, .E = 2, .P = kIds, .dtype = DType::kF32};
  Result<PageStore> store = PageStore::create(shape, blocks * shape.page_bytes());
  CHECK(store.ok() && store->extent_pages() == 1);
  return std::move(store).value();
}

class ExtentsPool : public SimulatedPool {
 public:
  explicit ExtentsPool(int64_t blocks) : store_(pool_of(blocks)), ghosts_(static_cast<size_t>(blocks)) {}

  size_t known(Blocks prompt) const override {
    size_t n = 0;
    while (n < prompt.size() && held_.contains(prompt[n])) ++n;
    return n;
  }

  void serve(Blocks prompt, Changes& changes) override {
    prompt = prompt.first(std::min(prompt.size(), static_cast<size_t>(store_.pages())));
    std::vector<ExtentUse> uses;
    for (const uint64_t block : prompt) {
      const auto held = held_.find(block);
      uses.emplace_back(held == held_.end() ? nullptr : held->second.get());
    }
    for (size_t i = 0; i < prompt.size(); ++i) {
      if (!uses[i]) uses[i] = enter(prompt[i], changes);
    }
    while (!uses.empty()) uses.pop_back();
  }

 private:
  // As ContentCache::regret has it.
  ExtentUse enter(uint64_t block, Changes& changes) {
    if (const auto twin = held_.find(block); twin != held_.end()) return ExtentUse(twin->second.get());
    if (store_.free_pages() == 0) evict(changes);
    ExtentUse extent(new Extent(store_, 0));
    extent->put(0, 0, store_.alloc());
    extent->cover(0, 0, 1);
    extent->segments.push_back(block);
    if (const std::optional<bool> again = ghosts_.take(block)) {
      store_.idle().missed(0, 1, *again, ghosts_.odds(*again));
      extent->again = true;
    }
    held_.emplace(block, ExtentKeep(extent.get()));
    changes.stored.push_back(block);
    return extent;
  }

  void evict(Changes& changes) {
    Extent* const extent = store_.idle().next();
    CHECK(extent);
    const uint64_t block = extent->segments[0];
    ghosts_.add(block, extent->again);
    extent->evict();
    held_.erase(block);
    changes.removed.push_back(block);
  }

  PageStore store_;
  GhostList ghosts_;
  std::unordered_map<uint64_t, ExtentKeep> held_;
};

// A block's ids: at the end of each of the index's blocks its number, before that what no other block has there.
void append_block_ids(uint64_t block, std::vector<int32_t>& out) {
  constexpr int kGroup = ChainIndex::kBlockTokens;
  for (int i = 0; i < kIds; ++i) {
    uint64_t id = StepTable<uint64_t>::mixed(block * kIds + static_cast<uint64_t>(i));
    if (i % kGroup == kGroup - 3) id = static_cast<uint64_t>(i / kGroup);
    if (i % kGroup == kGroup - 2) id = block;
    if (i % kGroup == kGroup - 1) id = block >> 31;
    out.push_back(static_cast<int32_t>(id & INT32_MAX));
  }
}

// A block is stored when the last of its ids is, and removed with it: what is cut loses its end first.
class ToldOfBlocks : public IndexListener {
 public:
  SimulatedPool::Changes* changes = nullptr;

  void blocks_stored(const ToldDomain&, const ToldBlocks& told) noexcept override {
    constexpr size_t kGroup = ChainIndex::kBlockTokens;
    for (size_t i = 0; i < told.keys.size(); ++i) {
      const int32_t* const ids = &told.tokens[i * kGroup];
      if (ids[kGroup - 3] != kIds / static_cast<int>(kGroup) - 1) continue;
      const uint64_t block = static_cast<uint64_t>(ids[kGroup - 2]) | static_cast<uint64_t>(ids[kGroup - 1]) << 31;
      if (blocks_.emplace(told.keys[i], block).second) changes->stored.push_back(block);
    }
  }
  void blocks_removed(const ToldDomain&, std::span<const uint64_t> keys) noexcept override {
    for (const uint64_t key : keys) {
      const auto known = blocks_.find(key);
      if (known == blocks_.end()) continue;
      changes->removed.push_back(known->second);
      blocks_.erase(known);
    }
  }
  void piece_stored(const ToldDomain&, SegmentId, std::span<const int32_t>) noexcept override {}
  void piece_removed(const ToldDomain&, SegmentId) noexcept override {}
  void cleared() noexcept override {}

 private:
  std::unordered_map<uint64_t, uint64_t> blocks_;  // by the key of the last group
};

class EnginePool : public SimulatedPool {
 public:
  explicit EnginePool(int64_t blocks)
      : pages_(blocks), cache_(pool_of(blocks), HashSecret::fixed(1), "simulated", kIds), domains_(cache_.domains({})) {
    rope_.rotary_dim = 2;
    rope_.inv_freq = {1.0};
    cache_.listen(&told_);
  }

  size_t known(Blocks prompt) const override {
    const std::vector<int32_t> ids = ids_of(prompt);
    const std::vector<Piece> chain = cache_.index().find_prefix(ids, domains_.exact, static_cast<int32_t>(ids.size()));
    return chain.empty() ? 0 : static_cast<size_t>((chain.back().pos + chain.back().count) / kIds);
  }

  // As a request does: what is known is placed, the rest has pages of its own, and is published.
  void serve(Blocks prompt, Changes& changes) override {
    told_.changes = &changes;
    const std::vector<int32_t> ids = ids_of(prompt.first(std::min(prompt.size(), static_cast<size_t>(pages_))));
    if (ids.empty()) return;
    ContentCache::Found found = cache_.find(ids, {}, domains_, {.prefix = true, .pieces = false});
    PageTable kv(cache_.store(), rope_);
    for (Placement& placement : found.placements) kv.place(std::move(placement));
    const std::vector<Runs> sets{found.layout.fresh()};
    const std::vector<uint16_t> write(1, 0);
    if (!cache_.make_room(kv.pages_for(sets, write)))
      return;  // a page more than the prompt has, where its end is known
    kv.add(sets, write);
    (void)cache_.publish_prompt({kv, found.layout, ids, {}, domains_, static_cast<int32_t>(ids.size()), found.exact});
  }

 private:
  static std::vector<int32_t> ids_of(Blocks prompt) {
    std::vector<int32_t> ids;
    ids.reserve(prompt.size() * kIds);
    for (const uint64_t block : prompt) append_block_ids(block, ids);
    return ids;
  }

  const int64_t pages_;
  ToldOfBlocks told_;  // before cache_, which tells it
  RopeConfig rope_;
  ContentCache cache_;
  const ContentDomains domains_;
};

}  // namespace

std::unique_ptr<SimulatedPool> extents_pool(int64_t blocks) { return std::make_unique<ExtentsPool>(blocks); }
std::unique_ptr<SimulatedPool> engine_pool(int64_t blocks) { return std::make_unique<EnginePool>(blocks); }

}  // namespace kvilt

// Keys that stay when a table lets go of the others: against a plain map of what was written, and by counting pages.
#include "kv/kept_keys.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "kv/page_table.h"
#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

class KeptKeysTest : public testing::Test {
 protected:
  static constexpr int32_t kOwn = 70, kPlacedKeys = 40, kPlacedTo = 20;  // of 70 positions, 40 are placed from 20 on
  KeptKeysTest() : store(PageStore::create(kShape, 600 * kShape.page_bytes()).value()), rope(small_rope()) {}

  static void put(PageTable& table, int who, const Runs& runs) {
    for (int layer = 0; layer < kShape.L; ++layer) {
      for (const int32_t pos : positions(runs))
        table.write(layer, pos, row(who, layer, pos).data(), row(who, layer, pos).data());
    }
  }
  std::unique_ptr<PageTable> own_table() {
    auto table = std::make_unique<PageTable>(store, rope);
    const Runs all{{0, kOwn}};
    table->add(std::vector<Runs>{all}, std::vector<uint16_t>(kShape.L, 0));
    put(*table, 1, all);
    return table;
  }
  // Positions [20, 60) come from another request's [3, 43).
  std::unique_ptr<PageTable> placed_table() {
    PageTable source(store, rope);
    source.add(std::vector<Runs>{{{0, 50}}}, std::vector<uint16_t>(kShape.L, 0));
    put(source, 2, {{0, 50}});
    auto table = std::make_unique<PageTable>(store, rope);
    table->place({source.publish({0, 50}), 3, kPlacedKeys, kPlacedTo});
    const Runs own{{0, kPlacedTo}, {25, 28}, {kPlacedTo + kPlacedKeys, kOwn}};
    table->add(std::vector<Runs>{own}, std::vector<uint16_t>(kShape.L, 0));
    put(*table, 1, own);
    return table;
  }
  // Others for each head, the first with none of the last ones.
  static std::vector<Runs> some(uint32_t seed, int32_t end) {
    std::mt19937 rng(seed);
    std::vector<Runs> out;
    for (int i = 0; i < kShape.L * kShape.G; ++i) {
      std::vector<int32_t> kept;
      for (int32_t pos = 0; pos < end; ++pos) {
        if (static_cast<int>(rng() % 6) < i % 5) kept.push_back(pos);
      }
      out.push_back(runs_of(kept));
    }
    return out;
  }
  struct Key {
    float k, v;
    const float* rotation;
    friend bool operator==(const Key&, const Key&) = default;
  };
  static std::map<int32_t, Key> read(const PageTable& table, int layer, int head, const Runs& of) {
    std::vector<KvSpan> spans;
    for (const kvilt::Run& run : of) table.resolve(layer, head, run, {.window = 0}, spans);
    std::map<int32_t, Key> out;
    for (const KvSpan& span : spans) {
      for (int32_t i = 0; i < span.count; ++i) {
        const Key key{static_cast<const float*>(span.k)[i * kShape.E + 1],
                      static_cast<const float*>(span.v)[i * kShape.E + 3], span.rotation};
        EXPECT_TRUE(out.emplace(span.pos + i, key).second);
      }
    }
    return out;
  }
  using All = std::vector<std::map<int32_t, Key>>;
  static All read(const PageTable& table, const std::vector<Runs>& of) {
    All out;
    for (int i = 0; i < kShape.L * kShape.G; ++i) out.push_back(read(table, i / kShape.G, i % kShape.G, of[i]));
    return out;
  }
  static int64_t pages_of(const std::vector<Runs>& kept) {
    int64_t pages = 0;
    for (const Runs& runs : kept) pages += (count(runs) + kShape.P - 1) / kShape.P;
    return pages;
  }

  PageStore store;
  RopeConfig rope;
};

TEST_F(KeptKeysTest, WhatStaysIsAsItWasAndTheRestIsFree) {
  for (const bool placed : {false, true}) {
    for (uint32_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(seed);
      const int64_t none = store.free_pages();
      const auto table = placed ? placed_table() : own_table();
      const std::vector<Runs> kept = some(seed, kOwn);
      const All before = read(*table, kept);
      const int64_t full = store.free_pages();
      if (!placed) {
        EXPECT_EQ(table->pages_to_compact(kept), 0) << "its own pages have room for them";
      }
      table->compact(kept);
      EXPECT_EQ(read(*table, kept), before);
      EXPECT_EQ(table->private_pages(), pages_of(kept));
      EXPECT_EQ(store.free_pages(), none - pages_of(kept)) << "with what it placed, which nobody else keeps";
      EXPECT_GT(store.free_pages(), full) << "power";
      EXPECT_FALSE(table->whole());
      EXPECT_TRUE(table->placements().empty() && table->first_placements().empty());
    }
  }
  bool turned = false;
  const auto table = placed_table();
  const std::vector<Runs> kept = some(3, kOwn);
  table->compact(kept);
  for (const auto& head : read(*table, kept)) {
    for (const auto& [pos, key] : head) turned = turned || key.rotation;
  }
  EXPECT_TRUE(turned) << "power: rotations stay with their keys";
}

TEST_F(KeptKeysTest, RowsJoinAndWhatDiesLaterGoesToo) {
  const auto table = placed_table();
  std::vector<Runs> kept = some(1, kOwn);
  table->compact(kept);
  for (int32_t pos = kOwn; pos < kOwn + 100; ++pos) {
    const int64_t before = store.free_pages(), pages = table->pages_for_next();
    table->add_next(pos);
    EXPECT_EQ(store.free_pages(), before - pages);
    put(*table, 5, {{pos, pos + 1}});
    for (Runs& runs : kept) runs = unite(runs, Runs{{pos, pos + 1}});
  }
  const All all = read(*table, kept);
  EXPECT_EQ(all[2].at(kOwn + 50).k, row(5, 1, kOwn + 50)[1]);
  for (int i = 0; i < kShape.L * kShape.G; ++i) {
    const int layer = i / kShape.G, head = i % kShape.G;
    const Runs fewer = subtract(kept[i], Runs{{30, kOwn + 10 * i}});
    const auto as_before = read(*table, layer, head, fewer);
    const int64_t free = store.free_pages();
    EXPECT_EQ(table->slots_of(layer, head), count(kept[i]));
    table->compact(layer, head, fewer);
    EXPECT_EQ(read(*table, layer, head, fewer), as_before);
    EXPECT_EQ(table->slots_of(layer, head), count(fewer));
    EXPECT_EQ(store.free_pages() - free,
              (count(kept[i]) + kShape.P - 1) / kShape.P - (count(fewer) + kShape.P - 1) / kShape.P);
    kept[i] = fewer;
  }
  EXPECT_EQ(table->private_pages(), pages_of(kept));
}

// Heads with windows have dropped pages before; a cached segment keeps its own.
TEST_F(KeptKeysTest, OthersKeepTheirs) {
  const auto shared = placed_table();
  const auto segment = shared->placements()[0].segment;
  const int64_t free = store.free_pages();
  {
    PageTable table(store, rope);
    table.place({segment, 0, 50, 7});
    std::vector<HeadKeep> keeps(static_cast<size_t>(kShape.L * kShape.G));
    for (size_t i = 0; i < keeps.size(); i += 2) keeps[i] = {2, 9};
    const Runs own{{0, 7}, {57, 90}};
    table.add(std::vector<Runs>{own}, std::vector<uint16_t>(kShape.L, 0));
    put(table, 1, own);
    table.keep(keeps, 0);
    table.passed({0, kShape.L}, 90);
    EXPECT_GT(table.dropped_pages(), 0);
    std::vector<Runs> kept;
    for (int i = 0; i < kShape.L * kShape.G; ++i) kept.push_back(i % 2 == 0 ? Runs{{0, 2}, {81, 90}} : Runs{{3, 60}});
    const All before = read(table, kept);
    table.compact(kept);
    EXPECT_EQ(read(table, kept), before);
  }
  EXPECT_EQ(store.free_pages(), free);
  EXPECT_EQ(read(*shared, 0, 0, {{kPlacedTo, 24}}).at(kPlacedTo).k, row(2, 0, 3)[1]);
}

TEST_F(KeptKeysTest, WhatIsGoneCannotBeRead) {
  const auto table = own_table();
  table->compact(std::vector<Runs>(static_cast<size_t>(kShape.L * kShape.G), Runs{{0, 10}}));
  std::vector<KvSpan> spans;
  table->resolve(0, 0, {9, 10}, {.window = 0}, spans);
  EXPECT_EQ(spans.size(), 1u) << "power";
  EXPECT_DEATH(table->resolve(0, 0, {9, 11}, {.window = 0}, spans), "");
}

// Pages that a cached segment keeps are never written over.
TEST_F(KeptKeysTest, WhatIsPublishedStays) {
  const auto table = own_table();
  const auto segment = table->publish({0, 30});
  EXPECT_DEATH(table->compact(std::vector<Runs>(static_cast<size_t>(kShape.L * kShape.G), Runs{{0, 10}})), "kept");
}

}  // namespace
}  // namespace kvilt

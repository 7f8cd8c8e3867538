// Annexes: what a placement reads of them, whose pages they are, and that they go with the KV.
#include "kv/annex.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kv/page_table.h"
#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

constexpr int64_t kRow = 3 * sizeof(float);
constexpr AnnexKind kAtTwo{AnnexOf::kHiddenF32, 2};

class AnnexTest : public testing::Test {
 protected:
  AnnexTest() : store(PageStore::create(kShape, 4000 * kShape.page_bytes()).value()), slots(store.extent_slots()) {}

  std::unique_ptr<PageTable> table_with(const Runs& own) {
    auto table = std::make_unique<PageTable>(store, rope);
    table->add(std::vector<Runs>{own}, std::vector<uint16_t>(kShape.L, 0));
    return table;
  }
  // A row that names its position.
  static std::vector<float> row_of(int32_t pos) { return {static_cast<float>(pos), 0.5f, -static_cast<float>(pos)}; }
  static std::vector<std::byte> rows_of(kvilt::Run positions) {
    std::vector<std::byte> out;
    for (int32_t pos = positions.begin; pos < positions.end; ++pos) {
      const auto row = row_of(pos);
      const auto bytes = std::as_bytes(std::span(row));
      out.insert(out.end(), bytes.begin(), bytes.end());
    }
    return out;
  }
  static std::vector<float> read(const PageTable& table, int32_t pos, AnnexKind kind = kAtTwo) {
    std::vector<float> out(3);
    annex_row(table.first_placements(), kind, pos, std::as_writable_bytes(std::span(out)));
    return out;
  }
  int64_t used() const { return store.pages() - store.free_pages(); }

  const RopeConfig rope = small_rope();
  PageStore store;
  const int32_t slots;
};

TEST_F(AnnexTest, APlacementReadsTheRowsOfItsTokens) {
  auto writer = table_with({{0, 2 * slots}});
  const auto kv = writer->publish({0, 2 * slots});
  const kvilt::Run part{10, slots + 20};  // in both extents
  const auto bytes = rows_of(part);
  const int64_t before = used();
  const int64_t most = kv->pages_to_attach(kAtTwo, part, std::ssize(bytes));
  kv->attach(kAtTwo, part, bytes);
  EXPECT_GT(used(), before);
  EXPECT_LE(used() - before, most);
  PageTable reader(store, rope);
  reader.place({kv, 0, 15, 100});
  reader.place({kv, slots - 2, 40, 200});
  // Tokens 0 to 14 of the segment are at 100: those from 10 on have a row; tokens slots - 2 on at 200, up to slots + 19.
  EXPECT_EQ(annexed(reader.first_placements(), kAtTwo), (Runs{{110, 115}, {200, 222}}));
  EXPECT_EQ(read(reader, 112), row_of(12));
  EXPECT_EQ(read(reader, 200), row_of(slots - 2));
  EXPECT_EQ(read(reader, 221), row_of(slots + 19));
  EXPECT_TRUE(annexed(reader.first_placements(), {AnnexOf::kHiddenF32, 1}).empty()) << "power: another layer";
  EXPECT_TRUE(annexed(reader.first_placements(), {AnnexOf::kHiddenInt8, 2}).empty());
}

TEST_F(AnnexTest, BlocksOfASegmentAreListedOnce) {
  constexpr AnnexKind kStats{AnnexOf::kBlockStats, 0};
  auto writer = table_with({{0, 3 * slots}});
  const auto kv = writer->publish({0, 3 * slots});
  const kvilt::Run runs[] = {{5, 20}, {10, 2 * slots + 3}, {slots, slots + 9}};
  for (const kvilt::Run& run : runs) kv->attach(kStats, run, std::vector<std::byte>(40, std::byte{1}));
  kv->attach(kAtTwo, {0, 30}, rows_of({0, 30}));
  const auto listed = [&](kvilt::Run positions) {
    Runs out;
    for (const Annex* annex : blocks_within(*kv, positions)) out.push_back(annex->positions());
    std::ranges::sort(out, {}, &kvilt::Run::end);
    return out;
  };
  EXPECT_EQ(listed({0, 3 * slots}), (Runs{runs[0], runs[2], runs[1]})) << "no rows by token";
  EXPECT_EQ(listed({5, 2 * slots + 2}), (Runs{runs[0], runs[2]})) << "only whole ones";
  EXPECT_TRUE(listed({2 * slots + 3, 3 * slots}).empty());
}

// A hot text that is found in ever other runs does not collect a block for each of them.
TEST_F(AnnexTest, OfTooManyBlocksTheOldestGo) {
  constexpr AnnexKind kStats{AnnexOf::kBlockStats, 0}, kMeans{AnnexOf::kBlockMeans, 0};
  auto writer = table_with({{0, slots}});
  const auto kv = writer->publish({0, slots});
  const std::vector<std::byte> some(40, std::byte{1});
  kv->attach(kMeans, {0, 9}, some);
  kv->attach(kAtTwo, {0, 30}, rows_of({0, 30}));
  const auto listed = [&] { return std::ssize(blocks_within(*kv, {0, slots})); };
  for (int32_t i = 0; i < kMostBlocks; ++i) kv->attach(kStats, {i, 20 + i}, some);
  EXPECT_EQ(listed(), kMostBlocks + 1) << "power: all are there";
  const int64_t full = used();
  for (int32_t i = kMostBlocks; i < 3 * kMostBlocks; ++i) kv->attach(kStats, {i, 20 + i}, some);
  EXPECT_EQ(listed(), kMostBlocks + 1);
  EXPECT_EQ(used(), full);
  PageTable reader(store, rope);
  reader.place({kv, 0, slots, 0});
  const auto blocks = annex_blocks(reader.first_placements(), kStats);
  ASSERT_EQ(blocks.size(), static_cast<size_t>(kMostBlocks));
  EXPECT_EQ(blocks.back().positions, (kvilt::Run{3 * kMostBlocks - 1, 3 * kMostBlocks + 19})) << "the newest stays";
  EXPECT_EQ(annexed(reader.first_placements(), kAtTwo), (Runs{{0, 30}})) << "rows by token do not count";
}

TEST_F(AnnexTest, ItsPagesGoWithTheKv) {
  auto writer = table_with({{0, 2 * slots}});
  auto kv = writer->publish({0, 2 * slots});
  kv->attach(kAtTwo, {0, 2 * slots}, rows_of({0, 2 * slots}));
  const int64_t all = used();
  writer.reset();
  EXPECT_EQ(used(), all);
  EXPECT_EQ(store.idle().pages(), all) << "an idle annex is counted as pages that eviction frees";
  store.idle().next()->evict();  // the second extent
  EXPECT_EQ(used(), all / 2);
  EXPECT_EQ(store.idle().pages(), all / 2);
  {
    PageTable reader(store, rope);
    reader.place({kv, 0, slots, 0});
    EXPECT_EQ(annexed(reader.first_placements(), kAtTwo), (Runs{{0, slots}}));
    EXPECT_EQ(store.idle().pages(), 0) << "who reads it pins it";
    EXPECT_EQ(read(reader, 3), row_of(3));
  }
  kv.reset();
  EXPECT_EQ(used(), 0);
  EXPECT_EQ(store.idle().pages(), 0);
}

TEST_F(AnnexTest, WhatIsNotPublishedLeavesNothing) {
  auto writer = table_with({{0, 40}});
  auto kv = writer->publish({0, 20});
  kv->attach(kAtTwo, {0, 20}, rows_of({0, 20}));
  kv.reset();
  EXPECT_GT(used(), 0);
  writer.reset();
  EXPECT_EQ(used(), 0);
}

TEST_F(AnnexTest, WhatHasARowKeepsIt) {
  auto writer = table_with({{0, 40}});
  const auto kv = writer->publish({0, 40});
  kv->attach(kAtTwo, {0, 20}, rows_of({0, 20}));
  auto other = rows_of({10, 30});
  const float mark = 7;
  for (size_t at = 0; at < other.size(); at += kRow) std::memcpy(other.data() + at + 4, &mark, 4);
  kv->attach(kAtTwo, {10, 30}, other);
  const int64_t now = used();
  kv->attach(kAtTwo, {0, 30}, rows_of({0, 30}));
  EXPECT_EQ(used(), now) << "nothing is kept twice";
  PageTable reader(store, rope);
  reader.place({kv, 0, 40, 0});
  EXPECT_EQ(annexed(reader.first_placements(), kAtTwo), (Runs{{0, 30}}));
  EXPECT_EQ(read(reader, 15)[1], 0.5f);
  EXPECT_EQ(read(reader, 25)[1], mark);
}

TEST_F(AnnexTest, ALayerWithoutASlotHasNoRow) {
  PageTable table(store, rope);
  table.add(std::vector<Runs>{{{0, 10}}, {{4, 10}}}, std::vector<uint16_t>{0, 0, 1});
  const auto kv = table.publish({0, 10});
  kv->attach(kAtTwo, {0, 10}, rows_of({0, 10}));
  kv->attach({AnnexOf::kHiddenF32, 1}, {0, 10}, rows_of({0, 10}));
  const std::vector<Placement> placed{{kv, 0, 10, 0}};
  EXPECT_EQ(annexed(placed, kAtTwo), (Runs{{4, 10}}));
  EXPECT_EQ(annexed(placed, {AnnexOf::kHiddenF32, 1}), (Runs{{0, 10}}));
}

// A block about a run is of use where all of it is placed, and goes with the last of its tokens.
TEST_F(AnnexTest, ABlockIsHandedOutWhole) {
  constexpr AnnexKind kBlock{static_cast<AnnexOf>(200), 0};
  auto writer = table_with({{0, 2 * slots}});
  const auto kv = writer->publish({0, 2 * slots});
  const kvilt::Run about{slots - 5, slots + 5};
  kv->attach(kBlock, about, rows_of({0, 100}));
  kv->attach(kBlock, about, rows_of({7, 9}));
  std::vector<Placement> placed{{kv, slots - 10, 30, 50}, {kv, slots - 4, 30, 150}};
  const auto blocks = annex_blocks(placed, kBlock);
  ASSERT_EQ(blocks.size(), 1u) << "the second placement lacks its first token";
  EXPECT_EQ(blocks[0].positions, (kvilt::Run{55, 65}));
  EXPECT_EQ(blocks[0].annex->bytes(), 100 * kRow);
  std::vector<std::byte> out(100 * kRow);
  blocks[0].annex->read(0, out);
  EXPECT_EQ(out, rows_of({0, 100}));
  placed.clear();
  writer.reset();
  store.idle().next()->evict();
  placed.push_back({kv, slots - 10, 10, 0});
  EXPECT_TRUE(annex_blocks(placed, kBlock).empty());
}

}  // namespace
}  // namespace kvilt

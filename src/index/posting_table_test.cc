#include "index/posting_table.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

namespace kvilt {
namespace {

std::vector<Posting> all_of(const PostingTable& table, uint64_t key, int limit = 1 << 20) {
  std::vector<Posting> found;
  table.visit(key, limit, [&](const Posting& p) {
    found.push_back(p);
    return true;
  });
  return found;
}

TEST(PostingTable, KeepsTheAskedOrder) {
  PostingTable table;
  EXPECT_FALSE(table.contains(7));
  table.add(7, {1, 10}, PostingTable::Place::kBack);
  table.add(7, {2, 20}, PostingTable::Place::kBack);
  table.add(7, {3, 30}, PostingTable::Place::kFront);
  EXPECT_EQ(all_of(table, 7), (std::vector<Posting>{{3, 30}, {1, 10}, {2, 20}}));
  EXPECT_EQ(all_of(table, 7, 2), (std::vector<Posting>{{3, 30}, {1, 10}}));
  EXPECT_TRUE(all_of(table, 8).empty());
}

TEST(PostingTable, KeyZeroIsAKey) {
  PostingTable table;
  const uint32_t node = table.add(0, {1, 1}, PostingTable::Place::kBack);
  EXPECT_TRUE(table.contains(0));
  table.remove(0, node);
  EXPECT_FALSE(table.contains(0));
}

// Against a map of deques, with keys of so few homes that clusters wrap, merge and are taken apart.
void against_model(uint64_t key_count, uint64_t spread, uint64_t seed) {
  std::mt19937_64 random(seed);
  PostingTable table;
  std::map<uint64_t, std::deque<std::pair<uint32_t, Posting>>> model;
  size_t size = 0;
  for (int step = 0; step < 20000; ++step) {
    const uint64_t key = (random() % key_count) * spread + 60;
    auto& list = model[key];
    const bool growing = step % 8000 < 5000;
    if (random() % 10 < (growing ? 7 : 2)) {
      const Posting posting{static_cast<uint32_t>(random() >> 33), step};
      const bool front = random() % 2 != 0;
      const uint32_t node = table.add(key, posting, front ? PostingTable::Place::kFront : PostingTable::Place::kBack);
      front ? list.emplace_front(node, posting) : list.emplace_back(node, posting);
      ++size;
    } else if (!list.empty()) {
      const size_t i = random() % list.size();
      table.remove(key, list[i].first);
      list.erase(list.begin() + static_cast<ptrdiff_t>(i));
      --size;
    }
    ASSERT_EQ(table.size(), size);
    if (step % 1000 != 0) continue;
    for (const auto& [k, postings] : model) {
      std::vector<Posting> expected;
      for (const auto& p : postings) expected.push_back(p.second);
      ASSERT_EQ(all_of(table, k), expected) << "key " << k << " at step " << step;
    }
  }
}

TEST(PostingTable, TwinsComeLastUntilPromoted) {
  PostingTable table;
  table.add(7, {1, 0}, PostingTable::Place::kFront);
  const uint32_t first = table.add(7, {2, 0}, PostingTable::Place::kTwin);
  const uint32_t second = table.add(7, {3, 0}, PostingTable::Place::kTwin);
  table.add(7, {4, 0}, PostingTable::Place::kFront);
  EXPECT_EQ(all_of(table, 7), (std::vector<Posting>{{4, 0}, {1, 0}}));
  std::vector<uint32_t> twins;
  table.visit_twins(7, 9, [&](const Posting&, uint32_t node) {
    twins.push_back(node);
    return true;
  });
  EXPECT_EQ(twins, (std::vector<uint32_t>{second, first}));
  EXPECT_TRUE(table.is_twin(second));
  table.promote(7, second);
  EXPECT_FALSE(table.is_twin(second));
  EXPECT_EQ(all_of(table, 7), (std::vector<Posting>{{3, 0}, {4, 0}, {1, 0}}));
  table.remove(7, first);
  EXPECT_EQ(all_of(table, 7), (std::vector<Posting>{{3, 0}, {4, 0}, {1, 0}}));
  EXPECT_EQ(table.size(), 3u);
  const uint32_t alone = table.add(8, {5, 0}, PostingTable::Place::kTwin);
  table.promote(8, alone);
  EXPECT_EQ(all_of(table, 8), (std::vector<Posting>{{5, 0}}));
}

TEST(PostingTable, EqualsAModel) {
  against_model(2000, 0x9e3779b97f4a7c15ull, 1);
  against_model(2000, 1, 2);    // one long cluster
  against_model(300, 4096, 3);  // all at home in one slot
  against_model(3, 1, 4);       // long lists
}

TEST(PostingTable, ShrinksAgain) {
  PostingTable table;
  const size_t empty = table.bytes();
  std::vector<uint32_t> nodes;
  for (uint64_t i = 0; i < 10000; ++i) nodes.push_back(table.add(i * 77, {0, 0}, PostingTable::Place::kBack));
  const size_t full = table.bytes();
  for (uint64_t i = 0; i < 10000; ++i) table.remove(i * 77, nodes[i]);
  EXPECT_EQ(table.keys(), 0u);
  EXPECT_LE(table.bytes(), 2 * empty);
  EXPECT_GT(full, empty + 10000 * 16);
}

}  // namespace
}  // namespace kvilt

#include "base/step_table.h"

#include <gtest/gtest.h>

#include <random>
#include <unordered_map>

#include "base/chunked.h"

namespace kvilt {
namespace {

struct Word {
  uint64_t value = 0;
  bool empty() const { return value == 0; }
};

// Against a map, with growth and shrinkage under way most of the time, and keys of few homes.
void against_map(uint64_t key_count, uint64_t spread, uint64_t seed) {
  std::mt19937_64 random(seed);
  StepTable<Word> table;
  std::unordered_map<uint64_t, uint64_t> model;
  int moving = 0;
  for (int step = 0; step < 60000; ++step) {
    const uint64_t key = (random() % key_count) * spread;
    const bool growing = step % 20000 < 12000;
    if (random() % 10 < (growing ? 8 : 2)) {
      if (Word* const word = table.find(key)) {
        word->value = model[key] = random() | 1;
      } else {
        table.reserve_one();
        table.insert(key, {model[key] = random() | 1});
      }
    } else if (table.find(key)) {
      table.erase(key);
      model.erase(key);
    }
    moving += table.moving() ? 1 : 0;
    ASSERT_EQ(table.size(), model.size());
    const Word* const found = table.find(key);
    ASSERT_EQ(found ? found->value : 0, model.count(key) ? model[key] : 0) << step;
    if (step % 500 != 0) continue;
    for (uint64_t k = 0; k < key_count; ++k) {
      const Word* const word = table.find(k * spread);
      ASSERT_EQ(word ? word->value : 0, model.count(k * spread) ? model[k * spread] : 0) << k << " at step " << step;
    }
  }
  EXPECT_GT(moving, 300) << "the test is about tables that move";
}

TEST(StepTable, EqualsAMapWhileItGrowsAndShrinks) {
  against_map(3000, 0x9e3779b97f4a7c15ull, 1);
  against_map(3000, 1, 2);       // one long cluster
  against_map(300, 4096, 3);     // all at home in one slot, key 0 included
  against_map(3000, 1 << 7, 4);  // ends of the table: clusters go around
}

TEST(StepTable, NoChangeMovesMoreThanItsShare) {
  StepTable<Word> table;
  size_t most = 0, last = table.bytes();
  for (uint64_t i = 1; i <= 200'000; ++i) {
    table.reserve_one();
    table.insert(StepTable<Word>::mixed(i), {i});
    most = std::max(most, last > table.bytes() ? last - table.bytes() : 0);
    last = table.bytes();
  }
  EXPECT_GE(table.size() * 8, 200'000u);
  EXPECT_LE(most, size_t{1} << 21) << "the old table goes back a part at a time";
  for (uint64_t i = 1; i <= 200'000; ++i) ASSERT_EQ(table.find(StepTable<Word>::mixed(i))->value, i);
  for (uint64_t i = 1; i <= 200'000; ++i) table.erase(StepTable<Word>::mixed(i));
  EXPECT_EQ(table.size(), 0u);
  EXPECT_LE(table.bytes(), size_t{1} << 16) << "what was a peak has gone back";
}

// The last slots of the old table may all be taken. A search that goes around them as often as the table had slots
// (7 ms of a table of 4 million) takes an hour here.
TEST(StepTable, ASearchSeesEachSlotThatIsLeftOnce) {
  constexpr uint64_t kSlots = 1 << 20;
  StepTable<Word> table;
  std::mt19937_64 random(5);
  const auto insert = [&](uint64_t key) {
    table.reserve_one();
    table.insert(key, {1});
  };
  for (uint64_t last = 1; last <= StepTable<Word>::kMoved; ++last) insert(kSlots - last);
  while (table.size() < kSlots * 5 / 8) insert(random() | 1);
  ASSERT_FALSE(table.moving());
  for (uint64_t i = 0; i < kSlots / StepTable<Word>::kMoved; ++i) table.reserve_one();  // the first begins the move
  ASSERT_TRUE(table.moving());
  uint64_t found = 0;
  for (int i = 0; i < 4'000'000; ++i) found += table.find(random() & ~uint64_t{1}) ? 1 : 0;
  for (uint64_t last = 1; last <= StepTable<Word>::kMoved; ++last) found += table.find(kSlots - last) ? 1 : 0;
  EXPECT_EQ(found, uint64_t{StepTable<Word>::kMoved}) << "these have not left";
  table.reserve_one();
  EXPECT_FALSE(table.moving()) << "power: it was the last step";
}

TEST(Chunked, ElementsStayWhereTheyAre) {
  Chunked<int, 3> array;
  for (int i = 0; i < 100; ++i) array.emplace_back() = i;
  const int* const first = &array[0];
  for (int i = 100; i < 1000; ++i) array.emplace_back() = i;
  EXPECT_EQ(first, &array[0]);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(array[i], i);
  array.clear();
  EXPECT_TRUE(array.empty());
  EXPECT_EQ(array.bytes(), 0u);
}

}  // namespace
}  // namespace kvilt

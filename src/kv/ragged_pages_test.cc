// Heads that keep sink and window: what masks show is always there, what they never show again is given back, and a
// head that keeps all is not touched by its neighbours.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "kv/page_table.h"
#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

using Keys = std::map<int32_t, float>;

bool sees(const KeyMask& mask, int32_t i, int32_t j) {
  return j <= i && (mask.window < 0 || i - j <= mask.window || j < mask.sink);
}

KeyMask mask_of(const HeadKeep& keep) { return {.sink = keep.sink, .window = keep.window}; }

class RaggedPages : public testing::Test {
 protected:
  RaggedPages() : store(PageStore::create(kShape, 600 * kShape.page_bytes()).value()), rope(small_rope()) {}

  void write(PageTable& table, int who, int layer, const Runs& runs) {
    for (const int32_t pos : positions(runs))
      table.write(layer, pos, row(who, layer, pos).data(), row(who, layer, pos).data());
  }

  Keys read(const PageTable& table, int layer, int head, kvilt::Run rows, const KeyMask& mask) {
    std::vector<KvSpan> spans;
    table.resolve(layer, head, rows, mask, spans);
    Keys out;
    int32_t last = -1;
    for (const KvSpan& span : spans) {
      EXPECT_GT(span.pos, last);
      EXPECT_GT(span.count, 0);
      last = span.pos + span.count - 1;
      for (int32_t i = 0; i < span.count; ++i) {
        out[span.pos + i] = static_cast<const float*>(span.k)[i * kShape.E];
        EXPECT_EQ(out[span.pos + i], static_cast<const float*>(span.v)[i * kShape.E]);
      }
    }
    EXPECT_LT(last, rows.end);
    return out;
  }

  // Every key that a row sees is there, with its value, and no other.
  void expect_seen(const PageTable& table, int layer, const std::vector<HeadKeep>& keeps, kvilt::Run rows,
                   const Keys& want) {
    for (int head = 0; head < kShape.G; ++head) {
      const KeyMask mask = mask_of(keeps[layer * kShape.G + head]);
      const Keys got = read(table, layer, head, rows, mask);
      for (const auto& [pos, value] : want) {
        bool seen = false;
        for (int32_t i = rows.begin; i < rows.end; ++i) seen = seen || sees(mask, i, pos);
        ASSERT_EQ(got.count(pos), seen ? 1u : 0u) << layer << " " << head << " " << pos;
        if (seen) {
          EXPECT_EQ(got.at(pos), value + static_cast<float>(head * 10000));
        }
      }
      EXPECT_LE(got.size(), want.size());
    }
  }

  std::shared_ptr<const KvSegment> cached(int who, int32_t pos, int32_t count) {
    PageTable table(store, rope);
    const Runs runs{{pos, pos + count}};
    table.add(std::vector<Runs>{runs}, std::vector<uint16_t>(3, 0));
    for (int layer = 0; layer < 3; ++layer) write(table, who, layer, runs);
    return table.publish({pos, pos + count});
  }

  PageStore store;
  RopeConfig rope;
};

int64_t most_pages(const HeadKeep& keep, int32_t chunk) {
  const auto pages = [](int32_t n) { return n == 0 ? 0 : (n + kShape.P - 2) / kShape.P + 1; };
  return pages(keep.sink) + pages(keep.window + chunk);
}

// A prompt of T tokens is written in chunks, but for what is placed; then decode steps follow.
TEST_F(RaggedPages, RandomPromptsSeeWhatTheirMasksShow) {
  std::mt19937 rng(5);
  const auto pick = [&rng](int n) { return static_cast<int32_t>(rng() % static_cast<unsigned>(n)); };
  int64_t dropped = 0;
  for (int round = 0; round < 150; ++round) {
    const int64_t free_before = store.free_pages();
    {
      std::vector<HeadKeep> keeps;
      for (int i = 0; i < kShape.L * kShape.G; ++i)
        keeps.push_back(pick(3) == 0 ? HeadKeep{} : HeadKeep{pick(12), pick(40)});
      const int32_t T = 40 + pick(120), chunk = 1 + pick(30);
      PageTable table(store, rope);
      std::vector<Keys> want(3);
      Runs placed;
      if (pick(2) == 0) {
        const int32_t begin = pick(20), size = 1 + pick(30);
        table.place({cached(1, pick(9), size), 0, size, begin});
        placed = {{begin, begin + size}};
        for (int layer = 0; layer < 3; ++layer) {
          for (int32_t i = 0; i < size; ++i)
            want[layer][begin + i] = row(1, layer, table.placements()[0].segment->pos() + i)[0];
        }
      }
      table.keep(keeps, chunk);
      // Layers write what is not placed; some write placed positions too.
      std::vector<Runs> sets{subtract(Runs{{0, T}}, placed)};
      sets.push_back(unite(sets[0], intersect(placed, Runs{{0, 15}, {18, 19}})));
      const std::vector<uint16_t> by_layer{static_cast<uint16_t>(pick(2)), 1, 0};
      const int64_t before = table.private_pages(), need = table.pages_for(sets, by_layer);
      table.add(sets, by_layer);
      EXPECT_EQ(table.private_pages() - before, need);
      for (int32_t at = 0; at < T; at += chunk) {
        const kvilt::Run rows{at, std::min(at + chunk, T)};
        const int64_t now = table.private_pages(), more = table.pages_for_rows({0, 3}, rows);
        EXPECT_EQ(more, 0) << "what add() reserved is enough";
        table.hold({0, 3}, rows);
        EXPECT_EQ(table.private_pages() - now, more);
        for (int layer = 0; layer < 3; ++layer) {
          const Runs here = intersect(sets[by_layer[layer]], Runs{rows});
          write(table, 2, layer, here);
          for (const int32_t pos : positions(here)) want[layer][pos] = row(2, layer, pos)[0];
          expect_seen(table, layer, keeps, rows, want[layer]);
        }
        table.passed({0, 3}, rows.end);
      }
      table.keep(keeps, 0);
      EXPECT_EQ(table.spare_pages(), 0);
      for (int32_t pos = T; pos < T + 70; ++pos) {
        const int64_t now = table.private_pages(), more = table.pages_for_next();
        table.add_next(pos);
        EXPECT_LE(table.private_pages() - now, more);
        for (int layer = 0; layer < 3; ++layer) {
          write(table, 3, layer, {{pos, pos + 1}});
          want[layer][pos] = row(3, layer, pos)[0];
          expect_seen(table, layer, keeps, {pos, pos + 1}, want[layer]);
        }
        int64_t most = 0;
        for (int i = 0; i < kShape.L * kShape.G; ++i) {
          const HeadKeep& keep = keeps[i];
          const int64_t all = (count(sets[by_layer[i / 2]]) + pos + 1 - T + 7) / 8;
          most += keep.all() ? all
                             : std::min(all, most_pages(keep, 1) + 2);  // + 2: where placed tokens interrupt the slots
        }
        EXPECT_LE(table.private_pages(), most);
      }
      dropped += table.dropped_pages();
    }
    EXPECT_EQ(store.free_pages(), free_before);
  }
  EXPECT_GT(dropped, 1000) << "power";
}

TEST_F(RaggedPages, TheWindowSlidesInDecodeAndPagesComeBack) {
  PageTable table(store, rope);
  std::vector<HeadKeep> keeps(6, HeadKeep{4, 16});
  keeps[3] = {};  // layer 1, head 1
  table.keep(keeps, 0);
  int64_t at_100 = 0;
  const auto local = [&] { return static_cast<double>(table.private_pages() - table.held_pages(1, 1)); };
  for (int32_t pos = 0; pos < 300; ++pos) {
    table.add_next(pos);
    for (int layer = 0; layer < 3; ++layer) write(table, 1, layer, {{pos, pos + 1}});
    if (pos == 100) at_100 = static_cast<int64_t>(local());
    if (pos > 100) {
      EXPECT_NEAR(local(), static_cast<double>(at_100), 5);
    }
  }
  EXPECT_EQ(table.held_pages(1, 1), 38);
  EXPECT_EQ(table.dropped_pages(), 5 * (38 - 4));  // each keeps the sink's page and three of the window's
  EXPECT_EQ(table.private_k(0, 0, 40), nullptr);
  EXPECT_NE(table.private_k(0, 0, 3), nullptr);
  EXPECT_NE(table.private_k(1, 1, 40), nullptr);
  EXPECT_NE(table.private_k(0, 0, 299 - 16), nullptr);
}

// Sink and window overlap, the window is zero, there is no sink: each key once.
TEST_F(RaggedPages, EachKeyOnceWhereSinkAndWindowMeet) {
  PageTable table(store, rope);
  const std::vector<Runs> sets{{{0, 50}}};
  table.add(sets, std::vector<uint16_t>(3, 0));
  write(table, 1, 0, sets[0]);
  const auto size = [&](kvilt::Run rows, KeyMask mask) { return read(table, 0, 0, rows, mask).size(); };
  EXPECT_EQ(size({20, 21}, {.sink = 10, .window = 5}), 16u);
  EXPECT_EQ(size({20, 21}, {.sink = 15, .window = 5}), 21u);
  EXPECT_EQ(size({20, 21}, {.sink = 40, .window = 5}), 21u);
  EXPECT_EQ(size({20, 21}, {.sink = 0, .window = 0}), 1u);
  EXPECT_EQ(size({20, 30}, {.sink = 0, .window = 3}), 13u);
  EXPECT_EQ(size({20, 30}, {.sink = 2, .window = 3, .dense_from = 29}), 30u);
  EXPECT_EQ(size({20, 30}, {.sink = 2, .window = 3, .dense_from = 30}), 15u);
  EXPECT_EQ(size({40, 41}, {.sink = 8, .window = 3, .reach = 6}), 4u);  // a sliding layer hides the sink too
  EXPECT_EQ(size({40, 41}, {.reach = 6}), 7u);
}

// Heads that kept all may be narrowed later: the pages of what rows have passed are given back at once.
TEST_F(RaggedPages, NarrowingGivesBackWhatRowsPassed) {
  PageTable table(store, rope);
  const std::vector<Runs> sets{{{0, 80}}};
  table.add(sets, std::vector<uint16_t>(3, 0));
  for (int layer = 0; layer < 3; ++layer) write(table, 1, layer, sets[0]);
  table.passed({0, 2}, 80);  // layer 2 has not attended yet
  EXPECT_TRUE(table.whole());
  table.keep(std::vector<HeadKeep>(6, HeadKeep{1, 7}), 16);
  EXPECT_FALSE(table.whole());
  EXPECT_EQ(table.dropped_pages(), 4 * (10 - 2));
  EXPECT_NE(table.private_k(2, 0, 30), nullptr);
  table.passed({2, 3}, 80);
  EXPECT_EQ(table.private_k(2, 0, 30), nullptr);
  EXPECT_EQ(read(table, 2, 1, {80, 81}, {.sink = 1, .window = 7}).size(), 8u);
}

// Layers 3 and 4 of the model have no KV: they read that of layers 1 and 2, which is kept until they have passed.
TEST_F(RaggedPages, LayersThatReadOthersKvHaveNoPages) {
  KvShape shape = kShape;
  shape.readers = {1, 2};
  PageStore with_readers = PageStore::create(shape, 600 * shape.page_bytes()).value();
  PageTable table(with_readers, rope), plain(store, rope);
  const std::vector<Runs> sets{{{0, 80}}};
  for (PageTable* each : {&table, &plain}) {
    each->add(sets, std::vector<uint16_t>(each->shape().layers(), 0));  // a plan names all layers
    for (int layer = 0; layer < 3; ++layer) write(*each, 1, layer, sets[0]);
  }
  EXPECT_EQ(table.private_pages(), plain.private_pages());
  EXPECT_EQ(read(table, 3, 1, {79, 80}, {}), read(plain, 1, 1, {79, 80}, {}));
  EXPECT_EQ(read(table, 4, 0, {79, 80}, {}), read(plain, 2, 0, {79, 80}, {}));
  EXPECT_NE(read(table, 3, 0, {79, 80}, {}), read(plain, 2, 0, {79, 80}, {})) << "power";
  EXPECT_EQ(table.known(4), plain.known(2));
  EXPECT_EQ(table.private_k(3, 0, 30), table.private_k(1, 0, 30));
  PageTable placed(with_readers, rope);
  placed.place({table.publish({0, 80}), 10, 20, 15});
  EXPECT_EQ(placed.placed(4, 20).slot, placed.placed(2, 20).slot);

  table.keep(std::vector<HeadKeep>(6, HeadKeep{1, 7}), 16);
  table.passed({0, 4}, 80);  // layer 4 still reads layer 2
  EXPECT_EQ(table.private_k(1, 0, 30), nullptr);
  EXPECT_NE(table.private_k(2, 0, 30), nullptr);
  table.passed({4, 5}, 80);
  EXPECT_EQ(table.private_k(2, 0, 30), nullptr);
}

using RaggedPagesDeathTest = RaggedPages;
TEST_F(RaggedPagesDeathTest, WhatWasDroppedIsNeitherReadNorWidenedNorPublished) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  PageTable table(store, rope);
  table.keep(std::vector<HeadKeep>(6, HeadKeep{1, 7}), 0);
  for (int32_t pos = 0; pos < 50; ++pos) table.add_next(pos);
  std::vector<KvSpan> spans;
  EXPECT_DEATH(table.resolve(0, 0, {49, 50}, {}, spans), "");
  EXPECT_FALSE(table.can_keep({}).ok());
  const auto wider = table.can_keep(std::vector<HeadKeep>(6, HeadKeep{1, 8}));
  ASSERT_FALSE(wider.ok());
  EXPECT_NE(wider.error().message.find("layer 0, KV head 0"), std::string::npos);
  EXPECT_TRUE(table.can_keep(std::vector<HeadKeep>(6, HeadKeep{1, 7})).ok()) << "power";
  EXPECT_TRUE(table.can_keep(std::vector<HeadKeep>(6, HeadKeep{0, 3})).ok());
  EXPECT_DEATH(table.keep({}, 0), "");
  EXPECT_DEATH(table.publish({48, 50}), "");
}

}  // namespace
}  // namespace kvilt

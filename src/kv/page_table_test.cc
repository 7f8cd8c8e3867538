// Page tables against a plain map: every position once, the newest value wins, whatever was placed and written.
#include "kv/page_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

void fill(PageTable& table, int who, const Runs& runs, const std::vector<int>& layers) {
  for (const int layer : layers) {
    for (const int32_t pos : positions(runs))
      table.write(layer, pos, row(who, layer, pos).data(), row(who, layer, pos).data());
  }
}

class PageTableTest : public testing::Test {
 protected:
  PageTableTest() : store(PageStore::create(kShape, 400 * kShape.page_bytes()).value()), rope(small_rope()) {}

  // position -> value of the first element of K at (layer, head); checks order, uniqueness and that V agrees.
  std::map<int32_t, float> read(const PageTable& table, int layer, int head, int32_t end = 1000) {
    std::vector<KvSpan> spans;
    table.resolve(layer, head, {0, end}, {}, spans);
    return values(spans, end);
  }
  std::map<int32_t, float> values(const std::vector<KvSpan>& spans, int32_t end) {
    std::map<int32_t, float> out;
    int32_t last = -1;
    for (const KvSpan& span : spans) {
      EXPECT_GT(span.pos, last);
      EXPECT_GT(span.count, 0);
      last = span.pos + span.count - 1;
      EXPECT_LT(last, end);
      for (int32_t i = 0; i < span.count; ++i) {
        const float k = static_cast<const float*>(span.k)[i * kShape.E];
        EXPECT_EQ(k, static_cast<const float*>(span.v)[i * kShape.E]);
        out[span.pos + i] = k;
      }
    }
    return out;
  }

  std::shared_ptr<const KvSegment> cached(int who, int32_t pos, int32_t count) {
    PageTable table(store, rope);
    const Runs runs{{pos, pos + count}};
    table.add(std::vector<Runs>{runs}, std::vector<uint16_t>(3, 0));
    fill(table, who, runs, {0, 1, 2});
    return table.publish({pos, pos + count});
  }

  PageStore store;
  RopeConfig rope;
};

TEST_F(PageTableTest, FreshSlotsHideTheirStaleTwins) {
  const auto one = cached(1, 5, 30), two = cached(2, 0, 20);
  PageTable table(store, rope);
  table.place({one, 0, 30, 0});
  table.place({two, 3, 10, 30});
  // Layer 2 writes less than layers 0 and 1.
  const std::vector<Runs> sets{{{7, 9}, {30, 31}, {40, 45}}, {{40, 45}}};
  table.add(sets, std::vector<uint16_t>{0, 0, 1});
  fill(table, 9, sets[0], {0, 1});
  fill(table, 9, sets[1], {2});
  for (int layer = 0; layer < 3; ++layer) {
    for (int head = 0; head < 2; ++head) {
      const auto got = read(table, layer, head);
      ASSERT_EQ(got.size(), 45u);
      for (const auto& [pos, value] : got) {
        const bool fresh = contains(sets[layer == 2 ? 1 : 0], pos);
        const int who = fresh ? 9 : pos < 30 ? 1 : 2;
        const int32_t from = fresh ? pos : pos < 30 ? pos + 5 : pos - 27;
        EXPECT_EQ(value, row(who, layer, from)[head * kShape.E]) << layer << " " << pos;
      }
    }
  }
  EXPECT_EQ(read(table, 0, 0, 33).size(), 33u);
  EXPECT_EQ(table.known(0), (Runs{{0, 45}}));
  // The segments were not written.
  PageTable again(store, rope);
  again.place({one, 0, 30, 0});
  EXPECT_EQ(read(again, 1, 1)[7], row(1, 1, 12)[kShape.E]);
}

TEST_F(PageTableTest, RandomTablesAgreeWithAMap) {
  std::mt19937 rng(3);
  for (int round = 0; round < 200; ++round) {
    PageTable table(store, rope);
    std::vector<std::map<int32_t, float>> want(3);
    int32_t pos = 0;
    for (int n = static_cast<int>(rng() % 4); n > 0; --n) {
      pos += static_cast<int32_t>(rng() % 5);
      const int32_t size = 1 + static_cast<int32_t>(rng() % 30), offset = static_cast<int32_t>(rng() % 9);
      const int who = 1 + static_cast<int>(rng() % 5);
      const auto segment = cached(who, static_cast<int32_t>(rng() % 50), size + offset);
      table.place({segment, offset, size, pos});
      for (int layer = 0; layer < 3; ++layer) {
        for (int32_t i = 0; i < size; ++i) want[layer][pos + i] = row(who, layer, segment->pos() + offset + i)[0];
      }
      pos += size;
    }
    for (int n = 1 + static_cast<int>(rng() % 3); n > 0; --n) {  // stages and decode steps
      std::vector<Runs> sets(2);
      for (Runs& set : sets) {
        for (int k = 0; k < 3; ++k) {
          const auto begin = static_cast<int32_t>(rng() % 120);
          set.push_back({begin, begin + static_cast<int32_t>(rng() % 12)});
        }
        set = normalize(set);
      }
      const std::vector<uint16_t> write{0, static_cast<uint16_t>(rng() % 2), static_cast<uint16_t>(rng() % 2)};
      const int64_t before = table.private_pages(), need = table.pages_for(sets, write);
      table.add(sets, write);
      EXPECT_EQ(table.private_pages() - before, need);
      for (int layer = 0; layer < 3; ++layer) {
        const Runs& set = sets[write[layer]];
        fill(table, 10 + n, set, {layer});
        for (const int32_t p : positions(set)) want[layer][p] = row(10 + n, layer, p)[0];
      }
      const int32_t next = 200 + n;
      const int64_t next_need = table.pages_for_next(), now = table.private_pages();
      table.add_next(next);
      EXPECT_EQ(table.private_pages() - now, next_need);
      fill(table, 20, {{next, next + 1}}, {0, 1, 2});
      for (int layer = 0; layer < 3; ++layer) want[layer][next] = row(20, layer, next)[0];
    }
    for (int layer = 0; layer < 3; ++layer) EXPECT_EQ(read(table, layer, 0), want[layer]);
    // Some of the keys, in runs that are next to each other, near or far apart, over gaps and over pages.
    Runs runs;
    for (auto at = static_cast<int32_t>(rng() % 5), far = 1 + static_cast<int32_t>(rng() % 90); at < 220;) {
      runs.push_back({at, at + 1 + static_cast<int32_t>(rng() % 4)});
      at = runs.back().end + static_cast<int32_t>(rng() % far);
    }
    for (int layer = 0; layer < 3; ++layer) {
      std::vector<KvSpan> spans;
      table.resolve(layer, 0, runs, spans);
      std::map<int32_t, float> chosen = want[layer];
      std::erase_if(chosen, [&](const auto& key) { return !contains(normalize(runs), key.first); });
      EXPECT_EQ(values(spans, 1000), chosen);
    }
  }
}

// Decode steps extend the geometry that an earlier resolve() built; a table that resolves only at the end agrees.
TEST_F(PageTableTest, DecodeStepsAfterAResolveAgreeWithAFreshOne) {
  const auto piece = cached(7, 100, 10);
  for (const bool scattered : {false, true}) {
    PageTable often(store, rope), once(store, rope);
    for (PageTable* table : {&often, &once}) {
      table->place({piece, 2, 8, 5});
      const std::vector<Runs> sets{{{0, 5}, {7, 8}, {13, 20}}, {{0, 5}, {9, 10}, {13, 20}}};
      const std::vector<uint16_t> write = scattered ? std::vector<uint16_t>{0, 1, 1} : std::vector<uint16_t>{0, 0, 0};
      table->add(sets, write);
      for (int layer = 0; layer < 3; ++layer) fill(*table, 1, sets[write[layer]], {layer});
    }
    for (int32_t pos = 20; pos < 45; ++pos) {
      for (int layer = 0; layer < 3; ++layer) EXPECT_EQ(read(often, layer, 1).size(), static_cast<size_t>(pos));
      for (PageTable* table : {&often, &once}) {
        table->add_next(pos);
        fill(*table, 2, {{pos, pos + 1}}, {0, 1, 2});
      }
    }
    for (int layer = 0; layer < 3; ++layer) {
      for (int head = 0; head < kShape.G; ++head) {
        std::vector<KvSpan> a, b;
        often.resolve(layer, head, {0, 1000}, {}, a);
        once.resolve(layer, head, {0, 1000}, {}, b);
        EXPECT_EQ(a.size(), b.size());
        EXPECT_EQ(read(often, layer, head), read(once, layer, head));
      }
    }
  }
}

TEST_F(PageTableTest, PiecesOfOneShiftShareARotation) {
  const auto piece = cached(1, 10, 60);
  PageTable table(store, rope);
  for (const int32_t i : {0, 1, 2, 3}) table.place({piece, 10 * i, 8, 10 * i + (i == 2 ? 1 : 0)});
  std::vector<const float*> rotations;
  for (const int32_t pos : {0, 10, 21, 30}) rotations.push_back(table.placed(0, pos).rotation);
  EXPECT_EQ(rotations[0], rotations[1]);
  EXPECT_EQ(rotations[0], rotations[3]);
  EXPECT_NE(rotations[0], rotations[2]) << "power check: another shift";
  EXPECT_NE(rotations[0], nullptr);
}

// A prompt of known one-token pieces in a new order, every second of them computed again. It took minutes (38 s to
// place them alone): each piece looked through all before it.
TEST_F(PageTableTest, ManyPiecesAndRunsAreNotQuadratic) {
  constexpr int32_t kPieces = 1 << 18;
  store =
      PageStore::create(kShape, 3 * int64_t{kPieces} / kShape.P * kShape.L * kShape.G * kShape.page_bytes()).value();
  const auto text = cached(1, 7, kPieces);
  PageTable table(store, rope);
  Runs again;
  for (int32_t pos = 0; pos < kPieces; ++pos) {
    table.place({text, static_cast<int32_t>(int64_t{pos} * 77777 % kPieces), 1, pos});
    if (pos % 2 == 1) again.push_back({pos, pos + 1});
  }
  table.add(std::vector<Runs>{again}, std::vector<uint16_t>(kShape.L, 0));
  fill(table, 2, again, {1});
  const auto got = read(table, 1, 0, kPieces);
  ASSERT_EQ(got.size(), static_cast<size_t>(kPieces));
  for (int32_t pos = 0; pos < kPieces; ++pos) {
    const auto from = static_cast<int32_t>(7 + int64_t{pos} * 77777 % kPieces);
    ASSERT_EQ(got.at(pos), pos % 2 == 1 ? row(2, 1, pos)[0] : row(1, 1, from)[0]) << pos;
  }
  int64_t owned = 0;
  for (int32_t pos = 0; pos < kPieces; ++pos) owned += table.owns({pos, pos + 1});
  EXPECT_EQ(owned, kPieces / 2);
  EXPECT_FALSE(table.owns({1, 4}));
}

// Positions at the end come and go as drafts do: what is left, and the pages, are those of a table that never had them.
TEST_F(PageTableTest, ForgetsItsLastPositions) {
  const auto piece = cached(1, 0, 12);
  PageTable table(store, rope), plain(store, rope);
  const std::vector<Runs> sets{{{2, 4}, {12, 15}}, {{12, 15}}};
  const std::vector<uint16_t> write{0, 0, 1};
  for (PageTable* t : {&table, &plain}) {
    t->place({piece, 0, 12, 0});
    t->add(sets, write);
    fill(*t, 9, sets[0], {0, 1});
    fill(*t, 9, sets[1], {2});
  }
  std::mt19937 rng(5);
  int returned = 0;
  for (int32_t pos = 15; pos < 70;) {
    const auto count = static_cast<int32_t>(1 + rng() % 12), right = static_cast<int32_t>(1 + rng() % count);
    const int64_t before = table.private_pages(), asked = table.pages_for_next(count);
    table.add_next(pos, count);
    EXPECT_EQ(table.private_pages() - before, asked);
    for (int32_t next = pos; next < pos + count; ++next)
      fill(table, next < pos + right ? 9 : 7, {{next, next + 1}}, {0, 1, 2});
    EXPECT_EQ(read(table, 1, 1).size(), static_cast<size_t>(pos + count));
    const int64_t most = table.private_pages();
    table.truncate(pos + right);
    returned += static_cast<int>(most - table.private_pages());
    for (; count > 0 && plain.known(0).back().end < pos + right;) {
      const int32_t next = plain.known(0).back().end;
      plain.add_next(next);
      fill(plain, 9, {{next, next + 1}}, {0, 1, 2});
    }
    pos += right;
    EXPECT_EQ(table.private_pages(), plain.private_pages());
    for (int layer = 0; layer < 3; ++layer) EXPECT_EQ(read(table, layer, 0), read(plain, layer, 0)) << pos;
    EXPECT_EQ(table.known(2), plain.known(2));
  }
  EXPECT_GT(returned, 0) << "power";
  const int64_t used = store.pages() - store.free_pages();
  EXPECT_EQ(used, table.private_pages() + plain.private_pages() + 3 * 2 * 2) << "the piece's are the rest";
}

}  // namespace
}  // namespace kvilt

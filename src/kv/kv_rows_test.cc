// Rows that were copied out and in again are the same bytes, wherever pages end and however slots lie.
#include "kv/kv_rows.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

class KvRowsTest : public testing::Test {
 protected:
  KvRowsTest() {
    // Position p of layer l is in another slot at layer 0 than above: it was written later there.
    table.add(std::vector<Runs>{{{0, 5}, {9, 40}}, {{0, 40}}}, std::vector<uint16_t>{0, 1, 1});
    table.add(std::vector<Runs>{{{5, 9}}}, std::vector<uint16_t>{0, 0, 0});
    for (int layer = 0; layer < kShape.L; ++layer) {
      for (int32_t pos = 0; pos < 40; ++pos) {
        table.write(layer, pos, row(1, layer, pos).data(), row(2, layer, pos).data());
      }
    }
  }
  std::vector<std::byte> out(kvilt::Run positions) const {
    std::vector<std::byte> bytes(static_cast<size_t>(positions.size() * kShape.token_bytes()));
    copy_rows_out(store, *table.publish({0, 40}), positions, bytes);
    return bytes;
  }
  const RopeConfig rope = small_rope();
  PageStore store = PageStore::create(kShape, 300 * kShape.page_bytes()).value();
  PageTable table{store, rope};
};

TEST_F(KvRowsTest, KeysThenValuesByLayerAndHead) {
  const auto bytes = out({3, 20});
  std::vector<float> first(kShape.E);
  for (int layer = 0; layer < kShape.L; ++layer) {
    for (int head = 0; head < kShape.G; ++head) {
      for (int part = 0; part < 2; ++part) {
        for (int32_t i = 0; i < 17; ++i) {
          const int64_t at = ((layer * kShape.G + head) * 2 + part) * 17 + i;
          std::memcpy(first.data(), bytes.data() + at * kShape.row_bytes(), kShape.row_bytes());
          EXPECT_EQ(first[0], row(1 + part, layer, 3 + i)[head * kShape.E]);
        }
      }
    }
  }
}

// Layer by layer, and without the table: from bytes of more positions than are wanted.
TEST_F(KvRowsTest, ComeBackByLayersToWhereTheyAre) {
  const kvilt::Run all{2, 39}, part{7, 30};
  const auto bytes = out(all);
  const auto back = table_for_rows(store, rope, part);
  const auto kv = back->publish(part);
  const RowPlaces places(store, *kv);
  const size_t layer_bytes = bytes.size() / kShape.L;
  const auto rows = [&] {
    std::vector<std::byte> got(static_cast<size_t>(part.size() * kShape.token_bytes()));
    copy_rows_out(store, *kv, part, got);
    return got;
  };
  for (int layer = kShape.L; layer-- > 0;) {
    EXPECT_NE(rows(), out(part)) << "power";
    const auto block = std::span(bytes).subspan(static_cast<size_t>(layer) * layer_bytes, layer_bytes);
    for (const kvilt::Run wanted : {kvilt::Run{7, 16}, kvilt::Run{16, 30}}) places.copy_in(layer, all, block, wanted);
  }
  EXPECT_EQ(rows(), out(part));
}

TEST_F(KvRowsTest, ComeBack) {
  const kvilt::Run all{2, 39}, part{7, 30};
  const auto bytes = out(all);
  EXPECT_EQ(pages_for_rows(store, part), kShape.L * kShape.G * 3);
  const int64_t before = store.free_pages();
  const auto back = table_for_rows(store, rope, part);
  EXPECT_EQ(before - store.free_pages(), pages_for_rows(store, part));
  copy_rows_in(*back, all, bytes, part);
  std::vector<std::byte> again(static_cast<size_t>(part.size() * kShape.token_bytes()));
  copy_rows_out(store, *back->publish(part), part, again);
  EXPECT_EQ(again, out(part));
  EXPECT_NE(again, out({8, 31})) << "power";
}

}  // namespace
}  // namespace kvilt

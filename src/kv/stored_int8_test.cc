// Placed pieces read as 8 bits: a scale a channel over what is placed, K realigned after it; the segment stays as it is.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kv/page_table.h"
#include "kv/rows_for_test.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

constexpr int32_t kAt = 5, kCount = 20, kTo = 40;

struct Rows {
  std::vector<float> k, v;
};

class StoredInt8 : public testing::Test {
 protected:
  StoredInt8() {
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    writer.add(std::vector<Runs>{{{0, 30}}}, std::vector<uint16_t>(kShape.L, 0));
    for (int layer = 0; layer < kShape.L; ++layer) {
      for (int32_t pos = 0; pos < 30; ++pos) {
        Rows& row = written[{layer, pos}];
        for (int i = 0; i < kShape.G * kShape.E; ++i) row.k.push_back(normal(rng)), row.v.push_back(10 * normal(rng));
        writer.write(layer, pos, row.k.data(), row.v.data());
      }
    }
  }
  // Channel e of head g over the placed tokens, rounded, at one of them.
  float rounded(int layer, int32_t pos, int i, std::vector<float> Rows::*of) {
    float most = 0;
    for (int32_t p = kAt; p < kAt + kCount; ++p) most = std::max(most, std::abs((written[{layer, p}].*of)[i]));
    return most / 127 * std::round((written[{layer, pos}].*of)[i] / (most / 127));
  }
  const RopeConfig rope = small_rope();
  PageStore store = PageStore::create(kShape, 400 * kShape.page_bytes()).value();
  PageTable writer{store, rope};
  std::map<std::pair<int, int32_t>, Rows> written;
};

TEST_F(StoredInt8, IsTheRoundedRowRealigned) {
  const auto kv = writer.publish({0, 30});
  PageTable reader(store, rope);
  reader.place({kv, 0, 3, 0});
  reader.place({kv, kAt, kCount, kTo});
  const int64_t free = store.free_pages(), takes = reader.int8_pages(3);
  reader.read_as_int8(3);
  EXPECT_EQ(free - store.free_pages(), takes);
  EXPECT_EQ(reader.placements().size(), 1u) << "what is before stays as it is";
  EXPECT_EQ(reader.first_placements().size(), 2u);
  EXPECT_EQ(reader.owned(), (Runs{{kTo, kTo + kCount}}));
  const auto own = reader.publish({kTo, kTo + kCount});
  const PinnedPages pages = own->pin({kTo, kTo + kCount});
  const auto turn = rotation(rope, kTo - kAt);
  double moved = 0;
  for (int layer = 0; layer < kShape.L; ++layer) {
    for (int32_t t = 0; t < kCount; ++t) {
      const int32_t slot = own->map(layer).slot_of(kTo + t);
      for (int g = 0; g < kShape.G; ++g) {
        std::vector<float> k, v, got(kShape.E);
        for (int e = 0; e < kShape.E; ++e) {
          k.push_back(rounded(layer, kAt + t, g * kShape.E + e, &Rows::k));
          v.push_back(rounded(layer, kAt + t, g * kShape.E + e, &Rows::v));
          moved += std::abs(v.back() - written[{layer, kAt + t}].v[g * kShape.E + e]);
        }
        rotate_head(rope.pairs, rope.rotary_dim, turn.data(), 1, k.data());
        decode_kv_row(kShape.dtype, kShape.E, pages.k(layer, g, slot), got.data());
        EXPECT_EQ(got, k);
        decode_kv_row(kShape.dtype, kShape.E, pages.v(layer, g, slot), got.data());
        EXPECT_EQ(got, v);
      }
    }
  }
  EXPECT_GT(moved, 0.1) << "power: rounding shows";
  const PinnedPages source = kv->pin({0, 30});
  std::vector<float> same(kShape.E);
  decode_kv_row(kShape.dtype, kShape.E, source.v(1, 0, kv->map(1).slot_of(kAt)), same.data());
  EXPECT_TRUE(std::equal(same.begin(), same.end(), written[{1, kAt}].v.begin())) << "the segment is never changed";
}

// Values that are whole steps of their channel's scale pass through the bytes as they are; with a finer one among them
// the scale is another, and they do not.
TEST_F(StoredInt8, WhatIsOnTheGridStaysToTheBit) {
  const auto channels = static_cast<size_t>(kShape.G * kShape.E);
  for (const int largest : {127, 126}) {
    PageTable source(store, rope);
    source.add(std::vector<Runs>{{{0, kCount}}}, std::vector<uint16_t>(kShape.L, 0));
    const auto row_of = [&](int layer, int32_t pos, float step) {
      std::vector<float> out;
      for (size_t i = 0; i < channels; ++i) {
        const int n = static_cast<int>((31 * static_cast<size_t>(pos + layer) + 17 * i) % 251) - 125;
        out.push_back(std::ldexp(step, static_cast<int>(i) - 4) * static_cast<float>(pos == 7 ? largest : n));
      }
      return out;
    };
    for (int layer = 0; layer < kShape.L; ++layer) {
      for (int32_t pos = 0; pos < kCount; ++pos)
        source.write(layer, pos, row_of(layer, pos, 1).data(), row_of(layer, pos, -4).data());
    }
    PageTable reader(store, rope);
    reader.place({source.publish({0, kCount}), 0, kCount, 0});
    reader.read_as_int8(0);
    const auto own = reader.publish({0, kCount});
    const PinnedPages pages = own->pin({0, kCount});
    int changed = 0;
    for (int layer = 0; layer < kShape.L; ++layer) {
      for (int32_t pos = 0; pos < kCount; ++pos) {
        const std::vector<float> k = row_of(layer, pos, 1), v = row_of(layer, pos, -4);
        for (int g = 0; g < kShape.G; ++g) {
          std::vector<float> got_k(kShape.E), got_v(kShape.E);
          const int32_t slot = own->map(layer).slot_of(pos);
          decode_kv_row(kShape.dtype, kShape.E, pages.k(layer, g, slot), got_k.data());
          decode_kv_row(kShape.dtype, kShape.E, pages.v(layer, g, slot), got_v.data());
          changed += std::equal(got_k.begin(), got_k.end(), k.begin() + g * kShape.E) ? 0 : 1;
          changed += std::equal(got_v.begin(), got_v.end(), v.begin() + g * kShape.E) ? 0 : 1;
        }
      }
    }
    if (largest == 127) {
      EXPECT_EQ(changed, 0);
    } else {
      EXPECT_GT(changed, kShape.L * kShape.G * kCount) << "power: most of both";
    }
  }
}

}  // namespace
}  // namespace kvilt

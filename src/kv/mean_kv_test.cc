// The mean over contexts: that of one is the copy, that of several the mean of unrotated keys and of values.
#include "kv/mean_kv.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kv/rows_for_test.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

class MeanKvTest : public testing::Test {
 protected:
  // A text of four tokens at `pos`, as if it had unrotated keys `k` + token and values `v` + token in this context.
  struct Context {
    std::unique_ptr<PageTable> table;
    std::shared_ptr<const KvSegment> kv;
    kvilt::Run positions;
  };
  Context context(int32_t pos, float k, float v) {
    Context out{std::make_unique<PageTable>(store, rope), nullptr, {pos, pos + 4}};
    out.table->add(std::vector<Runs>{{{0, pos + 4}}}, std::vector<uint16_t>(kShape.L, 0));
    for (int32_t p = 0; p < pos + 4; ++p) {
      const auto turn = rotation(rope, p);
      for (int layer = 0; layer < kShape.L; ++layer) {
        std::vector<float> key(kShape.G * kShape.E, k + static_cast<float>(p - pos)),
            value(kShape.G * kShape.E, v + static_cast<float>(p - pos));
        for (int g = 0; g < kShape.G; ++g)
          rotate_head(rope.pairs, rope.rotary_dim, turn.data(), 1, key.data() + g * kShape.E);
        out.table->write(layer, p, key.data(), value.data());
      }
    }
    out.kv = out.table->publish(out.positions);
    return out;
  }
  struct Row {
    std::vector<float> k, v;  // k unrotated
  };
  Row row_of(const PageTable& table, kvilt::Run positions, int32_t pos) const {
    const auto kv = table.publish(positions);
    const PinnedPages pages = kv->pin(positions);
    const int32_t slot = kv->map(2).slot_of(pos);
    Row out{std::vector<float>(kShape.E), std::vector<float>(kShape.E)};
    decode_kv_row(kShape.dtype, kShape.E, pages.k(2, 1, slot), out.k.data());
    decode_kv_row(kShape.dtype, kShape.E, pages.v(2, 1, slot), out.v.data());
    rotate_head(rope.pairs, rope.rotary_dim, rotation(rope, pos).data(), -1, out.k.data());
    return out;
  }
  const RopeConfig rope = small_rope();
  PageStore store = PageStore::create(kShape, 300 * kShape.page_bytes()).value();
  ThreadPool pool{2};
};

TEST_F(MeanKvTest, OfOneItIsTheCopy) {
  const Context a = context(7, 1, 2);
  const auto mean = mean_kv(store, rope, std::vector<MeanPart>{{a.kv.get(), a.positions}}, pool);
  const auto copy = mean->publish(a.positions);
  const PinnedPages was = a.kv->pin(a.positions), is = copy->pin(a.positions);
  for (int32_t pos = 7; pos < 11; ++pos) {
    for (int layer = 0; layer < kShape.L; ++layer) {
      const int32_t from = a.kv->map(layer).slot_of(pos), to = copy->map(layer).slot_of(pos);
      for (int g = 0; g < kShape.G; ++g) {
        EXPECT_EQ(std::memcmp(was.k(layer, g, from), is.k(layer, g, to), kShape.row_bytes()), 0);
        EXPECT_EQ(std::memcmp(was.v(layer, g, from), is.v(layer, g, to), kShape.row_bytes()), 0);
      }
    }
  }
}

TEST_F(MeanKvTest, PositionsDoNotMatter) {
  const Context a = context(7, 1, 2), b = context(20, 3, 8), c = context(0, 8, 5);
  const auto mean =
      mean_kv(store, rope,
              std::vector<MeanPart>{
                  {a.kv.get(), a.positions, 0.25f}, {b.kv.get(), b.positions, 0.25f}, {c.kv.get(), c.positions, 0.5f}},
              pool);
  for (int32_t token = 0; token < 4; ++token) {
    const Row row = row_of(*mean, a.positions, 7 + token);
    for (int e = 0; e < kShape.E; ++e) {
      EXPECT_NEAR(row.k[e], 5 + token, 1e-5);
      EXPECT_NEAR(row.v[e], 5 + token, 1e-5);
    }
  }
}

// A running mean, one context at a time in any order, is the mean up to rounding.
TEST_F(MeanKvTest, TheOrderOfContextsDoesNotMatter) {
  const Context a = context(7, 1, 2), b = context(20, 3, 8), c = context(0, 8, 5);
  const auto running = [&](const Context& first, const Context& second, const Context& third) {
    const auto two = mean_kv(
        store, rope,
        std::vector<MeanPart>{{first.kv.get(), first.positions, 0.5f}, {second.kv.get(), second.positions, 0.5f}},
        pool);
    const auto kept = two->publish(first.positions);
    const auto three = mean_kv(
        store, rope,
        std::vector<MeanPart>{{kept.get(), first.positions, 2.0f / 3}, {third.kv.get(), third.positions, 1.0f / 3}},
        pool);
    return row_of(*three, first.positions, first.positions.begin + 2);
  };
  const Row abc = running(a, b, c), cba = running(c, b, a);
  for (int e = 0; e < kShape.E; ++e) {
    EXPECT_NEAR(abc.k[e], 6, 1e-4);
    EXPECT_NEAR(cba.k[e], 6, 1e-4);
    EXPECT_NEAR(abc.v[e], 7, 1e-4);
    EXPECT_NEAR(cba.v[e], 7, 1e-4);
  }
}

// K as it was before its rotation: where a context stood is no difference. One context more at a time gives the variance
// over all, in whichever order.
TEST_F(MeanKvTest, SaysHowFarContextsAreApart) {
  const auto elements = static_cast<float>(kShape.L * kShape.G * kShape.E);
  const Context a = context(7, 1, 2), b = context(20, 3, 8), c = context(0, 8, 5);
  const auto both = [&](const KvSegment& kv, kvilt::Run positions, float weight, const Context& next,
                        std::vector<TokenSpread>& apart) {
    return mean_kv(store, rope,
                   std::vector<MeanPart>{{&kv, positions, weight}, {next.kv.get(), next.positions, 1 - weight}}, pool,
                   &apart);
  };
  const auto variance = [&](const Context& first, const Context& second, const Context& third) {
    std::vector<TokenSpread> apart;
    const auto two = both(*first.kv, first.positions, 0.5f, second, apart);
    const std::vector<TokenSpread> of_two = spread_with({}, apart, 1);
    const auto kept = two->publish(first.positions);
    both(*kept, first.positions, 2.0f / 3, third, apart);
    return std::pair(of_two, spread_with(of_two, apart, 2));
  };
  const auto [two, three] = variance(a, b, c);
  ASSERT_EQ(two.size(), 4u);
  ASSERT_EQ(three.size(), 4u);
  for (size_t token = 0; token < 4; ++token) {
    EXPECT_NEAR(two[token].k / elements, 1, 1e-4);           // of 1 and 3
    EXPECT_NEAR(two[token].v / elements, 9, 1e-4);           // of 2 and 8
    EXPECT_NEAR(three[token].k / elements, 26.0 / 3, 1e-3);  // and 8
    EXPECT_NEAR(three[token].v / elements, 6, 1e-3);         // and 5
  }
  const auto turned = variance(c, b, a).second;
  EXPECT_NEAR(turned[1].k / elements, 26.0 / 3, 1e-3);
  EXPECT_NEAR(turned[1].v / elements, 6, 1e-3);
  std::vector<TokenSpread> same;
  both(*a.kv, a.positions, 0.5f, a, same);
  EXPECT_EQ(same, std::vector<TokenSpread>(4, {0, 0}));
}

}  // namespace
}  // namespace kvilt

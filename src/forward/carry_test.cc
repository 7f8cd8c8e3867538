// The carry over hand-made K and V, against its definition (docs/math/carry.md); then through the driver, in chunks.
#include "forward/carry.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "forward/prompt_for_test.h"

namespace kvilt {
namespace {

constexpr int32_t kCount = 8, kAt = 10;  // a segment of 8 tokens, placed at 10
constexpr int kStoredLayer = 1;
using Vector = std::vector<float>;

struct Row {
  Vector k, v;  // of one KV head
};

Vector minus(Vector a, const Vector& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}
Vector plus(Vector a, float times, const Vector& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += times * b[i];
  return a;
}

class CarryPassTest : public testing::Test {
 protected:
  CarryPassTest() : on(kGemma), c(on.config()), pass(*on.model, on.pool), table(*on.store, c.ropes()) {
    PageTable source(*on.store, c.ropes());
    const std::vector<uint16_t> write(static_cast<size_t>(c.L), 0);
    source.add(std::vector<Runs>{{{0, kCount}}}, write);
    for (int l = 0; l < c.L; ++l) {
      for (int32_t pos = 0; pos < kCount; ++pos) {
        const uint32_t seed = 100 + static_cast<uint32_t>(l * kCount + pos) * 2;
        source.write(l, pos, floats(seed).data(), floats(seed + 1).data());
      }
    }
    table.place({source.publish({0, kCount}), 0, kCount, kAt});
    placed_only.place(table.placements()[0]);
    table.add(std::vector<Runs>{{{kAt, kAt + kCount}}}, write);
    for (int l = 0; l < c.L; ++l) {
      for (int32_t pos = kAt; pos < kAt + kCount; ++pos) table.write(l, pos, untouched.data(), untouched.data());
    }
    carry.kernel = Carry::Kernel::kMean;
    carry.noise = 0.5f;
    carry.gain = false;
    carry.groups = {{{{kAt, kAt + kCount}}}};
  }
  Vector floats(uint32_t seed) const { return random_floats(static_cast<size_t>(c.G * c.E), seed); }

  // What attention reads at pos; K rotated to where it is.
  Row read(const PageTable& from, int layer, int head, int32_t pos) const {
    std::vector<KvSpan> spans;
    from.resolve(layer, head, {pos, pos + 1}, {}, spans);
    for (const KvSpan& span : spans) {
      if (pos < span.pos || pos >= span.pos + span.count) continue;
      const auto* k = static_cast<const float*>(span.k) + (pos - span.pos) * c.E;
      const auto* v = static_cast<const float*>(span.v) + (pos - span.pos) * c.E;
      Row out{{k, k + c.E}, {v, v + c.E}};
      if (span.rotation) rotate_head(rope(layer).pairs, rope(layer).rotary_dim, span.rotation, 1, out.k.data());
      return out;
    }
    ADD_FAILURE() << "nothing at " << pos;
    return {};
  }
  Row placed(int layer, int head, int32_t pos) const { return read(placed_only, layer, head, pos); }
  RopeConfig rope(int layer) const { return c.ropes().at(layer); }
  // x of position `from`, as it would be at `to`.
  Vector moved(int layer, int32_t from, int32_t to, Vector x) const {
    rotate_head(rope(layer).pairs, rope(layer).rotary_dim, rotation(rope(layer), to - from).data(), 1, x.data());
    return x;
  }

  // Stores fresh K and V (all heads) at `pos` and carries.
  CarryPass::Cost store(int layer, std::vector<int32_t> pos, Vector k, Vector v) {
    const auto n = static_cast<int64_t>(pos.size());
    const FreshRows rows{&table, layer, pos, {k.data(), n, c.G * c.E}, {v.data(), n, c.G * c.E}};
    pass.compare(rows, changes);
    for (int64_t r = 0; r < n; ++r) table.write(layer, pos[r], rows.k.row(r), rows.v.row(r));
    return pass.carry(carry, runs_of(pos), rows, changes, state);
  }
  // Placed K and V of all heads at pos, V moved by `by` everywhere.
  std::pair<Vector, Vector> near_placed(int32_t pos, float by) const {
    std::pair<Vector, Vector> out;
    for (int g = 0; g < c.G; ++g) {
      Row row = placed(kStoredLayer, g, pos);
      out.first.insert(out.first.end(), row.k.begin(), row.k.end());
      for (const float x : row.v) out.second.push_back(x + by);
    }
    return out;
  }
  static void expect_near(const Vector& a, const Vector& b, double tolerance) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance);
  }

  ModelForTest on;
  const ModelConfig& c;
  CarryPass pass;
  PageTable table, placed_only{*on.store, c.ropes()};
  const Vector untouched = Vector(static_cast<size_t>(c.G * c.E), 7);
  Carry carry;
  CarryState state;
  Changes changes;
};

TEST_F(CarryPassTest, TheMeanTakesOverTheChange) {
  const int32_t source = 12;
  const Vector k = floats(1), v = floats(2);
  EXPECT_GT(store(kStoredLayer, {source}, k, v).flops, 0);
  EXPECT_EQ(changes.placed, std::vector<uint8_t>{1});
  const float w = 1 / 1.5f;
  for (int g = 0; g < c.G; ++g) {
    const Row was = placed(kStoredLayer, g, source);
    const Vector dk = minus({k.begin() + g * c.E, k.begin() + (g + 1) * c.E}, was.k);
    const Vector dv = minus({v.begin() + g * c.E, v.begin() + (g + 1) * c.E}, was.v);
    EXPECT_EQ(read(table, kStoredLayer, g, source).v, Vector(v.begin() + g * c.E, v.begin() + (g + 1) * c.E));
    for (const int32_t target : {10, 11, 13, 17}) {
      const Row got = read(table, kStoredLayer, g, target), base = placed(kStoredLayer, g, target);
      expect_near(got.v, plus(base.v, w, dv), 1e-5);
      expect_near(got.k, plus(base.k, w, moved(kStoredLayer, source, target, dk)), 1e-5);
      EXPECT_GT(largest_difference(got.v, base.v), 0.1) << "power";
      EXPECT_GT(largest_difference(got.k, plus(base.k, w, dk)), 1e-3) << "power: the change is rotated along";
    }
  }
}

// Each position takes its share: K and V by their own, none as it was placed and all as without shares, to the bit.
TEST_F(CarryPassTest, APositionTakesItsShare) {
  const Vector k = floats(1), v = floats(2);
  const auto after = [&](std::vector<float> share_k, std::vector<float> share_v, int32_t pos) {
    state = {};
    carry.share_k = std::move(share_k);
    carry.share_v = std::move(share_v);
    store(kStoredLayer, {12}, k, v);
    return read(table, kStoredLayer, 0, pos);
  };
  const size_t end = kAt + kCount;
  std::vector<float> some(end, 0.25f), all(end, 1);
  some[13] = 0;
  const Row whole = after({}, {}, 11), base = placed(kStoredLayer, 0, 11), same = after(all, all, 11);
  EXPECT_EQ(same.k, whole.k);
  EXPECT_EQ(same.v, whole.v);
  const Row keys = after(some, all, 11);
  expect_near(keys.k, plus(base.k, 0.25f, minus(whole.k, base.k)), 1e-5);
  EXPECT_EQ(keys.v, whole.v);
  EXPECT_GT(largest_difference(keys.k, whole.k), 1e-2) << "power";
  expect_near(after(all, some, 11).v, plus(base.v, 0.25f, minus(whole.v, base.v)), 1e-5);
  EXPECT_EQ(after(some, all, 13).k, placed(kStoredLayer, 0, 13).k) << "a share of 0";
  EXPECT_NE(after(all, all, 13).k, placed(kStoredLayer, 0, 13).k) << "power";
}

TEST_F(CarryPassTest, NoGroupChangesNothing) {
  carry.groups.clear();
  const auto cost = store(kStoredLayer, {12}, floats(1), floats(2));
  EXPECT_EQ(cost.flops, 0);
  EXPECT_EQ(cost.bytes, 0);
  EXPECT_EQ(read(table, kStoredLayer, 0, 13).v, Vector(static_cast<size_t>(c.E), 7));
}

TEST_F(CarryPassTest, AGroupWithoutRecomputedPositionsIsNotTouched) {
  carry.groups = {{{{kAt, 13}}}, {{{14, kAt + kCount}}}};
  store(kStoredLayer, {12}, floats(1), floats(2));
  EXPECT_EQ(read(table, kStoredLayer, 0, 15).v, Vector(static_cast<size_t>(c.E), 7));
  EXPECT_NE(read(table, kStoredLayer, 0, 11).v, Vector(static_cast<size_t>(c.E), 7)) << "power";
}

TEST_F(CarryPassTest, BelowItsFirstLayerWhatWasPlacedStays) {
  store(0, {12}, floats(1), floats(2));
  for (int g = 0; g < c.G; ++g) {
    EXPECT_EQ(read(table, 0, g, 13).v, placed(0, g, 13).v);
    EXPECT_EQ(read(table, 0, g, 13).k, placed(0, g, 13).k);
  }
}

TEST_F(CarryPassTest, TheGainDropsWhatSourcesDoNotTellOfEachOther) {
  carry.gain = true;
  const auto target_after = [&](float by_12, float by_15) {
    state = {};
    auto [k, v] = near_placed(12, by_12);
    const auto [k15, v15] = near_placed(15, by_15);
    k.insert(k.end(), k15.begin(), k15.end());
    v.insert(v.end(), v15.begin(), v15.end());
    store(kStoredLayer, {12, 15}, k, v);
    return read(table, kStoredLayer, 0, 13).v;
  };
  const Vector base = placed(kStoredLayer, 0, 13).v;
  expect_near(target_after(1, -1), base, 1e-6);
  // Equal changes predict each other: the gain is 1, and the mean of two is shrunk to 2 / 2.5.
  expect_near(target_after(1, 1), plus(base, 1, Vector(base.size(), 0.8f)), 1e-5);
}

TEST_F(CarryPassTest, HeadsThatKeepGetWhatWasPlaced) {
  Vector k = floats(1), v = floats(2);
  const std::vector<int32_t> pos{12};
  const FreshRows rows{&table, kStoredLayer, pos, {k.data(), 1, c.G * c.E}, {v.data(), 1, c.G * c.E}};
  pass.keep(rows, std::vector<uint8_t>{1, 0});
  EXPECT_EQ(Vector(v.begin(), v.begin() + c.E), placed(kStoredLayer, 0, 12).v);
  EXPECT_EQ(Vector(k.begin(), k.begin() + c.E), placed(kStoredLayer, 0, 12).k);
  const Vector fresh = floats(2);
  EXPECT_EQ(Vector(v.begin() + c.E, v.end()), Vector(fresh.begin() + c.E, fresh.end()));
}

// A segment of three tokens whose K and V are (3, 0) in head 0 and (4, 0) in head 1, in the elements 0 and 8, one of
// RoPE's pairs; K before it is rotated. It was computed at 0 and is placed at 40: old K is turned by 40 there in layer 0
// (local), and by 5 in layer 1 (a factor of 8).
class FateTest : public CarryPassTest {
 protected:
  static constexpr int32_t kFirst = 40;
  struct Pair {
    float x, y;
  };
  using Heads = std::array<Pair, 2>;
  static constexpr Heads kOld{{{3, 0}, {4, 0}}}, kNothing{{{0, 0}, {0, 0}}};

  static double angle(int layer, int32_t positions) { return layer == 0 ? positions : positions / 8.0; }
  // As a row of both heads, every pair turned by so much.
  Vector row_of(const Heads& heads, double by = 0) const {
    Vector out(static_cast<size_t>(c.G * c.E), 0);
    for (size_t g = 0; g < heads.size(); ++g) {
      const double co = std::cos(by), si = std::sin(by), x = heads[g].x, y = heads[g].y;
      out[g * static_cast<size_t>(c.E)] = static_cast<float>(x * co - y * si);
      out[g * static_cast<size_t>(c.E) + 8] = static_cast<float>(x * si + y * co);
    }
    return out;
  }
  void place_old(const std::vector<Heads>& old_v) {
    PageTable source(*on.store, c.ropes());
    const auto n = static_cast<int32_t>(old_v.size());
    source.add(std::vector<Runs>{{{0, n}}}, std::vector<uint16_t>(static_cast<size_t>(c.L), 0));
    for (int l = 0; l < c.L; ++l) {
      for (int32_t pos = 0; pos < n; ++pos)
        source.write(l, pos, row_of(kOld, angle(l, pos)).data(), row_of(old_v[static_cast<size_t>(pos)]).data());
    }
    twins.place({source.publish({0, n}), 0, n, kFirst});
  }
  // New K (before it is rotated to where it is) and V at kFirst, kFirst + 1, ...; what becomes of them.
  std::pair<Vector, Vector> mixed(int layer, const Fate& fate, const std::vector<Heads>& k,
                                  const std::vector<Heads>& v) {
    Vector k_rows, v_rows;
    std::vector<int32_t> pos;
    for (size_t i = 0; i < k.size(); ++i) {
      pos.push_back(kFirst + static_cast<int32_t>(i));
      for (const float x : row_of(k[i], angle(layer, pos.back()))) k_rows.push_back(x);
      for (const float x : row_of(v[i])) v_rows.push_back(x);
    }
    const auto n = static_cast<int64_t>(pos.size());
    const FreshRows rows{&twins, layer, pos, {k_rows.data(), n, c.G * c.E}, {v_rows.data(), n, c.G * c.E}};
    pass.mix_with_placed(rows, fate);
    return {k_rows, v_rows};
  }
  // All rows, K again before it is rotated.
  void expect_mixed(int layer, const std::pair<Vector, Vector>& got, const std::vector<Heads>& k,
                    const std::vector<Heads>& v) const {
    Vector want_k, want_v;
    for (size_t i = 0; i < k.size(); ++i) {
      for (const float x : row_of(k[i], angle(layer, kFirst + static_cast<int32_t>(i)))) want_k.push_back(x);
      for (const float x : row_of(v[i])) want_v.push_back(x);
    }
    expect_near(got.first, want_k, 2e-5);
    expect_near(got.second, want_v, 1e-6);
  }

  PageTable twins{*on.store, c.ropes()};
};

TEST_F(FateTest, TheShareIsTheCosineOfAllHeadsOfATokensKAndOfItsV) {
  ASSERT_EQ(c.G, 2);
  place_old({kOld, kOld, kNothing});
  for (const int layer : {0, 1}) {
    SCOPED_TRACE(layer);
    // Token 0. K: head 0 as it was, head 1 turned so that its own cosine is .6: 9 + 16 .6 of 25 are .744.
    //          V: head 0 as it was, head 1 at a right angle: 9 of 25 are .36. By heads it would be 1, and .6 or 0.
    // Token 1. K: both heads as they were, of another length: all new. V: against the old one, clamped to 0: all old;
    //          by heads, head 0, whose own cosine is 1, would be new.
    // Token 2. K: head 1 reversed: 9 - 16 of 25 is clamped; V: the old one is 0, and has no direction: all new.
    // Token 3 has no twin.
    const Heads fresh{{{1, 2}, {3, 4}}};
    const std::vector<Heads> k{{{{3, 0}, {2.4f, 3.2f}}}, {{{6, 0}, {8, 0}}}, {{{3, 0}, {-4, 0}}}, fresh},
        v{{{{3, 0}, {0, 4}}}, {{{1.5f, 0}, {-4, 0}}}, {{{5, 6}, {7, 8}}}, fresh};
    expect_mixed(layer, mixed(layer, {.by_cosine = true}, k, v),
                 {{{{3, 0}, {0.744f * 2.4f + 0.256f * 4, 0.744f * 3.2f}}}, k[1], kOld, fresh},
                 {{{{3, 0}, {0.64f * 4, 0.36f * 4}}}, kOld, v[2], fresh});
    // A share that is given is that of all tokens.
    expect_mixed(layer, mixed(layer, {.share = 0.25}, k, v),
                 {{{{3, 0}, {3.6f, 0.8f}}}, {{{3.75f, 0}, {5, 0}}}, {{{3, 0}, {2, 0}}}, fresh},
                 {{{{3, 0}, {3, 1}}}, {{{2.625f, 0}, {2, 0}}}, {{{1.25f, 1.5f}, {1.75f, 2}}}, fresh});
    expect_mixed(layer, mixed(layer, {.share = 1}, k, v), k, v);
    expect_mixed(layer, mixed(layer, {.share = 0}, k, v), {kOld, kOld, kOld, fresh}, {kOld, kOld, kNothing, fresh});
  }
}

// 10 fresh tokens, 40 placed ones of another context, 10 fresh ones; some of the placed are computed again.
TEST(CarryInTheDriver, ChunkedEqualsWhole) {
  using Kernel = Carry::Kernel;
  for (const char* backend : {"reference", "auto"}) {
    ModelForTest on(kProbe, backend);
    Driver driver(*on.model, on.pool);
    PromptForTest source(on, random_tokens(40, 1, on.config()));
    source.run(driver);
    const auto segment = source.publish();
    auto ids = random_tokens(60, 2, on.config());
    std::ranges::copy(source.ids, ids.begin() + 10);
    const auto logits = [&](std::optional<Kernel> kernel, int32_t chunk) {
      PromptForTest prompt(on, ids);
      prompt.table.place({segment, 0, 40, 10});
      prompt.stage().sets = {{{0, 10}, {12, 14}, {25, 26}, {33, 37}, {50, 60}}};
      if (kernel) {
        Carry& carry = prompt.stage().carry.emplace();
        carry.kernel = *kernel;
        carry.groups = {{{{10, 30}}}, {{{30, 50}}}};
      }
      prompt.run(driver, chunk);
      return prompt.logits;
    };
    const auto plain = logits({}, 60);
    for (const Kernel kernel : {Kernel::kMean, Kernel::kGaussian, Kernel::kNearest, Kernel::kContent}) {
      const auto whole = logits(kernel, 60);
      EXPECT_EQ(whole, logits(kernel, 30));
      EXPECT_GT(largest_difference(whole, plain), 1e-5) << "power";
    }
  }
}

}  // namespace
}  // namespace kvilt

// What blocks of keys weigh for the rows of a tile: means and antidiagonals by hand, and against plain loops.
#include "forward/key_groups.h"

#include <gtest/gtest.h>

#include <cmath>

#include "forward/prompt_for_test.h"
#include "tensor/kv_row.h"
#include "tensor/rope.h"

namespace kvilt {
namespace {

constexpr int kAtLayer = 1, kAtHead = 1;
constexpr BlockOptions kByMeans{.score = BlockScore::kMeans};
constexpr BlockOptions by_stride(int32_t stride) { return {.score = BlockScore::kAntidiagonals, .stride = stride}; }

// bf16 keys meet queries that are rounded too where the backend multiplies bf16 pairs.
struct KeyGroupsCase {
  const char* backend;
  DType kv;
};

class KeyGroupsTest : public testing::TestWithParam<KeyGroupsCase> {
 protected:
  KeyGroupsTest()
      : on(kProbe, GetParam().backend, GetParam().kv),
        c(on.config()),
        table(*on.store, c.ropes()),
        rounding(GetParam().kv == DType::kF32    ? 0
                 : GetParam().kv == DType::kBF16 ? 0.0005
                                                 : 0.001) {}

  // Keys of positions 0 .. n - 1 at the head, each E floats.
  void store(const std::vector<float>& keys) { store(keys, table); }
  void store(const std::vector<float>& keys, PageTable& to) {
    const auto n = static_cast<int32_t>(keys.size()) / c.E;
    const std::vector<Runs> sets{{{0, n}}};
    const std::vector<uint16_t> write(static_cast<size_t>(c.L), 0);
    to.add(sets, write);
    const DType kv = GetParam().kv;
    std::vector<std::byte> key(static_cast<size_t>(kv_row_bytes(kv, c.E))), value(key.size());
    for (int32_t pos = 0; pos < n; ++pos) {
      encode_kv_row(kv, c.E, &keys[pos * c.E], key.data());
      to.restore(kAtLayer, kAtHead, pos, key.data(), value.data());
    }
  }
  // Weights for rows at these positions; queries: rows x H x E.
  BlockWeights weigh(const std::vector<int32_t>& pos, std::vector<float> queries, int32_t end, const BlockOptions& by) {
    return weigh(pos, std::move(queries), end, by, table);
  }
  BlockWeights weigh(const std::vector<int32_t>& pos, std::vector<float> queries, int32_t end, const BlockOptions& by,
                     const PageTable& from) {
    const RowsAt rows{kAtLayer, pos, {queries.data(), std::ssize(pos), int64_t{c.H} * c.E}, {}, nullptr};
    KeyGroups groups(*on.model, from, {kAtLayer, kAtHead, end}, by, memory);
    groups.build(on.pool);
    std::vector<int64_t> all(pos.size());
    for (size_t r = 0; r < all.size(); ++r) all[r] = static_cast<int64_t>(r);
    const KeyGroups::Tile tile{pos.back() / kSparseTile, all};
    const KeyGroups::Weighed out = groups.weigh(rows, {&tile, 1}, on.pool).front();
    EXPECT_GT(out.flops, 0);
    BlockWeights of_one = out.blocks;  // of one query head
    for (double& weight : of_one) weight /= c.H / c.G;
    return of_one;
  }
  // Queries whose product with a key is `values` times the key's first element, in all heads.
  std::vector<float> queries_of(const std::vector<float>& values) const {
    std::vector<float> out(values.size() * static_cast<size_t>(c.H * c.E));
    for (size_t r = 0; r < values.size(); ++r) {
      for (int h = 0; h < c.H; ++h)
        out[(r * static_cast<size_t>(c.H) + static_cast<size_t>(h)) * static_cast<size_t>(c.E)] =
            values[r] / on.model->attend_shape(DType::kF32).scale;
    }
    return out;
  }
  // Keys that are 0 but for their first elements at some positions.
  std::vector<float> keys_of(int32_t n, const std::vector<std::pair<int32_t, float>>& at) const {
    std::vector<float> out(static_cast<size_t>(n * c.E));
    for (const auto& [pos, value] : at) out[static_cast<size_t>(pos * c.E)] = value;
    return out;
  }

  ModelForTest on;
  const ModelConfig& c;
  PageTable table;
  KeyGroups::Memory memory;
  const double rounding;  // of a weight, a row's being 1
};

TEST_P(KeyGroupsTest, AntidiagonalsByHand) {
  store(keys_of(67, {{10, 3}, {11, 1}}));
  // Rows 64 and 65 are a group of two: the antidiagonal has q64 k11 + q65 k10 = 1 + 6, half of that is the score of
  // keys 10 and 11; the other 31 groups of block 0, and the rows' own, have 0.
  const BlockWeights pair = weigh({64, 65}, queries_of({1, 2}), 66, by_stride(2));
  const double e = std::exp(3.5);
  ASSERT_EQ(pair.size(), 2u);
  EXPECT_NEAR(pair[0], (31 + e) / (32 + e), 1e-6);
  EXPECT_NEAR(pair[1], 1 / (32 + e), 1e-6);
  const BlockWeights other = weigh({64, 65}, queries_of({2, 1}), 66, by_stride(2));
  EXPECT_NEAR(other[1], 1 / (32 + std::exp(2.5)), 1e-6) << "power: along the diagonal both would be the same";
  // Row 66 has no neighbour: it meets the second key of each pair, by itself.
  const BlockWeights three = weigh({64, 65, 66}, queries_of({1, 2, 4}), 67, by_stride(2));
  EXPECT_NEAR(three[1], pair[1] + 2 / (33 + std::exp(4)), 1e-6);
}

TEST_P(KeyGroupsTest, MeansByHand) {
  store(keys_of(67, {{10, 3}, {11, 1}, {64, 6}}));
  // Mean query 2; mean keys 4 / 64 and, of the three that are there, 2.
  const BlockWeights weights = weigh({64, 65, 66}, queries_of({1, 2, 3}), 67, kByMeans);
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_NEAR(weights[1], 1 / (1 + std::exp(2 * 4.0 / 64 - 4)), 1e-6);
  EXPECT_NEAR(weights[0] + weights[1], 1, 1e-6);
}

// Queries are rounded where attention rounds them, and only there.
TEST_P(KeyGroupsTest, QueriesAreRoundedAsAttentions) {
  store(random_floats(static_cast<size_t>(128 * c.E), 3));
  std::vector<int32_t> pos(64);
  for (int32_t r = 0; r < 64; ++r) pos[r] = 64 + r;
  std::vector<float> queries(pos.size() * static_cast<size_t>(c.H * c.E), 1.0f), more = queries;
  for (float& x : more) x += 1e-4f;  // 1 in bf16
  const auto differ = [&](const BlockOptions& by) { return weigh(pos, queries, 128, by) != weigh(pos, more, 128, by); };
  const Backend& backend = on.model->backend();
  EXPECT_EQ(differ(by_stride(8)), !(backend.bf16_matmul_pays() && attends_in_bf16(backend, GetParam().kv, c.E)));
  EXPECT_TRUE(differ(kByMeans)) << "means are not pairs";
}

// All scores of a tile's rows by plain loops: softmax over groups up to the rows' own, rows of groups added.
TEST_P(KeyGroupsTest, EqualsPlainLoops) {
  const int32_t end = 64 * 5 + 40, tile = 4;
  const std::vector<float> keys = random_floats(static_cast<size_t>(64 * 6 * c.E), 3);
  store(keys);
  std::vector<int32_t> pos(64);
  for (int32_t r = 0; r < 64; ++r) pos[r] = tile * 64 + r;
  const std::vector<float> queries = random_floats(pos.size() * static_cast<size_t>(c.H * c.E), 5);
  const int group = c.H / c.G;
  const auto product = [&](int32_t row, int h, int32_t key) {
    double sum = 0;
    for (int e = 0; e < c.E; ++e)
      sum += double{queries[(row * c.H + kAtHead * group + h) * c.E + e]} * keys[key * c.E + e];
    return sum * on.model->attend_shape(DType::kF32).scale;
  };
  for (const int32_t stride : {1, 8, 16, 64}) {
    BlockWeights expected(static_cast<size_t>(tile) + 1, 0), diagonal(expected);
    for (int32_t a = tile * 64 / stride; a < (tile + 1) * 64 / stride; ++a) {
      for (int h = 0; h < group; ++h) {
        for (const bool anti : {true, false}) {
          std::vector<float> scores;
          for (int32_t b = 0; b <= a; ++b) {
            double sum = 0;
            for (int32_t s = 0; s < stride; ++s)
              sum += product(a * stride + (anti ? stride - 1 - s : s) - tile * 64, h, b * stride + s);
            scores.push_back(static_cast<float>(sum / stride));
          }
          add_softmax(scores, 64 / stride, anti ? expected : diagonal);
        }
      }
    }
    const BlockWeights weights = weigh(pos, queries, end, by_stride(stride));
    double apart = 0;
    for (size_t b = 0; b < expected.size(); ++b) {
      EXPECT_NEAR(weights[b] * group, expected[b], std::max(1e-4, rounding) * 64 / stride) << stride;
      apart = std::max(apart, std::abs(diagonal[b] - expected[b]));
    }
    EXPECT_EQ(apart > 1e-3, stride > 1) << "power: another order of the rows";
    EXPECT_TRUE(stride == 1 || apart > 2 * rounding * 64 / stride)
        << "power: more than what rounding may be: " << apart;
  }
}

// Groups at the rows' beginning, at their end and at the end of the keys have fewer.
TEST_P(KeyGroupsTest, GroupsThatAreNotFullEqualPlainLoops) {
  const int32_t tile = 3, first = tile * 64 + 13, end = tile * 64 + 51;
  const std::vector<float> keys = random_floats(static_cast<size_t>(end * c.E), 3);
  store(keys);
  std::vector<int32_t> pos;
  for (int32_t p = first; p < end; ++p) pos.push_back(p);
  const std::vector<float> queries = random_floats(pos.size() * static_cast<size_t>(c.H * c.E), 5);
  const int group = c.H / c.G;
  const auto product = [&](int32_t row, int h, int32_t key) {
    double sum = 0;
    for (int e = 0; e < c.E; ++e)
      sum += double{queries[((row - first) * c.H + kAtHead * group + h) * c.E + e]} * keys[key * c.E + e];
    return sum * on.model->attend_shape(DType::kF32).scale;
  };
  for (const int32_t stride : {2, 8, 32}) {
    BlockWeights expected(static_cast<size_t>(tile) + 1, 0), whole(expected);
    for (int32_t a = first / stride; a <= (end - 1) / stride; ++a) {
      const int32_t rows = std::min(end, (a + 1) * stride) - std::max(first, a * stride);
      for (int h = 0; h < group; ++h) {
        std::vector<float> scores, by_stride_scores;
        for (int32_t b = 0; b <= a; ++b) {
          double sum = 0;
          for (int32_t s = 0; s < stride; ++s) {
            const int32_t row = a * stride + stride - 1 - s, key = b * stride + s;
            if (row >= first && row < end && key < end) sum += product(row, h, key);
          }
          scores.push_back(static_cast<float>(sum / rows));
          by_stride_scores.push_back(static_cast<float>(sum / stride));
        }
        add_softmax(scores, 64 / stride, expected);
        add_softmax(by_stride_scores, 64 / stride, whole);
      }
    }
    const BlockWeights weights = weigh(pos, queries, end, by_stride(stride));
    ASSERT_EQ(weights.size(), expected.size());
    double apart = 0;
    for (size_t b = 0; b < expected.size(); ++b) {
      EXPECT_NEAR(weights[b] * group, expected[b], std::max(1e-4, rounding) * 64 / stride) << stride;
      apart = std::max(apart, std::abs(whole[b] - expected[b]));
    }
    EXPECT_GT(apart, 1e-3) << "power: as if all groups were full";
    EXPECT_TRUE(stride == 1 || apart > 2 * rounding * 64 / stride)
        << "power: more than what rounding may be: " << apart;
  }
}

// What is placed with another rotation is what it would be if it were computed here.
TEST_P(KeyGroupsTest, PlacedKeysAreTurned) {
  constexpr int32_t kFrom = 37, kKeys = 200;
  const std::vector<float> keys = random_floats(static_cast<size_t>((kFrom + kKeys) * c.E), 3);
  store(keys);
  PageTable placed(*on.store, c.ropes()), turned(*on.store, c.ropes()), as_stored(*on.store, c.ropes());
  placed.place({table.publish({0, kFrom + kKeys}), kFrom, kKeys, 0});
  std::vector<float> here(keys.begin() + kFrom * c.E, keys.end());
  store(here, as_stored);
  const RopeConfig& rope = c.ropes().at(kAtLayer);
  for (int32_t pos = 0; pos < kKeys; ++pos)
    rotate_head(rope.pairs, rope.rotary_dim, rotation(rope, -kFrom).data(), 1, &here[pos * c.E]);
  store(here, turned);
  std::vector<int32_t> pos;
  for (int32_t p = 128; p < 192; ++p) pos.push_back(p);
  const std::vector<float> queries = random_floats(pos.size() * static_cast<size_t>(c.H * c.E), 5);
  for (const BlockOptions& by : {kByMeans, by_stride(8)}) {
    const auto from = [&](const PageTable& of) { return weigh(pos, queries, kKeys, by, of); };
    const BlockWeights a = from(placed), b = from(turned), other = from(as_stored);
    double apart = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      EXPECT_NEAR(a[i], b[i], std::max(1e-5, rounding));
      apart = std::max(apart, std::abs(other[i] - b[i]));
    }
    EXPECT_GT(apart, std::max(1e-3, 2 * rounding)) << "power";
  }
}

// Neither threads nor keys behind the tile matter, nor other rows of the chunk.
TEST_P(KeyGroupsTest, LaterKeysDoNotMatter) {
  std::vector<float> keys = random_floats(static_cast<size_t>(64 * 8 * c.E), 3);
  store(keys);
  std::vector<int32_t> pos(64);
  for (int32_t r = 0; r < 64; ++r) pos[r] = 128 + r;
  const std::vector<float> queries = random_floats(pos.size() * static_cast<size_t>(c.H * c.E), 5);
  for (const BlockOptions& by : {kByMeans, by_stride(8)}) {
    EXPECT_EQ(weigh(pos, queries, 192, by), weigh(pos, queries, 512, by));
    EXPECT_NE(weigh(pos, queries, 192, by), weigh(pos, random_floats(queries.size(), 6), 192, by)) << "power";
  }
}

// Tiles that are weighed together are weighed as each by itself, to the bit: a first tile of a few rows, a last one that
// the text ends in.
TEST_P(KeyGroupsTest, TilesTogetherAreTilesAlone) {
  constexpr int32_t kEnd = 64 * 20 - 24;
  store(random_floats(static_cast<size_t>(kEnd * c.E), 3));
  std::vector<int32_t> pos;
  for (int32_t p = 64 * 16 + 50; p < kEnd; ++p) pos.push_back(p);
  std::vector<float> queries = random_floats(pos.size() * static_cast<size_t>(c.H * c.E), 5);
  const RowsAt rows{kAtLayer, pos, {queries.data(), std::ssize(pos), int64_t{c.H} * c.E}, {}, nullptr};
  std::vector<KeyGroups::Tile> tiles;
  for (size_t r = 0; r < pos.size(); ++r) {
    if (tiles.empty() || tiles.back().at != pos[r] / kSparseTile) tiles.push_back({pos[r] / kSparseTile, {}});
    tiles.back().rows.push_back(static_cast<int64_t>(r));
  }
  ASSERT_EQ(tiles.size(), 4u);
  for (const BlockOptions& by : {kByMeans, by_stride(8), by_stride(16)}) {
    KeyGroups groups(*on.model, table, {kAtLayer, kAtHead, kEnd}, by, memory);
    groups.build(on.pool);
    const std::vector<KeyGroups::Weighed> together = groups.weigh(rows, tiles, on.pool);
    ASSERT_EQ(together.size(), tiles.size());
    for (size_t t = 0; t < tiles.size(); ++t) {
      const KeyGroups::Weighed alone = groups.weigh(rows, {&tiles[t], 1}, on.pool).front();
      EXPECT_EQ(together[t].blocks, alone.blocks);
      EXPECT_EQ(together[t].flops, alone.flops);
      if (t > 0) {
        EXPECT_NE(together[t].blocks, together[t - 1].blocks) << "power";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, KeyGroupsTest,
                         testing::Values(KeyGroupsCase{"reference", DType::kF32}, KeyGroupsCase{"auto", DType::kF32},
                                         KeyGroupsCase{"reference", DType::kBF16}, KeyGroupsCase{"auto", DType::kBF16},
                                         KeyGroupsCase{"auto", DType::kI8}),
                         [](const testing::TestParamInfo<KeyGroupsCase>& of) {
                           return std::string(of.param.backend) + "_" + std::string(kv_type_name(of.param.kv));
                         });

}  // namespace
}  // namespace kvilt

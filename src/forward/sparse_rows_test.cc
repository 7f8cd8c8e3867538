// Rows of a prompt that see few keys: K and V of whatever no column, distance or block shows them may be anything, even
// NaN, and of what is shown they may not.
#include "forward/sparse_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "forward/prompt_for_test.h"

namespace kvilt {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int32_t kBefore = kSparseBlock;  // positions before the rows that are looked at

class SparseRowsTest : public testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  SparseRowsTest()
      : on(kProbe, std::get<0>(GetParam()), std::get<1>(GetParam())), c(on.config()), driver(*on.model, on.pool) {
    heads.resize(static_cast<size_t>(c.G));
    std::iota(heads.begin(), heads.end(), 0);
    CHECK(c.H > c.G && c.G > 1);  // groups of several query heads, and heads of which each chooses for itself
  }

  // K, then V of a cell as the pool has them.
  static Bytes cell(const PageTable& kv, int layer, int head, int32_t pos) {
    std::vector<KvSpan> spans;
    const kvilt::Run at{pos, pos + 1};
    kv.resolve(layer, head, {&at, 1}, spans);
    const auto row = static_cast<size_t>(kv.shape().row_bytes());
    Bytes out(2 * row);
    std::memcpy(out.data(), spans.at(0).k, row);
    std::memcpy(out.data() + row, spans.at(0).v, row);
    return out;
  }
  static void write(PageTable& kv, int layer, int head, int32_t pos, const Bytes& cell) {
    kv.restore(layer, head, pos, cell.data(), cell.data() + cell.size() / 2);
  }
  Bytes cell_of(std::vector<float> k, std::vector<float> v) const {
    const KvShape& shape = on.store->shape();
    Bytes out(static_cast<size_t>(2 * shape.row_bytes()));
    encode_kv_row(shape.dtype, c.E, k.data(), out.data());
    encode_kv_row(shape.dtype, c.E, v.data(), out.data() + shape.row_bytes());
    return out;
  }
  Bytes nothing() const {
    const std::vector<float> nan(static_cast<size_t>(c.E), std::numeric_limits<float>::quiet_NaN());
    return cell_of(nan, nan);
  }
  // Values so large that a key of little weight shows, too.
  Bytes another() const {
    std::vector<float> v = random_floats(static_cast<size_t>(c.E), 78);
    for (float& x : v) x *= 100;
    return cell_of(random_floats(static_cast<size_t>(c.E), 77), v);
  }

  ModelForTest on;
  const ModelConfig& c;
  Driver driver;
  std::vector<int> heads;
};

SparseRule rule_by(KeyPattern::By by) {
  SparseRule out;
  out.by = by;
  return out;
}

// Whether some row of the tile of positions that begins at `tile` sees the key.
bool shows(const SeenKeys& seen, int32_t tile, int32_t pos) {
  for (const SeenKeys::Tile& of : seen.tiles) {
    if (of.at == tile / kSparseTile) return contains(of.blocks, pos / kSparseTile);
  }
  for (int32_t i = std::max(tile, pos); i < tile + kSparseTile; ++i) {
    if (seen.lines.shows(i, pos)) return true;
  }
  return false;
}

// Fixed columns and a band; such as are drawn for each layer and head, of positions and of tiles. None looks at keys, so
// that a whole prompt can be computed over what is changed.
std::vector<SparseRule> rules_that_do_not_look() {
  SparseRule fixed = rule_by(KeyPattern::By::kFixed), drawn = rule_by(KeyPattern::By::kRandom);
  fixed.sink = 7, fixed.window = 90;
  drawn.share = 0.005;  // each lone distance is a band of 127 keys
  SparseRule tiles = drawn;
  tiles.share = 0.4, tiles.lines.tile = kSparseTile;
  return {fixed, drawn, tiles};
}

// A prompt's last tile, through all layers: its K and V, and the logits.
TEST_P(SparseRowsTest, WhatNoLineShowsHasNoEffectOnAPrompt) {
  for (const SparseRule& rule : rules_that_do_not_look()) {
    SCOPED_TRACE(testing::Message() << static_cast<int>(rule.by) << ' ' << rule.lines.tile);
    PromptForTest prompt(on, random_tokens(kBefore + kSparseTile, 3, c));
    PageTable& kv = prompt.table;
    prompt.plan.sparse = rule;
    prompt.enter();
    const auto compute = [&](kvilt::Run rows) {
      Chunk chunk = prompt.chunk(rows);
      driver.run({&chunk, 1});
    };
    const auto last_tile = [&] {
      compute({kBefore, prompt.T()});
      Bytes out(prompt.logits.size() * sizeof(float));
      std::memcpy(out.data(), prompt.logits.data(), out.size());
      for (int32_t pos = kBefore; pos < prompt.T(); ++pos) {
        for (int of = 0; of < c.L * c.G; ++of) {
          const Bytes bytes = cell(kv, of / c.G, of % c.G, pos);
          out.insert(out.end(), bytes.begin(), bytes.end());
        }
      }
      return out;
    };
    compute({0, kBefore});
    const Bytes expected = last_tile();

    std::vector<int32_t> positions(kSparseTile);
    std::iota(positions.begin(), positions.end(), kBefore);
    const SparseChoice choice(*on.model, on.pool);
    int64_t hidden = 0;
    for (int layer = 0; layer < c.L; ++layer) {
      const RowsAt rows{layer, positions, {}, {}};
      const std::vector<SeenKeys> seen = choice.choose({prompt.plan, kv, rows, 0, kSparseTile}, heads).heads;
      for (const int head : heads) {
        int32_t first = -1, last = -1;
        for (int32_t pos = 0; pos < kBefore; ++pos) {
          const bool shown = shows(seen[static_cast<size_t>(head)], kBefore, pos);
          if (rule.by == KeyPattern::By::kFixed) {
            EXPECT_EQ(shown, pos < rule.sink || pos >= kBefore - rule.window);
          }
          if (shown) {
            first = first < 0 ? pos : first, last = pos;
            continue;
          }
          ++hidden;
          write(kv, layer, head, pos, nothing());
        }
        const int32_t pos = (layer + head) % 2 == 0 ? first : last;
        const Bytes as_it_is = cell(kv, layer, head, pos);
        write(kv, layer, head, pos, another());
        EXPECT_NE(last_tile(), expected) << "power: " << layer << ' ' << head << ' ' << pos;
        write(kv, layer, head, pos, as_it_is);
      }
    }
    EXPECT_EQ(last_tile(), expected);
    EXPECT_GT(hidden, c.L * c.G * kBefore / 8) << "power: much is hidden";
    EXPECT_LT(hidden, c.L * c.G * kBefore);
  }
}

// Lines by what sampled rows see, of positions and of tiles; blocks by their means and by antidiagonals; both.
std::vector<SparseRule> rules_that_look() {
  SparseRule lines = rule_by(KeyPattern::By::kSample), blocks = rule_by(KeyPattern::By::kBlocks);
  lines.sampled = 8, lines.lines.mass = 0.5;
  SparseRule exact = lines, threshold = lines, either = lines, sums = blocks;
  exact.lines.tile = 1, lines.lines.tile = threshold.lines.tile = kSparseTile;
  exact.lines.mass = 0.1;
  threshold.lines.rule = LineRule::kThreshold, threshold.lines.threshold = 3;
  blocks.blocks.most = 3;
  either.lines.tile = kSparseTile, either.tau = 0.3, either.blocks.mass = 0.5;
  sums.blocks.score = BlockScore::kAntidiagonals, sums.blocks.mass = 0.3;
  return {lines, exact, threshold, blocks, either, sums};
}

// Who chose by keys attends to what was chosen and to nothing else: tile by tile, each over a cache in which all other
// keys, and all of the other heads, were lost behind the choice.
TEST_P(SparseRowsTest, WhatAChoiceLeavesOutHasNoEffectOnItsTile) {
  constexpr int kLayer = 2;
  PromptForTest prompt(on, random_tokens(kBefore + 2 * kSparseTile + 20, 3, c));
  PageTable& kv = prompt.table;
  prompt.run(driver);
  const int64_t group = c.H / c.G, n = prompt.T() - kBefore;
  std::vector<Bytes> cells;  // of the layer
  for (const int head : heads) {
    for (int32_t pos = 0; pos < prompt.T(); ++pos) cells.push_back(cell(kv, kLayer, head, pos));
  }
  const auto whole = [&](int head, int32_t pos) -> const Bytes& { return cells[head * prompt.T() + pos]; };
  std::vector<int32_t> positions(static_cast<size_t>(n));
  std::iota(positions.begin(), positions.end(), kBefore);
  std::vector<float> q = random_floats(static_cast<size_t>(n * c.H * c.E), 5), out(q.size());
  std::vector<float> lse(static_cast<size_t>(n * c.H));
  const RowsAt rows{kLayer, positions, {q.data(), n, c.H * c.E}, {out.data(), n, c.H * c.E}, lse.data()};
  for (const SparseRule& rule : rules_that_look()) {
    SCOPED_TRACE(testing::Message() << static_cast<int>(rule.by) << ' ' << rule.lines.tile << ' ' << rule.tau);
    Plan plan;
    plan.prompt_len = prompt.T() + 1;
    plan.sparse = rule;
    const std::vector<SeenKeys> seen = SparseChoice(*on.model, on.pool).choose({plan, kv, rows, 0, n}, heads).heads;
    SparseRows sparse(*on.model, on.pool);
    std::vector<AttendTask> tasks;
    sparse.add_tasks(plan, kv, rows, heads, tasks);
    ASSERT_EQ(std::ssize(tasks), 3 * c.G);
    int64_t hidden = 0;
    for (size_t t = 0; t < tasks.size(); ++t) {
      const int head = static_cast<int>(t) % c.G;
      const int32_t tile = kBefore + static_cast<int32_t>(t) / c.G * kSparseTile;
      const int32_t end = std::min(tile + kSparseTile, prompt.T());
      const auto attend = [&] {
        on.model->backend().attend(on.model->attend_shape(kv.shape().dtype), {&tasks[t], 1}, on.pool);
        std::vector<float> result(tasks[t].lse, tasks[t].lse + (end - tile) * group);
        for (int64_t r = 0; r < end - tile; ++r) {
          const float* row = tasks[t].out + r * tasks[t].out_stride;
          result.insert(result.end(), row, row + group * c.E);
        }
        return result;
      };
      const std::vector<float> expected = attend();
      std::vector<int32_t> shown;
      for (const int other : heads) {
        for (int32_t pos = 0; pos < prompt.T(); ++pos) {
          const bool sees = other == head && pos < end && shows(seen[static_cast<size_t>(head)], tile, pos);
          if (sees) shown.push_back(pos);
          if (!sees) write(kv, kLayer, other, pos, nothing());
        }
      }
      hidden += end - std::ssize(shown);
      EXPECT_EQ(attend(), expected) << head << ' ' << tile;
      for (const int32_t pos : {shown.front(), shown[shown.size() / 3]}) {
        write(kv, kLayer, head, pos, another());
        EXPECT_NE(attend(), expected) << "power: " << head << ' ' << tile << ' ' << pos;
        write(kv, kLayer, head, pos, whole(head, pos));
      }
      for (const int other : heads) {
        for (int32_t pos = 0; pos < prompt.T(); ++pos) write(kv, kLayer, other, pos, whole(other, pos));
      }
    }
    EXPECT_GT(hidden, std::ssize(tasks) * kBefore / 8) << "power: much is hidden";
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SparseRowsTest,
                         testing::Combine(testing::Values("reference", "auto"),
                                          testing::Values(DType::kF32, DType::kBF16)));

}  // namespace
}  // namespace kvilt

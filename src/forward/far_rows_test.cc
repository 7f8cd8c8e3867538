// Rows that see keys at one distance: against attention written out in double, and against what it must not depend on.
#include "forward/far_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>

#include "forward/attend_pass.h"
#include "forward/prompt_for_test.h"

namespace kvilt {
namespace {

constexpr const char* kYarn = "tests/data/fixtures/llama-yarn";  // angles with a magnitude
constexpr const char* kGptOss = "tests/data/fixtures/gpt-oss";   // sinks, windows and a magnitude
constexpr const char* kStories =                                 // interleaved pairs
    "tests/data/models/stories260K/derived-stories260K-F32.gguf";

// Positions 0 .. 19 and 70 .. 99 are computed here; 20 .. 69 are placed, 13 behind where they were computed, but for
// 33 .. 35, which are computed again.
constexpr int32_t kKnown = 100, kPieceBegin = 20, kPieceEnd = 70, kPieceShift = 13;
const Runs kPieceAgain{{33, 36}};
const Runs kPieceUnseen{{10, 14}, {40, 48}};  // in odd layers

class FarRowsTest : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  FarRowsTest() : on(std::get<0>(GetParam()), std::get<1>(GetParam())), c(on.config()), pass(*on.model, on.pool) {
    for (int l = 0; l < c.L; ++l) {
      const auto seed = static_cast<uint32_t>(10 * l);
      k.push_back(random_floats(static_cast<size_t>(kKnown * c.G * c.E), seed));
      v.push_back(random_floats(static_cast<size_t>(kKnown * c.G * c.E), seed + 1));
      q.push_back(random_floats(static_cast<size_t>(kKnown * c.H * c.E), seed + 2));
    }
  }

  // x (one head) as rotated at `pos`, with the magnitude that it then gets.
  std::vector<double> at(int layer, const float* x, double pos) const {
    const LayerRopes ropes = c.ropes();
    const RopeConfig& rope = ropes.at(layer);
    std::vector<double> out(x, x + c.E);
    for (int i = 0; i < rope.rotary_dim / 2; ++i) {
      const bool halves = rope.pairs == RopePairs::kHalves;
      double &a = out[halves ? i : 2 * i], &b = out[halves ? i + rope.rotary_dim / 2 : 2 * i + 1];
      const double angle = pos * rope.inv_freq[i], xa = a, xb = b;
      a = (xa * std::cos(angle) - xb * std::sin(angle)) * rope.magnitude;
      b = (xa * std::sin(angle) + xb * std::cos(angle)) * rope.magnitude;
    }
    return out;
  }
  std::vector<float> heads_at(int layer, const float* x, int heads, double pos) const {
    std::vector<float> out;
    for (int h = 0; h < heads; ++h) {
      for (const double value : at(layer, x + int64_t{h} * c.E, pos)) out.push_back(static_cast<float>(value));
    }
    return out;
  }
  // Writes the K and V of `pos`, rotated at `computed_at`, where it is in the table.
  void write(PageTable& table, int32_t pos, int32_t computed_at) const {
    for (int l = 0; l < c.L; ++l) {
      const auto of = static_cast<int64_t>(pos) * c.G * c.E;
      table.write(l, computed_at, heads_at(l, k[l].data() + of, c.G, computed_at).data(), v[l].data() + of);
    }
  }
  std::unique_ptr<PageTable> table() const {
    const std::vector<uint16_t> all(static_cast<size_t>(c.L), 0);
    PageTable piece(*on.store, c.ropes());
    piece.add(std::vector<Runs>{{{0, kPieceEnd - kPieceShift}}}, all);
    for (int32_t pos = kPieceBegin; pos < kPieceEnd; ++pos) write(piece, pos, pos - kPieceShift);
    auto out = std::make_unique<PageTable>(*on.store, c.ropes());
    out->place(
        {piece.publish({0, kPieceEnd - kPieceShift}), kPieceBegin - kPieceShift, kPieceEnd - kPieceBegin, kPieceBegin});
    const Runs own = unite(Runs{{0, kPieceBegin}, {kPieceEnd, kKnown}}, kPieceAgain);
    out->add(std::vector<Runs>{own}, all);
    for (const kvilt::Run& run : own) {
      for (int32_t pos = run.begin; pos < run.end; ++pos) write(*out, pos, pos);
    }
    return out;
  }

  Stage stage(std::optional<FarKeys> far, bool unseen = true) const {
    Stage out = uniform_stage({{0, kKnown}}, c.L);
    if (unseen) out.unseen.resize(static_cast<size_t>(c.L));
    for (int l = 1; unseen && l < c.L; l += 2) out.unseen[l] = kPieceUnseen;
    out.far = far;
    return out;
  }
  // What these rows, a chunk, take in at a layer: H E for each.
  std::vector<float> attended(PageTable& kv, const Stage& of, int layer, kvilt::Run rows) {
    Plan plan;
    plan.prompt_len = kKnown;
    plan.stages = {of};
    Band band;
    band.layer_end = c.L;
    Chunk chunk;
    chunk.kv = &kv;
    chunk.plan = &plan;
    chunk.stage = &plan.stages[0];
    chunk.band = &band;
    BatchRows batch;
    batch.clear();
    std::vector<float> queries;
    for (int32_t pos = rows.begin; pos < rows.end; ++pos) {
      batch.push(pos, pos - rows.begin);
      const auto turned = heads_at(layer, q[layer].data() + int64_t{pos} * c.H * c.E, c.H, pos);
      queries.insert(queries.end(), turned.begin(), turned.end());
    }
    batch.first.push_back(batch.size());
    std::vector<float> out(queries.size());
    const Mat<float> from(queries.data(), rows.size(), int64_t{c.H} * c.E);
    pass.run({&chunk, 1}, {.layer = layer}, batch, from, {out.data(), from.rows, from.cols});
    EXPECT_GT(chunk.work.attention_flops, 0);
    return out;
  }
  // The same for one row, written out.
  std::vector<float> written_out(const Stage& of, int layer, int32_t pos) const {
    const int window = c.window_at(layer);
    const double scale = on.model->attend_shape(DType::kF32).scale;
    const bool far_at_all = of.far && window < 0 && pos >= of.far->rows;
    std::vector<float> out;
    for (int h = 0; h < c.H; ++h) {
      const int g = h / (c.H / c.G);
      const float* sinks = on.model->sinks(layer, g);
      std::vector<double> weighed(static_cast<size_t>(c.E));
      double sum = sinks ? std::exp(double{sinks[h % (c.H / c.G)]}) : 0;
      for (int32_t j = 0; j <= pos; ++j) {
        if (of.hides_at(layer) && contains(of.unseen[layer], j)) continue;
        if (window >= 0 && pos - j >= window) continue;
        const int32_t back = far_at_all && j < of.far->before ? of.far->distance : pos - j;
        const auto query = at(layer, q[layer].data() + (int64_t{pos} * c.H + h) * c.E, back);
        const auto key = at(layer, k[layer].data() + (int64_t{j} * c.G + g) * c.E, 0);
        const double w = std::exp(std::inner_product(query.begin(), query.end(), key.begin(), 0.0) * scale);
        sum += w;
        const float* value = v[layer].data() + (int64_t{j} * c.G + g) * c.E;
        for (int e = 0; e < c.E; ++e) weighed[e] += w * value[e];
      }
      for (const double x : weighed) out.push_back(static_cast<float>(x / sum));
    }
    return out;
  }
  bool full(int layer) const { return c.window_at(layer) < 0; }

  ModelForTest on;
  const ModelConfig& c;
  AttendPass pass;
  std::vector<std::vector<float>> k, v, q;  // by layer, then position and head, before RoPE
};

TEST_P(FarRowsTest, AreWhatTheirEquationsSay) {
  const auto kv = table();
  const FarKeys far{.rows = 80, .before = 60, .distance = 25};
  double moved = 0, nearer = 0;
  for (int l = 0; l < c.L; ++l) {
    SCOPED_TRACE(l);
    const Stage single = stage(far);
    const std::vector<float> all = attended(*kv, single, l, {74, kKnown});  // 74 .. 79 are before such rows
    std::vector<float> expected, plain;
    for (int32_t pos = 74; pos < kKnown; ++pos) {
      const auto row = written_out(single, l, pos), true_row = written_out(stage({}), l, pos);
      expected.insert(expected.end(), row.begin(), row.end());
      plain.insert(plain.end(), true_row.begin(), true_row.end());
      if (pos < far.rows) {
        EXPECT_EQ(row, true_row);
      }
    }
    EXPECT_LT(largest_difference(all, expected), 2e-5);
    if (!full(l)) {
      EXPECT_EQ(all, attended(*kv, stage({}), l, {74, kKnown})) << "where a window narrows the layer nothing moves";
      continue;
    }
    moved = std::max(moved, largest_difference(all, plain));
    nearer = std::max(nearer, largest_difference(all, attended(*kv, stage(FarKeys{80, 60, 24}), l, {74, kKnown})));
    // Chunks, and decode steps, change no bit.
    std::vector<float> parts;
    for (const kvilt::Run rows : {kvilt::Run{74, 83}, kvilt::Run{83, 97}, kvilt::Run{97, 98}, kvilt::Run{98, kKnown}}) {
      const std::vector<float> part = attended(*kv, single, l, rows);
      parts.insert(parts.end(), part.begin(), part.end());
    }
    EXPECT_EQ(parts, all);
  }
  EXPECT_GT(moved, 1e-2) << "power";
  EXPECT_GT(nearer, 1e-3) << "power: by one position";
}

// The K and V of two far positions change places. Nothing else says which is which.
TEST_P(FarRowsTest, DoNotKnowWhereAFarKeyIs) {
  const FarKeys far{.rows = 80, .before = 60, .distance = 25};
  const auto before = table();
  for (int l = 0; l < c.L; ++l) {
    for (auto* rows : {&k[l], &v[l]}) {
      const auto width = static_cast<ptrdiff_t>(c.G) * c.E;
      std::swap_ranges(rows->begin() + 5 * width, rows->begin() + 6 * width, rows->begin() + 50 * width);
    }
  }
  const auto after = table();
  double moved = 0;
  for (int l = 0; l < c.L; ++l) {
    if (!full(l)) continue;
    const auto at_one = [&](PageTable& kv) { return attended(kv, stage(far), l, {80, kKnown}); };
    const auto at_own = [&](PageTable& kv) { return attended(kv, stage({}), l, {80, kKnown}); };
    EXPECT_LT(largest_difference(at_one(*before), at_one(*after)), 1e-5);
    moved = std::max(moved, largest_difference(at_own(*before), at_own(*after)));
  }
  EXPECT_GT(moved, 1e-3) << "power";
}

TEST_P(FarRowsTest, AKeyThatIsAsFarAnywayIsWhereItIs) {
  const auto kv = table();
  double nearer = 0;
  for (int l = 0; l < c.L; ++l) {
    if (!full(l)) continue;
    const auto row = [&](std::optional<FarKeys> far) { return attended(*kv, stage(far, false), l, {5, 6}); };
    EXPECT_LT(largest_difference(row(FarKeys{5, 1, 5}), row({})), 2e-6);
    EXPECT_EQ(row(FarKeys{5, 0, 4}), row({})) << "no key is before";
    EXPECT_EQ(row(FarKeys{6, 1, 4}), row({})) << "no row is";
    nearer = std::max(nearer, largest_difference(row(FarKeys{5, 1, 4}), row({})));
  }
  EXPECT_GT(nearer, 1e-3) << "power";
}

// Nothing that is near is left: only far keys, and the row itself.
TEST_P(FarRowsTest, AllOthersMayBeFar) {
  const auto kv = table();
  for (int l = 0; l < c.L; ++l) {
    const Stage single = stage(FarKeys{99, 99, 0});
    EXPECT_LT(largest_difference(attended(*kv, single, l, {99, kKnown}), written_out(single, l, 99)), 2e-5);
    Stage hidden = single;
    hidden.unseen.assign(static_cast<size_t>(c.L), Runs{{0, 99}});
    EXPECT_LT(largest_difference(attended(*kv, hidden, l, {99, kKnown}), written_out(hidden, l, 99)), 2e-5)
        << "none is";
  }
}

TEST_P(FarRowsTest, APassInChunksAndInABatchIsThePass) {
  Driver driver(*on.model, on.pool);
  const auto far_in = [&](PromptForTest& prompt, std::optional<FarKeys> far) {
    prompt.stage().far = far;
    return &prompt;
  };
  const FarKeys far{.rows = 45, .before = 30, .distance = 8};
  PromptForTest plain(on, random_tokens(60, 1, c)), whole(on, plain.ids), chunked(on, plain.ids),
      batched(on, plain.ids), beside(on, random_tokens(60, 2, c)), no_key(on, plain.ids);
  for (PromptForTest* prompt : {&whole, &chunked, &batched}) far_in(*prompt, far);
  far_in(no_key, FarKeys{45, 0, 8});
  plain.run(driver);
  whole.run(driver);
  chunked.run(driver, 7);
  no_key.run(driver);
  EXPECT_EQ(whole.logits, chunked.logits);
  EXPECT_EQ(whole.keys({0, 60}), chunked.keys({0, 60}));
  EXPECT_EQ(no_key.logits, plain.logits) << "0 keys are far";
  EXPECT_EQ(whole.keys({0, 45}), plain.keys({0, 45})) << "no row that sees them";
  EXPECT_GT(largest_difference(whole.logits, plain.logits), 1e-4) << "power";
  far_in(beside, FarKeys{20, 11, 4});
  batched.enter();
  beside.enter();
  Chunk first[] = {batched.chunk({0, 50}), beside.chunk({0, 30})};
  driver.run(first);
  Chunk second[] = {beside.chunk({30, 60}), batched.chunk({50, 60})};
  driver.run(second);
  EXPECT_EQ(batched.logits, whole.logits);
  EXPECT_EQ(batched.keys({0, 60}), whole.keys({0, 60}));
}

INSTANTIATE_TEST_SUITE_P(All, FarRowsTest,
                         testing::Combine(testing::Values(kProbe, kStories, kGemma, kYarn, kGptOss),
                                          testing::Values("reference", "auto")),
                         [](const auto& info) {
                           const std::string path = std::get<0>(info.param);
                           const char* name = path == kProbe     ? "probe"
                                              : path == kStories ? "stories"
                                              : path == kGemma   ? "gemma3"
                                              : path == kYarn    ? "yarn"
                                                                 : "gptoss";
                           return std::string(name) + "_" + std::get<1>(info.param);
                         });

}  // namespace
}  // namespace kvilt

// Limit cases with power checks of RedKnot (docs/papers.md): settings at which it must equal the dense pass bit for
// bit, and settings at which it must differ; one local head; decode on the same plan; what is narrowed is never
// published.
#include <gtest/gtest.h>

#include <cstring>

#include "forward/driver.h"
#include "kernels/dispatch.h"
#include "model/head_map.h"
#include "model/model_file.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

constexpr int kL = 6, kG = 2;  // of the probe model

class RedKnotLimits : public testing::TestWithParam<std::string> {
 protected:
  const std::vector<int32_t> asked = tokens(200, 1);

  std::unique_ptr<Engine> engine(int chunk = 512, const std::string& kv_type = "auto") const {
    return open_for_test(
        {.model = kModel, .backend = GetParam(), .kv_type = *parse_kv_type(kv_type), .chunk_tokens = chunk});
  }
  Outcome run(Engine& engine, const std::string& policy, Params params = {},
              const std::vector<int32_t>& ids = {}) const {
    Request request = unpublished(ids.empty() ? asked : ids, policy, std::move(params));
    request.evaluation.all_logits = true;
    return ask_ok(engine, std::move(request));
  }
};

const Params kNarrow{{"global", "none"}, {"window", "8"}, {"sink", "2"}};
Params with(Params params, const Params& more) {
  for (const auto& [key, value] : more) params[key] = value;
  return params;
}

TEST_P(RedKnotLimits, AllGlobalAndWholeMassIsFull) {
  for (const int chunk : {512, 37}) {
    const auto e = engine(chunk);
    const Outcome full = run(*e, "full");
    expect_equal(run(*e, "redknot", {{"global", "all"}, {"ffn_mass", "1"}}), full);
    expect_equal(run(*e, "redknot", with(kNarrow, {{"dense_prefix_layers", "6"}})), full);
    expect_differ(run(*e, "redknot", kNarrow), full);
    expect_differ(run(*e, "redknot", {{"global", "all"}, {"ffn_mass", "0.9"}, {"ffn_recent", "0"}}), full);
  }
}

TEST_P(RedKnotLimits, AWindowThatHoldsEverythingIsFull) {
  const auto e = engine();
  const Outcome full = run(*e, "full");
  // i - j <= w with i up to 204, the answer's rows: a sink inside the window counts once.
  for (const char* sink : {"0", "4", "1000"}) {
    expect_equal(run(*e, "redknot", {{"global", "none"}, {"window", "204"}, {"sink", sink}}), full);
  }
  expect_equal(run(*e, "redknot", {{"global", "none"}, {"window", "0"}, {"sink", "1000"}}), full);
  // One key less, for the last row only: the convention is i - j <= w.
  Params one_less{{"global", "none"}, {"window", "198"}, {"sink", "0"}};
  expect_differ(run(*e, "redknot", one_less), full);
  one_less["window"] = "199";
  EXPECT_EQ(run(*e, "redknot", one_less).completion.logits.first, full.completion.logits.first);
}

TEST_P(RedKnotLimits, NoMassIsTheFirstAndTheRecentRows) {
  const auto e = engine();
  const Outcome full = run(*e, "full");
  const Params none{{"global", "all"}, {"ffn_mass", "0"}};
  expect_equal(run(*e, "redknot", with(none, {{"ffn_recent", "1000"}})), full);
  // The FLOPs saved: 6 D F a row and layer; the last layer has one row anyway. One or two blocks' first rows stay.
  const Outcome few = run(*e, "redknot", with(none, {{"ffn_recent", "50"}}));
  const double row = 6.0 * 128 * 384, saved = full.usage().linear_flops - few.usage().linear_flops;
  EXPECT_LE(saved, (kL - 1) * 150 * row);
  EXPECT_GE(saved, (kL - 1) * 149 * row);
  expect_differ(few, full);
  EXPECT_EQ(run(*e, "redknot", with(none, {{"ffn_recent", "50"}, {"ffn_start", "5"}})).usage().linear_flops,
            full.usage().linear_flops);
}

TEST_P(RedKnotLimits, TheChunkChangesNothing) {
  const auto long_one = tokens(1300, 9);  // three blocks of the ffn rule
  const std::vector<Params> settings = {kNarrow,
                                        {{"global", "first"}, {"share", "0.5"}, {"window", "20"}},
                                        {{"global", "all"}, {"ffn_mass", "0.5"}, {"ffn_recent", "16"}},
                                        with(kNarrow, {{"ffn_mass", "0.3"}, {"ffn_by", "random"}})};
  std::vector<std::vector<Outcome>> by_chunk;
  for (const int chunk : {2000, 512, 100}) {
    const auto e = engine(chunk);
    by_chunk.emplace_back();
    for (const Params& params : settings) by_chunk.back().push_back(run(*e, "redknot", params, long_one));
  }
  for (size_t i = 0; i < settings.size(); ++i) {
    SCOPED_TRACE(i);
    expect_equal(by_chunk[0][i], by_chunk[1][i]);
    expect_equal(by_chunk[0][i], by_chunk[2][i]);
    if (i > 0) expect_differ(by_chunk[0][i], by_chunk[0][i - 1]);
  }
}

TEST_P(RedKnotLimits, BatchedEqualsAlone) {
  const auto e = engine(64);
  std::vector<Request> requests;
  for (const Params& params :
       {kNarrow, Params{{"global", "all"}, {"ffn_mass", "0.5"}, {"ffn_recent", "9"}}, Params{{"global", "last"}}}) {
    requests.push_back(unpublished(asked, "redknot", params, 9));
  }
  requests.push_back(unpublished(asked, "full", {}, 9));  // published, the others would find a dense prefix
  expect_batched_equals_alone(*e, requests);
}

// Prefill of prompt and answer at once = prefill, then decode: to the bit, and so on the same views.
TEST_P(RedKnotLimits, DecodeKeepsTheViews) {
  const auto e = engine();
  Request request = unpublished(asked, "redknot", kNarrow);
  request.evaluation.forced = tokens(6, 7);
  const Outcome decoded = ask_ok(*e, request);
  ASSERT_EQ(decoded.completion.logits.all.size(), 6u);
  const auto longer = join({asked, {request.evaluation.forced.begin(), request.evaluation.forced.begin() + 5}});
  EXPECT_EQ(run(*e, "redknot", kNarrow, longer).completion.logits.first, decoded.completion.logits.all[5]);
  EXPECT_NE(run(*e, "full", {}, longer).completion.logits.first, decoded.completion.logits.all[5]) << "power";
}

// With every head local, a row knows nothing of tokens further back than layers times window: also in decode, where the
// window slides on.
TEST_P(RedKnotLimits, TheWindowSlides) {
  const auto e = engine();
  std::vector<int32_t> other = asked;
  for (size_t i = 0; i < 195 - kL * 8; ++i) other[i] = other[i] == 5 ? 6 : 5;
  const auto answers = [&](const std::vector<int32_t>& ids, const char* window) {
    Request request = unpublished(ids, "redknot", {{"global", "none"}, {"window", window}, {"sink", "0"}}, 8);
    request.evaluation.forced = tokens(8, 7);
    return ask_ok(*e, request).completion.logits.all;
  };
  EXPECT_EQ(answers(asked, "8"), answers(other, "8"));
  EXPECT_NE(answers(asked, "12"), answers(other, "12")) << "power";
}

// What a narrowed plan computes is no one else's prefix.
TEST_P(RedKnotLimits, NarrowedKvIsNotPublished) {
  const auto e = engine();
  const auto prefix_after = [&](const Params& params) {
    e->clear_cache();
    Request request = request_of(asked, "redknot", 40);
    request.policy.params = params;
    const Outcome first = ask_ok(*e, request);
    return ask_ok(*e, request_of(join({asked, first.ids, tokens(3, 8)}), "prefix")).usage().prefix;
  };
  EXPECT_EQ(prefix_after(kNarrow), 0);
  EXPECT_EQ(prefix_after({{"global", "all"}, {"ffn_mass", "0.5"}}), 0);
  EXPECT_GE(prefix_after({{"global", "all"}}), 200) << "power";
}

// An exact prefix is dense KV: it is used, and what follows it is computed with the views.
TEST_P(RedKnotLimits, APrefixIsUsed) {
  const auto e = engine();
  warm(*e, {asked.begin(), asked.begin() + 120});
  const Outcome global = run(*e, "redknot", {{"global", "all"}}), full = run(*e, "full");
  EXPECT_GE(global.usage().prefix, 119);
  expect_equal(global, full);
  const Outcome narrow = run(*e, "redknot", kNarrow);
  EXPECT_GE(narrow.usage().prefix, 119);
  expect_differ(narrow, full);
}

// With every head local, a window that holds everything, and known pieces kept as stored, the pieces' own rows are
// computed for nothing: what is left is naive reuse, but for the rounding of keys that are rotated when they are
// copied.
TEST_P(RedKnotLimits, StoredPiecesAndWideWindowsAreNaive) {
  const auto e = engine(50, "f32");
  const auto head = tokens(9, 1), a = tokens(70, 2), b = tokens(53, 3), question = tokens(21, 5);
  warm(*e, join({head, a, b}));
  const auto prompt = join({head, b, a, question});
  const Params wide{{"global", "none"}, {"window", "1000"}};
  const Outcome naive = run(*e, "naive", {}, prompt),
                stored = run(*e, "redknot", with(wide, {{"local", "stored"}}), prompt);
  EXPECT_EQ(stored.usage().reused, naive.usage().reused);
  EXPECT_GT(stored.usage().reused, 100);
  EXPECT_LT(max_abs_difference(stored.completion.logits.first, naive.completion.logits.first), 4e-3);
  const Outcome full = run(*e, "full", {}, prompt);
  EXPECT_GT(max_abs_difference(full.completion.logits.first, naive.completion.logits.first), 1e-2) << "power";
  expect_equal(run(*e, "redknot", wide, prompt), full);
  expect_equal(run(*e, "redknot", {{"global", "all"}, {"local", "stored"}}, prompt), full);
  const Outcome some = run(*e, "redknot", with(kNarrow, {{"local", "stored"}}), prompt);
  expect_differ(some, run(*e, "redknot", kNarrow, prompt));
}

// A head whose last rows look beyond its view reads everything: with the smallest threshold all do, and that is full;
// with the highest none does. Known pieces let the question look first; without them all of the prompt does.
TEST_P(RedKnotLimits, RestoredHeadsReadEverything) {
  for (const bool pieces : {false, true}) {
    const auto e = engine(60);
    const auto head = tokens(9, 1), a = tokens(70, 2), b = tokens(53, 3), question = tokens(41, 5);
    if (pieces) warm(*e, join({head, a, b}));
    const auto prompt = join({head, b, a, question});
    const Outcome full = run(*e, "full", {}, prompt), narrow = run(*e, "redknot", kNarrow, prompt);
    const auto restored = [&](const char* tau) {
      return run(*e, "redknot", with(kNarrow, {{"restore", tau}}), prompt);
    };
    expect_equal(restored("1e-9"), full);
    expect_equal(restored("1"), narrow);
    expect_differ(narrow, full);
    // Between them: some heads.
    bool between = false;
    for (const char* tau : {"0.4", "0.6", "0.7", "0.8", "0.9"}) {
      const auto logits = restored(tau).completion.logits.first;
      between = between || (logits != full.completion.logits.first && logits != narrow.completion.logits.first);
    }
    EXPECT_TRUE(between);
    const double cost = restored("1").usage().flops / narrow.usage().flops;
    EXPECT_GT(cost, pieces ? 1.1 : 1.8) << "the look is paid for";
    EXPECT_LT(cost, pieces ? 1.6 : 2.3);
  }
}

// Experts: rows that a sparse FFN leaves out skip router and experts: by mass, by another mass from some layer on, or
//          by
// threshold.
TEST_P(RedKnotLimits, SparseExperts) {
  constexpr const char* kMoe = "tests/data/fixtures/qwen3-moe";  // 3 layers of 8 experts, 3 of which run
  const auto e = open_for_test({.model = kMoe, .backend = GetParam(), .chunk_tokens = 64});
  std::vector<int32_t> ids = asked;
  for (int32_t& id : ids) id %= 250;
  const auto moe = [&](Params params) {
    params["global"] = "all";
    params["ffn_recent"] = "20";
    return run(*e, "redknot", params, ids);
  };
  const Outcome full = run(*e, "full", {}, ids);
  expect_equal(moe({{"ffn_experts", "0"}}), full);
  expect_equal(moe({{"ffn_experts", "1e-9"}}), full);
  expect_equal(moe({{"ffn_experts", "100"}, {"ffn_recent", "20"}, {"ffn_start", "3"}}), full);
  expect_equal(moe({{"ffn_mass", "1"}, {"ffn_deep", "1"}, {"ffn_deep_mass", "1"}}), full);
  const Outcome some = moe({{"ffn_experts", "1"}}), few = moe({{"ffn_experts", "100"}}),
                none = moe({{"ffn_mass", "0"}}),
                deep = moe({{"ffn_mass", "1"}, {"ffn_deep", "1"}, {"ffn_deep_mass", "0"}});
  for (const Outcome& one : {some, few, deep}) expect_differ(one, full);
  expect_equal(few, none);  // only the block's highest and the recent rows
  // A row of a layer: the router and 3 experts of three matrices. The last layer has one row anyway.
  const double row = 2.0 * 32 * 8 + 3 * 6.0 * 32 * 16;
  const auto saved = [&](const Outcome& one) { return (full.usage().linear_flops - one.usage().linear_flops) / row; };
  EXPECT_NEAR(saved(none), 2 * 179, 2.1);  // 200 rows but 20 recent ones and the highest, which may be among them
  EXPECT_NEAR(saved(deep), 1 * 179, 1.1) << "layer 0 runs whole";
  EXPECT_GT(saved(some), 40);
  EXPECT_LT(saved(some), saved(none));
  expect_equal(run(*e, "redknot", {{"global", "all"}, {"ffn_recent", "20"}, {"ffn_experts", "1"}}, ids), some);
}

TEST_P(RedKnotLimits, PromptLogitsAreThoseOfShorterPrompts) {
  for (const int chunk : {512, 7}) {
    const auto e = engine(chunk);
    for (const bool narrow : {false, true}) {
      Request request = unpublished(asked, narrow ? "redknot" : "full", narrow ? kNarrow : Params{}, 3);
      request.evaluation.prompt_logits = 20;
      const Outcome out = ask_ok(*e, request);
      ASSERT_EQ(out.completion.logits.prompt.size(), 20u);
      EXPECT_EQ(out.completion.logits.prompt.back(), out.completion.logits.first);
      EXPECT_NE(out.completion.logits.prompt.front(), out.completion.logits.first) << "power";
      const std::vector<int32_t> shorter(asked.begin(), asked.end() - 12);
      const Outcome at = run(*e, request.policy.name, request.policy.params, shorter);
      EXPECT_EQ(out.completion.logits.prompt[7], at.completion.logits.first);
      const Outcome plain = run(*e, request.policy.name, request.policy.params);
      EXPECT_EQ(out.ids, std::vector<int32_t>(plain.ids.begin(), plain.ids.begin() + 3));
    }
  }
}

TEST_P(RedKnotLimits, AMapOfAnotherShapeIsRefused) {
  const auto e = engine();
  const std::string wrong = head_map_json(uniform_head_map(kL, kG + 1, HeadClass::kLocal));
  const Status refused = e->set_head_map("mine", wrong);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("6 layers and 2 KV heads"), std::string::npos) << refused.error().message;
  EXPECT_FALSE(e->check_policy({"redknot", {{"map", "mine"}}}).ok());
  ASSERT_TRUE(e->set_head_map("mine", head_map_json(uniform_head_map(kL, kG, HeadClass::kLocal, 8, 2))).ok());
  EXPECT_TRUE(e->check_policy({"redknot", {{"map", "mine"}}}).ok());
  expect_equal(run(*e, "redknot", {{"map", "mine"}}), run(*e, "redknot", kNarrow));
  EXPECT_FALSE(e->check_policy({"redknot", {}}).ok()) << "there is no default map";
  EXPECT_FALSE(open_engine({.model = kModel, .head_maps = {"tests/data/no_such_map.json"}}).ok());
}

INSTANTIATE_TEST_SUITE_P(Backends, RedKnotLimits, testing::Values("reference", "auto"));

// One local head changes nothing but through that head: below its layer and in it all K and V stay, whatever the head;
// rows that its window covers stay everywhere; after it the rest changes.
class OneHead : public testing::Test {
 protected:
  static constexpr int32_t kT = 60, kWindow = 20;
  void SetUp() override {
    auto opened = open_model(kModel);
    ASSERT_TRUE(opened.ok());
    file = std::move(opened).value();
    model = PreparedModel::prepare(file, *find_backend("auto").value(), pool, nullptr);
    auto made = PageStore::create({kL, kG, model->config().E, 16, DType::kF32}, int64_t{16} << 20);
    ASSERT_TRUE(made.ok());
    store.emplace(std::move(made).value());
  }

  // A prefill in which only KV head `local` (layer * G + head; -1: none) is local, up to `end`.
  std::unique_ptr<PageTable> prefill(int local) {
    const ModelConfig& c = model->config();
    const auto ids = tokens(kT, 3);
    Plan plan;
    plan.prompt_len = kT;
    plan.views.push_back({{0, kWindow}});
    plan.head_view.assign(kL * kG, 0);
    if (local >= 0) plan.head_view[local] = 1;
    plan.stages = {uniform_stage({{0, kT}}, kL)};
    const Band band = next_band(plan.stages[0], 0, kL, {{kT - 1, kT}});
    auto table = std::make_unique<PageTable>(*store, c.ropes());
    table->add(plan.stages[0].sets, std::vector<uint16_t>(kL, 0));
    Chunk chunk;
    chunk.kv = table.get();
    chunk.plan = &plan;
    chunk.stage = &plan.stages[0];
    chunk.band = &band;
    chunk.range = {0, kT};
    chunk.tokens = ids;
    Driver(*model, pool).run({&chunk, 1});
    return table;
  }

  ThreadPool pool{2};
  std::shared_ptr<const ModelFile> file;
  std::shared_ptr<const PreparedModel> model;
  std::optional<PageStore> store;
};

TEST_F(OneHead, ChangesNothingButThroughItself) {
  const auto dense = prefill(-1);
  const size_t bytes = sizeof(float) * static_cast<size_t>(model->config().E);
  for (const int head : {0, 5, kL * kG - 3}) {
    const auto table = prefill(head);
    const int layer = head / kG;
    for (int l = 0; l < kL; ++l) {
      for (int g = 0; g < kG; ++g) {
        int changed = 0;
        for (int32_t pos = 0; pos < kT; ++pos) {
          const bool same = std::memcmp(table->private_k(l, g, pos), dense->private_k(l, g, pos), bytes) == 0;
          if (l <= layer || pos <= kWindow) {
            ASSERT_TRUE(same) << "head " << head << " changes layer " << l << " head " << g << " at " << pos;
          }
          changed += !same;
        }
        if (l > layer) {
          EXPECT_GT(changed, (kT - kWindow) / 2) << "power";
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvilt

// Ragged heads through the driver (limit cases with power checks): memory that holds only sink and window
// computes, bit for bit, what masks over all keys do, in the prompt and far beyond the window in decode.
#include <gtest/gtest.h>

#include <cstring>

#include "forward/driver.h"
#include "kernels/dispatch.h"
#include "kv/session_file.h"
#include "model/model_file.h"
#include "random_tokens.h"

namespace kvilt {
namespace {

constexpr int32_t kPrompt = 150, kSteps = 90;

// What every head sees, and whether the table keeps less too.
struct Heads {
  std::vector<View> views{View{}};
  std::vector<uint16_t> head_view;
  bool ragged = true;
  int32_t chunk = kPrompt;
};

// One sequence with forced tokens.
struct Run1 {
  Run1(PageStore& store, const ModelConfig& config, const Heads& heads, uint32_t seed)
      : c(config),
        heads(heads),
        ids(tokens(kPrompt + kSteps, seed, config.V)),
        table(new PageTable(store, config.ropes())) {
    plan.views = heads.views;
    plan.head_view = heads.head_view;
    plan.prompt_len = kPrompt;
    plan.stages = {uniform_stage({{0, kPrompt}}, c.L)};
    band = next_band(plan.stages[0], 0, c.L, {{kPrompt - 1, kPrompt}});
    table->keep(keeps(), heads.chunk);
    table->add(plan.stages[0].sets, std::vector<uint16_t>(static_cast<size_t>(c.L), 0));
  }
  std::vector<HeadKeep> keeps() const {
    std::vector<HeadKeep> out;
    for (int i = 0; i < c.L * c.G && heads.ragged; ++i) {
      const View& view = heads.views[heads.head_view.empty() ? 0 : heads.head_view[i]];
      out.push_back({view.sink, view.window});
    }
    return out;
  }
  Chunk chunk(int32_t at) {
    Chunk out;
    out.kv = table.get();
    out.plan = &plan;
    out.stage = &plan.stages[0];
    out.band = &band;
    out.tokens = ids;
    if (at < kPrompt) {
      out.range = {at, std::min(at + heads.chunk, kPrompt)};
      table->hold({0, c.L}, out.range);
    } else {
      if (at == kPrompt) table->keep(keeps(), 0);
      table->add_next(at);
      out.range = {at, at + 1};
      plan.prompt_len = at + 1;
      plan.stages = {uniform_stage({{at, at + 1}}, c.L)};
      band = next_band(plan.stages[0], 0, c.L, {{at, at + 1}});
      out.stage = &plan.stages[0];
    }
    if (out.range.end >= kPrompt) {
      logits.emplace_back(static_cast<size_t>(c.V));
      out.logits = logits.back().data();
    }
    return out;
  }
  void passed(const Chunk& chunk) { table->passed({0, c.L}, chunk.range.end); }

  const ModelConfig& c;
  const Heads heads;
  const std::vector<int32_t> ids;
  std::unique_ptr<PageTable> table;
  Plan plan;
  Band band;
  std::vector<std::vector<float>> logits;  // of the last prompt row and every step
};

class SegPaged : public testing::TestWithParam<std::tuple<std::string, std::string, DType>> {
 protected:
  SegPaged() : pool(2) {
    auto opened = open_model(std::get<0>(GetParam()));
    EXPECT_TRUE(opened.ok());
    file = std::move(opened).value();
    model = PreparedModel::prepare(file, *find_backend(std::get<1>(GetParam())).value(), pool, nullptr);
    store.emplace(
        PageStore::create({config().L, config().G, config().E, 16, std::get<2>(GetParam())}, 64 << 20).value());
    driver.emplace(*model, pool);
  }
  const ModelConfig& config() const { return model->config(); }
  size_t heads() const { return static_cast<size_t>(config().L * config().G); }

  std::unique_ptr<Run1> start(const Heads& heads, uint32_t seed = 1) {
    return std::make_unique<Run1>(*store, config(), heads, seed);
  }
  std::unique_ptr<Run1> run(const Heads& heads, uint32_t seed = 1) {
    auto out = start(heads, seed);
    int32_t next = 0;
    while (next < kPrompt + kSteps) {
      Chunk chunk = out->chunk(next);
      driver->run({&chunk, 1});
      out->passed(chunk);
      next = chunk.range.end;
    }
    return out;
  }
  // Every second head is local.
  Heads mixed(int32_t sink, int32_t window, bool ragged, int32_t chunk = kPrompt) const {
    Heads out{{View{}, View{{sink, window}}}, {}, ragged, chunk};
    for (size_t i = 0; i < heads(); ++i) out.head_view.push_back(static_cast<uint16_t>((i + i / config().G) % 2));
    return out;
  }

  ThreadPool pool;
  std::shared_ptr<const ModelFile> file;
  std::unique_ptr<PreparedModel> model;
  std::optional<PageStore> store;
  std::optional<Driver> driver;
};

TEST_P(SegPaged, AllGlobalAndWindowsBeyondTheTextAreDense) {
  const auto dense = run({});
  Heads global{{View{}, View{{3, 5}}}, std::vector<uint16_t>(heads(), 0)};
  EXPECT_EQ(run(global)->logits, dense->logits);
  EXPECT_EQ(run({{View{{0, 1000}}}, {}})->logits, dense->logits);
  EXPECT_EQ(run({{View{{4, kPrompt + kSteps}}}, {}, true, 40})->logits, dense->logits);
  EXPECT_EQ(run({{View{{1000, 0}}}, {}})->logits, dense->logits);   // the sink covers all
  EXPECT_EQ(run({{View{{150, 120}}}, {}})->logits, dense->logits);  // they overlap: a key counts once
  const auto few = run({{View{{4, 16}}}, {}});
  for (size_t i = 0; i < dense->logits.size(); ++i) EXPECT_NE(few->logits[i], dense->logits[i]) << "power";
}

TEST_P(SegPaged, RaggedPagesEqualMasksInPromptAndDecode) {
  for (const auto& [sink, window] : {std::pair{4, 16}, std::pair{0, 0}, std::pair{20, 64}}) {
    const auto masked = run(mixed(sink, window, false)), ragged = run(mixed(sink, window, true));
    EXPECT_EQ(ragged->logits, masked->logits);
    EXPECT_EQ(masked->table->dropped_pages(), 0);
    EXPECT_GT(ragged->table->dropped_pages(), 2 * static_cast<int64_t>(heads()));
    EXPECT_LT(ragged->table->private_pages(), masked->table->private_pages() * 3 / 4);
    EXPECT_EQ(run(mixed(sink, window, true, 33))->logits, masked->logits) << "chunked = whole";
    EXPECT_EQ(run(mixed(sink, window, true, 1))->logits, masked->logits);
  }
  EXPECT_NE(run(mixed(4, 16, true))->logits, run(mixed(4, 17, true))->logits) << "power: one key more shows";
}

TEST_P(SegPaged, OneLocalHeadChangesNothingButThroughThatHead) {
  const auto dense = run({});
  const int at = config().L / 2;
  Heads one{{View{}, View{{2, 7}}}, std::vector<uint16_t>(heads(), 0)};
  one.head_view[at * config().G] = 1;
  one.ragged = false;  // so that all keys can be compared
  const auto local = run(one);
  const auto bytes = static_cast<size_t>(store->shape().row_bytes());
  for (int layer = 0; layer < config().L; ++layer) {
    int64_t differ = 0;
    for (int head = 0; head < config().G; ++head) {
      for (int32_t pos = 0; pos < kPrompt + kSteps; ++pos)
        differ += std::memcmp(dense->table->private_k(layer, head, pos), local->table->private_k(layer, head, pos),
                              bytes) != 0;
    }
    if (layer <= at) {
      EXPECT_EQ(differ, 0) << layer;
    } else {
      EXPECT_GT(differ, kSteps) << layer;
    }
  }
  EXPECT_NE(dense->logits.front(), local->logits.front());
}

TEST_P(SegPaged, BatchedEqualsAlone) {
  const std::vector<Heads> kinds{mixed(4, 16, true, 40), {{View{}}, {}, true, 40}, mixed(0, 31, true, 40)};
  std::vector<std::unique_ptr<Run1>> alone, together;
  for (size_t i = 0; i < kinds.size(); ++i) {
    alone.push_back(run(kinds[i], static_cast<uint32_t>(i)));
    together.push_back(start(kinds[i], static_cast<uint32_t>(i)));
  }
  for (int32_t next = 0; next < kPrompt + kSteps;) {
    std::vector<Chunk> chunks;
    for (auto& one : together) chunks.push_back(one->chunk(next));
    driver->run(chunks);
    for (size_t i = 0; i < together.size(); ++i) together[i]->passed(chunks[i]);
    next = chunks[0].range.end;
  }
  for (size_t i = 0; i < kinds.size(); ++i) EXPECT_EQ(together[i]->logits, alone[i]->logits);
}

// The prompt here, the answer there: as if it had never moved, and a fraction of the bytes.
TEST_P(SegPaged, AnswersGoOnElsewhereToTheBit) {
  const Heads heads = mixed(4, 16, true, 40);
  PageStore elsewhere =
      PageStore::create({config().L, config().G, config().E, 8, std::get<2>(GetParam())}, 8 << 20).value();
  const auto stayed = run(heads), moved = start(heads);  // it ends in that store
  for (int32_t next = 0; next < kPrompt + kSteps;) {
    if (next == kPrompt) {
      moved->table->keep(moved->keeps(), 0);
      std::vector<std::byte> bytes;
      const auto sent =
          export_session(*moved->table, std::span(moved->ids).first(kPrompt), "m", [&](auto part) -> Status {
            bytes.insert(bytes.end(), part.begin(), part.end());
            return {};
          });
      ASSERT_TRUE(sent.ok());
      EXPECT_LT(sent->kv, sent->dense * 2 / 3);
      size_t at = 0;
      auto session = import_session(elsewhere, config().ropes(), "m", [&](std::span<std::byte> part) -> Status {
        std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at), part.size(), part.begin());
        at += part.size();
        return {};
      });
      ASSERT_TRUE(session.ok()) << session.error().message;
      EXPECT_EQ(at, bytes.size());
      moved->table = std::move(session->table);
    }
    Chunk chunk = moved->chunk(next);
    driver->run({&chunk, 1});
    moved->passed(chunk);
    next = chunk.range.end;
  }
  EXPECT_EQ(moved->logits, stayed->logits);
}

std::string model_backend_and_type(const testing::TestParamInfo<std::tuple<std::string, std::string, DType>>& info) {
  std::string name = std::get<0>(info.param).substr(11) + "_" + std::get<1>(info.param) + "_" +
                     std::string(kv_type_name(std::get<2>(info.param)));
  for (char& ch : name) ch = std::isalnum(static_cast<unsigned char>(ch)) ? ch : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, SegPaged,
                         testing::Combine(testing::Values("tests/data/fixtures/qwen2", "tests/data/fixtures/gemma3"),
                                          testing::Values("reference", "auto"),
                                          testing::Values(DType::kF32, DType::kI8)),
                         model_backend_and_type);

}  // namespace
}  // namespace kvilt

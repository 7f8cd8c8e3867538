// Who runs: admission, budgets, groups and preemption over real page tables, without a model.
#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

using Ids = std::vector<RequestId>;

// Two bands: every row to a cut at layer 1, then all of them on.
class Cut : public ReusePolicy {
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Plan plan;
    plan.prompt_len = layout.prompt_len;
    plan.stages = {uniform_stage(layout.fresh(), config.L)};
    plan.stages[0].cuts = {1};
    return plan;
  }
};

// Every head sees the last eight positions only.
class Near : public ReusePolicy {
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Plan plan;
    plan.prompt_len = layout.prompt_len;
    plan.stages = {uniform_stage(layout.fresh(), config.L)};
    plan.views = {{0, 8, 0}};
    return plan;
  }
};

// A block of 8 tokens (a page of each of the 3 * 2 heads) is the unit of all pools here.
constexpr int64_t kBlock = 6;

class SchedulerTest : public testing::Test {
 protected:
  SchedulerTest() {
    config.L = kShape.L;
    config.G = config.H = kShape.G;
    config.E = kShape.E;
    config.rope = small_rope();
  }

  void open(int64_t blocks, SchedulerOptions options = {}) {
    scheduler.reset();  // its sequences, and those that failed, give their pages back to the store that they are of
    failed.clear();
    store.emplace(PageStore::create(kShape, blocks * kBlock * kShape.page_bytes()).value());
    scheduler.emplace(options, config);
  }

  Sequence* enqueue(RequestId id, int32_t prompt, std::unique_ptr<ReusePolicy> policy = nullptr) {
    auto s = std::make_unique<Sequence>();
    s->id = id;
    s->policy = policy ? std::move(policy) : make_policy("full", {}).value();
    s->tokens.assign(static_cast<size_t>(prompt), 1);
    s->prompt_len = prompt;
    Sequence* out = s.get();
    scheduler->enqueue(std::move(s));
    return out;
  }

  // As the engine does it: what is cached is placed, the rest planned.
  Admission place(Sequence& s) {
    PromptLayout layout;
    layout.prompt_len = static_cast<int32_t>(s.tokens.size());
    s.running.kv = std::make_unique<PageTable>(*store, config.ropes());
    if (cached && !s.without_cache) {
      s.running.kv->place({cached, 0, 8, 0});
      layout.prefix = 8;
    }
    s.running.prefill = std::make_unique<Prefill>(*s.policy, layout, config);
    s.running.kv->keep(s.running.prefill->keeps(), 8);
    return Admission::kReady;
  }

  // One step and what the engine does after it. Returns the ids that ran.
  Ids step() {
    scheduler->admit([this](Sequence& s) { return place(s); });
    failed.clear();
    rows = 0;
    groups.clear();
    Ids out;
    for (StepGroup& group : scheduler->next_step([this](int64_t pages) { return make_room(pages); }, failed)) {
      Ids& ids = groups.emplace_back();
      for (const StepItem& item : group.items) {
        Sequence& s = *item.sequence;
        ids.push_back(s.id);
        if (item.decode) {
          EXPECT_EQ(item.range.begin, static_cast<int32_t>(s.tokens.size()) - 1);
          s.tokens.push_back(1);
          continue;
        }
        rows += s.running.prefill->rows_in(item.range);
        s.running.prefill->advance(item.range);
        if (!s.running.prefill->done()) continue;
        s.running.decode.take_views(s.running.prefill->plan());
        s.running.prefill.reset();
        s.tokens.push_back(1);
      }
      out.insert(out.end(), ids.begin(), ids.end());
    }
    std::ranges::sort(out);
    return out;
  }

  bool make_room(int64_t pages) {
    if (pages > store->free_pages() && cached.use_count() == 1) cached.reset();
    return pages <= store->free_pages();
  }

  template <class List>
  static Ids ids_of(const List& sequences) {
    Ids out;
    for (const auto& s : sequences) out.push_back(s->id);
    return out;
  }
  Ids running() const { return ids_of(scheduler->running()); }
  Ids waiting() const { return ids_of(scheduler->waiting()); }

  ModelConfig config;
  std::optional<PageStore> store;
  std::shared_ptr<const KvSegment> cached;
  std::optional<Scheduler> scheduler;
  std::vector<std::unique_ptr<Sequence>> failed;  // by the last step
  std::vector<Ids> groups;                        // of the last step
  int64_t rows = 0;                               // of prefills in the last step
};

TEST_F(SchedulerTest, WhoFindsNoRoomIsNotPassedAndWhoWaitsForElseIs) {
  for (const Admission second : {Admission::kNoRoom, Admission::kLater, Admission::kReady}) {
    open(8);
    for (const RequestId id : {1, 2, 3}) enqueue(id, 8);
    Ids asked;
    scheduler->admit([&](Sequence& s) {
      asked.push_back(s.id);
      return s.id == 2 ? second : Admission::kReady;
    });
    if (second == Admission::kNoRoom) {
      EXPECT_EQ(asked, (Ids{1, 2}));
      EXPECT_EQ(running(), (Ids{1}));
      EXPECT_EQ(waiting(), (Ids{2, 3}));
    } else if (second == Admission::kLater) {
      EXPECT_EQ(running(), (Ids{1, 3}));
      EXPECT_EQ(waiting(), (Ids{2}));
    } else {
      EXPECT_EQ(running(), (Ids{1, 2, 3})) << "power check";
    }
  }
}

TEST_F(SchedulerTest, RunningAndQueueAreBounded) {
  open(8, {.max_sequences = 2, .max_queue = 3});
  for (const RequestId id : {1, 2, 3}) {
    EXPECT_FALSE(scheduler->queue_full());
    enqueue(id, 8);
  }
  EXPECT_TRUE(scheduler->queue_full());
  EXPECT_EQ(step(), (Ids{1, 2}));
  EXPECT_EQ(waiting(), (Ids{3}));
  EXPECT_FALSE(scheduler->queue_full());
}

TEST_F(SchedulerTest, PrefillsShareTheBudgetInOrderOfArrival) {
  open(20, {.chunk_tokens = 16, .chunk_while_decoding = 4});
  enqueue(1, 10), enqueue(2, 40), enqueue(3, 40);
  EXPECT_EQ(step(), (Ids{1, 2}));  // 10 rows of the first, 6 of the second
  EXPECT_EQ(rows, 16);
  EXPECT_EQ(scheduler->running()[1]->running.prefill->next_chunk(1).begin, 6);
  EXPECT_EQ(step(), (Ids{1, 2}));  // now somebody decodes
  EXPECT_EQ(rows, 4);
  scheduler->remove(1);
  EXPECT_EQ(step(), (Ids{2}));  // nobody decodes now
  EXPECT_EQ(rows, 16);
  EXPECT_EQ(step(), (Ids{2, 3}));
  EXPECT_EQ(rows, 16);
}

TEST_F(SchedulerTest, WhatRunsThroughTheSameLayersIsOneGroup) {
  open(20);
  enqueue(1, 8), enqueue(2, 8);
  EXPECT_EQ(step(), (Ids{1, 2}));
  EXPECT_EQ(groups.size(), 1u);
  enqueue(3, 8), enqueue(4, 8, std::make_unique<Cut>()), enqueue(5, 8, std::make_unique<Cut>());
  step();
  EXPECT_EQ(groups, (std::vector<Ids>{{1, 2, 3}, {4, 5}}));  // decodes with a prefill through all layers; to the cut
  enqueue(6, 8, std::make_unique<Cut>());
  step();
  EXPECT_EQ(groups, (std::vector<Ids>{{1, 2, 3}, {4, 5}, {6}}));  // from the cut on; to the cut
}

TEST_F(SchedulerTest, TheYoungestIsPreemptedAndWaitsInFront) {
  open(5, {.max_sequences = 3});
  for (const RequestId id : {1, 2, 3, 4}) enqueue(id, 8);
  EXPECT_EQ(step(), (Ids{1, 2, 3}));  // a block each; the next tokens need three more, of which two are free
  scheduler->running()[2]->running.published.segments = {7};
  EXPECT_EQ(scheduler->preemptions(), 0u);
  std::vector<std::unique_ptr<Sequence>> none;
  const auto groups = scheduler->next_step([this](int64_t pages) { return make_room(pages); }, none);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].items.size(), 2u);
  EXPECT_EQ(scheduler->preemptions(), 0u) << "the youngest gets none and waits; nobody came after it";
  EXPECT_EQ(running(), (Ids{1, 2, 3}));

  open(4, {.max_sequences = 3});
  for (const RequestId id : {1, 2, 3, 4}) enqueue(id, 8);
  step();
  scheduler->running()[2]->running.published.segments = {7};
  EXPECT_EQ(scheduler->next_step([this](int64_t pages) { return make_room(pages); }, none)[0].items.size(), 2u);
  EXPECT_EQ(scheduler->preemptions(), 1u);
  EXPECT_EQ(running(), (Ids{1, 2}));
  EXPECT_EQ(waiting(), (Ids{3, 4}));
  const Sequence& again = *scheduler->waiting().front();
  EXPECT_EQ(again.tokens.size(), 9u);  // what it said stays
  EXPECT_EQ(again.running.kv, nullptr);
  EXPECT_EQ(again.running.prefill, nullptr);
  EXPECT_TRUE(again.running.published.segments.empty());
  EXPECT_TRUE(again.running.decode.plan.stages.empty());
  EXPECT_FALSE(again.decoding());
  EXPECT_TRUE(none.empty());
}

// Two that cannot both go on take turns; both get as far as one by itself does.
TEST_F(SchedulerTest, PreemptedSequencesGetOn) {
  open(4, {.max_sequences = 2});
  enqueue(1, 8), enqueue(2, 8);
  std::map<RequestId, size_t> reached;
  for (int i = 0; i < 200 && reached.size() < 2; ++i) {
    step();
    EXPECT_TRUE(failed.empty());
    for (const RequestId id : running()) {
      const auto& list = scheduler->running();
      const auto s = std::ranges::find_if(list, [&](const auto& s) { return s->id == id; });
      if ((*s)->tokens.size() < 30) continue;
      reached[id] = (*s)->tokens.size();
      scheduler->remove(id);
    }
  }
  EXPECT_EQ(reached, (std::map<RequestId, size_t>{{1, 30}, {2, 30}}));
  EXPECT_GT(scheduler->preemptions(), 0u) << "power check";
  EXPECT_EQ(store->free_pages(), store->pages());
}

TEST_F(SchedulerTest, APrefillWithoutPagesWaitsAndLeavesItsBudget) {
  open(3, {.chunk_tokens = 64});
  enqueue(1, 16), enqueue(2, 16), enqueue(3, 8);
  EXPECT_EQ(step(), (Ids{1, 3}));  // the second finds one block of its two
  EXPECT_EQ(rows, 24);
  EXPECT_EQ(scheduler->preemptions(), 0u);
  EXPECT_EQ(running(), (Ids{1, 2, 3}));
}

// Heads that keep less than all hold a chunk's pages only: the whole prompt would not fit.
TEST_F(SchedulerTest, AChunkTakesItsPagesFromWhatLocalHeadsReserved) {
  for (const bool local : {true, false}) {
    open(6, {.chunk_tokens = 8});
    Sequence* s = enqueue(1, 80, local ? std::make_unique<Near>() : nullptr);
    int steps = 0;
    for (; failed.empty() && s->tokens.size() == 80 && steps < 50; ++steps) {
      step();
      if (!failed.empty()) continue;
      EXPECT_EQ(s->running.kv->held_pages(0, 0), std::min(2, steps + 1)) << "the chunk, and what it looks back at";
      if (!s->running.prefill) continue;
      s->running.kv->passed(s->running.prefill->layers_passed(), 8 * (steps + 1));
    }
    EXPECT_EQ(failed.empty(), local);
    EXPECT_EQ(steps, local ? 10 : 1);
  }
}

TEST_F(SchedulerTest, ALoneSequenceThatCannotGoOnFails) {
  for (const int64_t blocks : {1, 2}) {
    open(blocks);
    enqueue(1, 8);
    EXPECT_EQ(step(), (Ids{1}));
    EXPECT_EQ(step(), blocks == 1 ? Ids{} : Ids{1});
    EXPECT_EQ(ids_of(failed), blocks == 1 ? Ids{1} : Ids{}) << "with a block more it goes on: power check";
    EXPECT_EQ(scheduler->idle(), blocks == 1);
    EXPECT_EQ(scheduler->preemptions(), 0u);
  }
}

// A placed token keeps its whole segment in memory: before it fails, a lone sequence tries without.
TEST_F(SchedulerTest, ALoneSequenceTriesWithoutTheCacheOnce) {
  open(5);
  {
    PageTable table(*store, config.ropes());
    table.add(std::vector<Runs>{{{0, 32}}}, std::vector<uint16_t>(3, 0));
    cached = table.publish({0, 32});
  }
  EXPECT_EQ(store->free_pages(), kBlock);
  const Sequence* s = enqueue(1, 9, make_policy("prefix", {}).value());
  for (int i = 0; i < 20 && !s->without_cache; ++i) {
    step();
    ASSERT_TRUE(failed.empty());
  }
  ASSERT_TRUE(s->without_cache);
  EXPECT_EQ(s->tokens.size(), 17u);  // its own block is full
  EXPECT_EQ(scheduler->preemptions(), 1u);
  EXPECT_EQ(waiting(), (Ids{1}));
  for (int i = 0; i < 50 && failed.empty(); ++i) step();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(cached, nullptr);
  EXPECT_EQ(failed[0]->tokens.size(), 41u);  // all five blocks
  EXPECT_EQ(scheduler->preemptions(), 1u);
}

TEST_F(SchedulerTest, RestartPutsTheNamedInFrontInOrder) {
  open(20, {.max_sequences = 3});
  for (const RequestId id : {1, 2, 3, 4}) enqueue(id, 8);
  step();
  scheduler->restart([](const Sequence& s) { return s.id != 2; });
  EXPECT_EQ(running(), (Ids{2}));
  EXPECT_EQ(waiting(), (Ids{1, 3, 4}));
  EXPECT_EQ(scheduler->waiting().front()->running.kv, nullptr);
  EXPECT_NE(scheduler->running().front()->running.kv, nullptr) << "power check";
  EXPECT_EQ(scheduler->preemptions(), 0u);
  EXPECT_EQ(step(), (Ids{1, 2, 3}));
}

TEST_F(SchedulerTest, RemoveTakesOutWhereverItIs) {
  open(20, {.max_sequences = 1});
  enqueue(1, 8), enqueue(2, 8);
  step();
  EXPECT_EQ(scheduler->remove(3), nullptr);
  EXPECT_EQ(scheduler->remove(2)->id, 2u);
  EXPECT_EQ(waiting(), (Ids{}));
  EXPECT_FALSE(scheduler->idle());
  EXPECT_EQ(scheduler->remove(1)->id, 1u);
  EXPECT_TRUE(scheduler->idle());
  EXPECT_EQ(store->free_pages(), store->pages());
}

}  // namespace
}  // namespace kvilt

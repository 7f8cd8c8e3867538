// Who runs: admission, budgets, groups and preemption over real page tables, without a model.
#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "kv/rows_for_test.h"
#include "sched/near_policy_for_test.h"

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

// A stage that is forgotten, then one that keeps what it writes, of everything.
class Twice : public ReusePolicy {
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Plan plan;
    plan.prompt_len = layout.prompt_len;
    plan.stages = {uniform_stage({layout.tail()}, config.L), uniform_stage(layout.fresh(), config.L)};
    plan.stages[0].discard = true;
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

  Sequence* enqueue(RequestId id, int32_t prompt, std::unique_ptr<ReusePolicy> policy = nullptr,
                    const std::string& tenant = "") {
    auto s = std::make_unique<Sequence>();
    s->id = id;
    s->policy = policy ? std::move(policy) : make_policy("full", {}).value();
    s->tokens.assign(static_cast<size_t>(prompt), 1);
    s->prompt_len = prompt;
    s->request.tenant = tenant;
    planned[id] = 0;
    Sequence* out = s.get();
    scheduler->enqueue(std::move(s));
    return out;
  }

  // As the engine does it: what is cached is placed, the rest planned.
  Admission place(Sequence& s) {
    ++planned[s.id];
    if (answers.contains(s.id) && answers[s.id] != Admission::kReady) return answers[s.id];
    PromptLayout layout;
    layout.prompt_len = static_cast<int32_t>(s.tokens.size());
    s.running.kv = std::make_unique<PageTable>(*store, config.ropes());
    if (cached && !s.without_cache) {
      s.running.kv->place({cached, 0, 8, 0});
      layout.prefix = 8;
    }
    s.running.prefill = std::make_unique<Prefill>(*s.policy, layout, config);
    if (layers.contains(s.id)) s.running.prefill->layers_there(layers[s.id]);
    s.running.kv->keep(s.running.prefill->keeps(), 8);
    if (promises) s.running.promised = s.running.prefill->pages_to_come(*s.running.kv);
    s.running.outside = outside;
    s.running.choosing = choosing;
    s.running.row_cost = costs.contains(s.id) ? costs[s.id] : 1;
    return Admission::kReady;
  }

  // The next step, chosen and not run.
  std::span<StepGroup> choose() {
    const auto room = [this](const Sequence&, int64_t pages) { return make_room(pages); };
    const auto available = [this] { return store->free_pages() + store->idle().pages(); };
    const auto plan = [this](Sequence& s) { return place(s); };
    const auto start = [this](Sequence&) {
      if (memory_ends_at_start) throw std::bad_alloc();
    };
    const auto preempt = [this](Sequence& s) {
      EXPECT_NE(s.running.kv, nullptr) << "before it is dropped";
      preempted.push_back(s.id);
    };
    const auto draft = [this](Sequence& s, int most) {
      drafts_asked.push_back(most);
      s.running.draft.assign(static_cast<size_t>(std::min(most, drafts[s.id])), 1);
    };
    failed.clear();
    return scheduler->next_step({room, available, plan, start, preempt, draft, moment}, failed);
  }

  // One step and what the engine does after it. Returns the ids that ran.
  Ids step() {
    rows = draft_rows = 0;
    rows_of.clear();
    groups.clear();
    Ids out;
    for (StepGroup& group : choose()) {
      Ids& ids = groups.emplace_back();
      for (const StepItem& item : group.items) {
        Sequence& s = *item.sequence;
        ids.push_back(s.id);
        if (item.decode) {
          EXPECT_EQ(item.range.begin, static_cast<int32_t>(s.tokens.size()) - 1);
          s.tokens.push_back(1);
          draft_rows += item.range.size() - 1;
          if (item.range.size() > 1) s.running.kv->truncate(item.range.begin + 1);  // none was right
          continue;
        }
        rows_of[s.id] = s.running.prefill->rows_in(item.range);
        rows += rows_of[s.id];
        s.running.prefill->advance(item.range);
        if (s.running.prefill->take_restart()) s.running.kv = std::make_unique<PageTable>(*store, config.ropes());
        if (!s.running.prefill->done()) continue;
        ++moment;
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
  const Sequence* of(RequestId id) const {
    return std::ranges::find(scheduler->running(), id, [](const auto& s) { return s->id; })->get();
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
  std::map<RequestId, int64_t> rows_of;
  std::map<RequestId, int> planned;  // how often
  std::map<RequestId, Admission> answers;
  std::map<RequestId, int> drafts;  // tokens that each would draft
  std::vector<int> drafts_asked;    // the most that each could
  int64_t draft_rows = 0;           // in the last step
  Ids preempted;
  uint64_t moment = 1;
  bool promises = true, memory_ends_at_start = false;
  int64_t outside = 0, choosing = 0;  // of every request
  std::map<RequestId, double> costs;  // of a prefill's row; 1 where none is named
  std::map<RequestId, int> layers;    // whose prefix is there; all where none are named
};

TEST_F(SchedulerTest, WhoFindsNoRoomIsNotPassedAndWhoWaitsForElseIs) {
  for (const Admission second : {Admission::kNoRoom, Admission::kLater, Admission::kReady}) {
    open(8);
    for (const RequestId id : {1, 2, 3}) enqueue(id, 8);
    answers[2] = second;
    choose();
    if (second == Admission::kNoRoom) {
      EXPECT_EQ(planned[3], 0);
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

// The prefix of 1 comes layer by layer: while the next one is not there the others run, and nobody makes room for it.
TEST_F(SchedulerTest, WhoWaitsForALayerIsPassedOver) {
  open(8);
  layers[1] = 1;
  enqueue(1, 8);
  EXPECT_EQ(step(), (Ids{1}));
  EXPECT_EQ(scheduler->running()[0]->running.prefill->band().layer_begin, 1);
  EXPECT_TRUE(scheduler->waits_for_layers());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(), Ids{}) << "alone";
  enqueue(2, 8);
  EXPECT_EQ(step(), (Ids{2}));
  EXPECT_EQ(step(), (Ids{2})) << "it decodes";
  EXPECT_EQ(running(), (Ids{1, 2}));
  scheduler->running()[0]->running.prefill->layers_there(3);
  EXPECT_FALSE(scheduler->waits_for_layers());
  EXPECT_EQ(step(), (Ids{1, 2}));
  EXPECT_TRUE(of(1)->decoding());
  EXPECT_EQ(planned[1], 1);
  EXPECT_TRUE(preempted.empty() && failed.empty());
}

// Nobody knows how long a disk takes: even the oldest makes room while it waits for one.
TEST_F(SchedulerTest, WhoWaitsForALayerMakesRoomFirst) {
  open(4);
  layers[1] = 1;
  enqueue(1, 8);
  EXPECT_EQ(step(), (Ids{1}));
  enqueue(2, 8);
  for (int i = 0; i < 40 && preempted.empty(); ++i) EXPECT_EQ(step(), (Ids{2})) << i;
  EXPECT_EQ(preempted, (Ids{1}));
  EXPECT_EQ(running(), (Ids{2}));
  EXPECT_EQ(waiting(), (Ids{1}));
  EXPECT_TRUE(failed.empty());
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
  enqueue(1, 12), enqueue(2, 46), enqueue(3, 40);
  EXPECT_EQ(step(), (Ids{1, 2}));  // 12 rows of the first, 4 of the second
  EXPECT_EQ(rows, 16);
  EXPECT_EQ(scheduler->running()[1]->running.prefill->next_chunk(1).begin, 4);
  EXPECT_EQ(step(), (Ids{1, 2}));  // now somebody decodes
  EXPECT_EQ(rows, 4);
  scheduler->remove(1);
  EXPECT_EQ(step(), (Ids{2}));  // nobody decodes now
  EXPECT_EQ(step(), (Ids{2}));
  EXPECT_EQ(rows, 16);
  EXPECT_EQ(waiting(), (Ids{3})) << "the budget has not come to it";
  EXPECT_EQ(step(), (Ids{2, 3}));
  EXPECT_EQ(rows, 16);
}

// Rows whose logits are wanted take longer, so a step has fewer of them.
TEST_F(SchedulerTest, DearRowsTakeMoreOfTheBudget) {
  open(20, {.chunk_tokens = 16});
  costs = {{1, 1.5}};
  enqueue(1, 12), enqueue(2, 40);
  step();
  EXPECT_EQ(rows_of, (std::map<RequestId, int64_t>{{1, 10}, {2, 1}})) << "10 rows count as 15 of 16";
  open(20, {.chunk_tokens = 16});
  costs = {};
  enqueue(1, 12), enqueue(2, 40);
  step();
  EXPECT_EQ(rows_of, (std::map<RequestId, int64_t>{{1, 12}, {2, 4}})) << "power";
  open(20, {.chunk_tokens = 4});
  costs = {{1, 100}};
  enqueue(1, 12);
  EXPECT_EQ(step(), (Ids{1}));
  EXPECT_EQ(rows_of[1], 1) << "it gets on whatever a row costs";
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
  const auto groups = choose();
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].items.size(), 2u);
  EXPECT_EQ(scheduler->preemptions(), 0u) << "the youngest gets none and waits; nobody came after it";
  EXPECT_EQ(running(), (Ids{1, 2, 3}));

  open(4, {.max_sequences = 3});
  for (const RequestId id : {1, 2, 3, 4}) enqueue(id, 8);
  step();
  scheduler->running()[2]->running.published.segments = {7};
  EXPECT_EQ(choose()[0].items.size(), 2u);
  EXPECT_EQ(scheduler->preemptions(), 1u);
  EXPECT_EQ(preempted, (Ids{3}));
  EXPECT_EQ(running(), (Ids{1, 2}));
  EXPECT_EQ(waiting(), (Ids{3, 4}));
  const Sequence& again = *scheduler->waiting().front();
  EXPECT_EQ(again.tokens.size(), 9u);  // what it said stays
  EXPECT_EQ(again.running.kv, nullptr);
  EXPECT_EQ(again.running.prefill, nullptr);
  EXPECT_TRUE(again.running.published.segments.empty());
  EXPECT_TRUE(again.running.decode.plan.stages.empty());
  EXPECT_FALSE(again.decoding());
  EXPECT_TRUE(failed.empty());
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

// What was promised is not given to others: neither the pages of a later stage, nor what stands for hidden states.
TEST_F(SchedulerTest, ARequestStartsWhenItsWholePlanHasRoom) {
  for (const bool with_stage : {true, false}) {
    open(6, {.chunk_tokens = 64});
    enqueue(1, 32, with_stage ? std::make_unique<Twice>() : nullptr);  // 4 blocks; of Twice's first stage only one
    enqueue(2, 24), enqueue(3, 8);
    EXPECT_EQ(step(), (Ids{1})) << "the second finds two blocks of its three, the third does not pass it";
    EXPECT_EQ(waiting(), (Ids{2, 3}));
    if (with_stage) {
      EXPECT_EQ(step(), (Ids{1}));
    }
    EXPECT_EQ(scheduler->preemptions(), 0u);
    scheduler->remove(1);
    ++moment;
    EXPECT_EQ(step(), (Ids{2, 3}));
  }
  for (const int64_t beside_pool : {kBlock, 2 * kBlock}) {
    open(4);
    outside = beside_pool;
    enqueue(1, 8), enqueue(2, 8);
    step();
    EXPECT_EQ(running(), beside_pool == kBlock ? (Ids{1, 2}) : (Ids{1})) << "alone it starts whatever it needs";
  }
}

// Whoever ends the running requests then ends this one too: its client would wait for ever.
TEST_F(SchedulerTest, WhereMemoryEndsAtItsStartARequestRuns) {
  open(4);
  enqueue(1, 8);
  memory_ends_at_start = true;
  EXPECT_THROW(choose(), std::bad_alloc);
  EXPECT_EQ(running(), (Ids{1}));
  EXPECT_EQ(waiting(), Ids{});
}

TEST_F(SchedulerTest, WhatADecodeRuleKeepsCountsToTheAnswersEnd) {
  for (const bool keeps : {false, true}) {
    open(4);
    choosing = keeps ? 3 * kBlock : 0;
    enqueue(1, 7)->max_len = 100;
    EXPECT_EQ(step(), (Ids{1}));
    EXPECT_EQ(step(), (Ids{1}));
    ASSERT_TRUE(scheduler->running()[0]->decoding()) << "power check";
    enqueue(2, 8);
    EXPECT_EQ(step(), keeps ? (Ids{1}) : (Ids{1, 2}));
    scheduler->remove(1);
    ++moment;
    EXPECT_EQ(step(), (Ids{2})) << "alone it starts whatever it keeps";
  }
}

// Pages also come free when nobody ends: a stage is forgotten, a window slides.
TEST_F(SchedulerTest, WhoFoundNoRoomIsAskedAgainWhenThereIsSome) {
  open(4);
  enqueue(1, 24), enqueue(2, 16);
  EXPECT_EQ(step(), (Ids{1}));
  EXPECT_EQ(step(), (Ids{1}));
  EXPECT_EQ(step(), (Ids{1}));
  EXPECT_EQ(planned[2], 2) << "once a moment: at first, and after the first prefill";
  Sequence& first = *scheduler->running()[0];
  first.running.kv = std::make_unique<PageTable>(*store, config.ropes());  // the moment stays
  EXPECT_EQ(step(), (Ids{1, 2}));
  EXPECT_EQ(planned[2], 3);
}

// Nobody is let in while a running prefill lacks pages; an old one takes them from who came later.
TEST_F(SchedulerTest, AnOldPrefillIsNotOvertaken) {
  open(6, {.chunk_tokens = 64, .max_sequences = 2});
  promises = false;
  enqueue(1, 32, std::make_unique<Twice>());
  enqueue(2, 24), enqueue(3, 16);
  EXPECT_EQ(step(), (Ids{1, 2})) << "one block and three";
  promises = true;
  EXPECT_EQ(step(), (Ids{1})) << "its second stage needs four: two are free";
  EXPECT_EQ(preempted, (Ids{2}));
  EXPECT_EQ(waiting(), (Ids{2, 3})) << "in the order of arrival";
  EXPECT_EQ(rows, 32);
}

// Where pages end, the tenant that has most running makes room, however late the others came.
TEST_F(SchedulerTest, TheTenantThatHasMostIsPreempted) {
  for (const bool tenants : {true, false}) {
    SCOPED_TRACE(tenants);
    preempted.clear();
    open(10);
    for (const RequestId id : {1, 2, 3, 4}) enqueue(id, 8, nullptr, "many");
    EXPECT_EQ(step(), (Ids{1, 2, 3, 4}));
    enqueue(5, 8, nullptr, tenants ? "few" : "many");
    enqueue(6, 8, nullptr, tenants ? "other" : "many");
    EXPECT_EQ(step(), (Ids{1, 2, 3, 4, 5, 6})) << "ten blocks are taken";
    EXPECT_EQ(preempted, Ids{});
    if (tenants) {
      EXPECT_EQ(step(), (Ids{1, 2, 3, 5, 6})) << "nobody who stays is passed over";
      EXPECT_EQ(preempted, (Ids{4}));
      EXPECT_EQ(waiting(), (Ids{4}));
    } else {
      EXPECT_EQ(step(), (Ids{1, 2, 3, 4, 5}));
      EXPECT_EQ(preempted, (Ids{6})) << "power: of one tenant, the last";
    }
  }
}

// The first of all gets on, whoever has most.
TEST_F(SchedulerTest, TheOldestOfAllIsNeverPreempted) {
  open(7);
  enqueue(1, 8, nullptr, "first");
  for (const RequestId id : {2, 3, 4}) enqueue(id, 8, nullptr, "many");
  enqueue(5, 8, nullptr, "late");
  for (int i = 0; i < 30; ++i) {
    const Ids ran = step();
    EXPECT_TRUE(std::ranges::find(ran, 1u) != ran.end()) << i;
  }
  EXPECT_EQ(std::ranges::count(preempted, 1u), 0);
  EXPECT_GT(preempted.size(), 2u) << "power";
}

// A tenant with many requests makes another wait for one of them, not for all.
TEST_F(SchedulerTest, TenantsTakeTurns) {
  open(100, {.chunk_tokens = 8, .max_sequences = 1});
  for (const RequestId id : {1, 2, 3, 4}) enqueue(id, 16, nullptr, "many");
  EXPECT_EQ(step(), (Ids{1}));
  for (const RequestId id : {5, 6}) enqueue(id, 16, nullptr, "few");
  enqueue(7, 16, nullptr, "third");
  EXPECT_EQ(waiting(), (Ids{5, 7, 2, 6, 3, 4}));
  scheduler->remove(1);
  EXPECT_EQ(step(), (Ids{5}));
  enqueue(8, 16, nullptr, "third");
  EXPECT_EQ(waiting(), (Ids{7, 2, 6, 8, 3, 4}));
  while (!waiting().empty()) {
    scheduler->remove(scheduler->running()[0]->id);
    step();
  }
  scheduler->remove(scheduler->running()[0]->id);
  enqueue(9, 16, nullptr, "many"), enqueue(10, 16, nullptr, "new");
  EXPECT_EQ(waiting(), (Ids{9, 10})) << "what one had long ago does not count against it";
}

// Who gives up and asks again is where it would be if it had asked once.
TEST_F(SchedulerTest, WhoLeavesTheLineGivesItsTurnBack) {
  open(100, {.chunk_tokens = 8, .max_sequences = 1});
  for (const RequestId id : {1, 2, 3, 4}) enqueue(id, 16, nullptr, "patient");
  step();
  enqueue(5, 16, nullptr, "hasty"), enqueue(6, 16, nullptr, "hasty");
  EXPECT_EQ(waiting(), (Ids{5, 2, 6, 3, 4}));
  scheduler->remove(5);
  EXPECT_EQ(waiting(), (Ids{6, 2, 3, 4})) << "the later one moves up";
  scheduler->remove(6);
  enqueue(7, 16, nullptr, "hasty");
  EXPECT_EQ(waiting(), (Ids{7, 2, 3, 4}));
}

TEST_F(SchedulerTest, OneTenantKeepsTheOrderOfArrival) {  // power check of the above
  open(100, {.chunk_tokens = 8, .max_sequences = 1});
  for (const RequestId id : {1, 2, 3}) enqueue(id, 16, nullptr, "many");
  step();
  for (const RequestId id : {4, 5}) enqueue(id, 8, nullptr, "many");
  EXPECT_EQ(waiting(), (Ids{2, 3, 4, 5}));
}

TEST_F(SchedulerTest, WhoWasPreemptedKeepsItsAge) {
  open(20, {.max_sequences = 3});
  for (const RequestId id : {1, 2, 3}) enqueue(id, 8);
  step();
  scheduler->restart([](const Sequence& s) { return s.id == 2; });
  enqueue(4, 8);
  EXPECT_EQ(waiting(), (Ids{2, 4}));
  EXPECT_EQ(step(), (Ids{1, 2, 3}));
  EXPECT_EQ(running(), (Ids{1, 2, 3})) << "it is not the first to be preempted again";
}

// A prefill with few rows left does not wait behind a long one, which then leaves most of the step to it.
TEST_F(SchedulerTest, ShortPrefillsGoFirst) {
  open(400, {.chunk_tokens = 64});
  enqueue(1, 1000);
  step();
  enqueue(2, 24), enqueue(3, 900), enqueue(4, 8, std::make_unique<Cut>());
  EXPECT_EQ(step(), (Ids{1, 2, 4}));
  EXPECT_EQ(rows_of, (std::map<RequestId, int64_t>{{1, 4}, {2, 24}, {4, 8}}));
}

// On credit: a stream of short ones takes a quarter of the rows at most, but for what was saved up.
TEST_F(SchedulerTest, TheOldestHasThreeRowsOfFour) {
  open(4000, {.chunk_tokens = 64, .max_sequences = 1000, .max_queue = 1000});
  enqueue(1, 8000);
  int64_t oldest = 0, others = 0, steps = 0;
  for (RequestId id = 2; id < 300; ++id, ++steps) {
    enqueue(id, 30);
    step();
    for (const auto& [who, n] : rows_of) (who == 1 ? oldest : others) += n;
    if (!scheduler->running().front()->running.prefill) break;
    for (const RequestId running : this->running()) {
      if (running != 1 && !of(running)->running.prefill) scheduler->remove(running);
    }
  }
  EXPECT_LE(others, oldest / 3 + 2 * 64 + 30);
  EXPECT_GE(others, oldest / 4) << "power: the credit is used";
  EXPECT_LT(steps, 298);
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

// Rows of drafts are rows of the step: all sequences share so many, and prefills get as many less, down to a half.
TEST_F(SchedulerTest, DraftsCountAsRows) {
  for (const int draft : {0, 6, 40}) {
    open(60, {.chunk_tokens = 64, .chunk_while_decoding = 16, .draft_rows = 10});
    drafts = {{1, draft}, {2, draft}};
    enqueue(1, 8);
    enqueue(2, 8);
    step();
    enqueue(3, 100);
    drafts_asked.clear();
    step();
    const int first = std::min(draft, 10), second = std::min(draft, 10 - first);
    EXPECT_EQ(drafts_asked, (std::vector<int>{10, 10 - first}));
    EXPECT_EQ(draft_rows, first + second);
    EXPECT_EQ(rows, draft == 0 ? 16 : 8) << "power: without drafts all of them";
  }
}

// A draft takes no page that another was promised, and preempts nobody: it is left out, and its row runs alone.
TEST_F(SchedulerTest, DraftsTakeFreePagesOnly) {
  for (const int64_t blocks : {4, 8}) {
    open(blocks);
    drafts = {{1, 6}};
    enqueue(1, 7)->max_len = 100;
    enqueue(2, 8)->max_len = 100;  // both are promised a block for what they say next
    step();  // both have their first token: 1 has its next row in its first block, and 6 more need another
    const int64_t free = store->free_pages();
    step();
    EXPECT_EQ(draft_rows, blocks == 4 ? 0 : 6) << blocks;
    EXPECT_TRUE(preempted.empty());
    EXPECT_EQ(store->free_pages(), free - kBlock) << "2's block; that of the wrong draft is back";
  }
}

// Its look-up is an import of all its bytes: where promises leave no room, that is not done again at each change.
TEST_F(SchedulerTest, ASessionIsNotImportedAgainInVain) {
  open(6);
  enqueue(1, 40);
  choose();
  ASSERT_EQ(planned[1], 1);
  Sequence* session = enqueue(2, 24);
  session->session_len = 23;
  session->session_pages = kBlock;
  for (int i = 0; i < 5; ++i) {
    ++moment;
    choose();
  }
  EXPECT_EQ(planned[2], 1) << "it lacked pages then, and nobody gave any back";
  EXPECT_EQ(running(), (Ids{1}));
  scheduler->remove(1);
  ++moment;
  choose();
  EXPECT_EQ(planned[2], 2);
}

// The answer's rows see keys as the prefill's last stage did, step after step.
TEST(DecodeRow, SeesWhatTheLastStageSees) {
  ModelConfig config;
  config.L = 2;
  Plan prefill;
  prefill.prompt_len = 8;
  prefill.stages = {uniform_stage(Runs{{0, 8}}, 2), uniform_stage(Runs{{4, 8}}, 2)};
  prefill.stages[1].unseen.assign(2, Runs{{1, 2}});
  prefill.stages[1].far = FarKeys{.rows = 6, .before = 3, .distance = 5};
  DecodeRow row;
  row.take_views(prefill);
  for (int32_t pos = 8; pos < 10; ++pos) {
    row.set({pos, pos + 1}, config);
    const Stage& stage = row.plan.stages.back();
    ASSERT_TRUE(stage.far) << pos;
    EXPECT_EQ(stage.far->rows, 6);
    EXPECT_EQ(stage.far->before, 3);
    EXPECT_EQ(stage.far->distance, 5);
    EXPECT_EQ(stage.unseen, prefill.stages[1].unseen);
  }
  DecodeRow plain;
  prefill.stages.pop_back();
  plain.take_views(prefill);
  plain.set({8, 9}, config);
  EXPECT_FALSE(plain.plan.stages.back().far) << "power";
}

}  // namespace
}  // namespace kvilt

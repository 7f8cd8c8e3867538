// The simulation of `kvilt bench scale`: what it must equal where the answer is known, and what must differ next to it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>

#include "apps/bench/scale_fleet.h"
#include "apps/bench/scale_pool.h"
#include "apps/bench/scale_store.h"

namespace kvilt {
namespace {

// Conversations that go on, under one of three system prompts; ten requests a second.
Trace made_up(int requests, uint64_t seed) {
  Trace out{.name = "made up", .block_tokens = 512, .requests = {}, .seconds = {}};
  std::mt19937_64 random(seed);
  uint64_t next_block = 3;
  std::vector<std::vector<uint64_t>> talks;
  for (int i = 0; i < requests; ++i) {
    const bool goes_on = !talks.empty() && random() % 3 > 0;
    const size_t which = goes_on ? random() % talks.size() : talks.size();
    if (!goes_on) talks.push_back({random() % 3});
    for (uint64_t more = 1 + random() % 6; more > 0; --more) talks[which].push_back(next_block++);
    out.requests.push_back(talks[which]);
    out.seconds.push_back(i * .1);
  }
  return out;
}

// Of all blocks, those that stand in a prefix that came before: no cache has more.
double ideal(const Trace& trace) {
  std::set<uint64_t> seen;
  double hits = 0, blocks = 0;
  for (const auto& request : trace.requests) {
    size_t known = 0;
    while (known < request.size() && seen.contains(request[known])) ++known;
    seen.insert(request.begin(), request.end());
    hits += static_cast<double>(known);
    blocks += static_cast<double>(request.size());
  }
  return hits / blocks;
}

FleetOutcome simulate(const Trace& trace, const FleetOptions& options, const FleetTraffic& traffic = {}) {
  return simulate_fleet(Traffic(trace, traffic), options);
}

// Nothing takes time.
FleetOptions at_once(int servers, RouteRule rule) {
  return {.servers = servers, .rule = rule, .prefill = 0, .event_delay = 0, .io = 0, .redis_delay = 0};
}

constexpr RouteRule kRules[] = {RouteRule::kRoundRobin, RouteRule::kLeastLoaded, RouteRule::kPrefix, RouteRule::kHash};

TEST(ScaleTest, OneServerWithRoomForAllFindsAllThatCameBefore) {
  const Trace trace = made_up(400, 1);
  FleetOptions options{.pool_tokens = 100'000'000};
  EXPECT_DOUBLE_EQ(simulate(trace, options).hit_rate(), ideal(trace));
  options.engine = true;
  options.pool_tokens = 5'000'000;
  EXPECT_DOUBLE_EQ(simulate(trace, options).hit_rate(), ideal(trace));
  options.pool_tokens = 20'000;
  EXPECT_LT(simulate(trace, options).hit_rate(), .9 * ideal(trace));
  options.engine = false;
  EXPECT_LT(simulate(trace, options).hit_rate(), .9 * ideal(trace));
}

// What leaves is told when a prefill begins, what it computed when it ends: seldom in one second.
TEST(ScaleTest, TheBusiestSecondIsOneSecond) {
  Trace trace;
  const std::vector<uint64_t> first{1, 2, 3, 4}, second{5, 6, 7, 8};
  trace.requests = {first, second};
  trace.seconds = {0, 100};
  FleetOptions options{.pool_tokens = 4 * 512, .prefill = 100};  // room for one of them; twenty seconds each
  const FleetOutcome got = simulate(trace, options);
  EXPECT_GT(got.removed.busiest(), 0) << "power: one gave way";
  EXPECT_EQ(got.stored.busiest(), 4);
  EXPECT_EQ(got.told.total(), got.stored.total() + got.removed.total());
  EXPECT_EQ(got.told.busiest(), std::max(got.stored.busiest(), got.removed.busiest()));
}

TEST(ScaleTest, SpreadingLosesWhatARouterThatKnowsKeeps) {
  const Trace trace = made_up(800, 2);
  std::map<RouteRule, double> hits;
  for (const RouteRule rule : kRules) hits[rule] = simulate(trace, {.servers = 16, .rule = rule}).hit_rate();
  EXPECT_LT(hits[RouteRule::kRoundRobin], .6 * hits[RouteRule::kPrefix]);
  EXPECT_LT(hits[RouteRule::kRoundRobin], .6 * hits[RouteRule::kHash]);
  EXPECT_LE(hits[RouteRule::kPrefix], ideal(trace));
}

TEST(ScaleTest, WhereAllIsSharedAtOnceTheRuleDoesNotMatter) {
  const Trace trace = made_up(600, 3);
  std::set<int64_t> memory;
  for (const RouteRule rule : kRules) {
    for (const int servers : {1, 7}) {
      FleetOptions options = at_once(servers, rule);
      options.redis = true;
      options.pool_tokens = 50'000;
      const FleetOutcome got = simulate(trace, options);
      EXPECT_DOUBLE_EQ(got.hit_rate(), ideal(trace)) << kRouteNames[static_cast<int>(rule)];
      EXPECT_EQ(got.twins, 0);
      memory.insert(got.local);
    }
  }
  EXPECT_EQ(memory.size(), 4u) << "at home one server, seven in turn (twice), prefix and hash find what they must";
  FleetOptions late = at_once(7, RouteRule::kRoundRobin);
  late.redis = true;
  late.redis_delay = 5;
  const FleetOutcome got = simulate(trace, late);
  EXPECT_LT(got.hit_rate(), ideal(trace)) << "a delay costs hits";
  EXPECT_GT(got.twins, 0);
}

TEST(ScaleTest, WhatIsReadWasWritten) {
  const Trace trace = made_up(600, 4);
  FleetOptions options{.servers = 8, .pool_tokens = 50'000, .redis = true};
  const double block = options.token_bytes * options.block_tokens;
  const FleetOutcome all = simulate(trace, options);
  EXPECT_DOUBLE_EQ(all.in.total(), static_cast<double>(all.put_blocks) * block);
  EXPECT_DOUBLE_EQ(all.out.total(), static_cast<double>(all.read) * block);
  EXPECT_EQ(all.held_blocks, all.put_blocks);
  EXPECT_EQ(all.dropped_blocks, 0);
  EXPECT_EQ(all.blocks, all.local + all.read + all.computed);
  EXPECT_GT(all.read, 0);
  std::set<uint64_t> distinct;
  for (const auto& request : trace.requests) distinct.insert(request.begin(), request.end());
  EXPECT_GE(all.put_blocks, std::ssize(distinct));
  EXPECT_LE(all.put_blocks, std::ssize(distinct) + all.twins);

  options.redis_bytes = static_cast<int64_t>(40 * block);
  const FleetOutcome small = simulate(trace, options);
  EXPECT_LE(small.held_blocks, 40);
  EXPECT_GT(small.held_blocks, 30);
  EXPECT_EQ(small.held_blocks, small.put_blocks - small.dropped_blocks);
  EXPECT_LT(small.read, all.read);
}

TEST(ScaleTest, ReadingIsDoneWhereItIsFasterThanComputing) {
  const Trace trace = made_up(300, 5);
  FleetOptions options{.servers = 4, .pool_tokens = 50'000, .redis = true};
  options.io = options.token_bytes * options.prefill * 1.01;
  EXPECT_GT(simulate(trace, options).read, 0);
  options.io = options.token_bytes * options.prefill * .99;
  EXPECT_EQ(simulate(trace, options).read, 0);
}

TEST(ScaleTest, AStoreFindsWhatWasPutOnceItIsTime) {
  using State = SharedStore::State;
  SharedStore store(2);
  const uint64_t piece = store.new_piece();
  EXPECT_EQ(store.state(7, 0, 100), State::kMissing);
  store.put(7, {0, piece, 10});
  EXPECT_EQ(store.state(7, 1, 9), State::kPending);
  EXPECT_EQ(store.state(7, 0, 9), State::kOwn);
  EXPECT_EQ(store.state(7, 1, 10), State::kAnnounced);
  store.put(8, {1, store.new_piece(), 10});
  EXPECT_EQ(store.pieces(), 2);
  store.read(7);
  store.put(9, {1, store.new_piece(), 10});
  EXPECT_EQ(store.state(8, 1, 20), State::kMissing) << "read longest ago";
  EXPECT_EQ(store.state(7, 1, 20), State::kAnnounced);
  EXPECT_EQ(store.held(), 2);
  EXPECT_EQ(store.pieces(), 2);
  store.put(9, {0, store.new_piece(), 11});  // a twin: both are held, and the oldest goes
  EXPECT_EQ(store.state(7, 1, 20), State::kMissing);
  EXPECT_EQ(store.held(), 2);
}

TEST(ScaleTest, EventsSayWhatAPoolHas) {
  const Trace trace = made_up(300, 6);
  for (const bool engine : {false, true}) {
    const auto pool = engine ? engine_pool(40) : extents_pool(40);
    std::set<uint64_t> held;
    int64_t removed = 0;
    for (const auto& request : trace.requests) {
      size_t known = 0;
      while (known < request.size() && held.contains(request[known])) ++known;
      // Of a prompt that continues what lost its beginning the index of the engine knows less: it says so.
      EXPECT_EQ(pool->known(request), known) << engine;
      SimulatedPool::Changes changes;
      pool->serve(request, changes);
      for (const uint64_t block : changes.removed) removed += static_cast<int64_t>(held.erase(block));
      for (const uint64_t block : changes.stored) EXPECT_TRUE(held.insert(block).second);
      EXPECT_LE(held.size(), 40u);
    }
    EXPECT_GT(removed, 100) << "it was full";
  }
}

TEST(ScaleTest, BothPoolsFindAboutTheSame) {
  const Trace trace = made_up(1000, 7);
  FleetOptions options{.servers = 3, .rule = RouteRule::kPrefix, .pool_tokens = 60'000};
  const double extents = simulate(trace, options).hit_rate();
  options.engine = true;
  EXPECT_NEAR(simulate(trace, options).hit_rate(), extents, .02);
  EXPECT_LT(extents, ideal(trace) - .05) << "the pools are too small for all";
}

TEST(ScaleTest, ARouterKnowsWhatItWasTold) {
  ToldIndex index;
  std::vector<size_t> known(3);
  const std::vector<uint64_t> prompt{1, 2, 3};
  index.tell(5, 1, {1, 2, 3}, {});
  index.tell(4, 2, {1, 3}, {});
  index.hear(3);
  index.known(prompt, known);
  EXPECT_EQ(known, (std::vector<size_t>{0, 0, 0}));
  index.hear(5);
  index.known(prompt, known);
  EXPECT_EQ(known, (std::vector<size_t>{0, 3, 1}));
  EXPECT_EQ(index.entries(), 5);
  index.tell(6, 1, {}, {2});
  index.hear(6);
  index.known(prompt, known);
  EXPECT_EQ(known, (std::vector<size_t>{0, 1, 1}));
  EXPECT_EQ(index.entries(), 4);

  const std::vector<double> waiting{3, 1, 2};
  EXPECT_EQ(least_loaded(waiting, 0), 1);
  EXPECT_EQ(least_loaded(std::vector<double>{0, 0, 0}, 5), 2) << "in turn";
  EXPECT_EQ(soonest(waiting, std::vector<size_t>{3, 0, 0}, 3, .1, 0), 1) << "waiting costs more than computing";
  EXPECT_EQ(soonest(waiting, std::vector<size_t>{3, 0, 0}, 3, 1, 0), 0) << "here it does not";
}

TEST(ScaleTest, LateEventsCostHits) {
  const Trace trace = made_up(800, 8);
  FleetOptions options{.servers = 16, .rule = RouteRule::kPrefix};
  const double soon = simulate(trace, options).hit_rate();
  options.event_delay = 1e6;
  EXPECT_LT(simulate(trace, options).hit_rate(), .6 * soon);
}

TEST(ScaleTest, AServerMoreTakesItsPartOfTheKeysOnly) {
  const HashRing ten(10, 1), eleven(11, 1);
  int moved = 0, to_others = 0;
  std::vector<int> of_server(10);
  for (uint64_t key = 0; key < 10'000; ++key) {
    const uint16_t before = ten.server({&key, 1}), after = eleven.server({&key, 1});
    ++of_server[before];
    moved += before != after ? 1 : 0;
    to_others += before != after && after != 10 ? 1 : 0;
  }
  EXPECT_EQ(to_others, 0);
  EXPECT_GT(moved, 500);
  EXPECT_LT(moved, 1500);
  for (const int keys : of_server) EXPECT_GT(keys, 500);
}

TEST(ScaleTest, CopiesShareWhatIsCommonOnly) {
  const Trace trace = made_up(200, 9);
  FleetTraffic options{.copies = 3, .shift_s = 5, .common = .2};
  Traffic traffic(trace, options);
  EXPECT_EQ(traffic.common(), 3u) << "the system prompts";
  std::set<uint64_t> blocks;
  double before = 0;
  int requests = 0;
  for (Traffic::Arrival arrival; traffic.next(arrival); ++requests) {
    EXPECT_GE(arrival.at, before);
    before = arrival.at;
    EXPECT_LT(arrival.blocks[0], 3u);
    blocks.insert(arrival.blocks.begin(), arrival.blocks.end());
  }
  EXPECT_EQ(requests, 600);
  std::set<uint64_t> distinct;
  for (const auto& request : trace.requests) distinct.insert(request.begin(), request.end());
  EXPECT_EQ(blocks.size(), 3 * (distinct.size() - 3) + 3);

  options.share = .5;
  Traffic some(trace, options);
  std::set<uint64_t> of_some;
  for (Traffic::Arrival arrival; some.next(arrival);) of_some.insert(arrival.blocks.begin(), arrival.blocks.end());
  EXPECT_GT(of_some.size(), blocks.size() / 5);
  EXPECT_LT(of_some.size(), blocks.size() * 4 / 5);
  options.share = 1;
  options.until_s = 10;
  Traffic short_traffic(trace, options);
  int few = 0;
  for (Traffic::Arrival arrival; short_traffic.next(arrival);) ++few;
  EXPECT_EQ(few, 300);
}

TEST(ScaleTest, TheSameSeedGivesTheSameNumbers) {
  const Trace trace = made_up(200, 10);
  const auto told = [&](uint64_t seed) {
    FleetOptions options{.servers = 9, .rule = RouteRule::kHash, .pool_tokens = 30'000, .redis = true};
    options.seed = seed;
    const FleetOutcome got = simulate(trace, options, {.copies = 4, .seed = seed});
    return std::pair(got.busy, std::vector<double>{got.hit_rate(), got.in.busiest(), got.out.total(), got.records});
  };
  EXPECT_EQ(told(1), told(1));
  EXPECT_NE(told(1), told(2));
}

TEST(ScaleTest, StrangeTrafficIsCounted) {
  Trace trace{
      .name = "strange", .block_tokens = 512, .requests = {{}, {5, 5, 5}, {5, 5}, {9, 5}}, .seconds = {0, 0, 0, 1}};
  for (const bool engine : {false, true}) {
    for (const RouteRule rule : kRules) {
      FleetOptions options{.servers = 2, .rule = rule, .pool_tokens = 1024, .engine = engine, .redis = true};
      const FleetOutcome got = simulate(trace, options);
      EXPECT_EQ(got.requests, 4);
      EXPECT_EQ(got.blocks, 7);
      EXPECT_EQ(got.blocks, got.local + got.read + got.computed);
    }
  }
  const FleetOutcome none = simulate(trace, {}, {.until_s = 1e-9, .slow = 1});
  EXPECT_EQ(none.blocks, 7 - 2);
}

// ---- Files

class TraceFileTest : public testing::Test {
 protected:
  Result<Trace> read(const std::string& text) {
    const std::string path = testing::TempDir() + "scale_trace.jsonl";
    std::ofstream(path) << text;
    Result<Trace> out = read_trace(path, 1);
    std::filesystem::remove(path);
    return out;
  }
  std::string refused(const std::string& text) {
    const Result<Trace> got = read(text);
    return got.ok() ? "it was read" : got.error().message;
  }
};

TEST_F(TraceFileTest, TimesAreInOrder) {
  const Result<Trace> got =
      read("{\"timestamp\": 3000, \"hash_ids\": [1, 2]}\n\n{\"timestamp\": 1000, \"hash_ids\": [1]}\n");
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->seconds, (std::vector<double>{0, 2}));
  EXPECT_EQ(got->requests, (std::vector<std::vector<uint64_t>>{{1}, {1, 2}}));
  const Result<Trace> timeless = read("{\"timestamp\": 3000, \"hash_ids\": [1, 2]}\n{\"hash_ids\": [1]}\n");
  ASSERT_TRUE(timeless.ok());
  EXPECT_TRUE(timeless->seconds.empty());
  EXPECT_EQ(timeless->requests[0].size(), 2u);
}

TEST_F(TraceFileTest, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no requests"},
      {"\n\n", "no requests"},
      {"nonsense\n", ":1: a line of JSON with hash_ids"},
      {"{\"timestamp\": 0, \"hash_ids\": [1]}\n{\"timestamp\": 0, \"hash_ids\": [1}\n", ":2: a line of JSON"},
      {"{\"timestamp\": 0}\n", "hash_ids"},
      {"{\"timestamp\": 0, \"hash_ids\": {}}\n", "hash_ids"},
      {"{\"timestamp\": 0, \"hash_ids\": [1.5]}\n", "whole numbers"},
      {"{\"timestamp\": 0, \"hash_ids\": [-1]}\n", "whole numbers"},
      {"{\"timestamp\": 0, \"hash_ids\": [99999999999999999999999]}\n", "whole numbers"},
      {"{\"timestamp\": \"soon\", \"hash_ids\": [1]}\n", "timestamp"},
      {"{\"timestamp\": -5, \"hash_ids\": [1]}\n", "timestamp"},
      {"{\"timestamp\": 1e300, \"hash_ids\": [1]}\n", "timestamp"},
      {"{\"timestamp\": NaN, \"hash_ids\": [1]}\n", "a line of JSON"},
      {"[[[[[[[[", "a line of JSON"},
  };
  for (const auto& [text, word] : cases) EXPECT_NE(refused(text).find(word), std::string::npos) << text;
  EXPECT_NE(refused(std::string(100'000, '[')).find("a line of JSON"), std::string::npos);
  EXPECT_FALSE(read_trace("/no/such/file", 1).ok());
}

}  // namespace
}  // namespace kvilt

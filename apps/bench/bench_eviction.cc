// apps/bench/bench_eviction.cc: kvilt bench eviction: what each order of eviction leaves of a trace's prefixes.
// The orders that the engine has run their own code (kv/eviction_order.h, kv/ghost_list.h); LFU, Greedy-Dual by cost, and
// Belady's, which knows the future, are here only. One request after the other: what a request uses does not wait
// meanwhile, and its end waits before its beginning, as in the engine.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <unordered_map>

#include "apps/bench/eviction_traces.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "kv/eviction_order.h"
#include "kv/ghost_list.h"

namespace kvilt {
namespace {

struct EvictionOptions {
  std::vector<std::string> traces;
  std::string pools = "125000,500000,2000000,8000000", json;
  int mixed = 0, dear_at = 8000;
  uint64_t seed = 1;
};

// Where a use of a block is in the trace.
struct Use {
  size_t request = 0, block = 0;  // block: in the request
  double cost = 1;                // to compute it
  size_t next = SIZE_MAX;         // the request that uses it next
};

class Order {
 public:
  virtual ~Order() = default;
  virtual void enter(uint64_t block, const Use& use, bool fresh) = 0;  // it waits from now on; fresh: it was computed
  virtual void leave(uint64_t block) = 0;                              // a request uses it
  virtual uint64_t evict() = 0;                                        // REQUIRES: some wait
};

// The engine's.
class OurOrder : public Order {
 public:
  OurOrder(EvictionOrder::Rule rule, size_t pool) : order_(rule), ghosts_(pool) {}
  void enter(uint64_t block, const Use&, bool fresh) override {
    Item& item = items_[block];
    item.block = block;
    if (fresh) {
      const std::optional<bool> again = ghosts_.take(block);
      item.again = again.has_value();
      if (again) order_.missed(1, *again, ghosts_.odds(*again));
    }
    order_.enter(item, 1, ++clock_);
  }
  void leave(uint64_t block) override {
    Item& item = items_.at(block);
    item.again = true;
    order_.leave(item);
  }
  uint64_t evict() override {
    Item& item = static_cast<Item&>(*order_.next());
    const uint64_t block = item.block;
    order_.leave(item);
    ghosts_.add(block, item.again);
    items_.erase(block);
    return block;
  }

 private:
  struct Item : Evictable {
    uint64_t block = 0;
  };
  EvictionOrder order_;
  GhostList ghosts_;
  std::unordered_map<uint64_t, Item> items_;
  uint64_t clock_ = 0;
};

// The lowest rank leaves first; of equal ones the one that waits longest.
class RankedOrder : public Order {
 public:
  enum class Rank { kUses, kCost, kFuture };
  explicit RankedOrder(Rank rank) : rank_(rank) {}
  void enter(uint64_t block, const Use& use, bool fresh) override {
    double& uses = uses_[block];
    uses = fresh ? 1 : uses + 1;
    double rank = uses;
    if (rank_ == Rank::kCost) rank = floor_ + uses * use.cost;
    if (rank_ == Rank::kFuture) rank = use.next == SIZE_MAX ? -1e18 : -static_cast<double>(use.next);
    const Key key{rank, ++clock_, block};
    keys_[block] = key;
    waiting_.insert(key);
  }
  void leave(uint64_t block) override { waiting_.erase(keys_.at(block)); }
  uint64_t evict() override {
    const Key first = *waiting_.begin();
    waiting_.erase(waiting_.begin());
    floor_ = first.rank;
    keys_.erase(first.block);
    uses_.erase(first.block);
    return first.block;
  }

 private:
  struct Key {
    double rank = 0;
    uint64_t time = 0, block = 0;
    auto operator<=>(const Key&) const = default;
  };
  const Rank rank_;
  std::set<Key> waiting_;
  std::unordered_map<uint64_t, Key> keys_;
  std::unordered_map<uint64_t, double> uses_;
  double floor_ = 0;
  uint64_t clock_ = 0;
};

constexpr const char* kOrders[] = {"lru", "lfu", "slru", "cost", "adaptive", "belady"};

std::unique_ptr<Order> order_of(const std::string& name, size_t pool) {
  using Rule = EvictionOrder::Rule;
  using Rank = RankedOrder::Rank;
  if (name == "lru") return std::make_unique<OurOrder>(Rule::kLru, 0);
  if (name == "slru") return std::make_unique<OurOrder>(Rule::kSegmented, 0);
  if (name == "adaptive") return std::make_unique<OurOrder>(Rule::kAdaptive, pool);
  const Rank rank = name == "lfu" ? Rank::kUses : name == "cost" ? Rank::kCost : Rank::kFuture;
  return std::make_unique<RankedOrder>(rank);
}

struct Outcome {
  double hits = 0, blocks = 0;        // in tokens of one block
  double saved = 0, cost = 0;         // of prefill
  double evicted = 0, regretted = 0;  // regretted: computed anew within a pool's worth of evictions
};

// Each use of each block of the trace, with the next one. dear_at: the position at which a token costs twice as much as
// the first one, since attention grows.
std::vector<std::vector<Use>> uses_of(const Trace& trace, int dear_at) {
  std::vector<std::vector<Use>> out(trace.requests.size());
  std::unordered_map<uint64_t, size_t> next;
  for (size_t r = trace.requests.size(); r-- > 0;) {
    for (size_t b = 0; b < trace.requests[r].size(); ++b) {
      const auto known = next.find(trace.requests[r][b]);
      const double pos = static_cast<double>(b) * trace.block_tokens;
      out[r].push_back({r, b, 1 + pos / dear_at, known == next.end() ? SIZE_MAX : known->second});
    }
    for (const uint64_t block : trace.requests[r]) next[block] = r;
  }
  return out;
}

Outcome simulate(const Trace& trace, const std::vector<std::vector<Use>>& uses, size_t pool, Order& order) {
  Outcome out;
  std::unordered_map<uint64_t, bool> cached;  // true: a request uses it now
  std::unordered_map<uint64_t, double> gone;  // when it was evicted last
  for (size_t r = 0; r < trace.requests.size(); ++r) {
    std::vector<uint64_t> blocks = trace.requests[r];
    for (size_t b = 0; b < blocks.size(); ++b) out.blocks += 1, out.cost += uses[r][b].cost;
    size_t known = 0;
    for (; known < blocks.size() && cached.count(blocks[known]); ++known) out.saved += uses[r][known].cost;
    out.hits += static_cast<double>(known);
    blocks.resize(std::min(blocks.size(), pool));  // a longer one cannot be kept whole
    std::vector<bool> fresh(blocks.size());
    for (size_t b = 0; b < blocks.size(); ++b) {
      const auto [it, is_new] = cached.try_emplace(blocks[b], true);
      fresh[b] = is_new;
      if (!is_new && !it->second) order.leave(blocks[b]), it->second = true;
      const auto left = is_new ? gone.find(blocks[b]) : gone.end();
      if (left != gone.end() && out.evicted - left->second <= static_cast<double>(pool)) out.regretted += 1;
    }
    while (cached.size() > pool) {
      const uint64_t block = order.evict();
      cached.erase(block);
      gone[block] = ++out.evicted;
    }
    for (size_t b = blocks.size(); b-- > 0;) {
      bool& used = cached.at(blocks[b]);
      if (!used) continue;  // the same block twice
      used = false;
      order.enter(blocks[b], uses[r][b], fresh[b]);
    }
  }
  return out;
}

void bench_eviction(const EvictionOptions& o, int argc, char** argv) {
  Report report(argc, argv);
  std::vector<Trace> traces;
  for (const std::string& path : o.traces) traces.push_back(value_or_fail(read_trace(path, o.seed)));
  if (o.mixed > 0) traces.push_back(mixed_trace(o.mixed, o.seed));
  if (traces.empty()) fail("--trace or --mixed: something to simulate is wanted");
  for (const Trace& trace : traces) {
    std::set<uint64_t> distinct;
    size_t blocks = 0;
    for (const auto& request : trace.requests) {
      blocks += request.size();
      distinct.insert(request.begin(), request.end());
    }
    std::printf("%s: %zu requests, %.1f million tokens, %.1f million of them distinct\n", trace.name.c_str(),
                trace.requests.size(), static_cast<double>(blocks) * trace.block_tokens / 1e6,
                static_cast<double>(distinct.size()) * trace.block_tokens / 1e6);
    std::printf("%10s", "pool");
    for (const char* name : kOrders) std::printf(" %17s", name);
    std::printf("\n");
    const auto uses = uses_of(trace, o.dear_at);
    for (const int tokens : split_numbers(o.pools, "--pools")) {
      const size_t pool = static_cast<size_t>(std::max(1, tokens / trace.block_tokens));
      std::printf("%10d", tokens);
      for (const std::string name : kOrders) {
        const Outcome got = simulate(trace, uses, pool, *order_of(name, pool));
        const auto share = [](double a, double b) { return b > 0 ? a / b : 0.0; };
        const double hit = share(got.hits, got.blocks), saved = share(got.saved, got.cost);
        const double regret = share(got.regretted, got.evicted);
        std::printf("  %.4f/%.4f", hit, saved);
        std::printf("%1s", "");
        report.add({{"trace", trace.name},
                    {"pool_tokens", tokens},
                    {"order", name},
                    {"hit_share", hit},
                    {"saved_share", saved},
                    {"regret_share", regret}});
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  report.write(o.json);
}

}  // namespace

void add_bench_eviction(Program& program, Command bench) {
  auto app = bench.add_subcommand(
      "eviction", "share of a trace's prompts that each order of eviction finds cached / of the prefill that it saves");
  auto o = std::make_shared<EvictionOptions>();
  app.add_option("--trace", o->traces,
                 "Mooncake's JSON lines with hash_ids, or Azure's CSV of lengths; may be given more than once");
  app.add_option("--mixed", o->mixed, "so many made-up requests too: conversations, documents, texts that come once")
      .range(0, 10'000'000);
  app.add_option("--pools", o->pools, "sizes of the pool in tokens, comma-separated").show_default();
  app.add_option("--dear-at", o->dear_at, "position at which a token costs twice as much as the first, by attention")
      .range(1, 1 << 30)
      .show_default();
  app.add_option("--seed", o->seed, "of what is made up").show_default();
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_eviction(*o, program.argc, program.argv); });
}

}  // namespace kvilt

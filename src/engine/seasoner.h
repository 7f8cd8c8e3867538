// engine/seasoner.h: documents that requests put together become seasoned (docs/math/seasoning.md) when the engine is
// idle: their set is computed exactly in other orders (SeasonRounds), as many as the one with the fewest contexts lacks.
// Role:       EngineLoop says which marked parts of a request have fewer; start() gives a pass that adds one to each part
//             that it holds, but for those that have theirs.
// Idea:       what stood together will stand together again, so these contexts are nearer to the next prompt's than
//             random ones (docs/results/seasoning.md).
// Invariants: what is counted and what waits is bounded. Passes, also those that were interrupted, take their share of
//             the idle time and no more; a set whose passes are interrupted too often is given up.
// Threads:    the engine thread.
// Cost:       one full pass over the set for each context; of a set that takes several prompts those alone that hold a
//             part which lacks some.
// Not here:   the mean (kv/mean_kv.h), which parts lack contexts (ContentCache::without_contexts).
#pragma once

#include <optional>
#include <random>
#include <span>
#include <vector>

#include "engine/ask_counter.h"
#include "engine/content_cache.h"
#include "engine/fair_line.h"
#include "engine/idle_work.h"
#include "kvilt/season.h"

namespace kvilt {

class Seasoner : public IdleWork {
 public:
  static constexpr int kOften = 2;           // conversations that ask for the same document
  static constexpr int kMostInterrupts = 8;  // of a set: then it is given up
  static constexpr size_t kMaxWaiting = 16;
  static constexpr int32_t kMaxTokens = 1 << 16;  // of a set and what stands before it: larger ones are left alone
  // Of what stands before it, which each pass computes: four times as much as the documents of one.
  static constexpr int32_t kMaxBefore = 1 << 13;

  // season: of each document; 0 contexts: nothing is seasoned. share: of the idle time, from .001 to 1.
  Seasoner(const SeasonOptions& season, double share) : season_(season), pace_(share), rng_(season.seed) {}

  bool wanted() const { return season_.contexts > 0; }
  int contexts() const { return season_.contexts; }
  int running() const { return now_ ? 1 : 0; }  // sets of which a pass is being computed
  int waiting() const { return static_cast<int>(waiting_.size()); }

  // The prefill of a real request ended; `missing` are parts that it marked and that lack contexts in its domain of means.
  void asked(const Sequence& sequence, std::span<const LacksContexts> missing);

  std::optional<Clock::time_point> ready() const override {
    return waiting_.empty() ? std::nullopt : std::optional(pace_.next());
  }
  std::unique_ptr<Sequence> start() override;
  void interrupt() override;
  void finish(Completion completion) override;
  void clear() override;

 private:
  struct Set {
    std::vector<Digest> keys;       // of the documents that lack contexts
    std::vector<Prompt> documents;  // what stands before them is in the first one only
    std::vector<bool> lacking;      // by document: it lacks contexts
    ContentDomains domains;
    OwnerId owner = 0;
    int rounds = 0;  // still to come
    std::optional<SeasonRounds> orders;
    std::vector<Prompt> passes;  // of the round that is being computed, the last one first
    int interrupts = 0;
  };
  static std::vector<Prompt> passes_of(const Set& set, const std::vector<SeasonSet>& round);
  bool waits(const Digest& key) const;
  std::optional<Set> take_running();
  const SeasonOptions season_;
  IdlePace pace_;
  std::mt19937_64 rng_;
  AskCounter asked_{kOften};
  FairLine<Set> waiting_{kMaxWaiting};
  std::optional<Set> now_;  // whose last pass runs
};

}  // namespace kvilt

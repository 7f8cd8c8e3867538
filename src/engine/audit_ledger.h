// engine/audit_ledger.h: what approximate reuse costs, measured on a sample of the real requests.
// Role:       decides which requests are sampled, keeps their records until the engine is idle, and accounts per policy
//             for the KL between what a request computed and the full pass over the same tokens. A policy whose recent
//             mean crosses a limit is switched off.
// Invariants: requests that reused nothing or that are exact are never sampled. An interrupted audit is tried again,
//             kAttempts times in all.
// Threads:    the engine thread, but for off() and stats(), which any thread may ask.
// Cost:       V floats kept for each of the first kTokens tokens of a sampled request (0.6 MB each at V = 151,936), for
//             at most kWaiting requests.
// Not here:   the full pass itself (engine/auditor.h).
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "index/cached_segment.h"
#include "kv/idle_extents.h"
#include "kvilt/engine.h"

namespace kvilt {

// A sampled request: its prompt, what it answered, and the logits that it chose from.
struct AuditRecord {
  std::string policy;
  Prompt prompt;
  std::vector<int32_t> answer;
  std::vector<std::vector<float>> logits;
  OwnerId owner = 0;      // whose pages it takes
  DomainId seasoned = 0;  // of the means that get this prompt as a context; 0: none do
  int attempts = 0;
};

class AuditLedger {
 public:
  static constexpr size_t kTokens = 8, kWaiting = 4, kRecent = 20;
  static constexpr int kAttempts = 3;

  // share: of the requests, 0 to 1. limit: mean KL in nats at the first token over kRecent audits; 0: none.
  AuditLedger(double share, double limit, uint64_t seed) : share_(share), limit_(limit), rng_(seed) {}

  bool off(const std::string& policy) const;

  // Whether the request whose prefill just ended is sampled: null if not.
  std::unique_ptr<AuditRecord> sample(const std::string& policy, int reused);
  // Its request ended. takes: whether it is audited: one with nothing to compare is not, nor one beyond kWaiting.
  bool takes(const AuditRecord& record) const { return !record.logits.empty() && waiting_.size() < kWaiting; }
  void add(std::unique_ptr<AuditRecord> record);  // REQUIRES: takes()

  bool waiting() const { return !waiting_.empty(); }
  std::unique_ptr<AuditRecord> take();  // REQUIRES: waiting()
  void forget_means();                  // no audit that waits is a context for means
  // full: the full pass' logits for the same tokens.
  void finish(std::unique_ptr<AuditRecord> record, std::vector<std::vector<float>> full);
  // It was interrupted, and is tried again; null then. The record: it is given up.
  std::unique_ptr<AuditRecord> try_again(std::unique_ptr<AuditRecord> record);

  std::vector<AuditStats> stats() const;

 private:
  struct Sums {
    uint64_t requests = 0, tokens = 0, top1 = 0;
    double kl_first = 0, kl_answer = 0;
    std::deque<double> recent;  // KL at the first token
  };
  const double share_, limit_;
  std::mt19937_64 rng_;
  std::deque<std::unique_ptr<AuditRecord>> waiting_;
  mutable Mutex mutex_;
  std::map<std::string, Sums> sums_ KVILT_GUARDED_BY(mutex_);
  std::set<std::string> off_ KVILT_GUARDED_BY(mutex_);
};

}  // namespace kvilt

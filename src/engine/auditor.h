// engine/auditor.h: the audits of an engine: which of its requests are sampled, and the sequence that computes one of
// them again in full when the engine is idle.
// Role:       EngineLoop says what its requests do; the figures and the verdict are AuditLedger's.
// Invariants: an audit makes way as soon as a real request comes, and is tried again later.
// Threads:    the engine thread, but for off() and stats(), which any thread may ask.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/audit_ledger.h"
#include "sched/sequence.h"

namespace kvilt {

class Auditor {
 public:
  static constexpr RequestId kId = ~RequestId{0};  // of the sequence that audits

  // As AuditLedger takes them.
  Auditor(double share, double limit, uint64_t seed) : ledger_(share, limit, seed) {}

  bool off(const std::string& policy) const { return ledger_.off(policy); }
  std::vector<AuditStats> stats() const { return ledger_.stats(); }

  // Of a real request: its prefill ended; its next token is about to be chosen from running.logits; it is over.
  void sample(const Sequence& sequence);
  void choosing(const Sequence& sequence);
  void ended(const Sequence& sequence);

  bool waiting() const { return ledger_.waiting(); }
  bool auditing() const { return record_ != nullptr; }
  // The next audit: a sampled request again, in full, with its own answer forced. It finds and publishes nothing.
  // REQUIRES: waiting(), not auditing().
  std::unique_ptr<Sequence> start();
  // What became of it. finish() does nothing after interrupt().
  void interrupt();
  void finish(Completion completion);

 private:
  AuditLedger ledger_;
  std::unordered_map<RequestId, std::unique_ptr<AuditRecord>> sampled_;  // requests that run
  std::unique_ptr<AuditRecord> record_;                                  // being computed in full
};

}  // namespace kvilt

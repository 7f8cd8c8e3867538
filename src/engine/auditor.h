// engine/auditor.h: the audits of an engine: which of its requests are sampled, and the sequence that computes one of
// them again in full when the engine is idle.
// Role:       EngineLoop says what its requests do; the figures and the verdict are AuditLedger's.
// Threads:    the engine thread, but for off() and stats(), which any thread may ask.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/ask_counter.h"
#include "engine/audit_ledger.h"
#include "engine/idle_work.h"

namespace kvilt {

class Auditor : public IdleWork {
 public:
  // share, limit, seed: as AuditLedger takes them. idle_share: of the idle time, from .001 to 1.
  Auditor(double share, double limit, uint64_t seed, double idle_share = 1)
      : ledger_(share, limit, seed), pace_(idle_share) {}

  bool off(const std::string& policy) const { return ledger_.off(policy); }
  std::vector<AuditStats> stats() const { return ledger_.stats(); }

  // Of a real request: its prefill ended; its next token is about to be chosen from running.logits; it is over.
  void sample(const Sequence& sequence);
  void choosing(const Sequence& sequence);
  bool waits_for_logits(const Sequence& sequence) const;  // of its next token
  void ended(const Sequence& sequence);

  std::optional<Clock::time_point> ready() const override {
    return ledger_.waiting() ? std::optional(pace_.next()) : std::nullopt;
  }
  bool auditing() const { return record_ != nullptr; }
  // The next audit: a sampled request again, in full, with its own answer forced. It finds and publishes nothing; where
  // the request wanted means over contexts and publishes, its marked parts' get one more (docs/math/seasoning.md).
  std::unique_ptr<Sequence> start() override;
  void interrupt() override;
  void finish(Completion completion) override;
  void clear() override;
  void no_context();  // there is no room for the means. REQUIRES: auditing(), for means
  void seasoned();    // the means have it as a context: not again if it is interrupted now. REQUIRES: auditing()

 private:
  Digest context_of(const AuditRecord& record) const;  // REQUIRES: its prompt has marks
  void try_again();
  AuditLedger ledger_;
  IdlePace pace_;
  std::unordered_map<RequestId, std::unique_ptr<AuditRecord>> sampled_;  // requests that run
  std::unique_ptr<AuditRecord> record_;                                  // being computed in full
  AskCounter contexts_{1};                                               // prompts, up to their last marked part
};

}  // namespace kvilt

#include "engine/audit_ledger.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/divergence.h"

namespace kvilt {

bool AuditLedger::off(const std::string& policy) const {
  MutexLock lock(mutex_);
  return off_.count(policy) > 0;
}

std::unique_ptr<AuditRecord> AuditLedger::sample(const std::string& policy, int reused) {
  if (share_ <= 0 || reused == 0 || policy == "full" || policy == "prefix") return nullptr;
  if (std::uniform_real_distribution<double>(0, 1)(rng_) >= share_) return nullptr;
  auto record = std::make_unique<AuditRecord>();
  record->policy = policy;
  return record;
}

void AuditLedger::add(std::unique_ptr<AuditRecord> record) {
  CHECK(takes(*record));
  // The lists get one length. A request that ended at once has no token: it is compared at its most likely one.
  if (record->answer.empty()) record->answer.push_back(most_likely(record->logits[0]));
  const size_t n = std::min(record->answer.size(), record->logits.size());
  record->answer.resize(n);
  record->logits.resize(n);
  waiting_.push_back(std::move(record));
}

std::unique_ptr<AuditRecord> AuditLedger::take() {
  CHECK(waiting());
  auto record = std::move(waiting_.front());
  waiting_.pop_front();
  return record;
}

void AuditLedger::forget_means() {
  for (const auto& record : waiting_) record->seasoned = 0;
}

std::unique_ptr<AuditRecord> AuditLedger::try_again(std::unique_ptr<AuditRecord> record) {
  if (++record->attempts >= kAttempts || waiting_.size() >= kWaiting) return record;
  waiting_.push_back(std::move(record));
  return nullptr;
}

void AuditLedger::finish(std::unique_ptr<AuditRecord> record, std::vector<std::vector<float>> full) {
  CHECK(full.size() == record->logits.size());
  double answer = 0, first = 0;
  bool top1 = false;
  for (size_t i = 0; i < full.size(); ++i) {
    const Reference reference(std::move(full[i]));
    const double kl = reference.kl(record->logits[i]);
    answer += kl;
    if (i > 0) continue;
    first = kl;
    top1 = reference.top() == most_likely(record->logits[0]);
  }
  MutexLock lock(mutex_);
  Sums& sums = sums_[record->policy];
  ++sums.requests;
  sums.top1 += top1 ? 1 : 0;
  sums.tokens += record->logits.size();
  sums.kl_first += first;
  sums.kl_answer += answer / static_cast<double>(record->logits.size());
  sums.recent.push_back(first);
  if (sums.recent.size() > kRecent) sums.recent.pop_front();
  const double recent =
      std::accumulate(sums.recent.begin(), sums.recent.end(), 0.0) / static_cast<double>(sums.recent.size());
  spdlog::info("audit: {}: KL {:.4f} at the first token of {} prompt tokens; mean of the last {}: {:.4f}",
               record->policy, first, record->prompt.ids.size(), sums.recent.size(), recent);
  if (limit_ <= 0 || sums.recent.size() < kRecent || recent <= limit_) return;
  if (off_.insert(record->policy).second) {
    spdlog::warn("audit: policy {} is switched off: mean KL {:.4f} over its last {} audits is above {:.4f}",
                 record->policy, recent, kRecent, limit_);
  }
}

std::vector<AuditStats> AuditLedger::stats() const {
  std::vector<AuditStats> out;
  MutexLock lock(mutex_);
  for (const auto& [policy, sums] : sums_) {
    const auto n = static_cast<double>(std::max<uint64_t>(1, sums.requests));
    out.push_back({policy, sums.requests, sums.kl_first / n, sums.kl_answer / n, static_cast<double>(sums.top1) / n,
                   off_.count(policy) > 0});
  }
  return out;
}

}  // namespace kvilt

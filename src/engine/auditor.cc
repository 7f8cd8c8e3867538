#include "engine/auditor.h"

#include <utility>

#include "base/check.h"

namespace kvilt {
namespace {

bool answered(Finish finish) { return finish == Finish::kStop || finish == Finish::kLength; }

}  // namespace

void Auditor::sample(const Sequence& s) {
  if (!s.request.evaluation.forced.empty() || s.request.sampling.max_tokens == 0) return;
  if (auto record = ledger_.sample(s.request.policy.name, s.usage.reused)) sampled_[s.id] = std::move(record);
}

bool Auditor::waits_for_logits(const Sequence& s) const {
  const auto it = sampled_.find(s.id);
  return it != sampled_.end() && it->second->logits.size() < AuditLedger::kTokens;
}

void Auditor::choosing(const Sequence& s) {
  if (waits_for_logits(s)) sampled_.find(s.id)->second->logits.push_back(s.running.logits);
}

// Each text in front of a document is one context.
Digest Auditor::context_of(const AuditRecord& record) const {
  const auto end = static_cast<size_t>(record.prompt.marks.back().end);
  return contexts_.key(record.seasoned, std::span<const int32_t>(record.prompt.ids).first(end));
}

void Auditor::ended(const Sequence& s) {
  const auto it = sampled_.find(s.id);
  if (it == sampled_.end()) return;
  std::unique_ptr<AuditRecord> record = std::move(it->second);
  sampled_.erase(it);
  if (!answered(s.completion.finish) || !ledger_.takes(*record)) return;
  const auto answer = s.tokens.begin() + s.prompt_len;
  record->prompt = {{s.tokens.begin(), answer}, s.request.prompt.marks};
  record->owner = s.owner;
  record->answer.assign(answer, s.tokens.end());
  if (s.from_seasoned && s.request.publish && !s.request.prompt.marks.empty()) {
    record->seasoned = s.domains.seasoned;
    if (!contexts_.first(context_of(*record))) record->seasoned = 0;
  }
  ledger_.add(std::move(record));
}

std::unique_ptr<Sequence> Auditor::start() {
  CHECK(!record_);
  record_ = ledger_.take();
  pace_.begin();
  auto s = sequence(record_->prompt, "full", {.seasoned = record_->seasoned}, record_->owner);
  s->request.publish = false;
  s->request.season = record_->seasoned != 0;  // a context that comes for nothing
  s->request.evaluation.first_logits = true;
  s->request.evaluation.forced = record_->answer;
  s->request.sampling.max_tokens = static_cast<int>(record_->answer.size());
  s->max_len += s->request.sampling.max_tokens;
  return s;
}

void Auditor::no_context() {
  contexts_.forget(context_of(*record_));
  record_->seasoned = 0;
}

void Auditor::seasoned() { record_->seasoned = 0; }

void Auditor::clear() {
  ledger_.forget_means();
  contexts_.clear();
  for (const auto& [id, record] : sampled_) record->seasoned = 0;
  if (record_) record_->seasoned = 0;
}

// What is given up was no context.
void Auditor::try_again() {
  const auto given_up = ledger_.try_again(std::move(record_));
  if (given_up && given_up->seasoned != 0) contexts_.forget(context_of(*given_up));
}

void Auditor::interrupt() {
  if (!record_) return;
  pace_.end();
  try_again();
}

void Auditor::finish(Completion completion) {
  if (!record_) return;
  pace_.end();
  const bool whole = !completion.error && completion.logits.all.size() == record_->answer.size();
  if (!whole) return try_again();
  ledger_.finish(std::move(record_), std::move(completion.logits.all));
}

}  // namespace kvilt

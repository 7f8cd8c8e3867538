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

void Auditor::ended(const Sequence& s) {
  const auto it = sampled_.find(s.id);
  if (it == sampled_.end()) return;
  const auto answer = s.tokens.begin() + s.prompt_len;
  it->second->prompt = {{s.tokens.begin(), answer}, s.request.prompt.marks};
  const auto& marks = s.request.prompt.marks;
  if (s.from_seasoned && s.request.publish && !marks.empty()) {  // each text in front of a document is one context
    const auto text = std::span<const int32_t>(s.tokens).first(static_cast<size_t>(marks.back().end));
    if (contexts_.first(contexts_.key(s.domains.seasoned, text))) it->second->seasoned = s.domains.seasoned;
  }
  it->second->owner = s.owner;
  it->second->answer.assign(answer, s.tokens.end());
  if (answered(s.completion.finish)) ledger_.add(std::move(it->second));
  sampled_.erase(it);
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

void Auditor::seasoned() { record_->seasoned = 0; }

void Auditor::clear() {
  ledger_.forget_means();
  contexts_.clear();
  for (const auto& [id, record] : sampled_) record->seasoned = 0;
  if (record_) record_->seasoned = 0;
}

void Auditor::interrupt() {
  if (!record_) return;
  pace_.end();
  ledger_.finish(std::move(record_), {});
}

void Auditor::finish(Completion completion) {
  if (!record_) return;
  pace_.end();
  const bool whole = !completion.error && completion.logits.all.size() == record_->answer.size();
  ledger_.finish(std::move(record_), whole ? std::move(completion.logits.all) : std::vector<std::vector<float>>());
}

}  // namespace kvilt

#include "engine/lingering.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace kvilt {
namespace {

// Marks decide what is placed and published.
bool same_marks(const Prompt& a, const Prompt& b) {
  return std::ranges::equal(a.marks, b.marks,
                            [](TokenMark x, TokenMark y) { return x.begin == y.begin && x.end == y.end; });
}

// What is measured while a prefill runs cannot be made up for.
bool measured(const Request& request) {
  return request.evaluation.prompt_logits > 0 || request.prompt_logprobs >= 0 || request.evaluation.held_mass;
}

}  // namespace

bool Lingering::takes(const Sequence& left) const {
  return time_ > Clock::duration::zero() && left.running.prefill && left.completion.completion_tokens == 0 &&
         left.rows >= kFewestRows && left.session_len == 0 && !left.running.runs_on && !left.idle_work &&
         !measured(left.request);
}

void Lingering::add(std::unique_ptr<Sequence> left) {
  if (!left->lingers_until) left->lingers_until = Clock::now() + time_;
  const auto at =
      std::ranges::upper_bound(left_, *left->lingers_until, {}, [](const auto& s) { return *s->lingers_until; });
  left_.insert(at, std::move(left));
}

std::unique_ptr<Sequence> Lingering::take(size_t i) {
  if (i >= left_.size()) return nullptr;
  std::unique_ptr<Sequence> out = std::move(left_[i]);
  left_.erase(left_.begin() + static_cast<ptrdiff_t>(i));
  return out;
}

std::unique_ptr<Sequence> Lingering::same_as(const Sequence& next) {
  const auto at = std::ranges::find_if(left_, [&](const auto& left) { return same_prefill(*left, next); });
  return take(static_cast<size_t>(at - left_.begin()));
}

std::unique_ptr<Sequence> Lingering::newest() { return left_.empty() ? nullptr : take(left_.size() - 1); }

std::unique_ptr<Sequence> Lingering::oldest() { return take(0); }

std::unique_ptr<Sequence> Lingering::expired(Clock::time_point now) {
  return left_.empty() || *left_.front()->lingers_until > now ? nullptr : take(0);
}

std::unique_ptr<Sequence> Lingering::beyond_most() {
  if (left_.size() <= kMost) return nullptr;
  std::map<std::string_view, int> of;
  for (const auto& left : left_) ++of[left->request.tenant];
  const int most = std::ranges::max_element(of, {}, [](const auto& each) { return each.second; })->second;
  const auto at = std::ranges::find_if(left_, [&](const auto& left) { return of[left->request.tenant] == most; });
  return take(static_cast<size_t>(at - left_.begin()));
}

int64_t Lingering::pages() const {
  int64_t pages = 0;
  for (const auto& left : left_) pages += left->running.kv->unshared_pages();
  return pages;
}

bool same_prefill(const Sequence& left, const Sequence& next) {
  const Request &a = left.request, &b = next.request;
  return next.starts == 0 && left.tokens.size() == next.tokens.size() && left.domains == next.domains &&
         left.clean_only == next.clean_only && left.from_seasoned == next.from_seasoned && left.near == next.near &&
         a.policy.name == b.policy.name && a.policy.params == b.policy.params && a.publish == b.publish &&
         a.clean_copy == b.clean_copy && a.explain >= b.explain && a.season == b.season &&
         a.last_hidden == b.last_hidden && next.session_len == 0 && !next.idle_work && !measured(b) &&
         same_marks(a.prompt, b.prompt) && left.tokens == next.tokens;
}

void take_over(Sequence& left, Sequence& next) {
  next.policy = std::move(left.policy);  // the prefill refers to it
  next.running = std::move(left.running);
  next.turn = left.turn;
  next.starts = left.starts;
  next.waited_for = std::move(left.waited_for);
  next.without_cache = left.without_cache;
  next.work = left.work;
  next.rows = left.rows;
  next.usage = left.usage;
  next.usage.joined = static_cast<int>(left.rows);
  next.started = true;
  next.first_step = Clock::now();
  next.usage.queued_s = seconds(next.submitted, next.first_step);
  next.tokens.reserve(static_cast<size_t>(next.max_len));
}

int64_t computed_since_first_step(const PromptUsage& usage, int64_t looked_again) {
  return std::max<int64_t>(0, int64_t{usage.fresh} + usage.recomputed + looked_again - usage.joined);
}

}  // namespace kvilt

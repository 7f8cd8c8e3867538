#include "engine/seasoner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvilt {

void Seasoner::asked(const Sequence& s, std::span<const TokenMark> missing, DomainId seasoned) {
  const std::vector<TokenMark>& marks = s.request.prompt.marks;
  if (!wanted() || missing.empty() || marks.size() < 2) return;  // a context of one is the prompt's beginning alone
  int64_t size = marks[0].begin;
  for (const TokenMark& mark : marks) size += mark.end - mark.begin;
  if (size > kMaxTokens) return;
  const std::span<const int32_t> tokens = s.tokens;
  const std::string_view domain(reinterpret_cast<const char*>(&seasoned), sizeof seasoned);
  Set set;
  bool often = false, all_wait = true;
  for (const TokenMark& mark : missing) {
    const auto document = tokens.subspan(mark.begin, mark.end - mark.begin);
    const Digest& key = set.keys.emplace_back(KeyedHash(secret_, "kvilt.season").add(domain).add(document).finish());
    if (asked_.size() >= kMaxCounted && !asked_.contains(key)) asked_.clear();
    often |= ++asked_[key] >= kOften;
    all_wait = all_wait && waits(key);
  }
  if (!often || all_wait || waiting_.size() >= kMaxWaiting) return;
  for (const Digest& key : set.keys) asked_.erase(key);
  for (const TokenMark& mark : marks) {
    const int32_t from = set.documents.empty() ? 0 : mark.begin, to = set.documents.empty() ? marks[0].begin : from;
    Prompt& one = set.documents.emplace_back(Prompt{{tokens.begin() + from, tokens.begin() + to}, {}});
    one.marks = {{to - from, to - from + mark.end - mark.begin}};
    one.ids.insert(one.ids.end(), tokens.begin() + mark.begin, tokens.begin() + mark.end);
  }
  set.domains = {.exact = s.domains.exact, .seasoned = seasoned};
  set.rounds = season_.contexts;
  waiting_.push_back(std::move(set));
}

bool Seasoner::waits(const Digest& key) const {
  return std::ranges::any_of(waiting_,
                             [&](const Set& set) { return std::ranges::find(set.keys, key) != set.keys.end(); });
}

std::unique_ptr<Sequence> Seasoner::start() {
  CHECK(!running_ && !waiting_.empty());
  Set& set = waiting_.front();
  if (set.passes.empty()) {
    SeasonOptions one = season_;
    one.contexts = 1;
    one.seed = rng_();
    set.passes = season_prompts(set.documents, one);
  }
  auto s = sequence(set.passes.back(), "full", set.domains);
  s->request.publish = false;
  s->request.season = true;
  running_ = true;
  begun_ = Clock::now();
  return s;
}

void Seasoner::pause() {
  const auto now = Clock::now();
  next_ = now + std::chrono::duration_cast<Clock::duration>((now - begun_) * (1 / share_ - 1));
}

// What it had done is lost, and its time was taken all the same.
void Seasoner::interrupt() {
  if (!std::exchange(running_, false)) return;
  pause();
  Set set = std::move(waiting_.front());
  waiting_.pop_front();
  if (++set.interrupts < kMostInterrupts) waiting_.push_back(std::move(set));
}

// Sets take turns: none waits for all passes of another.
void Seasoner::finish(Completion completion) {
  if (!std::exchange(running_, false)) return;
  pause();
  Set set = std::move(waiting_.front());
  waiting_.pop_front();
  set.passes.pop_back();
  if (set.passes.empty()) --set.rounds;
  if (set.rounds > 0 && !completion.error) waiting_.push_back(std::move(set));
}

void Seasoner::clear() {
  CHECK(!running_);
  waiting_.clear();
  asked_.clear();
}

}  // namespace kvilt

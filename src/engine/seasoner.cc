#include "engine/seasoner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvilt {

void Seasoner::asked(const Sequence& s, std::span<const TokenMark> missing, DomainId seasoned) {
  if (!wanted() || missing.empty()) return;
  const std::span<const int32_t> tokens = s.tokens;
  const std::string_view domain(reinterpret_cast<const char*>(&seasoned), sizeof seasoned);
  bool often = false;
  KeyedHash of_set(secret_, "kvilt.season.set");
  for (const TokenMark& mark : missing) {
    const auto document = tokens.subspan(mark.begin, mark.end - mark.begin);
    const Digest key = KeyedHash(secret_, "kvilt.season").add(domain).add(document).finish();
    of_set.add(key);
    if (asked_.size() >= kMaxCounted && !asked_.contains(key)) asked_.clear();
    often |= ++asked_[key] >= kOften;
  }
  const Digest key = of_set.finish();
  const auto waits = std::ranges::find(waiting_, key, &Set::key) != waiting_.end();
  if (!often || waits || waiting_.size() >= kMaxWaiting) return;
  const std::vector<TokenMark>& marks = s.request.prompt.marks;
  const auto head = tokens.first(static_cast<size_t>(marks[0].begin));
  std::vector<Prompt> documents;
  int32_t size = 0;
  for (const TokenMark& mark : marks) {
    Prompt& one = documents.emplace_back(Prompt{{head.begin(), head.end()}, {}});
    one.ids.insert(one.ids.end(), tokens.begin() + mark.begin, tokens.begin() + mark.end);
    one.marks = {{marks[0].begin, static_cast<int32_t>(one.ids.size())}};
    size += mark.end - mark.begin;
    if (size > kMaxTokens) return;
  }
  season_.seed = rng_();
  waiting_.push_back({key, season_prompts(documents, season_), {.exact = s.domains.exact, .seasoned = seasoned}});
}

std::unique_ptr<Sequence> Seasoner::start() {
  CHECK(!running_ && !waiting_.empty());
  Set& set = waiting_.front();
  auto s = sequence(set.passes.back(), "full", set.domains);
  s->request.publish = false;
  s->request.season = true;
  running_ = true;
  begun_ = Clock::now();
  return s;
}

void Seasoner::interrupt() { running_ = false; }

// Sets take turns: none waits for all passes of another.
void Seasoner::finish(Completion completion) {
  if (!std::exchange(running_, false)) return;
  const auto now = Clock::now();
  next_ = now + std::chrono::duration_cast<Clock::duration>((now - begun_) * (1 / share_ - 1));
  Set set = std::move(waiting_.front());
  waiting_.pop_front();
  set.passes.pop_back();
  if (!set.passes.empty() && !completion.error) waiting_.push_back(std::move(set));
}

}  // namespace kvilt

#include "engine/seasoner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvilt {

void Seasoner::asked(const Sequence& s, std::span<const LacksContexts> missing) {
  const std::vector<TokenMark>& marks = s.request.prompt.marks;
  if (!wanted() || missing.empty() || marks.size() < 2) return;  // a context of one is the prompt's beginning alone
  int64_t size = marks[0].begin;
  for (const TokenMark& mark : marks) size += mark.end - mark.begin;
  if (size > kMaxTokens || marks[0].begin > kMaxBefore) return;
  const auto part = [&](const TokenMark& mark) {
    return std::span<const int32_t>(s.tokens).subspan(mark.begin, mark.end - mark.begin);
  };
  Set set;
  AskCounter::Asker asker(asked_, s.tokens);
  bool often = false, all_wait = true;
  for (const auto& [mark, contexts] : missing) {
    set.rounds = std::max(set.rounds, contexts);
    const Digest& key = set.keys.emplace_back(asked_.key(s.domains.seasoned, part(mark)));
    often |= asked_.asked(key, asker);
    all_wait = all_wait && waits(key);
  }
  if (!often || all_wait || !waiting_.has_room(s.owner, now_ ? 1 : 0)) return;
  set.documents.resize(marks.size());
  for (const TokenMark& mark : marks)
    set.lacking.push_back(std::ranges::any_of(missing, [&](const auto& m) { return m.mark.begin == mark.begin; }));
  set.documents[0].ids.assign(s.tokens.begin(), s.tokens.begin() + marks[0].begin);
  for (size_t i = 0; i < marks.size(); ++i) set.documents[i].add_marked(part(marks[i]));
  set.orders.emplace(set.documents, season_.context);
  if (std::ranges::none_of(set.orders->documents(), [&](size_t i) { return set.lacking[i]; })) return;
  for (const Digest& key : set.keys) asked_.forget(key);
  set.domains = {.exact = s.domains.exact, .seasoned = s.domains.seasoned};
  set.owner = s.owner;
  waiting_.push(std::move(set));
}

// Those of the round that hold a document which lacks contexts.
std::vector<Prompt> Seasoner::passes_of(const Set& set, const std::vector<SeasonSet>& round) {
  std::vector<Prompt> out;
  for (const SeasonSet& one : round) {
    const bool lacks = std::ranges::any_of(one.documents, [&](size_t i) { return set.lacking[i]; });
    if (lacks) out.push_back(season_prompt(set.documents, one));
  }
  return out;
}

bool Seasoner::waits(const Digest& key) const {
  const auto holds = [&](const Set& set) { return std::ranges::find(set.keys, key) != set.keys.end(); };
  return (now_ && holds(*now_)) || std::ranges::any_of(waiting_, holds);
}

std::unique_ptr<Sequence> Seasoner::start() {
  CHECK(!now_ && !waiting_.empty());
  Set& set = now_.emplace(waiting_.pop());
  pace_.begin();  // what ends it, wherever memory ends, ends this too
  if (set.passes.empty()) {
    std::mt19937_64 rng(rng_());
    set.passes = passes_of(set, set.orders->next(rng));
  }
  auto s = sequence(set.passes.back(), "full", set.domains, set.owner);
  s->request.publish = false;
  s->request.season = true;
  return s;
}

// The set whose pass ran; its time counts, however it ended. Nothing where none ran.
std::optional<Seasoner::Set> Seasoner::take_running() {
  if (!now_) return {};
  pace_.end();
  return std::exchange(now_, {});
}

void Seasoner::interrupt() {
  if (auto set = take_running(); set && ++set->interrupts < kMostInterrupts) waiting_.push(*std::move(set));
}

// Sets take turns, and so do tenants: none waits for all passes of another.
void Seasoner::finish(Completion completion) {
  auto set = take_running();
  if (!set) return;
  set->passes.pop_back();
  if (set->passes.empty()) --set->rounds;
  if (set->rounds > 0 && !completion.error) waiting_.push(*std::move(set));
}

void Seasoner::clear() {
  CHECK(!now_);
  waiting_.clear();
  asked_.clear();
}

}  // namespace kvilt

#include "engine/draft_finder.h"

#include <algorithm>

#include "index/ngram.h"

namespace kvilt {
namespace {

constexpr double kKept = 0.97;  // of a count, with each token

// The longest common end, as far as it matters.
int32_t matched_before(std::span<const int32_t> text, size_t next, std::span<const int32_t> own) {
  const auto tail = own.last(std::min<size_t>(own.size(), kMostMatched));
  return kvilt::common_suffix(text.first(next), tail);
}

}  // namespace

HitRates::Kind HitRates::kind_of(int32_t matched, bool cached, bool edit) {
  if (edit && matched < 4) return matched == 0 ? kBehindEdit : kAfterEdit;
  const int length = matched < 5 ? 0 : matched < 8 ? 1 : matched < 16 ? 2 : matched < kMostMatched ? 3 : 4;
  return static_cast<Kind>((cached ? kCached : kOwn) + length);
}

// As if some tokens had been seen: enough to begin with, few enough to be outvoted soon.
HitRates::HitRates() {
  constexpr double kFirst[] = {.3, .5, .3, .5, .75, .9, .95};
  for (int kind = 0; kind < kKinds; ++kind)
    counts_[kind] = {3 * kFirst[kind < kCached ? kind : kind - kCached + kOwn], 3};
}

void HitRates::add(Kind kind, bool hit) {
  Counts& counts = counts_[kind];
  counts.all = counts.all * kKept + 1;
  counts.hits = counts.hits * kKept + (hit ? 1 : 0);
}

void DraftFinder::read(const Texts& texts) {
  if (ngram_slots(texts.own.size()) > long_.size()) {  // at first, and as an answer grows: all anew
    const size_t slots = ngram_slots(texts.own.size() + 1024);
    long_.assign(slots, 0);
    short_.assign(slots, 0);
    for (size_t end = kShort; end < read_; ++end) index(texts.own, end);
  }
  for (; read_ < texts.own.size(); ++read_) {
    follow(texts, read_);
    if (read_ >= kShort) index(texts.own, read_);
  }
}

// Token number `end` follows those before it.
void DraftFinder::index(std::span<const int32_t> own, size_t end) {
  short_[ngram_key(own.subspan(end - kShort, kShort), secret_) & (short_.size() - 1)] = static_cast<int32_t>(end);
  if (end < kLong) return;
  long_[ngram_key(own.subspan(end - kLong, kLong), secret_) & (long_.size() - 1)] = static_cast<int32_t>(end);
}

// Whether the place was right about token number `at`, and where the text is there now.
void DraftFinder::follow(const Texts& texts, size_t at) {
  if (!place_) {
    if (broken_ && ++broken_for_ > kEdit) broken_.reset();
    return;
  }
  const std::span<const int32_t> text = text_of(*place_, texts);
  const auto next = static_cast<size_t>(place_->next);
  if (next >= text.size()) return place_.reset();
  const bool right = text[next] == texts.own[at];
  rates_.add(place_->kind(), right);
  if (right) {
    ++place_->next;
    place_->matched = std::min(place_->matched + 1, kMostMatched);
    if (place_->matched >= 4) place_->edit = false, broken_.reset();
    return;
  }
  if (!place_->edit) {
    broken_ = place_;
    broken_for_ = 0;
    place_ = Place{broken_->segment, broken_->next + 1, 0, true};  // one token stands for one
    return;
  }
  place_.reset();
  if (broken_ && ++broken_for_ > kEdit) broken_.reset();
}

std::optional<DraftFinder::Place> DraftFinder::find_own(const std::vector<int32_t>& table, std::span<const int32_t> own,
                                                        size_t n) const {
  if (own.size() < n) return {};
  const int32_t next = table[ngram_key(own.last(n), secret_) & (table.size() - 1)];
  if (next <= 0) return {};
  const int32_t matched = matched_before(own, static_cast<size_t>(next), own);
  if (matched < static_cast<int32_t>(n)) return {};
  return Place{0, next, matched, false};
}

// The nearest place behind the wrong token at which the last token stands.
std::optional<DraftFinder::Place> DraftFinder::after_edit(const Texts& texts) const {
  const std::span<const int32_t> text = text_of(*broken_, texts);
  const int32_t end = std::min(broken_->next + kEdit, static_cast<int32_t>(text.size()) - 1);
  for (int32_t at = broken_->next; at < end; ++at) {
    if (text[static_cast<size_t>(at)] != texts.own.back()) continue;
    return Place{broken_->segment, at + 1, std::min(3, matched_before(text, static_cast<size_t>(at) + 1, texts.own)),
                 true};
  }
  return {};
}

// The place of which most is to be expected.
void DraftFinder::look(const Texts& texts) {
  if (place_ && !place_->edit && place_->matched >= kMostMatched) return;
  const auto better = [&](const std::optional<Place>& place) {
    if (place && (!place_ || rates_.at(place->kind()) > rates_.at(place_->kind()))) place_ = place;
  };
  if (broken_) better(after_edit(texts));
  better(find_own(long_, texts.own, kLong));
  better(find_own(short_, texts.own, kShort));
  if (!texts.cached) return;
  for (const DomainId domain : {texts.exact, texts.approximate}) {
    const auto found = texts.cached->find_continuation(texts.own, domain);
    if (found) better(Place{found->segment, found->next, found->matched, false});
  }
}

void DraftFinder::propose(const Texts& texts, int most, FunctionRef<bool(double)> worth, std::vector<int32_t>& draft) {
  look(texts);
  if (!place_) return;
  const std::span<const int32_t> text = text_of(*place_, texts);
  const auto first = static_cast<size_t>(place_->next);
  const auto given = static_cast<int>(draft.size());
  double chance = 1;
  for (int i = 0; i < most; ++i) {
    const size_t at = first + static_cast<size_t>(i);
    const bool beyond = at >= text.size();  // what repeats itself goes on to do so
    if (beyond && (place_->segment != 0 || at - text.size() >= static_cast<size_t>(i))) return;
    const int32_t id = beyond ? draft[at - text.size()] : text[at];
    if (i < given) {
      if (id != draft[static_cast<size_t>(i)]) return;
      continue;
    }
    chance *= rates_.at(place_->kind(i));
    if (!worth(chance)) return;
    draft.push_back(id);
  }
}

}  // namespace kvilt

// index/continuations.cc: see continuations.h.
#include "index/continuations.h"

#include <algorithm>
#include <cstring>

#include "index/ngram.h"

namespace kvilt {
namespace {

// The text that the segment continues, up to where it begins; empty where that is not known (any more).
std::span<const int32_t> continued(const SegmentTable& segments, const SegmentInfo& info) {
  const uint32_t parent = info.parent == 0 ? kNoSegment : segments.find(info.parent);
  if (parent == kNoSegment || info.parent_tokens > segments.text(parent).size) return {};
  return segments.text(parent).before(info.parent_tokens);
}

template <class Span>
Span last(Span ids, size_t n) {
  return ids.last(std::min(n, ids.size()));
}

// How many tokens before `next` of the segment are the text's last ones.
int32_t matched_at(const SegmentTable& segments, uint32_t slot, int32_t next, std::span<const int32_t> text) {
  const auto tail = last(text, kMostMatched);
  const int32_t here = common_suffix(segments.text(slot).before(next), tail);
  if (here < next || here == std::ssize(tail)) return here;
  return here + common_suffix(continued(segments, segments[slot].info), tail.first(tail.size() - here));
}

}  // namespace

Continuations::Continuations(const HashSecret& secret) {
  const Digest digest = KeyedHash(secret, "kvilt.continuations").finish();
  std::memcpy(&secret_, digest.data(), sizeof secret_);
}

uint64_t Continuations::key(std::span<const int32_t> ids, DomainId domain) const {
  return ngram_key(ids, secret_ ^ scramble(static_cast<uint64_t>(domain)));
}

void Continuations::insert(const SegmentTable& segments, uint32_t slot, size_t tokens) {
  if (2 * tokens > long_.size() && long_.size() < kMostSlots) return grow(segments, tokens);
  add(segments, slot);
}

// Twice as many slots, filled anew: the oldest segments first, so that later ones have the last word.
void Continuations::grow(const SegmentTable& segments, size_t tokens) {
  const size_t slots = std::min(kMostSlots, ngram_slots(tokens));
  std::vector<Posting> longer(slots, kNone), shorter(slots, kNone);
  long_.swap(longer);
  short_.swap(shorter);
  segments.each_by_id([&](uint32_t slot) {
    if (segments[slot].indexed && segments[slot].info.found_as != FoundAs::kChain) add(segments, slot);
  });
}

void Continuations::add(const SegmentTable& segments, uint32_t slot) {
  const SegmentInfo& info = segments[slot].info;
  const auto before = last(continued(segments, info), kLong);
  std::vector<int32_t> text(before.begin(), before.end());
  text.insert(text.end(), info.tokens.begin(), info.tokens.end());
  const std::span<const int32_t> ids(text);
  for (size_t end = kShort; end < ids.size(); ++end) {
    if (end < before.size()) continue;
    const Posting place{slot, static_cast<int32_t>(end - before.size())};
    short_[key(ids.subspan(end - kShort, kShort), info.domain) & (short_.size() - 1)] = place;
    if (end >= kLong) long_[key(ids.subspan(end - kLong, kLong), info.domain) & (long_.size() - 1)] = place;
  }
}

std::optional<Continuation> Continuations::find(const SegmentTable& segments, std::span<const int32_t> text,
                                                DomainId domain) const {
  Continuation best;
  const auto try_at = [&](const std::vector<Posting>& table, size_t n) {
    if (table.empty() || text.size() < n || best.matched >= static_cast<int32_t>(n)) return;
    const Posting at = table[key(text.last(n), domain) & (table.size() - 1)];
    if (at == kNone || !segments.has(at.segment)) return;
    const SegmentText& of = segments.text(at.segment);
    if (of.domain != domain || at.offset >= of.size) return;
    const int32_t matched = matched_at(segments, at.segment, at.offset, text);
    if (matched >= static_cast<int32_t>(n) && matched > best.matched) best = {of.id, at.offset, matched};
  };
  try_at(long_, kLong);
  try_at(short_, kShort);
  return best.matched > 0 ? std::optional(best) : std::nullopt;
}

}  // namespace kvilt

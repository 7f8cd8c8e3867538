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

void Continuations::insert(const SegmentTable& segments, uint32_t slot) {
  const SegmentInfo& info = segments[slot].info;
  const auto before = last(continued(segments, info), kLong);
  std::vector<int32_t> text(before.begin(), before.end());
  text.insert(text.end(), info.tokens.begin(), info.tokens.end());
  const std::span<const int32_t> ids(text);
  for (size_t end = kShort; end < ids.size(); ++end) {
    if (end < before.size()) continue;
    const Place place{slot + 1, static_cast<int32_t>(end - before.size())};
    short_.at(key(ids.subspan(end - kShort, kShort), info.domain)) = place;
    if (end >= kLong) long_.at(key(ids.subspan(end - kLong, kLong), info.domain)) = place;
  }
}

std::optional<Continuation> Continuations::find(const SegmentTable& segments, std::span<const int32_t> text,
                                                DomainId domain) const {
  Continuation best;
  const auto try_at = [&](const Table& table, size_t n) {
    if (text.size() < n || best.matched >= static_cast<int32_t>(n)) return;
    const Place at = table.at(key(text.last(n), domain));
    const uint32_t slot = at.slot_and_one - 1;
    if (at.slot_and_one == 0 || !segments.has(slot)) return;
    const SegmentText& of = segments.text(slot);
    if (of.domain != domain || at.offset >= of.size) return;
    const int32_t matched = matched_at(segments, slot, at.offset, text);
    if (matched >= static_cast<int32_t>(n) && matched > best.matched) best = {of.id, at.offset, matched};
  };
  try_at(long_, kLong);
  try_at(short_, kShort);
  return best.matched > 0 ? std::optional(best) : std::nullopt;
}

}  // namespace kvilt

// index/segment_index.cc: see segment_index.h.
#include "index/segment_index.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvilt {
namespace {

uint64_t first_word(const Digest& digest) {
  uint64_t word;
  std::memcpy(&word, digest.data(), sizeof word);
  return word;
}

// Exact KV comes before approximate (errors must not pile up), then the older segment.
uint64_t rank_of(const SegmentText& segment) {
  return (segment.exact ? 0 : uint64_t{1} << 63) | (segment.id & ~(uint64_t{1} << 63));
}

}  // namespace

// From window number `first` on. The last one may overlap the one before it.
template <class Visitor>
void SegmentIndex::each_window(const SegmentRecord& segment, const Digest& domain, int32_t first,
                               Visitor&& visitor) const {
  const int32_t w = window();
  const uint64_t seed = first_word(domain);
  const int32_t* ids = segment.info.tokens.data();
  for (int32_t at = first * w; at + w <= segment.size(); at += w) visitor(window_key(hash_.first(ids + at), seed), at);
  if (segment.size() > w && segment.size() % w != 0) {
    const int32_t at = segment.size() - w;
    visitor(window_key(hash_.first(ids + at), seed), at);
  }
}

void SegmentIndex::insert(SegmentTable& segments, uint32_t slot, const Digest& domain) {
  SegmentRecord& segment = segments[slot];
  const auto there = static_cast<int32_t>(segment.window_nodes.size());  // of what erase_end() left
  segment.window_nodes.reserve(segment.size() / window() + 1);
  each_window(segment, domain, there, [&](uint64_t key, int32_t at) {
    const Posting posting{slot, at};
    bool twin = false;
    windows_.visit(key, kMaxHits, [&](const Posting& other) {
      twin = are_twins(segments, posting, other);
      return !twin;
    });
    const auto place = twin ? PostingTable::Place::kTwin : PostingTable::Place::kFront;
    segment.window_nodes.push_back(windows_.add(key, posting, place));
  });
}

void SegmentIndex::erase(SegmentTable& segments, uint32_t slot, const Digest& domain) {
  erase_end(segments, slot, domain, 0);
}

// Twins are told by a window and W - 1 tokens on each side of it: only windows that lie so far before the end stay.
void SegmentIndex::erase_end(SegmentTable& segments, uint32_t slot, const Digest& domain, int32_t tokens) {
  SegmentRecord& segment = segments[slot];
  const int32_t last = tokens - (2 * window() - 1), keep = last < 0 ? 0 : last / window() + 1;
  auto next = static_cast<size_t>(keep);
  each_window(segment, domain, keep, [&](uint64_t key, int32_t at) {
    if (next >= segment.window_nodes.size()) return;  // memory ended while it was inserted
    const uint32_t node = segment.window_nodes[next++];
    if (!windows_.is_twin(node)) replace_by_twin(segments, key, {slot, at});
    windows_.remove(key, node);
  });
  segment.window_nodes.resize(std::min(segment.window_nodes.size(), static_cast<size_t>(keep)));
  std::erase_if(segment.marks, [&](const MarkEntry& mark) {
    if (mark.end > tokens) marks_.remove(mark.key, mark.node);
    return mark.end > tokens;
  });
}

void SegmentIndex::add_mark(SegmentTable& segments, uint32_t slot, const Digest& domain, Run mark) {
  SegmentRecord& segment = segments[slot];
  CHECK(mark.begin >= 0 && mark.begin <= mark.end && mark.end <= segment.size());
  if (mark.begin == mark.end) return;
  const auto order = [](const MarkEntry& m) { return std::pair(m.begin, m.end); };
  const auto at = std::ranges::lower_bound(segment.marks, std::pair(mark.begin, mark.end), {}, order);
  if (at != segment.marks.end() && order(*at) == std::pair(mark.begin, mark.end)) return;
  const auto ids = std::span<const int32_t>(segment.info.tokens).subspan(mark.begin, mark.end - mark.begin);
  const uint64_t key = mark_key(domain, ids);
  const auto entry = segment.marks.insert(at, {mark.begin, mark.end, key, 0});
  try {
    entry->node = marks_.add(key, {slot, mark.begin}, PostingTable::Place::kBack);
  } catch (...) {  // no memory: the segment is taken out again, and removes what its entries name
    segment.marks.erase(entry);
    throw;
  }
}

uint64_t SegmentIndex::mark_key(const Digest& domain, std::span<const int32_t> ids) const {
  return first_word(KeyedHash(secret_, "kvilt.segment").add(domain).add(ids).finish()) & key_mask_;
}

// Whether both are equal in the window and in the W - 1 tokens on each side of it (or end there), and equally exact.
bool SegmentIndex::are_twins(const SegmentTable& segments, Posting a, Posting b) const {
  const int32_t w = window();
  const auto around = [&](Posting p) {
    const SegmentText& segment = segments.text(p.segment);
    const int32_t before = std::min(p.offset, w - 1), after = std::min(segment.size - p.offset, 2 * w - 1);
    return std::pair(before, segment.from(p.offset - before).first(before + after));
  };
  const auto [a_before, a_ids] = around(a);
  const auto [b_before, b_ids] = around(b);
  return a_before == b_before && a_ids.size() == b_ids.size() &&
         segments.text(a.segment).exact == segments.text(b.segment).exact &&
         common_prefix(a_ids, b_ids) == static_cast<int32_t>(a_ids.size());
}

// `leaving` is an ordinary posting that is about to be removed. One of its twins becomes ordinary; if none is among
// those tried and `leaving` is the last ordinary one of its list, any twin does, so that a search still sees the list.
void SegmentIndex::replace_by_twin(const SegmentTable& segments, uint64_t key, Posting leaving) {
  int ordinary = 0;
  windows_.visit(key, 2, [&](const Posting&) { return ++ordinary < 2; });
  uint32_t chosen = 0;
  bool twin = false, any = false;
  windows_.visit_twins(key, kMaxTwinsTried, [&](const Posting& other, uint32_t node) {
    twin = are_twins(segments, leaving, other);
    if (twin || !any) chosen = node;
    any = true;
    return !twin;
  });
  if (twin || (any && ordinary == 1)) windows_.promote(key, chosen);
}

// One search of one prompt.
class SegmentIndex::Search {
 public:
  Search(const SegmentIndex& index, const SegmentTable& segments, const Query& query, SearchCost& cost)
      : index_(index),
        segments_(segments),
        query_(query),
        cost_(cost),
        furthest_(query.from),
        widest_{query.from, query.from} {}

  void marks() {
    int32_t done = 0;
    for (const Run& mark : query_.marks) {
      const bool sound = mark.begin >= done && mark.begin < mark.end && mark.end <= size();
      if (!sound) continue;
      done = mark.end;
      if (mark.end > query_.from) find_mark(mark);
    }
  }

  void slide() {
    const int32_t w = index_.window();
    const int32_t* ids = query_.prompt.data();
    const uint64_t seed = first_word(*query_.digest);
    std::array<uint64_t, kBatch> keys;
    uint64_t hash = 0;
    for (int32_t begin = query_.from; begin + w <= size(); begin += kBatch) {
      const int32_t count = std::min(kBatch, size() - w + 1 - begin);
      for (int32_t i = 0; i < count; ++i) {  // the keys first, so that their slots are being fetched
        const int32_t at = begin + i;
        hash = at == query_.from ? index_.hash_.first(ids + at) : index_.hash_.next(hash, ids[at - 1], ids[at + w - 1]);
        keys[i] = index_.window_key(hash, seed);
        index_.windows_.prefetch(keys[i]);
      }
      cost_.probes += count;
      for (int32_t i = 0; i < count; ++i) {
        credit_ += kCreditPerToken;
        index_.windows_.visit(keys[i], kMaxHits, [&](const Posting& hit) {
          consider(begin + i, hit);
          return true;
        });
      }
    }
  }

  std::vector<Candidate> take() { return std::move(found_); }

 private:
  static constexpr int32_t kBatch = 32;
  static constexpr size_t kRecent = 16;

  struct Match {  // a compared match by its diagonal: token i of the segment equals the prompt at i - shift
    uint32_t segment = kNoSegment;
    int32_t shift = 0, end = 0;
  };

  int32_t size() const { return static_cast<int32_t>(query_.prompt.size()); }

  void find_mark(Run mark) {
    const int32_t count = mark.end - mark.begin;
    const auto ids = query_.prompt.subspan(mark.begin, count);
    ++cost_.probes;
    credit_ += kCreditPerToken * count;
    index_.marks_.visit(index_.mark_key(*query_.digest, ids), kMaxHits, [&](const Posting& hit) {
      ++cost_.hits;
      const SegmentText& segment = segments_.text(hit.segment);
      if (segment.domain != query_.domain) return true;
      const bool extend = credit_ > 0;  // in a text that repeats itself each of many marks would reach over all of it
      const int32_t right = common_prefix(segment.from(hit.offset),
                                          query_.prompt.subspan(mark.begin, extend ? size() - mark.begin : count));
      charge(right + 1, right);
      if (right < count) return true;
      const int32_t left = extend ? left_of(segment, hit.offset, mark.begin, query_.from) : 0;
      charge(left + 1, left);
      Candidate found = candidate(hit, mark.begin, left, right);
      found.keep_begin = std::max(mark.begin, query_.from);
      found.keep_end = mark.end;
      found_.push_back(found);
      return true;
    });
  }

  void consider(int32_t at, const Posting& hit) {
    ++cost_.hits;
    const SegmentText& segment = segments_.text(hit.segment);
    const int32_t w = index_.window();
    if (segment.domain != query_.domain || is_recent(hit.segment, hit.offset - at, at + w)) return;
    const bool covered = at < furthest_;
    if (covered && credit_ <= 0) return;
    if (adds_nothing(segment, hit.offset, at)) return;

    const int32_t right = right_of(segment, hit.offset, at);
    const int32_t again = std::min(right, std::max(0, furthest_ - at));  // compared before with another segment
    charge(right + 1, covered ? again + w : 0);
    if (right < w) return;
    const int32_t left = left_of(segment, hit.offset, at, credit_ > 0 ? query_.from : std::max(query_.from, furthest_));
    charge(left + 1, left);
    recent_[next_recent_++ % kRecent] = {hit.segment, hit.offset - at, at + right};
    furthest_ = std::max(furthest_, at + right);
    if (left + right < query_.min_tokens) return;
    const Candidate found = candidate(hit, at, left, right);
    const bool inside = found.begin >= widest_.begin && found.end <= widest_.end;
    const bool equal = found.begin == widest_.begin && found.end == widest_.end;  // ranks decide
    if (inside && !equal) return;
    found_.push_back(found);
    if (found.end < widest_.end) return;
    widest_exact_ = segment.exact || (equal && widest_exact_);
    widest_ = found;
  }

  bool is_recent(uint32_t segment, int32_t shift, int32_t end) const {
    return std::ranges::any_of(
        recent_, [&](const Match& m) { return m.segment == segment && m.shift == shift && m.end >= end; });
  }
  // Two tokens tell that a hit inside the widest candidate does not reach beyond it on either side; then it matters
  // only where it would replace approximate KV by exact KV. In a text that repeats itself, or is cached many times,
  // nearly every hit ends here.
  bool adds_nothing(const SegmentText& segment, int32_t offset, int32_t at) const {
    if (at < widest_.begin || at >= widest_.end || (segment.exact && !widest_exact_)) return false;
    return !equal_at(segment, offset, at, widest_.end) && !equal_at(segment, offset, at, widest_.begin - 1);
  }
  // With token `offset` of the segment at prompt position `at`: whether its token at `pos` equals the prompt's.
  bool equal_at(const SegmentText& segment, int32_t offset, int32_t at, int32_t pos) const {
    const int64_t i = int64_t{offset} + pos - at;
    return pos >= query_.from && pos < size() && i >= 0 && i < segment.size && segment.ids[i] == query_.prompt[pos];
  }
  int32_t right_of(const SegmentText& segment, int32_t offset, int32_t at) const {
    return common_prefix(segment.from(offset), query_.prompt.subspan(at));
  }
  int32_t left_of(const SegmentText& segment, int32_t offset, int32_t at, int32_t limit) const {
    return limit >= at ? 0 : common_suffix(segment.before(offset), query_.prompt.subspan(limit, at - limit));
  }
  // What the hit at prompt position `at` becomes with `left` equal tokens before it and `right` from it on.
  Candidate candidate(const Posting& hit, int32_t at, int32_t left, int32_t right) const {
    const int32_t begin = std::max(at - left, query_.from);
    return {.begin = begin,
            .end = at + right,
            .segment = hit.segment,
            .offset = hit.offset + (begin - at),
            .rank = rank_of(segments_.text(hit.segment))};
  }
  void charge(int64_t compared, int64_t repeated) {
    cost_.compared += compared;
    credit_ -= repeated;
  }

  const SegmentIndex& index_;
  const SegmentTable& segments_;
  const Query& query_;
  SearchCost& cost_;
  std::vector<Candidate> found_;
  std::array<Match, kRecent> recent_;
  size_t next_recent_ = 0;
  int64_t credit_ = kFirstCredit;  // ids that may still be compared a second time; every token passed adds some
  int32_t furthest_;               // the furthest end of any match
  Candidate widest_;               // the candidate that ends furthest; of several the longest
  bool widest_exact_ = false;      // whether one of exact KV covers the same
};

std::vector<Candidate> SegmentIndex::find(const SegmentTable& segments, const Query& query, SearchCost& cost) const {
  Search search(*this, segments, query, cost);
  search.marks();
  search.slide();
  return search.take();
}

}  // namespace kvilt

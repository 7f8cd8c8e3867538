// index/near_index.cc: see near_index.h.
#include "index/near_index.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace kvilt {
namespace {

constexpr int32_t kVoteBlock = 256;  // a vote is for so many tokens of a segment, and for those beside them
constexpr int32_t kAround = 32;      // what is known beside a gap votes too: most of it is from the same document
constexpr int kMaxPlaces = 16;       // of a short gram in the prompt
constexpr uint32_t kNowhere = UINT32_MAX;

// Tokens of a segment that are worth aligning.
struct Region {
  uint32_t segment = kNoSegment;
  int32_t begin = 0, end = 0, votes = 0;
};

struct Vote {
  uint32_t segment = kNoSegment;
  int32_t block = 0;
  auto operator<=>(const Vote&) const = default;
};

// Blocks with votes, each with the block before and after it; sorted by segment and place.
std::vector<Region> regions_of(std::vector<Vote> votes, const SegmentTable& segments) {
  std::ranges::sort(votes);
  std::vector<Region> out;
  for (const Vote& vote : votes) {
    const int32_t begin = std::max(0, vote.block - 1) * kVoteBlock;
    const int32_t end = std::min((vote.block + 2) * kVoteBlock, segments.text(vote.segment).size);
    if (out.empty() || out.back().segment != vote.segment || begin > out.back().end)
      out.push_back({vote.segment, begin, end, 0});
    out.back().end = std::max(out.back().end, end);
    ++out.back().votes;
  }
  return out;
}

// Where grams of kSeed tokens are in the gaps of a prompt.
class Places {
 public:
  Places(std::span<const int32_t> prompt, std::span<const Run> gaps) : prompt_(prompt), next_(prompt.size(), kNowhere) {
    size_t slots = 64;
    while (slots < prompt.size()) slots *= 2;
    heads_.assign(slots, kNowhere);
    for (const Run& gap : gaps) {
      for (int32_t pos = gap.begin; pos + NearIndex::kSeed <= gap.end; ++pos) {
        uint32_t& head = heads_[slot(prompt.data() + pos)];
        next_[pos] = head;
        head = static_cast<uint32_t>(pos);
      }
    }
  }

  // Calls visitor(pos) for the last kMaxPlaces of them.
  template <class Visitor>
  void visit(const int32_t* ids, Visitor&& visitor) const {
    int left = kMaxPlaces;
    for (uint32_t pos = heads_[slot(ids)]; pos != kNowhere && left > 0; pos = next_[pos], --left) {
      if (std::memcmp(prompt_.data() + pos, ids, NearIndex::kSeed * sizeof(int32_t)) == 0)
        visitor(static_cast<int32_t>(pos));
    }
  }

 private:
  size_t slot(const int32_t* ids) const {
    std::array<uint64_t, 2> words;
    std::memcpy(words.data(), ids, sizeof words);
    return scramble(words[0] * 0x9e3779b97f4a7c15ull ^ words[1]) & (heads_.size() - 1);
  }

  static_assert(NearIndex::kSeed * sizeof(int32_t) == sizeof(std::array<uint64_t, 2>));
  std::span<const int32_t> prompt_;
  std::vector<uint32_t> heads_, next_;
};

}  // namespace

// Of each kGrams neighbouring grams (of all there are, where there are fewer) the one with the smallest key, once. In a
// text that repeats itself the one before stays as long as none is smaller: else every token would have one.
template <class Visitor>
void NearIndex::each_minimum(std::span<const int32_t> ids, const Digest& domain, Visitor&& visitor) const {
  uint64_t seed;
  std::memcpy(&seed, domain.data(), sizeof seed);
  const int32_t grams = static_cast<int32_t>(ids.size()) - kGram + 1;
  std::array<uint64_t, kGrams> keys;  // of gram i at i % kGrams
  uint64_t hash = 0, smallest = 0;
  int32_t best = -1, said = -1;
  for (int32_t at = 0; at < grams; ++at) {
    hash = at == 0 ? hash_.first(ids.data()) : hash_.next(hash, ids[at - 1], ids[at + kGram - 1]);
    const uint64_t key = keys[at % kGrams] = scramble(hash ^ seed);
    if (best < 0 || key < smallest) {
      best = at, smallest = key;
    } else if (best + kGrams == at) {
      best = at, smallest = key;
      for (int32_t i = at - 1; i > at - kGrams; --i) {
        if (keys[i % kGrams] < smallest) best = i, smallest = keys[i % kGrams];
      }
    }
    if (at + 1 < std::min(kGrams, grams) || best == said) continue;
    said = best;
    visitor(smallest & key_mask_, best);
  }
}

void NearIndex::insert(SegmentTable& segments, uint32_t slot, const Digest& domain, Age age) {
  SegmentRecord& segment = segments[slot];
  if (std::exchange(segment.near.there, true)) return;
  try {
    add(segment.info.tokens, domain, age, slot, segment.near.nodes);
  } catch (...) {  // memory ended: none of it is there
    erase(segments, slot, domain);
    throw;
  }
}

void NearIndex::add(std::span<const int32_t> ids, const Digest& domain, Age age, uint32_t slot,
                    std::vector<uint32_t>& nodes) {
  std::vector<std::pair<uint64_t, int32_t>> minima;
  each_minimum(ids, domain, [&](uint64_t key, int32_t at) { minima.emplace_back(key, at); });
  nodes.reserve(minima.size());  // a node that is added is one that erase() removes, whenever memory ends
  const auto place = age == Age::kNew ? PostingTable::Place::kFront : PostingTable::Place::kBack;
  for (const auto& [key, at] : minima) nodes.push_back(minima_.add(key, {slot, at}, place));
  changes_ += std::ssize(minima);
}

void NearIndex::remove(uint64_t key, uint32_t node) {
  minima_.remove(key, node);
  ++changes_;
}

void NearIndex::erase(SegmentTable& segments, uint32_t slot, const Digest& domain) {
  const NearLink kept = std::exchange(segments[slot].near, {});
  if (!kept.there) return;
  size_t next = 0;
  each_minimum(segments[slot].info.tokens, domain, [&](uint64_t key, int32_t) {
    if (next < kept.nodes.size()) remove(key, kept.nodes[next++]);
  });
}

// each_minimum() goes from left to right: of a text's beginning it says what it says of the text before it comes to the
// first gram behind it. A minimum is said when its gram is read, if that is smaller than the one before; else when that
// one is out of reach.
void NearIndex::truncate(SegmentTable& segments, uint32_t slot, const Digest& domain, int32_t tokens) {
  if (!segments[slot].near.there) return;
  const std::span<const int32_t> ids = segments[slot].info.tokens;
  const int32_t grams = tokens - kGram + 1;
  uint64_t seed;
  std::memcpy(&seed, domain.data(), sizeof seed);
  const auto key_at = [&](int32_t at) { return scramble(hash_.first(ids.data() + at) ^ seed); };
  std::vector<uint32_t>& nodes = segments[slot].near.nodes;
  while (!nodes.empty()) {
    const int32_t at = minima_.posting(nodes.back()).offset;
    const uint64_t key = key_at(at);
    int32_t said = kGrams - 1;
    if (nodes.size() > 1) {
      const int32_t before = minima_.posting(nodes[nodes.size() - 2]).offset;
      said = key < key_at(before) ? at : before + kGrams;
    }
    if (said < grams) return;
    remove(key & key_mask_, nodes.back());
    nodes.pop_back();
  }
  add(ids.first(tokens), domain, Age::kNew, slot, nodes);  // a few tokens are left
}

// One search of one prompt.
class NearIndex::Search {
 public:
  Search(const NearIndex& index, const SegmentTable& segments, const Query& query, SearchCost& cost)
      : index_(index), segments_(segments), query_(query), cost_(cost), credit_(kFirstCredit) {
    for (const Run& gap : query.gaps) {
      if (gap.size() < query.least) continue;
      gaps_.push_back(gap);
      credit_ += gap.size() * kCreditPerToken;
    }
  }

  std::vector<Candidate> run() {
    std::vector<Region> regions = regions_of(votes(), segments_);
    if (regions.empty()) return {};
    std::ranges::sort(regions, {}, [&](const Region& region) {
      const SegmentText& text = segments_.text(region.segment);
      return std::tuple(-region.votes, !text.exact, text.id, region.begin);
    });
    const Places places(query_.prompt, gaps_);
    for (size_t i = 0; i < regions.size() && credit_ > 0; ++i) align(regions[i], i, places);
    return those_together();
  }

 private:
  static constexpr size_t kRecent = 16;
  struct Match {  // token i of the segment equals the prompt at i - shift, up to `end`
    int32_t shift = 0, end = -1;
  };

  std::vector<Vote> votes() {
    Runs looks;
    const int32_t size = static_cast<int32_t>(query_.prompt.size());
    for (const Run& gap : gaps_) looks.push_back({std::max(0, gap.begin - kAround), std::min(size, gap.end + kAround)});
    std::vector<uint64_t> keys;
    for (const Run& look : normalize(std::move(looks))) {
      index_.each_minimum(query_.prompt.subspan(look.begin, look.size()), *query_.digest,
                          [&](uint64_t key, int32_t) { keys.push_back(key); });
    }
    constexpr size_t kAhead = 16;
    std::vector<Vote> out;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i + kAhead < keys.size()) index_.minima_.prefetch(keys[i + kAhead]);
      ++cost_.probes;
      index_.minima_.visit(keys[i], kMaxHits, [&](const Posting& hit) {
        ++cost_.hits;
        if (segments_.text(hit.segment).domain == query_.domain) out.push_back({hit.segment, hit.offset / kVoteBlock});
        return true;
      });
    }
    return out;
  }

  // A run of `least` tokens holds one of the segment's grams that are looked up, wherever it begins.
  void align(const Region& region, size_t order, const Places& places) {
    const SegmentText& text = segments_.text(region.segment);
    const int32_t step = query_.least - kSeed + 1;
    std::array<Match, kRecent> recent{};
    size_t next = 0;
    for (int32_t offset = region.begin; offset + kSeed <= region.end && credit_ > 0; offset += step) {
      charge(kSeed);
      places.visit(text.ids + offset, [&](int32_t pos) {
        const int32_t shift = offset - pos;
        if (credit_ <= 0 ||
            std::ranges::any_of(recent, [&](const Match& m) { return m.shift == shift && m.end > pos; }))
          return;
        const Run gap = *std::ranges::upper_bound(gaps_, pos, {}, &Run::end);
        const int32_t right = common_prefix(text.from(offset), query_.prompt.subspan(pos, gap.end - pos));
        const int32_t left = common_suffix(text.before(offset), query_.prompt.subspan(gap.begin, pos - gap.begin));
        charge(left + right + 2);
        recent[next++ % kRecent] = {shift, pos + right};
        if (left + right < query_.least) return;
        const uint64_t rank = order | (text.exact ? 0 : uint64_t{1} << 63);
        found_.push_back({pos - left, pos + right, region.segment, offset - left, rank});
      });
    }
  }

  void charge(int64_t ids) {
    cost_.compared += ids;
    credit_ -= ids;
  }

  // Runs that hold a segment whole, or stand with others of their segment, known ones included.
  std::vector<Candidate> those_together() {
    struct Part {
      Candidate run;
      bool known = false;
    };
    std::vector<Part> parts;
    for (const Candidate& run : found_) parts.push_back({run});
    for (const Candidate& run : query_.known) parts.push_back({run, true});
    std::ranges::sort(parts, {}, [](const Part& part) {
      return std::tuple(part.run.segment, part.run.begin, -part.run.end, part.run.offset, part.known);
    });
    std::vector<Candidate> out;
    for (auto first = parts.begin(); first != parts.end();) {
      int32_t end = first->run.begin, tokens = 0;
      auto last = first;
      const auto follows = [&](const Candidate& next) {
        return next.segment == first->run.segment && next.begin - end <= query_.together;
      };
      for (; last != parts.end() && follows(last->run); ++last) {
        tokens += std::max(0, last->run.end - std::max(end, last->run.begin));
        end = std::max(end, last->run.end);
      }
      for (; first != last; ++first) {
        const int32_t size = first->run.end - first->run.begin;
        const bool counts = tokens >= query_.together || size == segments_.text(first->run.segment).size;
        if (!first->known && counts) out.push_back(first->run);
      }
    }
    return out;
  }

  const NearIndex& index_;
  const SegmentTable& segments_;
  const Query& query_;
  SearchCost& cost_;
  int64_t credit_;  // ids that may still be read
  Runs gaps_;
  std::vector<Candidate> found_;
};

std::vector<Candidate> NearIndex::find(const SegmentTable& segments, const Query& query, SearchCost& cost) const {
  CHECK(query.least >= kSeed);
  return Search(*this, segments, query, cost).run();
}

}  // namespace kvilt

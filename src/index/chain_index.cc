// index/chain_index.cc: see chain_index.h.
#include "index/chain_index.h"

#include <algorithm>
#include <cstring>

namespace kvilt {
namespace {

ChainChild child_of(const SegmentRecord& segment, uint32_t slot) {
  ChainChild child{
      .attach = segment.chain.parent == kNoSegment ? 0 : segment.info.parent_tokens, .id = segment.id, .segment = slot};
  child.size = std::min(segment.size(), int32_t{ChainChild::kHead});
  std::copy_n(segment.info.tokens.begin(), child.size, child.head.begin());
  return child;
}

// Where a chain ends before position `pos`: in which segment, and before which of its tokens.
struct ChainPlace {
  uint32_t segment;
  int32_t index;
};

ChainPlace place_before(const SegmentTable& segments, uint32_t segment, int32_t pos) {
  while (segment != kNoSegment && segments[segment].chain.start >= pos) segment = segments[segment].chain.parent;
  return {segment, segment == kNoSegment ? 0 : pos - segments[segment].chain.start};
}

// Copies the ids at positions [begin, end) of the chain that passes through `segment` (end <= its last position + 1).
void copy_chain(const SegmentTable& segments, uint32_t segment, int32_t begin, int32_t end, int32_t* ids) {
  while (begin < end) {
    const auto [owner, index] = place_before(segments, segment, end);
    const int32_t count = std::min(index, end - begin);
    std::copy_n(segments[owner].info.tokens.begin() + (index - count), count, ids + (end - begin - count));
    end -= count;
    segment = owner;
  }
}

}  // namespace

struct ChainIndex::TailSearch {
  const SegmentTable& segments;
  std::span<const int32_t> prompt;
  Reach best;
  int visits = 0;
};

Digest ChainIndex::block_key(const Digest& domain, const Digest* previous, std::span<const int32_t> ids) const {
  static constexpr Digest kFirst{};
  return KeyedHash(secret_, "kvilt.chain").add(domain).add(previous ? *previous : kFirst).add(ids).finish();
}

uint64_t ChainIndex::table_key(const Digest& key) const {
  uint64_t word;
  std::memcpy(&word, key.data(), sizeof word);
  return word & key_mask_;
}

std::set<ChainChild>* ChainIndex::siblings(SegmentTable& segments, const SegmentRecord& segment) {
  return segment.chain.parent == kNoSegment ? &roots_[segment.info.domain]
                                            : &segments[segment.chain.parent].chain.children;
}

void ChainIndex::insert(SegmentTable& segments, uint32_t slot, const Digest& domain, BlockChanges* changes) {
  SegmentRecord& segment = segments[slot];
  ChainLink& chain = segment.chain;
  if (segment.size() == 0) return;
  int32_t start = 0;
  if (segment.info.parent != 0 && segment.info.parent_tokens > 0) {
    const uint32_t parent = segments.find(segment.info.parent);
    if (parent == kNoSegment || segments[parent].chain.start < 0 || segments[parent].info.domain != segment.info.domain)
      return;
    CHECK(segment.info.parent_tokens <= segments[parent].size());
    chain.parent = parent;
    start = segments[parent].chain.start + segment.info.parent_tokens;
  }
  chain.start = start;

  const int32_t first = start / kBlockTokens, last = (start + segment.size()) / kBlockTokens;
  std::array<int32_t, kBlockTokens> ids;
  Digest previous{};
  if (first > 0) {
    const uint32_t owner = place_before(segments, chain.parent, first * kBlockTokens).segment;
    previous = segments[owner].chain.keys[first - 1 - segments[owner].chain.start / kBlockTokens];
    if (changes) changes->parent = table_key(previous);
  }
  chain.keys.reserve(last - first);
  chain.nodes.reserve(last - first);
  for (int32_t block = first; block < last; ++block) {
    copy_chain(segments, slot, block * kBlockTokens, (block + 1) * kBlockTokens, ids.data());
    previous = block_key(domain, block > 0 ? &previous : nullptr, ids);
    chain.keys.push_back(previous);
    const int32_t end = (block + 1) * kBlockTokens - start;
    if (changes) {
      changes->keys.push_back(table_key(previous));
      changes->tokens.insert(changes->tokens.end(), ids.begin(), ids.end());
      changes->fresh.push_back(!table_.contains(table_key(previous)));
    }
    chain.nodes.push_back(table_.add(table_key(previous), {slot, end}, PostingTable::Place::kBack));
  }
  siblings(segments, segment)->insert(child_of(segment, slot));
}

std::vector<std::pair<uint64_t, int32_t>> ChainIndex::keys(const SegmentTable& segments, uint32_t slot,
                                                           Run tokens) const {
  std::vector<std::pair<uint64_t, int32_t>> out;
  const ChainLink& chain = segments[slot].chain;
  if (chain.start < 0) return out;
  int32_t end = (chain.start / kBlockTokens + 1) * kBlockTokens - chain.start;
  for (const Digest& key : chain.keys) {
    if (end > tokens.begin && end <= tokens.end) out.emplace_back(table_key(key), end);
    end += kBlockTokens;
  }
  return out;
}

BlockChanges ChainIndex::blocks(const SegmentTable& segments, uint32_t slot) const {
  BlockChanges out;
  const ChainLink& chain = segments[slot].chain;
  CHECK(chain.start >= 0);
  const int32_t first = chain.start / kBlockTokens, last = first + static_cast<int32_t>(chain.keys.size());
  if (first > 0) {
    const uint32_t owner = place_before(segments, chain.parent, first * kBlockTokens).segment;
    out.parent = table_key(segments[owner].chain.keys[first - 1 - segments[owner].chain.start / kBlockTokens]);
  }
  for (const Digest& key : chain.keys) out.keys.push_back(table_key(key));
  out.fresh.assign(chain.keys.size(), false);
  out.tokens.resize(chain.keys.size() * kBlockTokens);
  if (last > first) copy_chain(segments, slot, first * kBlockTokens, last * kBlockTokens, out.tokens.data());
  return out;
}

std::vector<SegmentId> ChainIndex::erase(SegmentTable& segments, uint32_t slot, BlockChanges* changes) {
  std::vector<SegmentId> left;
  if (segments[slot].chain.start < 0) return left;
  std::set<ChainChild>* others = siblings(segments, segments[slot]);
  others->erase(child_of(segments[slot], slot));
  if (segments[slot].chain.parent == kNoSegment && others->empty()) roots_.erase(segments[slot].info.domain);
  take_out(segments, {slot}, left, changes);
  left.erase(left.begin());  // the segment itself
  return left;
}

// Takes `leaving` and all that continue them out of the tree. Their parents' lists are the caller's.
void ChainIndex::take_out(SegmentTable& segments, std::vector<uint32_t> leaving, std::vector<SegmentId>& left,
                          BlockChanges* changes) {
  while (!leaving.empty()) {
    SegmentRecord& segment = segments[leaving.back()];
    leaving.pop_back();
    left.push_back(segment.id);
    ChainLink& chain = segment.chain;
    for (size_t i = chain.nodes.size(); i-- > 0;) remove_block(chain.keys[i], chain.nodes[i], changes);
    for (const ChainChild& child : chain.children) leaving.push_back(child.segment);
    chain = {};
  }
}

void ChainIndex::remove_block(const Digest& key, uint32_t node, BlockChanges* changes) {
  table_.remove(table_key(key), node);
  if (changes && !table_.contains(table_key(key))) changes->removed.push_back(table_key(key));
}

std::vector<SegmentId> ChainIndex::truncate(SegmentTable& segments, uint32_t slot, int32_t tokens,
                                            BlockChanges* changes) {
  std::vector<SegmentId> left;
  ChainLink& chain = segments[slot].chain;
  if (chain.start < 0) {
    segments.truncate(slot, tokens);
    return left;
  }
  std::set<ChainChild>* others = siblings(segments, segments[slot]);
  others->erase(child_of(segments[slot], slot));
  std::vector<uint32_t> leaving;
  const auto first = chain.children.lower_bound({.attach = tokens + 1});
  for (auto it = first; it != chain.children.end(); ++it) leaving.push_back(it->segment);
  chain.children.erase(first, chain.children.end());
  const auto blocks = static_cast<size_t>((chain.start + tokens) / kBlockTokens - chain.start / kBlockTokens);
  for (; chain.nodes.size() > blocks; chain.nodes.pop_back(), chain.keys.pop_back())
    remove_block(chain.keys.back(), chain.nodes.back(), changes);
  segments.truncate(slot, tokens);
  others->insert(child_of(segments[slot], slot));
  take_out(segments, std::move(leaving), left, changes);
  return left;
}

// Where the chain ends, if it is still there; else nowhere.
ChainIndex::Reach ChainIndex::reach_of(const SegmentTable& segments, const ChainEnd& end, DomainId domain) const {
  const uint32_t slot = end.pos > 0 ? segments.find(end.segment) : kNoSegment;
  if (slot == kNoSegment || segments[slot].info.domain != domain || segments[slot].chain.start < 0) return {};
  if (end.tokens > segments[slot].size() || segments[slot].chain.start + end.tokens != end.pos) return {};
  return {slot, end.tokens, end.pos};
}

std::vector<Piece> ChainIndex::find(const SegmentTable& segments, std::span<const int32_t> prompt, DomainId domain,
                                    const Digest& domain_digest, const ChainEnd& from, SearchCost& cost) const {
  Reach start = reach_of(segments, from, domain);
  if (start.matched > static_cast<int32_t>(prompt.size())) start = {};
  std::vector<uint64_t> known;  // table keys of blocks that some chain has, from block `first` on
  size_t first = 0;
  Digest previous{};
  if (const int32_t blocks = start.matched / kBlockTokens; blocks > 0) {
    const uint32_t owner = place_before(segments, start.segment, blocks * kBlockTokens).segment;
    first = static_cast<size_t>(blocks) - 1;
    previous = segments[owner].chain.keys[first - static_cast<size_t>(segments[owner].chain.start / kBlockTokens)];
    known.push_back(table_key(previous));
  }
  for (size_t next = first + known.size(); (next + 1) * kBlockTokens <= prompt.size(); ++next) {
    const auto ids = prompt.subspan(next * kBlockTokens, kBlockTokens);
    ++cost.probes;
    previous = block_key(domain_digest, next == 0 ? nullptr : &previous, ids);
    if (!table_.contains(table_key(previous))) break;
    known.push_back(table_key(previous));
  }

  TailSearch search{segments, prompt, {}};
  for (; !known.empty() && search.best.matched == 0; known.pop_back()) {
    const int32_t matched = static_cast<int32_t>(first + known.size()) * kBlockTokens;
    table_.visit(known.back(), kMaxTwins, [&](const Posting& hit) {
      const Reach reach{hit.segment, hit.offset, matched};
      if (segments[hit.segment].info.domain == domain && verified(segments, reach, prompt)) extend(search, reach);
      return true;
    });
  }
  // It may be one of more writers of a block than are tried.
  if (search.best.matched < start.matched && verified(segments, start, prompt)) extend(search, start);
  if (search.best.matched == 0) {
    const auto roots = roots_.find(domain);
    if (roots != roots_.end()) descend(search, roots->second, 0, 0);
  }

  std::vector<Piece> pieces;
  int32_t end = search.best.matched;
  for (uint32_t slot = search.best.segment; end > 0;) {
    const auto [owner, index] = place_before(segments, slot, end);
    pieces.push_back({segments[owner].id, 0, index, end - index});
    end -= index;
    slot = owner;
  }
  std::ranges::reverse(pieces);
  return pieces;
}

// Compares every token of the chain, from its end back to position 0.
bool ChainIndex::verified(const SegmentTable& segments, const Reach& reach, std::span<const int32_t> prompt) const {
  int32_t end = reach.matched;
  if (segments[reach.segment].chain.start + reach.index != end) return false;
  for (uint32_t slot = reach.segment; end > 0;) {
    const auto [owner, index] = place_before(segments, slot, end);
    const std::span<const int32_t> own(segments[owner].info.tokens.data(), index);
    if (common_prefix(own, prompt.subspan(end - index, index)) != index) return false;
    end -= index;
    slot = owner;
  }
  return true;
}

// Goes on from a verified place: along the segment's next tokens, then into the children that branch off along them.
void ChainIndex::extend(TailSearch& search, Reach from) const {
  if (++search.visits > kMaxVisits) return;
  const SegmentRecord& segment = search.segments[from.segment];
  const auto own = std::span<const int32_t>(segment.info.tokens).subspan(from.index);
  const int32_t more = common_prefix(own, search.prompt.subspan(from.matched));
  if (from.matched + more > search.best.matched) {
    search.best = {from.segment, from.index + more, from.matched + more};
  }
  for (int32_t i = 0; i <= more; ++i) descend(search, segment.chain.children, from.index + i, from.matched + i);
}

// Tries the children that leave at `attach`, the best continuation of the prompt first: it is a neighbour of the place
// that the prompt itself would have among them.
void ChainIndex::descend(TailSearch& search, const std::set<ChainChild>& children, int32_t attach,
                         int32_t matched) const {
  const auto rest = search.prompt.subspan(matched);
  if (rest.empty() || children.empty()) return;
  ChainChild wanted{.attach = attach};
  wanted.size = static_cast<int32_t>(std::min(rest.size(), ChainChild::kHead));
  std::copy_n(rest.begin(), wanted.size, wanted.head.begin());

  const auto continues = [&](const ChainChild& child) { return child.attach == attach && child.head[0] == rest[0]; };
  auto right = children.lower_bound(wanted);
  auto left = right;
  const auto more_left = [&] { return left != children.begin() && continues(*std::prev(left)); };
  const auto more_right = [&] { return right != children.end() && continues(*right); };
  while (search.visits < kMaxVisits && search.best.matched < static_cast<int32_t>(search.prompt.size())) {
    const int32_t on_left = more_left() ? common_prefix(std::prev(left)->ids(), rest) : 0;
    const int32_t on_right = more_right() ? common_prefix(right->ids(), rest) : 0;
    if (on_left == 0 && on_right == 0) return;
    const ChainChild& child = on_right >= on_left ? *right++ : *--left;
    extend(search, {child.segment, 0, matched});
  }
}

}  // namespace kvilt

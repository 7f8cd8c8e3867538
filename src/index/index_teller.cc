// index/index_teller.cc: see index_teller.h.
#include "index/index_teller.h"

#include <vector>

namespace kvilt {

// Runs of blocks that are fresh, or all of them in one.
void IndexTeller::tell_blocks(const ToldDomain& domain, const BlockChanges& blocks, bool all) const {
  const size_t size = blocks.keys.size();
  for (size_t begin = 0, end = 0; begin < size; begin = end) {
    end = begin + 1;
    if (!all && !blocks.fresh[begin]) continue;
    while (end < size && (all || blocks.fresh[end])) ++end;
    const auto parent = begin == 0 ? blocks.parent : std::optional(blocks.keys[begin - 1]);
    const size_t width = ChainIndex::kBlockTokens;
    listener_->blocks_stored(domain, {parent, std::span(blocks.keys).subspan(begin, end - begin),
                                      std::span(blocks.tokens).subspan(begin * width, (end - begin) * width)});
  }
}

void IndexTeller::inserted(const ToldDomain& domain, SegmentTable& segments, const ChainIndex& chains, uint32_t slot,
                           const BlockChanges& changes) {
  if (!on()) return;
  SegmentRecord& segment = segments[slot];
  if (segment.chain.start >= 0) {
    if (segment.chain.parent != kNoSegment) told_now(domain, segments, chains, segment.chain.parent);
    segment.chain.told = round_;
    tell_blocks(domain, changes, telling_);  // a twin that has a block too may not be told yet
  } else if (is_piece(segment)) {
    listener_->piece_stored(domain, segment.id, segment.info.tokens);
  }
}

void IndexTeller::removed(const ToldDomain& domain, const SegmentRecord& segment, const BlockChanges& changes) {
  if (!on()) return;
  if (is_piece(segment)) listener_->piece_removed(domain, segment.id);
  if (!changes.removed.empty()) listener_->blocks_removed(domain, changes.removed);
}

void IndexTeller::start_round() {
  ++round_;
  telling_ = on();
  next_ = 0;
}

// Those of the segment and its ancestors that were not told in this round, the first of the chain first. Returns how
// many tokens that were.
int64_t IndexTeller::told_now(const ToldDomain& domain, SegmentTable& segments, const ChainIndex& chains,
                              uint32_t slot) {
  if (segments[slot].chain.start < 0) {
    if (!is_piece(segments[slot])) return 0;
    listener_->piece_stored(domain, segments[slot].id, segments[slot].info.tokens);
    return segments[slot].size();
  }
  int64_t tokens = 0;
  std::vector<uint32_t> path;
  for (; slot != kNoSegment && segments[slot].chain.told != round_; slot = segments[slot].chain.parent)
    path.push_back(slot);
  for (; !path.empty(); path.pop_back()) {
    tell_blocks(domain, chains.blocks(segments, path.back()), true);
    segments[path.back()].chain.told = round_;
    tokens += segments[path.back()].size();
  }
  return tokens;
}

}  // namespace kvilt

// index/chain_index.h: the longest exact prefix. Segments whose KV equals a full prefill form a tree; blocks of 16
// tokens at absolute positions are found by chained keys, the rest of a block token by token.
// Idea:       key_i = H(domain, key_{i-1}, the 16 ids of block i), as in the prefix caches of vLLM
//             (docs/design/finding.md#bytes-of-the-keys). A block belongs to the segment in which it ends; it may begin
//             in an ancestor of that segment.
// Invariants: a segment is in the tree only while its whole chain of parents is. Taking a parent out takes its
//             descendants out as well; pieces of them are still found anywhere (segment_index.h). Of several writers of
//             a block the first is tried first.
// Threads:    one owner.
// Cost:       one keyed hash (two BLAKE2b compressions) per 16 tokens that are not known to be there; the tail visits at most kMaxVisits segments.
// Not here:   approximate segments, but for the chains of one policy, whose domain no other request names.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/runs.h"
#include "index/domains.h"
#include "index/posting_table.h"
#include "index/segment_index.h"
#include "index/segment_table.h"

namespace kvilt {

// What a call changed in the set of blocks that some chain has: a block is one however many chains have it.
struct BlockChanges {
  std::optional<uint64_t> parent;  // of the first block that is looked at: the key before it
  std::vector<uint64_t> keys;      // of the segment's blocks, in order
  std::vector<int32_t> tokens;     // of these
  std::vector<bool> fresh;         // whether no chain had the block before
  std::vector<uint64_t> removed;   // keys that no chain has any more
};

class ChainIndex {
 public:
  static constexpr int32_t kBlockTokens = 16;
  static constexpr int kMaxTwins = 8;    // writers of one block that are tried
  static constexpr int kMaxVisits = 64;  // segments that the search for the rest of a block looks into

  // key_mask: all ones; fewer bits only to force collisions in tests.
  ChainIndex(const HashSecret& secret, uint64_t key_mask) : secret_(secret), key_mask_(key_mask) {}

  // Adds the segment `slot` of a known domain. It stays out of the tree when its parent is not in the tree. What changed
  // is added to `changes`, unless that is null; so below.
  void insert(SegmentTable& segments, uint32_t slot, const Digest& domain, BlockChanges* changes = nullptr);
  // Takes the segment, and all that continue it, out of the tree; returns the latter. Does nothing for a segment that is
  // not in it.
  std::vector<SegmentId> erase(SegmentTable& segments, uint32_t slot, BlockChanges* changes = nullptr);
  // Keeps the segment's first `tokens` tokens, in the tree and in the table; what continues a later one leaves the tree
  // and is returned.
  std::vector<SegmentId> truncate(SegmentTable& segments, uint32_t slot, int32_t tokens,
                                  BlockChanges* changes = nullptr);
  // The keys of the blocks that end in tokens [tokens.begin, tokens.end) of the segment, and where each ends: before which
  // of its tokens. None: it is not in the tree.
  std::vector<std::pair<uint64_t, int32_t>> keys(const SegmentTable& segments, uint32_t slot, Run tokens) const;
  // The segment's blocks as insert() gave them; none of them fresh. REQUIRES: it is in the tree.
  BlockChanges blocks(const SegmentTable& segments, uint32_t slot) const;

  // The longest known prefix of `prompt`: contiguous pieces from position 0 on, along one chain of parents. from: where a
  // chain of the prompt's own first tokens was found to end; what is before it is not hashed again, as long as it is
  // there. Every token is compared all the same.
  std::vector<Piece> find(const SegmentTable& segments, std::span<const int32_t> prompt, DomainId domain,
                          const Digest& domain_digest, const ChainEnd& from, SearchCost& cost) const;

  size_t bytes() const { return table_.bytes(); }

 private:
  // prompt[0, matched) equals the chain that ends before token `index` of `segment` (kNoSegment: the empty chain).
  struct Reach {
    uint32_t segment = kNoSegment;
    int32_t index = 0;
    int32_t matched = 0;
  };
  struct TailSearch;

  Digest block_key(const Digest& domain, const Digest* previous, std::span<const int32_t> ids) const;
  uint64_t table_key(const Digest& key) const;
  void take_out(SegmentTable& segments, std::vector<uint32_t> leaving, std::vector<SegmentId>& left,
                BlockChanges* changes);
  void remove_block(const Digest& key, uint32_t node, BlockChanges* changes);
  Reach reach_of(const SegmentTable& segments, const ChainEnd& end, DomainId domain) const;
  std::set<ChainChild>* siblings(SegmentTable& segments, const SegmentRecord& segment);
  bool verified(const SegmentTable& segments, const Reach& reach, std::span<const int32_t> prompt) const;
  void extend(TailSearch& search, Reach from) const;
  void descend(TailSearch& search, const std::set<ChainChild>& children, int32_t attach, int32_t matched) const;

  HashSecret secret_;
  uint64_t key_mask_;
  PostingTable table_;
  std::map<DomainId, std::set<ChainChild>> roots_;  // a tree: it grows without a stall
};

}  // namespace kvilt

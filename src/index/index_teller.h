// index/index_teller.h: tells the index's listener what changes, and, when somebody lost the thread, everything again.
// Idea:       a round is one telling of everything. A segment remembers in which round it was told; a new round goes
//             through the slots a part at a time, so that no step of the engine waits for it, while what changes
//             meanwhile is told as ever.
// Invariants: a segment's ancestors are told before it in every round, so that who keeps a tree finds the parent there.
// Threads:    the index's owner.
// Cost:       without a listener a test of a pointer; else a copy of the tokens of what is told.
#pragma once

#include "index/chain_index.h"
#include "index/index_listener.h"
#include "index/segment_table.h"

namespace kvilt {

class IndexTeller {
 public:
  void listen(IndexListener* listener) { listener_ = listener; }
  bool on() const { return listener_ != nullptr; }
  IndexListener* listener() const { return listener_; }

  // The segment is indexed; `changes` is what ChainIndex::insert said.
  void inserted(const ToldDomain& domain, SegmentTable& segments, const ChainIndex& chains, uint32_t slot,
                const BlockChanges& changes);
  // The segment, still in the table, has lost its end, or all of it.
  void removed(const ToldDomain& domain, const SegmentRecord& segment, const BlockChanges& changes);

  // A new round, of which tell() then tells segments with about so many tokens, those that stand at `slot` and behind
  // it, in the domain that `domain_of` names. False: the round is over.
  void start_round();
  bool telling() const { return telling_; }
  template <class DomainOf>
  bool tell(SegmentTable& segments, const ChainIndex& chains, int64_t tokens, DomainOf&& domain_of) {
    for (; telling_ && tokens > 0; ++next_) {
      if (next_ >= segments.slots()) return telling_ = false;
      SegmentRecord& segment = segments[next_];
      --tokens;
      if (segment.id == 0 || !segment.indexed) continue;
      tokens -= told_now(domain_of(segment), segments, chains, next_);
    }
    return telling_;
  }

 private:
  int64_t told_now(const ToldDomain& domain, SegmentTable& segments, const ChainIndex& chains, uint32_t slot);
  void tell_blocks(const ToldDomain& domain, const BlockChanges& blocks, bool all) const;
  static bool is_piece(const SegmentRecord& segment) {
    return !segment.info.exact && segment.info.found_as != FoundAs::kChain;
  }

  IndexListener* listener_ = nullptr;
  uint32_t round_ = 1;
  bool telling_ = false;
  uint32_t next_ = 0;  // slot
};

}  // namespace kvilt

// index/posting_table.h: 64-bit key -> an ordered list of postings (segment, offset).
// Role:       the one table under windows, chain blocks and marks.
// Idea:       a table that grows step by step (base/step_table.h); each key's value heads a doubly linked list, so a key
//             that a million windows share costs one slot, and is inserted and erased in O(1). A list has its ordinary
//             postings first, then the twins, which need not be looked at while the others are there.
// Threads:    one owner.
// Cost:       16 bytes per posting and 26..64 bytes per distinct key, half as much again while a table moves. No single
//             call moves more than a few slots, however large the table.
// Not here:   what a key means; whether a posting really matches (the caller compares the ids).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/chunked.h"
#include "base/step_table.h"

namespace kvilt {

struct Posting {
  uint32_t segment = 0;  // slot of the SegmentTable, below 2^31
  int32_t offset = 0;
  bool operator==(const Posting&) const = default;
};

class PostingTable {
 public:
  enum class Place { kFront, kBack, kTwin };  // kTwin: after all others. A list uses kBack or kTwin, not both

  // Returns the posting's node, by which remove() finds it. Keys should be spread evenly.
  uint32_t add(uint64_t key, Posting posting, Place place);
  // REQUIRES: `node` was returned by add(key, ...) and not removed since.
  void remove(uint64_t key, uint32_t node);
  // Makes a twin an ordinary posting, the first of its list. REQUIRES: as remove().
  void promote(uint64_t key, uint32_t node);
  Posting posting(uint32_t node) const { return nodes_[node].posting(); }  // REQUIRES: as remove()
  bool is_twin(uint32_t node) const { return nodes_[node].twin(); }

  void prefetch(uint64_t key) const { lists_.prefetch(key); }
  bool contains(uint64_t key) const { return lists_.find(key) != nullptr; }

  // Calls visitor(posting) for the first `limit` postings of key that are no twins, in order, while it returns true.
  template <class Visitor>
  void visit(uint64_t key, int limit, Visitor&& visitor) const {
    const List* const list = lists_.find(key);
    if (!list) return;
    for (uint32_t node = list->head; node != kNil && !is_twin(node) && limit > 0; --limit) {
      if (!visitor(nodes_[node].posting())) return;
      node = nodes_[node].next;
    }
  }
  // The same for twins: visitor(posting, node), the last added first.
  template <class Visitor>
  void visit_twins(uint64_t key, int limit, Visitor&& visitor) const {
    const List* const list = lists_.find(key);
    if (!list) return;
    for (uint32_t node = list->tail; node != kNil && is_twin(node) && limit > 0; --limit) {
      if (!visitor(nodes_[node].posting(), node)) return;
      node = nodes_[node].previous;
    }
  }

  size_t size() const { return postings_; }
  size_t keys() const { return lists_.size(); }
  size_t bytes() const { return lists_.bytes() + nodes_.bytes(); }

 private:
  static constexpr uint32_t kNil = 0;  // no node has this number

  struct List {
    uint32_t head = kNil, tail = kNil;
    bool empty() const { return head == kNil; }
  };
  struct Node {
    uint32_t segment : 31 = 0;
    uint32_t is_twin : 1 = 0;
    int32_t offset = 0;
    uint32_t next = kNil, previous = kNil;  // next also links the free nodes

    Posting posting() const { return {segment, offset}; }
    bool twin() const { return is_twin != 0; }
  };

  uint32_t new_node(Posting posting, bool twin);
  void unlink(List& list, uint32_t node);
  void link_front(List& list, uint32_t node);

  StepTable<List> lists_;
  Chunked<Node> nodes_;
  size_t postings_ = 0;
  uint32_t free_ = kNil;
};

}  // namespace kvilt

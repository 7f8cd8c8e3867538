// index/posting_table.h: 64-bit key -> an ordered list of postings (segment, offset).
// Role:       the one table under windows, chain blocks and marks.
// Idea:       open addressing with linear probing over 16-byte slots; each slot heads a doubly linked list, so a key
//             that a million windows share costs one slot, and is inserted and erased in O(1). Deletion shifts slots
//             back and leaves no tombstones. A list has its ordinary postings first, then the twins, which need not be
//             looked at while the others are there.
// Invariants: the number of slots is a power of two, at most 5/8 of them are taken, and no empty slot is between a key
//             and its home.
// Threads:    one owner.
// Cost:       16 bytes per posting and 26..64 bytes per distinct key.
// Not here:   what a key means; whether a posting really matches (the caller compares the ids).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvilt {

struct Posting {
  uint32_t segment = 0;  // slot of the SegmentTable, below 2^31
  int32_t offset = 0;
  bool operator==(const Posting&) const = default;
};

class PostingTable {
 public:
  enum class Place { kFront, kBack, kTwin };  // kTwin: after all others. A list uses kBack or kTwin, not both

  PostingTable();

  // Returns the posting's node, by which remove() finds it. Keys should be spread evenly.
  uint32_t add(uint64_t key, Posting posting, Place place);
  // REQUIRES: `node` was returned by add(key, ...) and not removed since.
  void remove(uint64_t key, uint32_t node);
  // Makes a twin an ordinary posting, the first of its list. REQUIRES: as remove().
  void promote(uint64_t key, uint32_t node);
  bool is_twin(uint32_t node) const { return nodes_[node].twin(); }

  void prefetch(uint64_t key) const { __builtin_prefetch(&slots_[key & mask_]); }
  bool contains(uint64_t key) const { return find(key) != kNone; }

  // Calls visitor(posting) for the first `limit` postings of key that are no twins, in order, while it returns true.
  template <class Visitor>
  void visit(uint64_t key, int limit, Visitor&& visitor) const {
    const size_t slot = find(key);
    if (slot == kNone) return;
    for (uint32_t node = slots_[slot].head; node != kNil && !is_twin(node) && limit > 0; --limit) {
      if (!visitor(nodes_[node].posting())) return;
      node = nodes_[node].next;
    }
  }
  // The same for twins: visitor(posting, node), the last added first.
  template <class Visitor>
  void visit_twins(uint64_t key, int limit, Visitor&& visitor) const {
    const size_t slot = find(key);
    if (slot == kNone) return;
    for (uint32_t node = slots_[slot].tail; node != kNil && is_twin(node) && limit > 0; --limit) {
      if (!visitor(nodes_[node].posting(), node)) return;
      node = nodes_[node].previous;
    }
  }

  size_t size() const { return postings_; }
  size_t keys() const { return used_; }
  size_t bytes() const { return slots_.capacity() * sizeof(Slot) + nodes_.capacity() * sizeof(Node); }

 private:
  static constexpr uint32_t kNil = UINT32_MAX;
  static constexpr size_t kNone = SIZE_MAX;

  struct Slot {
    uint64_t key = 0;
    uint32_t head = kNil, tail = kNil;  // head kNil: the slot is empty
  };
  struct Node {
    uint32_t segment : 31 = 0;
    uint32_t is_twin : 1 = 0;
    int32_t offset = 0;
    uint32_t next = kNil, previous = kNil;  // next also links the free nodes

    Posting posting() const { return {segment, offset}; }
    bool twin() const { return is_twin != 0; }
  };

  size_t find(uint64_t key) const {
    for (size_t i = key & mask_;; i = (i + 1) & mask_) {
      if (slots_[i].head == kNil) return kNone;
      if (slots_[i].key == key) return i;
    }
  }
  uint32_t new_node(Posting posting, bool twin);
  void unlink(Slot& slot, uint32_t node);
  void link_front(Slot& slot, uint32_t node);
  void vacate(size_t slot);
  void resize(size_t slots);

  std::vector<Slot> slots_;
  std::vector<Node> nodes_;
  size_t mask_ = 0, used_ = 0, postings_ = 0;
  uint32_t free_ = kNil;
};

}  // namespace kvilt

// index/posting_table.cc: see posting_table.h.
#include "index/posting_table.h"

#include "base/check.h"

namespace kvilt {
namespace {
constexpr size_t kSmallestTable = 64;
}

PostingTable::PostingTable() { resize(kSmallestTable); }

uint32_t PostingTable::add(uint64_t key, Posting posting, Place place) {
  size_t slot = key & mask_;
  while (slots_[slot].head != kNil && slots_[slot].key != key) slot = (slot + 1) & mask_;
  if (slots_[slot].head == kNil && (used_ + 1) * 8 > slots_.size() * 5) {
    resize(slots_.size() * 2);
    return add(key, posting, place);
  }
  const uint32_t node = new_node(posting, place == Place::kTwin);
  Slot& s = slots_[slot];
  if (s.head == kNil) {
    s = {key, node, node};
    ++used_;
  } else if (place == Place::kFront) {
    link_front(s, node);
  } else {
    nodes_[node].previous = s.tail;
    nodes_[s.tail].next = node;
    s.tail = node;
  }
  return node;
}

void PostingTable::remove(uint64_t key, uint32_t node) {
  const size_t slot = find(key);
  CHECK(slot != kNone && node < nodes_.size());
  unlink(slots_[slot], node);
  nodes_[node].next = free_;
  free_ = node;
  --postings_;
  if (slots_[slot].head != kNil) return;
  vacate(slot);
  if (postings_ == 0) {  // give back the nodes of a peak
    std::vector<Node>().swap(nodes_);
    free_ = kNil;
  }
  if (--used_ * 8 < slots_.size() && slots_.size() > kSmallestTable) resize(slots_.size() / 2);
}

void PostingTable::promote(uint64_t key, uint32_t node) {
  const size_t slot = find(key);
  CHECK(slot != kNone && node < nodes_.size());
  nodes_[node].is_twin = 0;
  if (slots_[slot].head == node) return;
  unlink(slots_[slot], node);
  link_front(slots_[slot], node);
}

void PostingTable::link_front(Slot& slot, uint32_t node) {
  nodes_[node].previous = kNil;
  nodes_[node].next = slot.head;
  nodes_[slot.head].previous = node;
  slot.head = node;
}

void PostingTable::unlink(Slot& slot, uint32_t node) {
  const Node n = nodes_[node];
  if (n.previous == kNil) {
    CHECK(slot.head == node);
    slot.head = n.next;
  } else {
    nodes_[n.previous].next = n.next;
  }
  if (n.next == kNil) {
    CHECK(slot.tail == node);
    slot.tail = n.previous;
  } else {
    nodes_[n.next].previous = n.previous;
  }
}

uint32_t PostingTable::new_node(Posting posting, bool twin) {
  CHECK(posting.segment < uint32_t{1} << 31);
  ++postings_;
  uint32_t node = free_;
  if (node == kNil) {
    node = static_cast<uint32_t>(nodes_.size());
    CHECK(node != kNil);
    nodes_.emplace_back();
  } else {
    free_ = nodes_[node].next;
  }
  Node& n = nodes_[node];
  n = {};
  n.segment = posting.segment;
  n.is_twin = twin;
  n.offset = posting.offset;
  return node;
}

// Closes the gap: each later slot that the gap would cut off from its home moves into it, and leaves the next gap.
void PostingTable::vacate(size_t gap) {
  for (size_t i = (gap + 1) & mask_; slots_[i].head != kNil; i = (i + 1) & mask_) {
    const size_t home = slots_[i].key & mask_;
    if (((i - home) & mask_) < ((i - gap) & mask_)) continue;  // its home is after the gap
    slots_[gap] = slots_[i];
    gap = i;
  }
  slots_[gap] = {};
}

void PostingTable::resize(size_t size) {
  std::vector<Slot> old(size);
  old.swap(slots_);
  mask_ = size - 1;
  for (const Slot& s : old) {
    if (s.head == kNil) continue;
    size_t i = s.key & mask_;
    while (slots_[i].head != kNil) i = (i + 1) & mask_;
    slots_[i] = s;
  }
}

}  // namespace kvilt

// reuse/posting_table.cc: see posting_table.h.
#include "reuse/posting_table.h"

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
  const uint32_t node = new_node(posting);
  Slot& s = slots_[slot];
  if (s.head == kNil) {
    s = {key, node, node};
    ++used_;
  } else if (place == Place::kFront) {
    nodes_[node].next = s.head;
    nodes_[s.head].previous = node;
    s.head = node;
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
  const Node n = nodes_[node];
  if (n.previous == kNil) {
    CHECK(slots_[slot].head == node);
    slots_[slot].head = n.next;
  } else {
    nodes_[n.previous].next = n.next;
  }
  if (n.next == kNil) {
    CHECK(slots_[slot].tail == node);
    slots_[slot].tail = n.previous;
  } else {
    nodes_[n.next].previous = n.previous;
  }
  nodes_[node] = {{}, free_, kNil};
  free_ = node;
  --postings_;
  if (slots_[slot].head != kNil) return;
  vacate(slot);
  if (postings_ == 0) {  // a peak's nodes go when nothing is left
    std::vector<Node>().swap(nodes_);
    free_ = kNil;
  }
  if (--used_ * 8 < slots_.size() && slots_.size() > kSmallestTable) resize(slots_.size() / 2);
}

uint32_t PostingTable::new_node(Posting posting) {
  ++postings_;
  if (free_ == kNil) {
    CHECK(nodes_.size() < kNil);
    nodes_.push_back({posting, kNil, kNil});
    return static_cast<uint32_t>(nodes_.size() - 1);
  }
  const uint32_t node = free_;
  free_ = nodes_[node].next;
  nodes_[node] = {posting, kNil, kNil};
  return node;
}

// Closes the gap: every later slot of the cluster that the gap would cut off from its home moves into it.
void PostingTable::vacate(size_t gap) {
  for (size_t i = (gap + 1) & mask_; slots_[i].head != kNil; i = (i + 1) & mask_) {
    const size_t home = slots_[i].key & mask_;
    if (((i - home) & mask_) < ((i - gap) & mask_)) continue;  // its home lies behind the gap
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

// index/posting_table.cc: see posting_table.h.
#include "index/posting_table.h"

#include "base/check.h"

namespace kvilt {

uint32_t PostingTable::add(uint64_t key, Posting posting, Place place) {
  List* list = lists_.find(key);
  if (!list) {
    lists_.reserve_one();
    const uint32_t node = new_node(posting, place == Place::kTwin);
    lists_.insert(key, {node, node});
    return node;
  }
  const uint32_t node = new_node(posting, place == Place::kTwin);
  if (place == Place::kFront) {
    link_front(*list, node);
  } else {
    nodes_[node].previous = list->tail;
    nodes_[list->tail].next = node;
    list->tail = node;
  }
  return node;
}

void PostingTable::remove(uint64_t key, uint32_t node) {
  List* const list = lists_.find(key);
  CHECK(list && node != kNil && node < nodes_.size());
  if (list->head == node && list->tail == node) {
    lists_.erase(key);
  } else {
    unlink(*list, node);
  }
  nodes_[node].next = free_;
  free_ = node;
  if (--postings_ > 0) return;
  nodes_.clear();  // give back the nodes of a peak
  free_ = kNil;
}

void PostingTable::promote(uint64_t key, uint32_t node) {
  List* const list = lists_.find(key);
  CHECK(list && node != kNil && node < nodes_.size());
  nodes_[node].is_twin = 0;
  if (list->head == node) return;
  unlink(*list, node);
  link_front(*list, node);
}

void PostingTable::link_front(List& list, uint32_t node) {
  nodes_[node].previous = kNil;
  nodes_[node].next = list.head;
  nodes_[list.head].previous = node;
  list.head = node;
}

// REQUIRES: the list has others.
void PostingTable::unlink(List& list, uint32_t node) {
  const Node n = nodes_[node];
  if (n.previous == kNil) {
    CHECK(list.head == node);
    list.head = n.next;
  } else {
    nodes_[n.previous].next = n.next;
  }
  if (n.next == kNil) {
    CHECK(list.tail == node);
    list.tail = n.previous;
  } else {
    nodes_[n.next].previous = n.previous;
  }
}

uint32_t PostingTable::new_node(Posting posting, bool twin) {
  CHECK(posting.segment < uint32_t{1} << 31);
  uint32_t node = free_;
  if (node == kNil) {
    if (nodes_.empty()) nodes_.emplace_back();  // kNil
    CHECK(nodes_.size() < UINT32_MAX);
    node = static_cast<uint32_t>(nodes_.size());
    nodes_.emplace_back();
  } else {
    free_ = nodes_[node].next;
  }
  ++postings_;
  Node& n = nodes_[node];
  n = {};
  n.segment = posting.segment;
  n.is_twin = twin;
  n.offset = posting.offset;
  return node;
}

}  // namespace kvilt

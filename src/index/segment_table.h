// index/segment_table.h: the cached segments by slot, with what each index must remember to take a segment out again.
// Invariants: a slot is stable while its segment lives; a freed slot is given to a later segment (ids are not).
// Threads:    one owner.
#pragma once

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/chunked.h"
#include "base/keyed_hash.h"
#include "base/step_table.h"
#include "index/cached_segment.h"

namespace kvilt {

inline constexpr uint32_t kNoSegment = UINT32_MAX;

// A segment that continues another. The order is by where it leaves the parent, then by its tokens: the best
// continuation of a prompt is a neighbour of the place that the prompt itself would have.
struct ChainChild {
  static constexpr size_t kHead = 15;  // a partial block is at most 15 tokens
  int32_t attach = 0;                  // tokens of the parent before it
  int32_t size = 0;
  std::array<int32_t, kHead> head{};  // its first `size` tokens
  SegmentId id = 0;
  uint32_t segment = kNoSegment;  // slot

  std::span<const int32_t> ids() const { return {head.data(), static_cast<size_t>(size)}; }
  bool operator<(const ChainChild& other) const;
};

// The place of an exact segment in the tree of prefixes (chain_index.h).
struct ChainLink {
  int32_t start = -1;  // position of its first token; -1: not in the tree
  uint32_t parent = kNoSegment;
  std::vector<Digest> keys;     // of the blocks that end in this segment, in order
  std::vector<uint32_t> nodes;  // their postings
  std::set<ChainChild> children;
  uint32_t told = 0;  // in which round of IndexTeller its blocks were told last (index/index_teller.h)
};

struct MarkEntry {
  int32_t begin = 0, end = 0;
  uint64_t key = 0;
  uint32_t node = 0;
};

// What near_index.h keeps of a segment.
struct NearLink {
  bool there = false;
  std::vector<uint32_t> nodes;  // its postings, in order
};

struct SegmentRecord {
  SegmentId id = 0;
  SegmentInfo info;
  bool indexed = false;  // false: its domain was forgotten before it was inserted
  std::vector<uint32_t> window_nodes;
  std::vector<MarkEntry> marks;  // by begin, then end
  ChainLink chain;
  NearLink near;

  int32_t size() const { return static_cast<int32_t>(info.tokens.size()); }
};

// What a search reads of a segment, in half a cache line.
struct SegmentText {
  const int32_t* ids = nullptr;
  int32_t size = 0;
  bool exact = false;
  DomainId domain = 0;
  SegmentId id = 0;

  std::span<const int32_t> from(int32_t offset) const { return {ids + offset, static_cast<size_t>(size - offset)}; }
  std::span<const int32_t> before(int32_t offset) const { return {ids, static_cast<size_t>(offset)}; }
};

class SegmentTable {
 public:
  uint32_t add(SegmentId id, SegmentInfo info) {
    CHECK(id != 0 && find(id) == kNoSegment);
    by_id_.reserve_one();
    if (free_.empty()) {
      free_.reserve(1);
      texts_.emplace_back();  // one too many where memory ends now
      records_.emplace_back();
      free_.push_back(static_cast<uint32_t>(records_.size() - 1));
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    by_id_.insert(mixed(id), {slot + 1});
    records_[slot].id = id;
    const SegmentInfo& kept = records_[slot].info = std::move(info);
    texts_[slot] = {kept.tokens.data(), records_[slot].size(), kept.exact, kept.domain, id};
    return slot;
  }
  void truncate(uint32_t slot, int32_t tokens) {  // keeps the first tokens
    records_[slot].info.tokens.resize(tokens);
    texts_[slot].size = tokens;
  }
  void remove(uint32_t slot) {
    by_id_.erase(mixed(records_[slot].id));
    records_[slot] = {};
    texts_[slot] = {};
    free_.push_back(slot);
  }
  uint32_t find(SegmentId id) const {
    const Place* const place = by_id_.find(mixed(id));
    return place ? place->slot_and_one - 1 : kNoSegment;
  }
  // Calls visitor(slot) for every segment, by id.
  template <class Visitor>
  void each_by_id(Visitor&& visitor) const {
    std::vector<std::pair<SegmentId, uint32_t>> all;
    for (uint32_t slot = 0; slot < slots(); ++slot) {
      if (records_[slot].id != 0) all.emplace_back(records_[slot].id, slot);
    }
    std::sort(all.begin(), all.end());
    for (const auto& [id, slot] : all) visitor(slot);
  }
  SegmentRecord& operator[](uint32_t slot) { return records_[slot]; }
  const SegmentRecord& operator[](uint32_t slot) const { return records_[slot]; }
  const SegmentText& text(uint32_t slot) const { return texts_[slot]; }
  bool has(uint32_t slot) const { return slot < texts_.size() && texts_[slot].id != 0; }

  size_t size() const { return by_id_.size(); }
  uint32_t slots() const { return static_cast<uint32_t>(records_.size()); }  // free ones included: their id is 0
  size_t bytes() const;

 private:
  struct Place {
    uint32_t slot_and_one = 0;
    bool empty() const { return slot_and_one == 0; }
  };
  static uint64_t mixed(SegmentId id) { return StepTable<Place>::mixed(id); }

  Chunked<SegmentRecord, 8> records_;
  Chunked<SegmentText> texts_;
  std::vector<uint32_t> free_;
  StepTable<Place> by_id_;
};

// The number of leading (trailing) ids that a and b share.
int32_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b);
int32_t common_suffix(std::span<const int32_t> a, std::span<const int32_t> b);

}  // namespace kvilt

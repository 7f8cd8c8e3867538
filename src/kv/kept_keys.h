// kv/kept_keys.h: where the keys of a request are that has let go of the others: each (layer, KV head) has its own, packed
// into the first pages of its list.
// Role:       PageTable has one after compact(), and asks it instead of its slots and placements.
// Idea:       scattered survivors free no page, so they move together: gathered into a buffer, then written from the
//             list's first slot on. The buffer makes it safe that they come from the same pages, in any order, and where
//             the request computed all of them no page is taken. What was placed is copied as it lies, and keeps its
//             rotation: a row reads the same numbers as before, to the bit.
//             Slots that die later are left until a page's worth of them is dead; then the head's rows move again.
// Invariants: runs are sorted by position and disjoint; slots of one head are its own; nobody else reads these pages.
// Threads:    the engine thread; resolve() any, while it waits (PageTable::prepare_reads).
// Cost:       16 bytes and a pointer a run. A move copies the head's rows twice.
// Not here:   which keys survive (forward/selected_keys.h), who pays for pages (sched/scheduler.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/runs.h"
#include "kernels/backend.h"
#include "kv/page_store.h"

namespace kvilt {

class KeptKeys {
 public:
  // In the pages of this list, which outlives it, and so must what the spans' rotations point to.
  explicit KeptKeys(PageList& pages);

  // The rows of `spans`, which may lie in pages of the list, are all that the head has from now on. It takes pages for
  // them only beyond those that the head holds.
  void put(int layer, int head, std::span<const KvSpan> spans);
  // One position at all layers and heads: a decode step.
  int64_t pages_for_next() const;
  void add_next(int32_t pos);

  int32_t slots(int layer, int head) const { return of(layer, head).slots; }  // dead ones included
  int32_t slot_of(int layer, int head, int32_t pos) const;                    // -1: it is gone
  // Appends the keys at these positions, cut at page borders. REQUIRES: none of them is gone.
  void resolve(int layer, int head, Run positions, std::vector<KvSpan>& spans) const;

 private:
  struct KeptRun {
    int32_t pos = 0, count = 0, slot = 0;
    const float* rotation = nullptr;
  };
  struct Head {
    std::vector<KeptRun> runs;
    int32_t slots = 0;  // handed out
  };
  const Head& of(int layer, int head) const { return heads_[layer * pages_.store().shape().G + head]; }
  static void append(Head& to, int32_t pos, int32_t count, const float* rotation);
  void write(int layer, int head, const std::vector<std::byte>& k, const std::vector<std::byte>& v);

  PageList& pages_;
  std::vector<Head> heads_;  // layer * G + head
};

}  // namespace kvilt

// forward/pooled_keys.h: what stands for keys that rows skip: the mean of some neighbours' keys and of their values, as
// one key that counts as often as these are.
// Idea:       to skip a key is to say that its weight is 0. The mean of n keys, n times, says that it is as its
//             neighbours' (FlashPrefill V2, arXiv:2608.19758; the twin in sparse attention of mend's carry). All of one
//             count n are attended to by themselves, and joined with the rows' other attention by the normalisers:
//             log n is one number then, and kernels need no bias. docs/math/pooled_keys.md.
// Invariants: a mean is of keys that none of the columns is; blocks of one position are those keys themselves.
// Threads:    the engine thread constructs; build() runs on any one thread.
// Cost:       building reads all keys once; a row then sees one key for `pool` skipped ones.
// Not here:   which keys are skipped (plan/lines.h).
#pragma once

#include <span>
#include <vector>

#include "base/runs.h"
#include "kernels/backend.h"
#include "kv/page_table.h"

namespace kvilt {

class PooledKeys {
 public:
  struct Of {
    int layer = 0, head = 0;
    int32_t pool = 1, end = 0;
  };
  // Means over [n pool, (n + 1) pool) of the positions before `end`. Finds where they lie.
  PooledKeys(const PageTable& kv, const Of& of);
  // Without `columns`.
  void build(const Runs& columns);

  // Those blocks before `end` none of whose pooled keys is among `seen`, as spans; a block of which some are is
  // left out. keys: how many; pooled: of how many positions they are the means.
  struct Part {
    std::vector<KvSpan> spans;
    int32_t keys = 0;
    int64_t pooled = 0;
  };
  Part skipped(const Runs& seen, int32_t end) const;

 private:
  void add(const KvSpan& span, const Runs& columns, std::vector<float>& sums);

  const PageTable& kv_;
  const Of of_;
  std::vector<KvSpan> spans_;
  std::vector<int32_t> count_;   // by block: positions in its mean
  std::vector<std::byte> rows_;  // keys of all blocks, then values, as the pool stores them
};

}  // namespace kvilt

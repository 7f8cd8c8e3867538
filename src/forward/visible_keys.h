// forward/visible_keys.h: attention of rows that do not see some of the keys before them, the same ones in every row: a
// stage's unseen positions, or what rows of one sight leave out (plan/plan.h).
// Idea:       what is left is a shorter prompt, read by rank (ranked_keys.h): blocks of keys are full whichever pieces
//             they come from, pages of unseen keys are not touched, and nothing unseen is the dense pass to the bit.
//             Where the model's own window narrows a layer, ranks would move it: there the keys keep their positions,
//             and the unseen ones are missing.
// Invariants: what a row sees depends on its position alone: neither on the chunk nor on the batch.
// Threads:    the engine thread.
// Cost:       finding the spans, once for every KV head, layer and chunk; a step of the answer finds them anew.
// Not here:   which keys are unseen (policy/).
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "forward/looking_rows.h"
#include "forward/ranked_keys.h"

namespace kvilt {

class VisibleKeys {
 public:
  explicit VisibleKeys(const PreparedModel& model) : model_(model), config_(model.config()) {}

  struct Cost {
    double flops = 0, keys = 0;  // keys that are read, each of one head
  };
  // Appends a task for each KV head; what they point to lives until clear(). Returns the positions that rows see, by
  // rank; null where keys keep their positions.
  const Runs* add_tasks(const Runs& unseen, const PageTable& kv, const RowsAt& rows, std::vector<AttendTask>& tasks,
                        Cost& cost);
  void clear() { used_ = 0; }
  void release() {
    seen_.clear();
    used_ = 0;
  }

 private:
  struct Seen {  // by the rows of one chunk
    Runs positions;
    std::vector<RankedKeys> heads;
    std::vector<std::vector<KvSpan>> spans;  // by head, of a layer with a window
    std::vector<int32_t> ranks;
  };
  Cost add_ranked(Seen& seen, const PageTable& kv, const RowsAt& rows, std::vector<AttendTask>& tasks);
  Cost add_windowed(Seen& seen, const PageTable& kv, const RowsAt& rows, int reach, std::vector<AttendTask>& tasks);
  AttendTask task_of(const RowsAt& rows, int head) const;

  const PreparedModel& model_;
  const ModelConfig& config_;
  std::deque<Seen> seen_;  // their memory is kept
  size_t used_ = 0;
};

}  // namespace kvilt

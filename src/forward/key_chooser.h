// forward/key_chooser.h: who chooses the keys that the rows of an answer see: an interface, with a file for each kind
// of looking that a decode rule (plan/decode_rule.h) may ask for.
// Role:       SelectedKeys asks one before a row attends, and tells it of rows that have attended.
// Invariants: what is chosen depends on the sequence alone: neither on its chunks nor on the batch.
// Threads:    the engine thread; kernels run on the pool.
// Not here:   the choice of given scores (plan/), reading what was chosen (selected_keys.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "forward/prepared_model.h"
#include "forward/ranked_keys.h"
#include "kv/page_table.h"
#include "plan/decode_rule.h"

namespace kvilt {

// A row of the answer at one layer.
struct LayerRow {
  int layer = 0;
  int32_t pos = 0;
};

struct ChoiceCost {
  double flops = 0, bytes = 0;
};

// Where the keys of one sequence are, and what it takes to look at them.
struct KeySource {
  const PreparedModel& model;
  const PageTable& kv;
  ThreadPool& pool;
};

// Rows of one sequence that have attended at a layer. Of the answer it is one. To be read only; pointers are as kernels
// take them.
struct AttendedQueries {
  int layer = 0;
  std::span<const int32_t> pos;
  Mat<const float> q;              // rows x (H E), rotated
  float* lse = nullptr;            // of row r and head h of KV head g's group at (g * rows + r) * group + h
  std::span<const KeyMask> masks;  // by KV head
  std::span<const RankedKeys* const>
      seen;  // by KV head, what the row of an answer saw; null, or none: what the mask shows
};

class KeyChooser {
 public:
  virtual ~KeyChooser() = default;

  // The row at `at` is about to attend with the queries q (H x E, rotated). For each of the KV heads, which see all: the
  // set of positions before the row that it sees, and the rows after it until the next choice.
  virtual std::vector<Runs> choose(const KeySource& from, LayerRow at, const float* q, std::span<const int> heads,
                                   ChoiceCost& cost) = 0;
  // Whether attended() is to be told of rows at `pos`.
  virtual bool wants(int32_t pos) const { return false; }
  virtual ChoiceCost attended(const KeySource& from, const AttendedQueries& rows) { return {}; }
};

// Whether heads choose alike together and by themselves: they share no budget, and no random numbers.
bool choose_alone(const DecodeRule& rule);
// choose_keys(), the heads side by side where they choose alone: 16,000 scores take 60 us.
std::vector<Runs> choose_side_by_side(ThreadPool& pool, const DecodeRule& rule, LayerRow at, int num_layers,
                                      std::span<const std::vector<double>> scores);

// About what a chooser keeps among so many keys, beside the KV; it counts as memory of its request.
int64_t chooser_bytes(const DecodeRule& rule, const ModelConfig& config, int32_t keys);

// prompt_len: of the request; its answer's rows are numbered from there. prefill_len: that and what of the answer is
// computed again.
std::unique_ptr<KeyChooser> make_key_chooser(const DecodeRule& rule, const ModelConfig& config, int32_t prompt_len,
                                             int32_t prefill_len);

}  // namespace kvilt

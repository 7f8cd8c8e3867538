// kernels/backend.h: HOW things are computed. Start here to read the kernels.
// Role:       one coarse virtual interface; a backend per instruction set, chosen at run time (dispatch.h). Kernels see
//             views, spans and masks; they know no policy, no page and no request.
// Invariants: row-invariant: a row's result depends neither on its neighbours, nor on chunk, batch or thread count.
//             Matmul sums over K in an order that only the weight decides (docs/design/linear.md#the-arithmetic);
//             attention merges blocks of kKeyBlock *logical positions*, so that it does not depend on how the keys are
//             cut into spans either (docs/math/attention_merge.md#the-order-is-fixed).
// Threads:    called by the engine thread only; each call runs on the pool and returns when done.
// Letters:    T rows, D model, H query heads, G KV heads, E head size, F FFN width, V vocabulary (docs/notation.md).
// Not here:   which rows, which keys (plan/), where pages are (kv/).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/head_window.h"
#include "base/thread_pool.h"
#include "tensor/dtype.h"
#include "tensor/rope.h"
#include "tensor/view.h"

namespace kvilt {

// ---- Linear layers ------------------------------------------------------------------------------------------------

// A weight made ready for one backend: still quantised, perhaps re-ordered. N = w.rows outputs, K = w.cols inputs.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  int64_t N = 0, K = 0;
  DType dtype = DType::kF32;  // as packed: not the source's if activations made it wider
  size_t bytes = 0;           // read once by a matmul with few rows: the bandwidth bound of decode
  // All that adopt() needs to make it again; empty: it cannot be made from bytes (if it points into the source).
  std::span<const std::byte> image;
};

// Names how pack() lays weights out: images may be kept and given to adopt() by a later process that has the same
// layout. The version counts every change of the bytes that pack() makes.
struct PackLayout {
  std::string_view name;  // empty: images are not to be kept
  uint32_t version = 0;
};

// What rows of activations are rounded to when they are multiplied with a weight.
//   kAuto   int8, with a scale for 64 inputs, if the weight is quantised; bf16 if it is BF16 and this machine multiplies
//           pairs of bf16 faster (measured), else fp32; fp32 if it is F16 or F32.
//   kBF16   bf16 if the weight is BF16 or quantised; the latter is widened to BF16 when it is packed. Where the machine
//           does not multiply bf16 faster: fp32 rows, the same weights.
//   kF32    not at all; quantised weights are widened to F32 when they are packed.
// Backends without packed weights (reference) round nothing, whatever is asked.
enum class Activations { kAuto, kBF16, kF32 };

// What pack() takes: a tensor as stored in the file (see model/weights.h Tensor).
struct WeightView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0;
  Activations activations = Activations::kAuto;
};

// y = x . W^T (+ bias) or, with accumulate, y += x . W^T (+ bias). y has N columns and x's rows.
struct MatmulJob {
  const PackedWeight* w = nullptr;
  const float* bias = nullptr;  // N, or null
  Mat<float> y;
  bool accumulate = false;
};

// kGeluTanh: gelu's tanh form, x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
// kClampedSwiglu: gpt-oss; g = min(gate, 7), u = up within [-7, 7]; then g / (1 + e^(-1.702 g)) (u + 1).
enum class Activation : uint8_t { kSilu, kGeluTanh, kClampedSwiglu };
inline constexpr float kSwigluLimit = 7, kSwigluSlope = 1.702f;
// down.y (+)= (act(x . gate^T) * (x . up^T)) . down^T. gate.y and up.y are not used; down.y may be x.
struct FfnJob {
  MatmulJob gate, up, down;
  Activation activation = Activation::kSilu;
};

// ---- Attention ----------------------------------------------------------------------------------------------------

inline constexpr int kKeyBlock = 64;  // logical positions merged at once; block b holds positions [64 b, 64 b + 64)

// `count` keys and values of one (layer, KV head), contiguous in memory, at logical positions pos, pos+1, ...
// k and v: count rows of the KV type (tensor/kv_row.h). Spans of a task are sorted by pos and disjoint: a visible
// position is in one of them at most (kv/ cuts stale twins out); positions may be missing.
struct KvSpan {
  const void* k = nullptr;
  const void* v = nullptr;
  // cos[R/2] then sin[R/2] of shift * inv_freq, where shift = pos here - pos when k was rotated; the kernel rotates the
  // query back by it (docs/math/rope_shift.md). Null: shift 0. Spans with the same shift share the pointer.
  const float* rotation = nullptr;
  int32_t pos = 0, count = 0;
};

// Which of the spans' keys the query at position i sees: those at positions j <= i, and (window < 0, or
// i - j <= window, or j < sink), as plan/ View says.
struct KeyMask {
  int32_t sink = 0, window = -1;
  int32_t dense_from = INT32_MAX;  // rows at positions >= dense_from see all j <= i
  int32_t reach = -1;  // a sliding-window layer of the model: i - j <= reach for every row and key; < 0: no such limit
  static KeyMask of(const HeadWindow& seen) { return {.sink = seen.sink, .window = seen.window}; }
};

// The queries of one sequence for one KV head: the H/G query heads of its group.
struct AttendTask {
  const float* q = nullptr;  // row r, head h of the group: q + r * q_stride + h * E; RoPE applied
  float* out = nullptr;      // same layout with out_stride
  int64_t q_stride = 0, out_stride = 0;
  std::span<const int32_t> pos;  // logical position of each row, increasing; its size is the number of rows
  std::span<const KvSpan> spans;
  KeyMask mask;
  // Optional: log-sum-exp of the scaled scores, row r head h at lse[r * group + h].
  float* lse = nullptr;
  // Optional: a sink for each head of the group, a score without a value: it takes part in the normaliser and in lse
  // (docs/math/attention_merge.md#a-sink). -inf is no sink, to the bit.
  const float* sinks = nullptr;
};

struct AttendShape {
  int group = 1;  // H / G
  int E = 0;
  float scale = 0;  // 1 / sqrt(E) as a rule
  DType kv = DType::kF32;
  RopePairs pairs = RopePairs::kHalves;
  int rotary_dim = 0;
};

// Column sums of attention: how much the rows of a task look at each position (docs/math/column_sums.md: memory O(T)).
struct ColumnSumTask {
  const AttendTask* attend = nullptr;  // q, pos, spans, mask; lse must be filled (by attend())
  // sums[j] += sum over rows r and heads h of the group of exp(score(r,h,j) - lse(r,h)) [* |v_j| if value_norm]. A
  // weight counts 2 at most: it is above 1 where the lse is of fewer keys than these.
  // Indexed by absolute position; positions that are in no span keep their sums. Null: not wanted.
  double* sums = nullptr;
  bool value_norm = false;
  // Optional: each row's own, without norms: rows[r * row_stride + j] = sum over the heads; as it was where r sees no key.
  float* rows = nullptr;
  int64_t row_stride = 0;
};

// ---- The interface --------------------------------------------------------------------------------------------------

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // Backends of one word here give the same bits.
  virtual std::string_view bits() const { return name(); }

  // May copy and re-order; the source must outlive the result (a backend may also just point at it).
  virtual std::unique_ptr<PackedWeight> pack(const WeightView& w, ThreadPool& pool) const = 0;

  virtual PackLayout layout() const { return {}; }
  // A weight around an image that pack() made under this layout from a weight of w's dtype and shape (w.data is not
  // read). image: at a multiple of 64; owner keeps it alive. Null if no such weight has an image of this size.
  virtual std::unique_ptr<PackedWeight> adopt(const WeightView& w, std::span<const std::byte> image,
                                              std::shared_ptr<const void> owner) const {
    return nullptr;
  }

  // All jobs share x (T x K): q, k and v; gate and up. Activations are quantised once for all of them.
  virtual void matmul(Mat<const float> x, std::span<const MatmulJob> jobs, ThreadPool& pool) const = 0;

  // The same bits as matmul(), act_mul(), matmul(). With many rows the F values between them stay in caches.
  virtual void ffn(Mat<const float> x, const FfnJob& job, ThreadPool& pool) const = 0;

  // y = x / sqrt(mean(x^2) + eps) * weight, per row. y may be x.
  virtual void rms_norm(Mat<const float> x, const float* weight, float eps, Mat<float> y, ThreadPool& pool) const = 0;

  // RMSNorm of every head (E elements) of each row: x is T x (heads * E), weight E. In place.
  virtual void head_norm(Mat<float> x, int E, const float* weight, float eps, ThreadPool& pool) const = 0;

  // Rotates the heads (E elements each) of row r by position pos[r]: RopeConfig says which pairs and angles. In place.
  virtual void rope(Mat<float> x, int E, std::span<const int32_t> pos, const RopeConfig& rope,
                    ThreadPool& pool) const = 0;

  // y = w . x on the caller, plain fp32, summed over w's columns in order: few rows mixed into others (forward/carry.h).
  virtual void mix(Mat<const float> w, Mat<const float> x, Mat<float> y) const = 0;

  // gate = act(gate) * up, or what Activation says: the step between an ffn's matmuls.
  virtual void act_mul(Activation act, Mat<float> gate, Mat<const float> up, ThreadPool& pool) const = 0;

  virtual void attend(const AttendShape& shape, std::span<const AttendTask> tasks, ThreadPool& pool) const = 0;
  virtual void column_sums(const AttendShape& shape, std::span<const ColumnSumTask> tasks, ThreadPool& pool) const = 0;

  // Rows are rounded to bf16 and multiplied in pairs with BF16 weights, unless Activations::kF32 is asked for.
  virtual bool bf16_matmul_pays() const { return false; }

  // Attention over bf16 rows of E elements runs faster than over fp32 rows for more than the bytes saved: this machine
  // multiplies bf16 pairs faster (measured, not read from flags). What `--kv-type auto` asks.
  virtual bool bf16_attention_pays(int E) const { return false; }

  // dst = src rotated by `rotation` (cos, sin as in KvSpan), for the copying placement; both are count rows of `kv`.
  virtual void realign(const AttendShape& shape, const void* src, const float* rotation, int64_t count,
                       void* dst) const = 0;
};

// Whether queries and softmax weights are rounded to bf16 over rows of E elements of this type: both types are exact in it.
inline bool attends_in_bf16(const Backend& backend, DType kv, int E) {
  return (kv == DType::kBF16 || kv == DType::kI8) && backend.bf16_attention_pays(E);
}

}  // namespace kvilt

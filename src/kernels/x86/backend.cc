// kernels/x86/backend.cc: plans linear layers for the per-ISA kernels: activations packed once, parts for the pool,
// scratch.
// Role:       the x86 Backends; compiled without -m flags. Kernels do the arithmetic (matmul*.cc, rows.cc).
// Invariants: how work is cut never enters a result (kernels.h), so parts may be as large as the machine likes.
// Cost:       no allocation once the scratch has grown to the largest call; scratch is kept per calling thread.
#include "kernels/x86/backend.h"

#include <cpuid.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "kernels/x86/attend.h"
#include "kernels/x86/attend_bf16.h"
#include "kernels/x86/kernels.h"
#include "kernels/x86/mix.h"
#include "kernels/x86/pack.h"

namespace kvilt::x86 {
namespace {

// How a row is written for a kernel: kernels.h, packed activations.
enum class RowFormat { kQuantised, kFloats, kPairs, kTiles };
constexpr int kRowFormats = 4;

bool is_quantised(const PackedWeight& weight) { return !is_float(static_cast<const BlockedWeight&>(weight).dtype); }
// tiled: of a call that is (RowBlocks).
RowFormat format_for(const PackedWeight& weight, bool tiled) {
  if (is_quantised(weight)) return tiled ? RowFormat::kTiles : RowFormat::kQuantised;
  return static_cast<const BlockedWeight&>(weight).pairs ? RowFormat::kPairs : RowFormat::kFloats;
}
int64_t row_bytes_of(RowFormat format, int64_t K) {
  if (format == RowFormat::kQuantised) return K / kGroup * kRecordBytes;
  if (format == RowFormat::kTiles) return K / kGroup * kTileRecordBytes;
  return format == RowFormat::kFloats ? K * 4 : pair_row_bytes(K);
}

// What a backend does besides linear layers.
struct AttentionOps {
  AttendIsa isa;
  decltype(&avx2::mix) mix;
  bool (*bf16_pays)(int E);
};

const TileKernels& avx2_tiles(const TileShape&) { return avx2::kAttendTiles; }
bool never(int) { return false; }
constexpr AttentionOps kAvx2Attention = {{avx2::kAttendTiles, avx2_tiles}, avx2::mix, never};
constexpr AttentionOps kAvx512Attention = {{avx512::kAttendTiles, avx512_tiles}, avx512::mix, bf16_serves};
constexpr AttentionOps kAmxAttention = {{avx512::kAttendTiles, amx_tiles}, avx512::mix, bf16_tiles_serve};

// MatmulPart::ahead. Intel's look-ahead stops at each page: told 1.5 to 16 KB ahead, one row read its weights at .80 of
// Emerald Rapids' read rate instead of .66 (two cores). At 4 KB Zen 5 went from .74 to .83, at 8 KB Zen 1 from .47 to
// .61. Zen 4 foresees the line by itself, and lost an eighth. A core drops some of what it is asked for, and follows
// lines best that come in order: asked once more 1 to 2 KB ahead, into L1, a Xeon with AMX read at 29.4 to 30.6 GB/s
// instead of 27.4. Not measured on Zen, nor on an Intel without AVX-512.
LookAhead find_look_ahead() {
  if (__builtin_cpu_is("intel")) return {4096, 1536};
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__builtin_cpu_is("amd") || __get_cpuid(1, &a, &b, &c, &d) == 0) return {};
  const unsigned family = (a >> 8 & 15) + (a >> 20 & 255), model = (a >> 4 & 15) + (a >> 12 & 240);
  constexpr unsigned kZen1 = 23, kZen2Models = 48, kZen5 = 26;  // Zen 2 has Zen 1's family, and was not measured
  if (family == kZen1 && model < kZen2Models) return {8192};
  return {family == kZen5 ? 4096 : 0};
}
LookAhead look_ahead() {
  static const LookAhead ahead = find_look_ahead();
  return ahead;
}

constexpr int64_t kLeastTiled = 48;  // rows from which on a call takes tiles, where there are any

// At least 8 MB: that much is mapped and gets huge pages as it is touched; small pages cost the kernels a twentieth.
std::byte* grown(Buffer& buffer, int64_t bytes) {
  constexpr size_t kLeast = size_t{8} << 20;
  if (static_cast<size_t>(bytes) > buffer.bytes()) {
    buffer = Buffer(std::max(kLeast, static_cast<size_t>(bytes) * 5 / 4));
  }
  return buffer.as<std::byte>();
}

// One job's slices of columns. Parts are computed from an index, not listed: a list's cache lines would travel from the
// caller's core to the others.
struct JobParts {
  MatmulPart whole;
  void (*kernel)(const MatmulPart&);
  int64_t columns, count;  // of a slice; slices

  const std::byte* weights(int64_t slice) const { return whole.w + slice * (columns / kBlockRows) * whole.block_bytes; }
};

// A call's parts: for each cut of the rows, all slices of all jobs.
struct Parts {
  std::span<const JobParts> jobs;
  int64_t cuts, slices;

  int64_t count() const { return cuts * slices; }
  const JobParts* job_of(int64_t* slice) const {
    for (const JobParts& job : jobs) {
      if (*slice < job.count) return &job;
      *slice -= job.count;
    }
    return nullptr;
  }
  const std::byte* weights(int64_t index) const {
    if (index >= count()) return nullptr;
    int64_t slice = index % slices;
    const JobParts* job = job_of(&slice);
    return job->weights(slice);
  }
  void run(int64_t index) const {
    int64_t slice = index % slices;
    const int64_t cut = index / slices;
    const JobParts* job = job_of(&slice);
    MatmulPart part = job->whole;
    part.block_begin = part.blocks * cut / cuts;
    part.block_end = part.blocks * (cut + 1) / cuts;
    part.n_begin = slice * job->columns;
    part.n_end = std::min(part.N, part.n_begin + job->columns);
    part.next = weights(index + 1);
    job->kernel(part);
  }
};

// A call's rows in blocks, as even as can be: block b starts at row begin(b). Packed it starts where room(b) rows are.
struct RowBlocks {
  int64_t rows, count;
  bool tiled;  // for TiledKernels: a block has room for all rows that it could have
  RowBlocks(int64_t rows, int64_t most, bool tiled) : rows(rows), count((rows + most - 1) / most), tiled(tiled) {}
  int64_t begin(int64_t b) const { return b * (rows / count) + std::min(b, rows % count); }
  int64_t size(int64_t b) const { return begin(b + 1) - begin(b); }
  int64_t room(int64_t b) const { return tiled ? b * kTileRows : begin(b); }
};

// The parts of an ffn's first half: gate and up of some columns and one cut of the rows, then their product, packed for
// `down`: all of it in L2. Written out as floats, gate and up of 512 rows are 20 MB at F = 4864.
struct GatedParts {
  static constexpr int64_t kColumns = 2 * kTogether * kBlockRows;  // 64 of them: 1 % slower
  static_assert(kColumns % (kShared * kGroup) == 0);               // a slice of the product is packed by itself
  JobParts jobs[2];
  int64_t x_row_bytes[2];
  RowBlocks blocks;
  int64_t F, cuts;
  RowFormat format;
  std::byte* out;
  void (*gate_row)(float* gate, const float* up, int64_t count) = nullptr;
  void (*pack)(const RowsIn& in, std::byte* out) = nullptr;

  int64_t slices() const { return (F + kColumns - 1) / kColumns; }
  const std::byte* weights(int i, int64_t n) const {
    return n < F ? jobs[i].whole.w + n / kBlockRows * jobs[i].whole.block_bytes : nullptr;
  }
  void run(int64_t index) const {
    const int64_t n = index % slices() * kColumns, columns = std::min(kColumns, F - n), cut = index / slices();
    const int64_t begin = blocks.count * cut / cuts, end = blocks.count * (cut + 1) / cuts;
    const int64_t row = blocks.begin(begin), rows = blocks.begin(end) - row, room = blocks.room(begin);
    thread_local Buffer memory;
    auto* gate = reinterpret_cast<float*>(grown(memory, 2 * rows * kColumns * 4));
    for (int i = 0; i < 2; ++i) {
      MatmulPart part = jobs[i].whole;  // a matmul of its own, of these rows and columns
      part.w = weights(i, n);
      part.N = part.n_end = columns;
      if (part.bias != nullptr) part.bias += n;
      part.x += room * x_row_bytes[i];
      part.rows = rows;
      part.blocks = part.block_end = end - begin;
      part.y = gate + i * rows * columns;
      part.y_stride = columns;
      part.next = i == 0 ? weights(1, n) : weights(0, n + columns);
      jobs[i].kernel(part);
    }
    gate_row(gate, gate + rows * columns, rows * columns);
    for (int64_t b = begin; b < end; ++b) {
      const int64_t before = blocks.room(b), m = blocks.room(b + 1) - before;
      pack({gate + (blocks.begin(b) - row) * columns, columns, blocks.size(b), columns},
           out + before * row_bytes_of(format, F) + m * row_bytes_of(format, n));
    }
  }
};

// What a call's rows were packed to, by RowFormat; null: not wanted.
struct PackedRows {
  RowBlocks blocks;
  const std::byte* data[kRowFormats] = {};
  int64_t row_bytes = 0;  // the most
};

// One thread's working memory; it only grows.
struct Scratch {
  Buffer rows[kRowFormats];
  Buffer gate, up;  // of a small ffn
  Buffer product;   // packed, of a large one
  std::vector<JobParts> jobs;
  const std::byte* previous = nullptr;  // weights of the call before
  // Weights -> those of the next call, by worker.
  std::unordered_map<const std::byte*, std::vector<const std::byte*>> followers;

  void read_ahead(const Parts& parts, ThreadPool& pool);
};
Scratch& scratch() {
  thread_local Scratch instance;
  return instance;
}

class X86Backend final : public Backend {
 public:
  // pairs: null where the machine does not multiply bf16 pairs, or not faster. tiled: null where it has no tiles.
  X86Backend(std::string_view name, const Kernels& kernels, const AttentionOps& attention,
             const PairKernels* pairs = nullptr, const TiledKernels* tiled = nullptr)
      : name_(name), kernels_(kernels), attention_(attention), pairs_(pairs), tiled_(tiled) {}

  std::string_view name() const override { return name_; }
  // Tiles of int8 change no bit; bf16 pairs do, of BF16 weights and of keys and values, and tiles of them again.
  std::string_view bits() const override {
    if (pairs_ == nullptr) return tiled_ ? "avx512" : name_;
    return tiled_ ? "amx, pairs" : "avx512, pairs";
  }

  std::unique_ptr<PackedWeight> pack(const WeightView& w, ThreadPool& pool) const override {
    return x86::pack(w, pairs_ != nullptr, memory_, pool);
  }
  PackLayout layout() const override { return {"x86", kLayoutVersion}; }  // one for all instruction sets
  std::unique_ptr<PackedWeight> adopt(const WeightView& w, std::span<const std::byte> image,
                                      std::shared_ptr<const void> owner) const override {
    return x86::adopt(w, pairs_ != nullptr, image, std::move(owner));
  }

  void matmul(Mat<const float> x, std::span<const MatmulJob> jobs, ThreadPool& pool) const override;
  void ffn(Mat<const float> x, const FfnJob& job, ThreadPool& pool) const override;
  void rms_norm(Mat<const float> x, const float* weight, float eps, Mat<float> y, ThreadPool& pool) const override;
  void head_norm(Mat<float> x, int E, const float* weight, float eps, ThreadPool& pool) const override;
  void act_mul(Activation act, Mat<float> gate, Mat<const float> up, ThreadPool& pool) const override;

  void rope(Mat<float> x, int E, std::span<const int32_t> pos, const RopeConfig& rope,
            ThreadPool& pool) const override {
    x86::rope(attention_.isa, x, E, pos, rope, pool);
  }
  void attend(const AttendShape& shape, std::span<const AttendTask> tasks, ThreadPool& pool) const override {
    x86::attend(attention_.isa, shape, tasks, pool);
  }
  void column_sums(const AttendShape& shape, std::span<const ColumnSumTask> tasks, ThreadPool& pool) const override {
    x86::column_sums(attention_.isa, shape, tasks, pool);
  }
  bool bf16_matmul_pays() const override { return pairs_ != nullptr; }
  bool bf16_attention_pays(int E) const override { return attention_.bf16_pays(E); }
  void mix(Mat<const float> w, Mat<const float> x, Mat<float> y) const override {
    CHECK(w.rows == y.rows && w.cols == x.rows && x.cols == y.cols);
    attention_.mix(w.data, w.stride, x.data, x.stride, {y.data, y.stride, w.rows, w.cols, x.cols});
  }
  void realign(const AttendShape& shape, const void* src, const float* rotation, int64_t count,
               void* dst) const override {
    x86::realign(attention_.isa, shape, src, rotation, count, dst);
  }

 private:
  auto gate_row(Activation act) const {
    if (act == Activation::kClampedSwiglu) return kernels_.clamped_mul;
    return act == Activation::kSilu ? kernels_.silu_mul : kernels_.gelu_mul;
  }
  auto row_packer(RowFormat format) const {
    return format == RowFormat::kQuantised ? kernels_.quantize
           : format == RowFormat::kTiles   ? tiled_->quantize
           : format == RowFormat::kFloats  ? kernels_.interleave
                                           : pairs_->pack_rows;
  }
  // All of a call's rows have the same blocks: tiles are for calls whose weights are all quantised, blocks of as many
  // rows as pairs want for those that all meet pairs.
  RowBlocks blocks_of(int64_t rows, std::initializer_list<std::span<const MatmulJob>> calls) const {
    bool tiled = tiled_ != nullptr && rows >= kLeastTiled, pairs = pairs_ != nullptr;
    for (const auto& jobs : calls) {
      for (const MatmulJob& job : jobs) {
        tiled = tiled && is_quantised(*job.w);
        pairs = pairs && format_for(*job.w, false) == RowFormat::kPairs;
      }
    }
    return {rows, tiled ? kTileRows : pairs ? pairs_->max_rows : kernels_.max_rows, tiled};
  }
  PackedRows pack_rows(Mat<const float> x, const RowBlocks& blocks, std::span<const MatmulJob> jobs,
                       ThreadPool& pool) const;
  void multiply(const PackedRows& x, std::span<const MatmulJob> jobs, ThreadPool& pool) const;
  void large_ffn(Mat<const float> x, const FfnJob& job, ThreadPool& pool) const;
  JobParts parts_of(const MatmulJob& job, MatmulPart whole, int64_t rows, bool tiled, int threads) const;

  mutable WeightMemory memory_;
  const std::string_view name_;
  const Kernels& kernels_;
  const AttentionOps& attention_;
  const PairKernels* const pairs_;
  const TiledKernels* const tiled_;
};

// Calls body(first row, end row) over slices of rows, each row worth about `row_cost` floats; few rows stay on this
// thread. Of many rows a thread gets those that it gets in matmul.
template <class Body>
void for_row_slices(int64_t rows, int64_t row_cost, ThreadPool& pool, Body body) {
  constexpr int64_t kSlice = 16384;  // floats: a few microseconds
  const int64_t slice = std::max<int64_t>(1, kSlice / std::max<int64_t>(1, row_cost));
  pool.parallel_split((rows + slice - 1) / slice,
                      [&](int64_t i, int) { body(i * slice, std::min(rows, (i + 1) * slice)); });
}

PackedRows X86Backend::pack_rows(Mat<const float> x, const RowBlocks& blocks, std::span<const MatmulJob> jobs,
                                 ThreadPool& pool) const {
  PackedRows out{blocks};
  for (const MatmulJob& job : jobs) {
    CHECK(job.w->K == x.cols);
    const RowFormat format = format_for(*job.w, blocks.tiled);
    if (out.data[static_cast<int>(format)] != nullptr) continue;
    const int64_t row_bytes = row_bytes_of(format, x.cols);
    std::byte* data = grown(scratch().rows[static_cast<int>(format)], row_bytes * blocks.room(blocks.count));
    const auto pack = row_packer(format);
    for_row_slices(blocks.count, x.cols * (x.rows / blocks.count), pool, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t row = blocks.begin(b);
        pack({x.data + row * x.stride, x.stride, blocks.size(b), x.cols}, data + blocks.room(b) * row_bytes);
      }
    });
    out.data[static_cast<int>(format)] = data;
    out.row_bytes = std::max(out.row_bytes, row_bytes);
  }
  return out;
}

constexpr int64_t kOwnRows = 64;  // with this many rows a thread or more, each thread has rows of its own

// Into how many parts the rows are cut. A part's rows must stay in L2 while it passes over its columns. Many rows are
// cut into one part a thread at least: what a core computes it finds in its own cache in the next layer, and two cores
// on two core complexes exchange nothing. Few rows are not, since every cut reads the weights once more.
int64_t cuts_of(int64_t rows, int64_t row_bytes, int64_t blocks, int threads) {
  constexpr int64_t kRowsBytes = 384 << 10;
  int64_t cuts = (rows * row_bytes + kRowsBytes - 1) / kRowsBytes;
  if (rows >= kOwnRows * threads) cuts = (cuts + threads - 1) / threads * threads;
  return std::clamp<int64_t>(cuts, 1, blocks);
}

// Columns are slices of weight bytes, small enough to share the work evenly and large enough to be worth handing out.
JobParts X86Backend::parts_of(const MatmulJob& job, MatmulPart whole, int64_t rows, bool tiled, int threads) const {
  const auto& w = static_cast<const BlockedWeight&>(*job.w);
  // Bytes that a part reads, or work that equals them: with many rows each byte of weight takes more time.
  const int64_t most = (256 << 10) / (1 + rows / (tiled ? 32 : 8));
  const int64_t bytes =
      std::clamp<int64_t>(static_cast<int64_t>(w.bytes) / (16 * threads), std::min<int64_t>(16 << 10, most), most);
  int64_t step = is_float(w.dtype) ? (rows <= 2 ? 4 : 2) : 1;  // blocks that a kernel takes at once
  if (!is_float(w.dtype) && w.segment < w.K / kGroup && whole.blocks == 1) step = kTogether;
  JobParts parts;
  parts.columns = std::max<int64_t>(step, bytes / w.block_bytes / step * step) * kBlockRows;
  parts.count = (w.N + parts.columns - 1) / parts.columns;
  const auto type = static_cast<int>(w.dtype);
  parts.kernel = w.pairs ? pairs_->matmul : tiled ? tiled_->matmul[type] : kernels_.matmul[type];
  whole.w = w.blocks;
  whole.block_bytes = w.block_bytes;
  whole.segment = w.segment;
  whole.K = w.K;
  whole.N = w.N;
  whole.y = job.y.data;
  whole.y_stride = job.y.stride;
  whole.bias = job.bias;
  whole.accumulate = job.accumulate;
  parts.whole = whole;
  return parts;
}

// Steps call the same layers in the same order (what is packed for one call alone, as groups of keys are, costs a wrong
// guess). So the workers, which wait while one thread works on rows, may fetch what came after these weights last time.
void Scratch::read_ahead(const Parts& parts, ThreadPool& pool) {
  constexpr int64_t kBytes = 384 << 10;  // stays in L2 together with the activations
  const auto workers = static_cast<size_t>(pool.size());
  if (followers.size() > 8192) followers.clear();
  if (previous != nullptr) {
    auto& starts = followers[previous];
    starts.resize(workers);
    for (int w = 1; w < pool.size(); ++w) {
      starts[w] = parts.weights(pool.share(parts.count(), w));
    }
  }
  previous = parts.jobs[0].whole.w;
  const auto found = followers.find(previous);
  if (found == followers.end() || found->second.size() != workers) return;
  for (int w = 1; w < pool.size(); ++w) pool.read_ahead(w, found->second[w], kBytes);
}

void X86Backend::matmul(Mat<const float> x, std::span<const MatmulJob> jobs, ThreadPool& pool) const {
  if (x.rows > 0 && !jobs.empty()) multiply(pack_rows(x, blocks_of(x.rows, {jobs}), jobs, pool), jobs, pool);
}

void X86Backend::multiply(const PackedRows& x, std::span<const MatmulJob> jobs, ThreadPool& pool) const {
  Scratch& s = scratch();
  s.jobs.clear();
  const RowBlocks& blocks = x.blocks;
  const int64_t rows = blocks.rows, cuts = cuts_of(rows, x.row_bytes, blocks.count, pool.size());
  int64_t slices = 0;
  for (const MatmulJob& job : jobs) {
    CHECK(job.w->N == job.y.cols && rows == job.y.rows);
    MatmulPart whole = {};
    whole.x = x.data[static_cast<int>(format_for(*job.w, blocks.tiled))];
    whole.rows = rows;
    whole.blocks = blocks.count;
    if (rows == 1) whole.ahead = look_ahead();
    s.jobs.push_back(parts_of(job, whole, rows / cuts, blocks.tiled, pool.size()));
    slices += s.jobs.back().count;
  }
  const Parts parts = {s.jobs, cuts, slices};
  if (cuts == 1) s.read_ahead(parts, pool);
  pool.parallel_split(parts.count(), [&](int64_t i, int) { parts.run(i); });
}

void X86Backend::ffn(Mat<const float> x, const FfnJob& job, ThreadPool& pool) const {
  const int64_t F = job.gate.w->N;
  CHECK(job.up.w->N == F && job.down.w->K == F);
  if (x.rows == 0) return;
  if (x.rows >= kOwnRows * pool.size()) return large_ffn(x, job, pool);
  Scratch& s = scratch();
  MatmulJob jobs[] = {job.gate, job.up};
  jobs[0].y = {reinterpret_cast<float*>(grown(s.gate, x.rows * F * 4)), x.rows, F};
  jobs[1].y = {reinterpret_cast<float*>(grown(s.up, x.rows * F * 4)), x.rows, F};
  matmul(x, jobs, pool);
  act_mul(job.activation, jobs[0].y, jobs[1].y, pool);
  matmul(jobs[0].y, {&job.down, 1}, pool);
}

void X86Backend::large_ffn(Mat<const float> x, const FfnJob& job, ThreadPool& pool) const {
  const MatmulJob jobs[] = {job.gate, job.up};
  const RowBlocks blocks = blocks_of(x.rows, {jobs, {&job.down, 1}});
  const PackedRows rows = pack_rows(x, blocks, jobs, pool);
  const int64_t F = job.gate.w->N, cuts = cuts_of(x.rows, rows.row_bytes, blocks.count, pool.size());
  const RowFormat format = format_for(*job.down.w, blocks.tiled);
  PackedRows product{blocks};
  product.row_bytes = row_bytes_of(format, F);
  std::byte* out = grown(scratch().product, product.row_bytes * blocks.room(blocks.count));
  product.data[static_cast<int>(format)] = out;

  GatedParts parts{{}, {}, blocks, F, cuts, format, out};
  for (int i = 0; i < 2; ++i) {
    MatmulPart whole = {};
    const RowFormat in = format_for(*jobs[i].w, blocks.tiled);
    whole.x = rows.data[static_cast<int>(in)];
    parts.jobs[i] = parts_of(jobs[i], whole, x.rows / cuts, blocks.tiled, pool.size());
    parts.x_row_bytes[i] = row_bytes_of(in, x.cols);
  }
  parts.gate_row = gate_row(job.activation);
  parts.pack = row_packer(format);
  pool.parallel_split(cuts * parts.slices(), [&](int64_t i, int) { parts.run(i); });
  multiply(product, {&job.down, 1}, pool);
}

void X86Backend::rms_norm(Mat<const float> x, const float* weight, float eps, Mat<float> y, ThreadPool& pool) const {
  CHECK(x.rows == y.rows && x.cols == y.cols);
  for_row_slices(x.rows, x.cols, pool, [&](int64_t begin, int64_t end) {
    kernels_.rms_norm({x.data + begin * x.stride, x.stride, end - begin, x.cols}, weight, eps,
                      y.data + begin * y.stride, y.stride);
  });
}

void X86Backend::head_norm(Mat<float> x, int E, const float* weight, float eps, ThreadPool& pool) const {
  CHECK(E > 0 && x.cols % E == 0);
  for_row_slices(x.rows, x.cols, pool, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = x.data + r * x.stride;
      kernels_.rms_norm({row, E, x.cols / E, E}, weight, eps, row, E);
    }
  });
}

void X86Backend::act_mul(Activation act, Mat<float> gate, Mat<const float> up, ThreadPool& pool) const {
  CHECK(gate.rows == up.rows && gate.cols == up.cols);
  for_row_slices(gate.rows, gate.cols, pool, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) gate_row(act)(gate.row(r), up.row(r), gate.cols);
  });
}

}  // namespace

const Backend& avx2_backend() {
  static const X86Backend instance("avx2", avx2::kKernels, kAvx2Attention);
  return instance;
}

// With 256-bit VNNI only the linear layers differ: attention has no integer dots.
const Backend& avxvnni_backend() {
  static const X86Backend instance("avxvnni", avxvnni::kKernels, kAvx2Attention);
  return instance;
}

const Backend& vnni256_backend() {
  static const X86Backend instance("vnni256", vnni256::kKernels, kAvx2Attention);
  return instance;
}

const Backend& avx512_backend() {
  static const X86Backend instance("avx512", avx512::kKernels, kAvx512Attention,
                                   bf16_dots_pay() ? &avx512bf16::kPairs : nullptr);
  return instance;
}

const Backend& amx_backend() {
  static const X86Backend instance("amx", avx512::kKernels, kAmxAttention, bf16_tiles_pay() ? &amx::kPairs : nullptr,
                                   &amx::kTiled);
  return instance;
}

}  // namespace kvilt::x86

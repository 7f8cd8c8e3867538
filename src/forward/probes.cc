#include "forward/probes.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "forward/key_masks.h"

namespace kvilt {
namespace {

// kKeyChange, kValueChange: adds the squared length of each compared row's change to its position's score.
void add_changes(const ProbeSpec& spec, std::span<const int32_t> pos, std::span<const uint8_t> placed,
                 const Mat<float>& change, std::vector<double>& score) {
  for (int64_t r = 0; r < change.rows; ++r) {
    if (!placed[r] || !contains(spec.rows, pos[r])) continue;
    const float* row = change.row(r);
    double sum = 0;
    for (int64_t i = 0; i < change.cols; ++i) sum += double{row[i]} * row[i];
    score[pos[r]] += sum;
  }
}

// A task's spans, cut off at key_end.
void clip_spans(std::span<const KvSpan> spans, int32_t key_end, std::vector<KvSpan>& out) {
  for (const KvSpan& span : spans) {
    if (span.pos >= key_end) break;
    out.push_back(span);
    out.back().count = std::min(span.count, key_end - span.pos);
  }
}

}  // namespace

double ProbePass::look(const Stage& stage, const AttendedRows& rows, std::span<Probe> probes) {
  double flops = 0;
  for (size_t p = 0; p < stage.probes.size(); ++p) {
    const ProbeSpec& spec = stage.probes[p];
    if (!looks(spec.estimator) || !spec.at(rows.layer) || !gather(spec, rows)) continue;
    switch (spec.estimator) {
      case Estimator::kColumnSum:
      case Estimator::kColumnSumValueNorm:
        flops += column_sums(spec, rows, probes[p].score);
        break;
      case Estimator::kOutside:
        flops += outside(spec, rows, probes[p].outside);
        break;
      case Estimator::kWeights:
        probes[p].weights.resize(static_cast<size_t>(model_.config().L));
        flops += weights(spec, rows, probes[p].weights[rows.layer]);
        break;
      case Estimator::kQueries:
        queries(rows, probes[p].sums[rows.layer]);
        break;
      case Estimator::kBlockKeys:
        block_keys(spec, rows, probes[p].sums[rows.layer]);
        break;
      case Estimator::kFade:
        flops += fade(spec, rows, probes[p].sums[rows.layer]);
        break;
      case Estimator::kKeyChange:
      case Estimator::kValueChange:
        break;  // compare()
    }
  }
  return flops;
}

bool ProbePass::compares(const Stage& stage, int layer) {
  return std::ranges::any_of(stage.probes,
                             [&](const ProbeSpec& spec) { return !looks(spec.estimator) && spec.at(layer); });
}

void ProbePass::compare(const Stage& stage, const FreshRows& rows, const Changes& changes, std::span<Probe> probes) {
  for (size_t p = 0; p < stage.probes.size(); ++p) {
    const ProbeSpec& spec = stage.probes[p];
    if (looks(spec.estimator) || !spec.at(rows.layer)) continue;
    const Mat<float>& change = (spec.estimator == Estimator::kKeyChange ? changes.k : changes.v).view();
    add_changes(spec, rows.pos, changes.placed, change, probes[p].score);
  }
}

// looking_ = the probe's rows among `rows`, as tasks of their own with gathered queries. False: there are none.
bool ProbePass::gather(const ProbeSpec& spec, const AttendedRows& rows) {
  const ModelConfig& c = model_.config();
  const int64_t group = c.H / c.G, width = group * c.E;
  Looking& to = looking_;
  to.pos.clear();
  to.at.clear();
  to.from.clear();
  const std::span<const int32_t> pos = rows.pos.empty() ? rows.heads[0].pos : rows.pos;
  for (size_t r = 0; r < pos.size(); ++r) {
    if (!contains(spec.rows, pos[r])) continue;
    to.pos.push_back(rows.heads[0].pos[r]);
    to.at.push_back(pos[r]);
    to.from.push_back(static_cast<int64_t>(r));
  }
  const int64_t n = to.size();
  if (n == 0) return false;
  const Mat<float> q = to.q.reshape(n * c.G, width);
  to.lse.resize(static_cast<size_t>(n * c.H));
  to.tasks.assign(rows.heads.begin(), rows.heads.end());
  for (int g = 0; g < c.G; ++g) {
    AttendTask& task = to.tasks[g];
    CHECK(task.lse);
    float* lse = to.lse.data() + g * n * group;
    for (int64_t r = 0; r < n; ++r) {
      std::copy_n(task.q + to.from[r] * task.q_stride, width, q.row(g * n + r));
      std::copy_n(task.lse + to.from[r] * group, group, lse + r * group);
    }
    task.q = q.row(g * n);
    task.q_stride = task.out_stride = width;
    task.out = nullptr;
    task.pos = to.pos;
    task.lse = lse;
  }
  return true;
}

// kColumnSum, kColumnSumValueNorm: adds each position's share of the rows' attention (docs/math/column_sums.md).
double ProbePass::column_sums(const ProbeSpec& spec, const AttendedRows& rows, std::vector<double>& score) {
  const ModelConfig& c = model_.config();
  const AttendShape shape = model_.attend_shape(rows.kv_type);
  std::vector<KvSpan> spans;
  double passes = 1;
  const auto ranks_before = [&](int32_t pos) {
    return static_cast<int32_t>(count(intersect(*rows.seen, Runs{{0, pos}})));
  };
  if (spec.key_end >= 0) {  // weights among the keys before key_end: their own normalisers
    std::vector<size_t> first{0};
    for (const AttendTask& task : looking_.tasks) {
      clip_spans(task.spans, rows.seen ? ranks_before(spec.key_end) : spec.key_end, spans);
      first.push_back(spans.size());
    }
    if (spans.empty()) return 0;
    const Mat<float> out = looking_.out.reshape(looking_.q.view().rows, looking_.q.view().cols);
    for (int g = 0; g < c.G; ++g) {
      looking_.tasks[g].spans = std::span(spans).subspan(first[g], first[g + 1] - first[g]);
      looking_.tasks[g].out = out.row(g * looking_.size());
    }
    model_.backend().attend(shape, looking_.tasks, pool_);
    passes = 3;  // q k, p v, and q k again
  }
  std::vector<double> by_rank(rows.seen ? static_cast<size_t>(count(*rows.seen)) : 0);
  std::vector<ColumnSumTask> sums;
  for (const AttendTask& task : looking_.tasks) {
    double* to = rows.seen ? by_rank.data() : score.data();
    sums.push_back({&task, to, spec.estimator == Estimator::kColumnSumValueNorm});
  }
  model_.backend().column_sums(shape, sums, pool_);
  if (rows.seen) {
    const std::vector<int32_t> at = positions(*rows.seen);
    for (size_t i = 0; i < at.size(); ++i) score[at[i]] += by_rank[i];
  }
  double flops = 0;
  for (const int32_t at : looking_.pos) flops += passes * 2.0 * c.E * c.H * visible(looking_.tasks[0].mask, at);
  return flops;
}

// kOutside: attention once in full and once per view; what a view's normaliser lacks lies outside of it. The edge mass
// of RedKnot (docs/design/heads.md#restoring-a-head). sums: Probe::outside.
double ProbePass::outside(const ProbeSpec& spec, const AttendedRows& rows, std::vector<double>& sums) {
  const ModelConfig& c = model_.config();
  const int64_t group = c.H / c.G, n = looking_.size();
  const Mat<float> out = looking_.out.reshape(looking_.q.view().rows, looking_.q.view().cols);
  double flops = 0;
  const auto attend = [&](const View& view, std::vector<float>& lse) {
    lse.resize(static_cast<size_t>(n * c.H));
    for (int g = 0; g < c.G; ++g) {
      AttendTask& task = looking_.tasks[g];
      task.out = out.row(g * n);
      const int32_t reach = task.mask.reach;
      task.mask = KeyMask::of(view);
      task.mask.reach = reach;
      task.lse = lse.data() + g * n * group;
      for (const int32_t at : looking_.pos) flops += 4.0 * c.E * static_cast<double>(group) * visible(task.mask, at);
    }
    model_.backend().attend(model_.attend_shape(rows.kv_type), looking_.tasks, pool_);
  };
  std::vector<float> all, seen;
  attend({}, all);
  const size_t views = spec.views.size();
  double* of_layer = sums.data() + static_cast<size_t>(rows.layer) * static_cast<size_t>(c.H) * views;
  for (size_t v = 0; v < views; ++v) {
    attend(spec.views[v], seen);
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t r = 0; r < n; ++r) {
        const int64_t i = (h / group * n + r) * group + h % group;
        of_layer[static_cast<size_t>(h) * views + v] += std::max(0.0, 1.0 - std::exp(double{seen[i]} - double{all[i]}));
      }
    }
  }
  return flops;
}

// kWeights: the attention weights as they are, one row and query head at a time. out: Probe::weights of the layer.
double ProbePass::weights(const ProbeSpec& spec, const AttendedRows& rows, std::vector<float>& out) {
  const ModelConfig& c = model_.config();
  const int64_t group = c.H / c.G, all_rows = count(spec.rows), T = rows.prompt_len;
  out.resize(static_cast<size_t>(c.H * all_rows * T), 0);
  AttendShape shape = model_.attend_shape(rows.kv_type);
  shape.group = 1;  // every query head by itself
  double flops = 0;
  std::vector<AttendTask> tasks(static_cast<size_t>(c.H));
  std::vector<ColumnSumTask> sums(tasks.size());
  std::vector<double> columns(tasks.size() * static_cast<size_t>(T));
  for (int64_t r = 0; r < looking_.size(); ++r) {
    const int32_t pos = looking_.pos[r];
    const int64_t row = count(intersect(spec.rows, Runs{{0, pos}}));
    std::ranges::fill(columns, 0.0);
    for (int64_t h = 0; h < c.H; ++h) {
      tasks[h] = looking_.tasks[h / group];
      tasks[h].q += r * tasks[h].q_stride + h % group * c.E;
      tasks[h].lse += r * group + h % group;
      tasks[h].pos = std::span(looking_.pos).subspan(r, 1);
      sums[h] = {&tasks[h], columns.data() + h * T, false};
      flops += 2.0 * c.E * visible(tasks[h].mask, pos);
    }
    model_.backend().column_sums(shape, sums, pool_);
    for (int64_t h = 0; h < c.H; ++h) std::copy_n(columns.data() + h * T, T, out.data() + (h * all_rows + row) * T);
  }
  return flops;
}

}  // namespace kvilt

#include "forward/driver.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "forward/batch_rows.h"
#include "forward/expert_routing.h"
#include "forward/ffn_rows.h"
#include "forward/key_masks.h"
#include "forward/look_outside.h"
#include "forward/look_weights.h"

namespace kvilt {

// Kept from step to step: a decode step allocates nothing (tests/hot_path_test.cc).
struct Driver::Scratch {
  Rows rows;  // those in x
  Rows write, query, out, leaving, wanted, fed;
  std::vector<Runs> united;          // per chunk; only where probes add rows
  std::vector<const Runs*> looking;  // per chunk
  FloatMat x, x_next, x_fed, normed, gathered;
  FloatMat q, k, v, attended, gate;
  FloatMat probe_q, probe_out;
  std::vector<uint8_t> feeds;  // by row
  ExpertRouting routing;
  Rows chosen;  // an expert's
  FloatMat expert_out;
  Changes changes;
  std::vector<KvSpan> spans;
  std::vector<size_t> span_first;  // task t's spans are [span_first[t], span_first[t + 1])
  std::vector<AttendTask> tasks;
  std::vector<float> lse;
};

namespace {

// a, or its union with b, for which `memory` is used.
const Runs* united(const Runs& a, const Runs& b, Runs& memory) {
  if (b.empty()) return &a;
  memory = unite(a, b);
  return &memory;
}

const Runs kNone;

Activation activation_of(const ModelConfig& config) {
  return config.gate == Gate::kGeluTanh ? Activation::kGeluTanh : Activation::kSilu;
}

}  // namespace

Work& Work::operator+=(const Work& other) {
  linear_flops += other.linear_flops;
  attention_flops += other.attention_flops;
  bytes += other.bytes;
  return *this;
}

Driver::Driver(const PreparedModel& model, ThreadPool& pool)
    : model_(model), pool_(pool), carry_(model, pool), scratch_(new Scratch) {}
Driver::~Driver() = default;

void Driver::run(std::span<Chunk> chunks) {
  CHECK(!chunks.empty());
  const Band& band = *chunks[0].band;
  for (const Chunk& chunk : chunks) {
    CHECK(chunk.band->layer_begin == band.layer_begin && chunk.band->layer_end == band.layer_end &&
          chunk.band->cut == band.cut);
  }
  start(chunks);
  for (int l = band.layer_begin; l < band.layer_end; ++l) layer(chunks, l);
  if (band.cut) {
    cut(chunks, band.layer_end);
  } else if (band.layer_end == model_.config().L) {
    logits(chunks);
  }
}

// The rows that enter the band: embeddings, or the hidden states kept at the cut before.
void Driver::start(std::span<Chunk> chunks) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  s.rows.clear();
  s.rows.all = true;
  for (const Chunk& chunk : chunks) {
    const Runs& in = chunk.band->in.empty() ? chunk.band->cut_rows : chunk.band->in[0];
    for (const Run& run : in) {
      const int32_t end = std::min(run.end, chunk.range.end);
      for (int32_t pos = std::max(run.begin, chunk.range.begin); pos < end; ++pos) s.rows.pos.push_back(pos);
    }
    s.rows.first.push_back(s.rows.size());
  }
  const Mat<float> x = s.x.reshape(s.rows.size(), c.D);
  for (size_t i = 0; i < chunks.size(); ++i) {
    for (int64_t r = s.rows.first[i]; r < s.rows.first[i + 1]; ++r) {
      const int32_t pos = s.rows.pos[static_cast<size_t>(r)];
      if (chunks[i].band->layer_begin == 0) {
        model_.embed(chunks[i].tokens[static_cast<size_t>(pos)], x.row(r));
      } else {
        std::copy_n(chunks[i].hidden->row(pos), c.D, x.row(r));
      }
    }
  }
}

void Driver::layer(std::span<Chunk> chunks, int l) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  const auto depth = static_cast<size_t>(l - chunks[0].band->layer_begin);
  const bool written = l > 0 && depth == 0;  // this band starts at a cut, which stored K and V already
  const auto written_at = [&](size_t i) -> const Runs& { return written ? kNone : chunks[i].stage->write_at(l); };
  const Rows& write = select(s.rows, chunks.size(), written_at, s.write);
  // Rows that look: those that leave the layer, and those that a probe of this layer names.
  s.united.resize(std::max(s.united.size(), chunks.size()));
  s.looking.resize(chunks.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    s.looking[i] = united(chunks[i].band->out[depth], written ? kNone : probe_rows(*chunks[i].stage, l), s.united[i]);
  }
  const Rows& query = select(
      s.rows, chunks.size(), [&](size_t i) -> const Runs& { return *s.looking[i]; }, s.query);
  const auto left = [&](size_t i) -> const Runs& { return chunks[i].band->out[depth]; };
  Rows& out = s.out;
  select(s.rows, chunks.size(), left, out);
  model_.backend().rms_norm(s.x.view(), model_.layer(l).attn_norm.data(), c.rms_eps,
                            s.normed.reshape(s.rows.size(), c.D), pool_);
  project(chunks, l, write, query);
  if (query.size() > 0) attend(chunks, l, query, !written);
  if (out.size() == 0) {
    std::swap(s.rows, out);
    s.x.reshape(0, c.D);
    return;
  }
  if (out.size() < query.size()) {
    gather(select(query, chunks.size(), left, s.leaving), s.attended.view(), s.gathered);
    std::swap(s.attended, s.gathered);
  }
  if (!out.all) {
    gather(out, s.x.view(), s.x_next);
    std::swap(s.x, s.x_next);
  }
  out.all = true;
  std::swap(s.rows, out);
  Rows& fed = choose_fed(chunks, l);
  const MatmulJob job = residual_job(model_.layer(l).o, model_.layer(l).post_attn_norm);
  linear(chunks, s.rows, s.attended.view(), {&job, 1});
  add_normed(model_.layer(l).post_attn_norm);
  if (fed.all) {
    feed_forward(chunks, l);
  } else {
    feed_some(chunks, l, fed);
  }
}

// Of the rows in x, those that run the FFN. REQUIRES: s.attended holds their attention outputs, x their residuals.
BatchRows& Driver::choose_fed(std::span<Chunk> chunks, int l) {
  Scratch& s = *scratch_;
  Rows& fed = s.fed;
  fed.clear();
  const bool experts = model_.config().sparse(l);
  fed.all = std::all_of(chunks.begin(), chunks.end(), [&](const Chunk& chunk) {
    return !chunk.stage->ffn || chunk.stage->ffn->takes_all(l, experts);
  });
  if (fed.all) return fed;
  s.feeds.assign(static_cast<size_t>(s.rows.size()), 1);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto& rule = chunks[i].stage->ffn;
    const int64_t begin = s.rows.first[i], end = s.rows.first[i + 1];
    if (!rule || begin == end) continue;
    choose_ffn_rows(*rule,
                    {l, chunks[i].plan->prompt_len, std::span(s.rows.pos).subspan(begin, end - begin),
                     s.attended.view().slice_rows(begin, end), s.x.view().slice_rows(begin, end), experts},
                    s.feeds.data() + begin);
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    for (int64_t r = s.rows.first[i]; r < s.rows.first[i + 1]; ++r) {
      if (s.feeds[static_cast<size_t>(r)]) fed.push(s.rows.pos[static_cast<size_t>(r)], r);
    }
    fed.first.push_back(fed.size());
  }
  fed.all = fed.size() == s.rows.size();
  return fed;
}

// The FFN of some of the rows in x, gathered: the others cost nothing and keep their residual.
void Driver::feed_some(std::span<Chunk> chunks, int l, Rows& fed) {
  Scratch& s = *scratch_;
  if (fed.size() == 0) return;
  gather(fed, s.x.view(), s.x_fed);
  std::swap(s.x, s.x_fed);
  std::swap(s.rows, fed);
  feed_forward(chunks, l);
  std::swap(s.rows, fed);
  std::swap(s.x, s.x_fed);
  const Mat<float> x = s.x.view(), y = s.x_fed.view();
  for (int64_t r = 0; r < fed.size(); ++r) std::copy_n(y.row(r), x.cols, x.row(fed.index[static_cast<size_t>(r)]));
}

// What adds last's outputs to the residual. With a norm they go to s.normed, which add_normed() then adds.
MatmulJob Driver::residual_job(const PreparedLinear& last, const std::vector<float>& norm) {
  Scratch& s = *scratch_;
  const Mat<float> x = s.x.view();
  return norm.empty() ? last.job(x, true) : last.job(s.normed.reshape(x.rows, x.cols));
}

// x += norm(s.normed); nothing without a norm.
void Driver::add_normed(const std::vector<float>& norm) {
  if (norm.empty()) return;
  const Mat<float> x = scratch_->x.view(), y = scratch_->normed.view();
  model_.backend().rms_norm(y, norm.data(), model_.config().rms_eps, y, pool_);
  constexpr int64_t kRows = 16;
  pool_.parallel_for((x.rows + kRows - 1) / kRows, [&](int64_t part, int) {
    for (int64_t r = part * kRows; r < std::min(x.rows, (part + 1) * kRows); ++r) {
      float* to = x.row(r);
      const float* from = y.row(r);
      for (int64_t i = 0; i < x.cols; ++i) to[i] += from[i];
    }
  });
}

// Turns x by the RoPE of each row's sequence: one for all, but LongRoPE has another for long sequences.
void Driver::turn(std::span<Chunk> chunks, int l, const Rows& rows, Mat<float> x) {
  for (size_t first = 0, last = 0; first < chunks.size(); first = last) {
    const RopeConfig& rope = chunks[first].kv->ropes().at(l);
    while (last < chunks.size() && &chunks[last].kv->ropes().at(l) == &rope) ++last;
    const int64_t begin = rows.first[first], count = rows.first[last] - begin;
    if (count == 0) continue;
    const Mat<float> part(x.row(begin), count, x.cols, x.stride);
    const std::span<const int32_t> pos(rows.pos.data() + begin, static_cast<size_t>(count));
    model_.backend().rope(part, model_.config().E, pos, rope, pool_);
  }
}

// q of `query` rows (turned by RoPE) into s.q; k and v of `write` rows into the page tables.
void Driver::project(std::span<Chunk> chunks, int l, const Rows& write, const Rows& query) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  const PreparedLayer& w = model_.layer(l);
  const Backend& backend = model_.backend();
  const Mat<float> q = s.q.reshape(query.size(), int64_t{c.H} * c.E);
  const Mat<float> k = s.k.reshape(write.size(), int64_t{c.G} * c.E), v = s.v.reshape(write.size(), int64_t{c.G} * c.E);
  if (write.all && query.all) {
    const MatmulJob jobs[] = {w.q.job(q), w.k.job(k), w.v.job(v)};
    linear(chunks, query, s.normed.view(), jobs);
  } else {
    const MatmulJob kv[] = {w.k.job(k), w.v.job(v)}, qs[] = {w.q.job(q)};
    if (write.size() > 0) linear(chunks, write, gather(write, s.normed.view(), s.gathered), kv);
    if (query.size() > 0) linear(chunks, query, gather(query, s.normed.view(), s.gathered), qs);
  }
  if (c.qk_norm) {
    backend.head_norm(q, c.E, w.q_norm.data(), c.rms_eps, pool_);
    backend.head_norm(k, c.E, w.k_norm.data(), c.rms_eps, pool_);
  }
  turn(chunks, l, query, q);
  turn(chunks, l, write, k);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const std::span<const int32_t> pos(write.pos.data() + write.first[i], static_cast<size_t>(write.size(i)));
    store(chunks[i], {chunks[i].kv, l, pos, k.slice_rows(write.first[i], write.first[i + 1]),
                      v.slice_rows(write.first[i], write.first[i + 1])});
  }
}

// K and V of a chunk's written rows into its page table; before that they are compared with their placed twins, where a probe
// or a carry asks for it, and after it the twins' neighbours take the change over.
void Driver::store(Chunk& chunk, const FreshRows& rows) {
  if (rows.pos.empty()) return;
  const Stage& stage = *chunk.stage;
  if (!stage.keeps_placed.empty()) {
    const size_t G = static_cast<size_t>(model_.config().G);
    carry_.keep(rows, std::span(stage.keeps_placed).subspan(static_cast<size_t>(rows.layer) * G, G));
  }
  Changes& changes = scratch_->changes;
  const auto measured = [&](const ProbeSpec& spec) {
    return !looks(spec.estimator) && std::find(spec.layers.begin(), spec.layers.end(), rows.layer) != spec.layers.end();
  };
  if (stage.carry || std::any_of(stage.probes.begin(), stage.probes.end(), measured)) carry_.compare(rows, changes);
  for (size_t p = 0; p < stage.probes.size(); ++p) {
    const ProbeSpec& spec = stage.probes[p];
    if (!measured(spec)) continue;
    const Mat<float>& change = spec.estimator == Estimator::kKeyChange ? changes.k.view() : changes.v.view();
    for (int64_t r = 0; r < change.rows; ++r) {
      const int32_t pos = rows.pos[static_cast<size_t>(r)];
      if (!changes.placed[static_cast<size_t>(r)] || !contains(spec.rows, pos)) continue;
      double sum = 0;
      for (int64_t i = 0; i < change.cols; ++i) sum += double{change.row(r)[i]} * change.row(r)[i];
      chunk.probes[p].score[static_cast<size_t>(pos)] += sum;
    }
  }
  for (size_t r = 0; r < rows.pos.size(); ++r) {
    chunk.kv->write(rows.layer, rows.pos[r], rows.k.row(static_cast<int64_t>(r)), rows.v.row(static_cast<int64_t>(r)));
  }
  const KvShape& shape = chunk.kv->shape();
  chunk.work.bytes += 2.0 * static_cast<double>(rows.k.rows * shape.G * shape.row_bytes());
  if (stage.carry) {
    CHECK(chunk.carry);
    chunk.work.attention_flops +=
        carry_.carry(*stage.carry, stage.write_at(rows.layer), rows, changes, *chunk.carry, chunk.work.bytes);
  }
}

// s.attended = attention of s.q; then, if asked for, the probes of this layer, which need its normalisers.
void Driver::attend(std::span<Chunk> chunks, int l, const Rows& query, bool with_probes) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  const int group = c.H / c.G;
  const Mat<float> out = s.attended.reshape(query.size(), int64_t{c.H} * c.E);
  s.spans.clear();
  s.span_first.assign(1, 0);
  s.tasks.clear();
  s.lse.resize(static_cast<size_t>(query.size() * c.H));
  bool probing = false;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (query.size(i) == 0) continue;
    const int64_t first = query.first[i], rows = query.size(i);
    const std::span<const int32_t> pos(query.pos.data() + first, static_cast<size_t>(rows));
    probing = probing || (with_probes && !probe_rows(*chunks[i].stage, l).empty());
    for (int g = 0; g < c.G; ++g) {
      AttendTask task;
      task.q = s.q.view().row(first) + g * group * c.E;
      task.out = out.row(first) + g * group * c.E;
      task.q_stride = task.out_stride = out.stride;
      task.pos = pos;
      task.mask = mask_of(*chunks[i].plan, c, l, g);
      task.lse = s.lse.data() + first * c.H + g * rows * group;
      const size_t before = s.spans.size();
      chunks[i].kv->resolve(l, g, {pos.front(), pos.back() + 1}, task.mask, s.spans);
      s.span_first.push_back(s.spans.size());
      s.tasks.push_back(task);
      double keys = 0, flops = 0;
      for (size_t j = before; j < s.spans.size(); ++j) keys += s.spans[j].count;
      if (task.mask.reach >= 0) keys = std::min<double>(keys, pos.back() - pos.front() + 1.0 + task.mask.reach);
      for (const int32_t p : pos) flops += 4.0 * c.E * group * visible(task.mask, p);
      chunks[i].work.attention_flops += flops;
      chunks[i].work.bytes += 2.0 * keys * static_cast<double>(chunks[i].kv->shape().row_bytes());
    }
  }
  for (size_t t = 0; t < s.tasks.size(); ++t) {
    s.tasks[t].spans = std::span(s.spans).subspan(s.span_first[t], s.span_first[t + 1] - s.span_first[t]);
    if (!probing) s.tasks[t].lse = nullptr;
  }
  const AttendShape shape = model_.attend_shape(chunks[0].kv->shape().dtype);
  model_.backend().attend(shape, s.tasks, pool_);
  if (probing) probe(chunks, l, query);
}

// Adds this layer's column sums to the chunks' probes. REQUIRES: attend() just ran with lse.
void Driver::probe(std::span<Chunk> chunks, int l, const Rows& query) {
  Scratch& s = *scratch_;
  const auto G = static_cast<size_t>(model_.config().G);
  size_t t = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (query.size(i) == 0) continue;
    const auto heads = std::span<const AttendTask>(s.tasks).subspan(t, G);
    for (size_t p = 0; p < chunks[i].stage->probes.size(); ++p) {
      const ProbeSpec& spec = chunks[i].stage->probes[p];
      const bool here = std::find(spec.layers.begin(), spec.layers.end(), l) != spec.layers.end();
      if (!here || !looks(spec.estimator)) continue;
      if (spec.estimator == Estimator::kOutside) {
        const size_t each = static_cast<size_t>(model_.config().H) * spec.views.size();
        const auto sums = std::span(chunks[i].probes[p].outside).subspan(static_cast<size_t>(l) * each, each);
        chunks[i].work.attention_flops += look_outside(model_, pool_, {spec, heads, chunks[i].kv->shape().dtype}, sums);
      } else if (spec.estimator == Estimator::kWeights) {
        auto& weights = chunks[i].probes[p].weights;
        weights.resize(static_cast<size_t>(model_.config().L));
        chunks[i].work.attention_flops += look_weights(
            model_, pool_, {spec, heads, chunks[i].kv->shape().dtype, chunks[i].plan->prompt_len}, weights[l]);
      } else {
        look(chunks[i], spec, heads, chunks[i].probes[p].score);
      }
    }
    t += G;
  }
}

// The probe's rows of a chunk's tasks (one per KV head), as tasks of their own with gathered queries.
void Driver::look(Chunk& chunk, const ProbeSpec& spec, std::span<const AttendTask> heads, std::vector<double>& score) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  const int64_t group = c.H / c.G, width = group * c.E;
  std::vector<int32_t> pos;
  std::vector<int64_t> rows;
  for (size_t r = 0; r < heads[0].pos.size(); ++r) {
    if (!contains(spec.rows, heads[0].pos[r])) continue;
    pos.push_back(heads[0].pos[r]);
    rows.push_back(static_cast<int64_t>(r));
  }
  if (pos.empty()) return;
  const auto n = static_cast<int64_t>(rows.size());
  const Mat<float> q = s.probe_q.reshape(n * c.G, width);
  std::vector<AttendTask> tasks(heads.begin(), heads.end());
  std::vector<float> lse(static_cast<size_t>(n * c.H));
  std::vector<KvSpan> spans;
  std::vector<size_t> span_first{0};
  for (int g = 0; g < c.G; ++g) {
    AttendTask& task = tasks[static_cast<size_t>(g)];
    float* norms = lse.data() + g * n * group;
    for (int64_t r = 0; r < n; ++r) {
      const int64_t from = rows[static_cast<size_t>(r)];
      std::copy_n(task.q + from * task.q_stride, width, q.row(g * n + r));
      std::copy_n(task.lse + from * group, group, norms + r * group);
    }
    task.q = q.row(g * n);
    task.q_stride = task.out_stride = width;
    task.pos = pos;
    task.lse = norms;
    for (const KvSpan& span : task.spans) {
      if (span.pos >= spec.key_end) break;
      spans.push_back(span);
      spans.back().count = std::min(span.count, spec.key_end - span.pos);
    }
    span_first.push_back(spans.size());
  }
  const AttendShape shape = model_.attend_shape(chunk.kv->shape().dtype);
  double passes = 1;
  if (spec.key_end >= 0) {  // weights among the keys before key_end: their own normalisers
    if (spans.empty()) return;
    const Mat<float> out = s.probe_out.reshape(n * c.G, width);
    for (size_t g = 0; g < tasks.size(); ++g) {
      tasks[g].spans = std::span(spans).subspan(span_first[g], span_first[g + 1] - span_first[g]);
      tasks[g].out = out.row(static_cast<int64_t>(g) * n);
    }
    model_.backend().attend(shape, tasks, pool_);
    passes = 3;  // q k, p v, and q k again
  }
  std::vector<ColumnSumTask> sums;
  for (const AttendTask& task : tasks) {
    sums.push_back({&task, score.data(), spec.estimator == Estimator::kColumnSumValueNorm});
  }
  model_.backend().column_sums(shape, sums, pool_);
  for (const int32_t at : pos) chunk.work.attention_flops += passes * 2.0 * c.E * c.H * visible(tasks[0].mask, at);
}

void Driver::feed_forward(std::span<Chunk> chunks, int l) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  const PreparedLayer& w = model_.layer(l);
  const int64_t rows = s.rows.size();
  model_.backend().rms_norm(s.x.view(), w.ffn_norm.data(), c.rms_eps, s.normed.reshape(rows, c.D), pool_);
  if (c.sparse(l)) return experts(chunks, l);
  const MatmulJob down = residual_job(w.down, w.post_ffn_norm);
  ffn(chunks, s.rows, s.normed.view(), {w.gate.job({}), w.up.job({}), down, activation_of(c)});
  add_normed(w.post_ffn_norm);
}

// The sparse layer's FFN: x += sum of weight * FFN of each chosen expert, in the order of the experts' numbers. Each expert
// takes the rows that chose it as a matmul of their own, so a row's sum depends on nothing but its own choice.
void Driver::experts(std::span<Chunk> chunks, int l) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  const PreparedLayer& w = model_.layer(l);
  const Mat<float> logits = s.gate.reshape(s.rows.size(), c.experts.count);
  const MatmulJob router = w.router.job(logits);
  linear(chunks, s.rows, s.normed.view(), {&router, 1});
  s.routing.route(logits, c.experts.top_k, c.experts.renormalise);
  for (int e = 0; e < c.experts.count; ++e) {
    const std::span<const RoutedRow> routed = s.routing.rows_of(e);
    if (routed.empty()) continue;
    s.chosen.pos.clear();
    s.chosen.index.clear();
    s.chosen.first.assign(1, 0);
    for (size_t i = 0; i < chunks.size(); ++i) {
      while (s.chosen.index.size() < routed.size() && routed[s.chosen.index.size()].row < s.rows.first[i + 1]) {
        const int64_t row = routed[s.chosen.index.size()].row;
        s.chosen.index.push_back(row);
        s.chosen.pos.push_back(s.rows.pos[static_cast<size_t>(row)]);
      }
      s.chosen.first.push_back(s.chosen.size());
    }
    s.chosen.all = s.chosen.size() == s.rows.size();
    const PreparedExpert& expert = w.experts[static_cast<size_t>(e)];
    const Mat<float> out = s.expert_out.reshape(s.chosen.size(), c.D);
    ffn(chunks, s.chosen, gather(s.chosen, s.normed.view(), s.gathered),
        {expert.gate.job({}), expert.up.job({}), expert.down.job(out), Activation::kSilu});
    for (size_t r = 0; r < routed.size(); ++r) {
      float* x = s.x.view().row(routed[r].row);
      const float* y = out.row(static_cast<int64_t>(r));
      for (int d = 0; d < c.D; ++d) x[d] += routed[r].weight * y[d];
    }
  }
}

// K and V of W(l) are stored, the probe rows look, and the hidden states wait for the next band.
void Driver::cut(std::span<Chunk> chunks, int l) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].band->last) continue;  // the stage ends here: nobody goes on from these rows
    for (int64_t r = s.rows.first[i]; r < s.rows.first[i + 1]; ++r) {
      std::copy_n(s.x.view().row(r), c.D, chunks[i].hidden->row(s.rows.pos[static_cast<size_t>(r)]));
    }
  }
  const auto written = [&](size_t i) -> const Runs& { return chunks[i].stage->write_at(l); };
  const Rows& write = select(s.rows, chunks.size(), written, s.write);
  s.united.resize(std::max(s.united.size(), chunks.size()));
  for (size_t i = 0; i < chunks.size(); ++i) s.united[i] = probe_rows(*chunks[i].stage, l);
  const Rows& query = select(
      s.rows, chunks.size(), [&](size_t i) -> const Runs& { return s.united[i]; }, s.query);
  model_.backend().rms_norm(s.x.view(), model_.layer(l).attn_norm.data(), c.rms_eps,
                            s.normed.reshape(s.rows.size(), c.D), pool_);
  project(chunks, l, write, query);
  if (query.size() > 0) attend(chunks, l, query, true);
}

void Driver::logits(std::span<Chunk> chunks) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  Rows& wanted = s.wanted;
  wanted.clear();
  for (size_t i = 0; i < chunks.size(); ++i) {
    for (int64_t r = s.rows.first[i]; chunks[i].logits && r < s.rows.first[i + 1]; ++r) {
      wanted.push(s.rows.pos[static_cast<size_t>(r)], r);
    }
    wanted.first.push_back(wanted.size());
  }
  if (wanted.size() == 0) return;
  const Mat<const float> x = gather(wanted, s.x.view(), s.x_next);
  model_.backend().rms_norm(x, model_.final_norm().data(), c.rms_eps, s.normed.reshape(wanted.size(), c.D), pool_);
  const auto cap = [&](float* logits) {
    if (const float most = c.final_softcap; most > 0) {
      for (int v = 0; v < c.V; ++v) logits[v] = most * std::tanh(logits[v] / most);
    }
  };
  if (wanted.size() == 1) {  // straight to where they are wanted
    const auto one = std::find_if(chunks.begin(), chunks.end(), [&](const Chunk& chunk) {
      return wanted.size(static_cast<size_t>(&chunk - chunks.data())) == 1;
    });
    const MatmulJob job = model_.lm_head().job(Mat<float>(one->logits, 1, c.V));
    linear(chunks, wanted, s.normed.view(), {&job, 1});
    return cap(one->logits);
  }
  const Mat<float> out = s.gate.reshape(wanted.size(), c.V);
  const MatmulJob job = model_.lm_head().job(out);
  linear(chunks, wanted, s.normed.view(), {&job, 1});
  pool_.parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t index, int) {
    const auto i = static_cast<size_t>(index);
    if (!chunks[i].logits) return;
    for (int64_t r = 0; r < wanted.size(i); ++r) {
      std::copy_n(out.row(wanted.first[i] + r), c.V, chunks[i].logits + r * c.V);
      cap(chunks[i].logits + r * c.V);
    }
  });
}

void Driver::linear(std::span<Chunk> chunks, const Rows& rows, Mat<const float> x, std::span<const MatmulJob> jobs) {
  model_.backend().matmul(x, jobs, pool_);
  for (const MatmulJob& job : jobs) charge(chunks, rows, *job.w);
}

void Driver::ffn(std::span<Chunk> chunks, const Rows& rows, Mat<const float> x, const FfnJob& job) {
  model_.backend().ffn(x, job, pool_);
  for (const PackedWeight* w : {job.gate.w, job.up.w, job.down.w}) charge(chunks, rows, *w);
}

// One matmul, charged to the chunks by their rows; the weights' bytes are shared in proportion.
void Driver::charge(std::span<Chunk> chunks, const Rows& rows, const PackedWeight& w) {
  for (size_t i = 0; i < chunks.size(); ++i) {
    const double share = static_cast<double>(rows.size(i)) / static_cast<double>(rows.size());
    chunks[i].work.linear_flops += 2.0 * static_cast<double>(rows.size(i) * w.N * w.K);
    chunks[i].work.bytes += share * static_cast<double>(w.bytes);
  }
}

}  // namespace kvilt

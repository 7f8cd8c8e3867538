#include "forward/driver.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "forward/annex_rows.h"
#include "forward/each_row.h"
#include "forward/expert_routing.h"
#include "forward/ffn_rows.h"
#include "forward/head_layout.h"

namespace kvilt {

// Kept from step to step, so that a decode step allocates nothing. Which rows a matrix has:
//                     at the layer's start   after choose_rows, project, attend   after narrow
//   x                 rows                   rows                                 rows (those that leave)
//   attended          -                      query                                rows
struct Driver::Scratch {
  Rows rows;               // those in x
  Rows write, query, out;  // of a layer, out of rows: whose K and V are written, that attend, that leave
  Rows leaving, fed, routed, wanted;
  std::vector<Runs> united;            // per chunk; only where probes add rows
  std::vector<const Runs*> attending;  // per chunk
  FloatMat x, x_next, x_fed, normed, gathered;
  FloatMat q, k, v, attended, gate;
  FloatMat other_heads;        // memory of head_layout.h
  std::vector<uint8_t> feeds;  // by row
  ExpertRouting routing;
  FloatMat expert_out, expert_in, router_in, both;
  FloatMat token_rows, layer_inputs;
  Changes changes;
};

namespace {

const Runs kNone;

// a, or its union with b, for which `memory` is used.
const Runs* united(const Runs& a, const Runs& b, Runs& memory) {
  if (b.empty()) return &a;
  memory = unite(a, b);
  return &memory;
}

// The rows of the chunk's band that leave layer l.
const Runs& leaving_at(const Chunk& chunk, int l) { return chunk.band->out[l - chunk.band->layer_begin]; }

// What a model with a soft cap makes of V logits.
void cap(const ModelConfig& config, float* logits) {
  const float most = config.final_softcap;
  if (most <= 0) return;
  for (int v = 0; v < config.V; ++v) logits[v] = most * std::tanh(logits[v] / most);
}

Activation activation_of(const ModelConfig& config) {
  if (config.gate == Gate::kClampedSwiglu) return Activation::kClampedSwiglu;
  return config.gate == Gate::kGeluTanh ? Activation::kGeluTanh : Activation::kSilu;
}

}  // namespace

Driver::Driver(const PreparedModel& model, ThreadPool& pool)
    : model_(model), pool_(pool), carry_(model, pool), attend_(model, pool), scratch_(new Scratch) {}
Driver::~Driver() = default;
void Driver::release() {
  *scratch_ = Scratch();
  attend_.release();
}

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

// x = the rows that enter the band: embeddings, or the hidden states kept at the cut before.
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
      const int32_t pos = s.rows.pos[r];
      if (chunks[i].band->layer_begin == 0) {
        model_.embed(chunks[i].tokens[pos - chunks[i].tokens_at], x.row(r));
      } else {
        std::copy_n(chunks[i].hidden->row(pos), c.D, x.row(r));
      }
    }
  }
}

// Rows that enter the layer join those that come from below.
void Driver::join(std::span<Chunk> chunks, int l) {
  Scratch& s = *scratch_;
  join_rows(chunks, l, s.rows, s.x, s.out, s.x_next);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Stage& stage = *chunks[i].stage;
    const RowEntry* entry = stage.entry_at(l);
    const int64_t begin = s.rows.first[i], end = s.rows.first[i + 1];
    if (!entry || !stage.carry || begin == end) continue;
    const Mat<float> x = s.x.view().slice_rows(begin, end);
    const auto cost = carry_.carry_states({chunks[i].kv, &*stage.carry, entry, s.rows.pos_of(i), x}, *chunks[i].carry);
    chunks[i].work.attention_flops += cost.flops;
  }
}

void Driver::layer(std::span<Chunk> chunks, int l) {
  Scratch& s = *scratch_;
  const bool after_cut = l > 0 && l == chunks[0].band->layer_begin;
  const Part part = after_cut ? Part::kAfterCut : Part::kWhole;
  join(chunks, l);
  if (s.rows.size() == 0) return;
  choose_rows(chunks, l, part);
  project(chunks, l);
  attend(chunks, l, part);
  narrow(chunks, l);
  if (s.rows.size() == 0) return;
  choose_fed(chunks, l);
  add_attended(chunks, l);
  feed(chunks, l);
  add_layer_input(chunks, l);
  scale(model_.layer(l).scale, s.x.view());
}

// K and V of W(l) are stored, the probe rows look, and the hidden states wait for the next band.
void Driver::cut(std::span<Chunk> chunks, int l) {
  const Scratch& s = *scratch_;
  if (s.rows.size() == 0) return;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].band->last) continue;  // the stage ends here: nobody goes on from these rows
    for (int64_t r = s.rows.first[i]; r < s.rows.first[i + 1]; ++r) {
      std::copy_n(s.x.view().row(r), model_.config().D, chunks[i].hidden->row(s.rows.pos[r]));
    }
  }
  choose_rows(chunks, l, Part::kBeforeCut);
  project(chunks, l);
  attend(chunks, l, Part::kBeforeCut);
}

// write, query and out, out of the rows in x. Rows attend that leave the layer or that a probe of this layer names.
void Driver::choose_rows(std::span<Chunk> chunks, int l, Part part) {
  Scratch& s = *scratch_;
  const auto leaving = [&](size_t i) -> const Runs& {
    return part == Part::kBeforeCut ? kNone : leaving_at(chunks[i], l);
  };
  s.united.resize(std::max(s.united.size(), chunks.size()));
  s.attending.resize(chunks.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Runs probing = part == Part::kAfterCut ? lookers_at(*chunks[i].stage, l) : probe_rows(*chunks[i].stage, l);
    s.attending[i] = united(leaving(i), probing, s.united[i]);
  }
  const auto written = [&](size_t i) -> const Runs& {
    return part == Part::kAfterCut ? kNone : chunks[i].stage->write_at(l);
  };
  select(s.rows, chunks.size(), written, s.write);
  select(
      s.rows, chunks.size(), [&](size_t i) -> const Runs& { return *s.attending[i]; }, s.query);
  select(s.rows, chunks.size(), leaving, s.out);
  keep_written(chunks, l, s.write, s.x.view());
  // The plan's rows run through all layers; a layer that reads another's KV writes none.
  if (!model_.config().writes_kv(l)) {
    select(
        s.rows, chunks.size(), [](size_t) -> const Runs& { return kNone; }, s.write);
  }
}

// q of the query rows (rotated by RoPE) into s.q; k and v of the written rows into the page tables.
void Driver::project(std::span<Chunk> chunks, int l) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  const PreparedLayer& w = model_.layer(l);
  const Backend& backend = model_.backend();
  const Mat<float> normed = s.normed.reshape(s.rows.size(), c.D);
  backend.rms_norm(s.x.view(), w.attn_norm.data(), c.rms_eps, normed, pool_);
  const KvHeads heads = c.heads_at(l);
  const Mat<float> q = s.q.reshape(s.query.size(), int64_t{c.H} * heads.E);
  const Mat<float> k = s.k.reshape(s.write.size(), int64_t{heads.G} * heads.E);
  const Mat<float> v = s.v.reshape(s.write.size(), k.cols);
  const MatmulJob jobs[] = {w.q.job(q), w.k.job(k), w.v.job(v)};  // v last: a layer with v = k has none
  const std::span<const MatmulJob> all(jobs, w.v.w ? 3 : 2);
  if (s.write.all && s.query.all) {
    linear(chunks, s.query, normed, all);
  } else {
    if (s.write.size() > 0) linear(chunks, s.write, gather(s.write, normed, s.gathered), all.subspan(1));
    if (s.query.size() > 0) linear(chunks, s.query, gather(s.query, normed, s.gathered), all.first(1));
  }
  if (!w.v.w) std::copy_n(k.data, k.rows * k.cols, v.data);
  if (c.qk_norm) {
    backend.head_norm(q, heads.E, w.q_norm.data(), c.rms_eps, pool_);
    backend.head_norm(k, heads.E, w.k_norm.data(), c.rms_eps, pool_);
  }
  if (c.v_norm) backend.head_norm(v, heads.E, w.v_norm.data(), c.rms_eps, pool_);
  widen_heads(s.q, {c.H, heads.E}, {c.H, c.E}, s.other_heads, pool_);
  for (FloatMat* kv : {&s.k, &s.v}) widen_heads(*kv, {heads.G, heads.E}, {c.G, c.E}, s.other_heads, pool_);
  rotate(chunks, l, s.query, s.q.view());
  rotate(chunks, l, s.write, s.k.view());
  for (size_t i = 0; i < chunks.size(); ++i) {
    const int64_t begin = s.write.first[i], end = s.write.first[i + 1];
    if (begin == end) continue;
    store(chunks[i],
          {chunks[i].kv, l, s.write.pos_of(i), s.k.view().slice_rows(begin, end), s.v.view().slice_rows(begin, end)});
  }
}

// Rotates x by the RoPE of each row's sequence: one for all, but LongRoPE has another for long sequences.
void Driver::rotate(std::span<Chunk> chunks, int l, const Rows& rows, Mat<float> x) {
  for (size_t first = 0, last = 0; first < chunks.size(); first = last) {
    const RopeConfig& rope = chunks[first].kv->ropes().at(l);
    while (last < chunks.size() && &chunks[last].kv->ropes().at(l) == &rope) ++last;
    const int64_t begin = rows.first[first], end = rows.first[last];
    if (begin == end) continue;
    const auto pos = std::span(rows.pos).subspan(begin, end - begin);
    model_.backend().rope(x.slice_rows(begin, end), model_.config().E, pos, rope, pool_);
  }
}

// K and V of a chunk's written rows into its page table. Before that they are compared with their placed twins, where a
// probe or a carry asks for it; after it the twins' neighbours take the change over.
void Driver::store(Chunk& chunk, const FreshRows& rows) {
  const Stage& stage = *chunk.stage;
  const KvShape& shape = chunk.kv->shape();
  Changes& changes = scratch_->changes;
  if (!stage.keeps_placed.empty()) {
    carry_.keep(rows, std::span(stage.keeps_placed).subspan(rows.layer * shape.G, shape.G));
  }
  if (stage.carry || ProbePass::compares(stage, rows.layer)) carry_.compare(rows, changes);
  ProbePass::compare(stage, rows, changes, chunk.probes);
  if (stage.fate) carry_.mix_with_placed(rows, *stage.fate);
  for (int64_t r = 0; r < rows.k.rows; ++r) {
    chunk.kv->write(rows.layer, rows.pos[r], rows.k.row(r), rows.v.row(r));
  }
  chunk.work.bytes += 2.0 * static_cast<double>(rows.k.rows * shape.G * shape.row_bytes());
  if (stage.carry) {
    CHECK(chunk.carry);
    const auto cost = carry_.carry(*stage.carry, stage.write_at(rows.layer), rows, changes, *chunk.carry);
    chunk.work.attention_flops += cost.flops;
    chunk.work.bytes += cost.bytes;
  }
}

// s.attended = attention of s.q, in the layer's own heads.
void Driver::attend(std::span<Chunk> chunks, int l, Part part) {
  Scratch& s = *scratch_;
  if (s.query.size() == 0) return;
  const Mat<float> out = s.attended.reshape(s.query.size(), s.q.view().cols);
  attend_.run(chunks, {l, part != Part::kAfterCut}, s.query, s.q.view(), out);
  const ModelConfig& c = model_.config();
  narrow_heads(s.attended, {c.H, c.E}, {c.H, c.heads_at(l).E}, s.other_heads, pool_);
}

// x and attended keep only the rows that leave the layer: rows that were only written or probed end here.
void Driver::narrow(std::span<Chunk> chunks, int l) {
  Scratch& s = *scratch_;
  if (s.out.size() < s.query.size()) {
    const auto leaving = [&](size_t i) -> const Runs& { return leaving_at(chunks[i], l); };
    keep_rows(select(s.query, chunks.size(), leaving, s.leaving), s.attended, s.gathered);
  }
  keep_rows(s.out, s.x, s.x_next);
  s.out.all = true;  // of the new x
  std::swap(s.rows, s.out);
}

// s.fed: of the rows in x, those that run the FFN. REQUIRES: x holds the residuals before attended is added.
void Driver::choose_fed(std::span<Chunk> chunks, int l) {
  Scratch& s = *scratch_;
  Rows& fed = s.fed;
  fed.clear();
  const bool experts = model_.config().sparse(l);
  fed.all = std::ranges::all_of(
      chunks, [&](const Chunk& chunk) { return !chunk.stage->ffn || chunk.stage->ffn->takes_all(l, experts); });
  if (fed.all) return;
  s.feeds.assign(static_cast<size_t>(s.rows.size()), 1);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto& rule = chunks[i].stage->ffn;
    const int64_t begin = s.rows.first[i], end = s.rows.first[i + 1];
    if (!rule || begin == end) continue;
    const Runs looks = rows_that_only_look(*chunks[i].stage, l);
    choose_ffn_rows(*rule,
                    {l, chunks[i].plan->prompt_len, s.rows.pos_of(i), s.attended.view().slice_rows(begin, end),
                     s.x.view().slice_rows(begin, end), experts, looks},
                    s.feeds.data() + begin);
  }
  select_if(
      s.rows, [&](int64_t r) { return s.feeds[r] != 0; }, fed);
}

// x += Wo attended.
void Driver::add_attended(std::span<Chunk> chunks, int l) {
  Scratch& s = *scratch_;
  const PreparedLayer& w = model_.layer(l);
  const MatmulJob job = residual_job(w.o, w.post_attn_norm, s.x.view());
  linear(chunks, s.rows, s.attended.view(), {&job, 1});
  add_normed(w.post_attn_norm, s.x.view());
}

// x += FFN(norm(x)), of the fed rows: the others cost nothing and keep their residual.
void Driver::feed(std::span<Chunk> chunks, int l) {
  Scratch& s = *scratch_;
  if (s.fed.all) return feed_rows(chunks, l, s.rows, s.x.view());
  if (s.fed.size() == 0) return;
  gather(s.fed, s.x.view(), s.x_fed);
  feed_rows(chunks, l, s.fed, s.x_fed.view());
  scatter(s.fed, s.x_fed.view(), s.x.view());
}

// x += FFN(norm(x)). x: the hidden states of `rows`.
void Driver::feed_rows(std::span<Chunk> chunks, int l, const Rows& rows, Mat<float> x) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  const PreparedLayer& w = model_.layer(l);
  model_.backend().rms_norm(x, w.ffn_norm.data(), c.rms_eps, s.normed.reshape(x.rows, c.D), pool_);
  if (c.sparse(l) && c.experts.beside_dense) return feed_beside(chunks, l, rows, x);
  if (c.sparse(l)) return feed_experts(chunks, l, rows, {s.normed.view(), s.normed.view()}, x);
  const MatmulJob down = residual_job(w.down, w.post_ffn_norm, x);
  ffn(chunks, rows, s.normed.view(), {w.gate.job({}), w.up.job({}), down, activation_of(c)});
  add_normed(w.post_ffn_norm, x);
}

// The sparse layer's FFN: x += sum of weight * FFN of each chosen expert, in the order of the experts' numbers. Each
// expert takes the rows that chose it as a matmul of their own, so a row's sum depends on nothing but its own choice.
// in: what the router and what the experts take of each row.
void Driver::feed_experts(std::span<Chunk> chunks, int l, const Rows& rows, const ExpertInputs& in, Mat<float> x) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  const PreparedLayer& w = model_.layer(l);
  const Mat<float> logits = s.gate.reshape(x.rows, c.experts.count);
  const MatmulJob router = w.router.job(logits);
  linear(chunks, rows, in.router, {&router, 1});
  s.routing.route(logits, c.experts.top_k, c.experts.renormalise);
  for (int e = 0; e < c.experts.count; ++e) {
    const std::span<const RoutedRow> routed = s.routing.rows_of(e);
    if (routed.empty()) continue;
    const Rows& chosen = select_routed(rows, routed, s.routed);
    const PreparedExpert& expert = w.experts[e];
    const Mat<float> out = s.expert_out.reshape(chosen.size(), c.D);
    ffn(chunks, chosen, gather(chosen, in.experts, s.gathered),
        {expert.gate.job({}), expert.up.job({}), expert.down.job(out), activation_of(c)});
    for (int64_t r = 0; r < out.rows; ++r) {
      float* to = x.row(routed[r].row);
      const float weight = routed[r].weight * expert.scale;
      for (int d = 0; d < c.D; ++d) to[d] += weight * out.row(r)[d];
    }
  }
}

// gemma 4: x += norm(norm(FFN(norm(x))) + norm(experts(norm(x)))), each norm with weights of its own; the router has one
// more. REQUIRES: s.normed = the dense FFN's input.
void Driver::feed_beside(std::span<Chunk> chunks, int l, const Rows& rows, Mat<float> x) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  const PreparedLayer& w = model_.layer(l);
  const Backend& backend = model_.backend();
  const auto normed = [&](Mat<const float> from, const std::vector<float>& norm, Mat<float> to) {
    backend.rms_norm(from, norm.data(), c.rms_eps, to, pool_);
    return to;
  };
  const Mat<float> both = s.both.reshape(x.rows, c.D);
  ffn(chunks, rows, s.normed.view(), {w.gate.job({}), w.up.job({}), w.down.job(both), activation_of(c)});
  normed(both, w.beside.post_dense_norm, both);
  const ExpertInputs in{normed(x, w.beside.router_norm, s.router_in.reshape(x.rows, c.D)),
                        normed(x, w.beside.expert_norm, s.expert_in.reshape(x.rows, c.D))};
  const Mat<float> mixed = s.normed.reshape(x.rows, c.D);
  std::fill_n(mixed.data, mixed.rows * mixed.cols, 0.0f);
  feed_experts(chunks, l, rows, in, mixed);
  normed(mixed, w.beside.post_expert_norm, mixed);
  add(both, mixed);
  add_normed(w.post_ffn_norm, x);
}

// gemma 4: x += norm(Wo (gelu(Wg x) * i)), where i is what the layer gets of the row's token: from an embedding of the
// layer's own, and projected from the model's. It is made from the token where it is needed, so that rows that wait at a
// cut or enter above it need no state of it.
void Driver::add_layer_input(std::span<Chunk> chunks, int l) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  if (c.layer_input == 0) return;
  const PreparedLayerInput& w = model_.layer(l).input;
  const Mat<float> x = s.x.view(), tokens = s.token_rows.reshape(x.rows, c.D);
  const auto token_at = [&](size_t i, int64_t r) { return chunks[i].tokens[s.rows.pos[r] - chunks[i].tokens_at]; };
  for (size_t i = 0; i < chunks.size(); ++i) {
    for (int64_t r = s.rows.first[i]; r < s.rows.first[i + 1]; ++r) model_.embed(token_at(i, r), tokens.row(r));
  }
  const Mat<float> input = s.layer_inputs.reshape(x.rows, c.layer_input);
  const MatmulJob project = w.projection.job(input);
  linear(chunks, s.rows, tokens, {&project, 1});
  scale(1 / std::sqrt(static_cast<float>(c.D)), input);
  model_.backend().rms_norm(input, model_.layer_projection_norm().data(), c.rms_eps, input, pool_);
  const Mat<float> own = s.gathered.reshape(x.rows, c.layer_input);
  for (size_t i = 0; i < chunks.size(); ++i) {
    for (int64_t r = s.rows.first[i]; r < s.rows.first[i + 1]; ++r) model_.embed_for(l, token_at(i, r), own.row(r));
  }
  add(own, input);
  scale(std::sqrt(0.5f), input);
  const Mat<float> gated = s.gate.reshape(x.rows, c.layer_input);
  const MatmulJob gate = w.gate.job(gated), out = w.out.job(s.normed.reshape(x.rows, c.D));
  linear(chunks, s.rows, x, {&gate, 1});
  model_.backend().act_mul(activation_of(c), gated, input, pool_);
  linear(chunks, s.rows, gated, {&out, 1});
  add_normed(w.norm, x);
}

// What adds last's outputs to x. With a norm they go to s.normed, which add_normed() then adds.
MatmulJob Driver::residual_job(const PreparedLinear& last, const std::vector<float>& norm, Mat<float> x) {
  return norm.empty() ? last.job(x, true) : last.job(scratch_->normed.reshape(x.rows, x.cols));
}

// x += norm(s.normed); nothing without a norm.
void Driver::add_normed(const std::vector<float>& norm, Mat<float> x) {
  if (norm.empty()) return;
  const Mat<float> y = scratch_->normed.view();
  model_.backend().rms_norm(y, norm.data(), model_.config().rms_eps, y, pool_);
  add(y, x);
}

// x += y.
void Driver::add(Mat<const float> y, Mat<float> x) {
  each_row(pool_, x.rows, [&](int64_t r) {
    float* to = x.row(r);
    const float* from = y.row(r);
    for (int64_t i = 0; i < x.cols; ++i) to[i] += from[i];
  });
}

void Driver::scale(float by, Mat<float> x) {
  if (by == 1) return;
  each_row(pool_, x.rows, [&](int64_t r) {
    for (float* at = x.row(r); at != x.row(r) + x.cols; ++at) *at *= by;
  });
}

// Final norm and head of rows of one chunk, a few at a time: V floats a row are too many to have of a whole chunk.
void Driver::score(Chunk& chunk, std::span<const int32_t> pos, Mat<const float> x) {
  constexpr int64_t kRows = 32;  // enough that reading the head costs less than multiplying with it
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  const PackedWeight& head = *model_.lm_head().w;
  for (int64_t at = 0; at < x.rows; at += kRows) {
    const int64_t n = std::min(kRows, x.rows - at);
    const Mat<float> normed = s.normed.reshape(n, c.D), out = s.gate.reshape(n, c.V);
    model_.backend().rms_norm(x.slice_rows(at, at + n), model_.final_norm().data(), c.rms_eps, normed, pool_);
    const MatmulJob job = model_.lm_head().job(out);
    model_.backend().matmul(normed, {&job, 1}, pool_);
    chunk.work.linear_flops += 2.0 * static_cast<double>(n * head.N * head.K);
    chunk.work.bytes += static_cast<double>(head.bytes);
    pool_.parallel_for(n, [&](int64_t r, int) {
      cap(c, out.row(r));
      chunk.scores->take(pos[static_cast<size_t>(at + r)], {out.row(r), static_cast<size_t>(c.V)});
    });
  }
}

void Driver::logits(std::span<Chunk> chunks) {
  Scratch& s = *scratch_;
  const ModelConfig& c = model_.config();
  Rows& wanted = s.wanted;
  wanted.clear();
  for (size_t i = 0; i < chunks.size(); ++i) {
    int64_t r = s.rows.first[i];
    const int64_t begin = r, end = s.rows.first[i + 1];
    while (chunks[i].scores && r < end && chunks[i].scores->takes(s.rows.pos[r])) ++r;  // all but the prompt's last
    if (r > begin) {
      const auto pos = std::span<const int32_t>(s.rows.pos).subspan(begin, r - begin);
      score(chunks[i], pos, s.x.view().slice_rows(begin, r));
    }
    for (; chunks[i].logits && r < end; ++r) wanted.push(s.rows.pos[r], r);
    wanted.first.push_back(wanted.size());
  }
  if (wanted.size() == 0) return;
  const Mat<const float> x = gather(wanted, s.x.view(), s.x_next);
  model_.backend().rms_norm(x, model_.final_norm().data(), c.rms_eps, s.normed.reshape(wanted.size(), c.D), pool_);
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].last_hidden && wanted.size(i) > 0)
      std::copy_n(s.normed.view().row(wanted.first[i + 1] - 1), c.D, chunks[i].last_hidden);
  }
  if (wanted.size() == 1) {  // straight to where they are wanted
    size_t i = 0;
    while (wanted.size(i) == 0) ++i;
    const MatmulJob job = model_.lm_head().job(Mat<float>(chunks[i].logits, 1, c.V));
    linear(chunks, wanted, s.normed.view(), {&job, 1});
    return cap(c, chunks[i].logits);
  }
  const Mat<float> out = s.gate.reshape(wanted.size(), c.V);
  const MatmulJob job = model_.lm_head().job(out);
  linear(chunks, wanted, s.normed.view(), {&job, 1});
  pool_.parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t i, int) {
    if (!chunks[i].logits) return;
    for (int64_t r = 0; r < wanted.size(i); ++r) {
      std::copy_n(out.row(wanted.first[i] + r), c.V, chunks[i].logits + r * c.V);
      cap(c, chunks[i].logits + r * c.V);
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

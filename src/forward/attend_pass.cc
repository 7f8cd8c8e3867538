#include "forward/attend_pass.h"

#include <algorithm>

#include "forward/key_masks.h"

namespace kvilt {

void AttendPass::run(std::span<Chunk> chunks, At at, const BatchRows& rows, Mat<float> q, Mat<float> out) {
  lists_.lse.resize(static_cast<size_t>(rows.size() * model_.config().H));
  lists_.spans.clear();
  lists_.span_first.assign(1, 0);
  lists_.tasks.clear();
  bool probing = false, looked_at = false;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (rows.size(i) == 0) continue;
    Chunk& chunk = chunks[i];
    probing = probing || (at.probes && !probe_rows(*chunk.stage, at.layer).empty());
    looked_at = looked_at || chunk.keys;
    if (const int32_t pos = rows.pos_of(i).front(); chunk.keys && chunk.keys->chooses_at({at.layer, pos}))
      choose(chunk, at.layer, pos);
    add_tasks(chunk, i, at.layer, {rows, q, out});
  }
  for (size_t t = 0; t < lists_.tasks.size(); ++t) {
    if (lists_.span_first[t] < lists_.span_first[t + 1])
      lists_.tasks[t].spans =
          std::span(lists_.spans).subspan(lists_.span_first[t], lists_.span_first[t + 1] - lists_.span_first[t]);
    if (!probing && !looked_at) lists_.tasks[t].lse = nullptr;
  }
  const DType kv_type = chunks[0].kv->shape().dtype;
  model_.backend().attend(model_.attend_shape(kv_type), lists_.tasks, pool_);
  if (probing) probe(chunks, at.layer, rows);
  if (!looked_at) return;
  size_t t = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (rows.size(i) == 0) continue;
    const auto heads = std::span<const AttendTask>(lists_.tasks).subspan(t, static_cast<size_t>(model_.config().G));
    if (chunks[i].keys) keep_queries(chunks[i], at.layer, rows.pos_of(i), heads);
    t += heads.size();
  }
}

// The row of the answer at pos chooses the keys of this layer.
void AttendPass::choose(Chunk& chunk, int layer, int32_t pos) {
  const ModelConfig& c = model_.config();
  lists_.masks.clear();
  for (int g = 0; g < c.G; ++g) lists_.masks.push_back(mask_of(*chunk.plan, c, layer, g));
  const SelectedKeys::Cost cost = chunk.keys->choose(model_, *chunk.kv, lists_.masks, {layer, pos}, pool_);
  chunk.work.attention_flops += cost.flops;
  chunk.work.bytes += cost.bytes;
}

// The tasks of chunk i, one per KV head, and what they cost. Spans that lie in lists_.spans are set when all are there.
void AttendPass::add_tasks(Chunk& chunk, size_t i, int layer, const Batch& batch) {
  const ModelConfig& c = model_.config();
  const int group = c.H / c.G;
  const int64_t first = batch.rows.first[i], rows = batch.rows.size(i);
  const std::span<const int32_t> pos = batch.rows.pos_of(i);
  for (int g = 0; g < c.G; ++g) {
    AttendTask task;
    task.q = batch.q.row(first) + g * group * c.E;
    task.out = batch.out.row(first) + g * group * c.E;
    task.q_stride = task.out_stride = batch.out.stride;
    task.pos = pos;
    task.mask = mask_of(*chunk.plan, c, layer, g);
    task.lse = lists_.lse.data() + first * c.H + g * rows * group;
    const SelectedKeys::Seen* seen =
        chunk.keys ? chunk.keys->seen(*chunk.kv, task.mask, {layer, pos.front()}, g) : nullptr;
    double keys = 0, flops = 0;
    if (seen) {
      task.spans = seen->spans;
      task.pos = seen->row;
      task.mask = {};  // ranks, which no window means
      keys = seen->row[0] + 1;
    } else {
      chunk.kv->resolve(layer, g, {pos.front(), pos.back() + 1}, task.mask, lists_.spans);
      for (size_t j = lists_.span_first.back(); j < lists_.spans.size(); ++j) keys += lists_.spans[j].count;
    }
    if (task.mask.reach >= 0) keys = std::min<double>(keys, pos.back() - pos.front() + 1.0 + task.mask.reach);
    for (const int32_t p : task.pos) flops += 4.0 * c.E * group * visible(task.mask, p);
    chunk.work.attention_flops += flops;
    chunk.work.bytes += 2.0 * keys * static_cast<double>(chunk.kv->shape().row_bytes());
    lists_.span_first.push_back(lists_.spans.size());
    lists_.tasks.push_back(task);
  }
}

// What this layer's probes see. REQUIRES: the tasks have attended, with lse.
void AttendPass::probe(std::span<Chunk> chunks, int layer, const BatchRows& rows) {
  size_t t = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (rows.size(i) == 0) continue;
    const auto heads = std::span<const AttendTask>(lists_.tasks).subspan(t, static_cast<size_t>(model_.config().G));
    const AttendedRows attended{layer, chunks[i].plan->prompt_len, chunks[i].kv->shape().dtype, heads};
    chunks[i].work.attention_flops += probes_.look(*chunks[i].stage, attended, chunks[i].probes);
    t += heads.size();
  }
}

// The queries that a later choice looks with: the last stage's. pos: the rows' positions, not their ranks.
void AttendPass::keep_queries(const Chunk& chunk, int layer, std::span<const int32_t> pos,
                              std::span<const AttendTask> heads) {
  if (chunk.stage != &chunk.plan->stages.back()) return;
  const ModelConfig& c = model_.config();
  const int64_t group = c.H / c.G;
  lists_.row_lse.resize(static_cast<size_t>(c.H));
  for (size_t r = 0; r < pos.size(); ++r) {
    if (!chunk.keys->wants_query(pos[r])) continue;
    for (int64_t g = 0; g < c.G; ++g)
      std::copy_n(heads[g].lse + static_cast<int64_t>(r) * group, group, lists_.row_lse.begin() + g * group);
    chunk.keys->keep_query(layer, pos[r], heads[0].q + static_cast<int64_t>(r) * heads[0].q_stride, lists_.row_lse);
  }
}

}  // namespace kvilt

#include "forward/attend_pass.h"

#include <algorithm>

#include "forward/held_mass.h"
#include "forward/key_masks.h"
#include "forward/pattern_trials.h"

namespace kvilt {
namespace {

// Whether the chunk's rows at the layer are those of the last stage. At a cut rows attend for its probes only.
bool counts(const Chunk& chunk, int layer) {
  return chunk.stage == &chunk.plan->stages.back() && layer != chunk.band->layer_end;
}

// Such keys are read, each of one head.
void add_cost(Chunk& chunk, const VisibleKeys::Cost& cost) {
  chunk.work.attention_flops += cost.flops;
  chunk.work.bytes += 2.0 * cost.keys * static_cast<double>(chunk.kv->shape().row_bytes());
}

}  // namespace

void AttendPass::run(std::span<Chunk> chunks, At at, const BatchRows& rows, Mat<float> q, Mat<float> out) {
  lists_.lse.resize(static_cast<size_t>(rows.size() * model_.config().H));
  lists_.spans.clear();
  lists_.span_first.assign(1, 0);
  lists_.tasks.clear();
  lists_.chunk_first.clear();
  lists_.seen.assign(chunks.size(), nullptr);
  const Batch batch{rows, q, out};
  bool probing = false, lse_wanted = false;
  for (size_t i = 0; i < chunks.size(); ++i) {
    lists_.chunk_first.push_back(lists_.tasks.size());
    if (rows.size(i) == 0) continue;
    Chunk& chunk = chunks[i];
    probing = probing || (at.probes && !probe_rows(*chunk.stage, at.layer).empty());
    lse_wanted = lse_wanted || chunk.keys || chunk.measures_held || chunk.trials;
    if (chunk.keys && chunk.keys->chooses_at({at.layer, rows.pos_of(i).front()})) choose(chunk, i, at.layer, batch);
    add_tasks(chunk, i, at.layer, batch);
  }
  for (size_t t = 0; t < lists_.tasks.size(); ++t) {
    const size_t first = lists_.span_first[t], last = lists_.span_first[t + 1];
    if (first < last) lists_.tasks[t].spans = std::span(lists_.spans).subspan(first, last - first);
    if (!probing && !lse_wanted && !sparse_.skips() && !far_.joins()) lists_.tasks[t].lse = nullptr;
  }
  const DType kv_type = chunks[0].kv->shape().dtype;
  model_.backend().attend(model_.attend_shape(kv_type), lists_.tasks, pool_);
  far_.join();
  if (probing) probe(chunks, at.layer, rows);
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (rows.size(i) == 0 || !counts(chunks[i], at.layer)) continue;
    if (chunks[i].keys) tell_keys(chunks[i], i, at.layer, batch);
    if (chunks[i].measures_held) measure_held(chunks[i], i, at.layer, batch);
    if (chunks[i].trials) try_patterns(chunks[i], i, at.layer, batch);
  }
  sparse_.join_skipped(kv_type);
  sparse_.clear();
  visible_.clear();
  far_.clear();
}

// Chunk i's rows.
RowsAt AttendPass::rows_at(size_t i, int layer, const Batch& batch) {
  const int64_t first = batch.rows.first[i], end = first + batch.rows.size(i);
  return {layer, batch.rows.pos_of(i), batch.q.slice_rows(first, end), batch.out.slice_rows(first, end),
          lists_.lse.data() + first * model_.config().H};
}

void AttendPass::find_masks(const Chunk& chunk, int layer) {
  const ModelConfig& c = model_.config();
  lists_.masks.clear();
  for (int g = 0; g < c.G; ++g) lists_.masks.push_back(mask_of(*chunk.plan, c, layer, g));
}

// Chunk i's row, which is of an answer, chooses the keys of this layer.
void AttendPass::choose(Chunk& chunk, size_t i, int layer, const Batch& batch) {
  find_masks(chunk, layer);
  const LayerRow at{layer, batch.rows.pos_of(i).front()};
  const float* q = batch.q.row(batch.rows.first[i]);
  const ChoiceCost cost = chunk.keys->choose({model_, *chunk.kv, pool_}, lists_.masks, at, q);
  chunk.work.attention_flops += cost.flops;
  chunk.work.bytes += cost.bytes;
}

// The tasks of chunk i, one per KV head, and what they cost. Spans that lie in lists_.spans are set when all are there.
void AttendPass::add_tasks(Chunk& chunk, size_t i, int layer, const Batch& batch) {
  const ModelConfig& c = model_.config();
  const int group = c.H / c.G;
  const int64_t first = batch.rows.first[i], rows = batch.rows.size(i);
  const std::span<const int32_t> pos = batch.rows.pos_of(i);
  if (sees_far(chunk, layer)) return add_far(chunk, i, layer, batch);
  if (chunk.stage->hides_at(layer)) return add_visible(chunk, i, layer, batch);
  if (!chunk.stage->sights.empty()) return add_sights(chunk, i, layer, batch);
  const bool sparse = chunk.plan->sparse && chunk.stage == &chunk.plan->stages.back();
  lists_.sparse_heads.clear();
  for (int g = 0; g < c.G; ++g) {
    AttendTask task;
    task.q = batch.q.row(first) + g * group * c.E;
    task.out = batch.out.row(first) + g * group * c.E;
    task.q_stride = task.out_stride = batch.out.stride;
    task.pos = pos;
    task.mask = mask_of(*chunk.plan, c, layer, g);
    task.sinks = model_.sinks(layer, g);
    if (sparse && sees_all(task.mask, pos.front())) {
      lists_.sparse_heads.push_back(g);
      continue;
    }
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
  if (lists_.sparse_heads.empty()) return;
  const SparseCost cost =
      sparse_.add_tasks(*chunk.plan, *chunk.kv, rows_at(i, layer, batch), lists_.sparse_heads, lists_.tasks);
  chunk.work.attention_flops += cost.flops;
  chunk.work.bytes += 2.0 * cost.keys * static_cast<double>(chunk.kv->shape().row_bytes());
  lists_.span_first.resize(lists_.tasks.size() + 1, lists_.spans.size());  // they have their own
}

// Tasks of rows that see all keys but these, and what they cost. Returns what VisibleKeys does.
const Runs* AttendPass::add_seen(Chunk& chunk, const RowsAt& rows, const Runs& unseen) {
  VisibleKeys::Cost cost;
  const Runs* const seen = visible_.add_tasks(unseen, *chunk.kv, rows, lists_.tasks, cost);
  add_cost(chunk, cost);
  return seen;
}

// add_tasks() where the stage hides keys.
void AttendPass::add_visible(Chunk& chunk, size_t i, int layer, const Batch& batch) {
  lists_.seen[i] = add_seen(chunk, rows_at(i, layer, batch), chunk.stage->unseen[layer]);
  lists_.span_first.resize(lists_.tasks.size() + 1, lists_.spans.size());  // they have their own
}

// Whether rows of the chunk may see keys at one distance. At a cut those of its probes find them where they are.
bool AttendPass::sees_far(const Chunk& chunk, int layer) const {
  const auto& far = chunk.stage->far;
  return far && far->before > 0 && counts(chunk, layer) && model_.config().window_at(layer) < 0;
}

// add_tasks() where rows see keys at one distance: the rows before such ones, then these over near keys and far ones.
void AttendPass::add_far(Chunk& chunk, size_t i, int layer, const Batch& batch) {
  static const Runs kNone;
  const FarKeys& far = *chunk.stage->far;
  const Runs& unseen = chunk.stage->hides_at(layer) ? chunk.stage->unseen[layer] : kNone;
  const RowsAt rows = rows_at(i, layer, batch);
  const int64_t all = std::ssize(rows.pos), group = model_.config().H / model_.config().G;
  const int64_t first = std::ranges::lower_bound(rows.pos, far.rows) - rows.pos.begin();
  if (first > 0) add_seen(chunk, rows.part(0, first, group), unseen);
  if (first < all) {
    const RowsAt behind = rows.part(first, all, group);
    const Runs border{{0, far.before}};
    add_seen(chunk, behind, unite(unseen, border));
    const FarRows::Keys keys{subtract(border, unseen), far.distance};
    if (!keys.positions.empty()) add_cost(chunk, far_.add_tasks(keys, *chunk.kv, behind, lists_.tasks));
  }
  lists_.span_first.resize(lists_.tasks.size() + 1, lists_.spans.size());  // they have their own
}

// add_tasks() where some rows see less than others: a task for each run of rows with the same sight, and KV head.
void AttendPass::add_sights(Chunk& chunk, size_t i, int layer, const Batch& batch) {
  const RowsAt rows = rows_at(i, layer, batch);
  const auto sight_of = [&](int64_t r) { return chunk.stage->sight_of(rows.pos[r]); };
  for (int64_t begin = 0, end = 0; begin < std::ssize(rows.pos); begin = end) {
    const Sight* sight = sight_of(begin);
    while (end < std::ssize(rows.pos) && sight_of(end) == sight) ++end;
    const Runs unseen = sight ? subtract(Runs{{0, rows.pos[end - 1] + 1}}, sight->keys) : Runs{};
    add_seen(chunk, rows.part(begin, end, model_.config().H / model_.config().G), unseen);
  }
  lists_.span_first.resize(lists_.tasks.size() + 1, lists_.spans.size());  // they have their own
}

// What this layer's probes see. REQUIRES: the tasks have attended, with lse; one per KV head of each chunk with probes.
void AttendPass::probe(std::span<Chunk> chunks, int layer, const BatchRows& rows) {
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (rows.size(i) == 0 || chunks[i].stage->probes.empty()) continue;
    const auto heads = std::span<const AttendTask>(lists_.tasks)
                           .subspan(lists_.chunk_first[i], static_cast<size_t>(model_.config().G));
    const AttendedRows attended{
        layer,       chunks[i].plan->prompt_len, chunks[i].kv->shape().dtype, heads, rows.pos_of(i), lists_.seen[i],
        chunks[i].kv};
    chunks[i].work.attention_flops += probes_.look(*chunks[i].stage, attended, chunks[i].probes);
  }
}

// How much of full attention the rows saw that see few keys.
void AttendPass::measure_held(Chunk& chunk, size_t i, int layer, const Batch& batch) {
  find_masks(chunk, layer);
  std::vector<int> heads;
  for (int g = 0; g < model_.config().G; ++g) {
    if (sees_all(lists_.masks[g], batch.rows.pos_of(i).front())) heads.push_back(g);
  }
  chunk.work.held += held_mass(model_, *chunk.kv, rows_at(i, layer, batch), heads, pool_);
}

// What its rows would see of their attention.
void AttendPass::try_patterns(Chunk& chunk, size_t i, int layer, const Batch& batch) {
  find_masks(chunk, layer);
  std::vector<int> heads;
  for (int g = 0; g < model_.config().G; ++g) {
    if (sees_all(lists_.masks[g], batch.rows.pos_of(i).front())) heads.push_back(g);
  }
  run_trials(model_, {*chunk.plan, *chunk.kv, rows_at(i, layer, batch)}, heads, *chunk.trials, pool_);
}

// A later choice may look with these rows.
void AttendPass::tell_keys(Chunk& chunk, size_t i, int layer, const Batch& batch) {
  find_masks(chunk, layer);
  const RowsAt rows = rows_at(i, layer, batch);
  const ChoiceCost cost =
      chunk.keys->attended({model_, *chunk.kv, pool_}, {layer, rows.pos, rows.q, rows.lse, lists_.masks, {}});
  chunk.work.attention_flops += cost.flops;
  chunk.work.bytes += cost.bytes;
}

}  // namespace kvilt

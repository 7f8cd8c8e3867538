#include "plan/plan.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace kvilt {

namespace {

bool is_cut(const Stage& stage, int layer) { return std::ranges::find(stage.cuts, layer) != stage.cuts.end(); }

// Rows that layer `layer` itself names: written there, or probing there.
Runs named_at(const Stage& stage, int layer) {
  if (layer == stage.layer_end && !is_cut(stage, layer)) return {};
  return unite(stage.write_at(layer), probe_rows(stage, layer));
}

// Of the rows in(layer), those that the layer below gives.
Runs from_below(const Stage& stage, int layer, Runs in) {
  const RowEntry* entry = stage.entry_at(layer);
  return entry ? subtract(in, entry->rows) : std::move(in);
}

int64_t sums_of_layer(const ProbeSpec& spec, const ModelConfig& config) {
  const int64_t rows = count(spec.rows), block = spec.block;
  return spec.estimator == Estimator::kQueries     ? int64_t{config.H} * config.E
         : spec.estimator == Estimator::kBlockKeys ? (rows + block - 1) / block * config.G * config.E
                                                   : rows * kFadeSums;
}

}  // namespace

int64_t probe_bytes(const ProbeSpec& spec, const ModelConfig& config) {
  if (!per_layer_sums(spec.estimator)) return 0;
  return std::ssize(spec.layers) * sums_of_layer(spec, config) * static_cast<int64_t>(sizeof(double));
}

Probe empty_probe(const ProbeSpec& spec, const ModelConfig& config, int32_t prompt_len) {
  Probe out;
  const auto layers = static_cast<size_t>(config.L);
  if (spec.estimator == Estimator::kOutside) {
    out.outside.assign(layers * static_cast<size_t>(config.H) * spec.views.size(), 0);
  } else if (spec.estimator == Estimator::kWeights) {
    out.weights.resize(layers);
  } else if (per_layer_sums(spec.estimator)) {
    out.sums.resize(layers);
    for (const int layer : spec.layers) out.sums[layer].assign(static_cast<size_t>(sums_of_layer(spec, config)), 0);
  } else {
    out.score.assign(static_cast<size_t>(prompt_len), 0);
  }
  return out;
}

const Runs& lookers_at(const Stage& stage, int layer) {
  static const Runs none;
  return layer + 1 == stage.layer_end ? stage.lookers : none;
}

Runs probe_rows(const Stage& stage, int layer) {
  Runs rows = lookers_at(stage, layer);
  for (const ProbeSpec& probe : stage.probes) {
    if (looks(probe.estimator) && probe.at(layer)) rows = unite(rows, probe.rows);
  }
  return rows;
}

bool Plan::narrowed() const {
  const auto narrow_stage = [](const Stage& stage) {
    return stage.ffn.has_value() || !stage.keeps_placed.empty() || !stage.unseen.empty() || stage.far;
  };
  if (std::ranges::any_of(stages, narrow_stage)) return true;
  const auto narrow = [this](uint16_t view) { return !views[view].all(); };
  return head_view.empty() ? narrow(0) : std::ranges::any_of(head_view, narrow);
}

bool Plan::only_windows(int32_t from) const {
  if (stages.size() != 1 || sparse || decode || !keep.empty()) return false;
  if (std::ranges::any_of(views, [](const View& view) { return view.dense_last_rows > 0; })) return false;
  const Stage& stage = stages[0];
  const std::vector<Runs> all{{{from, prompt_len}}};
  return stage.sets == all && stage.cuts.empty() && stage.probes.empty() && stage.entries.empty() && !stage.carry &&
         !stage.ffn && stage.keeps_placed.empty() && stage.unseen.empty() && !stage.far && stage.sights.empty() &&
         !stage.fate && stage.ahead == 0 && !stage.discard;
}

Runs rows_that_only_look(const Stage& stage, int layer) {
  return stage.lookers.empty() ? Runs{} : subtract(stage.lookers, stage.write_at(layer));
}

Stage uniform_stage(const Runs& write, int layer_end) {
  Stage stage;
  stage.layer_end = layer_end;
  stage.sets = {write};
  stage.write.assign(static_cast<size_t>(layer_end) + 1, 0);
  return stage;
}

Band next_band(const Stage& stage, int layer_begin, int num_layers, const Runs& final_rows) {
  Band band;
  band.layer_begin = layer_begin;
  band.layer_end = stage.layer_end;
  for (const int cut : stage.cuts) {
    const bool ahead = cut > layer_begin || (cut == 0 && layer_begin == 0 && stage.layer_end == 0);
    if (ahead) {
      band.layer_end = cut;
      band.cut = true;
      break;
    }
  }
  band.last = band.layer_end == stage.layer_end;
  // From the end of the stage upwards: what leaves a layer is what any deeper layer names.
  Runs needed = stage.layer_end == num_layers ? final_rows : Runs{};
  for (int layer = stage.layer_end; layer > band.layer_end; --layer)
    needed = from_below(stage, layer, unite(needed, named_at(stage, layer)));
  if (band.cut) {
    band.cut_rows = unite(needed, named_at(stage, band.layer_end));
    needed = band.cut_rows;
  } else {
    needed = unite(needed, named_at(stage, band.layer_end));
  }
  const auto layers = static_cast<size_t>(band.layer_end - layer_begin);
  band.in.resize(layers);
  band.out.resize(layers);
  for (size_t i = layers; i-- > 0;) {
    band.out[i] = needed;
    const int layer = layer_begin + static_cast<int>(i);
    band.in[i] = unite(needed, named_at(stage, layer));
    needed = from_below(stage, layer, band.in[i]);
  }
  // A later band starts at a cut: K and V of that layer are written already, only its output rows still run.
  if (layer_begin > 0 && layers > 0) band.in[0] = unite(band.out[0], lookers_at(stage, layer_begin));
  band.rows = layers == 0 ? band.cut_rows : band.in[0];
  for (const RowEntry& entry : stage.entries) {
    if (entry.layer() > layer_begin && entry.layer() < band.layer_end) band.rows = unite(band.rows, entry.rows);
  }
  return band;
}

namespace {

Status validate_carry(const Carry& carry, const Runs& known, size_t stage) {
  const auto bad = [stage](const char* rule) { return error(Code::kInternal, "plan: stage {}: {}", stage, rule); };
  int32_t end = 0;
  for (const CarryGroup& group : carry.groups) {
    if (group.parts.empty()) return bad("a carry group is empty");
    const bool whole = carry.kernel == Carry::Kernel::kMean || carry.kernel == Carry::Kernel::kNearest;
    if (whole && group.parts.size() > 1) return bad("this carry takes groups of one part");
    for (const Run& part : group.parts) {
      if (part.begin < end || part.end <= part.begin) return bad("carry groups must rise and be disjoint");
      end = part.end;
    }
    if (!includes(known, group.positions())) return bad("a carry group holds a position that is not placed");
  }
  if (!(carry.width > 0) || !(carry.content_width > 0) || !(carry.noise > 0) || carry.layer_begin < 0) {
    return bad("carry needs widths, a noise and a layer");
  }
  for (const std::vector<float>* share : {&carry.share_k, &carry.share_v}) {
    const auto wrong = [](float x) { return !(x >= 0 && x <= 1); };
    if (!share->empty() && (static_cast<int64_t>(share->size()) < end || std::ranges::any_of(*share, wrong)))
      return bad("a carry's shares are from 0 to 1, one for each position");
  }
  return {};
}

Error broken(size_t stage, int layer, const char* rule) {
  return error(Code::kInternal, "plan: stage {}, layer {}: {}", stage, layer, rule);
}

Status validate_ahead(const Plan& plan, const ModelConfig& config, size_t s) {
  const Stage& stage = plan.stages[s];
  if (stage.ahead == 0) return {};
  if (stage.ahead < 0 || s + 1 == plan.stages.size()) return broken(s, 0, "the last stage guesses no tokens ahead");
  if (stage.layer_end != config.L || !stage.cuts.empty() || stage.carry || stage.ffn || !stage.unseen.empty())
    return broken(s, 0, "tokens ahead need rows that run through all layers and see all keys");
  if (stage.probes.empty()) return broken(s, 0, "tokens ahead look with probes");
  for (const ProbeSpec& probe : stage.probes) {
    if (probe.estimator != Estimator::kColumnSum && probe.estimator != Estimator::kColumnSumValueNorm)
      return broken(s, 0, "tokens ahead look for column sums");
  }
  if (stage.write_at(config.L - 1).empty() || stage.write_at(config.L - 1).back().end != plan.prompt_len)
    return broken(s, config.L - 1, "tokens ahead come after the prompt's last row");
  return {};
}

// Layers, write sets and cuts of stage s.
Status validate_layers(const Plan& plan, const ModelConfig& config, size_t s) {
  const Stage& stage = plan.stages[s];
  const Runs whole{{0, plan.prompt_len}};
  if (stage.layer_end < 0 || stage.layer_end > config.L)
    return broken(s, stage.layer_end, "layer_end outside the model");
  if (s + 1 == plan.stages.size() && stage.layer_end != config.L)
    return broken(s, stage.layer_end, "the last stage must run all layers");
  if (stage.write.size() != static_cast<size_t>(stage.layer_end) + 1)
    return broken(s, 0, "write needs layer_end + 1 entries");
  for (const uint16_t set : stage.write) {
    if (set >= stage.sets.size()) return broken(s, 0, "write names no set");
  }
  for (const Runs& set : stage.sets) {
    if (!is_normal(set) || !includes(whole, set)) return broken(s, 0, "a write set is not runs inside the prompt");
  }
  for (size_t i = 0; i < stage.cuts.size(); ++i) {
    const int cut = stage.cuts[i];
    if (cut < 0 || cut > stage.layer_end || cut >= config.L) return broken(s, cut, "cut outside the stage");
    if (cut == 0 && stage.layer_end != 0) return broken(s, cut, "a cut at layer 0 ends its stage");
    if (i > 0 && cut <= stage.cuts[i - 1]) return broken(s, cut, "cuts must rise");
  }
  return {};
}

Status validate_probe(const ProbeSpec& probe, const Stage& stage, size_t s, const Runs& whole) {
  if (!is_normal(probe.rows) || !includes(whole, probe.rows))
    return broken(s, 0, "probe rows are not runs inside the prompt");
  if ((probe.estimator == Estimator::kOutside) == probe.views.empty() || (!probe.views.empty() && probe.key_end >= 0))
    return broken(s, 0, "views are of outside probes, which see all keys");
  const bool sums = probe.estimator == Estimator::kColumnSum || probe.estimator == Estimator::kColumnSumValueNorm;
  const bool windows = probe.estimator == Estimator::kOutside || probe.estimator == Estimator::kWeights;
  if (windows && !stage.unseen.empty()) return broken(s, 0, "this probe needs rows that see all keys");
  if (probe.block < 1) return broken(s, 0, "a probe's blocks are empty");
  if (probe.key_end >= 0 && !sums) return broken(s, 0, "only column sums are normalised over a part of the keys");
  for (const int layer : probe.layers) {
    const bool reached = layer >= 0 && (layer < stage.layer_end || is_cut(stage, layer));
    if (!reached) return broken(s, layer, "probe at a layer that the stage does not reach");
    if (!looks(probe.estimator) && !includes(stage.write_at(layer), probe.rows))
      return broken(s, layer, "a probe compares what is not written");
  }
  return {};
}

Status validate_entries(const Stage& stage, size_t s, const Runs& known) {
  int before = 0;
  Runs entered;
  for (const RowEntry& entry : stage.entries) {
    const int layer = entry.layer();
    if (!by_token(entry.state.of)) return broken(s, layer, "a row enters with a state of its own");
    if (layer <= before || layer >= stage.layer_end || is_cut(stage, layer))
      return broken(s, layer, "rows enter at rising layers between cuts");
    if (!is_normal(entry.rows) || !includes(known, entry.rows))
      return broken(s, layer, "a row enters that is not placed");
    if (!includes(stage.write_at(layer), entry.rows)) return broken(s, layer, "a row enters that is not written there");
    if (!intersect(entered, entry.rows).empty()) return broken(s, layer, "a row enters twice");
    for (int below = 0; below < layer; ++below) {
      if (!intersect(named_at(stage, below), entry.rows).empty())
        return broken(s, below, "a row runs below the layer that it enters at");
    }
    entered = unite(entered, entry.rows);
    before = layer;
  }
  return {};
}

Status validate_sights(const Plan& plan, size_t s, const Runs& known) {
  const Stage& stage = plan.stages[s];
  if (stage.sights.empty()) return {};
  if (!plan.head_view.empty() || plan.sparse || !stage.unseen.empty())
    return broken(s, 0, "sights go with neither views nor a sparse rule nor unseen keys");
  if (std::ranges::any_of(stage.probes, [](const ProbeSpec& probe) { return looks(probe.estimator); }))
    return broken(s, 0, "a stage with sights has no probe that looks");
  Runs rows;
  for (const Sight& sight : stage.sights) {
    if (!is_normal(sight.rows) || !includes(known, sight.rows)) return broken(s, 0, "a sight is of what is not placed");
    if (!intersect(rows, sight.rows).empty()) return broken(s, 0, "a row has two sights");
    if (!is_normal(sight.keys) || !includes(Runs{{0, plan.prompt_len}}, sight.keys))
      return broken(s, 0, "a sight's keys are not runs of the prompt");
    if (!includes(sight.keys, sight.rows)) return broken(s, 0, "a row with a sight does not see itself");
    rows = unite(rows, sight.rows);
  }
  return {};
}

// Unseen keys and fates.
Status validate_keys(const Plan& plan, const ModelConfig& config, size_t s) {
  const Stage& stage = plan.stages[s];
  const Runs whole{{0, plan.prompt_len}};
  if (const auto& fate = stage.fate; fate && (!(fate->share >= 0 && fate->share <= 1) || stage.carry))
    return broken(s, 0, "a fate is a share of the new, without a carry");
  if (stage.unseen.empty()) return {};
  if (stage.unseen.size() != static_cast<size_t>(config.L)) return broken(s, 0, "unseen needs L entries");
  if (!plan.head_view.empty() || plan.sparse)
    return broken(s, 0, "unseen keys go with neither views nor a sparse rule");
  Runs rows{{plan.prompt_len - 1, plan.prompt_len}};  // those that run through this layer
  for (int layer = config.L - 1; layer >= 0; --layer) {
    if (layer <= stage.layer_end) rows = unite(rows, named_at(stage, layer));
    const Runs& unseen = stage.unseen[layer];
    if (!is_normal(unseen) || !includes(whole, unseen))
      return broken(s, layer, "unseen keys are not runs of the prompt");
    if (!intersect(unseen, rows).empty()) return broken(s, layer, "a row does not see itself");
  }
  return {};
}

// Keys at one distance. A probe that looks finds keys where they are: at a cut, where rows attend for nothing else.
Status validate_far(const Plan& plan, size_t s) {
  const Stage& stage = plan.stages[s];
  if (!stage.far) return {};
  const FarKeys& far = *stage.far;
  if (s + 1 < plan.stages.size()) return broken(s, 0, "keys at one distance are of the last stage");
  if (far.before < 0 || far.rows < far.before || far.rows > plan.prompt_len || far.distance < 0)
    return broken(s, 0, "keys at one distance come before the rows that see them, and these begin in the prompt");
  if (!plan.head_view.empty() || !plan.views[0].all() || plan.sparse || plan.decode || !stage.sights.empty())
    return broken(s, 0, "keys at one distance go with neither views nor sights nor a sparse or a decode rule");
  for (const ProbeSpec& probe : stage.probes) {
    for (const int layer : probe.layers) {
      if (looks(probe.estimator) && !is_cut(stage, layer))
        return broken(s, layer, "where keys are at one distance, probes look at cuts only");
    }
  }
  return {};
}

// What a stage has besides layers: heads that keep, a carry, an ffn rule.
Status validate_extras(const Stage& stage, const ModelConfig& config, size_t s, const Runs& known) {
  if (!stage.keeps_placed.empty() &&
      (stage.carry || stage.keeps_placed.size() != static_cast<size_t>(config.L * config.G)))
    return broken(s, 0, "keeps_placed needs L * G entries and no carry");
  if (stage.carry) {
    KVILT_TRY(validate_carry(*stage.carry, known, s));
  }
  if (const auto& ffn = stage.ffn) {
    const auto share = [](double mass) { return mass >= 0 && mass <= 1; };
    if (!share(ffn->mass) || !share(ffn->deep_mass) || ffn->recent < 0 || !(ffn->expert_threshold >= 0))
      return broken(s, 0, "an ffn rule's masses are shares, its recent rows a number");
    if (stage.carry) return broken(s, 0, "carry and ffn rule: their groups differ");
  }
  return validate_entries(stage, s, known);
}

Status validate_heads(const Plan& plan, const ModelConfig& config) {
  const auto heads = static_cast<size_t>(config.L * config.G);
  if (!plan.head_view.empty() && plan.head_view.size() != heads) return broken(0, 0, "head_view needs L * G entries");
  if (plan.sparse && plan.sparse->heads && plan.sparse->heads->size() != heads)
    return broken(0, 0, "a sparse rule's heads need L * G entries");
  if (!plan.head_class.empty() && plan.head_class.size() != heads)
    return broken(0, 0, "head_class needs L * G entries");
  for (const uint16_t view : plan.head_view) {
    if (view >= plan.views.size()) return broken(0, 0, "head_view names no view");
  }
  for (const View& view : plan.views) {
    if (view.sink < 0 || view.window < -1 || view.dense_last_rows < 0) return broken(0, 0, "negative view");
  }
  return {};
}

// A band without rows has nothing to compute, and no end: what comes to nothing is left out of the plan.
Status validate_bands(const Plan& plan, const ModelConfig& config, size_t s) {
  const Stage& stage = plan.stages[s];
  const bool leaves = s + 1 == plan.stages.size() || stage.ahead > 0;
  const Runs leaving = leaves ? Runs{{plan.prompt_len - 1, plan.prompt_len}} : Runs{};
  Band band;
  do {
    band = next_band(stage, band.layer_end, config.L, leaving);
    if (band.rows.empty()) return broken(s, band.layer_begin, "no row runs from this layer on");
  } while (!band.last);
  return {};
}

}  // namespace

Status validate(const Plan& plan, const ModelConfig& config, const Runs& known) {
  const Runs whole{{0, plan.prompt_len}};
  if (plan.prompt_len <= 0 || plan.stages.empty() || plan.views.empty())
    return broken(0, 0, "no prompt, stage or view");
  if (!is_normal(known) || !includes(whole, known))
    return broken(0, 0, "known positions are not runs inside the prompt");
  KVILT_TRY(validate_heads(plan, config));
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    KVILT_TRY(validate_layers(plan, config, s));
    for (const ProbeSpec& probe : stage.probes) KVILT_TRY(validate_probe(probe, stage, s, whole));
    KVILT_TRY(validate_extras(stage, config, s, known));
    KVILT_TRY(validate_keys(plan, config, s));
    KVILT_TRY(validate_sights(plan, s, known));
    KVILT_TRY(validate_far(plan, s));
    KVILT_TRY(validate_ahead(plan, config, s));
    KVILT_TRY(validate_bands(plan, config, s));
  }
  for (const AnnexKind& kind : plan.keep) {
    if (!by_token(kind.of) || kind.layer <= 0 || kind.layer >= config.L)
      return broken(0, kind.layer, "what is kept of a row is its state as it enters a layer");
  }
  const size_t last = plan.stages.size() - 1;
  if (plan.stages[last].discard) return broken(last, 0, "the last stage cannot be discarded");
  for (int layer = 0; layer < config.L; ++layer) {
    const Runs& write = plan.stages[last].write_at(layer);
    if (!contains(write, plan.prompt_len - 1)) return broken(last, layer, "T - 1 is not written");
    if (!includes(unite(known, write), whole)) return broken(last, layer, "a position is neither known nor written");
  }
  return {};
}

std::string picture(const Plan& plan, int stage_index, int step) {
  const Stage& stage = plan.stages[stage_index];
  std::string out;
  const int deepest = is_cut(stage, stage.layer_end) ? stage.layer_end : stage.layer_end - 1;
  for (int layer = deepest; layer >= 0; --layer) {
    out += fmt::format("{:3d} {} ", layer, is_cut(stage, layer) ? '|' : ' ');
    for (int32_t pos = 0; pos < plan.prompt_len; pos += step) {
      const Runs cell{{pos, std::min(pos + step, plan.prompt_len)}};
      const int64_t written = count(intersect(stage.write_at(layer), cell));
      out += written == 0 ? '.' : written == count(cell) ? '#' : '+';
    }
    out += '\n';
  }
  return out;
}

}  // namespace kvilt

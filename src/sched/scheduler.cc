#include "sched/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace kvilt {

void DecodeRow::take_views(const Plan& prefill) {
  plan.views = prefill.views;
  plan.head_view = prefill.head_view;
  plan.head_class = prefill.head_class;
}

void DecodeRow::set(int32_t pos, const ModelConfig& config) {
  const Run row{pos, pos + 1};
  plan.prompt_len = pos + 1;
  if (plan.stages.empty()) {
    plan.stages = {uniform_stage(Runs{row}, config.L)};
    band.layer_end = config.L;
    band.last = true;
    band.in.resize(config.L);
    band.out.resize(config.L);
  }
  plan.stages[0].sets[0].assign(1, row);
  for (Runs& runs : band.in) runs.assign(1, row);
  for (Runs& runs : band.out) runs.assign(1, row);
}

void Scheduler::admit(FunctionRef<Admission(Sequence&)> prepare) {
  for (size_t i = 0; i < waiting_.size() && running_.size() < static_cast<size_t>(options_.max_sequences);) {
    const Admission admission = prepare(*waiting_[i]);
    if (admission == Admission::kNoRoom) return;
    if (admission == Admission::kLater) {
      ++i;
      continue;
    }
    running_.push_back(std::move(waiting_[i]));
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
  }
}

// Slots for what the sequence computes next: its band, or its next token.
bool Scheduler::add_slots(Sequence& sequence, MakeRoom make_room) {
  PageTable& kv = *sequence.running.kv;
  if (sequence.decoding()) {
    if (!make_room(kv.pages_for_next())) return false;
    kv.add_next(static_cast<int32_t>(sequence.tokens.size()) - 1);
    return true;
  }
  Prefill& prefill = *sequence.running.prefill;
  if (prefill.has_slots()) return true;
  const Prefill::Writes writes = prefill.writes();
  if (!make_room(kv.pages_for(writes.sets, writes.write))) return false;
  kv.add(writes.sets, writes.write);
  prefill.slots_added();
  return true;
}

// Pages of the chunk for heads that keep less than all: the others have had theirs since add_slots().
bool Scheduler::hold_chunk(Sequence& sequence, Run chunk, MakeRoom make_room) {
  PageTable& kv = *sequence.running.kv;
  if (kv.whole()) return true;
  const Run rows = sequence.running.prefill->written_by(chunk);
  const LayerRange layers = sequence.running.prefill->layers_written();
  if (!make_room(kv.pages_for_rows(layers, rows))) return false;
  kv.hold(layers, rows);
  return true;
}

void Scheduler::start_again(size_t i) {
  running_[i]->running = {};
  waiting_.push_front(std::move(running_[i]));
  running_.erase(running_.begin() + static_cast<int64_t>(i));
}

void Scheduler::restart(FunctionRef<bool(const Sequence&)> which) {
  for (size_t i = running_.size(); i-- > 0;) {
    if (which(*running_[i])) start_again(i);
  }
}

// The sequence that came last gives its pages back and starts again later, in front of the queue.
bool Scheduler::preempt_last(const Sequence* except) {
  for (size_t i = running_.size(); i-- > 0;) {
    if (running_[i].get() == except) continue;
    start_again(i);
    ++preemptions_;
    return true;
  }
  return false;
}

void Scheduler::choose(MakeRoom make_room) {
  items_.clear();
  for (size_t i = 0; i < running_.size(); ++i) {  // decodes, oldest first: the youngest are the ones preempted
    Sequence& sequence = *running_[i];
    if (!sequence.decoding()) continue;
    bool ready = add_slots(sequence, make_room);
    while (!ready && running_.back().get() != &sequence && preempt_last(&sequence)) {
      ready = add_slots(sequence, make_room);
    }
    if (!ready) continue;  // waits for a step in which somebody ends
    const auto pos = static_cast<int32_t>(sequence.tokens.size()) - 1;
    sequence.running.decode.set(pos, config_);
    items_.push_back({&sequence, {pos, pos + 1}, true});
  }
  int budget = items_.empty() ? options_.chunk_tokens : options_.chunk_while_decoding;
  for (const auto& owned : running_) {
    Sequence& sequence = *owned;
    if (budget <= 0) break;
    const Prefill* prefill = sequence.running.prefill.get();
    if (!prefill || !add_slots(sequence, make_room)) continue;
    const Run chunk = prefill->next_chunk(budget);
    if (!hold_chunk(sequence, chunk, make_room)) continue;
    budget -= static_cast<int>(prefill->rows_in(chunk));
    items_.push_back({&sequence, chunk});
  }
}

std::span<StepGroup> Scheduler::next_step(MakeRoom make_room, std::vector<std::unique_ptr<Sequence>>& failed) {
  choose(make_room);
  while (items_.empty() && !running_.empty()) {  // nobody got pages: fewer must share them
    if (running_.size() > 1) {
      preempt_last(nullptr);
    } else if (Sequence& last = *running_.front(); !last.without_cache && !last.running.kv->placements().empty()) {
      last.without_cache = true;  // a placed token pins its whole segment: without them there is more room
      preempt_last(nullptr);
      return {};
    } else {
      failed.push_back(std::move(running_.front()));
      running_.clear();
      return {};
    }
    choose(make_room);
  }
  return group();
}

// Puts items that run through the same layers together. The groups' memory is that of earlier steps.
std::span<StepGroup> Scheduler::group() {
  size_t used = 0;
  const auto band_of = [](const StepItem& item) -> const Band& {
    const Sequence::Running& running = item.sequence->running;
    return item.decode ? running.decode.band : running.prefill->band();
  };
  for (const StepItem& item : items_) {
    const Band& band = band_of(item);
    const auto end = groups_.begin() + static_cast<ptrdiff_t>(used);
    const auto same = std::find_if(groups_.begin(), end, [&](const StepGroup& group) {
      const Band& other = band_of(group.items[0]);
      return other.layer_begin == band.layer_begin && other.layer_end == band.layer_end && other.cut == band.cut;
    });
    if (same != end) {
      same->items.push_back(item);
      continue;
    }
    if (used == groups_.size()) groups_.emplace_back();
    groups_[used].items.assign(1, item);
    ++used;
  }
  return {groups_.data(), used};
}

std::unique_ptr<Sequence> Scheduler::remove(RequestId id) {
  const auto take = [id](auto& list) -> std::unique_ptr<Sequence> {
    const auto it = std::ranges::find(list, id, [](const auto& s) { return s->id; });
    if (it == list.end()) return nullptr;
    auto out = std::move(*it);
    list.erase(it);
    return out;
  };
  auto out = take(running_);
  return out ? std::move(out) : take(waiting_);
}

}  // namespace kvilt

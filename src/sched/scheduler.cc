#include "sched/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace kvilt {

void DecodeRow::take_views(const Plan& prefill) {
  plan.views = prefill.views;
  plan.head_view = prefill.head_view;
  plan.head_class = prefill.head_class;
  unseen = prefill.stages.back().unseen;
  far = prefill.stages.back().far;
}

void DecodeRow::set(Run rows, const ModelConfig& config) {
  plan.prompt_len = rows.end;
  if (plan.stages.empty()) {
    plan.stages = {uniform_stage(Runs{rows}, config.L)};
    plan.stages[0].unseen = unseen;
    plan.stages[0].far = far;
    band.layer_end = config.L;
    band.last = true;
    band.in.resize(config.L);
    band.out.resize(config.L);
  }
  plan.stages[0].sets[0].assign(1, rows);
  for (Runs& runs : band.in) runs.assign(1, rows);
  for (Runs& runs : band.out) runs.assign(1, rows);
}

namespace {

// A request is short beside one that has this many times its rows left.
constexpr int64_t kShort = 4;
// In a step with short ones the others take 1 in kFew of its rows: a short one has a step for each of its stages, and
// none of them should last as long as a long prompt's whole chunk.
constexpr int kFew = 16;
// Of the prefill rows for which the oldest waits with others, those that it has at least are kOldest / (kOldest + 1).
constexpr double kOldest = 3;
// Requests that are looked up in a step without starting: each costs up to a few milliseconds.
constexpr int kLookAhead = 8, kMostLooks = 16;

bool is_short(int64_t rows, int64_t beside) { return rows * kShort <= beside; }

// Rows of its prefill as a step's budget counts them.
int64_t counted(const Sequence& s, int64_t rows) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(rows) * s.running.row_cost));
}

int64_t rows_left(const Sequence& s) { return s.running.prefill ? counted(s, s.running.prefill->rows_left()) : 0; }

// The next chunk that is not counted as more than `most`, but for one row.
Run next_chunk(const Sequence& s, int most) {
  return s.running.prefill->next_chunk(std::max(1, static_cast<int>(most / s.running.row_cost)));
}

template <class List>
void insert_by_turn(List& list, std::unique_ptr<Sequence> sequence) {
  const auto at = std::ranges::upper_bound(list, sequence->turn, {}, [](const auto& s) { return s->turn; });
  list.insert(at, std::move(sequence));
}

// It needs a layer's KV that did not come yet (Prefill::can_run).
bool waits_for_layer(const Sequence& s) { return s.running.prefill && !s.running.prefill->can_run(); }

// Who gives pages back when they end: whoever waits for a layer, since nobody knows how long a disk takes; else the latest
// of the tenant that has most, so that who brought much makes room first. Of tenants with as many it is the latest of all.
// The first of all is never the one while others can go on.
size_t next_to_go(const std::vector<std::unique_ptr<Sequence>>& running) {
  for (size_t i = running.size(); i-- > 0;) {
    if (waits_for_layer(*running[i])) return i;
  }
  const auto of_its_tenant = [&](const Sequence& s) {
    return std::ranges::count(running, s.request.tenant, [](const auto& other) { return other->request.tenant; });
  };
  size_t out = running.size() - 1;
  ptrdiff_t most = of_its_tenant(*running[out]);
  for (size_t i = out; i-- > 0;) {
    if (const ptrdiff_t n = of_its_tenant(*running[i]); n > most) out = i, most = n;
  }
  return out;
}

// Where one stands that stood at `at`, or before it since others went.
size_t place_of(const Sequence& s, const std::vector<std::unique_ptr<Sequence>>& running, size_t at) {
  at = std::min(at, running.size() - 1);
  while (running[at].get() != &s) --at;
  return at;
}

}  // namespace

void Scheduler::enqueue(std::unique_ptr<Sequence> sequence) {
  if (idle()) turns_.begin_anew();
  sequence->turn = turns_.next(sequence->request.tenant, sequence->prompt_len);
  insert_by_turn(waiting_, std::move(sequence));
}

void Scheduler::resume(std::unique_ptr<Sequence> sequence) { insert_by_turn(running_, std::move(sequence)); }

// Pages that can be promised now.
int64_t Scheduler::room(const Hooks& hooks) const {
  int64_t owed = 0;
  for (const auto& sequence : running_) owed += sequence->owed();
  return hooks.available() - owed;
}

// Rows that the longest running prefill has left.
int64_t Scheduler::longest() const {
  int64_t rows = 0;
  for (const auto& s : running_) rows = std::max(rows, rows_left(*s));
  return rows;
}

// Whether a waiting request can start; if so, it is planned. An answer holds until something has changed. beside: 0, or
// it has to be short beside so many rows.
Admission Scheduler::ask(Sequence& s, const Hooks& hooks, int64_t beside) {
  const uint64_t moment = hooks.moment + preemptions_;
  const Sequence::Asked last = s.asked;
  const bool known = last.moment == moment && !running_.empty();
  if (known && last.answer == Admission::kLater) return Admission::kLater;
  const int64_t before = room(hooks);
  const bool missed = last.answer == Admission::kNoRoom;  // others with the pages for it must not pass
  // What a session takes does not depend on what is cached, and its look-up is an import: not in vain at each change.
  const bool same_need = known || (s.session_len > 0 && !running_.empty());
  if (missed && same_need && before < last.room) return Admission::kNoRoom;
  if (known) {
    if (beside > 0 && !is_short(last.rows, beside)) return missed ? Admission::kNoRoom : Admission::kLater;
  }
  s.asked = {moment, hooks.plan(s), 0, s.session_pages};
  if (s.asked.answer != Admission::kReady) {
    s.running = {};
    return s.asked.answer;
  }
  s.asked.rows = rows_left(s);
  const int64_t lacking = s.owed() - room(hooks);
  if (beside > 0 && !is_short(s.asked.rows, beside)) {
    s.running = {};
    if (!missed) return Admission::kLater;
    s.asked.room = before + lacking;
    return s.asked.answer = Admission::kNoRoom;
  }
  if (running_.empty() || lacking <= 0) return Admission::kReady;
  s.running = {};  // also what it placed, which could not leave
  s.asked.room = before + lacking;
  return s.asked.answer = Admission::kNoRoom;
}

Sequence& Scheduler::start(size_t waiting, const Hooks& hooks) {
  running_.reserve(running_.size() + 1);  // wherever memory ends, it is in one list
  std::unique_ptr<Sequence> sequence = std::move(waiting_[waiting]);
  waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(waiting));
  Sequence& out = *sequence;
  out.asked = {};
  ++out.starts;
  insert_by_turn(running_, std::move(sequence));
  hooks.start(out);
  return out;
}

// While others take the whole budget: those of the first that wait that are short beside them, as far as there is
// credit for their rows.
void Scheduler::admit_short(const Hooks& hooks, const Budget& budget) {
  const int64_t beside = longest();
  int64_t wanted = 0;
  double credit = credit_;
  bool oldest = true;
  for (const auto& s : running_) {
    if (!s->running.prefill) continue;
    wanted += counted(*s, s->running.prefill->band_rows_left());
    const int64_t rows = rows_left(*s);
    if (!std::exchange(oldest, false) && is_short(rows, beside)) credit -= static_cast<double>(rows);
  }
  if (wanted < budget.rows) return;  // admit() comes to them
  size_t i = 0;
  for (int looks = 0; looks < kLookAhead && i < waiting_.size() && credit > 0; ++looks) {
    if (running_.size() >= static_cast<size_t>(options_.max_sequences)) return;
    Sequence& s = *waiting_[i];
    const auto beyond_session = static_cast<int64_t>(s.tokens.size()) - s.session_len;
    if (s.session_len > 0 && !is_short(beyond_session, beside)) {  // its look-up is an import
      ++i;
      continue;
    }
    const Admission answer = ask(s, hooks, beside);
    if (answer == Admission::kNoRoom) return;
    if (answer == Admission::kLater) {
      ++i;
      continue;
    }
    credit -= static_cast<double>(rows_left(s));
    start(i, hooks);
  }
}

// In order of their turns, while the step has rows for them.
void Scheduler::admit(const Hooks& hooks, Budget& budget) {
  const uint64_t moment = hooks.moment + preemptions_;
  int looks = 0;
  for (size_t i = 0; i < waiting_.size() && !starved_ && looks < kMostLooks;) {
    const int rows = std::min(budget.rows, budget.beside);
    if (rows <= 0 || running_.size() >= static_cast<size_t>(options_.max_sequences)) return;
    const bool known = waiting_[i]->asked.moment == moment;
    const Admission answer = ask(*waiting_[i], hooks, 0);
    if (answer == Admission::kNoRoom) return;
    if (answer == Admission::kLater) {
      looks += known ? 0 : 1;
      ++i;
      continue;
    }
    Sequence& started = start(i, hooks);
    turns_.started(started.turn);  // it was the first of those that can; one that goes first for being short is not
    budget.take(take(started, rows, hooks));
  }
}

// True when pages(), which is tried again as others go one by one, until it is this one's turn, has taken them.
template <class Take>
bool Scheduler::take_pages(const Sequence& sequence, const Hooks& hooks, Take&& pages) {
  while (!pages()) {
    if (running_[next_to_go(running_)].get() == &sequence) {
      starved_ = true;
      return false;
    }
    preempt(hooks);
  }
  return true;
}

// Slots for what the sequence computes next: its band, or its next token.
bool Scheduler::add_slots(Sequence& sequence, const Hooks& hooks) {
  Sequence::Running& now = sequence.running;
  PageTable& kv = *now.kv;
  if (sequence.decoding()) {
    const auto rows = static_cast<int32_t>(1 + now.draft.size());
    if (!hooks.make_room(sequence, kv.pages_for_next(rows))) return false;
    kv.add_next(static_cast<int32_t>(sequence.tokens.size()) - 1, rows);
    return true;
  }
  Prefill& prefill = *now.prefill;
  if (prefill.has_slots()) return true;
  std::optional<Prefill::Writes> writes;
  if (now.band_pages < 0) {  // once a band, however long it waits
    writes = prefill.writes();
    now.band_pages = kv.pages_for(writes->sets, writes->write);
    const int64_t next_token = int64_t{kv.shape().L} * kv.shape().G;
    now.promised = std::min(now.promised, kv.private_pages() + prefill.pages_to_come(kv) + next_token);
  }
  if (!hooks.make_room(sequence, now.band_pages)) return false;
  if (!writes) writes = prefill.writes();
  kv.add(writes->sets, writes->write);
  prefill.slots_added();
  now.band_pages = -1;
  return true;
}

// Pages of the chunk for heads that keep less than all: the others have had theirs since add_slots().
bool Scheduler::hold_chunk(Sequence& sequence, Run chunk, const Hooks& hooks) {
  PageTable& kv = *sequence.running.kv;
  if (kv.whole()) return true;
  const Run rows = sequence.running.prefill->written_by(chunk);
  const LayerRange layers = sequence.running.prefill->layers_written();
  if (!hooks.make_room(sequence, kv.pages_for_rows(layers, rows))) return false;
  kv.hold(layers, rows);
  return true;
}

void Scheduler::start_again(size_t i) {
  std::unique_ptr<Sequence> sequence = std::move(running_[i]);
  running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
  std::erase_if(items_, [&](const StepItem& item) { return item.sequence == sequence.get(); });
  sequence->running = {};
  sequence->asked = {};
  insert_by_turn(waiting_, std::move(sequence));
}

void Scheduler::restart(FunctionRef<bool(const Sequence&)> which) {
  for (size_t i = running_.size(); i-- > 0;) {
    if (which(*running_[i])) start_again(i);
  }
}

// One sequence gives its pages back and starts again later.
void Scheduler::preempt(const Hooks& hooks) {
  const size_t at = next_to_go(running_);
  hooks.preempted(*running_[at]);
  start_again(at);
  ++preemptions_;
}

// What may follow the sequence's last token, in at most so many rows. Drafts take free pages that nobody was promised,
// and preempt nobody.
void Scheduler::add_draft(Sequence& sequence, const Hooks& hooks, int most) {
  std::vector<int32_t>& draft = sequence.running.draft;
  draft.clear();
  hooks.draft(sequence, most);
  if (draft.empty()) return;
  const PageTable& kv = *sequence.running.kv;
  const int64_t row = kv.pages_for_next(), all = kv.pages_for_next(static_cast<int32_t>(1 + draft.size()));
  if (all > row && room(hooks) < all) draft.clear();
}

// Returns the rows of drafts.
int Scheduler::choose_decodes(const Hooks& hooks) {
  int drafted = 0;
  for (size_t i = 0; i < running_.size(); ++i) {  // oldest first: of a tenant, the youngest are the ones preempted
    Sequence& sequence = *running_[i];
    if (!sequence.decoding()) continue;
    add_draft(sequence, hooks, options_.draft_rows - drafted);
    const bool taken = take_pages(sequence, hooks, [&] { return add_slots(sequence, hooks); });
    i = place_of(sequence, running_, i);
    if (!taken) continue;  // until somebody ends
    const auto pos = static_cast<int32_t>(sequence.tokens.size()) - 1;
    const auto more = static_cast<int32_t>(sequence.running.draft.size());
    sequence.running.decode.set({pos, pos + 1 + more}, config_);
    items_.push_back({&sequence, {pos, pos + 1 + more}, true});
    drafted += more;
  }
  return drafted;
}

// The sequence's next chunk, if it gets pages. Returns its rows as the budget counts them.
int64_t Scheduler::take(Sequence& sequence, int max_rows, const Hooks& hooks) {
  if (waits_for_layer(sequence)) return 0;  // others do meanwhile
  if (!take_pages(sequence, hooks, [&] { return add_slots(sequence, hooks); })) return 0;
  const bool waited_for = !sequence.idle_work && !sequence.lingers_until;
  const Run chunk = next_chunk(sequence, waited_for ? max_rows : std::min(max_rows, kIdleRows));
  if (!take_pages(sequence, hooks, [&] { return hold_chunk(sequence, chunk, hooks); })) return 0;
  sequence.running.step = steps_;
  items_.push_back({&sequence, chunk});
  return counted(sequence, sequence.running.prefill->rows_in(chunk));
}

// Prefills that are short beside the longest go first, the shortest of them before the others, and the step is kept
// short: the others take few rows of it. All but the oldest prefill need credit for it.
void Scheduler::choose_short(const Hooks& hooks, Budget& budget) {
  const int64_t beside = longest();
  const Sequence* oldest = nullptr;
  short_.clear();
  for (const auto& s : running_) {
    if (!s->running.prefill) continue;
    if (!oldest) oldest = s.get();
    if (is_short(rows_left(*s), beside)) short_.push_back(s.get());
  }
  std::ranges::sort(short_, {}, [](const Sequence* s) { return std::pair(rows_left(*s), s->turn); });
  const int few = std::max(1, budget.rows / kFew);
  for (Sequence* s : short_) {
    if (budget.rows <= 0) return;
    if (!s->running.prefill) continue;  // an older one took its pages
    const int64_t next = s->running.prefill->rows_in(next_chunk(*s, budget.rows));
    if (s != oldest && static_cast<double>(counted(*s, next)) > credit_) continue;
    const int64_t rows = take(*s, budget.rows, hooks);
    if (rows > 0) budget.beside = few;
    budget.rows -= static_cast<int>(rows);
    if (s != oldest) credit_ -= static_cast<double>(rows);
  }
}

void Scheduler::choose_prefills(const Hooks& hooks, Budget& budget) {
  choose_short(hooks, budget);
  const Sequence* oldest = nullptr;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    if (!s.running.prefill) continue;
    if (!oldest) oldest = &s;
    const int rows = std::min(budget.rows, budget.beside);
    if (s.running.step != steps_ && rows > 0) budget.take(take(s, rows, hooks));
    i = place_of(s, running_, i);
  }
  if (!oldest || oldest->running.step != steps_) return;
  const auto item = std::ranges::find(items_, oldest, [](const StepItem& i) -> const Sequence* { return i.sequence; });
  const auto rows = static_cast<double>(counted(*oldest, oldest->running.prefill->rows_in(item->range)));
  credit_ = std::min(2.0 * options_.chunk_tokens, credit_ + rows / kOldest);
}

void Scheduler::choose(const Hooks& hooks) {
  ++steps_;
  items_.clear();
  const bool starved = std::exchange(starved_, false);
  const int drafted = choose_decodes(hooks), beside = options_.chunk_while_decoding;
  const int rows = items_.empty() ? options_.chunk_tokens : std::max((beside + 1) / 2, beside - drafted);
  Budget budget{rows, rows};
  if (!starved && !starved_) admit_short(hooks, budget);
  choose_prefills(hooks, budget);
  admit(hooks, budget);
}

bool Scheduler::waits_for_layers() const {
  return std::ranges::any_of(running_, [](const auto& s) { return waits_for_layer(*s); });
}

std::span<StepGroup> Scheduler::next_step(const Hooks& hooks, std::vector<std::unique_ptr<Sequence>>& failed) {
  choose(hooks);
  if (items_.empty() && waits_for_layers()) return {};  // their pages are there
  while (items_.empty() && !running_.empty()) {         // nobody got pages: fewer must share them
    if (running_.size() > 1) {
      preempt(hooks);
    } else if (Sequence& last = *running_.front();
               !last.without_cache && !last.running.kv->first_placements().empty()) {
      last.without_cache = true;  // a placed token pins its whole segment: without them there is more room
      preempt(hooks);
      return {};
    } else {
      failed.push_back(std::move(running_.front()));
      running_.clear();
      return {};
    }
    choose(hooks);
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
  if (auto out = take(running_)) return out;
  auto out = take(waiting_);
  if (out && out->starts == 0) give_turn_back(*out);
  return out;
}

// As if it had never come: its tenant's later requests move up.
void Scheduler::give_turn_back(const Sequence& left) {
  const int64_t tokens = left.prompt_len;
  turns_.left(left.request.tenant, tokens);
  for (const auto& s : waiting_) {
    if (s->request.tenant == left.request.tenant && s->turn > left.turn)
      s->turn.begin = std::max(left.turn.begin, s->turn.begin - static_cast<double>(tokens));
  }
  std::ranges::sort(waiting_, {}, [](const auto& s) { return s->turn; });
}

}  // namespace kvilt

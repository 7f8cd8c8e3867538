#include "engine/engine_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/pin.h"
#include "engine/session.h"
#include "policy/document_stage.h"

namespace kvilt {
namespace {

SchedulerOptions scheduler_options(const EngineOptions& o) {
  SchedulerOptions out;
  out.chunk_tokens = o.chunk_tokens;
  out.chunk_while_decoding = std::max(1, o.chunk_tokens / 4);
  out.max_sequences = o.max_sequences;
  out.max_queue = o.max_queue;
  return out;
}

SeasonOptions season_options(const EngineParts& parts) {
  const PageStore& store = parts.cache->store();
  const KvShape& shape = store.shape();
  const int64_t slots = store.pages() / (int64_t{shape.L} * shape.G) * shape.P;
  return {parts.options.season, parts.options.seed, season_context(parts.options.context, slots)};
}

std::vector<SamplerScratch> scratch_of_workers(int workers, int64_t V) {
  std::vector<SamplerScratch> out;
  for (int w = 0; w < workers; ++w) out.emplace_back(V);
  return out;
}

}  // namespace

EngineLoop::EngineLoop(EngineParts parts)
    : parts_(std::move(parts)),
      preparer_(parts_, [this](int64_t pages, OwnerId owner) { return make_room(pages, owner); }),
      scheduler_(scheduler_options(parts_.options), parts_.model->config()),
      driver_(*parts_.model, *parts_.pool),
      scratch_(scratch_of_workers(parts_.pool->size(), parts_.model->config().V)),
      drafts_(parts_.options.draft, parts_.options.seed, parts_.options.cache ? &parts_.cache->index() : nullptr),
      auditor_(parts_.options.audit, parts_.options.audit_limit, parts_.options.seed, parts_.options.season_share),
      seasoner_(season_options(parts_), parts_.options.season_share),
      lingering_(parts_.options.linger_s),
      thread_([this] { run(); }) {
  if (parts_.events) parts_.events->on_retell([this](bool start) { post([this, start] { retell(start); }); });
  counted_.wait();  // whoever asks an engine that is open hears of what it opened
}

EngineLoop::~EngineLoop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    posted_.store(true, std::memory_order_release);
  }
  wake_.notify_one();
  thread_.join();
  if (parts_.events) parts_.events->stop();  // it posts
}

void EngineLoop::post(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    inbox_.push_back(std::move(task));
    posted_.store(true, std::memory_order_release);
  }
  wake_.notify_one();
}

EngineStats EngineLoop::stats() const {
  EngineStats out{latest_.get(), auditor_.stats(), {}};
  {
    MutexLock lock(pools_mutex_);
    out.tenant_pools = pools_;
  }
  for (const auto& store : parts_.stores) store->add_parts(out.tenant_pools);
  return out;
}

void EngineLoop::run() {
  if (parts_.options.pin) pin_to_cores(*parts_.pool);
  attach_stores();
  update_stats();
  counted_.count_down();
  std::vector<std::function<void()>> tasks;
  bool waits = false;  // nobody can go on, and all that wait do so for the disk
  for (bool stop = false;;) {
    if (scheduler_.idle() || waits || posted_.load(std::memory_order_acquire)) {
      MutexLock lock(mutex_);
      const auto called = [this]() KVILT_REQUIRES(mutex_) { return stop_ || !inbox_.empty(); };
      if ((waits || scheduler_.idle()) && !near_goes_on()) {
        if (const auto at = waits ? patience_ends() : idle_work_at()) {
          wake_.wait_for(lock, *at - Clock::now(), called);
        } else {
          wake_.wait(lock, called);
        }
      }
      stop = stop_;
      tasks.swap(inbox_);
      posted_.store(false, std::memory_order_relaxed);
    }
    for (auto& task : tasks) unless_memory_ends(task);
    tasks.clear();
    unless_memory_ends([this] {
      drop_expired();
      if (give_up_late()) ++changes_;
    });
    if (!stop) find_idle_work();
    if (stop) break;  // what was submitted before the end is cancelled too: every sink hears of its end
    bool worked = true;
    unless_memory_ends([&] { worked = step(); });
    if (near_goes_on()) near_more();
    waits = !worked && !scheduler_.idle() && reads() && (scheduler_.running().empty() || scheduler_.waits_for_layers());
    unless_memory_ends([this] { update_stats(); });
  }
  cancel_all();
  parts_.cache->on_evict(nullptr);
  parts_.cache->on_enter(nullptr);
  parts_.each_source([](auto& source) { source.finish(); });
}

void EngineLoop::attach_stores() {
  if (parts_.stores.empty() && !parts_.peer) return;
  // Something may have come from there: whoever waits asks again.
  const auto on_this_thread = [this](std::function<void()> task) {
    post([this, task = std::move(task)] {
      task();
      ++changes_;
    });
  };
  const auto unheard = [this](std::function<void()> task) { post(std::move(task)); };
  const auto room = [this](int64_t pages, OwnerId owner) { return make_room_beside(pages, owner); };
  const auto sound = [this](const AnnexKind& kind, int32_t tokens, std::span<const std::byte> bytes) {
    return is_sound_annex(kind, tokens, bytes, parts_.model->config());
  };
  for (const auto& store : parts_.stores) store->attach({on_this_thread, unheard, room, sound});
  if (parts_.peer) {
    const Status started = parts_.peer->attach({on_this_thread, room});
    if (!started.ok()) spdlog::warn("the prefill server is not asked: {}", started.error().message);
  }
  if (parts_.stores.empty()) return;
  parts_.cache->on_evict([this](SegmentId id) {
    for (const auto& store : parts_.stores) store->keep(id);
  });
  parts_.cache->on_enter([this](SegmentId id) {
    for (const auto& store : parts_.stores) store->entered(id);
  });
}

// Something is being read that somebody may wait for.
bool EngineLoop::reads() const {
  bool out = false;
  parts_.each_source([&](const auto& source) { out = out || source.busy(); });
  return out;
}

// True: somebody waits no longer.
bool EngineLoop::give_up_late() {
  bool late = false;
  parts_.each_source([&](auto& source) { late = source.give_up_late() || late; });
  return late;
}

// When the first of those who wait for a store waits no longer.
std::optional<Clock::time_point> EngineLoop::patience_ends() const {
  std::optional<Clock::time_point> out;
  parts_.each_source([&](const auto& source) {
    if (const auto at = source.patience_ends()) out = std::min(out.value_or(*at), *at);
  });
  return out;
}

// Pages that no running request was promised.
int64_t EngineLoop::room() const {
  int64_t pages = preparer_.available() + lingering_.pages();
  for (const auto& sequence : scheduler_.running()) pages -= sequence->owed();
  return pages;
}

void EngineLoop::add(std::unique_ptr<Sequence> sequence) {
  if (!sequence->idle_work) {
    drop_idle_work();
    pause_lingering();
  }
  const SamplingParams& sampling = sequence->request.sampling;
  answers_.try_emplace(sequence->id, parts_.file->tokenizer.get(), sampling.stop, sampling.shown_ids,
                       sampling.min_tokens, LineLimits(sampling.min_indent, sampling.line_seconds));
  if (auto left = lingering_.same_as(*sequence)) return join(std::move(left), std::move(sequence));
  scheduler_.enqueue(std::move(sequence));
}

void EngineLoop::cancel(RequestId id) {
  if (id == going_on_) return;  // it was cancelled before
  auto sequence = scheduler_.remove(id);
  if (!sequence) return;
  if (may_publish(*sequence) && lingering_.takes(*sequence)) return linger(std::move(sequence));
  drop(std::move(sequence));
}

void EngineLoop::cancel_all() {
  side_.drop();
  drop_lingering();
  std::vector<RequestId> ids;
  for (const auto& sequence : scheduler_.running()) ids.push_back(sequence->id);
  for (const auto& sequence : scheduler_.waiting()) ids.push_back(sequence->id);
  for (const RequestId id : ids) drop(scheduler_.remove(id));
}

// Those that run on what is still being read go on as far as that is there. Where it is not what was said, they start
// again, and look again.
void EngineLoop::take_layers() {
  for (const auto& s : scheduler_.running()) {
    if (s->running.runs_on) preparer_.take_layers(*s);
  }
  scheduler_.restart([](const Sequence& s) {
    const auto& from = s.running.runs_on;
    return from && (from->coming.broken || from->done);
  });
}

// Whether it may start, and with what plan. Idle work without room in its reach does not begin.
Admission EngineLoop::plan(Sequence& s) {
  if (std::ranges::find(ended_, s.id) != ended_.end()) return Admission::kLater;
  try {
    Admission answer = preparer_.plan(s, scheduler_.running());
    const auto fits = [&] { return !s.idle_work || s.owed() <= parts_.cache->room(s.owner, reach()); };
    if (answer == Admission::kReady && !fits() && s.request.season && auditor_.auditing()) {
      auditor_.no_context();  // the audit is what counts
      s.request.season = false;
      s.running = {};
      answer = preparer_.plan(s, scheduler_.running());
    }
    if (answer != Admission::kReady || fits()) return answer;
    fail_for_room(s);
  } catch (const std::bad_alloc&) {
    fail_for_memory(s);
  }
  return Admission::kLater;
}

// False: there was nothing to compute.
bool EngineLoop::step() {
  // LongRoPE: an answer that grows beyond the original context has all its keys rotated by other angles from then on.
  const ModelConfig& config = parts_.model->config();
  scheduler_.restart([&](const Sequence& s) {
    return s.decoding() && config.is_long(static_cast<int64_t>(s.tokens.size())) &&
           !config.is_long(s.running.prefill_len);
  });
  take_layers();
  const auto make_room = [this](const Sequence& s, int64_t pages) { return this->make_room(pages, s.owner); };
  const auto available = [this] { return preparer_.available() + lingering_.pages(); };
  const auto plan = [this](Sequence& s) { return this->plan(s); };
  const auto start = [this](Sequence& s) { preparer_.start(s); };
  const auto preempted = [this](Sequence& s) { keep_work(s); };
  const auto draft = [this](Sequence& s, int most) { propose_draft(s, most); };
  drafts_.begin_step(scheduler_.running());
  to_verify_ = 0;
  std::vector<std::unique_ptr<Sequence>> failed;
  const std::span<StepGroup> groups =
      scheduler_.next_step({make_room, available, plan, start, preempted, draft, changes_}, failed);
  for (auto& sequence : failed) {
    if (sequence->completion.completion_tokens > 0) {  // as far as the pool goes, that is the answer
      end(*sequence, Finish::kLength);
    } else {
      fail_for_room(*sequence);
    }
    close(std::move(sequence));
  }
  const bool worked = !groups.empty() || !failed.empty();
  run_groups(groups);
  for (const RequestId id : std::exchange(ended_, {})) close(scheduler_.remove(id));
  return worked;
}

void EngineLoop::run_groups(std::span<StepGroup> groups) {
  if (groups.empty()) return;
  ++steps_;
  int rows = 0;
  bool prefills = false;
  for (const StepItem& item : groups[0].items) {
    rows += item.range.size();
    prefills = prefills || !item.decode;
  }
  const Clock::time_point begin = Clock::now();
  for (StepGroup& group : groups) run_group(group);
  if (groups.size() == 1 && !prefills) drafts_.step_took(rows, seconds(begin, Clock::now()));
}

// The item as the driver takes it. verified: rows of verified_ that are taken.
Chunk EngineLoop::chunk_of(const StepItem& item, int64_t& verified) {
  Sequence& s = *item.sequence;
  Sequence::Running& now = s.running;
  Chunk chunk;
  chunk.kv = now.kv.get();
  chunk.range = item.range;
  chunk.tokens = s.tokens;
  // Rows that mend guesses stand where the answer will, and are forgotten: they neither choose nor tell.
  if (item.decode || !now.prefill->guessing()) chunk.keys = now.keys.get();
  chunk.measures_held = s.request.evaluation.held_mass;
  int64_t rows = 1;  // whose logits are wanted
  if (item.decode) {
    chunk.plan = &now.decode.plan;
    chunk.stage = &now.decode.plan.stages[0];
    chunk.band = &now.decode.band;
    if (!now.draft.empty()) {
      now.ahead.assign(1, s.tokens.back());
      now.ahead.insert(now.ahead.end(), now.draft.begin(), now.draft.end());
      chunk.tokens = now.ahead;
      chunk.tokens_at = item.range.begin;
      chunk.logits = verified_.view().row(verified);
      verified += item.range.size();
      return chunk;
    }
  } else {
    Prefill& prefill = *now.prefill;
    const Band& band = prefill.band();
    chunk.plan = &prefill.plan();
    chunk.stage = &prefill.stage();
    chunk.band = &band;
    chunk.hidden = &prefill.hidden();
    chunk.carry = &prefill.carry();
    chunk.probes = prefill.probes();
    // Rows at a later cut of a stage are some of those at the first: they go back to the places that they came from.
    if (band.cut && !band.last && band.layer_begin == 0 && prefill.at_band_start())
      prefill.hidden().reset(band.cut_rows, parts_.model->config().D);
    if (prefill.at_band_start()) prefill.start_keeping();
    chunk.kept = prefill.kept();
    if (prefill.guessing()) {
      const auto guessed = prefill.guessed();
      now.ahead = s.tokens;
      now.ahead.insert(now.ahead.end(), guessed.begin(), guessed.end());
      chunk.tokens = now.ahead;
    }
    rows = prefill.logit_rows(item.range);  // also where no token is asked for: they show whether the KV is sound
    if (now.scores && prefill.is_final(item.range)) {
      chunk.scores = &*now.scores;
      rows = item.range.end == now.prefill_len ? 1 : 0;
    }
  }
  if (rows > 0) {
    now.logits.resize(static_cast<size_t>(rows * parts_.model->config().V));
    chunk.logits = now.logits.data();
  }
  if (rows > 0 && !item.decode && s.request.last_hidden) {
    now.last_hidden.resize(static_cast<size_t>(parts_.model->config().D));
    chunk.last_hidden = now.last_hidden.data();
  }
  return chunk;
}

void EngineLoop::run_group(StepGroup& group) {
  chunks_.clear();
  try {
    int64_t verified = 0;
    for (const StepItem& item : group.items) {
      if (item.decode && !item.sequence->running.draft.empty()) verified += item.range.size();
    }
    if (verified > 0) verified_.reshape(verified, parts_.model->config().V);
    verified = 0;
    for (const StepItem& item : group.items) chunks_.push_back(chunk_of(item, verified));
    driver_.run(chunks_);
  } catch (const std::bad_alloc&) {  // of which of them is not known
    driver_.release();
    verified_ = FloatMat();
    for (const StepItem& item : group.items) fail_for_memory(*item.sequence);
    return;
  }
  for (size_t i = 0; i < chunks_.size(); ++i) {
    try {
      after(group.items[i], chunks_[i]);
    } catch (const std::bad_alloc&) {
      fail_for_memory(*group.items[i].sequence);
    }
  }
  draw();
}

void EngineLoop::fail_for_room(Sequence& s) {
  end(s, Finish::kError,
      error(Code::kExhausted, "the KV pool of {} pages is too small for this request; start with a larger --kv-bytes",
            parts_.cache->store().pages()));
}

// What it held is free before anything else is asked for. Nothing of it is published.
void EngineLoop::fail_for_memory(Sequence& s) {
  s.running = {};
  end(s, Finish::kError,
      error(Code::kExhausted,
            "no memory is left for this request; send a shorter one, or fewer at "
            "once, or start with a smaller --kv-bytes"));
}

// Where no single request can be named, all that run make room.
void EngineLoop::unless_memory_ends(FunctionRef<void()> work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    driver_.release();
    verified_ = FloatMat();
    drawn_.clear();
  }
  while (auto left = lingering_.oldest()) {
    left->running = {};
    drop(std::move(left));
  }
  for (const auto& sequence : scheduler_.running()) {
    if (std::ranges::find(ended_, sequence->id) == ended_.end()) fail_for_memory(*sequence);
  }
  for (const RequestId id : std::exchange(ended_, {})) close(scheduler_.remove(id));
}

// What lingers goes before anybody lacks pages.
bool EngineLoop::make_room_of_lingering(int64_t pages, OwnerId wanted_by) {
  while (!parts_.cache->make_room(pages, wanted_by, reach())) {
    auto left = lingering_.oldest();
    if (!left) return false;
    drop(std::move(left));
  }
  return true;
}

// For a running request, or idle work, which runs alone and takes nothing that somebody asked to be kept: then what is
// being read goes too.
bool EngineLoop::make_room(int64_t pages, OwnerId wanted_by) {
  while (!make_room_of_lingering(pages, wanted_by)) {
    if (std::ranges::none_of(parts_.stores, [](const auto& store) { return store->give_way(); })) return false;
  }
  return true;
}

// For what somebody waits for: those that run keep what they were promised.
bool EngineLoop::make_room_beside(int64_t pages, OwnerId wanted_by) {
  return pages <= room() && make_room_of_lingering(pages, wanted_by);
}

Status EngineLoop::room_to_profile(size_t tokens, int64_t pages) {
  drop_idle_work();
  if (make_room(pages)) return {};
  return error(Code::kExhausted, "profiling {} tokens needs {} free KV pages; start with a larger --kv-bytes", tokens,
               pages);
}

// Where memory ends it rests for a second.
void EngineLoop::near_more() {
  try {
    parts_.cache->near_more();
  } catch (const std::bad_alloc&) {
    near_from_ = Clock::now() + std::chrono::seconds(1);
  }
}

// The next part of all that is cached, for those who hear of it.
void EngineLoop::retell(bool start) {
  if (start) {
    parts_.events->begin_again();
    parts_.cache->tell_again();
  }
  bool more = true;  // where memory ends, the rest is asked for again
  try {
    more = parts_.cache->tell_more();
  } catch (const std::bad_alloc&) {
  }
  parts_.events->told_part(more);
}

void EngineLoop::update_stats() {
  const ContentCache& cache = *parts_.cache;
  PageStore& store = parts_.cache->store();
  stats_.running = static_cast<int>(scheduler_.running().size());
  if ((idle_now_ || going_on_ != 0) && stats_.running > 0) --stats_.running;
  stats_.lingering = static_cast<int>(lingering_.size()) + (going_on_ != 0 ? 1 : 0);
  stats_.waiting = static_cast<int>(scheduler_.waiting().size());
  stats_.preemptions = scheduler_.preemptions();
  stats_.steps = steps_;
  stats_.kv_pages = store.pages();
  stats_.kv_pages_used = store.pages() - store.free_pages();
  stats_.kv_pages_idle = cache.reclaimable();
  stats_.request_pages = {};
  stats_.reserved_pages = 0;
  for (const auto& sequence : scheduler_.running()) {
    const Sequence::Running& now = sequence->running;
    if (!now.kv) continue;
    add_pages(*now.kv, now.prefill ? now.prefill->plan() : now.decode.plan, stats_.request_pages);
    stats_.reserved_pages += now.kv->spare_pages();
  }
  stats_.kv_pages_frozen = store.idle().frozen();
  store.idle().end_pins();
  stats_.kv_pages_pinned = store.idle().pinned();
  stats_.cached_tokens = cache.segments().tokens();
  stats_.cached_segments = cache.segments().segments();
  stats_.evicted_segments = cache.evicted_segments();
  for (const auto& store : parts_.stores) (store->shared() ? stats_.remote : stats_.disk) = store->stats();
  if (parts_.peer) stats_.peer = parts_.peer->stats();
  stats_.evicted_tokens = cache.evicted_tokens();
  stats_.regretted_tokens = cache.regretted_tokens();
  stats_.seasoned_tokens = cache.seasoned().tokens;
  stats_.seasoned_pieces = cache.seasoned().by_contexts;
  stats_.seasoning_waiting = seasoner_.waiting();
  stats_.seasoning_running = seasoner_.running();
  if (parts_.events) {
    const PublisherCounters events = parts_.events->counters();
    stats_.kv_event_batches = events.batches;
    stats_.kv_events_dropped = events.dropped;
    stats_.kv_event_restarts = events.restarts;
  }
  latest_.set(stats_);
  if (std::exchange(pools_at_, changes_) == changes_) return;  // a step of decodes takes no lock
  MutexLock lock(pools_mutex_);
  cache.tenant_pools(pools_);
}

}  // namespace kvilt

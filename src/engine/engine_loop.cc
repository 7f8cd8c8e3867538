#include "engine/engine_loop.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/pin.h"
#include "engine/head_profile.h"
#include "engine/session.h"

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

Error not_numbers(const Sequence& s) {
  return error(Code::kInternal,
               "after token {} the model's logits are not numbers (NaN or infinite): its weights hold such values, or "
               "its activations overflow; try --activations f32, or another file of the model",
               s.tokens.size());
}

// Adds what the heads of `kv` hold, by what `plan` makes of them.
void add_pages(const PageTable& kv, const Plan& plan, ByHeadClass& sum) {
  const int G = kv.shape().G;
  for (int i = 0; i < kv.shape().L * G; ++i) {
    const HeadClass c = plan.head_class.empty() ? HeadClass::kDense : plan.head_class[i];
    int64_t& of = c == HeadClass::kGlobal      ? sum.global
                  : c == HeadClass::kLocal     ? sum.local
                  : c == HeadClass::kRetrieval ? sum.retrieval
                                               : sum.dense;
    of += kv.held_pages(i / G, i % G);
  }
}

// What the cache needs to know of a sequence that publishes. layout and recomputed must outlive the call.
ContentCache::Own own_of(const Sequence& s, const PromptLayout& layout, int32_t computed,
                         const Runs& recomputed = ContentCache::kNone) {
  return {*s.running.kv,   layout,          s.tokens,  s.request.prompt.marks, s.domains, computed,
          s.running.exact, s.running.chain, recomputed};
}

std::vector<SamplerScratch> scratch_of_workers(int workers, int64_t V) {
  std::vector<SamplerScratch> out;
  for (int w = 0; w < workers; ++w) out.emplace_back(V);
  return out;
}

}  // namespace

EngineLoop::EngineLoop(EngineParts parts)
    : parts_(std::move(parts)),
      preparer_(parts_),
      scheduler_(scheduler_options(parts_.options), parts_.model->config()),
      driver_(*parts_.model, *parts_.pool),
      scratch_(scratch_of_workers(parts_.pool->size(), parts_.model->config().V)),
      auditor_(parts_.options.audit, parts_.options.audit_limit, parts_.options.seed),
      thread_([this] { run(); }) {}

EngineLoop::~EngineLoop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    posted_.store(true, std::memory_order_release);
  }
  wake_.notify_one();
  thread_.join();
}

void EngineLoop::post(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    inbox_.push_back(std::move(task));
    posted_.store(true, std::memory_order_release);
  }
  wake_.notify_one();
}

EngineStats EngineLoop::stats() const { return {latest_.get(), auditor_.stats()}; }

void EngineLoop::run() {
  if (parts_.options.pin) pin_to_cores(*parts_.pool);
  update_stats();
  std::vector<std::function<void()>> tasks;
  for (bool stop = false;;) {
    if (scheduler_.idle() || posted_.load(std::memory_order_acquire)) {
      MutexLock lock(mutex_);
      if (scheduler_.idle() && !auditor_.waiting())
        wake_.wait(lock, [this]() KVILT_REQUIRES(mutex_) { return stop_ || !inbox_.empty(); });
      stop = stop_;
      tasks.swap(inbox_);
      posted_.store(false, std::memory_order_relaxed);
    }
    for (auto& task : tasks) unless_memory_ends(task);
    tasks.clear();
    if (!stop && scheduler_.idle() && auditor_.waiting()) {
      try {
        add(auditor_.start());
      } catch (const std::bad_alloc&) {
        drop_audit();
      }
    }
    if (stop) break;  // what was submitted before the end is cancelled too: every sink hears of its end
    unless_memory_ends([this] { step(); });
    update_stats();
  }
  cancel_all();
}

void EngineLoop::add(std::unique_ptr<Sequence> sequence) {
  if (sequence->id != Auditor::kId) drop_audit();
  answers_.try_emplace(sequence->id, parts_.file->tokenizer.get(), sequence->request.sampling.stop);
  scheduler_.enqueue(std::move(sequence));
}

void EngineLoop::cancel(RequestId id) {
  if (auto sequence = scheduler_.remove(id)) {
    end(*sequence, Finish::kCancelled);
    close(std::move(sequence));
  }
}

void EngineLoop::cancel_all() {
  std::vector<RequestId> ids;
  for (const auto& sequence : scheduler_.running()) ids.push_back(sequence->id);
  for (const auto& sequence : scheduler_.waiting()) ids.push_back(sequence->id);
  for (const RequestId id : ids) cancel(id);
}

void EngineLoop::step() {
  // LongRoPE: an answer that grows beyond the original context has all its keys rotated by other angles from then on.
  const ModelConfig& config = parts_.model->config();
  scheduler_.restart([&](const Sequence& s) {
    return s.decoding() && config.is_long(static_cast<int64_t>(s.tokens.size())) &&
           !config.is_long(s.running.prefill_len);
  });
  const auto make_room = [this](int64_t pages) { return parts_.cache->make_room(pages); };
  const auto available = [this] { return preparer_.available(); };
  const auto plan = [this](Sequence& s) {
    if (std::ranges::find(ended_, s.id) != ended_.end()) return Admission::kLater;
    try {
      return preparer_.plan(s, scheduler_.running());
    } catch (const std::bad_alloc&) {
      fail_for_memory(s);
      return Admission::kLater;
    }
  };
  const auto start = [this](Sequence& s) { preparer_.start(s); };
  const auto preempted = [this](Sequence& s) { keep_work(s); };
  std::vector<std::unique_ptr<Sequence>> failed;
  const std::span<StepGroup> groups =
      scheduler_.next_step({make_room, available, plan, start, preempted, changes_}, failed);
  for (auto& sequence : failed) {
    if (sequence->completion.completion_tokens > 0) {  // as far as the pool goes, that is the answer
      end(*sequence, Finish::kLength);
    } else {
      end(*sequence, Finish::kError,
          error(Code::kExhausted,
                "the KV pool of {} pages is too small for this request; start with a larger --kv-bytes",
                parts_.cache->store().pages()));
    }
    close(std::move(sequence));
  }
  for (StepGroup& group : groups) run_group(group);
  if (!groups.empty()) ++steps_;
  for (const RequestId id : std::exchange(ended_, {})) close(scheduler_.remove(id));
}

// The item as the driver takes it.
Chunk EngineLoop::chunk_of(const StepItem& item) {
  Sequence& s = *item.sequence;
  Sequence::Running& now = s.running;
  Chunk chunk;
  chunk.kv = now.kv.get();
  chunk.range = item.range;
  chunk.tokens = s.tokens;
  int64_t rows = 1;  // whose logits are wanted
  if (item.decode) {
    chunk.plan = &now.decode.plan;
    chunk.stage = &now.decode.plan.stages[0];
    chunk.band = &now.decode.band;
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
    rows = prefill.logit_rows(item.range);  // also where no token is asked for: they show whether the KV is sound
  }
  if (rows > 0) {
    now.logits.resize(static_cast<size_t>(rows * parts_.model->config().V));
    chunk.logits = now.logits.data();
  }
  return chunk;
}

void EngineLoop::run_group(StepGroup& group) {
  chunks_.clear();
  try {
    for (const StepItem& item : group.items) chunks_.push_back(chunk_of(item));
    driver_.run(chunks_);
  } catch (const std::bad_alloc&) {  // of which of them is not known
    driver_.release();
    for (const StepItem& item : group.items) fail_for_memory(*item.sequence);
    return;
  }
  for (size_t i = 0; i < chunks_.size(); ++i) {
    try {
      after(group.items[i], chunks_[i].work);
    } catch (const std::bad_alloc&) {
      fail_for_memory(*group.items[i].sequence);
    }
  }
  draw();
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
    drawn_.clear();
  }
  for (const auto& sequence : scheduler_.running()) {
    if (std::ranges::find(ended_, sequence->id) == ended_.end()) fail_for_memory(*sequence);
  }
  for (const RequestId id : std::exchange(ended_, {})) close(scheduler_.remove(id));
}

void EngineLoop::after(StepItem& item, const Work& work) {
  Sequence& s = *item.sequence;
  if (item.decode) return wants_token(s);
  Prefill& prefill = *s.running.prefill;
  std::vector<float>& logits = s.running.logits;
  s.work += work;
  ++s.usage.steps;
  if (const int64_t rows = prefill.logit_rows(item.range); rows > 0 && s.request.evaluation.prompt_logits > 0) {
    const auto V = static_cast<ptrdiff_t>(parts_.model->config().V);
    for (int64_t r = 0; r < rows && s.completion.completion_tokens == 0; ++r)
      s.completion.logits.prompt.emplace_back(logits.begin() + r * V, logits.begin() + (r + 1) * V);
    logits.erase(logits.begin(), logits.end() - V);  // the next token comes from the last row's
  }
  s.running.kv->passed(prefill.layers_passed(), prefill.passed_by(item.range));
  prefill.advance(item.range);
  if (prefill.take_restart()) preparer_.place_again(s);  // its private pages are free for the next stage
  if (!prefill.has_slots()) {                            // a band ended: what heads need no longer goes first
    std::vector<HeadKeep> keeps = prefill.keeps();
    if (Status can = s.running.kv->can_keep(keeps); !can.ok()) return end(s, Finish::kError, std::move(can).error());
    s.running.kv->keep(std::move(keeps), prefill.done() ? 0 : parts_.options.chunk_tokens);
  }
  if (prefill.done()) finish_prefill(s);
}

// What the prefill found and took, for the request's usage.
void EngineLoop::account(Sequence& s) const {
  const PageTable& kv = *s.running.kv;
  const Prefill& prefill = *s.running.prefill;
  const Runs recomputed = prefill.recomputed();
  s.usage.recomputed = static_cast<int>(count(recomputed));
  if (s.request.evaluation.first_logits) {
    for (const Run& run : prefill.layout().reused()) s.completion.reused_runs.push_back({run.begin, run.end});
    for (const Run& run : recomputed) s.completion.recomputed_runs.push_back({run.begin, run.end});
  }
  s.usage.linear_flops = s.work.linear_flops;
  s.usage.attention_flops = s.work.attention_flops;
  s.usage.flops = s.work.linear_flops + s.work.attention_flops;
  s.usage.bytes = s.work.bytes;
  ByHeadClass& bytes = s.usage.kv_bytes = {};
  add_pages(kv, prefill.plan(), bytes);
  for (int64_t* sum : {&bytes.global, &bytes.local, &bytes.retrieval, &bytes.dense}) *sum *= kv.shape().page_bytes();
}

void EngineLoop::finish_prefill(Sequence& s) {
  ++changes_;
  Sequence::Running& now = s.running;
  if (!Sampler::can_sample(now.logits)) return end(s, Finish::kError, not_numbers(s));  // and nothing of it is kept
  const bool first = s.completion.completion_tokens == 0;
  if (first) account(s);
  now.layout = now.prefill->layout();
  now.own_kv = now.prefill->plan().narrowed();
  now.decode.take_views(now.prefill->plan());
  if (parts_.options.cache && s.request.publish && !now.own_kv) {
    const Runs recomputed = now.prefill->recomputed();
    now.published = parts_.cache->publish_prompt(own_of(s, now.layout, now.prefill_len, recomputed));
  }
  now.prefill.reset();  // also T x D floats that no decode step needs
  if (first) {
    s.first_token = Clock::now();
    s.usage.ttft_s = seconds(s.submitted, s.first_token);
    if (s.request.evaluation.first_logits) s.completion.logits.first = now.logits;
    auditor_.sample(s);
  }
  if (s.request.sampling.max_tokens == 0) {
    end(s, Finish::kLength);
  } else {
    wants_token(s);
  }
}

// Its logits are there; draw() turns them into a token when all of the group are known.
void EngineLoop::wants_token(Sequence& s) {
  if (!Sampler::can_sample(s.running.logits)) return end(s, Finish::kError, not_numbers(s));
  auditor_.choosing(s);
  const Evaluation& asked = s.request.evaluation;
  if (asked.all_logits || (asked.first_logits && !asked.forced.empty()))
    s.completion.logits.all.push_back(s.running.logits);
  drawn_.push_back({&s});
}

// The group's logits to tokens: O(V) a sequence, so all threads draw; then sinks hear in the group's order.
void EngineLoop::draw() {
  parts_.pool->parallel_for(std::ssize(drawn_), [this](int64_t i, int worker) { draw(drawn_[i], scratch_[worker]); });
  for (Drawn& drawn : drawn_) answer(drawn);
  drawn_.clear();
}

// Any thread of the pool.
void EngineLoop::draw(Drawn& drawn, SamplerScratch& scratch) const {
  Sequence& s = *drawn.sequence;
  const std::vector<int32_t>& forced = s.request.evaluation.forced;
  std::vector<float>& logits = s.running.logits;
  const int top = s.request.sampling.logprobs;
  const std::vector<float> raw = top >= 0 ? logits : std::vector<float>();
  drawn.id = forced.empty() ? s.sampler->sample(logits, scratch) : forced[s.completion.completion_tokens];
  if (top >= 0) drawn.logprob = Sampler::logprob(raw, drawn.id, top);
}

// What follows from the token.
void EngineLoop::answer(Drawn& drawn) {
  Sequence& s = *drawn.sequence;
  const SamplingParams& params = s.request.sampling;
  const bool forced = !s.request.evaluation.forced.empty();
  const int32_t id = drawn.id;
  const auto& ends = parts_.model->config().eos_ids;
  const auto in = [id](const std::vector<int32_t>& ids) { return std::ranges::find(ids, id) != ids.end(); };
  if (!forced && ((!params.ignore_eos && in(ends)) || in(params.stop_ids))) {
    end(s, Finish::kStop);
    return;
  }
  s.tokens.push_back(id);
  ++s.completion.completion_tokens;
  AnswerText& answer = answers_.at(s.id);
  delta_.text.clear();
  answer.push(id, delta_.text);
  delta_.ids.assign(1, id);
  delta_.logprobs.clear();
  if (params.logprobs >= 0) delta_.logprobs.push_back(std::move(drawn.logprob));
  s.sink->on_tokens(delta_);
  const bool forced_out =
      forced && s.completion.completion_tokens == static_cast<int>(s.request.evaluation.forced.size());
  if (answer.stopped()) {
    end(s, Finish::kStop);
  } else if (static_cast<int32_t>(s.tokens.size()) >= s.max_len || forced_out) {
    end(s, Finish::kLength);
  }
}

// Publishes what a sequence has computed that ends now, or starts again: its answer so far, or the exact part of a
// prefill that was broken off. Whoever asks again goes on from there.
void EngineLoop::keep_work(const Sequence& s) const {
  const Sequence::Running& now = s.running;
  if (!now.kv || !parts_.options.cache || !s.request.publish) return;
  if (now.prefill) {
    if (const int32_t settled = now.prefill->settled(); settled > 0 && !now.prefill->plan().narrowed())
      parts_.cache->publish_part(own_of(s, now.prefill->layout(), settled));
  } else if (!now.own_kv) {
    // The last token's own KV was never computed; an end token was never fed.
    parts_.cache->publish_answer(own_of(s, now.layout, static_cast<int32_t>(s.tokens.size()) - 1), now.published);
  }
}

// The sequence is over: publish what it generated, then tell its sink. It is taken out of the scheduler by the caller.
void EngineLoop::end(Sequence& s, Finish finish, std::optional<Error> why) {
  const Sequence::Running& now = s.running;
  if (finish != Finish::kError) keep_work(s);
  if (s.request.export_session && s.decoding() && (finish == Finish::kStop || finish == Finish::kLength))
    s.completion.session = export_kv(*now.kv, s.tokens, parts_.file->fingerprint);
  AnswerText& answer = answers_.at(s.id);
  if (finish == Finish::kStop && answer.stopped()) s.completion.stop_text = answer.stop_text();
  if (std::string rest = answer.finish(); !rest.empty()) s.sink->on_tokens({std::move(rest), {}, {}});
  s.completion.finish = finish;
  s.completion.error = std::move(why);
  s.usage.policy = s.request.policy.name;
  s.completion.usage = s.usage;
  s.completion.total_s = seconds(s.submitted, Clock::now());
  ended_.push_back(s.id);
}

void EngineLoop::close(std::unique_ptr<Sequence> sequence) {
  CHECK(sequence);
  ++changes_;
  std::erase(ended_, sequence->id);
  answers_.erase(sequence->id);
  if (sequence->id == Auditor::kId) {
    auditor_.finish(std::move(sequence->completion));
    return;
  }
  auditor_.ended(*sequence);
  const PromptUsage& usage = sequence->usage;
  const Finish finish = sequence->completion.finish;
  ++(finish == Finish::kCancelled ? stats_.requests_cancelled
     : finish == Finish::kError   ? stats_.requests_failed
                                  : stats_.requests_ok);
  stats_.prompt_tokens += static_cast<uint64_t>(usage.prompt);
  stats_.prefix_tokens += static_cast<uint64_t>(usage.prefix);
  stats_.reused_tokens += static_cast<uint64_t>(usage.reused);
  stats_.recomputed_tokens += static_cast<uint64_t>(usage.recomputed);
  stats_.fresh_tokens += static_cast<uint64_t>(usage.fresh);
  stats_.generated_tokens += static_cast<uint64_t>(sequence->completion.completion_tokens);
  const auto sink = sequence->sink;
  Completion completion = std::move(sequence->completion);
  sequence.reset();  // its pages are free, and the figures right, before anybody hears of the end
  update_stats();
  sink->on_finish(std::move(completion));
}

// A real request came: the audit makes way.
void EngineLoop::drop_audit() {
  if (!auditor_.auditing()) return;
  scheduler_.remove(Auditor::kId);
  ++changes_;
  answers_.erase(Auditor::kId);
  auditor_.interrupt();
}

Result<HeadProfile> EngineLoop::profile_heads(std::span<const int32_t> prompt, const HeadProfileOptions& options) {
  const ProfilerParts parts{*parts_.model, *parts_.pool, driver_, parts_.cache->store()};
  const int64_t pages = head_profile_pages(parts, prompt.size(), options);
  if (!parts_.cache->make_room(pages)) {
    return error(Code::kExhausted, "profiling {} tokens needs {} free KV pages; start with a larger --kv-bytes",
                 prompt.size(), pages);
  }
  return kvilt::profile_heads(parts, prompt, options);
}

void EngineLoop::update_stats() {
  const ContentCache& cache = *parts_.cache;
  PageStore& store = parts_.cache->store();
  stats_.running = static_cast<int>(scheduler_.running().size());
  if (auditor_.auditing() && stats_.running > 0) --stats_.running;
  stats_.waiting = static_cast<int>(scheduler_.waiting().size());
  stats_.preemptions = scheduler_.preemptions();
  stats_.steps = steps_;
  stats_.kv_pages = store.pages();
  stats_.kv_pages_used = store.pages() - store.free_pages();
  stats_.request_pages = {};
  stats_.reserved_pages = 0;
  for (const auto& sequence : scheduler_.running()) {
    const Sequence::Running& now = sequence->running;
    if (!now.kv) continue;
    add_pages(*now.kv, now.prefill ? now.prefill->plan() : now.decode.plan, stats_.request_pages);
    stats_.reserved_pages += now.kv->spare_pages();
  }
  stats_.cached_tokens = cache.segments().tokens();
  stats_.cached_segments = cache.segments().segments();
  stats_.evicted_segments = cache.evicted();
  latest_.set(stats_);
}

}  // namespace kvilt

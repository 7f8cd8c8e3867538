#include "engine/engine_loop.h"

#include <algorithm>
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

// Of nobody's request.
bool is_idle_work(RequestId id) { return id == Auditor::kId || id == CleanCopier::kId; }

}  // namespace

EngineLoop::EngineLoop(EngineParts parts)
    : parts_(std::move(parts)),
      preparer_(parts_),
      scheduler_(scheduler_options(parts_.options), parts_.model->config()),
      driver_(*parts_.model, *parts_.pool),
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
      if (scheduler_.idle() && !auditor_.waiting() && !copier_.waiting())
        wake_.wait(lock, [this]() KVILT_REQUIRES(mutex_) { return stop_ || !inbox_.empty(); });
      stop = stop_;
      tasks.swap(inbox_);
      posted_.store(false, std::memory_order_relaxed);
    }
    for (auto& task : tasks) task();
    tasks.clear();
    if (!stop && scheduler_.idle()) start_idle_work();
    if (stop) break;  // what was submitted before the end is cancelled too: every sink hears of its end
    step();
    update_stats();
  }
  cancel_all();
}

void EngineLoop::add(std::unique_ptr<Sequence> sequence) {
  if (!is_idle_work(sequence->id)) drop_idle_work();
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
  scheduler_.admit([this](Sequence& sequence) {
    return preparer_.prepare(sequence, scheduler_.running(), changes_ + scheduler_.preemptions());
  });
  std::vector<std::unique_ptr<Sequence>> failed;
  const std::span<StepGroup> groups =
      scheduler_.next_step([this](int64_t pages) { return parts_.cache->make_room(pages); }, failed);
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
    const bool nobody_asks = s.request.sampling.max_tokens == 0 && !s.request.evaluation.first_logits &&
                             s.request.evaluation.prompt_logits == 0;
    rows = nobody_asks ? 0 : prefill.logit_rows(item.range);
  }
  if (rows > 0) {
    now.logits.resize(static_cast<size_t>(rows * parts_.model->config().V));
    chunk.logits = now.logits.data();
  }
  return chunk;
}

void EngineLoop::run_group(StepGroup& group) {
  chunks_.clear();
  for (const StepItem& item : group.items) chunks_.push_back(chunk_of(item));
  driver_.run(chunks_);
  for (size_t i = 0; i < chunks_.size(); ++i) after(group.items[i], chunks_[i].work);
}

void EngineLoop::after(StepItem& item, const Work& work) {
  Sequence& s = *item.sequence;
  if (item.decode) {
    sample(s);
    return;
  }
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
  const bool first = s.completion.completion_tokens == 0;
  if (first) account(s);
  now.layout = now.prefill->layout();
  now.own_kv = now.prefill->plan().narrowed();
  now.decode.take_views(now.prefill->plan());
  if (parts_.options.cache && s.request.publish && !now.own_kv) {
    now.published = parts_.cache->publish_prompt({*now.kv, now.layout, s.tokens, s.request.prompt.marks, s.domain,
                                                  now.prefill_len, s.repaired, now.prefill->recomputed()});
  }
  now.prefill.reset();  // also T x D floats that no decode step needs
  if (first) {
    s.first_token = Clock::now();
    s.usage.ttft_s = seconds(s.submitted, s.first_token);
    if (s.request.evaluation.first_logits) s.completion.logits.first = now.logits;
    auditor_.sample(s);
    const auto& marks = s.request.prompt.marks;
    if (parts_.options.cache && s.request.publish && s.policy->wants_pieces() && !marks.empty())
      copier_.asked(s, parts_.cache->without_clean_copy(s.tokens, marks, s.domain));
  }
  if (s.request.sampling.max_tokens == 0) {
    end(s, Finish::kLength);
  } else {
    sample(s);
  }
}

// The step's logits to a token, and what follows from it.
void EngineLoop::sample(Sequence& s) {
  const SamplingParams& params = s.request.sampling;
  const bool forced = !s.request.evaluation.forced.empty();
  std::vector<float>& logits = s.running.logits;
  auditor_.choosing(s);
  const std::vector<float> raw = params.logprobs >= 0 ? logits : std::vector<float>();
  if (s.request.evaluation.all_logits || (s.request.evaluation.first_logits && forced))
    s.completion.logits.all.push_back(logits);
  const int32_t id = forced ? s.request.evaluation.forced[s.completion.completion_tokens] : s.sampler->sample(logits);
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
  if (params.logprobs >= 0) delta_.logprobs.push_back(Sampler::logprob(raw, id, params.logprobs));
  s.sink->on_tokens(delta_);
  const bool forced_out =
      forced && s.completion.completion_tokens == static_cast<int>(s.request.evaluation.forced.size());
  if (answer.stopped()) {
    end(s, Finish::kStop);
  } else if (static_cast<int32_t>(s.tokens.size()) >= s.max_len || forced_out) {
    end(s, Finish::kLength);
  }
}

// The sequence is over: publish what it generated, then tell its sink. It is taken out of the scheduler by the caller.
void EngineLoop::end(Sequence& s, Finish finish, std::optional<Error> why) {
  const Sequence::Running& now = s.running;
  if (s.decoding() && parts_.options.cache && s.request.publish && !now.own_kv && finish != Finish::kError) {
    // The last token's own KV was never computed; an end token was never fed.
    const auto computed = static_cast<int32_t>(s.tokens.size()) - 1;
    parts_.cache->publish_answer({*now.kv, now.layout, s.tokens, s.request.prompt.marks, s.domain, computed},
                                 now.published);
  }
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
  if (sequence->id == CleanCopier::kId) {
    copier_.finish();
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

void EngineLoop::start_idle_work() {
  if (auditor_.waiting()) {
    add(auditor_.start());
  } else if (copier_.waiting()) {
    add(copier_.start());
  }
}

// A real request came: audits and copies make way.
void EngineLoop::drop_idle_work() {
  for (const RequestId id : {Auditor::kId, CleanCopier::kId}) {
    const bool runs = id == Auditor::kId ? auditor_.auditing() : copier_.copying();
    if (!runs) continue;
    scheduler_.remove(id);
    ++changes_;
    answers_.erase(id);
  }
  if (auditor_.auditing()) auditor_.interrupt();
  copier_.interrupt();
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
  if ((auditor_.auditing() || copier_.copying()) && stats_.running > 0) --stats_.running;
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

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

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

constexpr RequestId kAuditId = ~RequestId{0};

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
    const HeadClass c = plan.head_class.empty() ? HeadClass::kDense : plan.head_class[static_cast<size_t>(i)];
    int64_t& of = c == HeadClass::kGlobal      ? sum.global
                  : c == HeadClass::kLocal     ? sum.local
                  : c == HeadClass::kRetrieval ? sum.retrieval
                                               : sum.dense;
    of += kv.held_pages(i / G, i % G);
  }
}

}  // namespace

EngineLoop::EngineLoop(EngineParts parts)
    : parts_(std::move(parts)),
      scheduler_(scheduler_options(parts_.options), parts_.model->config()),
      driver_(*parts_.model, *parts_.pool),
      audit_(parts_.options.audit, parts_.options.audit_limit, parts_.options.seed),
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

EngineStats EngineLoop::stats() const {
  EngineStats out{latest_.get(), {}};
  MutexLock lock(mutex_);
  out.audits = audits_;
  return out;
}

void EngineLoop::run() {
  if (parts_.options.pin) pin_to_cores(*parts_.pool);
  update_stats();
  std::vector<std::function<void()>> tasks;
  for (bool stop = false;;) {
    if (scheduler_.idle() || posted_.load(std::memory_order_acquire)) {
      MutexLock lock(mutex_);
      if (scheduler_.idle() && !audit_.waiting())
        wake_.wait(lock, [this]() KVILT_REQUIRES(mutex_) { return stop_ || !inbox_.empty(); });
      stop = stop_;
      tasks.swap(inbox_);
      posted_.store(false, std::memory_order_relaxed);
    }
    for (auto& task : tasks) task();
    tasks.clear();
    if (!stop && scheduler_.idle() && audit_.waiting()) start_audit();
    if (stop) break;  // what was submitted before the end is cancelled too: every sink hears of its end
    step();
    update_stats();
  }
  cancel_all();
}

void EngineLoop::add(std::unique_ptr<Sequence> sequence) {
  if (sequence->id != kAuditId) drop_audit();
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
  // LongRoPE: an answer that grows beyond the original context has all its keys turned by other angles from then on.
  const ModelConfig& config = parts_.model->config();
  scheduler_.restart([&](const Sequence& s) {
    return s.decoding() && config.is_long(static_cast<int64_t>(s.tokens.size())) && !config.is_long(s.prefill_len);
  });
  scheduler_.admit([this](Sequence& sequence) { return prepare(sequence); });
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

// Another request computes and will publish the very prompt.
bool EngineLoop::same_prompt_running(const Sequence& s) const {
  return std::any_of(scheduler_.running().begin(), scheduler_.running().end(), [&](const auto& other) {
    return other->prefill && other->domain == s.domain && other->tokens == s.tokens && other->request.publish;
  });
}

// Finds, places and plans.
Admission EngineLoop::prepare(Sequence& s) {
  const ModelConfig& config = parts_.model->config();
  if (config.is_long(static_cast<int64_t>(s.tokens.size()))) {  // what is cached is of the short ones
    s.without_cache = true;
    s.request.publish = false;
  }
  const bool use_cache = parts_.options.cache && !s.without_cache;
  if (use_cache && s.policy->wants_prefix() && same_prompt_running(s)) return Admission::kLater;
  // Pages come free, and content appears, when a prefill or a request ends: until then another look finds the same.
  const uint64_t moment = changes_ + scheduler_.preemptions();
  if (s.no_room_at == moment && !scheduler_.running().empty()) return Admission::kNoRoom;
  s.prefill_len = static_cast<int32_t>(s.tokens.size());
  ContentCache::Found found;
  found.layout.prompt_len = s.prefill_len;
  const bool with_session = s.session_len > 0 && !s.without_cache;
  if (with_session) {
    if (import(s)) {
      found.layout.prefix = s.session_len;
    } else if (!scheduler_.running().empty()) {
      s.no_room_at = moment;
      return Admission::kNoRoom;
    }
  } else if (use_cache) {
    found = parts_.cache->find(s.tokens, s.request.prompt.marks, s.domain,
                               {s.policy->wants_prefix(), s.policy->wants_pieces(), s.repaired});
    if (!found.layout.pieces.empty() && !s.policy->uses(found.layout, config)) found.drop_pieces();
  }
  if (s.prefill_len > s.prompt_len) found.layout.answer = s.prompt_len;
  if (found.layout.prefix == 0 || !with_session) place(s, std::move(found.placements));
  s.prefill = std::make_unique<Prefill>(*s.policy, found.layout, config, s.request.evaluation.prompt_logits);
  s.kv->keep(s.prefill->keeps(), parts_.options.chunk_tokens);
  const auto writes = s.prefill->writes();
  const bool copy = parts_.options.placement == PlacementMode::kCopy;
  const int64_t pages = s.kv->pages_for(writes.sets, writes.write) + (copy ? s.kv->copy_pages() : 0);
  const bool fits = parts_.cache->make_room(pages);
  if (!fits && !scheduler_.running().empty()) {
    s.kv.reset();
    s.prefill.reset();
    s.no_room_at = moment;
    return Admission::kNoRoom;
  }
  copy_placed(s);
  s.slots_ready = fits;  // taken at once: the next one that is let in must not count on the same pages
  if (fits) s.kv->add(writes.sets, writes.write);
  if (!s.started) {
    s.started = true;
    s.first_step = Clock::now();
    s.usage.queued_s = seconds(s.submitted, s.first_step);
  }
  if (s.completion.completion_tokens == 0) s.completion.logits.prompt.clear();  // of a prefill that was broken off
  if (s.completion.completion_tokens == 0) {  // also when it starts again: the account is of what was done then
    s.usage.prompt = s.prompt_len;
    s.usage.prefix = found.layout.prefix;
    s.usage.reused = static_cast<int>(count(found.layout.reused()));
    s.usage.fresh = s.usage.prompt - s.usage.prefix - s.usage.reused;
  }
  s.tokens.reserve(static_cast<size_t>(s.max_len));
  return Admission::kReady;
}

// The request's session as its page table. False: there is no room for it now; alone in the pool it is computed instead.
bool EngineLoop::import(Sequence& s) {
  if (!parts_.cache->make_room(s.session_pages)) return false;
  auto session = import_session(parts_.cache->store(), parts_.model->config().ropes(s.prefill_len),
                                parts_.file->fingerprint, std::span<const std::byte>(s.request.session->bytes));
  if (!session.ok()) return false;
  s.kv = std::move(session->table);
  return true;
}

// A new page table that holds what was found and nothing else.
void EngineLoop::place(Sequence& s, std::vector<Placement> placements) {
  s.kv = std::make_unique<PageTable>(parts_.cache->store(), parts_.model->config().ropes(s.prefill_len));
  for (Placement& placement : placements) s.kv->place(std::move(placement), s.policy->wants_realigned());
}

// With --placement copy, if there is room: else what was placed stays where it is.
void EngineLoop::copy_placed(Sequence& s) {
  if (parts_.options.placement != PlacementMode::kCopy || !parts_.cache->make_room(s.kv->copy_pages())) return;
  const double bytes = static_cast<double>(count(s.kv->known(0))) * static_cast<double>(s.kv->shape().token_bytes());
  s.kv->copy_in(parts_.model->backend(), parts_.model->attend_shape(s.kv->shape().dtype));
  s.work.bytes += 2 * bytes;
}

void EngineLoop::run_group(StepGroup& group) {
  chunks_.clear();
  for (StepItem& item : group.items) {
    Sequence& s = *item.sequence;
    Chunk chunk;
    chunk.kv = s.kv.get();
    chunk.plan = item.decode ? &s.decode.plan : &s.prefill->plan();
    chunk.stage = item.decode ? &s.decode.plan.stages[0] : &s.prefill->stage();
    chunk.band = item.decode ? &s.decode.band : &s.prefill->band();
    chunk.range = item.range;
    chunk.tokens = s.tokens;
    chunk.hidden = &s.hidden;
    chunk.carry = &s.carry;
    if (!item.decode) chunk.probes = s.prefill->probes();
    const Band& band = *chunk.band;
    // Rows at a later cut of a stage are some of those at the first: they go back to the places that they came from.
    if (band.cut && !band.last && band.layer_begin == 0 &&
        s.prefill->next_chunk(1).begin == (band.in.empty() ? band.cut_rows : band.in[0]).front().begin) {
      s.hidden.reset(band.cut_rows, parts_.model->config().D);
    }
    const bool skip_logits = !item.decode && s.request.sampling.max_tokens == 0 && !s.request.evaluation.first_logits &&
                             s.request.evaluation.prompt_logits == 0;
    const int64_t rows = item.decode ? 1 : s.prefill->logit_rows(item.range);
    if (rows > 0 && !skip_logits) {
      s.logits.resize(static_cast<size_t>(rows * parts_.model->config().V));
      chunk.logits = s.logits.data();
    }
    chunks_.push_back(chunk);
  }
  driver_.run(chunks_);
  for (size_t i = 0; i < chunks_.size(); ++i) after(group.items[i], chunks_[i].work);
}

void EngineLoop::after(StepItem& item, const Work& work) {
  Sequence& s = *item.sequence;
  if (item.decode) {
    sample(s);
    return;
  }
  s.work += work;
  ++s.usage.steps;
  if (const int64_t rows = s.prefill->logit_rows(item.range); rows > 0 && s.request.evaluation.prompt_logits > 0) {
    const auto V = static_cast<ptrdiff_t>(parts_.model->config().V);
    for (int64_t r = 0; r < rows && s.completion.completion_tokens == 0; ++r) {
      s.completion.logits.prompt.emplace_back(s.logits.begin() + r * V, s.logits.begin() + (r + 1) * V);
    }
    s.logits.erase(s.logits.begin(), s.logits.end() - V);  // sampled from is the last
  }
  s.kv->passed(s.prefill->layers_passed(), s.prefill->passed_by(item.range));
  if (s.prefill->advance(item.range)) {
    s.slots_ready = false;
    if (s.prefill->band().layer_begin == 0) s.carry = {};  // a new stage
  }
  if (s.prefill->take_restart()) {  // back to what was placed; its private pages are free for the next stage
    place(s, {s.kv->first_placements().begin(), s.kv->first_placements().end()});
    copy_placed(s);
  }
  // Before the next band has its slots: what heads need no longer goes.
  if (!s.slots_ready) {
    std::vector<HeadKeep> keeps = s.prefill->keeps();
    if (Status can = s.kv->can_keep(keeps); !can.ok()) return end(s, Finish::kError, std::move(can).error());
    s.kv->keep(std::move(keeps), s.prefill->done() ? 0 : parts_.options.chunk_tokens);
  }
  if (s.prefill->done()) finish_prefill(s);
}

void EngineLoop::finish_prefill(Sequence& s) {
  ++changes_;
  const bool first = s.completion.completion_tokens == 0;
  if (first) {
    const Runs recomputed = s.prefill->recomputed();
    s.usage.recomputed = static_cast<int>(count(recomputed));
    if (s.request.evaluation.first_logits) {
      for (const Run& run : s.prefill->layout().reused()) s.completion.reused_runs.push_back({run.begin, run.end});
      for (const Run& run : recomputed) s.completion.recomputed_runs.push_back({run.begin, run.end});
    }
    s.usage.linear_flops = s.work.linear_flops;
    s.usage.attention_flops = s.work.attention_flops;
    s.usage.flops = s.work.linear_flops + s.work.attention_flops;
    s.usage.bytes = s.work.bytes;
    ByHeadClass& kv = s.usage.kv_bytes = {};
    add_pages(*s.kv, s.prefill->plan(), kv);
    for (int64_t* sum : {&kv.global, &kv.local, &kv.retrieval, &kv.dense}) *sum *= s.kv->shape().page_bytes();
  }
  s.own_kv = s.prefill->plan().narrowed();
  s.decode.take_views(s.prefill->plan());
  if (parts_.options.cache && s.request.publish && !s.own_kv) {
    s.published = parts_.cache->publish_prompt({*s.kv, s.prefill->layout(), s.tokens, s.request.prompt.marks, s.domain,
                                                s.prefill_len, s.repaired, s.prefill->recomputed()});
  }
  s.layout = s.prefill->layout();
  s.prefill.reset();
  s.hidden = {};  // T x D floats that no decode step needs
  s.carry = {};
  if (first) {
    s.first_token = Clock::now();
    s.usage.ttft_s = seconds(s.submitted, s.first_token);
    if (s.request.evaluation.first_logits) s.completion.logits.first = s.logits;
    if (s.request.evaluation.forced.empty() && s.request.sampling.max_tokens != 0) {
      if (auto record = audit_.sample(s.request.policy.name, s.usage.reused)) sampled_[s.id] = std::move(record);
    }
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
  if (const auto it = sampled_.find(s.id); it != sampled_.end() && it->second->logits.size() < Audit::kTokens)
    it->second->logits.push_back(s.logits);
  const std::vector<float> raw = params.logprobs >= 0 ? s.logits : std::vector<float>();
  const auto& ends = parts_.model->config().eos_ids;
  int32_t id;
  if (s.request.evaluation.all_logits || (s.request.evaluation.first_logits && !s.request.evaluation.forced.empty())) {
    s.completion.logits.all.push_back(s.logits);
  }
  if (!s.request.evaluation.forced.empty()) {
    id = s.request.evaluation.forced[static_cast<size_t>(s.completion.completion_tokens)];
  } else {
    id = s.sampler->sample(s.logits);
  }
  const auto in = [id](const std::vector<int32_t>& ids) { return std::find(ids.begin(), ids.end(), id) != ids.end(); };
  if (s.request.evaluation.forced.empty() && ((!params.ignore_eos && in(ends)) || in(params.stop_ids))) {
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
  const bool forced_out = !s.request.evaluation.forced.empty() &&
                          s.completion.completion_tokens == static_cast<int>(s.request.evaluation.forced.size());
  if (answer.stopped()) {
    end(s, Finish::kStop);
  } else if (static_cast<int32_t>(s.tokens.size()) >= s.max_len || forced_out) {
    end(s, Finish::kLength);
  }
}

// The sequence is over: publish what it generated, then tell its sink. It is taken out of the scheduler by the caller.
void EngineLoop::end(Sequence& s, Finish finish, std::optional<Error> why) {
  if (s.kv && !s.prefill && parts_.options.cache && s.request.publish && !s.own_kv && finish != Finish::kError) {
    // The last token's own KV was never computed; an end token was never fed.
    const auto computed = static_cast<int32_t>(s.tokens.size()) - 1;
    parts_.cache->publish_answer({*s.kv, s.layout, s.tokens, s.request.prompt.marks, s.domain, computed}, s.published);
  }
  if (s.request.export_session && s.kv && !s.prefill && (finish == Finish::kStop || finish == Finish::kLength))
    s.completion.session = export_kv(*s.kv, s.tokens, parts_.file->fingerprint);
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
  if (sequence->id == kAuditId) {
    end_audit(std::move(sequence->completion));
    return;
  }
  if (const auto it = sampled_.find(sequence->id); it != sampled_.end()) {
    const Finish finish = sequence->completion.finish;
    const auto answer = sequence->tokens.begin() + sequence->prompt_len;
    it->second->prompt.assign(sequence->tokens.begin(), answer);
    it->second->answer.assign(answer, sequence->tokens.end());
    if (finish == Finish::kStop || finish == Finish::kLength) audit_.add(std::move(it->second));
    sampled_.erase(it);
  }
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

namespace {
// What the audit's own sequence tells goes nowhere: close() takes its completion.
class Silence : public TokenSink {
  void on_tokens(const TokenDelta&) override {}
  void on_finish(Completion) override {}
};
}  // namespace

// The sampled request again, in full, with its own answer forced. Nothing is found and nothing published.
void EngineLoop::start_audit() {
  auditing_ = audit_.take();
  auto s = std::make_unique<Sequence>();
  s->id = kAuditId;
  s->submitted = Clock::now();
  s->policy = make_policy("full", {}).value();
  s->request.policy.name = "full";
  s->request.publish = false;
  s->request.evaluation.first_logits = true;
  s->request.evaluation.forced = auditing_->answer;
  s->tokens = s->request.prompt.ids = auditing_->prompt;
  s->prompt_len = static_cast<int32_t>(s->tokens.size());
  s->max_len = s->prompt_len + static_cast<int32_t>(auditing_->answer.size());
  s->sink = std::make_shared<Silence>();
  add(std::move(s));
}

// A real request came: the audit makes way.
void EngineLoop::drop_audit() {
  if (!auditing_) return;
  scheduler_.remove(kAuditId);
  ++changes_;
  answers_.erase(kAuditId);
  audit_.finish(std::move(auditing_), {});
}

void EngineLoop::end_audit(Completion completion) {
  if (!auditing_) return;
  const bool whole = !completion.error && completion.logits.all.size() == auditing_->answer.size();
  audit_.finish(std::move(auditing_), whole ? std::move(completion.logits.all) : std::vector<std::vector<float>>());
  std::vector<AuditStats> found = audit_.stats();
  MutexLock lock(mutex_);
  audits_ = std::move(found);
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
  const bool auditing = auditing_ != nullptr;
  stats_.running = static_cast<int>(scheduler_.running().size()) - (auditing && !scheduler_.running().empty() ? 1 : 0);
  stats_.waiting = static_cast<int>(scheduler_.waiting().size());
  stats_.preemptions = scheduler_.preemptions();
  stats_.steps = steps_;
  stats_.kv_pages = store.pages();
  stats_.kv_pages_used = store.pages() - store.free_pages();
  stats_.request_pages = {};
  stats_.reserved_pages = 0;
  for (const auto& sequence : scheduler_.running()) {
    if (!sequence->kv) continue;
    add_pages(*sequence->kv, sequence->prefill ? sequence->prefill->plan() : sequence->decode.plan,
              stats_.request_pages);
    stats_.reserved_pages += sequence->kv->spare_pages();
  }
  stats_.cached_tokens = cache.segments().tokens();
  stats_.cached_segments = cache.segments().segments();
  stats_.evicted_segments = cache.evicted();
  latest_.set(stats_);
}

}  // namespace kvilt

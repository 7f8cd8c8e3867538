// engine/progress.cc: what a computed chunk means for its request: progress, tokens, publication, the end.
// Role:     the second half of EngineLoop (engine_loop.h). Start at after().
// Threads:  the engine thread; draw() of one sequence runs on any thread of the pool.
// Not here: which chunks are computed (sched/scheduler.h), what publication does (content_cache.h).
#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/divergence.h"
#include "base/error.h"
#include "engine/engine_loop.h"
#include "engine/explain.h"
#include "engine/session.h"

namespace kvilt {
namespace {

// After the last request, before idle work begins: the next turn of a conversation often comes at once.
constexpr auto kPause = std::chrono::milliseconds(300);

// A prefill publishes when so many more tokens of it are exact: about as many as take a second on two cores, 0.5B. Each
// time costs a segment, and a piece of somebody's text may lie in two.
constexpr int32_t kPublishEvery = 1024;

// tokens: those before the logits.
Error not_numbers(size_t tokens) {
  return error(Code::kInternal,
               "after token {} the model's logits are not numbers (NaN or infinite): its weights hold such values, or "
               "its activations overflow; try --activations f32, or another file of the model",
               tokens);
}

}  // namespace

// What the cache needs to know of a sequence that publishes. layout and recomputed must outlive the call.
ContentCache::Own EngineLoop::own_of(const Sequence& s, const PromptLayout& layout, int32_t computed,
                                     const Runs& recomputed) const {
  const auto& prefill = s.running.prefill;
  const std::span<KeptRows> kept = prefill ? prefill->kept_by_plan() : std::span<KeptRows>();
  return {.kv = *s.running.kv,
          .layout = layout,
          .tokens = s.tokens,
          .marks = s.request.prompt.marks,
          .domains = s.domains,
          .computed = computed,
          .exact = s.running.exact,
          .chain = s.running.chain,
          .recomputed = recomputed,
          .kept = kept,
          .spare = kept.empty() ? 0 : spare_pages(),
          .request = s.id,
          .elsewhere = s.running.elsewhere,
          .mean_state = prefill ? prefill->kept_for_means() : nullptr};
}

// Pages that no running request needs, however long its answer becomes.
int64_t EngineLoop::spare_pages() const {
  const KvShape& shape = parts_.cache->store().shape();
  int64_t pages = preparer_.available();
  for (const auto& s : scheduler_.running()) {
    const int64_t to_come = s->max_len - static_cast<int64_t>(s->tokens.size());
    pages -= s->owed() + int64_t{shape.L} * shape.G * ((to_come + shape.P - 1) / shape.P);
  }
  return pages;
}

// Adds what the heads of `kv` hold, by what `plan` makes of them.
void EngineLoop::add_pages(const PageTable& kv, const Plan& plan, ByHeadClass& sum) {
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

void EngineLoop::after(StepItem& item, const Chunk& chunk) {
  Sequence& s = *item.sequence;
  const Work& work = chunk.work;
  if (item.decode) {
    s.usage.decode_attention_flops += work.attention_flops;
    s.usage.decode_bytes += work.bytes;
    s.decode_held += work.held;
    s.usage.decode_held_mass = s.decode_held.share();
    if (s.running.keys) evict(s);
    return wants_token(s, {chunk.logits, item.range.size(), parts_.model->config().V});
  }
  Prefill& prefill = *s.running.prefill;
  std::vector<float>& logits = s.running.logits;
  s.work += work;
  s.rows += prefill.rows_in(item.range);
  stats_.prefill_flops += work.linear_flops + work.attention_flops;
  ++s.usage.steps;
  if (prefill.guesses_after(item.range)) {
    const int32_t id = most_likely(logits);
    const auto& ends = parts_.model->config().eos_ids;
    if (s.request.sampling.ignore_eos || std::ranges::find(ends, id) == ends.end()) prefill.guess(id);
  } else if (const int64_t rows = prefill.logit_rows(item.range); rows > 0 && s.request.evaluation.prompt_logits > 0) {
    const auto V = static_cast<ptrdiff_t>(parts_.model->config().V);
    for (int64_t r = 0; r < rows && s.completion.completion_tokens == 0; ++r)
      s.completion.logits.prompt.emplace_back(logits.begin() + r * V, logits.begin() + (r + 1) * V);
    logits.erase(logits.begin(), logits.end() - V);  // the next token comes from the last row's
  }
  s.running.kv->passed(prefill.layers_passed(), prefill.passed_by(item.range));
  prefill.advance(item.range);
  for (const AnnexBlock& block : prefill.take_findings()) {
    if (parts_.options.cache) parts_.cache->attach(*s.running.kv, block, spare_pages());
  }
  if (prefill.take_restart()) preparer_.place_again(s);  // its private pages are free for the next stage
  if (!prefill.has_slots()) {                            // a band ended: what heads need no longer goes first
    std::vector<HeadKeep> keeps = prefill.keeps();
    if (Status can = s.running.kv->can_keep(keeps); !can.ok()) return end(s, Finish::kError, std::move(can).error());
    s.running.kv->keep(std::move(keeps), prefill.done() ? 0 : parts_.options.chunk_tokens);
    if (prefill.take_guesses_over()) s.running.kv->truncate(s.running.prefill_len);
  }
  if (s.request.progress) report(s);
  if (prefill.done()) return finish_prefill(s);
  const auto watch = watches_.find(s.id);
  publish_as_it_goes(s, watch == watches_.end() ? kPublishEvery : StoredPiece::kChunkTokens);
  if (watch != watches_.end()) watch->second();
}

// A repair's rows are spread over the prompt: it is as far as the share of its rows that have run.
void EngineLoop::report(Sequence& s) {
  if (s.completion.completion_tokens > 0) return;  // it was preempted, and has said how far it is
  const Prefill& prefill = *s.running.prefill;
  const PromptUsage& usage = s.usage;
  const int64_t left = prefill.done() ? 0 : prefill.rows_left(), rows = std::max<int64_t>(1, s.rows + left);
  PromptProgress now{usage.prompt, usage.prefix + usage.reused, 0, seconds(s.first_step, Clock::now())};
  const int64_t to_do = now.total - now.cached;
  s.processed = std::max(s.processed, now.cached + static_cast<int>(to_do * s.rows / rows));
  now.processed = prefill.done() ? now.total : std::min(s.processed, now.total);
  s.sink->on_progress(now);
}

// Others that come meanwhile go on from what a long prefill has done so far, if that is so many more tokens.
void EngineLoop::publish_as_it_goes(Sequence& s, int32_t at_least) {
  Sequence::Running& now = s.running;
  const int32_t settled = now.prefill->settled();
  if (settled < std::max(now.exact.pos, now.prefill->layout().prefix) + at_least || !may_publish(s) ||
      now.prefill->plan().narrowed())
    return;
  const int32_t before = now.exact.pos;
  now.exact = parts_.cache->publish_part(own_of(s, now.prefill->layout(), settled), true);
  if (now.exact.pos != before) ++changes_;
}

// What the prefill found and took, for the request's usage.
void EngineLoop::account(Sequence& s) const {
  const PageTable& kv = *s.running.kv;
  const Prefill& prefill = *s.running.prefill;
  const Runs recomputed = prefill.recomputed();
  s.usage.recomputed = static_cast<int>(count(recomputed));
  s.usage.kept = prefill.kept_share();
  if (s.request.evaluation.first_logits) {
    for (const Run& run : prefill.layout().reused()) s.completion.reused_runs.push_back({run.begin, run.end});
    for (const Run& run : recomputed) s.completion.recomputed_runs.push_back({run.begin, run.end});
  }
  if (s.request.explain != Explain::kNo) {
    const Sequence::Running& now = s.running;
    const bool publishes = may_publish(s) && !now.own_kv;
    const int32_t exact_end = publishes ? own_of(s, now.layout, now.prefill_len, recomputed).exact_end() : 0;
    s.completion.quilt = quilt_of(now.notes, now.layout, recomputed, parts_.options.min_segment, exact_end);
  }
  s.usage.linear_flops = s.work.linear_flops;
  s.usage.attention_flops = s.work.attention_flops;
  s.usage.flops = s.work.linear_flops + s.work.attention_flops;
  s.usage.bytes = s.work.bytes;
  s.usage.held_mass = s.work.held.share();
  ByHeadClass& bytes = s.usage.kv_bytes = {};
  add_pages(kv, prefill.plan(), bytes);
  for (int64_t* sum : {&bytes.global, &bytes.local, &bytes.retrieval, &bytes.dense}) *sum *= kv.shape().page_bytes();
}

void EngineLoop::finish_prefill(Sequence& s) {
  ++changes_;
  Sequence::Running& now = s.running;
  std::optional<int32_t> unsound = now.scores ? now.scores->unsound() : std::nullopt;
  if (!unsound && !Sampler::can_sample(now.logits)) unsound = now.prefill_len - 1;
  if (unsound) return end(s, Finish::kError, not_numbers(*unsound + 1));  // and nothing of it is kept
  const bool first = s.completion.completion_tokens == 0;
  now.layout = now.prefill->layout();
  now.own_kv = now.prefill->plan().narrowed();
  if (first) account(s);
  now.decode.take_views(now.prefill->plan());
  if (may_publish(s) && !now.own_kv) {
    const Runs recomputed = now.prefill->recomputed();
    now.published = parts_.cache->publish_prompt(own_of(s, now.layout, now.prefill_len, recomputed));
    keep_with_preference(s);
  }
  // Also where it published nothing itself: what it was asked about was there already.
  if (may_publish(s) && !s.request.prompt.frozen.empty())
    parts_.cache->freeze(own_of(s, now.layout, now.prefill_len), s.request.tenant, s.request.prompt.frozen);
  if (s.request.season && first && !now.own_kv) season(s);
  const int64_t looked_again = now.prefill->looks_again();
  now.prefill.reset();                                     // also T x D floats that no decode step needs
  if (s.lingers_until) return end(s, Finish::kCancelled);  // whoever asks again finds it
  if (first) {
    s.first_token = Clock::now();
    s.usage.ttft_s = seconds(s.submitted, s.first_token);
    const int64_t computed = computed_since_first_step(s.usage, looked_again);
    if (!now.ran_ahead)
      parts_.each_source([&](auto& source) { source.computed(computed, seconds(s.first_step, s.first_token)); });
    if (s.request.evaluation.first_logits) s.completion.logits.first = now.logits;
    s.completion.last_hidden = std::move(now.last_hidden);
    if (now.scores) {
      s.sink->on_prompt(now.scores->release());
      s.prompt_told = true;
      now.scores.reset();
    }
    if (!now.keys) auditor_.sample(s);  // an answer that sees few keys would be laid to the prefill's policy
    const auto& marks = s.request.prompt.marks;
    // A clean copy has no annexes: who wants those is not served by one.
    if (may_publish(s) && s.policy->wants_pieces() && s.policy->wants_annexes(parts_.model->config()).empty() &&
        !marks.empty()) {
      copier_.asked(s, parts_.cache->without_clean_copy(s.tokens, marks, s.domains));
      wants_seasoning(s);
    }
  }
  if (s.request.sampling.max_tokens == 0) {
    end(s, Finish::kLength);
  } else {
    wants_token(s, {now.logits.data(), 1, parts_.model->config().V});
  }
}

// What the request wants to be kept longer than its turn, now that it is published.
void EngineLoop::keep_with_preference(const Sequence& s) {
  const Request& asked = s.request;
  if (asked.prompt.kept.empty() && asked.frozen_as.empty()) return;
  const ContentCache::Own own = own_of(s, s.running.layout, s.running.prefill_len);
  std::array<int32_t, 4> ends{};  // by retention: of many marks the last one counts
  for (const KeptPrefix& kept : asked.prompt.kept) {
    int32_t& end = ends[static_cast<size_t>(kept.retention)];
    end = std::max(end, kept.tokens);
  }
  for (size_t i = 1; i < ends.size(); ++i) {
    if (ends[i] > 0) parts_.cache->retain(own, ends[i], static_cast<Retention>(i));
  }
  if (!asked.frozen_as.empty()) parts_.cache->freeze(own, asked.tenant, asked.frozen_as);
}

void EngineLoop::season(Sequence& s) {
  // A set that lacks contexts may hold documents that have theirs.
  const bool asked_for = !s.idle_work || auditor_.auditing();
  s.running.means.clear();  // the cache pins what stays from here on
  s.completion.contexts = parts_.cache->season(own_of(s, s.running.layout, s.running.prefill_len), *parts_.pool,
                                               asked_for ? kMostContexts : seasoner_.contexts());
  if (auditor_.auditing()) return auditor_.seasoned();  // that pass was made for something else
  ++stats_.seasoning_passes;
  const Clock::time_point begun = std::max(s.first_step, seasoned_until_);  // some run at the same time
  seasoned_until_ = Clock::now();
  stats_.seasoning_s += seconds(begun, seasoned_until_);
}

void EngineLoop::wants_seasoning(const Sequence& s) {
  if (!seasoner_.wanted() || !s.from_seasoned) return;
  seasoner_.asked(
      s, parts_.cache->without_contexts(s.tokens, s.request.prompt.marks, s.domains.seasoned, seasoner_.contexts()));
}

// What no later row of the answer sees may go now.
void EngineLoop::evict(Sequence& s) {
  PageTable& kv = *s.running.kv;
  const bool first = !kv.compacted();
  const auto next = static_cast<int32_t>(s.tokens.size());
  const double moved = s.running.keys->evict(kv, next, [&](int64_t pages) { return make_room(pages, kv.owner()); });
  if (moved == 0) return;
  s.usage.decode_bytes += moved;
  const KvShape& shape = kv.shape();
  int64_t rows = 0;
  for (int i = 0; i < shape.L * shape.G; ++i) rows += next - kv.slots_of(i / shape.G, i % shape.G);
  s.usage.evicted_bytes = rows * 2 * shape.row_bytes();
  if (first) ++changes_;  // there is room for others
}

// Its logits are there; draw() turns them into tokens when all of the group are known.
void EngineLoop::wants_token(Sequence& s, Mat<float> logits) {
  if (!Sampler::can_sample({logits.row(0), static_cast<size_t>(logits.cols)}))
    return end(s, Finish::kError, not_numbers(s.tokens.size()));
  if (logits.rows == 1) auditor_.choosing(s);
  const Evaluation& asked = s.request.evaluation;
  if (asked.all_logits || (asked.first_logits && !asked.forced.empty()))
    s.completion.logits.all.push_back(s.running.logits);
  s.running.drawn.reserve(static_cast<size_t>(logits.rows));
  const auto constrained = constrained_.find(s.id);
  drawn_.push_back({&s, logits, constrained == constrained_.end() ? nullptr : &constrained->second});
}

// The group's logits to tokens: O(V) a sequence, so all threads draw; then sinks hear in the group's order.
void EngineLoop::draw() {
  parts_.pool->parallel_for(std::ssize(drawn_), [this](int64_t i, int worker) {
    try {
      if (drawn_[i].constrained) take_back(drawn_[i]);
      draw(drawn_[i], scratch_[worker]);
    } catch (const std::bad_alloc&) {
      drawn_[i].no_memory = true;
    }
  });
  for (Drawn& drawn : drawn_) {
    stats_.mask_s += drawn.mask_s;
    stats_.mask_ahead_s += drawn.ahead_s;
    if (drawn.no_memory) {
      fail_for_memory(*drawn.sequence);
    } else {
      answer(drawn);
    }
  }
  drawn_.clear();
}

// Without memory for a draft, or for its rows' logits, the answer goes on by single tokens.
void EngineLoop::propose_draft(Sequence& s, int most) {
  if (auditor_.waits_for_logits(s)) return;
  const auto constrained = constrained_.find(s.id);
  const ForeseenTokens* left = constrained == constrained_.end() ? nullptr : &constrained->second.foreseen();
  std::vector<int32_t>& draft = s.running.draft;
  try {
    drafts_.propose(s, parts_.model->config(), left, most);
    if (draft.empty()) return;
    const int64_t rows = to_verify_ + 1 + std::ssize(draft);
    verified_.reshape(rows, parts_.model->config().V);
    to_verify_ = rows;
  } catch (const std::bad_alloc&) {
    draft.clear();
    s.request.draft = 0;
    drafts_.forget(s.id);
  }
}

// Beside the next step's forward pass.
void EngineLoop::fill_ahead(ConstrainedAnswer& answer) {
  if (!answer.filled()) side_.begin(&answer, [&answer] { answer.fill_ahead(); });
}

// Any thread of the pool: the answer is its own again.
void EngineLoop::take_back(Drawn& drawn) {
  const Clock::time_point begin = Clock::now();
  side_.take_back(drawn.constrained);
  const double worked = drawn.constrained->take_ahead_s();
  drawn.mask_s += worked;
  drawn.ahead_s = std::max(worked - seconds(begin, Clock::now()), 0.0);
}

// What is kept of a request's answer, by its id.
void EngineLoop::forget_answer(RequestId id) {
  answers_.erase(id);
  drafts_.forget(id);
  const auto constrained = constrained_.find(id);
  if (constrained == constrained_.end()) return;
  side_.take_back(&constrained->second);
  stats_.mask_s += constrained->second.take_ahead_s();
  constrained_.erase(constrained);
}

// Any thread of the pool. A row counts while the tokens before it are those that were drawn: the first one, and those
// behind right drafts. A constraint follows the tokens that are drawn, whatever the draft said, and then looks what it
// leaves to draft next.
void EngineLoop::draw(Drawn& drawn, SamplerScratch& scratch) const {
  Sequence& s = *drawn.sequence;
  Sequence::Running& now = s.running;
  const std::vector<int32_t>& forced = s.request.evaluation.forced;
  const int top = s.request.sampling.logprobs;
  const bool of_draw = s.request.sampling.drawn_logprobs && forced.empty();
  now.drawn.clear();
  now.logprobs.clear();
  const auto works = [&](FunctionRef<Status()> step) {  // of the constraint
    const Clock::time_point begin = Clock::now();
    const Status done = step();
    drawn.mask_s += seconds(begin, Clock::now());
    if (!done.ok()) drawn.failed = done.error();
    return done.ok();
  };
  for (int64_t row = 0; row < drawn.logits.rows; ++row) {
    const std::span<float> logits(drawn.logits.row(row), static_cast<size_t>(drawn.logits.cols));
    drawn.sound = row == 0 || Sampler::can_sample(logits);
    if (!drawn.sound) return;
    if (drawn.constrained && !works([&] { return drawn.constrained->look_at(logits); })) return;
    const TokenMask may = drawn.constrained ? drawn.constrained->may() : TokenMask();
    std::vector<float> raw = top >= 0 && !of_draw ? std::vector(logits.begin(), logits.end()) : std::vector<float>();
    if (!raw.empty() && drawn.constrained) rule_out(may, raw);
    const int32_t id =
        forced.empty() ? s.sampler->sample(logits, scratch, may) : forced[s.completion.completion_tokens];
    if (top >= 0) {  // before take(), which may make the next token's mask where this one's is
      now.logprobs.push_back(of_draw ? s.sampler->drawn_logprob(logits, scratch, may, id, top)
                                     : Sampler::logprob(raw, id, top));
    }
    if (drawn.constrained && !works([&] { return drawn.constrained->take(id); })) return;
    now.drawn.push_back(id);
    if (drawn.constrained && (drawn.constrained->over() || ends_answer(s, parts_.model->config(), id))) return;
    if (row + 1 < drawn.logits.rows && id != now.draft[static_cast<size_t>(row)]) break;
  }
  if (drawn.constrained && s.request.draft != 0) works([&] { return drawn.constrained->look_ahead(now.drawn.back()); });
}

// What follows from the tokens. What was computed behind the last one that counts is forgotten.
void EngineLoop::answer(Drawn& drawn) {
  Sequence& s = *drawn.sequence;
  Sequence::Running& now = s.running;
  const auto first = static_cast<int32_t>(s.tokens.size()) - 1;  // position of the first row
  size_t heard = 0;
  std::optional<Finish> finish;
  while (heard < now.drawn.size() && !finish) finish = hear(s, heard++);
  const bool whole = drawn.constrained && drawn.constrained->over() && heard == now.drawn.size();
  if (whole && finish.value_or(Finish::kLength) == Finish::kLength) finish = Finish::kStop;
  if (drawn.logits.rows > 1 && heard > 0) {
    const auto right = static_cast<int>(std::min(heard, now.drawn.size() - 1));
    s.usage.drafted += static_cast<int>(now.draft.size());
    s.usage.accepted += right;
    stats_.drafted_tokens += now.draft.size();
    stats_.accepted_tokens += static_cast<uint64_t>(right);
    now.kv->truncate(first + static_cast<int32_t>(heard));
  }
  if (finish) {
    end(s, *finish);
  } else if (drawn.failed) {
    end(s, Finish::kError, std::move(drawn.failed));
  } else if (!drawn.sound) {
    end(s, Finish::kError, not_numbers(s.tokens.size()));
  } else if (drawn.constrained) {
    fill_ahead(*drawn.constrained);
  }
}

// One of the drawn tokens is the answer's next. Returns how the answer ends with it, if it does.
std::optional<Finish> EngineLoop::hear(Sequence& s, size_t drawn) {
  const int32_t id = s.running.drawn[drawn];
  if (ends_answer(s, parts_.model->config(), id)) return Finish::kStop;
  s.tokens.push_back(id);
  ++s.completion.completion_tokens;
  AnswerText& answer = answers_.at(s.id);
  delta_.text.clear();
  answer.push(id, delta_.text);
  delta_.ids.assign(1, id);
  delta_.logprobs.clear();
  if (s.request.sampling.logprobs >= 0) delta_.logprobs.push_back(std::move(s.running.logprobs[drawn]));
  s.sink->on_tokens(delta_);
  if (answer.stopped()) return Finish::kStop;
  const size_t forced = s.request.evaluation.forced.size();
  const bool forced_out = forced > 0 && s.completion.completion_tokens == static_cast<int>(forced);
  const bool full = static_cast<int32_t>(s.tokens.size()) >= s.max_len;
  if (answer.ended_by_lines() || full || forced_out) return Finish::kLength;
  return std::nullopt;
}

// Publishes what a sequence has computed that ends now, or starts again: its answer so far, or the exact part of a
// prefill that was broken off. Whoever asks again goes on from there.
void EngineLoop::keep_work(const Sequence& s) const {
  const Sequence::Running& now = s.running;
  if (!now.kv || !may_publish(s) || now.runs_on) return;  // what it would continue is not cached yet
  if (now.prefill) {
    if (const int32_t settled = now.prefill->settled(); settled > 0 && !now.prefill->plan().narrowed())
      parts_.cache->publish_part(own_of(s, now.prefill->layout(), settled));
  } else if (!now.own_kv && !now.keys) {  // rows of an answer that chose their keys are not exact
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
  forget_answer(sequence->id);
  if (sequence->idle_work) {
    CHECK(idle_now_);
    return std::exchange(idle_now_, nullptr)->finish(std::move(sequence->completion));
  }
  if (sequence->id == going_on_) going_on_ = 0;
  idle_from_ = Clock::now() + kPause;
  auditor_.ended(*sequence);
  const PromptUsage& usage = sequence->usage;
  const Finish finish = sequence->completion.finish;
  if (!sequence->lingers_until) {  // else it was counted when its client went
    ++(finish == Finish::kCancelled ? stats_.requests_cancelled
       : finish == Finish::kError   ? stats_.requests_failed
                                    : stats_.requests_ok);
  }
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

}  // namespace kvilt

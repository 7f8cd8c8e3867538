#include "eval/runner.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "base/divergence.h"
#include "base/error.h"
#include "base/random.h"
#include "eval/case_digest.h"
#include "eval/score.h"
#include "kvilt/ask.h"

namespace kvilt {
namespace {

constexpr size_t kKlPositions = 24;
constexpr const char* kFull = "full";
constexpr const char* kDense = "prefix";
constexpr size_t kOtherCases = 8;  // whose pieces are drawn from as contexts

using Time = std::chrono::steady_clock;

double seconds_since(Time::time_point begin) { return std::chrono::duration<double>(Time::now() - begin).count(); }

// Whether requests of the policy's own come before each case, and stay in the cache.
bool asks_before(const PolicySpec& policy, const RunOptions& options) {
  const auto from = policy.choice.params.find("reuse_from");
  return options.before > 0 && from != policy.choice.params.end() && from->second == "last";
}

// The turns before the last that were answered, by their numbers.
std::vector<size_t> answered_turns(const EvalCase& of) {
  std::vector<size_t> out;
  for (size_t i = 0; i + 1 < of.turns.size(); ++i) {
    if (of.turns[i].role == "user" && of.turns[i + 1].role == "assistant") out.push_back(i);
  }
  return out;
}

Error no_dialogue(size_t cases) {
  return error(Code::kInvalidArgument,
               "--turns: none of the {} cases has an earlier turn with an answer: name dialogues (--suite dialogue or "
               "mt-bench, --cases with 'turns'), or leave --turns out",
               cases);
}

// Whether one of the cases is known to have an earlier turn. Those that the model writes are not made for the question.
// Errors: none has.
Result<bool> knows_dialogue(const std::vector<CaseSource>& cases) {
  bool written = false;
  for (const CaseSource& source : cases) {
    written = written || !source.made_of.empty();
    if (!source.made_of.empty()) continue;
    KVILT_ASSIGN(const EvalCase made, source.make());
    if (!answered_turns(made).empty()) return true;
  }
  if (!written) return no_dialogue(cases.size());
  return false;
}

// One case while it is measured: the prompt, full's answer, and the tokens along which policies are compared.
class CaseRun {
 public:
  // seasoning: with a seed of this case's own, of which others follow. others: cases whose pieces stand before this
  // one's.
  CaseRun(Engine& engine, const RunOptions& options, EvalCase made, const Seasoning& seasoning,
          std::span<const EvalCase> others)
      : engine_(engine), options_(options), case_(std::move(made)), seasoning_(seasoning), others_(others) {}

  // digest: CaseResult::digest of what comes out.
  Status start(std::string digest) {
    digest_ = std::move(digest);
    KVILT_ASSIGN(prompt_, case_prompt(engine_, case_));
    KVILT_TRY(warm());
    KVILT_TRY(full_pass());
    return options_.turns ? dense_turn() : Status();
  }

  const CaseResult& full() const { return full_; }
  // With RunOptions::turns, of the policy `prefix`.
  const std::optional<CaseResult>& dense() const { return dense_; }
  bool is_dialogue() const { return !answered_turns(case_).empty(); }

  Result<CaseResult> measure(const PolicySpec& policy) {
    if (asked_before_) KVILT_TRY(warm());
    if (options_.turns) {
      asked_before_ = true;
      KVILT_TRY(ask_turns(policy.choice));
    }
    if (asks_before(policy, options_)) {
      asked_before_ = true;
      for (int i = 0; i < options_.before; ++i) KVILT_TRY(ask_otherwise(policy.choice, i));
    }
    if (options_.settle) {
      Request before = question(policy.choice);
      before.sampling.max_tokens = 0;
      KVILT_TRY(checked(ask(engine_, std::move(before))));
    }
    Request request = question(policy.choice);
    request.evaluation.forced = path_;
    request.sampling.max_tokens = static_cast<int>(path_.size());
    KVILT_ASSIGN(Answered out, checked(ask(engine_, std::move(request))));
    CaseResult result = account(policy.label, out.completion, out.completion.logits.all.size());
    compare(out.completion.logits.all, result);
    compare_prompt(out.completion.logits.prompt, result);
    result.answer = full_.answer;
    result.score = full_.score;
    if (!case_.answers.empty() && !*result.same_answer) KVILT_TRY(own_answer(policy, result));
    keep(std::move(out.completion), last_);
    return result;
  }

  // The prompt patch by patch, of the policy that was measured last, of full, or of what dense() is.
  Quilt quilt(const std::string& policy) const {
    const Completion& of = policy == kFull ? full_done_ : dense_ && policy == kDense ? dense_done_ : last_;
    std::vector<const char*> kinds(prompt_.ids.size(), "fresh");
    const auto paint = [&](const std::vector<TokenMark>& runs, const char* kind) {
      for (const TokenMark& run : runs) std::fill(kinds.begin() + run.begin, kinds.begin() + run.end, kind);
    };
    paint({{0, of.usage.prefix}}, "prefix");
    paint(of.reused_runs, "reused");
    paint(of.recomputed_runs, "recomputed");
    Quilt out{case_.suite, case_.id, policy, digest_, {}};
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (out.patches.empty() || out.patches.back().kind != kinds[i]) out.patches.push_back({kinds[i], 0, ""});
      ++out.patches.back().tokens;
      out.patches.back().text += engine_.token_text(prompt_.ids[i]);
    }
    return out;
  }

 private:
  // The cache holds what was there before the case, and nothing else.
  Status warm() {
    asked_before_ = false;
    before_ = {};  // it changes now
    engine_.clear_cache();
    if (!options_.turns) KVILT_TRY(warm_pieces());
    before_ = engine_.stats();
    return {};
  }

  Status warm_pieces() {
    KVILT_ASSIGN(auto past, warm_requests(engine_, case_, prompt_, options_.warm, options_.seed));
    for (PastRequest& before : past) {
      Request request;
      request.prompt = std::move(before.prompt);
      request.policy = options_.warm_as;
      request.sampling.max_tokens = static_cast<int>(before.answer.size());
      request.evaluation.forced = std::move(before.answer);
      KVILT_TRY(checked(ask(engine_, std::move(request))));
    }
    KVILT_ASSIGN(auto seasons, season_requests(engine_, case_, prompt_, seasoning_, others_));
    for (Request& request : seasons) KVILT_TRY(checked(ask(engine_, std::move(request))));
    return {};
  }

  Result<std::vector<int32_t>> ids_of(const CaseTurn& turn) const {
    std::vector<int32_t> out;
    for (const CasePart& part : turn.parts) {
      std::vector<int32_t> ids = part.ids;
      if (ids.empty()) {
        KVILT_ASSIGN(ids, engine_.tokenize(part.text, false, false));
      }
      out.insert(out.end(), ids.begin(), ids.end());
    }
    return out;
  }

  // The dialogue so far.
  Status ask_turns(const PolicyChoice& policy) {
    before_ = {};  // the cache changes now
    for (const size_t i : answered_turns(case_)) {
      EvalCase so_far = case_;
      so_far.turns.resize(i + 1);
      so_far.lead.clear();
      so_far.begun.clear();
      Request request;
      KVILT_ASSIGN(request.prompt, case_prompt(engine_, so_far));
      request.policy = policy;
      KVILT_ASSIGN(request.evaluation.forced, ids_of(case_.turns[i + 1]));
      request.sampling.max_tokens = static_cast<int>(request.evaluation.forced.size());
      KVILT_TRY(checked(ask(engine_, std::move(request))));
    }
    before_ = engine_.stats();
    return {};
  }

  // Asks another question over the same pieces in another order, and keeps its KV.
  Status ask_otherwise(const PolicyChoice& policy, int round) {
    static const char* const kOther[] = {"\nWhich people are named above?", "\nWhich years and numbers stand above?",
                                         "\nWrite one sentence about the last text above.",
                                         "\nWhich places are named above, and in which order?"};
    EvalCase other = case_;
    std::vector<CasePart*> known;
    CasePart* question = nullptr;
    for (CaseTurn& turn : other.turns) {
      for (CasePart& part : turn.parts) {
        if (part.known) known.push_back(&part);
        if (!part.known && part.ids.empty()) question = &part;
      }
    }
    std::vector<CasePart> parts;
    for (const CasePart* part : known) parts.push_back(*part);
    const std::vector<size_t> order = other_order(parts.size(), seasoning_.seed * 1009 + static_cast<uint64_t>(round));
    for (size_t i = 0; i < known.size(); ++i) *known[i] = parts[order[i]];
    if (question) question->text = kOther[static_cast<size_t>(round) % 4];
    other.begun.clear();
    Request request;
    KVILT_ASSIGN(request.prompt, case_prompt(engine_, other));
    request.policy = policy;
    request.sampling.max_tokens = 0;
    KVILT_ASSIGN(const Answered out, ask(engine_, std::move(request)));
    before_ = engine_.stats();
    return {};
  }

  Request question(const PolicyChoice& policy) const {
    Request request;
    request.prompt = prompt_;
    request.policy = policy;
    request.sampling.temperature = 0;
    request.sampling.max_tokens = options_.answer_tokens;
    request.publish = false;
    request.evaluation.first_logits = true;
    request.evaluation.prompt_logits = options_.prompt_rows;
    request.evaluation.held_mass = options_.held_mass;
    return request;
  }

  // Adds the case's name to errors. Refuses results if the cache had to drop what was warmed.
  Result<Answered> checked(Result<Answered> out) const {
    if (!out.ok()) return error(out.error().code, "case '{}' of {}: {}", case_.id, case_.suite, out.error().message);
    const EngineStats now = engine_.stats();
    if (prompt_.ids.empty() || before_.kv_pages == 0) return out;
    if (now.cached_tokens != before_.cached_tokens || now.cached_segments != before_.cached_segments) {
      return error(
          Code::kExhausted,
          "case '{}' of {}: the cache changed while policies ran ({} tokens, then {}): give a larger --kv-bytes",
          case_.id, case_.suite, before_.cached_tokens, now.cached_tokens);
    }
    return out;
  }

  Status full_pass() {
    Request request = question({kFull, {}});
    request.evaluation.all_logits = true;
    request.evaluation.forced = case_.truth;
    if (!case_.truth.empty()) request.sampling.max_tokens = static_cast<int>(case_.truth.size());
    KVILT_ASSIGN(Answered out, checked(ask(engine_, std::move(request))));
    path_ = out.ids;
    auto& logits = out.completion.logits.all;
    if (path_.size() < logits.size()) path_.push_back(most_likely(logits.back()));  // the end token
    if (path_.empty() || path_.size() != logits.size())
      return error(Code::kInternal, "case '{}' of {}: full gave no answer", case_.id, case_.suite);
    for (auto& position : logits) reference_.emplace_back(std::move(position));
    logits.clear();
    for (auto& position : out.completion.logits.prompt) prompt_reference_.emplace_back(std::move(position));
    base_ = out.completion.usage;
    full_ = account(kFull, out.completion, reference_.size());
    if (!prompt_reference_.empty()) full_.kl_prompt = 0;
    full_.answer = case_.truth.empty() ? out.text : "";
    if (case_.truth.empty()) full_.same_answer = true;
    if (!case_.answers.empty()) full_.score = score_answer(case_.metric, case_.answers, full_.answer);
    keep(std::move(out.completion), full_done_);
    return {};
  }

  // What ratios are to, where turns come before: the same turns, dense.
  Status dense_turn() {
    KVILT_ASSIGN(CaseResult dense, measure({kDense, {kDense, {}}}));
    dense_done_ = std::move(last_);
    base_ = dense_done_.usage;
    set_ratios(base_, dense);
    set_ratios(full_done_.usage, full_);
    dense_ = std::move(dense);
    return {};
  }

  void set_ratios(const PromptUsage& usage, CaseResult& out) const {
    out.ttft_ratio = usage.ttft_s / base_.ttft_s;
    out.flops_ratio = usage.flops / base_.flops;
    out.cells_ratio = usage.attention_flops / base_.attention_flops;
    out.decode_cells_ratio.reset();
    if (base_.decode_attention_flops > 0)
      out.decode_cells_ratio = usage.decode_attention_flops / base_.decode_attention_flops;
  }

  // rows: that gave logits. All but the first ran behind the first token, also where an end token came out.
  CaseResult account(const std::string& label, const Completion& done, size_t rows) const {
    const PromptUsage& usage = done.usage;
    CaseResult out;
    out.suite = case_.suite;
    out.id = case_.id;
    out.policy = label;
    out.digest = digest_;
    out.ttft_s = usage.ttft_s;
    out.flops = usage.flops;
    out.bytes = usage.bytes;
    set_ratios(usage, out);
    if (rows > 1) {
      const auto steps = static_cast<double>(rows - 1);
      out.token_s = (done.total_s - usage.ttft_s) / steps;
      out.decode_bytes = usage.decode_bytes / steps;
    }
    out.evicted_bytes = usage.evicted_bytes;
    if (usage.held_mass >= 0) out.held_mass = usage.held_mass;
    if (usage.decode_held_mass >= 0) out.decode_held_mass = usage.decode_held_mass;
    out.prompt = usage.prompt;
    out.prefix = usage.prefix;
    out.reused = usage.reused;
    out.near = usage.near;
    out.recomputed = usage.recomputed;
    out.kept_ratio = usage.kept;
    out.fresh = usage.fresh;
    return out;
  }

  void compare(const std::vector<std::vector<float>>& logits, CaseResult& result) const {
    const size_t count = std::min(logits.size(), reference_.size());
    size_t agreed = 0;
    bool same = count == reference_.size();
    for (size_t i = 0; i < count; ++i) {
      const int32_t top = most_likely(logits[i]);
      const bool equal = top == reference_[i].top();
      agreed += equal;
      same = same && equal;
      if (i == 0) result.top1 = equal;
      if (i >= kKlPositions) continue;
      const double kl = reference_[i].kl(logits[i]);
      const double gap = reference_[i].log_probability(path_[i]) -
                         (double{logits[i][static_cast<size_t>(path_[i])]} - log_sum_exp(logits[i]));
      const auto of = static_cast<double>(std::min(count, kKlPositions));
      if (i == 0) result.kl_first = kl;
      result.kl_answer += kl / of;
      result.nll_gap += gap / of;
    }
    result.agree = static_cast<double>(agreed) / static_cast<double>(count);
    if (case_.truth.empty()) result.same_answer = same;
  }

  // Compares from the prompt's end: a policy whose exact prefix reaches into the last rows gives fewer of them.
  void compare_prompt(const std::vector<std::vector<float>>& logits, CaseResult& result) const {
    const size_t count = std::min(logits.size(), prompt_reference_.size());
    if (count == 0) return;
    double sum = 0;
    for (size_t i = 1; i <= count; ++i)
      sum += prompt_reference_[prompt_reference_.size() - i].kl(logits[logits.size() - i]);
    result.kl_prompt = sum / static_cast<double>(count);
  }

  Status own_answer(const PolicySpec& policy, CaseResult& result) {
    Request request = question(policy.choice);
    request.evaluation = {};
    KVILT_ASSIGN(Answered out, checked(ask(engine_, std::move(request))));
    result.answer = out.text;
    result.score = score_answer(case_.metric, case_.answers, out.text);
    return {};
  }

  static void keep(Completion completion, Completion& in) {
    completion.logits = {};
    in = std::move(completion);
  }

  Engine& engine_;
  const RunOptions& options_;
  const EvalCase case_;
  std::string digest_;
  const Seasoning seasoning_;
  const std::span<const EvalCase> others_;
  Prompt prompt_;
  EngineStats before_;         // what must stay as it is while policies run
  bool asked_before_ = false;  // the cache has what a policy left there before the case
  std::vector<int32_t> path_;
  std::vector<Reference> reference_, prompt_reference_;
  CaseResult full_;
  std::optional<CaseResult> dense_;
  PromptUsage base_;                          // what ratios are to
  Completion full_done_, dense_done_, last_;  // without logits
};

// Shuffles the policies of a case that are still to be measured (all but full). Those that ask before the case are the
// last ones: the cache is warmed anew behind each.
std::vector<const PolicySpec*> in_random_order(std::vector<const PolicySpec*> policies, const RunOptions& options,
                                               uint64_t seed) {
  std::mt19937_64 rng(seed);
  shuffle(policies, rng);
  const auto first = [&](const PolicySpec* policy) { return !asks_before(*policy, options); };
  std::stable_partition(policies.begin(), policies.end(), first);
  return policies;
}

}  // namespace

Result<PolicySpec> parse_policy(const std::string& label) {
  PolicySpec out{label, {}};
  size_t begin = 0;
  for (bool first = true; begin <= label.size(); first = false) {
    const size_t end = std::min(label.find(':', begin), label.size());
    const std::string part = label.substr(begin, end - begin);
    const size_t eq = part.find('=');
    if (first) {
      out.choice.name = part;
    } else if (eq == std::string::npos) {
      return error(Code::kInvalidArgument, "policy '{}': '{}' is not name=value", label, part);
    } else {
      out.choice.params[part.substr(0, eq)] = part.substr(eq + 1);
    }
    begin = end + 1;
  }
  return out;
}

Status check_held_mass(Engine& engine, const std::vector<PolicySpec>& policies) {
  for (const PolicySpec& policy : policies) {
    Request request;
    request.prompt.ids = {0};
    request.policy = policy.choice;
    request.sampling.max_tokens = 0;
    request.publish = false;
    request.evaluation.held_mass = true;
    const auto out = ask(engine, std::move(request));
    if (!out.ok()) return error(out.error().code, "policy '{}': {}", policy.label, out.error().message);
  }
  return {};
}

Result<int> run_cases(Engine& engine, const std::vector<CaseSource>& cases, const std::vector<PolicySpec>& policies,
                      const RunOptions& options, const RunEvents& events) {
  const auto begin = Time::now();
  size_t units = 0, done = 0;  // a unit: one policy on one case
  struct Todo {
    const CaseSource* source;
    bool full;
    std::vector<const PolicySpec*> policies;
  };
  std::vector<Todo> todo;
  for (const CaseSource& source : cases) {
    const auto missing = [&](const std::string& label) {
      return !events.done_before || !events.done_before(source, label);
    };
    Todo next{&source, missing(kFull), {}};
    for (const PolicySpec& policy : policies) {
      if (policy.label != kFull && missing(policy.label)) next.policies.push_back(&policy);
    }
    if (next.full || !next.policies.empty())
      units += 3 + next.policies.size();  // warming and full: dense passes, 3 units
    if (next.full || !next.policies.empty()) todo.push_back(std::move(next));
  }
  bool dialogue = !options.turns || todo.empty();
  if (!dialogue) {
    KVILT_ASSIGN(dialogue, knows_dialogue(cases));
  }
  const auto progress = [&](const CaseSource& source, const std::string& policy) {
    if (!events.on_progress) return;
    const double share = static_cast<double>(done) / static_cast<double>(units), spent = seconds_since(begin);
    events.on_progress(share, done ? spent / share - spent : -1, source.suite + " " + source.id + " " + policy);
  };
  int left = 0;
  for (const Todo& next : todo) {
    if (options.max_seconds > 0 && seconds_since(begin) > options.max_seconds) {
      ++left;
      continue;
    }
    progress(*next.source, "warming, full");
    KVILT_ASSIGN(EvalCase made, next.source->make());
    const auto number = static_cast<uint64_t>(next.source - cases.data());
    Seasoning seasoning = options.seasoning;
    seasoning.seed = options.seed * 7919 + number;
    std::vector<EvalCase> others;
    const bool draws = seasoning.contexts > 0 && seasoning.with == SeasonWith::kRandom;
    for (size_t i = 1; draws && i < cases.size() && i <= kOtherCases; ++i) {
      KVILT_ASSIGN(others.emplace_back(), cases[(number + i) % cases.size()].make());
    }
    std::string digest = next.source->digest.empty() ? case_digest(made) : next.source->digest;
    CaseRun run(engine, options, std::move(made), seasoning, others);
    KVILT_TRY(run.start(std::move(digest)));
    dialogue = dialogue || run.is_dialogue();
    done += 3;
    const bool quilted = events.on_quilt && next.source == &cases.front();
    if (next.full) KVILT_TRY(events.on_result(run.full()));
    if (next.full && quilted) KVILT_TRY(events.on_quilt(run.quilt(kFull)));
    const uint64_t order = options.seed * 1000003 + number;
    for (const PolicySpec* policy : in_random_order(next.policies, options, order)) {
      progress(*next.source, policy->label);
      const bool measured = run.dense() && policy->label == kDense;
      KVILT_ASSIGN(const CaseResult result, measured ? Result<CaseResult>(*run.dense()) : run.measure(*policy));
      KVILT_TRY(events.on_result(result));
      if (quilted) KVILT_TRY(events.on_quilt(run.quilt(policy->label)));
      ++done;
    }
  }
  // What was done before, or is left, may be one.
  if (!dialogue && left == 0 && todo.size() == cases.size()) return no_dialogue(cases.size());
  return left;
}

}  // namespace kvilt

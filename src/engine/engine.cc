// engine/engine.cc: the public Engine over the engine thread: checks requests and posts them; answers the rest itself.
#include "kvilt/engine.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/check.h"
#include "base/error.h"
#include "base/function_ref.h"
#include "base/mutex.h"
#include "base/reserved_tenants.h"
#include "engine/chat.h"
#include "engine/check_sampling.h"
#include "engine/constraints.h"
#include "engine/engine_loop.h"
#include "engine/head_profile.h"
#include "engine/layer_profile.h"
#include "engine/load.h"
#include "engine/open_requests.h"
#include "engine/options.h"
#include "engine/peer_answers.h"
#include "engine/session.h"
#include "engine/sparse_profile.h"
#include "model/model_file.h"
#include "policy/decode_methods.h"

namespace kvilt {
namespace {

class EngineImpl : public Engine {
 public:
  EngineImpl(EngineParts parts, std::optional<ChatPrompts> chat, ModelInfo info, PolicyFiles files)
      : info_(std::move(info)),
        chat_(std::move(chat)),
        constraints_(parts.file->tokenizer.get(), info_.answers, parts.model->config().eos_ids, info_.vocab),
        files_(std::move(files)),
        open_(parts.options.max_queue, parts.options.max_sequences),
        loop_(std::move(parts)) {}
  ~EngineImpl() override {
    draining_ = true;  // a sink that submits again from on_finish is refused
    if (peers_) peers_->stop();
  }
  Status answer_peers(PeerServer::Options options) {
    const auto admit = [this](Request request, std::shared_ptr<TokenSink> sink) {
      return this->admit(std::move(request), std::move(sink));
    };
    peers_ = std::make_shared<PeerAnswers>(admit, loop_);
    return peers_->start(std::move(options));
  }

  const ModelInfo& info() const override { return info_; }
  EngineStats stats() const override {
    EngineStats out = loop_.stats();
    if (peers_) peers_->count(out.peer);
    return out;
  }

  Result<std::vector<int32_t>> tokenize(std::string_view text, bool special, bool add_special) const override {
    if (!tokenizer()) return no_tokenizer();
    EncodeOptions options;
    options.parse_special = special;
    options.add_special = add_special;
    return tokenizer()->encode(text, options);
  }

  Result<std::string> detokenize(const std::vector<int32_t>& ids) const override {
    if (!tokenizer()) return no_tokenizer();
    KVILT_TRY(check_ids(ids, "tokens"));
    return tokenizer()->decode(ids);
  }

  std::string token_text(int32_t id) const override {
    return tokenizer() ? std::string(tokenizer()->token_bytes(id)) : std::string();
  }

  Result<Prompt> chat_prompt(const nlohmann::ordered_json& request) const override {
    if (!chat_) return no_tokenizer();
    return chat_->prompt(request);
  }

  Result<std::vector<Prompt>> document_prompts(const nlohmann::ordered_json& request) const override {
    if (!chat_) return no_tokenizer();
    return chat_->document_prompts(request);
  }

  Status set_head_map(const std::string& name, std::string_view json) override {
    KVILT_ASSIGN(HeadMap map, parse_head_map(json, "head map '" + name + "'"));
    KVILT_TRY(check_head_map(map, loop_.parts().model->config(), "head map '" + name + "'"));
    MutexLock lock(files_mutex_);
    files_.head_maps[name] = std::make_shared<const HeadMap>(std::move(map));
    return {};
  }

  Status set_sparse_map(const std::string& name, std::string_view json) override {
    KVILT_ASSIGN(SparseMap map, parse_sparse_map(json, "sparse map '" + name + "'"));
    KVILT_TRY(check_sparse_map(map, loop_.parts().model->config(), "sparse map '" + name + "'"));
    MutexLock lock(files_mutex_);
    const auto [it, fresh] = files_.sparse_maps.try_emplace(name, std::make_shared<const SparseMap>(map));
    if (fresh || it->second->heads == map.heads) return {};
    return error(Code::kInvalidArgument, "there is another sparse map '{}' already; give this one a name of its own",
                 name);
  }

  Status check_ids(const std::vector<int32_t>& ids, const char* what) const {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= info_.vocab) {
        return error(Code::kInvalidArgument, "{}[{}] is {}; this model has tokens 0 to {}", what, i, ids[i],
                     info_.vocab - 1);
      }
    }
    return {};
  }

  // What `find` makes of the prompt on the engine thread, in so many free pages.
  template <class Profile, class Options>
  Result<Profile> profiled(const std::vector<int32_t>& prompt, const Options& options,
                           FunctionRef<int64_t(const ProfilerParts&)> pages,
                           FunctionRef<Profile(const ProfilerParts&)> find) {
    KVILT_TRY(check_ids(prompt, "prompt"));
    KVILT_TRY(check_profile(prompt, options));
    std::optional<Result<Profile>> out;
    on_loop([&] {
      const ProfilerParts parts = loop_.parts_to_profile();
      if (Status room = loop_.room_to_profile(prompt.size(), pages(parts)); !room.ok()) {
        out.emplace(std::move(room).error());
      } else {
        out.emplace(find(parts));
      }
    });
    if (!out) return error(Code::kExhausted, "no memory is left to profile {} tokens", prompt.size());
    return std::move(*out);
  }

  Status check_policy(const PolicyChoice& choice) const override {
    KVILT_ASSIGN(const auto known, chosen(choice));
    return {};
  }

  Status check_constraint(const Constraint& constraint, bool opens_reasoning) const override {
    if (!constraint) return {};
    KVILT_ASSIGN(const auto grammar, constraints_.compile(constraint, opens_reasoning));
    return {};
  }

  Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) override;
  Result<std::vector<RequestId>> submit_all(std::vector<Submission> several) override;
  void cancel(RequestId id) override {
    loop_.post([this, id] { loop_.cancel(id); });
  }
  void clear_cache() override {
    on_loop([this] { loop_.clear_cache(); });
  }
  void thaw(const std::string& tenant, const std::vector<std::string>& names) override {
    on_loop([&] { loop_.thaw(tenant, names); });
  }
  void drain(double seconds) override;

 private:
  const ResolvedOptions& options() const { return loop_.parts().options; }
  const Tokenizer* tokenizer() const { return loop_.parts().file->tokenizer.get(); }
  static Error no_tokenizer() {
    return error(Code::kUnsupported, "this model came without a tokenizer; send token ids");
  }

  struct Chosen {
    PolicyChoice choice;
    ReuseFrom from = ReuseFrom::kFirst;
    std::unique_ptr<ReusePolicy> policy;
    Trust trust = Trust::kAny;
    Discover discover = Discover::kEqual;
  };
  // Fills in what the request leaves open: its policy (a quality without one asks for `auto`), auto's quality,
  // reuse_from, discover, trust.
  Result<Chosen> chosen(PolicyChoice choice) const {
    const bool asked = !choice.name.empty() || !options().policy.empty();
    if (choice.name.empty())
      choice.name = choice.params.count("quality") ? "auto" : default_policy(options(), info_.reuse);
    if (choice.name == "auto") choice.params.try_emplace("quality", default_quality(options(), asked));
    ReuseFrom from = options().reuse_from;
    if (const auto given = choice.params.extract("reuse_from")) {
      KVILT_ASSIGN(const ReuseFrom word, parse_reuse_from(given.mapped()));
      if (word != ReuseFrom::kAuto) from = word;
    }
    Discover discover = options().discover;
    if (const auto given = choice.params.extract("discover")) {
      KVILT_ASSIGN(discover, parse_discover(given.mapped()));
    }
    Trust trust = options().trust;
    if (const auto given = choice.params.extract("trust")) {
      KVILT_ASSIGN(trust, parse_trust(given.mapped()));
    }
    KVILT_ASSIGN(auto policy, make_policy(choice.name, choice.params, files()));
    if (!info_.reuse && policy->wants_pieces()) {
      return error(Code::kUnsupported, "policy '{}' cannot be used with this model: {}", choice.name,
                   info_.reuse_refused);
    }
    return Chosen{std::move(choice), from, std::move(policy), trust, discover};
  }
  PolicyFiles files() const {
    MutexLock lock(files_mutex_);
    return files_;
  }

  struct Checked {
    Request request;
    Chosen chosen;
    SessionSummary session;
    std::optional<ConstrainedAnswer> constrained;
  };
  struct Entering {
    std::unique_ptr<Sequence> sequence;
    std::optional<ConstrainedAnswer> constrained;
    ReuseFrom from = ReuseFrom::kFirst;
  };
  // Both: of any tenant.
  Result<RequestId> admit(Request request, std::shared_ptr<TokenSink> sink);
  Result<std::vector<RequestId>> admit_all(std::vector<Submission> several);
  Result<Checked> checked(Request request);
  Entering entering(Checked checked);
  void enter(Entering one);  // the engine thread
  Status check(const Request& request, const ReusePolicy& policy) const;
  Status check_scores(const Request& request, const ReusePolicy& policy) const;
  int64_t pages_alone(const ReusePolicy& policy, int64_t tokens) const;
  Result<SessionSummary> check_session_of(const Request& request) const;

  void on_loop(std::function<void()> task) {
    std::promise<void> done;
    loop_.post([&] {
      try {
        task();
      } catch (...) {  // no memory; the engine thread deals with it
        done.set_value();
        throw;
      }
      done.set_value();
    });
    done.get_future().wait();
  }

  const ModelInfo info_;
  const std::optional<ChatPrompts> chat_;
  mutable Constraints constraints_;
  mutable Mutex files_mutex_;
  PolicyFiles files_ KVILT_GUARDED_BY(files_mutex_);
  std::atomic<RequestId> last_id_{0};
  std::atomic<uint64_t> seeds_{0};
  std::atomic<bool> draining_{false};
  std::shared_ptr<PeerAnswers> peers_;  // of a prefill server
  OpenRequests open_;                   // submitted and not finished
  EngineLoop loop_;                     // last: it stops first
};

// Pages that a prompt of this length needs with an empty cache; each KV head keeps what its view says.
int64_t EngineImpl::pages_alone(const ReusePolicy& policy, int64_t tokens) const {
  const EngineParts& parts = loop_.parts();
  const ModelConfig& config = parts.model->config();
  PromptLayout layout;
  layout.prompt_len = static_cast<int32_t>(tokens);
  const Prefill prefill(policy, layout, config);
  PageTable table(parts.cache->store(), config.ropes(tokens));
  table.keep(prefill.keeps(), parts.options.chunk_tokens);
  const std::vector<Runs> all{{{0, layout.prompt_len}}};
  return table.pages_for(all, std::vector<uint16_t>(static_cast<size_t>(config.L), 0));
}

// A prompt that goes on where the session ends, of this model.
Result<SessionSummary> EngineImpl::check_session_of(const Request& request) const {
  const PageStore& store = loop_.parts().cache->store();
  if (!request.policy.name.empty() || !request.policy.params.empty()) {
    return error(Code::kInvalidArgument, "session: it brings its heads' views with it; leave the policy out");
  }
  KVILT_ASSIGN(SessionSummary session, check_session(request.session->bytes, store.shape(), info_.fingerprint));
  const std::vector<int32_t>& ids = request.prompt.ids;
  const auto known = session.tokens.begin() + session.positions;
  if (ids.size() <= static_cast<size_t>(session.positions)) {
    return error(Code::kInvalidArgument, "session: it holds {} tokens, the prompt {}: it must have at least one more",
                 session.positions, ids.size());
  }
  const auto [differs, there] = std::mismatch(session.tokens.begin(), known, ids.begin());
  if (differs != known) {
    return error(Code::kInvalidArgument, "session: the prompt's token {} is {}, the session's {}",
                 differs - session.tokens.begin(), *there, *differs);
  }
  const ModelConfig& config = loop_.parts().model->config();
  const bool windows = std::ranges::any_of(session.keeps, [](const HeadKeep& keep) { return !keep.all(); });
  if (windows && !config.kv_readers.empty()) {
    return error(Code::kUnsupported,
                 "session: layers of this model share KV, and a session does not say what each of "
                 "them sees; leave the head map out where it is exported");
  }
  if (config.is_long(session.positions) != config.is_long(static_cast<int64_t>(ids.size()))) {
    return error(Code::kUnsupported, "session: its keys were rotated by the angles of shorter texts than this prompt");
  }
  return session;
}

// A prompt that is scored: all its rows must come out of the last layer.
Status EngineImpl::check_scores(const Request& request, const ReusePolicy& policy) const {
  if (request.prompt_logprobs < -1 || request.prompt_logprobs > info_.vocab) {
    return error(Code::kInvalidArgument, "prompt_logprobs: -1 (none), or 0 to the vocabulary's {} tokens", info_.vocab);
  }
  if (request.prompt_logprobs < 0) return {};
  if (request.session || request.evaluation.prompt_logits > 0) {
    return error(
        Code::kInvalidArgument,
        "prompt_logprobs: tokens of a session have none, and evaluation.prompt_logits are the same rows'; leave "
        "these out");
  }
  PromptLayout layout;
  layout.prompt_len = static_cast<int32_t>(request.prompt.ids.size());
  const ModelConfig& config = loop_.parts().model->config();
  const Prefill prefill(policy, layout, config, layout.prompt_len);
  const Run all{0, layout.prompt_len};
  if (count(intersect(prefill.plan().stages.back().write_at(config.L - 1), Runs{all})) == all.size()) return {};
  return error(
      Code::kUnsupported,
      "prompt_logprobs: this policy leaves rows of the prompt out of the last layer; name another, such as full");
}

Status EngineImpl::check(const Request& request, const ReusePolicy& policy) const {
  const SamplingParams& s = request.sampling;
  const auto size = static_cast<int64_t>(request.prompt.ids.size());
  if (size == 0) return error(Code::kInvalidArgument, "the prompt is empty");
  if (request.prompt.marks.size() > static_cast<size_t>(kMaxMarks)) {
    return error(Code::kInvalidArgument,
                 "the prompt has {} marked parts; a request may have {}: mark fewer, larger ones",
                 request.prompt.marks.size(), kMaxMarks);
  }
  if (request.season && (!info_.reuse || !options().cache)) {
    return error(Code::kUnsupported, "season: nothing is reused here{}",
                 info_.reuse ? " (--no-cache)" : ": " + info_.reuse_refused);
  }
  KVILT_TRY(check_ids(request.prompt.ids, "prompt"));
  KVILT_TRY(check_ids(request.evaluation.forced, "forced"));
  KVILT_TRY(check_ids(request.evaluation.drafts, "drafts"));
  KVILT_TRY(check_ids(s.allowed_ids, "allowed_ids"));
  if (request.constraint && !s.allowed_ids.empty()) {
    return error(Code::kInvalidArgument,
                 "a constrained answer is of the tokens that its constraint leaves: leave allowed ids out");
  }
  const int64_t longest = s.max_tokens == 0 ? info_.context : info_.context - 1;
  if (size + static_cast<int64_t>(request.evaluation.forced.size()) > longest) {
    return error(Code::kTooLong, "the prompt has {} tokens; this model takes {} with room for an answer", size,
                 longest);
  }
  if (request.export_session && policy.decode_rule()) {
    return error(Code::kInvalidArgument,
                 "export_session: the rows of an answer that see few keys are no session's; leave 'decode' out");
  }
  if (request.evaluation.held_mass && policy.decode_rule() && policy.decode_rule()->evict) {
    return error(Code::kInvalidArgument,
                 "held_mass: keys that were let go of cannot be weighed; leave 'decode_evict' out");
  }
  const PageStore& store = loop_.parts().cache->store();
  if (const int64_t pages = pages_alone(policy, size + 1); pages > store.pages()) {
    return error(Code::kTooLong, "the prompt needs {} KV pages of {}; start with a larger --kv-bytes", pages,
                 store.pages());
  }
  KVILT_TRY(check_scores(request, policy));
  for (const KeptPrefix& kept : request.prompt.kept) {
    if (kept.tokens < 0 || kept.tokens > size)
      return error(Code::kInvalidArgument, "kept: {} tokens; the prompt has {}", kept.tokens, size);
  }
  for (const FrozenPart& part : request.prompt.frozen) {
    const auto [begin, end] = part.tokens;
    if (begin < 0 || begin >= end || end > size)
      return error(Code::kInvalidArgument, "frozen: tokens {} to {}; the prompt has {}", begin, end, size);
  }
  int32_t last = 0;
  for (const TokenMark& mark : request.prompt.marks) {
    if (mark.begin < last || mark.end <= mark.begin || mark.end > size) {
      return error(Code::kInvalidArgument, "marks must be sorted, disjoint ranges inside the prompt");
    }
    last = mark.end;
  }
  KVILT_TRY(check_sampling(s, loop_.parts().model->config().eos_ids));
  if (request.namespaces.size() > kMostNamespaces)
    return error(Code::kInvalidArgument, "a request names {} namespaces at most", kMostNamespaces);
  if (request.constraint && (s.ignore_eos || s.min_tokens > 0 || !request.evaluation.forced.empty())) {
    return error(Code::kInvalidArgument,
                 "a constrained answer ends where its constraint says, and its tokens are drawn: leave ignore_eos, "
                 "min_tokens and forced tokens out");
  }
  return {};
}

Result<RequestId> EngineImpl::submit(Request request, std::shared_ptr<TokenSink> sink) {
  std::vector<Submission> one;
  one.push_back({std::move(request), std::move(sink)});
  KVILT_ASSIGN(const auto ids, submit_all(std::move(one)));
  return ids[0];
}

Result<std::vector<RequestId>> EngineImpl::submit_all(std::vector<Submission> several) {
  for (const Submission& one : several) {
    if (!is_reserved_tenant(one.request.tenant)) continue;
    return error(Code::kInvalidArgument, "tenant: {} is a name that the engine has for its own work",
                 one.request.tenant);
  }
  return admit_all(std::move(several));
}

Result<RequestId> EngineImpl::admit(Request request, std::shared_ptr<TokenSink> sink) {
  std::vector<Submission> one;
  one.push_back({std::move(request), std::move(sink)});
  KVILT_ASSIGN(const auto ids, admit_all(std::move(one)));
  return ids[0];
}

Result<std::vector<RequestId>> EngineImpl::admit_all(std::vector<Submission> several) {
  if (draining_) return error(Code::kUnavailable, "the engine is shutting down");
  std::vector<Checked> good;
  for (Submission& one : several) {
    KVILT_ASSIGN(good.emplace_back(), checked(std::move(one.request)));
  }
  // Its own work, and what decode servers ask a prefill server for, is bounded elsewhere.
  const std::string tenant =
      several.empty() || is_reserved_tenant(good[0].request.tenant) ? "" : good[0].request.tenant;
  KVILT_ASSIGN(OpenRequests::Places places, open_.take(static_cast<int>(several.size()), tenant));
  // std::function wants a copyable callable.
  auto all = std::make_shared<std::vector<Entering>>();
  std::vector<RequestId> ids;
  for (size_t i = 0; i < several.size(); ++i) {
    Sequence& sequence = *all->emplace_back(entering(std::move(good[i]))).sequence;
    sequence.sink = places.give(std::move(several[i].sink));
    ids.push_back(sequence.id);
  }
  loop_.post([this, all] {
    for (Entering& one : *all) enter(std::move(one));
  });
  return ids;
}

Result<EngineImpl::Checked> EngineImpl::checked(Request request) {
  Checked out;
  if (request.session) {
    KVILT_ASSIGN(out.session, check_session_of(request));
    out.chosen = {{"session", {}}, ReuseFrom::kFirst, session_policy(out.session.keeps)};
    request.publish = false;
  } else {
    KVILT_ASSIGN(out.chosen, chosen(std::move(request.policy)));
  }
  KVILT_TRY(check(request, *out.chosen.policy));
  if (request.constraint) {
    KVILT_ASSIGN(auto grammar, constraints_.compile(request.constraint, request.prompt.opens_reasoning));
    out.constrained.emplace(constraints_.answer(std::move(grammar), request.sampling.shown_ids));
  }
  request.policy = std::move(out.chosen.choice);
  out.request = std::move(request);
  return out;
}

EngineImpl::Entering EngineImpl::entering(Checked checked) {
  Request& request = checked.request;
  Chosen& chosen = checked.chosen;
  auto sequence = std::make_unique<Sequence>();
  sequence->submitted = Clock::now();
  sequence->id = last_id_.fetch_add(1) + 1;
  if (loop_.policy_off(request.policy.name)) {
    const std::optional<DecodeRule> rule = chosen.policy->decode_rule();
    request.policy = {"prefix", params_of(request.policy.params, true)};
    chosen = {{}, ReuseFrom::kFirst, make_policy("prefix", {}).value()};
    chosen.policy->set_decode_rule(rule);
  }
  sequence->session_len = checked.session.positions;
  sequence->session_pages = checked.session.pages;
  sequence->policy = std::move(chosen.policy);
  sequence->clean_only = chosen.trust == Trust::kClean;
  sequence->near = chosen.discover == Discover::kNear && sequence->policy->wants_pieces() && !sequence->clean_only;
  sequence->tokens = request.prompt.ids;
  sequence->prompt_len = static_cast<int32_t>(request.prompt.ids.size());
  const int asked = request.sampling.max_tokens;
  sequence->max_len =
      asked < 0 ? info_.context
                : static_cast<int32_t>(std::min<int64_t>(info_.context, int64_t{sequence->prompt_len} + asked));
  const uint64_t seed = request.sampling.seed.value_or(options().seed + 0x9e3779b97f4a7c15ull * seeds_.fetch_add(1));
  sequence->sampler.emplace(request.sampling, seed, sequence->tokens);
  if (const SamplingParams& params = request.sampling; params.min_tokens > 0)
    sequence->sampler->bar(ends_of(params, loop_.parts().model->config().eos_ids), params.min_tokens);
  const bool frees = loop_.parts().model->config().kv_readers.empty();  // else layers share pages, and none is freed
  if (const auto rule = sequence->policy->decode_rule(); rule && rule->evict && frees) {
    request.publish = false;  // what is cached keeps its pages: they would not come back
  }
  sequence->request = std::move(request);
  return {std::move(sequence), std::move(checked.constrained), chosen.from};
}

void EngineImpl::enter(Entering one) {
  Sequence& sequence = *one.sequence;
  const Request& asked = sequence.request;
  ContentCache& cache = *loop_.parts().cache;
  const ReusePolicy& policy = *sequence.policy;
  ContentDomains& domains = sequence.domains;
  const ReuseFrom from = one.from;
  sequence.from_seasoned = from == ReuseFrom::kSeasoned && policy.wants_pieces() && !sequence.clean_only;
  const std::string name = policy.identity() +
                           (sequence.clean_only      ? "/clean"
                            : sequence.from_seasoned ? "/seasoned"
                                                     : "") +
                           (sequence.near ? "/near" : "");
  sequence.owner = cache.owner(asked.tenant);
  const auto domains_of = [&](std::string_view name_space) {
    const KeySpace space{asked.tenant, name_space, asked.cache_salt};
    ContentDomains out = policy.keeps_chain() ? cache.domains(space, name) : cache.domains(space);
    if (!policy.wants_pieces()) out.approximate = 0;
    if (from == ReuseFrom::kLast) out.repaired = cache.repaired_domain(name, space);
    if (sequence.from_seasoned || asked.season) out.seasoned = cache.seasoned_domain(space);
    return out;
  };
  domains = domains_of(asked.namespaces.empty() ? "" : asked.namespaces[0]);
  for (size_t i = 1; i < asked.namespaces.size(); ++i) {
    const auto twice = asked.namespaces.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(asked.namespaces.begin(), twice, *twice) == twice) domains.also.push_back(domains_of(*twice));
  }
  if (one.constrained) loop_.constrain(sequence.id, *std::move(one.constrained));
  loop_.add(std::move(one.sequence));
}

void EngineImpl::drain(double seconds) {
  draining_ = true;
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  while (open_.count() > 0 && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  on_loop([this] { loop_.cancel_all(); });
}

Result<EngineImpl*> ours_to_profile(Engine& engine) {
  if (auto* const ours = dynamic_cast<EngineImpl*>(&engine)) return ours;
  return error(Code::kUnsupported, "only an engine of open_engine can be profiled");
}

}  // namespace

Result<HeadProfile> profile_heads(Engine& engine, const std::vector<int32_t>& prompt,
                                  const HeadProfileOptions& options) {
  KVILT_ASSIGN(auto* const ours, ours_to_profile(engine));
  for (const auto& prefix : options.prefixes) KVILT_TRY(ours->check_ids(prefix, "prefix"));
  return ours->profiled<HeadProfile>(
      prompt, options, [&](const ProfilerParts& parts) { return head_profile_pages(parts, prompt.size(), options); },
      [&](const ProfilerParts& parts) { return profile_heads(parts, prompt, options); });
}

Result<SparseProfile> profile_patterns(Engine& engine, const std::vector<int32_t>& prompt,
                                       const SparseProfileOptions& options) {
  KVILT_ASSIGN(auto* const ours, ours_to_profile(engine));
  return ours->profiled<SparseProfile>(
      prompt, options, [&](const ProfilerParts& parts) { return profiled_pages(parts, prompt.size()); },
      [&](const ProfilerParts& parts) { return profile_patterns(parts, prompt, options); });
}

Result<LayerProfile> profile_layers(Engine& engine, const std::vector<int32_t>& prompt,
                                    const LayerProfileOptions& options) {
  KVILT_ASSIGN(auto* const ours, ours_to_profile(engine));
  return ours->profiled<LayerProfile>(
      prompt, options, [&](const ProfilerParts& parts) { return profiled_pages(parts, prompt.size()); },
      [&](const ProfilerParts& parts) { return profile_layers(parts, prompt, options); });
}

Result<std::unique_ptr<Engine>> start_engine(LoadedEngine made) {
  auto out = std::make_unique<EngineImpl>(std::move(made.parts), std::move(made.chat), std::move(made.info),
                                          std::move(made.files));
  if (made.peers) {
    Status listens = out->answer_peers(*std::move(made.peers));
    if (!listens.ok()) return error(listens.error().code, "peer_listen (--peer-listen): {}", listens.error().message);
  }
  return std::unique_ptr<Engine>(std::move(out));
}

Result<std::unique_ptr<Engine>> open_engine(EngineOptions options, std::function<void(double)> progress) {
  const std::string model = options.model;
  try {
    KVILT_ASSIGN(LoadedEngine made, load_engine(std::move(options), std::move(progress)));
    return start_engine(std::move(made));
  } catch (const std::bad_alloc&) {
    return error(Code::kExhausted, "{}: not enough memory to load it", model);
  } catch (const std::system_error& e) {
    return error(Code::kExhausted, "{}: the system refused a thread ({}); use fewer --threads, or raise its limits",
                 model, e.what());
  }
}

}  // namespace kvilt

// kvilt/engine.h: all that an embedder needs. Start here.
//
//   auto engine = kvilt::open_engine({.model = "model.gguf"});          // options: kvilt/options.h
//   auto prompt = engine.value()->chat_prompt(json);                    // or tokenize()
//   auto answer = kvilt::ask(*engine.value(), {.prompt = *prompt});     // kvilt/ask.h: submits and waits
//   engine.value()->submit({.prompt = *prompt}, sink);                  // or: tokens arrive at the sink
//
// Role:    requests in, tokens out. One engine thread owns scheduler, KV and driver; callers only push to a queue.
// Threads: every method may be called from any thread. Sinks are called on the engine thread: they must not block.
// Errors:  Result (kvilt/result.h); a request that fails later ends with Completion::error.
// Units:   tokens, seconds, bytes, floating point operations (a multiply-add is two).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kvilt/answer_syntax.h"
#include "kvilt/options.h"
#include "kvilt/request.h"
#include "kvilt/result.h"
#include "kvilt/sampling_defaults.h"

namespace kvilt {

struct ModelInfo {
  std::string name, arch, description, backend, fingerprint, kv_type;
  int context = 0, vocab = 0, layers = 0, width = 0, heads = 0, kv_heads = 0, head_size = 0, ffn = 0;
  int64_t parameters = 0, weight_bytes = 0, kv_bytes_per_token = 0, kv_pool_bytes = 0;
  int64_t longest_prompt = 0;  // bytes: a longer text cannot fit into the context; 0: not known
  int threads = 0;
  std::vector<std::string> policies;
  std::vector<std::string> controls;  // those of them that only measurements need
  bool reuse = true;                  // false: see reuse_refused
  std::string reuse_refused;
  // What requests get that say nothing about quality: the policy, its quality if that is `auto`, and which text is reused
  // beyond exact prefixes: "all", "marked" (Prompt::marks) or "none". And whose KV of it: "any" or "clean".
  std::string default_policy, default_quality, default_text, default_trust;
  SamplingDefaults sampling;  // what its files advise. Servers heed it; submit() takes what a request says
  AnswerSyntax answers;       // to chat_prompt()'s prompts; Prompt::opens_reasoning says how one begins
  std::string chat_template, bos_token, eos_token;  // texts: what chat_prompt() renders, and what it gives to that
};

// What audits found of one policy: distances to the full pass over the same tokens.
struct AuditStats {
  std::string policy;
  uint64_t requests = 0;
  double kl_first = 0;   // mean KL(full || policy) in nats at the first token
  double kl_answer = 0;  // the same over the first tokens (at most 8)
  double top1 = 0;       // share of requests whose most likely first token is full's
  bool off = false;      // audit_limit was crossed: its requests run with `prefix`
};

// Counters since the start, and gauges of this moment.
// The cache on disk (EngineOptions::cache_dir), or in a shared store (cache_redis).
struct DiskCounters {
  bool ready = false;                       // it is there, and can be asked now
  int64_t bytes = 0, pieces = 0;            // in the folder, of all models; in the shared store, of this one
  int64_t tokens = 0;                       // of those that this engine can use
  int64_t queued_bytes = 0;                 // to be written
  uint64_t written_bytes = 0, dropped = 0;  // dropped: evicted pieces that found the queue full
  uint64_t loads = 0, loaded_tokens = 0, loaded_bytes = 0;
  uint64_t misses = 0;   // look-ups that found nothing beyond what was in memory
  uint64_t refused = 0;  // loads that would have taken longer than computing
  uint64_t late = 0;     // loads that requests no longer waited for
  uint64_t errors = 0;   // reads and writes that failed; what they were about is computed
};

// What prefill and decode servers did for each other (EngineOptions::role).
struct PeerCounters {
  bool ready = false;       // --role decode: the prefill server can be asked now
  int port = 0;             // --role prefill: where it listens; 0: it does not
  int connections = 0;      // of decode servers
  uint64_t failures = 0;    // connections that were lost, refused or not made
  uint64_t asked = 0;       // prompts, of who asks
  uint64_t absent = 0;      // prompts that were not asked for since the peer was away
  uint64_t unanswered = 0;  // asked, and part of it never came; it was computed here
  uint64_t late = 0;        // asked, and given up since it took longer than computing
  uint64_t received_tokens = 0, received_bytes = 0;
  uint64_t answered = 0;                     // prompts, of who is asked
  uint64_t sent_tokens = 0, sent_bytes = 0;  // bytes of dense KV
  // Of what heads with a view keep, in sessions: bytes of heads that read everything, and of the others.
  uint64_t sent_global_bytes = 0, sent_local_bytes = 0;
  uint64_t early_tokens = 0;  // of the sent ones: those that were on their way before their prompt was computed
};

struct EngineCounters {
  int running = 0, waiting = 0;
  int lingering = 0;             // prefills whose clients are gone (EngineOptions::linger_s)
  uint64_t requests_joined = 0;  // that went on from one of these
  double prefill_flops = 0;      // of all prefills, those of idle work too
  uint64_t requests_ok = 0, requests_cancelled = 0, requests_failed = 0, preemptions = 0;
  uint64_t prompt_tokens = 0, prefix_tokens = 0, reused_tokens = 0, recomputed_tokens = 0, fresh_tokens = 0;
  uint64_t generated_tokens = 0, steps = 0;
  uint64_t drafted_tokens = 0, accepted_tokens = 0;  // guessed; and right, so that they are among the generated ones
  double mask_s = 0;                                 // spent on masks of constrained answers, all threads together
  double mask_ahead_s = 0;                           // of that, before the logits were there
  int64_t kv_pages = 0, kv_pages_used = 0;  // of the pool; used: by requests, the cache, and what is being read
  int64_t kv_pages_idle = 0;    // of these: no running request uses them, and some cached segment has a token in each
  int64_t kv_pages_frozen = 0;  // of frozen texts, those in use included
  int64_t kv_pages_pinned = 0;  // idle ones that are kept for a time (Prompt::kept)
  ByHeadClass request_pages;    // own pages of running requests
  int64_t reserved_pages = 0;   // pages that their local heads have yet to take
  int64_t cached_tokens = 0, cached_segments = 0, evicted_segments = 0;
  // Tokens of exact prefixes that were evicted; of these, that were computed anew soon afterwards: the pool is too small,
  // or the wrong ones left.
  int64_t evicted_tokens = 0, regretted_tokens = 0;
  // Means over contexts (kvilt/season.h): their tokens, which are a second copy; how many are over n contexts, by n (the
  // last: or more); the passes made to compute contexts (not audits), and how long these took; sets of documents whose
  // passes wait for idle time, and the one of which a pass is being computed then (EngineOptions::season).
  int64_t seasoned_tokens = 0;
  std::array<int64_t, kMostContexts + 1> seasoned_pieces = {};
  int seasoning_waiting = 0, seasoning_running = 0;
  // KV events: batches sent; events that found the queue full; how often everything was told again.
  uint64_t kv_event_batches = 0, kv_events_dropped = 0, kv_event_restarts = 0;
  uint64_t seasoning_passes = 0;
  double seasoning_s = 0;
  DiskCounters disk, remote;
  PeerCounters peer;
};

// A tenant's part of the KV pool, in pages, and of the folder on disk (EngineOptions::cache_dir), in bytes.
struct TenantPool {
  std::string tenant;
  int64_t held = 0;    // by its requests and by what is cached of them
  int64_t share = 0;   // EngineOptions::pool_shares; 0: it has none
  int64_t pinned = 0;  // as EngineCounters::kv_pages_pinned
  int64_t disk_bytes = 0;
  int64_t disk_share_bytes = 0;  // EngineOptions::disk_shares; 0: it has none
};

struct EngineStats : EngineCounters {
  std::vector<AuditStats> audits;
  // By name, when a prefill or a request ended last; of those that have a share, or have asked (the first thousand).
  // Requests without a tenant are one's whose name is empty.
  std::vector<TenantPool> tenant_pools;
};

struct Submission {
  Request request;
  std::shared_ptr<TokenSink> sink;
};

class Engine {
 public:
  virtual ~Engine() = default;  // cancels what still runs

  virtual const ModelInfo& info() const = 0;
  virtual EngineStats stats() const = 0;

  // special: texts of special tokens in `text` become those tokens. add_special: BOS as the model wants it.
  virtual Result<std::vector<int32_t>> tokenize(std::string_view text, bool special, bool add_special) const = 0;
  virtual Result<std::string> detokenize(const std::vector<int32_t>& ids) const = 0;
  virtual std::string token_text(int32_t id) const = 0;  // raw bytes; may be half a UTF-8 sequence

  // The prompt of an OpenAI chat request. Reads messages, tools, tool_choice ("none": no tools), documents,
  // chat_template_kwargs, add_generation_prompt (default true) and part_separator (joins a message's parts where the
  // template takes strings; default: a line end). Parts with cache_control, and documents, become marks; a template
  // without documents gets them at the start of the first user message (an empty one if there is none). Errors:
  // kInvalidArgument with the JSON path that is wrong.
  virtual Result<Prompt> chat_prompt(const nlohmann::ordered_json& request) const = 0;

  // The prompts that warm documents: one per document, each after the fixed prefix of `request` (its messages up to
  // where documents go). Submit them with max_tokens 0.
  virtual Result<std::vector<Prompt>> document_prompts(const nlohmann::ordered_json& request) const = 0;

  // Takes a head map (docs/formats/head_map.md) for requests with map=`name`. Errors: kCorrupt, kInvalidArgument if it
  // is made for another model's shape. How to make one: kvilt/head_profile.h.
  virtual Status set_head_map(const std::string& name, std::string_view json) = 0;

  // The same for sparse maps (docs/formats/sparse_map.md; kvilt/sparse_profile.h). A name keeps the map that it got first,
  // since others may go on from what was computed under it: kInvalidArgument for another one.
  virtual Status set_sparse_map(const std::string& name, std::string_view json) = 0;

  // Checks a policy's name and parameters without running it.
  virtual Status check_policy(const PolicyChoice& policy) const = 0;

  // Compiles what an answer must be, on the caller's thread, so that submit() finds it done. opens_reasoning: the
  // prompt's. May take seconds. Errors: kInvalidArgument (what is wrong with it), kUnsupported (this model, or a build
  // without constraints), kExhausted (too many are compiled at once).
  virtual Status check_constraint(const Constraint& constraint, bool opens_reasoning) const = 0;

  // Errors at once: kTooLong, kInvalidArgument, kExhausted (queue full), kOverLimit (the request's tenant has as many
  // places as are left), kUnavailable (shutting down).
  virtual Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) = 0;
  // All of them, in this order, or none: kExhausted where the queue has fewer places now, kInvalidArgument where it never
  // has as many. They count as their first one's tenant's.
  virtual Result<std::vector<RequestId>> submit_all(std::vector<Submission> several) = 0;
  virtual void cancel(RequestId id) = 0;  // its sink still gets on_finish; unknown ids are ignored

  virtual void clear_cache() = 0;  // drops every cached segment that nothing uses now
  // What is frozen under the tenant's names that begin with one of these (Request::frozen_as, Prompt::frozen) is cached as
  // anything else from now on. Requests that run may freeze it again: FrozenPart::withdrawn.
  virtual void thaw(const std::string& tenant, const std::vector<std::string>& names) = 0;
  virtual void drain(double seconds) = 0;  // no new requests; waits for the running ones, then cancels the rest
};

// Loads the model; progress (0..1) is reported if given. May take seconds.
Result<std::unique_ptr<Engine>> open_engine(EngineOptions options, std::function<void(double)> progress = nullptr);

}  // namespace kvilt

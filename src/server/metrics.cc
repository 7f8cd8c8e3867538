#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <vector>

#include "server/openai_response.h"

namespace kvilt::server {
namespace {

using prometheus::ClientMetric;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

const std::vector<double> kSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1,
                                      2.5,   5,     7.5,  10,   20,   40,   80,   160, 320,  640, 1280, 2560};
const std::vector<double> kTokenSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                                           0.3,   0.4,    0.5,   0.75, 1,     2.5,  5,     10,  20};
const std::vector<double> kTokens = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                     2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};

// Families whose values are read from EngineStats when somebody asks.
class Page {
 public:
  explicit Page(std::string model) : model_(std::move(model)) {}

  void counter(const char* name, const char* help, double value, Labels extra = {}) {
    ClientMetric metric = labelled(std::move(extra));
    metric.counter.value = value;
    add(name, help, MetricType::Counter, std::move(metric));
  }
  void gauge(const char* name, const char* help, double value, Labels extra = {}) {
    ClientMetric metric = labelled(std::move(extra));
    metric.gauge.value = value;
    add(name, help, MetricType::Gauge, std::move(metric));
  }
  std::vector<MetricFamily>& families() { return families_; }

 private:
  ClientMetric labelled(Labels extra) const {
    ClientMetric metric;
    metric.label = std::move(extra);
    metric.label.push_back({"model_name", model_});
    return metric;
  }
  // Metrics of one family follow each other.
  void add(const char* name, const char* help, MetricType type, ClientMetric metric) {
    if (families_.empty() || families_.back().name != name) families_.push_back({name, help, type, {}});
    families_.back().metric.push_back(std::move(metric));
  }
  const std::string model_;
  std::vector<MetricFamily> families_;
};

// What the folder and the shared store have in common; `place` begins the names.
void add_store(Page& page, const std::string& place, const DiskCounters& store) {
  const auto gauge = [&](const char* name, const char* help, int64_t value) {
    page.gauge((place + name).c_str(), help, static_cast<double>(value));
  };
  gauge("_bytes", "Bytes there: in the folder of --cache-dir of all models, in the shared store of this one.",
        store.bytes);
  gauge("_pieces", "Pieces there.", store.pieces);
  gauge("_tokens", "Tokens there that this engine can use.", store.tokens);
  gauge("_queued_bytes", "Bytes that wait to be written.", store.queued_bytes);
  const auto count = [&](const char* name, const char* help, uint64_t value) {
    page.counter((place + name).c_str(), help, static_cast<double>(value));
  };
  count("_written_bytes_total", "Bytes of K and V written.", store.written_bytes);
  count("_dropped_total", "Pieces that were not written: the queue was full.", store.dropped);
  count("_loads_total", "Requests that waited for KV from there.", store.loads);
  count("_loaded_tokens_total", "Tokens whose KV was read.", store.loaded_tokens);
  count("_loaded_bytes_total", "Their bytes.", store.loaded_bytes);
  count("_misses_total", "Look-ups that found nothing that memory did not have.", store.misses);
  count("_late_total", "Loads that took longer than requests wait; these computed.", store.late);
  count("_refused_total", "Loads that would have taken longer than computing.", store.refused);
  count("_errors_total", "Reads, writes and connections that failed; their KV is computed instead.", store.errors);
}

void add_remote(Page& page, const DiskCounters& remote) {
  add_store(page, "kvilt:redis_cache", remote);
  page.gauge("kvilt:redis_cache_up", "1 while the Redis of --cache-redis can be asked.", remote.ready ? 1 : 0);
}

// What prefill and decode servers did for each other.
void add_peer(Page& page, const PeerCounters& peer) {
  page.gauge("kvilt:peer_up", "1 while the prefill server of --peer can be asked.", peer.ready ? 1 : 0);
  page.gauge("kvilt:peer_connections", "Decode servers that are connected to --peer-listen.", peer.connections);
  const auto count = [&](const char* name, const char* help, uint64_t value) {
    page.counter(name, help, static_cast<double>(value));
  };
  count("kvilt:peer_failures_total", "Connections of the pair that were lost, refused or not made.", peer.failures);
  count("kvilt:peer_asked_total", "Prompts that were asked of the prefill server.", peer.asked);
  count("kvilt:peer_absent_total", "Prompts that were computed here since it was away.", peer.absent);
  count("kvilt:peer_unanswered_total", "Asked prompts of which a part never came; it was computed here.",
        peer.unanswered);
  count("kvilt:peer_late_total", "Asked prompts that were given up since computing here is sooner.", peer.late);
  count("kvilt:peer_received_tokens_total", "Tokens whose KV came from there.", peer.received_tokens);
  count("kvilt:peer_received_bytes_total", "Bytes of K and V that came.", peer.received_bytes);
  count("kvilt:peer_answered_total", "Prompts that decode servers asked of this one.", peer.answered);
  count("kvilt:peer_sent_tokens_total", "Tokens whose KV was sent to them.", peer.sent_tokens);
  count("kvilt:peer_early_tokens_total", "Those of them that were sent before all of their prompt was computed.",
        peer.early_tokens);
  const auto sent = [&](const char* heads, uint64_t bytes) {
    page.counter("kvilt:peer_sent_bytes_total", "Bytes of K and V that were sent, by class of the KV heads.",
                 static_cast<double>(bytes), {{"heads", heads}});
  };
  sent("dense", peer.sent_bytes);
  sent("global", peer.sent_global_bytes);
  sent("local", peer.sent_local_bytes);
}

// What is kept with preference, and for whom.
void add_pool(Page& page, const EngineStats& s, int64_t pool_bytes) {
  const auto bytes = [&](int64_t pages) {
    return static_cast<double>(pages * (pool_bytes / std::max<int64_t>(1, s.kv_pages)));
  };
  page.gauge("kvilt:kv_cache_frozen_bytes", "KV of knowledge bases' documents that outlives what is ordinary.",
             bytes(s.kv_pages_frozen));
  page.gauge("kvilt:kv_cache_pinned_bytes", "Idle KV that is kept for a time (cache_control, prompt_cache_retention).",
             bytes(s.kv_pages_pinned));
  const auto each = [&](const char* name, const char* help, int64_t TenantPool::*pages) {
    for (const TenantPool& pool : s.tenant_pools) page.gauge(name, help, bytes(pool.*pages), {{"tenant", pool.tenant}});
  };
  each("kvilt:kv_tenant_bytes", "KV that a tenant's requests and what is cached of them hold.", &TenantPool::held);
  each("kvilt:kv_tenant_share_bytes", "A tenant's share of the KV pool; 0: it has none of its own.",
       &TenantPool::share);
  each("kvilt:kv_tenant_pinned_bytes", "A tenant's part of kv_cache_pinned_bytes.", &TenantPool::pinned);
  const auto on_disk = [&](const char* name, const char* help, int64_t TenantPool::*of) {
    for (const TenantPool& pool : s.tenant_pools)
      page.gauge(name, help, static_cast<double>(pool.*of), {{"tenant", pool.tenant}});
  };
  on_disk("kvilt:disk_tenant_bytes", "What a tenant has in the folder of --cache-dir.", &TenantPool::disk_bytes);
  on_disk("kvilt:disk_tenant_share_bytes", "The most that it may have there; 0: it has no share of its own.",
          &TenantPool::disk_share_bytes);
}

void add_engine(Page& page, const EngineStats& s) {
  const auto share = s.kv_pages > 0 ? static_cast<double>(s.kv_pages_used) / static_cast<double>(s.kv_pages) : 0.0;
  page.gauge("kvilt:num_requests_running", "Requests computed now.", s.running);
  page.gauge("kvilt:num_requests_waiting", "Requests that wait to be computed.", s.waiting);
  page.gauge("kvilt:kv_cache_usage_perc", "Pages of the KV pool in use (requests and cache); 1 is all.", share);
  page.counter("kvilt:prompt_tokens_total", "Tokens of prompts.", static_cast<double>(s.prompt_tokens));
  page.counter("kvilt:generation_tokens_total", "Tokens generated.", static_cast<double>(s.generated_tokens));
  const auto source = [&](const char* name, uint64_t value) {
    page.counter(
        "kvilt:prompt_tokens_by_source_total",
        "Prompt tokens by where their KV came from: prompt = prefix + reused + fresh; recomputed is the part of "
        "reused that was computed again.",
        static_cast<double>(value), {{"source", name}});
  };
  source("prefix", s.prefix_tokens);
  source("reused", s.reused_tokens);
  source("recomputed", s.recomputed_tokens);
  source("fresh", s.fresh_tokens);
  page.counter("kvilt:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
               static_cast<double>(s.prompt_tokens));
  page.counter("kvilt:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
               static_cast<double>(s.prefix_tokens));
  page.counter("kvilt:num_preemptions_total", "Requests put back because pages ran out.",
               static_cast<double>(s.preemptions));
  page.gauge("kvilt:prefills_lingering", "Prefills whose client went away, kept for who sends them again (--linger).",
             s.lingering);
  page.counter("kvilt:requests_joined_total", "Requests that went on from one of these.",
               static_cast<double>(s.requests_joined));
  page.counter("kvilt:prefill_flops_total", "Floating point operations of prefills.", s.prefill_flops);
  page.counter("kvilt:engine_steps_total", "Steps of the engine.", static_cast<double>(s.steps));
  page.gauge("kvilt:kv_cache_pages", "Pages of the KV pool.", static_cast<double>(s.kv_pages));
  page.gauge("kvilt:kv_cache_pages_used", "Pages in use.", static_cast<double>(s.kv_pages_used));
  const auto request_pages = [&](const char* heads, int64_t pages) {
    page.gauge("kvilt:kv_request_pages",
               "Pages that running requests hold themselves, by class of their KV heads; requests without a head map "
               "have dense heads; reserved: kept free for local heads of a prompt that is computed.",
               static_cast<double>(pages), {{"heads", heads}});
  };
  request_pages("global", s.request_pages.global);
  request_pages("local", s.request_pages.local);
  request_pages("retrieval", s.request_pages.retrieval);
  request_pages("dense", s.request_pages.dense);
  request_pages("reserved", s.reserved_pages);
  page.counter("kvilt:drafted_tokens_total", "Tokens of answers that were guessed (--draft, constraints).",
               static_cast<double>(s.drafted_tokens));
  page.counter("kvilt:accepted_draft_tokens_total", "Those of them that were right, so that they cost no step.",
               static_cast<double>(s.accepted_tokens));
  page.gauge("kvilt:cached_tokens", "Tokens whose KV is cached.", static_cast<double>(s.cached_tokens));
  page.gauge("kvilt:cached_runs", "Cached runs (pieces that can be placed).", static_cast<double>(s.cached_segments));
  page.counter("kvilt:cache_evicted_runs_total", "Cached runs dropped to make room.",
               static_cast<double>(s.evicted_segments));
  add_store(page, "kvilt:disk_cache", s.disk);
  add_remote(page, s.remote);
  add_peer(page, s.peer);
  page.counter("kvilt:cache_evicted_tokens_total", "Tokens of exact prefixes that were evicted.",
               static_cast<double>(s.evicted_tokens));
  page.counter("kvilt:cache_regretted_tokens_total",
               "Of these, tokens that were computed anew soon afterwards: a larger --kv-bytes would have kept them.",
               static_cast<double>(s.regretted_tokens));
  page.counter("kvilt:kv_event_batches_total", "Batches of KV events that were published (--kv-events).",
               static_cast<double>(s.kv_event_batches));
  page.counter("kvilt:kv_events_dropped_total", "KV events that found the queue full.",
               static_cast<double>(s.kv_events_dropped));
  page.counter("kvilt:kv_event_restarts_total",
               "How often all that is stored was told again: after dropped events, or for a late subscriber.",
               static_cast<double>(s.kv_event_restarts));
  page.gauge("kvilt:seasoned_tokens", "Cached tokens whose KV is a mean over contexts (a second copy).",
             static_cast<double>(s.seasoned_tokens));
  for (size_t n = 1; n < s.seasoned_pieces.size(); ++n) {
    if (s.seasoned_pieces[n] > 0)
      page.gauge("kvilt:seasoned_pieces", "Cached pieces that are means, by the number of their contexts.",
                 static_cast<double>(s.seasoned_pieces[n]), {{"contexts", std::to_string(n)}});
  }
  const auto sets = [&](const char* state, int count) {
    page.gauge("kvilt:seasoning_sets",
               "Sets of documents that idle time seasons: those that wait, and the one in work.",
               static_cast<double>(count), {{"state", state}});
  };
  sets("waiting", s.seasoning_waiting);
  sets("running", s.seasoning_running);
  page.counter("kvilt:seasoning_passes_total",
               "Passes made to compute contexts; audits give some too and are not counted here.",
               static_cast<double>(s.seasoning_passes));
  page.counter("kvilt:seasoning_seconds_total", "How long these took.", s.seasoning_s);
  const auto audit = [&](const char* name, const char* help, auto value) {
    for (const AuditStats& a : s.audits) page.gauge(name, help, static_cast<double>(value(a)), {{"policy", a.policy}});
  };
  audit("kvilt:audited_requests", "Requests computed again in full (--audit).",
        [](const AuditStats& a) { return a.requests; });
  audit("kvilt:audit_kl_first", "Mean KL(full || policy) at the first token, in nats.",
        [](const AuditStats& a) { return a.kl_first; });
  audit("kvilt:audit_kl_answer", "Mean KL over the first tokens of the answer (8 at most), in nats.",
        [](const AuditStats& a) { return a.kl_answer; });
  audit("kvilt:audit_top1", "Share of audited requests whose most likely first token is the full pass'.",
        [](const AuditStats& a) { return a.top1; });
  audit("kvilt:audit_policy_off", "1: the policy crossed --audit-limit and is switched off.",
        [](const AuditStats& a) { return a.off; });
}

}  // namespace

struct Metrics::Parts {
  explicit Parts(std::string name) : model(std::move(name)) {}

  Histogram& histogram(const char* name, const char* help, const std::vector<double>& bounds) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({{"model_name", model}}, bounds);
  }

  const std::string model;
  prometheus::Registry registry;
  Histogram& ttft = histogram("kvilt:time_to_first_token_seconds", "From submission to the first token.", kSeconds);
  Histogram& inter_token =
      histogram("kvilt:inter_token_latency_seconds", "Between two deliveries of tokens.", kTokenSeconds);
  Histogram& per_token = histogram("kvilt:time_per_output_token_seconds",
                                   "Mean time per token of an answer after its first one.", kTokenSeconds);
  Histogram& e2e = histogram("kvilt:e2e_request_latency_seconds", "From submission to the end.", kSeconds);
  Histogram& queued = histogram("kvilt:request_queue_time_seconds", "From submission to the first step.", kSeconds);
  Histogram& prompt = histogram("kvilt:request_prompt_tokens", "Tokens of a request's prompt.", kTokens);
  Histogram& generated = histogram("kvilt:request_generation_tokens", "Tokens of a request's answer.", kTokens);
  prometheus::Family<prometheus::Counter>& finished =
      prometheus::BuildCounter()
          .Name("kvilt:request_success_total")
          .Help("Requests that ended, by how: stop, length, abort (the client went away), error.")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& responses =
      prometheus::BuildCounter().Name("kvilt:http_responses_total").Help("HTTP responses.").Register(registry);
};

Metrics::Metrics(std::string model_name) : parts_(std::make_unique<Parts>(std::move(model_name))) {
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    parts_->finished.Add({{"finished_reason", reason}, {"model_name", parts_->model}});
  }
}

Metrics::~Metrics() = default;

void Metrics::count_response(int status) { parts_->responses.Add({{"status", std::to_string(status)}}).Increment(); }

std::string Metrics::text(const Engine* engine, const HttpCounters& http) const {
  Page page(parts_->model);
  if (engine) {
    const EngineStats stats = engine->stats();
    add_engine(page, stats);
    add_pool(page, stats, engine->info().kv_pool_bytes);
  }
  page.gauge("kvilt:http_connections", "Open client connections.", http.connections);
  page.counter("kvilt:http_connections_refused_total", "Connections refused because all threads were taken.",
               static_cast<double>(http.refused));
  auto families = std::move(page.families());
  for (auto& family : parts_->registry.Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

RequestTimer::RequestTimer(std::shared_ptr<Metrics> metrics)
    : metrics_(std::move(metrics)), start_(std::chrono::steady_clock::now()), last_(start_) {}

void RequestTimer::tokens(int count) {
  if (count <= 0) return;
  const auto now = std::chrono::steady_clock::now();
  const double gap = std::chrono::duration<double>(now - last_).count();
  if (first_) {
    metrics_->parts_->ttft.Observe(gap);
  } else {
    metrics_->parts_->inter_token.Observe(gap);
  }
  first_ = false;
  last_ = now;
}

void RequestTimer::finish(const Completion& completion) {
  auto& parts = *metrics_->parts_;
  const double total = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  parts.finished.Add({{"finished_reason", finish_reason(completion.finish)}, {"model_name", parts.model}}).Increment();
  if (completion.finish == Finish::kError || completion.finish == Finish::kCancelled) return;
  parts.e2e.Observe(total);
  parts.queued.Observe(completion.usage.queued_s);
  parts.prompt.Observe(completion.usage.prompt);
  parts.generated.Observe(completion.completion_tokens);
  if (completion.completion_tokens > 1) {
    parts.per_token.Observe(std::max(0.0, total - completion.usage.ttft_s) / (completion.completion_tokens - 1));
  }
}

}  // namespace kvilt::server

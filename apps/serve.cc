// apps/serve.cc: kvilt serve: binds at once (so /health answers 503 while the model loads), then serves until a signal.
#include <fmt/format.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "apps/command.h"
#include "apps/flags.h"
#include "model/hub_cache.h"
#include "server/server.h"
#include "template/chat_template.h"
#include "text/unicode.h"
#include "tier/key_file.h"

namespace kvilt {
namespace {

struct ServeOptions {
  EngineOptions engine;
  ServerOptions server;
};

// What a request gets that says nothing about quality.
std::string default_words(const ModelInfo& info) {
  const std::string policy =
      info.default_policy == "auto" ? "quality " + info.default_quality : "policy " + info.default_policy;
  if (info.default_text == "none") return "exact prefixes only, " + policy;
  const std::string clean = info.default_trust == "clean" ? ", clean copies only" : "";
  if (info.default_text == "all") return "all known text, " + policy + clean;
  return "marked parts (documents, cache_control) at quality balanced" + clean +
         ", all other text exactly; --quality and kvilt.quality are for all text";
}

// What fields get that a request leaves out, and who says so.
std::string default_sampling_words(const ModelInfo& info, const ServerOptions& server) {
  const SamplingDefaults model = server.model_sampling ? info.sampling : SamplingDefaults{}, none;
  const char* who = server.sampling == none ? "the model's" : model == none ? "flags" : "flags, then the model's";
  const std::string words = sampling_words(server.sampling.or_else(model), "");
  return words.empty() ? "the API's own (OpenAI's: temperature 1, all tokens)" : fmt::format("{} ({})", words, who);
}

std::string tenants_words(const ServerOptions& server) {
  if (!server.tenants.empty())
    return fmt::format("{} tenants: none finds what another left in the cache", server.tenants.size());
  return fmt::format("one tenant{}: all callers share the cache, apart from what they salt",
                     server.api_key.empty() ? ", no key needed" : "");
}

// Whether other machines can reach it without a key.
bool open_to_all(const ServerOptions& server) {
  const bool loopback = server.host.starts_with("127.") || server.host == "localhost" || server.host == "::1";
  return !loopback && server.api_key.empty() && server.tenants.empty();
}

// An empty key is most often a variable that was not set.
constexpr const char* kEmptyKey = "the key is empty, which would let everyone in; give a key, or none at all";

// What would tell or keep prompts is an error, so that nobody relies on what does not hold.
void keep_no_text(const EngineOptions& engine) {
  constexpr const char* kForbids = "which --keep-no-text forbids";
  if (!engine.kv_events.empty()) fail(fmt::format("--kv-events publishes prompts, {}", kForbids));
  if (has_tier(engine) && engine.cache_key.empty() && cache_key_text().empty())
    fail(fmt::format("--cache-dir and --cache-redis keep prompts as they are, {}: give --cache-key", kForbids));
  if (engine.role != Role::kBoth && engine.peer_key.empty() && peer_key_text().empty())
    fail(fmt::format("--role sends prompts to another program as they are, {}: give --peer-key", kForbids));
  // The limit is for dumps to files, the other for systems that hand them to a program.
  const rlimit none{0, 0};
  if (::setrlimit(RLIMIT_CORE, &none) != 0 || ::prctl(PR_SET_DUMPABLE, 0) != 0)
    fail("the system refuses to do without core dumps, which would hold prompts");
}

// The key of what is cached seals the texts of knowledge bases too, also where there is no folder or Redis for KV.
void seal_knowledge(ServeOptions& options) {
  if (options.server.knowledge_dir.empty()) return;
  const std::string text = options.engine.cache_key.empty() ? cache_key_text() : "";
  options.server.knowledge_key =
      value_or_fail(given_key(options.engine.cache_key, text, "environment KVILT_CACHE_KEY"));
  if (!has_tier(options.engine)) options.engine.cache_key.clear();  // the engine has nothing to seal
}

template <class Work>
std::thread start(Work work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& e) {
    fail(fmt::format("the system refused a thread ({}): raise its limits on threads and memory", e.what()));
  }
}

void check_policies(const std::vector<std::string>& allowed, const ModelInfo& info) {
  for (const std::string& name : allowed) {
    if (std::ranges::find(info.policies, name) == info.policies.end()) {
      fail(
          fmt::format("--allow-policies: there is no policy '{}'; there are {}", name, fmt::join(info.policies, ", ")));
    }
  }
}

void serve(ServeOptions options) {
  if (options.server.api_key.empty()) {
    if (const char* key = std::getenv("KVILT_API_KEY")) {
      options.server.api_key = key;
      if (options.server.api_key.empty()) fail(std::string("environment KVILT_API_KEY: ") + kEmptyKey);
    }
  }
  if (const char* redis = std::getenv("KVILT_CACHE_REDIS"); redis && options.engine.cache_redis.empty())
    options.engine.cache_redis = redis;  // where its password is not seen by whoever lists processes
  if (options.server.keep_no_text) keep_no_text(options.engine);
  seal_knowledge(options);
  // Signals are taken by one thread that waits for them; every other thread inherits the block.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  auto server = value_or_fail(Server::listen(options.server));
  Status ended;
  std::atomic<bool> lost{false};
  std::thread web = start([&] {
    try {
      ended = server->run();
    } catch (const std::exception& e) {  // of its start
      fail(fmt::format("the server cannot run: {}", e.what()));
    }
    if (ended.ok()) return;
    // Nobody can connect any more: it ends as by a signal, but with an error, so that its supervisor starts it anew.
    lost = true;
    ::kill(::getpid(), SIGTERM);
  });
  std::shared_ptr<Engine> engine;
  std::atomic<bool> loaded{false};
  std::thread loader = start([&] {
    engine = open_or_exit(options.engine);
    check_policies(options.server.allow_policies, engine->info());
    loaded = true;
    server->attach(engine);
    const ModelInfo& info = engine->info();
    std::printf("%s (%s), %s kernels, %d threads, KV pool %.1f GiB (%.0f k tokens of %s)\n",
                for_terminal(info.name).c_str(), for_terminal(info.description).c_str(), info.backend.c_str(),
                info.threads, static_cast<double>(info.kv_pool_bytes) / (1 << 30),
                static_cast<double>(info.kv_pool_bytes / info.kv_bytes_per_token) / 1000, info.kv_type.c_str());
    std::printf("sampling without a word about it: %s\n", default_sampling_words(info, options.server).c_str());
    std::printf("reuse without a word about quality: %s\n", default_words(info).c_str());
    if (!info.reuse) std::printf("reuse is off: %s\n", info.reuse_refused.c_str());
    if (info.chat_template.ends_with(kFallbackChatTemplate))
      std::printf("warning: the model has no chat template: chats are written in ChatML (--chat-template FILE)\n");
    std::printf("%s\n", tenants_words(options.server).c_str());
    if (open_to_all(options.server))
      std::printf("warning: %s can be reached from other machines, and no key is needed (--api-key)\n",
                  options.server.host.c_str());
    if (!options.engine.kv_events.empty())
      std::printf("KV events on %s: whoever can subscribe reads prompts\n", options.engine.kv_events.c_str());
    if (options.engine.role == Role::kPrefill)
      std::printf("role prefill: decode servers are answered at %s, port %d\n", options.engine.peer_listen.c_str(),
                  engine->stats().peer.port);
    if (options.engine.role == Role::kDecode)
      std::printf("role decode: long prompts are asked of %s\n", options.engine.peer.c_str());
    std::printf("serving on http://%s:%d   (OpenAI clients: base_url http://%s:%d/v1)\n", options.server.host.c_str(),
                server->port(), options.server.host.c_str(), server->port());
    std::fflush(stdout);
  });
  int signal = 0;
  sigwait(&signals, &signal);
  if (lost) std::fprintf(stderr, "error: %s\n", ended.error().message.c_str());
  if (!loaded) {
    // Nothing was promised to anybody yet, and reading a large model cannot be broken off. Packed weights that were
    // being written are deleted by the next start (forward/pack_cache.cc).
    std::printf("\nstopped while the model was loading\n");
    std::fflush(stdout);
    std::_Exit(lost ? 1 : 0);
  }
  // A second signal ends the process at once, as if nobody had ever taken the first.
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  std::printf("shutting down: running requests may finish within %.0f s\n",
              options.server.drain_s + options.server.shutdown_s);
  std::fflush(stdout);
  loader.join();
  server->shutdown();
  web.join();
  server.reset();
  engine.reset();
  if (lost) std::exit(1);
}

void add_sampling(Command& app, SamplingDefaults& sampling) {
  app.add_option("--temperature,--temp", sampling.temperature,
                 "of requests that name none, 0 to 2 (0: the most likely token)");
  app.add_option("--top-p", sampling.top_p, "the same, 0 to 1 (1: all tokens)");
  app.add_option("--top-k", sampling.top_k, "the same, from 1 on (0 or -1: all tokens)");
  app.add_option("--min-p", sampling.min_p, "the same, 0 to 1 (0: all tokens)");
  app.add_option("--repetition-penalty,--repeat-penalty", sampling.repetition_penalty,
                 "the same, 0.01 to 10 (1: none)");
}

}  // namespace

void add_serve(Program& program) {
  auto app = program.app.add_subcommand("serve", "an OpenAI-compatible server");
  auto options = std::make_shared<ServeOptions>();
  auto policies = std::make_shared<std::string>(), tenants = std::make_shared<std::string>(),
       aliases = std::make_shared<std::string>();
  options->engine.draft = kProgramDraft;
  add_engine_options(app, options->engine, false);
  app.add_option("--season", options->engine.season,
                 "documents that are asked for again become means over so many contexts in idle time (0: never)")
      .show_default();
  app.add_flag("--season-states", options->engine.season_states,
               "means keep a hidden state a token: more tokens are computed for the same work");
  app.add_option("--season-share", options->engine.season_share,
                 "share of the idle time that this takes at most, and audits the same")
      .show_default();
  app.add_option("--linger", options->engine.linger_s,
                 "seconds that a prompt's computing outlives its client, for the same request sent again (0: none)")
      .show_default();
  app.add_choice("--role", options->engine.role, parse_role, role_name,
                 "both (one server does it all), prefill (it computes prompts for decode servers: --peer-listen) or "
                 "decode (it asks such a server for long prompts: --peer); each answers its own clients as ever");
  app.add_option("--peer-listen", options->engine.peer_listen,
                 "HOST:PORT where a prefill server listens for decode servers (port 0: any free one, printed)");
  const Option peer =
      app.add_option("--peer", options->engine.peer, "HOST:PORT of the prefill server that a decode server asks");
  app.add_option(
      "--peer-key", options->engine.peer_key,
      "file with the key of both, which authenticates and encrypts what they say: 32 bytes or 64 hexadecimal "
      "digits, mode 600 (or environment KVILT_PEER_KEY, the digits themselves); without it both are on one machine "
      "(127.0.0.1)");
  app.add_option("--peer-least", options->engine.peer_least,
                 "tokens that must be missing for a prompt to be asked of it")
      .needs(peer)
      .show_default();
  app.add_flag("--fold-volatile", options->engine.fold_volatile,
               "clocks, billing digits and a git status in system messages are taken out of the prompt");
  app.add_flag("--any-tools-order", options->server.any_tools_order,
               "the tools of a chat may be put in the order of an earlier one, of which they are a beginning then");
  app.add_option("--keep-requests", options->server.keep_requests, "requests that GET /v1/requests tells about")
      .show_default();
  app.add_flag(
      "--keep-no-text", options->server.keep_no_text,
      "nothing of prompts and answers is logged or kept but in the KV cache: no records of requests, no stored "
      "responses, no knowledge bases");
  app.add_flag("--show-text", options->server.show_text, "what it tells may hold a few words of prompts");
  const Option events = app.add_option(
      "--kv-events", options->engine.kv_events,
      "ZeroMQ endpoint where vLLM's KV events are published for cache-aware routers, e.g. "
      "tcp://127.0.0.1:5557, or connect:tcp://HOST:PORT (they hold prompts' token ids: docs/design/events.md)");
  app.add_option("--kv-events-replay", options->engine.kv_events_replay,
                 "ZeroMQ endpoint where subscribers ask for events that they missed");
  app.add_option("--kv-events-topic", options->engine.kv_events_topic, "topic of these events");
  app.add_option("--kv-events-approximate", options->engine.kv_events_approximate,
                 "topic of events of approximate blocks and pieces (without it they are not published)");
  app.add_choice("--kv-events-format", options->engine.kv_events_format, parse_kv_event_format, kv_event_format_name,
                 "how events are written and replayed: map (as vLLM does since 0.26) or array (up to 0.23)")
      .needs(events);
  app.add_flag("--kv-events-tenants", options->engine.kv_events_tenants,
               "publish also what belongs to a tenant, namespace or cache_salt")
      .needs(events);
  app.add_option("--host", options->server.host, "address to listen on").show_default();
  app.add_option("--port,-p", options->server.port, "port; 0: any free one, printed").show_default();
  app.add_option("--api-key", options->server.api_key,
                 "clients must send it as a bearer token (or environment KVILT_API_KEY)")
      .not_empty(kEmptyKey);
  app.add_flag("--open-metrics", options->server.open_metrics,
               "with --api-key: /metrics needs no key, for a Prometheus that sends none");
  app.add_option(
      "--tenants", *tenants,
      "file of tenants and their API keys: each has a cache and limits of its own (docs/formats/tenants.md)");
  app.add_option("--alias", *aliases,
                 "the model's name for clients; with commas between them several, the first shown");
  app.add_flag("--any-model", options->server.any_model,
               "requests may name any model, for apps with a fixed name such as gpt-4o-mini");
  app.add_option("--chat-template-kwargs", options->server.chat_template_kwargs,
                 "what the chat template is told that a request leaves out of its own, a JSON object, e.g. "
                 "'{\"enable_thinking\": false}'");
  app.add_flag("--tokenizer-info", options->server.tokenizer_info,
               "GET /tokenizer_info, from which lm-evaluation-harness learns to tokenise here");
  add_sampling(app, options->server.sampling);
  app.add_option(
      "--seed", options->server.seed,
      "of requests that name none: the same one has the same answer again, a whole number from 0 on (without "
      "it each is drawn anew)");
  const auto advice = std::make_shared<std::string>("auto");
  app.add_option("--generation-config", *advice,
                 "auto: what the model's files advise about sampling is the default of what no flag says; none: it is "
                 "not")
      .one_of({"auto", "none"})
      .show_default();
  app.add_option("--allow-origin", options->server.allow_origin, "web pages of this origin may call; * for all");
  app.add_option("--max-body", options->server.max_body_bytes, "largest request body, e.g. 16MiB").bytes();
  app.add_option("--max-connections", options->server.max_connections, "open connections; more get 503").show_default();
  app.add_option("--response-store", options->server.response_store_bytes,
                 "memory for stored responses of /v1/responses, per tenant, e.g. 64MiB; 0: none is kept")
      .bytes();
  app.add_option("--knowledge-dir", options->server.knowledge_dir,
                 "folder that keeps the texts of knowledge bases over restarts (without it they are forgotten; "
                 "unencrypted without --cache-key)");
  app.add_option("--knowledge-bytes", options->server.knowledge_bytes,
                 "texts of knowledge bases, per tenant, e.g. 256MiB")
      .bytes();
  app.add_option("--knowledge-total-bytes", options->server.knowledge_total_bytes,
                 "and of all tenants together, e.g. 1GiB (default: four times --knowledge-bytes)")
      .bytes();
  app.add_option("--shutdown-seconds", options->server.shutdown_s, "how long running requests may go on after a signal")
      .show_default();
  app.add_option("--drain-seconds", options->server.drain_s,
                 "and before that, how long new connections still get a 503 that says that the server stops")
      .show_default();
  app.add_option("--allow-policies", *policies,
                 "policies that requests may name, e.g. auto,prefix,full (default: all but random and oracle, which "
                 "measurements need)");
  app.callback([options, policies, tenants, aliases, advice] {
    options->server.model_sampling = *advice == "auto";
    std::vector<std::string> names = split_commas(*aliases);
    if (!names.empty()) {
      options->server.model_alias = names[0];
      options->server.more_aliases.assign(names.begin() + 1, names.end());
    }
    // Of the hub's cache: who started it knows it by this name. A path stays the server's own affair.
    if (const auto found = find_model(options->engine.model); found.ok() && *found != options->engine.model)
      options->server.more_aliases.push_back(options->engine.model);
    if (!tenants->empty()) options->server.tenants = value_or_fail(read_tenants(*tenants));
    for (const TenantOptions& tenant : options->server.tenants) {
      if (tenant.pool_share > 0) options->engine.pool_shares[tenant.name] = tenant.pool_share;
      if (tenant.disk_share > 0) options->engine.disk_shares[tenant.name] = tenant.disk_share;
    }
    options->server.allow_policies = split_commas(*policies);
    serve(*options);
  });
}

}  // namespace kvilt

// server/server.h: the HTTP server. Start here.
//
//   auto server = kvilt::Server::listen({.port = 8000});   // bound; /health answers 503 once run() runs
//   std::thread web([&] { server.value()->run(); });
//   server.value()->attach(engine);                        // /health answers 200
//   ...; server.value()->shutdown(); web.join();           // from a signal's thread, not from its handler
//
// Role:    OpenAI's API, tokenising, warming, metrics and a page over kvilt::Engine (docs/server.md).
// Threads: run() blocks one thread and uses up to max_connections more; the other methods may be called from any
//          thread.
// Errors:  listen() returns kInvalidArgument for an option out of range, kIo when the address cannot be bound. What
//          clients send is answered, never fatal.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"
#include "kvilt/engine.h"
#include "kvilt/result.h"
#include "kvilt/sampling_defaults.h"

namespace kvilt {

// A key by which callers are known: its BLAKE2b-256, from which it cannot be found again.
struct ApiKey {
  std::array<unsigned char, 32> blake2b{};
  bool admin = false;  // may clear the cache and read /metrics and other tenants' numbers

  static ApiKey of(std::string_view key, bool admin);
};

// Callers who share a cache and limits. Nothing that one tenant left in the cache is ever found by another.
struct TenantOptions {
  std::string name;
  std::vector<ApiKey> keys = {};
  int max_requests = 0;         // answers that are made or wait at once; more get 429. 0: no limit
  int requests_per_minute = 0;  // 0: no limit
  float pool_share = 0;         // of the KV pool (EngineOptions::pool_shares); 0: it has none of its own
  float disk_share = 0;         // of the folder on disk (EngineOptions::disk_shares); 0: it has none of its own
};

// From a file (docs/formats/tenants.md). Errors name the field.
Result<std::vector<TenantOptions>> read_tenants(const std::string& path);

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one; see port()
  // One tenant, and an admin's; empty: no key needed. Guards everything but /, /health, /v1/health and /version.
  std::string api_key = {};
  // Several, each with keys of its own; excludes api_key. /metrics and /v1/cache/clear then need an admin's key.
  std::vector<TenantOptions> tenants = {};
  bool open_metrics = false;     // /metrics needs no key, with api_key; an error with tenants, of which it tells
  std::string model_alias = {};  // the model's id for clients; empty: ModelInfo::name
  std::vector<std::string> more_aliases = {};  // by which requests may name it too
  bool any_model = false;                      // requests may name any model, and get this one
  std::string allow_origin = {};               // pages of other origins that may call: one origin, or "*"; empty: none
  // Policies that requests may name, `auto` for those that name a quality; empty: all but ModelInfo::controls. The
  // engine's own choice needs no leave.
  std::vector<std::string> allow_policies = {};
  // What requests get for fields of theirs that they leave out; and whether what the model advises (ModelInfo::sampling)
  // comes next, before what a route has itself.
  SamplingDefaults sampling = {};
  bool model_sampling = true;
  std::optional<uint64_t> seed = {};  // of requests that name none; none: each draws what it draws
  size_t max_body_bytes = 16 * 1024 * 1024;
  size_t max_arriving_bytes = 256 * 1024 * 1024;  // of all bodies that are being read; more get 503
  int max_connections = 128;      // that have sent something: each takes a thread while it is open; more get 503
  double idle_timeout_s = 30;     // of a connection between requests
  double request_timeout_s = 60;  // for a request's head and body to arrive
  double write_timeout_s = 30;    // for a client to take any of what is written
  // And that it takes at least in each write_timeout_s in which something waits for it; a slower one is closed.
  size_t write_floor_bytes = 16 * 1024;
  size_t response_store_bytes = 64 * 1024 * 1024;  // of stored responses, per tenant; 0: none is kept
  // Documents that clients leave here by name (docs/server.md#knowledge-bases): the folder that keeps their texts over a
  // restart, which one server uses at a time; empty: they are forgotten. What seals its files, which are so from their
  // beginning or never. And the bytes of a tenant's texts, and of those of all tenants (0: four times as many).
  std::string knowledge_dir = {};
  std::optional<HashSecret> knowledge_key = {};
  size_t knowledge_bytes = 256 * 1024 * 1024;
  size_t knowledge_total_bytes = 0;
  double ping_s = 10;  // of silence in a stream, after which a ping is sent
  // Requests whose records GET /v1/requests/{id} shows; 0: none are kept. show_text: these, and diagnostics in answers,
  // hold some tokens of text around a prompt's first difference.
  int keep_requests = 256;
  bool show_text = false;
  // A JSON object: what a chat template is told that a request leaves out of its chat_template_kwargs; empty: nothing.
  std::string chat_template_kwargs = {};
  // vLLM's route of that name. Clients that find it count tokens here, and render chats themselves.
  bool tokenizer_info = false;
  bool any_tools_order = false;  // a chat's tools come in any order unless it says otherwise (part_orders.h)
  // Nothing of a prompt or an answer is logged, or kept to be told later: no records of requests, no stored responses, no
  // knowledge bases, no path and no exception's words in the log. An error with show_text or knowledge_dir. The engine's
  // cache is the engine's affair (docs/server.md#no-text-kept).
  bool keep_no_text = false;
  double shutdown_s = 10;  // time that shutdown() gives running requests before it cancels them
  // Before that, while answers are still being made: so long at most, in which new connections get a 503 that says so.
  double drain_s = 0;
};

class Server {
 public:
  static Result<std::unique_ptr<Server>> listen(ServerOptions options);
  ~Server();  // calls shutdown(), and waits until no thread is left inside

  int port() const;
  void attach(std::shared_ptr<Engine> engine);
  // Returns after shutdown(), when every connection has ended. kIo: the listening socket was lost, so nobody can connect
  // any more; shutdown() is still to be called.
  Status run();
  // No new requests, and after drain_s no new connections; what runs may finish within these and shutdown_s. Returns when
  // the engine is drained.
  void shutdown();

 private:
  struct Parts;
  void drain();
  explicit Server(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace kvilt

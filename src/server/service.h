// server/service.h: what all routes share: options, the engine (once it is there), metrics, and the checks before a
// handler runs.
// Role:       one table of routes. Each request is checked in this order: its head, route and method, origin and key,
//             whether the engine is there, and whether the body is JSON. Only then does the route's own code run.
// Invariants: whatever goes wrong, the client gets the JSON of an ApiError.
// Threads:    all methods from any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/answer_queue.h"
#include "server/api_error.h"
#include "server/http_server.h"
#include "server/json_fields.h"
#include "server/knowledge_bases.h"
#include "server/memory_gate.h"
#include "server/metrics.h"
#include "server/part_orders.h"
#include "server/request_log.h"
#include "server/server.h"
#include "server/tenants.h"

namespace kvilt::server {

// The engine and what belongs to it; engine is null while the model loads.
struct Attached {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Metrics> metrics;
  std::string model;                       // the id that clients use
  int64_t since = 0;                       // Unix time
  std::vector<std::string> policies = {};  // that requests may name
  std::vector<std::string> aliases = {};   // of the model, beside its id
  bool any_model = false;
  SamplingDefaults sampling = {};     // what the server says of it, and else the model
  std::optional<uint64_t> seed = {};  // ServerOptions::seed
  std::string fingerprint = {};       // of what computes: OpenAI's system_fingerprint
};

struct RequestLimits;  // openai_request.h

// A request whose engine is there.
struct Call {
  const httplib::Request& http;
  Json& body;  // of a POST; else null
  MemoryGate::Pass& pass;
  Attached attached;
  Caller caller;
  Engine& engine() const { return *attached.engine; }
  AnswerQueue::Account account() const { return {attached.engine, attached.metrics, caller.tenant}; }
  // All that is needed of the body was taken out of it: others may come in.
  void drop_body() const;
};

// A body that is no JSON, as it came. It counts among those that arrive until `counted` is gone.
struct RawBody {
  std::string type, text;  // type: Content-Type
  std::shared_ptr<void> counted;
};

class Service {
 public:
  explicit Service(ServerOptions options);

  using Handler = std::function<void(const Call&, httplib::Response&)>;
  // Patterns may have groups such as ([^/]+); what is before the first one belongs to these routes alone.
  void get(const std::string& pattern, Handler handler);     // needs the engine
  void remove(const std::string& pattern, Handler handler);  // the same for DELETE
  void post(const std::string& path, Handler handler);       // needs the engine and a JSON body
  // The same for a route that takes bodies of other types too: who takes one reads it.
  using RawHandler = std::function<void(const Call&, RawBody, httplib::Response&)>;
  struct RawBodies {
    bool (*takes)(std::string_view type);
    RawHandler handler;
  };
  void post(const std::string& path, Handler handler, RawBodies raw);
  void post_empty(const std::string& path, Handler handler);  // the body is optional and ignored; for admins
  void get_always(const std::string& path, std::function<void(const Attached&, httplib::Response&)> handler);
  void for_admins(const std::string& path);  // REQUIRES: the route is there

  void attach(std::shared_ptr<Engine> engine);
  Attached attached() const;

  const ServerOptions& options() const { return options_; }
  HttpServer& http() { return http_; }
  const Tenants& tenants() const { return tenants_; }
  RequestLog& requests() const { return *requests_; }
  PartOrders& orders() const { return *orders_; }
  const Json& template_words() const { return *template_words_; }  // an object; of ServerOptions::chat_template_kwargs
  // What this thread's client is answered: each 429 is counted, once, where it is sent.
  void count_refused(int status) const;
  // For what a route takes apart besides its body. Waits; false: others took too long, or the client is gone.
  bool take_room_for(const Call& call, size_t more) const;
  // For what is taken apart by itself. Waits; nullopt: as above.
  std::optional<MemoryGate::Pass> room_for(size_t bytes);
  // Before the routes are added.
  void keep(std::unique_ptr<KnowledgeBases> knowledge) { knowledge_ = std::move(knowledge); }
  KnowledgeBases& knowledge() const { return *knowledge_; }
  // Nobody is let in any more; then, where it drained, what is let in ends too.
  void begin_stop() { stopping_ = true; }
  bool stopping() const { return stopping_; }
  void begin_end() { ending_ = true; }
  bool ending() const { return ending_; }

 private:
  enum class Guard { kOpen, kKey, kAdmin };
  bool nobody_waits() const;  // for the request of this thread
  // Everything that can be said before the body is read.
  std::optional<ApiError> check(const httplib::Request& request, httplib::Response& response);
  std::optional<ApiError> check_origin(const httplib::Request& request, httplib::Response& response) const;
  std::optional<ApiError> check_caller(Guard guard) const;
  Caller caller() const;  // of this thread's connection. REQUIRES: check() let it in, by a key
  class Arriving;
  size_t most_arriving() const { return std::max(options_.max_arriving_bytes, options_.max_body_bytes); }
  std::optional<ApiError> read_body(const httplib::ContentReader& reader, Arriving& arriving, std::string& body) const;
  std::optional<ApiError> need_engine(const Attached& attached) const;
  void call_without_body(const Handler& handler, const httplib::Request& request, httplib::Response& response);
  void install_hooks();
  std::string logged_path(const httplib::Request& request) const;

  const ServerOptions options_;
  const Tenants tenants_;
  const std::unique_ptr<RequestLog> requests_;  // handlers hold the service as const
  const std::unique_ptr<PartOrders> orders_;
  const std::shared_ptr<const Json> template_words_;
  std::unique_ptr<KnowledgeBases> knowledge_;
  HttpServer http_;
  std::atomic<bool> stopping_{false}, ending_{false};
  std::atomic<size_t> arriving_{0};  // bytes of bodies that are being read or wait at the gate
  mutable MemoryGate gate_;          // handlers hold the service as const
  struct Route {
    std::set<std::string> methods;
    Guard guard = Guard::kKey;
    bool (*takes)(std::string_view type) = nullptr;  // bodies that are no JSON
  };
  const Route* route_of(const std::string& path) const;
  std::map<std::string, Route> routes_;  // by path, or by what is before a group; constant after construction

  mutable Mutex mutex_;
  Attached attached_ KVILT_GUARDED_BY(mutex_);
};

void reply_json(httplib::Response& response, const Json& json);
void reply_error(httplib::Response& response, const ApiError& error, ApiShape shape = ApiShape::kOpenAi);
// The client left: nobody reads it; the log and the metrics do.
void reply_gone(httplib::Response& response);
// Written piece by piece, and never in memory as a whole, however slowly its client reads. send: as of reply_events.
void reply_pieces(const httplib::Request& request, httplib::Response& response, const char* type,
                  std::function<bool(httplib::DataSink&)> send);
// A stream of server-sent events. send: writes all of it; false: the client is gone.
void reply_events(const httplib::Request& request, httplib::Response& response,
                  std::function<bool(httplib::DataSink&)> send);
// An error if the request names another model.
std::optional<ApiError> check_model(const Attached& attached, const std::string& name);
// An error if the choice is wrong, or is none that this server's clients have.
std::optional<ApiError> check_policy(const Attached& attached, const PolicyChoice& choice);
// What a request is read with: bounds of this engine's model, and what it gets for fields that it leaves out.
RequestLimits limits_of(const Attached& attached);

void add_generate_routes(Service& service);   // routes_generate.cc
void add_info_routes(Service& service);       // routes_info.cc
void add_cache_routes(Service& service);      // routes_cache.cc
void add_knowledge_routes(Service& service);  // routes_knowledge.cc
void add_response_routes(Service& service);   // routes_responses.cc
void add_embed_routes(Service& service);      // routes_embed.cc
void add_llama_routes(Service& service);      // routes_llama.cc
void add_request_routes(Service& service);    // routes_requests.cc

}  // namespace kvilt::server

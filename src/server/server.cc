#include "server/server.h"

#include <fmt/format.h>
#include <sodium.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/mutex.h"
#include "server/service.h"
#include "server/tenants.h"

namespace kvilt {

struct Server::Parts {
  explicit Parts(ServerOptions options) : service(std::move(options)) {}

  server::Service service;
  int port = 0;
  Mutex mutex;
  Condition changed;
  bool running KVILT_GUARDED_BY(mutex) = false;
  bool stopping KVILT_GUARDED_BY(mutex) = false;
  bool drained KVILT_GUARDED_BY(mutex) = false;
};

namespace {

constexpr double kMaxShutdownSeconds = 86400, kMaxPingSeconds = 86400;
constexpr int kMostRequests = 10'000;
constexpr size_t kMaxBody = INT32_MAX;  // a size that was negative is far above it

Status check_options(const ServerOptions& o) {
  constexpr auto kWrong = Code::kInvalidArgument;
  if (o.host.empty())
    return error(kWrong, "host (--host) is empty: 127.0.0.1 is this machine only, 0.0.0.0 all of IPv4");
  if (o.port < 0 || o.port > 65535) return error(kWrong, "port (--port) is {}, not from 0 to 65535", o.port);
  if (o.max_body_bytes < 1 || o.max_body_bytes > kMaxBody) {
    return error(kWrong, "max_body_bytes (--max-body) is {}, not from 1 to {}", o.max_body_bytes, kMaxBody);
  }
  if (o.max_connections < 1) {
    return error(kWrong, "max_connections (--max-connections) is {}, not 1 or more", o.max_connections);
  }
  if (o.keep_requests < 0 || o.keep_requests > kMostRequests) {
    return error(kWrong, "keep_requests (--keep-requests) is {}, not from 0 to {}", o.keep_requests, kMostRequests);
  }
  if (!(o.shutdown_s >= 0 && o.shutdown_s <= kMaxShutdownSeconds)) {
    return error(kWrong, "shutdown_s (--shutdown-seconds) is {}, not from 0 to {}", o.shutdown_s, kMaxShutdownSeconds);
  }
  if (!(o.drain_s >= 0 && o.drain_s <= kMaxShutdownSeconds)) {
    return error(kWrong, "drain_s (--drain-seconds) is {}, not from 0 to {}", o.drain_s, kMaxShutdownSeconds);
  }
  if (!(o.ping_s > 0 && o.ping_s <= kMaxPingSeconds))
    return error(kWrong, "ping_s is {}, not above 0 and at most {}", o.ping_s, kMaxPingSeconds);
  return {};
}

Status check_sampling(const SamplingDefaults& o) {
  const auto check = [](auto given, const char* name, const char* flag, double low, double high) -> Status {
    if (!given || (*given >= low && *given <= high)) return {};  // a NaN is no number from anywhere
    return error(Code::kInvalidArgument, "sampling.{} ({}) is {}, not from {} to {}", name, flag, *given, low, high);
  };
  KVILT_TRY(check(o.temperature, "temperature", "--temperature", 0, kMaxTemperature));
  KVILT_TRY(check(o.top_p, "top_p", "--top-p", 0, 1));
  KVILT_TRY(check(o.min_p, "min_p", "--min-p", 0, 1));
  KVILT_TRY(check(o.top_k, "top_k", "--top-k", -1, INT32_MAX));
  return check(o.repetition_penalty, "repetition_penalty", "--repetition-penalty", kMinRepetitionPenalty,
               kMaxRepetitionPenalty);
}

Status check_template_words(const std::string& text) {
  if (text.empty()) return {};
  const auto words = server::parse_json(text);
  if (words.ok() && words.value().is_object()) return {};
  return error(Code::kInvalidArgument, "chat_template_kwargs (--chat-template-kwargs): {}",
               words.ok() ? "must be a JSON object, not " + server::type_of(words.value()) : words.error().message);
}

size_t knowledge_total_bytes(const ServerOptions& o) {
  if (o.knowledge_total_bytes != 0) return o.knowledge_total_bytes;
  constexpr size_t kTenants = 4;  // that may have all of theirs
  return o.knowledge_bytes > SIZE_MAX / kTenants ? SIZE_MAX : kTenants * o.knowledge_bytes;
}

Status keep_no_text(ServerOptions& o) {
  if (!o.keep_no_text) return {};
  if (o.show_text)
    return error(Code::kInvalidArgument, "show_text (--show-text) shows what keep_no_text (--keep-no-text) forbids");
  if (!o.knowledge_dir.empty()) {
    return error(Code::kInvalidArgument,
                 "knowledge_dir (--knowledge-dir) keeps texts, which keep_no_text (--keep-no-text) forbids");
  }
  o.keep_requests = 0;
  o.response_store_bytes = 0;
  return {};
}

}  // namespace

Result<std::unique_ptr<Server>> Server::listen(ServerOptions options) {
  KVILT_TRY(check_options(options));
  KVILT_TRY(check_sampling(options.sampling));
  KVILT_TRY(check_template_words(options.chat_template_kwargs));
  KVILT_TRY(keep_no_text(options));
  if (sodium_init() < 0) return error(Code::kInternal, "libsodium cannot be initialised");
  KVILT_TRY(server::check_tenants(options));
  server::KnowledgeLimits knowledge_limits{.bytes = options.knowledge_bytes,
                                           .all_bytes = knowledge_total_bytes(options)};
  if (options.keep_no_text) knowledge_limits.bases = 0;
  KVILT_ASSIGN(auto knowledge,
               server::KnowledgeBases::open(options.knowledge_dir, knowledge_limits, {.key = options.knowledge_key}));
  auto parts = std::make_unique<Parts>(std::move(options));
  parts->service.keep(std::move(knowledge));
  server::add_generate_routes(parts->service);
  server::add_info_routes(parts->service);
  server::add_cache_routes(parts->service);
  server::add_request_routes(parts->service);
  server::add_knowledge_routes(parts->service);
  server::add_response_routes(parts->service);
  server::add_embed_routes(parts->service);
  server::add_llama_routes(parts->service);
  const ServerOptions& wanted = parts->service.options();
  errno = 0;
  parts->port = parts->service.http().bind(wanted.host, wanted.port);
  if (parts->port <= 0) {
    return error(Code::kIo, "cannot listen on {}:{}: {}", wanted.host, wanted.port,
                 errno ? std::strerror(errno) : "the host name is not known");
  }
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Server::~Server() {
  shutdown();
  MutexLock lock(parts_->mutex);
  parts_->changed.wait(lock, [&]() KVILT_REQUIRES(parts_->mutex) { return !parts_->running; });
}

int Server::port() const { return parts_->port; }

void Server::attach(std::shared_ptr<Engine> engine) { parts_->service.attach(std::move(engine)); }

Status Server::run() {
  {
    MutexLock lock(parts_->mutex);
    if (parts_->stopping) return {};
    parts_->running = true;
  }
  Status ended = parts_->service.http().run();
  {
    MutexLock lock(parts_->mutex);
    parts_->running = false;
    parts_->changed.notify_all();
  }
  return ended;
}

// New connections hear that it stops, until every answer that is being made was sent.
void Server::drain() {
  server::HttpServer& http = parts_->service.http();
  const std::chrono::duration<double> most(parts_->service.options().drain_s);
  const auto until = std::chrono::steady_clock::now() + most;
  if (most.count() <= 0) return;
  http.begin_drain();
  constexpr auto kLook = std::chrono::milliseconds(20);
  while (http.open_connections() > 0 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kLook);
}

void Server::shutdown() {
  {
    MutexLock lock(parts_->mutex);
    if (parts_->stopping) {
      parts_->changed.wait(lock, [&]() KVILT_REQUIRES(parts_->mutex) { return parts_->drained; });
      return;
    }
    parts_->stopping = true;
  }
  server::Service& service = parts_->service;
  service.begin_stop();
  drain();
  service.begin_end();
  service.http().stop_accepting();
  if (auto engine = service.attached().engine) engine->drain(service.options().shutdown_s);
  {
    // The last tokens are on their way. Healthy clients get a moment to take them; then clients that do not read are
    // cut off.
    MutexLock lock(parts_->mutex);
    parts_->changed.wait_for(lock, std::chrono::seconds(2),
                             [&]() KVILT_REQUIRES(parts_->mutex) { return !parts_->running; });
    service.http().abort_connections();
    parts_->drained = true;
    parts_->changed.notify_all();
  }
}

}  // namespace kvilt

#include "server/service.h"

#include <fmt/format.h>
#include <sodium.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/hex.h"
#include "base/keyed_hash.h"
#include "kvilt/version.h"
#include "server/openai_request.h"

namespace kvilt::server {
namespace {

constexpr size_t kMaxPath = 2048;
constexpr size_t kMostInside = size_t{16} << 20;  // of bodies that are taken apart at once, or one of the largest
constexpr auto kGatePatience = std::chrono::seconds(30);

ConnectionLimits limits_of(const ServerOptions& options) {
  ConnectionLimits limits;
  limits.body_bytes = options.max_body_bytes;
  limits.idle_s = options.idle_timeout_s;
  limits.head_s = std::min(limits.head_s, options.request_timeout_s);
  limits.body_s = options.request_timeout_s;
  limits.write_s = options.write_timeout_s;
  limits.write_floor_bytes = options.write_floor_bytes;
  return limits;
}

// "http://host:port" -> "host:port"
std::string_view host_of(std::string_view origin) {
  const size_t at = origin.find("://");
  return at == std::string_view::npos ? origin : origin.substr(at + 3);
}

std::string_view without_port(std::string_view host) {
  const size_t colon = host.find_last_of(':');
  const size_t bracket = host.find_last_of(']');  // [::1]:8000
  if (colon == std::string_view::npos || (bracket != std::string_view::npos && colon < bracket)) return host;
  return host.substr(0, colon);
}

std::string before_groups(const std::string& pattern) { return pattern.substr(0, pattern.find('(')); }

// Changes with whatever may change an answer to the same request and seed: program, model, kernels, kinds of numbers.
// It begins as llama.cpp's does.
std::string fingerprint_of(const ModelInfo& info) {
  KeyedHash hash(HashSecret::fixed(0), "kvilt system_fingerprint");
  for (const std::string_view part :
       {std::string_view(kVersion), std::string_view(info.fingerprint), std::string_view(info.name),
        std::string_view(info.backend), std::string_view(info.kv_type)})
    hash.add(part);
  return "b" + hex_text(std::span<const uint8_t>(hash.finish()).first(8));
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host == "[::1]" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos);
}

// REQUIRES: Server::listen() took the text.
Json object_of(const std::string& text) { return text.empty() ? Json::object() : Json::parse(text); }

}  // namespace

void reply_json(httplib::Response& response, const Json& json) { response.set_content(dump(json), "application/json"); }

void reply_error(httplib::Response& response, const ApiError& error, ApiShape shape) {
  response.status = error.status;
  response.headers.erase("Content-Type");
  response.set_content(error_body(error, shape), "application/json");
  if (error.status == 503 || error.status == 429) response.set_header("Retry-After", "1");
}

void reply_gone(httplib::Response& response) {
  Connection::current()->close_after_response();
  response.status = 499;
  response.set_content(" ", "text/plain");
}

void reply_events(const httplib::Request& request, httplib::Response& response,
                  std::function<bool(httplib::DataSink&)> send) {
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  reply_pieces(request, response, "text/event-stream", std::move(send));
}

void reply_pieces(const httplib::Request& request, httplib::Response& response, const char* type,
                  std::function<bool(httplib::DataSink&)> send) {
  // One call writes the whole stream: httplib asks between calls whether the server stops, and would cut it off.
  const auto provider = [send = std::move(send)](size_t, httplib::DataSink& sink) {
    const bool whole = send(sink);
    if (whole) {
      sink.done();
    } else {
      Connection::current()->close_after_response();
    }
    return whole;
  };
  if (request.version == "HTTP/1.0") {  // has no chunks: the end of the connection ends the stream
    Connection::current()->close_after_response();
    response.set_content_provider(type, provider);
  } else {
    response.set_chunked_content_provider(type, provider);
  }
}

RequestLimits limits_of(const Attached& attached) {
  const ModelInfo& info = attached.engine->info();
  RequestLimits limits;
  limits.vocab = info.vocab;
  limits.context = info.context;
  limits.longest_prompt = info.longest_prompt;
  limits.sampling = attached.sampling;
  limits.seed = attached.seed;
  return limits;
}

std::optional<ApiError> check_model(const Attached& attached, const std::string& name) {
  if (name.empty() || name == attached.model || name == attached.engine->info().name || attached.any_model ||
      std::ranges::find(attached.aliases, name) != attached.aliases.end())
    return std::nullopt;
  return ApiError{
      404,
      fmt::format("the model '{}' is not served here; this server has '{}' (--alias and --any-model give it "
                  "other names)",
                  name, attached.model),
      "model", "model_not_found"};
}

std::optional<ApiError> check_policy(const Attached& attached, const PolicyChoice& choice) {
  if (Status known = attached.engine->check_policy(choice); !known.ok()) return api_error(known.error(), "kvilt");
  const bool quality = choice.name.empty() && choice.params.contains("quality");
  const std::string name = quality ? "auto" : choice.name;
  if (name.empty() || std::ranges::find(attached.policies, name) != attached.policies.end()) return std::nullopt;
  return ApiError{403,
                  fmt::format("policy '{}' may not be named here; this server allows {} (--allow-policies)", name,
                              fmt::join(attached.policies, ", ")),
                  quality ? "kvilt.quality" : "kvilt.policy", "policy_not_allowed"};
}

Service::Service(ServerOptions options)
    : options_(std::move(options)),
      tenants_(options_),
      requests_(std::make_unique<RequestLog>(static_cast<size_t>(options_.keep_requests), options_.show_text)),
      orders_(std::make_unique<PartOrders>(options_.any_tools_order)),
      template_words_(std::make_shared<const Json>(object_of(options_.chat_template_kwargs))),
      http_(limits_of(options_), options_.max_connections, options_.keep_no_text),
      gate_(std::max(kMostInside, options_.max_body_bytes)) {
  attached_.metrics = std::make_shared<Metrics>(options_.model_alias);
  http_.set_payload_max_length(options_.max_body_bytes);
  install_hooks();
}

void Service::attach(std::shared_ptr<Engine> engine) {
  const ModelInfo& info = engine->info();
  const std::string model = options_.model_alias.empty() ? info.name : options_.model_alias;
  std::vector<std::string> policies = options_.allow_policies;
  if (policies.empty()) {
    policies = info.policies;
    std::erase_if(policies, [&](const std::string& name) {
      return std::ranges::find(info.controls, name) != info.controls.end();
    });
  }
  MutexLock lock(mutex_);
  std::string fingerprint = fingerprint_of(info);
  attached_ = {std::move(engine),
               std::make_shared<Metrics>(model),
               model,
               static_cast<int64_t>(std::time(nullptr)),
               std::move(policies),
               options_.more_aliases,
               options_.any_model,
               options_.sampling.or_else(options_.model_sampling ? info.sampling : SamplingDefaults{}),
               options_.seed,
               std::move(fingerprint)};
}

Attached Service::attached() const {
  MutexLock lock(mutex_);
  return attached_;
}

void Service::install_hooks() {
  http_.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    auto error = check(request, response);
    if (!error && request.method != "OPTIONS") return httplib::Server::HandlerResponse::Unhandled;
    if (error) {
      reply_error(response, *error, shape_of(request.path));
      if (error->status == 401) response.set_header("WWW-Authenticate", "Bearer");
      // Its body was not read: what follows on this connection is not a request.
      if (request.method != "GET" && request.method != "HEAD") {
        Connection::current()->close_after_response();
        response.set_header("Connection", "close");
      }
    } else {
      response.status = 204;
    }
    return httplib::Server::HandlerResponse::Handled;
  });
  http_.set_expect_100_continue_handler([this](const httplib::Request& request, httplib::Response& response) {
    auto error = check(request, response);
    if (!error) return 100;
    reply_error(response, *error, shape_of(request.path));
    Connection::current()->close_after_response();
    return error->status;
  });
  // What the library itself refuses (a bad request line, a body that ends early).
  const httplib::Server::HandlerWithResponse refused = [](const httplib::Request& request,
                                                          httplib::Response& response) {
    if (!response.body.empty()) return httplib::Server::HandlerResponse::Unhandled;
    const char* what = response.status == 404   ? "there is no such route"
                       : response.status == 413 ? "the body is too large"
                       : response.status == 414 ? "the URL is too long"
                       : response.status >= 500 ? "internal error"
                                                : "the request is not valid HTTP/1.1";
    reply_error(response, {response.status, what, "", ""}, shape_of(request.path));
    Connection::current()->close_after_response();
    return httplib::Server::HandlerResponse::Handled;
  };
  http_.set_error_handler(refused);
  http_.set_exception_handler([this](const httplib::Request& request, httplib::Response& response,
                                     std::exception_ptr caught) {
    try {
      std::rethrow_exception(caught);
    } catch (const std::bad_alloc&) {
      reply_error(response, {503, "no memory is left for this request: try again soon", "", "overloaded"},
                  shape_of(request.path));
      Connection::current()->close_after_response();
      return;
    } catch (const std::exception& e) {
      spdlog::error("{} {}: {}", request.method, logged_path(request), http_.words_of(e));
    } catch (...) {
      spdlog::error("{} {}: unknown exception", request.method, logged_path(request));
    }
    reply_error(response, {500, "internal error: see the server's log", "", "internal_error"}, shape_of(request.path));
    Connection::current()->close_after_response();
  });
  // Before the first byte: who reads the answer finds it counted.
  http_.set_post_routing_handler(
      [this](const httplib::Request&, httplib::Response& response) { count_refused(response.status); });
  http_.set_logger([this](const httplib::Request& request, const httplib::Response& response) {
    attached().metrics->count_response(response.status);
    spdlog::debug("{} {} {}", request.method, logged_path(request), response.status);
  });
}

void Service::count_refused(int status) const {
  if (status != 429) return;
  const Caller* from = tenants_.caller(Connection::current()->verdict().authorization);
  if (from) from->tenant->count_refused();
}

// A path may hold names that a client chose.
std::string Service::logged_path(const httplib::Request& request) const {
  return options_.keep_no_text ? "(a path)" : request.path;
}

std::optional<ApiError> Service::check_origin(const httplib::Request& request, httplib::Response& response) const {
  if (!request.has_header("Origin")) return std::nullopt;  // not a browser
  const std::string origin = request.get_header_value("Origin");
  const std::string host = request.get_header_value("Host");
  // A foreign name can be made to point at this machine, and then origin and host agree. A server for this machine only
  // knows which names are its own.
  const bool own_name = !is_loopback(options_.host) || is_loopback(without_port(host));
  if (host_of(origin) == host && own_name) return std::nullopt;
  if (options_.allow_origin != "*" && options_.allow_origin != origin) {
    return ApiError{403, "pages of other origins may not call this server (see --allow-origin)", "", "origin_refused"};
  }
  if (!response.has_header("Access-Control-Allow-Origin")) {
    response.set_header("Access-Control-Allow-Origin", options_.allow_origin);
    response.set_header("Access-Control-Allow-Headers", "Authorization, Content-Type, *");
    response.set_header("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    response.set_header("Vary", "Origin");
  }
  return std::nullopt;
}

std::optional<ApiError> Service::check_caller(Guard guard) const {
  if (guard == Guard::kOpen) return std::nullopt;
  const Caller* caller = tenants_.caller(Connection::current()->verdict().authorization);
  if (!caller)
    return ApiError{401, "a valid API key is needed: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'", "",
                    "invalid_api_key"};
  if (guard == Guard::kAdmin && !caller->admin)
    return ApiError{403, "this needs the key of an admin (docs/server.md#tenants)", "", "not_an_admin"};
  return std::nullopt;
}

// A path that no route has as it is may begin with what stands before a route's groups.
const Service::Route* Service::route_of(const std::string& path) const {
  auto route = routes_.find(path);
  for (size_t end = path.rfind('/'); route == routes_.end() && end != 0 && end != std::string::npos;
       end = path.rfind('/', end - 1))
    route = routes_.find(path.substr(0, end + 1));
  return route == routes_.end() ? nullptr : &route->second;
}

std::optional<ApiError> Service::check(const httplib::Request& request, httplib::Response& response) {
  const HeadVerdict& head = Connection::current()->verdict();
  if (head.status) return ApiError{head.status, head.message, "", ""};
  if (request.path.size() > kMaxPath) return ApiError{414, "the URL is too long", "", ""};
  if (auto error = check_origin(request, response)) return error;
  const Route* route = route_of(request.path);
  if (!route) {
    return ApiError{404, fmt::format("there is no route '{}'; chat is POST /v1/chat/completions", request.path), "",
                    "not_found"};
  }
  if (request.method == "OPTIONS") return std::nullopt;
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  if (!route->methods.contains(method)) {
    const std::string allowed = fmt::format("{}", fmt::join(route->methods, ", "));
    if (!response.has_header("Allow")) response.set_header("Allow", allowed);
    return ApiError{405, fmt::format("{} takes {}, not {}", request.path, allowed, request.method), "",
                    "method_not_allowed"};
  }
  if (auto error = check_caller(route->guard)) return error;
  // This also keeps out other sites' forms, which cannot send this type; where forms are taken, check_origin() does.
  const std::string& type = head.content_type;
  const bool taken = type.empty() || type.starts_with("application/json") || (route->takes && route->takes(type));
  if (method == "POST" && !taken)
    return ApiError{415, fmt::format("send the body with Content-Type: application/json, not '{}'", type), "", ""};
  return std::nullopt;
}

// What one body has of `total`, until it was taken apart.
class Service::Arriving {
 public:
  Arriving(std::atomic<size_t>& total, size_t most) : total_(total), most_(most) {}
  ~Arriving() { total_ -= mine_; }
  Arriving(const Arriving&) = delete;
  Arriving& operator=(const Arriving&) = delete;
  bool add(size_t bytes) {
    mine_ += bytes;
    return total_.fetch_add(bytes) + bytes <= most_;
  }

 private:
  std::atomic<size_t>& total_;
  const size_t most_;
  size_t mine_ = 0;
};

std::optional<ApiError> Service::read_body(const httplib::ContentReader& reader, Arriving& arriving,
                                           std::string& body) const {
  bool too_large = false, crowded = false;
  const bool complete = reader([&](const char* data, size_t size) {
    too_large = body.size() + size > options_.max_body_bytes;
    crowded = !too_large && !arriving.add(size);
    if (!too_large && !crowded) body.append(data, size);
    return !too_large && !crowded;
  });
  if (complete) return std::nullopt;
  Connection::current()->close_after_response();
  if (crowded) return ApiError{503, "too many large bodies arrive at once: try again soon", "", "overloaded"};
  if (too_large || Connection::current()->body_too_large()) {
    return ApiError{413, fmt::format("the body has more than {} bytes", options_.max_body_bytes), "", ""};
  }
  return ApiError{400, "the body ended early or came too slowly, or its chunks have trailers", "", ""};
}

std::optional<ApiError> Service::need_engine(const Attached& attached) const {
  if (stopping_) return ApiError{503, "the server is shutting down", "", "unavailable"};
  if (!attached.engine) return ApiError{503, "the model is still loading", "", "unavailable"};
  return std::nullopt;
}

void Service::call_without_body(const Handler& handler, const httplib::Request& request, httplib::Response& response) {
  Attached now = attached();
  if (auto error = need_engine(now)) return reply_error(response, *error);
  Json none;
  auto pass = gate_.enter(0, {}, [] { return false; });
  handler({request, none, *pass, std::move(now), caller()}, response);
}

void Service::get(const std::string& pattern, Handler handler) {
  routes_[before_groups(pattern)].methods.insert("GET");
  http_.Get(pattern,
            [this, handler = std::move(handler)](const httplib::Request& request, httplib::Response& response) {
              call_without_body(handler, request, response);
            });
}

// The library would wait for a body that a DELETE does not have, unless a reader for it is taken, and left.
void Service::remove(const std::string& pattern, Handler handler) {
  routes_[before_groups(pattern)].methods.insert("DELETE");
  http_.Delete(pattern, [this, handler = std::move(handler)](
                            const httplib::Request& request, httplib::Response& response,
                            const httplib::ContentReader&) { call_without_body(handler, request, response); });
}

void Service::get_always(const std::string& path, std::function<void(const Attached&, httplib::Response&)> handler) {
  routes_[path] = {{"GET"}, Guard::kOpen};
  http_.Get(path, [this, handler = std::move(handler)](const httplib::Request&, httplib::Response& response) {
    handler(attached(), response);
  });
}

bool Service::nobody_waits() const { return ending_ || Connection::current()->peer_gone(); }

bool Service::take_room_for(const Call& call, size_t more) const {
  return gate_.grow(call.pass, more, kGatePatience, [this] { return nobody_waits(); });
}

std::optional<MemoryGate::Pass> Service::room_for(size_t bytes) {
  return gate_.enter(bytes, kGatePatience, [this] { return nobody_waits(); });
}

void Service::post(const std::string& path, Handler handler) { post(path, std::move(handler), {nullptr, {}}); }

void Service::post(const std::string& path, Handler handler, RawBodies raw) {
  Route& route = routes_[before_groups(path)];
  route.methods.insert("POST");
  if (raw.takes) route.takes = raw.takes;
  http_.Post(
      path, [this, handler = std::move(handler), raw = std::move(raw)](
                const httplib::Request& request, httplib::Response& response, const httplib::ContentReader& reader) {
        const auto refuse = [&, shape = shape_of(request.path)](const ApiError& error) {
          reply_error(response, error, shape);
        };
        const Caller from = caller();
        if (Status turn = from.tenant->arrive(); !turn.ok()) {  // its body is not read
          Connection::current()->close_after_response();
          return refuse(api_error(turn.error()));
        }
        std::string text;
        auto arriving = std::make_shared<Arriving>(arriving_, most_arriving());
        if (auto error = read_body(reader, *arriving, text)) return refuse(*error);
        Attached now = attached();
        if (auto error = need_engine(now)) return refuse(*error);
        if (const std::string& type = Connection::current()->verdict().content_type; raw.takes && raw.takes(type)) {
          Json none;
          auto small = gate_.enter(0, {}, [] { return false; });
          return raw.handler({request, none, *small, std::move(now), from},
                             {type, std::move(text), std::move(arriving)}, response);
        }
        auto pass = room_for(text.size());
        if (!pass) return refuse({503, "other large requests are being read: try again soon", "", "overloaded"});
        auto body = parse_json(text);
        if (!body.ok()) return refuse(body.error());
        std::string().swap(text);
        arriving.reset();
        handler({request, body.value(), *pass, std::move(now), from}, response);
      });
}

void Service::post_empty(const std::string& path, Handler handler) {
  routes_[path] = {{"POST"}, Guard::kAdmin};
  http_.Post(path, [this, handler = std::move(handler)](const httplib::Request& request, httplib::Response& response,
                                                        const httplib::ContentReader& reader) {
    std::string text;
    Arriving arriving(arriving_, most_arriving());
    if (auto error = read_body(reader, arriving, text)) return reply_error(response, *error);
    call_without_body(handler, request, response);
  });
}

void Service::for_admins(const std::string& path) { routes_.at(path).guard = Guard::kAdmin; }

Caller Service::caller() const {
  const Caller* caller = tenants_.caller(Connection::current()->verdict().authorization);
  CHECK(caller);  // check() let it in
  return *caller;
}

void Call::drop_body() const {
  body = nullptr;
  pass.leave();
}

}  // namespace kvilt::server

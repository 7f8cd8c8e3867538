#include "server/server.h"

#include <fmt/format.h>
#include <sodium.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "server/service.h"

namespace kvilt {

struct Server::Parts {
  explicit Parts(ServerOptions options) : service(std::move(options)) {}

  server::Service service;
  int port = 0;
  std::mutex mutex;
  std::condition_variable changed;
  // State below is protected by mutex.
  bool running = false;
  bool stopping = false;
  bool drained = false;
};

Result<std::unique_ptr<Server>> Server::listen(ServerOptions options) {
  if (options.port < 0 || options.port > 65535) {
    return error(Code::kInvalidArgument, "port {} is not from 0 to 65535", options.port);
  }
  if (options.max_connections < 1) return error(Code::kInvalidArgument, "max_connections must be at least 1");
  if (sodium_init() < 0) return error(Code::kInternal, "libsodium cannot be initialised");
  auto parts = std::make_unique<Parts>(std::move(options));
  server::add_generate_routes(parts->service);
  server::add_info_routes(parts->service);
  server::add_cache_routes(parts->service);
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
  std::unique_lock lock(parts_->mutex);
  parts_->changed.wait(lock, [&] { return !parts_->running; });
}

int Server::port() const { return parts_->port; }

void Server::attach(std::shared_ptr<Engine> engine) { parts_->service.attach(std::move(engine)); }

void Server::run() {
  {
    std::lock_guard lock(parts_->mutex);
    if (parts_->stopping) return;
    parts_->running = true;
  }
  parts_->service.http().run();
  {
    std::lock_guard lock(parts_->mutex);
    parts_->running = false;
    parts_->changed.notify_all();
  }
}

void Server::shutdown() {
  {
    std::unique_lock lock(parts_->mutex);
    if (parts_->stopping) {
      parts_->changed.wait(lock, [&] { return parts_->drained; });
      return;
    }
    parts_->stopping = true;
  }
  server::Service& service = parts_->service;
  service.begin_stop();
  service.http().stop_accepting();
  if (auto engine = service.attached().engine) engine->drain(service.options().shutdown_s);
  {
    // The last tokens are on their way: a moment for healthy clients, then an end for those that do not read.
    std::unique_lock lock(parts_->mutex);
    parts_->changed.wait_for(lock, std::chrono::seconds(2), [&] { return !parts_->running; });
    service.http().abort_connections();
    parts_->drained = true;
    parts_->changed.notify_all();
  }
}

}  // namespace kvilt

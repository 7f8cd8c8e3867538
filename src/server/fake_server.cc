// server/fake_server.cc: the real server over the test double, for protocol tests without a model.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "server/fake_engine.h"
#include "server/server.h"

namespace {

// --name value pairs; everything has a default.
const char* flag(int argc, char** argv, std::string_view name, const char* otherwise) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (name == argv[i]) return argv[i + 1];
  }
  return otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts: sigwait() below takes them

  kvilt::ServerOptions options;
  options.port = std::atoi(flag(argc, argv, "--port", "8000"));
  options.api_key = flag(argc, argv, "--api-key", "");
  options.model_alias = flag(argc, argv, "--alias", "");
  options.tokenizer_info = true;
  kvilt::server::FakeOptions fake;
  fake.answers = kvilt::server::FakeOptions::calls_tools();
  fake.seconds_per_token = std::atof(flag(argc, argv, "--delay-ms", "2")) / 1000;
  fake.max_queue = std::atoi(flag(argc, argv, "--max-queue", "64"));
  fake.context = std::atoi(flag(argc, argv, "--context", "4096"));

  auto server = kvilt::Server::listen(options);
  if (!server.ok()) {
    fmt::print(stderr, "{}\n", server.error().message);
    return 1;
  }
  std::thread web([&] {
    if (const kvilt::Status ended = server.value()->run(); !ended.ok()) {
      fmt::print(stderr, "{}\n", ended.error().message);
      std::_Exit(1);
    }
  });
  server.value()->attach(std::make_shared<kvilt::server::FakeEngine>(fake));
  fmt::print("http://{}:{}\n", options.host, server.value()->port());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&signals, &signal);
  server.value()->shutdown();
  web.join();
  return 0;
}

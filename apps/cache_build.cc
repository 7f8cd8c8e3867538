// apps/cache_build.cc: kvilt cache build: documents are computed into a folder of --cache-dir, before a server starts that
// finds them there.
// Idea:     each is what POST /v1/documents makes of it (server/warming_request.h), so that a server looks for the same.
// Not here: means over contexts (kvilt.season), which no folder keeps.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/cache_folder.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "server/warming_request.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr size_t kMostText = size_t{1} << 30;  // of one document

struct BuildOptions {
  EngineOptions engine;
  std::vector<std::string> files, jsonl;
  std::string request, system, tenant;
  std::vector<std::string> namespaces;
};

volatile std::sig_atomic_t stopped = 0;

double elapsed_s(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// ---- What is asked for

Result<Json> text_document(const std::string& path) {
  KVILT_ASSIGN(std::string text, read_file(path, kMostText));
  if (!is_utf8(text)) return error(Code::kInvalidArgument, "{}: not UTF-8", path);
  Json document;
  document["text"] = std::move(text);
  return document;
}

// Calls `take` with each document, or what is wrong with it, and the name by which an error calls it, until it says no.
using TakeDocument = std::function<bool(const std::string& name, Result<Json> document)>;

void each_document(const BuildOptions& o, const TakeDocument& take) {
  for (const std::string& path : o.files) {
    if (!take(path, text_document(path))) return;
  }
  for (const std::string& path : o.jsonl) {
    std::ifstream file(path);
    if (!file && !take(path, error(Code::kNotFound, "{}: cannot read", path))) return;
    std::string line;
    for (int64_t number = 1; std::getline(file, line); ++number) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const std::string name = fmt::format("{}:{}", path, number);
      Json document = Json::parse(line, nullptr, false);
      if (document.is_discarded() ? !take(name, error(Code::kInvalidArgument, "{}: no JSON", name))
                                  : !take(name, std::move(document)))
        return;
    }
  }
}

int64_t count_documents(const BuildOptions& o) {
  auto count = static_cast<int64_t>(o.files.size());
  for (const std::string& path : o.jsonl) {
    std::ifstream file(path);
    std::string line;
    if (!file) ++count;
    while (std::getline(file, line)) count += line.find_first_not_of(" \t\r") == std::string::npos ? 0 : 1;
  }
  return count;
}

// The body of POST /v1/documents that all of them share.
Json shared_body(const BuildOptions& o) {
  Json body = Json::object();
  if (!o.request.empty()) {
    body = Json::parse(value_or_fail(read_file(o.request, kMostText)), nullptr, false);
    if (!body.is_object()) fail(o.request + ": must be a JSON object, as the body of POST /v1/documents");
    if (body.contains("documents")) fail(o.request + ": documents come from files and --jsonl, not from here");
  }
  if (!o.system.empty()) {
    if (body.contains("messages")) fail("--system: " + o.request + " has messages");
    body["messages"] = Json::array({{{"role", "system"}, {"content", o.system}}});
  }
  if (!o.namespaces.empty()) {
    if (body.contains("kvilt") && !body["kvilt"].is_object()) fail(o.request + ": kvilt must be an object");
    body["kvilt"]["namespaces"] = o.namespaces;
  }
  return body;
}

server::RequestLimits limits_of(const ModelInfo& info) {
  server::RequestLimits limits;
  limits.vocab = info.vocab;
  limits.context = info.context;
  limits.longest_prompt = info.longest_prompt;
  return limits;
}

Result<server::DocumentsRequest> parsed(const Json& body, const ModelInfo& info) {
  const auto wanted = server::parse_documents(body, limits_of(info));
  if (wanted.ok()) return wanted.value();
  return Error{Code::kInvalidArgument, wanted.error().message};
}

// Before the first document, so that what is wrong with all of them is said once.
void check_shared(const Engine& engine, const BuildOptions& o, Json body) {
  body["documents"][0]["text"] = "a";
  const auto wanted = parsed(body, engine.info());
  const std::string where = o.request.empty() ? "" : o.request + ": ";
  if (!wanted.ok()) fail(where + wanted.error().message);
  if (wanted->season > 0) fail(where + "kvilt.season: means over contexts are kept in memory only, by a server");
  if (const Status good = engine.check_policy(wanted->policy); !good.ok()) fail(where + good.error().message);
}

// ---- Progress

class BuildProgress {
 public:
  explicit BuildProgress(int64_t all) : all_(all), bar_("documents"), lines_(::isatty(STDERR_FILENO) == 0) {}

  void add(int64_t tokens) {
    ++done_;
    tokens_ += tokens;
    constexpr double kEvery = 10;  // seconds, where it is written to a file
    bar_.at(static_cast<double>(done_) / static_cast<double>(std::max<int64_t>(all_, 1)), text());
    if (!lines_ || (done_ < all_ && elapsed_s(said_) < kEvery)) return;
    std::fprintf(stderr, "%s\n", text().c_str());
    said_ = Clock::now();
  }
  int64_t done() const { return done_; }
  int64_t tokens() const { return tokens_; }
  double seconds() const { return elapsed_s(begin_); }

 private:
  std::string text() const {
    return fmt::format("{} of {} documents, {} tokens, {:.0f} s", done_, all_, tokens_, seconds());
  }
  const int64_t all_;
  Progress bar_;
  const bool lines_;
  int64_t done_ = 0, tokens_ = 0;
  Clock::time_point begin_ = Clock::now(), said_ = begin_;
};

// ---- The work

struct Built {
  int64_t documents = 0, failed = 0, tokens = 0, computed = 0;
};

// What was evicted is written before more is computed: where the queue of writes is full, the engine drops.
void wait_for_writes(const Engine& engine) {
  while (engine.stats().disk.queued_bytes > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Its own tokens.
Result<int64_t> build_one(Engine& engine, const BuildOptions& o, Json body, Built& built) {
  KVILT_ASSIGN(const server::DocumentsRequest wanted, parsed(body, engine.info()));
  KVILT_ASSIGN(std::vector<Prompt> prompts, engine.document_prompts(body));
  const int64_t tokens = server::document_tokens(prompts.at(0));
  Request request = server::warming_request(std::move(prompts[0]), wanted);
  request.tenant = o.tenant;
  wait_for_writes(engine);
  KVILT_ASSIGN(const Answered out, ask(engine, std::move(request)));
  built.computed += out.usage().fresh + out.usage().recomputed;
  return tokens;
}

// An error's path begins at the only document there is.
std::string said_of(const std::string& name, const std::string& message) {
  constexpr std::string_view kPath = "documents[0]";
  if (message.starts_with(name)) return message;
  std::string_view left = message;
  if (left.starts_with(kPath)) {
    left.remove_prefix(kPath.size());
    if (left.starts_with('.')) left.remove_prefix(1);
    if (left.starts_with(": ")) left.remove_prefix(2);
  }
  return fmt::format("{}: {}", name, left);
}

Built build_all(Engine& engine, const BuildOptions& o, const Json& shared) {
  Built built;
  BuildProgress progress(count_documents(o));
  each_document(o, [&](const std::string& name, Result<Json> document) {
    Json body = shared;
    if (document.ok()) body["documents"][0] = std::move(*document);
    const Result<int64_t> done = document.ok() ? build_one(engine, o, std::move(body), built) : document.error();
    if (!done.ok()) {
      std::fprintf(stderr, "error: %s\n", for_terminal(said_of(name, done.error().message)).c_str());
      ++built.failed;
    }
    built.documents += done.ok() ? 1 : 0;
    progress.add(done.ok() ? *done : 0);
    return stopped == 0;
  });
  built.tokens = progress.tokens();
  return built;
}

// The engine has closed, so that all is written.
void say_built(const BuildOptions& o, const Built& built, uint64_t dropped, double seconds) {
  const auto tier = open_cache_folder({.path = o.engine.cache_dir, .key_file = o.engine.cache_key});
  const auto mib = static_cast<double>(tier->bytes()) / (1 << 20);
  std::printf("%lld documents, %lld tokens (%lld computed) in %.1f s; %s holds %lld pieces, %.1f MiB\n",
              static_cast<long long>(built.documents), static_cast<long long>(built.tokens),
              static_cast<long long>(built.computed), seconds, o.engine.cache_dir.c_str(),
              static_cast<long long>(tier->pieces()), mib);
  std::fflush(stdout);
  if (static_cast<double>(tier->bytes()) > .95 * static_cast<double>(o.engine.cache_disk))
    std::fprintf(stderr, "warning: the folder is full (--cache-disk); some of what was there before may be gone\n");
  if (dropped > 0) fail(fmt::format("{} pieces could not be written and are missing: build them once more", dropped));
  if (built.failed > 0) fail(fmt::format("{} of {} documents failed", built.failed, built.failed + built.documents));
  if (stopped) fail("stopped by a signal; what was computed is in the folder");
}

void build_cache(const BuildOptions& o) {
  if (o.engine.cache_dir.empty()) fail("give --cache-dir DIR, the folder that a server is to find the documents in");
  if (!o.engine.cache) fail("--no-cache keeps nothing");
  if (o.files.empty() && o.jsonl.empty()) fail("give text files, or --jsonl FILE");
  const Json shared = shared_body(o);
  auto engine = open_or_exit(o.engine);
  check_shared(*engine, o, shared);
  // What was computed is written when the engine closes; a second signal ends it at once.
  for (const int which : {SIGINT, SIGTERM}) {
    struct sigaction once {};
    once.sa_handler = [](int) { stopped = 1; };
    once.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(which, &once, nullptr);
  }
  const auto begin = Clock::now();
  const Built built = build_all(*engine, o, shared);
  wait_for_writes(*engine);
  const uint64_t dropped = engine->stats().disk.dropped;
  engine.reset();
  say_built(o, built, dropped, elapsed_s(begin));
}

}  // namespace

void add_cache_build(Command& cache) {
  auto build = cache.add_subcommand(
      "build", "computes documents into a folder, where a server with the same --cache-dir finds them");
  const auto o = std::make_shared<BuildOptions>();
  add_engine_options(build, o->engine, false);
  build.add_option("FILES", o->files, "text files, each one document");
  build.add_option("--jsonl", o->jsonl,
                   "a file of documents, one JSON object a line, as in `documents` of POST /v1/documents: \"text\", "
                   "\"title\"; may be given more than once");
  build.add_option("--system", o->system, "the system message of the chats that will ask about them");
  build.add_option("--namespace", o->namespaces, "leave them in this namespace, as kvilt.namespaces does");
  build.add_option("--tenant", o->tenant, "for this tenant of the server's (serve --tenants)");
  build.add_option("--request", o->request,
                   "file with the rest of POST /v1/documents' body: messages, tools, cache_salt, chat_template_kwargs, "
                   "kvilt");
  build.add_flag("--fold-volatile", o->engine.fold_volatile, "as kvilt serve does, if the server does");
  build.callback([o] { build_cache(*o); });
}

}  // namespace kvilt

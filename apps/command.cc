#include "apps/command.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "kvilt/version.h"

namespace kvilt {

void fail(const Error& error) { fail(error.message); }

void fail(const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  std::exit(1);
}

namespace {

// $XDG_CACHE_HOME/kvilt/packed, or ~/.cache/...; nothing where there is no home.
std::string default_pack_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache && *cache == '/') return std::string(cache) + "/kvilt/packed";
  return home && *home ? std::string(home) + "/.cache/kvilt/packed" : std::string("off");
}

}  // namespace

void add_engine_options(CLI::App& app, EngineOptions& o, bool model_flag) {
  const char* what = "a .gguf file, or a Hugging Face folder (config.json, *.safetensors, tokenizer.json)";
  (model_flag ? app.add_option("--model,-m", o.model, what) : app.add_option("MODEL", o.model, what))->required();
  app.add_option("--threads,-t", o.threads, "threads (0: all cores)")->capture_default_str();
  app.add_flag("--pin", o.pin, "each thread on a core of its own (not with more threads than cores)");
  app.add_option("--backend", o.backend, "kernels: auto, avx512, avxvnni, vnni256, avx2, reference")
      ->capture_default_str();
  app.add_option("--activations", o.activations,
                 "what rows are rounded to beside weights: auto (int8 beside quantised ones), or bf16, f32 (quantised "
                 "weights are widened in memory: nearer to exact arithmetic, and slower)")
      ->check(CLI::IsMember({"auto", "bf16", "f32"}))
      ->capture_default_str();
  auto* quality =
      app.add_option("--quality", o.quality,
                     "how near answers are to those of a full pass unless a request says otherwise: draft (the "
                     "quickest), balanced, exact (known pieces are not reused, known beginnings are)")
          ->check(CLI::IsMember({"draft", "balanced", "exact"}))
          ->capture_default_str();
  app.add_option("--policy", o.policy, "one method instead of that dial; kvilt info MODEL names them")
      ->capture_default_str()
      ->excludes(quality);
  app.add_option(
         "--reuse-from", o.reuse_from,
         "whose KV of a known piece is used: first (as first computed), last (as its last context under the same "
         "policy left it)")
      ->check(CLI::IsMember({"first", "last"}))
      ->capture_default_str();
  app.add_option(
      "--head-map", o.head_maps,
      "what policy redknot reads in each KV head: FILE, or NAME=FILE for map=NAME; may be given more than once");
  app.add_option("--placement", o.placement, "zero-copy (pieces stay where they are, queries turn) or copy")
      ->capture_default_str();
  app.add_option("--kv-bytes", o.kv_bytes, "size of the KV pool, e.g. 2GiB (0: half of the free memory, at most 4 GiB)")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--kv-type", o.kv_type,
                 "how keys and values are kept: f32, f16, bf16, int8; auto: bf16 where this machine attends faster so, "
                 "else f32")
      ->capture_default_str();
  app.add_option("--context", o.context, "longest prompt and answer together (0: the model's own)");
  app.add_option("--min-segment", o.min_segment, "shortest unmarked piece that is reused, in tokens")
      ->capture_default_str();
  app.add_option("--chunk", o.chunk_tokens, "prefill rows of one step")->capture_default_str();
  app.add_option("--max-sequences", o.max_sequences, "requests computed at once; more wait")->capture_default_str();
  app.add_option("--page-slots", o.page_slots, "tokens of a KV page")->capture_default_str();
  app.add_option("--audit", o.audit, "share of the requests that are computed again in full when idle, e.g. 0.01")
      ->capture_default_str();
  app.add_option("--audit-limit", o.audit_limit, "switch a policy off at this mean KL of its last 20 audits (0: never)")
      ->capture_default_str();
  o.pack_cache = default_pack_cache();
  app.add_option("--pack-cache", o.pack_cache, "folder that keeps packed weights for quick starts, or off")
      ->capture_default_str();
  app.add_flag("!--no-cache", o.cache, "neither find nor keep anything");
}

std::unique_ptr<Engine> open_or_exit(const EngineOptions& options) {
  Progress progress("loading " + options.model);
  EngineOptions opened = options;
  if (opened.pack_cache == "off") opened.pack_cache.clear();
  auto engine = open_engine(std::move(opened), [&](double share) { progress.at(share); });
  if (!engine.ok()) fail(engine.error());
  return std::move(engine).value();
}

Progress::Progress(std::string what) : what_(std::move(what)), shown_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_) std::fprintf(stderr, "\r\033[K");
}

void Progress::at(double share, const std::string& note) {
  if (!shown_) return;
  constexpr int kWidth = 30;
  const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * kWidth);
  const std::string bar =
      std::string(static_cast<size_t>(full), '#') + std::string(static_cast<size_t>(kWidth - full), '.');
  std::fprintf(stderr, "\r\033[K%s [%s] %3.0f %% %s", what_.c_str(), bar.c_str(), 100 * share, note.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

Report::Report(int argc, char** argv) {
  std::string command;
  for (int i = 0; i < argc; ++i) command += (i ? " " : "") + std::string(i ? argv[i] : "kvilt");
  std::string cpu = "unknown";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) {
      cpu = line.substr(line.find(':') + 2);
      break;
    }
  }
  head_ = {{"version", kVersion},
           {"command", command},
           {"machine", {{"cpu", cpu}, {"cores", std::thread::hardware_concurrency()}}}};
}

void Report::set_model(const ModelInfo& info) {
  head_["machine"]["backend"] = info.backend;
  head_["machine"]["threads"] = info.threads;
  head_["machine"]["kv_type"] = info.kv_type;
  head_["model"] = {
      {"name", info.name}, {"arch", info.arch}, {"description", info.description}, {"fingerprint", info.fingerprint}};
}

nlohmann::ordered_json Report::whole() const {
  nlohmann::ordered_json out = head_;
  out["rows"] = rows_;
  return out;
}

void Report::write(const std::string& path) const { write_text(path, whole().dump(1) + "\n"); }

void write_text(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << text;
  file.flush();
  if (!file) fail(path + ": cannot write");
}

Answered run_request(Engine& engine, Request request, std::function<void(const std::string&)> on_text) {
  return value_or_fail(ask(engine, std::move(request), std::move(on_text)));
}

namespace {
double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}
}  // namespace

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }
double spread(const std::vector<double>& values) { return (quantile(values, 0.75) - quantile(values, 0.25)) / 2; }

std::vector<std::string> split_commas(const std::string& text) {
  std::vector<std::string> out;
  std::string part;
  for (const char c : text + ",") {
    if (c != ',') {
      part += c;
    } else if (!part.empty()) {
      out.push_back(std::exchange(part, ""));
    }
  }
  return out;
}

std::vector<int> split_numbers(const std::string& text, const char* what) {
  std::vector<int> out;
  for (const std::string& part : split_commas(text)) {
    int value = 0;
    const auto [end, bad] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (bad != std::errc() || end != part.data() + part.size() || value < 1) {
      fail(fmt::format("{}: '{}' is not a whole number above 0", what, part));
    }
    out.push_back(value);
  }
  if (out.empty()) fail(fmt::format("{}: give at least one number", what));
  return out;
}

}  // namespace kvilt

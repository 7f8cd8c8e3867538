#include "apps/command.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "apps/flags.h"
#include "base/error.h"
#include "eval/runner.h"
#include "eval/statistics.h"

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

std::string key_text(const char* variable, const char* if_empty) {
  const char* text = std::getenv(variable);
  if (text && *text == '\0') fail(fmt::format("environment {} is empty, {}; unset it, or set it", variable, if_empty));
  return text ? text : "";
}

}  // namespace

std::string cache_key_text() { return key_text("KVILT_CACHE_KEY", "which would encrypt nothing"); }

std::string peer_key_text() { return key_text("KVILT_PEER_KEY", "which would let everyone of this machine ask"); }

bool has_tier(const EngineOptions& options) { return !options.cache_dir.empty() || !options.cache_redis.empty(); }

void add_engine_options(Command app, EngineOptions& o, bool model_flag) {
  const char* what =
      "a .gguf file (of a split model any part), a Hugging Face folder (config.json, *.safetensors, tokenizer.json), "
      "or "
      "ORG/NAME[:TAG] of the hub's cache";
  (model_flag ? app.add_option("--model,-m", o.model, what) : app.add_option("MODEL", o.model, what)).required();
  app.add_option("--chat-template", o.chat_template, "file with a Jinja chat template, instead of the model's own");
  app.add_option("--threads,-t", o.threads, "threads, at most 1024 (0: all cores)").show_default();
  app.add_flag("--pin", o.pin, "each thread on a core of its own (not with more threads than cores)");
  app.add_option("--backend", o.backend, "kernels: auto, amx, avx512, avxvnni, vnni256, avx2, reference")
      .show_default();
  app.add_choice(
      "--activations", o.activations, parse_activations, activations_name,
      "what rows are rounded to where they meet weights: auto (int8 with quantised ones), or bf16, f32 (quantised "
      "weights are widened in memory: nearer to exact arithmetic, and slower)");
  const Option quality =
      app.add_choice("--quality", o.quality, parse_quality, quality_name,
                     "how near answers are to those of a full pass unless a request says otherwise: draft (the "
                     "quickest), balanced, exact (known pieces are not reused, known beginnings are), each for all "
                     "text; auto: balanced for the parts that a request marks (documents, cache_control), exact for "
                     "all other text");
  app.add_option("--policy", o.policy, "one method instead of that dial, for all text; kvilt info MODEL names them")
      .excludes(quality);
  app.add_choice("--reuse-from", o.reuse_from, parse_reuse_from, reuse_from_name,
                 "whose KV of a known piece is used: first (as first computed), last (as its last context under the "
                 "same policy left it), seasoned (the mean over contexts, where there is one, else first); auto: "
                 "seasoned with serve --season, else first");
  app.add_choice("--discover", o.discover, parse_discover, discover_name,
                 "which text is known: equal (what repeats cached text), near (also what is equal in text that nearly "
                 "repeats it: edited documents, files with line numbers)");
  app.add_choice("--trust", o.trust, parse_trust, trust_name,
                 "whose KV of a known piece may be used: any, or clean (marked parts that were computed behind the "
                 "request's own beginning, so that nobody else's text can reach its answer)");
  app.add_option(
      "--head-map", o.head_maps,
      "what policy redknot reads in each KV head: FILE, or NAME=FILE for map=NAME; may be given more than once");
  app.add_option("--sparse-map", o.sparse_maps,
                 "which keys policy minference shows the rows of each KV head: FILE, or NAME=FILE for map=NAME; may be "
                 "given more than once");
  app.add_option("--layer-map", o.layer_maps,
                 "the stable layers of policy samkv: FILE, or NAME=FILE for layers=NAME; may be given more than once");
  app.add_choice("--placement", o.placement, parse_placement, placement_name,
                 "zero-copy (pieces stay where they are, queries are rotated) or copy");
  app.add_option("--kv-bytes", o.kv_bytes,
                 "size of the KV pool, e.g. 2GiB (0: half of the available memory, at most 4 GiB)")
      .bytes();
  app.add_choice("--kv-type", o.kv_type, parse_kv_type, kv_type_name,
                 "how keys and values are kept: f32, f16, bf16, int8; auto: bf16 where this machine attends faster so, "
                 "else f32");
  app.add_option("--context", o.context, "longest prompt and answer together (0: the model's own)");
  app.add_option("--min-segment", o.min_segment, "shortest unmarked piece that is reused, in tokens").show_default();
  app.add_option("--min-near", o.min_near, "shortest run of equal tokens that is reused in such text, in tokens")
      .show_default();
  app.add_option("--chunk", o.chunk_tokens, "prefill rows of one step").show_default();
  app.add_option(
         "--draft", o.draft,
         "tokens of an answer that are guessed from known texts and verified in one step, at most (0: none); the "
         "answer is the same")
      .show_default();
  app.add_option("--max-sequences", o.max_sequences, "requests computed at once; more wait").show_default();
  app.add_option("--page-slots", o.page_slots, "tokens of a KV page").show_default();
  app.add_option("--audit", o.audit, "share of the requests that are computed again in full when idle, e.g. 0.01")
      .show_default();
  app.add_option("--audit-limit", o.audit_limit, "switch a policy off at this mean KL of its last 20 audits (0: never)")
      .show_default();
  o.pack_cache = default_pack_cache();
  app.add_option("--pack-cache", o.pack_cache, "folder that keeps packed weights for quick starts, or off")
      .show_default();
  const Option dir =
      app.add_option("--cache-dir", o.cache_dir,
                     "folder that keeps what is cached beyond memory and beyond this process (unencrypted without "
                     "--cache-key; for its owner)");
  app.add_option("--cache-disk", o.cache_disk, "the most that it takes, e.g. 64GiB (default: 16GiB)")
      .bytes()
      .needs(dir);
  const Option redis = app.add_option(
      "--cache-redis", o.cache_redis,
      "Redis or Valkey that several servers share: HOST:PORT, redis://[[USER]:PASSWORD@]HOST[:PORT][/DB] or "
      "unix:PATH (no TLS); several with commas between them, over which pieces are spread");
  app.add_option("--cache-redis-key", o.cache_redis_key,
                 "file with the secret of the servers that share it: 32 bytes or 64 hexadecimal digits (default: it "
                 "follows from --cache-key, or the first server puts one into Redis)");
  app.add_option("--cache-redis-timeout", o.cache_redis_timeout_ms, "the longest wait for an answer of it, in ms")
      .needs(redis, "KVILT_CACHE_REDIS")
      .show_default();
  app.add_option("--cache-key", o.cache_key,
                 "file with the key that encrypts what --cache-dir, --cache-redis and serve --knowledge-dir keep: 32 "
                 "bytes or 64 hexadecimal digits, mode 600 (or environment KVILT_CACHE_KEY, the digits themselves)");
  app.add_flag("--zero-memory", o.zero_memory, "KV in memory is overwritten with zeros when its page is given back");
  app.add_flag("!--no-cache", o.cache, "neither find nor keep anything");
}

std::vector<PolicySpec> checked_policies(const Engine& engine, const std::string& list, const std::string& first) {
  std::vector<std::string> labels = split_commas(list);
  if (!first.empty() && std::ranges::find(labels, first) == labels.end()) labels.insert(labels.begin(), first);
  std::vector<PolicySpec> out;
  for (const std::string& label : labels) {
    out.push_back(value_or_fail(parse_policy(label)));
    if (const auto good = engine.check_policy(out.back().choice); !good.ok()) fail(good.error());
  }
  return out;
}

std::unique_ptr<Engine> open_or_exit(const EngineOptions& options) {
  Progress progress("loading " + options.model);
  EngineOptions opened = options;
  if (opened.pack_cache == "off") opened.pack_cache.clear();
  if (has_tier(opened) && opened.cache_key.empty()) opened.cache_key_text = cache_key_text();
  if (opened.role != Role::kBoth && opened.peer_key.empty()) opened.peer_key_text = peer_key_text();
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

std::string sampling_words(const SamplingDefaults& sampling, const char* none) {
  std::string words;
  const auto add = [&](const char* name, auto value) {
    if (value) words += fmt::format("{}{} {}", words.empty() ? "" : ", ", name, *value);
  };
  add("temperature", sampling.temperature);
  add("top_p", sampling.top_p);
  add("top_k", sampling.top_k);
  add("min_p", sampling.min_p);
  add("repetition_penalty", sampling.repetition_penalty);
  return words.empty() ? none : words;
}

double median(const std::vector<double>& values) { return quantile(values, 0.5); }
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

// apps/command.h: what the sub-commands share: the engine's flags, errors, progress bars.
// Not here: reports as JSON (report.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/flags.h"
#include "kvilt/ask.h"

namespace kvilt {

// --draft's default where people read answers, and what docs/results/drafts.md measured. Measurements draft nothing
// unless they are told to.
inline constexpr int kProgramDraft = 16;

// Adds MODEL and the engine's options to a sub-command. model_flag: --model M instead of the positional MODEL.
void add_engine_options(Command app, EngineOptions& options, bool model_flag);

// What KVILT_CACHE_KEY and KVILT_PEER_KEY say, or nothing; exits with 1 if that is an empty text.
std::string cache_key_text();
std::string peer_key_text();
// Whether the engine keeps KV beyond memory.
bool has_tier(const EngineOptions& options);

// Opens with a progress bar; prints the error and exits with 1 if that fails.
std::unique_ptr<Engine> open_or_exit(const EngineOptions& options);
// The policies of a comma-separated list, `first` before them unless it is among them; exits with 1 if the engine does
// not take one of them.
struct PolicySpec;
std::vector<PolicySpec> checked_policies(const Engine& engine, const std::string& list, const std::string& first = "");

// Prints "error: ..." and exits with 1.
[[noreturn]] void fail(const Error& error);
[[noreturn]] void fail(const std::string& message);
template <class T>
T value_or_fail(Result<T> result) {
  if (!result.ok()) fail(result.error());
  return std::move(result).value();
}

// A bar on standard error while it is a terminal; silent otherwise.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  void at(double share, const std::string& note = "");

 private:
  const std::string what_;
  const bool shown_;
  bool drawn_ = false;
};

// Exits with 1 if that fails; does nothing for an empty path.
void write_text(const std::string& path, const std::string& text);

// Submits and waits; exits with 1 on an error.
Answered run_request(Engine& engine, Request request, std::function<void(const std::string&)> on_text = nullptr);

// "temperature 0.7, top_k 20": what is said of them; `none` where that is nothing.
std::string sampling_words(const SamplingDefaults& sampling, const char* none);

double median(const std::vector<double>& values);  // 0 for none
double spread(const std::vector<double>& values);  // half the distance between the quartiles
std::vector<std::string> split_commas(const std::string& text);
std::vector<int> split_numbers(const std::string& text, const char* what);

// The sub-commands: each registers itself with the program.
struct Program {
  Command app;
  int argc = 0;
  char** argv = nullptr;
};
void add_serve(Program& program);
void add_generate(Program& program);
void add_info(Program& program);
void add_tokenize(Program& program);
void add_cache(Program& program);
void add_pull(Program& program);
void add_bench(Program& program);
void add_eval(Program& program);
void add_profile(Program& program);
void add_profile_sparse(Command profile, Program& program);
void add_profile_layers(Command& profile);
void add_session(Program& program);
void eval_parity(const EngineOptions& engine, const std::string& path, const std::string& json, Program& program);
void add_bench_reuse(Program& program, Command bench);
void add_bench_dialogue(Program& program, Command bench);
void add_bench_drafts(Program& program, Command bench);
void add_bench_dense(Program& program, Command bench);
void add_bench_workloads(Program& program, Command bench);
void add_bench_traffic(Program& program, Command bench);
void add_bench_kv(Program& program, Command bench);
void add_bench_kernels(Program& program, Command bench);
void add_bench_segpaged(Program& program, Command bench);
void add_bench_capacity(Program& program, Command bench);
void add_bench_constrained(Program& program, Command bench);
void add_bench_tiers(Program& program, Command bench);
void add_bench_startup(Program& program, Command bench);
void add_bench_eviction(Program& program, Command bench);
void add_bench_scale(Program& program, Command bench);

}  // namespace kvilt

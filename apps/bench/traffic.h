// apps/bench/traffic.h: what the workloads of `kvilt bench traffic` share: engines, texts, prompts, figures.
// Role:       a workload is a function over a TrafficBench. It opens fresh engines, so that no lane finds what another
//             left, sends requests as clients do, and gives figures: rows {workload, figure, value} of the report.
//             Per-request rows, for who wants to know why, are the report's "details".
// Invariants: the same seed gives the same texts, whatever ran before: two lanes ask the same.
// Threads:    the caller's; sinks hear from the engine thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/report.h"
#include "kvilt/engine.h"

namespace kvilt {

using TokenIds = std::vector<int32_t>;

struct TrafficOptions {
  EngineOptions engine;
  std::string only = "chat,burst,mixed,memory,interrupted,sampling", json;
  bool quick = false, unmarked = false;
  // 0: as the workload has it, or less with --quick.
  int rounds = 0, requests = 0, long_tokens = 0;
  double give_up = 0;
  uint64_t seed = 7;
};

// A model's chat text around documents and questions, as token ids: so the conversation of a later turn begins with
// exactly what was asked and answered before.
struct TrafficFrame {
  TokenIds head, between, tail;  // head | documents | between | question | tail
  TokenIds again;                // answer | again | question | tail
};
// Plain ids where the model has no tokenizer, or its template no place for marked parts.
TrafficFrame traffic_frame(const Engine& engine);

// A stream of text, cut as needed; no part of it comes twice.
class TrafficText {
 public:
  TrafficText(const Engine& engine, uint64_t seed) : engine_(engine), seed_(seed * 1000003) {}
  TokenIds next(int tokens);
  std::vector<TokenIds> next(int count, int tokens);

 private:
  const Engine& engine_;
  uint64_t seed_;
  TokenIds text_;
};

// What a client sees of one request, and when.
class TrafficSink : public TokenSink {
 public:
  using Clock = std::chrono::steady_clock;
  void on_tokens(const TokenDelta& delta) override;
  void on_finish(Completion completion) override;
  const Completion& wait();  // exits with 1 if the request failed
  bool wait_for(double seconds);

  // Complete when wait() has returned.
  TokenIds ids;
  std::vector<Clock::time_point> times;  // of the tokens

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<Completion> done_;
};

class TrafficBench {
 public:
  TrafficBench(TrafficOptions options, Report& report) : options_(std::move(options)), report_(report) {}

  const TrafficOptions& options() const { return options_; }
  int of_size(int whole, int quick) const { return options_.quick ? quick : whole; }
  // What the user gave, else as of_size().
  int given(int value, int whole, int quick) const { return value > 0 ? value : of_size(whole, quick); }
  int long_tokens(const Engine& engine) const;  // of the long prompts: what the model's context allows at most

  // An engine that knows nothing. pool_tokens: the KV pool holds so many (0: as --kv-bytes says).
  std::unique_ptr<Engine> open(double pool_tokens = 0);

  Prompt first_turn(const TrafficFrame& frame, const std::vector<TokenIds>& documents, const TokenIds& question) const;
  static Prompt next_turn(const TrafficFrame& frame, Prompt so_far, const TokenIds& answer, const TokenIds& question);

  void figure(const std::string& workload, const std::string& name, double value);
  void detail(nlohmann::ordered_json row) { details_.push_back(std::move(row)); }
  void finish() { report_.set("details", details_); }

 private:
  const TrafficOptions options_;
  Report& report_;
  nlohmann::ordered_json details_ = nlohmann::ordered_json::array();
  int64_t token_bytes_ = 0;  // of KV; 0: no engine was opened yet
};

// Greedy, and no end token ends it: all lanes answer at the same length.
Request traffic_request(Prompt prompt, int answer, PolicyChoice policy = {});
PolicyChoice exact_quality();
// Exits with 1 if the engine refuses it.
RequestId submit_traffic(Engine& engine, Request request, const std::shared_ptr<TrafficSink>& sink);
// Positions whose K and V the prompt's policy had computed: new ones and known ones again.
inline int computed_rows(const PromptUsage& usage) { return usage.fresh + usage.recomputed; }
nlohmann::ordered_json usage_row(const std::string& workload, const std::string& what, const PromptUsage& usage);
double mean(std::span<const double> values);  // 0 for none

void traffic_chat(TrafficBench& bench);
void traffic_burst(TrafficBench& bench);
void traffic_mixed(TrafficBench& bench);
void traffic_memory(TrafficBench& bench);
void traffic_interrupted(TrafficBench& bench);
void traffic_sampling(TrafficBench& bench);

}  // namespace kvilt

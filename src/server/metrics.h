// server/metrics.h: what /metrics says, in Prometheus' text format; vLLM's names under `kvilt:`.
// Role:       latency histograms are fed by RequestTimer (one per engine request, on the engine thread); counters and
//             gauges of the engine are read from EngineStats when somebody asks.
// Threads:    all methods from any thread (prometheus-cpp's metrics lock for a few instructions).
// Not here:   per-layer or per-kernel figures.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "kvilt/engine.h"

namespace kvilt::server {

struct HttpCounters {
  int connections = 0;
  uint64_t refused = 0;
};

class Metrics {
 public:
  explicit Metrics(std::string model_name);
  ~Metrics();

  // The whole page. engine: null while the model loads.
  std::string text(const Engine* engine, const HttpCounters& http) const;

  void count_response(int status);

 private:
  friend class RequestTimer;
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

// Follows one engine request from its submission to its end. Used by one thread at a time.
class RequestTimer {
 public:
  explicit RequestTimer(std::shared_ptr<Metrics> metrics);
  void tokens(int count);  // of one delta
  void finish(const Completion& completion);

 private:
  std::shared_ptr<Metrics> metrics_;
  std::chrono::steady_clock::time_point start_, last_;
  bool first_ = true;
};

}  // namespace kvilt::server

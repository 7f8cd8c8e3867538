// sched/sequence.h: one request on its way: tokens, policy, prefill, pages. Plain data that scheduler and engine share.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "forward/driver.h"
#include "forward/sampler.h"
#include "kv/page_table.h"
#include "kvilt/request.h"
#include "policy/policy.h"
#include "sched/prefill.h"

namespace kvilt {

using Clock = std::chrono::steady_clock;

inline double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// A decode step as a plan: one row through all layers, with the prefill's views. Rebuilt in place every step.
struct DecodeRow {
  Plan plan;
  Band band;
  void take_views(const Plan& prefill);
  void set(int32_t pos, const ModelConfig& config);
};

struct Sequence {
  RequestId id = 0;
  Request request;
  std::shared_ptr<TokenSink> sink;
  std::unique_ptr<ReusePolicy> policy;
  int64_t domain = 0;           // of the content index
  int64_t repaired = 0;         // the same, of the pieces that this policy repaired; 0: neither looked for nor kept
  bool clean_only = false;      // pieces are clean copies only
  std::vector<int32_t> tokens;  // the prompt, then what was generated
  int32_t prompt_len = 0;       // of the request
  int32_t max_len = 0;          // tokens.size() never exceeds it

  int32_t session_len = 0;    // positions that request.session holds; 0: there is none
  int64_t session_pages = 0;  // that importing it takes at most

  // What it has while it runs. Preemption drops all of it (`running = {}`): a field that must survive belongs outside.
  struct Running {
    std::unique_ptr<PageTable> kv;
    std::unique_ptr<Prefill> prefill;  // null once decoding
    int32_t prefill_len = 0;           // tokens.size() when the prefill was planned
    std::vector<float> logits;         // V, of the step just run

    // From the end of the prefill on.
    PromptLayout layout;  // of the prefill, for publishing the answer
    DecodeRow decode;
    bool own_kv = false;               // the plan was narrowed: what it computed is not published
    std::vector<SegmentId> published;  // of this request's own KV; the last one may be extended when the answer ends
  };
  Running running;

  std::optional<Sampler> sampler;
  bool without_cache = false;  // what it placed kept it from going on: it starts again and places nothing
  uint64_t no_room_at = 0;     // the engine's count of changes when pages were last missing; 0: never
  bool started = false;        // a step has worked for it
  Clock::time_point submitted, first_step, first_token;
  PromptUsage usage;
  Work work;
  Completion completion;

  bool decoding() const { return running.kv && !running.prefill; }
};

}  // namespace kvilt

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
  std::vector<int32_t> tokens;  // the prompt, then what was generated
  int32_t prompt_len = 0;       // of the request
  int32_t max_len = 0;          // tokens.size() never exceeds it

  int32_t session_len = 0;    // positions that request.session holds; 0: there is none
  int64_t session_pages = 0;  // that importing it takes at most

  // While it runs; dropped on preemption.
  std::unique_ptr<PageTable> kv;
  std::unique_ptr<Prefill> prefill;  // null once decoding
  PromptLayout layout;               // of the prefill, kept for publishing the answer
  int32_t prefill_len = 0;           // tokens.size() when the prefill was planned
  bool slots_ready = false;          // the current band's positions have their slots
  HiddenRows hidden;
  CarryState carry;  // of the prefill's stage
  DecodeRow decode;
  std::vector<SegmentId> published;  // runs of this request's own KV, the last one may be extended when it ends
  std::vector<float> logits;         // V, of the step just run

  std::optional<Sampler> sampler;
  bool without_cache = false;  // what it placed kept it from going on: it starts again and places nothing
  uint64_t no_room_at = 0;     // the engine's count of changes when pages were last missing; 0: never
  bool started = false;        // a step has worked for it
  Clock::time_point submitted, first_step, first_token;
  PromptUsage usage;
  Work work;
  Completion completion;

  bool own_kv = false;  // the plan was narrowed: what it computed is not published

  bool decoding() const { return kv && !prefill; }
};

}  // namespace kvilt

// server/request_log.h: what became of the last requests: where their prompts' KV came from, why the rest was computed,
// and where a prompt differs from the one before it in its conversation.
// Role:       routes_generate.cc begins a record per HTTP request and ends it; `"kvilt": {"diagnostics": true}` puts it
//             into the answer, GET /v1/requests/{id} shows it later (routes_requests.cc).
// Invariants: a record is seen, and compared with, within its tenant only, and compared within its cache_salt. What is
//             shown holds no text of a prompt unless the operator allows it (ServerOptions::show_text). Records are
//             bounded: the tenant that has most loses its oldest. A request that was refused never has one.
// Threads:    any.
// Cost:       4 bytes a token of the prompts that are kept; a comparison of ids with each for every new prompt.
// Not here:   what happened in the engine (kvilt/explain.h), the words for a difference (first_difference.h).
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kvilt/engine.h"
#include "server/first_difference.h"
#include "server/json_fields.h"

namespace kvilt::server {

// Written by the HTTP thread of its answer until it is ended; then constant.
struct RequestRecord {
  std::string id, tenant, salt;
  int64_t created = 0;  // Unix time
  ComparedPrompt prompt;
  std::optional<FirstDifference> difference;
  std::string previous;    // id of the record that it differs from
  bool unknown = false;    // the one that the client named is not kept
  bool guessed = false;    // the client named none: `previous` may be of another conversation
  int32_t was_cached = 0;  // tokens at the beginning that the previous one had exactly, and left in the cache

  RequestId engine_id = 0;
  std::string state = "running";  // then done, failed or cancelled
  PromptUsage usage;
  std::vector<PromptPatch> quilt;
  double total_s = 0;
  double at_best_s = 0;  // of its prefill, at the best rate of its tenant's kept requests; 0: not known
};

class RequestLog {
 public:
  static constexpr size_t kMostTokens = size_t{4} << 20;  // of all records: 16 MiB

  // most: records; 0: none are kept, and nothing is compared.
  RequestLog(size_t most, bool show_text) : most_(most), show_text_(show_text) {}

  // previous_id: what the client says its last message was; empty, unknown or another tenant's: the record with the
  // longest common beginning, but for those whose client left. The prompt is compared now, so that the record says so
  // while it runs. Nobody else sees it before it is submitted: a refused request leaves the log as it was.
  std::shared_ptr<RequestRecord> begin(RequestRecord record, const std::string& previous_id,
                                       const Engine& engine) const;
  void submitted(std::shared_ptr<RequestRecord> record, RequestId id);
  void ended(RequestRecord& record, const Completion& completion);
  // Its client went away before the end.
  void left(RequestRecord& record);

  // As JSON. Nothing: the tenant has no such record (any more).
  std::optional<Json> show(const std::string& tenant, const std::string& id) const;
  Json list(const std::string& tenant) const;  // the newest first
  Json json_of(const RequestRecord& record) const;

 private:
  void make_room() KVILT_REQUIRES(mutex_);
  Json locked_json(const RequestRecord& record) const KVILT_REQUIRES(mutex_);
  Json origin_of(const RequestRecord& record, const PromptPatch& patch) const KVILT_REQUIRES(mutex_);
  std::shared_ptr<RequestRecord> find(const std::string& tenant, const std::string& id) const KVILT_REQUIRES(mutex_);

  const size_t most_;
  const bool show_text_;
  mutable Mutex mutex_;
  std::deque<std::shared_ptr<RequestRecord>> records_ KVILT_GUARDED_BY(mutex_);
  size_t tokens_ KVILT_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvilt::server

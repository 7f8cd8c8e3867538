// server/tenants.h: who calls, as whom, and how much of the server one tenant may take.
// Role:       API key -> caller (tenant, role); places for answers and a rate per tenant; what each has used. The tenant's
//             name goes into every engine request (answer_queue.h) and there into every key of the cache, so nothing
//             that one tenant left is ever found by another, whatever salt it names.
// Invariants: keys are kept as BLAKE2b-256 only, and looked up by that. Without any key there is one tenant, with
//             an empty name, and every caller is its admin.
// Threads:    Tenant: all methods from any thread. Tenants is constant after construction.
// Not here:   turns at the engine (sched/turns.h), shares of the pool (kv/idle_extents.h) and of
//             the folder on disk (tier/disk_shares.h).
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "kvilt/request.h"
#include "kvilt/result.h"
#include "server/server.h"

namespace kvilt::server {

class Tenant {
 public:
  using Clock = std::chrono::steady_clock;

  Tenant(std::string name, int max_requests, int requests_per_minute);

  const std::string& name() const { return name_; }
  int max_requests() const { return max_requests_; }  // 0: no limit
  int requests_per_minute() const { return requests_per_minute_; }

  // A place for one answer, from its submission to its end.
  class Place {
   public:
    Place(Place&& other) noexcept : tenant_(std::exchange(other.tenant_, nullptr)) {}
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (tenant_) --tenant_->running_;
    }

   private:
    friend class Tenant;
    explicit Place(std::shared_ptr<Tenant> tenant) : tenant_(std::move(tenant)) {}
    std::shared_ptr<Tenant> tenant_;
  };
  // kOverLimit where all places are taken.
  static Result<Place> enter(const std::shared_ptr<Tenant>& tenant);
  // So many, or none. kInvalidArgument where a tenant never has as many.
  static Result<std::vector<Place>> enter(const std::shared_ptr<Tenant>& tenant, int count);
  // kOverLimit where the minute's requests are used up: a bucket that refills evenly and holds as many at most.
  Status arrive(Clock::time_point now = Clock::now());

  struct Counts {
    int running = 0;                                        // answers that are made or wait
    uint64_t requests = 0, refused = 0;                     // refused: answered with a 429
    uint64_t prompt_tokens = 0, cached = 0, generated = 0;  // of answers that have ended; cached: prefix and reused
  };
  Counts counts() const;
  void count(const Completion& completion);
  // One was answered with a 429. Not where a place was not free: who waits for one may get it.
  void count_refused() { ++refused_; }

 private:
  const std::string name_;
  const int max_requests_, requests_per_minute_;
  std::atomic<int> running_{0};
  std::atomic<uint64_t> requests_{0}, refused_{0}, prompt_{0}, cached_{0}, generated_{0};
  Mutex mutex_;
  double left_ KVILT_GUARDED_BY(mutex_);  // of the minute's requests
  Clock::time_point filled_ KVILT_GUARDED_BY(mutex_){};
};

struct Caller {
  std::shared_ptr<Tenant> tenant;
  bool admin = false;
};

class Tenants {
 public:
  // REQUIRES: check_tenants() finds nothing wrong.
  explicit Tenants(const ServerOptions& options);

  // Whom an Authorization header lets in; null: nobody.
  const Caller* caller(std::string_view authorization) const;
  bool several() const { return several_; }  // a file names them
  const std::vector<std::shared_ptr<Tenant>>& all() const { return all_; }

 private:
  std::vector<std::shared_ptr<Tenant>> all_;
  std::unordered_map<std::string, Caller> by_key_;  // by the key's hash
  Caller anyone_;                                   // where no key is needed
  bool several_ = false;
};

// Two tenants of one name, one key of two, a tenant without keys.
Status check_tenants(const ServerOptions& options);

}  // namespace kvilt::server

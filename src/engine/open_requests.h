// engine/open_requests.h: the places of requests that wait or run, and who has them.
// Role:       requests that are submitted together get their places together or not at all.
// Idea:       a tenant has no more places than are free (dynamic thresholds; Choudhury and Hahne 1998): one alone half of
//             them, k busy ones an equal part of k + 1 each. So none fills the queue, and who is new finds a place.
// Invariants: a place comes back when its request ends, however it ends: a request that is lost where memory ends hears
//             of an error.
// Threads:    all methods from any thread.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "kvilt/request.h"
#include "kvilt/result.h"

namespace kvilt {

class OpenRequests {
 public:
  // Places that no sink has yet: they come back with it.
  class Places {
   public:
    Places(Places&& other) noexcept
        : of_(other.of_), tenant_(std::move(other.tenant_)), left_(std::exchange(other.left_, 0)) {}
    Places& operator=(Places&&) = delete;
    ~Places() { of_.release(tenant_, left_); }

    // A sink that has one of them until its request ends.
    std::shared_ptr<TokenSink> give(std::shared_ptr<TokenSink> sink) {
      auto out = std::make_shared<Sink>(std::move(sink), of_, tenant_);
      --left_;
      return out;
    }

   private:
    friend class OpenRequests;
    Places(OpenRequests& of, std::string tenant, int count) : of_(of), tenant_(std::move(tenant)), left_(count) {}
    OpenRequests& of_;
    std::string tenant_;
    int left_;
  };

  OpenRequests(int waiting, int running) : waiting_(waiting), most_(waiting + running) {}

  // All or none. tenant: empty, and it may have all of them. Errors: as Engine::submit_all.
  Result<Places> take(int count, const std::string& tenant) {
    const int ever = tenant.empty() ? most_ : std::max(1, most_ / 2);
    if (count > ever) {
      return error(Code::kInvalidArgument, "{} answers are asked for at once; there are places for {}: ask for fewer",
                   count, ever);
    }
    MutexLock lock(mutex_);
    const int left = most_ - open_;
    if (count > left && count == 1)
      return error(Code::kExhausted, "the queue is full ({} requests); try again later", waiting_);
    if (count > left) {
      return error(Code::kExhausted, "the queue has {} places left for {} answers; try again later", left, count);
    }
    if (!tenant.empty()) {
      const auto known = of_tenant_.find(tenant);
      const int held = known == of_tenant_.end() ? 0 : known->second;
      if (held + count > std::max(1, left - count)) {
        return error(Code::kOverLimit,
                     "this tenant has {} answers being made or waiting, and the {} places left in the queue are for "
                     "others too: try again when some have ended",
                     held, left);
      }
      of_tenant_[tenant] = held + count;
    }
    open_ += count;
    return Places(*this, tenant, count);
  }
  int count() const {
    MutexLock lock(mutex_);
    return open_;
  }

 private:
  class Sink : public TokenSink {
   public:
    Sink(std::shared_ptr<TokenSink> sink, OpenRequests& of, std::string tenant)
        : sink_(std::move(sink)), of_(of), tenant_(std::move(tenant)) {}
    ~Sink() override {
      if (ended_) return;
      Completion lost;
      lost.finish = Finish::kError;
      lost.error = Error{Code::kExhausted, "no memory"};
      on_finish(std::move(lost));
    }
    void on_tokens(const TokenDelta& delta) override { sink_->on_tokens(delta); }
    void on_progress(const PromptProgress& now) override { sink_->on_progress(now); }
    void on_prompt(std::vector<TokenLogprob> prompt) override { sink_->on_prompt(std::move(prompt)); }
    void on_finish(Completion completion) override {
      ended_ = true;
      of_.release(tenant_, 1);
      sink_->on_finish(std::move(completion));
    }

   private:
    const std::shared_ptr<TokenSink> sink_;
    OpenRequests& of_;
    const std::string tenant_;
    bool ended_ = false;
  };

  void release(const std::string& tenant, int count) {
    if (count == 0) return;
    MutexLock lock(mutex_);
    open_ -= count;
    const auto known = of_tenant_.find(tenant);
    if (known == of_tenant_.end()) return;
    known->second -= count;
    if (known->second == 0) of_tenant_.erase(known);
  }

  const int waiting_, most_;
  mutable Mutex mutex_;
  int open_ KVILT_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> of_tenant_ KVILT_GUARDED_BY(mutex_);  // who has any
};

}  // namespace kvilt

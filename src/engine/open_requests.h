// engine/open_requests.h: the places of requests that wait or run, and who has them.
// Role:       requests that are submitted together get their places together or not at all.
// Invariants: a place comes back when its request ends, however it ends: a request that is lost where memory ends hears
//             of an error.
// Threads:    all methods from any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kvilt/request.h"
#include "kvilt/result.h"

namespace kvilt {

class OpenRequests {
 public:
  // Places that no sink has yet: they come back with it.
  class Places {
   public:
    Places(Places&& other) noexcept : of_(other.of_), left_(std::exchange(other.left_, 0)) {}
    Places& operator=(Places&&) = delete;
    ~Places() { of_.open_.fetch_sub(left_); }

    // A sink that has one of them until its request ends.
    std::shared_ptr<TokenSink> give(std::shared_ptr<TokenSink> sink) {
      auto out = std::make_shared<Sink>(std::move(sink), of_.open_);
      --left_;
      return out;
    }

   private:
    friend class OpenRequests;
    Places(OpenRequests& of, int count) : of_(of), left_(count) {}
    OpenRequests& of_;
    int left_;
  };

  OpenRequests(int waiting, int running) : waiting_(waiting), most_(waiting + running) {}

  // All or none. Errors: as Engine::submit_all.
  Result<Places> take(int count) {
    if (count > most_) {
      return error(Code::kInvalidArgument, "{} answers are asked for at once; there are places for {}: ask for fewer",
                   count, most_);
    }
    int open = open_;
    while (open + count <= most_) {
      if (open_.compare_exchange_weak(open, open + count)) return Places(*this, count);
    }
    if (count == 1) return error(Code::kExhausted, "the queue is full ({} requests); try again later", waiting_);
    return error(Code::kExhausted, "the queue has {} places left for {} answers; try again later",
                 std::max(most_ - open, 0), count);
  }
  int count() const { return open_; }

 private:
  class Sink : public TokenSink {
   public:
    Sink(std::shared_ptr<TokenSink> sink, std::atomic<int>& open) : sink_(std::move(sink)), open_(open) {}
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
      open_.fetch_sub(1);
      sink_->on_finish(std::move(completion));
    }

   private:
    const std::shared_ptr<TokenSink> sink_;
    std::atomic<int>& open_;
    bool ended_ = false;
  };

  const int waiting_, most_;
  std::atomic<int> open_{0};
};

}  // namespace kvilt

// server/request_batch.h: many engine requests of one HTTP request (documents to warm, texts to embed or to rank),
// submitted a few at a time, so that other requests come between; where these have the places, it waits for its own.
// Threads:    the HTTP thread that answers.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "server/told_work.h"

namespace kvilt::server {

// How many of them are begun at once, of `places` that the tenant has (0: no limit): half at most, since its questions
// come in between only where a place is left to them.
inline size_t batch_at_once(int places) {
  constexpr int kAtOnce = 8;  // in the engine's queue
  return static_cast<size_t>(places > 0 ? std::clamp(places / 2, 1, kAtOnce) : kAtOnce);
}

// For a place in the engine's queue, where others have all of them.
inline constexpr auto kPlacePatience = std::chrono::seconds(30);

// Whether others have the places that a request lacks: one may be free soon.
inline bool waits_for_others(const Error& error) {
  return error.code == Code::kExhausted || error.code == Code::kOverLimit;
}

class RequestBatch {
 public:
  explicit RequestBatch(AnswerQueue::Account account) : account_(std::move(account)) {}

  // Waits for all of them. name: by which an error calls the n-th. listens: asked again and again meanwhile, and after
  // each end; false: the client is gone.
  ToldWork::End run(std::vector<Request> requests, FunctionRef<std::string(size_t)> name,
                    FunctionRef<void(size_t, const Completion&)> ended, FunctionRef<bool()> listens);
  const ApiError& error() const { return error_; }  // REQUIRES: kFailed
  // From now on an end for which the pool had no room is an end as others are.
  void go_on_without_room() { goes_on_ = true; }

 private:
  ToldWork::End refuse(const Error& error, const std::string& name);

  const AnswerQueue::Account account_;
  ApiError error_;
  bool goes_on_ = false;
};

// The same for a route that tells nothing meanwhile. False: the response says why it did not come to all ends.
bool run_batch(const Call& call, httplib::Response& response, std::vector<Request> requests,
               FunctionRef<std::string(size_t)> name, FunctionRef<void(size_t, const Completion&)> ended);

}  // namespace kvilt::server

// server/answer_queue.h: the tokens of one HTTP request on their way from the engine thread to the HTTP thread.
// Role:       submits one engine request per choice, each in the name of its tenant, and gathers their events in one
//             bounded queue. Its destructor cancels what is unfinished (client gone, write failed, exception).
// Invariants: a sink never blocks; the queue of a stream that nobody empties stops growing at kMaxQueuedBytes and its
//             requests are cancelled by the HTTP thread. An answer that is read whole loses nothing.
// Threads:    AnswerQueue belongs to an HTTP thread; the sinks are called on the engine thread.
// Not here:   what the events become (openai_response.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvilt/engine.h"

namespace kvilt::server {

class Metrics;
class Tenant;

// Tokens of a choice, how far its prompt is, log probabilities of the prompt, or its end.
struct Event {
  int choice = 0;
  TokenDelta delta;
  std::optional<Completion> end;
  std::optional<PromptProgress> progress = {};
  std::vector<TokenLogprob> prompt = {};  // as TokenSink::on_prompt has them
};

class AnswerQueue {
 public:
  static constexpr size_t kMaxQueuedBytes = 1 << 20;
  // How long a route waits in next() before it looks whether its client is still there.
  static constexpr auto kLook = std::chrono::milliseconds(50);

  // kStream: events as they come, bounded, since a client that does not read stops their reader. kWhole: for a reader
  // that keeps all of the answer; what waits of a choice is one event, and nothing is ever left out.
  enum class Reader : uint8_t { kStream, kWhole };
  // For whom requests are made, and where that is counted.
  struct Account {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Metrics> metrics;
    std::shared_ptr<Tenant> tenant;
  };
  AnswerQueue(Account account, Reader reader);
  ~AnswerQueue();
  AnswerQueue(const AnswerQueue&) = delete;
  AnswerQueue& operator=(const AnswerQueue&) = delete;

  // Starts choice number size(), as the tenant's. On an error the earlier ones go on (destroy the queue to end them).
  Status submit(Request request);
  // Starts several, or none: kInvalidArgument where there are never places for as many.
  Status submit_all(std::vector<Request> requests);
  int size() const { return static_cast<int>(ids_.size()); }
  RequestId id(int choice) const { return ids_[static_cast<size_t>(choice)]; }  // as the engine knows it

  // The next event, or nullopt after `patience`. Nothing comes after the last choice's end: see finished().
  std::optional<Event> next(std::chrono::milliseconds patience);
  bool finished() const { return ended_ == size(); }

  // The queue of a stream was full: the client reads too slowly. Answers are incomplete from then on.
  bool overflowed() const;
  void cancel();

 private:
  struct Queue;
  class Sink;

  const Account account_;
  const std::shared_ptr<Queue> queue_;
  std::vector<RequestId> ids_;  // per choice
  std::vector<bool> done_;      // per choice: its end was handed out
  int ended_ = 0;
};

}  // namespace kvilt::server

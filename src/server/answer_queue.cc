#include "server/answer_queue.h"

#include <algorithm>
#include <deque>
#include <iterator>

#include "base/error.h"
#include "base/mutex.h"
#include "server/metrics.h"
#include "server/tenants.h"

namespace kvilt::server {

struct AnswerQueue::Queue {
  explicit Queue(bool whole) : whole(whole) {}
  const bool whole;
  mutable Mutex mutex;
  Condition filled;
  std::deque<Event> events KVILT_GUARDED_BY(mutex);
  size_t bytes KVILT_GUARDED_BY(mutex) = 0;
  bool overflowed KVILT_GUARDED_BY(mutex) = false;
};

namespace {
// Without a prompt's log probabilities: they are there before a client could read anything, once a choice, and the route
// has bounded them (prompt_logprobs.h).
size_t size_of(const Event& event) {
  size_t bytes = sizeof(Event) + event.delta.text.size() + event.delta.ids.size() * sizeof(int32_t);
  for (const auto& logprob : event.delta.logprobs) {
    bytes += sizeof logprob + logprob.top.size() * sizeof(std::pair<int32_t, float>);
  }
  return bytes;
}
}  // namespace

class AnswerQueue::Sink : public TokenSink {
 public:
  Sink(std::shared_ptr<Queue> queue, int choice, const Account& account, Tenant::Place place)
      : queue_(std::move(queue)),
        choice_(choice),
        timer_(account.metrics),
        tenant_(account.tenant),
        place_(std::move(place)) {}

  void on_tokens(const TokenDelta& delta) override {
    timer_.tokens(static_cast<int>(delta.ids.size()));
    push({choice_, delta, std::nullopt});
  }

  void on_progress(const PromptProgress& progress) override { push({choice_, {}, std::nullopt, progress}); }

  void on_prompt(std::vector<TokenLogprob> prompt) override {
    push({choice_, {}, std::nullopt, std::nullopt, std::move(prompt)});
  }

  void on_finish(Completion completion) override {
    timer_.finish(completion);
    tenant_->count(completion);
    place_.reset();
    push({choice_, {}, std::move(completion)});
  }

 private:
  void push(Event event) {
    {
      MutexLock lock(queue_->mutex);
      if (queue_->whole && merge(event)) return;  // who waits was told of the one that it joined
      if (event.progress && replace(event)) return;
      const size_t bytes = size_of(event);
      // Ends always fit: there is one per choice, and the thread that waits must see it.
      if (!event.end && !queue_->whole && (queue_->overflowed || queue_->bytes + bytes > kMaxQueuedBytes)) {
        queue_->overflowed = true;
        return;
      }
      queue_->bytes += bytes;
      queue_->events.push_back(std::move(event));
    }
    queue_->filled.notify_one();
  }

  // In place of what was said last, if that still waits.
  bool replace(const Event& event) KVILT_REQUIRES(queue_->mutex) {
    if (queue_->events.empty()) return false;
    Event& last = queue_->events.back();
    if (last.choice != choice_ || !last.progress) return false;
    last.progress = event.progress;
    return true;
  }

  // Into this choice's event that still waits, if there is one.
  bool merge(Event& event) KVILT_REQUIRES(queue_->mutex) {
    const auto mine = [&](const Event& other) { return other.choice == choice_; };
    const auto at = std::ranges::find_if(queue_->events, mine);
    if (at == queue_->events.end()) return false;
    queue_->bytes -= size_of(*at);
    if (!event.prompt.empty()) at->prompt = std::move(event.prompt);
    at->delta.text += event.delta.text;
    at->delta.ids.insert(at->delta.ids.end(), event.delta.ids.begin(), event.delta.ids.end());
    std::ranges::move(event.delta.logprobs, std::back_inserter(at->delta.logprobs));
    at->end = std::move(event.end);
    queue_->bytes += size_of(*at);
    return true;
  }

  const std::shared_ptr<Queue> queue_;
  const int choice_;
  RequestTimer timer_;
  const std::shared_ptr<Tenant> tenant_;
  std::optional<Tenant::Place> place_;
};

AnswerQueue::AnswerQueue(Account account, Reader reader)
    : account_(std::move(account)), queue_(std::make_shared<Queue>(reader == Reader::kWhole)) {}

AnswerQueue::~AnswerQueue() { cancel(); }

Status AnswerQueue::submit(Request request) {
  std::vector<Request> one;
  one.push_back(std::move(request));
  return submit_all(std::move(one));
}

Status AnswerQueue::submit_all(std::vector<Request> requests) {
  KVILT_ASSIGN(std::vector<Tenant::Place> places, Tenant::enter(account_.tenant, static_cast<int>(requests.size())));
  std::vector<Submission> several;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].tenant = account_.tenant->name();
    several.push_back({std::move(requests[i]),
                       std::make_shared<Sink>(queue_, size() + static_cast<int>(i), account_, std::move(places[i]))});
  }
  ids_.reserve(ids_.size() + requests.size());  // nothing may fail behind their beginning
  done_.reserve(ids_.size() + requests.size());
  KVILT_ASSIGN(const std::vector<RequestId> ids, account_.engine->submit_all(std::move(several)));
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  done_.resize(ids_.size(), false);
  return {};
}

std::optional<Event> AnswerQueue::next(std::chrono::milliseconds patience) {
  MutexLock lock(queue_->mutex);
  if (!queue_->filled.wait_for(lock, patience, [&]() KVILT_REQUIRES(queue_->mutex) { return !queue_->events.empty(); }))
    return std::nullopt;
  Event event = std::move(queue_->events.front());
  queue_->events.pop_front();
  queue_->bytes -= size_of(event);
  if (event.end) {
    done_[event.choice] = true;
    ++ended_;
  }
  return event;
}

bool AnswerQueue::overflowed() const {
  MutexLock lock(queue_->mutex);
  return queue_->overflowed;
}

void AnswerQueue::cancel() {
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (!done_[i]) account_.engine->cancel(ids_[i]);
  }
}

}  // namespace kvilt::server

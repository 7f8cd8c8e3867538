#include "server/request_batch.h"

#include <algorithm>

#include "server/answer_queue.h"

namespace kvilt::server {

ToldWork::End RequestBatch::run(std::vector<Request> requests, FunctionRef<std::string(size_t)> name,
                                FunctionRef<void(size_t, const Completion&)> ended, FunctionRef<bool()> listens) {
  AnswerQueue answer(account_, AnswerQueue::Reader::kWhole);
  const size_t count = requests.size();
  const size_t at_once = batch_at_once(account_.tenant->max_requests());
  Clock::time_point ended_last{};
  for (size_t over = 0; over < count;) {
    while (static_cast<size_t>(answer.size()) < std::min(count, over + at_once)) {
      const auto next = static_cast<size_t>(answer.size());
      const Status status = answer.submit(requests[next]);
      // Others may take the places of those that have ended: as long as some of ours are there, one will be free.
      const bool patient = next > over || Clock::now() < ended_last + kPlacePatience;
      if (!status.ok() && waits_for_others(status.error()) && patient) break;
      if (!status.ok()) return refuse(status.error(), name(next));
      requests[next] = {};
    }
    auto event = answer.next(AnswerQueue::kLook);
    if (Connection::current()->peer_gone()) return ToldWork::End::kGone;
    if (event && event->end) {
      const auto index = static_cast<size_t>(event->choice);
      const std::optional<Error>& why = event->end->error;
      const bool failed = event->end->finish == Finish::kError || event->end->finish == Finish::kCancelled;
      const bool passed_over = goes_on_ && why && why->code == Code::kExhausted;
      if (failed && !passed_over) {
        const Error stopped{Code::kUnavailable, "the server is shutting down"};
        return refuse(why.value_or(stopped), name(index));
      }
      ended(index, *event->end);
      ended_last = Clock::now();
      ++over;
    }
    if (!listens()) return ToldWork::End::kGone;
  }
  return ToldWork::End::kDone;
}

ToldWork::End RequestBatch::refuse(const Error& error, const std::string& name) {
  error_ = api_error(error, name);
  return ToldWork::End::kFailed;
}

bool run_batch(const Call& call, httplib::Response& response, std::vector<Request> requests,
               FunctionRef<std::string(size_t)> name, FunctionRef<void(size_t, const Completion&)> ended) {
  RequestBatch batch(call.account());
  switch (batch.run(std::move(requests), name, ended, [] { return true; })) {
    case ToldWork::End::kGone:
      reply_gone(response);
      return false;
    case ToldWork::End::kFailed:
      reply_error(response, batch.error());
      return false;
    case ToldWork::End::kDone:
      return true;
  }
  return false;
}

}  // namespace kvilt::server

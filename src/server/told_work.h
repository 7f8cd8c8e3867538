// server/told_work.h: work for one client that may take long, such as computing documents: answered when it is over, or
// told of while it goes on, for who asks for events (docs/server.md#progress-of-documents).
// Invariants: the last event but [DONE] is what is answered without events, or the error.
// Threads:    the HTTP thread that answers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/json_fields.h"
#include "server/service.h"

namespace kvilt::server {

class ToldWork {
 public:
  enum class End { kDone, kGone, kFailed };
  // An event of progress; empty: there is none now, but somebody may have to hear that the server lives. False: nobody
  // listens any more.
  using Tell = std::function<bool(const std::string& event)>;

  virtual ~ToldWork() = default;
  virtual End run(const Tell& tell) = 0;
  virtual const ApiError& error() const = 0;  // REQUIRES: kFailed
  virtual Json summary() = 0;                 // REQUIRES: kDone
};

// Runs it. It may outlive the handler that calls this.
void answer_work(const Service& service, const httplib::Request& request, httplib::Response& response,
                 std::shared_ptr<ToldWork> work);

}  // namespace kvilt::server

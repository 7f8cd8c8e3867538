// server/request_batch.h: many engine requests of one HTTP request (documents to warm, texts to embed or to rank),
// submitted a few at a time, so that other requests come between.
// Threads:    the HTTP thread that answers.
#pragma once

#include <string>
#include <vector>

#include "base/function_ref.h"
#include "server/service.h"

namespace kvilt::server {

class RequestBatch {
 public:
  RequestBatch(const Call& call, httplib::Response& response) : call_(call), response_(response) {}

  // Waits for all of them. name: by which an error calls the n-th. False: the response says why it did not come to that.
  bool run(std::vector<Request> requests, FunctionRef<std::string(size_t)> name,
           FunctionRef<void(size_t, const Completion&)> ended);

 private:
  bool refuse(const Error& error, const std::string& name);

  const Call& call_;
  httplib::Response& response_;
};

}  // namespace kvilt::server

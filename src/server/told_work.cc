#include "server/told_work.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/openai_response.h"
#include "server/sse.h"

namespace kvilt::server {
namespace {

bool wants_events(const httplib::Request& request) {
  const std::string stream = request.get_param_value("stream");
  if (stream == "true" || stream == "1") return true;
  return request.get_header_value("Accept").find("text/event-stream") != std::string::npos;
}

// False: the client is gone.
bool send_events(const Service& service, ToldWork& work, httplib::DataSink& sink) {
  const auto ping_every =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(service.options().ping_s));
  Clock::time_point wrote = Clock::now();
  const auto write = [&](std::string_view text) {
    wrote = Clock::now();
    return sink.write(text.data(), text.size());
  };
  const auto tell = [&](const std::string& event) {
    if (!event.empty()) return write(event);
    return Clock::now() < wrote + ping_every || write(kSseComment);
  };
  switch (work.run(tell)) {
    case ToldWork::End::kGone:
      return false;
    case ToldWork::End::kFailed:
      service.count_refused(work.error().status);
      return write("data: " + error_body(work.error()) + "\n\n") && write(kSseDone);
    case ToldWork::End::kDone:
      return write(sse_event(work.summary())) && write(kSseDone);
  }
  return false;
}

}  // namespace

void answer_work(const Service& service, const httplib::Request& request, httplib::Response& response,
                 std::shared_ptr<ToldWork> work) {
  if (wants_events(request)) {
    return reply_events(request, response, [work = std::move(work), &service](httplib::DataSink& sink) {
      return send_events(service, *work, sink);
    });
  }
  switch (work->run([](const std::string&) { return true; })) {
    case ToldWork::End::kGone:
      return reply_gone(response);
    case ToldWork::End::kFailed:
      return reply_error(response, work->error());
    case ToldWork::End::kDone:
      return reply_json(response, work->summary());
  }
}

}  // namespace kvilt::server

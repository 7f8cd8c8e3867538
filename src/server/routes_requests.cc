// server/routes_requests.cc: GET /v1/requests and /v1/requests/{id}: what became of the caller's last requests.
#include <nlohmann/json.hpp>

#include "server/request_log.h"
#include "server/service.h"
#include "server/tenants.h"

namespace kvilt::server {
namespace {

constexpr size_t kMaxShownId = 64;  // bytes of a client's id in a message

void one_request(const RequestLog& log, const Call& call, httplib::Response& response) {
  const std::string id = call.http.path.substr(std::string("/v1/requests/").size());
  auto record = log.show(call.caller.tenant->name(), id);
  if (record) return reply_json(response, *record);
  reply_error(response, {404,
                         "no request '" + id.substr(0, kMaxShownId) +
                             "' of yours is kept; the newest are (kvilt serve --keep-requests)",
                         "", "not_found"});
}

}  // namespace

void add_request_routes(Service& service) {
  service.get("/v1/requests", [&service](const Call& call, httplib::Response& response) {
    reply_json(response, {{"object", "list"}, {"data", service.requests().list(call.caller.tenant->name())}});
  });
  service.get("/v1/requests/(.*)", [&service](const Call& call, httplib::Response& response) {
    one_request(service.requests(), call, response);
  });
}

}  // namespace kvilt::server

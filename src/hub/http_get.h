// hub/http_get.h: one GET over HTTP or HTTPS, by libcurl: redirects, proxies, certificates, time limits are its work.
// Role:       the only place that knows the library. What an answer means is its caller's (download.h, repo_listing.h).
// Invariants: the token goes to the host, port and scheme of the URL that was asked for, and not along a redirect to
//             another; from https nothing leads to http. Headers are bounded here, the body by who takes it.
// Errors:     a status is no error here. What came between (no network, an unknown name, a certificate, silence) is,
//             with whether another try may go better.
// Threads:    a client belongs to one.
// Environment: http_proxy, https_proxy, all_proxy, no_proxy; SSL_CERT_FILE names other certificates than the system's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/function_ref.h"
#include "kvilt/result.h"

namespace kvilt {

struct HttpLimits {
  int connect_s = 20;
  int silence_s = 30;  // without a byte
  int whole_s = 0;     // the whole answer; 0: as long as it takes
};

struct HttpRequest {
  std::string url;
  std::string token;  // empty: none
  int64_t from = 0;   // the first byte that is asked for
  HttpLimits limits;
};

// The last head, behind all redirects.
struct HttpHead {
  int status = 0;           // 0: none came
  int64_t length = -1;      // Content-Length; -1: not said
  int64_t first_byte = -1;  // of Content-Range; -1: not said
  int retry_after_s = -1;
  std::string code, message;  // what Hugging Face's hub says besides: X-Error-Code, X-Error-Message
};

struct HttpAnswer {
  HttpHead head;
  std::optional<Error> error;  // kCancelled: stopped() said so
  bool may_pass = false;       // the error is one of the connection, which may be gone next time
};

class HttpClient {
 public:
  // Called for every part of the body of an answer below 400; an error ends the transfer, and is the answer's.
  using Take = FunctionRef<Status(const HttpHead& head, std::span<const std::byte> bytes)>;
  // Asked about once a second, and between parts.
  using Stopped = FunctionRef<bool()>;

  HttpClient();
  ~HttpClient();
  HttpAnswer get(const HttpRequest& request, Take take, Stopped stopped);

 private:
  struct Curl;
  std::unique_ptr<Curl> curl_;  // keeps connections between calls
};

// Percent-encoded for a path; '/' stays if keep_slashes.
std::string url_escaped(std::string_view text, bool keep_slashes);

}  // namespace kvilt

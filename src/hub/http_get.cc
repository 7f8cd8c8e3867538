#include "hub/http_get.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <new>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "kvilt/version.h"
#include "model/tensor_table.h"

namespace kvilt {
namespace {

constexpr size_t kMaxHeadBytes = 256 << 10;
constexpr long kMaxRedirects = 10;
constexpr long kBufferBytes = 256 << 10;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

bool is_named(std::string_view name, std::string_view wanted) {
  return std::ranges::equal(name, wanted, [](unsigned char a, unsigned char b) { return std::tolower(a) == b; });
}

int64_t number_or(std::string_view text, int64_t otherwise) {
  int64_t value = 0;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
  return bad == std::errc() && value >= 0 ? value : otherwise;
}

// One call of get(), as libcurl's callbacks see it.
struct Transfer {
  CURL* curl;
  HttpClient::Take take;
  HttpClient::Stopped stopped;
  HttpHead head = {};
  size_t head_bytes = 0;
  std::optional<Error> error = {};  // of take
  bool refused = false;             // a status from 400 on: its body is not read
};

void read_header(HttpHead& head, std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string_view name = line.substr(0, colon), value = trimmed(line.substr(colon + 1));
  if (is_named(name, "content-length")) head.length = number_or(value, -1);
  if (is_named(name, "content-range") && value.starts_with("bytes ")) head.first_byte = number_or(value.substr(6), -1);
  if (is_named(name, "retry-after"))
    head.retry_after_s = static_cast<int>(std::min<int64_t>(number_or(value, -1), 3600));
  if (is_named(name, "x-error-code")) head.code = printable(value, 60);
  if (is_named(name, "x-error-message")) head.message = printable(value, 300);
}

// No exception may go through libcurl's frames.
template <class Handle>
size_t guarded(void* user, size_t count, Handle handle) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  try {
    return handle(transfer) ? count : 0;
  } catch (const std::bad_alloc&) {
    transfer.error = Error{Code::kExhausted, {}};
    return 0;
  }
}

bool take_header(Transfer& transfer, std::string_view line) {
  transfer.head_bytes += line.size();
  if (transfer.head_bytes > kMaxHeadBytes) {
    transfer.error = error(Code::kCorrupt, "the answer's head is longer than {} bytes", kMaxHeadBytes);
    return false;
  }
  if (line.starts_with("HTTP/")) transfer.head = {};  // of the next hop
  read_header(transfer.head, line);
  return true;
}

size_t on_header(char* bytes, size_t, size_t count, void* user) {
  return guarded(user, count, [&](Transfer& transfer) { return take_header(transfer, {bytes, count}); });
}

int status_of(CURL* curl) {
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  return static_cast<int>(status);
}

bool take_body(Transfer& transfer, std::span<const std::byte> bytes) {
  transfer.head.status = status_of(transfer.curl);
  transfer.refused = transfer.head.status >= 400;
  if (transfer.refused) return false;
  if (transfer.stopped()) {
    transfer.error = error(Code::kCancelled, "stopped");
    return false;
  }
  const Status taken = transfer.take(transfer.head, bytes);
  if (!taken.ok()) transfer.error = taken.error();
  return taken.ok();
}

size_t on_body(char* bytes, size_t, size_t count, void* user) {
  return guarded(user, count,
                 [&](Transfer& transfer) { return take_body(transfer, std::as_bytes(std::span(bytes, count))); });
}

int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<Transfer*>(user)->stopped() ? 1 : 0;
}

// What may be gone when it is tried again.
bool of_the_connection(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR:
      return true;
    default:
      return false;
  }
}

std::string advice(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
      return "; is there a network? http_proxy and https_proxy name a proxy";
    case CURLE_COULDNT_RESOLVE_PROXY:
      return "; http_proxy, https_proxy or all_proxy name that proxy";
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return "; the certificates are those of Debian's ca-certificates, or of the file SSL_CERT_FILE";
    case CURLE_TOO_MANY_REDIRECTS:
      return "; it leads in a circle";
    case CURLE_UNSUPPORTED_PROTOCOL:
      return "; only http and https are spoken, and from https nothing leads to http";
    default:
      return "";
  }
}

void set_up(CURL* curl, const HttpRequest& request) {
  const bool secure = request.url.starts_with("https:");
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kMaxRedirects);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, (std::string("kvilt/") + kVersion).c_str());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(request.limits.connect_s));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(request.limits.silence_s));
  curl_easy_setopt(curl, CURLOPT_TIMEOUT, static_cast<long>(request.limits.whole_s));
  if (const char* certificates = std::getenv("SSL_CERT_FILE"); certificates && *certificates)
    curl_easy_setopt(curl, CURLOPT_CAINFO, certificates);
  if (!request.token.empty()) {  // libcurl keeps it from other hosts, ports and schemes
    curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, request.token.c_str());
  }
  if (request.from > 0) curl_easy_setopt(curl, CURLOPT_RANGE, fmt::format("{}-", request.from).c_str());
}

}  // namespace

struct HttpClient::Curl {
  CURL* handle = nullptr;
  char why[CURL_ERROR_SIZE] = "";
};

HttpClient::HttpClient() : curl_(std::make_unique<Curl>()) {
  static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
  CHECK(started == CURLE_OK);
  curl_->handle = curl_easy_init();
  if (curl_->handle == nullptr) throw std::bad_alloc();
}

HttpClient::~HttpClient() { curl_easy_cleanup(curl_->handle); }

HttpAnswer HttpClient::get(const HttpRequest& request, Take take, Stopped stopped) {
  CURL* curl = curl_->handle;
  curl_easy_reset(curl);  // its connections stay
  Transfer transfer{curl, take, stopped};
  set_up(curl, request);
  curl_->why[0] = '\0';
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, curl_->why);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  const CURLcode code = curl_easy_perform(curl);
  HttpAnswer out;
  out.head = transfer.head;
  out.head.status = status_of(curl);
  if (code == CURLE_OK || transfer.refused) return out;
  out.may_pass = !transfer.error && of_the_connection(code);
  if (transfer.error) {
    out.error = transfer.error;
    if (out.error->message.empty()) out.error->message = "not enough memory";
  } else if (code == CURLE_ABORTED_BY_CALLBACK) {
    out.error = error(Code::kCancelled, "stopped");
  } else {
    const std::string why = curl_->why[0] ? curl_->why : curl_easy_strerror(code);
    out.error = error(code == CURLE_OUT_OF_MEMORY ? Code::kExhausted : Code::kUnavailable, "{}: {}{}",
                      printable(request.url, 300), printable(why, 300), advice(code));
  }
  return out;
}

std::string url_escaped(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) || c == '-' || c == '_' || c == '.' || c == '~' || (keep_slashes && c == '/');
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return out;
}

}  // namespace kvilt

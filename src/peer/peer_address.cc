#include "peer/peer_address.h"

#include <charconv>

#include "base/error.h"

namespace kvilt {
namespace {

Error wrong_address(std::string_view why) {
  return error(Code::kInvalidArgument, "{}; an address is HOST:PORT or [IPV6]:PORT", why);
}

}  // namespace

std::string PeerAddress::shown() const {
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

bool PeerAddress::loopback() const {
  if (host == "localhost" || host == "::1") return true;
  // A name may begin so too: only digits and dots are an address.
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos;
}

Result<PeerAddress> parse_peer_address(std::string_view text) {
  PeerAddress out;
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t end = text.find("]:");
    if (end == std::string_view::npos) return wrong_address("[ without ]:PORT");
    out.host = text.substr(1, end - 1);
    port = text.substr(end + 2);
  } else {
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos) return wrong_address("there is no port");
    if (text.find(':', colon + 1) != std::string_view::npos) return wrong_address("there are several colons");
    out.host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (out.host.empty()) return wrong_address("there is no host");
  if (out.host.find_first_of(" \t\r\n/@") != std::string::npos) return wrong_address("the host has a space, / or @");
  const auto parsed = std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (port.empty() || parsed.ec != std::errc() || parsed.ptr != port.data() + port.size() || out.port < 0 ||
      out.port > 65535)
    return wrong_address("the port is no number from 0 to 65535");
  return out;
}

}  // namespace kvilt

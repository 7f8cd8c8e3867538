// peer/peer_address.h: where the other server of a pair listens: HOST:PORT, and whether that stays on this machine.
#pragma once

#include <string>
#include <string_view>

#include "kvilt/result.h"

namespace kvilt {

struct PeerAddress {
  std::string host;
  int port = 0;
  std::string shown() const;
  // What is sent to it leaves no machine.
  bool loopback() const;
};

// HOST:PORT or [IPV6]:PORT; port 0 is any free one. Errors: kInvalidArgument.
Result<PeerAddress> parse_peer_address(std::string_view text);

}  // namespace kvilt

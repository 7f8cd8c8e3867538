// What the other server of a pair sends, once it is opened: any bytes are a message or refused, and a message has one
// form only.
#include <algorithm>

#include "base/check.h"
#include "peer/peer_message.h"

using namespace kvilt;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto message = parse_message(bytes);
  if (!message.ok()) return 0;
  CHECK(std::ranges::equal(bytes_of_message(*message), bytes));
  if (const auto* ask = std::get_if<PeerAsk>(&*message)) CHECK(size <= most_bytes_of_ask(std::ssize(ask->tokens)));
  return 0;
}

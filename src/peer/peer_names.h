// peer/peer_names.h: the addresses of a host's name, asked of the system's resolver in a thread that nobody joins.
// Idea:       the resolver cannot be told to stop, and has deadlines of its own. So it is asked by a thread that owns all
//             that it touches; who waits goes on when the answer is there, or when it is told to end.
// Invariants: one lookup at a time for one who waits: an answer is waited for as long as it takes, unless told to end. An
//             address in digits starts no thread.
// Errors:     kUnavailable (no such name; told to end), kExhausted (no file, no thread).
#pragma once

#include <netdb.h>

#include <functional>
#include <memory>

#include "kvilt/result.h"
#include "peer/peer_address.h"

namespace kvilt {

using PeerAddresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// Waits for the resolver. flags: AI_PASSIVE, AI_NUMERICHOST.
Result<PeerAddresses> addresses_of(const PeerAddress& address, int flags);

using PeerResolver = std::function<Result<PeerAddresses>(const PeerAddress&)>;
// cancel: ends the waiting when it can be read.
Result<PeerAddresses> addresses_unless(int cancel, const PeerAddress& address, PeerResolver resolver);

}  // namespace kvilt

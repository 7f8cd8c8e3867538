// peer/peer_channel.h: messages between two servers that share a key: nobody else reads them, changes them, leaves one
// out, repeats one or moves one.
// Source:     libsodium. Both sides draw an X25519 key pair for the connection; the keys of both directions follow from the
//             product and the shared key, and each side proves that it has them before anything else is said. Then
//             crypto_secretstream_xchacha20poly1305, a stream each way. docs/formats/peer.md has the bytes.
// Invariants: what was recorded opens later for nobody, not even with the shared key (forward secrecy). A length is bounded
//             before memory is taken for it. After an error the channel is worth nothing.
// Errors:     kUnavailable (closed, too slow), kInvalidArgument (another key or version), kCorrupt (changed bytes, too
//             many).
// Threads:    one that sends, one that receives; whoever shuts its socket down ends both.
// Cost:       21 bytes a message; about a nanosecond a byte on each side.
// Not here:   what messages say (peer_message.h).
#pragma once

#include <sodium.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/keyed_hash.h"
#include "peer/peer_socket.h"

namespace kvilt {

class PeerChannel {
 public:
  enum class Side { kAsks, kAnswers };
  static constexpr uint32_t kVersion = 2;
  // Of a whole handshake, of one message.
  static constexpr std::chrono::milliseconds kPatience{10000};

  static Result<std::unique_ptr<PeerChannel>> open(std::shared_ptr<const PeerSocket> socket, Side side,
                                                   const HashSecret& key,
                                                   std::chrono::milliseconds patience = kPatience);
  ~PeerChannel();

  Status send(std::span<const std::byte> message);
  // The next one, of at most so many bytes. Without a patience it may be long in coming.
  // patience: until it begins.
  Result<std::vector<std::byte>> receive(size_t most, std::optional<std::chrono::milliseconds> patience = std::nullopt);
  int fd() const { return socket_->fd(); }  // to wait for

 private:
  PeerChannel(std::shared_ptr<const PeerSocket> socket, std::chrono::milliseconds patience)
      : socket_(std::move(socket)), patience_(patience), until_(std::chrono::steady_clock::now() + patience) {}
  Status shake_hands(Side side, const HashSecret& key);
  std::chrono::milliseconds left() const;
  Status start_streams(const HashSecret& out, const HashSecret& in);

  const std::shared_ptr<const PeerSocket> socket_;
  const std::chrono::milliseconds patience_;
  const std::chrono::steady_clock::time_point until_;  // of the handshake
  crypto_secretstream_xchacha20poly1305_state out_{}, in_{};
  std::vector<std::byte> sealed_;  // the message that is sent; here to keep its memory
};

}  // namespace kvilt

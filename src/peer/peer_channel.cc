#include "peer/peer_channel.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "base/check.h"
#include "base/error.h"
#include "base/sealer.h"

namespace kvilt {
namespace {

constexpr size_t kTag = crypto_secretstream_xchacha20poly1305_ABYTES;
constexpr std::array<char, 8> kMagic{'k', 'v', 'i', 'l', 't', 'p', 'p', '\n'};

struct Greeting {
  std::array<char, 8> magic = kMagic;
  uint32_t version = PeerChannel::kVersion;
  uint32_t side = 0;  // 0: asks, 1: answers; so nobody's own greeting is taken for the other's
  std::array<uint8_t, crypto_scalarmult_BYTES> point{};
};
static_assert(sizeof(Greeting) == 48);

template <class T>
std::span<std::byte> bytes_of(T& of) {
  return std::as_writable_bytes(std::span(&of, 1));
}

unsigned char* raw_bytes(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw_bytes(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

Error no_peer(const char* why) { return error(Code::kInvalidArgument, "{}", why); }

Status check_greeting(const Greeting& theirs, uint32_t side) {
  if (theirs.magic != kMagic) return no_peer("what answers is no server of a pair (--peer-listen)");
  if (theirs.version != PeerChannel::kVersion)
    return error(Code::kInvalidArgument, "it speaks version {} of this protocol, this server {}", theirs.version,
                 PeerChannel::kVersion);
  return theirs.side == side ? Status() : Status(no_peer("it has the same role (--role prefill, --role decode)"));
}

// The secret of this connection: of the two points, and of the shared key. Nothing: their point is none.
std::optional<HashSecret> session_secret(const HashSecret& key, const std::array<uint8_t, 32>& own,
                                         const Greeting& theirs, std::span<const Greeting, 2> said) {
  std::array<uint8_t, crypto_scalarmult_BYTES> product{};
  if (crypto_scalarmult(product.data(), own.data(), theirs.point.data()) != 0) return std::nullopt;
  std::array<uint8_t, sizeof product + 2 * sizeof(Greeting)> all{};
  std::memcpy(all.data(), product.data(), sizeof product);
  std::memcpy(all.data() + sizeof product, said.data(), 2 * sizeof(Greeting));
  HashSecret out = derived_key(key, "kvilt.peer.session", all);
  sodium_memzero(product.data(), product.size());
  sodium_memzero(all.data(), all.size());
  return out;
}

}  // namespace

PeerChannel::~PeerChannel() {
  sodium_memzero(&out_, sizeof out_);
  sodium_memzero(&in_, sizeof in_);
}

Result<std::unique_ptr<PeerChannel>> PeerChannel::open(std::shared_ptr<const PeerSocket> socket, Side side,
                                                       const HashSecret& key, std::chrono::milliseconds patience) {
  CHECK(sodium_init() >= 0);
  std::unique_ptr<PeerChannel> out(new PeerChannel(std::move(socket), patience));
  KVILT_TRY(out->shake_hands(side, key));
  return out;
}

std::chrono::milliseconds PeerChannel::left() const {
  const auto now = std::chrono::steady_clock::now();
  return std::max(std::chrono::milliseconds(0), std::chrono::ceil<std::chrono::milliseconds>(until_ - now));
}

// Whoever asks greets first; who answers greets and proves; then the first proves.
Status PeerChannel::shake_hands(Side side, const HashSecret& key) {
  const bool asks = side == Side::kAsks;
  std::array<uint8_t, crypto_scalarmult_SCALARBYTES> scalar{};
  randombytes_buf(scalar.data(), scalar.size());
  std::array<Greeting, 2> said;  // of who asks, of who answers
  Greeting& ours = said[asks ? 0 : 1];
  Greeting& theirs = said[asks ? 1 : 0];
  ours.side = asks ? 0 : 1;
  CHECK(crypto_scalarmult_base(ours.point.data(), scalar.data()) == 0);
  if (asks) KVILT_TRY(socket_->send(bytes_of(ours), left()));
  KVILT_TRY(socket_->receive(bytes_of(theirs), left()));
  KVILT_TRY(check_greeting(theirs, asks ? 1 : 0));
  const auto secret = session_secret(key, scalar, theirs, said);
  sodium_memzero(scalar.data(), scalar.size());
  if (!secret) return no_peer("its greeting is no point of the curve");
  const HashSecret proof_of_asker = derived_key(*secret, "kvilt.peer.asks"),
                   proof_of_answerer = derived_key(*secret, "kvilt.peer.answers");
  const HashSecret& our_proof = asks ? proof_of_asker : proof_of_answerer;
  const HashSecret& their_proof = asks ? proof_of_answerer : proof_of_asker;
  if (!asks) {
    KVILT_TRY(socket_->send(bytes_of(ours), left()));
    KVILT_TRY(socket_->send(std::as_bytes(our_proof.bytes()), left()));
  }
  std::array<uint8_t, 32> proof{};
  KVILT_TRY(socket_->receive(bytes_of(proof), left()));
  if (sodium_memcmp(proof.data(), their_proof.bytes().data(), proof.size()) != 0)
    return no_peer("it has another key (--peer-key)");
  if (asks) KVILT_TRY(socket_->send(std::as_bytes(our_proof.bytes()), left()));
  const HashSecret from_asker = derived_key(*secret, "kvilt.peer.from.asks"),
                   from_answerer = derived_key(*secret, "kvilt.peer.from.answers");
  return asks ? start_streams(from_asker, from_answerer) : start_streams(from_answerer, from_asker);
}

Status PeerChannel::start_streams(const HashSecret& out, const HashSecret& in) {
  std::array<uint8_t, crypto_secretstream_xchacha20poly1305_HEADERBYTES> header{};
  crypto_secretstream_xchacha20poly1305_init_push(&out_, header.data(), out.bytes().data());
  KVILT_TRY(socket_->send(bytes_of(header), left()));
  KVILT_TRY(socket_->receive(bytes_of(header), left()));
  if (crypto_secretstream_xchacha20poly1305_init_pull(&in_, header.data(), in.bytes().data()) != 0)
    return error(Code::kCorrupt, "its stream does not begin as one");
  return {};
}

Status PeerChannel::send(std::span<const std::byte> message) {
  const auto size = static_cast<uint32_t>(message.size() + kTag);
  try {
    sealed_.resize(sizeof size + size);
  } catch (const std::bad_alloc&) {
    return error(Code::kExhausted, "no memory is left to send a message");
  }
  std::memcpy(sealed_.data(), &size, sizeof size);
  CHECK(crypto_secretstream_xchacha20poly1305_push(
            &out_, raw_bytes(sealed_.data() + sizeof size), nullptr, raw_bytes(message.data()), message.size(),
            raw_bytes(sealed_.data()), sizeof size, crypto_secretstream_xchacha20poly1305_TAG_MESSAGE) == 0);
  return socket_->send(sealed_, patience_);
}

Result<std::vector<std::byte>> PeerChannel::receive(size_t most, std::optional<std::chrono::milliseconds> patience) {
  KVILT_TRY(socket_->wait(patience));
  uint32_t size = 0;
  KVILT_TRY(socket_->receive(bytes_of(size), patience_));
  if (size < kTag || size - kTag > most) return error(Code::kCorrupt, "it sends a message of {} bytes", size);
  std::vector<std::byte> sealed, out;
  try {
    sealed.resize(size);
    out.resize(size - kTag);
  } catch (const std::bad_alloc&) {
    return error(Code::kExhausted, "no memory is left to receive a message");
  }
  KVILT_TRY(socket_->receive(sealed, patience_));
  unsigned char tag = 0;
  if (crypto_secretstream_xchacha20poly1305_pull(&in_, raw_bytes(out.data()), nullptr, &tag, raw_bytes(sealed.data()),
                                                 sealed.size(), raw_bytes(bytes_of(size).data()), sizeof size) != 0)
    return error(Code::kCorrupt, "a message was changed on its way");
  return out;
}

}  // namespace kvilt

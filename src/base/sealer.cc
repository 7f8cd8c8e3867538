#include "base/sealer.h"

#include <sodium.h>

#include <array>
#include <cstring>

#include "base/check.h"

namespace kvilt {
namespace {

constexpr size_t kNonce = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES;
constexpr size_t kTag = crypto_aead_xchacha20poly1305_ietf_ABYTES;
static_assert(Sealer::kExtra == kNonce + kTag);
static_assert(crypto_aead_xchacha20poly1305_ietf_KEYBYTES == 32);

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

struct PlaceBytes {
  uint64_t what, id;
  int64_t chunk;
};
static_assert(sizeof(PlaceBytes) == 24);

uint64_t mark_of(const std::byte* tag) {
  uint64_t out;
  std::memcpy(&out, tag, sizeof out);
  return out;
}

}  // namespace

Sealer::Sealer(const HashSecret& key) : key_(key) { CHECK(sodium_init() >= 0); }

uint64_t Sealer::seal(const Place& place, std::span<const std::byte> plain, std::span<std::byte> out) const {
  CHECK(out.size() == plain.size() + kExtra);
  const PlaceBytes about{static_cast<uint64_t>(place.what), place.id, place.chunk};
  std::byte* const nonce = out.data() + plain.size();
  std::byte* const tag = nonce + kNonce;
  randombytes_buf(nonce, kNonce);
  CHECK(
      crypto_aead_xchacha20poly1305_ietf_encrypt_detached(raw(out.data()), raw(tag), nullptr, raw(plain.data()),
                                                          plain.size(), reinterpret_cast<const unsigned char*>(&about),
                                                          sizeof about, nullptr, raw(nonce), key_.bytes().data()) == 0);
  return mark_of(tag);
}

std::vector<std::byte> Sealer::sealed(const Place& place, std::span<const std::byte> plain) const {
  std::vector<std::byte> out(plain.size() + kExtra);
  seal(place, plain, out);
  return out;
}

std::optional<uint64_t> Sealer::open(const Place& place, std::vector<std::byte>& bytes) const {
  const std::optional<uint64_t> mark = open_in_place(place, bytes);
  if (mark) bytes.resize(bytes.size() - kExtra);
  return mark;
}

std::optional<uint64_t> Sealer::open_in_place(const Place& place, std::span<std::byte> bytes) const {
  if (bytes.size() < kExtra) return std::nullopt;
  const size_t size = bytes.size() - kExtra;
  const PlaceBytes about{static_cast<uint64_t>(place.what), place.id, place.chunk};
  const std::byte* const nonce = bytes.data() + size;
  const std::byte* const tag = nonce + kNonce;
  if (crypto_aead_xchacha20poly1305_ietf_decrypt_detached(raw(bytes.data()), nullptr, raw(bytes.data()), size, raw(tag),
                                                          reinterpret_cast<const unsigned char*>(&about), sizeof about,
                                                          raw(nonce), key_.bytes().data()) != 0)
    return std::nullopt;
  return mark_of(tag);
}

Digest Sealer::name() const { return KeyedHash(key_, "kvilt.sealer.name").finish(); }

HashSecret derived_key(const HashSecret& key, std::string_view purpose, std::span<const uint8_t> salt) {
  CHECK(sodium_init() >= 0);
  crypto_generichash_state state;
  const uint64_t size = purpose.size();
  std::array<char, 32> out{};
  CHECK(crypto_generichash_init(&state, key.bytes().data(), key.bytes().size(), out.size()) == 0);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&size), sizeof size);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size());
  crypto_generichash_update(&state, salt.data(), salt.size());
  CHECK(crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(out.data()), out.size()) == 0);
  const HashSecret derived = *HashSecret::of({out.data(), out.size()});
  sodium_memzero(out.data(), out.size());
  sodium_memzero(&state, sizeof state);
  return derived;
}

}  // namespace kvilt

#include "base/keyed_hash.h"

#include <sodium.h>

#include "base/check.h"

namespace kvilt {
namespace {
crypto_generichash_state* as_state(std::array<uint8_t, 384>& bytes) {
  static_assert(sizeof(crypto_generichash_state) <= 384 && alignof(crypto_generichash_state) <= 64);
  return reinterpret_cast<crypto_generichash_state*>(bytes.data());
}
}  // namespace

HashSecret::~HashSecret() { sodium_memzero(bytes_.data(), bytes_.size()); }

HashSecret HashSecret::random() {
  CHECK(sodium_init() >= 0);
  HashSecret secret;
  randombytes_buf(secret.bytes_.data(), secret.bytes_.size());
  return secret;
}

HashSecret HashSecret::fixed(uint64_t seed) {
  HashSecret secret;
  for (size_t i = 0; i < secret.bytes_.size(); ++i) {
    secret.bytes_[i] = static_cast<uint8_t>((seed >> (8 * (i % 8))) + 37 * i);
  }
  return secret;
}

std::optional<HashSecret> HashSecret::of(std::string_view bytes) {
  HashSecret secret;
  if (bytes.size() != secret.bytes_.size()) return std::nullopt;
  std::memcpy(secret.bytes_.data(), bytes.data(), bytes.size());
  return secret;
}

uint64_t HashSecret::word(int i) const {
  uint64_t word;
  std::memcpy(&word, bytes_.data() + 8 * i, sizeof word);
  return word;
}

KeyedHash::KeyedHash(const HashSecret& secret, std::string_view domain) {
  CHECK(crypto_generichash_init(as_state(state_), secret.bytes().data(), 32, sizeof(Digest)) == 0);
  add(domain);
}

KeyedHash& KeyedHash::add(std::string_view bytes) {
  const uint64_t size = bytes.size();
  update(&size, sizeof size);
  update(bytes.data(), bytes.size());
  return *this;
}

KeyedHash& KeyedHash::add(std::span<const int32_t> ids) {
  const uint64_t size = ids.size_bytes();
  update(&size, sizeof size);
  update(ids.data(), ids.size_bytes());
  return *this;
}

KeyedHash& KeyedHash::add(const Digest& digest) {
  update(digest.data(), digest.size());
  return *this;
}

KeyedHash& KeyedHash::add(int64_t id) { return add(std::string_view(reinterpret_cast<const char*>(&id), sizeof id)); }

Digest KeyedHash::finish() {
  Digest digest;
  CHECK(crypto_generichash_final(as_state(state_), digest.data(), digest.size()) == 0);
  return digest;
}

void KeyedHash::update(const void* data, size_t size) {
  crypto_generichash_update(as_state(state_), static_cast<const unsigned char*>(data), size);
}

}  // namespace kvilt

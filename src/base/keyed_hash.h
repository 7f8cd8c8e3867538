// base/keyed_hash.h: keyed BLAKE2b (libsodium), 16-byte digests; the keys of everything that requests share.
// Source: BLAKE2b (RFC 7693); docs/design/finding.md#bytes-of-the-keys. The secret is the process's own, with a
//         cache folder that one's (tier/disk_tier.h), with a Redis that of all servers that share it
//         (tier/redis_tier.h). A digest cannot be guessed, and is compared only with those of the same secret.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

namespace kvilt {

using Digest = std::array<uint8_t, 16>;

struct DigestHash {  // a digest is uniform already
  size_t operator()(const Digest& digest) const {
    size_t h;
    std::memcpy(&h, digest.data(), sizeof h);
    return h;
  }
};

// A secret of 32 random bytes. Copyable: every index of one engine uses the same. What goes is overwritten.
class HashSecret {
 public:
  HashSecret(const HashSecret&) = default;
  HashSecret& operator=(const HashSecret&) = default;
  ~HashSecret();
  static HashSecret random();
  static HashSecret fixed(uint64_t seed);                       // for tests and benchmarks that must be repeatable
  static std::optional<HashSecret> of(std::string_view bytes);  // one that was kept; nothing where these are not 32
  std::span<const uint8_t, 32> bytes() const { return bytes_; }
  uint64_t word(int i) const;  // i in 0..3: seed material for the rolling hash

 private:
  HashSecret() = default;
  std::array<uint8_t, 32> bytes_{};
};

// Streams fields into one digest. Texts and ids are led by their length, so ("ab", "c") and ("a", "bc") differ.
class KeyedHash {
 public:
  KeyedHash(const HashSecret& secret, std::string_view domain);
  KeyedHash& add(std::string_view bytes);
  KeyedHash& add(std::span<const int32_t> ids);
  KeyedHash& add(const Digest& digest);
  KeyedHash& add(int64_t id);  // as the text of its 8 bytes
  Digest finish();

 private:
  void update(const void* data, size_t size);
  alignas(64) std::array<uint8_t, 384> state_;  // a crypto_generichash_state
};

}  // namespace kvilt

// base/sealer.h: bytes that are sealed with a key: without it nobody reads them, and nobody changes or moves them unseen.
// Source:     XChaCha20-Poly1305 (RFC 8439, draft-irtf-cfrg-xchacha-03), libsodium's. docs/design/disk.md#with-a-key says
//             why this one.
// Invariants: every sealing draws its own nonce of 192 bits, so no count must survive a crash, and processes that share a
//             key need not agree. What was sealed for one place opens for no other. The mark of a sealing is the first 8
//             bytes of its tag: whoever keeps it knows that very sealing again, and so an older one of the same place.
// Cost:       40 bytes each; about a nanosecond a byte.
// Threads:    any.
// Not here:   that something sealed is gone, or that all of it is as it was some time ago.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"

namespace kvilt {

class Sealer {
 public:
  enum class What : uint64_t { kProof = 1, kRecord = 2, kChunk = 3, kAnnexes = 4, kLine = 5 };
  struct Place {
    What what;
    uint64_t id = 0;
    int64_t chunk = 0;
  };
  static constexpr int64_t kExtra = 40;  // a nonce of 24 bytes and a tag of 16, behind what is sealed

  explicit Sealer(const HashSecret& key);

  // Its mark. REQUIRES: out has kExtra bytes more.
  uint64_t seal(const Place& place, std::span<const std::byte> plain, std::span<std::byte> out) const;
  std::vector<std::byte> sealed(const Place& place, std::span<const std::byte> plain) const;
  // The bytes become what was sealed; returns its mark. Nothing: they were not sealed with this key for this place, and
  // are worth nothing now.
  std::optional<uint64_t> open(const Place& place, std::vector<std::byte>& bytes) const;
  // The same where they are; the last kExtra of them are anything then.
  std::optional<uint64_t> open_in_place(const Place& place, std::span<std::byte> bytes) const;

  // Tells keys apart, and tells nothing of them.
  Digest name() const;

 private:
  HashSecret key_;
};

// Another key that follows from this one: whoever knows it does not know this one, or those for other purposes.
HashSecret derived_key(const HashSecret& key, std::string_view purpose, std::span<const uint8_t> salt = {});

}  // namespace kvilt

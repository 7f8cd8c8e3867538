// index/rolling_hash.h: polynomial hash of a window of token ids, moved on by one token in O(1).
// Source:  Karp and Rabin 1987 (docs/papers.md#finding), modulo the prime 2^61 - 1.
// Idea:    the base and the mixing of tokens are secret (drawn from the HashSecret), so nobody outside can craft
//          windows that collide. A hash only proposes: the caller compares the token ids.
// Threads: immutable after construction.
// Cost:    2 modular products and 2 mixes per token.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/keyed_hash.h"

namespace kvilt {

// Bijective and well mixing (the finaliser of SplitMix64, Steele et al. 2014).
inline uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class RollingHash {
 public:
  RollingHash(const HashSecret& secret, int32_t window) : window_(window) {
    const Digest digest = KeyedHash(secret, "kvilt.rolling").finish();
    std::memcpy(&base_, digest.data(), 8);
    std::memcpy(&token_secret_, digest.data() + 8, 8);
    base_ = base_ % (kPrime - kSmallest) + kSmallest;
    leaving_ = 1;
    for (int32_t i = 0; i < window; ++i) leaving_ = product(leaving_, base_);
  }

  int32_t window() const { return window_; }

  // Hash of ids[0, window).
  uint64_t first(const int32_t* ids) const {
    uint64_t hash = 0;
    for (int32_t i = 0; i < window_; ++i) hash = reduce(product(hash, base_) + value(ids[i]));
    return hash;
  }

  // From the hash of [out, ..., last] to the hash of [..., last, in].
  uint64_t next(uint64_t hash, int32_t out, int32_t in) const {
    return reduce(product(hash, base_) + value(in) + kPrime - product(value(out), leaving_));
  }

 private:
  static constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
  static constexpr uint64_t kSmallest = uint64_t{1} << 32;  // a tiny base would leave the high bits of short sums empty

  // Any x < 2^64 to [0, kPrime).
  static uint64_t reduce(uint64_t x) {
    x = (x & kPrime) + (x >> 61);
    return x >= kPrime ? x - kPrime : x;
  }
  static uint64_t product(uint64_t a, uint64_t b) {
    const unsigned __int128 p = static_cast<unsigned __int128>(a) * b;
    return reduce((static_cast<uint64_t>(p) & kPrime) + static_cast<uint64_t>(p >> 61));
  }
  uint64_t value(int32_t token) const { return reduce(scramble(static_cast<uint32_t>(token) + token_secret_)); }

  int32_t window_;
  uint64_t base_ = 0, token_secret_ = 0;
  uint64_t leaving_ = 0;  // base^window: the weight of the token that leaves
};

}  // namespace kvilt

// base/checksum.h: a 64-bit checksum of bytes, as fast as memory: 8 lanes of xor, multiply, shift.
// Role:       finds damage in files that this program wrote. It has no key and resists nobody: see keyed_hash.h for that.
// Invariants: the value is part of file formats (docs/formats/pack.md): it never changes. Every step is a bijection of
//             its lane, so any change inside one 8-byte word is found for certain, others but for 1 in 2^64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvilt {

uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace kvilt

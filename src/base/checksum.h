// base/checksum.h: a 64-bit checksum of bytes, as fast as memory: 8 lanes of xor, multiply, shift.
// Role:       finds damage in files that this program wrote. It has no key and does not resist forgery: for that there
//             is keyed_hash.h.
// Invariants: the value is part of file formats (docs/formats/pack.md, docs/formats/session.md) and never changes.
//             Every step is a bijection of its lane, so a change inside one 8-byte word is always found; others are
//             missed once in 2^64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvilt {

uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace kvilt

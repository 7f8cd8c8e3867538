// base/hex.h: bytes as lower-case hexadecimal digits, as names of files, keys and answers have them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>

namespace kvilt {

inline std::string hex_text(std::span<const uint8_t> bytes) {
  std::string out;
  for (const uint8_t byte : bytes) out += fmt::format("{:02x}", byte);
  return out;
}

}  // namespace kvilt

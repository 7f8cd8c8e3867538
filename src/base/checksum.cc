#include "base/checksum.h"

#include <cstring>

namespace kvilt {
namespace {

constexpr uint64_t kFactor = 0x9fb21c651e98df25u, kStart = 0x9e3779b97f4a7c15u;
constexpr size_t kLanes = 8, kBlock = 8 * kLanes;

// One to one in `sum` and in `word`. Without the shift a change of the highest bit would remain a change of that bit
// only, and a second one could undo it.
uint64_t step(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * kFactor;
  return sum ^ sum >> 32;
}

void add_block(uint64_t (&lanes)[kLanes], const std::byte* block) {
  for (size_t i = 0; i < kLanes; ++i) {
    uint64_t word;
    std::memcpy(&word, block + 8 * i, 8);
    lanes[i] = step(lanes[i], word);
  }
}

}  // namespace

uint64_t checksum(std::span<const std::byte> bytes) {
  uint64_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = (i + 1) * kStart;
  size_t at = 0;
  for (; at + kBlock <= bytes.size(); at += kBlock) add_block(lanes, bytes.data() + at);
  if (at < bytes.size()) {
    std::byte last[kBlock] = {};
    std::memcpy(last, bytes.data() + at, bytes.size() - at);
    add_block(lanes, last);
  }
  uint64_t sum = bytes.size();
  for (const uint64_t lane : lanes) sum = step(sum, lane);
  return sum;
}

}  // namespace kvilt

// index/ngram.h: a key of some token ids in a row, for tables in which the latest place of such a run has a slot of its
// own.
// Idea:    a table of draft places may forget: whoever writes last has the slot, and what is read is compared with the
//          tokens. So nothing is ever removed, chained or probed.
// Threads: immutable.
// Cost:    some ns an id.
#pragma once

#include <cstdint>
#include <span>

#include "index/rolling_hash.h"

namespace kvilt {

// secret: nobody outside should be able to choose who shares a slot.
inline uint64_t ngram_key(std::span<const int32_t> ids, uint64_t secret) {
  uint64_t hash = secret;
  for (const int32_t id : ids) hash = (hash ^ static_cast<uint32_t>(id)) * 0x9e3779b97f4a7c15ull + (hash >> 32);
  return scramble(hash);
}

// The number of slots for so many places: a power of two, of which half are taken at most.
inline size_t ngram_slots(size_t places) {
  size_t slots = 1024;
  while (slots < 2 * places) slots *= 2;
  return slots;
}

}  // namespace kvilt

// base/random.h: draws that are the same on every machine. The standard fixes the sequence of std::mt19937_64, but not
// what std::shuffle and the distributions make of it.
#pragma once

#include <cstddef>
#include <random>
#include <utility>
#include <vector>

namespace kvilt {

// Fisher and Yates: every order is equally likely, up to rng() % n. Draws items.size() - 1 numbers.
template <class T>
void shuffle(std::vector<T>& items, std::mt19937_64& rng) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[rng() % i]);
}

}  // namespace kvilt

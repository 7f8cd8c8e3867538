#include "base/latest.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvilt {
namespace {

struct Pair {
  uint64_t a = 1, b = 1;
  std::array<uint64_t, 30> rest{};
};

// Readers never see half of a value. (Power: without the check of the counter this fails within milliseconds.)
TEST(Latest, ValuesAreWhole) {
  Latest<Pair> latest;
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> torn = 0, seen = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        const Pair now = latest.get();
        if (now.a != now.b || (now.a > 1 && now.rest[29] != now.a)) ++torn;
        ++seen;
      }
    });
  }
  for (uint64_t i = 2; i < 200000 || seen < 1000; ++i) {
    Pair next{i, i, {}};
    next.rest.fill(i);
    latest.set(next);
  }
  stop = true;
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(torn, 0u);
}

}  // namespace
}  // namespace kvilt

// A range that is checked as a whole is checked to its last byte. Only AddressSanitizer can tell.
#include "base/checked_whole.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace kvilt {
namespace {

TEST(CheckedWhole, ARangeThatIsThereIsReadable) {
  const std::vector<float> values(100);
  check_readable(values.data(), 100);
  check_readable(values.data(), 0);
  check_readable(static_cast<const float*>(nullptr), 0);
}

#ifdef KVILT_ASAN
TEST(CheckedWholeDeathTest, OneElementTooManyEndsTheProcess) {
  const auto values = std::make_unique<float[]>(100);
  EXPECT_DEATH(check_readable(values.get(), 101), "heap-buffer-overflow");
  EXPECT_DEATH(check_readable(values.get() + 90, 1000), "heap-buffer-overflow");
  auto gone = std::make_unique<float[]>(100);
  const float* const data = gone.get();
  gone.reset();
  EXPECT_DEATH(check_readable(data, 100), "heap-use-after-free");
}
#endif

}  // namespace
}  // namespace kvilt

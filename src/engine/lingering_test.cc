// Whose prefill goes where more of them linger than may.
#include "engine/lingering.h"

#include <gtest/gtest.h>

#include <string>

namespace kvilt {
namespace {

TEST(Lingering, TheTenantThatHasMostGivesUpItsOldest) {
  Lingering lingering(30);
  RequestId id = 0;
  const auto add = [&](const std::string& tenant) {
    auto left = std::make_unique<Sequence>();
    left->id = ++id;
    left->request.tenant = tenant;
    lingering.add(std::move(left));
  };
  for (const char* tenant : {"b", "a", "a", "a"}) add(tenant);
  EXPECT_EQ(lingering.beyond_most(), nullptr) << "power check: so many may linger";
  add("a");
  EXPECT_EQ(lingering.beyond_most()->id, 2u);
  add("b"), add("b");
  EXPECT_EQ(lingering.beyond_most()->id, 1u) << "as many each: the oldest of all";
}

}  // namespace
}  // namespace kvilt

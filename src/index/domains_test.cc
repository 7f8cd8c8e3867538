#include "index/domains.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvilt {
namespace {

TEST(Domains, OneIdForEachFour) {
  Domains domains(HashSecret::fixed(1));
  const DomainId a = domains.id("model", "space", "salt");
  EXPECT_NE(a, 0);
  EXPECT_EQ(domains.id("model", "space", "salt"), a);
  const std::set<DomainId> ids{a,
                               domains.id("model2", "space", "salt"),
                               domains.id("model", "space2", "salt"),
                               domains.id("model", "space", "salt2"),
                               domains.id("model", "spaces", "alt"),
                               domains.id("model", "space", "salt", "tenant"),
                               domains.id("model", "space", "", "salt"),
                               domains.id("", "", "")};
  EXPECT_EQ(ids.size(), 8u);
  EXPECT_NE(*domains.digest(a), *domains.digest(domains.id("model", "space", "")));
}

TEST(Domains, DigestsDependOnTheSecret) {
  Domains a(HashSecret::fixed(1)), b(HashSecret::fixed(2));
  EXPECT_NE(*a.digest(a.id("m", "n", "s")), *b.digest(b.id("m", "n", "s")));
}

TEST(Domains, ForgetsIdleOnesButNeverThoseInUse) {
  Domains domains(HashSecret::fixed(1));
  const DomainId held = domains.id("m", "n", "held"), idle = domains.id("m", "n", "idle");
  const DomainId asked = domains.id("m", "n", "asked");
  domains.hold(held);
  for (size_t i = 0; i < 3 * Domains::kMaxIdle; ++i) {
    domains.id("m", "n", std::to_string(i));
    if (i % 1000 == 0) domains.id("m", "n", "asked");
  }
  EXPECT_LE(domains.size(), Domains::kMaxIdle + 1);
  EXPECT_EQ(domains.id("m", "n", "held"), held);
  EXPECT_EQ(domains.id("m", "n", "asked"), asked);
  EXPECT_EQ(domains.digest(idle), nullptr);
  EXPECT_GT(domains.id("m", "n", "idle"), idle) << "an id must not come back";
  domains.release(held);
  for (size_t i = 0; i < 2 * Domains::kMaxIdle; ++i) domains.id("m", "n", std::to_string(1'000'000 + i));
  EXPECT_EQ(domains.digest(held), nullptr);
}

TEST(Domains, BalancedHoldsKeepAlive) {
  Domains domains(HashSecret::fixed(1));
  const DomainId d = domains.id("m", "n", "d");
  domains.hold(d);
  domains.hold(d);
  domains.release(d);
  for (size_t i = 0; i < 2 * Domains::kMaxIdle; ++i) domains.id("m", "n", std::to_string(i));
  EXPECT_NE(domains.digest(d), nullptr);
}

}  // namespace
}  // namespace kvilt

#include "base/keyed_hash.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

Digest digest_of(const HashSecret& secret, std::string_view domain, std::string_view a, std::string_view b) {
  return KeyedHash(secret, domain).add(a).add(b).finish();
}

TEST(KeyedHash, DependsOnSecretDomainAndFieldBorders) {
  const auto one = HashSecret::fixed(1), two = HashSecret::fixed(2);
  EXPECT_EQ(digest_of(one, "d", "ab", "c"), digest_of(one, "d", "ab", "c"));
  EXPECT_NE(digest_of(one, "d", "ab", "c"), digest_of(one, "d", "a", "bc"));
  EXPECT_NE(digest_of(one, "d", "ab", "c"), digest_of(one, "e", "ab", "c"));
  EXPECT_NE(digest_of(one, "d", "ab", "c"), digest_of(two, "d", "ab", "c"));
  EXPECT_NE(HashSecret::random().word(0), HashSecret::random().word(0));
}

}  // namespace
}  // namespace kvilt

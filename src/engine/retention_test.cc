// What the content cache keeps with preference: frozen texts and pins outlive what is ordinary, and no longer than they
// may.
#include "engine/content_cache_for_test.h"

namespace kvilt {
namespace {

class RetentionTest : public ContentCacheTest {
 protected:
  RetentionTest() {
    open(kRoom);
    cache->store().idle().set_clock([this] { return now; });
  }
  Asked freeze(const Tokens& tokens, const std::string& name) {
    Asked asked = ask(tokens);
    cache->freeze(asked.own(domains), "tenant", name);
    return asked;
  }
  void retain(const Tokens& tokens, Retention retention) {
    const Asked asked = ask(tokens);
    cache->retain(asked.own(domains), static_cast<int32_t>(tokens.size()), retention);
  }
  // Texts of many times the pool, used once and used again: both kinds make room for them.
  void flood() {
    for (int i = 0; i < 200; ++i, ++last) {
      ask(text(1000 + last, 40));
      if (i % 2 == 0) ask(text(1000 + last, 40));
    }
  }
  bool there(const Tokens& tokens) { return prefix(join(tokens, question)) == static_cast<int32_t>(tokens.size()); }
  int64_t frozen() { return cache->store().idle().frozen(); }

  static constexpr int64_t kRoom = 120;  // blocks of 8 tokens; an extent is 256 tokens
  int64_t now = 1000;
  int last = 0;
  const Tokens doc = text(5, 64), other = text(6, 64);
};

TEST_F(RetentionTest, AFrozenTextOutlivesWhatIsOrdinary) {
  freeze(doc, "rivers/elbe/");
  ask(other);
  flood();
  EXPECT_TRUE(there(doc));
  EXPECT_FALSE(there(other)) << "power";
  EXPECT_EQ(frozen(), 8 * kBlock);
  cache->thaw("tenant", "rivers/rhine/");
  cache->thaw("other", "rivers/");
  flood();
  EXPECT_TRUE(there(doc));
  cache->thaw("tenant", "rivers/");
  EXPECT_EQ(frozen(), 0);
  flood();
  EXPECT_FALSE(there(doc));
}

TEST_F(RetentionTest, WhatIsKnownAlreadyIsFrozenToo) {
  ask(doc);
  Asked again = freeze(doc, "a/1/");
  again.kv.reset();
  freeze(doc, "b/1/");
  EXPECT_EQ(frozen(), 8 * kBlock);
  cache->thaw("tenant", "a/");
  flood();
  EXPECT_TRUE(there(doc)) << "another base has it";
  cache->thaw("tenant", "b/");
  flood();
  EXPECT_FALSE(there(doc));
}

TEST_F(RetentionTest, ARequestTakesFrozenTextsWhenNothingElseIsLeft) {
  for (int i = 0; i < 8; ++i) freeze(text(100 + i, 64), "base/" + std::to_string(i) + "/");
  const int64_t pages = cache->store().pages();
  ASSERT_EQ(cache->reclaimable(), frozen());
  EXPECT_TRUE(cache->make_room(pages));
  EXPECT_EQ(frozen(), 0);
  freeze(doc, "base/1/");
  flood();
  EXPECT_TRUE(there(doc)) << "the name goes on";
  cache->thaw("tenant", "base/");
  EXPECT_EQ(frozen(), 0);
}

// A base of more than may be frozen: what gave way and left is in no list any more, however often it is frozen anew.
TEST_F(RetentionTest, WhatGaveWayIsForgottenWhenItLeaves) {
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 20; ++i) freeze(text(100 + i, 64), "base/" + std::to_string(i) + "/");
    EXPECT_LE(frozen(), cache->store().pages() * 9 / 10);
    EXPECT_GT(cache->evicted(), 0) << "power check: some gave way, and left";
    EXPECT_LE(cache->frozen_extents(), cache->store().pages() / (8 * kBlock)) << "no more than the pool has";
  }
  EXPECT_GT(cache->frozen_extents(), 0) << "power check";
  EXPECT_TRUE(cache->make_room(cache->store().pages()));
  EXPECT_EQ(cache->frozen_extents(), 0);
}

TEST_F(RetentionTest, ClearingThaws) {
  freeze(doc, "base/1/");
  cache->clear();
  EXPECT_EQ(frozen(), 0);
  EXPECT_EQ(cache->store().free_pages(), cache->store().pages()) << "no list holds a page";
  cache->thaw("tenant", "base/");
}

TEST_F(RetentionTest, APinHoldsForItsTime) {
  retain(doc, Retention::kHour);
  retain(other, Retention::kFiveMinutes);
  flood();
  EXPECT_TRUE(there(doc));
  EXPECT_TRUE(there(other));
  now += 301;
  flood();
  EXPECT_TRUE(there(doc)) << "which is a use";
  EXPECT_FALSE(there(other));
  now += 3601;
  flood();
  EXPECT_FALSE(there(doc));
}

TEST_F(RetentionTest, ATenantsRequestsGiveWayWithinItsShare) {
  open(kRoom);
  cache->set_shares({{"a", .25}, {"b", .5}});
  EXPECT_NE(cache->owner("a"), cache->owner("b"));
  EXPECT_EQ(cache->owner("a"), cache->owner("a"));
  EXPECT_NE(cache->owner("c"), OwnerId{0}) << "its pins are counted";
  EXPECT_EQ(cache->owner(""), OwnerId{0});
  const auto come = [&](const std::string& tenant, const Tokens& tokens) {
    domains = cache->domains({.tenant = tenant}, "mend");
    domains.chain = 0;
    PageTable kv(cache->store(), rope);
    kv.give_to(cache->owner(tenant));
    PromptLayout layout;
    layout.prompt_len = static_cast<int32_t>(tokens.size());
    const std::vector<Runs> sets{{{0, layout.prompt_len}}};
    ASSERT_TRUE(cache->make_room(kv.pages_for(sets, std::vector<uint16_t>(kShape.L, 0)), kv.owner()));
    kv.add(sets, std::vector<uint16_t>(kShape.L, 0));
    const std::vector<TokenMark> none;
    cache->publish_prompt({kv, layout, tokens, none, domains, layout.prompt_len});
  };
  come("b", doc);
  for (int i = 0; i < 3 * kRoom; ++i) come("a", text(2000 + i, 40));
  std::vector<TenantPool> pools;
  cache->tenant_pools(pools);
  ASSERT_EQ(pools.size(), 3u);
  EXPECT_EQ(pools[0].tenant, "a");
  EXPECT_GT(pools[0].held, pools[0].share) << "power: what b does not need is lent";
  EXPECT_EQ(pools[1].share, kRoom * kBlock / 2);
  domains = cache->domains({.tenant = "b"}, "mend");
  domains.chain = 0;
  EXPECT_TRUE(there(doc)) << "however much another tenant does";
  for (int i = 0; i < 6; ++i) come("b", text(3000 + i, 64));
  cache->tenant_pools(pools);
  EXPECT_GE(pools[1].held, 7 * 8 * kBlock) << "it takes back what it lent";
}

}  // namespace
}  // namespace kvilt

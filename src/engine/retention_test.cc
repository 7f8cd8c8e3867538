// What the content cache keeps with preference: frozen texts and pins outlive what is ordinary, and no longer than they
// may.
#include <atomic>
#include <memory>

#include "engine/content_cache_for_test.h"

namespace kvilt {
namespace {

class RetentionTest : public ContentCacheTest {
 protected:
  RetentionTest() {
    open(kRoom);
    cache->store().idle().set_clock([this] { return now; });
  }
  Asked freeze(const Tokens& tokens, const std::string& name, std::vector<TokenMark> marks = {}) {
    Asked asked = ask(tokens, std::move(marks));
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
  // A prompt that names its marked part.
  Asked name(const Tokens& tokens, TokenMark part, const std::string& as, bool withdrawn = false) {
    Asked asked = ask(tokens, {part});
    const auto gone = std::make_shared<std::atomic<bool>>(withdrawn);
    cache->freeze(asked.own(domains), "tenant", std::vector<FrozenPart>{{part, as, gone}});
    return asked;
  }
  // So much else is frozen that a document gives way, and the pool still holds all; then that is thawed.
  void make_way() {
    for (int i = 0; i < 13; ++i) freeze(text(500 + i, 64), "base/" + std::to_string(i) + "/");
    cache->thaw("tenant", "base/");
  }
  // Found as a piece behind other text.
  bool placed(const Tokens& tokens) {
    const auto size = static_cast<int32_t>(tokens.size());
    return pieces(join(b, tokens, end), {{20, 20 + size}}) == Runs{{20, 20 + size}};
  }
  bool has_clean_copy(const Tokens& tokens) {
    const std::vector<TokenMark> marks{{20, 20 + static_cast<int32_t>(tokens.size())}};
    return cache->without_clean_copy(join(b, tokens, end), marks, domains).empty();
  }
  bool there(const Tokens& tokens) { return prefix(join(tokens, question)) == static_cast<int32_t>(tokens.size()); }
  int64_t frozen() { return cache->store().idle().frozen(); }

  static constexpr int64_t kRoom = 120;  // blocks of 8 tokens; an extent is 256 tokens
  int64_t now = 1000;
  int last = 0;
  const Tokens doc = text(5, 64), other = text(6, 64), end = text(7, 12);
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

// A prompt that names a document by its name freezes it again: the document's own KV, none of the prompt's.
TEST_F(RetentionTest, WhatGaveWayIsFrozenAgainByWhoNamesIt) {
  for (const bool named : {false, true}) {
    open(kRoom);
    freeze(doc, "rivers/elbe/", {{0, 64}});
    make_way();
    ASSERT_EQ(frozen(), 0) << "power: it gave way";
    ASSERT_TRUE(placed(doc)) << "power: it is still there";
    const Tokens chat = join(more, doc, question);
    named ? name(chat, {9, 73}, "rivers/elbe/") : ask(chat, {{9, 73}});
    EXPECT_EQ(frozen(), named ? 8 * kBlock : 0);
    flood();
    EXPECT_EQ(placed(doc), named);
    cache->thaw("tenant", "rivers/elbe/");
    EXPECT_EQ(frozen(), 0);
  }
}

TEST_F(RetentionTest, WhatWasDeletedMeanwhileIsNotFrozen) {
  name(join(doc, question), {0, 64}, "rivers/elbe/", true);
  EXPECT_EQ(frozen(), 0);
  EXPECT_EQ(cache->frozen_extents(), 0);
  name(join(doc, question), {0, 64}, "rivers/elbe/", false);
  EXPECT_GT(frozen(), 0) << "power";
}

// The second of two documents is computed behind the first: that KV is kept until there is a clean copy.
TEST_F(RetentionTest, WithoutACleanCopyWhatHoldsTheTextIsFrozen) {
  const TokenMark second{64, 128};
  {
    const Asked chat = ask(join(other, doc, question), {{0, 64}, second});
    cache->freeze(chat.own(domains), "tenant", std::vector<FrozenPart>{{second, "rivers/elbe/"}});
  }
  EXPECT_GT(frozen(), 8 * kBlock);
  flood();
  EXPECT_TRUE(placed(doc));
  EXPECT_FALSE(has_clean_copy(doc));
  ask(doc, {{0, 64}}, false);
  ASSERT_TRUE(has_clean_copy(doc));
  name(join(more, doc, question), {9, 73}, "rivers/elbe/");
  EXPECT_EQ(frozen(), 8 * kBlock) << "the clean copy alone";
  flood();
  EXPECT_TRUE(has_clean_copy(doc));
  cache->thaw("tenant", "rivers/elbe/");
  EXPECT_EQ(frozen(), 0);
}

// Behind a piece it is approximate, and found by requests of the policy that computed it.
TEST_F(RetentionTest, WhatAPolicyLeftIsFrozenToo) {
  ask(other, {{0, 64}});
  const TokenMark second{73, 137};
  {
    const Asked chat = ask(join(more, other, doc, question), {{9, 73}, second});
    ASSERT_EQ(chat.layout.pieces, (Runs{{9, 73}})) << "power: it was computed behind a piece";
    cache->freeze(chat.own(domains), "tenant", std::vector<FrozenPart>{{second, "rivers/elbe/"}});
  }
  EXPECT_GT(frozen(), 0);
  EXPECT_TRUE(placed(doc)) << "power";
  flood();
  EXPECT_TRUE(placed(doc));
  EXPECT_FALSE(placed(other)) << "power";
  cache->thaw("tenant", "rivers/elbe/");
  flood();
  EXPECT_FALSE(placed(doc));
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
  ASSERT_EQ(pools.size(), 4u);
  EXPECT_EQ(pools[0].tenant, "") << "who has no name asked too";
  EXPECT_EQ(pools[1].tenant, "a");
  EXPECT_GT(pools[1].held, pools[1].share) << "power: what b does not need is lent";
  EXPECT_EQ(pools[2].share, kRoom * kBlock / 2);
  domains = cache->domains({.tenant = "b"}, "mend");
  domains.chain = 0;
  EXPECT_TRUE(there(doc)) << "however much another tenant does";
  for (int i = 0; i < 6; ++i) come("b", text(3000 + i, 64));
  cache->tenant_pools(pools);
  EXPECT_GE(pools[2].held, 7 * 8 * kBlock) << "it takes back what it lent";
}

// Of a server without a file of tenants all is one's, who has no name.
TEST_F(RetentionTest, WhatNobodyInParticularHoldsIsToldToo) {
  open(kRoom);
  std::vector<TenantPool> pools;
  cache->tenant_pools(pools);
  EXPECT_TRUE(pools.empty()) << "power: nobody asked";
  ask(doc);
  cache->tenant_pools(pools);
  ASSERT_EQ(pools.size(), 1u);
  EXPECT_EQ(pools[0].tenant, "");
  EXPECT_GT(pools[0].held, 0);
  EXPECT_EQ(pools[0].share, 0);
}

}  // namespace
}  // namespace kvilt

// Chains of approximate turns, and what is left of segments, chains and broken prefills when extents leave.
#include "engine/content_cache_for_test.h"

namespace kvilt {
namespace {

// ---- Chains ---------------------------------------------------------------------------------------------------------

class ChainTest : public ContentCacheTest {
 protected:
  ChainTest() {
    domains = mend = cache->domains({}, "mend");
    ask(document);
    ask(b);
  }
  const Tokens document = text(11, 120);
  ContentDomains mend;
};

TEST_F(ChainTest, TheNextTurnGoesOnFromWhatTheLastOneLeft) {
  const Tokens turn = join(b, document, question);  // b is an exact prefix, the document a piece
  Asked first = ask(turn);
  EXPECT_EQ(first.layout.prefix, 20);
  EXPECT_EQ(first.layout.pieces, (Runs{{20, 140}}));
  EXPECT_EQ(find(turn).layout.prefix, 151) << "again, or another choice: the last row alone";
  answer(first, more);
  const Tokens next = join(turn, more, text(12, 15));
  const auto found = find(next);
  EXPECT_EQ(found.layout.prefix, 161);
  EXPECT_EQ(found.exact.pos, 20);
  EXPECT_TRUE(found.layout.pieces.empty());
  // Two turns later: chains continue chains.
  Asked second = ask(next);
  answer(second, text(13, 5));
  EXPECT_EQ(find(join(next, text(13, 5), question)).layout.prefix, 181);

  domains = cache->domains({}, "sparsex");
  EXPECT_EQ(find(next).layout.prefix, 20) << "power: another policy does not see it";
  domains = cache->domains(KeySpace{});
  EXPECT_EQ(find(next).layout.prefix, 20) << "nor does an exact request";
}

TEST_F(ChainTest, WhatGoesOnFromAChainIsNeverExact) {
  Asked first = ask(join(b, document, question));
  answer(first, more);
  const Tokens next = join(b, document, question, more, text(12, 40));
  Asked second = ask(next);
  EXPECT_EQ(second.layout.prefix, 161);
  answer(second, text(13, 30));
  domains = cache->domains(KeySpace{});
  EXPECT_EQ(find(join(next, text(13, 30), a)).layout.prefix, 20);
  EXPECT_TRUE(find(join(a, text(12, 40), a)).layout.pieces.empty()) << "no piece for others";
  domains = mend;
  EXPECT_EQ(find(join(a, text(12, 40), a)).layout.pieces, (Runs{{20, 60}})) << "power: for the same policy";
}

// A turn that goes on from a chain and cannot continue it is published whole. What both computed are overlays then, and
// the next turn places them.
class LeftChainTest : public ChainTest {
 protected:
  // Some of the document is computed again, so that what a turn computed is not whole: it is published as an overlay.
  Asked turn_on(const Tokens& tokens, const Runs& again) {
    Asked asked = compute(tokens, {}, true, again);
    EXPECT_FALSE(asked.kv->owns({0, 151})) << "power check";
    return asked;
  }
  void publish(Asked& asked) { asked.published = cache->publish_prompt(asked.own(domains)); }
  const Tokens first = join(b, document, question), second = join(first, more, text(12, 40));
};

TEST_F(LeftChainTest, OfAnotherNamespace) {
  Asked one = turn_on(first, {{60, 64}});
  publish(one);
  answer(one, more);
  const ContentDomains shared = domains;
  domains = cache->domains({"", "anna", ""}, "mend");
  domains.also.push_back(shared);
  Asked two = turn_on(second, {});
  EXPECT_EQ(two.layout.prefix, 161) << "power check: it goes on from the chain of the other namespace";
  publish(two);
  domains.also.clear();
  const Asked three = turn_on(join(second, text(13, 30)), {});
  EXPECT_EQ(three.layout.prefix, 201) << "whole, in its own namespace";
  EXPECT_GE(std::ssize(three.kv->overlays()), 2) << "power check";
  EXPECT_EQ(three.kv->overlays()[0].positions().end, three.kv->overlays()[1].pos);
}

TEST_F(LeftChainTest, ThatIsClearedMeanwhile) {
  Asked one = turn_on(first, {{60, 64}});
  publish(one);
  answer(one, more);
  Asked two = turn_on(second, {});
  EXPECT_EQ(two.layout.prefix, 161);
  cache->clear();
  EXPECT_EQ(find(second).layout.prefix, 0) << "power check";
  publish(two);
  EXPECT_EQ(turn_on(join(second, text(13, 30)), {}).layout.prefix, 201);
}

TEST_F(ChainTest, TheExactChainWinsOnceItIsThere) {
  const Tokens turn = join(b, document, question);
  ask(turn);
  domains = cache->domains(KeySpace{});
  ask(turn, {}, false);  // exactly
  domains = mend;
  const auto found = find(join(turn, more));
  EXPECT_EQ(found.chain.pos, 0);
  EXPECT_EQ(found.exact.pos, 152);
  EXPECT_EQ(found.layout.prefix, 152);
}

TEST_F(ChainTest, AChainIsCutWhereItsPiecesAreEvicted) {
  const Tokens turn = join(b, document, question);
  Asked first = ask(turn);
  answer(first, more);
  first.kv.reset();
  const int64_t before = segments();
  cache->clear();
  EXPECT_EQ(segments(), 0);
  EXPECT_EQ(cache->store().free_pages(), cache->store().pages()) << before;
}

TEST_F(ChainTest, WhatIsEvictedTakesAlongWhatNothingLeadsTo) {
  const Tokens turn = join(b, document, question);
  Asked first = ask(turn);
  answer(first, more);
  Asked second = ask(join(turn, more, text(12, 15)));
  answer(second, text(13, 5));
  first.kv.reset(), second.kv.reset();
  while (Extent* next = cache->store().idle().next()) {
    EXPECT_GT(next->segments.size(), 0u) << "pages that nothing finds";
    EXPECT_TRUE(cache->make_room(cache->store().free_pages() + 1));
    find(join(turn, more, a));  // what is found is there: placing it would hit a CHECK
  }
  EXPECT_EQ(segments(), 0);
}

// Conversations that begin alike and are over: of each its own part leaves, and with it all that is left to find.
TEST_F(ChainTest, AHotBeginningKeepsNoStubsOfChains) {
  open(60);
  domains = cache->domains({}, "mend");
  const Tokens system = text(20, 40);
  ask(system);
  const auto talk = [&](int i) {
    const Tokens page = text(100 + i, 80);
    ask(page);
    Asked turn = ask(join(system, page, text(300 + i, 12)));
    EXPECT_EQ(turn.layout.pieces, (Runs{{40, 120}})) << "power check: it is a chain's";
    EXPECT_EQ(cache->segments().find(turn.published.chain.segment)->chain, true);
  };
  for (int i = 0; i < 20; ++i) talk(i);
  const int64_t before = segments(), tokens = cache->segments().chain_tokens();
  EXPECT_GT(cache->evicted(), 0) << "power check: the pool is full";
  for (int i = 20; i < 120; ++i) talk(i);
  EXPECT_EQ(prefix(join(system, a)), 40) << "power check: the beginning stays";
  EXPECT_LE(segments(), before + 2);
  EXPECT_LE(cache->segments().chain_tokens(), tokens + 132);
}

// A conversation's turns read the same hot pieces in ever new orders: no page bounds that.
TEST_F(ChainTest, ChainsThatOnlyReadOthersPiecesAreBounded) {
  open(100);
  domains = cache->domains({}, "mend");
  std::vector<Tokens> pages;
  for (int i = 0; i < 6; ++i) ask(pages.emplace_back(text(100 + i, 80)));
  const KvShape& shape = cache->store().shape();
  const int64_t pool = cache->store().pages() * shape.P / (int64_t{shape.L} * shape.G);
  const auto turn_of = [&](const std::vector<int>& order) {
    Tokens turn = text(99, 10);
    for (const int i : order) turn = join(std::move(turn), pages[static_cast<size_t>(i)]);
    return turn;
  };
  std::vector<int> order{0, 1, 2, 3, 4, 5};
  const Tokens first = turn_of(order), again = join(turn_of({5, 4, 3, 2, 1, 0}), text(52, 10));
  ask(join(first, text(50, 10)));
  ask(again);
  int turns = 0;
  do {
    if (++turns % 10 == 0) ask(join(first, text(1000 + turns, 10))), ask(again);  // one goes on, one is asked again
    ask(join(turn_of(order), text(51, 10)));
    EXPECT_LE(cache->segments().chain_tokens(), 4 * pool);
  } while (std::ranges::next_permutation(order).found);
  EXPECT_GT(cache->segments().chain_tokens(), pool) << "power check: there are many";
  EXPECT_GT(prefix(join(first, a)), 400) << "what others go on from is not the oldest";
  EXPECT_GT(prefix(again), 400) << "nor what is asked for again";
}

// ---- What leaves ----------------------------------------------------------------------------------------------------

// One hot prefix of a long prompt keeps itself and no more.
TEST_F(ContentCacheTest, AHotPrefixKeepsItsExtentOnly) {
  open(600);
  const Tokens system = text(20, 40), novel = text(21, 2000);
  { ask(join(system, novel), {{40, 200}}); }
  const int64_t whole = cache->segments().tokens();
  EXPECT_EQ(whole, 2040);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(prefix(join(system, text(30 + i, 300))), 40);
    ask(join(system, text(30 + i, 300)));
  }
  EXPECT_TRUE(cache->make_room(cache->store().pages() - 3 * 32 * kBlock));
  EXPECT_EQ(prefix(join(system, a)), 40);
  EXPECT_LE(cache->segments().tokens(), 3 * 256 + 40);
  EXPECT_GT(cache->evicted(), 0);
}

// Its middle goes: what was before it is still a prefix, what comes after it still a piece, with its marks.
TEST_F(ContentCacheTest, ACutSegmentIsFoundOnBothSides) {
  open(600);
  const Tokens novel = text(21, 900), brief(novel.begin() + 800, novel.begin() + 805);
  ask(novel, {{10, 15}, {800, 805}});
  const ExtentUse first(cache->store().idle().next());  // the end leaves first: it and the beginning are pinned
  const Tokens tail(novel.begin() + 600, novel.end());
  const auto keep = find(join(a, tail));
  const auto begin = find(Tokens(novel.begin(), novel.begin() + 100));
  ASSERT_TRUE(cache->make_room(cache->store().free_pages() + 1));
  EXPECT_EQ(prefix(novel), 256);
  EXPECT_EQ(find(join(a, novel)).layout.pieces, (Runs{{20, 276}, {532, 920}}));
  EXPECT_EQ(pieces(join(text(7, 40), brief, text(8, 40)), {{40, 45}}), (Runs{{40, 45}}));
  EXPECT_EQ(pieces(join(text(7, 40), text(9, 5), text(8, 40)), {{40, 45}}).size(), 0u) << "power";
}

TEST_F(ContentCacheTest, APartOfABrokenPrefillIsKept) {
  const Tokens novel = text(21, 100);
  Asked asked = compute(novel);
  ContentCache::Own own = asked.own(domains);
  own.computed = 64;
  cache->publish_part(own);
  EXPECT_EQ(prefix(novel), 64);
  own.computed = 3;
  cache->publish_part(own);
  EXPECT_EQ(segments(), 1);
  asked.kv.reset();
  EXPECT_EQ(cache->store().pages() - cache->store().free_pages(), 8 * kBlock) << "and no page more";
}

// A long prefill publishes as it goes: each part continues the last, and its end what is left.
TEST_F(ContentCacheTest, PartsOfAPrefillThatGoesOnContinueEachOther) {
  const Tokens novel = text(21, 100);
  Asked asked = compute(novel, {{30, 50}, {60, 90}});
  const auto publish = [&](int32_t computed) {
    ContentCache::Own own = asked.own(domains);
    own.computed = computed;
    asked.exact = cache->publish_part(own, true);
    return asked.exact.pos;
  };
  EXPECT_EQ(publish(40), 30) << "the marked part has only begun";
  EXPECT_EQ(prefix(novel), 30);
  EXPECT_EQ(publish(55), 55);
  EXPECT_EQ(publish(58), 55) << "too short";
  EXPECT_EQ(publish(70), 55);
  EXPECT_EQ(segments(), 2);
  asked.published = cache->publish_prompt(asked.own(domains));
  EXPECT_EQ(segments(), 3);
  EXPECT_EQ(prefix(join(novel, a)), 100);
  const Tokens marked(novel.begin() + 60, novel.begin() + 90);
  EXPECT_EQ(pieces(join(a, marked, b), {{20, 50}}), (Runs{{20, 50}}));
  answer(asked, more);
  EXPECT_EQ(prefix(join(novel, more, a)), 109);
}

// What it published was cleared: it publishes all that it has anew.
TEST_F(ContentCacheTest, APrefillThatGoesOnOutlivesClearing) {
  const Tokens novel = text(21, 100);
  Asked asked = compute(novel);
  ContentCache::Own own = asked.own(domains);
  own.computed = 64;
  asked.exact = cache->publish_part(own, true);
  cache->clear();
  asked.published = cache->publish_prompt(asked.own(domains));
  EXPECT_EQ(prefix(join(novel, a)), 100);
  answer(asked, more);
  EXPECT_EQ(prefix(join(novel, more, a)), 109);
}

TEST_F(ContentCacheTest, TenThousandPiecesInANewOrderAreFoundAndPlaced) {
  constexpr int32_t kPieces = 10'000;
  open(kPieces + 8);
  Tokens prompt = question;
  for (int32_t i = 0; i < kPieces; ++i) ask(text(10 + i, kMinSegment));
  for (int32_t i = kPieces; i-- > 0;) prompt = join(std::move(prompt), text(10 + i, kMinSegment));
  prompt.push_back(7);
  const Asked asked = compute(std::move(prompt));
  EXPECT_EQ(count(asked.layout.pieces), kPieces * kMinSegment);
  EXPECT_EQ(std::ssize(asked.kv->first_placements()), kPieces);
}

// What was published already is another request's: its end may be evicted while this one goes on.
class OthersSegmentTest : public ContentCacheTest {
 protected:
  OthersSegmentTest() { open(600); }
  // Evicts the end of the first 600 tokens of `novel`, which nobody holds.
  void evict_the_end() {
    ASSERT_TRUE(cache->make_room(cache->store().free_pages() + 1));
    ASSERT_EQ(prefix(novel), 512);
  }
  const Tokens novel = text(21, 900), said = text(22, 30);
};

TEST_F(OthersSegmentTest, AnAnswerDoesNotContinueWhatHasLostItsEnd) {
  for (const bool evicts : {true, false}) {
    open(600);
    const Tokens prompt(novel.begin(), novel.begin() + 600);
    ask(prompt);
    Asked again = ask(prompt, {}, false);
    EXPECT_EQ(segments(), 1) << "power check: it is the other's";
    if (evicts) evict_the_end();
    answer(again, said);
    EXPECT_EQ(prefix(join(prompt, said, a)), evicts ? 512 : 630);
    const Tokens wrong = join(Tokens(novel.begin(), novel.begin() + 512), said);
    EXPECT_EQ(prefix(join(wrong, a)), 512) << "these tokens were never computed behind each other";
  }
}

TEST_F(OthersSegmentTest, APrefillThatGoesOnContinuesWhatIsLeft) {
  ask(Tokens(novel.begin(), novel.begin() + 600));
  Asked again = compute(novel, {}, false);
  ContentCache::Own own = again.own(domains);
  own.computed = 600;
  again.exact = cache->publish_part(own, true);
  EXPECT_EQ(again.exact.pos, 600);
  EXPECT_EQ(segments(), 1) << "power check: it is the other's";
  evict_the_end();
  ask(text(23, 40));  // its pages are free again
  again.published = cache->publish_prompt(again.own(domains));
  EXPECT_EQ(prefix(join(novel, a)), 900);
}

TEST_F(OthersSegmentTest, AChainDoesNotContinueWhatHasLostItsEnd) {
  domains = cache->domains({}, "mend");
  const Tokens document(novel.begin(), novel.begin() + 600), turn = join(b, document, question);
  { ask(b), ask(document); }
  Asked first = ask(turn);
  Asked again = compute(turn, {}, false);
  again.layout.pieces = first.layout.pieces;  // as if it had repaired them at the same time
  again.published = cache->publish_prompt(again.own(domains));
  EXPECT_EQ(again.published.chain.segment, first.published.chain.segment) << "power check: it is the other's";
  first.kv.reset();
  {
    const auto pinned = find(join(b, document, a));
    ASSERT_TRUE(cache->make_room(cache->store().free_pages() + 1));
  }
  ASSERT_EQ(prefix(turn), 620) << "the question has left";
  answer(again, said);
  EXPECT_EQ(prefix(join(turn, said, a)), 662);
}

TEST_F(ContentCacheTest, HeadsThatKeepLessPublishNothing) {
  for (const bool whole : {true, false}) {
    open(100);
    PromptLayout layout;
    layout.prompt_len = 20;
    PageTable kv(cache->store(), rope);
    if (!whole) kv.keep(std::vector<HeadKeep>(kShape.L * kShape.G, {0, 8}), 20);
    kv.add(std::vector<Runs>{{{0, 20}}}, std::vector<uint16_t>(kShape.L, 0));
    EXPECT_EQ(cache->publish_prompt({kv, layout, a, {}, domains, 20}).segments.size(), whole ? 1u : 0u);
    EXPECT_EQ(segments(), whole ? 1 : 0);
  }
}

}  // namespace
}  // namespace kvilt

// What is published, and as what: prefixes, pieces, answers, chains, repaired pieces; what leaves when the pool is full.
#include "engine/content_cache.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int kMinSegment = 8;
constexpr int64_t kBlock = 6;  // pages of 8 tokens: 3 layers, 2 heads

// n tokens that no other `who` has.
Tokens text(int32_t who, int32_t n) {
  Tokens out;
  for (int32_t i = 0; i < n; ++i) out.push_back(who * 1000 + i);
  return out;
}

template <class... More>
Tokens join(Tokens first, const More&... more) {
  (first.insert(first.end(), more.begin(), more.end()), ...);
  return first;
}

class ContentCacheTest : public testing::Test {
 protected:
  ContentCacheTest() { open(100); }

  void open(int64_t blocks) {
    cache.emplace(PageStore::create(kShape, blocks * kBlock * kShape.page_bytes()).value(), HashSecret::fixed(1),
                  "model", kMinSegment);
    domains = cache->domains("", "", "mend");
    domains.chain = 0;  // the tests of chains turn it on
  }

  ContentCache::Found find(const Tokens& tokens, std::vector<TokenMark> marks = {}) {
    return cache->find(tokens, marks, domains, {true, true});
  }
  int32_t prefix(const Tokens& tokens, std::vector<TokenMark> marks = {}) {
    return find(tokens, std::move(marks)).layout.prefix;
  }
  Runs pieces(const Tokens& tokens, std::vector<TokenMark> marks = {}) {
    return find(tokens, std::move(marks)).layout.pieces;
  }

  // A request as far as the cache sees it: what was found is placed, the rest has slots of its own.
  struct Asked {
    Tokens tokens;
    std::vector<TokenMark> marks;
    PromptLayout layout;
    std::unique_ptr<PageTable> kv;
    ChainEnd exact = {}, chain = {};
    ContentCache::Published published = {};
    ContentCache::Own own(const ContentDomains& domains) const {
      return {*kv, layout, tokens, marks, domains, static_cast<int32_t>(tokens.size()), exact, chain};
    }
  };
  // also: positions of pieces that are computed again.
  Asked compute(Tokens tokens, std::vector<TokenMark> marks = {}, bool reuse = true, const Runs& also = {}) {
    ContentCache::Found found = cache->find(tokens, marks, domains, {reuse, reuse});
    auto kv = std::make_unique<PageTable>(cache->store(), rope);
    for (Placement& placement : found.placements) kv->place(std::move(placement));
    for (Placement& placement : found.overlays) kv->overlay(std::move(placement));
    const std::vector<Runs> sets{unite(found.layout.fresh(), also)};
    const std::vector<uint16_t> write(kShape.L, 0);
    EXPECT_TRUE(cache->make_room(kv->pages_for(sets, write)));
    kv->add(sets, write);
    return {std::move(tokens), std::move(marks), found.layout, std::move(kv), found.exact, found.chain};
  }
  Asked ask(Tokens tokens, std::vector<TokenMark> marks = {}, bool reuse = true) {
    Asked asked = compute(std::move(tokens), std::move(marks), reuse);
    asked.published = cache->publish_prompt(asked.own(domains));
    return asked;
  }
  // Here every token of the answer has its KV.
  void answer(Asked& asked, const Tokens& said) {
    for (const int32_t id : said) {
      asked.kv->add_next(static_cast<int32_t>(asked.tokens.size()));
      asked.tokens.push_back(id);
    }
    cache->publish_answer(asked.own(domains), asked.published);
  }
  bool exact(SegmentId id) const { return cache->exact(id); }
  int64_t segments() const { return cache->segments().segments(); }

  const RopeConfig rope = small_rope();
  std::optional<ContentCache> cache;
  ContentDomains domains;
  const Tokens a = text(1, 20), b = text(2, 20), question = text(3, 12), more = text(4, 9);
};

TEST_F(ContentCacheTest, WithoutPiecesAllIsAnExactChain) {
  EXPECT_EQ(prefix(join(a, b)), 0);
  ask(a);
  EXPECT_EQ(prefix(a), 19) << "the last position is always computed";
  EXPECT_EQ(prefix(join(a, b)), 20);
  const Asked longer = ask(join(a, b));
  ASSERT_EQ(longer.published.segments.size(), 1u);
  EXPECT_TRUE(exact(longer.published.segments[0]));
  EXPECT_EQ(cache->segments().find(longer.published.segments[0])->pos, 20);  // what was found is not kept twice
  EXPECT_EQ(prefix(join(a, b, more)), 40);
  EXPECT_EQ(find(join(a, b, more)).placements.size(), 2u);
  EXPECT_EQ(prefix(join(b, more)), 0) << "power check: it continues a chain, and begins none";
  EXPECT_EQ(pieces(join(b, more)), (Runs{{0, 20}}));
}

TEST_F(ContentCacheTest, MarkedPartsOfAFewTokensAreNoPieces) {
  for (const int32_t n : {3, 4}) {  // 4: half of the shortest unmarked piece
    open(100);
    const Tokens part = text(6, n);
    ask(join(a, part, b), {{20, 20 + n}});
    EXPECT_EQ(pieces(join(question, part, more), {{12, 12 + n}}), n == 4 ? (Runs{{12, 16}}) : Runs{});
    const int64_t before = segments();
    const Tokens other = text(7, n);  // fresh, marked, behind a piece
    ask(join(question, b, other, more), {{32, 32 + n}});
    EXPECT_GT(segments(), before);
    EXPECT_EQ(pieces(join(text(8, 9), other, text(9, 9)), {{9, 9 + n}}), n == 4 ? (Runs{{9, 13}}) : Runs{});
  }
}

TEST_F(ContentCacheTest, TheExactPartEndsAtTheFirstPiece) {
  for (const bool reuse : {true, false}) {
    open(100);
    ask(a);
    ask(b);
    const Tokens prompt = join(a, text(5, 10), b, question);
    const Asked asked = ask(prompt, {}, reuse);
    if (!reuse) {
      EXPECT_EQ(prefix(join(prompt, more)), 62) << "power check: computed in full, all of it is exact";
      continue;
    }
    EXPECT_EQ(asked.layout.prefix, 20);
    EXPECT_EQ(asked.layout.pieces, (Runs{{30, 50}}));
    ASSERT_EQ(asked.published.segments.size(), 2u);
    EXPECT_TRUE(exact(asked.published.segments[0]));
    EXPECT_FALSE(exact(asked.published.segments[1]));
    const auto found = find(join(prompt, more));
    EXPECT_EQ(found.layout.prefix, 30);  // the chain of a, and what followed it
    EXPECT_EQ(found.layout.pieces, (Runs{{30, 50}, {50, 62}}));
    EXPECT_EQ(prefix(join(question, more)), 0);
    EXPECT_EQ(pieces(join(question, more)), (Runs{{0, 12}}));
  }
}

TEST_F(ContentCacheTest, ShortFreshRunsAreKeptIfTheyAreMarked) {
  const Tokens brief = text(6, kMinSegment - 1);
  const std::vector<TokenMark> mark{{20, 27}};
  for (const bool marked : {false, true}) {
    open(100);
    ask(a);
    const Asked asked = ask(join(more, a, brief), marked ? std::vector<TokenMark>{{29, 36}} : std::vector<TokenMark>{});
    EXPECT_EQ(asked.layout.pieces, (Runs{{9, 29}}));
    EXPECT_EQ(asked.published.segments.size(), marked ? 2u : 1u);  // `more` before the piece is exact
    EXPECT_EQ(pieces(join(b, brief, question), mark).size(), marked ? 1u : 0u);
    EXPECT_EQ(pieces(join(b, brief, question)).size(), 0u) << "only where the prompt marks it too";
  }
  const Asked enough = ask(join(text(7, 9), a, text(8, kMinSegment)));
  EXPECT_EQ(enough.published.segments.size(), 2u) << "power check";
}

TEST_F(ContentCacheTest, AFewTokensOfAMarkedPartAreNoPrefix) {
  const Tokens begins_alike = join(text(2, 3), text(9, 17));
  ask(join(a, b));
  EXPECT_EQ(prefix(join(a, begins_alike)), 23);
  EXPECT_EQ(prefix(join(a, begins_alike), {{20, 40}}), 20);
  EXPECT_EQ(prefix(join(a, text(2, kMinSegment), more), {{20, 37}}), 28) << "power check";
}

TEST_F(ContentCacheTest, UnmarkedTextIsNoPieceWhereMarksAreTheConsent) {
  ask(a);
  const Tokens prompt = join(question, a, more);
  const ContentCache::Wanted consented{.unmarked = false};
  const auto pieces_in = [&](std::vector<TokenMark> marks) {
    return cache->find(prompt, marks, domains, consented).layout.pieces;
  };
  EXPECT_EQ(pieces(prompt), (Runs{{12, 32}})) << "power check";
  EXPECT_EQ(pieces_in({}), Runs{});
  EXPECT_EQ(pieces_in({{12, 32}}), (Runs{{12, 32}}));
  EXPECT_EQ(pieces_in({{5, 24}}), (Runs{{12, 24}}));
  const auto found = cache->find(prompt, std::vector<TokenMark>{{20, 41}}, domains, consented);
  ASSERT_EQ(found.placements.size(), 1u);
  EXPECT_EQ(found.placements[0].offset, 8);
  EXPECT_EQ(cache->find(join(a, more), {}, domains, consented).layout.prefix, 20) << "what is exact needs no consent";
}

// A document's KV carries what stood before it: only what stood behind the asker's own beginning is clean.
TEST_F(ContentCacheTest, CleanCopiesComeFirstAndMayBeTheOnlyOnes) {
  const Tokens head = text(20, 10), attack = text(21, 10);
  const Tokens prompt = join(head, b, a, question);  // b is new, a is asked for
  const std::vector<TokenMark> marks{{10, 30}, {30, 50}};
  const auto segment_of_a = [&](bool clean_only) {
    const auto found = cache->find(prompt, marks, domains, {.clean_only = clean_only});
    const auto at = std::ranges::find(found.known, 30, &Piece::pos);
    return at == found.known.end() ? SegmentId{0} : at->segment;
  };
  const SegmentId stranger = ask(join(attack, a, more), {{10, 30}}).published.segments[0];
  EXPECT_EQ(segment_of_a(false), stranger) << "power check";
  EXPECT_EQ(segment_of_a(true), 0u);
  ask(join(head, a, more), {}, false);  // not marked: nobody said where the document ends
  EXPECT_EQ(segment_of_a(true), 0u);
  const Asked own = ask(join(head, a, text(22, 3)), {{10, 30}}, false);
  EXPECT_EQ(segment_of_a(true), own.published.segments[0]);
  EXPECT_EQ(segment_of_a(false), own.published.segments[0]) << "the older one has other text in its KV";
  EXPECT_EQ(cache->find(prompt, marks, domains, {.clean_only = true}).layout.pieces, (Runs{{30, 50}}));
  cache->clear();
  EXPECT_EQ(segment_of_a(true), 0u);
}

TEST_F(ContentCacheTest, OnlyTheFirstMarkedPartIsClean) {
  const Tokens head = text(20, 10);
  ask(join(head, b, a, more), {{10, 30}, {30, 50}});
  const auto found = cache->find(join(head, question, a, b, more), std::vector<TokenMark>{{22, 42}, {42, 62}}, domains,
                                 {.clean_only = true});
  EXPECT_EQ(found.layout.prefix, 10);
  EXPECT_EQ(found.layout.pieces, (Runs{{42, 62}}));
}

TEST_F(ContentCacheTest, ACleanCopyIsMadeOnceWhateverIsCached) {
  const Tokens head = text(20, 10), prompt = join(head, a);
  const std::vector<TokenMark> marks{{10, 30}};
  const auto prefix_of = [&](bool make_clean) {
    return cache->find(prompt, marks, domains, {.pieces = false, .make_clean = make_clean}).layout.prefix;
  };
  ask(join(prompt, more));
  EXPECT_EQ(prefix_of(false), 29) << "power check";
  EXPECT_EQ(prefix_of(true), 10);
  ask(join(prompt, question), marks, false);
  EXPECT_EQ(prefix_of(true), 29);
}

// What is left of a piece around a clean copy is used only where it pays for its seams.
TEST_F(ContentCacheTest, APieceAroundACleanCopyIsCut) {
  const Tokens head = text(20, 10), joined = join(text(5, 5), a, b);  // cached side by side, a clean besides
  ask(joined);
  const SegmentId clean = ask(join(head, a), {{10, 30}}, false).published.segments[0];
  const auto found = find(join(head, text(6, 4), joined), {{19, 39}});
  EXPECT_EQ(found.layout.pieces, (Runs{{19, 39}, {39, 59}})) << "five tokens before it are too few";
  ASSERT_EQ(found.placements.size(), 3u);
  EXPECT_EQ(found.known[1].segment, clean);
  EXPECT_EQ(found.placements[1].offset, 10);
}

TEST_F(ContentCacheTest, AnAnswerContinuesAnExactPrompt) {
  Asked asked = ask(a);
  answer(asked, b);
  EXPECT_EQ(segments(), 2);
  EXPECT_EQ(prefix(join(a, b, more)), 40);
  EXPECT_EQ(pieces(join(b, more)), (Runs{{0, 20}}));
}

TEST_F(ContentCacheTest, AnAnswerJoinsItsQuestionAfterAPiece) {
  ask(a);
  Asked asked = ask(join(more, a, question));
  const int64_t before = segments();
  const Tokens chat = join(text(7, 9), question, b, more);
  EXPECT_EQ(pieces(chat), (Runs{{9, 21}, {41, 50}})) << "power check: the question without its answer";
  answer(asked, b);
  EXPECT_EQ(segments(), before);  // the joined segment takes the question's place
  EXPECT_EQ(cache->segments().find(asked.published.segments.back()), nullptr);
  const auto found = find(chat);
  EXPECT_EQ(found.layout.pieces, (Runs{{9, 41}, {41, 50}}));
  EXPECT_FALSE(exact(found.known[0].segment));
  EXPECT_EQ(prefix(join(more, a, question, b)), 9);
}

TEST_F(ContentCacheTest, AnAnswerWhosePromptIsGoneIsNotKept) {
  for (const bool gone : {true, false}) {
    open(100);
    Asked asked = ask(a);
    if (gone) cache->clear();
    answer(asked, b);
    EXPECT_EQ(segments(), gone ? 0 : 2);
  }
}

TEST_F(ContentCacheTest, NothingIsKeptTwice) {
  for (const bool marked : {false, true}) {
    open(100);
    const std::vector<TokenMark> marks = marked ? std::vector<TokenMark>{{0, 20}} : std::vector<TokenMark>{};
    Asked first = compute(join(a, b)), second = compute(join(a, b), marks);
    first.published = cache->publish_prompt(first.own(domains));
    second.published = cache->publish_prompt(second.own(domains));
    EXPECT_EQ(first.published.segments, second.published.segments);
    EXPECT_EQ(segments(), 1);
    answer(first, more), answer(second, more);
    EXPECT_EQ(segments(), 2);
    EXPECT_EQ(prefix(join(a, b, more, question)), 49);
  }
}

// What is marked later is marked in what is cached; only a mark over two segments needs one of its own.
TEST_F(ContentCacheTest, AMarkOfKnownTextIsKeptWithIt) {
  const Tokens brief = text(6, kMinSegment - 2), other = join(text(7, 30), brief, text(8, 30));
  const std::vector<TokenMark> there{{30, 36}};
  ask(join(a, brief, b));
  EXPECT_EQ(pieces(other, there).size(), 0u);
  ask(join(a, brief, b), {{20, 26}}, false);
  EXPECT_EQ(segments(), 1);
  EXPECT_EQ(pieces(other, there), (Runs{{30, 36}}));
  ask(join(a, brief, b, more, question));
  ask(join(a, brief, b, more, question), {{40, 50}}, false);
  EXPECT_EQ(segments(), 3) << "power: this mark begins in the first segment and ends in the second";
}

TEST_F(ContentCacheTest, TheLeastRecentlyUsedLeaves) {
  for (const bool touched : {false, true}) {
    open(6);
    ask(a);
    ask(b);
    EXPECT_EQ(cache->store().free_pages(), 0);
    if (touched) find(join(a, more));
    EXPECT_TRUE(cache->make_room(kBlock));
    EXPECT_EQ(cache->evicted(), 1);
    EXPECT_EQ(cache->store().free_pages(), 3 * kBlock);
    EXPECT_EQ(prefix(join(a, more)), touched ? 20 : 0);
    EXPECT_EQ(prefix(join(b, more)), touched ? 0 : 20);
  }
}

TEST_F(ContentCacheTest, WhatIsPlacedStaysAndNothingIsDroppedInVain) {
  open(7);
  ask(a);
  ask(b);
  {
    const Asked user = compute(join(a, text(5, 4)));
    EXPECT_EQ(user.layout.prefix, 20);
    EXPECT_FALSE(cache->make_room(4 * kBlock));
    EXPECT_EQ(cache->evicted(), 0);
    EXPECT_TRUE(cache->make_room(3 * kBlock));
    EXPECT_EQ(prefix(join(a, more)), 20);
  }
  EXPECT_TRUE(cache->make_room(7 * kBlock)) << "power check: nobody uses it now";
  EXPECT_EQ(cache->evicted(), 2);
  EXPECT_EQ(segments(), 0);
}

TEST_F(ContentCacheTest, DomainsNeverMeet) {
  ask(a);
  EXPECT_EQ(prefix(join(a, b)), 20);
  for (const auto& [space, salt] : {std::pair{"", "salt"}, std::pair{"space", ""}}) {
    domains = cache->domains(space, salt, "mend");
    EXPECT_EQ(prefix(join(a, b)), 0);
    EXPECT_EQ(pieces(join(b, a)).size(), 0u);
  }
}

// A piece of which the request owns all is kept as this policy left it, for this policy, in place of what was there.
TEST_F(ContentCacheTest, RepairedPiecesAreFoundInTheirDomainOnly) {
  const DomainId repaired = cache->repaired_domain("mend", "", "");
  domains.approximate = 0;
  ask(a);
  const auto segment_of_a = [&](DomainId from) {
    domains.repaired = from;
    const auto found = find(join(question, a, more));
    EXPECT_EQ(found.layout.prefix, 0);
    EXPECT_EQ(found.known.size(), 1u);
    return found.known.empty() ? 0 : found.known[0].segment;
  };
  const SegmentId first = segment_of_a(0);
  EXPECT_EQ(segment_of_a(repaired), first) << "nothing was repaired yet";

  const Runs piece{{20, 40}};
  int32_t prompts = 20;
  const auto repair = [&](const Runs& owned, const Runs& recomputed) {
    domains.repaired = 0;
    const Asked asked = compute(join(b, a, text(++prompts, 4)), {}, true, owned);
    EXPECT_EQ(asked.layout.pieces.back(), piece[0]);
    domains.repaired = repaired;
    const ContentCache::Own own{*asked.kv, asked.layout, asked.tokens, {}, domains, 44, asked.exact, {}, recomputed};
    cache->publish_prompt(own);
    return segment_of_a(repaired);
  };
  EXPECT_EQ(repair({{20, 30}}, {{20, 30}}), first) << "some of it lies in its first build";
  EXPECT_EQ(repair(piece, {}), first) << "nothing of it was recomputed";
  const SegmentId second = repair(piece, {{20, 25}});
  EXPECT_NE(second, first);
  EXPECT_EQ(segment_of_a(0), first) << "others do not see it";
  const int64_t tokens = cache->segments().tokens();
  const SegmentId third = repair(piece, {{20, 25}});
  EXPECT_NE(third, second);
  EXPECT_EQ(cache->segments().find(second), nullptr);
  EXPECT_EQ(cache->segments().tokens() - tokens, int64_t{0});
  EXPECT_FALSE(exact(third));
  ContentDomains only;
  only.exact = repaired;
  EXPECT_EQ(cache->find(join(a, more), {}, only, {}).layout.prefix, 0) << "never a prefix";
}

// ---- Chains ---------------------------------------------------------------------------------------------------------

class ChainTest : public ContentCacheTest {
 protected:
  ChainTest() {
    domains = mend = cache->domains("", "", "mend");
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

  domains = cache->domains("", "", "sparsex");
  EXPECT_EQ(find(next).layout.prefix, 20) << "power: another policy does not see it";
  domains = cache->domains("", "");
  EXPECT_EQ(find(next).layout.prefix, 20) << "nor does an exact request";
}

TEST_F(ChainTest, WhatGoesOnFromAChainIsNeverExact) {
  Asked first = ask(join(b, document, question));
  answer(first, more);
  const Tokens next = join(b, document, question, more, text(12, 40));
  Asked second = ask(next);
  EXPECT_EQ(second.layout.prefix, 161);
  answer(second, text(13, 30));
  domains = cache->domains("", "");
  EXPECT_EQ(find(join(next, text(13, 30), a)).layout.prefix, 20);
  EXPECT_TRUE(find(join(a, text(12, 40), a)).layout.pieces.empty()) << "no piece for others";
  domains = mend;
  EXPECT_EQ(find(join(a, text(12, 40), a)).layout.pieces, (Runs{{20, 60}})) << "power: for the same policy";
}

TEST_F(ChainTest, TheExactChainWinsOnceItIsThere) {
  const Tokens turn = join(b, document, question);
  ask(turn);
  domains = cache->domains("", "");
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
  domains = cache->domains("", "", "mend");
  const Tokens document(novel.begin(), novel.begin() + 600), turn = join(b, document, question);
  { ask(b), ask(document); }
  Asked first = ask(turn);
  Asked again = compute(turn, {}, false);
  again.layout.pieces = first.layout.pieces;  // as if it had repaired them at the same time
  again.published = cache->publish_prompt(again.own(domains));
  EXPECT_EQ(again.published.chain.segment, first.published.chain.segment) << "power check: it is the other's";
  first.kv.reset();
  ASSERT_TRUE(cache->make_room(cache->store().free_pages() + 1));
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

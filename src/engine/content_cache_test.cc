// What is published, and as what: prefixes, pieces, answers, repaired pieces, means. Chains, and what is
// left when others' segments leave: content_cache_chain_test.cc.
#include "engine/content_cache_for_test.h"
#include "kv/annex.h"

namespace kvilt {
namespace {

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

// Near duplicates: runs that are shorter than the shortest piece.
class NearCacheTest : public ContentCacheTest {
 protected:
  NearCacheTest() { open(100); }
  void open(int64_t blocks) {
    cache.emplace(PageStore::create(kShape, blocks * kBlock * kShape.page_bytes()).value(), HashSecret::fixed(1),
                  "model", 32);
    domains = cache->domains({}, "mend");
    domains.chain = 0;
  }
  static Tokens edited(Tokens of) {  // every 16th token is another one
    for (size_t at = 15; at < of.size(); at += 16) of[at] = 7777;
    return of;
  }
  int32_t near(const Tokens& of) {
    return cache->find(join(question, edited(of), end), {}, domains, {.near = 8}).layout.near;
  }
  const Tokens document = text(8, 64), other = text(9, 64), end = text(10, 40);
};

TEST_F(NearCacheTest, IsUsedWhereItMayBe) {
  ask(document);
  const Tokens prompt = join(question, edited(document), end);
  const auto found = [&](const std::vector<TokenMark>& marks, int32_t near, bool clean_only = false) {
    const ContentCache::Wanted wanted{.unmarked = marks.empty(), .clean_only = clean_only, .near = near};
    return cache->find(prompt, marks, domains, wanted).layout;
  };
  EXPECT_EQ(found({}, 0).near, 0);
  EXPECT_EQ(found({}, 16).near, 0);
  EXPECT_EQ(found({}, 15).near, 60);
  EXPECT_EQ(found({}, 15).pieces, (Runs{{12, 27}, {28, 43}, {44, 59}, {60, 75}}));
  EXPECT_EQ(found({}, 15, true).near, 0) << "no clean copy";
  EXPECT_EQ(found({{15, 54}}, 8).pieces, (Runs{{15, 27}, {28, 43}, {44, 54}}));
  EXPECT_EQ(found({{0, 12}}, 8).near, 0);
  domains.exact = cache->domains({.salt = "salt"}, "mend").exact;
  EXPECT_EQ(found({}, 8).near, 0);
}

TEST_F(NearCacheTest, TheEndOfAPromptIsComputed) {
  ask(text(8, 80));
  const Tokens prompt = join(end, edited(text(8, 80)), question);
  EXPECT_EQ(cache->find(prompt, {}, domains, {.near = 8}).layout.pieces,
            (Runs{{40, 55}, {56, 71}, {72, 87}, {88, 100}}));
}

TEST_F(NearCacheTest, WhatHasLeftIsNotFound) {
  open(17);
  ask(document);
  EXPECT_EQ(near(document), 60);
  ask(other);
  EXPECT_EQ(near(other), 60);
  EXPECT_TRUE(cache->make_room(9 * kBlock));
  EXPECT_EQ(near(document) + near(other), 60) << "one of both had to go";
  cache->clear();
  EXPECT_EQ(near(document) + near(other), 0);
}

TEST_F(NearCacheTest, ApproximateKvFillsWhatExactKvLeaves) {
  const Tokens first = text(7, 40);
  ask(first);
  ask(join(question, first, document));  // behind a piece: approximate
  const Tokens prompt = join(text(11, 9), edited(document), end);
  EXPECT_EQ(cache->find(prompt, {}, domains, {.near = 8}).layout.near, 60);
  domains.approximate = 0;
  EXPECT_EQ(cache->find(prompt, {}, domains, {.near = 8}).layout.near, 0) << "power: it is of this policy alone";
}

// A document's KV carries what stood before it: only what stood behind the asker's own beginning is clean.
// Where marks are the consent, a prompt without marks is not searched for pieces.
TEST_F(ContentCacheTest, WithoutConsentNothingIsSearched) {
  ask(a);
  const Tokens prompt = join(more, a, question);
  const auto probes = [&](std::vector<TokenMark> marks, bool unmarked) {
    return cache->find(prompt, marks, domains, {.unmarked = unmarked}).cost.probes;
  };
  EXPECT_EQ(probes({}, false), 0);
  EXPECT_GT(probes({}, true), 0) << "power";
  EXPECT_GT(probes({{9, 29}}, false), 0) << "power";
}

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

TEST_F(ContentCacheTest, AnApproximateAnswerThatIsRepeatedIsKeptOnce) {
  for (const bool chains : {false, true}) {
    SCOPED_TRACE(chains);
    open(100);
    if (chains) domains.chain = cache->domains({}, "mend").chain;
    ask(a);
    const auto tokens_after = [&](const Tokens& said) {
      Asked asked = ask(join(more, a, question));
      answer(asked, said);
      return cache->segments().tokens();
    };
    const int64_t once = tokens_after(b);
    EXPECT_EQ(tokens_after(b), once);
    EXPECT_EQ(tokens_after(b), once);
    EXPECT_GT(tokens_after(text(8, 20)), once) << "power: another answer";
    EXPECT_EQ(pieces(join(text(7, 9), question, b, more))[0], (kvilt::Run{9, 41}));
  }
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

// The same where it is found and not computed again; and its first marked part is a clean copy from then on.
TEST_F(ContentCacheTest, AMarkOfTheFoundPrefixIsKeptWithIt) {
  const Tokens brief = text(6, kMinSegment - 2), other = join(a, text(7, 30), brief, text(8, 30));
  const std::vector<TokenMark> there{{50, 56}};
  const auto clean = [&] {
    return cache->find(other, there, domains, {.unmarked = false, .clean_only = true}).layout.pieces;
  };
  ask(join(a, brief, b));
  EXPECT_EQ(pieces(other, there), Runs{});
  EXPECT_EQ(ask(join(a, brief, b), {{20, 26}}).layout.prefix, 45);
  EXPECT_EQ(segments(), 1);
  EXPECT_EQ(pieces(other, there), (Runs{{50, 56}}));
  EXPECT_EQ(clean(), (Runs{{50, 56}}));
  cache->clear();
  ask(join(a, brief, b));
  ask(join(a, brief, b), {{0, 20}, {20, 26}});
  EXPECT_EQ(pieces(other, there), (Runs{{50, 56}}));
  EXPECT_EQ(clean(), Runs{}) << "power: another marked part was before it";
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

// Whatever it took of extents, and whoever else was in them.
TEST_F(ContentCacheTest, ARunThatLeavesIsCountedOnce) {
  ask(text(9, 600));
  ASSERT_EQ(segments(), 1);
  EXPECT_TRUE(cache->make_room(100 * kBlock));
  EXPECT_EQ(cache->evicted(), 3) << "power: extents of 256 slots";
  EXPECT_EQ(cache->evicted_segments(), 1);
  open(100);
  ask(b);
  ask(join(a, b, more, question));
  const int64_t there = segments();
  EXPECT_TRUE(cache->make_room(100 * kBlock));
  EXPECT_EQ(segments(), 0);
  EXPECT_EQ(cache->evicted_segments(), there);
  EXPECT_LT(cache->evicted(), there) << "power: two were in one extent";
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
  for (const KeySpace& other : {KeySpace{.salt = "s"}, KeySpace{.name_space = "s"}, KeySpace{.tenant = "s"}}) {
    domains = cache->domains(other, "mend");
    EXPECT_EQ(prefix(join(a, b)), 0);
    EXPECT_EQ(pieces(join(b, a)).size(), 0u);
  }
}

// A piece of which the request owns all is kept as this policy left it, for this policy, in place of what was there.
TEST_F(ContentCacheTest, RepairedPiecesAreFoundInTheirDomainOnly) {
  const DomainId repaired = cache->repaired_domain("mend", {});
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

// A text is kept as it was repaired last, also where it was repaired with its neighbour before.
TEST_F(ContentCacheTest, OfATextTheLastRepairStays) {
  const DomainId repaired = cache->repaired_domain("mend", {});
  domains.approximate = 0;
  ask(join(a, b));
  int32_t prompts = 20;
  const auto repair = [&](const Tokens& texts) {
    domains.repaired = 0;
    const Runs all{{12, 12 + static_cast<int32_t>(texts.size())}};
    const Asked asked = compute(join(question, texts, text(++prompts, 4)), {}, true, all);
    domains.repaired = repaired;
    ContentCache::Own own = asked.own(domains);
    const ContentCache::Own with{own.kv,    own.layout, own.tokens, {}, own.domains, own.computed,
                                 own.exact, {},         all,        {}, 0,           static_cast<RequestId>(prompts)};
    cache->publish_prompt(with);
    return asked.layout.pieces.size();
  };
  const auto repaired_in = [&](const Tokens& of) {
    const auto found = find(join(text(9, 12), of, more));
    return found.known.empty() ? 0 : cache->segments().find(found.known[0].segment)->request;
  };
  EXPECT_EQ(repair(join(a, b)), 1u) << "as one piece";
  EXPECT_EQ(repaired_in(a), 21u);
  EXPECT_EQ(repaired_in(b), 21u);
  EXPECT_EQ(repair(a), 1u);
  EXPECT_EQ(repaired_in(a), 22u);
  EXPECT_EQ(repaired_in(b), 21u) << "what its neighbour's segment has besides it stays";
  EXPECT_EQ(repair(join(b, a)), 2u);
  EXPECT_EQ(repaired_in(a), 23u);
  EXPECT_EQ(repaired_in(b), 23u);
  const int64_t tokens = cache->segments().tokens(), before = segments();
  for (const RequestId last : {24, 25, 26}) {
    repair(a);
    EXPECT_EQ(repaired_in(a), last);
    EXPECT_EQ(cache->segments().tokens(), tokens);
    EXPECT_EQ(segments(), before);
  }
}

TEST_F(ContentCacheTest, SaysHowMuchOfWhatItFoundLooksAlike) {
  Tokens rows;
  for (int32_t name = 0; name < 10; ++name) rows = join(rows, Tokens{1, 2, 3, 100 + name, 4});
  cache->publish_prompt(compute(join(text(5, 10), rows), {}).own(domains));
  const auto share = [&](bool wanted) {
    return cache->find(join(more, rows, question), {}, domains, {.look_alikes = wanted}).layout.look_alikes;
  };
  EXPECT_NEAR(share(true), 10.0 / 47, 1e-9);
  EXPECT_EQ(share(false), 0);
  const PromptLayout layout = cache->find(join(more, rows, question), {}, domains, {.look_alikes = true}).layout;
  EXPECT_EQ(layout.piece_look_alikes, std::vector<double>{layout.look_alikes}) << "the policy hears of each piece too";
}

// What a plan keeps becomes an annex of the segments, as far as the pool has room; it goes when they are evicted.
TEST_F(ContentCacheTest, WhatAPlanKeepsIsPublishedAndEvicted) {
  constexpr AnnexKind kState{AnnexOf::kHiddenF32, 1};
  const Tokens kept_text = text(6, 30), other = text(7, 40);
  Asked asked = compute(kept_text);
  std::vector<KeptRows> kept(1);
  kept[0].kind = kState;
  kept[0].rows.reset({{0, 30}}, 3);
  for (int32_t pos = 0; pos < 30; ++pos) std::fill_n(kept[0].rows.row(pos), 3, static_cast<float>(pos));
  ContentCache::Own own = asked.own(domains);
  own.kept = kept;
  own.spare = INT64_MAX;
  cache->publish_prompt(own);
  asked.kv.reset();
  const auto annexed_of = [&](const Tokens& prompt) {
    const auto found = find(prompt);
    return annexed(found.placements, kState);
  };
  EXPECT_EQ(annexed_of(join(other, kept_text, text(8, 5))), (Runs{{40, 70}}));
  EXPECT_EQ(annexed_of(join(kept_text, text(8, 5))), (Runs{{0, 30}}));
  ask(other);
  EXPECT_TRUE(annexed_of(join(other, text(8, 5))).empty()) << "power: this one kept nothing";
  const int64_t pages = cache->store().pages();
  EXPECT_EQ(cache->store().free_pages() + cache->reclaimable(), pages) << "all of it is counted";
  ASSERT_TRUE(cache->make_room(pages));
  EXPECT_TRUE(find(join(kept_text, text(8, 5))).layout.prefix == 0 && cache->store().free_pages() == pages);
}

TEST_F(ContentCacheTest, WhatWasEvictedAndIsComputedAnewIsRegretted) {
  open(12);
  ask(join(a, question));
  EXPECT_EQ(cache->evicted_tokens(), 0);
  const auto others = [&](int first) {
    for (int i = first; i < first + 6; ++i) ask(text(i, 24));
  };
  others(50);
  ASSERT_EQ(prefix(join(a, question)), 0) << "it had to leave";
  EXPECT_GT(cache->evicted_tokens(), 0);
  EXPECT_EQ(cache->regretted_tokens(), 0) << "what is new is no regret";
  ask(join(a, question));
  EXPECT_EQ(cache->regretted_tokens(), 32) << "its two blocks of 16 should have stayed";
  ask(join(a, question));
  EXPECT_EQ(cache->regretted_tokens(), 32) << "it is there now";
  cache->clear();
  ask(join(a, question));
  EXPECT_EQ(cache->regretted_tokens(), 32) << "what was cleared was not evicted";
}

}  // namespace
}  // namespace kvilt

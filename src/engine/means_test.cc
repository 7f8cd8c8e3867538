// Means over contexts in the content cache: which of them is found, and what comes before and after them.
#include "engine/content_cache_for_test.h"
#include "engine/loader_for_test.h"
#include "forward/annex_rows.h"
#include "kv/annex.h"

namespace kvilt {
namespace {

class MeansTest : public ContentCacheTest {
 protected:
  MeansTest() { look_in_mine(); }
  void look_in_mine() {
    domains = cache->domains({}, "mend");
    domains.chain = 0;
    domains.seasoned = cache->seasoned_domain({});
  }
  void clear() {
    cache->clear();
    look_in_mine();
  }
  // Token i of the marked text is i times `front` away from nothing, in K and V.
  void write_rows(const Asked& asked, int front) const {
    const TokenMark& mark = asked.marks[0];
    for (int layer = 0; layer < kShape.L; ++layer) {
      for (int32_t pos = 0; pos < mark.end; ++pos) {
        const std::vector<float> row(kShape.G * kShape.E, static_cast<float>(std::max(pos - mark.begin, 0) * front));
        asked.kv->write(layer, pos, row.data(), row.data());
      }
    }
  }
  ThreadPool pool{1};
};

// A mean comes before what was computed exactly, also where an exact piece holds more than it; the rest of that piece
// stays. Who asks for what was first computed gets that.
TEST_F(MeansTest, MeansComeFirst) {
  const auto found = [&](bool seasoned) {
    const std::vector<TokenMark> marks{{9, 29}, {29, 49}};
    return cache->find(join(more, a, b, question), marks, domains, {.seasoned = seasoned});
  };
  Asked together = compute(join(text(5, 10), a, b), {{10, 30}, {30, 50}});
  together.published = cache->publish_prompt(together.own(domains));
  EXPECT_EQ(found(true).layout.pieces, (Runs{{9, 49}})) << "power: one exact piece holds both";
  Asked apart = compute(join(text(6, 10), b), {{10, 30}}, false);
  cache->season(apart.own(domains), pool);
  const auto now = found(true);
  EXPECT_EQ(now.layout.pieces, (Runs{{9, 29}, {29, 49}}));
  EXPECT_EQ(now.layout.seasoned, 20);
  EXPECT_EQ(found(false).layout.seasoned, 0);
  EXPECT_EQ(cache->seasoned().by_contexts[1], 1);
  const std::vector<TokenMark> marks{{9, 29}, {29, 49}};
  const auto lacking = [&](int contexts) {
    return cache->without_contexts(join(more, a, b), marks, domains.seasoned, contexts).size();
  };
  EXPECT_EQ(lacking(1), 1u);
  EXPECT_EQ(lacking(2), 2u);
  const auto of_two = cache->without_contexts(join(more, a, b), marks, domains.seasoned, 2);
  EXPECT_EQ(of_two[0].contexts, 2);
  EXPECT_EQ(of_two[1].contexts, 1) << "b has one";
}

// Where the text in front of a marked part is what stood in front of an exact copy of it, the copy comes first.
TEST_F(MeansTest, ACopyInTheSameContextComesBeforeAMean) {
  const Tokens before = text(8, 100);
  Asked together = compute(join(before, b), {{100, 120}});
  together.published = cache->publish_prompt(together.own(domains));
  cache->season(compute(join(text(6, 10), b), {{10, 30}}, false).own(domains), pool);
  const auto seasoned = [&](int32_t shared) {
    const Tokens front = join(more, Tokens(before.end() - shared, before.end()));
    const auto begin = static_cast<int32_t>(front.size());
    const std::vector<TokenMark> marks{{begin, begin + 20}};
    return cache->find(join(front, b, question), marks, domains, {.seasoned = true}).layout.seasoned;
  };
  EXPECT_EQ(seasoned(64), 0) << "one piece holds both";
  EXPECT_EQ(seasoned(63), 20);
  EXPECT_EQ(seasoned(0), 20);
}

// So does one that stood behind all that is in front of it here, but for a template's few tokens right before it: what an
// agent wrote, say, handed back behind its question. Of an answer the last token has no KV.
TEST_F(MeansTest, ACopyBehindTheSameBeginningComesBeforeAMean) {
  const Tokens before = text(8, 30), header = text(9, 12), heading = text(11, 16);
  const Tokens answered(b.begin(), b.end() - 1);
  Asked writes = ask(join(before, header));
  answer(writes, answered);
  cache->season(compute(join(text(6, 10), b), {{10, 30}}, false).own(domains), pool);
  const auto found = [&](const Tokens& front) {
    const auto begin = static_cast<int32_t>(front.size());
    const std::vector<TokenMark> marks{{begin, begin + 20}};
    const PromptLayout layout = cache->find(join(front, b, question), marks, domains, {.seasoned = true}).layout;
    int pieces = 0;
    for (const kvilt::Run& piece : layout.pieces) pieces += piece.size();
    return std::pair(layout.seasoned, pieces);
  };
  EXPECT_EQ(found(join(before, heading)), std::pair(0, 19));
  EXPECT_EQ(found(join(before, text(12, 17))), std::pair(20, 20));
  EXPECT_EQ(found(join(text(13, 30), heading)), std::pair(20, 20));
}

// Over the namespaces in sight the mean over the most contexts is taken; of equal ones that of the one named first. A
// part of another document's mean hides none.
TEST_F(MeansTest, OfMeansInSeveralNamespacesTheBestIsTaken) {
  open(400);
  const auto domains_of = [&](const std::string& name) {
    ContentDomains out = cache->domains({"", name, ""});
    out.seasoned = cache->seasoned_domain({"", name, ""});
    return out;
  };
  const ContentDomains own = domains_of("anna"), shop = domains_of("shop");
  const auto season = [&](const ContentDomains& in, const Tokens& document, int contexts) {
    domains = in;
    const auto end = 10 + static_cast<int32_t>(document.size());
    for (int i = 0; i < contexts; ++i)
      cache->season(compute(join(text(60 + i, 10), document), {{10, end}}, false).own(domains), pool);
  };
  const auto taken = [&](const ContentDomains& first, const ContentDomains& second) {
    domains = first;
    domains.also = {second};
    const std::vector<TokenMark> marks{{9, 29}, {29, 49}};
    std::vector<int> out;
    std::vector<DomainId> where;
    for (const Piece& piece : cache->find(join(more, a, b, question), marks, domains, {.seasoned = true}).known) {
      out.push_back(cache->index().info(piece.segment).contexts);
      where.push_back(cache->index().info(piece.segment).domain);
    }
    return std::pair(out, where);
  };
  using Contexts = std::vector<int>;
  using Where = std::vector<DomainId>;
  season(shop, a, 3);
  season(shop, b, 2);
  season(own, a, 1);
  EXPECT_EQ(taken(own, shop), std::pair(Contexts({3, 2}), Where({shop.seasoned, shop.seasoned})));
  EXPECT_EQ(taken(shop, own), taken(own, shop));
  season(own, b, 2);
  EXPECT_EQ(taken(own, shop), std::pair(Contexts({3, 2}), Where({shop.seasoned, own.seasoned}))) << "named first";
  EXPECT_EQ(taken(shop, own).second, Where({shop.seasoned, shop.seasoned}));
  // The beginning of another document of its own, which is a mean over more contexts, is not all of this one.
  season(own, join(Tokens(a.begin(), a.begin() + 12), text(50, 12)), 5);
  EXPECT_EQ(taken(own, shop).first, Contexts({3, 2}));
}

// With means: an exact copy in this very context, then the mean, then the clean copy, then one behind other text.
TEST_F(MeansTest, ACopyInTheSameContextComesBeforeACleanOne) {
  const Tokens head = text(7, 10), before = text(8, 100);
  const auto copy = [&](const Tokens& front) {
    const auto begin = static_cast<int32_t>(front.size());
    return ask(join(front, b), {{begin, begin + 20}}, false).published.segments.at(0);
  };
  const SegmentId in_context = copy(before), clean = copy(head);
  const auto taken = [&](const Tokens& front, bool seasoned) {
    const auto begin = static_cast<int32_t>(front.size());
    const std::vector<TokenMark> marks{{begin, begin + 20}};
    const auto found = cache->find(join(front, b, question), marks, domains,
                                   {.prefix = false, .unmarked = false, .seasoned = seasoned});
    return found.known.size() == 1 ? found.known[0].segment : SegmentId{0};
  };
  const Tokens here = join(head, before), elsewhere = join(head, more);
  EXPECT_EQ(taken(here, true), in_context) << "also where there is no mean";
  EXPECT_EQ(taken(here, false), clean) << "who does not want means has clean copies first";
  EXPECT_EQ(taken(elsewhere, true), clean);
  cache->season(compute(join(text(6, 10), b), {{10, 30}}, false).own(domains), pool);
  EXPECT_EQ(taken(here, true), in_context);
  EXPECT_EQ(taken(here, false), clean);
  const SegmentId mean = taken(elsewhere, true);
  ASSERT_NE(mean, 0u);
  EXPECT_NE(mean, clean);
  EXPECT_EQ(cache->index().info(mean).contexts, 1);
}

// How far contexts lie apart is known from the second on, of the mean's tokens alone, wherever a part of them is found.
TEST_F(MeansTest, KnowsHowFarContextsLieApart) {
  const auto season = [&](int front) {
    const Asked asked = compute(join(text(front, 10), b), {{10, 30}}, false);
    write_rows(asked, front);
    cache->season(asked.own(domains), pool);
  };
  const auto spread = [&](const Tokens& prompt, std::vector<TokenMark> marks) {
    return cache->find(prompt, marks, domains, {.seasoned = true}).layout.spread;
  };
  const Tokens whole = join(more, a, b, question);
  season(6);
  EXPECT_TRUE(spread(whole, {{9, 29}, {29, 49}}).empty());
  season(8);
  const auto found = spread(whole, {{9, 29}, {29, 49}});
  ASSERT_EQ(found.size(), whole.size());
  const float unit = found[30].k;  // of b's second token: its contexts are one from their mean
  EXPECT_NEAR(unit, kShape.L * kShape.G * kShape.E, 0.01 * unit);
  for (int32_t i = 0; i < std::ssize(whole); ++i) {
    const bool is_mean = i >= 29 && i < 49;
    EXPECT_EQ(found[i].known(), is_mean) << i;
    const double expected = is_mean ? unit * (i - 29.0) * (i - 29.0) : -1;
    EXPECT_NEAR(found[i].v, expected, 0.01 * std::abs(expected)) << i;
  }
  const auto part = spread(join(more, Tokens(b.begin() + 6, b.end()), question), {});
  ASSERT_FALSE(part.empty());
  for (int32_t i = 6; i < 20; ++i) EXPECT_EQ(part[9 + i - 6], found[29 + i]) << i;
}

// What came of each marked part is said: over how many contexts its mean is now, or that this one was not added.
TEST_F(MeansTest, SaysWhatWasAdded) {
  using Contexts = std::vector<int>;
  const auto season = [&](int n, int most = kMostContexts) {
    Asked asked = compute(join(text(60 + n, 10), a, text(1000 + n, 2), b), {{10, 30}, {30, 32}, {32, 52}}, false);
    return cache->season(asked.own(domains), pool, most);
  };
  EXPECT_EQ(season(0, 0), (Contexts{0, 0, 0}));
  for (int n = 1; n <= kMostContexts; ++n) EXPECT_EQ(season(n), (Contexts{n, 0, n})) << "a few tokens have no mean";
  EXPECT_EQ(season(kMostContexts + 1), (Contexts{0, 0, 0})) << "these have enough";
  EXPECT_EQ(cache->seasoned().by_contexts[kMostContexts], 2);
  open(5);  // 40 tokens
  look_in_mine();
  EXPECT_EQ(cache->season(compute(join(text(60, 10), a), {{10, 30}}, false).own(domains), pool), (Contexts{0}));
}

// The states that a pass kept become a mean by token, as K and V do, over the same contexts or not at all.
TEST_F(MeansTest, AMeanHasTheMeanOfItsStates) {
  constexpr AnnexKind kState{AnnexOf::kHiddenF32, 1};
  const auto season = [&](int n, std::optional<float> state) {
    Asked asked = compute(join(text(60 + n, 10 + n), a), {{10 + n, 30 + n}}, false);
    KeptRows kept{kState, {}};
    kept.rows.reset({{0, 30 + n}}, 3);
    for (int32_t pos = 0; pos < 30 + n; ++pos) std::fill_n(kept.rows.row(pos), 3, state.value_or(0) + pos - n);
    ContentCache::Own own = asked.own(domains);
    if (state) own.mean_state = &kept;
    return cache->season(own, pool);
  };
  const auto states = [&] {
    const auto found =
        cache->find(join(more, a, question), std::vector<TokenMark>{{9, 29}}, domains, {.seasoned = true});
    std::vector<float> out;
    for (const int32_t pos : positions(annexed(found.placements, kState))) {
      float row[3];
      annex_row(found.placements, kState, pos, std::as_writable_bytes(std::span(row)));
      out.push_back(row[2] - static_cast<float>(pos - 9 + 10));  // the token's own part of it
    }
    return out;
  };
  EXPECT_EQ(season(0, 8.0f), std::vector<int>{1});
  EXPECT_EQ(states(), std::vector<float>(20, 8));
  EXPECT_EQ(season(1, 4.0f), std::vector<int>{2});
  EXPECT_EQ(states(), std::vector<float>(20, 6));
  EXPECT_EQ(season(2, std::nullopt), std::vector<int>{3});
  EXPECT_TRUE(states().empty()) << "two of three contexts would be no mean over three";
  EXPECT_EQ(season(3, 4.0f), std::vector<int>{4});
  EXPECT_TRUE(states().empty()) << "nor one of four";
  EXPECT_EQ(cache->store().free_pages() + cache->reclaimable(), cache->store().pages()) << "all of it is counted";
}

// Without room for the states there is the mean alone; what a pass is promised has room for both.
TEST_F(MeansTest, WithoutRoomForItsStatesAMeanHasNone) {
  constexpr AnnexKind kState{AnnexOf::kHiddenF32, 1};
  constexpr int kWide = 200;  // so that they take more than the K and V
  const std::vector<TokenMark> marks{{10, 30}};
  const auto pages_left = [&](int64_t blocks) {
    open(blocks);
    look_in_mine();
    Asked asked = compute(join(text(60, 10), a), marks, false);
    KeptRows kept{kState, {}};
    kept.rows.reset({{0, 30}}, kWide);
    for (int32_t pos = 0; pos < 30; ++pos) std::fill_n(kept.rows.row(pos), kWide, 1.0f);
    ContentCache::Own own = asked.own(domains);
    own.mean_state = &kept;
    const int64_t before = cache->store().free_pages();
    const int64_t promised =
        cache->means_to_make(own.tokens, marks, domains.seasoned, state_bytes(kState, kWide)).pages;
    EXPECT_EQ(cache->season(own, pool), std::vector<int>{1});
    const auto found = cache->find(join(more, a), std::vector<TokenMark>{{9, 29}}, domains, {.seasoned = true});
    EXPECT_EQ(found.layout.seasoned, 20);
    const bool has = !annexed(found.placements, kState).empty();
    EXPECT_TRUE(has || before < promised);
    EXPECT_TRUE(!has || before - cache->store().free_pages() <= promised);
    return has;
  };
  EXPECT_FALSE(pages_left(8));
  EXPECT_TRUE(pages_left(200)) << "power";
  bool had = false;
  for (int64_t blocks = 8; blocks < 60; ++blocks) {  // whatever is left, once it is enough it stays so
    const bool has = pages_left(blocks);
    EXPECT_GE(has, had);
    had = has;
  }
  EXPECT_TRUE(had);
}

// What an eviction leaves of a mean is used as far as it goes, hides no whole mean, and leaves when there is a new one.
TEST_F(MeansTest, WhatIsLeftOfAMeanGivesWayToANewOne) {
  const int slots = cache->store().extent_slots(), size = slots + 40;  // two extents
  open(6 * slots / 8);
  look_in_mine();
  const Tokens document = text(30, size), head = text(7, 10);
  const auto season = [&](int n) {
    const Asked asked = compute(join(text(60 + n, 10), document), {{10, 10 + size}}, false);
    write_rows(asked, n);
    return cache->season(asked.own(domains), pool);
  };
  const auto found = [&] {
    return cache->find(join(head, document, question), std::vector<TokenMark>{{10, 10 + size}}, domains,
                       {.seasoned = true});
  };
  for (int n = 1; n <= 3; ++n) ASSERT_EQ(season(n), std::vector<int>{n});
  ASSERT_EQ(cache->seasoned().tokens, size);
  const auto whole = found().layout.spread;
  while (cache->seasoned().tokens == size) ASSERT_TRUE(cache->make_room(cache->store().free_pages() + 1));
  const int64_t left = cache->seasoned().tokens;
  ASSERT_FALSE(whole.empty());
  ASSERT_GT(left, 0) << "power: a part is left";
  EXPECT_EQ(found().layout.seasoned, left);
  const auto spread = found().layout.spread;
  EXPECT_EQ(std::ranges::count_if(spread, &TokenSpread::known), left);
  for (size_t i = 0; i < spread.size(); ++i) EXPECT_TRUE(!spread[i].known() || spread[i] == whole[i]) << i;
  EXPECT_EQ(season(4), std::vector<int>{1}) << "it begins anew";
  EXPECT_EQ(cache->seasoned().tokens, size) << "and nothing else is kept";
  EXPECT_EQ(cache->seasoned().by_contexts[3], 0);
  EXPECT_EQ(found().layout.seasoned, size);
}

// A request waits for no clean copy that is stored where a mean, or a copy in this very context, is used.
TEST_F(MeansTest, NobodyWaitsForACleanCopyThatAMeanComesBefore) {
  const Tokens head = text(7, 5), before = text(8, 100);
  const auto made = ask(join(head, b), {{5, 25}}).published.segments.at(0);
  StoredPiece piece;
  piece.id = 7000;
  piece.domain = *cache->index().domain_digest(domains.exact);
  piece.exact = piece.prefix = true;
  piece.token_bytes = static_cast<uint32_t>(kShape.token_bytes());
  piece.tokens = join(head, b);
  piece.marks = {{5, 25}};
  piece.clean = cache->index().clean_notes(made);
  ASSERT_EQ(piece.clean.size(), 1u);
  clear();
  auto made_tier = std::make_unique<SlowTier>(piece);
  SlowTier& tier = *made_tier;
  const auto store = DiskCache::open(std::move(made_tier), HashSecret::fixed(1), Digest{}, *cache, kMinSegment).value();
  const auto unheard = [](const std::function<void()>&) {};
  store->attach({unheard, unheard, [](int64_t, OwnerId) { return false; }});
  const auto waits = [&](const Tokens& front, bool seasoned) {
    const auto begin = static_cast<int32_t>(front.size());
    const Tokens prompt = join(front, b, question);
    const std::vector<TokenMark> marks{{begin, begin + 20}};
    const ContentCache::Wanted wanted{.unmarked = false, .seasoned = seasoned};
    const auto uses = [](const PromptLayout&) { return true; };
    const auto found = cache->find(prompt, marks, domains, wanted);
    return store->fetch({prompt, marks, domains, wanted, rope, uses, 0}, found) != nullptr;
  };
  const Tokens elsewhere = join(head, more), here = join(head, before);
  cache->season(compute(join(text(6, 10), b), {{10, 30}}, false).own(domains), pool);
  EXPECT_FALSE(waits(elsewhere, true));
  EXPECT_TRUE(waits(elsewhere, false)) << "power: it is stored";
  clear();
  ask(join(before, b), {{100, 120}}, false);
  EXPECT_FALSE(waits(here, true)) << "what is there is of this context";
  EXPECT_TRUE(waits(elsewhere, true)) << "power: of another one it is not";
  clear();
  const Tokens asked = join(head, text(9, 30));
  Asked writes = ask(join(asked, text(10, 12)), {}, false);
  answer(writes, Tokens(b.begin(), b.end() - 1));
  EXPECT_FALSE(waits(join(asked, text(11, 16)), true)) << "an answer to this, but for its last token";
  EXPECT_TRUE(waits(join(asked, text(11, 17)), true)) << "power: too far from it";
  tier.give(100);
  store->finish();
}

}  // namespace
}  // namespace kvilt

#include "index/near_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "index/edits_for_test.h"
#include "index/index_for_test.h"

namespace kvilt {
namespace {

constexpr int32_t kLeast = 8, kTogether = 32;

Runs whole(size_t tokens) { return {{0, static_cast<int32_t>(tokens)}}; }

class NearIndexTest : public IndexTest {
 protected:
  NearIndexTest() { index_.keep_near(); }
  void insert(SegmentId id, const Ids& ids) { index_.insert(id, {.tokens = ids, .domain = domain_}); }
  std::vector<Piece> near(const Ids& prompt, int32_t least = kLeast) const {
    const Runs all = whole(prompt.size());
    return index_.find_near({prompt, all, {}, least, kTogether}, domain_);
  }
  // 40 equal tokens, one that differs, and so on.
  Ids changed(Ids text, int32_t every = 40) {
    for (size_t at = static_cast<size_t>(every); at < text.size(); at += static_cast<size_t>(every) + 1) {
      text[at] = next_id_++;
    }
    return text;
  }
};

TEST_F(NearIndexTest, FindsTheRunsBetweenChanges) {
  const Ids text = fresh(200);
  insert(1, text);
  const Ids prompt = join({fresh(5), changed(text, 15), fresh(20)});
  std::vector<Piece> expected;
  for (int32_t at = 0; at < 200; at += 16) expected.push_back({1, at, std::min(15, 200 - at), at + 5});
  EXPECT_EQ(near(prompt), expected);
  EXPECT_TRUE(index_.find_pieces(prompt, 0, domain_, 32, {}).empty()) << "power: equal discovery finds none of it";
}

TEST_F(NearIndexTest, OneChangedIdIsNeverReused) {
  const Ids text = fresh(120);
  insert(1, text);
  for (int32_t at = 0; at < 120; ++at) {
    Ids prompt = text;
    prompt[at] = -7;
    int32_t covered = 0;
    for (const Piece& piece : near(prompt)) {
      ASSERT_TRUE(piece.pos + piece.count <= at || piece.pos > at) << at;
      covered += piece.count;
    }
    const int32_t after = 119 - at;
    ASSERT_EQ(covered, (at >= kLeast ? at : 0) + (after >= kLeast ? after : 0)) << at;
  }
}

TEST_F(NearIndexTest, RunsInsertedAndRemovedShiftTheRest) {
  const Ids text = fresh(90);
  insert(1, text);
  const Ids prompt = join({part(text, 0, 20), fresh(3), part(text, 20, 50), part(text, 55, 90)});
  EXPECT_EQ(near(prompt), (std::vector<Piece>{{1, 0, 20, 0}, {1, 20, 30, 23}, {1, 55, 35, 53}}));
}

TEST_F(NearIndexTest, NotesInAnotherOrder) {
  std::vector<Ids> notes;
  for (int32_t i = 0; i < 20; ++i) notes.push_back(fresh(10 + i % 11));
  Ids cached, prompt;
  for (const Ids& note : notes) cached = join({cached, note});
  for (int32_t i = 0; i < 20; ++i) prompt = join({prompt, notes[i * 7 % 20]});
  insert(1, cached);
  int32_t covered = 0;
  for (const Piece& piece : near(prompt)) covered += piece.count;
  EXPECT_EQ(covered, static_cast<int32_t>(prompt.size()));
}

TEST_F(NearIndexTest, ShortSegmentsThatAreHeldWhole) {
  const Ids a = fresh(12), b = fresh(20);
  insert(1, a);
  insert(2, b);
  EXPECT_EQ(near(join({fresh(30), b, fresh(40), a, fresh(9)})), (std::vector<Piece>{{2, 0, 20, 30}, {1, 0, 12, 90}}));
  EXPECT_TRUE(near(join({fresh(30), part(b, 0, 18), fresh(40)})).empty()) << "18 of 20 tokens do not pay";
}

// Short segments say so best: nothing else of theirs can be met.
TEST_F(NearIndexTest, TwelveTokensInARowAreAlwaysMet) {
  for (const int32_t tokens : {12, 11}) {
    int missed = 0;
    for (SegmentId id = 1; id <= 400; ++id) {
      const Ids text = fresh(tokens);
      insert(id, text);
      missed += near(join({fresh(40), text, fresh(40)})).empty() ? 1 : 0;
      index_.erase(id);
    }
    EXPECT_EQ(missed == 0, tokens == 12) << missed << " with " << tokens;
  }
}

TEST_F(NearIndexTest, FewEqualTokensInAllAreNotTaken) {
  const Ids text = fresh(200);
  insert(1, text);
  EXPECT_TRUE(near(join({fresh(40), part(text, 30, 61), fresh(40)})).empty());
  EXPECT_EQ(near(join({fresh(40), part(text, 30, 62), fresh(40)})).size(), 1u);
  EXPECT_TRUE(near(join({part(text, 0, 20), fresh(33), part(text, 20, 40)})).empty()) << "too far apart";
  EXPECT_EQ(near(join({part(text, 0, 20), fresh(32), part(text, 20, 40)})).size(), 2u);
}

TEST_F(NearIndexTest, LeastLengthIsMetFromBothSides) {
  const Ids text = fresh(300);
  insert(1, text);
  for (const int32_t least : {8, 11, 16}) {
    Ids equal, shorter;  // between runs that count in any case
    for (int32_t at = 0; at + 30 + least < 300; at += 40 + least) {
      equal = join({equal, part(text, at, at + 30), fresh(2), part(text, at + 33, at + 33 + least), fresh(2)});
      shorter = join({shorter, part(text, at, at + 30), fresh(2), part(text, at + 33, at + 32 + least), fresh(2)});
    }
    const size_t blocks = equal.size() / (34 + static_cast<size_t>(least));
    EXPECT_EQ(near(equal, least).size(), 2 * blocks) << least;
    EXPECT_EQ(near(shorter, least).size(), blocks) << least;
  }
}

TEST_F(NearIndexTest, GapsAreNotLeft) {
  const Ids text = fresh(200);
  insert(1, text);
  const Ids prompt = changed(text);
  const Runs gaps{{3, 60}, {100, 107}, {120, 190}};
  EXPECT_EQ(index_.find_near({prompt, gaps, {}, kLeast, kTogether}, domain_),
            (std::vector<Piece>{{1, 3, 37, 3}, {1, 41, 19, 41}, {1, 123, 40, 123}, {1, 164, 26, 164}}));
  EXPECT_TRUE(index_.find_near({prompt, {}, {}, kLeast, kTogether}, domain_).empty());
}

TEST_F(NearIndexTest, KnownPiecesAreNeighboursAndNotFoundAgain) {
  const Ids text = fresh(200);
  insert(1, text);
  insert(2, fresh(100));
  const Ids prompt = join({part(text, 0, 60), fresh(2), part(text, 61, 81), fresh(2), part(text, 83, 150)});
  const Runs all = whole(prompt.size());
  const auto found = [&](const std::vector<Piece>& known) {
    return index_.find_near({prompt, all, known, kLeast, kTogether}, domain_);
  };
  EXPECT_EQ(found({{1, 0, 60, 0}, {1, 83, 67, 84}}), (std::vector<Piece>{{1, 61, 20, 62}}));
  EXPECT_TRUE(found({{2, 0, 60, 0}, {2, 0, 67, 84}}).empty()) << "power: 20 tokens beside another segment do not pay";
  EXPECT_TRUE(found({{1, 0, static_cast<int32_t>(prompt.size()), 0}}).empty());
}

TEST_F(NearIndexTest, DomainsNeverMeet) {
  for (const int bits : {64, 0}) {  // 0: every key collides
    ContentIndex index(HashSecret::fixed(1), {.key_bits = bits});
    index.keep_near();
    const DomainId mine = index.domain("m", "", "mine");
    const Ids text = fresh(100), prompt = changed(text, 30);
    index.insert(1, {.tokens = text, .domain = mine});
    const Runs all = whole(100);
    for (const DomainId other : {index.domain("m", "", "theirs"), index.domain("m", "mine", ""),
                                 index.domain("n", "", "mine"), DomainId{0}, DomainId{99}}) {
      EXPECT_TRUE(index.find_near({prompt, all, {}, kLeast, kTogether}, other).empty()) << bits;
    }
    EXPECT_EQ(index.find_near({prompt, all, {}, kLeast, kTogether}, mine).size(), 3u) << bits;  // power check
  }
}

TEST_F(NearIndexTest, OtherDomainsDoNotCrowdOut) {
  const Ids text = fresh(100);
  insert(1, text);
  for (SegmentId id = 2; id <= 60; ++id) {
    index_.insert(id, {.tokens = text, .domain = index_.domain("model", "space", std::to_string(id))});
  }
  EXPECT_FALSE(near(changed(text)).empty());
}

TEST_F(NearIndexTest, NothingIsKeptBeforeItIsAskedFor) {
  ContentIndex asked(HashSecret::fixed(1)), later(HashSecret::fixed(1)), never(HashSecret::fixed(1));
  asked.keep_near();
  const Ids text = fresh(500), prompt = changed(text, 20);
  const Runs all = whole(500);
  for (ContentIndex* index : {&asked, &later, &never}) {
    const DomainId domain = index->domain("m", "", "");
    for (SegmentId id = 1; id <= 5; ++id) {
      const auto begin = static_cast<int32_t>(id - 1) * 100;
      index->insert(id, {.tokens = part(text, begin, begin + 100), .domain = domain});
    }
    index->erase(2);
    if (index == &later) {
      index->keep_near();
      EXPECT_FALSE(index->near_more(1000));
    }
    EXPECT_EQ(index->find_near({prompt, all, {}, kLeast, kTogether}, domain).empty(), index == &never);
  }
  EXPECT_EQ(asked.find_near({prompt, all, {}, kLeast, kTogether}, asked.domain("m", "", "")),
            later.find_near({prompt, all, {}, kLeast, kTogether}, later.domain("m", "", "")));
  EXPECT_EQ(never.near_postings(), 0u);
  EXPECT_GT(asked.bytes(), never.bytes());
  EXPECT_EQ(asked.near_postings(), later.near_postings());
}

// What was there before near duplicates were asked for comes a part at a time, the newest first, while segments come, go
// and are cut. At its end the index finds what one finds that was asked from the start.
TEST_F(NearIndexTest, WhatWasThereBeforeComesInParts) {
  ContentIndex late(HashSecret::fixed(1));
  const DomainId domain = late.domain("model", "space", "salt");
  std::vector<Ids> texts{{}};
  const auto both = [&](auto&& step) { step(index_), step(late); };
  const auto put = [&](SegmentId id) {
    texts.push_back(fresh(400));
    both([&](ContentIndex& to) { to.insert(id, {.tokens = texts.back(), .domain = domain_}); });
  };
  ASSERT_EQ(domain, domain_);
  for (SegmentId id = 1; id <= 40; ++id) put(id);
  const auto found_late = [&](SegmentId id) {
    const Ids prompt = changed(texts[id]);
    const Runs all = whole(prompt.size());
    return !late.find_near({prompt, all, {}, kLeast, kTogether}, domain).empty();
  };
  late.keep_near();
  EXPECT_EQ(late.near_postings(), 0u);
  ASSERT_TRUE(late.near_more(1000));
  EXPECT_TRUE(found_late(40));
  EXPECT_FALSE(found_late(1)) << "power: it is not there yet";
  both([&](ContentIndex& to) { to.erase(40), to.erase(2), to.truncate(39, 100), to.truncate(3, 100); });
  put(41), put(42), put(43);  // two of them have slots of those that left, one of which is yet to come
  EXPECT_TRUE(found_late(43));
  int parts = 1;
  for (; late.near_more(1000); ++parts) {
    ASSERT_LE(late.near_postings(), static_cast<size_t>(parts + 5) * 400) << "a part is no more than was asked for";
  }
  EXPECT_GT(parts, 10);
  EXPECT_EQ(late.near_postings(), index_.near_postings());
  for (SegmentId id = 1; id <= 43; ++id) {
    const Ids prompt = changed(texts[id], 60);
    const Runs all = whole(prompt.size());
    EXPECT_EQ(late.find_near({prompt, all, {}, kLeast, kTogether}, domain), near(prompt)) << id;
  }
  for (SegmentId id = 1; id <= 43; ++id) late.erase(id);
  EXPECT_EQ(late.near_postings(), 0u);
}

// However a segment is cut, it is found as if it had never been longer; and only what is cut costs anything.
TEST_F(NearIndexTest, WhatIsLeftOfACutSegment) {
  std::mt19937 random(5);
  for (const int32_t words : {2, 5, 1000}) {  // few: minima with equal keys
    Ids text;
    for (int i = 0; i < 700; ++i) text.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(words)));
    const auto id = static_cast<SegmentId>(words);
    insert(id, text);
    const size_t others = index_.near_postings();
    size_t first = 0;
    for (auto left = static_cast<int32_t>(text.size()); left > 0; left -= 1 + left / 300) {
      index_.truncate(id, left);
      ContentIndex anew{HashSecret::fixed(1)};
      anew.keep_near();
      const DomainId domain = anew.domain("model", "space", "salt");
      anew.insert(id, {.tokens = part(text, 0, left), .domain = domain});
      if (first == 0) first = anew.near_postings();
      ASSERT_EQ(index_.near_postings(), others - first + anew.near_postings()) << words << " words, " << left;
      const Runs all = whole(text.size());
      if (left % 10 != 0) continue;
      ASSERT_EQ(near(text), anew.find_near({text, all, {}, kLeast, kTogether}, domain)) << words << ", " << left;
    }
    index_.erase(id);
    EXPECT_EQ(index_.near_postings(), 0u);
  }
  insert(1, fresh(20000));
  for (int32_t left = 20000 - 256; left > 0; left -= 256) {
    const int64_t before = index_.near_changes();
    index_.truncate(1, left);
    ASSERT_LE(index_.near_changes() - before, 256) << left;
    ASSERT_GT(index_.near_changes() - before, 20) << "power";
  }
}

// A cut segment keeps its place: it does not come before those that are newer.
TEST_F(NearIndexTest, ACutSegmentStaysAsOldAsItIs) {
  const Ids shared = fresh(200);
  for (SegmentId id = 1; id <= NearIndex::kMaxHits + 1; ++id) insert(id, join({shared, fresh(50)}));
  ASSERT_EQ(near(changed(shared)).at(0).segment, 2u) << "power: the oldest has no vote";
  index_.truncate(1, 200);
  EXPECT_EQ(near(changed(shared)).at(0).segment, 2u);
}

TEST_F(NearIndexTest, ChainsAreNotFound) {
  const Ids text = fresh(100);
  index_.insert(1, {.tokens = text, .domain = domain_, .found_as = FoundAs::kChain});
  EXPECT_EQ(index_.near_postings(), 0u);
  EXPECT_TRUE(near(changed(text)).empty());
  index_.erase(1);
}

TEST_F(NearIndexTest, RepetitionIsNotQuadratic) {
  for (SegmentId id = 1; id <= 20; ++id) insert(id, Ids(2000, 7));
  const auto compared = [&](int32_t tokens) {
    const Ids prompt(static_cast<size_t>(tokens), 7);
    const Runs all = whole(prompt.size());
    SearchCost cost;
    index_.find_near({prompt, all, {}, kLeast, kTogether}, domain_, &cost);
    EXPECT_LT(cost.hits, tokens * 4);
    return cost.compared;
  };
  EXPECT_LE(compared(8000), 8000 * NearIndex::kCreditPerToken + NearIndex::kFirstCredit + 2 * 8000);
  EXPECT_LT(index_.near_postings(), 20u * 2000 / 7) << "one of eight grams that are all equal";
}

// ---- Against brute force --------------------------------------------------------------------------------------------

struct Recall {
  int64_t found = 0, there = 0;
  double value() const { return static_cast<double>(found) / static_cast<double>(std::max<int64_t>(1, there)); }
};

TEST(NearRecall, OfWhatBruteForceFindsInEditedSources) {
  std::mt19937_64 random(3);
  std::vector<Lines> sources;
  ContentIndex index(HashSecret::fixed(1));
  index.keep_near();
  const DomainId domain = index.domain("m", "", "");
  for (SegmentId id = 1; id <= 60; ++id) {
    sources.push_back(made_up_lines(60, random));
    index.insert(id, {.tokens = joined(sources.back()), .domain = domain});
  }
  // The least share of the tokens in runs of 8 that must be found, of those that brute force finds in the one source.
  const std::map<std::string, double> floors{{"numbered", .95}, {"indented", .95}, {"escaped", .95}, {"notes", .97},
                                             {"1", .97},        {"5", .97},        {"20", .97}};
  for (const auto& [form, floor] : floors) {
    Recall near, equal;
    for (size_t i = 0; i < sources.size(); i += 4) {
      const Ids prompt = edited(sources[i], form, random);
      const std::vector<bool> there = equal_runs(prompt, joined(sources[i]), kLeast);
      const Runs all = whole(prompt.size());
      const auto add = [&](const std::vector<Piece>& pieces, Recall& to) {
        to.there += std::count(there.begin(), there.end(), true);
        for (const Piece& piece : pieces) {
          for (int32_t pos = piece.pos; pos < piece.pos + piece.count; ++pos) to.found += there[pos] ? 1 : 0;
        }
      };
      std::vector<Piece> pieces = index.find_pieces(prompt, 0, domain, kTogether, {});
      add(pieces, equal);
      const std::vector<Piece> more = index.find_near({prompt, all, pieces, kLeast, kTogether}, domain);
      pieces.insert(pieces.end(), more.begin(), more.end());
      add(pieces, near);
    }
    EXPECT_GE(near.value(), floor) << form;
    EXPECT_LE(near.value(), 1) << form;
    if (form == "numbered" || form == "indented" || form == "escaped") {
      EXPECT_LT(equal.value(), .1) << form;
    }
  }
}

// What brute force proposes: all longest equal runs of at least kLeast tokens, of those segments that count.
class BruteForce {
 public:
  std::map<SegmentId, Ids> segments;

  Runs covered(const Ids& prompt) const {
    std::vector<Candidate> all;
    for (const auto& [id, text] : segments) {
      std::vector<Candidate> runs = runs_of(prompt, text);
      std::ranges::sort(runs, {}, &Candidate::begin);
      for (auto first = runs.begin(); first != runs.end();) {
        int32_t end = first->begin, tokens = 0;
        auto last = first;
        for (; last != runs.end() && last->begin - end <= kTogether; ++last) {
          tokens += std::max(0, last->end - std::max(end, last->begin));
          end = std::max(end, last->end);
        }
        for (; first != last; ++first) {
          if (tokens >= kTogether || first->end - first->begin == std::ssize(text)) all.push_back(*first);
        }
      }
    }
    Runs out;
    for (const Candidate& c : choose_coverage(all, kLeast)) out.push_back({c.begin, c.end});
    return normalize(out);
  }

 private:
  static std::vector<Candidate> runs_of(const Ids& prompt, const Ids& text) {
    std::vector<Candidate> out;
    const auto p = static_cast<int32_t>(prompt.size()), t = static_cast<int32_t>(text.size());
    for (int32_t shift = -p + 1; shift < t; ++shift) {
      for (int32_t pos = std::max(0, -shift), begin = -1; pos <= std::min(p, t - shift); ++pos) {
        const bool equal = pos < std::min(p, t - shift) && prompt[pos] == text[pos + shift];
        if (equal && begin < 0) begin = pos;
        if (equal || begin < 0) continue;
        if (pos - begin >= kLeast) out.push_back({.begin = begin, .end = pos, .offset = begin + shift});
        begin = -1;
      }
    }
    return out;
  }
};

// Segments come, go and are cut; after each step a prompt of parts of them, whose runs are long enough to be seen.
TEST(NearProperty, AnyOrderOfStepsIsAsBruteForce) {
  std::mt19937_64 random(11);
  int32_t word = 1000;
  int64_t covered = 0;
  for (int trial = 0; trial < 20; ++trial) {
    const bool collide = trial % 4 == 0;  // then a key has more segments than get a vote: what is found must be true
    ContentIndex index(HashSecret::fixed(static_cast<uint64_t>(trial)), {.key_bits = collide ? 6 : 64});
    if (trial % 2 == 0) index.keep_near();
    const DomainId domain = index.domain("m", "", ""), other = index.domain("m", "", "other");
    BruteForce model;
    std::vector<Ids> texts;
    for (SegmentId id = 1; id <= 60; ++id) {
      Ids text;
      for (uint64_t i = 0, parts = 1 + random() % 4; i < parts; ++i) {  // a part of another text, or new words
        const bool old = !texts.empty() && random() % 2 == 0;
        const Ids& from = old ? texts[random() % texts.size()] : text;
        const size_t size = 12 + random() % 40, begin = old && from.size() > size ? random() % (from.size() - size) : 0;
        if (old && from.size() >= begin + size) {
          const Ids piece(from.begin() + static_cast<std::ptrdiff_t>(begin),
                          from.begin() + static_cast<std::ptrdiff_t>(begin + size));
          text.insert(text.end(), piece.begin(), piece.end());
        } else {
          for (size_t at = 0; at < size; ++at) text.push_back(++word);
        }
        text.push_back(++word);
      }
      texts.push_back(text);
      index.insert(id, {.tokens = text, .domain = random() % 5 == 0 ? other : domain});
      if (index.info(id).domain == domain) model.segments[id] = text;
      const SegmentId gone = 1 + random() % id;
      if (random() % 3 == 0) {
        index.erase(gone);
        model.segments.erase(gone);
      } else if (random() % 3 == 0 && index.contains(gone)) {
        const auto size = static_cast<int32_t>(index.info(gone).tokens.size());
        const int32_t keep = std::min(size, 12 + static_cast<int32_t>(random() % 60));  // shorter ones may not be met
        index.truncate(gone, keep);
        if (model.segments.count(gone)) model.segments[gone].resize(static_cast<size_t>(keep));
      }
      if (id == 30) index.keep_near();
      if (!index.keeps_near()) continue;
      while (index.near_more(100)) continue;
      Ids prompt = texts[random() % texts.size()];
      const Ids& more = texts[random() % texts.size()];
      prompt.insert(prompt.end(), more.begin(), more.end());
      const Runs all = whole(prompt.size());
      Runs found;
      for (const Piece& piece : index.find_near({prompt, all, {}, kLeast, kTogether}, domain)) {
        const Ids& text = model.segments.at(piece.segment);
        ASSERT_TRUE(std::equal(prompt.begin() + piece.pos, prompt.begin() + piece.pos + piece.count,
                               text.begin() + piece.segment_offset));
        found.push_back({piece.pos, piece.pos + piece.count});
      }
      if (!collide) {
        ASSERT_EQ(normalize(found), model.covered(prompt)) << "trial " << trial << " step " << id;
      }
      covered += count(normalize(found));
    }
    for (SegmentId id = 1; id <= 60; ++id) index.erase(id);
    EXPECT_EQ(index.near_postings(), 0u);
  }
  EXPECT_GT(covered, 10'000) << "power: there was something to find";
}

}  // namespace
}  // namespace kvilt

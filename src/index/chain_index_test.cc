#include "index/chain_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "index/index_for_test.h"

namespace kvilt {
namespace {

using Pieces = std::vector<Piece>;

class PrefixTest : public IndexTest {
 protected:
  void insert(SegmentId id, const Ids& ids, SegmentId parent = 0, int32_t parent_tokens = 0, bool exact = true) {
    index_.insert(id,
                  {.tokens = ids, .domain = domain_, .exact = exact, .parent = parent, .parent_tokens = parent_tokens});
  }
  Pieces find(const Ids& prompt, int32_t limit = 1 << 30) const { return index_.find_prefix(prompt, domain_, limit); }
};

TEST_F(PrefixTest, TokenGranularAtEveryLength) {
  const Ids text = fresh(100);
  insert(1, text);
  for (int32_t n = 1; n <= 100; ++n) {
    const Pieces expected{{1, 0, n, 0}};
    ASSERT_EQ(find(join({part(text, 0, n), fresh(40)})), expected) << n;
    ASSERT_EQ(find(part(text, 0, n)), expected) << n;
    ASSERT_EQ(find(text, n), expected) << "limit " << n;
  }
  EXPECT_TRUE(find(fresh(50)).empty());
  EXPECT_TRUE(find({}).empty());
  EXPECT_TRUE(find(text, 0).empty());
  EXPECT_TRUE(find(text, -3).empty());
}

TEST_F(PrefixTest, AlongParentsThatStraddleBlocks) {
  for (int32_t trial = 0; trial < 40; ++trial) {
    const SegmentId base = 10 * static_cast<SegmentId>(trial) + 1;
    const Ids a = fresh(10 + trial), b = fresh(1 + trial / 2), c = fresh(3), d = fresh(50);
    const int32_t of_a = static_cast<int32_t>(a.size()) - trial % 4;  // children may leave before the parent's end
    insert(base, a);
    insert(base + 1, b, base, of_a);
    insert(base + 2, c, base + 1, static_cast<int32_t>(b.size()));
    insert(base + 3, d, base + 2, 2);
    const Ids chain = join({part(a, 0, of_a), b, part(c, 0, 2), d});
    Pieces expected{{base, 0, of_a, 0}};
    expected.push_back({base + 1, 0, static_cast<int32_t>(b.size()), of_a});
    expected.push_back({base + 2, 0, 2, expected.back().pos + expected.back().count});
    expected.push_back({base + 3, 0, 50, expected.back().pos + 2});
    ASSERT_EQ(find(chain), expected) << trial;
    for (int32_t n = 1; n <= static_cast<int32_t>(chain.size()); ++n) {
      int32_t covered = 0;
      for (const Piece& p : find(join({part(chain, 0, n), fresh(20)}))) {
        ASSERT_EQ(p.pos, covered);
        covered += p.count;
      }
      ASSERT_EQ(covered, n) << trial;
    }
  }
}

TEST_F(PrefixTest, DivergentChildrenAndPartialTails) {
  const Ids system = fresh(37);
  insert(1, system);
  std::vector<Ids> users;
  for (SegmentId id = 2; id < 42; ++id) {
    users.push_back(join({Ids{5, 6, 7}, fresh(30)}));  // all begin alike, as templates do
    insert(id, users.back(), 1, 37);
  }
  for (size_t i = 0; i < users.size(); ++i) {
    for (const int32_t n : {4, 8, 11, 20, 33}) {
      const Pieces expected{{1, 0, 37, 0}, {i + 2, 0, n, 37}};
      ASSERT_EQ(find(join({system, part(users[i], 0, n), fresh(9)})), expected) << i << " " << n;
    }
  }
}

// A prefix that grows is looked for again and again: what was there is not hashed anew, and what is found is the same,
// whatever came and went meanwhile.
TEST_F(PrefixTest, WhatWasFoundIsNotHashedAgain) {
  const Ids text = fresh(40 * 100);
  ChainEnd reach;
  int64_t hashed = 0, anew = 0;
  for (SegmentId id = 1; id <= 100; ++id) {
    insert(id, part(text, 40 * (static_cast<int32_t>(id) - 1), 40 * static_cast<int32_t>(id)), id - 1,
           id == 1 ? 0 : 40);
    SearchCost cost, whole;
    const Pieces found = index_.find_prefix(text, domain_, 1 << 30, reach, &cost);
    EXPECT_EQ(found, index_.find_prefix(text, domain_, 1 << 30, {}, &whole));
    reach = end_of(found);
    ASSERT_EQ(reach.pos, 40 * static_cast<int32_t>(id));
    hashed += cost.probes;
    anew += whole.probes;
  }
  EXPECT_LE(hashed, 4000 / 16 + 100);
  EXPECT_GT(anew, 10 * hashed) << "power";
  // Not what was found in another domain, of a longer prompt, or what has left since.
  const DomainId other = index_.domain("model", "space", "another salt");
  EXPECT_TRUE(index_.find_prefix(text, other, 1 << 30, reach).empty());
  EXPECT_EQ(index_.find_prefix(text, domain_, 1000, reach), find(text, 1000));
  index_.truncate(100, 8);
  EXPECT_EQ(end_of(index_.find_prefix(text, domain_, 1 << 30, reach)).pos, 3968);
  index_.erase(50);
  EXPECT_EQ(end_of(index_.find_prefix(text, domain_, 1 << 30, reach)).pos, 49 * 40);
  insert(200, part(text, 49 * 40, 4000), 49, 40);
  EXPECT_EQ(end_of(index_.find_prefix(text, domain_, 1 << 30, {49, 40, 49 * 40})).pos, 4000);
}

// Whatever is known of a chain that others write too, and however they cut it.
TEST_F(PrefixTest, FromEveryPlaceTheSameIsFound) {
  std::mt19937 rng(3);
  const Ids text = fresh(300);
  for (SegmentId first = 1; first < 100; first += 10) {  // writers of the same tokens
    SegmentId parent = 0, id = first;
    int32_t tokens = 0;
    for (int32_t begin = 0; begin < 250; ++id) {
      const int32_t end =
          std::min<int32_t>(250 + static_cast<int32_t>(first) / 2, begin + 1 + static_cast<int32_t>(rng() % 120));
      insert(id, part(text, begin, end), parent, tokens);
      parent = id, tokens = end - begin, begin = end;
    }
  }
  const Pieces all = find(text);
  for (SegmentId id = 1; id < 110; ++id) {
    if (!index_.contains(id)) continue;
    for (int32_t tokens = 1; tokens <= static_cast<int32_t>(index_.text(id).size()); ++tokens) {
      const int32_t pos = index_.text(id)[0] - text[0] + tokens;  // ids count on
      EXPECT_EQ(end_of(index_.find_prefix(text, domain_, 300, {id, tokens, pos})).pos, end_of(all).pos)
          << id << " " << tokens;
    }
  }
}

TEST_F(PrefixTest, ApproximateSegmentsAreNeverAPrefix) {
  const Ids a = fresh(64), b = fresh(64);
  insert(1, a, 0, 0, false);
  insert(2, b, 1, 64, true);  // its chain is not exact
  EXPECT_TRUE(find(a).empty());
  EXPECT_TRUE(find(join({a, b})).empty());
  EXPECT_TRUE(find(b).empty());
  EXPECT_FALSE(index_.is_prefix(1));
  EXPECT_FALSE(index_.is_prefix(2));
  EXPECT_EQ(index_.find_pieces(join({a, b}), 0, domain_, 32, {}).size(), 2u);
  insert(3, a);  // power check
  EXPECT_EQ(find(a), (Pieces{{3, 0, 64, 0}}));
}

TEST_F(PrefixTest, ErasedParentsTakeTheirChainsAlong) {
  const Ids a = fresh(40), b = fresh(40), c = fresh(40);
  insert(1, a);
  insert(2, b, 1, 40);
  insert(3, c, 2, 40);
  const Ids all = join({a, b, c});
  EXPECT_EQ(find(all).size(), 3u);
  index_.erase(2);
  EXPECT_EQ(find(all), (Pieces{{1, 0, 40, 0}}));
  EXPECT_FALSE(index_.is_prefix(3));
  EXPECT_EQ(index_.find_pieces(all, 40, domain_, 32, {}), (Pieces{{3, 0, 40, 80}}));
  insert(4, b, 1, 40);
  EXPECT_EQ(find(all).size(), 2u) << "segment 3 continued segment 2, which is gone";
  insert(5, c, 4, 40);
  EXPECT_EQ(find(all), (Pieces{{1, 0, 40, 0}, {4, 0, 40, 40}, {5, 0, 40, 80}}));
  for (SegmentId id : {1, 3, 5, 4}) index_.erase(id);
  EXPECT_TRUE(find(all).empty());
  insert(6, c, 4, 40);  // an unknown parent
  EXPECT_TRUE(find(all).empty());
  EXPECT_TRUE(find(c).empty()) << "it does not start at position 0";
}

TEST_F(PrefixTest, FirstWriterWinsAndTheSecondTakesOver) {
  const Ids a = fresh(64), b = fresh(64);
  insert(7, a);
  insert(3, a);
  insert(8, b, 3, 64);
  EXPECT_EQ(find(a), (Pieces{{7, 0, 64, 0}}));
  EXPECT_EQ(find(join({a, b})), (Pieces{{3, 0, 64, 0}, {8, 0, 64, 64}}));
  index_.erase(7);
  EXPECT_EQ(find(a), (Pieces{{3, 0, 64, 0}}));
}

TEST_F(PrefixTest, TheTwinThatGoesOnFurthestIsTaken) {
  const Ids a = fresh(40), b = fresh(20);
  insert(1, join({a, part(b, 0, 2), fresh(30)}));
  insert(2, join({a, part(b, 0, 9), fresh(30)}));
  insert(3, join({a, part(b, 0, 5), fresh(30)}));
  insert(4, part(b, 5, 20), 3, 45);
  EXPECT_EQ(find(join({a, part(b, 0, 4), fresh(5)})).at(0).segment, 2u);
  EXPECT_EQ(find(join({a, part(b, 0, 9), fresh(5)})).at(0).count + 0, 49);
  EXPECT_EQ(find(join({a, part(b, 0, 12), fresh(5)})), (Pieces{{3, 0, 45, 0}, {4, 0, 7, 45}}));
}

TEST_F(PrefixTest, ShortRootsAndSegmentsOfOneToken) {
  const Ids text = fresh(60);
  insert(1, part(text, 0, 3));
  SegmentId last = 1;
  for (int32_t i = 3; i < 60; ++i) {  // token by token, as a decode might publish
    insert(last + 1, part(text, i, i + 1), last, i == 3 ? 3 : 1);
    ++last;
  }
  const Pieces found = find(text);
  EXPECT_EQ(found.size(), 58u);
  int32_t at = 0;
  for (const Piece& p : found) {
    EXPECT_EQ(p.pos, at);
    at += p.count;
  }
  EXPECT_EQ(at, 60);
  EXPECT_EQ(find(part(text, 0, 2)), (Pieces{{1, 0, 2, 0}}));
}

// Random trees over a small vocabulary, with erasures, against a scan of every chain.
TEST_F(PrefixTest, EqualsAScanOfAllChains) {
  std::mt19937 random(2);
  const auto text = [&](int32_t count) {
    Ids ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 8 == 0);  // mostly zeros: much is shared
    return ids;
  };
  struct Node {
    SegmentId parent;
    int32_t parent_tokens;
    Ids ids;
  };
  std::map<SegmentId, Node> nodes;
  const auto chain_of = [&](SegmentId id) {
    Ids chain;
    bool whole = true;
    int32_t take = static_cast<int32_t>(nodes.at(id).ids.size());
    for (SegmentId at = id;;) {
      const auto it = nodes.find(at);
      if (it == nodes.end()) {
        whole = false;
        break;
      }
      chain.insert(chain.begin(), it->second.ids.begin(), it->second.ids.begin() + take);
      if (it->second.parent == 0) break;
      take = it->second.parent_tokens;
      at = it->second.parent;
    }
    return whole ? chain : Ids{};
  };
  SegmentId next = 1;
  int64_t found_tokens = 0;
  for (int step = 0; step < 1500; ++step) {
    if (nodes.size() > 12 || (random() % 4 == 0 && !nodes.empty())) {
      const auto victim = std::next(nodes.begin(), static_cast<ptrdiff_t>(random() % nodes.size()));
      index_.erase(victim->first);
      nodes.erase(victim);
    } else {
      Node node{0, 0, text(1 + static_cast<int32_t>(random() % 40))};
      if (!nodes.empty() && random() % 4 != 0) {
        const auto parent = std::next(nodes.begin(), static_cast<ptrdiff_t>(random() % nodes.size()));
        node.parent = parent->first;
        node.parent_tokens = 1 + static_cast<int32_t>(random() % parent->second.ids.size());
      }
      insert(next, node.ids, node.parent, node.parent_tokens);
      nodes.emplace(next++, node);
    }
    Ids prompt = text(60);
    if (!nodes.empty()) {
      const Ids chain = chain_of(std::next(nodes.begin(), static_cast<ptrdiff_t>(random() % nodes.size()))->first);
      std::copy_n(chain.begin(), std::min(chain.size(), static_cast<size_t>(random() % 61)), prompt.begin());
    }
    int32_t expected = 0;
    for (const auto& [id, node] : nodes) {
      const Ids chain = chain_of(id);
      expected = std::max(expected, common_prefix(chain, prompt));
    }
    int32_t at = 0;
    for (const Piece& p : find(prompt)) {
      const Ids& ids = nodes.at(p.segment).ids;
      ASSERT_EQ(p.pos, at);
      ASSERT_EQ(p.segment_offset, 0);
      ASSERT_TRUE(std::equal(ids.begin(), ids.begin() + p.count, prompt.begin() + p.pos));
      at += p.count;
    }
    ASSERT_EQ(at, expected) << "step " << step;
    found_tokens += at;
  }
  EXPECT_GT(found_tokens, 15'000);
}

}  // namespace
}  // namespace kvilt

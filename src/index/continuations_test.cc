// Continuations against a plain search: what is found follows the same tokens, in a text of the asked domain that is
// still there.
#include "index/continuations.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "index/index_for_test.h"

namespace kvilt {
namespace {

class ContinuationsTest : public IndexTest {
 protected:
  ContinuationsTest() { index_.keep_continuations(); }
  void insert(SegmentId id, const Ids& ids, DomainId domain = 0) {
    index_.insert(id, {.tokens = ids, .domain = domain ? domain : domain_});
  }
  // The token that follows, 0: none is known.
  int32_t next(const Ids& text, DomainId domain = 0) const {
    const auto found = index_.find_continuation(text, domain ? domain : domain_);
    return found ? index_.text(found->segment)[static_cast<size_t>(found->next)] : 0;
  }
};

TEST_F(ContinuationsTest, FindsWhatFollowedTheLastTokens) {
  const Ids text = fresh(100);
  insert(1, text);
  for (const int32_t end : {4, 5, 8, 50, 99}) {
    const auto found = index_.find_continuation(join({fresh(9), part(text, std::max(0, end - 40), end)}), domain_);
    ASSERT_TRUE(found) << end;
    EXPECT_EQ(found->segment, 1u);
    EXPECT_EQ(found->next, end);
    EXPECT_EQ(found->matched, std::min(end, kMostMatched));
  }
  EXPECT_EQ(next(part(text, 0, 100)), 0) << "nothing follows";
  EXPECT_EQ(next(join({fresh(9), part(text, 47, 50)})), 0) << "power: three tokens are too few";
  EXPECT_EQ(next({}), 0);
}

TEST_F(ContinuationsTest, TheLatestOfTheLongerMatchesComesFirst) {
  const Ids head = fresh(5), tail = fresh(5);
  insert(1, join({head, tail, {1}}));
  insert(2, join({tail, {2}}));
  EXPECT_EQ(next(join({head, tail})), 1) << "ten tokens are matched";
  EXPECT_EQ(next(tail), 2) << "five in both: the later one";
  insert(3, join({head, tail, {3}}));
  EXPECT_EQ(next(join({head, tail})), 3);
}

// The first tokens of an answer are found behind the last ones of its prompt.
TEST_F(ContinuationsTest, AnAnswerIsFoundBehindItsPrompt) {
  const Ids prompt = fresh(20), answer = fresh(10);
  index_.insert(1, {.tokens = prompt, .domain = domain_, .exact = true});
  EXPECT_EQ(next(join({fresh(4), part(prompt, 10, 20)})), 0) << "power";
  index_.insert(2, {.tokens = answer, .domain = domain_, .exact = true, .parent = 1, .parent_tokens = 20});
  for (const int32_t said : {0, 1, 3, 7}) {
    const auto found = index_.find_continuation(join({part(prompt, 10, 20), part(answer, 0, said)}), domain_);
    ASSERT_TRUE(found) << said;
    EXPECT_EQ(found->segment, 2u);
    EXPECT_EQ(found->next, said);
    EXPECT_EQ(found->matched, 10 + said);
  }
  index_.erase(1);  // what it continued is gone: only its own tokens are compared
  EXPECT_EQ(next(part(prompt, 10, 20)), 0);
  EXPECT_EQ(next(part(answer, 0, 7)), answer[7]);
}

TEST_F(ContinuationsTest, NoDomainSeesAnother) {
  const DomainId other = index_.domain("model", "space", "another salt");
  const Ids text = fresh(40);
  insert(1, text, other);
  EXPECT_EQ(next(part(text, 0, 20)), 0);
  EXPECT_EQ(next(part(text, 0, 20), other), text[20]) << "power";
  index_.erase(1);
  insert(2, text);  // in the slot of the one that has left
  EXPECT_EQ(next(part(text, 0, 20), other), 0);
  EXPECT_EQ(next(part(text, 0, 20)), text[20]) << "power";
}

TEST_F(ContinuationsTest, WhatWasThereBeforeIsFoundToo) {
  ContentIndex late{HashSecret::fixed(1)};
  const DomainId domain = late.domain("model", "space", "salt");
  const Ids text = fresh(40);
  late.insert(1, {.tokens = text, .domain = domain});
  EXPECT_FALSE(late.find_continuation(part(text, 0, 20), domain)) << "power: off until it is asked for";
  const size_t before = late.bytes();
  late.keep_continuations();
  EXPECT_GT(late.bytes(), before);
  EXPECT_EQ(late.find_continuation(part(text, 0, 20), domain)->next, 20);
}

// Texts come, lose their ends and go. Whatever is found follows equal tokens in a text that is there; most of what could
// be found is.
TEST_F(ContinuationsTest, WhateverComesAndGoes) {
  std::mt19937 rng(11);
  std::map<SegmentId, Ids> texts;
  const auto random_text = [&] {
    Ids out(20 + rng() % 400);
    for (int32_t& id : out) id = static_cast<int32_t>(rng() % 40);
    return out;
  };
  SegmentId last = 0;
  int found = 0, asked = 0;
  for (int round = 0; round < 600; ++round) {
    if (rng() % 3 != 0 || texts.empty()) {
      const Ids text = random_text();
      insert(++last, text);
      texts[last] = text;
    } else {
      auto it = std::next(texts.begin(), static_cast<ptrdiff_t>(rng() % texts.size()));
      const size_t keep = rng() % it->second.size();
      if (keep == 0 || rng() % 2) {
        index_.erase(it->first);
        texts.erase(it);
      } else {
        index_.truncate(it->first, static_cast<int32_t>(keep));
        it->second.resize(keep);
      }
    }
    if (texts.empty()) continue;
    const Ids& of = std::next(texts.begin(), static_cast<ptrdiff_t>(rng() % texts.size()))->second;
    if (of.size() < 10) continue;
    const auto end = static_cast<int32_t>(8 + rng() % (of.size() - 8));
    const Ids text = join({random_text(), part(of, 0, end)});
    ++asked;
    const auto got = index_.find_continuation(text, domain_);
    if (!got) continue;
    ++found;
    ASSERT_TRUE(texts.contains(got->segment));
    const Ids& there = texts[got->segment];
    ASSERT_LT(static_cast<size_t>(got->next), there.size());
    ASSERT_GE(got->matched, Continuations::kShort);
    ASSERT_LE(got->matched, std::min(got->next, kMostMatched));
    ASSERT_EQ(part(there, got->next - got->matched, got->next),
              part(text, static_cast<int32_t>(text.size()) - got->matched, static_cast<int32_t>(text.size())));
  }
  EXPECT_GT(found, asked * 6 / 10) << "of " << asked;
}

}  // namespace
}  // namespace kvilt

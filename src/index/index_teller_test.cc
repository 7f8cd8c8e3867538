#include "index/index_teller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "index/index_for_test.h"
#include "index/mirror_for_test.h"

namespace kvilt {
namespace {

class TellerTest : public IndexTest {
 protected:
  void insert(SegmentId id, const Ids& ids, SegmentId parent = 0, int32_t parent_tokens = 0, bool exact = true) {
    SegmentInfo info{
        .tokens = ids, .domain = domain_, .exact = exact, .parent = parent, .parent_tokens = parent_tokens};
    index_.insert(id, std::move(info));
    alive_[id] = ids;
  }
  SegmentId any(std::mt19937& random) const {
    return std::next(alive_.begin(), static_cast<int64_t>(random() % alive_.size()))->first;
  }
  // One change: a new segment, mostly one that continues another, of few different texts, so that twins are common.
  void change(std::mt19937& random) {
    const uint32_t what = random() % 10;
    if (alive_.empty() || (what < 6 && alive_.size() < 60)) {
      const SegmentId parent = alive_.empty() || random() % 4 == 0 ? 0 : any(random);
      const bool exact = random() % 8 != 0;
      Ids ids(1 + random() % 90);
      const auto first = static_cast<int32_t>(random() % 3);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = 7 * first + static_cast<int32_t>(i % 32);
      const int32_t size = parent == 0 ? 0 : static_cast<int32_t>(alive_[parent].size());
      const int32_t after = size == 0 ? 0 : random() % 2 ? size : static_cast<int32_t>(random() % size);
      insert(++last_, ids, exact ? parent : 0, exact ? after : 0, exact);
    } else if (what < 8) {
      const SegmentId id = any(random);
      index_.erase(id);
      alive_.erase(id);
    } else {
      const SegmentId id = any(random);
      const auto keep = static_cast<int32_t>(1 + random() % alive_[id].size());
      index_.truncate(id, keep);
      alive_[id].resize(keep);
    }
  }
  std::map<SegmentId, Ids> pieces() const {
    std::map<SegmentId, Ids> out;
    for (const auto& [id, ids] : alive_) {
      if (!index_.info(id).exact) out[id] = ids;
    }
    return out;
  }

  std::map<SegmentId, Ids> alive_;
  SegmentId last_ = 0;
};

TEST_F(TellerTest, OneBlockIsStoredOnceAndRemovedWithItsLastWriter) {
  Mirror mirror;
  index_.listen(&mirror);
  const Ids text = fresh(40);
  insert(1, text);
  EXPECT_EQ(mirror.blocks.size(), 2u);
  insert(2, part(text, 0, 33));
  EXPECT_EQ(mirror.calls, 1) << "a twin brings nothing new";
  insert(3, fresh(30), 1, 40);  // its first block begins in segment 1
  EXPECT_EQ(mirror.blocks.size(), 4u);
  index_.erase(1);
  EXPECT_EQ(mirror.blocks.size(), 2u) << "segment 2 still has the first two; what continued segment 1 left with it";
  index_.erase(2);
  EXPECT_TRUE(mirror.blocks.empty());
  EXPECT_EQ(mirror.unknown, 0);
  EXPECT_FALSE(mirror.open) << "this domain has a salt";
}

TEST_F(TellerTest, RandomChangesLeaveTheListenerWithWhatTheIndexHas) {
  std::mt19937 random(5);
  Mirror mirror;
  index_.listen(&mirror);
  for (int i = 0; i < 6000; ++i) {
    change(random);
    if (i % 20 != 0) continue;
    ASSERT_EQ(mirror.keys(), index_.block_keys()) << i;
    ASSERT_EQ(mirror.pieces, pieces()) << i;
  }
  EXPECT_EQ(mirror.unknown, 0);
  EXPECT_EQ(mirror.again, 0);
  EXPECT_GT(mirror.calls, 1000);
}

TEST_F(TellerTest, WhoHearsNothingDiffers) {  // the power check of the test above
  std::mt19937 random(5);
  Mirror mirror;
  index_.listen(&mirror);
  for (int i = 0; i < 300; ++i) change(random);
  index_.listen(nullptr);
  for (int i = 0; i < 300; ++i) change(random);
  EXPECT_NE(mirror.keys(), index_.block_keys());
}

TEST_F(TellerTest, EverythingIsToldAgainWhileTheIndexChanges) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    Mirror late;
    for (int i = 0; i < 40; ++i) change(random);  // nobody hears these
    index_.listen(&late);
    index_.tell_again();
    int parts = 1;
    for (; index_.tell_more(100); ++parts) change(random);
    EXPECT_GT(parts, 1);
    ASSERT_EQ(late.keys(), index_.block_keys()) << round;
    ASSERT_EQ(late.pieces, pieces()) << round;
    for (int i = 0; i < 10; ++i) change(random);
    ASSERT_EQ(late.keys(), index_.block_keys()) << round;
    index_.listen(nullptr);
  }
}

}  // namespace
}  // namespace kvilt

#include "tier/spread_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "tier/piece_for_test.h"

namespace kvilt {
namespace {

// What is in one place. Several Drawers on it are several processes.
struct Shelf {
  std::map<uint64_t, StoredPiece> pieces;
  bool up = true;
  bool counts_as_empty = false;  // while it is not up
};

class Drawer : public Tier {
 public:
  explicit Drawer(Shelf& shelf) : shelf_(shelf) {}
  Result<std::vector<StoredPiece>> known(const Digest&, uint32_t) override {
    std::vector<StoredPiece> out;
    if (!shelf_.up) return out;
    for (const auto& [id, piece] : shelf_.pieces) out.push_back(piece), told_.insert(id);
    return out;
  }
  uint64_t new_id() override { return ++last_id; }
  Status put(const StoredPiece& piece, std::span<const std::byte>, std::vector<uint64_t>& removed) override {
    if (!shelf_.up) return error(Code::kUnavailable, "gone");
    if (piece.parent != 0 && !shelf_.pieces.contains(piece.parent)) {
      removed.push_back(piece.parent);
      return error(Code::kNotFound, "parent");
    }
    shelf_.pieces[piece.id] = piece;
    told_.insert(piece.id);
    return {};
  }
  Status get(uint64_t id, int32_t, std::vector<std::byte>& out) override {
    if (!shelf_.up) return error(Code::kUnavailable, "gone");
    if (!shelf_.pieces.contains(id)) return error(Code::kNotFound, "none");
    out = values_for_test(shelf_.pieces[id]);
    return {};
  }
  void touch(uint64_t) override {}
  void remove(uint64_t id) override { shelf_.pieces.erase(id); }
  Status clear() override { return shelf_.pieces.clear(), Status(); }
  Status flush() override { return {}; }
  int64_t bytes() const override { return pieces(); }
  int64_t pieces() const override { return std::ssize(shelf_.pieces); }
  std::optional<Sharing> sharing() const override {
    return Sharing{std::chrono::milliseconds(100), std::chrono::milliseconds(500)};
  }
  bool ready() const override { return ready_; }
  News news() override {
    News out;
    ready_ = shelf_.up;
    if (!shelf_.up) {
      if (!shelf_.counts_as_empty || told_.empty()) return out;
      out.removed.assign(told_.begin(), told_.end());
      out.came_back = true;
      told_.clear();
      return out;
    }
    for (const auto& [id, piece] : shelf_.pieces) {
      if (told_.insert(id).second) out.stored.push_back(piece);
    }
    std::erase_if(told_, [&](uint64_t id) {
      if (shelf_.pieces.contains(id)) return false;
      out.removed.push_back(id);
      return true;
    });
    return out;
  }
  static inline uint64_t last_id = 0;

 private:
  Shelf& shelf_;
  std::set<uint64_t> told_;
  bool ready_ = true;
};

class SpreadTierTest : public testing::Test {
 protected:
  static constexpr int kPlaces = 4;
  std::unique_ptr<SpreadTier> open(int places = kPlaces) {
    std::vector<SpreadTier::Place> out;
    for (int i = 0; i < places; ++i)
      out.push_back({"10.0.0." + std::to_string(i) + ":6379", std::make_unique<Drawer>(shelves[i])});
    auto tier = std::make_unique<SpreadTier>(std::move(out));
    EXPECT_TRUE(tier->known({}, kTokenBytes).ok());
    return tier;
  }
  static uint64_t put(SpreadTier& tier, uint64_t parent = 0, std::optional<Code> expected = {}) {
    const StoredPiece piece = piece_for_test(tier.new_id(), 300, parent);
    std::vector<uint64_t> removed;
    const Status done = tier.put(piece, values_for_test(piece), removed);
    EXPECT_EQ(done.ok() ? std::nullopt : std::optional(done.error().code), expected);
    return piece.id;
  }
  int place_of(uint64_t id) const {
    int out = -1;
    for (int i = 0; i < kPlaces; ++i) {
      if (!shelves[i].pieces.contains(id)) continue;
      EXPECT_EQ(out, -1) << "in two places";
      out = i;
    }
    return out;
  }
  Shelf shelves[kPlaces];
};

TEST_F(SpreadTierTest, PiecesAreSpreadEvenlyAndEverybodyFindsThem) {
  const auto tier = open();
  for (int i = 0; i < 2000; ++i) put(*tier);
  for (const Shelf& shelf : shelves) EXPECT_NEAR(std::ssize(shelf.pieces), 500, 100);
  EXPECT_EQ(tier->pieces(), 2000);
  const auto other = open();
  for (const Shelf& shelf : shelves) {
    for (const auto& [id, piece] : shelf.pieces) ASSERT_TRUE(chunk_of(*other, id, 0).ok());
  }
  const uint64_t late = put(*other);
  EXPECT_FALSE(chunk_of(*tier, late, 0).ok()) << "power check: nobody told it";
  const Tier::News news = tier->news();
  ASSERT_EQ(news.stored.size(), 1u);
  EXPECT_EQ(news.stored[0].id, late);
  EXPECT_TRUE(chunk_of(*tier, late, 0).ok());
}

TEST_F(SpreadTierTest, AChainStaysTogether) {
  const auto tier = open();
  for (int chain = 0; chain < 20; ++chain) {
    uint64_t last = put(*tier);
    const int home = place_of(last);
    for (int i = 0; i < 5; ++i) {
      last = put(*tier, last);
      EXPECT_EQ(place_of(last), home);
    }
  }
  put(*tier, 999'999, Code::kNotFound);
}

TEST_F(SpreadTierTest, APlaceThatGoesTakesItsOwn) {
  const auto tier = open();
  std::vector<uint64_t> ids;
  for (int i = 0; i < 200; ++i) ids.push_back(put(*tier));
  shelves[2].up = false;
  EXPECT_FALSE(tier->news().came_back);
  EXPECT_TRUE(tier->ready());
  for (const uint64_t id : ids) EXPECT_EQ(chunk_of(*tier, id, 0).ok(), place_of(id) != 2);
  for (int i = 0; i < 100; ++i) EXPECT_NE(place_of(put(*tier)), 2) << "what would be there goes elsewhere";
  shelves[2].pieces.clear();
  shelves[2].up = true;
  const Tier::News news = tier->news();
  EXPECT_TRUE(news.came_back);
  EXPECT_GT(news.removed.size(), 20u);
  for (const uint64_t id : news.removed) EXPECT_EQ(place_of(id), -1);
  std::set<int> places;
  for (int i = 0; i < 100; ++i) places.insert(place_of(put(*tier)));
  EXPECT_TRUE(places.contains(2));
  for (Shelf& shelf : shelves) shelf.up = false;
  tier->news();
  EXPECT_FALSE(tier->ready());
  put(*tier, 0, Code::kUnavailable);
}

// A place that stays away holds nothing for others, until it is back and says what it has.
TEST_F(SpreadTierTest, APlaceThatStaysAwayIsReplaced) {
  const auto tier = open();
  std::vector<uint64_t> ids;
  for (int i = 0; i < 200; ++i) ids.push_back(put(*tier));
  const auto lost = std::ranges::find_if(ids, [&](uint64_t id) { return place_of(id) == 2; });
  ASSERT_NE(lost, ids.end());
  const size_t count = shelves[2].pieces.size();
  shelves[2].up = false;
  EXPECT_TRUE(tier->news().removed.empty()) << "not at once";
  put(*tier, *lost, Code::kUnavailable);
  shelves[2].counts_as_empty = true;
  const Tier::News away = tier->news();
  EXPECT_EQ(away.removed.size(), count);
  EXPECT_TRUE(away.came_back) << "all that is cached is offered to the others";
  EXPECT_EQ(chunk_of(*tier, *lost, 0).error().code, Code::kNotFound);
  put(*tier, *lost, Code::kNotFound);
  for (int i = 0; i < 100; ++i) EXPECT_NE(place_of(put(*tier)), 2);
  EXPECT_TRUE(tier->news().removed.empty()) << "once";
  shelves[2].up = true;
  const Tier::News back = tier->news();
  EXPECT_EQ(back.stored.size(), count);
  EXPECT_TRUE(back.came_back);
  EXPECT_TRUE(chunk_of(*tier, *lost, 0).ok());
}

// Four places instead of three: what is stored is found where it is; a quarter of what comes goes to the new one.
TEST_F(SpreadTierTest, AnotherPlaceMovesNothing) {
  const auto three = open(3);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 300; ++i) ids.push_back(put(*three));
  const auto four = open();
  for (const uint64_t id : ids) EXPECT_TRUE(chunk_of(*four, id, 0).ok());
  int moved = 0;
  for (int i = 0; i < 400; ++i) moved += place_of(put(*four)) == 3;
  EXPECT_NEAR(moved, 100, 40);
}

// What continues a piece has the larger id, in whatever place that is and however fast its writer's clock was.
TEST_F(SpreadTierTest, IdsAreLargerThanThoseOfAllPlaces) {
  const auto tier = open();
  const uint64_t ahead = tier->new_id() + (uint64_t{3'600'000} << 21), more = ahead + (uint64_t{3'600'000} << 21);
  shelves[1].pieces[ahead] = piece_for_test(ahead, 300);
  ASSERT_EQ(tier->news().stored.size(), 1u);
  const uint64_t child = put(*tier, ahead);
  EXPECT_GT(child, ahead);
  EXPECT_EQ(place_of(child), 1);
  shelves[2].pieces[more] = piece_for_test(more, 300);
  EXPECT_GT(open()->new_id(), more) << "known at the start";
  std::vector<uint64_t> removed;
  const StoredPiece wrong = piece_for_test(child - 1, 300, child);
  EXPECT_EQ(tier->put(wrong, values_for_test(wrong), removed).error().code, Code::kNotFound);
}

// Of what a place dropped nothing is kept; a piece that another place has under the id is not taken for it.
TEST_F(SpreadTierTest, AnIdIsOnePlacesOnly) {
  const auto tier = open();
  const uint64_t id = tier->new_id();
  shelves[1].pieces[id] = piece_for_test(id, 300);
  ASSERT_EQ(tier->news().stored.size(), 1u);
  StoredPiece other = piece_for_test(id, 300);
  other.token_bytes = 2 * kTokenBytes;
  shelves[2].pieces[id] = other;
  EXPECT_TRUE(tier->news().stored.empty());
  EXPECT_EQ(std::ssize(*chunk_of(*tier, id, 0)), 300 * kTokenBytes) << "the first one's";
  shelves[1].pieces.erase(id);
  EXPECT_EQ(chunk_of(*tier, id, 0).error().code, Code::kNotFound);
  EXPECT_TRUE(tier->news().removed.empty()) << "who asked for it knows";
}

TEST_F(SpreadTierTest, RemovingAndClearing) {
  const auto tier = open();
  const uint64_t gone = put(*tier);
  const uint64_t other = put(*tier);
  tier->remove(gone);
  EXPECT_EQ(place_of(gone), -1);
  EXPECT_FALSE(chunk_of(*tier, gone, 0).ok());
  EXPECT_TRUE(chunk_of(*tier, other, 0).ok());
  EXPECT_TRUE(tier->clear().ok());
  EXPECT_EQ(tier->pieces(), 0);
  EXPECT_FALSE(chunk_of(*tier, other, 0).ok());
}

}  // namespace
}  // namespace kvilt

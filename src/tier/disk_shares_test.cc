// A folder that is shared out: who is beyond its share gives way first, nobody else does, and all of that outlives the
// process.
#include "tier/disk_shares.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include "tier/disk_tier.h"
#include "tier/faulty_files_for_test.h"
#include "tier/piece_for_test.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

class DiskSharesTest : public testing::Test {
 protected:
  DiskSharesTest() { files.waits = false; }  // thousands of writes
  static constexpr int64_t kLimit = 10'000 * kTokenBytes;

  void open(const DiskTier::Shares& shares, int64_t limit = kLimit) {
    tier.reset();
    auto opened = DiskTier::open(folder.path(), limit, {}, files, shares);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    tier = std::move(opened).value();
  }
  StoredPiece piece_of(const std::string& tenant, int32_t tokens, uint64_t parent = 0) {
    StoredPiece piece = piece_for_test(tier->new_id(), tokens, parent);
    piece.domain = {};
    std::ranges::copy(tenant.substr(0, piece.domain.size()), piece.domain.begin());
    piece.owner = tier->owner(tenant);
    return piece;
  }
  Status put(const StoredPiece& piece) { return tier->put(piece, values_for_test(piece), removed); }
  uint64_t put_of(const std::string& tenant, int32_t tokens, uint64_t parent = 0) {
    const StoredPiece piece = piece_of(tenant, tokens, parent);
    EXPECT_TRUE(put(piece).ok());
    return piece.id;
  }
  uint64_t put_of_nobody(const std::string& domain, int32_t tokens, uint64_t parent = 0) {
    StoredPiece piece = piece_of(domain, tokens, parent);
    piece.owner.reset();
    EXPECT_TRUE(put(piece).ok());
    return piece.id;
  }
  bool holds(uint64_t id) { return chunk_of(*tier, id, 0).ok(); }
  int64_t bytes_of(const std::string& tenant) { return tier->part_of(tenant).bytes; }

  FolderForTest folder;
  FaultyFiles files;
  std::unique_ptr<DiskTier> tier;
  std::vector<uint64_t> removed;
};

TEST_F(DiskSharesTest, WhoIsBeyondItsShareGivesWayFirst) {
  for (const bool shared : {true, false}) {
    open(shared ? DiskTier::Shares{{"small", .25}} : DiskTier::Shares{});
    ASSERT_TRUE(tier->clear().ok());
    removed.clear();
    const uint64_t small = put_of("small", 2000);  // and used longest ago
    std::vector<uint64_t> large;
    for (int i = 0; i < 12; ++i) large.push_back(put_of("large", 1000));
    EXPECT_EQ(holds(small), shared) << "power: without a share age decides";
    ASSERT_FALSE(removed.empty());
    EXPECT_EQ(removed[0], shared ? large[0] : small);
    EXPECT_GT(bytes_of("large"), kLimit * 6 / 10);
  }
}

// A day of texts that nobody asks again takes nothing that somebody did, and outlives the process with that.
TEST_F(DiskSharesTest, WhatIsUsedOnceGivesWayToWhatIsUsedAgain) {
  for (const bool used : {true, false}) {
    open({});
    ASSERT_TRUE(tier->clear().ok());
    const uint64_t first = put_of("a", 1000), second = put_of("a", 1000, first), other = put_of("a", 1000);
    if (used) tier->touch(second);
    for (int i = 0; i < 30; ++i) put_of("a", 1000);
    open({});  // the journal was written anew in between, or says it
    for (int i = 0; i < 30; ++i) put_of("a", 1000);
    EXPECT_EQ(holds(first), used) << "power: else age decides";
    EXPECT_EQ(holds(second), used);
    EXPECT_FALSE(holds(other));
    EXPECT_GT(tier->bytes(), kLimit * 8 / 10);
  }
}

// A long text is written in parts: that its writer comes back makes it none that was asked for again.
TEST_F(DiskSharesTest, WhatIsContinuedIsNotUsedAgain) {
  open({});
  uint64_t last = 0;
  std::vector<uint64_t> chain;
  for (int i = 0; i < 4; ++i) chain.push_back(last = put_of("a", 1000, last));
  const uint64_t asked = put_of("a", 1000);
  tier->touch(asked);
  for (int i = 0; i < 20; ++i) put_of("a", 1000);
  for (const uint64_t id : chain) EXPECT_FALSE(holds(id));
  EXPECT_TRUE(holds(asked)) << "power";
}

// What is used again has most of the folder, and not all: what is new stays until the next new thing at least.
TEST_F(DiskSharesTest, WhatIsUsedAgainIsBounded) {
  open({});
  std::vector<uint64_t> again;
  for (int i = 0; i < 9; ++i) again.push_back(put_of("a", 1000));
  for (const uint64_t id : again) tier->touch(id);
  const uint64_t fresh = put_of("a", 500);
  EXPECT_TRUE(holds(fresh));
  put_of("a", 500);
  EXPECT_FALSE(holds(again[0])) << "used longest ago of them";
  EXPECT_TRUE(holds(fresh));
}

// What nobody took is lent to those without a share, and taken back.
TEST_F(DiskSharesTest, AShareIsTakenBack) {
  open({{"small", .5}});
  std::vector<uint64_t> large;
  for (int i = 0; i < 8; ++i) large.push_back(put_of("large", 1000));
  EXPECT_TRUE(removed.empty());
  for (int i = 0; i < 4; ++i) put_of("small", 1000);
  EXPECT_EQ(removed, std::vector<uint64_t>(large.begin(), large.begin() + std::ssize(removed)));
  EXPECT_GE(removed.size(), 3u);
  EXPECT_GE(bytes_of("small"), 4000 * kTokenBytes);
}

TEST_F(DiskSharesTest, ATenantAtItsShareReplacesItsOwnOldest) {
  open({{"a", .3}});
  const uint64_t b = put_of("b", 500), first = put_of("a", 1200), second = put_of("a", 1200);
  tier->touch(first);
  const uint64_t third = put_of("a", 1200);
  EXPECT_EQ(removed, std::vector<uint64_t>{second}) << "although the folder has room";
  EXPECT_LT(tier->bytes(), kLimit / 2);
  EXPECT_TRUE(holds(b) && holds(first) && holds(third));
  EXPECT_LE(bytes_of("a"), tier->part_of("a").share);
  EXPECT_NEAR(static_cast<double>(tier->part_of("a").share), .3 * kLimit, 1);
  EXPECT_EQ(tier->part_of("b").share, 0);
}

TEST_F(DiskSharesTest, WhatIsLargerThanTheShareIsRefusedAndCostsNobodyAnything) {
  open({{"a", .3}});
  const uint64_t b = put_of("b", 3000), root = put_of("a", 1500), other = put_of("a", 1000);
  EXPECT_EQ(put(piece_of("a", 3000)).error().code, Code::kTooLong);
  EXPECT_TRUE(removed.empty());
  EXPECT_TRUE(put(piece_of("b", 3000)).ok()) << "power";
  EXPECT_EQ(put(piece_of("a", 1500, root)).error().code, Code::kTooLong) << "or it would lose its beginning";
  EXPECT_EQ(removed, std::vector<uint64_t>{other}) << "its own, which was older";
  EXPECT_TRUE(holds(root) && holds(b));
}

TEST_F(DiskSharesTest, OwnersOutliveTheProcess) {
  open({{"a", .5}});
  const uint64_t b = put_of("b", 1000);
  const uint64_t a1 = put_of("a", 1400), a2 = put_of("a", 1400), a3 = put_of("a", 1400);
  const int64_t of_a = bytes_of("a"), of_b = bytes_of("b");
  EXPECT_GT(of_a, 3 * of_b);
  open({{"a", .5}});
  EXPECT_EQ(bytes_of("a"), of_a);
  EXPECT_EQ(bytes_of("b"), of_b);
  EXPECT_EQ(tier->damaged(), 0);
  EXPECT_EQ(tier->known(piece_for_test(1, 1).maker, kTokenBytes)->back().owner, tier->owner("a"));
  open({{"a", .4}});  // it is told less
  EXPECT_FALSE(holds(a1));
  EXPECT_TRUE(holds(b) && holds(a2) && holds(a3));
  open({{"b", .3}, {"a", .3}}, kLimit * 2 / 3);  // the folder too
  EXPECT_FALSE(holds(a2));
  EXPECT_TRUE(holds(b) && holds(a3));
  open({}, kLimit / 6);
  EXPECT_FALSE(holds(b)) << "power: without shares age decides";
  EXPECT_TRUE(holds(a3));
}

TEST_F(DiskSharesTest, ANameIsNotInTheFolder) {
  open({{"a-tenant-with-a-name", .5}});
  const StoredPiece piece = piece_of("a-tenant-with-a-name", 20);
  StoredPiece other = piece_for_test(piece.id, 20);  // the test's domains are names
  other.owner = piece.owner;
  ASSERT_TRUE(put(other).ok());
  std::string all;
  for (const auto& item : fs::recursive_directory_iterator(folder.path())) {
    if (!item.is_regular_file()) continue;
    std::ifstream file(item.path(), std::ios::binary);
    all.append(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_EQ(all.find("a-tenant"), std::string::npos);
  EXPECT_NE(all.find(std::string(piece.owner->begin(), piece.owner->end())), std::string::npos) << "power";
  FolderForTest second;
  const auto elsewhere = DiskTier::open(second.path(), kLimit, {}, files);
  EXPECT_NE((*elsewhere)->owner("a-tenant-with-a-name"), piece.owner) << "each folder has its own";
  EXPECT_EQ(tier->owner(""), std::nullopt);
}

// Pieces of older folders are nobody's and leave by age, and become their tenant's when it is known whose they are.
TEST_F(DiskSharesTest, WhatNobodyOwnsBecomesItsTenants) {
  open({{"a", .4}});
  const uint64_t root = put_of_nobody("a", 1000), end = put_of_nobody("a", 1000, root);
  put_of_nobody("b", 1000);
  EXPECT_EQ(bytes_of("a"), 0);
  for (int i = 0; i < 7; ++i) put_of_nobody("c", 1000);
  EXPECT_EQ(removed, std::vector<uint64_t>({end, root})) << "by age, and an end before its beginning";
  ASSERT_TRUE(tier->clear().ok());
  removed.clear();

  const uint64_t again = put_of_nobody("a", 1000), leaf = put_of_nobody("a", 1000, again);
  const uint64_t mine = put_of("a", 1000, again);
  EXPECT_GE(bytes_of("a"), 3000 * kTokenBytes) << "all of the domain is its tenant's";
  const int64_t of_a = bytes_of("a");
  open({{"a", .4}});
  EXPECT_EQ(bytes_of("a"), of_a) << "also after a restart, although their records do not say so";
  const uint64_t next = put_of("a", 1500);
  EXPECT_EQ(removed, std::vector<uint64_t>({leaf, mine})) << "no end stays without its beginning";
  EXPECT_TRUE(holds(again) && holds(next));
  StoredPiece child = piece_of("a", 100, again);
  child.owner.reset();
  ASSERT_TRUE(put(child).ok());
  open({{"a", .4}});
  EXPECT_EQ(tier->all()->back().owner, tier->owner("a")) << "what continues a tenant's piece is the tenant's";
}

// The disk has less room than the limit says: then the shares are of that.
TEST_F(DiskSharesTest, AFullDiskIsSharedOutAsTheLimitWouldBe) {
  open({{"a", .5}, {"b", .5}});
  files.quota = 5000 * kTokenBytes;
  const uint64_t b = put_of("b", 900);  // used longest ago
  std::vector<uint64_t> of_a;
  for (int i = 0; i < 4; ++i) of_a.push_back(put_of("a", 1000));
  EXPECT_TRUE(removed.empty()) << "power: there was room";
  put_of("b", 1000);
  EXPECT_EQ(removed, std::vector<uint64_t>{of_a[0]});
  put_of("a", 1000);
  EXPECT_EQ(removed[1], of_a[1]) << "its own";
  EXPECT_TRUE(holds(b));
}

// Three tenants write, continue and read in any order. With shares no piece of who is within its own ever leaves for
// another's; without them the same writing costs it some.
class Walk : public DiskSharesTest {
 protected:
  struct Known {
    size_t owner = 0;
    uint64_t parent = 0, used = 0;
    int64_t bytes = 0;
    bool again = false;  // a reader used it, or what continues it
  };
  static constexpr int64_t kRoom = 4'000 * kTokenBytes;
  const std::vector<std::string> names = {"a", "b", "c"};
  const double part[3] = {.5, .2, .3};  // the last: what is left
  const DiskTier::Shares shares = {{"a", .5}, {"b", .2}};

  int64_t held(size_t owner) const {
    int64_t sum = 0;
    for (const auto& [id, piece] : model) sum += piece.owner == owner ? piece.bytes : 0;
    return sum;
  }
  void use(uint64_t id, bool by_reader = false) {
    for (auto it = model.find(id); it != model.end(); it = model.find(it->second.parent)) {
      it->second.used = ++clock;
      it->second.again |= by_reader;
    }
  }
  // What a put took away, in its order. room: of what was put, 0: it was refused.
  void judge(size_t owner, int64_t room) {
    for (const uint64_t id : removed) {
      const Known gone = model.at(id);
      const int64_t coming = gone.owner == owner ? std::max<int64_t>(room, 1) : 0;
      const bool own_refused = gone.owner == owner && room == 0;
      const bool beyond = static_cast<double>(held(gone.owner) + coming) > part[gone.owner] * kRoom;
      if (!beyond && !own_refused) ++wronged;
      for (const auto& [other, piece] : model) {
        if (piece.owner == gone.owner && !piece.again && piece.used < gone.used) ++out_of_order;
        if (piece.owner == gone.owner && piece.again && !gone.again && piece.used < gone.used) ++kept;
        if (piece.parent == id) ++orphans;
      }
      model.erase(id);
    }
  }
  void put_one(size_t owner) {
    uint64_t parent = 0;
    for (const auto& [id, piece] : model) {
      if (piece.owner == owner && dice() % 8 == 0) parent = id;
    }
    const StoredPiece piece = piece_of(names[owner], 20 + static_cast<int32_t>(dice() % 200), parent);
    removed.clear();
    const int64_t before = tier->bytes();
    use(parent);
    const bool done = put(piece).ok();
    refused += done ? 0 : 1;
    int64_t room = 0;
    if (done) {
      room = tier->bytes() - before;
      for (const uint64_t id : removed) room += model.at(id).bytes;
    }
    judge(owner, room);
    if (!done) {  // the journal does not know that what it continues was used
      tier->touch(parent);
      use(parent, true);
      return;
    }
    model[piece.id] = {.owner = owner, .parent = parent, .bytes = room};
    use(piece.id);
  }
  void expect_sound(bool shared) {
    EXPECT_EQ(tier->pieces(), std::ssize(model));
    EXPECT_LE(tier->bytes(), kRoom);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(bytes_of(names[i]), held(i));
      EXPECT_TRUE(!shared || i == 2 || static_cast<double>(held(i)) <= part[i] * kRoom) << i;
    }
  }
  void walk(bool shared, uint32_t seed) {
    dice.seed(seed);
    model.clear();
    wronged = 0;
    open(shared ? shares : DiskTier::Shares{}, kRoom);
    ASSERT_TRUE(tier->clear().ok());
    for (int i = 0; i < 600; ++i) {
      const auto what = dice() % 100;
      if (what == 0) {
        open(shared ? shares : DiskTier::Shares{}, kRoom);
      } else if (what < 20 && !model.empty()) {
        const uint64_t id = std::next(model.begin(), static_cast<int>(dice() % model.size()))->first;
        tier->touch(id);
        use(id, true);
      } else {
        put_one(what < 40 ? 0 : what < 50 ? 1 : 2);  // c writes most
      }
      expect_sound(shared);
      if (HasFailure()) return;
    }
  }

  std::mt19937 dice;
  std::map<uint64_t, Known> model;
  uint64_t clock = 0;
  int wronged = 0, out_of_order = 0, orphans = 0, refused = 0, kept = 0;
};

TEST_F(Walk, NobodyWithinItsShareLosesAnythingForAnother) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    walk(true, seed);
    EXPECT_EQ(wronged, 0);
    EXPECT_EQ(out_of_order, 0);
    EXPECT_EQ(orphans, 0);
    EXPECT_GT(model.size(), 10u);
    walk(false, seed);
    EXPECT_GT(wronged, 0) << "power: the rule is what holds it";
    EXPECT_EQ(orphans, 0);
  }
  EXPECT_LT(refused, 1000) << "power: most was stored";
  EXPECT_GT(kept, 0) << "power: some stayed that was older, and used again";
}

}  // namespace
}  // namespace kvilt

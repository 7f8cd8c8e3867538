// What is kept beside a piece comes back with it, goes with it, counts in the limit, and is never what was not written; the
// piece is as good without it.
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "tier/disk_tier.h"
#include "tier/piece_for_test.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

// With and without a key.
class DiskAnnexes : public testing::TestWithParam<bool> {
 protected:
  DiskAnnexes() { open(); }
  void open(int64_t limit = 1 << 20) {
    tier.reset();
    auto opened = DiskTier::open(folder.path(), limit, GetParam() ? DiskTier::Key(HashSecret::fixed(3)) : std::nullopt);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    tier = std::move(opened).value();
  }
  uint64_t put_new(int32_t tokens = 300, uint64_t parent = 0) {
    const StoredPiece piece = piece_for_test(tier->new_id(), tokens, parent);
    EXPECT_TRUE(tier->put(piece, values_for_test(piece), removed).ok());
    return piece.id;
  }
  Status put_annexes(uint64_t id, uint8_t seed = 1) {
    return tier->put_annexes(id, encode_annexes(annexes_for_test(seed)), removed);
  }
  // Nothing: none, or damaged.
  std::optional<std::vector<StoredAnnex>> annexes(uint64_t id) {
    std::vector<std::byte> bytes;
    last = tier->get_annexes(id, bytes);
    return last.ok() ? decode_annexes(bytes) : std::nullopt;
  }
  std::string file_of(uint64_t id) const {
    return fmt::format("{}/kvilt-cache/{:02x}/{:x}.annexes", folder.path(), id % 256, id);
  }
  bool holds(uint64_t id) { return chunk_of(*tier, id, 0).ok() && chunk_of(*tier, id, 1).ok(); }

  FolderForTest folder;
  std::unique_ptr<DiskTier> tier;
  std::vector<uint64_t> removed;
  Status last;
};
INSTANTIATE_TEST_SUITE_P(Sealed, DiskAnnexes, testing::Bool());

TEST_P(DiskAnnexes, ComeBackAfterAStart) {
  const uint64_t one = put_new(), two = put_new();
  const int64_t before = tier->bytes();
  ASSERT_TRUE(put_annexes(one).ok());
  const int64_t with = tier->bytes();
  EXPECT_EQ(with - before, static_cast<int64_t>(fs::file_size(file_of(one))));
  EXPECT_EQ(annexes(one), annexes_for_test());
  EXPECT_FALSE(annexes(two));
  EXPECT_EQ(last.error().code, Code::kNotFound);
  ASSERT_TRUE(put_annexes(one, 2).ok());
  EXPECT_EQ(tier->bytes(), with) << "these took the others' place";
  open();
  EXPECT_EQ(tier->bytes(), with);
  EXPECT_EQ(tier->damaged(), 0);
  EXPECT_EQ(annexes(one), annexes_for_test(2));
  EXPECT_FALSE(annexes(two));
  EXPECT_TRUE(holds(one));
}

TEST_P(DiskAnnexes, GoWithTheirPiece) {
  const int64_t empty = tier->bytes();
  const uint64_t one = put_new();
  ASSERT_TRUE(put_annexes(one).ok());
  ASSERT_TRUE(fs::exists(file_of(one)));
  tier->remove(one);
  EXPECT_FALSE(fs::exists(file_of(one)));
  EXPECT_EQ(tier->bytes(), empty);
  EXPECT_EQ(put_annexes(one).error().code, Code::kNotFound);
  EXPECT_FALSE(fs::exists(file_of(one)));
}

TEST_P(DiskAnnexes, DamageCostsThemAlone) {
  const uint64_t one = put_new();
  for (const int way : {0, 1, 2}) {
    ASSERT_TRUE(put_annexes(one).ok());
    ASSERT_TRUE(annexes(one)) << "power";
    const auto size = static_cast<int64_t>(fs::file_size(file_of(one)));
    if (way == 0) {
      std::fstream file(file_of(one), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(size / 2);
      file.put('\x55').put('\x2a');
    } else {
      fs::resize_file(file_of(one), static_cast<uintmax_t>(size / 3));
    }
    if (way == 2) open();
    const int64_t before = tier->bytes();
    EXPECT_FALSE(annexes(one));
    EXPECT_EQ(last.error().code, Code::kCorrupt);
    EXPECT_LT(tier->bytes(), before);
    EXPECT_FALSE(fs::exists(file_of(one)));
    EXPECT_FALSE(annexes(one));
    EXPECT_EQ(last.error().code, Code::kNotFound) << "it is told once";
    EXPECT_TRUE(holds(one));
  }
}

TEST_P(DiskAnnexes, AnothersAreNotTaken) {
  const uint64_t one = put_new(), two = put_new();
  ASSERT_TRUE(put_annexes(one).ok());
  ASSERT_TRUE(put_annexes(two, 2).ok());
  fs::copy_file(file_of(one), file_of(two), fs::copy_options::overwrite_existing);
  EXPECT_FALSE(annexes(two));
  EXPECT_EQ(last.error().code, Code::kCorrupt);
  EXPECT_TRUE(holds(two));
}

// Of a crash, of an older version's, or somebody's: a start removes what is no piece's.
TEST_P(DiskAnnexes, AStartRemovesWhatIsNobodys) {
  const uint64_t one = put_new(), two = put_new();
  ASSERT_TRUE(put_annexes(one).ok());
  const std::string torn = file_of(one) + ".next", nobodys = file_of(one + 256), large = file_of(two);
  for (const std::string& path : {torn, nobodys}) std::ofstream(path) << "x";
  std::ofstream(large) << std::string(400 * kTokenBytes, 'x');
  open();
  for (const std::string& path : {torn, nobodys, large}) EXPECT_FALSE(fs::exists(path)) << path;
  EXPECT_TRUE(annexes(one));
  EXPECT_TRUE(holds(one) && holds(two));
}

TEST_P(DiskAnnexes, CountInTheLimit) {
  const uint64_t one = put_new(), two = put_new(), three = put_new();
  open(tier->bytes() + 20);
  EXPECT_EQ(tier->add_annexes(three, encode_annexes(annexes_for_test())).error().code, Code::kExhausted);
  EXPECT_TRUE(holds(one) && holds(two) && holds(three)) << "nothing goes for what is added";
  ASSERT_TRUE(put_annexes(one).ok());
  EXPECT_EQ(removed, std::vector<uint64_t>{two}) << "what was used longest ago; its own piece is in use";
  EXPECT_TRUE(holds(one) && holds(three));
  const int64_t most = tier->bytes();
  open(most);
  EXPECT_TRUE(holds(one) && holds(three)) << "power";
  open(most - 1);
  EXPECT_EQ(tier->pieces(), 1) << "they count at a start too";
}

TEST_P(DiskAnnexes, MoreThanTheValuesIsNotWorthIt) {
  const uint64_t small = put_new(2);
  EXPECT_EQ(put_annexes(small).error().code, Code::kTooLong);
  EXPECT_FALSE(fs::exists(file_of(small)));
  EXPECT_TRUE(put_annexes(put_new(30)).ok()) << "power";
}

}  // namespace
}  // namespace kvilt

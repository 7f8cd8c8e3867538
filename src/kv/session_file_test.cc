// Sessions as bytes: what comes in again is what went out, to the bit, whatever its heads keep and its pieces are.
// Damaged, cut and hostile bytes end in an error and leave the pool as it was.
#include "kv/session_file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>

#include "base/checksum.h"
#include "kv/rows_for_test.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

constexpr int kLayers = 3, kHeads = 2, kSize = 4;
const char* const kModel = "a model";
using Bytes = std::vector<std::byte>;

class SessionFile : public testing::TestWithParam<DType> {
 protected:
  SessionFile() : store(make_store(8, 900)), rope(small_rope()) {}

  static PageStore make_store(int P, int pages, DType dtype) {
    const KvShape shape{kLayers, kHeads, kSize, P, dtype};
    return PageStore::create(shape, pages * shape.page_bytes()).value();
  }
  PageStore make_store(int P, int pages) const { return make_store(P, pages, GetParam()); }

  void write(PageTable& table, int layer, const Runs& runs) {
    for (const int32_t pos : positions(runs)) {
      std::vector<float> k(kHeads * kSize), v(kHeads * kSize);
      for (float& x : k) x = static_cast<float>(rng() % 1000) / 250 - 2;
      for (float& x : v) x = static_cast<float>(rng() % 1000) / 250 - 2;
      table.write(layer, pos, k.data(), v.data());
    }
  }

  std::shared_ptr<const KvSegment> cached(int32_t pos, int32_t count) {
    PageTable table(store, rope);
    const Runs runs{{pos, pos + count}};
    table.add(std::vector<Runs>{runs}, std::vector<uint16_t>(kLayers, 0));
    for (int layer = 0; layer < kLayers; ++layer) write(table, layer, runs);
    return table.publish({pos, pos + count});
  }

  // 60 positions: a piece moved back, one that is where it was, one moved on; some of their positions are written anew.
  std::unique_ptr<PageTable> session(std::vector<HeadKeep> keeps) {
    auto table = std::make_unique<PageTable>(store, rope);
    table->place({cached(20, 15), 3, 12, 5});
    table->place({cached(25, 7), 0, 7, 25});
    table->place({cached(2, 9), 1, 8, 40});
    table->keep(std::move(keeps), 60);
    const Runs fresh{{0, 5}, {17, 25}, {32, 40}, {48, 60}};
    const std::vector<Runs> sets{fresh, unite(fresh, Runs{{7, 9}, {43, 44}})};
    const std::vector<uint16_t> by_layer{0, 1, 1};
    table->add(sets, by_layer);
    table->hold({0, kLayers}, {0, 60});
    for (int layer = 0; layer < kLayers; ++layer) write(*table, layer, sets[by_layer[layer]]);
    table->passed({0, kLayers}, 60);
    table->keep(keeps_of(*table), 0);
    return table;
  }
  static std::vector<HeadKeep> keeps_of(const PageTable& table) {
    std::vector<HeadKeep> out;
    for (int i = 0; i < kLayers * kHeads; ++i) out.push_back(table.keeps(i / kHeads, i % kHeads));
    return out;
  }

  static std::vector<int32_t> tokens() {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < 60; ++i) out.push_back(i * 3);
    return out;
  }
  static Bytes saved(const PageTable& table, SessionBytes* bytes = nullptr) {
    Bytes out;
    const auto done = export_session(table, tokens(), kModel, [&](std::span<const std::byte> part) -> Status {
      out.insert(out.end(), part.begin(), part.end());
      return {};
    });
    EXPECT_TRUE(done.ok());
    if (bytes) *bytes = done.value();
    return out;
  }
  Result<KvSession> loaded(PageStore& into, std::span<const std::byte> bytes, const std::string& model = kModel) {
    return import_session(into, rope, model, [&](std::span<std::byte> part) -> Status {
      if (part.size() > bytes.size()) return Error{Code::kCorrupt, "cut short"};
      std::copy_n(bytes.begin(), part.size(), part.begin());
      bytes = bytes.subspan(part.size());
      return {};
    });
  }

  // Every key that the row at `next` sees: its position, bytes and rotation.
  static Bytes look(const PageTable& table, int32_t next) {
    Bytes out;
    const auto row = static_cast<size_t>(table.shape().row_bytes());
    const auto add = [&](const void* from, size_t size) {
      const auto* bytes = static_cast<const std::byte*>(from);
      out.insert(out.end(), bytes, bytes + size);
    };
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kHeads; ++head) {
        const HeadKeep keep = table.keeps(layer, head);
        std::vector<KvSpan> spans;
        table.resolve(layer, head, {next, next + 1}, {.sink = keep.sink, .window = keep.window}, spans);
        for (const KvSpan& span : spans) {
          for (int32_t i = 0; i < span.count; ++i) {
            const int32_t pos = span.pos + i;
            add(&pos, sizeof pos);
            add(static_cast<const std::byte*>(span.k) + static_cast<size_t>(i) * row, row);
            add(static_cast<const std::byte*>(span.v) + static_cast<size_t>(i) * row, row);
            if (span.rotation) add(span.rotation, 4 * sizeof(float));
          }
        }
      }
    }
    return out;
  }

  std::mt19937 rng{9};
  PageStore store;
  RopeConfig rope;
};

const std::vector<HeadKeep> kMixed{{}, {4, 10}, {0, 0}, {2, 25}, {30, 6}, {9, 20}};
const std::vector<HeadKeep> kLocal{{1, 3}, {4, 10}, {0, 0}, {2, 25}, {30, 6}, {0, 7}};

TEST_P(SessionFile, ComesBackToTheBit) {
  for (const auto& keeps : {std::vector<HeadKeep>{}, kMixed, kLocal, std::vector<HeadKeep>(6, HeadKeep{0, 100})}) {
    for (const int P : {8, 5, 64}) {
      const auto table = session(keeps);
      SessionBytes bytes;
      const Bytes file = saved(*table, &bytes);
      EXPECT_EQ(bytes.moved, static_cast<int64_t>(file.size()));
      EXPECT_EQ(bytes.dense, 60 * store.shape().token_bytes());
      PageStore other = make_store(P, 300);
      auto session = loaded(other, file);
      ASSERT_TRUE(session.ok()) << session.error().message;
      EXPECT_EQ(session->tokens, tokens());
      EXPECT_EQ(look(*session->table, 60), look(*table, 60));
      EXPECT_EQ(saved(*session->table), file) << "once more is the same file";
      for (int32_t pos = 60; pos < 100; ++pos) {  // both go on
        std::mt19937 same = rng;
        for (PageTable* one : {table.get(), session->table.get()}) {
          rng = same;
          one->add_next(pos);
          for (int layer = 0; layer < kLayers; ++layer) write(*one, layer, {{pos, pos + 1}});
        }
        EXPECT_EQ(look(*session->table, pos + 1), look(*table, pos + 1));
      }
    }
  }
}

TEST_P(SessionFile, MovesOnlyWhatHeadsKeep) {
  SessionBytes all, local;
  saved(*session({}), &all);
  saved(*session(kLocal), &local);
  EXPECT_EQ(all.kv, all.dense);
  int64_t keys = 0;
  for (const HeadKeep& keep : kLocal) keys += std::min(60, keep.sink + keep.window);
  EXPECT_EQ(local.kv, keys * 2 * store.shape().row_bytes());
  EXPECT_EQ(local.dense, all.dense);
}

TEST_P(SessionFile, DamagedAndCutBytesAreErrors) {
  const Bytes file = saved(*session(kMixed));
  PageStore other = make_store(8, 300);
  for (size_t i = 0; i < file.size(); ++i) {
    Bytes bad = file;
    bad[i] ^= std::byte{0x10};
    const auto session = loaded(other, bad);
    ASSERT_FALSE(session.ok()) << i;
    EXPECT_TRUE(session.error().code == Code::kCorrupt || session.error().code == Code::kUnsupported) << i;
    ASSERT_FALSE(loaded(other, std::span(file).first(i)).ok()) << i;
    ASSERT_EQ(other.free_pages(), 300);
  }
  EXPECT_TRUE(loaded(other, file).ok());
}

// Bytes whose checksums are right and whose numbers are not.
TEST_P(SessionFile, HostileBytesEndInAnErrorOrASession) {
  const Bytes file = saved(*session(kMixed));
  constexpr size_t kHeader = 64, kMeta = 60 * 4 + 2 * 12 + 6 * 8;
  uint32_t runs;
  std::memcpy(&runs, file.data() + 40, sizeof runs);
  const size_t index = kLayers * 4 + runs * size_t{12};
  const std::vector<std::pair<size_t, size_t>> frames{
      {0, kHeader}, {kHeader + 8, kMeta}, {kHeader + kMeta + 16, index}};
  PageStore other = make_store(8, 300);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes bad = file;
    const auto [begin, size] = frames[rng() % 3];
    const size_t at = begin + rng() % (size / 4) * 4;
    const uint32_t numbers[] = {
        0, 1, 61, 0xffffffff, 0x7fffffff, 0x80000000, static_cast<uint32_t>(rng()), static_cast<uint32_t>(rng() % 70)};
    std::memcpy(bad.data() + at, &numbers[rng() % 8], 4);
    const uint64_t sum = checksum(std::span(bad).subspan(begin, size));
    std::memcpy(bad.data() + begin + size, &sum, sizeof sum);
    {
      auto session = loaded(other, bad);
      refused += session.ok() ? 0 : 1;
      if (session.ok()) session->table->add_next(60);
    }
    ASSERT_EQ(other.free_pages(), 300);
  }
  EXPECT_GT(refused, 10000) << "power";
}

TEST_P(SessionFile, RefusesWhatItCannotGoOnWith) {
  const Bytes file = saved(*session(kMixed));
  PageStore other = make_store(8, 300);
  EXPECT_EQ(loaded(other, file, "another").error().code, Code::kUnsupported);
  PageStore typed = make_store(8, 300, GetParam() == DType::kF16 ? DType::kF32 : DType::kF16);
  EXPECT_EQ(loaded(typed, file).error().code, Code::kUnsupported);
  const KvShape deeper{kLayers + 1, kHeads, kSize, 8, GetParam()};
  PageStore shaped = PageStore::create(deeper, 100 * deeper.page_bytes()).value();
  EXPECT_EQ(loaded(shaped, file).error().code, Code::kUnsupported);
  for (int pages = 6; pages < 40; ++pages) {
    PageStore small = make_store(8, pages);
    const auto session = loaded(small, file);
    if (session.ok()) break;
    EXPECT_EQ(session.error().code, Code::kExhausted);
    EXPECT_EQ(small.free_pages(), pages);
    EXPECT_LT(pages, 39);
  }
}

// check_session() refuses what importing refuses, and says how many pages suffice. receive_session() takes one session
// and nothing of the next.
TEST_P(SessionFile, IsCheckedAndReceivedWithoutAPool) {
  for (const auto& keeps : {std::vector<HeadKeep>{}, kMixed, kLocal}) {
    const auto table = session(keeps);
    const Bytes file = saved(*table);
    for (const int P : {4, 8, 32}) {
      const KvShape shape = make_store(P, 10).shape();
      const auto summary = check_session(file, shape, kModel);
      ASSERT_TRUE(summary.ok()) << summary.error().message;
      EXPECT_EQ(summary->tokens, tokens());
      EXPECT_EQ(summary->positions, 60);
      EXPECT_EQ(summary->keeps, keeps_of(*table));
      PageStore enough = make_store(P, static_cast<int>(summary->pages));
      EXPECT_TRUE(loaded(enough, file).ok());
      EXPECT_LE(summary->pages, 6 * (60 / P + 12)) << "power";
    }
    Bytes two = file;
    two.insert(two.end(), file.begin(), file.end());
    EXPECT_EQ(check_session(two, store.shape(), kModel).error().code, Code::kCorrupt);
    std::span<const std::byte> left = two;
    const auto from = [&](std::span<std::byte> part) -> Status {
      if (part.size() > left.size()) return Error{Code::kCorrupt, "cut short"};
      std::copy_n(left.begin(), part.size(), part.begin());
      left = left.subspan(part.size());
      return {};
    };
    SessionBytes sizes;
    saved(*table, &sizes);
    for (int i = 0; i < 2; ++i) {
      const auto received = receive_session(from);
      ASSERT_TRUE(received.ok());
      EXPECT_EQ(received->bytes, file);
      EXPECT_EQ(received->sizes.kv, sizes.kv);
      EXPECT_EQ(received->sizes.dense, sizes.dense);
    }
    EXPECT_FALSE(receive_session(from).ok());
  }
  const Bytes file = saved(*session(kMixed));
  for (size_t i = 0; i < file.size(); i += 5) {
    Bytes bad = file;
    bad[i] ^= std::byte{0x10};
    EXPECT_FALSE(check_session(bad, store.shape(), kModel).ok()) << i;
    EXPECT_FALSE(check_session(std::span(file).first(i), store.shape(), kModel).ok()) << i;
  }
  EXPECT_EQ(check_session(file, store.shape(), "another").error().code, Code::kUnsupported);
}

TEST_P(SessionFile, TokensMayFollow) {
  const auto table = session(kMixed);
  std::vector<int32_t> more = tokens();
  more.push_back(7);
  more.push_back(9);
  Bytes file;
  const auto done = export_session(
      *table, more, kModel,
      [&](std::span<const std::byte> part) -> Status {
        file.insert(file.end(), part.begin(), part.end());
        return {};
      },
      2);
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(file.size(), saved(*table).size() + 8);
  PageStore other = make_store(16, 300);
  const auto session = loaded(other, file);
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->tokens, tokens());
  EXPECT_EQ(session->follow, (std::vector<int32_t>{7, 9}));
  EXPECT_EQ(look(*session->table, 60), look(*table, 60));
}

TEST_P(SessionFile, ThroughASocket) {
  const auto table = session(kMixed);
  PageStore other = make_store(16, 300);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  std::thread sender([&] {
    EXPECT_TRUE(export_session(*table, tokens(), kModel, [&](std::span<const std::byte> b) {
                  return write_all(ends[0], b);
                }).ok());
    ::close(ends[0]);
  });
  const auto session =
      import_session(other, rope, kModel, [&](std::span<std::byte> b) { return read_all(ends[1], b); });
  sender.join();
  ::close(ends[1]);
  ASSERT_TRUE(session.ok()) << session.error().message;
  EXPECT_EQ(look(*session->table, 60), look(*table, 60));
}

INSTANTIATE_TEST_SUITE_P(Types, SessionFile, testing::Values(DType::kF32, DType::kI8));

}  // namespace
}  // namespace kvilt

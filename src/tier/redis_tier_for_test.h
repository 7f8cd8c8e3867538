// tier/redis_tier_for_test.h: tests of RedisTier with a real server of their own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tier/piece_for_test.h"
#include "tier/redis_for_test.h"
#include "tier/redis_tier.h"

namespace kvilt {

inline Digest maker_of(uint8_t n) {
  Digest out{};
  out[0] = n;
  return out;
}

class RedisTierTest : public testing::Test {
 protected:
  void SetUp() override {
    if (RedisServerForTest::program().empty()) GTEST_SKIP() << "neither redis-server nor valkey-server is installed";
    server.emplace();
  }
  std::unique_ptr<RedisTier> open(const RedisAddress& address, int ms = 30000,
                                  std::optional<HashSecret> secret = {}) const {
    return open_with(key, address, ms, secret);
  }
  static std::unique_ptr<RedisTier> open_with(const std::optional<HashSecret>& key, const RedisAddress& address,
                                              int ms = 30000, const std::optional<HashSecret>& secret = {}) {
    auto out = RedisTier::open({address, secret, std::chrono::milliseconds(ms), key});
    EXPECT_TRUE(out.ok()) << (out.ok() ? "" : out.error().message);
    return out.ok() ? std::move(out).value() : nullptr;
  }
  std::unique_ptr<RedisTier> open() const { return open(server->address()); }
  static std::vector<StoredPiece> known(RedisTier& tier) {
    auto out = tier.known(maker_of(7), kTokenBytes);
    EXPECT_TRUE(out.ok());
    return out.ok() ? std::move(out).value() : std::vector<StoredPiece>();
  }
  static StoredPiece put(RedisTier& tier, int32_t count, uint64_t parent = 0) {
    const StoredPiece piece = piece_for_test(tier.new_id(), count, parent);
    std::vector<uint64_t> removed;
    const Status done = tier.put(piece, values_for_test(piece), removed);
    EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().message);
    return piece;
  }
  static void expect_whole(RedisTier& tier, const StoredPiece& piece) {
    const std::vector<std::byte> values = values_for_test(piece);
    for (int32_t i = 0; i < chunks_of(piece.count()); ++i) {
      const kvilt::Run run = chunk_run(i, piece.count());
      const auto chunk = chunk_of(tier, piece.id, i);
      ASSERT_TRUE(chunk.ok()) << chunk.error().message;
      EXPECT_TRUE(std::ranges::equal(*chunk, std::span(values).subspan(static_cast<size_t>(run.begin) * kTokenBytes,
                                                                       static_cast<size_t>(run.size()) * kTokenBytes)));
    }
  }
  static Code code_of(RedisTier& tier, uint64_t id, int32_t chunk = 0) {
    const auto got = chunk_of(tier, id, chunk);
    EXPECT_FALSE(got.ok());
    return got.ok() ? Code::kInternal : got.error().code;
  }
  std::string key_of(const std::string& pattern) const {
    const std::vector<std::string> found = server->keys(pattern);
    return found.size() == 1 ? found[0] : "";
  }
  // All that is news until done() says yes.
  template <class Done>
  static Tier::News news(RedisTier& tier, Done done) {
    Tier::News out;
    for (int i = 0; i < 3000; ++i) {
      Tier::News some = tier.news();
      out.stored.insert(out.stored.end(), some.stored.begin(), some.stored.end());
      out.removed.insert(out.removed.end(), some.removed.begin(), some.removed.end());
      out.errors += some.errors;
      if (done(out)) return out;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "it never came";
    return out;
  }

  std::optional<RedisServerForTest> server;
  std::optional<HashSecret> key;
};

}  // namespace kvilt

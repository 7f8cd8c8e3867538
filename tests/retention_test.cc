// What requests may say about how long their KV stays, through a whole engine with a small pool.
#include "probe_prompts.h"

namespace kvilt {
namespace {

class RetentionEngineTest : public testing::Test {
 protected:
  void open(std::map<std::string, double> shares = {}) {
    EngineOptions options{.model = kModel, .kv_type = KvType::kF32};
    if (token_bytes == 0) token_bytes = open_for_test(options)->info().kv_bytes_per_token;
    options.kv_bytes = 2048 * token_bytes;
    options.pool_shares = std::move(shares);
    engine = open_for_test(options);
  }
  Outcome come(std::vector<int32_t> ids, const std::string& tenant = "", const std::string& frozen_as = "",
               Retention retention = Retention::kNone) {
    Request request = request_of(std::move(ids), "prefix", 0);
    request.tenant = tenant;
    request.frozen_as = frozen_as;
    if (retention != Retention::kNone)
      request.prompt.kept = {{static_cast<int32_t>(request.prompt.ids.size()), retention}};
    return ask_ok(*engine, std::move(request));
  }
  // Texts of four times the pool, used once and used again: both kinds make room for them.
  void flood(const std::string& tenant = "") {
    for (int i = 0; i < 32; ++i) {
      const std::vector<int32_t> text = tokens(256, 100 + static_cast<uint32_t>(++last));
      come(text, tenant);
      if (i % 2 == 0) come(text, tenant);
    }
  }
  int known(const std::vector<int32_t>& ids, const std::string& tenant = "") {
    Request request = unpublished(join({ids, tokens(5, 9)}), "prefix");
    request.tenant = tenant;
    return ask_ok(*engine, std::move(request)).usage().prefix;
  }
  std::optional<TenantPool> pool_of(const std::string& tenant) {
    for (const TenantPool& pool : engine->stats().tenant_pools) {
      if (pool.tenant == tenant) return pool;
    }
    return {};
  }

  std::unique_ptr<Engine> engine;
  int64_t token_bytes = 0;
  int last = 0;
  const std::vector<int32_t> document = tokens(400, 1), other = tokens(400, 2);
};

TEST_F(RetentionEngineTest, AFrozenDocumentStaysUntilItIsThawed) {
  open();
  come(document, "", "rivers/elbe/");
  come(other);
  EXPECT_GT(engine->stats().kv_pages_frozen, 0);
  flood();
  EXPECT_EQ(known(document), 400);
  EXPECT_EQ(known(other), 0) << "power";
  engine->thaw("", {"rivers/e/", "lakes/"});
  EXPECT_GT(engine->stats().kv_pages_frozen, 0);
  engine->thaw("", {"rivers/"});
  EXPECT_EQ(engine->stats().kv_pages_frozen, 0);
  flood();
  EXPECT_EQ(known(document), 0);
}

// A whole pool of frozen texts refuses nobody.
TEST_F(RetentionEngineTest, ALongRequestTakesTheRoomOfFrozenTexts) {
  open();
  for (uint32_t i = 0; i < 10; ++i) come(tokens(250, 50 + i), "", "base/" + std::to_string(i) + "/");
  const EngineStats stats = engine->stats();
  EXPECT_LE(static_cast<double>(stats.kv_pages_frozen), .9 * static_cast<double>(stats.kv_pages));
  EXPECT_GT(static_cast<double>(stats.kv_pages_frozen), .7 * static_cast<double>(stats.kv_pages)) << "power";
  Request most = request_of(tokens(1800, 3), "full", 20);
  Request second = request_of(tokens(1800, 4), "full", 20);
  EXPECT_EQ(ask_ok(*engine, std::move(most)).ids.size(), 20u);
  EXPECT_EQ(ask_ok(*engine, std::move(second)).ids.size(), 20u);
  EXPECT_EQ(engine->stats().requests_failed, 0u);
}

TEST_F(RetentionEngineTest, WhatIsKeptForADayOutlivesWhatIsNot) {
  open();
  come(document, "", "", Retention::kDay);
  come(other);
  EXPECT_GT(engine->stats().kv_pages_pinned, 0);
  flood();
  EXPECT_EQ(known(document), 400);
  EXPECT_EQ(known(other), 0) << "power";
  Request wrong = request_of(document, "prefix", 0);
  wrong.prompt.kept = {{401, Retention::kHour}};
  EXPECT_FALSE(ask(*engine, std::move(wrong)).ok());
}

TEST_F(RetentionEngineTest, ATenantWithAShareIsNotPushedOut) {
  for (const bool shared : {true, false}) {
    open(shared ? std::map<std::string, double>{{"small", .25}} : std::map<std::string, double>{});
    come(document, "small");
    flood("large");
    ASSERT_TRUE(pool_of("large"));
    EXPECT_GT(pool_of("large")->held, engine->stats().kv_pages / 2);
    EXPECT_EQ(known(document, "small"), shared ? 400 : 0) << "without a share all have all of it together";
    EXPECT_EQ(known(document, "large"), 0);
    EXPECT_EQ(pool_of("small")->share, shared ? engine->stats().kv_pages / 4 : 0);
  }
}

}  // namespace
}  // namespace kvilt

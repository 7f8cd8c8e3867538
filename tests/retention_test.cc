// What requests may say about how long their KV stays, through a whole engine with a small pool.
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <memory>

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
    options.cache_dir = cache_dir;
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
  // head | document, as a knowledge base's is computed when it comes in.
  void put(const std::vector<int32_t>& text, const std::string& frozen_as) {
    Request request = request_of(join({head, text}), "prefix", 0);
    request.prompt.marks = {{40, static_cast<int32_t>(request.prompt.ids.size())}};
    request.clean_copy = true;
    request.frozen_as = frozen_as;
    ask_ok(*engine, std::move(request));
  }
  // head | something else | document | a question.
  Request about(const std::vector<int32_t>& text, const std::string& name) const {
    Request request = request_of(join({head, tokens(9, 7), text, tokens(24, 8)}), "naive", 1);
    const TokenMark mark{49, 49 + static_cast<int32_t>(text.size())};
    request.prompt.marks = {mark};
    if (!name.empty()) request.prompt.frozen = {{mark, name}};
    return request;
  }
  PromptUsage look_for(const std::vector<int32_t>& text) {
    Request request = about(text, "");
    request.publish = false;
    return ask_ok(*engine, std::move(request)).usage();
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
  std::string cache_dir;
  int64_t token_bytes = 0;
  int last = 0;
  const std::vector<int32_t> document = tokens(400, 1), other = tokens(400, 2), small = tokens(200, 4),
                             head = tokens(40, 3);
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

// A document of a knowledge base that lost its place has it again from the next request on that names it.
TEST_F(RetentionEngineTest, ADocumentThatGaveWayIsFrozenAgainWhenItIsNamed) {
  for (const bool named : {false, true}) {
    open();
    put(small, "rivers/elbe/");
    for (uint32_t i = 0; i < 13; ++i) come(tokens(120, 50 + i), "", "base/" + std::to_string(i) + "/");
    engine->thaw("", {"base/"});
    ASSERT_EQ(engine->stats().kv_pages_frozen, 0) << "power: it gave way";
    EXPECT_EQ(ask_ok(*engine, about(small, named ? "rivers/elbe/" : "")).usage().reused, 200);
    EXPECT_EQ(engine->stats().kv_pages_frozen > 0, named);
    flood();
    EXPECT_EQ(look_for(small).reused, named ? 200 : 0);
    engine->thaw("", {"rivers/elbe/"});
    EXPECT_EQ(engine->stats().kv_pages_frozen, 0);
  }
}

TEST_F(RetentionEngineTest, ADocumentThatWasClearedIsFrozenByWhoComputesIt) {
  open();
  put(small, "rivers/elbe/");
  engine->clear_cache();
  EXPECT_EQ(engine->stats().kv_pages_frozen, 0);
  EXPECT_EQ(ask_ok(*engine, about(small, "rivers/elbe/")).usage().fresh, 273) << "power";
  flood();
  const PromptUsage usage = look_for(small);
  EXPECT_GE(usage.prefix + usage.reused, 249);
  engine->thaw("", {"rivers/elbe/"});
  Request gone = about(small, "rivers/elbe/");
  gone.prompt.frozen[0].withdrawn = std::make_shared<std::atomic<bool>>(true);
  ask_ok(*engine, std::move(gone));
  EXPECT_EQ(engine->stats().kv_pages_frozen, 0) << "it was deleted before the request published";
  Request wrong = about(small, "rivers/elbe/");
  wrong.prompt.frozen[0].tokens = {49, 274};
  EXPECT_FALSE(ask(*engine, std::move(wrong)).ok());
}

TEST_F(RetentionEngineTest, ADocumentThatCameBackFromDiskIsFrozenWhenItIsNamed) {
  for (const bool named : {false, true}) {
    std::string folder = testing::TempDir() + "kvilt_frozen_XXXXXX";
    cache_dir = ::mkdtemp(folder.data());
    open();
    put(document, "rivers/elbe/");
    engine.reset();
    open();
    EXPECT_TRUE(eventually([&] { return engine->stats().disk.tokens >= 440; }));
    const PromptUsage first = ask_ok(*engine, about(document, named ? "rivers/elbe/" : "")).usage();
    EXPECT_EQ(first.reused, 400);
    EXPECT_GE(first.disk, 400) << "power: it came from there";
    flood();
    const PromptUsage usage = look_for(document);
    EXPECT_EQ(usage.reused, 400);
    EXPECT_EQ(usage.disk < 400, named) << "it is still in memory, what stands before it is not";
    engine.reset();
    std::filesystem::remove_all(cache_dir);
  }
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

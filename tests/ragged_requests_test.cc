// Requests whose KV heads keep sink and window, in an engine: what they hold, by class; how many a pool lets in; what
// becomes of them when it is full.
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "model/head_map.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

constexpr int kL = 6, kG = 2, kP = 16;  // of the probe model; slots of a page

// Calls `look` on the engine thread when its request has so many tokens.
class LookingSink : public CollectingSink {
 public:
  LookingSink(size_t at, std::function<void()> look) : at_(at), look_(std::move(look)) {}
  void on_tokens(const TokenDelta& delta) override {
    CollectingSink::on_tokens(delta);
    if (ids.size() == at_) look_();
  }

 private:
  const size_t at_;
  const std::function<void()> look_;
};

std::unique_ptr<Engine> engine_of(int pages, int chunk = 64) {
  EngineOptions options;
  options.model = kModel;
  options.kv_type = "f32";
  options.page_slots = kP;
  options.chunk_tokens = chunk;
  options.cache = false;
  options.kv_bytes = int64_t{64} << 20;
  if (pages > 0) {
    const auto e = open_for_test(options);
    options.kv_bytes = e->info().kv_bytes_per_token * kP / (kL * kG) * pages;
  }
  return open_for_test(options);
}

Request narrow(std::vector<int32_t> ids, int max_tokens) {
  Request request = request_of(std::move(ids), "redknot", max_tokens);
  request.policy.params = {{"global", "none"}, {"window", "8"}, {"sink", "2"}};
  return request;
}

TEST(RaggedRequests, AccountsByClass) {
  const auto e = engine_of(0);
  HeadMap map = uniform_head_map(kL, kG, HeadClass::kLocal, 8, 2);
  map.dense_prefix_layers = 1;           // layer 0: dense
  map.heads[2] = HeadClass::kGlobal;     // layer 1
  map.heads[4] = HeadClass::kRetrieval;  // layer 2
  map.heads[5] = HeadClass::kGlobal;
  ASSERT_TRUE(e->set_head_map("default", head_map_json(map)).ok());
  const int64_t page = e->info().kv_bytes_per_token * kP / (kL * kG);
  EngineStats seen;
  const auto sink = std::make_shared<LookingSink>(3, [&] { seen = e->stats(); });
  ASSERT_TRUE(e->submit(request_of(tokens(200, 1), "redknot", 4), sink).ok());
  const ByHeadClass kv = sink->wait().usage.kv_bytes;
  // 200 tokens are 13 pages; a local head has its sink's and the one of 192 .. 199.
  EXPECT_EQ(kv.dense, 2 * 13 * page);
  EXPECT_EQ(kv.global, 2 * 13 * page);
  EXPECT_EQ(kv.retrieval, 13 * page);
  EXPECT_EQ(kv.local, 7 * 2 * page);
  EXPECT_EQ(seen.request_pages.dense, 26);
  EXPECT_EQ(seen.request_pages.retrieval, 13);
  EXPECT_EQ(seen.request_pages.local, 14);
  EXPECT_EQ(seen.reserved_pages, 0);
  EXPECT_EQ(seen.kv_pages_used, 26 + 26 + 13 + 14);
  EXPECT_EQ(e->stats().request_pages.local, 0) << "it has ended";

  // Without a map every head is dense; a window over everything makes a head local, but it keeps all.
  const ByHeadClass full = ask(*e, request_of(tokens(200, 1), "full", 1)).usage().kv_bytes;
  EXPECT_EQ(full.dense, 12 * 13 * page);
  EXPECT_EQ(full.global + full.local + full.retrieval, 0);
  Request wide = request_of(tokens(200, 1), "redknot", 1);
  wide.policy.params = {{"window", "500"}};
  EXPECT_EQ(ask(*e, wide).usage().kv_bytes.local, 7 * 13 * page);
  // Restored heads are global.
  Request restored = request_of(tokens(200, 1), "redknot", 1);
  restored.policy.params = {{"restore", "1e-9"}};
  const ByHeadClass all = ask(*e, restored).usage().kv_bytes;
  EXPECT_EQ(all.local, 0);
  EXPECT_EQ(all.global, 9 * 13 * page);
}

}  // namespace
}  // namespace kvilt

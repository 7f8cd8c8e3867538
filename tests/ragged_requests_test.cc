// Requests whose KV heads keep sink and window, in an engine: what they hold, by class; how many a pool admits; what
// happens to them when it is full.
#include <gtest/gtest.h>

#include <atomic>

#include "model/head_map.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

constexpr int kLayers = 6, kKvHeads = 2, kP = 16;  // of the probe model; slots of a page

// Calls `look` on the engine thread when its request has `at` tokens.
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

std::unique_ptr<Engine> engine_of_pages(int pages, int chunk = 64) {
  EngineOptions options{.model = kModel, .kv_type = KvType::kF32, .page_slots = kP, .chunk_tokens = chunk};
  options.cache = false;
  options.kv_bytes = int64_t{64} << 20;
  if (pages > 0) {
    const auto e = open_for_test(options);
    options.kv_bytes = e->info().kv_bytes_per_token * kP / (kLayers * kKvHeads) * pages;
  }
  return open_for_test(options);
}

Request narrow(std::vector<int32_t> ids, int max_tokens) {
  Request request = request_of(std::move(ids), "redknot", max_tokens);
  request.policy.params = {{"global", "none"}, {"window", "8"}, {"sink", "2"}};
  return request;
}

TEST(RaggedRequests, AccountsByClass) {
  const auto e = engine_of_pages(0);
  HeadMap map = uniform_head_map(kLayers, kKvHeads, HeadClass::kLocal, 8, 2);
  map.dense_prefix_layers = 1;           // layer 0: dense
  map.heads[2] = HeadClass::kGlobal;     // layer 1
  map.heads[4] = HeadClass::kRetrieval;  // layer 2
  map.heads[5] = HeadClass::kGlobal;
  ASSERT_TRUE(e->set_head_map("default", head_map_json(map)).ok());
  const int64_t page = e->info().kv_bytes_per_token * kP / (kLayers * kKvHeads);
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
  const ByHeadClass full = ask_ok(*e, request_of(tokens(200, 1), "full", 1)).usage().kv_bytes;
  EXPECT_EQ(full.dense, 12 * 13 * page);
  EXPECT_EQ(full.global + full.local + full.retrieval, 0);
  Request wide = request_of(tokens(200, 1), "redknot", 1);
  wide.policy.params = {{"window", "500"}};
  EXPECT_EQ(ask_ok(*e, wide).usage().kv_bytes.local, 7 * 13 * page);
  // Restored heads are global.
  Request restored = request_of(tokens(200, 1), "redknot", 1);
  restored.policy.params = {{"restore", "1e-9"}};
  const ByHeadClass all = ask_ok(*e, restored).usage().kv_bytes;
  EXPECT_EQ(all.local, 0);
  EXPECT_EQ(all.global, 9 * 13 * page);
}

std::vector<std::shared_ptr<CollectingSink>> ask_all(Engine& e, const std::vector<Request>& requests, int& most) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  class Watching : public CollectingSink {
   public:
    Watching(Engine& e, int& most) : e_(e), most_(most) {}
    void on_tokens(const TokenDelta& delta) override {
      most_ = std::max(most_, e_.stats().running);
      CollectingSink::on_tokens(delta);
    }

   private:
    Engine& e_;
    int& most_;
  };
  most = 0;
  const auto gate = hold(e);
  for (const Request& request : requests) {
    sinks.push_back(std::make_shared<Watching>(e, most));
    EXPECT_TRUE(e.submit(request, sinks.back()).ok());
  }
  gate->open();
  for (const auto& sink : sinks) sink->wait();
  return sinks;
}

// A prompt whose dense pages would fill the pool twice over fits where its heads keep sink and window.
TEST(RaggedRequests, APromptIsAdmittedByWhatItsHeadsKeep) {
  const auto large = engine_of_pages(0);
  const Outcome alone = ask_ok(*large, narrow(tokens(200, 1), 40));
  EXPECT_EQ(large->stats().preemptions, 0u);
  // A local head of a chunk of 64 needs 2 + 6 pages of 13 while the prompt is computed.
  const auto small = engine_of_pages(12 * 8);
  const Outcome out = ask_ok(*small, narrow(tokens(200, 1), 40));
  EXPECT_EQ(out.ids, alone.ids);
  EXPECT_EQ(out.completion.logits.first, alone.completion.logits.first);
  const auto refused = [&](Engine& e, const Request& request) {
    const auto id = e.submit(request, std::make_shared<CollectingSink>());
    return !id.ok() && id.error().code == Code::kTooLong;
  };
  EXPECT_TRUE(refused(*small, request_of(tokens(200, 1), "full", 40))) << "power";
  Request wide = narrow(tokens(200, 1), 40);
  wide.policy.params["window"] = "500";
  EXPECT_TRUE(refused(*small, wide));
  Request restored = narrow(tokens(200, 1), 40);
  restored.policy.params["restore"] = "0.1";  // looks at every head's keys first
  EXPECT_TRUE(refused(*small, restored));
  EXPECT_TRUE(refused(*engine_of_pages(12 * 8 - 1), narrow(tokens(200, 1), 40))) << "what a chunk needs is not there";
}

TEST(RaggedRequests, MoreOfThemRunAtOnce) {
  std::vector<Request> dense, ragged;
  for (uint32_t i = 0; i < 8; ++i) {
    dense.push_back(request_of(tokens(200, i), "full", 150));
    ragged.push_back(narrow(tokens(200, i), 150));
  }
  const auto e = engine_of_pages(12 * 32);  // 32 pages a head
  int most_dense = 0, most_ragged = 0;
  ask_all(*e, dense, most_dense);
  const uint64_t preempted = e->stats().preemptions;
  const auto answers = ask_all(*e, ragged, most_ragged);
  EXPECT_LE(most_dense, 2);  // 13 pages a head at first, 22 in the end
  EXPECT_EQ(most_ragged, 8);
  EXPECT_EQ(e->stats().preemptions, preempted) << "none of the ragged ones";
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(answers[i]->ids, ask_ok(*e, ragged[i]).ids) << i;
}

// Requests that are preempted in the middle of their answers start again and give the same tokens, whatever their heads
// keep.
TEST(RaggedRequests, PreemptionChangesNothing) {
  const std::vector<std::map<std::string, std::string>> settings = {
      {{"global", "first"}, {"share", "0.5"}, {"window", "8"}, {"sink", "2"}},
      {{"global", "random"}, {"share", "0.5"}, {"window", "20"}, {"restore", "0.6"}},
      {{"global", "last"}, {"share", "0.5"}, {"window", "8"}, {"ffn_mass", "0.5"}, {"ffn_recent", "8"}},
      {{"global", "first"}, {"share", "0.5"}, {"window", "8"}, {"ffn_mass", "0.3"}, {"ffn_by", "random"}}};
  const auto large = engine_of_pages(0), small = engine_of_pages(270);
  std::vector<int32_t> before;
  for (const auto& params : settings) {
    std::vector<Request> requests;
    for (uint32_t i = 0; i < 3; ++i) {
      requests.push_back(request_of(tokens(150, i), "redknot", 200));
      requests.back().policy.params = params;
      requests.back().evaluation.all_logits = true;
    }
    int most = 0;
    const uint64_t preempted = small->stats().preemptions;
    const auto answers = ask_all(*small, requests, most);
    EXPECT_GE(most, 2);
    EXPECT_GT(small->stats().preemptions, preempted) << "power";
    EXPECT_EQ(large->stats().preemptions, 0u);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Outcome alone = ask_ok(*large, requests[i]);
      EXPECT_EQ(answers[i]->ids, alone.ids) << i;
      EXPECT_EQ(answers[i]->wait().logits.all, alone.completion.logits.all) << i;
    }
    EXPECT_NE(answers[0]->ids, before) << "power";
    before = answers[0]->ids;
  }
}

}  // namespace
}  // namespace kvilt

// Seasoned pieces through an engine: marked parts as the mean over contexts. One context that is the prompt's own gives
// what a full pass gives, bit for bit; exact answers and other salts never see them.
#include <thread>

#include "probe_prompts.h"

namespace kvilt {
namespace {

class Seasoning : public testing::Test {
 protected:
  std::unique_ptr<Engine> engine(KvType type = KvType::kF32) const {
    EngineOptions options{.model = kModel, .threads = 2, .kv_type = type, .chunk_tokens = 64};
    options.kv_bytes = int64_t{64} << 20;
    return open_for_test(options);
  }
  // `before` and the piece, marked; nothing is kept but the mean.
  void season(Engine& engine, const std::vector<int32_t>& before, const std::string& salt = "") const {
    Request request = request_of(join({before, piece}), "prefix", 0);
    const auto begin = static_cast<int32_t>(before.size());
    request.prompt.marks = {{begin, begin + static_cast<int32_t>(piece.size())}};
    request.season = true;
    request.publish = false;
    request.cache_salt = salt;
    ask_ok(engine, std::move(request));
  }
  Outcome ask_seasoned(Engine& engine, const std::string& policy, Params params = {},
                       const std::string& salt = "") const {
    params["reuse_from"] = "seasoned";
    Request request = request_of(prompt, policy, 4);
    request.policy.params = std::move(params);
    request.cache_salt = salt;
    request.publish = false;
    return ask_ok(engine, std::move(request));
  }
  Outcome full() const { return ask_ok(*engine(), request_of(prompt, "full", 4)); }

  const std::vector<int32_t> context = tokens(80, 1), piece = tokens(120, 2), question = tokens(20, 3);
  const std::vector<int32_t> prompt = join({context, piece, question});
};

TEST_F(Seasoning, OneContextThatIsThePromptsOwnIsAFullPass) {
  for (const KvType type : {KvType::kF32, KvType::kBF16, KvType::kInt8}) {
    const auto with = engine(type);
    season(*with, context);
    const Outcome naive = ask_seasoned(*with, "naive");
    EXPECT_EQ(naive.usage().reused, 120);
    EXPECT_EQ(naive.usage().seasoned, 120);
    expect_equal(naive, ask_ok(*engine(type), request_of(prompt, "full", 4)));
  }
  const auto other = engine();
  season(*other, tokens(80, 9));
  expect_differ(ask_seasoned(*other, "naive"), full());
}

TEST_F(Seasoning, TheMeanIsOverAllContexts) {
  const auto two = engine(), turned = engine(), one = engine();
  season(*two, tokens(50, 7)), season(*two, tokens(90, 8));
  season(*turned, tokens(90, 8)), season(*turned, tokens(50, 7));
  season(*one, tokens(50, 7));
  const Outcome a = ask_seasoned(*two, "naive"), b = ask_seasoned(*turned, "naive");
  ASSERT_EQ(a.usage().seasoned, 120);
  const auto& x = a.completion.logits.first;
  const auto& y = b.completion.logits.first;
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-3) << "the order of contexts is rounding";
  expect_differ(a, ask_seasoned(*one, "naive"));
}

TEST_F(Seasoning, ProvenanceSaysOverHowManyContexts) {
  const auto with = engine();
  const auto contexts = [&] {
    Request request = request_of(prompt, "naive", 0);
    request.policy.params = {{"reuse_from", "seasoned"}};
    request.publish = false;
    request.explain = Explain::kFull;
    std::vector<int> out;
    for (const PromptPatch& patch : ask_ok(*with, request).completion.quilt) {
      if (patch.kind == PatchKind::kReused) out.push_back(patch.seasoned);
    }
    return out;
  };
  warm(*with, piece);
  EXPECT_EQ(contexts(), (std::vector{0})) << "as it was computed";
  for (int n = 1; n <= 3; ++n) {
    season(*with, tokens(50, 20 + static_cast<uint32_t>(n)));
    EXPECT_EQ(contexts(), (std::vector{n}));
    EXPECT_EQ(with->stats().seasoned_pieces[static_cast<size_t>(n)], 1);
    EXPECT_EQ(with->stats().seasoned_tokens, 120);
  }
}

TEST_F(Seasoning, NothingExactAndNobodyElseSeesIt) {
  const auto with = engine();
  season(*with, tokens(80, 9), "mine");
  Request exact = request_of(prompt, "prefix", 4);
  exact.cache_salt = "mine";
  exact.publish = false;
  const Outcome out = ask_ok(*with, exact);
  EXPECT_EQ(out.usage().prefix, 0);
  expect_equal(out, full());
  EXPECT_EQ(ask_seasoned(*with, "naive", {}, "mine").usage().seasoned, 120) << "power";
  EXPECT_EQ(ask_seasoned(*with, "naive", {}, "yours").usage().reused, 0);
  EXPECT_EQ(ask_seasoned(*with, "naive", {{"trust", "clean"}}, "mine").usage().reused, 0);
  Request first = request_of(prompt, "naive", 4);
  first.cache_salt = "mine";
  EXPECT_EQ(ask_ok(*with, first).usage().reused, 0) << "only reuse_from=seasoned does";
}

// Who computes a context need not want the mean: a request of any policy may add one.
TEST_F(Seasoning, AnyRequestThatComputesExactlyMayAddAContext) {
  for (const char* policy : {"full", "prefix", "naive", "auto"}) {
    const auto with = engine();
    Request request = request_of(join({context, piece}), policy, 0);
    request.prompt.marks = {{80, 200}};
    request.season = true;
    request.publish = false;
    EXPECT_EQ(ask_ok(*with, request).usage().seasoned, 0);
    expect_equal(ask_seasoned(*with, "naive"), full());
    EXPECT_EQ(ask_ok(*with, request).usage().seasoned, 0) << "it reads what it asks for, not what it makes";
  }
}

// A pool that is full of what others asked for makes room.
TEST_F(Seasoning, AFullPoolMakesRoom) {
  EngineOptions options{.model = kModel, .threads = 1, .kv_type = KvType::kF32, .chunk_tokens = 64};
  options.kv_bytes = 1000 * 2 * 6 * 2 * 32 * 4;  // a thousand tokens
  const auto with = open_for_test(options);
  for (uint32_t i = 0; i < 5; ++i) warm(*with, tokens(300, 50 + i));
  for (uint32_t i = 0; i < 3; ++i) season(*with, tokens(50, 7 + i));
  EXPECT_EQ(ask_seasoned(*with, "naive").usage().seasoned, 120);
}

// An audit computes a prompt in full anyway: what it marked has one context more. One document by itself is no set that
// idle time would season.
TEST_F(Seasoning, AnAuditIsAContextThatComesForNothing) {
  EngineOptions options{.model = kModel, .threads = 1, .kv_type = KvType::kF32, .audit = 1};
  const auto with = open_for_test(options);
  warm(*with, join({tokens(10, 6), piece}));
  const auto ask_for_it = [&](const std::string& from, uint32_t before) {
    Request request = request_of(join({tokens(30, before), piece, tokens(12, 9)}), "naive", 2);
    request.prompt.marks = {{30, 30 + static_cast<int32_t>(piece.size())}};
    request.policy.params["reuse_from"] = from;
    return ask_ok(*with, std::move(request)).usage();
  };
  const auto audits = [&](uint64_t wanted) {
    return eventually([&] { return !with->stats().audits.empty() && with->stats().audits[0].requests == wanted; });
  };
  EXPECT_GT(ask_for_it("first", 80).reused, 0);
  ASSERT_TRUE(audits(1));
  EXPECT_EQ(with->stats().seasoned_pieces[1], 0) << "it did not ask for means";
  EXPECT_EQ(ask_for_it("seasoned", 81).seasoned, 0);
  ASSERT_TRUE(audits(2));
  EXPECT_TRUE(eventually([&] { return with->stats().seasoned_pieces[1] == 1; }));
  EXPECT_EQ(with->stats().seasoning_passes, 0u) << "that pass was made for something else";
  EXPECT_EQ(ask_for_it("seasoned", 82).seasoned, std::ssize(piece));
}

// Two documents that stand together in prompts become means when the engine has nothing else to do: by the second prompt
// they are known to come again.
TEST_F(Seasoning, WhatIsAskedForAgainIsSeasonedInIdleTime) {
  EngineOptions options{.model = kModel, .threads = 2, .kv_type = KvType::kF32, .chunk_tokens = 64};
  options.kv_bytes = int64_t{64} << 20;
  options.season = 3;
  options.season_share = 1;
  const auto with = open_for_test(options);
  const auto other = tokens(90, 4), third = tokens(90, 5);
  uint32_t head = 6;
  const auto asks = [&](const std::vector<int32_t>& a, const std::vector<int32_t>& b, uint32_t question,
                        const std::string& policy = "naive") {
    const auto first = static_cast<int32_t>(a.size()), end = first + static_cast<int32_t>(b.size());
    Request request = request_of(join({tokens(10, head), a, b, tokens(12, question)}), policy, 2);
    request.prompt.marks = {{10, 10 + first}, {10 + first, 10 + end}};
    return ask_ok(*with, std::move(request));
  };
  const auto pieces = [&](int contexts) { return with->stats().seasoned_pieces[static_cast<size_t>(contexts)]; };
  const auto wait_for = [&](int64_t wanted) {
    eventually([&] { return pieces(3) >= wanted; });
    return pieces(3);
  };
  asks(piece, other, 20);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_EQ(with->stats().seasoning_passes, 0u) << "once is not again";
  asks(other, piece, 21);
  EXPECT_EQ(wait_for(2), 2);
  const EngineStats now = with->stats();
  EXPECT_EQ(now.seasoned_tokens, 210);
  EXPECT_EQ(now.seasoning_passes, 3u);
  EXPECT_GT(now.seasoning_s, 0);
  EXPECT_EQ(now.requests_ok, 2u) << "nobody asked for these";
  head = 30;  // another beginning: nothing is a prefix
  // The second one stands behind the first as it did once: its copy knows that context.
  EXPECT_EQ(asks(piece, other, 22).usage().seasoned, 120);
  EXPECT_EQ(asks(other, piece, 22).usage().seasoned, 210) << "pieces were placed there, not computed";
  EXPECT_EQ(asks(piece, other, 22, "prefix").usage().seasoned, 0);
  asks(third, piece, 23);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_EQ(with->stats().seasoning_passes, 3u) << "what has its contexts waits for nobody";
  with->clear_cache();
  EXPECT_EQ(pieces(3), 0);
  EXPECT_EQ(with->stats().seasoned_tokens, 0);
}

TEST_F(Seasoning, ItServesEveryPolicyThatReusesPieces) {
  const auto with = engine();
  season(*with, tokens(80, 9));
  for (const char* policy : {"mend", "sparsex", "epic", "prophetkv", "cacheblend"}) {
    EXPECT_EQ(ask_seasoned(*with, policy).usage().seasoned, 120) << policy;
  }
  expect_equal(ask_seasoned(*with, "mend", {{"r", "1"}}), full());
}

}  // namespace
}  // namespace kvilt

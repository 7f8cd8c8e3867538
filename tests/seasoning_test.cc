// Seasoned pieces through an engine: marked parts as the mean over contexts. One context that is the prompt's own gives
// what a full pass gives, bit for bit; exact answers and other salts never see them.
#include <atomic>
#include <thread>

#include "kvilt/season.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

class Seasoning : public testing::Test {
 protected:
  std::unique_ptr<Engine> engine(KvType type = KvType::kF32, bool states = false) const {
    EngineOptions options{.model = kModel, .threads = 2, .kv_type = type, .chunk_tokens = 64, .season_states = states};
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

// With states of the very context rows that enter give what a full pass gives, but for the states' rounding; with those
// of another they do not. Such rows take less work, and r of it computes more tokens.
TEST_F(Seasoning, RowsEnterWithAMeansStates) {
  const auto asked = [&](Engine& of, const char* enter) {
    return ask_seasoned(of, "mend", {{"r", "0.5"}, {"enter", enter}});
  };
  const auto with = engine(KvType::kF32, true), other = engine(KvType::kF32, true), none = engine();
  season(*with, context);
  season(*other, tokens(80, 9));
  season(*none, context);
  const Outcome all = ask_ok(*engine(), request_of(prompt, "full", 4));
  const Outcome enters = asked(*with, "1"), whole = asked(*with, "0");
  EXPECT_EQ(whole.usage().recomputed, 60);
  EXPECT_EQ(enters.usage().recomputed, 90);  // a third up: 60 for two thirds of the work
  expect_equal(ask_seasoned(*other, "mend", {{"r", "1"}, {"enter", "1"}}), all);
  EXPECT_LT(enters.usage().linear_flops, 1.05 * whole.usage().linear_flops);
  expect_equal(whole, all);
  const auto off = [&](const Outcome& x) {
    double out = 0;
    for (size_t i = 0; i < x.completion.logits.first.size(); ++i)
      out = std::max(out, std::abs(double{x.completion.logits.first[i]} - all.completion.logits.first[i]));
    return out;
  };
  EXPECT_GT(off(enters), 0) << "states are bf16";
  EXPECT_LT(off(enters), 0.1 * off(asked(*other, "1"))) << "power: another context's";
  EXPECT_EQ(asked(*none, "1").usage().recomputed, 60) << "states are kept where they are asked for";
  expect_equal(asked(*none, "1"), asked(*none, "0"));
  // Who has no mean enters nowhere.
  warm(*other, piece);
  Request plain = request_of(prompt, "mend", 4);
  plain.policy.params = {{"r", "0.5"}, {"enter", "1"}, {"reuse_from", "first"}};
  plain.publish = false;
  EXPECT_EQ(ask_ok(*other, plain).usage().recomputed, 60);
}

// Where contexts differ a token's score says by how much; where they are the same there is nothing to say.
TEST_F(Seasoning, WhatDiffersBetweenContextsIsComputedFirst) {
  const auto asked = [&](Engine& of, const char* spread) {
    return ask_seasoned(of, "mend", {{"r", "0.25"}, {"anchors", "0"}, {"spread", spread}});
  };
  const auto one = engine(), same = engine(), two = engine();
  season(*one, tokens(80, 8));
  for (int i = 0; i < 2; ++i) season(*same, tokens(80, 8));
  for (const int seed : {8, 9}) season(*two, tokens(80, seed));
  expect_equal(asked(*one, "1"), asked(*one, "0"));
  expect_equal(asked(*same, "1"), asked(*same, "0"));
  expect_differ(asked(*two, "1"), asked(*two, "0"));
  EXPECT_EQ(asked(*two, "1").usage().recomputed, asked(*two, "0").usage().recomputed);
}

// Idle time makes states too, also for a policy that takes them; with them the same dial computes more tokens.
TEST_F(Seasoning, IdleTimeMakesStatesForWhoTakesThem) {
  const auto other = tokens(90, 4);
  const auto recomputed = [&](bool states) {
    EngineOptions options{.model = kModel, .threads = 2, .kv_type = KvType::kF32, .season = 2, .season_share = 1};
    options.kv_bytes = int64_t{64} << 20;
    options.season_states = states;
    const auto with = open_for_test(options);
    uint32_t head = 6;
    const auto asks = [&](const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
      const auto first = static_cast<int32_t>(a.size()), end = first + static_cast<int32_t>(b.size());
      Request request = request_of(join({tokens(10, head++), a, b, tokens(12, 20)}), "auto", 2);
      request.policy.params = {{"r", "0.4"}, {"hop", "0"}};
      request.prompt.marks = {{10, 10 + first}, {10 + first, 10 + end}};
      return ask_ok(*with, std::move(request)).usage();
    };
    asks(piece, other), asks(other, piece);
    eventually([&] { return with->stats().seasoned_pieces[2] == 2; });
    const PromptUsage usage = asks(piece, other);
    EXPECT_EQ(usage.seasoned, 120) << "the other stands behind what it stood behind once";
    return usage.recomputed;
  };
  const int without = recomputed(false);
  EXPECT_GE(without, 84) << "power: .4 of 210, and what is computed whatever was chosen";
  EXPECT_GT(recomputed(true), without);
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

// Whoever shares a key of the cache shares means, and nobody else: what is found is, to the bit, what was made there.
TEST_F(Seasoning, EveryKeyOfTheCacheHasMeansOfItsOwn) {
  struct Key {
    std::string tenant, salt, name_space;
  };
  const std::vector<Key> keys = {{"", "", ""},   {"a", "", ""},  {"b", "", ""},  {"a", "s", ""},
                                 {"b", "s", ""}, {"a", "t", ""}, {"a", "", "n"}, {"a", "s", "n"}};
  const auto with = engine();
  const auto in = [](const Key& key, Request request) {
    request.tenant = key.tenant;
    request.cache_salt = key.salt;
    request.namespaces = {key.name_space};
    request.publish = false;
    return request;
  };
  const auto look = [&](Engine& of, const Key& key) {
    Request request = request_of(prompt, "naive", 4);
    request.policy.params["reuse_from"] = "seasoned";
    return ask_ok(of, in(key, std::move(request)));
  };
  const auto season_in = [&](Engine& of, const Key& key, uint32_t before) {
    Request request = request_of(join({tokens(50, before), piece}), "prefix", 0);
    request.prompt.marks = {{50, 170}};
    request.season = true;
    ask_ok(of, in(key, std::move(request)));
  };
  for (size_t made = 0; made < keys.size(); ++made) {
    season_in(*with, keys[made], 40 + static_cast<uint32_t>(made));
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(look(*with, keys[i]).usage().seasoned, i <= made ? 120 : 0) << made << " " << i;
    }
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto alone = engine();
    season_in(*alone, keys[i], 40 + static_cast<uint32_t>(i));
    expect_equal(look(*with, keys[i]), look(*alone, keys[i]));
    if (i > 0) expect_differ(look(*with, keys[i]), look(*with, keys[i - 1]));
  }
}

// Who only looks into a namespace adds no context there.
TEST_F(Seasoning, LookingIntoANamespaceLeavesItsMeansAsTheyAre) {
  const auto with = engine();
  const auto ask_in = [&](std::vector<std::string> names, bool adds) {
    Request request = request_of(adds ? join({tokens(50, 9), piece}) : prompt, adds ? "prefix" : "naive", adds ? 0 : 4);
    if (adds) request.prompt.marks = {{50, 170}};
    if (!adds) request.policy.params["reuse_from"] = "seasoned";
    request.season = adds;
    request.namespaces = std::move(names);
    request.publish = false;
    return ask_ok(*with, std::move(request));
  };
  Request first = season_request({join({tokens(50, 7), piece}), {{50, 170}}}, "", {"documents"});
  ask_ok(*with, std::move(first));
  const Outcome before = ask_in({"anna", "documents"}, false);
  EXPECT_EQ(before.usage().seasoned, 120);
  ask_in({"anna", "documents"}, true);
  expect_equal(ask_in({"bob", "documents"}, false), before);
  expect_equal(ask_in({"documents"}, false), before);
  expect_differ(ask_in({"anna", "documents"}, false), before);
}

// A mean, else a clean copy, else whatever stood behind other text: of all that are there the first is taken.
TEST_F(Seasoning, ItComesBeforeACleanCopyAndThatBeforeOthers) {
  const std::vector<int32_t> head = tokens(30, 4);
  const auto copy = [&](Engine& of, const std::vector<int32_t>& before, bool clean) {
    Request request = request_of(join({before, piece, tokens(20, 8)}), "prefix", 0);
    const auto begin = static_cast<int32_t>(before.size());
    request.prompt.marks = {{begin, begin + static_cast<int32_t>(piece.size())}};
    request.clean_copy = clean;
    ask_ok(of, std::move(request));
  };
  const auto look = [&](Engine& of, const std::string& from = "seasoned") {
    Request request = request_of(join({head, tokens(9, 3), piece, question}), "naive", 4);
    request.prompt.marks = {{39, 159}};
    request.policy.params["reuse_from"] = from;
    request.publish = false;
    return ask_ok(of, std::move(request));
  };
  const auto made = [&](bool mean, bool clean, bool other) {
    auto out = engine();
    if (other) copy(*out, tokens(40, 7), false);
    if (clean) copy(*out, head, true);
    if (mean) season(*out, tokens(50, 9));
    return out;
  };
  const auto all = made(true, true, true);
  const Outcome mean = look(*made(true, false, false)), clean = look(*made(false, true, false)),
                other = look(*made(false, false, true));
  for (const Outcome* one : {&mean, &clean, &other}) EXPECT_EQ(one->usage().reused, 120) << "power";
  expect_differ(mean, clean);
  expect_differ(clean, other);
  expect_differ(mean, other);
  expect_equal(look(*all), mean);
  expect_equal(look(*made(true, false, true)), mean);
  expect_equal(look(*made(false, true, true)), clean);
  expect_equal(look(*all, "first"), clean);
  EXPECT_EQ(look(*all).usage().seasoned, 120);
  EXPECT_EQ(look(*all, "first").usage().seasoned, 0);
}

// Holds the engine thread when a part of the prompt is computed.
class HalfWay : public TokenSink, public Turnstile {
 public:
  void on_tokens(const TokenDelta&) override {}
  void on_progress(const PromptProgress& now) override {
    if (now.processed < now.total) pass();
  }
  void on_finish(Completion completion) override { finish = completion.finish, over = true; }
  std::atomic<Finish> finish{Finish::kLength};
  std::atomic<bool> over{false};
};

// A pass that ends in the middle leaves the mean as it was, and the pool too.
TEST_F(Seasoning, WhatIsBrokenOffAddsNothing) {
  EngineOptions options{.model = kModel, .threads = 1, .kv_type = KvType::kF32, .chunk_tokens = 64};
  options.linger_s = 0;
  const auto with = open_for_test(options);
  season(*with, tokens(50, 7));
  const Outcome before = ask_seasoned(*with, "naive");
  const int64_t used = with->stats().kv_pages_used;
  Request request = season_request({join({tokens(90, 8), piece}), {{90, 210}}});
  request.progress = true;
  const auto sink = std::make_shared<HalfWay>();
  const auto id = with->submit(request, sink);
  ASSERT_TRUE(id.ok());
  sink->wait_until_reached();
  with->cancel(id.value());
  sink->open();
  ASSERT_TRUE(eventually([&] { return sink->over.load(); }));
  EXPECT_EQ(sink->finish, Finish::kCancelled);
  EXPECT_EQ(with->stats().seasoned_pieces[1], 1);
  EXPECT_TRUE(eventually([&] { return with->stats().kv_pages_used == used; }));
  expect_equal(ask_seasoned(*with, "naive"), before);
  ask_ok(*with, request);
  EXPECT_EQ(with->stats().seasoned_pieces[2], 1);
  expect_differ(ask_seasoned(*with, "naive"), before);
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

// The means to which a pass adds stay until it has: whatever else is in the pool leaves for it, and where they and the
// pass do not fit in together, it is the pass that fails.
TEST_F(Seasoning, AFullPoolLeavesTheOldMeans) {
  const auto other = tokens(110, 4);
  const auto pieces_after = [&](int64_t pool, int more = 0) {
    EngineOptions options{.model = kModel, .threads = 1, .kv_type = KvType::kF32, .chunk_tokens = 64};
    options.kv_bytes = pool * 2 * 6 * 2 * 32 * 4;
    const auto with = open_for_test(options);
    std::vector<std::array<int64_t, 3>> out;
    for (uint32_t i = 0; i < 2; ++i) {
      const int before = i == 0 ? 10 : 10 + more;
      Request request = request_of(join({tokens(before, 60 + i), piece, other}), "prefix", 0);
      request.prompt.marks = {{before, before + 120}, {before + 120, before + 230}};
      request.season = true;
      request.publish = false;
      const auto end = kvilt::ask(*with, std::move(request));
      const auto& pieces = with->stats().seasoned_pieces;
      out.push_back({pieces[1], pieces[2], end.ok() ? 0 : 1});
      if (i == 0) warm(*with, tokens(200, 50));
    }
    return out;
  };
  using Pieces = std::vector<std::array<int64_t, 3>>;
  EXPECT_EQ(pieces_after(1600), (Pieces{{2, 0, 0}, {0, 2, 0}})) << "power";
  EXPECT_EQ(pieces_after(640), (Pieces{{2, 0, 0}, {0, 2, 0}})) << "the other text leaves";
  EXPECT_EQ(pieces_after(512), (Pieces{{2, 0, 0}, {2, 0, 0}})) << "no room for a new one beside the old";
  EXPECT_EQ(pieces_after(512, 100), (Pieces{{2, 0, 0}, {2, 0, 1}})) << "no room for the pass beside them";
}

// Nobody waits for idle work, so nothing that somebody asked to be kept leaves for it.
TEST_F(Seasoning, IdleTimeTakesNothingThatIsFrozen) {
  const auto other = tokens(90, 4);
  for (const int64_t pool : {1000, 3000}) {
    EngineOptions options{.model = kModel, .threads = 1, .kv_type = KvType::kF32, .season = 2, .season_share = 1};
    options.kv_bytes = pool * 2 * 6 * 2 * 32 * 4;
    const auto with = open_for_test(options);
    for (uint32_t i = 0; i < 4; ++i) {
      Request document = request_of(tokens(160, 70 + i), "full", 0);
      document.frozen_as = "document " + std::to_string(i);
      ask_ok(*with, std::move(document));
    }
    const int64_t frozen = with->stats().kv_pages_frozen;
    ASSERT_GT(frozen, 0);
    for (uint32_t question = 0; question < 2; ++question) {
      Request request = request_of(join({tokens(10, 6), piece, other, tokens(12, 20 + question)}), "naive", 2);
      request.prompt.marks = {{10, 130}, {130, 220}};
      ask_ok(*with, std::move(request));
    }
    ASSERT_EQ(with->stats().kv_pages_frozen, frozen);
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    EXPECT_TRUE(eventually([&] { return with->stats().seasoning_waiting + with->stats().seasoning_running == 0; }));
    EXPECT_EQ(with->stats().kv_pages_frozen, frozen);
    EXPECT_EQ(with->stats().seasoned_pieces[2], pool == 3000 ? 2 : 0) << "power: where there is room";
  }
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

// A document that has its contexts stands in sets of others that lack theirs, and gets no more for it: what many ask for
// goes on to follow new contexts (kMostContexts is the end), and --season says how many there are.
TEST_F(Seasoning, IdleTimeAddsNoMoreContextsThanAreAskedFor) {
  EngineOptions options{.model = kModel, .threads = 2, .kv_type = KvType::kF32, .season = 2, .season_share = 1};
  const auto with = open_for_test(options);
  const auto pieces = [&](size_t contexts) { return with->stats().seasoned_pieces[contexts]; };
  for (uint32_t i = 0; i < 2; ++i) {
    const auto other = tokens(90, 40 + i);
    for (uint32_t question = 0; question < 2; ++question) {
      Request request = request_of(join({tokens(10, 6), piece, other, tokens(12, 20 + question)}), "naive", 2);
      request.prompt.marks = {{10, 130}, {130, 220}};
      ask_ok(*with, std::move(request));
    }
    EXPECT_TRUE(eventually([&] { return pieces(2) == 2 + i && with->stats().seasoning_running == 0; }));
  }
  for (size_t more = 3; more <= kMostContexts; ++more) EXPECT_EQ(pieces(more), 0) << more;
}

// What waits for idle time can be seen: after the first of two passes a set waits for long, as its share is small.
TEST_F(Seasoning, StatsSayWhatWaits) {
  EngineOptions options{.model = kModel, .threads = 1, .kv_type = KvType::kF32, .season = 2, .season_share = 0.001};
  const auto with = open_for_test(options);
  const auto other = tokens(90, 4);
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(with->stats().seasoning_waiting + with->stats().seasoning_running, 0);
    Request request = request_of(join({tokens(10, 6), piece, other, tokens(12, 20 + i)}), "naive", 2);
    request.prompt.marks = {{10, 130}, {130, 220}};
    ask_ok(*with, std::move(request));
  }
  EXPECT_TRUE(eventually([&] {
    const EngineStats now = with->stats();
    return now.seasoning_passes == 1 && now.seasoning_waiting == 1 && now.seasoning_running == 0;
  }));
  with->clear_cache();
  EXPECT_EQ(with->stats().seasoning_waiting, 0);
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

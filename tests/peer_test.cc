// A prefill and a decode server in one process, over a loopback socket: every answer equals one server's to the bit,
// whatever the other one does.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "model/head_map.h"
#include "peer/peer_server.h"
#include "peer_for_test.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

using Then = PeerProxyForTest::Then;

class PeerTest : public StoredPrompts {
 protected:
  static EngineOptions plain() {
    EngineOptions out{.model = kModel, .threads = 2, .kv_type = KvType::kF32};
    out.kv_bytes = int64_t{64} << 20;
    out.chunk_tokens = 256;
    return out;
  }
  static std::unique_ptr<Engine> open_prefill(const std::string& key = "") {
    EngineOptions out = plain();
    out.role = Role::kPrefill;
    out.peer_listen = "127.0.0.1:0";
    out.peer_key = key;
    return open_for_test(out);
  }
  static EngineOptions decode_options(int port) {
    EngineOptions out = plain();
    out.role = Role::kDecode;
    out.peer = "127.0.0.1:" + std::to_string(port);
    return out;
  }
  static std::unique_ptr<Engine> open_decode(int port, bool ready = true) {
    auto out = open_for_test(decode_options(port));
    if (ready) {
      EXPECT_TRUE(eventually([&] { return out->stats().peer.ready; }));
    }
    return out;
  }
  static std::unique_ptr<Engine> open_decode(const Engine& prefill) { return open_decode(prefill.stats().peer.port); }
  // What it leaves may be found by others, as asking a peer takes.
  static Outcome ask_long(Engine& engine, const std::vector<int32_t>& prompt, const std::string& policy = "prefix",
                          int max_tokens = 6) {
    return ask_ok(engine, request_of(prompt, policy, max_tokens));
  }
  static int all_but_one(const std::vector<int32_t>& prompt) { return static_cast<int>(prompt.size()) - 1; }

  const std::vector<int32_t> prompt = tokens(3000, 7);
};

TEST_F(PeerTest, AnswersEqualOneServers) {
  const auto one = alone(), prefill = open_prefill(), decode = open_decode(*prefill);
  const Outcome whole = ask_long(*one, prompt, "prefix", 24), split = ask_long(*decode, prompt, "prefix", 24);
  expect_equal(split, whole);
  expect_differ(split, ask_long(*one, tokens(3000, 8), "prefix", 24));
  EXPECT_EQ(split.completion.usage.remote, all_but_one(prompt));
  EXPECT_EQ(split.completion.usage.prefix, all_but_one(prompt));
  EXPECT_EQ(split.completion.usage.fresh, 1);
  const PeerCounters here = decode->stats().peer, there = prefill->stats().peer;
  EXPECT_EQ(here.asked, 1u);
  EXPECT_EQ(here.received_tokens, prompt.size() - 1);
  EXPECT_EQ(here.received_bytes, (prompt.size() - 1) * static_cast<size_t>(decode->info().kv_bytes_per_token));
  EXPECT_EQ(here.unanswered + here.late + here.failures, 0u);
  EXPECT_EQ(there.answered, 1u);
  EXPECT_EQ(there.sent_tokens, here.received_tokens);
  EXPECT_EQ(there.sent_bytes, here.received_bytes);
  EXPECT_GT(there.early_tokens, 0u) << "it is sent while it is computed";
  EXPECT_LT(there.early_tokens, there.sent_tokens) << "power: the last part is not";
  EXPECT_EQ(prefill->stats().fresh_tokens, prompt.size() - 1) << "computed there";

  Request seeded = request_of(tokens(1500, 9), "auto", 24);
  seeded.sampling.temperature = 1;
  seeded.sampling.seed = 5;
  const Outcome drawn = ask_ok(*one, seeded), elsewhere = ask_ok(*decode, seeded);
  expect_equal(elsewhere, drawn);
  EXPECT_EQ(elsewhere.completion.usage.remote, 1499);
  seeded.sampling.seed = 6;
  EXPECT_NE(ask_ok(*one, seeded).ids, drawn.ids) << "power: the seed matters";
}

TEST_F(PeerTest, WhatIsKnownOrShortIsNotAskedFor) {
  const auto one = alone(), prefill = open_prefill(), decode = open_decode(*prefill);
  ask_long(*decode, tokens(512, 30));
  EXPECT_EQ(decode->stats().peer.asked, 0u) << "511 can come";
  ask_long(*decode, tokens(513, 3));
  EXPECT_EQ(decode->stats().peer.asked, 1u);
  EXPECT_EQ(ask_long(*decode, tokens(513, 3)).completion.usage.remote, 0) << "it is in memory";
  EXPECT_EQ(decode->stats().peer.asked, 1u);
  // A beginning is known here: only the rest is sent.
  const std::vector<int32_t> longer = join({tokens(513, 3), tokens(1000, 4)});
  const Outcome out = ask_long(*decode, longer);
  EXPECT_EQ(out.completion.usage.remote, all_but_one(longer) - 513) << "the first prompt is known here";
  expect_equal(out, ask_long(*one, longer));
  EXPECT_EQ(prefill->stats().peer.sent_tokens, longer.size() - 2);
  EXPECT_EQ(prefill->stats().prefix_tokens, 512u) << "and there it was known too";
}

TEST_F(PeerTest, WhatIsReusedApproximatelyOrNarrowedIsComputedHere) {
  const auto prefill = open_prefill(), decode = open_decode(*prefill);
  uint32_t seed = 50;
  for (const char* policy : {"full", "minference", "xattention"}) {
    ask_long(*decode, tokens(3000, ++seed), policy);
    EXPECT_EQ(decode->stats().peer.asked, 0u) << policy;
  }
  Request secret = request_of(prompt, "prefix", 6);
  secret.publish = false;
  EXPECT_EQ(ask_ok(*decode, secret).completion.usage.remote, 0) << "what comes would be cached";
  warm(*decode, join({head, tokens(1000, 2)}));
  const std::vector<int32_t> asked = join({tokens(40, 8), tokens(1000, 2), tokens(700, 9)});
  EXPECT_GT(ask_long(*decode, asked, "mend").completion.usage.reused, 900);
  EXPECT_EQ(decode->stats().peer.asked, 0u);
  EXPECT_GT(ask_long(*decode, asked).completion.usage.remote, 0) << "power";
  EXPECT_GT(ask_long(*decode, prompt).completion.usage.remote, 0) << "power";
}

// Heads with windows: what comes is the session that the prefill server left, and the answer is one server's to the bit.
class HeadsOfAPeerTest : public PeerTest {
 protected:
  static constexpr int kLayers = 6, kKvHeads = 2;  // of the probe model
  static constexpr int64_t kPageBytes = 8192;
  static constexpr int kWindow = 96, kSink = 4;
  static HeadMap map(int window = kWindow) {
    HeadMap out = uniform_head_map(kLayers, kKvHeads, HeadClass::kLocal, window, kSink);
    for (const int head : {1, 6}) {
      out.heads[head] = HeadClass::kGlobal;
      out.window[head] = -1;
      out.sink[head] = 0;
    }
    return out;
  }
  static std::unique_ptr<Engine> with_map(std::unique_ptr<Engine> engine, const HeadMap& map) {
    EXPECT_TRUE(engine->set_head_map("default", head_map_json(map)).ok());
    return engine;
  }
  static std::unique_ptr<Engine> with_map(std::unique_ptr<Engine> engine) { return with_map(std::move(engine), map()); }
};

TEST_F(HeadsOfAPeerTest, KeepTheirSaving) {
  const auto one = with_map(alone()), prefill = with_map(open_prefill()), decode = with_map(open_decode(*prefill));
  const Outcome whole = ask_long(*one, prompt, "redknot", 24), split = ask_long(*decode, prompt, "redknot", 24);
  expect_equal(split, whole);
  expect_differ(split, ask_long(*one, prompt, "full", 24));
  EXPECT_EQ(split.completion.usage.policy, "redknot");
  EXPECT_EQ(split.completion.usage.remote, all_but_one(prompt));
  EXPECT_EQ(split.completion.usage.prefix, all_but_one(prompt));
  EXPECT_EQ(split.completion.usage.fresh, 1);
  const PeerCounters here = decode->stats().peer, there = prefill->stats().peer;
  EXPECT_EQ(here.asked, 1u);
  EXPECT_EQ(here.unanswered + here.late + here.failures, 0u);
  EXPECT_EQ(here.received_tokens, prompt.size() - 1);
  const auto head_bytes =
      static_cast<uint64_t>(decode->info().kv_bytes_per_token) / (kLayers * kKvHeads);  // of a token
  EXPECT_EQ(there.sent_bytes, 0u) << "nothing dense went";
  EXPECT_EQ(there.sent_global_bytes, 2 * (prompt.size() - 1) * head_bytes);
  EXPECT_EQ(there.sent_local_bytes, 10 * (kSink + kWindow) * head_bytes);
  EXPECT_GT(here.received_bytes, there.sent_global_bytes + there.sent_local_bytes);
  EXPECT_LT(here.received_bytes, there.sent_global_bytes + there.sent_local_bytes + (1 << 16));
  // Nothing of it is anybody else's, here or there.
  EXPECT_EQ(ask_long(*prefill, prompt).completion.usage.prefix, 0);
  const Outcome exact = ask_long(*decode, prompt);
  EXPECT_EQ(exact.completion.usage.remote, all_but_one(prompt)) << "exact KV is asked for anew";
  expect_equal(exact, ask_long(*one, prompt));
  // From exact KV that is known here windows go on, as on one server.
  const std::vector<int32_t> longer = join({prompt, tokens(800, 44)});
  const Outcome on = ask_long(*decode, longer, "redknot");
  EXPECT_EQ(on.completion.usage.prefix, static_cast<int>(prompt.size()));
  EXPECT_EQ(on.completion.usage.remote, 0);
  expect_equal(on, ask_long(*one, longer, "redknot"));
  EXPECT_EQ(decode->stats().peer.asked, 2u);
  EXPECT_EQ(prefill->stats().peer.sent_tokens, decode->stats().peer.received_tokens);
}

TEST_F(HeadsOfAPeerTest, AnswersEqualOneServers) {
  const auto one = with_map(alone()), prefill = with_map(open_prefill()), decode = with_map(open_decode(*prefill));
  for (const uint32_t seed : {60, 61}) {
    Request request = request_of(tokens(1500, seed), "redknot", 24);
    request.policy.params = {{"window", "40"}};
    request.sampling.temperature = 1;
    request.sampling.seed = seed;
    const Outcome here = ask_ok(*one, request), split = ask_ok(*decode, request);
    expect_equal(split, here);
    EXPECT_EQ(split.completion.usage.remote, 1499);
  }
  // What needs more than windows, or a second look, is computed here.
  const uint64_t asked = decode->stats().peer.asked;
  for (const auto& [key, value] : {std::pair{"restore", "0.5"}, std::pair{"ffn_mass", "0.9"}}) {
    Request request = request_of(prompt, "redknot", 6);
    request.policy.params = {{key, value}};
    const Outcome out = ask_ok(*decode, request);
    EXPECT_EQ(out.completion.usage.remote, 0) << key;
    expect_equal(out, ask_ok(*one, request));
  }
  EXPECT_EQ(decode->stats().peer.asked, asked);
}

TEST_F(HeadsOfAPeerTest, EqualPromptsAreAskedForOnce) {
  const auto one = with_map(alone()), prefill = with_map(open_prefill()), decode = with_map(open_decode(*prefill));
  const Outcome right = ask_long(*one, prompt, "redknot");
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(decode->submit(request_of(prompt, "redknot", 6), sinks.back()).ok());
  }
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->wait().logits.first, right.completion.logits.first);
    EXPECT_EQ(sink->ids, right.ids);
  }
  EXPECT_EQ(decode->stats().peer.asked, 1u);
  EXPECT_EQ(decode->stats().peer.received_tokens, prompt.size() - 1);
}

// Pools that hold one of them, and of two all or all but the room for their answers: a session waits, and is not computed
// again.
TEST_F(HeadsOfAPeerTest, SessionsWaitForRoom) {
  const auto one = with_map(alone()), prefill = with_map(open_prefill());
  const std::vector<std::vector<int32_t>> prompts{tokens(3000, 70), tokens(3000, 71)};
  for (const int64_t pages : {350, 520}) {
    EngineOptions small = decode_options(prefill->stats().peer.port);
    small.kv_bytes = pages * kPageBytes;
    const auto decode = with_map(open_for_test(small));
    EXPECT_TRUE(eventually([&] { return decode->stats().peer.ready; }));
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (const auto& each : prompts) {
      sinks.push_back(std::make_shared<CollectingSink>());
      ASSERT_TRUE(decode->submit(request_of(each, "redknot", 300), sinks.back()).ok());
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(sinks[i]->wait().usage.remote, 2999) << pages << " " << i;
      EXPECT_EQ(sinks[i]->ids, ask_long(*one, prompts[i], "redknot", 300).ids) << pages << " " << i;
    }
    EXPECT_EQ(decode->stats().peer.asked, 2u);
    EXPECT_EQ(decode->stats().kv_pages, pages);
  }
}

// Maps are files: where they differ, or one is missing, the prompt is computed here by this server's.
TEST_F(HeadsOfAPeerTest, AnotherMapMeansComputing) {
  const auto one = with_map(alone()), prefill = with_map(open_prefill(), map(64)),
             decode = with_map(open_decode(*prefill));
  const Outcome out = ask_long(*decode, prompt, "redknot");
  expect_equal(out, ask_long(*one, prompt, "redknot"));
  EXPECT_EQ(out.completion.usage.remote, 0);
  EXPECT_EQ(decode->stats().peer.unanswered, 1u);
  EXPECT_EQ(ask_long(*decode, tokens(1200, 45), "redknot").completion.usage.remote, 0);
  EXPECT_EQ(decode->stats().peer.asked, 1u) << "it is not asked again";
  EXPECT_EQ(ask_long(*decode, tokens(1200, 46)).completion.usage.remote, 1199) << "power: but for exact KV";
  const auto without = open_prefill(), asks_it = with_map(open_decode(*without));
  expect_equal(ask_long(*asks_it, prompt, "redknot"), ask_long(*one, prompt, "redknot"));
  EXPECT_EQ(asks_it->stats().peer.unanswered, 1u) << "refused";
  EXPECT_EQ(asks_it->stats().peer.failures, 0u) << "the connection stays";
}

TEST_F(HeadsOfAPeerTest, ALyingOrLostPeerMeansComputing) {
  const auto one = with_map(alone());
  const Outcome right = ask_long(*one, prompt, "redknot");
  const auto part = [](const PeerAsk& ask, int64_t offset, int64_t size, size_t bytes) {
    return PeerPart{ask.id, offset, size, std::vector<std::byte>(bytes)};
  };
  const std::pair<const char*, FakePeerForTest::Answers> cases[] = {
      {"no session",
       [&](const PeerAsk& a) {
         return std::vector<PeerMessage>{part(a, 0, 500, 500), PeerEnd{a.id}};
       }},
      {"a gap", [&](const PeerAsk& a) { return std::vector<PeerMessage>{part(a, 1, 500, 499)}; }},
      {"half of it",
       [&](const PeerAsk& a) {
         return std::vector<PeerMessage>{part(a, 0, 500, 250), PeerEnd{a.id}};
       }},
      {"too much of it", [&](const PeerAsk& a) { return std::vector<PeerMessage>{part(a, 0, int64_t{1} << 40, 500)}; }},
      {"it twice",
       [&](const PeerAsk& a) {
         return std::vector<PeerMessage>{part(a, 0, 500, 500), part(a, 0, 500, 500)};
       }},
      {"rows",
       [&](const PeerAsk& a) {
         return std::vector<PeerMessage>{PeerRows{a.id, 0, 1, std::vector<std::byte>(3072)}};
       }},
  };
  for (const auto& [what, answers] : cases) {
    FakePeerForTest fake(answers);
    const auto decode = with_map(open_decode(fake.port()));
    const Outcome out = ask_long(*decode, prompt, "redknot");
    expect_equal(out, right);
    EXPECT_EQ(out.completion.usage.remote, 0) << what;
    EXPECT_EQ(fake.asked, 1) << what;
    EXPECT_TRUE(eventually([&] { return decode->stats().peer.unanswered >= 1; })) << what;
  }
  const auto prefill = with_map(open_prefill());
  for (const Then then : {Then::kClose, Then::kFlip}) {
    PeerProxyForTest proxy(prefill->stats().peer.port, int64_t{1000} * 768, then);
    const auto decode = with_map(open_decode(proxy.port()));
    expect_equal(ask_long(*decode, prompt, "redknot"), right);
    EXPECT_EQ(decode->stats().peer.unanswered, 1u);
  }
}

// One beginning is in a folder, what follows comes from the peer: each is counted as what it is.
TEST_F(PeerTest, TheRestOfWhatIsOnDiskIsAskedFor) {
  const std::string folder = testing::TempDir() + "kvilt_peer_disk_" + std::to_string(::getpid());
  std::filesystem::remove_all(folder);
  const auto prefill = open_prefill();
  EngineOptions options = decode_options(prefill->stats().peer.port);
  options.cache_dir = folder;
  const std::vector<int32_t> beginning(prompt.begin(), prompt.begin() + 512);
  {
    const auto before = open_for_test(options);
    ask_long(*before, beginning, "full", 1);
  }
  const auto decode = open_for_test(options);
  EXPECT_TRUE(eventually([&] { return decode->stats().peer.ready && decode->stats().disk.tokens >= 512; }));
  const Outcome out = ask_long(*decode, prompt);
  EXPECT_EQ(out.completion.usage.disk, 512);
  EXPECT_EQ(out.completion.usage.remote, all_but_one(prompt) - 512);
  EXPECT_EQ(out.completion.usage.prefix, all_but_one(prompt));
  expect_equal(out, ask_long(*alone(), prompt));
  std::filesystem::remove_all(folder);
}

TEST_F(PeerTest, EqualPromptsAreAskedForOnce) {
  const auto one = alone(), prefill = open_prefill(), decode = open_decode(*prefill);
  const Outcome right = ask_long(*one, prompt);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(decode->submit(request_of(prompt, "prefix", 6), sinks.back()).ok());
  }
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->wait().logits.first, right.completion.logits.first);
    EXPECT_EQ(sink->ids, right.ids);
  }
  EXPECT_EQ(decode->stats().peer.asked, 1u);
  EXPECT_EQ(prefill->stats().peer.sent_tokens, prompt.size() - 1);
}

// Who shares a beginning with another's longer prompt does not wait for all of that.
TEST_F(PeerTest, PromptsWithOneBeginningAreAskedForApart) {
  const auto one = alone(), prefill = open_prefill(), decode = open_decode(*prefill);
  const std::vector<int32_t> head = tokens(700, 40);
  const std::vector<std::vector<int32_t>> prompts{join({head, tokens(2500, 41)}), join({head, tokens(900, 42)})};
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const auto& each : prompts) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(decode->submit(request_of(each, "prefix", 6), sinks.back()).ok());
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    const PromptUsage usage = sinks[i]->wait().usage;
    EXPECT_EQ(usage.prefix, all_but_one(prompts[i])) << i;
    EXPECT_GE(usage.remote, all_but_one(prompts[i]) - 700) << "the beginning may have come for the other one";
    EXPECT_EQ(sinks[i]->ids, ask_long(*one, prompts[i]).ids);
  }
  EXPECT_EQ(decode->stats().peer.asked, 2u);
}

// A prompt that is too long for the prefill server is refused by itself.
TEST_F(PeerTest, OneThatIsTooLongThereIsComputedHere) {
  EngineOptions small = plain();
  small.role = Role::kPrefill;
  small.peer_listen = "127.0.0.1:0";
  small.context = 1024;
  const auto prefill = open_for_test(small), decode = open_decode(*prefill);
  const Outcome out = ask_long(*decode, tokens(2000, 50));
  EXPECT_EQ(out.completion.usage.remote, 0);
  expect_equal(out, ask_long(*alone(), tokens(2000, 50)));
  EXPECT_EQ(decode->stats().peer.failures, 0u) << "the connection stays";
  EXPECT_EQ(ask_long(*decode, tokens(900, 51)).completion.usage.remote, 899) << "power check";
}

TEST_F(PeerTest, TenantsSaltsAndNamespacesStayApart) {
  const auto prefill = open_prefill(), decode = open_decode(*prefill), second = open_decode(*prefill);
  const auto ask_as = [&](Engine& engine, const char* tenant, const char* salt, const char* name_space) {
    Request request = request_of(prompt, "prefix", 6);
    request.tenant = tenant;
    request.cache_salt = salt;
    request.namespaces = {name_space};
    return ask_ok(engine, request).completion.usage.remote;
  };
  const auto all = all_but_one(prompt);
  EXPECT_EQ(ask_as(*decode, "one", "s", "n"), all);
  for (const auto& [tenant, salt, name_space] : {std::array{"two", "s", "n"}, std::array{"one", "t", "n"},
                                                 std::array{"one", "s", "m"}, std::array{"", "", ""}}) {
    EXPECT_EQ(ask_as(*second, tenant, salt, name_space), all);
    EXPECT_EQ(prefill->stats().prefix_tokens, 0u) << "computed anew";
  }
  EXPECT_EQ(ask_long(*prefill, prompt).completion.usage.prefix, 0) << "nor do the server's own clients find it";
  Request disguised = request_of(prompt, "prefix", 6);
  disguised.tenant = "(peer)";
  const auto refused = prefill->submit(disguised, std::make_shared<CollectingSink>());
  ASSERT_FALSE(refused.ok()) << "by whatever name they call themselves";
  EXPECT_NE(refused.error().message.find("(peer)"), std::string::npos);
  EXPECT_EQ(ask_as(*second, "one", "s", "n"), all);
  EXPECT_EQ(prefill->stats().prefix_tokens, static_cast<uint64_t>(all - 1)) << "power: for the same tenant it is there";
}

TEST_F(PeerTest, AKeyIsNeededOnBothSides) {
  const std::string file = testing::TempDir() + "kvilt_peer_key", other = file + "_other";
  write_key(file, '1');
  write_key(other, '2');
  const auto prefill = open_prefill(file), one = alone();
  EngineOptions options = decode_options(prefill->stats().peer.port);
  const Outcome right = ask_long(*one, prompt);
  for (const std::string& key : {other, std::string()}) {
    options.peer_key = key;
    const auto decode = open_for_test(options);
    EXPECT_TRUE(eventually([&] { return decode->stats().peer.failures > 0; }));
    const Outcome out = ask_long(*decode, prompt);
    EXPECT_EQ(out.completion.usage.remote, 0);
    EXPECT_EQ(decode->stats().peer.absent, 1u);
    expect_equal(out, right);
  }
  EXPECT_TRUE(eventually([&] { return prefill->stats().peer.failures >= 2; }));
  options.peer_key = file;
  const auto decode = open_for_test(options);
  EXPECT_TRUE(eventually([&] { return decode->stats().peer.ready; }));
  EXPECT_EQ(ask_long(*decode, prompt).completion.usage.remote, all_but_one(prompt)) << "power";
  options.peer_key_text = std::string(64, '1');
  EXPECT_FALSE(open_engine(options).ok()) << "a file and a text";
  options.peer_key.clear();
  const auto told = open_for_test(options);
  EXPECT_TRUE(eventually([&] { return told->stats().peer.ready; })) << "the same key as text";
  std::filesystem::remove(file);
  std::filesystem::remove(other);
}

TEST_F(PeerTest, AnotherMakerIsNotAskedFor) {
  EngineOptions half = plain();
  half.role = Role::kPrefill;
  half.peer_listen = "127.0.0.1:0";
  half.kv_type = KvType::kF16;
  const auto prefill = open_for_test(half);
  const auto decode = open_decode(prefill->stats().peer.port, false);
  EXPECT_TRUE(eventually([&] { return decode->stats().peer.failures > 0; }));
  expect_equal(ask_long(*decode, prompt), ask_with(*alone(), prompt, "prefix"));
  EXPECT_EQ(prefill->stats().peer.answered, 0u);
}

// The prefill server is lost, changed on the way, or silent, when a third of the KV has come.
TEST_F(PeerTest, WhatBreaksOffIsComputedHere) {
  const auto one = alone(), prefill = open_prefill();
  const Outcome right = ask_long(*one, prompt);
  for (const Then then : {Then::kClose, Then::kFlip, Then::kStall}) {
    PeerProxyForTest proxy(prefill->stats().peer.port, int64_t{1000} * 3072, then);
    const auto decode = open_decode(proxy.port());
    warm(*decode, tokens(500, 90));  // it knows how long computing takes
    const auto begin = std::chrono::steady_clock::now();
    const Outcome out = ask_long(*decode, prompt);
    expect_equal(out, right);
    EXPECT_GT(out.completion.usage.remote, 0) << "what came stays";
    EXPECT_LT(out.completion.usage.remote, 2000);
    const PeerCounters now = decode->stats().peer;
    EXPECT_EQ(now.asked, 1u);
    EXPECT_EQ(now.late, then == Then::kStall ? 1u : 0u);
    EXPECT_EQ(now.unanswered, then == Then::kStall ? 0u : 1u);
    if (then != Then::kStall) continue;
    const bool rests = std::chrono::steady_clock::now() - begin < std::chrono::seconds(4);  // not on a slow machine
    EXPECT_EQ(ask_long(*decode, tokens(700, 91)).completion.usage.remote, 0);
    if (rests) {
      EXPECT_EQ(decode->stats().peer.asked, 1u) << "who was silent is left alone";
    }
  }
}

TEST_F(PeerTest, ItComesBackAfterTheOtherWasAway) {
  const auto one = alone();
  auto prefill = open_prefill();
  const int port = prefill->stats().peer.port;
  const auto decode = open_decode(port);
  prefill.reset();
  EXPECT_TRUE(eventually([&] { return !decode->stats().peer.ready; }));
  expect_equal(ask_long(*decode, prompt), ask_long(*one, prompt));
  EXPECT_EQ(decode->stats().peer.absent, 1u);
  EngineOptions again = plain();
  again.role = Role::kPrefill;
  again.peer_listen = "127.0.0.1:" + std::to_string(port);
  prefill = open_for_test(again);
  ASSERT_TRUE(prefill);
  EXPECT_TRUE(eventually([&] { return decode->stats().peer.ready; }));
  const std::vector<int32_t> next = tokens(2000, 11);
  const Outcome out = ask_long(*decode, next);
  EXPECT_EQ(out.completion.usage.remote, all_but_one(next));
  expect_equal(out, ask_long(*one, next));
}

// A peer with the right key that says what it must not.
TEST_F(PeerTest, ALyingPeerMeansComputing) {
  const auto one = alone();
  const Outcome right = ask_long(*one, prompt);
  uint32_t size = 3072;
  const auto rows = [&](const PeerAsk& ask, int32_t pos, int32_t count, int64_t bytes) {
    return PeerRows{ask.id, pos, count, std::vector<std::byte>(static_cast<size_t>(bytes))};
  };
  const std::pair<const char*, FakePeerForTest::Answers> cases[] = {
      {"another position", [&](const PeerAsk& a) { return std::vector<PeerMessage>{rows(a, 256, 256, 256 * size)}; }},
      {"fewer bytes", [&](const PeerAsk& a) { return std::vector<PeerMessage>{rows(a, 0, 256, 255 * size)}; }},
      {"rows beyond the prompt",
       [&](const PeerAsk& a) {
         PeerRows out = rows(a, 0, 1, size);
         out.id = a.id + 1;
         return std::vector<PeerMessage>{out};
       }},
      {"an end before its time", [&](const PeerAsk& a) { return std::vector<PeerMessage>{PeerEnd{a.id}}; }},
      {"refused",
       [&](const PeerAsk& a) {
         return std::vector<PeerMessage>{PeerEnd{a.id, PeerEnding::kRefused}};
       }},
      {"a question", [&](const PeerAsk& a) { return std::vector<PeerMessage>{a}; }},
  };
  for (const auto& [what, answers] : cases) {
    FakePeerForTest fake(answers);
    const auto decode = open_decode(fake.port());
    const Outcome out = ask_long(*decode, prompt);
    expect_equal(out, right);
    EXPECT_EQ(out.completion.usage.remote, 0) << what;
    EXPECT_EQ(decode->stats().peer.unanswered, 1u) << what;
    EXPECT_EQ(fake.asked, 1) << what;
    EXPECT_EQ(fake.token_bytes, size);
  }
  // Power: a liar whose rows are well formed is believed, since it has the key.
  FakePeerForTest zeros([&](const PeerAsk& a) {
    std::vector<PeerMessage> out;
    for (int32_t pos = 0; pos < std::ssize(a.tokens); pos += 256) {
      const int32_t n = std::min<int32_t>(256, static_cast<int32_t>(a.tokens.size()) - pos);
      out.push_back(rows(a, pos, n, int64_t{n} * size));
    }
    out.push_back(PeerEnd{a.id});
    return out;
  });
  const auto decode = open_decode(zeros.port());
  expect_differ(ask_long(*decode, prompt), right);
  FakePeerForTest other([](const PeerAsk&) { return std::vector<PeerMessage>(); }, Digest{1});
  const auto wary = open_decode(other.port(), false);
  EXPECT_TRUE(eventually([&] { return wary->stats().peer.failures > 0; }));
  expect_equal(ask_long(*wary, prompt), right);
  EXPECT_EQ(other.asked, 0);
}

TEST_F(PeerTest, WhoGoesAwayLeavesNothingBehind) {
  const auto one = alone(), prefill = open_prefill();
  const Outcome right = ask_long(*one, tokens(1500, 5));
  {
    const auto decode = open_decode(*prefill);
    const auto sink = std::make_shared<CollectingSink>();
    const auto id = decode->submit(request_of(prompt, "prefix", 6), sink);
    ASSERT_TRUE(id.ok());
    decode->cancel(*id);
    EXPECT_EQ(sink->wait().finish, Finish::kCancelled);
    expect_equal(ask_long(*decode, tokens(1500, 5)), right);
    ASSERT_TRUE(decode->submit(request_of(tokens(3000, 6), "prefix", 6), sink).ok());
  }  // it closes while something is asked
  EXPECT_TRUE(eventually([&] {
    const EngineStats now = prefill->stats();
    return now.peer.connections == 0 && now.running == 0 && now.waiting == 0;
  }));
  const auto decode = open_decode(*prefill);
  decode->clear_cache();
  expect_equal(ask_long(*decode, tokens(1500, 5)), right);
}

// A reader that does not read: rows are queued as far as there is room, and no further.
TEST(PeerConnection, QueuesNoMoreThanItMay) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  const PeerSocket other{OpenFile(fds[1])};
  PeerConnection connection(std::make_shared<const PeerSocket>(OpenFile(fds[0])));
  int pushed = 0;
  for (; connection.has_room(); ++pushed) connection.push(PeerRows{1, 0, 1, std::vector<std::byte>(1 << 20)}, nullptr);
  EXPECT_EQ(pushed, PeerConnection::kMostQueued >> 20);
}

}  // namespace
}  // namespace kvilt

// Sessions that leave one engine and go on in another (head-class transfer): the same text to the bit, and of
// each head what it keeps; what cannot go on is refused.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "base/checksum.h"
#include "kvilt/session.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

std::unique_ptr<Engine> engine_of(int page_slots, int chunk, const std::string& kv_type = "f32", int64_t bytes = 0) {
  EngineOptions options{
      .model = kModel, .kv_type = *parse_kv_type(kv_type), .page_slots = page_slots, .chunk_tokens = chunk};
  options.kv_bytes = bytes;
  return open_for_test(options);
}

Request asked(std::vector<int32_t> ids, const std::string& policy, const Params& params, int max_tokens) {
  Request request = unpublished(std::move(ids), policy, params, max_tokens);
  request.evaluation.all_logits = true;
  return request;
}

Request resumed(std::shared_ptr<const ExportedSession> session, const std::vector<int32_t>& more, int max_tokens) {
  const auto info = session_info(*session);
  EXPECT_TRUE(info.ok());
  Request request = asked(join({info->tokens, more}), "", {}, max_tokens);
  request.session = std::move(session);
  return request;
}

std::shared_ptr<const ExportedSession> exported(Engine& engine, Request request) {
  request.export_session = true;
  const auto session = ask_ok(engine, std::move(request)).completion.session;
  EXPECT_TRUE(session);
  return session;
}

const Params kNarrow{{"global", "none"}, {"window", "8"}, {"sink", "2"}},
    kMixed{{"global", "random"}, {"share", "0.4"}, {"window", "40"}, {"sink", "3"}};

TEST(SessionRequests, DecodeGoesOnElsewhereToTheBit) {
  const auto here = engine_of(16, 64), there = engine_of(8, 512);
  const auto doc = tokens(90, 4), prompt = join({tokens(40, 1), doc, tokens(50, 2)});
  ask_ok(*here, request_of(join({tokens(7, 3), doc}), "full", 0));  // a piece that naive places with a shift
  std::vector<int32_t> full;
  for (const auto& [policy, params] : std::vector<std::pair<std::string, Params>>{
           {"full", {}}, {"redknot", kNarrow}, {"redknot", kMixed}, {"naive", {}}, {"mend", {}}}) {
    SCOPED_TRACE(policy);
    const Outcome whole = ask_ok(*here, asked(prompt, policy, params, 25));
    if (policy == "naive") {
      EXPECT_EQ(whole.usage().reused, 90) << "power";
    }
    if (policy == "full") {
      full = whole.ids;
    } else {
      EXPECT_NE(whole.completion.logits.first, ask_ok(*here, asked(prompt, "full", {}, 1)).completion.logits.first);
    }
    const auto session = exported(*here, asked(prompt, policy, params, 1));
    EXPECT_EQ(session_info(*session)->positions, 180);
    EXPECT_EQ(session_info(*session)->tokens, join({prompt, {whole.ids[0]}}));
    const Outcome rest = ask_ok(*there, resumed(session, {}, 24));
    EXPECT_EQ(join({{whole.ids[0]}, rest.ids}), whole.ids);
    const std::vector<std::vector<float>> after(whole.completion.logits.all.begin() + 1,
                                                whole.completion.logits.all.end());
    EXPECT_EQ(rest.completion.logits.all, after);
    EXPECT_EQ(rest.usage().prefix, 180);
    EXPECT_EQ(rest.usage().policy, "session");
    // Bytes: every head's keys and values, or only sink and window.
    EXPECT_EQ(session->dense, 180 * here->info().kv_bytes_per_token);
    const int64_t keys = params == kNarrow ? 10 : policy == "redknot" ? 0 : 180;
    if (keys) {
      EXPECT_EQ(session->kv, keys * here->info().kv_bytes_per_token);
    }
    EXPECT_EQ(session_info(*session)->local_heads, params == kNarrow ? 12 : params == kMixed ? 7 : 0);
  }
  EXPECT_EQ(there->stats().prefix_tokens, 5u * 180);
}

// An engine that copies what it places takes a session's pieces as they are: a session may have heads that hold only some
// of their pages.
TEST(SessionRequests, PiecesGoOnUnderCopies) {
  const auto here = engine_of(16, 64);
  const auto doc = tokens(90, 4), prompt = join({tokens(40, 1), doc, tokens(50, 2)});
  ask_ok(*here, request_of(join({tokens(7, 3), doc}), "full", 0));
  const Outcome whole = ask_ok(*here, asked(prompt, "naive", {}, 12));
  EXPECT_EQ(whole.usage().reused, 90) << "power";
  const auto session = exported(*here, asked(prompt, "naive", {}, 1));
  EngineOptions options{.model = kModel, .kv_type = *parse_kv_type("f32")};
  options.placement = PlacementMode::kCopy;
  const auto there = open_for_test(options);
  EXPECT_EQ(join({{whole.ids[0]}, ask_ok(*there, resumed(session, {}, 11)).ids}), whole.ids);
}

// A session of a whole answer, with more text after it, gives what one prefill of all of it gives.
TEST(SessionRequests, ATurnMayFollow) {
  const auto here = engine_of(16, 64), there = engine_of(16, 20);
  const auto prompt = tokens(120, 1), more = tokens(45, 9);
  for (const Params& params : {kNarrow, kMixed}) {
    Request first = asked(prompt, "redknot", params, 30);
    const auto session = exported(*here, first);
    const auto info = session_info(*session);
    EXPECT_EQ(info->positions, 149);
    ASSERT_EQ(info->tokens.size(), 150u);
    const Outcome second = ask_ok(*there, resumed(session, more, 10));
    const Outcome whole = ask_ok(*here, asked(join({info->tokens, more}), "redknot", params, 10));
    EXPECT_EQ(second.completion.logits.all, whole.completion.logits.all);
    EXPECT_EQ(second.ids, whole.ids);
    EXPECT_LT(second.usage().flops, 0.5 * whole.usage().flops) << "the session's part is not computed again";
    // With max_tokens 0 nothing but the prompt is in it.
    const auto bare = exported(*here, asked(prompt, "redknot", params, 0));
    EXPECT_EQ(session_info(*bare)->tokens, prompt);
    EXPECT_EQ(ask_ok(*there, resumed(bare, more, 5)).ids,
              ask_ok(*here, asked(join({prompt, more}), "redknot", params, 5)).ids);
  }
}

// A pool too small for two of them: the second is preempted, imported again, and gives the same.
TEST(SessionRequests, PreemptionImportsItAgain) {
  const auto here = engine_of(16, 64);
  const int64_t page = here->info().kv_bytes_per_token * 16 / 12;
  const auto there = engine_of(16, 64, "f32", 280 * page);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<std::vector<int32_t>> want;
  for (uint32_t i = 0; i < 2; ++i) {
    const auto prompt = tokens(150, i);
    want.push_back(ask_ok(*here, asked(prompt, "redknot", kMixed, 250)).ids);
    const auto session = exported(*here, asked(prompt, "redknot", kMixed, 1));
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(there->submit(resumed(session, {}, 249), sinks.back()).ok());
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(sinks[i]->wait().finish, Finish::kLength);
    EXPECT_EQ(join({{want[i][0]}, sinks[i]->ids}), want[i]);
  }
}

TEST(SessionRequests, ThroughAFileAndASocket) {
  const auto here = engine_of(16, 64), there = engine_of(16, 64);
  const auto session = exported(*here, asked(tokens(100, 1), "redknot", kMixed, 1));
  const auto want = ask_ok(*there, resumed(session, {}, 12)).ids;
  const std::string path = testing::TempDir() + "session_requests_" + std::to_string(::getpid());
  ASSERT_TRUE(save_session(*session, path).ok());
  const auto same = load_session(path);
  ASSERT_TRUE(same.ok()) << same.error().message;
  EXPECT_EQ(same->bytes, session->bytes);
  EXPECT_EQ(same->kv, session->kv);
  EXPECT_EQ(same->dense, session->dense);
  EXPECT_EQ(ask_ok(*there, resumed(std::make_shared<ExportedSession>(*same), {}, 12)).ids, want);
  std::filesystem::resize_file(path, session->bytes.size() + 1);
  EXPECT_EQ(load_session(path).error().code, Code::kCorrupt);
  std::filesystem::resize_file(path, session->bytes.size() / 2);
  EXPECT_EQ(load_session(path).error().code, Code::kCorrupt);
  EXPECT_NE(load_session(path).error().message.find(path), std::string::npos);
  std::filesystem::remove(path);
  EXPECT_EQ(load_session(path).error().code, Code::kNotFound);
  EXPECT_EQ(load_session("README.md").error().code, Code::kCorrupt);
  EXPECT_EQ(save_session(*session, "/no/such/folder/x").error().code, Code::kIo);

  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  std::thread sender([&] {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(write_session(*session, ends[0]).ok());
    ::close(ends[0]);
  });
  for (int i = 0; i < 2; ++i) EXPECT_EQ(read_session(ends[1])->bytes, session->bytes);
  EXPECT_EQ(read_session(ends[1]).error().code, Code::kCorrupt) << "closed";
  sender.join();
  ::close(ends[1]);
}

TEST(SessionRequests, WhatCannotGoOnIsRefused) {
  const auto here = engine_of(16, 64);
  const auto session = exported(*here, asked(tokens(60, 1), "redknot", kMixed, 1));
  const auto refused = [](Engine& engine, const Request& request) -> std::string {
    const auto id = engine.submit(request, std::make_shared<CollectingSink>());
    return id.ok() ? "" : id.error().message;
  };
  const Request good = resumed(session, {}, 3);
  EXPECT_EQ(ask_ok(*here, good).ids.size(), 3u) << "power";
  Request bad = good;
  bad.prompt.ids[17] ^= 1;
  EXPECT_NE(refused(*here, bad).find("token 17"), std::string::npos);
  bad = good;
  bad.prompt.ids.resize(60);
  EXPECT_NE(refused(*here, bad).find("at least one more"), std::string::npos);
  bad = good;
  bad.policy.name = "full";
  EXPECT_NE(refused(*here, bad).find("policy"), std::string::npos);
  EXPECT_NE(refused(*engine_of(16, 64, "int8"), good).find("KV type"), std::string::npos);
  const auto other = open_for_test({.model = "tests/data/fixtures/llama", .kv_type = KvType::kF32});
  EXPECT_NE(refused(*other, good).find("another model"), std::string::npos);
  for (const size_t at : {size_t{3}, size_t{50}, size_t{90}, session->bytes.size() - 100}) {
    auto damaged = std::make_shared<ExportedSession>(*session);
    damaged->bytes[at] ^= std::byte{1};
    bad = good;
    bad.session = damaged;
    EXPECT_NE(refused(*here, bad).find("session"), std::string::npos) << at;
  }
  auto cut = std::make_shared<ExportedSession>(*session);
  cut->bytes.resize(cut->bytes.size() - 1);
  bad.session = cut;
  EXPECT_NE(refused(*here, bad).find("cut short"), std::string::npos);
}

// Sessions whose checksums are right and whose numbers are not: an engine refuses them, or computes something and
// lives.
TEST(SessionRequests, HostileSessionsEndInAnErrorOrAnAnswer) {
  const auto here = engine_of(16, 64), there = engine_of(8, 32);
  const auto doc = tokens(40, 4), prompt = join({tokens(20, 1), doc, tokens(9, 2)});
  ask_ok(*here, request_of(join({tokens(7, 3), doc}), "full", 0));
  std::mt19937 rng(5);
  int refused = 0, answered = 0;
  for (const auto& [policy, params] :
       std::vector<std::pair<std::string, Params>>{{"naive", {}}, {"redknot", kNarrow}, {"redknot", kMixed}}) {
    const auto session = exported(*here, asked(prompt, policy, params, 1));
    const auto word = [&](size_t at) {
      uint32_t out;
      std::memcpy(&out, session->bytes.data() + at, sizeof out);
      return size_t{out};
    };
    const size_t meta = 4 * (word(28) + word(36)) + 12 * word(32) + 8 * 12, index = 4 * 6 + 12 * word(40);
    const std::vector<std::pair<size_t, size_t>> frames{{0, 64}, {72, meta}, {72 + meta + 8, index}};
    for (int round = 0; round < 250; ++round) {
      auto bad = std::make_shared<ExportedSession>(*session);
      const auto [begin, size] = frames[1 + rng() % 2];
      const size_t at = begin + rng() % (size / 4) * 4;
      const uint32_t numbers[] = {0,
                                  1,
                                  69,
                                  0xffffffff,
                                  0x7fffffff,
                                  0x80000000,
                                  static_cast<uint32_t>(rng()),
                                  static_cast<uint32_t>(rng() % 80)};
      std::memcpy(bad->bytes.data() + at, &numbers[rng() % 8], 4);
      const uint64_t sum = checksum(std::span(bad->bytes).subspan(begin, size));
      std::memcpy(bad->bytes.data() + begin + size, &sum, sizeof sum);
      const auto info = session_info(*bad);
      if (!info.ok()) {
        ++refused;
        continue;
      }
      Request request = request_of(info->tokens, "", 20);
      request.session = bad;
      const auto sink = std::make_shared<CollectingSink>();
      if (!there->submit(request, sink).ok()) {
        ++refused;
        continue;
      }
      ++answered;
      EXPECT_EQ(sink->wait().finish, Finish::kLength);
    }
  }
  EXPECT_GT(refused, 100) << "power";
  EXPECT_GT(answered, 100) << "power";
  EXPECT_EQ(there->stats().request_pages.local, 0);
}

}  // namespace
}  // namespace kvilt

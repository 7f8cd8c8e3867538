// tests/engine_harness.h: an engine on a small model, driven synchronously.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <map>
#include <mutex>
#include <span>
#include <thread>

#include "kvilt/ask.h"

namespace kvilt {

// Sanitizers make a run ten times as long. Tests of quality show what they have to show in release builds, of as many
// cases as their figures need; here they run for what they do to memory, with a few.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

class CollectingSink : public TokenSink {
 public:
  void on_tokens(const TokenDelta& delta) override {
    std::lock_guard lock(mutex_);
    text += delta.text;
    ids.insert(ids.end(), delta.ids.begin(), delta.ids.end());
    logprobs.insert(logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    moved_.notify_all();
  }
  void on_prompt(std::vector<TokenLogprob> logprobs_of_prompt) override {
    std::lock_guard lock(mutex_);
    EXPECT_TRUE(ids.empty()) << "before the first token";
    prompt = std::move(logprobs_of_prompt);
    ++prompts;
  }
  void on_finish(Completion completion) override {
    std::lock_guard lock(mutex_);
    done_ = std::move(completion);
    moved_.notify_all();
  }
  Completion wait() {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [this] { return done_.has_value(); });
    return *done_;
  }
  bool finished() {
    std::lock_guard lock(mutex_);
    return done_.has_value();
  }
  void wait_for_tokens(size_t n) {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [&] { return ids.size() >= n || done_.has_value(); });
  }

  std::string text;
  std::vector<int32_t> ids;
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob> prompt;
  int prompts = 0;  // how often these came

 private:
  std::mutex mutex_;
  std::condition_variable moved_;
  std::optional<Completion> done_;
};

// Holds whoever passes until open().
class Turnstile {
 public:
  void wait_until_reached() {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [this] { return reached_; });
  }
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    moved_.notify_all();
  }

 protected:
  void pass() {
    std::unique_lock lock(mutex_);
    reached_ = true;
    moved_.notify_all();
    moved_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable moved_;
  bool reached_ = false, open_ = false;
};

// Holds the engine thread at its first token until open(): what is submitted meanwhile arrives in one step, however slow
// the machine is.
class HoldingSink : public TokenSink, public Turnstile {
 public:
  void on_tokens(const TokenDelta&) override { pass(); }
  void on_finish(Completion) override { ++finished; }
  std::atomic<int> finished{0};
};

using Outcome = Answered;

inline Request request_of(std::vector<int32_t> ids, const std::string& policy = "full", int max_tokens = 1) {
  Request request;
  request.prompt.ids = std::move(ids);
  request.policy.name = policy;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.evaluation.first_logits = true;
  return request;
}

using Params = std::map<std::string, std::string>;

// A request that leaves nothing in the cache.
inline Request unpublished(std::vector<int32_t> ids, const std::string& policy, Params params = {},
                           int max_tokens = 6) {
  Request request = request_of(std::move(ids), policy, max_tokens);
  request.policy.params = std::move(params);
  request.publish = false;
  return request;
}

inline std::shared_ptr<HoldingSink> hold(Engine& engine) {
  auto gate = std::make_shared<HoldingSink>();
  EXPECT_TRUE(engine.submit(unpublished({3, 4, 5, 6, 7}, "full", {}, 1), gate).ok());
  gate->wait_until_reached();
  return gate;
}

// Expects an answer.
inline Outcome ask_ok(Engine& engine, Request request) {
  Result<Answered> out = ask(engine, std::move(request));
  EXPECT_TRUE(out.ok()) << (out.ok() ? "" : out.error().message);
  return out.ok() ? std::move(out).value() : Outcome();
}

// Asks each request by itself, then all at once, and expects the same first logits and tokens.
inline void expect_batched_equals_alone(Engine& engine, const std::vector<Request>& requests) {
  std::vector<Outcome> alone;
  for (const Request& request : requests) alone.push_back(ask_ok(engine, request));
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  const auto gate = hold(engine);
  for (const Request& request : requests) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine.submit(request, sinks.back()).ok());
  }
  gate->open();
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_EQ(sinks[i]->wait().logits.first, alone[i].completion.logits.first) << i;
    EXPECT_EQ(sinks[i]->ids, alone[i].ids) << i;
  }
}

inline std::unique_ptr<Engine> open_for_test(EngineOptions options) {
  if (options.kv_bytes == 0) options.kv_bytes = int64_t{64} << 20;
  if (options.threads == 0) options.threads = 2;
  auto engine = open_engine(std::move(options));
  EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message);
  return engine.ok() ? std::move(engine).value() : nullptr;
}

inline Outcome ask_with(Engine& engine, std::vector<int32_t> ids, const std::string& policy, Params params = {},
                        int max_tokens = 6) {
  return ask_ok(engine, unpublished(std::move(ids), policy, std::move(params), max_tokens));
}

// Puts the prompt's KV into the cache.
inline Outcome warm(Engine& engine, std::vector<int32_t> ids, const std::string& policy = "full") {
  return ask_ok(engine, request_of(std::move(ids), policy, 0));
}

// Whether done() holds within a minute: for what an engine does in idle time.
template <class Done>
bool eventually(Done done) {
  for (int i = 0; i < 3000; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

// All that a client hears of an answer.
struct Heard {
  std::vector<int32_t> ids;
  std::string text;
  std::vector<TokenLogprob> logprobs, prompt;
  int prompts = 0;  // how often these came
  Completion completion;
  const PromptUsage& usage() const { return completion.usage; }
};
inline Heard heard(CollectingSink& sink) {
  Heard out;
  out.completion = sink.wait();
  EXPECT_FALSE(out.completion.error) << out.completion.error->message;
  out.ids = sink.ids;
  out.text = sink.text;
  out.logprobs = sink.logprobs;
  out.prompt = sink.prompt;
  out.prompts = sink.prompts;
  return out;
}
inline void expect_same(std::span<const TokenLogprob> a, std::span<const TokenLogprob> b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].id, b[i].id) << i;
    EXPECT_EQ(a[i].logprob, b[i].logprob) << i;
    EXPECT_EQ(a[i].rank, b[i].rank) << i;
    EXPECT_EQ(a[i].top, b[i].top) << i;
  }
}
inline void expect_same(const Heard& a, const Heard& b) {
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.completion.finish, b.completion.finish);
  EXPECT_EQ(a.completion.stop_text, b.completion.stop_text);
  EXPECT_EQ(a.completion.completion_tokens, b.completion.completion_tokens);
  expect_same(a.logprobs, b.logprobs);
}

// To the bit; all_logits are empty on both sides unless the requests asked for them.
inline void expect_equal(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.completion.logits.first, b.completion.logits.first);
  EXPECT_EQ(a.completion.logits.all, b.completion.logits.all);
  EXPECT_EQ(a.ids, b.ids);
}
inline void expect_differ(const Outcome& a, const Outcome& b) {
  EXPECT_NE(a.completion.logits.first, b.completion.logits.first) << "power";
}

inline double max_abs_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
  return most;
}

}  // namespace kvilt

#include "apps/bench/traffic.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <random>

#include "apps/bench/rag_prompt.h"
#include "apps/command.h"
#include "base/error.h"

namespace kvilt {
namespace {

using TrafficJson = nlohmann::ordered_json;

TrafficJson marked_part(const char* text) {
  return TrafficJson{{"type", "text"}, {"text", text}, {"cache_control", {{"type", "ephemeral"}}}};
}

TrafficJson message(const char* role, TrafficJson content) {
  return TrafficJson{{"role", role}, {"content", std::move(content)}};
}

TokenIds ids_between(const Prompt& prompt, int32_t begin, int32_t end) {
  return {prompt.ids.begin() + begin, prompt.ids.begin() + end};
}

void append_ids(TokenIds& to, const TokenIds& from) { to.insert(to.end(), from.begin(), from.end()); }

// What each figure should be, as the table prints it beside the value.
const char* goal_of(const std::string& figure) {
  static const std::map<std::string, const char*> kGoals{{"chat_sum_ratio", "<= .6"},
                                                         {"chat_later_turn_ratio", "<= 1.3"},
                                                         {"switch_later_turn_ratio", "<= 1.3"},
                                                         {"regenerate_rows", "<= --chunk"},
                                                         {"n4_prefill_ratio", "<= 1.1"},
                                                         {"burst_tokens_ratio", "<= 1.15"},
                                                         {"mixed_ttft_ratio", "<= 3"},
                                                         {"mixed_long_loss", "<= .1"},
                                                         {"wait_max_over_mean", "<= 4"},
                                                         {"pages_unfindable_share", "<= .03"},
                                                         {"hot_prefix_tokens_kept", "<= hot + an extent"},
                                                         {"reuse_last_over_first", ">= .95"},
                                                         {"retry_work_ratio", "<= 1.1"},
                                                         {"sampling_share", "<= .05"}};
  const auto it = kGoals.find(figure);
  return it == kGoals.end() ? "" : it->second;
}

}  // namespace

TrafficFrame traffic_frame(const Engine& engine) {
  TrafficJson first, later;
  first["messages"] = TrafficJson::array();
  first["messages"].push_back(message("system", "You answer questions about the notes that you are given."));
  first["messages"].push_back(
      message("user", TrafficJson::array({marked_part("the notes"), marked_part("the question")})));
  later["messages"] = TrafficJson::array();
  later["messages"].push_back(message("user", "a question"));
  later["messages"].push_back(message("assistant", TrafficJson::array({marked_part("an answer")})));
  later["messages"].push_back(message("user", TrafficJson::array({marked_part("the next question")})));
  TrafficFrame out;
  const auto one = engine.chat_prompt(first), two = engine.chat_prompt(later);
  if (one.ok() && two.ok() && one->marks.size() == 2 && two->marks.size() == 2) {
    out.head = ids_between(*one, 0, one->marks[0].begin);
    out.between = ids_between(*one, one->marks[0].end, one->marks[1].begin);
    out.tail = ids_between(*one, one->marks[1].end, static_cast<int32_t>(one->ids.size()));
    out.again = ids_between(*two, two->marks[0].end, two->marks[1].begin);
    return out;
  }
  for (int32_t i = 0; i < 8; ++i) out.head.push_back(1 + i), out.tail.push_back(20 + i), out.again.push_back(30 + i);
  return out;
}

TokenIds TrafficText::next(int tokens) {
  while (text_.size() < static_cast<size_t>(tokens)) {
    TokenIds more = value_or_fail(synthetic_prompt(engine_, 1, std::max(4096, tokens), seed_)).pieces[0];
    std::map<int32_t, size_t> times;
    size_t most = 0;
    for (const int32_t id : more) most = std::max(most, ++times[id]);
    if (most > more.size() / 4) {  // "unknown": the tokenizer knows no English, and the text repeats itself
      std::mt19937_64 rng(seed_);
      for (int32_t& id : more) id = static_cast<int32_t>(rng() % static_cast<uint64_t>(engine_.info().vocab));
    }
    append_ids(text_, more);
    ++seed_;
  }
  TokenIds out(text_.begin(), text_.begin() + tokens);
  text_.erase(text_.begin(), text_.begin() + tokens);
  return out;
}

std::vector<TokenIds> TrafficText::next(int count, int tokens) {
  std::vector<TokenIds> out;
  for (int i = 0; i < count; ++i) out.push_back(next(tokens));
  return out;
}

void TrafficSink::on_tokens(const TokenDelta& delta) {
  ids.insert(ids.end(), delta.ids.begin(), delta.ids.end());
  times.insert(times.end(), delta.ids.size(), Clock::now());
}

void TrafficSink::on_finish(Completion completion) {
  std::lock_guard lock(mutex_);
  done_ = std::move(completion);
  ended_.notify_all();
}

const Completion& TrafficSink::wait() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return done_.has_value(); });
  if (done_->error) fail(*done_->error);
  return *done_;
}

bool TrafficSink::wait_for(double seconds) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done_.has_value(); });
}

int TrafficBench::long_tokens(const Engine& engine) const {
  constexpr int kRest = 512;  // frame, question, answer
  return std::min(given(options_.long_tokens, 16384, 4096), engine.info().context - kRest);
}

std::unique_ptr<Engine> TrafficBench::open(double pool_tokens) {
  EngineOptions options = options_.engine;
  if (pool_tokens > 0) {
    if (token_bytes_ == 0) open();  // says how many bytes a token takes
    options.kv_bytes = static_cast<int64_t>(pool_tokens * static_cast<double>(token_bytes_));
  }
  auto engine = open_or_exit(options);
  if (const int context = of_size(5120, 2048); engine->info().context < context) {
    fail(fmt::format("bench traffic needs a context of {} tokens{}; this model has {}", context,
                     options_.quick ? "" : " (2048 with --quick)", engine->info().context));
  }
  token_bytes_ = engine->info().kv_bytes_per_token;
  report_.set_model(engine->info());
  return engine;
}

Prompt TrafficBench::first_turn(const TrafficFrame& frame, const std::vector<TokenIds>& documents,
                                const TokenIds& question) const {
  Prompt out;
  out.ids = frame.head;
  for (const TokenIds& document : documents) {
    const auto begin = static_cast<int32_t>(out.ids.size());
    append_ids(out.ids, document);
    if (!options_.unmarked) out.marks.push_back({begin, static_cast<int32_t>(out.ids.size())});
  }
  for (const TokenIds* part : {&frame.between, &question, &frame.tail}) append_ids(out.ids, *part);
  return out;
}

Prompt TrafficBench::next_turn(const TrafficFrame& frame, Prompt so_far, const TokenIds& answer,
                               const TokenIds& question) {
  for (const TokenIds* part : {&answer, &frame.again, &question, &frame.tail}) append_ids(so_far.ids, *part);
  return so_far;
}

void TrafficBench::figure(const std::string& workload, const std::string& name, double value) {
  report_.add({{"workload", workload}, {"figure", name}, {"value", value}});
  std::printf("%-12s %-26s %12.4g  %s\n", workload.c_str(), name.c_str(), value, goal_of(name));
  std::fflush(stdout);
}

Request traffic_request(Prompt prompt, int answer, PolicyChoice policy) {
  Request out;
  out.prompt = std::move(prompt);
  out.policy = std::move(policy);
  out.sampling.max_tokens = answer;
  out.draft = 0;  // steps of one token are timed
  out.sampling.temperature = 0;
  out.sampling.ignore_eos = true;
  return out;
}

PolicyChoice exact_quality() { return {"", {{"quality", "exact"}}}; }

RequestId submit_traffic(Engine& engine, Request request, const std::shared_ptr<TrafficSink>& sink) {
  return value_or_fail(engine.submit(std::move(request), sink));
}

TrafficJson usage_row(const std::string& workload, const std::string& what, const PromptUsage& u) {
  return TrafficJson{{"workload", workload},
                     {"what", what},
                     {"policy", u.policy},
                     {"prompt_tokens", u.prompt},
                     {"prefix_tokens", u.prefix},
                     {"reused_tokens", u.reused},
                     {"recomputed_tokens", u.recomputed},
                     {"fresh_tokens", u.fresh},
                     {"flops", u.flops},
                     {"steps", u.steps},
                     {"queued_s", u.queued_s},
                     {"ttft_s", u.ttft_s}};
}

double mean(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace kvilt

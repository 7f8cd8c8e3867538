// apps/bench/traffic_load.cc: workloads of `kvilt bench traffic` in which requests meet, or come back.
//   burst        questions over the same cold documents, all at once: what is computed beyond the union of what is new
//   mixed        a request over known documents behind a long cold prompt, and what the long one loses; then a stream
//                of cold prompts in a pool that holds 1.3 of them, and who waits longest
//   interrupted  a client that gives up after some seconds and asks again, until the prompt is done
//   sampling     the share of a step of 64 answers that drawing takes: the same step greedy, by turns
#include <algorithm>
#include <cmath>
#include <thread>

#include "apps/bench/rag_prompt.h"
#include "apps/bench/traffic.h"
#include "apps/command.h"

namespace kvilt {
namespace {

constexpr int kShortAnswer = 8;

// A question that makes the request's new text `fresh` tokens long.
TokenIds question_of(TrafficText& text, const TrafficFrame& frame, int fresh) {
  return text.next(std::max(8, fresh - static_cast<int>(frame.between.size() + frame.tail.size())));
}

Request cold_request(const TrafficBench& bench, const TrafficFrame& frame, TrafficText& text, int tokens) {
  TokenIds document = text.next(tokens);
  return traffic_request(bench.first_turn(frame, {std::move(document)}, text.next(16)), kShortAnswer);
}

struct Documents {
  std::vector<TokenIds> texts;
  uint64_t shuffles = 0;
  // An order that was not asked before.
  std::vector<TokenIds> again() {
    std::vector<TokenIds> out;
    for (const int i : value_or_fail(piece_order("shuffle", static_cast<int>(texts.size()), ++shuffles)))
      out.push_back(texts[static_cast<size_t>(i)]);
    return out;
  }
};

// The request over known documents, alone and behind the long prompt; the long prompt alone and disturbed.
void reuse_behind_long(TrafficBench& bench) {
  const auto engine = bench.open();
  const TrafficFrame frame = traffic_frame(*engine);
  TrafficText text(*engine, bench.options().seed + 2);
  Documents known{text.next(8, bench.of_size(256, 128))};
  const int long_tokens = bench.long_tokens(*engine);
  run_request(*engine, traffic_request(bench.first_turn(frame, known.texts, text.next(16)), 0));
  const auto reuse = [&] {
    return traffic_request(bench.first_turn(frame, known.again(), question_of(text, frame, 50)), kShortAnswer);
  };
  const auto measure_alone = [&](Request request, const char* what) {
    const PromptUsage usage = run_request(*engine, std::move(request)).usage();
    bench.detail(usage_row("mixed", what, usage));
    return usage.ttft_s;
  };
  std::vector<double> alone, undisturbed;
  for (int i = 0; i < 3; ++i) alone.push_back(measure_alone(reuse(), "reuse alone"));
  undisturbed.push_back(measure_alone(cold_request(bench, frame, text, long_tokens), "long alone"));

  const auto first = std::make_shared<TrafficSink>(), second = std::make_shared<TrafficSink>();
  submit_traffic(*engine, cold_request(bench, frame, text, long_tokens), first);
  std::this_thread::sleep_for(std::chrono::duration<double>(undisturbed[0] / 4));  // it is under way
  submit_traffic(*engine, reuse(), second);
  const PromptUsage mixed = second->wait().usage, disturbed = first->wait().usage;
  bench.detail(usage_row("mixed", "reuse behind long", mixed));
  bench.detail(usage_row("mixed", "long disturbed", disturbed));
  undisturbed.push_back(measure_alone(cold_request(bench, frame, text, long_tokens), "long alone"));
  bench.figure("mixed", "mixed_ttft_alone_s", median(alone));
  bench.figure("mixed", "mixed_ttft_s", mixed.ttft_s);
  bench.figure("mixed", "mixed_ttft_ratio", mixed.ttft_s / median(alone));
  bench.figure("mixed", "mixed_long_loss", disturbed.ttft_s / mean(undisturbed) - 1);
}

// A small request over known documents arrives while a cold prompt is computed and others wait: two clients ask one
// after the other. The pool has room for a cold prompt and the known documents, not for what the small request wants to
// compute of them.
void stream_of_cold(TrafficBench& bench) {
  const int cold_tokens = bench.of_size(2048, 1024);
  const auto count = static_cast<size_t>(bench.of_size(16, 12));
  const auto engine = bench.open(1.3 * (cold_tokens + 64));
  const TrafficFrame frame = traffic_frame(*engine);
  TrafficText text(*engine, bench.options().seed + 3);
  Documents known{text.next(4, 3 * cold_tokens / 64)};
  run_request(*engine, traffic_request(bench.first_turn(frame, known.texts, text.next(16)), 0));
  std::vector<std::shared_ptr<TrafficSink>> sinks;
  const auto send = [&](Request request) {
    sinks.push_back(std::make_shared<TrafficSink>());
    submit_traffic(*engine, std::move(request), sinks.back());
  };
  const Request small = traffic_request(bench.first_turn(frame, known.again(), text.next(16)), kShortAnswer);
  std::vector<Request> stream;
  for (size_t i = 0; i < count; ++i) stream.push_back(cold_request(bench, frame, text, cold_tokens));
  send(stream[0]);
  send(small);
  send(stream[1]);
  for (size_t i = 2; i < count; ++i) {  // the client whose answer is there asks again
    sinks[i == 2 ? 0 : i - 1]->wait();
    send(stream[i]);
  }
  std::vector<double> waits;
  for (size_t i = 0; i < sinks.size(); ++i) {
    const PromptUsage& usage = sinks[i]->wait().usage;
    bench.detail(usage_row("mixed", i == 1 ? "stream, small" : "stream, cold", usage));
    waits.push_back(usage.ttft_s);
  }
  bench.figure("mixed", "wait_max_over_mean", *std::ranges::max_element(waits) / mean(waits));
}

}  // namespace

void traffic_burst(TrafficBench& bench) {
  const int questions = bench.of_size(20, 8);
  const auto engine = bench.open();
  const TrafficFrame frame = traffic_frame(*engine);
  TrafficText text(*engine, bench.options().seed + 1);
  const auto documents = text.next(6, bench.of_size(256, 128));
  std::vector<Request> requests;
  size_t new_tokens = 0, shared = frame.head.size();
  for (const TokenIds& document : documents) shared += document.size();
  for (int i = 0; i < questions; ++i) {
    requests.push_back(traffic_request(bench.first_turn(frame, documents, text.next(24)), kShortAnswer));
    new_tokens += requests.back().prompt.ids.size() - shared;
  }
  std::vector<std::shared_ptr<TrafficSink>> sinks;
  for (Request& request : requests) {
    sinks.push_back(std::make_shared<TrafficSink>());
    submit_traffic(*engine, std::move(request), sinks.back());
  }
  std::vector<double> ttft;
  double rows = 0;
  for (const auto& sink : sinks) {
    const PromptUsage& usage = sink->wait().usage;
    bench.detail(usage_row("burst", "question", usage));
    ttft.push_back(usage.ttft_s);
    rows += computed_rows(usage);
  }
  bench.figure("burst", "burst_tokens_ratio", rows / static_cast<double>(shared + new_tokens));
  bench.figure("burst", "burst_ttft_median_s", median(ttft));
  bench.figure("burst", "burst_ttft_max_s", *std::ranges::max_element(ttft));
}

void traffic_mixed(TrafficBench& bench) {
  reuse_behind_long(bench);
  stream_of_cold(bench);
}

void traffic_interrupted(TrafficBench& bench) {
  const auto engine = bench.open();
  const TrafficFrame frame = traffic_frame(*engine);
  TrafficText text(*engine, bench.options().seed + 4);
  const int tokens = bench.long_tokens(*engine);
  // What all of them computed together: a request that goes on from one that was cancelled has its account too.
  const double nothing = engine->stats().prefill_flops;
  const PromptUsage whole = run_request(*engine, cold_request(bench, frame, text, tokens)).usage();
  const double undisturbed = engine->stats().prefill_flops;
  bench.detail(usage_row("interrupted", "undisturbed", whole));
  // A share of what it takes, in a quick run: some machines end its small prompt before any fixed time.
  const double usual = bench.options().quick ? whole.ttft_s / 5 : 5;
  const double patience = bench.options().give_up > 0 ? bench.options().give_up : usual;
  const Request request = cold_request(bench, frame, text, tokens);
  // Twice as often as it should take, the client gives up; then it waits, however long.
  const int most = 2 * static_cast<int>(std::ceil(whole.ttft_s / patience)) + 2;
  int attempts = 0;
  for (bool answered = false; !answered;) {
    const auto sink = std::make_shared<TrafficSink>();
    const RequestId id = submit_traffic(*engine, request, sink);
    if (++attempts < most && !sink->wait_for(patience)) engine->cancel(id);
    const Completion& end = sink->wait();
    answered = end.finish != Finish::kCancelled;
    bench.detail(usage_row("interrupted", answered ? "answered" : "gave up", end.usage));
  }
  bench.figure("interrupted", "retry_attempts", attempts);
  bench.figure("interrupted", "retry_patience_ran_out", attempts < most ? 0 : 1);
  bench.figure("interrupted", "retry_work_ratio",
               (engine->stats().prefill_flops - undisturbed) / (undisturbed - nothing));
}

// Time of a decode step of many sequences, drawn and greedy by turns.
void traffic_sampling(TrafficBench& bench) {
  constexpr int kSequences = 64;
  const int rounds = bench.given(bench.options().rounds, 5, 3), answer = bench.of_size(40, 24);
  const auto engine = bench.open();
  TrafficText text(*engine, bench.options().seed + 5);
  const auto steps_of = [&](bool drawn) {
    std::vector<std::shared_ptr<TrafficSink>> sinks;
    for (int i = 0; i < kSequences; ++i) {
      Request request = traffic_request({text.next(16), {}}, answer);
      request.sampling.temperature = drawn ? 1 : 0;
      request.sampling.top_p = drawn ? 0.95f : 1;
      request.sampling.seed = static_cast<uint64_t>(i);
      request.publish = false;
      sinks.push_back(std::make_shared<TrafficSink>());
      submit_traffic(*engine, std::move(request), sinks.back());
    }
    auto begin = TrafficSink::Clock::time_point::min(), end = TrafficSink::Clock::time_point::max();
    for (const auto& sink : sinks) {
      sink->wait();
      begin = std::max(begin, sink->times.front());
      end = std::min(end, sink->times.back());
    }
    std::vector<double> out;  // steps in which all decode
    const auto& times = sinks[0]->times;
    for (size_t i = 1; i < times.size(); ++i) {
      if (times[i - 1] >= begin && times[i] <= end)
        out.push_back(std::chrono::duration<double>(times[i] - times[i - 1]).count());
    }
    return out;
  };
  std::vector<double> greedy, drawn;
  for (int round = 0; round < rounds; ++round) {
    for (const double s : steps_of(false)) greedy.push_back(s);
    for (const double s : steps_of(true)) drawn.push_back(s);
  }
  bench.figure("sampling", "greedy_step_s", median(greedy));
  bench.figure("sampling", "sampled_step_s", median(drawn));
  bench.figure("sampling", "sampling_share", 1 - median(greedy) / median(drawn));
}

}  // namespace kvilt

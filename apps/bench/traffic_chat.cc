// apps/bench/traffic_chat.cc: the workload `chat` of `kvilt bench traffic`: what a conversation over known passages
// costs, turn by turn, under the default and under quality `exact`.
// Method: a fresh engine for every conversation. One earlier request has the passages in one order; then the
//         conversation asks over them in another. A turn is the whole conversation so far, its answers and a new short
//         question. The two lanes take turns, `--rounds` times; a turn's time is the median.
//         Beside it: the last prompt again (regenerate), a conversation that asks for `exact` in its middle, and four
//         choices of one prompt.
#include <algorithm>

#include "apps/bench/rag_prompt.h"
#include "apps/bench/traffic.h"
#include "apps/command.h"
#include "base/error.h"

namespace kvilt {
namespace {

constexpr double kUnnoticed = 0.05;  // s: a turn that is answered so soon is not compared

struct ChatSizes {
  int passages, passage_tokens, turns, question, answer, rounds;
};

ChatSizes chat_sizes(const TrafficBench& bench) {
  return {bench.of_size(10, 6),
          bench.of_size(400, 128),
          bench.of_size(6, 4),
          20,
          24,
          bench.given(bench.options().rounds, 3, 1)};
}

// A conversation's engine and texts; the passages are known to it.
class Conversation {
 public:
  Conversation(TrafficBench& bench, const ChatSizes& sizes, const PolicyChoice& first)
      : bench_(bench),
        sizes_(sizes),
        engine_(bench.open()),
        frame_(traffic_frame(*engine_)),
        text_(*engine_, bench.options().seed) {
    const auto passages = text_.next(sizes.passages, sizes.passage_tokens);
    Prompt earlier = bench.first_turn(frame_, passages, text_.next(sizes.question));
    run_request(*engine_, traffic_request(std::move(earlier), sizes.answer, first));
    std::vector<TokenIds> ordered;
    for (const int i : value_or_fail(piece_order("shuffle", sizes.passages, bench.options().seed)))
      ordered.push_back(passages[static_cast<size_t>(i)]);
    prompt_ = bench.first_turn(frame_, ordered, text_.next(sizes.question));
  }

  // Asks, and appends the answer and the next question.
  PromptUsage turn(const PolicyChoice& policy) {
    Answered answered = ask_now(policy);
    asked_ = prompt_;
    prompt_ = TrafficBench::next_turn(frame_, std::move(prompt_), answered.ids, text_.next(sizes_.question));
    return answered.usage();
  }
  PromptUsage regenerate(const PolicyChoice& policy) {
    prompt_ = asked_;
    return ask_now(policy).usage();
  }
  // FLOPs of the prefills of so many choices of the next turn.
  double choices(int count) {
    std::vector<std::shared_ptr<TrafficSink>> sinks;
    for (int i = 0; i < count; ++i) {
      Request request = traffic_request(prompt_, sizes_.answer);
      request.sampling.temperature = 1;
      request.sampling.seed = bench_.options().seed + static_cast<uint64_t>(i);
      sinks.push_back(std::make_shared<TrafficSink>());
      submit_traffic(*engine_, std::move(request), sinks.back());
    }
    double flops = 0;
    for (int i = 0; i < count; ++i) {
      const PromptUsage& usage = sinks[static_cast<size_t>(i)]->wait().usage;
      flops += usage.flops;
      bench_.detail(usage_row("chat", fmt::format("choice {} of {}", i + 1, count), usage));
    }
    return flops;
  }

 private:
  Answered ask_now(const PolicyChoice& policy) {
    return run_request(*engine_, traffic_request(prompt_, sizes_.answer, policy));
  }

  TrafficBench& bench_;
  const ChatSizes sizes_;
  const std::unique_ptr<Engine> engine_;
  const TrafficFrame frame_;
  TrafficText text_;
  Prompt prompt_, asked_;
};

// One conversation: the policy of turn t is policies[t].
struct Talk {
  std::vector<PromptUsage> turns;
  PromptUsage again;  // of the last prompt once more
};

Talk talk(TrafficBench& bench, const ChatSizes& sizes, const std::vector<PolicyChoice>& policies,
          const std::string& label) {
  Conversation conversation(bench, sizes, policies[0]);
  Talk out;
  for (const PolicyChoice& policy : policies) {
    out.turns.push_back(conversation.turn(policy));
    bench.detail(usage_row("chat", fmt::format("{} turn {}", label, out.turns.size()), out.turns.back()));
  }
  out.again = conversation.regenerate(policies.back());
  bench.detail(usage_row("chat", label + " regenerate", out.again));
  return out;
}

// Medians over rounds, by turn.
struct Lane {
  std::vector<double> ttft, flops;
  explicit Lane(const std::vector<Talk>& rounds) {
    for (size_t t = 0; t < rounds[0].turns.size(); ++t) {
      std::vector<double> seconds;
      for (const Talk& round : rounds) seconds.push_back(round.turns[t].ttft_s);
      ttft.push_back(median(seconds));
      flops.push_back(rounds[0].turns[t].flops);
    }
  }
};

double sum_of(const std::vector<double>& values) { return mean(values) * static_cast<double>(values.size()); }

// The worst of the turns from `first` on; those that come at once do not count, unless `all`.
double worst_turn(const std::vector<double>& ours, const std::vector<double>& exact, size_t first, bool all) {
  double worst = 0;
  for (size_t t = first; t < ours.size(); ++t) {
    if (all || ours[t] > kUnnoticed) worst = std::max(worst, ours[t] / exact[t]);
  }
  return worst;
}

void four_choices(TrafficBench& bench, const ChatSizes& sizes) {
  const double one = Conversation(bench, sizes, {}).choices(1);
  const double four = Conversation(bench, sizes, {}).choices(4);
  bench.figure("chat", "n4_prefill_ratio", four / one);
}

}  // namespace

void traffic_chat(TrafficBench& bench) {
  const ChatSizes sizes = chat_sizes(bench);
  const std::vector<PolicyChoice> usual(static_cast<size_t>(sizes.turns)),
      exactly(static_cast<size_t>(sizes.turns), exact_quality());
  std::vector<Talk> ours, theirs;
  for (int round = 0; round < sizes.rounds; ++round) {
    ours.push_back(talk(bench, sizes, usual, "default"));
    theirs.push_back(talk(bench, sizes, exactly, "exact"));
  }
  const Lane a(ours), b(theirs);
  for (size_t t = 0; t < a.ttft.size(); ++t) {
    bench.figure("chat", fmt::format("turn_{}_default_s", t + 1), a.ttft[t]);
    bench.figure("chat", fmt::format("turn_{}_exact_s", t + 1), b.ttft[t]);
  }
  bench.figure("chat", "chat_sum_ratio", sum_of(a.ttft) / sum_of(b.ttft));
  bench.figure("chat", "chat_sum_flops_ratio", sum_of(a.flops) / sum_of(b.flops));
  bench.figure("chat", "chat_later_turn_ratio", worst_turn(a.ttft, b.ttft, 1, false));
  bench.figure("chat", "chat_later_turn_ratio_raw", worst_turn(a.ttft, b.ttft, 1, true));
  bench.figure("chat", "regenerate_rows", computed_rows(ours[0].again));

  // `exact` in the middle: that turn pays for the exact history once; those after it should not pay again.
  std::vector<PolicyChoice> switching = usual;
  const size_t middle = switching.size() / 2 - 1;
  switching[middle] = exact_quality();
  const Lane c({talk(bench, sizes, switching, "switching")});
  bench.figure("chat", "switch_sum_ratio", sum_of(c.ttft) / sum_of(b.ttft));
  bench.figure("chat", "switch_later_turn_ratio", worst_turn(c.ttft, b.ttft, middle + 1, false));
  four_choices(bench, sizes);
}

}  // namespace kvilt

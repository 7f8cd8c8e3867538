// apps/bench/bench_dialogue.cc: kvilt bench dialogue: three turns of a dialogue that grows, under each policy and decode
// method.
// Method: a turn adds a third of the length as new text, and an answer follows. Each policy has the dialogue to itself
//         (the cache is cleared before), and the policies take turns round by round. What an answer costs besides
//         attention is the step of a prompt of 16 tokens, measured right behind each turn, since machines drift:
//           attend_decode_s = decode_s - that
//           bound_s         = time to read the weights once, and for the keys that the answer's rows saw, those of the
//                             choices included, the longer of reading them and computing with them; the rate of
//                             reading is measured before and behind each answer, since memory has phases, that of
//                             computing once a run
//           decode_of_bound = decode_s / bound_s, of each answer
//         recovered_mass comes from one more dialogue of each policy, whose times do not count.
//         With --answers-only the texts of the turns are computed once, and each policy answers behind them in every
//         round: decode methods at long prompts, without a prefill each.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/bench/rag_prompt.h"
#include "apps/bench/rates.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/error.h"
#include "eval/runner.h"

namespace kvilt {
namespace {

constexpr int kTurns = 3, kShort = 16;
constexpr const char* kDense = "prefix";  // what the others are compared with

struct DialogueOptions {
  EngineOptions engine;
  std::string lengths = "4096,8192,16384", policies = "prefix,prefix:decode=loopserve,prefix:decode=snapkv", text, json;
  int answer = 96, rounds = 3;
  bool mass = false, answers_only = false;
};

// What one policy took for one turn, a value a round.
struct Turn {
  std::vector<double> prefill, decode, attend;  // seconds; seconds a token, and those of attention
  std::vector<double> bound, of_bound;          // of decode
  PromptUsage usage;
  std::optional<double> held, decode_held;  // none: not measured
};

struct Speaker {
  std::string label;
  PolicyChoice policy;
  Turn turns[kTurns];
};

Request request_of(std::vector<int32_t> ids, const PolicyChoice& policy, int tokens) {
  Request request;
  request.prompt.ids = std::move(ids);
  request.policy = policy;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = tokens + 1;
  request.draft = 0;  // steps of one token are timed
  return request;
}

// Seconds for each token after the first.
double decode_s(const Completion& done, int tokens) { return (done.total_s - done.usage.ttft_s) / tokens; }

// What answers run on.
struct Bench {
  Engine& engine;
  const DialogueOptions& o;
  const RateProbe& probe;
  const Rates& rates;
};

// Seconds a token. The large product's rate stands for attention's: more than few rows can have. other_bytes: those of
// the answer behind a prompt of 16: weights, and hardly any keys.
double decode_bound_s(const PromptUsage& of, double other_bytes, double read_bytes, double attention_flops) {
  const double reading = of.decode_bytes / read_bytes;
  return std::max(reading, other_bytes / read_bytes + of.decode_attention_flops / attention_flops);
}

// Answers once, and what else a token of an answer costs right behind it. Returns the answer.
std::vector<int32_t> timed_answer(const Bench& bench, Request request, Turn& turn) {
  const auto& [engine, o, probe, rates] = bench;
  const std::vector<int32_t> little(request.prompt.ids.begin(), request.prompt.ids.begin() + kShort);
  const double before = probe.read_bytes();
  Answered out = run_request(engine, std::move(request));
  const double read_bytes = (before + probe.read_bytes()) / 2;
  turn.prefill.push_back(out.completion.usage.ttft_s);
  turn.decode.push_back(decode_s(out.completion, o.answer));
  const Answered other = run_request(engine, request_of(little, {.name = "full", .params = {}}, o.answer));
  turn.attend.push_back(turn.decode.back() - decode_s(other.completion, o.answer));
  turn.usage = out.completion.usage;
  turn.bound.push_back(
      decode_bound_s(turn.usage, other.completion.usage.decode_bytes, read_bytes, rates.attention_flops) / o.answer);
  turn.of_bound.push_back(turn.decode.back() / turn.bound.back());
  return std::move(out.ids);
}

// All policies answer behind the same texts, in turn.
void ask_answers(const Bench& bench, const RagPrompt& text, std::vector<Speaker>& all) {
  const auto& [engine, o, probe, rates] = bench;
  engine.clear_cache();
  std::vector<int32_t> said;
  for (int turn = 0; turn < kTurns; ++turn) {
    said.insert(said.end(), text.pieces[turn].begin(), text.pieces[turn].end());
    run_request(engine, request_of(said, {.name = kDense, .params = {}}, 1));
    for (int round = 0; round < o.rounds; ++round) {
      for (Speaker& m : all) timed_answer(bench, request_of(said, m.policy, o.answer), m.turns[turn]);
    }
  }
}

// PromptUsage has -1 for none.
std::optional<double> share_of(double held) { return held >= 0 ? std::optional(held) : std::nullopt; }

void ask_dialogue(const Bench& bench, const RagPrompt& text, bool held, Speaker& m) {
  const auto& [engine, o, probe, rates] = bench;
  engine.clear_cache();
  std::vector<int32_t> said;
  for (int turn = 0; turn < kTurns; ++turn) {
    said.insert(said.end(), text.pieces[turn].begin(), text.pieces[turn].end());
    Request request = request_of(said, m.policy, o.answer);
    request.evaluation.held_mass = held;
    if (!held) {
      const std::vector<int32_t> answer = timed_answer(bench, std::move(request), m.turns[turn]);
      said.insert(said.end(), answer.begin(), answer.end());
      continue;
    }
    const Answered out = run_request(engine, std::move(request));
    said.insert(said.end(), out.ids.begin(), out.ids.end());
    m.turns[turn].held = share_of(out.usage().held_mass);
    m.turns[turn].decode_held = share_of(out.usage().decode_held_mass);
  }
}

nlohmann::ordered_json nullable(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nullptr;
}

void add_rows(const std::vector<Speaker>& all, const DialogueOptions& o, const Rates& rates, Report& report) {
  const auto dense = std::ranges::find_if(all, [](const Speaker& m) { return m.label == kDense; });
  for (int turn = 0; turn < kTurns; ++turn) {
    for (const Speaker& m : all) {
      const Turn &of = m.turns[turn], &full = dense->turns[turn];
      const double prefill = median(of.prefill), decode = median(of.decode);
      const double attend = median(of.attend), attend_full = median(full.attend);
      const double bound = median(of.bound), of_bound = median(of.of_bound);
      const double prefill_bound = rates.bound_s(of.usage);
      const double prefill_cells = of.usage.attention_flops / full.usage.attention_flops;
      report.add({{"policy", m.label},
                  {"turn", turn + 1},
                  {"prompt_tokens", of.usage.prompt},
                  {"prefix_tokens", of.usage.prefix},
                  {"prefill_s", prefill},
                  {"prefill_spread_s", spread(of.prefill)},
                  {"prefill_cells_ratio", prefill_cells},
                  {"prefill_bound_s", prefill_bound},
                  {"decode_s", decode},
                  {"decode_spread_s", spread(of.decode)},
                  {"attend_decode_s", attend},
                  {"attend_spread_s", spread(of.attend)},
                  {"attend_speedup", attend_full / attend},
                  {"cells_ratio", of.usage.decode_attention_flops / full.usage.decode_attention_flops},
                  {"decode_bytes", of.usage.decode_bytes / o.answer},
                  {"evicted_bytes", of.usage.evicted_bytes},
                  {"bound_s", bound},
                  {"decode_of_bound", of_bound},
                  {"recovered_mass", nullable(of.held)},
                  {"decode_recovered_mass", nullable(of.decode_held)},
                  {"rounds", o.rounds}});
      std::printf("%-40s %4d %7d %7d %9.3f %7.3f %7.2f %9.5f %9.5f %8.2f %7.3f %9.5f %7.2f\n", m.label.c_str(),
                  turn + 1, of.usage.prompt, of.usage.prefix, prefill, prefill_cells, prefill / prefill_bound, decode,
                  attend, attend_full / attend, of.usage.decode_attention_flops / full.usage.decode_attention_flops,
                  bound, of_bound);
    }
  }
  std::fflush(stdout);
}

// Tokens of a turn's text, in dialogues of this length.
int text_size(const DialogueOptions& o, int length) {
  const int size = length / kTurns - o.answer;
  if (size < kShort) fail(fmt::format("--lengths: {} has no room for {} answers of {}", length, kTurns, o.answer));
  return size;
}

// What is wrong with the flags is said before the machine is measured, and before the model is there.
void check_flags(const DialogueOptions& o) {
  if (o.rounds < 1) fail("--rounds must be at least 1");
  if (o.answer < 1) fail("--answer must be at least 1");
  if (o.mass && o.answers_only) {
    fail(
        "--mass is measured in a dialogue of its own, and --answers-only holds none: leave one of them out (kvilt eval "
        "--warm prompt --recovered-mass measures answers behind a cached prompt)");
  }
  for (const int length : split_numbers(o.lengths, "--lengths")) text_size(o, length);
}

// The texts of a length, one a round. The answers have a token more than is timed of them.
std::vector<RagPrompt> texts_of(const Engine& engine, const DialogueOptions& o, int length) {
  const int size = text_size(o, length), answers = o.answers_only ? 1 : kTurns, context = engine.info().context;
  if (const int whole = kTurns * size + answers * (o.answer + 1); whole > context) {
    fail(fmt::format("--lengths: {} makes a dialogue of {} tokens; the context holds {}: name a shorter one", length,
                     whole, context));
  }
  std::vector<RagPrompt> out;
  for (int round = 0; round < (o.answers_only ? 1 : o.rounds); ++round) {
    out.push_back(value_or_fail(o.text.empty() ? synthetic_prompt(engine, kTurns, size, static_cast<uint64_t>(round))
                                               : text_prompt(engine, o.text, kTurns, size, round)));
  }
  return out;
}

void bench_dialogue(DialogueOptions o, int argc, char** argv) {
  check_flags(o);
  Report report(argc, argv);
  RateProbe probe(o.engine);
  const Rates rates = probe.measure();
  auto engine = open_or_exit(o.engine);
  report.set_model(engine->info());
  const std::vector<PolicySpec> policies = checked_policies(*engine, o.policies, kDense);
  if (o.mass) {
    if (const auto good = check_held_mass(*engine, policies); !good.ok()) fail(good.error());
  }
  std::vector<std::vector<RagPrompt>> lengths;  // all of them before any round, which may take an hour
  for (const int length : split_numbers(o.lengths, "--lengths")) lengths.push_back(texts_of(*engine, o, length));
  std::printf("%-40s %4s %7s %7s %9s %7s %7s %9s %9s %8s %7s %9s %7s\n", "policy", "turn", "prompt", "prefix",
              "prefill s", "cells", "/bound", "s/token", "attend s", "speed-up", "cells", "bound s", "/bound");
  for (const std::vector<RagPrompt>& texts : lengths) {
    std::vector<Speaker> all;
    for (const PolicySpec& policy : policies) all.push_back({policy.label, policy.choice, {}});
    const Bench bench{*engine, o, probe, rates};
    if (o.answers_only) ask_answers(bench, texts[0], all);
    for (int round = 0; !o.answers_only && round < o.rounds; ++round) {
      const RagPrompt& text = texts[static_cast<size_t>(round)];
      for (Speaker& m : all) ask_dialogue(bench, text, false, m);
      for (Speaker& m : all) {
        if (o.mass && round == 0) ask_dialogue(bench, text, true, m);
      }
    }
    add_rows(all, o, rates, report);
  }
  report.write(o.json);
}

}  // namespace

void add_bench_dialogue(Program& program, Command bench) {
  auto app =
      bench.add_subcommand("dialogue", "turns of a long dialogue: prefill and decode, per policy and decode method");
  auto o = std::make_shared<DialogueOptions>();
  add_engine_options(app, o->engine, true);
  app.add_option("--lengths", o->lengths, "tokens of the last turn's prompt and answer, comma-separated")
      .show_default();
  app.add_option("--policies", o->policies, "comma-separated; parameters as prefix:decode=snapkv:decode_budget=256")
      .show_default();
  app.add_option("--text", o->text, "a text file that the turns are cut from; without it, words in no order");
  app.add_option("--answer", o->answer, "tokens of each answer after its first").show_default();
  app.add_option("--rounds", o->rounds, "dialogues per policy, alternating").show_default();
  app.add_flag("--answers-only", o->answers_only, "compute the turns' texts once; every round answers behind them");
  app.add_flag("--mass", o->mass,
               "measure the share of full attention that rows saw, in a dialogue of its own; not with --answers-only");
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_dialogue(*o, program.argc, program.argv); });
}

}  // namespace kvilt

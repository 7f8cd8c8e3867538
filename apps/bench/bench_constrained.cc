// apps/bench/bench_constrained.cc: kvilt bench constrained: what it costs to hold answers to a JSON schema, and what the
// schema's own text gains: tokens a second of free text, of JSON in single steps, and of JSON whose keys are drafted
// (docs/design/drafts.md), of the same length after the same prompt, in turns; the share of the time that masks take; and
// what that does to a step: its time by that of a step of free text in the same round, which has no mask.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "eval/statistics.h"

namespace kvilt {
namespace {

struct ConstrainedOptions {
  EngineOptions engine;
  std::string batches = "1,16", json;
  int tokens = 128, rounds = 3;
};

// Long enough for any --tokens, with words, numbers and forced texts.
constexpr const char* kCitySchema =
    R"({"type":"array","minItems":1000,"items":{"type":"object","properties":{"city":{"type":"string"},)"
    R"("country":{"type":"string"},"population":{"type":"integer","minimum":0},"capital":{"type":"boolean"},)"
    R"("sights":{"type":"array","items":{"type":"string"}}},"required":["city","country","population","capital",)"
    R"("sights"],"additionalProperties":false}})";
constexpr const char* kQuestion =
    "List the largest cities of Europe as JSON: a list of objects with city, country, population, capital (true or "
    "false), sights.";

struct HeldPass {
  double seconds = 0, mask_seconds = 0, ahead_seconds = 0, tokens = 0;
  uint64_t steps = 0;
};

// `batch` answers side by side, from the first one's submission to the last one's end; their prompt is cached.
HeldPass run_held_pass(Engine& engine, const Request& request, int batch) {
  const EngineStats before = engine.stats();
  std::vector<std::shared_ptr<BlockingSink>> sinks;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < batch; ++i) {
    Request one = request;
    one.sampling.seed = static_cast<uint64_t>(i);
    sinks.push_back(std::make_shared<BlockingSink>());
    value_or_fail(engine.submit(std::move(one), sinks.back()));
  }
  HeldPass out;
  for (const auto& sink : sinks) {
    const Completion end = sink->wait();
    if (end.error) fail(*end.error);
    out.tokens += end.completion_tokens;
  }
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const EngineStats after = engine.stats();
  out.mask_seconds = after.mask_s - before.mask_s;
  out.ahead_seconds = after.mask_ahead_s - before.mask_ahead_s;
  out.steps = after.steps - before.steps;
  return out;
}

enum HeldWay { kFreeText, kHeldSingle, kHeld, kHeldWays };
constexpr const char* kHeldWayNames[] = {"free", "JSON, single", "JSON"};

Request held_request(const Request& question, const Constraint& must, HeldWay way) {
  Request out = question;
  if (way != kFreeText) out.constraint = must;
  out.sampling.ignore_eos = way == kFreeText;
  if (way == kHeldSingle) out.draft = 0;
  return out;
}

struct HeldRates {
  std::vector<double> tokens_s, step_s, per_step, masks, ahead, shares, undivided, of_free;
  Estimate step_of_free;  // over the rounds
  double tokens = 0;
  void add(const HeldPass& pass, int batch, int threads) {
    tokens = pass.tokens;
    tokens_s.push_back(pass.tokens / pass.seconds);
    step_s.push_back(pass.seconds / static_cast<double>(pass.steps));
    per_step.push_back(pass.tokens / static_cast<double>(pass.steps) / batch);
    masks.push_back(pass.mask_seconds / pass.tokens);
    ahead.push_back(pass.mask_seconds > 0 ? pass.ahead_seconds / pass.mask_seconds : 0);
    // Sequences draw side by side, so that so many threads share what is left of the masks then. What one thread filled
    // ahead counts whole, as where there is no core to spare for it.
    const double left = pass.mask_seconds - pass.ahead_seconds;
    shares.push_back((pass.ahead_seconds + left / std::min(batch, threads)) / pass.seconds);
    undivided.push_back(pass.mask_seconds / pass.seconds);
  }
};

void bench_held(Engine& engine, const ConstrainedOptions& o, const Request& question, const Constraint& must, int batch,
                Report& report) {
  HeldRates rates[kHeldWays];
  for (int round = 0; round <= o.rounds; ++round) {  // the first one warms up
    for (int turn = 0; turn < kHeldWays; ++turn) {
      const HeldWay way = static_cast<HeldWay>(round % 2 == 0 ? turn : kHeldWays - 1 - turn);
      const HeldPass pass = run_held_pass(engine, held_request(question, must, way), batch);
      if (round > 0) rates[way].add(pass, batch, engine.info().threads);
    }
    if (round == 0) continue;
    for (HeldRates& way : rates) way.of_free.push_back(way.tokens_s.back() / rates[kFreeText].tokens_s.back());
  }
  for (HeldRates& way : rates) way.step_of_free = *paired_ratio(way.step_s, rates[kFreeText].step_s, 0);
  for (int way = 0; way < kHeldWays; ++way) {
    const HeldRates& r = rates[way];
    std::printf("%5d %-12s %7.0f %9.1f %7.2f %5.2f %7.2f %5.3f [%5.3f,%5.3f] %8.2f %8.1f %6.2f %8.2f%% %8.2f%%\n",
                batch, kHeldWayNames[way], r.tokens, median(r.tokens_s), median(r.of_free), spread(r.of_free),
                median(r.step_s) * 1e3, r.step_of_free.mean, r.step_of_free.low, r.step_of_free.high,
                median(r.per_step), median(r.masks) * 1e6, median(r.ahead), median(r.shares) * 100,
                median(r.undivided) * 100);
    report.add({{"batch", batch},
                {"answer", kHeldWayNames[way]},
                {"tokens", r.tokens},
                {"tokens_per_s", median(r.tokens_s)},
                {"of_free", median(r.of_free)},
                {"spread_of_free", spread(r.of_free)},
                {"step_s", median(r.step_s)},
                {"step_of_free", r.step_of_free.mean},
                {"step_of_free_low", r.step_of_free.low},
                {"step_of_free_high", r.step_of_free.high},
                {"tokens_per_step", median(r.per_step)},
                {"mask_s", median(r.masks)},
                {"mask_ahead", median(r.ahead)},
                {"mask_share", median(r.shares)},
                {"mask_undivided", median(r.undivided)}});
  }
}

void bench_constrained(const ConstrainedOptions& o, int argc, char** argv) {
  Report report(argc, argv);
  auto engine = open_or_exit(o.engine);
  report.set_model(engine->info());
  Request request;
  request.prompt = value_or_fail(
      engine->chat_prompt({{"messages", nlohmann::ordered_json::array({{{"role", "user"}, {"content", kQuestion}}})}}));
  request.sampling.max_tokens = o.tokens;
  request.sampling.temperature = .7f;
  Constraint must;
  must.form = Constraint::Form::kSchema;
  must.text = kCitySchema;
  const auto begin = std::chrono::steady_clock::now();
  if (const Status status = engine->check_constraint(must, false); !status.ok()) fail(status.error());
  const double compile = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("vocabulary read and schema compiled in %.0f ms\n", compile * 1e3);
  std::printf("%5s %-12s %7s %9s %7s %5s %7s %19s %8s %8s %6s %9s %9s\n", "batch", "answer", "tokens", "tokens/s",
              "of free", "+-", "ms/step", "a step of free's", "tok/step", "us/mask", "ahead", "of a step", "undivided");
  for (const int batch : split_numbers(o.batches, "--batches")) bench_held(*engine, o, request, must, batch, report);
  report.write(o.json);
}

}  // namespace

void add_bench_constrained(Program& program, Command bench) {
  auto app =
      bench.add_subcommand("constrained", "answers held to a JSON schema against free ones: rates, cost of masks");
  auto o = std::make_shared<ConstrainedOptions>();
  add_engine_options(app, o->engine, true);
  app.add_option("--batches", o->batches, "answers side by side, comma-separated").show_default();
  app.add_option("--tokens", o->tokens, "of each answer").range(8, 4096).show_default();
  app.add_option("--rounds", o->rounds, "passes of each kind, in turn").range(1, 100).show_default();
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_constrained(*o, program.argc, program.argv); });
}

}  // namespace kvilt

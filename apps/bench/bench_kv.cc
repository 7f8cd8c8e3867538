// apps/bench/bench_kv.cc: kvilt bench kv: what a KV type costs in accuracy: the next token's distribution after many
// cuts of a text, compared with fp32 KV of the same weights.
// Method: cut n asks for one token after the first n tokens. It is an exact prefix hit on the cut before, which equals
//         a full prefill bit for bit, so a text of T tokens is prefilled once for each type.
#include <algorithm>
#include <cstdio>

#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/divergence.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace kvilt {
namespace {

constexpr size_t kMaxText = size_t{64} << 20;

struct KvOptions {
  EngineOptions engine;
  std::string text, types = "f16,bf16,int8", json;
  int tokens = 2048, cuts = 32;
};

// The logits after each cut.
std::vector<std::vector<float>> measure(KvOptions o, const std::string& type, const std::string& text, Report& report) {
  o.engine.kv_type = value_or_fail(parse_kv_type(type));
  auto engine = open_or_exit(o.engine);
  report.set_model(engine->info());
  std::vector<int32_t> ids = value_or_fail(engine->tokenize(text, false, true));
  if (static_cast<int>(ids.size()) < o.tokens) {
    fail(fmt::format("{}: {} tokens, but --tokens is {}", o.text, ids.size(), o.tokens));
  }
  std::vector<std::vector<float>> out;
  for (int cut = 1; cut <= o.cuts; ++cut) {
    const auto end = static_cast<size_t>(int64_t{o.tokens} * cut / o.cuts);
    Request request;
    request.prompt.ids.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(end));
    request.policy.name = "prefix";
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 1;
    request.evaluation.first_logits = true;
    out.push_back(run_request(*engine, std::move(request)).completion.logits.first);
  }
  return out;
}

void bench_kv(const KvOptions& o, int argc, char** argv) {
  Report report(argc, argv);
  const std::string text = value_or_fail(read_file(o.text, kMaxText));
  const auto exact = measure(o, "f32", text, report);
  std::printf("%-6s %8s %12s %12s %12s %8s\n", "type", "cuts", "mean KL", "median KL", "worst KL", "top-1");
  for (const std::string& type : split_commas(o.types)) {
    const auto logits = measure(o, type, text, report);
    std::vector<double> kl;
    int same = 0;
    double sum = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      kl.push_back(Reference(exact[i]).kl(logits[i]));
      sum += kl.back();
      same += most_likely(exact[i]) == most_likely(logits[i]) ? 1 : 0;
    }
    const double mean = sum / static_cast<double>(kl.size()), worst = *std::ranges::max_element(kl);
    report.add({{"type", type},
                {"tokens", o.tokens},
                {"cuts", kl.size()},
                {"mean_kl", mean},
                {"median_kl", median(kl)},
                {"worst_kl", worst},
                {"top1_same", same}});
    std::printf("%-6s %8zu %12.6f %12.6f %12.6f %4d/%zu\n", type.c_str(), kl.size(), mean, median(kl), worst, same,
                kl.size());
    std::fflush(stdout);
  }
  report.write(o.json);
}

}  // namespace

void add_bench_kv(Program& program, Command bench) {
  auto app = bench.add_subcommand("kv", "what each KV type costs in accuracy, on a text");
  auto o = std::make_shared<KvOptions>();
  add_engine_options(app, o->engine, true);
  app.remove_option("--kv-type");
  app.add_option("--text", o->text, "a text file").required();
  app.add_option("--types", o->types, "compared with f32, comma-separated").show_default();
  app.add_option("--tokens", o->tokens, "of the text").range(1, 1 << 24).show_default();
  app.add_option("--cuts", o->cuts, "positions whose next token is compared").range(1, 100000).show_default();
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_kv(*o, program.argc, program.argv); });
}

}  // namespace kvilt

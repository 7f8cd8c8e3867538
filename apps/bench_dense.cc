// apps/bench_dense.cc: kvilt bench dense: prefill and decode without reuse, beside what the machine's rates allow.
//   gemm_bound_tok_s:      one token's linear FLOPs at the measured rate of large matmuls, attention at its own
//   bandwidth_bound_tok_s: sequences of a step / time to read every weight and the KV of all of them once
#include <cstdio>

#include "base/error.h"
#include "command.h"
#include "rag_prompt.h"
#include "rates.h"

namespace kvilt {
namespace {

struct DenseOptions {
  EngineOptions engine;
  std::string threads = "1,2", prompts = "512,2048", batches = "1", json;
  int decode = 64, rounds = 3;
};

struct DenseTimes {
  std::vector<double> prefill, decode;  // tokens a second
  PromptUsage usage;
};

// `batch` equal-length prompts at once; their answers overlap, so the decode steps hold all of them.
void measure(Engine& engine, const DenseOptions& o, int tokens, int batch, uint64_t seed, DenseTimes& out) {
  std::vector<std::shared_ptr<BlockingSink>> sinks;
  for (int b = 0; b < batch; ++b) {
    Request request;
    request.prompt.ids = value_or_fail(synthetic_prompt(engine, 1, tokens, seed + static_cast<uint64_t>(b))).pieces[0];
    request.policy.name = "full";
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = o.decode + 1;
    request.publish = false;
    sinks.push_back(std::make_shared<BlockingSink>());
    value_or_fail(engine.submit(std::move(request), sinks.back()));
  }
  double ttft = 0, total = 0;
  for (auto& sink : sinks) {
    const Completion completion = sink->wait();
    if (completion.error) fail(*completion.error);
    ttft = std::max(ttft, completion.usage.ttft_s);
    total = std::max(total, completion.total_s);
    out.usage = completion.usage;
  }
  out.prefill.push_back(static_cast<double>(tokens) * batch / ttft);
  // After the last prefill everybody decodes: sequences that began earlier are ahead, so count what is left for the last one.
  out.decode.push_back(o.decode * static_cast<double>(batch) / (total - ttft));
}

void bench_dense(DenseOptions o, int argc, char** argv) {
  Report report(argc, argv);
  std::printf("%7s %7s %6s %14s %14s %8s %12s %14s %8s\n", "threads", "prompt", "batch", "prefill tok/s", "bound tok/s",
              "share", "decode tok/s", "bound tok/s", "share");
  for (const int threads : split_numbers(o.threads, "--threads")) {
    o.engine.threads = threads;
    o.engine.cache = false;
    const Rates rates = measure_rates(o.engine);
    auto engine = open_or_exit(o.engine);
    const ModelInfo& info = engine->info();
    report.set_model(info);
    for (const int prompt : split_numbers(o.prompts, "--prompt")) {
      for (const int batch : split_numbers(o.batches, "--batch")) {
        DenseTimes times;
        for (int round = 0; round < o.rounds; ++round)
          measure(*engine, o, prompt, batch, static_cast<uint64_t>(round) * 100, times);
        const PromptUsage& u = times.usage;
        const double gemm = prompt / (u.linear_flops / rates.matmul_flops + u.attention_flops / rates.attention_flops);
        const double kv = static_cast<double>(info.kv_bytes_per_token) * (prompt + o.decode / 2.0);
        const double bandwidth = batch * rates.read_bytes / (static_cast<double>(info.weight_bytes) + batch * kv);
        const double prefill = median(times.prefill), decode = median(times.decode);
        report.add({{"threads", threads},
                    {"prompt_tokens", prompt},
                    {"batch", batch},
                    {"prefill_tok_s", prefill},
                    {"decode_tok_s", decode},
                    {"gemm_bound_tok_s", gemm},
                    {"bandwidth_bound_tok_s", bandwidth},
                    {"prefill_spread_tok_s", spread(times.prefill)},
                    {"decode_spread_tok_s", spread(times.decode)},
                    {"matmul_gflops", rates.matmul_flops / 1e9},
                    {"attention_gflops", rates.attention_flops / 1e9},
                    {"read_gb_s", rates.read_bytes / 1e9}});
        std::printf("%7d %7d %6d %14.1f %14.1f %8.2f %12.1f %14.1f %8.2f\n", threads, prompt, batch, prefill, gemm,
                    prefill / gemm, decode, bandwidth, decode / bandwidth);
        std::fflush(stdout);
      }
    }
  }
  report.write(o.json);
}

}  // namespace

void add_bench_dense(Program& program, CLI::App& bench) {
  auto* app = bench.add_subcommand("dense", "prefill and decode speed without reuse, beside the bounds");
  auto o = std::make_shared<DenseOptions>();
  add_engine_options(*app, o->engine, true);
  app->remove_option(app->get_option("--threads"));
  app->add_option("--threads,-t", o->threads, "comma-separated")->capture_default_str();
  app->add_option("--prompt", o->prompts, "prompt lengths in tokens, comma-separated")->capture_default_str();
  app->add_option("--batch", o->batches, "sequences at once, comma-separated")->capture_default_str();
  app->add_option("--decode", o->decode, "tokens decoded after each prompt")->capture_default_str();
  app->add_option("--rounds", o->rounds, "measurements of each; the median is reported")->capture_default_str();
  app->add_option("--json", o->json, "write the rows to this file");
  app->callback([o, &program] { bench_dense(*o, program.argc, program.argv); });
}

void add_bench(Program& program) {
  auto* bench = program.app.add_subcommand("bench", "measurements, as tables and JSON");
  bench->require_subcommand(1);
  add_bench_reuse(program, *bench);
  add_bench_dense(program, *bench);
}

}  // namespace kvilt

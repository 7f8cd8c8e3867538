// apps/bench/bench_dense.cc: kvilt bench dense: prefill and decode without reuse, and what the machine allows.
//   gemm_bound_tok_s:      linear FLOPs at the measured peak of the weights' instruction, attention at that of its KV
//                          type's (FMA, or bf16 pairs)
//   bandwidth_bound_tok_s: sequences of a step / time to read every weight as the file has it, and the KV of all, once.
//                          The read rate is the median of those before and after each sample: a virtual machine's
//                          memory has phases (30 to 57 GB/s within an hour)
//   linear_of_peak, attention_of_peak: what the kernels by themselves reach of those peaks on this model's large shapes
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "apps/bench/rag_prompt.h"
#include "apps/bench/rates.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/error.h"

namespace kvilt {
namespace {

using Clock = std::chrono::steady_clock;

struct DenseOptions {
  EngineOptions engine;
  std::string threads = "1,2", prompts = "512,2048", batches = "1", json;
  int decode = 64, rounds = 3;
  bool speed_only = false;
};

struct DenseTimes {
  std::vector<double> prefill, decode;  // tokens a second
  std::vector<double> read;             // bytes a second, before the first and after each
  PromptUsage usage;
};

// Notes when tokens arrive, and says when the first `wanted` have.
class TimedSink : public TokenSink {
 public:
  explicit TimedSink(size_t wanted) : wanted_(wanted) {}

  void on_tokens(const TokenDelta& delta) override {
    std::lock_guard lock(mutex_);
    times_.insert(times_.end(), delta.ids.size(), Clock::now());
    changed_.notify_all();
  }

  void on_finish(Completion completion) override {
    std::lock_guard lock(mutex_);
    done_ = std::move(completion);
    changed_.notify_all();
  }

  // Arrival of the first token and of the last wanted one.
  std::pair<Clock::time_point, Clock::time_point> wait_for_tokens() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return times_.size() >= wanted_ || done_; });
    if (done_ && done_->error) fail(*done_->error);
    if (times_.size() < wanted_) fail("an answer ended before its time; is --context too small?");
    return {times_.front(), times_[wanted_ - 1]};
  }

  Completion wait_for_end() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_.has_value(); });
    return *done_;
  }

  int64_t tokens_between(Clock::time_point after, Clock::time_point until) {
    std::lock_guard lock(mutex_);
    return std::ranges::count_if(times_, [&](auto t) { return t > after && t <= until; });
  }

 private:
  const size_t wanted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Clock::time_point> times_;
  std::optional<Completion> done_;
};

Request dense_request(std::vector<int32_t> ids, int max_tokens) {
  Request request;
  request.prompt.ids = std::move(ids);
  request.policy.name = "full";
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = max_tokens;
  request.draft = 0;  // steps of one token are timed
  request.publish = false;
  return request;
}

// `batch` prompts of equal length at once. The one that is prefilled first decodes during the others' prefills; the
// decode rate is taken from the last one's first token until it has `decode` more, while all of them still run.
void measure(Engine& engine, const DenseOptions& o, int tokens, int batch, uint64_t seed, DenseTimes& out) {
  std::vector<std::shared_ptr<TimedSink>> sinks;
  std::vector<RequestId> requests;
  const int ahead = batch * (tokens / o.engine.chunk_tokens + 2);  // decode steps of the first before the last one's
  std::vector<std::vector<int32_t>> prompts;
  for (int b = 0; b < batch; ++b) {
    auto made = value_or_fail(synthetic_prompt(engine, 1, tokens, seed + static_cast<uint64_t>(b)));
    prompts.push_back(std::move(made.pieces[0]));
  }
  const auto begin = Clock::now();
  for (int b = 0; b < batch; ++b) {
    sinks.push_back(std::make_shared<TimedSink>(static_cast<size_t>(o.decode) + 1));
    auto request = dense_request(std::move(prompts[b]), o.decode + 1 + (batch > 1 ? ahead : 0));
    requests.push_back(value_or_fail(engine.submit(std::move(request), sinks.back())));
  }
  Clock::time_point first = begin, last = begin;
  for (auto& sink : sinks) {
    const auto [one, all] = sink->wait_for_tokens();
    first = std::max(first, one);
    last = std::max(last, all);
  }
  for (const RequestId id : requests) engine.cancel(id);
  int64_t decoded = 0;
  for (auto& sink : sinks) {
    out.usage = sink->wait_for_end().usage;
    decoded += sink->tokens_between(first, last);
  }
  const double prefill = std::chrono::duration<double>(first - begin).count();
  out.prefill.push_back(static_cast<double>(tokens) * batch / prefill);
  out.decode.push_back(static_cast<double>(decoded) / std::chrono::duration<double>(last - first).count());
}

struct Bounds {
  std::unique_ptr<RateProbe> probe;  // null: no bounds wanted
  Rates rates;
  std::map<int, double> attention_flops;  // by prompt length
};

Bounds measure_bounds(const DenseOptions& o) {
  Bounds out{std::make_unique<RateProbe>(o.engine), {}, {}};
  out.rates = out.probe->measure();
  for (const int prompt : split_numbers(o.prompts, "--prompt"))
    out.attention_flops[prompt] = out.probe->attention_flops(prompt);
  return out;
}

void add_bounds(nlohmann::ordered_json& row, const Bounds& b, const DenseTimes& times, double kv_bytes, int batch) {
  const Rates& r = b.rates;
  const PromptUsage& u = times.usage;
  const double read = median(times.read);
  const int prompt = row["prompt_tokens"];
  const double attention = b.attention_flops.at(prompt);
  row["gemm_bound_tok_s"] = prompt / r.gemm_bound_s(u);
  row["bandwidth_bound_tok_s"] = batch * read / (r.weight_bytes + batch * kv_bytes);
  row["prefill_of_bound"] = row["prefill_tok_s"].get<double>() / row["gemm_bound_tok_s"].get<double>();
  row["decode_of_bound"] = row["decode_tok_s"].get<double>() / row["bandwidth_bound_tok_s"].get<double>();
  row["int8_peak_gops"] = r.peak.int8_gops;
  row["fma_peak_gflops"] = r.peak.fp32_gflops;
  row["attention_peak_gflops"] = r.attention_peak_flops / 1e9;
  row["read_gb_s"] = read / 1e9;
  row["matmul_gflops"] = r.matmul_flops / 1e9;
  row["attention_gflops"] = attention / 1e9;
  row["linear_of_peak"] = r.matmul_flops / r.linear_peak_flops;
  row["attention_of_peak"] = attention / r.attention_peak_flops;
}

void print_row(const nlohmann::ordered_json& row) {
  auto number = [&](const char* name) { return row.contains(name) ? row[name].get<double>() : 0.0; };
  std::printf("%7d %7d %6d %14.1f %12.1f %6.2f %13.1f %12.1f %6.2f %8.2f %8.2f\n", row["threads"].get<int>(),
              row["prompt_tokens"].get<int>(), row["batch"].get<int>(), number("prefill_tok_s"),
              number("gemm_bound_tok_s"), number("prefill_of_bound"), number("decode_tok_s"),
              number("bandwidth_bound_tok_s"), number("decode_of_bound"), number("linear_of_peak"),
              number("attention_of_peak"));
  std::fflush(stdout);
}

void bench_dense(DenseOptions o, int argc, char** argv) {
  Report report(argc, argv);
  std::printf("%7s %7s %6s %14s %12s %6s %13s %12s %6s %8s %8s\n", "threads", "prompt", "batch", "prefill tok/s",
              "bound", "share", "decode tok/s", "bound", "share", "linear", "attend");
  o.engine.cache = false;
  for (const int threads : split_numbers(o.threads, "--threads")) {
    o.engine.threads = threads;
    const Bounds bounds = o.speed_only ? Bounds{} : measure_bounds(o);
    auto engine = open_or_exit(o.engine);
    const ModelInfo& info = engine->info();
    report.set_model(info);
    for (const int prompt : split_numbers(o.prompts, "--prompt")) {
      for (const int batch : split_numbers(o.batches, "--batch")) {
        DenseTimes times;
        const auto read = [&] {
          if (bounds.probe) times.read.push_back(bounds.probe->read_bytes());
        };
        read();
        for (int round = 0; round < o.rounds; ++round) {
          measure(*engine, o, prompt, batch, static_cast<uint64_t>(round) * 100, times);
          read();
        }
        nlohmann::ordered_json row = {{"threads", threads},
                                      {"prompt_tokens", prompt},
                                      {"batch", batch},
                                      {"prefill_tok_s", median(times.prefill)},
                                      {"decode_tok_s", median(times.decode)},
                                      {"prefill_spread_tok_s", spread(times.prefill)},
                                      {"decode_spread_tok_s", spread(times.decode)},
                                      {"prefill_samples_tok_s", times.prefill},
                                      {"decode_samples_tok_s", times.decode}};
        const double kv = static_cast<double>(info.kv_bytes_per_token) * (prompt + o.decode / 2.0);
        if (!o.speed_only) add_bounds(row, bounds, times, kv, batch);
        print_row(row);
        report.add(std::move(row));
      }
    }
  }
  report.write(o.json);
}

}  // namespace

void add_bench_dense(Program& program, Command bench) {
  auto app = bench.add_subcommand("dense", "prefill and decode speed without reuse, compared with the bounds");
  auto o = std::make_shared<DenseOptions>();
  add_engine_options(app, o->engine, true);
  app.remove_option("--threads");
  app.add_option("--threads,-t", o->threads, "comma-separated").show_default();
  app.add_option("--prompt", o->prompts, "prompt lengths in tokens, comma-separated").show_default();
  app.add_option("--batch", o->batches, "sequences at once, comma-separated").show_default();
  app.add_option("--decode", o->decode, "tokens decoded after each prompt").show_default();
  app.add_option("--rounds", o->rounds, "measurements of each; the median is reported").show_default();
  app.add_flag("--speed-only", o->speed_only, "leave out the bounds (and the seconds that measuring them takes)");
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_dense(*o, program.argc, program.argv); });
}

void add_bench(Program& program) {
  auto bench = program.app.add_subcommand("bench", "measurements, as tables and JSON");
  bench.require_subcommand();
  add_bench_reuse(program, bench);
  add_bench_dialogue(program, bench);
  add_bench_drafts(program, bench);
  add_bench_dense(program, bench);
  add_bench_tiers(program, bench);
  add_bench_startup(program, bench);
  add_bench_workloads(program, bench);
  add_bench_traffic(program, bench);
  add_bench_kv(program, bench);
  add_bench_kernels(program, bench);
  add_bench_segpaged(program, bench);
  add_bench_capacity(program, bench);
  add_bench_constrained(program, bench);
  add_bench_eviction(program, bench);
  add_bench_scale(program, bench);
}

}  // namespace kvilt

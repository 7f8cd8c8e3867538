// apps/generate.cc: kvilt generate: one answer on the terminal, and what the cache did for it.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/flags.h"

namespace kvilt {
namespace {

struct GenerateOptions {
  EngineOptions engine;
  std::string prompt, system, file;
  bool raw = false;
  SamplingParams sampling;
};

void generate(GenerateOptions o) {
  auto engine = open_or_exit(o.engine);
  if (!o.file.empty()) {
    std::ifstream in(o.file);
    if (!in) fail(o.file + ": cannot read");
    o.prompt.assign(std::istreambuf_iterator<char>(in), {});
  } else if (o.prompt.empty() || o.prompt == "-") {
    o.prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  Request request;
  if (o.raw) {
    request.prompt.ids = value_or_fail(engine->tokenize(o.prompt, false, true));
  } else {
    nlohmann::ordered_json chat{{"messages", nlohmann::ordered_json::array()}};
    if (!o.system.empty()) chat["messages"].push_back({{"role", "system"}, {"content", o.system}});
    chat["messages"].push_back({{"role", "user"}, {"content", o.prompt}});
    request.prompt = value_or_fail(engine->chat_prompt(chat));
  }
  if (o.sampling.top_k == -1) o.sampling.top_k = 0;  // two ways to say all tokens, as everywhere
  request.sampling = o.sampling;
  const Answered out = run_request(*engine, std::move(request), [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
  const PromptUsage& u = out.completion.usage;
  const double rest = out.completion.total_s - u.ttft_s;
  std::fprintf(stderr,
               "\n[%d prompt tokens: %d prefix, %d reused (%d recomputed), %d fresh; first token after %.2f s (%.0f "
               "tokens/s); %d tokens, %.1f/s]\n",
               u.prompt, u.prefix, u.reused, u.recomputed, u.fresh, u.ttft_s, u.prompt / u.ttft_s,
               out.completion.completion_tokens, rest > 0 ? (out.completion.completion_tokens - 1) / rest : 0.0);
}

}  // namespace

void add_generate(Program& program) {
  auto app = program.app.add_subcommand("generate", "one answer on the terminal");
  auto o = std::make_shared<GenerateOptions>();
  o->sampling.max_tokens = 256;
  o->sampling.temperature = 0;
  o->engine.draft = kProgramDraft;
  add_engine_options(app, o->engine, false);
  app.add_option("PROMPT", o->prompt, "the question; - or nothing: standard input");
  app.add_option("--file,-f", o->file, "read the prompt from a file");
  app.add_option("--system", o->system, "system message");
  app.add_flag("--raw", o->raw, "continue the text as it is, without the chat template");
  app.add_option("--max-tokens,-n", o->sampling.max_tokens, "length of the answer").show_default();
  app.add_option("--temperature", o->sampling.temperature, "0: the most likely token").show_default();
  app.add_option("--top-p", o->sampling.top_p).show_default();
  app.add_option("--top-k", o->sampling.top_k, "0 or -1: all tokens").show_default();
  app.add_option("--min-p", o->sampling.min_p).show_default();
  app.add_option("--seed", o->sampling.seed, "the same seed gives the same text, a whole number from 0 on");
  app.callback([o] { generate(*o); });
}

}  // namespace kvilt

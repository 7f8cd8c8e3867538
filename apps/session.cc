// apps/session.cc: kvilt session export | import: one process prefills, another answers. The KV of a prompt, for each
// head what it keeps, goes through a file or a pipe (docs/formats/session.md).
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "eval/runner.h"
#include "kvilt/session.h"

namespace kvilt {
namespace {

struct SessionOptions {
  EngineOptions engine;
  std::string prompt, file, method, path, append, json;
  bool raw = false;
  SamplingParams sampling;
};

// Prints the bytes of K and V, what they would be if every head kept everything, and all that moved.
void report(const SessionOptions& o, const ExportedSession& session, double seconds, Program& program) {
  const SessionInfo info = value_or_fail(session_info(session));
  const auto moved = static_cast<int64_t>(session.bytes.size());
  const double less = session.kv > 0 ? static_cast<double>(session.dense) / static_cast<double>(session.kv) : 0;
  std::fprintf(stderr,
               "[session of %d tokens, %d more known; %d of %d heads local; %.3f MB moved, %.3f MB of them keys and "
               "values, dense %.3f MB: %.2f times less; %.2f s]\n",
               info.positions, static_cast<int>(info.tokens.size()) - info.positions, info.local_heads, info.heads,
               static_cast<double>(moved) / 1e6, static_cast<double>(session.kv) / 1e6,
               static_cast<double>(session.dense) / 1e6, less, seconds);
  Report file(program.argc, program.argv);
  file.add({{"tokens", info.positions},
            {"heads", info.heads},
            {"local_heads", info.local_heads},
            {"bytes", moved},
            {"kv_bytes", session.kv},
            {"dense_bytes", session.dense},
            {"seconds", seconds}});
  file.write(o.json);
}

void export_session(SessionOptions o, Program& program) {
  if (o.path.empty()) fail("give --out FILE, or --out - for standard output");
  auto engine = open_or_exit(o.engine);
  if (!o.file.empty()) {
    std::ifstream in(o.file);
    if (!in) fail(o.file + ": cannot read");
    o.prompt.assign(std::istreambuf_iterator<char>(in), {});
  }
  Request request;
  if (o.raw) {
    request.prompt.ids = value_or_fail(engine->tokenize(o.prompt, false, true));
  } else {
    request.prompt = value_or_fail(engine->chat_prompt({{"messages", {{{"role", "user"}, {"content", o.prompt}}}}}));
  }
  if (!o.method.empty()) request.policy = value_or_fail(parse_policy(o.method)).choice;
  request.sampling = o.sampling;
  request.export_session = true;
  const Answered out = run_request(*engine, std::move(request));
  if (!out.completion.session) fail("the request ended without a session");
  const Status written = o.path == "-" ? write_session(*out.completion.session, STDOUT_FILENO)
                                       : save_session(*out.completion.session, o.path);
  if (!written.ok()) fail(written.error());
  report(o, *out.completion.session, out.completion.total_s, program);
}

void import_session(SessionOptions o, Program& program) {
  auto engine = open_or_exit(o.engine);
  Request request;
  auto session = std::make_shared<const ExportedSession>(
      value_or_fail(o.path == "-" ? read_session(STDIN_FILENO) : load_session(o.path)));
  const SessionInfo info = value_or_fail(session_info(*session));
  request.session = session;
  request.prompt.ids = info.tokens;
  if (!o.append.empty()) {
    for (const int32_t id : value_or_fail(engine->tokenize(o.append, false, false))) request.prompt.ids.push_back(id);
  }
  std::vector<int32_t> text(request.prompt.ids.begin() + info.positions, request.prompt.ids.end());
  if (text.empty()) fail("the session has no token to go on with: give --append TEXT");
  request.sampling = o.sampling;
  const Answered out = run_request(*engine, std::move(request));
  text.insert(text.end(), out.ids.begin(), out.ids.end());
  std::printf("%s\n", value_or_fail(engine->detokenize(text)).c_str());
  report(o, *session, out.completion.total_s, program);
}

}  // namespace

void add_session(Program& program) {
  auto session = program.app.add_subcommand("session", "a prompt's KV out of one process and into another");
  session.require_subcommand();
  auto o = std::make_shared<SessionOptions>();
  o->sampling.temperature = 0;
  o->sampling.max_tokens = 1;

  auto out = session.add_subcommand("export", "computes a prompt and writes its KV: for each head what it keeps");
  add_engine_options(out, o->engine, false);
  out.add_option("PROMPT", o->prompt, "the question");
  out.add_option("--file,-f", o->file, "read the prompt from a file");
  out.add_flag("--raw", o->raw, "the text as it is, without the chat template");
  out.add_option("--method", o->method, "policy and parameters, e.g. redknot:map=mine:window=256");
  out.add_option("--max-tokens,-n", o->sampling.max_tokens,
                 "tokens of the answer that are computed here (1: the first)")
      .show_default();
  out.add_option("--out,-o", o->path, "the session goes to this file; -: standard output");
  out.add_option("--json", o->json, "write bytes and times to this file");
  out.callback([o, &program] { export_session(*o, program); });

  auto in = session.add_subcommand("import", "goes on with a session: prints its known tokens and those that follow");
  auto i = std::make_shared<SessionOptions>();
  i->sampling.temperature = 0;
  i->sampling.max_tokens = 256;
  add_engine_options(in, i->engine, false);
  in.add_option("SESSION", i->path, "the file; -: standard input").required();
  in.add_option("--append", i->append, "text to follow the session's, as it is");
  in.add_option("--max-tokens,-n", i->sampling.max_tokens, "length of the answer").show_default();
  in.add_option("--json", i->json, "write bytes and times to this file");
  in.callback([i, &program] { import_session(*i, program); });
}

}  // namespace kvilt

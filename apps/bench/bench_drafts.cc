// apps/bench/bench_drafts.cc: kvilt bench drafts: answers with and without drafts (docs/design/drafts.md), on four kinds
// of text.
//   quote   a passage of several in the prompt, word for word
//   edit    a source file in the prompt, with a function renamed
//   call    a tool call that another, cached conversation has made
//   free    a story; its tokens are drawn at temperature 1 with a seed
// Method: of each prompt everything but the last token is cached, so that prefill is short. The answer is asked without
//         drafts and with them, in turns, and must be the same text. Nothing of it is published, except the first
//         conversation's of `call`. A token takes (total - first token) / (tokens - 1); medians over the rounds, and for
//         a kind the geometric mean of all rounds' own ratios with its interval.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/error.h"
#include "eval/statistics.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

struct DraftsOptions {
  EngineOptions engine;
  std::string kinds = "quote,edit,call,free", passages = "demo/hotpotqa.jsonl", code = "src/base/runs.cc",
              rename = "normalize=merged_runs", prompt_file, json;
  int prompts = 3, tokens = 192, rounds = 3;
};

struct Asked {
  std::string kind;
  Json chat;                      // as OpenAI's chat requests
  std::optional<Json> said_once;  // a conversation that is answered, and cached, before
  bool free = false;
};

std::string read_text(const std::string& path, const char* flag) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  if (!in || !(text << in.rdbuf())) fail(fmt::format("{}: cannot read {}; name another file", flag, path));
  return text.str();
}

Json chat_of(const std::string& system, const std::string& user) {
  return {
      {"messages", Json::array({{{"role", "system"}, {"content", system}}, {{"role", "user"}, {"content", user}}})}};
}

// Prompt n: the passages of line n, and the longest of them that is not the one before.
Asked quote(const DraftsOptions& o, int n) {
  std::istringstream lines(read_text(o.passages, "--passages"));
  std::string line;
  for (int i = 0; i <= n; ++i) {
    if (!std::getline(lines, line)) fail(fmt::format("--prompts: {} has only {} lines", o.passages, i));
  }
  const Json one = Json::parse(line, nullptr, false);
  if (one.is_discarded() || !one.contains("segments") || !one["segments"].is_array())
    fail(fmt::format("--passages: {}: line {} has no list 'segments'", o.passages, n + 1));
  std::string text, longest;
  size_t most = 0;
  for (const Json& segment : one["segments"]) {
    const auto text_of = [&](const char* key) {
      const auto it = segment.is_object() ? segment.find(key) : segment.end();
      if (!segment.is_object() || (it != segment.end() && !it->is_string()))
        fail(fmt::format("--passages: {}: line {}: a segment is an object with the texts 'title' and 'text'",
                         o.passages, n + 1));
      return it == segment.end() ? std::string() : it->get<std::string>();
    };
    const std::string title = text_of("title"), said = text_of("text");
    text += "## " + title + "\n" + said + "\n\n";
    if (said.size() > most) most = said.size(), longest = title;
  }
  return {"quote",
          chat_of("You answer from the passages.", text + "Repeat the passage \"" + longest +
                                                       "\" word for word. Write its whole text and nothing else."),
          {}};
}

Asked edit(const DraftsOptions& o, int n) {
  const size_t at = o.rename.find('=');
  if (at == std::string::npos) fail("--rename must be OLD=NEW");
  const std::string from = o.rename.substr(0, at), to = o.rename.substr(at + 1) + (n > 0 ? std::to_string(n) : "");
  return {"edit",
          chat_of("You edit code. You return whole files and no explanations.",
                  "```cpp\n" + read_text(o.code, "--code") + "```\n\nReturn this file with the function `" + from +
                      "` renamed to `" + to + "`. Change nothing else."),
          {}};
}

// The prompts name the tools in words: small models call tools that are offered as such too seldom. The other
// conversation is about another ticket.
Asked call(const DraftsOptions&, int n) {
  const std::string wanted[] = {
      "Search the folder /srv/projects/inventory/backend/services for the pattern 'def update_stock_level' in files "
      "that match '*_service.py', case sensitive, with 3 lines of context.",
      "Read lines 120 to 260 of /srv/projects/inventory/backend/services/warehouse_allocation_service.py, with line "
      "numbers, as UTF-8.",
      "Search the folder /srv/projects/inventory/frontend/src/components for the pattern 'useInventoryContext' in "
      "files that match '*.tsx', not case sensitive, with 5 lines of context."};
  const std::string system =
      "You are a coding agent. You act by writing one JSON object and nothing else: {\"name\": TOOL, \"arguments\": "
      "{...}}. Tools: open_ticket with number; search_files with path, pattern, glob, case_sensitive, context_lines; "
      "read_file with path, first_line, last_line, line_numbers, encoding.";
  const auto about = [&](int ticket) {
    Json chat = chat_of(system, fmt::format("Open ticket {}.", ticket));
    Json& messages = chat["messages"];
    messages.push_back(
        {{"role", "assistant"},
         {"content", fmt::format(R"({{"name": "open_ticket", "arguments": {{"number": {}}}}})", ticket)}});
    messages.push_back({{"role", "user"}, {"content", wanted[n % 3]}});
    return chat;
  };
  Asked out{"call", about(4711 + n), {}};
  out.said_once = about(2300 + n);
  return out;
}

Asked story(const DraftsOptions&, int n) {
  const char* about[] = {"a lighthouse keeper who collects clocks", "two rivers that meet under a city",
                         "a baker whose bread tells the future",    "a train that stops where nobody lives",
                         "the last letter of an old postman",       "a violin that was lost at sea",
                         "children who find a map of the wind",     "a judge who must decide about a shadow",
                         "the night on which all bells were still"};
  Asked out{"free", chat_of("You are a writer.", fmt::format("Write a long story about {}.", about[n % 9])), {}};
  out.free = true;
  return out;
}

// With max_tokens 0 only its prompt is cached.
Request request_of(const Engine& engine, const DraftsOptions& o, const Json& chat, int tokens) {
  Request request;
  request.prompt = value_or_fail(engine.chat_prompt(chat));
  request.policy.name = "prefix";
  request.sampling.temperature = 0;
  request.sampling.max_tokens = tokens;
  return request;
}

struct Way {
  std::vector<double> token_s;
  int tokens = 0, drafted = 0, accepted = 0;
  std::vector<int32_t> ids;
  double steps() const { return std::max(1, tokens - 1 - accepted); }
};

void ask_once(Engine& engine, Request request, int draft, Way& way) {
  request.draft = draft;
  request.publish = false;
  const Answered out = run_request(engine, std::move(request));
  way.tokens = out.completion.completion_tokens;
  way.drafted = out.usage().drafted;
  way.accepted = out.usage().accepted;
  way.ids = out.ids;
  if (way.tokens < 2) fail("an answer has less than two tokens; choose another --model");
  way.token_s.push_back((out.completion.total_s - out.usage().ttft_s) / (way.tokens - 1));
}

// Without drafts, and with them.
std::pair<Way, Way> compare(Engine& engine, const DraftsOptions& o, const Asked& asked) {
  engine.clear_cache();
  if (asked.said_once) run_request(engine, request_of(engine, o, *asked.said_once, o.tokens));
  Request request = request_of(engine, o, asked.chat, 0);
  run_request(engine, request);
  request.sampling.max_tokens = o.tokens;
  if (asked.free) request.sampling.temperature = 1, request.sampling.seed = 1, request.sampling.ignore_eos = true;
  Way without, with;
  for (int round = 0; round < o.rounds; ++round) {
    const bool first = round % 2 == 0;
    if (first) ask_once(engine, request, 0, without);
    ask_once(engine, request, -1, with);
    if (!first) ask_once(engine, request, 0, without);
    if (with.ids != without.ids) fail(asked.kind + ": drafts changed the text");
  }
  return {without, with};
}

Asked prompt_of(const std::string& kind, const DraftsOptions& o, int n) {
  if (kind == "quote") return quote(o, n);
  if (kind == "edit") return edit(o, n);
  if (kind == "call") return call(o, n);
  if (kind == "free") return story(o, n);
  fail(fmt::format("--kinds: '{}' is not quote, edit, call or free", kind));
}

// A line for each prompt, for other servers (bench/peers/lookup.py): ids, and those of the conversation before it.
void write_prompts(const Engine& engine, const DraftsOptions& o) {
  std::ofstream file(o.prompt_file);
  for (const std::string& kind : split_commas(o.kinds)) {
    for (int n = 0; n < o.prompts; ++n) {
      const Asked asked = prompt_of(kind, o, n);
      Json line{{"kind", kind}, {"prompt", n}, {"free", asked.free}};
      line["ids"] = request_of(engine, o, asked.chat, 0).prompt.ids;
      if (asked.said_once) line["before"] = request_of(engine, o, *asked.said_once, 0).prompt.ids;
      file << line.dump() << "\n";
    }
  }
  if (!file.flush()) fail("--prompt-file: " + o.prompt_file + " cannot be written");
}

void bench_drafts(const DraftsOptions& o, int argc, char** argv) {
  if (o.rounds < 1 || o.prompts < 1 || o.tokens < 2)
    fail("--rounds and --prompts must be at least 1, --tokens at least 2");
  Report report(argc, argv);
  auto engine = open_or_exit(o.engine);
  report.set_model(engine->info());
  if (!o.prompt_file.empty()) return write_prompts(*engine, o);
  std::printf("%-6s %6s %7s %11s %11s %9s %11s %8s %8s\n", "kind", "prompt", "tokens", "ms without", "ms with",
              "speed-up", "tokens/step", "drafted", "accepted");
  Json kinds = Json::object();
  for (const std::string& kind : split_commas(o.kinds)) {
    std::vector<double> speed_ups, per_step, all_without, all_with;
    for (int n = 0; n < o.prompts; ++n) {
      const auto [without, with] = compare(*engine, o, prompt_of(kind, o, n));
      const double plain = median(without.token_s), drafted = median(with.token_s);
      speed_ups.push_back(plain / drafted);
      per_step.push_back((with.tokens - 1) / with.steps());
      all_without.insert(all_without.end(), without.token_s.begin(), without.token_s.end());
      all_with.insert(all_with.end(), with.token_s.begin(), with.token_s.end());
      report.add({{"kind", kind},
                  {"prompt", n},
                  {"tokens", with.tokens},
                  {"token_s_without", plain},
                  {"spread_without_s", spread(without.token_s)},
                  {"token_s_with", drafted},
                  {"spread_with_s", spread(with.token_s)},
                  {"speed_up", speed_ups.back()},
                  {"tokens_per_step", per_step.back()},
                  {"drafted", with.drafted},
                  {"accepted", with.accepted},
                  {"rounds", o.rounds}});
      std::printf("%-6s %6d %7d %11.2f %11.2f %9.2f %11.2f %8d %8d\n", kind.c_str(), n, with.tokens, 1000 * plain,
                  1000 * drafted, speed_ups.back(), per_step.back(), with.drafted, with.accepted);
      std::fflush(stdout);
    }
    const Estimate mean = *paired_ratio(all_without, all_with, 0);
    kinds[kind] = {{"speed_up", mean.mean}, {"low", mean.low}, {"high", mean.high}, {"pairs", mean.n}};
    std::printf("%-6s median %39s %9.2f %11.2f   mean %.3f [%.3f,%.3f]\n", kind.c_str(), "", median(speed_ups),
                median(per_step), mean.mean, mean.low, mean.high);
  }
  report.set("kinds", std::move(kinds));
  report.write(o.json);
}

}  // namespace

void add_bench_drafts(Program& program, Command bench) {
  auto app = bench.add_subcommand("drafts", "answers with and without drafts: quotes, edits, tool calls, free text");
  auto o = std::make_shared<DraftsOptions>();
  o->engine.draft = 16;
  add_engine_options(app, o->engine, true);
  app.add_option("--kinds", o->kinds, "comma-separated: quote, edit, call, free").show_default();
  app.add_option("--passages", o->passages, "RAG cases, JSON lines (docs/formats/json.md)").show_default();
  app.add_option("--code", o->code, "the source file that is edited").show_default();
  app.add_option("--rename", o->rename, "OLD=NEW: the function that gets another name").show_default();
  app.add_option("--prompts", o->prompts, "prompts of each kind").show_default();
  app.add_option("--tokens", o->tokens, "tokens of an answer at most").show_default();
  app.add_option("--rounds", o->rounds, "answers with and without drafts for each prompt, in turns").show_default();
  app.add_option("--prompt-file", o->prompt_file, "write the prompts' ids to this file, and ask nothing");
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_drafts(*o, program.argc, program.argv); });
}

}  // namespace kvilt

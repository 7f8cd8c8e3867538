#include "apps/case_sources.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "eval/case_file.h"
#include "eval/prompt.h"
#include "eval/suite.h"

namespace kvilt {

std::pair<Option, Option> add_case_options(Command app, CaseOptions& o) {
  Option cases = app.add_option("--cases", o.cases,
                                "RAG cases or dialogues, JSON lines; may be given more than once (docs/eval.md)");
  std::string names = "generated questions, NAME[:n=20,length=2048,seed=1,...], may be given more than once:";
  for (const SuiteEntry& entry : suite_table()) names += fmt::format("\n  {}: {}", entry.name, entry.what);
  Option suites = app.add_option("--suite", o.suites, names);
  app.add_option("--prompt", o.form, "chat (the model's template) or plain").show_default();
  app.add_option("--lead", o.lead, "the answer's first words in chat prompts").show_default();
  app.add_option("--limit", o.limit, "lines of each file at most (0: all)");
  return {cases, suites};
}

std::vector<CaseSource> sources_of(Engine& engine, const CaseOptions& o) {
  if (o.form != "chat" && o.form != "plain") fail("--prompt: '" + o.form + "' is not chat or plain");
  std::vector<CaseSource> out;
  for (const std::string& path : o.cases) {
    for (EvalCase& one : value_or_fail(read_case_file(path, {o.form == "chat", o.lead, o.limit}))) {
      out.push_back({one.suite, one.id, [one] { return Result<EvalCase>(one); }});
    }
  }
  for (const std::string& suite : o.suites) {
    for (CaseSource& one : value_or_fail(make_suite(engine, suite))) out.push_back(std::move(one));
  }
  std::set<std::pair<std::string, std::string>> seen;
  for (const CaseSource& source : out) {
    if (!seen.insert({source.suite, source.id}).second)
      fail(fmt::format("suite '{}' has two cases called '{}' (as=NAME renames a suite)", source.suite, source.id));
  }
  return out;
}

ProfileCases profile_cases(Engine& engine, const CaseOptions& o, int profiled) {
  if (o.empty()) fail("give --cases FILE or --suite NAME: questions like those that the model will be asked");
  const std::vector<CaseSource> cases = sources_of(engine, o);
  if (cases.empty()) fail("there are no cases");
  const int n = static_cast<int>(cases.size());
  const int first = std::clamp(profiled > 0 ? profiled : std::min(4, (n + 1) / 2), 1, n);
  ProfileCases out{{cases.begin(), cases.begin() + first}, {cases.begin() + first, cases.end()}};
  out.same = out.rest.empty();
  if (out.same) out.rest = out.first;
  return out;
}

Prompt prompt_to_profile(Engine& engine, const CaseSource& source, int most) {
  Prompt prompt = value_or_fail(case_prompt(engine, value_or_fail(source.make())));
  if (static_cast<int>(prompt.ids.size()) > most) {
    fail(fmt::format("case '{}' of {} has {} tokens: profile shorter ones, or give --max-tokens", source.id,
                     source.suite, prompt.ids.size()));
  }
  return prompt;
}

}  // namespace kvilt

// apps/case_sources.h: which questions a command asks: --cases and --suite with their options, for eval and profile.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/command.h"
#include "eval/case.h"

namespace kvilt {

struct CaseOptions {
  std::vector<std::string> cases, suites;
  std::string form = "chat", lead = "Answer:";
  int limit = 0;
  bool empty() const { return cases.empty() && suites.empty(); }
};

// Adds --cases, --suite, --prompt, --lead and --limit; returns the first two.
std::pair<Option, Option> add_case_options(Command app, CaseOptions& o);

// Exits with 1 on a mistake in them.
std::vector<CaseSource> sources_of(Engine& engine, const CaseOptions& o);

// The cases that a profile is made of, and those that it is tested on: the others, or the same if there are none.
struct ProfileCases {
  std::vector<CaseSource> first, rest;
  bool same = false;
};
// profiled: 0: half of them, at most 4. Exits with 1 where there are no cases.
ProfileCases profile_cases(Engine& engine, const CaseOptions& o, int profiled);
// The case's prompt; exits with 1 if it has more than `most` tokens.
Prompt prompt_to_profile(Engine& engine, const CaseSource& source, int most);

}  // namespace kvilt

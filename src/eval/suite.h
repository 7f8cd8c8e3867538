// eval/suite.h: generated questions: NAME[:n=20,length=2048,seed=1,...]. A seed gives the same text on every machine,
// for any tokenizer.
// Role:  suite_table() has one line per suite; a generator is a function in suite_*.cc, whose comment says what the
//        suite is and which answers are right. The ideas come from RULER (Hsieh et al., arXiv:2404.06654) and
//        docs/eval.md.
// Errors: kInvalidArgument naming suite and parameter; files' errors.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "eval/case.h"
#include "kvilt/engine.h"

namespace kvilt {

// The parameters of one suite, taken by name. A parameter that nobody takes is an error.
class SuiteParams {
 public:
  // "niah:n=20,length=2048"
  static Result<SuiteParams> parse(const std::string& text);
  const std::string& name() const { return name_; }
  // A wrong value gives the fallback; finish() reports the first.
  int number(const std::string& key, int fallback, int low, int high);
  std::string text(const std::string& key, const std::string& fallback);
  std::string needed_text(const std::string& key);
  // What nobody has taken, for another suite, with n: "niah:n=60,length=2048". Errors: as finish(), of those taken.
  Result<std::string> rest_for(const std::string& suite, int n) const;
  Status finish() const;  // an error for the first parameter that is wrong, missing or not taken

 private:
  void complain(const std::string& why);
  std::string name_, wrong_;
  std::map<std::string, std::string> given_;
  std::map<std::string, bool> taken_;
};

Result<std::vector<CaseSource>> make_suite(Engine& engine, const std::string& text);

struct SuiteEntry {
  const char *name, *what;
  Result<std::vector<CaseSource>> (*make)(Engine& engine, SuiteParams& params);
};
const std::vector<SuiteEntry>& suite_table();

// ---- For generators

// A random number generator for case `index` of a suite, the same on every machine.
std::mt19937_64 case_rng(const std::string& suite, int seed, int index);
// Calls `make` once per case 0..n-1; ids are "seed-index".
std::vector<CaseSource> numbered(const std::string& suite, int n, int seed,
                                 std::function<Result<EvalCase>(int index, std::mt19937_64& rng)> make);
// Plain sentences of about `tokens` tokens.
Result<std::vector<std::string>> filler_sentences(const Engine& engine, int tokens, std::mt19937_64& rng);
Result<int> token_count(const Engine& engine, const std::string& text);
// A RAG case: system | pieces | question, with the lead "Answer:".
EvalCase rag_case(const std::string& system, const std::vector<std::string>& pieces, const std::string& question);

// suite_synthetic.cc
Result<std::vector<CaseSource>> make_niah(Engine& engine, SuiteParams& params);
Result<std::vector<CaseSource>> make_tracking(Engine& engine, SuiteParams& params);
Result<std::vector<CaseSource>> make_words(Engine& engine, SuiteParams& params);
// suite_records.cc
Result<std::vector<CaseSource>> make_records(Engine& engine, SuiteParams& params);
// suite_text.cc
Result<std::vector<CaseSource>> make_multihop(Engine& engine, SuiteParams& params);
Result<std::vector<CaseSource>> make_story(Engine& engine, SuiteParams& params);
// suite_key_values.cc
Result<std::vector<CaseSource>> make_key_values(Engine& engine, SuiteParams& params);
// suite_agent.cc
Result<std::vector<CaseSource>> make_agent(Engine& engine, SuiteParams& params);
Result<std::vector<CaseSource>> make_rounds(Engine& engine, SuiteParams& params);
// suite_dialogue.cc
Result<std::vector<CaseSource>> make_dialogue(Engine& engine, SuiteParams& params);
Result<std::vector<CaseSource>> make_mt_bench(Engine& engine, SuiteParams& params);
// suite_debate.cc
Result<std::vector<CaseSource>> make_debate(Engine& engine, SuiteParams& params);
Result<std::vector<CaseSource>> make_group_chat(Engine& engine, SuiteParams& params);

// suite_edited.cc
Result<std::vector<CaseSource>> make_edited(Engine& engine, SuiteParams& params);

}  // namespace kvilt

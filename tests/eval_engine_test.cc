// kvilt eval's module on the probe model: prompts, suites, what the runner measures, and going on after a stop.
#include "eval/runner.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine_harness.h"
#include "eval/aggregate.h"
#include "eval/case_digest.h"
#include "eval/case_file.h"
#include "eval/journal.h"
#include "eval/prompt.h"
#include "eval/suite.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

std::unique_ptr<Engine> open_probe() { return open_for_test({.model = kModel}); }

std::vector<CaseSource> probe_cases(const std::string& file, int limit) {
  CaseFileOptions options;
  options.chat = false;
  options.limit = limit;
  auto cases = read_case_file("tests/data/models/probe-1M/" + file, options);
  EXPECT_TRUE(cases.ok()) << (cases.ok() ? "" : cases.error().message);
  std::vector<CaseSource> out;
  for (const EvalCase& one : *cases) out.push_back({one.suite, one.id, [one] { return Result<EvalCase>(one); }});
  return out;
}

std::vector<PolicySpec> policies(const std::vector<std::string>& labels) {
  std::vector<PolicySpec> out;
  for (const std::string& label : labels) out.push_back(*parse_policy(label));
  return out;
}

struct Outcomes {
  Journal journal;
  std::vector<Quilt> quilts;
  int left = 0;
};

Outcomes run(Engine& engine, const std::vector<CaseSource>& cases, const std::vector<PolicySpec>& of,
             RunOptions options = {}) {
  Outcomes out{*Journal::open("", {}), {}, 0};
  RunEvents events;
  events.done_before = [&](const auto& source, const auto& policy) { return out.journal.has(source, policy); };
  events.on_result = [&](const CaseResult& result) { return out.journal.add(result); };
  events.on_quilt = [&](const Quilt& quilt) -> Status {
    out.quilts.push_back(quilt);
    return {};
  };
  const auto left = run_cases(engine, cases, of, options, events);
  EXPECT_TRUE(left.ok()) << (left.ok() ? "" : left.error().message);
  if (left.ok()) out.left = *left;
  return out;
}

double mean_score(const std::vector<CaseResult>& results, const std::string& policy) {
  double sum = 0;
  int n = 0;
  for (const CaseResult& result : results) {
    if (result.policy == policy) sum += *result.score, ++n;
  }
  EXPECT_GT(n, 0);
  return sum / n;
}

// Quality, as CI watches it: full attention answers, naive reuse does not.
TEST(EvalQuality, VariableTracking) {
  auto engine = open_probe();
  RunOptions options;
  options.warm = Warm::kAlone;
  const auto out = run(*engine, probe_cases("cases-vt-value.jsonl", 40), policies({"full", "naive"}), options);
  EXPECT_GE(mean_score(out.journal.results(), "full"), 0.95);
  EXPECT_LT(mean_score(out.journal.results(), "naive"), 0.1);
}

TEST(Eval, FullIsItsOwnReferenceAndPrefixEqualsItToTheBit) {
  auto engine = open_probe();
  const auto out =
      run(*engine, probe_cases("cases-vt-value.jsonl", 2), policies({"full", "prefix", "sparsex:k=1", "naive"}));
  bool naive_differs = false;
  for (const CaseResult& r : out.journal.results()) {
    EXPECT_EQ(r.prompt, r.prefix + r.reused + r.fresh);
    if (r.policy == "naive") {
      naive_differs = naive_differs || r.kl_answer > 1e-4;  // power: the same measure sees a method that differs
      EXPECT_GT(r.reused, r.prompt / 2);
      EXPECT_LT(r.flops_ratio, 0.3);
      continue;
    }
    EXPECT_LT(r.kl_answer, 1e-6) << r.policy;
    EXPECT_TRUE(r.top1 && *r.same_answer) << r.policy;
    EXPECT_EQ(r.agree, 1);
  }
  EXPECT_TRUE(naive_differs);
}

TEST(Eval, TheOrderOfPoliciesDoesNotMatter) {
  auto engine = open_probe();
  const auto cases = probe_cases("cases-vt-value.jsonl", 3);
  const auto together = run(*engine, cases, policies({"full", "sparsex", "naive", "prefix"}));
  RunOptions other;
  other.seed = 99;
  const auto alone = run(*engine, cases, policies({"full", "naive"}), other);
  for (const CaseResult& a : alone.journal.results()) {
    for (const CaseResult& b : together.journal.results()) {
      if (a.id == b.id && a.policy == b.policy) {
        EXPECT_EQ(a.kl_answer, b.kl_answer) << a.id << a.policy;
        EXPECT_EQ(a.reused, b.reused);
        EXPECT_EQ(a.answer, b.answer);
      }
    }
  }
}

// What a policy stores about documents changes what the next request costs, and nothing else.
TEST(Eval, SettlingChangesCostsOnly) {
  auto engine = open_probe();
  const auto cases = probe_cases("cases-vt-value.jsonl", 2);
  RunOptions settled;
  settled.settle = true;
  const auto first = run(*engine, cases, policies({"samkv:block=8:keep=0.6"}));
  const auto then = run(*engine, cases, policies({"samkv:block=8:keep=0.6"}), settled);
  bool cheaper = false;
  for (const CaseResult& a : first.journal.results()) {
    for (const CaseResult& b : then.journal.results()) {
      if (a.id != b.id || a.policy != b.policy) continue;
      EXPECT_EQ(a.kl_answer, b.kl_answer);
      EXPECT_EQ(a.kept_ratio, b.kept_ratio);
      cheaper = cheaper || b.flops_ratio < 0.8 * a.flops_ratio;
      if (a.policy != "full") {
        EXPECT_LT(a.kept_ratio, 0.9);
      }
    }
  }
  EXPECT_TRUE(cheaper);
}

// What a policy asks before the case is not the case's own beginning, and no other policy finds it.
TEST(Eval, WhatIsAskedBeforeTheCaseServesItsPolicyOnly) {
  auto engine = open_probe();
  const auto cases = probe_cases("cases-vt-value.jsonl", 2);
  const std::string last = "mend:reuse_from=last", declines = "auto:reuse_from=last:r=1";
  const auto prefixes = [&](uint64_t seed, int before, const std::vector<std::string>& labels) {
    RunOptions options;
    options.warm = Warm::kAlone;
    options.before = before;
    options.seed = seed;
    std::map<std::string, std::vector<double>> out;
    const auto ran = run(*engine, cases, policies(labels), options);
    for (const CaseResult& r : ran.journal.results())
      out[r.policy].insert(out[r.policy].end(), {double(r.prefix), double(r.reused), r.kl_answer});
    return out;
  };
  const int head = case_prompt(*engine, *cases[0].make())->marks[0].begin;
  bool changed = false;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    auto alone = prefixes(seed, 2, {"naive", "prefix"});
    auto others = prefixes(seed, 2, {declines, "naive", "prefix", last});
    EXPECT_EQ(others["naive"], alone["naive"]) << "auto left the pieces exactly";
    EXPECT_EQ(others["prefix"], alone["prefix"]);
    EXPECT_LE(others[last][0], head);
    EXPECT_EQ(others[last], prefixes(seed, 2, {last})[last]);
    changed = changed || others[last] != prefixes(seed, 0, {last})[last];
  }
  EXPECT_TRUE(changed) << "power: it finds what it was asked before";
}

// The turns before the last are asked under the policy itself: it goes on from what it left of them, and from nothing
// that another policy did.
TEST(Eval, TurnsGoOnFromTheDialogueSoFar) {
  auto engine = open_probe();
  const auto said = [](int n, uint32_t seed) { return std::vector<CasePart>{{.text = "", .ids = tokens(n, seed)}}; };
  EvalCase dialogue;
  dialogue.suite = "dialogue";
  dialogue.id = "1";
  dialogue.chat = false;
  dialogue.turns = {{"user", said(80, 1)},
                    {"assistant", said(10, 2)},
                    {"user", said(60, 3)},
                    {"assistant", said(12, 4)},
                    {"user", said(70, 5)}};
  const std::vector<CaseSource> cases{{"dialogue", "1", [=] { return Result<EvalCase>(dialogue); }}};
  const std::string sparse = "loopserve:alpha=0.5:rows=8", few = "prefix:decode=snapkv:decode_budget=20";
  std::map<bool, std::map<std::string, CaseResult>> out;
  for (const bool turns : {false, true}) {
    RunOptions options;
    options.turns = turns;
    const auto ran = run(*engine, cases, policies({sparse, "prefix", few}), options);
    for (const CaseResult& r : ran.journal.results()) out[turns][r.policy] = r;
  }
  for (const char* policy : {"full", "prefix"}) {
    EXPECT_EQ(out[true].at(policy).kl_answer, 0) << policy;
    EXPECT_EQ(out[true].at(policy).prefix, policy == std::string("full") ? 0 : 80 + 10 + 60 + 12 - 1);
  }
  // Ratios are to the same turn, dense: of full, which computes the turns before again, above 1.
  EXPECT_EQ(out[true].at("prefix").cells_ratio, 1);
  EXPECT_EQ(out[true].at("prefix").flops_ratio, 1);
  EXPECT_GT(out[true].at("full").flops_ratio, 1.5);
  EXPECT_LT(out[true].at(sparse).cells_ratio, 1);
  // Of the turn's cells. The turn's are T (T + 1) - P (P + 1) of the dialogue's T (T + 1).
  const double turn = 1 - 161.0 * 162 / (232.0 * 233);
  EXPECT_NEAR(out[true].at("full").cells_ratio, 1 / turn, 0.02);
  EXPECT_GT(out[true].at(sparse).cells_ratio, 0.3) << "of the dialogue's they are " << turn << " times as many";
  EXPECT_EQ(out[true].at(sparse).prefix, 80 + 10 + 60 + 12 - 1) << "its chain";
  EXPECT_EQ(out[true].at(few).prefix, 80 + 10 + 60) << "the answer's rows saw few keys: nobody goes on from them";
  EXPECT_LT(out[true].at("prefix").flops, 0.6 * out[true].at("full").flops);
  for (const auto& [policy, result] : out[false]) EXPECT_EQ(result.prefix, 0) << "power: " << policy;
}

// Regime b's states are kept by a request of its own: warmed as prefix, everything is computed in full.
TEST(Eval, WhoWarmsMatters) {
  auto engine = open_probe();
  const auto cases = probe_cases("cases-vt-value.jsonl", 2);
  const std::string label = "crossquery:regime=b:l_cut=4";
  RunOptions as_itself;
  as_itself.warm_as = parse_policy(label)->choice;
  const auto without = run(*engine, cases, policies({label}));
  const auto with = run(*engine, cases, policies({label}), as_itself);
  bool cheaper = false;
  for (const CaseResult& a : without.journal.results()) {
    for (const CaseResult& b : with.journal.results()) {
      if (a.id == b.id && a.policy == b.policy) cheaper = cheaper || b.flops_ratio < 0.95 * a.flops_ratio;
    }
    EXPECT_EQ(a.kl_answer, 0);
  }
  EXPECT_TRUE(cheaper);
}

// full answers and then says that it ends; a policy is fed all of that. Both ran the same rows.
TEST(Eval, ATokensCostIsOfTheRowsThatRan) {
  auto engine = open_probe();
  const auto cases = probe_cases("cases-vt-value.jsonl", 3);
  const auto out = run(*engine, cases, policies({"full", "prefix"}));
  std::map<std::string, std::map<std::string, CaseResult>> by_case;
  for (const CaseResult& result : out.journal.results()) by_case[result.id][result.policy] = result;
  ASSERT_EQ(by_case.size(), 3u);
  for (auto& [id, of] : by_case) {
    const auto said = engine->tokenize(of["full"].answer, false, false);
    ASSERT_TRUE(said.ok());
    ASSERT_LT(said->size(), 20u) << "power: it ended by itself, not at answer_tokens";
    ASSERT_TRUE(of["full"].decode_bytes && of["prefix"].decode_bytes);
    EXPECT_NEAR(*of["full"].decode_bytes / *of["prefix"].decode_bytes, 1, 0.01);
  }
  RunOptions one;
  one.answer_tokens = 1;
  const auto shorter = run(*engine, cases, policies({"full", "prefix"}), one);
  for (const CaseResult& result : shorter.journal.results()) {
    EXPECT_FALSE(result.token_s || result.decode_bytes) << "one token: there is no other";
    EXPECT_FALSE(result_from_json(to_json(result))->token_s);
  }
  EXPECT_TRUE(aggregate_rows(shorter.journal.results(), policies({"full"}))[0]["token_s"].is_null());
}

TEST(Eval, QuiltNamesEveryToken) {
  auto engine = open_probe();
  const auto out = run(*engine, probe_cases("cases-vt-value.jsonl", 1), policies({"full", "sparsex"}));
  ASSERT_EQ(out.quilts.size(), 2u);
  const Quilt& quilt = out.quilts[1];
  EXPECT_EQ(quilt.policy, "sparsex");
  std::map<std::string, int> tokens;
  for (const Patch& patch : quilt.patches) tokens[patch.kind] += patch.tokens;
  const CaseResult& result = out.journal.results().back();
  EXPECT_EQ(tokens["prefix"], result.prefix);
  EXPECT_EQ(tokens["reused"] + tokens["recomputed"], result.reused);
  EXPECT_EQ(tokens["recomputed"], result.recomputed);
  EXPECT_GT(tokens["recomputed"], 0);
  EXPECT_EQ(tokens["fresh"], result.fresh);
  ASSERT_EQ(out.quilts[0].patches.size(), 1u);  // full: one fresh patch
  EXPECT_EQ(out.quilts[0].patches[0].kind, "fresh");
}

TEST(Eval, WarmingPutsPiecesWhereItSays) {
  auto engine = open_probe();
  const EvalCase made = *probe_cases("cases-vt-value.jsonl", 1)[0].make();
  const Prompt prompt = *case_prompt(*engine, made);
  ASSERT_EQ(prompt.marks.size(), 4u);
  EXPECT_GT(prompt.marks[0].begin, 0);
  const auto alone = *warm_requests(*engine, made, prompt, Warm::kAlone, 1);
  const auto system = *warm_requests(*engine, made, prompt, Warm::kSystem, 1);
  const auto context = *warm_requests(*engine, made, prompt, Warm::kContext, 1);
  ASSERT_EQ(alone.size(), 4u);
  ASSERT_EQ(system.size(), 4u);
  ASSERT_EQ(context.size(), 1u);
  EXPECT_EQ(alone[1].prompt.marks[0].begin, 0);
  EXPECT_EQ(system[1].prompt.marks[0].begin, prompt.marks[0].begin);
  EXPECT_EQ(context[0].prompt.marks.size(), 4u);
  EXPECT_FALSE(std::equal(prompt.ids.begin(), prompt.ids.begin() + prompt.marks[0].end, context[0].prompt.ids.begin()));
  RunOptions options;
  const auto of = [&](Warm warm) {
    options.warm = warm;
    const auto out = run(*engine, probe_cases("cases-vt-value.jsonl", 1), policies({"naive"}), options);
    return out.journal.results().back();
  };
  EXPECT_EQ(of(Warm::kAlone).prefix, 0);
  EXPECT_EQ(of(Warm::kSystem).prefix, prompt.marks[0].end);  // the first piece, after its own head
  EXPECT_EQ(of(Warm::kContext).prefix, prompt.marks[0].begin);
  EXPECT_EQ(of(Warm::kPrompt).prefix, static_cast<int>(prompt.ids.size()) - 1);
}

// Behind the prompt's own exact chain a decode method answers as behind a prompt that it computed, for little.
TEST(Eval, AWarmPromptChangesNoAnswer) {
  auto engine = open_probe();
  const auto cases = probe_cases("cases-vt-value.jsonl", 2);
  bool far = false;
  for (const std::string method : {"quest", "snapkv", "h2o", "streamingllm", "loopserve:decode_dense=0"}) {
    const std::string decode = ":decode=" + method + ":decode_budget=24";
    RunOptions options;
    const auto whole = run(*engine, cases, policies({"full" + decode}), options);
    options.warm = Warm::kPrompt;
    const auto warm = run(*engine, cases, policies({"prefix" + decode}), options);
    for (size_t i = 0; i < cases.size(); ++i) {
      const CaseResult &a = whole.journal.results()[2 * i + 1], &b = warm.journal.results()[2 * i + 1];
      EXPECT_EQ(a.kl_answer, b.kl_answer) << method;
      EXPECT_EQ(a.agree, b.agree) << method;
      far = far || a.kl_answer > 0;
      const double most = method == "h2o" ? 1.1 : 0.8;  // whose sums are of all rows
      EXPECT_LT(b.flops, most * a.flops) << method;
    }
  }
  EXPECT_TRUE(far) << "power: some answer is another";
}

TEST(Suites, AreTheSameForASeedAndHoldTheirAnswers) {
  auto engine = open_probe();
  for (const char* text :
       {"niah:n=2,length=256,segments=4,keys=4,queries=2", "niah:n=2,length=256,keys=2,values=2",
        "vt:n=2,length=256,segments=4,hops=2", "vt:n=2,length=256,segments=4,form=listing", "words:n=2,length=256",
        "words:n=2,length=256,form=frequent", "records:n=2,length=300,segments=3",
        "records:n=2,length=300,segments=2,passages=3,path=README.md", "records:n=2,length=300,kind=staff,hops=1",
        "records:n=2,length=300,kind=logs", "records:n=2,length=300,kind=prices", "agent:n=2,tools=5",
        "agent:n=2,tools=5,change=add", "agent:n=2,tools=5,change=remove", "rounds:n=2,turns=4,facts=2"}) {
    const auto sources = make_suite(*engine, text);
    ASSERT_TRUE(sources.ok()) << text << ": " << sources.error().message;
    ASSERT_EQ(sources->size(), 2u) << text;
    const EvalCase a = *(*sources)[0].make(), again = *(*sources)[0].make(), other = *(*sources)[1].make();
    const auto known_text = [](const EvalCase& of) {
      std::string out;
      for (const CaseTurn& turn : of.turns) {
        for (const CasePart& part : turn.parts) out += part.known ? part.text : "";
      }
      return out;
    };
    EXPECT_EQ(known_text(a), known_text(again)) << text;
    EXPECT_NE(known_text(a), known_text(other)) << text;
    ASSERT_FALSE(a.answers.empty());
    for (const std::string& answer : a.answers)
      EXPECT_NE(known_text(a).find(answer), std::string::npos) << text << " " << answer;
    for (const std::string& answer : a.answers)
      EXPECT_EQ(a.turns.back().parts.back().text.find(answer), std::string::npos) << text;
    EXPECT_TRUE(case_prompt(*engine, a).ok());
  }
  EXPECT_NE(make_suite(*engine, "magic").error().message.find("there are niah"), std::string::npos);
}

TEST(Suites, PassagesAreJoinedUntilTheyAreLongEnough) {
  auto engine = open_probe();
  const std::string path = ::testing::TempDir() + "/questions.jsonl";
  nlohmann::json line{{"id", "q"}, {"question", "which ?"}, {"answers", {"kob"}}, {"chunks", nlohmann::json::array()}};
  for (int i = 0; i < 7; ++i)
    line["chunks"].push_back({{"title", "stup"}, {"text", "vig stir clak plem kob ."}, {"is_supporting", i == 0}});
  std::ofstream(path) << line.dump() << "\n";
  const auto pieces = [&](const std::string& more) {
    const auto cases = make_suite(*engine, "multihop:path=" + path + more);
    const EvalCase made = *(*cases)[0].make();
    std::vector<std::string> out;
    for (const CasePart& part : made.turns.back().parts)
      if (part.known) out.push_back(part.text);
    return out;
  };
  const std::vector<std::string> each = pieces("");
  ASSERT_EQ(each.size(), 7u);
  const int tokens = *token_count(*engine, each[0]);
  const auto joined = pieces(",piece=" + std::to_string(2 * tokens));
  ASSERT_EQ(joined.size(), 3u) << "the seventh joins the sixth";
  EXPECT_EQ(joined[0], each[0] + each[1]);
  EXPECT_EQ(joined[2], each[4] + each[5] + each[6]);
  EXPECT_EQ(pieces(",piece=" + std::to_string(100 * tokens)).size(), 1u);
  std::remove(path.c_str());
}

TEST(Suites, OneKeyOfManyIsAskedFor) {
  auto engine = open_probe();
  const std::string path = ::testing::TempDir() + "/pairs.jsonl";
  std::ofstream(path) << R"({"ordered_kv_records": [["a", "1"], ["b", "2"], ["c", "3"], ["d", "4"]], "key": "d", )"
                      << R"("value": "4"})"
                      << "\n"
                      << R"({"ordered_kv_records": [["a", "1"]], "key": "a", "value": "2"})"
                      << "\n";
  const auto pieces = [&](const std::string& more) {
    const auto cases = make_suite(*engine, "key-values:n=1,path=" + path + more);
    EXPECT_TRUE(cases.ok()) << cases.error().message;
    const EvalCase made = *(*cases)[0].make();
    EXPECT_EQ(made.answers, std::vector<std::string>{"4"});
    std::vector<std::string> out;
    for (const CasePart& part : made.turns.back().parts)
      if (part.known) out.push_back(part.text);
    return out;
  };
  EXPECT_EQ(pieces(",segments=2"),
            (std::vector<std::string>{"\"a\": \"1\"\n\"b\": \"2\"\n", "\"c\": \"3\"\n\"d\": \"4\"\n"}));
  EXPECT_EQ(pieces(",keys=2,segments=1"), std::vector<std::string>{"\"a\": \"1\"\n\"d\": \"4\"\n"})
      << "who is asked for stays";
  const auto wrong = make_suite(*engine, "key-values:n=2,path=" + path);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("not among"), std::string::npos) << wrong.error().message;
  EXPECT_NE(wrong.error().message.find("2"), std::string::npos) << "the line";
  std::remove(path.c_str());
}

// The cache holds what the pieces were, the prompt what they are: only discover=near finds most of them.
TEST(Suites, EditedTextIsFoundByWhatIsEqualInIt) {
  auto engine = open_probe();
  const std::string path = ::testing::TempDir() + "/source.py", sets = ::testing::TempDir() + "/edited.jsonl";
  std::ofstream source(path);
  const char* const words[] = {"stup", "vig", "stir", "clak", "plem", "kob", "."};
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) source << words[random() % 7] << (i % 10 == 9 ? "\n" : " ");
  source.close();
  std::ofstream(sets) << R"({"id": "q", "question": "who?", "answers": ["kob"], "chunks": [{"title": "stup", "text": )"
                      << R"("The stup was 1912. The vig is kob 12. It went to plem in 1950. All clak."}]})"
                      << "\n";
  for (const char* form : {"lines,share=0.5", "numbered", "escaped", "indented", "notes"}) {
    const bool notes = form == std::string("notes");
    const std::string file = notes ? "" : ",path=" + path;
    const auto made = make_suite(*engine, std::string("edited:n=1,length=300,segments=1,form=") + form + file);
    ASSERT_TRUE(made.ok()) << made.error().message;
    const EvalCase one = *(*made)[0].make();
    const CasePart& part = one.turns.back().parts[0];
    EXPECT_NE(part.was, part.text) << form;
    EXPECT_FALSE(part.was.empty());
    if (form != std::string("lines,share=0.5")) continue;  // this tokenizer drops spaces and what it does not know
    const auto out = run(*engine, *made, policies({"naive", "naive:discover=near"}));
    std::map<std::string, CaseResult> results;
    for (const CaseResult& result : out.journal.results()) results[result.policy] = result;
    const CaseResult &equal = results.at("naive"), &near = results.at("naive:discover=near");
    EXPECT_EQ(equal.near, 0);
    EXPECT_GT(near.near, 0);
    EXPECT_EQ(result_from_json(to_json(near))->near, near.near);
    EXPECT_GT(near.reused, equal.reused);
  }
  const auto passages = make_suite(*engine, "edited:share=0.3,n=1,path=" + sets);
  ASSERT_TRUE(passages.ok()) << passages.error().message;
  const CasePart part = (*passages)[0].make()->turns.back().parts[0];
  EXPECT_NE(part.text, part.was);
  EXPECT_NE(part.text.find("The vig is kob 12."), std::string::npos) << "the answer's sentence stays";
  EXPECT_NE(make_suite(*engine, "edited:form=other,path=x").error().message.find("not sentences"), std::string::npos);
  EXPECT_NE(make_suite(*engine, "edited:share=2,path=x").error().message.find("share"), std::string::npos);
  EXPECT_FALSE(make_suite(*engine, "edited:form=lines,path=/nowhere/at/all").ok());
  std::remove(path.c_str());
  std::remove(sets.c_str());
}

// Of the case's known parts: units (what `mark` ends), those that were edited, and parts that hold one.
struct EditedUnits {
  int units = 0, edited = 0, parts = 0;
};
EditedUnits edited_units(const EvalCase& one, const std::string& mark) {
  EditedUnits out;
  const auto end_of = [&](const std::string& text, size_t from) {
    const size_t at = text.find(mark, from);
    return at == std::string::npos ? text.size() : at + mark.size();
  };
  for (const CasePart& part : one.turns.back().parts) {
    if (!part.known) continue;
    out.parts += !part.was.empty();
    const std::string& was = part.was.empty() ? part.text : part.was;
    for (size_t from = 0, now = 0; from < was.size(); ++out.units) {  // an edit leaves the marks
      const size_t to = end_of(was, from), then = end_of(part.text, now);
      out.edited += was.substr(from, to - from) != part.text.substr(now, then - now);
      from = to;
      now = then;
    }
  }
  return out;
}

// Passages are short: one sentence of each would be a fifth of them, whatever the share says.
TEST(Suites, TheShareThatIsEditedIsOfTheWholeCase) {
  auto engine = open_probe();
  const std::string path = ::testing::TempDir() + "/share.jsonl", as = "length=100000,path=" + path;
  nlohmann::json question = {{"id", "q"}, {"question", "who?"}, {"answers", {"nobody"}}};
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(100 + i);
    const std::string text =
        "The stup is " + n + ". A vig is " + n + ". One stir is " + n + ". No clak. Then kobs " + n;
    question["chunks"].push_back({{"title", "stup"}, {"text", text}});
  }
  std::ofstream(path) << question << "\n";
  for (const auto& [share, wanted] : {std::pair{"0.001", 1}, {"0.01", 1}, {"0.05", 5}, {"0.2", 20}, {"1", 100}}) {
    const auto made = make_suite(*engine, "edited:n=1,share=" + std::string(share) + "," + as);
    ASSERT_TRUE(made.ok()) << made.error().message;
    const EditedUnits of = edited_units(*(*made)[0].make(), ". ");
    EXPECT_EQ(of.units, 100);
    EXPECT_EQ(of.edited, wanted) << share;
    EXPECT_LE(of.parts, wanted) << "a passage that was not edited is cached as it is";
    EXPECT_GE(of.parts, std::min(wanted, 20) / 2) << "power: spread over the passages";
  }
  const auto text_of = [&](const std::string& seed) {
    const auto made = make_suite(*engine, "edited:n=1,share=0.05," + as + ",seed=" + seed);
    const EvalCase one = *(*made)[0].make();
    std::string text;
    for (const CasePart& part : one.turns.back().parts) text += part.text;
    return text;
  };
  EXPECT_EQ(text_of("1"), text_of("1"));
  EXPECT_NE(text_of("1"), text_of("2")) << "power: the seed chooses";
  std::remove(path.c_str());
}

TEST(Suites, TheShareOfLinesIsOfAllFiles) {
  auto engine = open_probe();
  const std::string path = ::testing::TempDir() + "/share.py";
  std::ofstream lines(path);
  for (int i = 0; i < 100; ++i) lines << "stup vig stir " << 100 + i << "\n";
  lines.close();
  const auto made = make_suite(*engine, "edited:form=lines,share=0.01,n=4,segments=4,length=400,path=" + path);
  ASSERT_TRUE(made.ok()) << made.error().message;
  for (const CaseSource& one : *made) {
    const EditedUnits of = edited_units(*one.make(), "\n");
    EXPECT_GT(of.units, 40);
    EXPECT_EQ(of.edited, std::max(1, static_cast<int>(0.01 * of.units + 0.5)));
    EXPECT_LT(of.edited, 4) << "power: one of each file would be more";
  }
  std::remove(path.c_str());
}

TEST(Suites, StoriesAndDebatesAreTokensAsGiven) {
  auto engine = open_probe();
  const std::string path = ::testing::TempDir() + "/novel.txt";
  std::ofstream novel(path);
  for (int i = 0; i < 4000; ++i) novel << "stup vig stir clak plem kob . ";
  novel.close();
  const auto story = make_suite(*engine, "story:path=" + path + ",n=1,length=250,truth=8");
  ASSERT_TRUE(story.ok()) << story.error().message;
  const EvalCase made = *(*story)[0].make();
  EXPECT_EQ(made.truth.size(), 8u);
  const Prompt prompt = *case_prompt(*engine, made);
  ASSERT_EQ(prompt.marks.size(), 3u);
  EXPECT_EQ(prompt.marks[0].end - prompt.marks[0].begin, 100);
  EXPECT_EQ(prompt.marks[2].end - prompt.marks[2].begin, 50);
  const auto out = run(*engine, *story, policies({"naive"}));
  EXPECT_FALSE(out.journal.results()[0].same_answer.has_value());
  EXPECT_FALSE(out.journal.results()[0].score.has_value());
  const std::string problems = ::testing::TempDir() + "/problems.jsonl";
  std::ofstream(problems) << "{\"question\": \"stup vig 12 + 30 ?\", \"answer\": \"it is\\n#### 42\"}\n";
  const auto debate = make_suite(*engine, "debate:path=" + problems + ",n=1,tokens=40");
  ASSERT_TRUE(debate.ok()) << debate.error().message;
  ASSERT_EQ(debate->size(), 3u);
  const EvalCase second = *(*debate)[2].make();
  EXPECT_EQ(second.answers, std::vector<std::string>{"42"});
  EXPECT_EQ(second.history.size(), 3u);
  EXPECT_EQ(case_prompt(*engine, second)->marks.size(), 3u);
  std::remove(path.c_str());
  std::remove(problems.c_str());
}

TEST(Journal, GoesOnWhereItStoppedAndRefusesAnotherSetup) {
  auto engine = open_probe();
  const std::string path = ::testing::TempDir() + "/eval.journal";
  std::remove(path.c_str());
  const JournalSetup setup{{{"warm", "system"}}, {}};
  const auto cases = probe_cases("cases-niah.jsonl", 3);
  const auto of = policies({"full", "naive"});
  int measured = 0;
  const auto go = [&](int stop_after) {
    auto journal = Journal::open(path, setup);
    EXPECT_TRUE(journal.ok()) << (journal.ok() ? "" : journal.error().message);
    RunEvents events;
    events.done_before = [&](const auto& source, const auto& policy) { return journal->has(source, policy); };
    events.on_result = [&](const CaseResult& result) -> Status {
      if (measured == stop_after) return Error{Code::kCancelled, "stopped"};
      ++measured;
      return journal->add(result);
    };
    const auto left = run_cases(*engine, cases, of, {}, events);
    return std::make_pair(left.ok(), journal->results());
  };
  EXPECT_FALSE(go(3).first);
  std::ofstream(path, std::ios::app) << "{\"suite\": \"cut off";  // a crash while a line was written
  const auto [ended, results] = go(-1);
  EXPECT_TRUE(ended);
  EXPECT_EQ(measured, 6);
  EXPECT_EQ(results.size(), 6u);
  measured = 0;
  EXPECT_EQ(go(-1).second.size(), 6u);
  EXPECT_EQ(measured, 0);
  const auto other = Journal::open(path, {{{"warm", "alone"}}, {}});
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("warm"), std::string::npos);
  std::remove(path.c_str());
}

// A setting that one side lacks differs too, unless it held then, or nobody knows what did.
TEST(Journal, ComparesTheSettingsOfBothSides) {
  const std::string path = ::testing::TempDir() + "/settings.journal";
  using Json = nlohmann::ordered_json;
  const auto refused = [&](const Json& before, const Json& now, const Json& absent) -> std::string {
    std::remove(path.c_str());
    EXPECT_TRUE(Journal::open(path, {before, {}}).ok());
    const auto again = Journal::open(path, {now, absent});
    return again.ok() ? "" : again.error().message;
  };
  EXPECT_NE(refused({{"warm", "system"}, {"season", 4}}, {{"warm", "system"}}, {}).find("season"), std::string::npos);
  EXPECT_NE(refused({{"warm", "system"}}, {{"warm", "system"}, {"season", 4}}, {}).find("season"), std::string::npos);
  const Json absent{{"season", 0}, {"maps", nullptr}};
  EXPECT_EQ(refused({{"season", 4}}, {{"season", 4}, {"maps", "a"}}, absent), "");
  EXPECT_EQ(refused({{"warm", "x"}}, {{"warm", "x"}, {"season", 0}, {"maps", "a"}}, absent), "");
  EXPECT_NE(refused({{"warm", "x"}}, {{"warm", "x"}, {"season", 4}}, absent).find("0, this run has 4"),
            std::string::npos);
  EXPECT_NE(refused({{"maps", "b"}}, {{"season", 0}, {"maps", "a"}}, absent).find("maps"), std::string::npos);
  std::remove(path.c_str());
}

// Names and seeds are equal, texts are not: each text is measured once, and a line without a digest is the case it names.
TEST(Journal, ACaseOfTheSameNameThatAsksSomethingElseIsMeasured) {
  auto engine = open_probe();
  const std::string path = ::testing::TempDir() + "/digests.journal";
  std::remove(path.c_str());
  const auto go = [&](const char* suite) {
    auto sources = *make_suite(*engine, suite);
    EXPECT_TRUE(digest_cases(sources).ok());
    auto journal = *Journal::open(path, {});
    std::vector<int> prompts;
    RunEvents events;
    events.done_before = [&](const auto& source, const auto& policy) { return journal.has(source, policy); };
    events.on_result = [&](const CaseResult& result) {
      prompts.push_back(result.prompt);
      return journal.add(result);
    };
    RunOptions options;
    options.answer_tokens = 1;
    EXPECT_TRUE(run_cases(*engine, sources, policies({"naive"}), options, events).ok());
    return prompts;
  };
  const auto shorter = go("niah:n=1,length=64,segments=2"), longer = go("niah:n=1,length=128,segments=2");
  ASSERT_EQ(shorter.size(), 2u);
  ASSERT_EQ(longer.size(), 2u) << "full and naive, for another text";
  EXPECT_LT(shorter[0], longer[0]);
  EXPECT_EQ(go("niah:n=1,length=64,segments=2").size(), 0u) << "both are there";
  EXPECT_EQ(go("niah:n=2,length=128,segments=2").size(), 2u) << "more cases are no others";
  std::ifstream written(path);
  std::string old, line;
  while (std::getline(written, line)) {  // as it was before there were digests
    auto json = nlohmann::ordered_json::parse(line);
    json.erase("case_digest");
    old += json.dump() + "\n";
  }
  std::ofstream(path) << old;
  EXPECT_EQ(go("niah:n=2,length=128,segments=2").size(), 0u);
  std::remove(path.c_str());
}

TEST(Journal, ADigestTellsAllThatIsAsked) {
  auto engine = open_probe();
  const EvalCase made = *probe_cases("cases-vt-value.jsonl", 1)[0].make();
  std::set<std::string> seen{case_digest(made)};
  EXPECT_EQ(case_digest(made), *seen.begin());
  const auto differs = [&](auto change) {
    EvalCase other = made;
    change(other);
    EXPECT_TRUE(seen.insert(case_digest(other)).second) << seen.size();
  };
  differs([](EvalCase& c) { c.turns[0].parts[0].text += "x"; });
  differs([](EvalCase& c) { c.turns[0].parts[0].known ^= true; });
  differs([](EvalCase& c) { c.turns[0].parts[0].was = "x"; });
  differs([](EvalCase& c) { c.turns[0].parts[0].ids = {1}; });
  differs([](EvalCase& c) { c.answers.push_back("x"); });
  differs([](EvalCase& c) { c.truth = {1}; });
  differs([](EvalCase& c) { c.begun = {1}; });
  differs([](EvalCase& c) { c.metric = Metric::kExact; });
  differs([](EvalCase& c) { c.history.push_back({Prompt{}, {1}}); });
  EvalCase renamed = made;
  renamed.id = "other";
  EXPECT_EQ(case_digest(renamed), case_digest(made)) << "the name is told beside it";
  const auto of = [&](const char* suite) {
    auto sources = *make_suite(*engine, suite);
    for (CaseSource& source : sources) source.make = nullptr;  // it would run the model
    EXPECT_TRUE(digest_cases(sources).ok());
    return sources[0].digest;
  };
  EXPECT_NE(of("group-chat:n=1"), of("group-chat:n=1,tokens=8"));
  EXPECT_EQ(of("group-chat:n=1"), of("group-chat:n=2"));
}

CaseResult result_of(const std::string& suite, const std::string& id, const std::string& policy, double kl) {
  CaseResult out;
  out.suite = suite, out.id = id, out.policy = policy, out.kl_answer = kl, out.score = kl < 0.5 ? 1 : 0,
  out.same_answer = kl < 0.1;
  return out;
}

TEST(Aggregate, RowsAndPairs) {
  const std::vector<CaseResult> results{result_of("a", "1", "naive", 0.199), result_of("a", "2", "naive", 0.599),
                                        result_of("b", "1", "naive", 0.199), result_of("a", "1", "x", 0.099),
                                        result_of("b", "1", "x", 0.049)};
  const auto of = policies({"naive", "x"});
  const auto rows = aggregate_rows(results, of);
  ASSERT_EQ(rows.size(), 6u);  // a, b, all
  EXPECT_EQ(rows[0]["suite"], "a");
  EXPECT_NEAR(rows[0]["kl_answer"].get<double>(), 0.399, 1e-9);
  EXPECT_NEAR(rows[0]["score"].get<double>(), 0.5, 1e-9);
  EXPECT_EQ(rows[4]["suite"], "all");
  EXPECT_EQ(rows[4]["n"], 3);
  const auto pairs = pair_rows(results, {{"x", "naive"}});
  ASSERT_EQ(pairs.size(), 3u);
  EXPECT_EQ(pairs[0]["n"], 1);  // only the cases that both have
  EXPECT_NEAR(pairs[0]["kl_ratio"].get<double>(), 0.5, 1e-9);
  EXPECT_NEAR(pairs[2]["kl_ratio"].get<double>(), std::sqrt(0.5 * 0.25), 1e-9);
}

TEST(Journal, ResultsSurviveTheFile) {
  CaseResult r = result_of("s", "i", "p", 0.25);
  r.answer = "a \"quoted\"\nline";
  r.same_answer.reset();
  r.reused = 7;
  r.digest = "0123";
  r.evicted_bytes = 9;
  const auto back = result_from_json(nlohmann::ordered_json::parse(to_json(r).dump()));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(to_json(*back), to_json(r));
  EXPECT_FALSE(result_from_json({{"suite", "s"}}).ok());
}

}  // namespace
}  // namespace kvilt

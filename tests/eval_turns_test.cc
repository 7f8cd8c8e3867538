// kvilt eval's runner on dialogues, turn by turn, and what it says of what was not measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "engine_harness.h"
#include "eval/aggregate.h"
#include "eval/case_file.h"
#include "eval/journal.h"
#include "eval/runner.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

class EvalTurns : public testing::Test {
 protected:
  struct Told {
    Result<int> left = 0;
    std::vector<CaseResult> results;
    std::vector<Quilt> quilts;
    const CaseResult& of(const std::string& id, const std::string& policy) const {
      const auto at =
          std::ranges::find_if(results, [&](const CaseResult& r) { return r.id == id && r.policy == policy; });
      EXPECT_NE(at, results.end()) << id << " " << policy;
      return at == results.end() ? results.at(0) : *at;
    }
  };
  static std::vector<PolicySpec> specs(const std::vector<std::string>& labels) {
    std::vector<PolicySpec> out;
    for (const std::string& label : labels) out.push_back(*parse_policy(label));
    return out;
  }
  Told measured(const std::vector<CaseSource>& of, const std::vector<std::string>& labels, RunOptions options) const {
    Told out;
    RunEvents events;
    events.on_result = [&](const CaseResult& result) -> Status {
      out.results.push_back(result);
      return {};
    };
    events.on_quilt = [&](const Quilt& quilt) -> Status {
      out.quilts.push_back(quilt);
      return {};
    };
    out.left = run_cases(*engine, of, specs(labels), options, events);
    return out;
  }
  Told ask_by_turns(const std::vector<CaseSource>& of, const std::vector<std::string>& labels) const {
    RunOptions options;
    options.turns = true;
    options.answer_tokens = 4;
    return measured(of, labels, options);
  }
  static std::vector<CaseSource> sources(const std::string& lines) {
    const auto read = parse_cases(lines, "told.jsonl", {.chat = false, .lead = "", .limit = 0});
    EXPECT_TRUE(read.ok()) << (read.ok() ? "" : read.error().message);
    std::vector<CaseSource> out;
    for (const EvalCase& one : *read) out.push_back({one.suite, one.id, [one] { return Result<EvalCase>(one); }});
    return out;
  }
  static std::string text(int words) {
    static const char* const kWords[] = {"stup", "vig", "stir", "clak", "plem", "kob", "."};
    std::string out;
    for (int i = 0; i < words; ++i) out += std::string(i ? " " : "") + kWords[(i * i + i / 7) % 7];
    return out;
  }
  // Two cases: its turns.
  static std::string dialogue() {
    return R"({"id": "d", "turns": [{"text": ")" + text(150) + R"(", "question": "vig ?", "answers": ["kob"]}, )" +
           R"({"question": "stir clak plem vig ?"}]})" + "\n";
  }
  static std::string single(const std::string& id) {
    return R"({"id": ")" + id + R"(", "segments": [{"text": ")" + text(90) + R"("}], "question": "kob ?"})" + "\n";
  }

  const std::unique_ptr<Engine> engine = open_for_test({.model = kModel});
};

// The first turn has none before it: its cache is empty, and what is asked behind it does not come to it.
TEST_F(EvalTurns, AFileOfDialoguesHasACaseForEachTurn) {
  const std::string few = "prefix:decode=snapkv:decode_budget=20";
  const Told told = ask_by_turns(sources(single("alone") + dialogue()), {"prefix", few});
  ASSERT_TRUE(told.left.ok()) << told.left.error().message;
  EXPECT_EQ(told.results.size(), 3u * 3u);
  for (const char* id : {"alone", "d.1"}) {
    SCOPED_TRACE(id);
    for (const std::string& policy : {std::string("full"), std::string("prefix"), few})
      EXPECT_EQ(told.of(id, policy).prefix, 0) << policy;
    EXPECT_NEAR(told.of(id, "full").flops_ratio, 1, 1e-3) << "it is the dense turn";
  }
  EXPECT_GE(told.of("d.2", "prefix").prefix, 150) << "the turn before";
  EXPECT_GE(told.of("d.2", few).prefix, 150);
  EXPECT_EQ(told.of("d.2", "full").prefix, 0);
  EXPECT_GT(told.of("d.2", "full").flops_ratio, 2);
}

TEST_F(EvalTurns, ARunWithoutADialogueIsRefusedBeforeAnything) {
  const Told none = ask_by_turns(sources(single("a") + single("b")), {"prefix"});
  ASSERT_FALSE(none.left.ok());
  EXPECT_EQ(none.left.error().code, Code::kInvalidArgument);
  EXPECT_NE(none.left.error().message.find("--turns: none of the 2 cases has an earlier turn"), std::string::npos)
      << none.left.error().message;
  EXPECT_TRUE(none.results.empty());
  EXPECT_TRUE(ask_by_turns({}, {"prefix"}).left.ok()) << "nothing is asked";
}

// What the model writes is made once, when its turn comes; so only the end tells that there was no dialogue.
TEST_F(EvalTurns, CasesThatTheModelWritesAreNotMadeToBeLookedAt) {
  int made = 0;
  const auto written = [&](std::vector<CaseSource> of) {
    made = 0;
    for (CaseSource& source : of) {
      source.made_of = "the model's words";
      source.make = [&made, make = source.make] { return ++made, make(); };
    }
    return of;
  };
  const Told singles = ask_by_turns(written(sources(single("a") + single("b"))), {"prefix"});
  EXPECT_EQ(made, 2);
  ASSERT_FALSE(singles.left.ok());
  EXPECT_NE(singles.left.error().message.find("none of the 2 cases"), std::string::npos);
  EXPECT_TRUE(ask_by_turns(written(sources(single("a") + dialogue())), {"prefix"}).left.ok());
  EXPECT_EQ(made, 3);
}

// The dense turn is measured right behind full: each is painted as it ran.
TEST_F(EvalTurns, FullAndPrefixHaveQuiltsOfTheirOwn) {
  const std::vector<CaseSource> turns = sources(dialogue());
  const std::string sparse = "loopserve:alpha=0.5:rows=8";
  const Told told = ask_by_turns({turns.at(1)}, {sparse, "prefix"});
  ASSERT_TRUE(told.left.ok()) << told.left.error().message;
  std::map<std::string, std::map<std::string, int>> patches;
  for (const Quilt& quilt : told.quilts) {
    EXPECT_FALSE(patches.contains(quilt.policy)) << quilt.policy;
    for (const Patch& patch : quilt.patches) patches[quilt.policy][patch.kind] += patch.tokens;
  }
  ASSERT_EQ(patches.size(), 3u);
  const CaseResult &full = told.of("d.2", "full"), &prefix = told.of("d.2", "prefix");
  EXPECT_EQ(patches.at("full"), (std::map<std::string, int>{{"fresh", full.prompt}}));
  EXPECT_GE(prefix.prefix, 150);
  EXPECT_EQ(patches.at("prefix"), (std::map<std::string, int>{{"prefix", prefix.prefix}, {"fresh", prefix.fresh}}));
  EXPECT_EQ(patches.at(sparse).at("prefix"), told.of("d.2", sparse).prefix);
  const Told others = ask_by_turns({turns.at(1)}, {sparse});
  EXPECT_EQ(others.quilts.size(), 2u) << "prefix was not asked for";
}

// One token: no row of the answer ran, so nothing is by nothing.
TEST_F(EvalTurns, AnAnswerOfOneTokenHasNoCellsOfItsOwn) {
  for (const bool turns : {false, true}) {
    SCOPED_TRACE(turns);
    for (const int tokens : {1, 4}) {
      bool some = false;
      RunOptions options;
      options.turns = turns;
      options.answer_tokens = tokens;
      const Told told = measured({sources(dialogue()).at(1)}, {"prefix"}, options);
      ASSERT_EQ(told.results.size(), 2u);
      for (const CaseResult& result : told.results) {
        ASSERT_EQ(result.decode_cells_ratio.has_value(), result.token_s.has_value()) << result.policy;
        some = some || result.decode_cells_ratio;
        EXPECT_EQ(result_from_json(to_json(result))->decode_cells_ratio, result.decode_cells_ratio);
      }
      EXPECT_EQ(some, tokens > 1);
      const auto row = aggregate_rows(told.results, specs({"prefix"})).at(0);
      EXPECT_EQ(row["decode_cells_ratio"].is_null(), row["token_s"].is_null());
    }
  }
}

TEST_F(EvalTurns, WhetherMassCanBeWeighedIsAskedBeforeAnythingRuns) {
  const std::string evicts = "prefix:decode=snapkv:decode_evict=yes";
  EXPECT_TRUE(check_held_mass(*engine, specs({"full", "prefix", "prefix:decode=snapkv", "naive", "mend"})).ok());
  EXPECT_TRUE(engine->stats().cached_tokens == 0) << "it leaves nothing";
  const Status refused = check_held_mass(*engine, specs({"full", evicts}));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message.find("policy '" + evicts + "': held_mass: "), 0u) << refused.error().message;
}

}  // namespace
}  // namespace kvilt

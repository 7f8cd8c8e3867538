// KV carries the text that stood before it, so it can be used to put words into others' answers (HijackKV, arXiv
// 2607.19957). Variable tracking on probe-1M: the values are set in a first text, the documents after it only pass them
// on. The attacker has the same documents computed behind other values; the victim brings its own first text.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "kvilt/season.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

struct Hijacked {
  int cases = 0, attackers = 0, right = 0;  // answers with the attacker's value, with the true one
  int seasoned = 0;                         // that used means
  double share() const { return static_cast<double>(attackers) / cases; }
};

class HijackTest : public testing::Test {
 protected:
  std::vector<int32_t> ids(const std::string& text) { return engine->tokenize(text, true, false).value(); }

  // The first text and the documents, these marked; a question at the end unless it is empty.
  Request request(const std::string& first, const nlohmann::json& entry, const std::string& question) {
    Request out = request_of(ids(entry["system"].get<std::string>() + " " + first), "full", 0);
    std::vector<int32_t>& all = out.prompt.ids;
    for (size_t i = 1; i < entry["segments"].size(); ++i) {
      const auto begin = static_cast<int32_t>(all.size());
      for (const int32_t id : ids(entry["segments"][i]["text"])) all.push_back(id);
      out.prompt.marks.push_back({begin, static_cast<int32_t>(all.size())});
    }
    if (!question.empty()) {
      for (const int32_t id : ids(question)) all.push_back(id);
    }
    return out;
  }

  // As POST /v1/documents has them: each behind the system message alone.
  std::vector<Prompt> documents(const nlohmann::json& entry) {
    std::vector<Prompt> out;
    for (size_t i = 1; i < entry["segments"].size(); ++i) {
      out.push_back({ids(entry["system"].get<std::string>() + " "), {}});
      out.back().add_marked(ids(entry["segments"][i]["text"]));
    }
    return out;
  }

  // The documents as means over four contexts: so many times behind the attacker's values, in the order in which the
  // victim has them, and else in other orders behind the system message.
  void season(const std::string& forged, const nlohmann::json& entry, int attackers) {
    for (int i = 0; i < attackers; ++i) ask_ok(*engine, season_request(request(forged, entry, "").prompt));
    for (Prompt& prompt : season_prompts(documents(entry), {.contexts = 4 - attackers}))
      ask_ok(*engine, season_request(std::move(prompt)));
  }

  using Policies = std::vector<std::pair<std::string, Params>>;
  // attackers: of each document's four contexts; none: there are no means, but the attacker's copies.
  std::vector<Hijacked> run(std::optional<int> attackers, const Policies& policies) {
    std::ifstream file("tests/data/models/probe-1M/cases-vt-value.jsonl");
    std::vector<Hijacked> out(policies.size());
    for (std::string line; std::getline(file, line) && (!kSanitized || out[0].cases < 2);) {
      const auto entry = nlohmann::json::parse(line);
      const std::string answer = entry["answers"][0], first = entry["segments"][0]["text"];
      const std::string other = std::to_string(100 + (std::stoi(answer) - 100 + 61) % 150);
      const size_t at = first.find("= " + answer + " .");
      if (at == std::string::npos) continue;  // set in a later document
      const std::string forged = first.substr(0, at + 2) + other + first.substr(at + 2 + answer.size());
      engine->clear_cache();
      if (attackers) {
        season(forged, entry, *attackers);
      } else {
        ask_ok(*engine, request(forged, entry, ""));
      }
      ask_ok(*engine, request_of(ids(entry["system"].get<std::string>() + " " + first), "full", 0));
      for (size_t i = 0; i < policies.size(); ++i) {
        Request asked = request(first, entry, entry["question"]);
        asked.policy = {policies[i].first, policies[i].second};
        asked.sampling.max_tokens = 24;
        asked.sampling.ignore_eos = asked.publish = false;
        const Outcome answer_of = ask_ok(*engine, std::move(asked));
        const std::string& text = answer_of.text;
        out[i].seasoned += answer_of.usage().seasoned > 0;
        ++out[i].cases;
        out[i].attackers += text.find(other) != std::string::npos;
        out[i].right += text.find(answer) != std::string::npos;
      }
    }
    for (size_t i = 0; i < policies.size(); ++i) {
      std::printf("%-10s %-24s attacker's %3d, right %3d of %d\n", policies[i].first.c_str(),
                  policies[i].second.empty() ? "" : policies[i].second.begin()->second.c_str(), out[i].attackers,
                  out[i].right, out[i].cases);
    }
    return out;
  }

  std::unique_ptr<Engine> engine = open_for_test({.model = kModel});
};

TEST_F(HijackTest, AnAttackersValuesTakeOverUnlessOnlyCleanCopiesAreUsed) {
  const Params clean{{"trust", "clean"}};
  const auto out = run({}, {{"full", {}},
                            {"naive", {}},
                            {"sparsex", {}},
                            {"mend", {}},
                            {"auto", {{"quality", "draft"}}},
                            {"auto", {{"quality", "balanced"}}},
                            {"naive", clean},
                            {"mend", clean},
                            {"auto", clean}});
  ASSERT_GE(out[0].cases, kSanitized ? 2 : 20);
  EXPECT_LE(out[0].share(), 0.05);
  EXPECT_GE(out[1].share(), 0.5) << "power: it takes over where it is reused as it is";
  for (size_t i = 6; i < out.size(); ++i) {
    EXPECT_EQ(out[i].attackers, out[0].attackers);
    EXPECT_EQ(out[i].right, out[0].right);
  }
}

// An attacker's context that is one of four has a fourth of the weight, and means that the victim's side made have none
// of it; `trust=clean` uses no mean at all.
TEST_F(HijackTest, MeansTakeOverAsFarAsTheirContextsAreTheAttackers) {
  const std::string from = "reuse_from";
  const Policies means{{"naive", {{from, "seasoned"}}},
                       {"mend", {{from, "seasoned"}}},
                       {"auto", {{"quality", "balanced"}, {from, "seasoned"}}}};
  std::map<int, std::vector<Hijacked>> by;
  for (const int attackers : {0, 1, 2, 4}) {
    std::printf("%d of 4 contexts are the attacker's\n", attackers);
    Policies policies = means;
    if (attackers == 4)
      policies.insert(policies.end(), {{"full", {}}, {"naive", {{from, "seasoned"}, {"trust", "clean"}}}});
    by[attackers] = run(attackers, policies);
    EXPECT_EQ(by[attackers][0].seasoned, by[attackers][0].cases) << "power";
  }
  EXPECT_EQ(by[4][4].attackers, by[4][3].attackers) << "clean is as full";
  EXPECT_EQ(by[4][4].right, by[4][3].right);
  EXPECT_EQ(by[4][4].seasoned, 0);
  if (kSanitized) return;
  EXPECT_GE(by[4][0].share(), 0.5) << "power: four times the same context is that context";
  EXPECT_LE(by[1][0].share(), by[4][0].share() / 2);
  EXPECT_LE(by[0][0].share(), 0.05);
}

}  // namespace
}  // namespace kvilt

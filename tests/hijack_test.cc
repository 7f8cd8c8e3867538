// KV carries the text that stood before it, so it can be used to put words into others' answers (HijackKV, arXiv
// 2607.19957). Variable tracking on probe-1M: the values are set in a first text, the documents after it only pass them
// on. The attacker has the same documents computed behind other values; the victim brings its own first text.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "probe_prompts.h"

namespace kvilt {
namespace {

struct Hijacked {
  int cases = 0, attackers = 0, right = 0;  // answers with the attacker's value, with the true one
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

  std::vector<Hijacked> run(const std::vector<std::pair<std::string, Params>>& policies) {
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
      ask_ok(*engine, request(forged, entry, ""));
      ask_ok(*engine, request_of(ids(entry["system"].get<std::string>() + " " + first), "full", 0));
      for (size_t i = 0; i < policies.size(); ++i) {
        Request asked = request(first, entry, entry["question"]);
        asked.policy = {policies[i].first, policies[i].second};
        asked.sampling.max_tokens = 24;
        asked.sampling.ignore_eos = asked.publish = false;
        const std::string text = ask_ok(*engine, std::move(asked)).text;
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
  const auto out = run({{"full", {}},
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

}  // namespace
}  // namespace kvilt

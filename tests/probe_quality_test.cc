// Quality on probe-1M, the model that was trained to need its context: variable tracking over four segments, each known alone.
// Full attention answers nearly all, naive reuse nearly none: the gap that a repair has to close shows here in seconds.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine_harness.h"

namespace kvilt {
namespace {

struct Scores {
  double full = 0, naive = 0, sparsex = 0;
};

Scores run(const std::string& cases, int limit) {
  EngineOptions options;
  options.model = "tests/data/models/probe-1M";
  auto engine = open_for_test(options);
  std::ifstream file("tests/data/models/probe-1M/" + cases);
  EXPECT_TRUE(file);
  Scores right;
  int n = 0;
  for (std::string line; n < limit && std::getline(file, line); ++n) {
    const auto entry = nlohmann::json::parse(line);
    engine->clear_cache();
    std::string prompt = entry["system"];
    for (const auto& segment : entry["segments"]) {
      const std::string text = segment["text"];
      ask(*engine, request_of(engine->tokenize(text, true, false).value(), "full", 0));
      prompt += " " + text;
    }
    prompt += " " + entry["question"].get<std::string>();
    const auto ids = engine->tokenize(prompt, true, false).value();
    const auto score = [&](const std::string& policy, std::map<std::string, std::string> params) {
      Request request = request_of(ids, policy, 24);
      request.policy.params = std::move(params);
      request.sampling.ignore_eos = false;
      request.publish = false;
      const Outcome out = ask(*engine, std::move(request));
      if (policy != "full") EXPECT_GT(out.usage().reused, static_cast<int>(ids.size()) * 8 / 10);
      bool all = true;
      for (const auto& answer : entry["answers"])
        all = all && out.text.find(answer.get<std::string>()) != std::string::npos;
      return all ? 1.0 : 0.0;
    };
    right.full += score("full", {});
    right.naive += score("naive", {});
    right.sparsex += score("sparsex", {{"k", "0.3"}, {"l_star", "5"}, {"phase1", "all"}});
  }
  return {right.full / n, right.naive / n, right.sparsex / n};
}

TEST(ProbeQuality, VariableTracking) {
  const Scores s = run("cases-vt-value.jsonl", 40);
  RecordProperty("full", std::to_string(s.full));
  EXPECT_GE(s.full, 0.95);
  EXPECT_LE(s.naive, 0.1);
  EXPECT_GT(s.sparsex, s.naive);
}

TEST(ProbeQuality, Needles) {
  const Scores s = run("cases-niah.jsonl", 30);
  EXPECT_GE(s.full, 0.95);
  EXPECT_GE(s.naive, 0.7);  // a needle stands in one piece: reuse alone mostly finds it
}

}  // namespace
}  // namespace kvilt

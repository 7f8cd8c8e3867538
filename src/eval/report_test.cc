// What rows, reports and journals say of ratios: what they are to, and that there is none.
#include "eval/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "eval/aggregate.h"
#include "eval/journal.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

CaseResult answered(const std::string& id, std::optional<double> cells) {
  CaseResult out;
  out.suite = "s", out.id = id, out.policy = "full";
  out.decode_cells_ratio = cells;
  if (cells) out.token_s = 0.5;
  return out;
}

Json report_of(const std::vector<CaseResult>& results) {
  return {{"machine", Json::object()},
          {"model", Json::object()},
          {"pairs", Json::array()},
          {"rows", aggregate_rows(results, {*parse_policy("full")})}};
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Reports, LabelsSayWhatRatiosAreTo) {
  Json report = report_of({answered("1", 1)});
  for (const char* base : {"", "full", "prefix"}) {  // "": an older report
    const std::string to = *base ? base : "full", other = to == "full" ? "prefix" : "full";
    if (*base) report["ratios_to"] = base;
    const std::string tables = markdown_report(report), page = html_report(report, {});
    for (const std::string& text : {tables, page}) {
      EXPECT_TRUE(holds(text, "TTFT / " + to) && holds(text, "FLOPs / " + to)) << text;
      EXPECT_FALSE(holds(text, "/ " + other)) << text;
    }
    EXPECT_TRUE(holds(page, ">time to first token / " + to + "<")) << page;
    EXPECT_TRUE(holds(page, ">FLOPs of the prefill / " + to + "<"));
  }
}

TEST(Reports, WhereNoRowOfAnAnswerRanThereIsNoRatio) {
  const Json none = report_of({answered("1", {}), answered("2", {})});
  EXPECT_TRUE(none["rows"][0]["decode_cells_ratio"].is_null());
  EXPECT_FALSE(markdown_report(none).empty());
  const Json some = report_of({answered("1", 0.25), answered("2", {}), answered("3", 0.75)});
  EXPECT_EQ(some["rows"][0]["decode_cells_ratio"], 0.5) << "of the cases that have one";
}

TEST(Reports, OlderJournalsHaveAOneForNone) {
  Json line = to_json(answered("1", 0.25));
  EXPECT_EQ(line["decode_cells_ratio"], 0.25);
  EXPECT_EQ(result_from_json(line)->decode_cells_ratio, 0.25);
  line["decode_cells_ratio"] = 1;
  EXPECT_EQ(result_from_json(line)->decode_cells_ratio, 1) << "its answer had more tokens";
  line["token_s"] = nullptr;
  EXPECT_FALSE(result_from_json(line)->decode_cells_ratio);
  const Json now = to_json(answered("1", {}));
  EXPECT_TRUE(now["decode_cells_ratio"].is_null());
  EXPECT_FALSE(result_from_json(now)->decode_cells_ratio);
  line.erase("token_s"), line.erase("decode_cells_ratio");
  EXPECT_FALSE(result_from_json(line)->decode_cells_ratio);
}

}  // namespace
}  // namespace kvilt

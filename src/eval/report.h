// eval/report.h: rows of aggregate.h for people: Markdown tables, and one HTML page with Pareto plots and the quilt of
// a case.
// Role: text only; the caller writes files. The page (report.html) loads nothing: style and SVG are inline.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/runner.h"

namespace kvilt {

// report: {"version", "command", "machine", "model", "ratios_to", "pairs", "rows"} (docs/formats/json.md). One without
// "ratios_to" is older: its ratios are to full.
std::string markdown_report(const nlohmann::ordered_json& report);
std::string html_report(const nlohmann::ordered_json& report, const std::vector<Quilt>& quilts);

// "0.123 [0.100,0.150]"; "-" for null.
std::string with_interval(const nlohmann::ordered_json& row, const std::string& name);

}  // namespace kvilt

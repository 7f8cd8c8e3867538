#include "eval/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "eval/html.h"
#include "eval/report.html.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

std::string number(const Json& value) { return value.is_null() ? "-" : fmt::format("{:.3f}", value.get<double>()); }

std::string text_of(const Json& from, const char* key) {
  return from.contains(key) && from[key].is_string() ? from[key].get<std::string>() : "";
}

std::vector<std::string> suites_of(const Json& rows) {
  std::vector<std::string> out;
  for (const Json& row : rows) {
    const std::string suite = row["suite"];
    if (std::ranges::find(out, suite) == out.end()) out.push_back(suite);
  }
  return out;
}

// A cell of a column that older reports lack.
std::string given(const Json& row, const std::string& name) {
  return row.contains(name) ? with_interval(row, name) : "-";
}

// What the ratios of a report are to, as its labels say it: " / full".
std::string over_base(const Json& report) { return " / " + report.value("ratios_to", "full"); }

// The columns of both reports: a title, a row's cell, and whether that is a ratio.
struct Column {
  const char* title;
  std::string (*cell)(const Json& row);
  bool ratio = false;
  std::string head(const std::string& over) const { return ratio ? title + over : title; }
};
const std::vector<Column>& columns() {
  static const std::vector<Column> all = {
      {"policy", [](const Json& row) { return text_of(row, "label"); }},
      {"n", [](const Json& row) { return std::to_string(row["n"].get<int>()); }},
      {"score", [](const Json& row) { return with_interval(row, "score"); }},
      {"KL first", [](const Json& row) { return with_interval(row, "kl_first"); }},
      {"KL answer", [](const Json& row) { return with_interval(row, "kl_answer"); }},
      {"KL prompt", [](const Json& row) { return given(row, "kl_prompt"); }},
      {"top-1", [](const Json& row) { return number(row["top1"]); }},
      {"agree", [](const Json& row) { return number(row["agree"]); }},
      {"same answer", [](const Json& row) { return with_interval(row, "same_answer"); }},
      {"TTFT, s", [](const Json& row) { return number(row["ttft_s"]); }},
      {"TTFT", [](const Json& row) { return number(row["ttft_ratio"]); }, true},
      {"FLOPs", [](const Json& row) { return number(row["flops_ratio"]); }, true},
      {"reused", [](const Json& row) { return number(row["reused_ratio"]); }},
      {"recomputed", [](const Json& row) { return number(row["recomputed_ratio"]); }},
      {"cells", [](const Json& row) { return number(row["cells_ratio"]); }},
      {"cells, decode", [](const Json& row) { return number(row["decode_cells_ratio"]); }},
      {"held", [](const Json& row) { return number(row["held_mass"]); }},
      {"held, decode", [](const Json& row) { return number(row["decode_held_mass"]); }},
      {"s / token", [](const Json& row) { return number(row["token_s"]); }}};
  return all;
}

struct Point {
  std::string label;
  double x, y;
};

constexpr double kWidth = 460, kHeight = 300, kLeft = 62, kRight = 20, kTop = 18, kBottom = 42;
constexpr double kLeastKl = 1e-5;  // the lower end of the axis: smaller distances are rounding

// True if no other point is both cheaper and nearer to full.
bool on_front(const Point& point, const std::vector<Point>& all) {
  return std::ranges::none_of(all, [&](const Point& other) {
    return (other.x < point.x && other.y <= point.y) || (other.x <= point.x && other.y < point.y);
  });
}

std::string axes(const std::string& x_title, double low, double high, double x_end) {
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  std::string out = fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"frame\"/>", kLeft, kTop,
                                right - kLeft, bottom - kTop);
  for (double decade = std::ceil(low); decade <= high; ++decade) {
    const double y = bottom - (decade - low) / (high - low) * (bottom - kTop);
    out += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"grid\"/><text x=\"{}\" y=\"{:.1f}\" "
        "class=\"end\">{:g}</text>",
        kLeft, right, y, y, kLeft - 6, y + 4, std::pow(10, decade));
  }
  for (int i = 0; i <= 4; ++i) {
    const double x = kLeft + i / 4.0 * (right - kLeft);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" class=\"mid\">{:.2g}</text>", x, bottom + 16, x_end * i / 4);
  }
  return out +
         fmt::format(
             "<text x=\"{}\" y=\"{}\" class=\"mid\">{}</text>"
             "<text transform=\"translate(14 {}) rotate(-90)\" class=\"mid\">KL to full, nats (lower is nearer)</text>",
             (kLeft + right) / 2, kHeight - 8, x_title, (kTop + bottom) / 2);
}

// Plots distance (log scale) over cost, and joins the Pareto front.
std::string pareto_plot(std::vector<Point> points, const std::string& x_title) {
  double low = std::log10(kLeastKl), high = -1, x_end = 1;
  for (Point& point : points) {
    point.y = std::log10(std::max(point.y, kLeastKl));
    high = std::max(high, std::ceil(point.y + 1e-9));
    x_end = std::max(x_end, point.x);
  }
  std::ranges::sort(points, {}, &Point::x);
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  std::string marks, line;
  double last_y = -100;
  for (const Point& point : points) {
    const double x = kLeft + point.x / x_end * (right - kLeft);
    const double y = bottom - (point.y - low) / (high - low) * (bottom - kTop);
    const bool front = on_front(point, points), left = x > kLeft + 0.7 * (right - kLeft);
    const double shift = std::abs(y - last_y) < 11 ? 12 : 4;
    last_y = y;
    marks += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" class=\"{}\"><title>{}: {:.3f}, KL {:.5f}</title></circle>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>",
        x, y, front ? "front" : "point", escape(point.label), point.x, std::pow(10, point.y), left ? x - 7 : x + 7,
        y + shift, left ? "end" : "", escape(point.label));
    if (front) line += fmt::format("{:.1f},{:.1f} ", x, y);
  }
  return fmt::format(
      "<svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\">{}<polyline points=\"{}\" class=\"join\"/>{}</svg>\n",
      kWidth, kHeight, kWidth, axes(x_title, low, high, x_end), line, marks);
}

// over: over_base() of the report.
std::string suite_section(const std::string& suite, const Json& rows, const std::string& over) {
  std::vector<Point> by_time, by_flops;
  std::string head, body;
  for (const Column& column : columns()) head += fmt::format("<th>{}</th>", escape(column.head(over)));
  for (const Json& row : rows) {
    if (row["suite"] != suite) continue;
    const double kl = row["kl_answer"].get<double>();
    by_time.push_back({row["label"], row["ttft_ratio"].get<double>(), kl});
    by_flops.push_back({row["label"], row["flops_ratio"].get<double>(), kl});
    body += "<tr>";
    for (const Column& column : columns()) body += fmt::format("<td>{}</td>", escape(column.cell(row)));
    body += "</tr>\n";
  }
  return fmt::format("<h2>{}</h2>\n{}{}<table><tr>{}</tr>\n{}</table>\n", escape(suite),
                     pareto_plot(std::move(by_time), "time to first token" + escape(over)),
                     pareto_plot(std::move(by_flops), "FLOPs of the prefill" + escape(over)), head, body);
}

std::string pair_section(const Json& pairs) {
  if (pairs.empty()) return "";
  std::string out =
      "<h2>Paired ratios</h2><p>Geometric mean of (KL + 0.001) / (KL of the base + 0.001) over the same cases.</p>"
      "<table><tr><th>suite</th><th>policy</th><th>base</th><th>n</th><th>KL ratio</th><th>first "
      "token</th><th>prompt</th></tr>\n";
  for (const Json& row : pairs) {
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                       escape(row["suite"]), escape(row["a"]), escape(row["b"]), row["n"].get<int>(),
                       with_interval(row, "kl_ratio"), with_interval(row, "kl_first_ratio"),
                       given(row, "kl_prompt_ratio"));
  }
  return out + "</table>\n";
}

std::string quilt_section(const std::vector<Quilt>& quilts) {
  if (quilts.empty()) return "";
  std::string out = fmt::format(
      "<h2>The quilt of case {} ({})</h2><p><span class=\"prefix\">exact prefix</span> <span "
      "class=\"reused\">reused</span> "
      "<span class=\"recomputed\">reused and recomputed</span> <span class=\"fresh\">fresh</span></p>\n",
      escape(quilts[0].id), escape(quilts[0].suite));
  for (const Quilt& quilt : quilts) {
    std::string patches;
    std::map<std::string, int> tokens;
    for (const Patch& patch : quilt.patches) {
      tokens[patch.kind] += patch.tokens;
      patches +=
          fmt::format("<span class=\"{}\" title=\"{} tokens\">{}</span>", patch.kind, patch.tokens, escape(patch.text));
    }
    out += fmt::format(
        "<details><summary>{}: {} prefix, {} reused, {} recomputed, {} fresh</summary><pre>{}</pre></details>\n",
        escape(quilt.policy), tokens["prefix"], tokens["reused"], tokens["recomputed"], tokens["fresh"], patches);
  }
  return out;
}

}  // namespace

std::string with_interval(const Json& row, const std::string& name) {
  if (!row.contains(name) || row[name].is_null()) return "-";
  const Json& ci = row[name + "_ci"];
  return fmt::format("{:.3f} [{:.3f},{:.3f}]", row[name].get<double>(), ci[0].get<double>(), ci[1].get<double>());
}

std::string markdown_report(const Json& report) {
  std::string out = fmt::format("`{}`\n\nModel: {}. Machine: {}, {} threads.\n", text_of(report, "command"),
                                text_of(report["model"], "description"), text_of(report["machine"], "cpu"),
                                report["machine"].value("threads", 0));
  for (const std::string& suite : suites_of(report["rows"])) {
    out += fmt::format("\n### {}\n\n|", suite);
    for (const Column& column : columns()) out += fmt::format(" {} |", column.head(over_base(report)));
    out += "\n|";
    for (size_t i = 0; i < columns().size(); ++i) out += "---|";
    out += "\n";
    for (const Json& row : report["rows"]) {
      if (row["suite"] != suite) continue;
      out += "|";
      for (const Column& column : columns()) out += fmt::format(" {} |", column.cell(row));
      out += "\n";
    }
  }
  if (!report["pairs"].empty()) {
    out +=
        "\n### Paired ratios\n\nGeometric mean of (KL + 0.001) / (KL of the base + 0.001) over the same cases.\n\n"
        "| suite | policy | base | n | KL ratio | first token | prompt |\n|---|---|---|---|---|---|---|\n";
    for (const Json& row : report["pairs"]) {
      out += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", text_of(row, "suite"), text_of(row, "a"),
                         text_of(row, "b"), row["n"].get<int>(), with_interval(row, "kl_ratio"),
                         with_interval(row, "kl_first_ratio"), given(row, "kl_prompt_ratio"));
    }
  }
  return out;
}

std::string html_report(const Json& report, const std::vector<Quilt>& quilts) {
  auto suites = suites_of(report["rows"]);
  if (!suites.empty() && suites.back() == "all") std::rotate(suites.begin(), suites.end() - 1, suites.end());
  std::string sections;
  for (const std::string& suite : suites) sections += suite_section(suite, report["rows"], over_base(report));
  sections += pair_section(report["pairs"]);
  sections += quilt_section(quilts);
  return filled(kReportHtml, {{"model", escape(text_of(report["model"], "description"))},
                              {"cpu", escape(text_of(report["machine"], "cpu"))},
                              {"threads", std::to_string(report["machine"].value("threads", 0))},
                              {"version", escape(text_of(report, "version"))},
                              {"command", escape(text_of(report, "command"))},
                              {"sections", std::move(sections)}});
}

}  // namespace kvilt

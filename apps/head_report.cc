#include "apps/head_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "apps/head_report.html.h"
#include "eval/html.h"
#include "eval/report.h"

namespace kvilt {
namespace {

std::string name_of(const HeadMap& map, size_t head) {
  return fmt::format("layer {} head {}", head / static_cast<size_t>(map.G), head % static_cast<size_t>(map.G));
}

std::vector<size_t> by_score(const HeadReport& r) {
  std::vector<size_t> order(r.score.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return r.score[a] > r.score[b]; });
  return order;
}

bool open(const HeadReport& r, size_t head) {
  return !r.map.local(static_cast<int>(head) / r.map.G, static_cast<int>(head) % r.map.G);
}

std::string of(const std::vector<double>& values, size_t i) {
  return values.empty() ? "-" : fmt::format("{:.4f}", values[i]);
}

// Columns of the table of heads.
std::vector<std::string> cells(const HeadReport& r, size_t head) {
  return {name_of(r.map, head), open(r, head) ? "global" : fmt::format("local {}", r.map.window[head]),
          of(r.profile.ablation, head), of(r.profile.edge_mean, head), of(r.profile.edge_max, head)};
}
constexpr const char* kHeadColumns[] = {"KV head", "class, window", "ablation KL", "edge mass, mean", "edge mass, max"};

std::vector<std::string> eval_cells(const nlohmann::ordered_json& row) {
  return {row["label"].get<std::string>(),
          std::to_string(row["n"].get<int>()),
          with_interval(row, "kl_prompt"),
          with_interval(row, "kl_answer"),
          fmt::format("{:.2f}", row["top1"].get<double>()),
          fmt::format("{:.3f}", row["flops_ratio"].get<double>())};
}
constexpr const char* kEvalColumns[] = {"policy", "n", "KL, last rows", "KL, answer", "top-1", "FLOPs / full"};

std::vector<std::string> pair_cells(const nlohmann::ordered_json& row) {
  return {row["a"].get<std::string>(), row["b"].get<std::string>(), with_interval(row, "kl_prompt_ratio"),
          with_interval(row, "kl_ratio")};
}
constexpr const char* kPairColumns[] = {"policy", "base", "KL ratio, last rows", "KL ratio, answer"};

// The evaluation's rows over all cases.
bool overall(const HeadReport& r, const nlohmann::ordered_json& row) {
  bool several = false;
  for (const auto& other : r.rows) several = several || other["suite"] == "all";
  return !several || row["suite"] == "all";
}

// A table in one of the two forms.
class Table {
 public:
  Table(bool html, std::span<const char* const> titles) : html_(html) {
    std::vector<std::string> names(titles.begin(), titles.end());
    add(names, "th");
    if (html_) return;
    out_ += "|";
    for (size_t i = 0; i < names.size(); ++i) out_ += "---|";
    out_ += "\n";
  }
  void add(const std::vector<std::string>& row, const char* tag = "td") {
    out_ += html_ ? "<tr>" : "|";
    for (const std::string& cell : row)
      out_ += html_ ? fmt::format("<{}>{}</{}>", tag, escape(cell), tag) : " " + cell + " |";
    out_ += html_ ? "</tr>\n" : "\n";
  }
  std::string text() const { return html_ ? "<table>" + out_ + "</table>\n" : out_; }

 private:
  const bool html_;
  std::string out_;
};

std::string evaluation(const HeadReport& r, bool html) {
  if (r.rows.empty()) return html ? "<p>No evaluation was made.</p>\n" : "No evaluation was made.\n";
  Table rows(html, kEvalColumns), pairs(html, kPairColumns);
  for (const auto& row : r.rows) {
    if (overall(r, row)) rows.add(eval_cells(row));
  }
  for (const auto& row : r.pairs) {
    if (overall(r, row)) pairs.add(pair_cells(row));
  }
  const std::string note =
      r.same_prompts ? "These are the prompts that were profiled: give more cases for an honest test." : "";
  if (html) return fmt::format("<p>{}</p>\n{}<p>{}</p>\n{}", escape(r.verdict), rows.text(), note, pairs.text());
  return fmt::format("{}\n\n{}\n{}{}{}", r.verdict, rows.text(), note, note.empty() ? "" : "\n\n", pairs.text());
}

std::string summary(const HeadReport& r) {
  return fmt::format(
      "{} of {} KV heads see everything ({:.0f} %), by {}, from {} prompts of {} tokens on the average{}.",
      static_cast<int>(std::lround(r.map.global_share() * static_cast<double>(r.score.size()))), r.score.size(),
      100 * r.map.global_share(), r.by, r.prompts, r.profile.tokens,
      r.prompts > 1 ? fmt::format(" (mean rank correlation between single prompts {:.2f})", r.stability) : "");
}

// Layers from left to right, KV heads downwards; the darker, the higher the score; a frame: global.
std::string picture(const HeadReport& r) {
  const double cell = r.map.L > 48 ? 16 : 26, left = 60, top = 22;
  const double most = *std::ranges::max_element(r.score);
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\">\n", left + cell * r.map.L + 8,
                                top + cell * r.map.G + 26, left + cell * r.map.L + 8);
  for (int l = 0; l < r.map.L; ++l) {
    for (int g = 0; g < r.map.G; ++g) {
      const auto head = static_cast<size_t>(l * r.map.G + g);
      const double share = most > 0 ? std::sqrt(std::max(0.0, r.score[head]) / most) : 0;
      const auto pale = static_cast<int>(std::lround(245 - 200 * share));
      out += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"rgb({},{},255)\" stroke=\"{}\" "
          "stroke-width=\"{}\"><title>{}: {}, {:.4f}</title></rect>\n",
          left + l * cell + 2, top + g * cell + 2, cell - 4, cell - 4, pale, pale, open(r, head) ? "#c22" : "#ccc",
          open(r, head) ? 2.5 : 1.0, name_of(r.map, head), open(r, head) ? "global" : "local", r.score[head]);
    }
    if (l % (r.map.L > 24 ? 8 : 4) == 0)
      out += fmt::format("<text x=\"{}\" y=\"14\" font-size=\"11\">{}</text>\n", left + l * cell + 4, l);
  }
  for (int g = 0; g < r.map.G; ++g)
    out += fmt::format("<text x=\"4\" y=\"{}\" font-size=\"11\">head {}</text>\n", top + (g + 0.65) * cell, g);
  return out + "</svg>\n";
}

std::string windows(const HeadReport& r, bool html) {
  if (r.profile.windows.empty()) return "";
  std::vector<const char*> titles{"window", "attention inside, mean over heads", "heads with 90 %", "heads with 99 %"};
  Table table(html, titles);
  for (size_t w = 0; w < r.profile.windows.size(); ++w) {
    const auto& inside = r.profile.inside[w];
    const auto share = [&](double least) {
      return fmt::format("{} of {}", std::ranges::count_if(inside, [&](double x) { return x >= least; }),
                         inside.size());
    };
    table.add(
        {std::to_string(r.profile.windows[w]),
         fmt::format("{:.3f}", std::accumulate(inside.begin(), inside.end(), 0.0) / static_cast<double>(inside.size())),
         share(0.9), share(0.99)});
  }
  return table.text();
}

}  // namespace

std::string head_markdown(const HeadReport& r) {
  Table heads(false, kHeadColumns);
  for (const size_t head : by_score(r)) heads.add(cells(r, head));
  return fmt::format("# KV heads of {}\n\n`{}`\n\n{}\n\n## Evaluation\n\n{}\n## Windows\n\n{}\n## Heads\n\n{}", r.model,
                     r.command, summary(r), evaluation(r, false), windows(r, false), heads.text());
}

std::string head_html(const HeadReport& r) {
  Table heads(true, kHeadColumns);
  for (const size_t head : by_score(r)) heads.add(cells(r, head));
  return filled(kHeadReportHtml, {{"model", escape(r.model)},
                                  {"command", escape(r.command)},
                                  {"summary", escape(summary(r))},
                                  {"picture", picture(r)},
                                  {"by", escape(r.by)},
                                  {"evaluation", evaluation(r, true)},
                                  {"windows", windows(r, true)},
                                  {"heads", heads.text()}});
}

}  // namespace kvilt

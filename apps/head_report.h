// apps/head_report.h: what `kvilt profile heads` found, for people: Markdown, and a page with a picture of the heads.
// Role: text only; the command writes files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvilt/head_profile.h"
#include "model/head_map.h"

namespace kvilt {

struct HeadReport {
  std::string model, command, by;  // by: the measure that the map was made of
  HeadMap map;
  HeadProfile profile;        // means over the prompts
  std::vector<double> score;  // per head, of `by`
  int prompts = 0;
  double stability = 0;                // mean rank correlation of single prompts' scores; 0 for one prompt
  double window_mass = 0;              // 0: one window for all
  nlohmann::ordered_json rows, pairs;  // of the evaluation (docs/formats/json.md); empty: none was made
  bool same_prompts = false;           // it ran on the prompts that were profiled
  std::string verdict;
};

std::string head_markdown(const HeadReport& report);
std::string head_html(const HeadReport& report);

}  // namespace kvilt

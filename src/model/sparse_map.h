// model/sparse_map.h: a sparse map: which keys the rows of each KV head see while a prompt is computed. It is a file of
// its own, next to the model (docs/formats/sparse_map.md).
// Source: MInference's maps (arXiv:2407.02490), which say it of query heads.
// Errors: kCorrupt for text that is no sparse map (the message names file and field), kInvalidArgument for one of another
//         model's shape.
// Not here: what a pattern means for a plan (plan/head_patterns.h), how maps are made (model/pattern_choice.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvilt/result.h"
#include "kvilt/sparse_profile.h"
#include "model/config.h"

namespace kvilt {

struct SparseMap {
  int L = 0, G = 0;
  std::vector<HeadPattern> heads;  // layer * G + KV head
};

SparseMap uniform_sparse_map(int L, int G, const HeadPattern& of_all);

// "lines", "blocks", "ashape".
std::string_view pattern_name(HeadPattern::Is is);
// As an entry of the file: {"pattern": "blocks", "blocks": 40}.
std::string pattern_json(const HeadPattern& pattern);

// where: what to call the text in messages.
Result<SparseMap> parse_sparse_map(std::string_view text, const std::string& where);
Result<SparseMap> read_sparse_map(const std::string& path);
std::string sparse_map_json(const SparseMap& map);

// An error if the map is not of this model. where: the file, for messages.
Status check_sparse_map(const SparseMap& map, const ModelConfig& config, const std::string& where);

}  // namespace kvilt

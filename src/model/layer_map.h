// model/layer_map.h: which layers of a model agree on what matters in a text: a file of its own, next to the model.
// Source: SamKV's stable layers (docs/papers.md#samkv); docs/formats/layer_map.md.
// Errors: kCorrupt for text that is no layer map (the message names file and field), kInvalidArgument for one of another
//         model's depth.
// Not here: how it is made (engine/layer_profile.h), what it is for (policy/samkv.cc).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvilt/result.h"

namespace kvilt {

struct LayerMap {
  int L = 0;
  std::vector<int> stable;     // rising; not empty
  std::vector<double> scores;  // by layer; may be empty: for readers
};

Result<LayerMap> parse_layer_map(std::string_view text, const std::string& where);
Result<LayerMap> read_layer_map(const std::string& path);
std::string layer_map_json(const LayerMap& map);
// An error if the map is not of a model of L layers. where: the file, for messages.
Status check_layer_map(const LayerMap& map, int L, const std::string& where);

// The layers with the `n` highest scores, the deeper first on a tie.
LayerMap choose_layer_map(const std::vector<double>& scores, int n);

}  // namespace kvilt

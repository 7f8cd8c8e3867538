#include "model/layer_map.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/json_text.h"
#include "model/map_fields.h"

namespace kvilt {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;

void read_stable(const nlohmann::json& list, MapFields& fields, LayerMap& map) {
  if (!list.is_array() || list.empty())
    return fields.wrong("stable_layers", "must be a list of layers, counted from 0; at least one");
  for (size_t i = 0; i < list.size() && fields.status().ok(); ++i) {
    const int layer = fields.integer(list[i], fmt::format("stable_layers[{}]", i), 0, map.L - 1);
    if (!map.stable.empty() && layer <= map.stable.back()) fields.wrong("stable_layers", "must rise");
    map.stable.push_back(layer);
  }
}

void read_scores(const nlohmann::json& list, MapFields& fields, LayerMap& map) {
  if (!list.is_array() || list.size() != static_cast<size_t>(map.L))
    return fields.wrong("scores", fmt::format("must be a list of {} numbers (num_layers)", map.L));
  for (const auto& score : list) {
    if (!score.is_number()) return fields.wrong("scores", "must be numbers");
    map.scores.push_back(score.get<double>());
  }
}

}  // namespace

Result<LayerMap> parse_layer_map(std::string_view text, const std::string& where) {
  KVILT_ASSIGN(const nlohmann::json from, parse_json(text, where));
  if (!from.is_object()) return error(Code::kCorrupt, "{}: a layer map is a JSON object", where);
  MapFields fields(from, where);
  fields.find_layers();
  KVILT_TRY(fields.status());
  LayerMap map;
  map.L = fields.L();
  read_stable(from.value("stable_layers", nlohmann::json()), fields, map);
  if (from.contains("scores")) read_scores(from["scores"], fields, map);
  KVILT_TRY(fields.status());
  return map;
}

Result<LayerMap> read_layer_map(const std::string& path) {
  KVILT_ASSIGN(const std::string text, read_file(path, kMostBytes));
  return parse_layer_map(text, path);
}

std::string layer_map_json(const LayerMap& map) {
  nlohmann::ordered_json out{{"num_layers", map.L}, {"stable_layers", map.stable}};
  if (!map.scores.empty()) out["scores"] = map.scores;
  return out.dump(1) + "\n";
}

Status check_layer_map(const LayerMap& map, int L, const std::string& where) {
  if (map.L == L) return {};
  return error(Code::kInvalidArgument, "{}: it is of a model of {} layers, this one has {}", where, map.L, L);
}

LayerMap choose_layer_map(const std::vector<double>& scores, int n) {
  LayerMap out{static_cast<int>(scores.size()), {}, scores};
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](int a, int b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a > b; });
  out.stable.assign(order.begin(), order.begin() + std::clamp(n, 1, out.L));
  std::ranges::sort(out.stable);
  return out;
}

}  // namespace kvilt

#include "model/layer_map.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/json_text.h"

namespace kvilt {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;
constexpr int kMostLayers = 4096;

bool is_layer(const nlohmann::json& value, int64_t low, int64_t high) {
  return value.is_number_unsigned() && value.get<uint64_t>() >= static_cast<uint64_t>(low) &&
         value.get<uint64_t>() <= static_cast<uint64_t>(high);
}

}  // namespace

Result<LayerMap> parse_layer_map(std::string_view text, const std::string& where) {
  KVILT_ASSIGN(const nlohmann::json from, parse_json(text, where));
  if (!from.is_object()) return error(Code::kCorrupt, "{}: a layer map is a JSON object", where);
  const auto wrong = [&](const char* field, const std::string& what) {
    return error(Code::kCorrupt, "{}: '{}' {}", where, field, what);
  };
  LayerMap map;
  if (!from.contains("num_layers") || !is_layer(from["num_layers"], 1, kMostLayers))
    return wrong("num_layers", fmt::format("must be a whole number from 1 to {}", kMostLayers));
  map.L = from["num_layers"].get<int>();
  if (!from.contains("stable_layers") || !from["stable_layers"].is_array() || from["stable_layers"].empty())
    return wrong("stable_layers", "must be a list of layers, counted from 0; at least one");
  for (const auto& layer : from["stable_layers"]) {
    if (!is_layer(layer, 0, map.L - 1) || (!map.stable.empty() && layer.get<int>() <= map.stable.back()))
      return wrong("stable_layers", fmt::format("must be rising numbers from 0 to {}", map.L - 1));
    map.stable.push_back(layer.get<int>());
  }
  if (!from.contains("scores")) return map;
  if (!from["scores"].is_array() || from["scores"].size() != static_cast<size_t>(map.L))
    return wrong("scores", fmt::format("must be a list of {} numbers (num_layers)", map.L));
  for (const auto& score : from["scores"]) {
    if (!score.is_number()) return wrong("scores", "must be numbers");
    map.scores.push_back(score.get<double>());
  }
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

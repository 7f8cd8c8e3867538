#include "model/map_fields.h"

#include "base/error.h"

namespace kvilt {
namespace {

constexpr int64_t kMaxMapHeads = 1 << 20;  // of all layers

}  // namespace

void MapFields::wrong(const std::string& field, const std::string& what) {
  if (status_.ok()) status_ = error(Code::kCorrupt, "{}: '{}' {}", where_, field, what);
}

int MapFields::integer(const nlohmann::json& value, const std::string& field, int64_t low, int64_t high) {
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT32_MAX}) ||
      value.get<int64_t>() < low || value.get<int64_t>() > high) {
    wrong(field, fmt::format("must be a whole number from {} to {}", low, high));
    return static_cast<int>(low);
  }
  return static_cast<int>(value.get<int64_t>());
}

int MapFields::integer(const char* field, int64_t low, int64_t high) {
  if (has(field)) return integer(from_[field], field, low, high);
  wrong(field, "is missing");
  return static_cast<int>(low);
}

void MapFields::find_shape(const char* grid) {
  find_layers();
  G_ = integer("num_kv_heads", 1, kMaxMapSide);
  if (int64_t{L_} * G_ > kMaxMapHeads) wrong("num_layers", "times num_kv_heads is more than a million");
  if (!has(grid)) wrong(grid, "is missing");
}

void MapFields::grid(const char* field, FunctionRef<void(size_t, const nlohmann::json&, const std::string&)> each) {
  const nlohmann::json& layers = from_[field];
  if (!layers.is_array() || layers.size() != static_cast<size_t>(L_)) {
    return wrong(field, fmt::format("must be a list of {} layers (num_layers)", L_));
  }
  for (int l = 0; l < L_ && status_.ok(); ++l) {
    const nlohmann::json& heads = layers[static_cast<size_t>(l)];
    if (!heads.is_array() || heads.size() != static_cast<size_t>(G_)) {
      return wrong(fmt::format("{}[{}]", field, l), fmt::format("must be a list of {} KV heads (num_kv_heads)", G_));
    }
    for (int g = 0; g < G_; ++g) {
      each(static_cast<size_t>(l * G_ + g), heads[static_cast<size_t>(g)], fmt::format("{}[{}][{}]", field, l, g));
    }
  }
}

std::string map_grid(int L, int G, FunctionRef<std::string(size_t)> value) {
  std::string out = "[";
  for (int l = 0; l < L; ++l) {
    out += l == 0 ? "\n    [" : ",\n    [";
    for (int g = 0; g < G; ++g) out += (g ? ", " : "") + value(static_cast<size_t>(l * G + g));
    out += "]";
  }
  return out + "\n  ]";
}

Status check_map_shape(const char* kind, int L, int G, const ModelConfig& config, const std::string& where) {
  if (L == config.L && G == config.G) return {};
  return error(Code::kInvalidArgument,
               "{}: this {} is of {} layers and {} KV heads; the model has {} layers and {} KV heads (make one with "
               "kvilt profile)",
               where, kind, L, G, config.L, config.G);
}

}  // namespace kvilt

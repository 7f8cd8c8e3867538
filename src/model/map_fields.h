// model/map_fields.h: what files that say something of a model's layers or KV heads have in common (head_map.h,
// sparse_map.h, layer_map.h): the model's shape, and grids of a value for each layer and KV head.
// Errors: kCorrupt naming file and field; the first mistake sticks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/function_ref.h"
#include "kvilt/result.h"
#include "model/config.h"

namespace kvilt {

inline constexpr size_t kMaxMapBytes = size_t{16} << 20;
inline constexpr int kMaxMapSide = 4096;  // layers, KV heads

class MapFields {
 public:
  // Both outlive this.
  MapFields(const nlohmann::json& from, const std::string& where) : from_(from), where_(where) {}
  const Status& status() const { return status_; }
  void wrong(const std::string& field, const std::string& what);

  bool has(const char* field) const { return from_.contains(field) && !from_[field].is_null(); }
  int integer(const nlohmann::json& value, const std::string& field, int64_t low, int64_t high);
  int integer(const char* field, int64_t low, int64_t high);

  void find_layers() { L_ = integer("num_layers", 1, kMaxMapSide); }
  // num_layers and num_kv_heads; `grid` must be there too.
  void find_shape(const char* grid);
  int L() const { return L_; }
  int G() const { return G_; }
  // Calls each(index, value, name) for the L x G values of a field. Flat lists are refused: their order is not known.
  void grid(const char* field, FunctionRef<void(size_t, const nlohmann::json&, const std::string&)> each);

 private:
  const nlohmann::json& from_;
  const std::string& where_;
  Status status_;
  int L_ = 0, G_ = 0;
};

// As it is written: a line for each layer.
std::string map_grid(int L, int G, FunctionRef<std::string(size_t)> value);

// An error if a map of this shape is not of the model. kind: "head map"; where: the file.
Status check_map_shape(const char* kind, int L, int G, const ModelConfig& config, const std::string& where);

}  // namespace kvilt

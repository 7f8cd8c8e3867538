#include "model/head_map.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/function_ref.h"
#include "base/mapped_file.h"
#include "model/json_text.h"
#include "model/map_fields.h"

namespace kvilt {
namespace {

using Json = nlohmann::json;

struct ClassName {
  std::string_view name;
  HeadClass is;
};
// The first name of a class is the one that head_map_json writes.
constexpr ClassName kNames[] = {
    {"local", HeadClass::kLocal},         {"global", HeadClass::kGlobal},    {"retrieval", HeadClass::kRetrieval},
    {"dense", HeadClass::kDense},         {"local_full", HeadClass::kLocal}, {"limited", HeadClass::kLocal},
    {"sink_dominant", HeadClass::kLocal}, {"streaming", HeadClass::kLocal},
};

std::optional<HeadClass> class_of(const std::string& name) {
  for (const ClassName& known : kNames) {
    if (known.name == name) return known.is;
  }
  return {};
}

std::string_view name_of(HeadClass c) {
  return std::find_if(std::begin(kNames), std::end(kNames), [c](const ClassName& n) { return n.is == c; })->name;
}

}  // namespace

int HeadMap::count(HeadClass wanted) const { return static_cast<int>(std::count(heads.begin(), heads.end(), wanted)); }

double HeadMap::global_share() const {
  int open = 0;
  for (int l = 0; l < L; ++l) {
    for (int g = 0; g < G; ++g) open += !local(l, g);
  }
  return heads.empty() ? 0 : open / static_cast<double>(heads.size());
}

HeadMap uniform_head_map(int L, int G, HeadClass of_all, int32_t window, int32_t sink) {
  HeadMap map;
  map.L = L;
  map.G = G;
  const auto n = static_cast<size_t>(L) * static_cast<size_t>(G);
  const bool local = of_all == HeadClass::kLocal;
  map.heads.assign(n, of_all);
  map.window.assign(n, local ? window : -1);
  map.sink.assign(n, local ? sink : 0);
  return map;
}

Result<HeadMap> parse_head_map(std::string_view text, const std::string& where) {
  KVILT_ASSIGN(const Json from, parse_json(text, where));
  if (!from.is_object()) return error(Code::kCorrupt, "{}: a head map is a JSON object", where);
  MapFields reader(from, where);
  reader.find_shape("kv_head_classification");
  KVILT_TRY(reader.status());
  HeadMap map = uniform_head_map(reader.L(), reader.G(), HeadClass::kGlobal);
  reader.grid("kv_head_classification", [&](size_t i, const Json& value, const std::string& name) {
    const auto known = value.is_string() ? class_of(value.get<std::string>()) : std::nullopt;
    if (!known) return reader.wrong(name, "must be \"local\", \"global\", \"retrieval\" or \"dense\"");
    map.heads[i] = *known;
    if (*known == HeadClass::kLocal) {
      map.window[i] = HeadMap::kWindow;
      map.sink[i] = HeadMap::kSink;
    }
  });
  KVILT_TRY(reader.status());
  const auto local = [&](size_t i) { return map.heads[i] == HeadClass::kLocal; };
  if (reader.has("kv_head_max_distance")) {
    reader.grid("kv_head_max_distance", [&](size_t i, const Json& value, const std::string& name) {
      const int window = reader.integer(value, name, -1, INT32_MAX);
      if (local(i) && window >= 0) map.window[i] = window;
    });
  }
  if (reader.has("kv_head_sink_size")) {
    reader.grid("kv_head_sink_size", [&](size_t i, const Json& value, const std::string& name) {
      const int sink = reader.integer(value, name, 0, INT32_MAX);
      if (local(i)) map.sink[i] = sink;
    });
  }
  if (reader.has("retrieval_top_p")) {
    const Json& p = from["retrieval_top_p"];
    map.retrieval_top_p = p.is_number() ? p.get<double>() : -1;
    if (!(map.retrieval_top_p > 0 && map.retrieval_top_p <= 1))
      reader.wrong("retrieval_top_p", "must be above 0 and at most 1");
  }
  if (reader.has("dense_prefix_layers")) map.dense_prefix_layers = reader.integer("dense_prefix_layers", 0, map.L);
  KVILT_TRY(reader.status());
  return map;
}

Result<HeadMap> read_head_map(const std::string& path) {
  KVILT_ASSIGN(const std::string text, read_file(path, kMaxMapBytes));
  return parse_head_map(text, path);
}

std::string head_map_json(const HeadMap& map) {
  const auto grid = [&](FunctionRef<std::string(size_t)> value) { return map_grid(map.L, map.G, value); };
  return fmt::format(
      "{{\n  \"num_layers\": {},\n  \"num_kv_heads\": {},\n  \"kv_head_classification\": {},\n"
      "  \"kv_head_max_distance\": {},\n  \"kv_head_sink_size\": {},\n  \"retrieval_top_p\": {},\n"
      "  \"dense_prefix_layers\": {}\n}}\n",
      map.L, map.G, grid([&](size_t i) { return fmt::format("\"{}\"", name_of(map.heads[i])); }),
      grid([&](size_t i) { return fmt::format("{}", map.window[i]); }),
      grid([&](size_t i) { return fmt::format("{}", map.sink[i]); }), map.retrieval_top_p, map.dense_prefix_layers);
}

Status check_head_map(const HeadMap& map, const ModelConfig& config, const std::string& where) {
  return check_map_shape("head map", map.L, map.G, config, where);
}

}  // namespace kvilt

#include "model/sparse_map.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/json_text.h"
#include "model/map_fields.h"

namespace kvilt {
namespace {

using Is = HeadPattern::Is;

constexpr int kMostKeys = 1 << 24;  // as the policies' parameters

struct PatternField {
  const char* name;
  int32_t HeadPattern::*of;
  int low;
};
struct PatternForm {
  std::string_view name;
  Is is;
  std::vector<PatternField> fields;
};

const std::vector<PatternForm>& forms() {
  static const std::vector<PatternForm> all = {
      {"lines", Is::kLines, {{"columns", &HeadPattern::columns, 0}, {"distances", &HeadPattern::distances, 0}}},
      {"blocks", Is::kBlocks, {{"blocks", &HeadPattern::blocks, 1}}},
      {"ashape", Is::kAShape, {{"sink", &HeadPattern::sink, 0}, {"window", &HeadPattern::window, 0}}},
  };
  return all;
}

const PatternForm& form_of(Is is) { return *std::ranges::find(forms(), is, &PatternForm::is); }

HeadPattern pattern_of(const nlohmann::json& value, const std::string& name, MapFields& fields) {
  HeadPattern out;
  const bool named = value.is_object() && value.contains("pattern") && value["pattern"].is_string();
  const auto form =
      std::ranges::find(forms(), named ? value["pattern"].get<std::string>() : std::string(), &PatternForm::name);
  if (form == forms().end()) {
    fields.wrong(name, "must be an object whose \"pattern\" is \"lines\", \"blocks\" or \"ashape\"");
    return out;
  }
  out.is = form->is;
  for (const PatternField& field : form->fields) {
    const std::string where = name + "." + field.name;
    if (!value.contains(field.name)) {
      fields.wrong(where, "is missing");
    } else {
      out.*field.of = fields.integer(value[field.name], where, field.low, kMostKeys);
    }
  }
  return out;
}

}  // namespace

SparseMap uniform_sparse_map(int L, int G, const HeadPattern& of_all) {
  return {L, G, std::vector<HeadPattern>(static_cast<size_t>(L) * static_cast<size_t>(G), of_all)};
}

std::string_view pattern_name(Is is) { return form_of(is).name; }

std::string pattern_json(const HeadPattern& pattern) {
  std::string out = fmt::format("{{\"pattern\": \"{}\"", pattern_name(pattern.is));
  for (const PatternField& field : form_of(pattern.is).fields)
    out += fmt::format(", \"{}\": {}", field.name, pattern.*field.of);
  return out + "}";
}

Result<SparseMap> parse_sparse_map(std::string_view text, const std::string& where) {
  KVILT_ASSIGN(const nlohmann::json from, parse_json(text, where));
  if (!from.is_object()) return error(Code::kCorrupt, "{}: a sparse map is a JSON object", where);
  MapFields fields(from, where);
  fields.find_shape("kv_head_pattern");
  KVILT_TRY(fields.status());
  SparseMap map = uniform_sparse_map(fields.L(), fields.G(), {});
  fields.grid("kv_head_pattern", [&](size_t i, const nlohmann::json& value, const std::string& name) {
    map.heads[i] = pattern_of(value, name, fields);
  });
  KVILT_TRY(fields.status());
  return map;
}

Result<SparseMap> read_sparse_map(const std::string& path) {
  KVILT_ASSIGN(const std::string text, read_file(path, kMaxMapBytes));
  return parse_sparse_map(text, path);
}

std::string sparse_map_json(const SparseMap& map) {
  return fmt::format("{{\n  \"num_layers\": {},\n  \"num_kv_heads\": {},\n  \"kv_head_pattern\": {}\n}}\n", map.L,
                     map.G, map_grid(map.L, map.G, [&](size_t i) { return pattern_json(map.heads[i]); }));
}

Status check_sparse_map(const SparseMap& map, const ModelConfig& config, const std::string& where) {
  return check_map_shape("sparse map", map.L, map.G, config, where);
}

}  // namespace kvilt

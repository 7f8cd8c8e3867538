#include "grammar/schema_words.h"

#include <cmath>

namespace kvilt {

const std::array<Typed, 4>& typed() {
  static const std::array<Typed, 4> kAll = {{
      {"string", {"minLength", "maxLength", "pattern"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
      {"array", {"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"}},
      {"object",
       {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "unevaluatedProperties"}},
  }};
  return kAll;
}

bool is_schema_condition(std::string_view word) {
  const auto is_word = [&](const char* one) { return word == one; };
  return word == "type" || word == "format" || std::ranges::any_of(kRuling, is_word) ||
         std::ranges::any_of(kRefused, is_word) ||
         std::ranges::any_of(typed(), [&](const Typed& of) { return std::ranges::any_of(of.keywords, is_word); });
}

int conditions_in(const SchemaJson& schema) {
  int n = 0;
  for (const auto& [word, unused] : schema.items()) n += is_schema_condition(word) ? 1 : 0;
  return n;
}

bool joins_schemas(std::string_view word) {
  return word == "$ref" || word == "anyOf" || word == "oneOf" || word == "allOf";
}

bool is_never(const SchemaJson& schema) {
  if (schema.is_boolean()) return schema == false;
  if (!schema.is_object()) return false;
  const auto found = schema.find("not");
  return found != schema.end() && (*found == true || (found->is_object() && found->empty()));
}

bool is_of(const SchemaJson& value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  return type == "integer" && (value.is_number_integer() ||
                               (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>()));
}

bool is_of_any(const SchemaJson& value, const SchemaJson& types) {
  if (types.is_string()) return is_of(value, types.get_ref<const std::string&>());
  return std::any_of(types.begin(), types.end(), [&](const SchemaJson& one) {
    return one.is_string() && is_of(value, one.get_ref<const std::string&>());
  });
}

size_t bytes_in(const SchemaJson& value) {
  size_t n = 32;
  if (value.is_string()) n += value.get_ref<const std::string&>().size();
  if (value.is_array()) {
    for (const SchemaJson& inner : value) n += bytes_in(inner);
  }
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) n += key.size() + bytes_in(inner);
  }
  return n;
}

std::string short_text(const std::string& text) { return text.size() <= 64 ? text : text.substr(0, 64) + "..."; }

std::optional<std::set<std::string>> types_of(const SchemaJson& root, const SchemaJson& schema, Looked* looked,
                                              int depth) {
  const SchemaJson* const at = resolved_schema(root, schema, looked);
  if (!at || depth > 8) return std::nullopt;
  std::set<std::string> out;
  if (const auto values = values_of(root, *at, looked)) {
    for (const SchemaJson& value : *values) {
      const bool whole = is_of(value, "integer");
      out.insert(whole ? "integer" : value.is_number() ? "number" : value.type_name());
    }
    return out;
  }
  if (const auto type = at->find("type"); type != at->end()) {
    if (type->is_string()) return std::set<std::string>{type->get<std::string>()};
    if (!type->is_array()) return std::nullopt;
    for (const SchemaJson& one : *type) {
      if (!one.is_string()) return std::nullopt;
      out.insert(one.get<std::string>());
    }
    return out;
  }
  for (const char* word : {"anyOf", "oneOf"}) {
    const auto branches = at->find(word);
    if (branches == at->end() || !branches->is_array()) continue;
    for (const SchemaJson& branch : *branches) {
      const auto some = types_of(root, branch, looked, depth + 1);
      if (!some) return std::nullopt;
      out.insert(some->begin(), some->end());
    }
    return out;
  }
  return std::nullopt;
}

std::optional<std::vector<SchemaJson>> values_of(const SchemaJson& root, const SchemaJson& schema, Looked* looked) {
  const SchemaJson* const at = resolved_schema(root, schema, looked);
  if (!at) return std::nullopt;
  const auto may_copy = [&](const SchemaJson& value) { return !looked || looked->may(bytes_in(value)); };
  if (const auto one = at->find("const"); one != at->end() && may_copy(*one)) return std::vector<SchemaJson>{*one};
  const auto some = at->find("enum");
  if (some == at->end() || !some->is_array() || !std::all_of(some->begin(), some->end(), may_copy)) return std::nullopt;
  return std::vector<SchemaJson>(some->begin(), some->end());
}

std::optional<std::vector<SchemaJson>> listed_values(const SchemaJson& root, const SchemaJson& schema, Looked& looked) {
  constexpr size_t kMostListed = 256;  // they are compared with each other
  const SchemaJson* const list = resolved_schema(root, schema, &looked, true);
  if (!list || list->contains("const") == list->contains("enum")) return std::nullopt;
  for (const auto& [word, unused] : list->items()) {
    if (is_schema_condition(word) && word != "type" && word != "const" && word != "enum") return std::nullopt;
  }
  const auto all = values_of(root, *list, &looked);
  if (!all || all->size() > kMostListed) return std::nullopt;
  std::vector<SchemaJson> out;
  for (const SchemaJson& value : *all) {
    const bool fits = !list->contains("type") || is_of_any(value, (*list)["type"]);
    if (fits && std::find(out.begin(), out.end(), value) == out.end()) out.push_back(value);
  }
  return out;
}

}  // namespace kvilt

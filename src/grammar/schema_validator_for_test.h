// grammar/schema_validator_for_test.h: whether a value fits a JSON Schema, by the words of the specification: a second
// implementation of what grammars promise. For tests only.
#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

namespace kvilt {

// JSON, and more than a double holds.
inline bool is_beyond_doubles(const std::string& text) {
  return std::regex_search(text, std::regex("[eE][+]?[0-9]{3}|[0-9]{300}"));
}

class SchemaValidator {
 public:
  using Json = nlohmann::ordered_json;
  explicit SchemaValidator(const Json& root) : root_(root) {}

  bool fits(const Json& value) const { return fits(value, root_); }

 private:
  static size_t length(const std::string& text) {
    size_t n = 0;
    for (const unsigned char c : text) n += (c & 0xC0) != 0x80;
    return n;
  }
  static bool is_of(const Json& value, const std::string& type) {
    if (type == "integer") return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
    return type == "number" ? value.is_number() : type == value.type_name();
  }

  bool fits(const Json& value, const Json& schema) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (schema.contains("$ref")) {
      const auto where = schema["$ref"].get<std::string>();
      if (!fits(value, where == "#" ? root_ : root_.at(Json::json_pointer(where.substr(1))))) return false;
    }
    if (schema.contains("type")) {
      bool any = false;
      if (schema["type"].is_string()) any = is_of(value, schema["type"]);
      if (schema["type"].is_array()) {
        for (const Json& type : schema["type"]) any = any || is_of(value, type);
      }
      if (!any) return false;
    }
    if (schema.contains("not") && fits(value, schema["not"])) return false;
    if (schema.contains("const") && value != schema["const"]) return false;
    if (schema.contains("enum") &&
        std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
      return false;
    return fits_one_of(value, schema) && fits_string(value, schema) && fits_number(value, schema) &&
           fits_array(value, schema) && fits_object(value, schema);
  }

  bool fits_one_of(const Json& value, const Json& schema) const {
    const auto fitting = [&](const char* word) {
      int n = 0;
      for (const Json& one : schema.at(word)) n += fits(value, one);
      return n;
    };
    if (schema.contains("anyOf") && fitting("anyOf") == 0) return false;
    if (schema.contains("oneOf") && fitting("oneOf") != 1) return false;
    return !schema.contains("allOf") || fitting("allOf") == static_cast<int>(schema["allOf"].size());
  }

  static bool fits_string(const Json& value, const Json& schema) {
    if (!value.is_string()) return true;
    const auto text = value.get<std::string>();
    if (schema.contains("minLength") && length(text) < schema["minLength"]) return false;
    if (schema.contains("maxLength") && length(text) > schema["maxLength"]) return false;
    return !schema.contains("pattern") || std::regex_search(text, std::regex(schema["pattern"].get<std::string>()));
  }

  static bool fits_number(const Json& value, const Json& schema) {
    if (!value.is_number()) return true;
    const double x = value.get<double>();
    const auto bound = [&](const char* word) { return schema[word].template get<double>(); };
    if (schema.contains("minimum") && x < bound("minimum")) return false;
    if (schema.contains("maximum") && x > bound("maximum")) return false;
    if (schema.contains("exclusiveMinimum") && x <= bound("exclusiveMinimum")) return false;
    if (schema.contains("exclusiveMaximum") && x >= bound("exclusiveMaximum")) return false;
    if (!schema.contains("multipleOf")) return true;
    const double times = x / bound("multipleOf");  // .07 is a multiple of .01 as it is written
    return std::fmod(x, bound("multipleOf")) == 0 || std::abs(times - std::round(times)) < 1e-7;
  }

  bool fits_array(const Json& value, const Json& schema) const {
    if (!value.is_array()) return true;
    if (schema.contains("minItems") && value.size() < schema["minItems"]) return false;
    if (schema.contains("maxItems") && value.size() > schema["maxItems"]) return false;
    for (size_t i = 1; schema.value("uniqueItems", false) && i < value.size(); ++i) {
      if (std::find(value.begin(), value.begin() + static_cast<std::ptrdiff_t>(i), value[i]) !=
          value.begin() + static_cast<std::ptrdiff_t>(i))
        return false;
    }
    const size_t first = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < first && !fits(value[i], schema["prefixItems"][i])) return false;
      if (i >= first && schema.contains("items") && !fits(value[i], schema["items"])) return false;
    }
    return true;
  }

  bool fits_object(const Json& value, const Json& schema) const {
    if (!value.is_object()) return true;
    if (schema.contains("minProperties") && value.size() < schema["minProperties"]) return false;
    if (schema.contains("maxProperties") && value.size() > schema["maxProperties"]) return false;
    for (const auto& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    const Json patterns = schema.value("patternProperties", Json::object());
    for (const auto& [key, inner] : value.items()) {
      bool known = false;
      if (schema.contains("properties") && schema["properties"].contains(key)) {
        known = true;
        if (!fits(inner, schema["properties"][key])) return false;
      }
      for (const auto& [pattern, one] : patterns.items()) {
        if (!std::regex_search(key, std::regex(pattern))) continue;
        known = true;
        if (!fits(inner, one)) return false;
      }
      if (schema.contains("propertyNames") && !fits(Json(key), schema["propertyNames"])) return false;
      if (!known && schema.contains("additionalProperties") && !fits(inner, schema["additionalProperties"]))
        return false;
    }
    return true;
  }

  const Json& root_;
};

}  // namespace kvilt

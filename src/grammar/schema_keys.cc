#include "grammar/schema_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace kvilt {
namespace {

using Json = SchemaJson;

constexpr size_t kMostPatterns = 64;  // they are compared in pairs

Status bad(const std::string& what) { return Error{Code::kInvalidArgument, what}; }

// What a property may be that nothing describes. xgrammar reads the second where the first is not said.
Json rest_of(const Json& schema) {
  return schema.value("additionalProperties", schema.value("unevaluatedProperties", Json(true)));
}

bool says(const Json& schema, const char* word) {
  const auto found = schema.find(word);
  return found != schema.end() && !found->empty() && *found != true;
}

// Whether the names are those of each pattern anyway.
bool is_of_patterns(const Json& names, const Json& patterns) {
  if (!names.is_object() || !patterns.is_object() || !names.contains("pattern")) return false;
  for (const auto& [word, value] : names.items()) {
    if (is_schema_condition(word) && word != "pattern" && !(word == "type" && value == "string")) return false;
  }
  for (const auto& [pattern, unused] : patterns.items()) {
    if (names["pattern"] != pattern) return false;
  }
  return true;
}

bool is_letter_or_digit(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// The characters that each text of an expression begins with.
std::string fixed_beginning(std::string_view pattern) {
  std::string out;
  if (!pattern.starts_with('^') || pattern.find('|') != std::string_view::npos) return out;
  for (pattern.remove_prefix(1); !pattern.empty();) {
    const bool escaped = pattern[0] == '\\';
    if (escaped) pattern.remove_prefix(1);
    const unsigned char c = pattern.empty() ? '\0' : static_cast<unsigned char>(pattern[0]);
    const bool itself =
        escaped ? c > ' ' && c < 0x7F && !is_letter_or_digit(c)
                : is_letter_or_digit(c) || std::string_view("_-/:@,;=#% ").find(pattern[0]) != std::string_view::npos;
    if (!itself) break;
    pattern.remove_prefix(1);
    if (!pattern.empty() && std::string_view("*?{").find(pattern[0]) != std::string_view::npos) break;
    out += static_cast<char>(c);
    if (pattern.starts_with('+')) break;
  }
  return out;
}

// A key that fits two patterns must fit both their schemas.
Status check_patterns(const Json& patterns) {
  std::vector<std::pair<std::string, const Json*>> all;
  for (const auto& [pattern, schema] : patterns.items()) all.emplace_back(pattern, &schema);
  if (all.size() > kMostPatterns) return bad(fmt::format("more than {} 'patternProperties'", kMostPatterns));
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = i + 1; j < all.size(); ++j) {
      if (*all[i].second == *all[j].second || are_apart(all[i].first, all[j].first)) continue;
      return bad(
          fmt::format("'patternProperties' '{}' and '{}' may fit one name, and both schemas would hold then, which is "
                      "not supported: let them begin otherwise, as ^a_ and ^b_, or give them one schema",
                      short_text(all[i].first), short_text(all[j].first)));
    }
  }
  return {};
}

Status check_least(const Json& schema, bool named) {
  const auto least = schema.find("minProperties");
  if (least == schema.end() || !least->is_number()) return {};
  const auto allows = [&](const char* word) { return schema.contains(word) && schema[word] != false; };
  const bool others = !named || allows("additionalProperties") || allows("unevaluatedProperties");
  const auto required = schema.find("required");
  const size_t distinct = (required == schema.end() ? 0 : required->size()) + 1;
  if (others && least->get<double>() > static_cast<double>(distinct)) {
    return bad(
        fmt::format("'minProperties' of more than {} is not supported where keys are free: an answer may "
                    "write one of them twice",
                    distinct));
  }
  return {};
}

}  // namespace

bool are_apart(const std::string& pattern, const std::string& other) {
  const std::string first = fixed_beginning(pattern), second = fixed_beginning(other);
  return !first.starts_with(second) && !second.starts_with(first);
}

Status settle_names(const Json& root, Json& schema, Looked& looked) {
  const auto names = schema.find("propertyNames");
  if (names == schema.end()) return {};
  if (*names == true || *names == Json::object() || *names == Json{{"type", "string"}}) {
    schema.erase("propertyNames");
    return {};
  }
  if (says(schema, "patternProperties")) {
    if (is_of_patterns(*names, schema["patternProperties"])) schema.erase("propertyNames");
    return {};
  }
  if (says(schema, "properties")) return {};
  const Json rest = rest_of(schema);
  if (is_never(rest)) {  // there are none to be named
    schema.erase("propertyNames");
    schema["additionalProperties"] = false;
    return {};
  }
  const auto values = listed_values(root, *names, looked);
  if (!values || schema.contains("properties") || schema.contains("patternProperties")) return {};
  if (!looked.may(bytes_in(rest) * values->size())) return bad(kTooManyKeys);
  Json properties = Json::object();
  for (const Json& name : *values) {
    if (name.is_string()) properties[name.get_ref<const std::string&>()] = rest;
  }
  schema.erase("propertyNames");
  schema["properties"] = std::move(properties);
  schema["additionalProperties"] = false;
  return {};
}

Status check_keys(const Json& schema) {
  const bool named = says(schema, "properties");
  for (const char* word : {"patternProperties", "propertyNames"}) {
    if (named && says(schema, word)) return bad(fmt::format("'{}' beside 'properties' is not supported", word));
  }
  if (says(schema, "patternProperties")) {
    if (says(schema, "propertyNames"))
      return bad("'propertyNames' beside 'patternProperties' is not supported: write what it says into the patterns");
    if (schema["patternProperties"].is_object()) KVILT_TRY(check_patterns(schema["patternProperties"]));
  }
  return check_least(schema, named);
}

}  // namespace kvilt

#include "grammar/schema_union.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace kvilt {
namespace {

constexpr size_t kMostBranches = 64;  // they are compared in pairs

// What equals another scalar has its key: 1 is 1.0.
std::string scalar_key(const SchemaJson& value) {
  return value.is_number() ? fmt::format("{:.17g}", value.get<double>())
                           : value.dump(-1, ' ', false, SchemaJson::error_handler_t::replace);
}

// Lists and objects are taken for ones that may be equal.
bool has_one_of(const std::vector<SchemaJson>& values, const std::vector<SchemaJson>& others) {
  const bool structured = std::ranges::any_of(values, &SchemaJson::is_structured);
  std::set<std::string> keys;
  for (const SchemaJson& value : values) {
    if (!value.is_structured()) keys.insert(scalar_key(value));
  }
  return std::ranges::any_of(others, [&](const SchemaJson& other) {
    return other.is_structured() ? structured : keys.contains(scalar_key(other));
  });
}

bool are_of_other_types(const SchemaJson& root, const SchemaJson& a, const SchemaJson& b, Looked& looked) {
  const auto first = types_of(root, a, &looked), second = types_of(root, b, &looked);
  const auto kind = [](const std::string& type) { return type == "integer" ? "number" : type.c_str(); };
  return first && second && std::ranges::none_of(*first, [&](const std::string& type) {
           return std::ranges::any_of(
               *second, [&](const std::string& other) { return std::string_view(kind(type)) == kind(other); });
         });
}

SchemaJson* tagged_object(SchemaJson& root, SchemaJson& branch, Looked* looked) {
  SchemaJson* const object = resolved_schema(root, branch, looked);
  if (!object || object->value("type", SchemaJson()) != "object") return nullptr;
  const auto properties = object->find("properties"), required = object->find("required");
  if (required != object->end() && !required->is_array()) return nullptr;
  return properties != object->end() && properties->is_object() ? object : nullptr;
}

bool is_required(const SchemaJson& object, const std::string& key) {
  const auto required = object.find("required");
  return required != object.end() && std::find(required->begin(), required->end(), SchemaJson(key)) != required->end();
}

size_t named_in(const SchemaJson& object) {
  const auto required = object.find("required");
  return required == object.end() ? 0 : required->size();
}

void require_here(SchemaJson& object, const std::string& key) {
  if (is_required(object, key)) return;
  if (!object.contains("required")) object["required"] = SchemaJson::array();
  object["required"].push_back(key);
}

// A property that two objects describe with other values. required: one of them must have it.
struct Tag {
  std::string key;
  bool required = false;
};
std::optional<Tag> tag_between(const SchemaJson& root, const SchemaJson& first, const SchemaJson& second,
                               Looked& looked) {
  std::optional<Tag> out;
  for (const auto& [key, schema] : first["properties"].items()) {
    if (!looked.may(second["properties"].size())) return std::nullopt;
    const auto other = second["properties"].find(key);
    if (other == second["properties"].end()) continue;
    const auto values = values_of(root, schema, &looked), others = values_of(root, *other, &looked);
    if (!values || !others || has_one_of(*values, *others)) continue;
    if (!looked.may(named_in(first) + named_in(second))) return std::nullopt;
    if (is_required(first, key) || is_required(second, key)) return Tag{key, true};
    if (!out) out = Tag{key, false};
  }
  return out;
}

// An object that must have the tag fits no schema that allows it other values alone.
bool differ_in_a_tag(SchemaJson& root, SchemaJson& a, SchemaJson& b, Looked& looked,
                     std::vector<RequiredLater>& later) {
  const SchemaJson *first = tagged_object(root, a, &looked), *second = tagged_object(root, b, &looked);
  if (!first || !second || first == second) return false;
  const auto tag = tag_between(root, *first, *second, looked);
  if (!tag) return false;
  if (tag->required) return true;
  for (SchemaJson* branch : {&a, &b}) {
    if (branch->contains("$ref")) {
      later.push_back({(*branch)["$ref"].get<std::string>(), tag->key});
    } else {
      require_here(*branch, tag->key);
    }
  }
  return true;
}

}  // namespace

bool make_exclusive(SchemaJson& root, SchemaJson& branches, Looked& looked, std::vector<RequiredLater>& later) {
  if (!branches.is_array() || branches.empty() || branches.size() > kMostBranches) return false;
  for (size_t i = 0; i < branches.size(); ++i) {
    for (size_t j = i + 1; j < branches.size(); ++j) {
      if (are_of_other_types(root, branches[i], branches[j], looked)) continue;
      const auto values = values_of(root, branches[i], &looked), others = values_of(root, branches[j], &looked);
      if (values && others && !has_one_of(*values, *others)) continue;
      if (!differ_in_a_tag(root, branches[i], branches[j], looked, later)) return false;
    }
  }
  return branches.size() > 1 || resolved_schema(root, branches[0]);
}

bool require_now(SchemaJson& root, const RequiredLater& what) {
  SchemaJson branch = {{"$ref", what.ref}};
  SchemaJson* const object = tagged_object(root, branch, nullptr);
  if (!object || !(*object)["properties"].contains(what.key)) return false;
  require_here(*object, what.key);
  return true;
}

}  // namespace kvilt
